"""``devmem roundtrip``: copy arrays to a device and back, and compare them bit for bit."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np
from numpy.typing import NDArray

import devmem

from ..spi.sizes import exact_size
from .array_files import Source, Unreadable, sources
from .bitwise_compare import first_difference
from .completion import completes
from .output import FAILED, OK, UNUSABLE, collected_warnings, complain, example, print_json, print_table, progress
from .sample_arrays import samples

Array = NDArray[Any]
#: Bytes from which a table has rates: those of a smaller array tell what a call costs, not how fast bytes move.
RATED = 1 << 20


class Verdict(StrEnum):
    """The result for an array; ``error``: it was never moved."""

    SAME = "ok"
    MISMATCH = "MISMATCH"
    ERROR = "error"


@dataclass
class Row:
    """One array with its result; rates are those of the fastest repetition, in 10^9 bytes a second."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    layout: str = ""
    nbytes: int = 0
    h2d_gb_per_s: float | None = None
    d2h_gb_per_s: float | None = None
    path: str = ""
    source: str = ""
    verdict: Verdict = Verdict.ERROR
    detail: str = ""

    @property
    def moved(self) -> bool:
        """Whether the array was copied to the device and back."""
        return self.verdict is not Verdict.ERROR


backend_option = click.option(
    "--backend",
    shell_complete=completes(lambda: [status.name for status in devmem.backends()]),
    help="Backend to use, instead of DEVMEM_BACKEND or the first usable one.",
)
device_option = click.option(
    "--device",
    shell_complete=completes(lambda: map(str, devmem.devices())),
    help="Device to use, as shown by `devmem info`: host:0.",
)


@click.command(epilog=example("devmem roundtrip weights.npy --repeat 5"))
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE.npy|FILE.npz ...]")
@backend_option
@device_option
@click.option("--repeat", default=1, type=click.IntRange(min=1), help="Move each array so often; the fastest counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.pass_context
def roundtrip(
    context: click.Context, files: tuple[Path, ...], backend: str | None, device: str | None, repeat: int, as_json: bool
) -> None:
    """Upload arrays, download them, and compare every bit.

    Files are mapped, not read, where their format allows it. Without files, sample data of matplotlib is moved in many layouts.

    Exit code 0: every array came back the same. 1: an array did not. 2: an array could not be read or moved at all; the rest
    was moved all the same.
    """
    with collected_warnings() as warnings:
        try:
            chosen = choose(backend, device)
            rows = _run(_inputs(files), chosen, repeat)
        except (devmem.DevmemError, Unreadable) as error:
            _give_up(context, str(error))
        notes = _notes(chosen, warnings, on_purpose=bool(backend or device))
    if as_json:
        print_json({"device": str(chosen), "device_name": chosen.info.name, "notes": notes, "arrays": rows})
    else:
        _show(chosen, rows)
    for note in notes:
        print(note, file=sys.stderr if as_json else sys.stdout)
    for row in rows:
        if row.verdict is not Verdict.SAME:
            complain(f"{row.name} did not come back the same: {row.detail}" if row.moved else row.detail)
    context.exit(_exit_code(rows))


def choose(backend: str | None, device: str | None) -> devmem.Device:
    """The device that the options ``--backend`` and ``--device`` select; the backend is selected until the command ends."""
    if backend:
        click.get_current_context().with_resource(devmem.use_backend(backend))
    return devmem.device(device) if device else devmem.current_device()


def _inputs(files: Sequence[Path]) -> list[Source | Row]:
    """The arrays to move, and a finished row for each file without any, in the given order."""
    if not files:
        return list(samples())
    inputs: list[Source | Row] = []
    for file in files:
        try:
            inputs += sources(file)
        except Unreadable as error:
            inputs.append(Row(str(file), detail=str(error)))
    return inputs


def _run(inputs: Sequence[Source | Row], device: devmem.Device, repeat: int) -> list[Row]:
    rows = [each if isinstance(each, Row) else Row(each.name) for each in inputs]
    found = [(each, row) for each, row in zip(inputs, rows, strict=True) if not isinstance(each, Row)]
    with progress("arrays", len(found) * repeat) as advance:
        for source, row in found:
            try:
                for _ in _moves(source, row, device, repeat):
                    advance()
            except Unreadable as error:  # which names the file
                row.detail = str(error)
            except (devmem.DevmemError, TypeError, MemoryError) as error:
                row.verdict, row.detail = Verdict.ERROR, f"{source.name}: {error}"
    return rows


def _moves(source: Source, row: Row, device: devmem.Device, repeat: int) -> Iterator[None]:
    """Fill the row; yield after each repetition, and stop at the first mismatch."""
    array, row.source = source.load()
    row.shape, row.dtype, row.layout, row.nbytes = array.shape, _dtype(array.dtype), layout(array), array.nbytes
    up, down = float("inf"), float("inf")
    devmem.transfer_stats(reset=True)
    for _ in range(repeat):
        begin = time.perf_counter()
        moved = devmem.to_device(array, device=device)
        middle = time.perf_counter()
        back = moved.copy_to_host()
        end = time.perf_counter()
        moved.free()
        up, down = min(up, middle - begin), min(down, end - middle)
        row.detail = first_difference(array, np.asarray(back)) or ""
        row.verdict = Verdict.MISMATCH if row.detail else Verdict.SAME
        if row.detail:
            break
        yield
    row.path = _paths()
    if array.nbytes:
        row.h2d_gb_per_s, row.d2h_gb_per_s = array.nbytes / up / 1e9, array.nbytes / down / 1e9


def _paths() -> str:
    taken = [path for path, numbers in devmem.transfer_stats().items() if numbers["copies"]]
    return ", ".join(sorted(taken, key=lambda path: (not path.startswith("h2d"), path)))


def layout(array: Array) -> str:
    """The memory layout of an array, in a word or two."""
    flags = array.flags
    if array.ndim == 0:
        words = ["0-d"]
    elif array.size == 0:
        words = ["empty"]
    elif flags.c_contiguous:
        words = ["C"]
    elif flags.f_contiguous:
        words = ["F"]
    else:
        strides = [stride for stride, length in zip(array.strides, array.shape, strict=True) if length > 1]
        words = [word for word, here in (("negative", min(strides) < 0), ("zero", 0 in strides)) if here]
        words = [f"{' and '.join(words)} strides"] if words else ["strided"]
    if not flags.aligned:
        words.append("unaligned")
    return ", ".join(words)


def _dtype(dtype: np.dtype[np.generic]) -> str:
    # The full dtype of a record would fill the table.
    if dtype.names is None:
        return dtype.str
    return f"{len(dtype.names)} fields, {dtype.itemsize} B"


def _notes(device: devmem.Device, warnings: Sequence[str], *, on_purpose: bool) -> list[str]:
    if device.info.backend == "host":
        asked = on_purpose or any(s.name == "DEVMEM_BACKEND" and s.source != "default" for s in devmem.settings())
        why = "as asked" if asked else "no GPU backend is usable; `devmem doctor` says why"
        return [f"This ran on the host backend ({why}): ordinary memory, no GPU."]
    return [f"warning: {' '.join(message.split())}" for message in warnings]


def _show(device: devmem.Device, rows: Sequence[Row]) -> None:
    print_table(
        ("name", "shape", "dtype", "layout", "bytes", "H2D GB/s", "D2H GB/s", "path up, down", "from", "verdict"),
        (
            (
                row.name,
                "×".join(map(str, row.shape)) or ("()" if row.dtype else ""),
                row.dtype,
                row.layout,
                f"{row.nbytes:,}" if row.dtype else "–",
                _rate(row, row.h2d_gb_per_s),
                _rate(row, row.d2h_gb_per_s),
                _short(row.path),
                row.source,
                row.verdict,
            )
            for row in rows
        ),
        title=f"Round trip through {device} ({device.info.name})",
        right="bytes,H2D GB/s,D2H GB/s",
        optional=("from", "path up, down", "dtype", "layout"),
    )
    same, moved = sum(row.verdict is Verdict.SAME for row in rows), sum(row.moved for row in rows)
    total = sum(row.nbytes for row in rows if row.verdict is Verdict.SAME)
    others = f"; {len(rows) - moved} could not be read or moved" if moved < len(rows) else ""
    print(
        f"{same} of {moved} {'array' if moved == 1 else 'arrays'} came back bit for bit ({exact_size(total)} each way){others}."
    )


def _short(path: str) -> str:
    """``h2d packed, d2h direct`` as ``packed, direct``; one word if both are the same."""
    return ", ".join(dict.fromkeys(part.split(" ", 1)[-1] for part in path.split(", ")))


def _rate(row: Row, rate: float | None) -> str:
    if rate is None or row.nbytes < RATED:
        return "–"
    return f"{rate:.2f}" if rate >= 0.005 else "<0.01"


def _exit_code(rows: Sequence[Row]) -> int:
    verdicts = {row.verdict for row in rows}
    return FAILED if Verdict.MISMATCH in verdicts else UNUSABLE if Verdict.ERROR in verdicts else OK


def _give_up(context: click.Context, message: str) -> NoReturn:
    complain(message)
    context.exit(UNUSABLE)

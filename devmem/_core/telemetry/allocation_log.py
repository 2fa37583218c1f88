"""The format of the log of allocations: what `Log` writes, and what is read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...spi.errors import ConfigError
from ..base.call_site import Site


class Record(NamedTuple):
    """One line of a trace: ``op`` is "allocate" or "deallocate", ``t`` seconds since the trace began.

    ``frames`` are lines of the program that led to it, innermost first, where they were recorded.
    """

    op: str
    address: int
    nbytes: int
    stream: int
    t: float
    frames: tuple[Site, ...] = ()

    def line(self) -> bytes:
        """The record as `Log` writes it."""
        return (
            f'{{"op": "{self.op}", "address": {self.address}, "nbytes": {self.nbytes}, "stream": {self.stream}, '
            f'"t": {self.t:.6f}{self._frames_text()}}}\n'
        ).encode()

    def _frames_text(self) -> str:
        if not self.frames:
            return ""
        import json  # a tenth of what importing devmem takes, for those who record frames

        return f', "frames": {json.dumps(self.frames)}'


def read(path: str | Path) -> Iterator[Record]:
    """The records of a trace, in order.

    A last line that was cut off, as by a process that was killed, is left out.

    Raises
    ------
    ConfigError
        A line is no record; names the file and the line.
    """
    import json  # a tenth of what importing devmem takes, for those who have a trace

    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
                record = Record(
                    entry["op"],
                    int(entry["address"]),
                    int(entry["nbytes"]),
                    int(entry["stream"]),
                    float(entry["t"]),
                    tuple((str(file), int(line), str(name)) for file, line, name in entry.get("frames", ())),
                )
                if record.op not in ("allocate", "deallocate") or record.nbytes < 0:
                    raise ValueError(record.op)
            except (AttributeError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return
                raise ConfigError(
                    f"{path}, line {number}: not a record of an allocation ({error}); a line is a JSON object with "
                    f"op (allocate or deallocate), address, nbytes, stream and t"
                ) from None
            yield record

"""How long ``devmem migrate`` takes for four public programs, 102 files of which 22 change.

    python benchmarks/migrate.py [--rounds N] [--before CHECKOUT] [--json FILE] [--markdown FILE]

The wheels are those of tests/programs/programs.toml, fetched by pip, which compares their hashes. Each round runs the command
once, in a process of its own, without --write; nothing is cached between runs. ``--before`` runs another checkout of devmem in
turn, which its folder names. The least times of the rounds are shown, on the clock and of the processors: other work on the
machine lengthens the first more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from table import Row, line, markdown

ROOT = Path(__file__).parents[1]
PROGRAMS = tomllib.loads((ROOT / "tests/programs/programs.toml").read_text())
#: The folders that are read.
FOLDERS = {"stumpy": "stumpy", "warprnnt_numba": "warprnnt_numba", "qokit": "qokit/fur", "pysdtw": "pysdtw"}
GOAL = 5.0


def fetched(folder: Path) -> list[str]:
    """The folders of the programs, unpacked below ``folder``."""
    wanted = [f"{PROGRAMS[name]['wheel']} --hash=sha256:{PROGRAMS[name]['sha256']}" for name in FOLDERS]
    (folder / "requirements.txt").write_text("\n".join(wanted) + "\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    subprocess.run([*pip, "-r", str(folder / "requirements.txt"), "-d", str(folder)], check=True)
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder / wheel.name.partition("-")[0])
    return [str(folder / name / inside) for name, inside in FOLDERS.items()]


def once(checkout: Path, folders: list[str]) -> tuple[float, float, int, int]:
    """The seconds on the clock and of the processors, the number of files, and how many would change."""
    command = [sys.executable, "-m", "devmem.cli", "migrate", "--json", *folders]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    ran = subprocess.run(command, cwd=checkout, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."})
    wall, after = perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    files = json.loads(ran.stdout)["files"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, len(files), sum(each["changed"] for each in files)


def main() -> None:
    """Measure, print the rows, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--before", type=Path, action="append", default=[], help="another checkout, in turn with this one"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    ways = {"devmem migrate": ROOT} | {f"at {each.name}": each for each in options.before}
    with tempfile.TemporaryDirectory() as folder:
        folders = fetched(Path(folder))
        found: dict[str, list[tuple[float, float, int, int]]] = {what: [] for what in ways}
        for _ in range(options.rounds):
            for what, checkout in ways.items():
                found[what].append(once(checkout, folders))
    rows = []
    for what, runs in found.items():
        _, _, files, changed = runs[0]
        wall, cpu = (min(each[at] for each in runs) for at in (0, 1))
        detail = f"{cpu:.2f} s of processor time; {files} files, {changed} to change"
        row = Row(what, "host", wall, "s", detail, numbers={"wall": wall, "cpu": cpu})
        rows.append(row.judged(GOAL, f"{GOAL:g} s") if what == "devmem migrate" else row)
    for row in rows:
        print(line(row))
    about: dict[str, object] = {
        "python": platform.python_version(),
        "libcst": version("libcst"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": " ".join(f"{each:.1f}" for each in os.getloadavg()),
    }
    if options.json:
        document = {"about": about, "rows": [vars(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        wheels = ", ".join(PROGRAMS[name]["wheel"] for name in FOLDERS)
        notes = [
            "Written by `python benchmarks/migrate.py --json FILE --markdown FILE`; minimum of the rounds.",
            "",
            f"Four public programs at pinned hashes: {wheels}. Nothing is cached between runs.",
        ]
        text = markdown("devmem migrate", about, notes, {"102 files": rows})
        options.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""How strong the tests of each room of `devmem/_core` are, measured with sampled mutants: run by ``scripts/mutate``.

First a survey: the tests run once under coverage on each backend, so that each line knows the tests that run it. It is kept in
``build/mutate`` until the sources or the tests change. Then, for each room, lines are drawn and one mutation of each: mutmut's
operators, and two more that are made here (a condition negated, a call left out). The draw hangs on the seed and on the text of
the line alone, so that a change elsewhere leaves it as it is. A mutant is run in a copy of the tree, against the tests that run
its line: those in the room's folders first, then the others, one case of each test function before the second case of any,
until a test fails or until the tests chosen would take `--seconds`. A line that runs on import counts as run by every test that
runs any line of its file; one that no test runs, as run by the tests that start processes. A test that fails, or hangs, without
the mutant, too, does not count.

Results are kept as they come: ``--again`` goes on where a run was ended, and runs the survivors of a run that has ended.
``--page`` writes the figures and the survivors as a table, in which the reasons that were written into it by hand stay.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue

import coverage
import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "devmem" / "_core"
KEPT = ROOT / "build" / "mutate"
#: What is surveyed on each backend. Leaks, documentation and other libraries take minutes and are about other things.
SURVEYED = {
    "host": ["tests/unit", "tests/contract", "tests/property", "tests/fuzz", "tests/integration"],
    "cuda": ["tests/integration/every_backend"],
}
#: Mutants are not made in here: what is said, and what exists for the type checker only.
SKIPPED = (cst.Annotation, cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.Import, cst.ImportFrom)
#: A bar in a cell of a table.
PIPE = "\\|"
PAGE = """\
# Mutants

How strong the tests of each room of `devmem/_core` are: `scripts/mutate` changes one sampled line at a time and runs the tests
that cover it. The script writes this page, and leaves the reasons as they are.
"""
COPIED = ("devmem", "tests", "benchmarks", "examples", "docs", "scripts", "pyproject.toml", "README.md", "CHANGELOG.md")


@dataclass
class Mutant:
    """One change of one line, and what became of it."""

    room: str
    file: str
    line: int
    before: str
    after: str
    #: Which of the equal lines of the file, from 1.
    nth: int
    source: str = field(repr=False)
    #: The lines whose tests are asked.
    lines: tuple[int, int] = (0, 0)
    status: str = ""
    tests: int = 0
    killer: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.before}  ->  {self.after}"

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What it is known by, wherever its line has moved to."""
        return self.file, self.before, self.after, self.nth


def main() -> int:
    """Survey, draw, run, report."""
    rooms = sorted(path.name for path in CORE.iterdir() if (path / "__init__.py").exists())
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"default: all of {', '.join(rooms)}")
    parser.add_argument("--sample", type=int, default=25, help="mutants of each room (default: 25)")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument(
        "--seconds", type=float, default=120, help="of tests for one mutant on one backend (default: 120)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at the same time (default: 2)")
    parser.add_argument("--backends", default="host,cuda", help="default: host,cuda (cuda is the emulated driver)")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="survey and run these only, for a quick look")
    parser.add_argument("--json", type=Path, default=KEPT / "mutants.json", help="default: build/mutate/mutants.json")
    parser.add_argument("--page", type=Path, help="also write the figures and the survivors there, as Markdown")
    parser.add_argument("--list", action="store_true", help="only list the mutants that are drawn")
    parser.add_argument("--again", action="store_true", help="run only those that the file of --json has not as killed")
    options = parser.parse_args()
    if unknown := set(options.rooms) - set(rooms):
        parser.error(f"no such room: {', '.join(sorted(unknown))}; there are {', '.join(rooms)}")
    mutants = [mutant for room in options.rooms or rooms for mutant in drawn(room, options.sample, options.seed)]
    if options.list:
        print(*mutants, sep="\n")
        return 0
    if options.again:
        recall(mutants, options.json)
    surveys = [Survey(each, options.tests or SURVEYED[each]) for each in options.backends.split(",")]
    for _ in run_all([each for each in mutants if each.status != "killed"], surveys, options.seconds, options.jobs):
        keep(mutants, options.json)
    text = report(mutants, reasons(options.page) if options.page else {})
    print(text)
    if options.page:
        options.page.write_text(text, encoding="utf-8")
    return 0


# -- results -----------------------------------------------------------------------------------------------------------


def keep(mutants: list[Mutant], path: Path) -> None:
    """Write what is known of the mutants."""
    told = [{key: value for key, value in asdict(each).items() if key != "source"} for each in mutants]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def recall(mutants: list[Mutant], path: Path) -> None:
    """Give the mutants the results that an earlier run has kept."""
    for each in json.loads(path.read_text(encoding="utf-8")):
        for mutant in mutants:
            if mutant.key == (each["file"], each["before"], each["after"], each["nth"]):
                mutant.status, mutant.tests, mutant.killer = each["status"], each["tests"], each["killer"]


def reasons(page: Path) -> dict[tuple[str, str, str], str]:
    """The reasons that a page gives for survivors, by what its rows say of them before."""
    rows = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    cells = [row[2:-2].split(" | ") for row in rows if row.startswith("| `")]
    return {(file.partition(":")[0] + "`", before, after): reason for file, before, after, reason in cells}


def report(mutants: list[Mutant], known: dict[tuple[str, str, str], str]) -> str:
    """Each room's share of killed mutants, and the survivors with their reasons, as a page."""
    lines = [PAGE, "| room | mutants | killed | share |", "|---|--:|--:|--:|"]
    rooms = {room: list(group) for room, group in itertools.groupby(mutants, key=lambda each: each.room)}
    for room, members in {**rooms, "all": mutants}.items():
        killed = sum(each.status == "killed" for each in members)
        lines.append(f"| {room} | {len(members)} | {killed} | {100 * killed / max(len(members), 1):.0f} % |")
    lines += ["", "## Survivors", "", "| line | before | after | why it survives |", "|---|---|---|---|"]
    for each in mutants:
        if each.status != "killed":
            file = each.file.removeprefix("devmem/_core/")
            before, after = (f"`{text.replace('|', PIPE)}`" for text in (each.before, each.after))
            why = known.get((f"`{file}`", before, after), "")
            lines.append(f"| `{file}:{each.line}` | {before} | {after} | {why or 'to be looked at'} |")
    return "\n".join(lines) + "\n"


# -- drawing -----------------------------------------------------------------------------------------------------------


def drawn(room: str, count: int, seed: int) -> list[Mutant]:
    """Mutants of a room: lines are drawn, then one of the mutations of each line."""
    files = [Mutations(path) for path in sorted((CORE / room).rglob("*.py"))]
    lots = [
        (random.Random(f"{seed} {file.name} {file.text(line)}"), file, line) for file in files for line in file.made
    ]
    mutants: list[Mutant] = []
    for chance, file, line in sorted(lots, key=lambda lot: lot[0].random()):
        if len(mutants) == count:
            break
        candidates = file.made[line]
        chance.shuffle(candidates)
        made = (file.mutant(room, *each) for each in candidates)
        mutants += itertools.islice(filter(None, made), 1)
    return sorted(mutants, key=lambda each: (each.file, each.line))


class Mutations(cst.CSTVisitor):
    """The mutations of a file by their lines: (node, what it becomes, the node whose lines say which tests run it)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.name = path.relative_to(ROOT).as_posix()
        self.code = path.read_text(encoding="utf-8")
        self.made: dict[int, list[tuple[cst.CSTNode, cst.CSTNode, cst.CSTNode]]] = defaultdict(list)
        wrapper = MetadataWrapper(cst.parse_module(self.code), unsafe_skip_copy=True)
        self._module, self._positions = wrapper.module, wrapper.resolve(PositionProvider)
        self._module.visit(self)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Mutate a node, and look at its children if mutants may be there."""
        if isinstance(node, SKIPPED) or has_no_behaviour(node):
            return False
        for kind, operator in mutation_operators:
            if isinstance(node, kind) and operator is not operator_string:
                for changed in operator(node):
                    self._add(node, changed, node)
        if isinstance(node, cst.If):
            test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            self._add(node.test, cst.UnaryOperation(cst.Not(), test), node.test)
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            self._add(node, cst.Pass(), node)
        return True

    def _add(self, node: cst.CSTNode, changed: cst.CSTNode, header: cst.CSTNode) -> None:
        self.made[self._positions[node].start.line].append((node, changed, header))

    def text(self, line: int) -> tuple[str, int]:
        """A line, and which of the equal lines of the file it is."""
        before = [each.strip() for each in self.code.splitlines()[:line]]
        return before[-1], before.count(before[-1])

    def mutant(self, room: str, node: cst.CSTNode, changed: cst.CSTNode, header: cst.CSTNode) -> Mutant | None:
        """The mutant that a mutation makes; none if it changes nothing or does not compile."""
        source = cst.ensure_type(self._module.deep_replace(node, changed), cst.Module).code
        pairs = zip(self.code.splitlines(), source.splitlines(), strict=False)
        differing = [(at, old.strip(), new.strip()) for at, (old, new) in enumerate(pairs, 1) if old != new]
        try:
            compile(source, self.name, "exec")
        except SyntaxError:
            return None
        if not differing:
            return None
        at, before, after = differing[0]
        lines = self._positions[header].start.line, self._positions[header].end.line
        return Mutant(room, self.name, at, before, after, self.text(at)[1], source, lines)


def has_no_behaviour(node: cst.CSTNode) -> bool:
    """Whether a node is there for the type checker, or only says how instances are laid out."""
    if isinstance(node, cst.If):
        return isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING"
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        return node.func.value in ("TypeVar", "ParamSpec", "NewType", "cast")
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        name = target.value if isinstance(target, cst.Name) else ""
        is_alias = isinstance(node.value, cst.Name | cst.Subscript) and name[:1].isupper() and not name.isupper()
        return is_alias or name in ("__slots__", "__all__")
    return isinstance(node, cst.Decorator)


# -- the survey --------------------------------------------------------------------------------------------------------


class Survey:
    """Which tests run which lines on one backend, and how long each takes."""

    def __init__(self, backend: str, paths: list[str]) -> None:
        self.backend = backend
        base = KEPT / f"{backend}-{state(paths)}"
        if not base.with_suffix(".json").exists():
            for old in KEPT.glob(f"{backend}-*"):
                old.unlink()
            KEPT.mkdir(parents=True, exist_ok=True)
            print(f"== survey of the tests on {backend}, under coverage", flush=True)
            began = time.monotonic()
            limits = ["-o", "timeout=400", "-o", "faulthandler_timeout=900", "-p", "no:randomly"]
            command = [*pytest(backend), *limits, "--tb=no", "-q", "-rN", *paths]
            with (KEPT / f"{backend}.log").open("w", encoding="utf-8") as log:
                subprocess.run(command, cwd=ROOT, env=environment(ROOT, SURVEY=str(base)), stdout=log, check=False)
            print(f"   {time.monotonic() - began:.0f} s", flush=True)
        results = json.loads(base.with_suffix(".json").read_text(encoding="utf-8"))
        self.seconds = {name: seconds for name, (outcome, seconds) in results.items() if outcome == "passed"}
        self._data = coverage.CoverageData(str(base.with_suffix(".coverage")))
        self._data.read()
        self._files: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutant: Mutant, limit: float) -> tuple[list[str], list[str]]:
        """The tests that run a mutant's line: those of its room, and the others; of each, what fits into half the seconds."""
        path = str(ROOT / mutant.file)
        by_line = self._files.setdefault(path, self._data.contexts_by_lineno(path))
        first, last = mutant.lines
        names = {name for line in range(first, last + 1) for name in by_line.get(line, ())}
        if "" in names:  # it runs on import
            names = {name for contexts in by_line.values() for name in contexts}
        names &= self.seconds.keys()
        if not names:  # perhaps in a process that a test starts, which no survey sees
            names = {name for name in self.seconds if "/processes/" in name}
        ours = {name for name in names if mutant.room in name.partition("::")[0].split("/")}
        return self.chosen(ours, limit / 2), self.chosen(names - ours, limit / 2)

    def chosen(self, names: set[str], limit: float) -> list[str]:
        """As many of some tests as fit into a number of seconds."""
        ends = itertools.accumulate(self.seconds[name] for name in self.in_order(names))
        return [name for name, end in zip(self.in_order(names), ends, strict=True) if end <= limit]

    def in_order(self, names: Iterable[str]) -> Iterator[str]:
        """One case of each test function, then the second of each, and so on; the shortest first."""
        functions = defaultdict(list)
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            functions[name.partition("[")[0]].append(name)
        for turn in itertools.zip_longest(*functions.values()):
            yield from filter(None, turn)


def state(paths: list[str]) -> str:
    """A name for the sources and the tests as they are, and for those that are surveyed."""
    digest = hashlib.sha256(repr((sys.version, paths)).encode())
    for path in sorted([*(ROOT / "devmem").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


# -- running -----------------------------------------------------------------------------------------------------------


def run_all(mutants: list[Mutant], surveys: list[Survey], seconds: float, jobs: int) -> Iterator[None]:
    """Run every mutant, each in one of as many copies of the tree as there are jobs; stop after each."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as work:
        copies: Queue[Copy] = Queue()
        for number in range(jobs):
            copies.put(Copy(Path(work) / str(number)))

        def run(mutant: Mutant) -> None:
            copy = copies.get()
            try:
                copy.run(mutant, surveys, seconds)
            finally:
                copies.put(copy)
            print(f"{mutant.status:9} {mutant}" + (f"  [{mutant.killer}]" if mutant.killer else ""), flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(run, mutants)


class Copy:
    """A copy of the tree, in which one mutant at a time stands in the place of the original."""

    #: Tests that also fail without a mutant when they run alone, and those that do not.
    sound: dict[tuple[str, str], bool] = {}  # noqa: RUF012

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "_build", "results"))
            else:
                shutil.copy(source, root / name)
        # Checked by their hash: a mutant may have the size and the second of its original.
        compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "devmem"]
        subprocess.run(compiling, cwd=root, check=True)

    def run(self, mutant: Mutant, surveys: list[Survey], seconds: float) -> None:
        """Run a mutant until a test fails on it."""
        path = self.root / mutant.file
        original = path.read_text(encoding="utf-8")
        mutant.status = "survived"
        for survey in surveys:
            for names in survey.tests(mutant, seconds):
                while names and mutant.status != "killed":
                    path.write_text(mutant.source, encoding="utf-8")
                    try:
                        killer = self.failing(survey, names)
                    finally:
                        path.write_text(original, encoding="utf-8")
                    if not killer:
                        mutant.tests += len(names)
                        break
                    if killer in names and not self.is_sound(survey, killer):
                        names = names[names.index(killer) + 1 :]
                        continue
                    mutant.status, mutant.killer = "killed", killer
        if mutant.status != "killed" and not mutant.tests:
            mutant.status = "uncovered"

    def is_sound(self, survey: Survey, name: str) -> bool:
        """Whether a test passes without a mutant."""
        key = (survey.backend, name)
        if key not in self.sound:
            self.sound[key] = not self.failing(survey, [name])
        return self.sound[key]

    def failing(self, survey: Survey, names: list[str]) -> str:
        """The first of some tests that fails, hangs or ends the process, or that process's status; nothing if all pass."""
        chosen, killer = self.root / "chosen.json", self.root / "killer"
        chosen.write_text(json.dumps(names), encoding="utf-8")
        killer.unlink(missing_ok=True)
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        limits = ["-o", f"timeout={30 + 5 * max(survey.seconds[name] for name in names):.0f}"]
        command = [*pytest(survey.backend), "-q", "-x", "--tb=no", "-p", "no:randomly", *limits, *files]
        settings = environment(self.root, CHOSEN=str(chosen), KILLER=str(killer))
        limit = 120 + 5 * sum(survey.seconds[name] for name in names)
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=limit)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            said = process.communicate()[0].decode(errors="replace")
        if process.returncode == 0:
            return ""
        if process.returncode in (4, 5):
            raise RuntimeError(f"pytest found no tests to run: {said[-2000:]}")
        if killer.exists():
            return killer.read_text(encoding="utf-8")
        return f"(the tests ended with status {process.returncode})"


def pytest(backend: str) -> list[str]:
    """The command that runs tests on a backend."""
    plain = [sys.executable, "-m", "pytest", "-p", "mutate_plugin", "-p", "no:cacheprovider"]
    if backend == "host":
        return plain
    emulate = [sys.executable, "-m", "devmem.cli", "emulate", backend, "--"]
    return [*emulate, *plain, "--devmem-backend", backend]


def environment(root: Path, **settings: str) -> dict[str, str]:
    """The environment of a run of tests in a tree."""
    paths = {"PYTHONPATH": os.pathsep.join([str(root), str(ROOT / "scripts")]), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **paths, **{f"MUTATE_{name}": value for name, value in settings.items()}}


if __name__ == "__main__":
    sys.exit(main())

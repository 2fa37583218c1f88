"""Run tests again and again with other seeds for some minutes, on every backend in turns, and count what each test did.

    scripts/campaign NAME MINUTES [--seed FIRST] [--backend NAME] [pytest arguments]

NAME is ``fuzz``, ``reentry`` or ``failures``. There is one round at least: 0 minutes with a seed and a backend repeat one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count, cycle

BACKENDS = ("host", "cuda", "roc")
LIFETIME = "tests/integration/every_backend/lifetime"
FUNCTIONS = "tests/integration/emulated/test_function_failures.py"


@dataclass(frozen=True)
class Campaign:
    """The tests on the host and on the other backends; how many parameters of each are drawn for a round, if not all run."""

    on_host: tuple[str, ...]
    elsewhere: tuple[str, ...]
    parameters: int | None = None


FUZZ = ("tests/fuzz",)
REENTRY = (
    f"{LIFETIME}/test_interrupts.py::test_devmem_may_be_called_at_any_point",
    f"{LIFETIME}/test_handlers_call_every_verb.py",
    f"{LIFETIME}/test_locks_are_asked.py",
)
CAMPAIGNS = {
    "fuzz": Campaign(FUZZ, FUZZ),
    "reentry": Campaign(REENTRY, REENTRY, 6),
    "failures": Campaign(("tests/integration/failures",), (FUNCTIONS,), 4),
}


def command(tests: tuple[str, ...], backend: str, seed: int, arguments: list[str]) -> list[str]:
    """One round. Hypothesis, where it draws, takes as many examples as its profile ``campaign`` has."""
    emulate = [] if backend == "host" else ["-m", "devmem.cli", "emulate", backend, "--", sys.executable]
    pytest = ["-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-rA", "--show-capture=no"]
    drawn = [f"--randomly-seed={seed}", "--randomly-dont-reorganize", f"--hypothesis-seed={seed}"]
    chosen = [f"--devmem-backend={backend}", *drawn, "--hypothesis-show-statistics"]
    return [sys.executable, *emulate, *pytest, "-q", *chosen, *(arguments or tests)]


def ran(output: str) -> Counter[str]:
    """How often each test ran: with so many examples, as Hypothesis tells, or for so many parameters."""
    found: Counter[str] = Counter(re.findall(r"(?m)^(?:PASSED|FAILED) (tests/[\w/.]+::\w+)", output))
    examples: Counter[str] = Counter()
    test = ""
    for line in output.splitlines():
        if named := re.match(r"\S*?(tests/\S+)::(\w+)\S*:$", line):
            test = f"{named[1]}::{named[2]}"
        for number in re.findall(r"(\d+) (?:passing|failing)", line):
            examples[test] += int(number)
    return Counter({**found, **examples})


def main() -> int:
    """Rounds until the time is up; 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="scripts/campaign", usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("name", choices=CAMPAIGNS)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    parser.add_argument("--backend", choices=BACKENDS, help="this one alone")
    chosen, arguments = parser.parse_known_args()
    campaign = CAMPAIGNS[chosen.name]
    begun, total, failed = time.monotonic(), Counter[str](), 0
    for backend, seed in zip(cycle([chosen.backend] if chosen.backend else BACKENDS), count(chosen.seed), strict=False):
        done = subprocess.run(
            command(campaign.on_host if backend == "host" else campaign.elsewhere, backend, seed, arguments),
            env={
                **os.environ,
                "HYPOTHESIS_PROFILE": "campaign",
                "CAMPAIGN_SEED": str(seed),
                "CAMPAIGN_PARAMETERS": str(campaign.parameters or ""),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        total += ran(done.stdout)
        minutes = (time.monotonic() - begun) / 60
        print(f"{minutes:6.1f} min  {backend:4}  seed {seed}  {total.total():,} runs and examples", flush=True)
        if done.returncode:
            failed += 1
            told = re.sub(r"(?s)=+ Hypothesis Statistics =.*?(?==+ (short|Hypothesis ))", "", done.stdout)
            print(re.sub(r"(?m)^(PASSED|SKIPPED) .*\n", "", told)[-30_000:], done.stderr[-2000:], sep="\n")
            again = f"scripts/campaign {chosen.name} 0 --seed {seed} --backend {backend} {' '.join(arguments)}"
            print(f"again: {again.rstrip()}", flush=True)
        if minutes >= chosen.minutes:
            break
    for test, number in sorted(total.items()):
        print(f"{number:12,}  {test}")
    print(f"{total.total():12,}  runs and examples in {minutes:.1f} minutes; rounds that failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run tests/fuzz again and again with other seeds for some minutes, and count the examples of each test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from itertools import count, cycle

BACKENDS = ("host", "cuda", "roc")


def command(backend: str, seed: int, arguments: list[str]) -> list[str]:
    """One round: every test of the folder, with as many examples as the profile ``campaign`` has."""
    emulate = [] if backend == "host" else ["-m", "devmem.cli", "emulate", backend, "--", sys.executable]
    pytest = ["-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short", "--timeout=600"]
    chosen = [f"--devmem-backend={backend}", f"--hypothesis-seed={seed}", "--hypothesis-show-statistics"]
    return [sys.executable, *emulate, *pytest, *chosen, *(arguments or ["tests/fuzz"])]


def examples(output: str) -> Counter[str]:
    """The examples of each test, as Hypothesis tells them."""
    found: Counter[str] = Counter()
    test = ""
    for line in output.splitlines():
        if named := re.match(r"\S*?(tests/\S+)::(\w+)\S*:$", line):
            test = f"{named[1]}::{named[2]}"
        for number in re.findall(r"(\d+) (?:passing|failing)", line):
            found[test] += int(number)
    return found


def main() -> int:
    """Rounds until the time is up; 1 if a test failed."""
    minutes, arguments = float(sys.argv[1]), sys.argv[2:]
    begun, total, failed = time.monotonic(), Counter[str](), 0
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "campaign"}
    seeds = count(int(time.time()))
    for backend, seed in zip(cycle(BACKENDS), seeds, strict=False):
        if time.monotonic() - begun > 60 * minutes:
            break
        ran = command(backend, seed, arguments)
        done = subprocess.run(ran, env=environment, capture_output=True, text=True, check=False)
        total += examples(done.stdout)
        print(
            f"{(time.monotonic() - begun) / 60:6.1f} min  {backend:4}  seed {seed}  {total.total():,} examples",
            flush=True,
        )
        if done.returncode:
            failed += 1
            told = re.sub(r"(?s)=+ Hypothesis Statistics =.*?(?==+ (short|Hypothesis ))", "", done.stdout)
            print(told[-30_000:], done.stderr[-2000:], sep="\n")
            print(f"again: HYPOTHESIS_PROFILE=campaign {' '.join(ran)}", flush=True)
    for test, number in sorted(total.items()):
        print(f"{number:12,}  {test}")
    took = (time.monotonic() - begun) / 60
    print(f"{total.total():12,}  examples in {took:.1f} minutes; rounds that failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

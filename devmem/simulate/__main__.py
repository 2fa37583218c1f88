"""``python -m devmem.simulate SCRIPT [ARGS]``: as ``devmem simulate -- python SCRIPT [ARGS]``, without the extra ``cli``."""

from __future__ import annotations

import argparse
import sys

from .command import run


def _options() -> list[str]:
    """The options that this Python was given before ``-m devmem.simulate``, for the program's."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    if options[-1:] == ["devmem.simulate"]:
        options = [*options[:-2], options[-2] + options[-1]]
    if not options or not options[-1].endswith("mdevmem.simulate"):
        return []  # another module runs this one
    flags = options[-1].removesuffix("mdevmem.simulate")  # of -umdevmem.simulate
    return [*options[:-1], *([] if flags == "-" else [flags])]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m devmem.simulate",
        usage="%(prog)s [--race-check] [--shuffle SEED] [--fast] [--report json] [-o FILE] (SCRIPT | -m MODULE | -c CODE) [ARGS]",
        description="Run a program for numba.cuda, unchanged, without a GPU. The exit status is the program's.",
    )
    parser.add_argument("--race-check", action="store_true", help="report races of a block's threads on shared memory")
    parser.add_argument(
        "--shuffle", type=int, metavar="SEED", help="run threads and blocks in an order drawn from SEED"
    )
    parser.add_argument("--fast", action="store_true", help="compile kernels for the host, where that gives the same")
    parser.add_argument("--report", choices=["json"], help="write what ran, and what was found, at the end")
    parser.add_argument("-o", "--output", metavar="FILE", help="the file for the report; else the standard output")
    # What begins with an option of Python's is a program, too.
    parser.add_argument("-m", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    parser.add_argument("-c", nargs=argparse.REMAINDER, help="run code, as python -c does")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a script and its arguments")
    given = parser.parse_args()
    program = ["-m", *given.m] if given.m else ["-c", *given.c] if given.c else given.program
    if not program:
        parser.error("which program? give a script, -m MODULE or -c CODE")
    if sys.flags.ignore_environment or sys.flags.no_site:
        parser.error(
            "python -I, -E and -S ignore the environment, by which the program is given devmem: leave them out"
        )
    sys.exit(
        run(
            [sys.executable, *_options(), *program],
            race_check=given.race_check,
            shuffle=given.shuffle,
            fast=given.fast,
            report=bool(given.report or given.output),
            output=given.output,
        )
    )

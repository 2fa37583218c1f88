"""The command ``devmem``. It needs the libraries of the extra ``cli``; without them it prints how to install them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

NEEDS = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is raised as SystemExit, by click.

    Without the extra ``cli`` it prints the command that installs it and returns 2.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"devmem: the command line needs {' and '.join(missing)}: pip install 'devmem-arrays[cli]'", file=sys.stderr
        )
        return 2
    # Imported late: this module must import without either library.
    from .commands import commands

    commands.main(args=arguments, prog_name="devmem")
    return 0

"""Programs that run in a process of their own, because they change it for good or end it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from waits import patience


def check_ends(program: str, folder: str) -> None:
    """Run a program, which imports helpers from the folder, and see that it prints ``ends`` and exits well."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(folder),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=patience(140),
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "ends\n"), run.stderr

"""Emulate a vendor's driver library in software, so that the real bindings and backends run without a GPU.

:func:`environment` returns environment variables with which a command uses the emulator; :func:`load` loads it into this
process; :func:`control` injects failures and reads counters in a process that has loaded it. It needs the standard library
only, and a C compiler for the first use.
"""

# Decision: docs/adr/0012-one-emulator-core-two-vendors.md
from __future__ import annotations

from devmem.testing.emulator.build import BuildError, environment, library, load
from devmem.testing.emulator.control import Control, EmulatorNotLoaded, control

__all__ = ["BuildError", "Control", "EmulatorNotLoaded", "control", "environment", "library", "load"]

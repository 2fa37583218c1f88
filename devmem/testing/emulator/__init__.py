"""Emulate a vendor's driver library in software, so that the real bindings and backends run without a GPU.

:func:`environment` gives the variables under which a command sees the emulator; :func:`load` maps it into this process;
:func:`control` injects faults and reads counters in a process that has it mapped. Only the standard library is needed,
and a C compiler the first time.
"""

# Decision: docs/adr/0012-one-emulator-core-two-vendors.md
from __future__ import annotations

from devmem.testing.emulator.build import BuildError, environment, library, load
from devmem.testing.emulator.control import Control, EmulatorNotLoaded, control

__all__ = ["BuildError", "Control", "EmulatorNotLoaded", "control", "environment", "library", "load"]

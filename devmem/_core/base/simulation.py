"""The simulator's options: those of the scope, else those of the settings."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass

from ...spi.errors import ConfigError
from ...spi.types import Capability, DeviceInfo
from .config import NegativeIndices, Simulators, settings
from .scopes import Scope, ScopeVariable

#: Threads of the host that the blocks of a launch are dealt out to, at most. One runs at a time, as always in Python.
THREADS = max(2, min(os.cpu_count() or 1, 4))


@dataclass(frozen=True, slots=True)
class Simulation:
    """The checks and options of a launch in the simulator. Documented at `devmem.simulator`."""

    race_check: bool = False
    shuffle: int | None = None
    wave_size: int = 32
    negative: NegativeIndices = NegativeIndices.WRAP
    mode: Simulators = Simulators.EXACT

    @property
    def watches(self) -> bool:
        """Whether each access to shared memory is compared with those of the block's other threads."""
        return self.race_check or self.shuffle is not None


#: What `devmem.simulator` chose.
in_force: ScopeVariable[Simulation | None] = ScopeVariable("devmem_simulation", None)


def current() -> Simulation:
    """The one in force, in this thread or task."""
    chosen = in_force.get()
    if chosen is not None:
        return chosen
    given = settings()
    return Simulation(given.sim_race_check, given.sim_shuffle, given.sim_wave_size, given.sim_negative, given.sim)


def simulates(info: DeviceInfo) -> bool:
    """Whether the kernels of a device are simulated."""
    return Capability.HOST_FUNCTION in info.capabilities


def wave_size(info: DeviceInfo) -> int:
    """The threads of a warp or wavefront of a device; where kernels are simulated, the simulation's."""
    return current().wave_size if simulates(info) else info.warp_size


def choose(race_check: bool, shuffle: int | None, wave_size: int, negative: str, mode: str) -> Scope[Simulation]:
    """Make these hold, from now on or for a ``with`` block."""
    if not isinstance(race_check, bool):
        raise ConfigError(f"race_check={race_check!r} must be True or False")
    seed, size = _integer("shuffle", shuffle), _integer("wave_size", wave_size)
    if size is None or size < 1:
        raise ConfigError(f"wave_size={wave_size!r} must be an integer of at least 1")
    if negative not in [*NegativeIndices]:
        raise ConfigError(f"negative={negative!r} must be one of {', '.join(map(repr, map(str, NegativeIndices)))}")
    if mode not in [*Simulators]:
        raise ConfigError(f"mode={mode!r} must be one of {', '.join(map(repr, map(str, Simulators)))}")
    chosen = Simulation(race_check, seed, size, NegativeIndices(negative), Simulators(mode))
    return Scope(chosen, in_force, chosen)


def _integer(name: str, value: object) -> int | None:
    if value is None:
        return None
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ConfigError(f"{name}={value!r} must be an integer")

"""numba.cuda's device objects."""

from __future__ import annotations

from typing import Any

import devmem

from ....api.devices import devices_of_current_backend
from ....kernels.simulation import THREADS, simulates, wave_size
from ....spi.errors import DevmemError
from ....spi.types import Capability, MemoryKind
from . import nvidia_driver, state
from .error import translated
from .ipc import identity_of

#: The attributes of devices that simulate kernels: the number of blocks run at once, and limits that every GPU meets.
SIMULATED = {
    "MULTIPROCESSOR_COUNT": THREADS,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_THREADS_PER_MULTIPROCESSOR": 1024,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": (1 << 31) - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10,
    "MAX_REGISTERS_PER_BLOCK": 1 << 16,
    "TOTAL_CONSTANT_MEMORY": 1 << 16,
}
#: What they say of themselves where programs ask for a compute capability: the same as Numba's simulator.
SIMULATED_COMPUTE_CAPABILITY = 5, 2


class Device:
    """A device; on CUDA, every ``CU_DEVICE_ATTRIBUTE_*`` is an attribute."""

    def __init__(self, devnum: int) -> None:
        try:
            self.native = devmem.device(int(devnum))
            info = self.native.info
        except DevmemError as error:
            raise translated(error) from error
        self.id = self.native.ordinal
        self.name = info.name
        self.uuid = info.uuid if info.uuid.startswith("GPU-") else f"GPU-{info.uuid}"
        #: Whether kernels are simulated. The compute capability and the limits of kernels are then made up.
        self.simulated = simulates(info)
        self.compute_capability = _compute_capability(info)

    @classmethod
    def from_identity(cls, identity: Any) -> Device:
        """The device with an identity of `get_device_identity`; RuntimeError if there is none."""
        for native in devices_of_current_backend():
            if identity_of(native) == identity:
                return cls(native.ordinal)
        raise RuntimeError(f"No device of {identity} is found. It may not be visible in this process.")

    def __repr__(self) -> str:
        return f"<CUDA device {self.id:d} '{self.name}'>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "native":
            raise AttributeError(name)
        value = nvidia_driver.attribute(self.native, name)
        if value is None:
            known = _attributes(self.native)
            if name not in known:
                raise AttributeError(
                    f"{self.native} has no attribute {name!r}: of CUDA's attributes it has {', '.join(sorted(known))}; "
                    f"devices of NVIDIA's driver have all of them"
                )
            value = known[name]
        setattr(self, name, value)
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.native == other.native

    def __hash__(self) -> int:
        return hash(self.id)

    def get_device_identity(self) -> dict[str, int]:
        """The PCI address of the device."""
        return identity_of(self.native)

    def get_primary_context(self) -> state.PrimaryContext:
        """The device's context; it is not made current."""
        return state.context_of(self.native.opened())  # type: ignore[no-any-return]

    @property
    def primary_context(self) -> state.PrimaryContext | None:
        """The device's context, if there is one."""
        return state.contexts.get(self.native)

    def release_primary_context(self) -> None:
        """Drop the context; the next use of the device makes a new one."""
        state.contexts.pop(self.native, None)
        state.forget(self.native)

    def reset(self) -> None:
        """Close the context, and free everything that was made in it."""
        context = self.primary_context
        try:
            if context is not None:
                context.reset()
        finally:
            self.release_primary_context()
            self.native.reset()

    @property
    def supports_float16(self) -> bool:
        """Whether kernels may compute with 16-bit floats."""
        return bool(self.compute_capability >= (5, 3))

    @property
    def supports_bfloat16(self) -> bool:
        """Whether kernels may compute with bfloat16."""
        return bool(self.compute_capability >= (8, 0))

    @property
    def supports_fp8(self) -> bool:
        """Whether kernels may compute with 8-bit floats."""
        return bool(self.compute_capability >= (8, 9))


def _compute_capability(info: devmem.DeviceInfo) -> tuple[int, int]:
    """From the driver, from the digits of AMD's architecture name, or the simulator's."""
    said = info.facts.get("compute_capability")
    if said is not None:
        major, _, minor = str(said).partition(".")
        return int(major), int(minor or 0)
    digits = info.arch.partition(":")[0].removeprefix("gfx")
    if info.arch.startswith("gfx") and len(digits) > 2:
        return int(digits[:-2]), int(digits[-2], 16)
    return SIMULATED_COMPUTE_CAPABILITY if simulates(info) else (0, 0)


def _attributes(native: devmem.Device) -> dict[str, int]:
    """The attributes under CUDA's names that devices of all backends have."""
    info, place = native.info, identity_of(native)
    major, minor = _compute_capability(info)
    return {
        "CAN_MAP_HOST_MEMORY": Capability.MAPPED in info.capabilities,
        "MANAGED_MEMORY": MemoryKind.MANAGED in info.memory_kinds,
        "MEMORY_POOLS_SUPPORTED": Capability.STREAM_ORDERED in info.capabilities,
        "UNIFIED_ADDRESSING": bool(info.facts.get("unified_addressing", False)),
        "INTEGRATED": bool(info.facts.get("integrated", False)),
        "ASYNC_ENGINE_COUNT": int(info.facts.get("copy_engines", 1)),
        "WARP_SIZE": wave_size(info),
        "COMPUTE_CAPABILITY_MAJOR": major,
        "COMPUTE_CAPABILITY_MINOR": minor,
        "KERNEL_EXEC_TIMEOUT": 0,
        "TCC_DRIVER": 0,
        "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 1,
        "PCI_DOMAIN_ID": place["pci_domain_id"],
        "PCI_BUS_ID": place["pci_bus_id"],
        "PCI_DEVICE_ID": place["pci_device_id"],
        **_limits(info),
    }


def _limits(info: devmem.DeviceInfo) -> dict[str, int]:
    """The limits of kernels, from the driver, or the simulator's."""
    simulated = SIMULATED if simulates(info) else {}
    limits = {name: info.facts.get(name.lower(), simulated.get(name)) for name in SIMULATED}
    return {name: int(value) for name, value in limits.items() if value}

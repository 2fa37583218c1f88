"""Facts about the device, read in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from .step import ROOT, SCRIPT, clean
from .vendors import VENDORS, Vendor


def child_environment(emulated: bool, backend: str = "cuda") -> dict[str, str]:
    """Environment of every child: devmem from the sources, only named pytest plugins, the selected driver."""
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1", "DEVMEM_BACKEND": backend}
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "DEVMEM_EMULATOR", "DEVMEM_EMULATOR_MODE"):
        env.pop(name, None)
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    if emulated:
        from devmem.testing import emulator

        env |= {**emulator.environment(backend), "DEVMEM_BACKEND": backend}
    return env


def ask_device(env: dict[str, str]) -> dict[str, Any]:
    """The facts that the driver reports, read in a child so that this process does not load the driver."""
    command = [sys.executable, str(SCRIPT), "--child", "facts"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"the driver did not answer within 60 seconds: {VENDORS[env['DEVMEM_BACKEND']].look}"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"querying the driver exited with {done.returncode}: {clean(done.stderr)[-500:]}"}
    return found


def refused(facts: dict[str, Any], emulated: bool, vendor: Vendor) -> str | None:
    """The reason not to run anything, or None."""
    if "error" in facts:
        return f"no {vendor.gpu} can be used here: {facts['error']}"
    if facts["emulated"] and not emulated:
        return f"the {vendor.driver} here is the emulated one: run outside `devmem emulate`, or pass --emulated"
    if emulated and not facts["emulated"]:
        return "--emulated was given, but a real driver was found before the emulated one"
    return None


def child_facts() -> int:
    """Print the facts about the first device of the backend that the environment selects."""
    import devmem as dm

    vendor = VENDORS[os.environ["DEVMEM_BACKEND"]]
    [status] = [each for each in dm.backends() if each.name == vendor.backend]
    reason = status.reason
    if reason is None and status.devices == 0:
        reason = f"the driver sees no device: {vendor.look}"
    if reason is not None:
        print(json.dumps({"error": reason}))
        return 0
    from devmem.testing import emulator

    try:
        emulator.control(vendor.backend)
        emulated = True
    except emulator.EmulatorNotLoaded:
        emulated = False
    started = time.perf_counter()
    device = dm.device(f"{vendor.backend}:0")
    info, memory = device.info, device.memory_info()
    found = {
        "emulated": emulated,
        "name": info.name,
        "devices": status.devices,
        "arch": info.arch,
        "compute_capability": info.facts.get("compute_capability", ""),
        "version": version_of(info.facts),
        "memory_bytes": memory.total,
        "memory_free_bytes": memory.free,
        "capabilities": sorted(map(str, info.capabilities)),
        "memory_kinds": sorted(map(str, info.memory_kinds)),
        "facts": dict(info.facts),
        "open_seconds": round(time.perf_counter() - started, 3),
    }
    print(json.dumps(found))
    return 0


def version_of(facts: Mapping[str, str | int | float | bool]) -> str:
    """The version of the driver or the runtime, as text."""
    if "driver_version" in facts:
        version = int(facts["driver_version"])
        return f"CUDA {version // 1000}.{version % 1000 // 10}"
    version = int(facts.get("hip_version", 0))
    return f"HIP {version // 10_000_000}.{version // 100_000 % 100}.{version % 100_000}"

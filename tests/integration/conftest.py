"""What the tests of the API stand on. No backend is named here or there: what a device cannot do is skipped, with the reason."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from vendors import exchange_capture_mode
from waits import together

import devmem as dm
from devmem import plugins
from devmem.spi.driver import Driver
from devmem.spi.types import Capability
from devmem.testing import FaultyBackend, FaultyDriver
from devmem.testing.fault_injection import FailurePlan

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def device(devmem_backend: str) -> dm.Device:
    """The device under test."""
    return dm.current_device()


@pytest.fixture
def still(device: dm.Device) -> dm.Device:
    """The device, while nothing of earlier tests waits for the collector: for those that count what is live."""
    gc.collect()
    dm.trim()
    return device


@pytest.fixture
def tidy(devmem_backend: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves device memory behind. Collects garbage only where something is left, to stay cheap."""
    before = _in_use()
    yield
    request.node.funcargs.clear()  # pytest keeps what other fixtures gave until all of them are torn down
    if _in_use() > before:
        dm.synchronize()
        dm.trim()  # what is borrowed is kept until an event behind its last use has passed, and may be in a cycle
        gc.collect()
        after = _in_use()
        assert after <= before, f"{after - before} bytes of device memory are left behind"


@pytest.fixture
def need(device: dm.Device) -> Callable[..., None]:
    """``need("hold", "mapped")`` skips unless the device has these capabilities."""

    def check(*capabilities: str) -> None:
        for capability in capabilities:
            if capability not in device.info.capabilities:
                pytest.skip(f"{device} lacks the capability {capability!r}")

    return check


@pytest.fixture
def need_kind(device: dm.Device) -> Callable[..., None]:
    """``need_kind("pinned")`` skips unless the device has these kinds of memory."""

    def check(*kinds: str) -> None:
        for kind in kinds:
            if kind not in device.info.memory_kinds:
                pytest.skip(f"{device} has no {kind} memory")

    return check


@pytest.fixture(autouse=True)
def no_changed_capture_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves this thread in another capture mode: a later test of captures would fail, or pass, by it."""
    yield
    if (
        "emulated" in request.node.path.parts
    ):  # where each function of the driver fails, those that change it back among them
        return
    backend = request.node.callspec.params.get("devmem_backend") if hasattr(request.node, "callspec") else None
    assert exchange_capture_mode(backend, 0) == 0, "this thread's capture mode was left changed"


class _Capturing:
    def __init__(self, driver: Driver, stream: dm.Stream) -> None:
        self.driver, self.stream = driver, stream

    def __getattr__(self, name: str) -> object:
        return getattr(self.driver, name)

    def capturing(self, handle: int) -> bool:
        return handle == self.stream.handle


@pytest.fixture
def seems_to_capture(device: dm.Device) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """``with seems_to_capture(stream):`` the driver says that the stream records a graph."""

    @contextlib.contextmanager
    def seems(stream: dm.Stream) -> Iterator[None]:
        handle = device.opened().handle
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handle, "capabilities", handle.capabilities | {Capability.CAPTURE})
            patch.setattr(handle, "driver", _Capturing(handle.driver, stream))
            patch.setattr(stream, "simple", False)
            yield

    return seems


@pytest.fixture
def second(device: dm.Device) -> dm.Device:
    """Another device of the same backend."""
    others = [each for each in dm.devices() if each.backend == device.backend and each != device]
    if not others:
        pytest.skip(f"{device.backend} has one device only")
    return others[0]


@pytest.fixture
def with_settings(devmem_backend: str) -> Iterator[Callable[..., None]]:
    """``with_settings(DEVICE="1", LOG_LEVEL=None)`` sets or unsets ``DEVMEM_*`` and makes devmem read them; undone at the end."""
    with pytest.MonkeyPatch.context() as patch:

        def change(**values: str | None) -> None:
            for name, value in values.items():
                if value is None:
                    patch.delenv(f"DEVMEM_{name}", raising=False)
                else:
                    patch.setenv(f"DEVMEM_{name}", value)
            dm.close()

        yield change
        patch.undo()
        dm.close()


@pytest.fixture
def in_thread() -> Callable[[Callable[[], object]], object]:
    """Call something in another thread, with the backend under test, and give back what it gives or raises."""
    return run_in_thread


@pytest.fixture
def unscoped() -> Callable[[Callable[[], object]], object]:
    """Call something where no scope is in force, not even that of the backend under test."""
    return lambda call: contextvars.Context().run(call)


def run_in_thread(call: Callable[[], object]) -> object:
    backend = dm.current_device().backend

    def body() -> object:
        with dm.use_backend(backend):
            return call()

    # An empty context, as every new thread has: scopes of this one must not be seen there.
    [outcome] = together(partial(contextvars.Context().run, body))
    return outcome


class Background(threading.Thread):
    """Something that may have to wait for a held stream."""

    def __init__(self, call: Callable[[], object], device: dm.Device | None = None) -> None:
        super().__init__(daemon=True)
        self.errors: list[BaseException] = []
        self._call: Callable[[], object] | None = call
        self._device = device or dm.current_device()
        self.start()

    def run(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        try:
            with self._device:
                call()
        except BaseException as error:
            self.errors.append(error)

    def wait(self, seconds: float) -> bool:
        """Whether it is over by then, and the thread with it: what that refers to would count as left behind otherwise."""
        self.join(seconds)
        return not self.is_alive()


@pytest.fixture
def in_background() -> Callable[..., Background]:
    """``done = in_background(call)`` runs it on a thread of its own; then ``done.wait(seconds)`` and ``done.errors``."""
    return Background


@pytest.fixture
def python(devmem_backend: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in a fresh interpreter on the backend under test; keywords set (or unset) ``DEVMEM_*``.

    ``patience`` is the seconds after which it is taken to hang: shorter than the test's own limit, so that this one tells.
    """

    def run(script: str, *, patience: float = 50, **settings: str | None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DEVMEM_BACKEND": devmem_backend}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        for name, value in settings.items():
            environment.pop(f"DEVMEM_{name}", None)
            if value is not None:
                environment[f"DEVMEM_{name}"] = value
        return subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )

    return run


# -- a driver that writes down what it is asked ------------------------------------------------------------------------


class Call(NamedTuple):
    """One call of a driver."""

    method: str
    args: tuple[object, ...]
    keywords: dict[str, object]


class RecordingDriver(FaultyDriver):
    def __init__(self, inner: Driver, *, backend: str, log: list[Call], faults: FailurePlan) -> None:
        self.log = log
        super().__init__(inner, backend=backend, faults=faults)

    def _call(self, method: str, *args: object, **keywords: object) -> object:
        self.log.append(Call(method, args, keywords))
        return super()._call(method, *args, **keywords)


class RecordingBackend(FaultyBackend):
    """The backend under test, with everything its drivers are asked in `log`."""

    def __init__(self, inner: object) -> None:
        super().__init__(inner, "recording")
        self.log: list[Call] = []

    def open(self, ordinal: int) -> Driver:
        driver = self.drivers[ordinal] = RecordingDriver(
            self.inner.open(ordinal), backend=self.name, log=self.log, faults=self.faults
        )
        return driver

    def named(self, *methods: str) -> list[Call]:
        return [call for call in self.log if call.method in methods]

    @contextlib.contextmanager
    def during(self) -> Iterator[list[Call]]:
        """What is asked within the block."""
        seen: list[Call] = []
        at = len(self.log)
        yield seen
        seen += self.log[at:]


@pytest.fixture
def recorded(devmem_backend: str) -> Iterator[RecordingBackend]:
    """The backend under test behind a driver that writes down what it is asked; current for the test."""
    found = plugins.registry.backend(devmem_backend)
    assert found is not None
    backend = RecordingBackend(found.backend)
    dm.close()  # a driver knows its peers by their ordinals: one open device for each
    dm.register_backend(backend)
    try:
        with dm.use_backend(backend.name):
            yield backend
    finally:
        dm.unregister_backend(backend.name)
    assert backend.mistakes() == []


def _in_use() -> int:
    dm.trim()
    info = dm.memory_info()
    return info.live + info.pending + info.host.live + info.host.pending

"""devmem's memory stack in the hands of other libraries: lending, and each library's own way of asking."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import importlib.util
import shutil
import subprocess
import sys
import types
import weakref
from functools import partial

import numpy as np
import pytest
import standins
from waits import patience, together

import devmem as dm
from devmem import memory
from devmem.adapters import LentBlocks, cuda_core, cupy, lend, numba, numba_hip, rmm, torch
from devmem.adapters.foreign_resource import ForeignResource
from devmem.adapters.lent_blocks import AllStreams
from devmem.spi.types import LEGACY_STREAM, Capability, CopyKind
from devmem.testing.stream_hold import StreamHold
from devmem.toolkit import toolchain

pytestmark = pytest.mark.usefixtures("tidy")

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))) and not importlib.util.find_spec("ziglang"),
    reason="there is no C compiler",
)


class Counting:
    """The plainest resource, which knows what is out."""

    def __init__(self):
        self.inner = memory.DriverMemory()
        self.live = {}
        self.bind = self.inner.bind

    def allocate(self, nbytes, stream):
        ptr = self.inner.allocate(nbytes, stream)
        self.live[ptr] = nbytes
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        del self.live[ptr]
        self.inner.deallocate(ptr, nbytes, stream)


@pytest.fixture
def foreign(device):
    """A stream that devmem did not make, as another library's is."""
    with device.entered() as driver:
        handle = driver.stream_create(0, True)
    yield handle
    dm.trim()
    with device.entered() as driver:
        driver.stream_destroy(handle)


# -- lending -----------------------------------------------------------------------------------------------------------


def test_a_block_is_lent_and_taken_back():
    before = dm.memory_info().live
    ptr, release = lend(1000)
    assert ptr % 256 == 0
    assert dm.memory_info().live == before + 1000
    release()
    assert dm.memory_info()[2:4] == (before, 1000)
    dm.trim()
    assert dm.memory_info()[2:4] == (before, 0)
    with pytest.raises(dm.DevmemError, match=r"was not lent by .*, or was taken back already"):
        release()


def test_zero_bytes_are_address_zero():
    ptr, release = lend(0)
    assert ptr == 0
    release()
    release()


def test_a_block_goes_back_to_the_stack_that_made_it():
    first, second = Counting(), Counting()
    lent = LentBlocks()
    with dm.use_memory(first):
        from_first = lent.lend(100)
        with dm.use_memory(second):
            from_second = lent.lend(200)
            lent.take_back(from_first)
            dm.trim()
            assert first.live == {}
            assert second.live == {from_second: 200}
    lent.take_back(from_second)
    dm.trim()
    assert second.live == {}


def test_of_the_device_that_is_named(second):
    lent = LentBlocks(second)
    ptr = lent.lend(1000)
    assert dm.memory_info(second).live >= 1000
    assert lent.device == second
    lent.take_back(ptr)
    dm.trim()


def test_running_out_is_what_it_is_for_arrays():
    with pytest.raises(dm.OutOfMemory, match="asked for"):
        lend(dm.memory_info().total * 4)


def test_dropped_blocks_are_freed_before_memory_runs_out():
    class Limited(Counting):
        def allocate(self, nbytes, stream):
            if sum(self.live.values()) + nbytes > 5000:
                raise MemoryError("full")
            return super().allocate(nbytes, stream)

    mine, lent = Limited(), LentBlocks()
    with dm.use_memory(mine):
        for _ in range(20):
            lent.take_back(lent.lend(1000))
        kept = lent.lend(5000)
        lent.take_back(kept)
    dm.trim()
    assert mine.live == {}


def test_nothing_is_freed_where_a_block_comes_back(recorded):
    """It may be the collector that gives it back, in the middle of anything."""
    lent = LentBlocks()
    ptrs = [lent.lend(100) for _ in range(5)]
    before = recorded.calls["free"] + recorded.calls["free_async"]
    for ptr in ptrs:
        lent.take_back(ptr)
    assert recorded.calls["free"] + recorded.calls["free_async"] == before
    dm.trim()


@pytest.mark.parametrize("which", ["foreign", "kept", "ours", "legacy"])
@pytest.mark.parametrize("stack", ["as it is", "plain"])
def test_a_block_is_not_reused_before_its_stream_has_passed(device, need, foreign, which, stack):
    need("hold")
    ours = dm.stream(non_blocking=True)
    handle = {"foreign": foreign, "kept": foreign, "ours": ours.handle, "legacy": LEGACY_STREAM}[which]
    data, back = np.arange(50_000, dtype="u2").view("u1"), dm.pinned_array(100_000, "u1")
    lent = LentBlocks()
    with contextlib.nullcontext() if stack == "as it is" else dm.use_memory("driver"):
        owner = lent.block(data.size, handle, keep=object()) if which == "kept" else None
        ptr = owner.ptr if owner is not None else lent.lend(data.size, handle)
        with device.entered() as driver:
            driver.copy(ptr, data.ctypes.data, data.size, CopyKind.H2D, handle, blocking=True)
            # Freeing may wait for the stream: then the latch gives way.
            with StreamHold(driver, handle, patience=0.3, tolerant=True) as latch:
                driver.copy(back.ctypes.data, ptr, data.size, CopyKind.D2H, handle, blocking=False)
                if owner is None:
                    lent.take_back(ptr, handle)
                owner = None
                assert not latch.expired, "taking back waited for the stream"
                dm.trim()
                side = dm.stream(non_blocking=True)
                reused = [dm.full(data.size, 0xEE, "u1", stream=side) for _ in range(4)]
                side.synchronize()
                latch.release()
            driver.stream_synchronize(handle)
    assert (np.asarray(back) == data).all()
    del reused


def test_the_foreign_stream_may_be_destroyed_as_soon_as_the_block_is_back(device):
    with device.entered() as driver:
        handle = driver.stream_create(0, True)
        lent = LentBlocks()
        ptr = lent.lend(5000, handle)
        driver.fill(ptr, 1, 1, 5000, handle)
        lent.take_back(ptr, handle)
        driver.stream_synchronize(handle)
        driver.stream_destroy(handle)
    dm.trim()
    assert dm.memory_info().pending == 0


def test_a_block_whose_owner_names_a_stream_keeps_it(device):
    """The order of a kept stream is asked for when the block is freed, not before."""

    class Theirs:
        alive = 0

        def __init__(self):
            Theirs.alive += 1

        def __del__(self):
            Theirs.alive -= 1

    with device.entered() as driver:
        handle = driver.stream_create(0, True)
    block = LentBlocks().block(1000, handle, keep=Theirs())
    assert Theirs.alive == 1
    del block
    assert Theirs.alive == 1
    dm.trim()
    gc.collect()
    assert Theirs.alive == 0
    with device.entered() as driver:
        driver.stream_destroy(handle)


def test_a_block_for_all_streams_is_freed_on_an_idle_device(recorded):
    device = dm.current_device()
    block = LentBlocks(device).block_for_all_streams(1000)
    assert type(block.home) is AllStreams
    with recorded.during() as seen:
        del block
        assert [call.method for call in seen] == []
        dm.trim()
    methods = [call.method for call in seen]
    assert methods.index("synchronize") < max(methods.index(name) for name in ("free", "free_async") if name in methods)


class Capturing:
    """A driver on whose streams a graph is being captured."""

    def __init__(self, driver):
        self.driver = driver
        self.synchronized = 0

    def __getattr__(self, name):
        return getattr(self.driver, name)

    def capturing(self, stream):
        return True

    def synchronize(self):
        self.synchronized += 1
        self.driver.synchronize()


def test_nothing_is_lent_to_a_foreign_stream_that_captures(device, foreign, monkeypatch):
    lent, context = LentBlocks(), device.opened().handle
    ptr = lent.lend(100, foreign)
    driver = Capturing(context.driver)
    with monkeypatch.context() as patch:
        patch.setattr(context, "capabilities", context.capabilities | {Capability.CAPTURE})
        patch.setattr(context, "driver", driver)
        with pytest.raises(dm.UnsupportedError, match="is capturing a graph, and 200 bytes"):
            lent.lend(200, foreign)
        lent.take_back(ptr, foreign)  # records nothing on it
        assert driver.synchronized == 0
        patch.setattr(driver, "capturing", lambda stream: False, raising=False)
        dm.trim()
        assert driver.synchronized > 0


def test_after_a_reset_there_is_nothing_to_take_back(device):
    lent = LentBlocks()
    ptr = lent.lend(1000)
    device.reset()
    lent.take_back(ptr)
    lent.take_back(lent.lend(1000))
    dm.trim()


def test_blocks_of_a_lender_that_is_gone_are_never_handed_out_again():
    lent = LentBlocks()
    ptr = lent.lend(1000)
    out = lent._lent
    del lent
    gc.collect()
    assert ptr in out
    assert dm.memory_info().live >= 1000
    from devmem.adapters import lent_blocks as module

    module._leaked.remove(out)


def test_many_threads(device):
    lent = LentBlocks(device)

    def work(number):
        for turn in range(50):
            ptr = lent.lend(1 + (turn * 7919 + number) % 20_000)
            lent.take_back(ptr)

    together(*(partial(work, number) for number in range(8)))
    assert len(lent) == 0
    dm.trim()


def test_two_allocators_over_each_other_are_refused(device):
    class Round(ForeignResource):
        install = "round"

        def _open(self, driver):
            self.lent = LentBlocks(device)

        def _acquire(self, nbytes, stream):
            return self.lent.lend(nbytes, stream), None

        def _release(self, ptr, nbytes, stream, home, owner):
            self.lent.take_back(ptr, stream)

    with dm.use_memory(Round()), pytest.raises(dm.DevmemError, match=r"from a library that takes it from .* again"):
        dm.device_array(10)
    assert dm.zeros(3).tolist() == [0, 0, 0]


# -- RMM ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["real", "stand-in"])
def rmm_mr(request):
    if request.param == "real":
        yield pytest.importorskip("rmm.mr", reason="RMM is not installed")
    else:
        with standins.installed(**standins.rmm()):
            yield sys.modules["rmm.mr"]


def test_rmm_allocates_from_the_stack(rmm_mr, foreign):
    streams = sys.modules["rmm.pylibrmm.stream"]

    class Theirs:
        def __cuda_stream__(self):
            return 0, foreign

    mine = Counting()
    with dm.use_memory(mine):
        resource = rmm_mr.StatisticsResourceAdaptor(rmm.callback_resource())
        for stream in ((), (streams.Stream(Theirs()),)):
            ptr = resource.allocate(1024, *stream)
            assert mine.live == {ptr: 1024}
            resource.deallocate(ptr, 1024, *stream)
            dm.trim()
            assert mine.live == {}


def test_rmm_is_told_that_memory_ran_out(rmm_mr):
    resource = rmm.callback_resource()
    with pytest.raises(MemoryError, match=r"bad_alloc.*asked for"):
        resource.allocate(dm.memory_info().total * 4)
    resource.deallocate(resource.allocate(256), 256)


def test_rmm_giving_back_what_it_does_not_have_is_a_warning(rmm_mr):
    resource = rmm.callback_resource()
    with pytest.warns(dm.DevmemWarning, match=r"RMM gave back 0x100 on stream .*: the address 0x100 was not lent"):
        resource.deallocate(0x100, 256)


@pytest.mark.usefixtures("rmm_mr")
def test_from_devmem_through_rmm_to_devmem(second):
    """One device's arrays through RMM from another device's stack: both books agree (their bytes are not touched)."""
    mine = Counting()
    with dm.use_memory(mine, second), dm.use_memory(rmm.RMMMemory(rmm.callback_resource(second))):
        d = dm.device_array(100, "u1")
        assert mine.live == {d.ptr: 100}
        d.free()
        dm.trim()
        assert mine.live == {}


# -- CuPy --------------------------------------------------------------------------------------------------------------


def test_cupy_allocates_from_the_stack_on_its_current_stream(foreign):
    mine = Counting()
    with standins.installed(**standins.cupy()), dm.use_memory(mine):
        cuda = sys.modules["cupy.cuda"]
        cuda.set_allocator(cupy.allocator().malloc)
        for stream in (None, standins.CuPyStream(foreign)):
            if stream is not None:
                stream.__enter__()
            pointer = cuda.alloc(1000)
            if stream is not None:
                stream.__exit__()
            assert mine.live == {pointer.ptr: 1000}
            assert pointer.device_id == dm.current_device().ordinal
            del pointer
            dm.trim()
            assert mine.live == {}
        assert cuda.alloc(0).ptr == 0


def test_cupys_own_classes_hold_our_blocks():
    cuda = pytest.importorskip("cupy.cuda", reason="CuPy is not installed")
    mine = Counting()
    with dm.use_memory(mine):
        block = LentBlocks().block(1000)
        pointer = cuda.MemoryPointer(cuda.UnownedMemory(block.ptr, 1000, block, 0), 0)
        del block
        assert mine.live == {pointer.ptr: 1000}
        view = pointer + 100
        del pointer
        dm.trim()
        assert len(mine.live) == 1
        del view
        dm.trim()
        assert mine.live == {}


def test_cupy_is_told_that_memory_ran_out():
    with standins.installed(**standins.cupy()), pytest.raises(MemoryError, match="asked for"):
        cupy.allocator()(dm.memory_info().total * 4)


# -- cuda.core ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def core():
    cuda_core._resource_class.cache_clear()
    with standins.installed(**standins.cuda_core()):
        yield sys.modules["cuda.core"]
    cuda_core._resource_class.cache_clear()


def test_cuda_core_allocates_from_the_stack(core, foreign):
    mine = Counting()
    with dm.use_memory(mine):
        resource = cuda_core.memory_resource()
        assert isinstance(resource, core.MemoryResource)
        for stream in (core.LEGACY_DEFAULT_STREAM, core.Stream(foreign)):
            buffer = resource.allocate(1000, stream=stream)
            assert mine.live == {buffer.handle: 1000}
            buffer.close()
            dm.trim()
            assert mine.live == {}
        resource.allocate(0, stream=core.LEGACY_DEFAULT_STREAM).close()
        with pytest.raises(MemoryError):
            resource.allocate(dm.memory_info().total * 4, stream=core.LEGACY_DEFAULT_STREAM)
    assert (resource.is_device_accessible, resource.is_host_accessible) == (True, False)
    assert resource.device_id == dm.current_device().ordinal


def test_a_buffer_that_cannot_be_made_leaves_nothing(core, monkeypatch):
    def broken(*args, **keywords):
        raise RuntimeError("no buffer")

    mine = Counting()
    with dm.use_memory(mine):
        resource = cuda_core.memory_resource()
        monkeypatch.setattr(core.Buffer, "from_handle", broken)
        with pytest.raises(RuntimeError, match="no buffer"):
            resource.allocate(1000, stream=core.LEGACY_DEFAULT_STREAM)
        dm.trim()
        assert mine.live == {}


# -- Numba -------------------------------------------------------------------------------------------------------------


class NumbaDriver:
    """What Numba's driver module has of pointers, for a manager over it."""

    GetIpcHandleMixin = type("GetIpcHandleMixin", (), {"get_ipc_handle": lambda self, memory: ("handle", memory)})
    MemoryInfo = collections.namedtuple("MemoryInfo", "free,total")

    class Pointer:
        def __init__(self, context, pointer, size, owner=None, finalizer=None):
            self.pointer, self.size = pointer, size
            self.finalizer = weakref.finalize(self, finalizer)

        def own(self):
            return weakref.proxy(self)

    MemoryPointer = PinnedMemory = MappedMemory = Pointer


class HostOnlyManager:
    def __init__(self, context=None):
        self.context = context
        self.allocations = {}

    def reset(self):
        self.allocations.clear()

    @contextlib.contextmanager
    def defer_cleanup(self):
        yield


class NumbaContext:
    def __init__(self, ordinal):
        self.device = types.SimpleNamespace(id=ordinal)


@pytest.fixture
def manager(device):
    kind = numba.make_manager(HostOnlyManager, NumbaDriver, device.backend, ctypes.c_uint64)
    assert kind(context=None).interface_version == 1
    made = kind(context=NumbaContext(device.ordinal))
    made.context.keep = made.context  # as Numba's does, through its devices
    yield made
    made.reset()
    dm.trim()


def test_a_numba_pointer_owns_its_block(manager):
    mine = Counting()
    with dm.use_memory(mine):
        pointer = manager.memalloc(1000)
        assert isinstance(pointer.pointer, ctypes.c_uint64)
        assert mine.live == {pointer.pointer.value: 1000}
        del pointer
        assert len(mine.live) == 1, "the collector frees nothing"
        dm.trim()
        assert mine.live == {}


def test_numbas_host_memory(manager, need_kind):
    need_kind("pinned", "mapped")
    start = dm.memory_info().host.live
    pinned, mapped = manager.memhostalloc(1000, portable=True, wc=True), manager.memhostalloc(2000, mapped=True)
    assert dm.memory_info().host.live == start + 3000
    assert list(manager.allocations) == [mapped.pointer]
    del pinned
    manager.allocations[mapped.pointer].finalizer()
    assert manager.allocations == {}
    dm.trim()
    assert dm.memory_info().host.live == start


def test_numba_resets_its_own_memory_only(manager):
    kept = dm.to_device([1, 2, 3])
    start = dm.memory_info().live
    pointers = [manager.memalloc(100) for _ in range(3)]
    manager.reset()
    assert dm.memory_info().live == start
    del pointers
    assert kept.tolist() == [1, 2, 3]
    assert manager.memalloc(10).size == 10


def test_numba_defers_for_both(manager):
    with manager.defer_cleanup():
        for _ in range(30):
            manager.memalloc(100)
        assert dm.memory_info().pending == 3000
    assert dm.memory_info().pending == 0


def test_numba_asks_how_much_there_is(manager):
    assert manager.get_memory_info() == (dm.memory_info().free, dm.memory_info().total)
    assert manager.get_ipc_handle("memory") == ("handle", "memory")


def test_numbas_manager_is_made_when_it_is_looked_for(monkeypatch):
    for module in (numba, numba_hip):
        module.manager.cache_clear()
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    monkeypatch.setitem(sys.modules, "numba.hip.hipdrv.driver", None)
    with pytest.raises(dm.BackendUnavailable, match="pip install numba-cuda"):
        numba._numba_memory_manager  # noqa: B018
    with pytest.raises(dm.BackendUnavailable, match="pip install numba-hip"):
        numba_hip._numba_memory_manager  # noqa: B018
    with pytest.raises(dm.BackendUnavailable, match="pip install numba-hip"):
        numba_hip.use()


def test_numba_hip_is_told_by_a_call(monkeypatch):
    taken = []
    driver = types.ModuleType("numba.hip.hipdrv.driver")
    vars(driver).update({name: value for name, value in vars(NumbaDriver).items() if not name.startswith("__")})
    driver.HostOnlyHIPMemoryManager, driver.set_memory_manager = HostOnlyManager, taken.append
    monkeypatch.setitem(sys.modules, "numba.hip.hipdrv.driver", driver)
    numba_hip.manager.cache_clear()
    numba_hip.use()
    assert taken == [numba_hip._numba_memory_manager]
    numba_hip.manager.cache_clear()


# -- PyTorch -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pluggable(device, monkeypatch):
    """What PyTorch makes of the C library, over a connection of its own."""
    monkeypatch.setattr(torch, "_shim", None)
    memory = standins.module("m", CUDAPluggableAllocator=standins.CUDAPluggableAllocator)
    with standins.installed(**standins.torch(None), torch__cuda__memory=memory):
        yield torch.pluggable_allocator()
    torch._shim._library.devmem_disconnect()


@needs_compiler
def test_pytorch_allocates_from_the_stack(pluggable, device, foreign):
    mine = Counting()
    with dm.use_memory(mine):
        for stream in (None, foreign):
            ptr = pluggable.alloc(1000, device.ordinal, stream)
            assert mine.live == {ptr: 1000}
            pluggable.free(ptr, 1000, device.ordinal, stream)
            dm.trim()
            assert mine.live == {}


@needs_compiler
def test_pytorch_calls_from_many_threads(pluggable, device):
    """Through ctypes, which lets go of the interpreter's lock as PyTorch does."""
    problems = []

    def work(number):
        for turn in range(50):
            ptr = pluggable.alloc(1 + turn * 100 + number, device.ordinal, None)
            if not ptr:
                problems.append((number, turn))
            pluggable.free(ptr, 0, device.ordinal, None)

    together(*(partial(work, number) for number in range(8)))
    assert problems == []
    assert len(torch._shim.lent(device.ordinal)) == 0
    dm.trim()


@needs_compiler
def test_pytorch_is_told_that_memory_ran_out(pluggable, device):
    # What the library calls, not the library: that throws through its callers.
    with pytest.warns(dm.DevmemWarning, match=r"PyTorch asked devmem for .* bytes\) on .*: out of memory"):
        assert torch._shim._callbacks[0](dm.memory_info().total * 4, device.ordinal, None) is None
    with pytest.warns(dm.DevmemWarning, match="PyTorch gave back 0x100"):
        pluggable.free(0x100, 0, device.ordinal, None)


@needs_compiler
def test_one_process_serves_pytorch_from_one_backend(pluggable, device):
    with pytest.raises(dm.ConfigError, match=f"from '{device.backend}' in this process"):
        torch.shim("another")


@needs_compiler
def test_nothing_reaches_python_after_its_end(python, tmp_path):
    """PyTorch frees its last tensors when the process ends, after the interpreter is gone."""
    last = tmp_path / "last.c"
    last.write_text(
        """
        #include <stdio.h>
        #include <sys/types.h>
        static void (*give)(void *, ssize_t, int, void *);
        static void *(*take)(ssize_t, int, void *);
        static void *kept;
        __attribute__((visibility("default"))) void remember(void *take_, void *give_, void *ptr)
        {
            take = take_; give = give_; kept = ptr;
        }
        __attribute__((destructor)) static void at_the_end(void)
        {
            give(kept, 1000, 0, 0);
            printf("%s\\n", take(0, 0, 0) ? "memory" : "nothing");
        }
        """
    )
    done = python(
        f"""
import ctypes, devmem as dm
from pathlib import Path
from devmem.adapters import torch
from devmem.toolkit import toolchain
shim = torch.shim(dm.current_device().backend)
library = ctypes.CDLL(str(shim.path))
library.devmem_allocate.restype = ctypes.c_void_p
library.devmem_allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
ptr = library.devmem_allocate(1000, 0, None)
assert ptr
last = ctypes.CDLL(str(toolchain.shared_library("last.so", [Path({str(last)!r})])))
cast = lambda function: ctypes.cast(function, ctypes.c_void_p)
last.remember(cast(library.devmem_allocate), cast(library.devmem_free), ctypes.c_void_p(ptr))
print("fine", flush=True)
"""
    )
    assert (done.returncode, done.stdout) == (0, "fine\nnothing\n"), done.stderr


@needs_compiler
@pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler")
def test_a_failed_allocation_is_an_exception_in_cplusplus(python, tmp_path):
    """PyTorch takes a null pointer for memory: the library throws instead. Python loads C++ for its own eyes only."""
    source, library = tmp_path / "caller.cc", tmp_path / "caller.so"
    source.write_text(
        """
        #include <new>
        #include <sys/types.h>
        typedef void *(*allocate_fn)(ssize_t, int, void *);
        extern "C" int catches(allocate_fn allocate, ssize_t nbytes)
        {
            try { return allocate(nbytes, 0, nullptr) ? 1 : 0; } catch (const std::bad_alloc &) { return -1; }
        }
        """
    )
    command = ["c++", "-std=c++11", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, timeout=patience(140))
    done = python(
        f"""
import ctypes, warnings, devmem as dm
from devmem.adapters import torch
warnings.simplefilter("ignore", dm.DevmemWarning)
shim = torch.shim(dm.current_device().backend)
asked = ctypes.CDLL({str(library)!r}).catches
asked.argtypes = ctypes.c_void_p, ctypes.c_ssize_t
allocate = ctypes.cast(ctypes.CDLL(str(shim.path)).devmem_allocate, ctypes.c_void_p)
print(asked(allocate, 1000), asked(allocate, 0), asked(allocate, dm.memory_info().total * 4))
shim._library.devmem_disconnect()
print(asked(allocate, 1000), asked(allocate, 0))
"""
    )
    assert (done.returncode, done.stdout) == (0, "1 0 -1\n-1 0\n"), done.stderr


# -- the compiler ------------------------------------------------------------------------------------------------------


@needs_compiler
def test_the_library_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = toolchain.shared_library("torch_shim.so", [torch.SHIM], torch.SHIM_FLAGS)
    assert path.is_relative_to(tmp_path)
    made = path.stat().st_mtime_ns
    assert toolchain.shared_library("torch_shim.so", [torch.SHIM], torch.SHIM_FLAGS) == path
    assert path.stat().st_mtime_ns == made
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    ctypes.CDLL(str(path)).devmem_disconnect()


def test_no_compiler_is_told_with_what_to_install(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(dm.BackendUnavailable, match="pip install ziglang"):
        toolchain.compiler()


@needs_compiler
def test_what_the_compiler_says_is_passed_on(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "broken.c"
    broken.write_text("int f( {")
    with pytest.raises(dm.BackendUnavailable, match=r"(?s)failed with exit status 1.*error"):
        toolchain.shared_library("broken.so", [broken])
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    with pytest.raises(dm.BackendUnavailable, match="cannot be built with"):
        toolchain.shared_library("broken.so", [broken])
    assert list((tmp_path / "devmem" / "native").iterdir()) == []


def test_legacy_is_what_zero_means():
    lent = LentBlocks()
    ptr = lent.lend(100, 0)
    assert lent._lent[ptr].home.handle == LEGACY_STREAM
    lent.take_back(ptr, 0)
    dm.trim()

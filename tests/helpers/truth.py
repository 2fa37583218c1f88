"""Statements that hold for CUDA's driver and for HIP's runtime alike, in the words of an adapter for each.

``test_truth_cuda.py`` and ``test_truth_roc.py`` each define an adapter (``vendor``), and take the classes of this file into their
own, beside the statements that are one vendor's. An adapter translates names, arguments and results, and says in constants where
the vendors differ. What a driver refuses is raised as `Refused`. The fixtures are in ``tests/contract/emulator/conftest.py``.
"""

import abc
import collections
import concurrent.futures
import contextlib
import ctypes
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from waits import patience

from devmem.testing import emulator

ROOT = Path(emulator.__file__).parents[3]

#: The codes of errors are the same with both vendors.
INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE = 1, 2, 101, 201, 400
ILLEGAL_STATE, NOT_FOUND, NOT_READY, PEER_ENABLED, PEER_NOT_ENABLED, DESTROYED = 401, 500, 600, 704, 705, 709
NOT_SUPPORTED, UNSUPPORTED, INVALIDATED, CAPTURED, WRONG_THREAD = 801, 900, 901, 907, 908
LEGACY, PER_THREAD, NON_BLOCKING, DISABLE_TIMING = 1, 2, 1, 2
GLOBAL, THREAD_LOCAL, RELAXED = range(3)


#: The functions under the names of this file: CUDA's, and HIP's. Where there is none, the adapter has a method of that name.
FUNCTIONS: dict[str, tuple[str | None, str | None]] = {
    "allocate": ("cuMemAlloc", "hipMalloc"),
    "free": ("cuMemFree", "hipFree"),
    "address_range": ("cuMemGetAddressRange", None),
    "allocate_managed": ("cuMemAllocManaged", "hipMallocManaged"),
    "fill": ("cuMemsetD8", "hipMemsetD8"),
    "fill_16": ("cuMemsetD16", "hipMemsetD16"),
    "fill_32": ("cuMemsetD32", "hipMemsetD32"),
    "fill_rows": ("cuMemsetD2D8", "hipMemset2D"),
    "fill_async": ("cuMemsetD8Async", "hipMemsetAsync"),
    "upload": ("cuMemcpyHtoD", None),
    "download": ("cuMemcpyDtoH", None),
    "upload_async": ("cuMemcpyHtoDAsync", None),
    "download_async": ("cuMemcpyDtoHAsync", None),
    "pin": ("cuMemHostAlloc", "hipHostMalloc"),
    "unpin": ("cuMemFreeHost", "hipHostFree"),
    "free_word": ("cuMemFreeHost", "hipFree"),
    "flags_of": ("cuMemHostGetFlags", "hipHostGetFlags"),
    "register": ("cuMemHostRegister", "hipHostRegister"),
    "unregister": ("cuMemHostUnregister", "hipHostUnregister"),
    "synchronize": ("cuCtxSynchronize", "hipDeviceSynchronize"),
    "create_stream": ("cuStreamCreate", "hipStreamCreateWithFlags"),
    "destroy_stream": ("cuStreamDestroy", "hipStreamDestroy"),
    "synchronize_stream": ("cuStreamSynchronize", "hipStreamSynchronize"),
    "query_stream": ("cuStreamQuery", "hipStreamQuery"),
    "end_capture": ("cuStreamEndCapture", None),
    "create_event": ("cuEventCreate", "hipEventCreateWithFlags"),
    "destroy_event": ("cuEventDestroy", "hipEventDestroy"),
    "synchronize_event": ("cuEventSynchronize", "hipEventSynchronize"),
    "query_event": ("cuEventQuery", "hipEventQuery"),
    "record": ("cuEventRecord", "hipEventRecord"),
    "elapsed": ("cuEventElapsedTime", None),
    "destroy_graph": ("cuGraphDestroy", "hipGraphDestroy"),
    "launch": ("cuGraphLaunch", "hipGraphLaunch"),
    "destroy_executable": ("cuGraphExecDestroy", "hipGraphExecDestroy"),
    "allocate_from": ("cuMemAllocFromPoolAsync", "hipMallocFromPoolAsync"),
    "free_async": ("cuMemFreeAsync", "hipFreeAsync"),
    "destroy_pool": ("cuMemPoolDestroy", "hipMemPoolDestroy"),
    "device_count": ("cuDeviceGetCount", "hipGetDeviceCount"),
    "can_access_peer": ("cuDeviceCanAccessPeer", "hipDeviceCanAccessPeer"),
    "enable_peer": ("cuCtxEnablePeerAccess", "hipDeviceEnablePeerAccess"),
    "disable_peer": ("cuCtxDisablePeerAccess", "hipDeviceDisablePeerAccess"),
    "create_physical": ("cuMemCreate", "hipMemCreate"),
    "release_physical": ("cuMemRelease", "hipMemRelease"),
    "unreserve": ("cuMemAddressFree", "hipMemAddressFree"),
    "map": ("cuMemMap", "hipMemMap"),
    "unmap": ("cuMemUnmap", "hipMemUnmap"),
    "begin_capture": (None, "hipStreamBeginCapture"),
    "device_at": (None, "hipDeviceGetByPCIBusId"),
}


class Refused(Exception):
    """A call returned an error."""

    def __init__(self, code):
        super().__init__(f"the call returned {code!r}")
        self.code = int(code)


@contextlib.contextmanager
def refused(*codes):
    """The call inside returns one of some errors."""
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.code in codes


class Vendor(abc.ABC):
    """One vendor's driver: its calls under common names, and what is built of them."""

    name: str
    #: The vendor's column in ``FUNCTIONS``.
    column: int
    #: Statements of this file whose subject the vendor leaves undefined: they are checked on the emulator only.
    UNDEFINED = frozenset()
    #: Whether a statement that needs a process and is the same in all versions is checked in this process.
    newest = True

    def __init__(self):
        #: Arrays whose addresses were passed to the driver.
        self.kept = collections.deque(maxlen=64)

    @abc.abstractmethod
    def call(self, function, *arguments):
        """Call a function of the vendor's; return what it gives. Raises `Refused`."""

    def __getattr__(self, name):
        """The function that the table has under a common name."""
        function = FUNCTIONS.get(name, (None, None))[self.column]
        if function is None:
            raise AttributeError(name)
        return lambda *arguments: self.call(function, *arguments)

    def emulated(self):
        try:
            emulator.control(self.name)
        except emulator.EmulatorNotLoaded:
            return False
        return True

    def two_devices(self):
        if self.device_count() < 2:
            pytest.skip("needs two devices")

    def address_of(self, array):
        """The address of an array, which is kept alive for a while: an operation may still read it."""
        self.kept.append(array)
        return array.ctypes.data

    def pages(self, count):
        """Page-aligned host memory that is not registered."""
        room = np.zeros((count + 1) * 4096, np.uint8)
        skip = -self.address_of(room) % 4096
        return room[skip : skip + count * 4096]

    def pinned(self, size, flags=None):
        """Page-locked memory and an array over it."""
        address = self.pin(size, self.PINNED if flags is None else flags)
        return address, bytes_at(address, size)

    def read(self, address, size):
        out = np.zeros(size, np.uint8)
        self.download(self.address_of(out), address, size)
        return out

    def assert_blocked(self, stream):
        """The stream is not complete, also after some time."""
        time.sleep(0.01)
        with refused(NOT_READY):
            self.query_stream(stream)

    def gate(self, stream):
        return Gate(self, stream)

    def relaxed(self, call):
        """The result of a call in relaxed capture mode."""
        before = self.exchange_mode(RELAXED)
        try:
            return call()
        finally:
            assert self.exchange_mode(before) == RELAXED

    def on_another_thread(self, call):
        """The result of a call on another thread, in the same context."""
        enter = self.entering()
        with concurrent.futures.ThreadPoolExecutor(1, initializer=enter) as pool:
            return pool.submit(call).result()

    def entering(self):
        """What another thread calls first."""
        return lambda: None


class Gate:
    """Block a stream, on any driver: it waits for a word of host memory."""

    def __init__(self, vendor, stream):
        self.vendor = vendor
        self.address = vendor.allocate_word()
        self.word = ctypes.c_uint32.from_address(self.address)
        self.word.value = 0
        vendor.wait_word(stream, self.address, 1)

    def open(self):
        self.word.value = 1

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.open()
        self.vendor.synchronize()
        self.vendor.free_word(self.address)


class Capture:
    """Begins a capture on a non-blocking stream; returns the status of its end."""

    def __init__(self, vendor):
        self.vendor, self.stream, self.begun = vendor, vendor.create_stream(NON_BLOCKING), False

    def begin(self, mode):
        self.vendor.begin_capture(self.stream, mode)
        self.begun = True
        return self.stream

    def end(self):
        self.begun = False
        try:
            self.vendor.destroy_graph(self.vendor.end_capture(self.stream))
        except Refused as error:
            return error.code
        return 0


def bytes_at(address, size):
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def environment(vendor, **options):
    """The variables of a process with a vendor's emulator, and with this file."""
    try:
        added = emulator.environment(vendor, **options)
    except emulator.BuildError as error:
        pytest.skip(f"no emulator: {error}")
    return {**os.environ, **added, **paths()}


def paths():
    """The variable by which a process finds devmem and this file."""
    found = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, found))}


def run_again(file, variables):
    """Run a file of statements in a process with the emulator."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(ROOT)]
    command += ["-x", "--import-mode=importlib", "-W", "error", "--confcutdir", str(Path(file).parent), file]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=patience(280))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, done.stdout


def child(prelude, code, *, expect, files, variables):
    """Run code in a new process, with some open files under their numbers here; return what it wrote."""
    text = textwrap.dedent(prelude) + textwrap.dedent(code)
    environment = {**os.environ, **variables, **paths()}
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=environment,
        pass_fds=files,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(120),
    )
    assert done.returncode == expect, f"exit status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def claims(here):
    """``claims(here)(source)`` marks a class of claims with their source, and has pytest collect it where there is a driver."""

    def of(source):
        def decorate(cls):
            cls.__test__ = here
            cls.source = source
            return cls

        return decorate

    return of


emulator_only = pytest.mark.usefixtures("only_emulated")
#: For claims that need a new process and do not depend on the version.
once = pytest.mark.usefixtures("only_newest")
any_thread = pytest.mark.parametrize("elsewhere", [True, False], ids=["another thread", "the same thread"])


class Statements:
    """What the classes below have in common."""

    @pytest.fixture(autouse=True)
    def defined(self, vendor, request):
        if request.function.__name__ in vendor.UNDEFINED:
            request.getfixturevalue("only_emulated")


# --- devices and memory -----------------------------------------------------------------------------------------------


class Devices(Statements):
    def test_ordinals_are_checked(self, vendor):
        for ordinal in (-1, vendor.device_count()):
            for ask in vendor.BY_ORDINAL:
                with refused(INVALID_DEVICE):
                    vendor.call(*ask, ordinal)

    def test_devices_have_names_and_different_uuids_and_bus_ids(self, vendor):
        count = vendor.device_count()
        found = [vendor.identity(device) for device in range(count)]
        assert all(name for name, _, _ in found)
        assert len({uuid for _, uuid, _ in found}) == len({bus for _, _, bus in found}) == count
        assert [vendor.device_at(bus) for _, _, bus in found] == list(range(count))

    def test_errors_have_names_and_texts(self, vendor):
        assert {code: vendor.error_name(code) for code in vendor.ERROR_NAMES} == vendor.ERROR_NAMES
        assert {code: vendor.error_text(code) for code in vendor.ERROR_TEXTS} == vendor.ERROR_TEXTS


class DeviceMemory(Statements):
    def test_addresses_are_aligned_and_distinct(self, vendor):
        addresses = [vendor.allocate(size) for size in [1] * 32 + [100, 1000]]
        assert len(set(addresses)) == len(addresses)
        assert all(address % 256 == 0 for address in addresses)
        for address in addresses:
            vendor.free(address)

    def test_an_interior_address_finds_its_range(self, vendor, block):
        assert vendor.address_range(block + 1000) == (block, 4096)

    def test_an_unknown_address_has_no_range(self, vendor):
        for address in (64, vendor.address_of(np.zeros(4096, np.uint8))):
            with refused(*vendor.NO_RANGE):
                vendor.address_range(address)

    @emulator_only
    @once
    def test_the_host_cannot_access_device_memory(self, vendor):
        vendor.child(vendor.WITH_BLOCK + "ctypes.string_at(block, 1)", expect=-11)

    def test_pitched_rows_are_padded(self, vendor):
        address, pitch = vendor.allocate_rows(100, 7)
        assert pitch >= 100
        assert pitch % vendor.PITCH_MULTIPLE == 0
        vendor.fill_rows(address, pitch, 3, 100, 7)
        vendor.free(address)


class Copies(Statements):
    def test_zero_bytes_are_no_error(self, vendor, block):
        vendor.upload(block, vendor.address_of(np.ones(64, np.uint8)), 0)
        vendor.fill(block, 1, 0)
        assert not vendor.read(block, 64).any()

    def test_a_pageable_destination_is_written_before_the_call_returns(self, vendor, block, stream):
        back = np.zeros(4096, np.uint8)
        vendor.fill_async(block, 9, 4096, stream)
        vendor.download_async(vendor.address_of(back), block, 4096, stream)
        assert (back == 9).all()


class Fills(Statements):
    def test_a_fill_writes_units_of_1_2_or_4_bytes(self, vendor, block):
        vendor.fill(block, 0x11, 16)
        vendor.fill_16(block + 16, 0x2233, 8)
        vendor.fill_32(block + 32, 0x44556677, 4)
        whole = vendor.read(block, 64)
        assert (whole[:16] == 0x11).all()
        assert (whole[16:32].view(np.uint16) == 0x2233).all()
        assert (whole[32:48].view(np.uint32) == 0x44556677).all()
        assert not whole[48:].any()


class Peers(Statements):
    def test_peer_access_is_enabled_once(self, vendor):
        vendor.two_devices()
        assert not vendor.can_access_peer(0, 0)
        if not vendor.can_access_peer(0, 1):
            pytest.skip("the two devices have no peer access")
        with vendor.peer(1) as peer:
            with refused(PEER_NOT_ENABLED):
                vendor.disable_peer(peer)
            with refused(INVALID_VALUE):
                vendor.enable_peer(peer, 1)
            vendor.enable_peer(peer, 0)
            with refused(PEER_ENABLED):
                vendor.enable_peer(peer, 0)
            vendor.disable_peer(peer)


# --- streams, captures, graphs, events --------------------------------------------------------------------------------


class Streams(Statements):
    def test_default_streams_cannot_be_destroyed(self, vendor):
        for handle in vendor.DEFAULT_STREAMS:
            with refused(INVALID_HANDLE):
                vendor.destroy_stream(handle)

    def test_a_new_stream_does_not_capture(self, vendor, stream):
        assert vendor.capture_status(stream) == 0


class HostFunctions(Statements):
    def test_host_functions_run_in_stream_order(self, vendor, stream):
        seen = []
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append((data, gate.word.value)))
        with vendor.gate(stream) as gate:
            vendor.launch_host(stream, ctypes.cast(call, ctypes.c_void_p).value, 7)
            vendor.assert_blocked(stream)
            assert seen == []
            gate.open()
            vendor.synchronize_stream(stream)
        assert seen == [(7, 1)]


class Captures(Statements):
    @pytest.fixture
    def unsafe(self, vendor, event, stream):
        """Calls that are potentially unsafe during a capture, by name. The event has passed."""
        vendor.record(event, stream)
        vendor.synchronize_event(event)
        return {
            "allocate": lambda: vendor.free(vendor.allocate(64)),
            "query an event": lambda: vendor.query_event(event),
            "wait for an event": lambda: vendor.synchronize_event(event),
            "page-lock": lambda: vendor.unpin(vendor.pin(64, 0)),
        }

    @pytest.fixture
    def where(self, vendor, elsewhere):
        return vendor.on_another_thread if elsewhere else lambda call: call()

    def test_a_stream_reports_its_capture(self, vendor, capturing):
        stream = capturing.begin(GLOBAL)
        assert vendor.capture_status(stream) == 1
        assert capturing.end() == 0
        assert vendor.capture_status(stream) == 0

    @any_thread
    def test_in_global_mode_an_unsafe_call_of_any_thread_fails_and_invalidates_the_capture(
        self, vendor, capturing, unsafe, where
    ):
        for what in vendor.UNSAFE:
            capturing.begin(GLOBAL)
            with refused(UNSUPPORTED):
                where(unsafe[what])
            assert capturing.end() == INVALIDATED, what

    @any_thread
    def test_a_thread_in_relaxed_mode_may_make_unsafe_calls(self, vendor, capturing, unsafe, where):
        for what in vendor.SAFE_IF_RELAXED:
            capturing.begin(GLOBAL)
            where(lambda what=what: vendor.relaxed(unsafe[what]))
            assert capturing.end() == 0, what

    def test_in_thread_local_mode_only_the_capturing_thread_is_restricted(self, vendor, capturing, unsafe):
        for what in vendor.UNSAFE:
            capturing.begin(THREAD_LOCAL)
            vendor.on_another_thread(unsafe[what])
            assert capturing.end() == 0, what
        capturing.begin(THREAD_LOCAL)
        with refused(UNSUPPORTED):
            unsafe["allocate"]()
        assert capturing.end() == INVALIDATED

    def test_each_thread_has_its_own_mode(self, vendor):
        found = vendor.relaxed(lambda: vendor.on_another_thread(lambda: vendor.exchange_mode(GLOBAL)))
        assert found == GLOBAL

    def test_a_captured_event_cannot_be_queried_in_any_mode(self, vendor, capturing, event):
        vendor.record(event, capturing.begin(GLOBAL))
        with refused(CAPTURED):
            vendor.relaxed(lambda: vendor.query_event(event))

    @emulator_only
    def test_what_is_no_node_here_cannot_be_captured(self, vendor, capturing, block):
        """Pageable memory: the references do not say when a graph reads it. And words of memory."""
        stream = capturing.begin(RELAXED)
        with refused(NOT_SUPPORTED):
            vendor.upload_async(block, vendor.address_of(np.zeros(8, np.uint8)), 8, stream)
        with refused(NOT_SUPPORTED):
            vendor.write_word(stream, block, 1)
        assert capturing.end() == 0

    def test_a_capture_ends_on_the_thread_that_began_it(self, vendor, capturing):
        stream = capturing.begin(GLOBAL)
        with refused(ILLEGAL_STATE):
            vendor.begin_capture(stream, GLOBAL)
        with refused(WRONG_THREAD):
            vendor.on_another_thread(lambda: vendor.end_capture(stream))


class Graphs(Statements):
    def test_captured_work_runs_at_each_launch_and_not_before(self, vendor, graph_of, block, stream):
        graph = graph_of(lambda on: vendor.fill_async(block, 7, 64, on))
        vendor.synchronize()
        assert not vendor.read(block, 64).any()
        for _ in range(2):
            vendor.launch(graph, stream)
            vendor.synchronize_stream(stream)
            assert (vendor.read(block, 64) == 7).all()
            vendor.fill(block, 0, 64)
            vendor.synchronize()  # the next launch, on a stream of its own, does not wait for it

    def test_copies_read_page_locked_memory_when_they_run(self, vendor, graph_of, block, stream):
        (source, into), (target, out) = vendor.pinned(4096), vendor.pinned(4096)

        def enqueue(on):
            vendor.upload_async(block, source, 4096, on)
            vendor.download_async(target, block, 4096, on)

        graph = graph_of(enqueue)
        for value in (1, 2):
            into[:], out[:] = 0, 0
            with vendor.gate(stream) as gate:
                vendor.launch(graph, stream)
                into[:] = value
                vendor.assert_blocked(stream)
                assert not out.any()
                gate.open()
                vendor.synchronize_stream(stream)
            assert (out == value).all()
        vendor.unpin(source)
        vendor.unpin(target)

    def test_nodes_of_one_stream_run_in_the_order_of_their_capture(self, vendor, graph_of, block, stream):
        def enqueue(on):
            for value in range(1, 20):
                vendor.fill_async(block, value, 64, on)

        vendor.launch(graph_of(enqueue), stream)
        vendor.synchronize_stream(stream)
        assert (vendor.read(block, 64) == 19).all()

    @emulator_only
    def test_a_destroyed_graph_is_not_launched(self, vendor, graph_of, block, stream):
        graph = graph_of(lambda on: vendor.fill_async(block, 7, 64, on), keep=False)
        vendor.destroy_executable(graph)
        with refused(INVALID_VALUE):
            vendor.launch(graph, stream)
        with refused(INVALID_VALUE):
            vendor.destroy_executable(graph)


class Events(Statements):
    def test_an_unrecorded_event_is_complete(self, vendor, event, stream):
        vendor.query_event(event)
        vendor.synchronize_event(event)
        vendor.wait_event(stream, event)

    def test_a_wait_is_for_the_last_record_before_it(self, vendor, event, stream, other):
        with vendor.gate(stream) as gate:
            vendor.wait_event(other, event)
            vendor.record(event, stream)
            vendor.synchronize_stream(other)
            with refused(NOT_READY):
                vendor.query_event(event)
            vendor.wait_event(other, event)
            vendor.assert_blocked(other)
            gate.open()
            vendor.synchronize_stream(other)

    def test_the_time_between_two_events_is_positive(self, vendor, stream):
        start, end = vendor.create_event(0), vendor.create_event(0)
        with refused(INVALID_HANDLE):
            vendor.elapsed(start, end)
        vendor.record(start, stream)
        vendor.synchronize_event(start)
        with vendor.gate(stream):
            vendor.record(end, stream)
            with refused(NOT_READY):
                vendor.elapsed(start, end)
            time.sleep(0.02)
        assert vendor.elapsed(start, end) > 15
        vendor.destroy_event(start)
        vendor.destroy_event(end)

    def test_event_flags_are_checked(self, vendor):
        for flags in vendor.EVENT_FLAGS:
            vendor.destroy_event(vendor.create_event(flags))
        for flags in vendor.NO_EVENT_FLAGS:
            with refused(INVALID_VALUE):
                vendor.create_event(flags)

    @emulator_only
    def test_a_destroyed_event_is_unknown(self, vendor, stream):
        made = vendor.create_event(0)
        vendor.destroy_event(made)
        for use in (vendor.destroy_event, vendor.query_event):
            with refused(vendor.UNKNOWN_EVENT):
                use(made)
        for use in (lambda: vendor.record(made, stream), lambda: vendor.wait_event(stream, made)):
            with refused(vendor.UNKNOWN_EVENT):
                use()


# --- memory of the host, managed memory, pools ------------------------------------------------------------------------


class Pools(Statements):
    def test_memory_is_allocated_and_freed_in_stream_order(self, vendor, pool, stream):
        address, back = vendor.allocate_from(4096, pool, stream), np.zeros(4096, np.uint8)
        vendor.fill_async(address, 5, 4096, stream)
        vendor.download_async(vendor.address_of(back), address, 4096, stream)
        vendor.free_async(address, stream)
        assert (back == 5).all()


class HostMemory(Statements):
    def test_flags_can_be_read_back(self, vendor):
        for flags in vendor.PINNED_FLAGS:
            address = vendor.pin(64, flags)
            assert vendor.flags_of(address) == flags
            vendor.unpin(address)


class Registering(Statements):
    def test_registered_memory_is_pinned_until_unregistered(self, vendor, block, stream):
        here = vendor.pages(2)
        vendor.register(vendor.address_of(here), 8192, 0)
        here[:] = 1
        with vendor.gate(stream) as gate:
            vendor.upload_async(block, vendor.address_of(here), 4096, stream)
            here[:] = 2
            gate.open()
            vendor.synchronize_stream(stream)
        assert (vendor.read(block, 4096) == 2).all()
        vendor.unregister(vendor.address_of(here))

    def test_zero_bytes_and_unknown_flags_cannot_be_registered(self, vendor):
        here = vendor.address_of(vendor.pages(1))
        for address, size, flags in ((0, 4096, 0), (here, 0, 0), (here, 4096, vendor.NO_REGISTER_FLAGS)):
            with refused(INVALID_VALUE):
                vendor.register(address, size, flags)


class ManagedMemory(Statements):
    def test_host_and_device_use_one_address(self, vendor, managed):
        here = bytes_at(managed, 4096)
        here[:] = 3
        assert (vendor.read(managed, 4096) == 3).all()
        vendor.fill(managed, 4, 4096)
        vendor.synchronize()
        assert (here == 4).all()

    def test_flags_and_size_are_checked(self, vendor):
        for size, flags in ((0, 1), (64, 0), (64, 8)):
            with refused(INVALID_VALUE):
                vendor.allocate_managed(size, flags)


# --- other processes --------------------------------------------------------------------------------------------------


class Sharing(Statements):
    #: What the other process does: it finds 7 in each byte, and writes 8.
    IMPORTER: str

    def test_another_process_sees_the_same_bytes(self, vendor, block):
        vendor.fill(block, 7, 4096)
        vendor.synchronize()
        vendor.child(self.IMPORTER, HANDLE=vendor.ipc_handle(block).hex())
        assert (vendor.read(block, 4096) == 8).all()

    def test_a_process_cannot_open_its_own_handle(self, vendor, block):
        handle = vendor.ipc_handle(block)
        with refused(INVALID_CONTEXT):
            vendor.open_ipc(handle)


class SharedPools(Statements):
    IMPORTER: str

    @pytest.fixture
    def shareable(self, vendor):
        made = vendor.create_pool(shareable=True)
        yield made
        vendor.destroy_pool(made)

    @pytest.fixture
    def pooled(self, vendor, shareable, stream):
        address = vendor.allocate_from(4096, shareable, stream)
        vendor.fill_async(address, 7, 4096, stream)
        vendor.synchronize_stream(stream)
        yield address
        vendor.free_async(address, stream)
        vendor.synchronize_stream(stream)

    @once
    def test_another_process_sees_the_same_bytes(self, vendor, shareable, pooled):
        file = vendor.export_pool(shareable, 0)
        try:
            data = vendor.export_pointer(pooled).hex()
            vendor.child(self.IMPORTER, files=(file,), FILE=str(file), DATA=data)
        finally:
            os.close(file)
        assert (vendor.read(pooled, 4096) == 8).all()

    def test_a_pool_that_was_not_made_for_it_is_not_exported(self, vendor, pool, shareable):
        for each, flags in ((pool, 0), (shareable, 1)):
            with refused(INVALID_VALUE):
                vendor.export_pool(each, flags)


class VirtualMemory(Statements):
    IMPORTER: str

    @pytest.fixture
    def properties(self, vendor):
        return vendor.physical_properties()

    @pytest.fixture
    def size(self, vendor, properties):
        return vendor.granularity(properties)

    @pytest.fixture
    def physical(self, vendor, properties, size):
        made = vendor.create_physical(size, properties, 0)
        yield made
        vendor.release_physical(made)

    @pytest.fixture
    def addresses(self, vendor, size):
        made = vendor.reserve(2 * size)
        yield made
        vendor.unreserve(made, 2 * size)

    @pytest.fixture
    def mapped(self, vendor, physical, addresses, size):
        vendor.map(addresses, size, 0, physical, 0)
        yield addresses
        vendor.unmap(addresses, size)

    @once
    def test_another_process_sees_the_same_bytes(self, vendor, physical, mapped, size):
        vendor.allow(mapped, size)
        vendor.fill(mapped, 7, size)
        vendor.synchronize()
        file = vendor.export_physical(physical)
        try:
            vendor.child(self.IMPORTER, files=(file,), FILE=str(file), SIZE=str(size))
        finally:
            os.close(file)
        assert (vendor.read(mapped, 4096) == 8).all()

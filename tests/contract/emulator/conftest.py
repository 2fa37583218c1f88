"""What the statements of both vendors use: ``vendor`` is the adapter of the file that asks."""

import pytest

pytest.register_assert_rewrite("truth")

import truth  # noqa: E402


@pytest.fixture(scope="module")
def vendor(request):
    return request.module.vendor


@pytest.fixture
def only_emulated(vendor):
    if not vendor.emulated():
        pytest.skip("the vendor leaves this undefined; the emulator defines it")


@pytest.fixture
def only_newest(vendor):
    if not vendor.newest:
        pytest.skip("needs a new process, and is checked on the newest series")


def made_stream(vendor):
    made = vendor.create_stream(truth.NON_BLOCKING)
    yield made
    vendor.synchronize_stream(made)
    vendor.destroy_stream(made)


stream, other = pytest.fixture(made_stream, name="stream"), pytest.fixture(made_stream, name="other")


@pytest.fixture
def event(vendor):
    made = vendor.create_event(truth.DISABLE_TIMING)
    yield made
    vendor.destroy_event(made)


@pytest.fixture
def passed(vendor, event, stream):
    """A completed event."""
    vendor.record(event, stream)
    vendor.synchronize_event(event)
    return event


@pytest.fixture
def block(vendor):
    """Device memory of 4096 bytes, zeroed."""
    address = vendor.allocate(4096)
    vendor.fill(address, 0, 4096)
    vendor.synchronize()
    yield address
    vendor.free(address)


@pytest.fixture
def managed(vendor):
    address = vendor.allocate_managed(4096, 1)
    yield address
    vendor.free(address)


@pytest.fixture
def pool(vendor):
    made = vendor.create_pool()
    yield made
    vendor.destroy_pool(made)


@pytest.fixture
def capturing(vendor):
    """Begins a capture on a non-blocking stream; returns the status of its end."""
    capture = truth.Capture(vendor)
    yield capture
    if capture.begun:
        capture.end()
    vendor.destroy_stream(capture.stream)


@pytest.fixture
def graph_of(vendor):
    """An executable graph of what a function enqueues on the stream that it is given, captured in relaxed mode."""
    made, stream = [], vendor.create_stream(truth.NON_BLOCKING)

    def make(enqueue, *, keep=True):
        vendor.begin_capture(stream, truth.RELAXED)
        enqueue(stream)
        graph = vendor.end_capture(stream)
        executable = vendor.instantiate(graph)
        vendor.destroy_graph(graph)
        if keep:
            made.append(executable)
        return executable

    yield make
    vendor.synchronize()
    for executable in made:
        vendor.destroy_executable(executable)
    vendor.destroy_stream(stream)

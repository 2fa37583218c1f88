"""Kernels in the simulator, through the public names: on devices whose memory the host can reach."""

from __future__ import annotations

import gc
import importlib.util
import json
import signal
import sys
import textwrap
import weakref
from pathlib import Path

import numpy as np
import pytest

import devmem as dm
from devmem.testing import hold

_spec = importlib.util.spec_from_file_location(
    "simulated_kernels", Path(__file__).parents[2] / "helpers" / "kernels_all.py"
)
kernels_all = sys.modules["simulated_kernels"] = importlib.util.module_from_spec(
    _spec
)  # its source lines are looked up
_spec.loader.exec_module(kernels_all)


@pytest.fixture(autouse=True)
def simulated(need):
    need("host_function")
    pytest.importorskip("greenlet")


@dm.kernel
def double(a):
    i = dm.grid(1)
    if i < a.size:
        a[i] *= 2


@dm.kernel
def beyond(a):
    a[dm.grid(1) + 1] = 0  # one too far


@dm.kernel
def diverging(a):
    if dm.grid(1) % 2:
        dm.barrier()


@dm.kernel
def failing(a):
    a[0] = 1 // (a.size - a.size)


@dm.kernel
def neighbours(a):
    s = dm.shared.array(64, np.float32)
    t = dm.threadIdx.x
    s[t] = a[t]
    a[t] = s[t - 1] if t > 0 else 0  # a barrier is missing before


HOW = {
    "plain": {},
    "watched": {"race_check": True},
    "shuffled": {"shuffle": 11},
    "watched, shuffled, narrow": {"race_check": True, "shuffle": 12, "wave_size": 8},
    "wide": {"wave_size": 64},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("case", kernels_all.cases(), ids=lambda case: case.name)
def test_kernels_that_everyone_knows_are_right_and_reported_of_nothing(case, how):
    arguments = [dm.to_device(each) if isinstance(each, np.ndarray) else each for each in case.arguments]
    with dm.simulator(**HOW[how]):
        case.kernel[case.launch](*arguments)
    for place, expected in case.expected(*case.arguments).items():
        np.testing.assert_allclose(arguments[place].copy_to_host(), expected, rtol=1e-5)


@pytest.mark.parametrize("case", kernels_all.cases(), ids=lambda case: case.name)
def test_they_are_right_with_a_signature(case):
    kernel = dm.kernel(case.signature)(case.kernel.function)
    arguments = [dm.to_device(each) if isinstance(each, np.ndarray) else each for each in case.arguments]
    kernel[case.launch](*arguments)
    for place, expected in case.expected(*case.arguments).items():
        np.testing.assert_allclose(arguments[place].copy_to_host(), expected, rtol=1e-5)


def test_a_report_is_raised_by_the_launch():
    a = dm.to_device(np.ones(8))
    with pytest.raises(dm.SimulatorError, match="out of bounds: index 8 on axis 0 of <array 'a'") as caught:
        beyond[2, 4](a)
    assert (caught.value.block, caught.value.thread) == ((1, 0, 0), (3, 0, 0))
    assert "beyond: a[dm.grid(1) + 1] = 0  # one too far" in str(caught.value)
    double[1, 8](a)
    assert a.copy_to_host().tolist() == [2] + [0] * 7


@pytest.mark.parametrize("how", ["stream", "event", "copy", "device", "launch", "close"])
def test_with_a_stream_the_first_wait_raises_it(how):
    a = dm.to_device(np.ones(8))
    stream = dm.stream()
    event = dm.event()
    with hold(stream):
        beyond[2, 4, stream](a)
        event.record(stream)
    if how == "launch":
        while not stream.query():
            pass
    telling = {
        "stream": stream.synchronize,
        "event": event.synchronize,
        "copy": lambda: (a.copy_to_host(np.empty(8), stream=stream), stream.synchronize()),
        "device": dm.synchronize,
        "launch": lambda: double[1, 8, stream](a),
        "close": stream.close,
    }
    with pytest.raises(dm.SimulatorError, match="out of bounds"):
        telling[how]()
    dm.synchronize()
    double[1, 8, stream](a)
    stream.synchronize()
    assert a.copy_to_host().tolist() == [2] + [0] * 7


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kernel", [beyond, diverging, failing])
def test_a_report_that_is_gone_keeps_nothing(named, kernel):
    """Without a collection: the arrays of the launch go with the last name for them."""
    stream = dm.stream() if named else 0

    def launch(a):
        with pytest.raises(dm.SimulatorError):
            kernel[2, 4, stream](a)
            dm.synchronize()

    def array():
        a = dm.to_device(np.ones(8))
        launch(a)
        return weakref.ref(a)

    array()  # what a first launch makes
    gc.collect()
    gc.disable()
    try:
        assert array()() is None
    finally:
        gc.enable()


def test_a_download_behind_a_kernel_that_failed_does_not_pass_for_its_result():
    a = dm.to_device(np.ones(8))
    stream = dm.stream()
    bound = a.bind(stream)
    beyond[2, 4](bound)
    with pytest.raises(dm.SimulatorError):
        bound.copy_to_host()
        stream.synchronize()
    assert bound.copy_to_host().shape == (8,)


def test_closing_raises_errors_that_were_not_raised_before():
    stream = dm.stream()
    beyond[2, 4, stream](dm.to_device(np.ones(8)))
    with pytest.raises(dm.SimulatorError):
        dm.close()
    assert dm.to_device(np.ones(3)).copy_to_host().tolist() == [1, 1, 1]


@pytest.mark.parametrize("drop", ["drop", "free"])
def test_dropped_right_after_a_launch(still, drop):
    before = dm.memory_info().live
    # Streams that do not wait for the default one, where the block is freed behind the held one.
    stream, side = dm.stream(non_blocking=True), dm.stream(non_blocking=True)
    a, out = dm.to_device(np.arange(64, dtype=np.int32)), dm.to_device(np.zeros(64, np.int32))
    dm.synchronize()

    @dm.kernel
    def copy(a, out):
        out[dm.grid(1)] = a[dm.grid(1)]

    with hold(stream):
        copy[2, 32, stream](a, out)
        gone = weakref.ref(a)
        if drop == "free":
            a.free()
        del a
        assert gone() is None
        others = [dm.to_device(np.full(64, -1, np.int32), stream=side) for _ in range(20)]
        side.synchronize()
    stream.synchronize()
    assert out.copy_to_host().tolist() == list(range(64))
    del others, out
    gc.collect()
    dm.trim()
    assert dm.memory_info().live == before


def test_host_arrays_stay_as_they_were_when_a_kernel_fails(still):
    before = dm.memory_info().live
    a = np.ones(8)
    with pytest.raises(dm.SimulatorError, match="out of bounds"):
        beyond[2, 4](dm.InOut(a))
    assert (a == 1).all()
    double[1, 8](dm.InOut(a))
    assert (a == 2).all()
    dm.trim()
    assert dm.memory_info().live == before


def test_a_missing_barrier():
    h = np.arange(64, dtype=np.float32)
    neighbours[1, 64](a := dm.to_device(h))
    assert a.copy_to_host().tolist() == [0, *range(63)], "it is right by luck"
    for choice in ({"race_check": True}, {"shuffle": 3}, {"shuffle": 4}):
        with dm.simulator(**choice), pytest.raises(dm.SimulatorError, match="barrier") as caught:
            neighbours[1, 64](dm.to_device(h))
        assert caught.value.kind in ("race", "unwritten")


def test_settings_reach_a_launch(with_settings):
    with_settings(SIM_RACE_CHECK="1")
    with pytest.raises(dm.SimulatorError, match="race"):
        neighbours[1, 64](dm.to_device(np.ones(64, np.float32)))
    with_settings(SIM_RACE_CHECK=None, SIM_WAVE_SIZE="5")

    @dm.kernel
    def waves(out):
        out[0] = dm.warpsize

    out = dm.to_device(np.zeros(1, np.int32))
    waves[1, 1](out)
    assert out.copy_to_host() == [5]


def test_the_scope_of_the_launch_counts_not_that_of_the_wait():
    stream, out = dm.stream(), dm.to_device(np.zeros(1, np.int32))

    @dm.kernel
    def waves(out):
        out[0] = dm.warpsize

    with hold(stream), dm.simulator(wave_size=3):
        waves[1, 1, stream](out)
    stream.synchronize()
    assert out.copy_to_host() == [3]


@dm.kernel(device=True)
def half(value):
    return value / 2


def test_device_functions_are_called_and_told_of():
    @dm.kernel
    def halve(a):
        a[dm.grid(1)] = half(a[dm.grid(1)])

    @dm.kernel
    def broken(a):
        half(None)

    halve[1, 4](a := dm.to_device(np.ones(4)))
    assert a.copy_to_host().tolist() == [0.5] * 4
    with pytest.raises(dm.SimulatorError, match="exception: TypeError") as caught:
        broken[1, 1](a)
    assert " in half: return value / 2" in str(caught.value)


def test_a_kernel_cannot_launch():
    @dm.kernel
    def inner():
        pass

    @dm.kernel
    def outer():
        inner[1, 1]()

    with pytest.raises(dm.SimulatorError, match="cannot launch another"):
        outer[1, 1]()


@pytest.mark.parametrize("verb", ["upload", "allocate", "download", "element", "wait", "wait for the stream", "view"])
def test_a_kernel_cannot_use_the_device_as_the_host_does(verb):
    array, stream = dm.to_device(np.ones(4)), dm.stream()
    smart = dm.SmartArray(np.ones(3), where="gpu")
    verbs = {
        "upload": lambda: dm.to_device(np.ones(100)),
        "allocate": lambda: dm.device_array(3),
        "download": array.copy_to_host,
        "element": lambda: array[0],
        "wait": dm.synchronize,
        "wait for the stream": stream.synchronize,
        "view": lambda: smart.sum(),
    }

    @dm.kernel
    def confused():
        if dm.grid(1) == 20:
            verbs[verb]()

    confused[8, 4, stream]()
    with pytest.raises(dm.SimulatorError, match="on the host, and give it arrays as arguments") as caught:
        stream.synchronize()
    assert (caught.value.block, caught.value.thread) == ((5, 0, 0), (0, 0, 0))
    verbs[verb]()
    assert array.copy_to_host().tolist() == [1] * 4


def test_a_kernel_that_is_dropped_leaves_its_report_to_who_waits(recwarn):
    @dm.kernel
    def passing(a):
        a[dm.grid(1)] = 0

    stream, a = dm.stream(), dm.to_device(np.ones(4))
    with hold(stream):
        passing[1, 8, stream](a)
        del passing
        gc.collect()
    while not stream.query():
        pass
    dm.trim()  # gives back what was dropped
    assert not [str(each.message) for each in recwarn.list if "passing" in str(each.message)]
    with pytest.raises(dm.SimulatorError, match=r"out of bounds[\s\S]* in passing"):
        stream.synchronize()


def test_what_is_read_without_a_stream_behind_a_kernel_that_failed():
    stream, a = dm.stream(), dm.to_device(np.ones(8))
    beyond[2, 4, stream](a)
    with pytest.raises(dm.SimulatorError):
        a.copy_to_host()
    assert a.copy_to_host().tolist() == [1] + [0] * 7


def test_without_greenlet(python):
    result = python(
        textwrap.dedent("""
        import sys
        sys.modules["greenlet"] = None
        import devmem as dm

        @dm.kernel
        def nothing():
            pass

        try:
            nothing[1, 1]()
        except dm.UnsupportedError as error:
            print(error)
        """)
    )
    assert "pip install 'devmem-arrays[sim]'" in result.stdout, result.stderr


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n        dm.barrier()",
        "while a[0] == 0:\n        pass",
    ],
)
def test_the_interpreter_ends_while_a_kernel_runs(python, body):
    script = f"""
import numpy as np
import devmem as dm

@dm.kernel
def busy(a):
    {body}

stream = dm.stream()
busy[4, 4, stream](dm.to_device(np.zeros(4)))
print("leaving")
"""
    result = python(script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")


def test_the_end_of_the_interpreter_warns_of_errors_that_were_never_raised(python):
    script = """
import numpy as np
import devmem as dm

@dm.kernel
def broken(a):
    a[4] = 0

stream = dm.stream()
broken[1, 1, stream](dm.to_device(np.zeros(4)))
while not stream.query():
    pass
"""
    result = python(script)
    assert result.returncode == 0
    assert (
        "DevmemWarning: a function that a stream ran failed, and no call waited for it: SimulatorError: out of bounds"
        in result.stderr
    )


INTERRUPTING = """
import signal, threading, time
import numpy as np
import devmem as dm

class State:
    threads, armed, over = set(), False, False

state = State()

@dm.kernel
def forever(a):
    state.threads.add(dm.grid(1))
    while a[0] == 0:
        {body}

@dm.kernel
def add(a):
    a[dm.grid(1)] += 1

main = threading.main_thread().ident

def insist():  # a signal may come just before the interpreter waits, and is noticed with the next one only
    while not state.over:
        if state.threads:
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.1)

def interrupted(*_):
    if state.armed:
        state.armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupted)
threading.Thread(target=insist, daemon=True).start()
a, stream, event = dm.to_device(np.zeros(8)), dm.stream(), dm.event()
if {how!r} != "launch":
    forever[2, 4, stream](a)
    event.record(stream)
note = ""
while not note:  # it may also come a little before the call waits
    try:
        state.armed = True
        {wait}
        raise SystemExit("it was not interrupted")
    except KeyboardInterrupt as error:
        note = "".join(getattr(error, "__notes__", ["interrupted: before it waited, in forever"][: {how!r} == "launch"]))
state.over = True
assert note.startswith("interrupted: ") and " in forever" in note, note
for on in (0, stream):
    add[2, 4, on](a)
stream.synchronize()
print(a.copy_to_host().tolist())
dm.close()
"""

WAITS = {
    "launch": "forever[2, 4](a)",
    "another launch": "forever[2, 4](a)",
    "stream": "stream.synchronize()",
    "event": "event.synchronize()",
    "device": "dm.synchronize()",
    "copy": "a.copy_to_host()",
}


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads here")
@pytest.mark.parametrize("body", ["pass", "dm.barrier()"])
@pytest.mark.parametrize("how", WAITS)
def test_who_interrupts_a_wait_ends_the_kernel(python, how, body):
    result = python(INTERRUPTING.format(how=how, wait=WAITS[how], body=body))
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{[2.0] * 8}\n", "")


# -- what is given to be read ------------------------------------------------------------------------------------------


@dm.kernel
def scratch(a, out):
    out[0] = a[0]
    a[1] = 7  # here


@dm.kernel
def counting(a, out):
    out[0] = dm.atomic.add(a, 1, 1)  # here


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
@pytest.mark.parametrize("where", ["host", "device", "smart"])
@pytest.mark.parametrize("kernel", [scratch, counting])
def test_a_kernel_that_writes_what_it_was_given_to_read(line_of, kernel, where, dtype):
    h = np.array([3, 4, 5], dtype)
    given = {"host": lambda: h, "device": lambda: dm.to_device(h), "smart": lambda: dm.SmartArray(h)}[where]()
    out = dm.to_device(np.zeros(1, dtype))
    with pytest.raises(dm.SimulatorError, match=r"<array 'a' of shape .* devmem\.In") as caught:
        kernel[1, 1](dm.In(given), out)
    assert (caught.value.kind, caught.value.lineno) == ("misuse", line_of(kernel.function, "# here"))
    assert np.asarray(given if where != "device" else given.copy_to_host()).tolist() == [3, 4, 5]
    for way in (given, dm.InOut(given)) if where != "host" else (dm.InOut(given),):
        kernel[1, 1](way, out)
    assert np.asarray(given if where != "device" else given.copy_to_host())[1] != 4


def test_records_that_were_given_to_be_read(line_of):
    one = np.zeros(2, [("x", np.float32)])[0]

    @dm.kernel
    def write(record):
        record.x = 1  # here

    with pytest.raises(dm.SimulatorError, match="read-only") as caught:
        write[1, 1](dm.In(one))
    assert caught.value.lineno == line_of(write.function, "# here")
    write[1, 1](dm.InOut(one))
    assert one["x"] == 1


# -- the user's line, and the user's warnings --------------------------------------------------------------------------


def test_a_name_that_devmem_has_not_got_is_told_where_it_is_written(line_of):
    @dm.kernel
    def misspelt(a):
        a[0] = dm.treadIdx.x  # here

    with pytest.raises(dm.SimulatorError, match="treadIdx") as caught:
        misspelt[1, 1](dm.to_device(np.zeros(1)))
    assert (caught.value.filename, caught.value.lineno) == (__file__, line_of(misspelt.function, "# here"))


def test_an_error_in_a_library_is_told_where_the_kernel_calls_it(line_of):
    decode = json.JSONDecoder()

    @dm.kernel
    def reading():
        decode.decode("{")  # here

    with pytest.raises(dm.SimulatorError, match="JSONDecodeError") as caught:
        reading[1, 1]()
    assert (caught.value.filename, caught.value.lineno) == (__file__, line_of(reading.function, "# here"))


@pytest.mark.filterwarnings("error")
def test_numbers_overflow_and_are_divided_without_a_word_as_on_a_device():
    @dm.kernel("void(float32[::1], float32, int32)")
    def numbers(a, huge, whole):
        near = dm.shared.array(1, np.float32)
        near[0] = huge
        dm.barrier()
        a[0] = near[0] * near[0]
        a[1] = a[2] / a[3]
        a[2] = np.sqrt(np.float32(-1))
        a[3] = whole

    a = dm.to_device(np.array([1, 1, 1, 0], np.float32))
    numbers[3, 1](a, 1e300, 2**40)
    assert np.isinf(a.copy_to_host()[0])


@pytest.mark.parametrize("n", [1, 63, 64, 100, 256, 512])
def test_forall_shows_a_guard_that_is_missing(n):
    @dm.kernel
    def careless(a):
        a[dm.grid(1)] = 1

    @dm.kernel
    def guarded(a):
        i = dm.grid(1)
        if i < a.size:
            a[i] = 1

    a = dm.zeros(n)
    with pytest.raises(dm.SimulatorError, match=f"index {n} on axis 0"):
        careless.forall(n)(a)
    guarded.forall(n)(a)
    assert a.copy_to_host().all()


def test_bytes_where_the_stream_stands():
    with pytest.raises(dm.LayoutError) as raised:
        double[1, 8, 32](dm.zeros(8))
    assert "kernel[grid, block, 0, 32]" in raised.value.__notes__[0]


def test_a_traceback_is_about_the_launch():
    with pytest.raises(dm.SimulatorError) as raised:
        beyond[1, 8](dm.zeros(8))
    frames = [each.name for each in raised.traceback]
    assert frames[0] == "test_a_traceback_is_about_the_launch"
    assert len(frames) <= 4, frames

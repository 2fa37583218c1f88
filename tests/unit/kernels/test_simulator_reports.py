"""What the simulator reports: which mistake, of which block and thread, in which line."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import devmem as dm
from devmem.kernels.names import (
    atomic,
    barrier,
    blockIdx,
    const,
    grid,
    local,
    mem_fence,
    shared,
    threadIdx,
    wavebarrier,
)
from devmem.spi.errors import LayoutError, SimulatorError
from devmem.spi.sizes import exact_size

EIGHT = np.zeros(8, np.int32)


def at(report, kind, thread, block=(0, 0, 0)):
    """The report's kind, block and thread are these; its line, for the rest of the test."""
    assert (report.kind, report.block, report.thread) == (kind, block, thread)
    assert report.filename == __file__
    text = str(report)
    assert text.startswith(f"{kind}: ")
    assert f"block {block}, thread {thread}" in text
    assert f"test_simulator_reports.py:{report.lineno} in " in text
    return report.lineno


# -- indices and stores that compiled code has no, or another, meaning for -------------------------------------------------


def test_a_negative_index_is_reported_where_that_is_asked_for(simulated, monkeypatch):
    def kernel(a):
        a[threadIdx.x] = a[threadIdx.x - 1]

    def by_a_slice(a):
        a[-2:] = 0

    def flat(a):
        a[0] = a.flat[-1]

    with dm.simulator(negative="report"):
        told = str(simulated.report(kernel, 1, 4, np.zeros(4)))
        assert "slice -2:None on axis 0 of <array 'a'" in str(simulated.report(by_a_slice, 1, 1, np.zeros(4)))
        assert "index -1 of the 4 elements" in str(simulated.report(flat, 1, 1, np.zeros(4)))
    assert "index -1 on axis 0 of <array 'a' of shape (4,), dtype float64>: compiled code counts from the end" in told
    assert "a[a.size - 1], or a[(i - 1) % n]" in told
    with pytest.raises(dm.ConfigError, match="negative='refuse' must be one of 'wrap', 'report'"):
        dm.simulator(negative="refuse")


@pytest.mark.parametrize("watched", [False, True])
def test_negative_indices_count_from_the_end_as_in_compiled_code(simulated, watched):
    def kernel(a, m, out):
        near = shared.array(3, np.int32)
        near[threadIdx.x] = threadIdx.x
        barrier()
        i = threadIdx.x
        a[i] = m[-1, i - 1] + near[i - 3] + a[-1:].size + m.flat[-2]
        if i == 0:
            out[0], out[1] = m[..., -1][-2], m[:-1].size

    given = np.zeros(3, np.int32), np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros(2, np.int32)
    with dm.simulator(race_check=watched):
        a, _, out = simulated.run(kernel, 1, 3, *given)
    assert a.tolist() == [5 + 0 + 1 + 4, 3 + 1 + 1 + 4, 4 + 2 + 1 + 4]
    assert out.tolist() == [2, 3]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.int64, np.complex64, "M8[s]"])
@pytest.mark.parametrize(
    ("value", "told"), [(None, "return nothing on some path"), ("3", "the text '3'"), (b"3", "the text b'3'")]
)
def test_what_is_no_number_is_not_stored(simulated, dtype, value, told, watched):
    def line(a):
        a[0] = value  # here

    def near(a):
        part = shared.array((2, 2), dtype)
        part[0, 0] = value

    with dm.simulator(race_check=watched):
        for kernel, array in ((line, np.zeros(4, dtype)), (line, np.zeros((2, 2), dtype)), (near, np.zeros(1))):
            report = simulated.report(kernel, 1, 1, array)
            assert report.kind == "misuse"
            assert told in str(report)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint64])
@pytest.mark.parametrize("value", [1j, np.complex64(1j), np.complex128(2)])
def test_a_complex_number_is_not_stored_among_real_ones(simulated, dtype, value):
    def kernel(a):
        a[0] = value

    report = simulated.report(kernel, 1, 1, np.zeros(4, dtype))
    assert report.kind == "misuse"
    assert "write value.real, or abs(value)" in str(report)


def test_what_is_stored_as_ever(simulated):
    def kernel(real, whole, imaginary, dates, words):
        real[0], real[1], real[2] = True, np.int8(3), np.float16(0.5)
        whole[0], whole[1] = 2.7, np.True_
        imaginary[0], imaginary[1] = 2, 1j
        dates[0] = dates[1]
        words[0] = words[1]
        real[3:5] = real[0]

    given = (
        np.zeros(5),
        np.zeros(2, np.int32),
        np.zeros(2, np.complex64),
        np.arange(2).astype("M8[s]"),
        np.array(["a", "b"]),
    )
    got = simulated.run(kernel, 1, 1, *given)
    assert [each.tolist() for each in got[:3]] == [[1, 3, 0.5, 1, 1], [2, 1], [2, 1j]]
    assert got[3][0] == got[3][1]
    assert got[4].tolist() == ["b", "b"]


def test_no_array_is_stored_in_another(simulated):
    def kernel(a, b):
        a[:] = b

    with pytest.raises(SimulatorError, match=r"misuse: an array is stored in .* write a loop"):
        simulated.run(kernel, 1, 1, np.zeros(3), np.ones(3))


def test_a_bool_is_not_compared_by_identity(simulated):
    def kernel(a, flag):
        if flag is True:
            a[0] = 1

    with pytest.raises(SimulatorError, match="no object that could be True: write if x"):
        simulated.run(kernel, 1, 1, np.zeros(3), True)


# -- what no device has ------------------------------------------------------------------------------------------------


def test_more_shared_memory_than_any_device_has(simulated, line_of):
    def at_once(a):
        near = shared.array((256, 256), np.float64)  # here
        near[0, 0] = 1

    def by_and_by(a):
        first = shared.array(20_000, np.float32)
        second = shared.array(10_000, np.float64)
        third = shared.array(1 << 10, np.float32)  # here
        first[0] = second[0] = third[0] = 1

    for kernel, nbytes in ((at_once, 8 << 16), (by_and_by, 164_096)):
        report = simulated.report(kernel, 2, 2, np.ones(1))
        assert (report.kind, report.lineno) == ("misuse", line_of(kernel, "# here"))
        assert f"the block has {exact_size(nbytes)} of shared memory by now, and no GPU has that much" in str(report)


def test_shared_memory_of_each_block_is_counted_by_itself(simulated):
    def kernel(a):
        near = shared.array(100_000, np.uint8)
        near[0] = 1

    simulated.run(kernel, 5, 2, np.ones(1))


@pytest.mark.parametrize(
    ("grid_", "block"), [((1, 65_536), 1), ((1, 1, 65_536), 1), (1, (1, 1, 65)), ((1, 70_000, 1), (1, 1, 1))]
)
def test_axes_longer_than_most_devices_take(simulated, grid_, block):
    with pytest.raises(LayoutError, match=r"65535 blocks along y and z, and 64 threads along z.*longest axis to x"):
        simulated(lambda: None, grid_, block)


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    ("operation", "dtypes"),
    [
        *(
            (operation, (bool, "i1", "u1", "i2", "u2", "f2", "c8", "c16"))
            for operation in ("add", "max", "min", "exch")
        ),
        ("cas", (bool, "u1", "i2", "f2", "f4", "f8", "c8")),
    ],
)
def test_atomics_that_no_device_has(simulated, operation, dtypes, watched):
    def kernel(a):
        near = shared.array(1, a.dtype)
        near[0] = 0
        array = near if watched else a
        if operation == "cas":
            atomic.cas(array, 0, 0, 1)
        else:
            getattr(atomic, operation)(array, 0, 1)

    with dm.simulator(race_check=watched):
        for dtype in dtypes:
            report = simulated.report(kernel, 1, 1, np.zeros(2, dtype))
            assert report.kind == "misuse"
            assert f"devices have no atomic.{operation} for {np.dtype(dtype)}: use integers" in str(report)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.5, "truncates 0.5 to 0 before atomic.add"),
        (np.float32(-1.5), "truncates -1.5 to -1 before"),
        (np.nan, "truncates nan to -2147483648 before"),
        (None, "None is stored"),
        (1j, "write value.real"),
    ],
)
def test_what_is_no_integer_is_not_added_to_one(simulated, value, told):
    def kernel(a):
        atomic.add(a, 0, value)

    report = simulated.report(kernel, 1, 1, np.zeros(2, np.int32))
    assert report.kind == "misuse"
    assert told in str(report)


def test_whole_numbers_may_be_floats(simulated):
    def kernel(a):
        atomic.add(a, 0, 2.0)

    [got] = simulated.run(kernel, 1, 4, np.zeros(2, np.int32))
    assert got[0] == 8


def test_a_constant_is_no_array_of_the_devices(simulated, line_of):
    def kernel(a):
        table = const.array_like(a)  # here
        a[0] = table[1]

    report = simulated.report(kernel, 1, 1, np.zeros(4))
    assert at(report, "misuse", (0, 0, 0)) == line_of(kernel, "# here")
    assert "takes a host array that is a global, and <array 'a'" in str(report)


# -- what to write instead ---------------------------------------------------------------------------------------------

RECORDS = np.zeros(2, [("mass", "f4"), ("name", "S4")])


def set_a_field(a, r):
    r[0].mas = 1


def set_an_item(a, r):
    r[0]["mas"] = 1


def set_near(a, r):
    near = shared.array(2, RECORDS.dtype)
    near[0].mas = 1


def halves(a, r):
    for _ in range(a.size / 2):
        pass


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (lambda a, r: np.sum(a), "numpy.sum() is given a whole 'array in a kernel': kernels compute with elements"),
        (
            lambda a, r: np.linalg.norm(a),
            "numpy.linalg.norm() is given a whole 'array in a kernel': kernels compute with",
        ),
        (lambda a, r: a.sum(), "has no 'sum': kernels compute with elements"),
        (lambda a, r: a + a, "'array in a kernel' and 'array in a kernel': kernels compute with elements"),
        (lambda a, r: a[a.size / 4], "not with 1.0: divide with //"),
        (lambda a, r: a[threadIdx], "write threadIdx.x"),
        (lambda a, r: threadIdx.X, "devmem.threadIdx has no 'X': there is x, y, z"),
        (lambda a, r: atomic.sub(a, 0, 1), "there is add, cas, exch, max, min; atomic.add(ary, idx, -val) subtracts"),
        (lambda a, r: shared.array(8), "write devmem.shared.array(shape, dtype)"),
        (lambda a, r: grid(2) < 4, "x, y = devmem.grid(2)"),
        (lambda a, r: r[0].mas, "there is no field 'mas' in the record: it has mass, name"),
        (set_a_field, "there is no field 'mas' in the record: it has mass, name"),
        (set_an_item, "there is no field 'mas' in the record: it has mass, name"),
        (set_near, "there is no field 'mas' in the record: it has mass, name"),
        (halves, "cannot be interpreted as an integer: divide with //"),
    ],
)
def test_a_report_has_its_advice(simulated, kernel, told, watched):
    with dm.simulator(race_check=watched):
        assert told in str(simulated.report(kernel, 1, 1, np.zeros(4), RECORDS))


def test_two_indices_of_one(simulated):
    def kernel():
        _x, _y = grid(1)

    assert "x, y = devmem.grid(2)" in str(simulated.report(kernel, 1, 1))


def test_fields_hold_numbers_too(simulated):
    def kernel(r):
        r[0].mass = None

    report = simulated.report(kernel, 1, 1, RECORDS)
    assert report.kind == "misuse"
    assert "None is stored" in str(report)


# -- updates of the device's memory that are lost ----------------------------------------------------------------------


def counting(a, out):
    out[0] += a[grid(1)]  # here


def counting_in_a_row(a, out):
    row = out.T[0:2]
    row[1] = row[1] + 1  # here


@pytest.mark.parametrize("how", [{"race_check": True}, {"shuffle": 3}], ids=str)
@pytest.mark.parametrize(("blocks", "threads"), [(1, 8), (2, 4), (8, 1)])
@pytest.mark.parametrize("kernel", [counting, counting_in_a_row])
def test_an_update_that_another_thread_undoes(simulated, line_of, kernel, blocks, threads, how):
    with dm.simulator(**how):
        report = simulated.report(kernel, blocks, threads, np.ones(8), np.zeros(2))
    assert (report.kind, report.lineno) == ("race", line_of(kernel, "# here"))
    assert "on a GPU one of the two is lost; use devmem.atomic" in str(report)
    assert f"at test_simulator_reports.py:{report.lineno} in {kernel.__name__}: {line_text(kernel)}" in str(report)


def line_text(kernel):
    return "out[0] += a[grid(1)]" if kernel is counting else "row[1] = row[1] + 1"


def atomically(a, out):
    atomic.add(out, 0, a[grid(1)])


def each_its_own(a, out):
    for _ in range(3):
        a[grid(1)] += 1


def in_turns(a, out):
    for turn in range(8):
        if threadIdx.x == turn:
            out[0] += 1
        barrier()


def in_turns_of_a_wave(a, out):
    for turn in range(8):
        if threadIdx.x == turn:
            out[0] += 1
        wavebarrier()


def any_of_them(a, out):
    if out[0] == 0:
        out[0] = 1
    if a[0] == a[7]:
        out[1] = grid(1)  # whichever is last, and it is never read


def the_same_again(a, out):
    out[0] = out[0] + 0 * a[0]
    out[1] = 7


@pytest.mark.parametrize("how", [{"race_check": True}, {"shuffle": 3}], ids=str)
@pytest.mark.parametrize(
    "kernel", [atomically, each_its_own, in_turns, in_turns_of_a_wave, any_of_them, the_same_again]
)
def test_updates_that_none_is_lost_of(simulated, kernel, how):
    with dm.simulator(**how):
        simulated.run(kernel, 1, 8, np.ones(8), np.zeros(2))


def test_updates_under_a_lock(simulated):
    def kernel(lock, out):
        if atomic.cas(lock, 0, 0, 1) == 0:
            out[0] += 1
            mem_fence()
            atomic.exch(lock, 0, 0)

    with dm.simulator(race_check=True):
        _, out = simulated.run(kernel, 1, 32, np.zeros(1, np.int32), np.zeros(2))
    assert out[0] == 32


# -- divergence --------------------------------------------------------------------------------------------------------


def test_a_return_before_a_barrier_that_others_reach(simulated, line_of):
    def kernel():
        if threadIdx.x > 5:
            return
        barrier()  # here

    report = simulated.report(kernel, 3, 8)
    assert at(report, "divergence", (0, 0, 0)) == line_of(kernel, "# here")
    assert "barrier, and thread (6, 0, 0) and 1 more have returned without reaching it" in str(report)


def test_a_return_after_a_barrier_and_before_the_next(simulated, line_of):
    def kernel():
        for step in range(4):
            if step == 2 and threadIdx.x == 0 and blockIdx.y == 1:
                return
            barrier()  # here

    report = simulated.report(kernel, (2, 2), (2, 1))
    assert at(report, "divergence", (1, 0, 0), (0, 1, 0)) == line_of(kernel, "# here")
    assert "barrier, and thread (0, 0, 0) has returned" in str(report)


def test_two_different_barriers(simulated, line_of):
    def kernel():
        if threadIdx.x % 2:
            barrier()  # odd
        else:
            barrier()  # even

    report = simulated.report(kernel, 1, 4)
    assert at(report, "divergence", (0, 0, 0)) == line_of(kernel, "# even")
    assert f"thread (1, 0, 0) at another barrier, at test_simulator_reports.py:{line_of(kernel, '# odd')}" in str(
        report
    )


def test_one_line_can_have_two_barriers(simulated):
    def kernel():
        barrier() if threadIdx.x else (0, barrier())

    assert simulated.report(kernel, 1, 2).kind == "divergence"


def test_a_function_with_a_barrier_called_from_two_places(simulated, line_of):
    @dm.kernel(device=True)
    def meet():
        barrier()  # here

    def kernel():
        if threadIdx.x:
            meet()
        else:
            meet()

    report = simulated.report(kernel, 1, 2)
    assert at(report, "divergence", (0, 0, 0)) == line_of(meet, "# here")
    assert "reached through another call" in str(report)


def test_loops_of_different_lengths(simulated, line_of):
    def kernel():
        for _ in range(1 + threadIdx.x // 3):
            barrier()  # inside
        barrier()  # behind

    report = simulated.report(kernel, 1, 4)
    assert at(report, "divergence", (0, 0, 0)) == line_of(kernel, "# behind")
    assert f"thread (3, 0, 0) at another barrier, at test_simulator_reports.py:{line_of(kernel, '# inside')}" in str(
        report
    )


def test_a_wave_that_is_not_complete(simulated, line_of):
    def kernel():
        if threadIdx.x != 5:
            wavebarrier()  # here

    with dm.simulator(wave_size=4):
        report = simulated.report(kernel, 1, 12)
    assert at(report, "divergence", (4, 0, 0)) == line_of(kernel, "# here")
    assert "wave's barrier, and thread (5, 0, 0) has returned without reaching it" in str(report)


def test_a_wave_of_which_some_wait_for_the_block(simulated, line_of):
    def kernel():
        if threadIdx.x == 5:
            barrier()  # the block's
        else:
            wavebarrier()  # the wave's
            barrier()

    with dm.simulator(wave_size=4):
        report = simulated.report(kernel, 1, 8)
    assert at(report, "divergence", (4, 0, 0)) == line_of(kernel, "# the wave's")
    assert f"thread (5, 0, 0) at another barrier, at test_simulator_reports.py:{line_of(kernel, '# the block')}" in str(
        report
    )


@pytest.mark.parametrize("seed", range(4))
def test_divergence_is_the_same_in_any_order(simulated, seed):
    def kernel():
        if threadIdx.x == 3:
            return
        barrier()

    with dm.simulator(shuffle=seed):
        report = simulated.report(kernel, 1, 8)
    assert (report.kind, report.thread) == ("divergence", (0, 0, 0))


# -- races -------------------------------------------------------------------------------------------------------------


def read_after_write(a):
    s, t = shared.array(8, np.int32), threadIdx.x
    s[t] = a[t]  # first
    a[t] = s[t - 1] if t else 0  # second


def write_after_read(a):
    s, t = shared.array(9, np.int32), threadIdx.x
    s[t] = 0
    s[8] = 0
    barrier()
    a[t] = s[t + 1]  # first
    s[t] = t  # second


def write_after_write(a):
    s, t = shared.array(8, np.int32), threadIdx.x
    if t == 2:
        s[5] = 1  # first
    if t == 5:
        s[5] = 2  # second


def atomic_and_plain(a):
    s, t = shared.array(1, np.int32), threadIdx.x
    if t == 0:
        s[0] = 1
    barrier()
    if t == 3:
        atomic.add(s, 0, 1)  # first
    if t == 4:
        a[0] = s[0]  # second


def plain_and_atomic(a):
    s, t = shared.array(1, np.int32), threadIdx.x
    s[0] = 1
    barrier()
    a[t] = s[0]  # first
    if t == 7:
        atomic.exch(s, 0, 2)  # second


def by_slices(a):
    s, t = shared.array((8, 4), np.int32), threadIdx.x
    s[t] = 5  # first
    if t == 1:
        s[0, 1:] = s[2:5, 0]  # second


def in_functions(a):
    s, t = shared.array(8, np.int32), threadIdx.x
    put(s, t)
    a[t] = get(s, t)


@dm.kernel(device=True)
def put(s, t):
    s[t] = t  # first


@dm.kernel(device=True)
def get(s, t):
    return s[max(t - 1, 0)]  # second


def through_views(a):
    s, t = shared.array((2, 4), np.int32), threadIdx.x
    half = s.T[t % 4]
    half[t // 4] = t  # first
    a[t] = s[t // 4][(t + 3) % 4]  # second


def as_another_type(a):
    words, halves = shared.array(0, np.int32), shared.array(0, np.int16)
    t = threadIdx.x
    if t == 0:
        words[1] = 70000  # first
    if t == 1:
        a[0] = halves[3]  # second


RACES = [
    (read_after_write, (1, 0, 0), (0, 0, 0)),
    (write_after_read, (1, 0, 0), (0, 0, 0)),
    (write_after_write, (5, 0, 0), (2, 0, 0)),
    (atomic_and_plain, (4, 0, 0), (3, 0, 0)),
    (plain_and_atomic, (7, 0, 0), (0, 0, 0)),
    (as_another_type, (1, 0, 0), (0, 0, 0)),
]


@pytest.mark.parametrize(("kernel", "thread", "other"), RACES)
def test_a_race_names_both_threads_and_the_line(simulated, line_of, kernel, thread, other):
    simulated.run(kernel, 1, 8, EIGHT, shared=8)  # no check was asked for
    with dm.simulator(race_check=True):
        report = simulated.report(kernel, 1, 8, EIGHT, shared=8)
    assert at(report, "race", thread) == line_of(kernel, "# second")
    assert f"thread {other} " in str(report)
    assert (
        f"no barrier in between, at test_simulator_reports.py:{line_of(kernel, '# first')} in {kernel.__name__}"
        in str(report)
    )


def test_a_race_through_slices_is_reported(simulated, line_of):
    with dm.simulator(race_check=True):
        report = simulated.report(by_slices, 1, 8, EIGHT)
    # Row 2 is not written yet when thread 1 reads it.
    assert at(report, "unwritten", (1, 0, 0)) == line_of(by_slices, "# second")
    with dm.simulator(race_check=True):
        report = simulated.report(written_by_slices, 1, 8, EIGHT)
    assert at(report, "race", (1, 0, 0)) == line_of(written_by_slices, "# second")


def written_by_slices(a):
    s, t = shared.array((8, 4), np.int32), threadIdx.x
    s[t] = t  # first
    if t == 1:
        s[0, 1:] = 7  # second


def test_races_in_functions(simulated, line_of):
    with dm.simulator(race_check=True):
        report = simulated.report(in_functions, 1, 8, EIGHT)
    assert at(report, "race", (1, 0, 0)) == line_of(get, "# second")
    assert f":{line_of(put, '# first')} in put" in str(report)


def test_races_through_views(simulated, line_of):
    with dm.simulator(race_check=True, shuffle=None):
        report = simulated.report(through_views, 1, 8, EIGHT)
    assert report.kind in ("race", "unwritten")
    assert report.lineno == line_of(through_views, "# second")


def ordered_by_barriers(a):
    s, t = shared.array(8, np.int32), threadIdx.x
    for step in range(3):
        s[t] = t + step
        barrier()
        a[t] = s[7 - t]
        barrier()


def the_same_value(a):
    s = shared.array(2, np.int32)
    s[0] = 1
    s[1] = 2
    barrier()
    a[threadIdx.x] = s[0] + s[1]


def all_atomic(a):
    s = shared.array(1, np.int32)
    s[0] = 0
    barrier()
    atomic.add(s, 0, 1)
    atomic.max(s, 0, 3)
    barrier()
    a[threadIdx.x] = s[0]


def ordered_by_waves(a):
    s, t = shared.array(8, np.int32), threadIdx.x
    s[t] = t
    wavebarrier()
    a[t] = s[t ^ 1]
    wavebarrier()
    s[t] = 2 * t


def the_same_thread(a):
    s, t = shared.array(8, np.int32), threadIdx.x
    s[t] = 1
    s[t] += 1
    a[t] = s[t]


@pytest.mark.parametrize("kernel", [ordered_by_barriers, the_same_value, all_atomic, ordered_by_waves, the_same_thread])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_ordered_accesses_are_no_race(simulated, kernel, seed):
    with dm.simulator(race_check=True, shuffle=seed, wave_size=2):
        simulated.run(kernel, 2, 8, EIGHT)


RECORD = np.dtype([("weight", "f4"), ("count", "i8"), ("place", "i2", (2,))])


def test_fields_of_records_in_shared_memory_are_watched(simulated, line_of):
    def fine(out):
        s, t = shared.array(4, RECORD), threadIdx.x
        s[t].weight = 2 * t
        s[t]["count"] = 3 * t
        s[t].place[1] = 5
        barrier()
        if t == 0:
            s[1].weight = 50  # which no other thread reads
        out[t] = s[3 - t]["count"] + s[3 - t].place[1]

    def raced(out):
        s, t = shared.array(4, RECORD), threadIdx.x
        s[t].weight = t
        out[t] = s[0].weight

    def whole(out):
        s, held, t = shared.array(4, RECORD), shared.array(4, RECORD), threadIdx.x
        s[t].weight, s[t].count, s[t].place[0], s[t].place[1] = 1, t, 3, 4
        held[t] = s[t]
        barrier()
        out[t] = held[3 - t]

    with dm.simulator(race_check=True):
        [out] = simulated.run(fine, 1, 4, np.zeros(4, np.int64))
        assert out.tolist() == [14, 11, 8, 5]
        error = simulated.report(raced, 1, 4, np.zeros(4))
        assert (error.kind, error.lineno) == ("race", line_of(raced, "out[t]"))
        assert "field 'weight'" in str(error)
        # Between the fields lies nothing, or a copy of all of it would read what was never written.
        [out] = simulated.run(whole, 1, 4, np.zeros(4, RECORD))
    assert out["count"].tolist() == [3, 2, 1, 0]
    unknown = simulated.report(lambda: shared.array(1, RECORD)[0].height, 1, 1)
    assert "height" in str(unknown)


def test_a_waves_barrier_orders_nothing_between_waves(simulated, line_of):
    def kernel(a):
        s, t = shared.array(8, np.int32), threadIdx.x
        s[t] = t
        wavebarrier()
        a[t] = s[7 - t]  # of another wave

    with dm.simulator(race_check=True, wave_size=8):
        simulated.run(kernel, 1, 8, EIGHT)
    with dm.simulator(race_check=True, wave_size=4):
        report = simulated.report(kernel, 1, 8, EIGHT)
    assert report.kind in ("race", "unwritten")
    assert report.lineno == line_of(kernel, "# of another wave")


def test_reading_shared_memory_before_it_is_written_is_reported(simulated, line_of):
    def kernel(a):
        s = shared.array((2, 2), np.float32)
        s[0, 0] = 1
        a[0] = s[0, 0] + s[1, 0]  # here

    simulated.run(kernel, 1, 1, np.zeros(1))
    with dm.simulator(race_check=True):
        report = simulated.report(kernel, 2, 1, np.zeros(1))
    assert at(report, "unwritten", (0, 0, 0)) == line_of(kernel, "# here")
    assert (
        "element (1, 0) of <shared array of shape (2, 2), dtype float32> is read, and no thread has written it"
        in str(report)
    )


def test_what_another_block_wrote_does_not_count(simulated):
    def kernel(a):
        s = shared.array(0, np.int32)
        if blockIdx.x % 2 == 0:
            s[0] = 1
        a[0] = s[0]

    with dm.simulator(race_check=True):
        report = simulated.report(kernel, 20, 1, EIGHT, shared=4)
    assert (report.kind, report.block) == ("unwritten", (1, 0, 0))


# -- a barrier that is missing -----------------------------------------------------------------------------------------


def forgotten(a):
    s, t = shared.array(8, np.int32), threadIdx.x
    s[t] = a[t]
    a[t] = s[t - 1] if t > 0 else a[t]  # right, if the threads run in their own order


def test_a_missing_barrier_goes_unseen_in_the_threads_own_order(simulated):
    [got] = simulated.run(forgotten, 1, 8, np.arange(8))
    assert got.tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("seed", range(20))
def test_a_missing_barrier_is_reported_in_any_other_order(simulated, line_of, seed):
    with dm.simulator(shuffle=seed):
        report = simulated.report(forgotten, 1, 8, np.arange(8))
        again = simulated.report(forgotten, 1, 8, np.arange(8))
    assert report.kind in ("race", "unwritten")
    assert "barrier" in str(report)
    assert report.lineno in (line_of(forgotten, "# right, if"), line_of(forgotten, "s[t] = a[t]"))
    assert str(again) == str(report)


def test_a_missing_barrier_on_the_devices_memory_shows_in_the_result(simulated):
    def kernel(a, out):
        t = threadIdx.x
        a[t] = t
        out[t] = a[t - 1] if t else 0

    arguments = np.full(32, -1), np.zeros(32, int)
    assert simulated.run(kernel, 1, 32, *arguments)[1].tolist() == [0, *range(31)]
    with dm.simulator(shuffle=1):
        assert simulated.run(kernel, 1, 32, *arguments)[1].tolist() != [0, *range(31)]


# -- out of bounds -----------------------------------------------------------------------------------------------------


def read_behind(a):
    a[grid(1)] = a[grid(1) + 1]  # here


def write_behind(a):
    a[grid(1) + 1] = 0  # here


def before_the_first(a):
    a[0] = a[-3 - grid(1)]  # here


def of_shared(a):
    s = shared.array((2, 3), np.int32)
    s[1, threadIdx.x - 4] = 1  # here


def of_local(a):
    mine = local.array(3, np.int32)
    mine[2 * threadIdx.x] = 1  # here


TABLE = np.arange(5)


def of_const(a):
    a[0] = const.array_like(TABLE)[6 - threadIdx.x + blockIdx.x - 1]  # here


def of_dynamic(a):
    shared.array(0, np.float32)[threadIdx.x] = 1  # here


def of_atomics(a):
    atomic.add(a, grid(1) + 2, 1)  # here


def by_numpys_integers(a):
    a[np.int64(grid(1)) + np.int64(4)] = 1  # here


def too_many_indices(a):
    a[0, 0] = 1  # here


def of_a_slice(a):
    a[2:6][4 + threadIdx.x] = 0  # here


def of_a_row(a):
    shared.array((2, 3), np.int32)[0][3] = 1  # here


BOUNDS = [
    (read_behind, (3, 0, 0), (1, 0, 0), "index 8 on axis 0 of <array 'a' of shape (8,), dtype int32>"),
    (write_behind, (3, 0, 0), (1, 0, 0), "index 8 on axis 0 of <array 'a'"),
    (before_the_first, (2, 0, 0), (1, 0, 0), "index -9 on axis 0 of <array 'a'"),
    (of_shared, (0, 0, 0), (0, 0, 0), "index -4 on axis 1 of <shared array of shape (2, 3)"),
    (of_local, (2, 0, 0), (0, 0, 0), "index 4 on axis 0 of <local array of shape (3,)"),
    (of_const, (0, 0, 0), (0, 0, 0), "index 5 on axis 0 of <const array of shape (5,)"),
    (of_dynamic, (2, 0, 0), (0, 0, 0), "index 2 on axis 0 of <dynamic shared array of shape (2,)"),
    (of_atomics, (2, 0, 0), (1, 0, 0), "index 8 on axis 0 of <array 'a'"),
    (by_numpys_integers, (0, 0, 0), (1, 0, 0), "index 8 on axis 0 of <array 'a'"),
    (too_many_indices, (0, 0, 0), (0, 0, 0), "2 indices for <array 'a' of shape (8,)"),
    (of_a_slice, (0, 0, 0), (0, 0, 0), "index 4 on axis 0 of <array 'a' of shape (4,)"),
    (of_a_row, (0, 0, 0), (0, 0, 0), "index 3 on axis 0 of <shared array of shape (3,)"),
]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(("kernel", "thread", "block", "told"), BOUNDS)
def test_out_of_bounds_names_the_thread_and_the_line(simulated, line_of, kernel, thread, block, told, watched):
    with dm.simulator(race_check=watched):
        report = simulated.report(kernel, 2, 4, EIGHT, shared=11)
    assert at(report, "out of bounds", thread, block) == line_of(kernel, "# here")
    assert told in str(report)
    assert report.__cause__ is None


def test_nothing_behind_an_array_is_touched(simulated):
    a = simulated.put(np.zeros(16, np.int32))
    a.shape, a.strides = (8,), (4,)

    def kernel(a):
        a[grid(1)] = 1

    with pytest.raises(SimulatorError):
        simulated(kernel, 2, 8, a)
    a.shape = (16,)
    assert simulated.get(a).tolist() == [1] * 8 + [0] * 8


# -- exceptions of the kernel's own ------------------------------------------------------------------------------------


@dm.kernel(device=True)
def helper(value):
    return value / 0 if value == 3 else value  # here


def test_an_exception_keeps_its_line_and_itself(simulated, line_of):
    def kernel(a):
        a[threadIdx.x] = helper(threadIdx.x)

    report = simulated.report(kernel, 2, 8, EIGHT)
    assert at(report, "exception", (3, 0, 0)) == line_of(helper, "# here")
    assert "ZeroDivisionError: division by zero" in str(report)
    assert type(report.__cause__) is ZeroDivisionError
    assert "return value / 0 if value == 3" in str(report)


def test_an_exception_inside_numpy_is_told_where_the_kernel_called_it(simulated, line_of):
    def kernel(a):
        np.broadcast_shapes((2,), (3,))  # here

    report = simulated.report(kernel, 1, 1, EIGHT)
    assert at(report, "exception", (0, 0, 0)) == line_of(kernel, "# here")


def test_the_wrong_number_of_arguments(simulated, line_of):
    def kernel(a, b):
        pass

    report = simulated.report(kernel, 1, 1, EIGHT)
    assert at(report, "exception", (0, 0, 0)) == line_of(kernel, "def kernel")
    assert "missing 1 required positional argument: 'b'" in str(report)


def test_shared_arrays_of_one_place_are_of_one_shape(simulated, line_of):
    def kernel():
        size = threadIdx.x + 1
        shared.array(size, np.int32)  # here

    report = simulated.report(kernel, 1, 2)
    assert at(report, "misuse", (1, 0, 0)) == line_of(kernel, "# here")


def test_a_kernel_returns_nothing(simulated, line_of):
    def kernel(a):
        if a[0] == 7:
            return None
        if a[0] == 0:
            return 5  # here
        return None

    def computed(a):
        return a[0]  # here

    for each in (kernel, computed):
        error = simulated.report(each, 1, 2, np.zeros(1))
        assert at(error, "misuse", (0, 0, 0)) == line_of(each, "# here")
        assert "returns nothing" in str(error)


@pytest.mark.parametrize("wrong", [1.0, "0", (0, 0.5)])
def test_arrays_are_indexed_with_integers(simulated, wrong):
    def kernel(a):
        a[wrong] = 1

    assert "indexed with integers and slices" in str(simulated.report(kernel, 1, 1, np.zeros((2, 2))))


def test_what_exits_the_interpreter_does_not(simulated):
    def kernel():
        raise SystemExit(3)

    report = simulated.report(kernel, 1, 1)
    assert type(report.__cause__) is SystemExit


def test_those_at_a_barrier_are_told_to_leave(simulated):
    left = []

    class Unseen:  # the check does not look in there
        def run(self):
            try:
                barrier()
                if threadIdx.x == 2:
                    raise ValueError("of mine")
                barrier()
            finally:
                left.append(threadIdx.x)
                if threadIdx.x == 3:
                    barrier()  # no thread waits at the end of a block that has failed

    unseen = Unseen()

    def kernel():
        unseen.run()

    report = simulated.report(kernel, 1, 5)
    assert at(report, "exception", (2, 0, 0))
    assert sorted(left) == [0, 1, 2, 3, 4]


def test_those_that_do_not_leave_are_ended_all_the_same(simulated):
    greenlet = pytest.importorskip("greenlet")
    begun, stayed = [], []

    class Unseen:
        def run(self):
            begun.append(threadIdx.x)
            if threadIdx.x == 1:
                raise ValueError("of mine")
            try:
                barrier()
            except BaseException:  # such as what tells it to leave
                stayed.append(greenlet.getcurrent())

    unseen = Unseen()

    def kernel():
        unseen.run()

    assert at(simulated.report(kernel, 1, 4), "exception", (1, 0, 0))
    assert [each.dead for each in stayed] == [True]
    assert begun == [0, 1]


def test_the_first_block_to_fail_is_told_of(simulated):
    def kernel(a):
        if blockIdx.x > 4:
            a[8] = 0

    for _ in range(20):
        assert simulated.report(kernel, 60, 2, EIGHT).block == (5, 0, 0)


def test_the_device_goes_on_after_a_report(simulated):
    def broken(a):
        barrier()
        a[8 + threadIdx.x] = 1

    def fine(a):
        s = shared.array(8, np.int32)
        s[threadIdx.x] = threadIdx.x
        barrier()
        a[threadIdx.x] = s[7 - threadIdx.x]

    for _ in range(5):
        simulated.report(broken, 4, 8, EIGHT)
        [got] = simulated.run(fine, 1, 8, EIGHT)
        assert got.tolist() == [*range(8)][::-1]


def test_on_a_named_stream_the_first_wait_raises_and_later_ones_do_not(simulated):
    driver = simulated.driver
    stream = driver.stream_create(0, True)

    def kernel(a):
        a[8] = 1

    a = simulated.put(EIGHT)
    simulated(kernel, 1, 1, a, stream=stream)
    with pytest.raises(SimulatorError, match="out of bounds"):
        driver.stream_synchronize(stream)
    driver.stream_synchronize(stream)
    simulated(kernel, 1, 1, a, stream=stream)
    while not driver.stream_query(stream):
        pass
    with pytest.raises(SimulatorError, match="out of bounds"):
        simulated(kernel, 1, 1, a, stream=stream)
    driver.synchronize()


def test_reports_survive_a_pickle(simulated):
    report = simulated.report(read_behind, 2, 4, EIGHT)
    again = pickle.loads(pickle.dumps(report))
    assert type(again) is SimulatorError
    assert str(again) == str(report)
    assert {name: getattr(again, name) for name in ("kind", "block", "thread", "filename", "lineno")} == {
        "kind": "out of bounds",
        "block": (1, 0, 0),
        "thread": (3, 0, 0),
        "filename": __file__,
        "lineno": report.lineno,
    }

"""What the simulator refuses before a thread runs, because no compiler takes it; and what it lets pass."""

from __future__ import annotations

import random
import re
import time
import types

import numpy as np
import pytest

import devmem as dm
from devmem.kernels.portable_names import portable_advice
from devmem.spi.errors import SimulatorError, UnsupportedError

ON, OFF, NONE, ZERO = True, False, None, 0


def helper(x):
    return x + 1


@dm.kernel(device=True)
def calling(x):
    return helper(x)  # refused


@dm.kernel(device=True)
def fine(x):
    return x + 1


module = types.ModuleType("module")
module.helper = helper
module.fine = fine


def named(a):
    a[0] = helper(1)  # refused


def of_a_module(a):
    a[0] = module.helper(1)  # refused


def not_called(a):
    function = helper  # refused
    a[0] = function is None


def in_an_open_branch(a):
    if ON:
        a[0] = helper(1)  # refused


def behind_a_closed_branch(a):
    if OFF:
        a[0] = 1
    else:
        a[0] = helper(1)  # refused


def where_none_is(a):
    if NONE is None:
        a[0] = helper(1)  # refused


def after_a_loop(a):
    i = 0
    while True:
        i += 1
        if i > 3:
            break
    a[0] = helper(i)  # refused


def in_a_lambda(a):
    function = lambda x: helper(x)  # noqa: E731  # refused
    a[0] = function(1)


def catching(a):
    a[0] = 1
    try:  # refused
        a[99] = 1
    except Exception:
        pass


def ending(a):
    try:  # refused
        a[0] = 1
    finally:
        a[1] = 1


def managing(a):
    with memoryview(b""):  # refused
        a[0] = 1


REFUSED = [
    named,
    of_a_module,
    not_called,
    in_an_open_branch,
    behind_a_closed_branch,
    where_none_is,
    after_a_loop,
    in_a_lambda,
    catching,
    ending,
    managing,
]


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.__name__)
def test_refused_with_the_line(simulated, line_of, kernel):
    report = simulated.report(kernel, 1, 1, np.ones(4))
    assert (report.kind, report.filename, report.lineno) == ("misuse", __file__, line_of(kernel, "# refused"))
    assert f"test_simulator_refused.py:{report.lineno} in " in str(report)
    advice = "compilers refuse them" if kernel in (catching, ending, managing) else "@devmem.kernel(device=True)"
    assert advice in str(report)


def test_refused_in_a_device_function(simulated, line_of):
    def kernel(a):
        a[0] = calling(1)

    assert simulated.report(kernel, 1, 1, np.ones(4)).lineno == line_of(calling.function, "# refused")


@pytest.mark.parametrize("operation", [helper, lambda x: x], ids=["def", "lambda"])
def test_refused_where_a_factory_put_it(simulated, operation):
    def kernel(a):
        a[0] = operation(a[0])

    assert "operation is a plain function" in str(simulated.report(kernel, 1, 1, np.ones(4)))


@pytest.mark.parametrize("operation", [fine, np.sqrt, abs, float, max], ids=str)
def test_functions_that_compilers_know(simulated, operation):
    def kernel(a):
        a[0] = operation(a[0], *(() if operation is not max else (1,)))

    simulated.run(kernel, 1, 1, np.ones(4))


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("any((a[0] > 0, a[1] > 0))", r"join conditions with `and` and `or`"),
        ("list((1, 2))[0]", "use a tuple"),
        ("next(reversed((1, 2)))", "count down with range"),
        ("len(hex(3))", "print the number itself"),
        ("float(input())", "on the host"),
        ("callable(a)", "numbers, tuples and arrays alone"),
    ],
)
def test_functions_of_python_that_no_compiler_has(simulated, call, advice):
    space: dict = {}
    exec(f"def kernel(a):\n    a[0] = {call}\ndef shut(a):\n    if False: a[0] = {call}", space)
    report = simulated.report(space["kernel"], 1, 1, np.ones(4))
    assert (report.kind, report.lineno) == ("misuse", 2)
    assert "() is a function that no compiler has: " in str(report)
    assert re.search(advice, str(report))
    simulated.run(space["shut"], 1, 1, np.ones(4))


def any_of_ones_own(a):
    def any(x):
        return x

    a[0] = any(5) + all(2)


def all(x):
    return x


all = dm.kernel(device=True)(all)


def test_functions_of_ones_own_with_a_name_of_pythons(simulated):
    [got] = simulated.run(any_of_ones_own, 1, 1, np.ones(4))
    assert got[0] == 7


def closed(a):
    if OFF:
        a[0] = helper(1)
    if not ON:
        a[0] = helper(1)
    if NONE is not None:
        a[0] = helper(1)
    if OFF and a[0]:
        a[0] = helper(1)
    while ZERO:
        a[0] = helper(1)
    a[0] = helper(1) if OFF else module.fine(1)


def own(a):
    def inner(x):
        return x + a[1]

    for x in (inner(0), inner(1)):
        a[0] = x
    for i in range(3):
        if i == 1:
            continue
        for _ in range(i):
            a[0] += (lambda x: x)(1)


@pytest.mark.parametrize(("kernel", "result"), [(closed, 2), (own, 4)])
def test_branches_that_constants_close_and_functions_of_the_kernels_own(simulated, kernel, result):
    [got] = simulated.run(kernel, 1, 1, np.ones(4))
    assert got[0] == result


def test_a_handler_hidden_from_the_check_does_not_swallow_a_report(simulated, line_of):
    class Unseen:
        def run(self, a):
            try:
                a[99] = 0  # here
            except Exception:
                pass

    unseen = Unseen()

    def kernel(a):
        unseen.run(a)

    report = simulated.report(kernel, 1, 1, np.ones(4))
    assert (report.kind, report.lineno) == ("out of bounds", line_of(Unseen.run, "# here"))


# -- statements, stores and shapes ---------------------------------------------------------------------------------------

TABLE = np.arange(4.0)
SIZE = 4
count = 0


def making_a_list(a):
    found = [a[0], 2.0]  # refused
    a[0] = found[1]


def comprehending(a):
    for x in [a[i] for i in range(2)]:  # refused
        a[0] = x


def making_a_dict(a):
    found = {"x": a[0]}  # refused
    a[0] = found["x"]


def making_a_set(a):
    found = {a[0], 2.0}  # refused
    a[0] = len(found)


def in_a_set(a):
    if a.size in {1, 2}:  # refused
        a[0] = 1


def generating(a):
    a[0] = sum(a[i] for i in range(3))  # refused


def importing(a):
    import math  # refused

    a[0] = math.pi


def classifying(a):
    class Point:  # refused
        x = 1

    a[0] = Point.x


def counting(a):
    global count
    count = 1  # refused


def into_a_global_array(a):
    TABLE[0] = a[0]  # refused


def adding_to_a_global_array(a):
    TABLE[int(a[0]) + 1] += a[0] * 2  # refused


def asking_the_time(a):
    a[0] = time.perf_counter()  # refused


def drawing(a):
    a[0] = random.random()  # refused


def drawing_integers(a):
    a[0] = random.randint(0, 3)  # refused


def drawing_of_numpy(a):
    a[0] = np.random.random()  # refused


def yielding(a):
    yield 1  # refused


async def waiting(a):
    a[0] = 1  # refused


def shape_of_an_argument(a, n):
    near = dm.shared.array(n, np.float32)  # refused
    near[0] = a[0]


def shape_with_an_argument(a, n):
    own = dm.local.array((SIZE, n), np.float32)  # refused
    own[0, 0] = a[0]


def shape_of_an_array(a):
    near = dm.local.array(a.size, np.float32)  # refused
    near[0] = a[0]


def shape_like_an_array(a):
    near = shared.array(a.shape[0], np.float32)  # refused
    near[0] = a[0]


def shape_of_the_block(a):
    near = shared.array(dm.blockDim.x, np.float32)  # refused
    near[0] = a[0]


def shape_with_the_block(a):
    near = shared.array((blockDim.x, 2), dtype=np.float32)  # refused
    near[0, 0] = a[0]


shared, blockDim = dm.shared, dm.blockDim

STATEMENTS = {
    making_a_list: "lists are not for kernels",
    comprehending: "lists are not for kernels",
    making_a_dict: "dicts are not for kernels",
    making_a_set: "sets are not for kernels",
    in_a_set: "sets are not for kernels",
    generating: "generators are not for kernels",
    importing: "at the top of the module",
    classifying: "classes are not for kernels",
    counting: "globals are constants in kernels",
    into_a_global_array: "TABLE is a global, and a constant in kernels",
    adding_to_a_global_array: "TABLE is a global, and a constant in kernels",
    asking_the_time: "time.perf_counter is for the host, and no compiler has it: measure on the host",
    drawing: "random.random is for the host",
    drawing_integers: "random.randint is for the host",
    drawing_of_numpy: "np.random.random is for the host",
    yielding: "generators are not for kernels",
    waiting: "async functions are not for kernels",
    shape_of_an_array: "a.size is that of an argument: make it a global",
    shape_like_an_array: "the shape of devmem.shared.array() is a constant, and a.shape is that of an argument",
    shape_of_an_argument: "n is an argument: make it a global",
    shape_with_an_argument: "the shape of devmem.local.array() is a constant, and n is an argument",
    shape_of_the_block: "devmem.blockDim is not",
    shape_with_the_block: "devmem.blockDim is not",
}


@pytest.mark.parametrize("kernel", STATEMENTS, ids=lambda kernel: kernel.__name__)
def test_statements_that_no_compiler_takes(simulated, line_of, kernel):
    arguments = (np.ones(4), 3)[: kernel.__code__.co_argcount]
    report = simulated.report(kernel, 1, 1, *arguments)
    assert (report.kind, report.lineno) == ("misuse", line_of(kernel, "# refused"))
    assert STATEMENTS[kernel] in str(report)
    assert TABLE.tolist() == [0, 1, 2, 3]


def ordinary(a, n):
    size = 4
    near = dm.shared.array(size, np.float32)
    n = 2  # no argument's value any more
    own = dm.local.array(n, np.float32)
    ranks = dm.shared.array(a.ndim, np.float32)
    table = dm.const.array_like(TABLE)
    near[0], own[0], ranks[0] = table[1], TABLE[2], 0
    for x in [1, 2]:
        if x in (1, a[1]) or a.size in [x, 7]:
            a[x if x > 1 else 0] = near[0] + own[0]
    a[3] = TABLE[int(a[1])] if a.size > 2 else TABLE[0]
    for i, x in enumerate((n, 2)):
        a[i] += x


@dm.kernel(device=True)
def sized(n):
    near = dm.shared.array(n, np.float32)  # which compilers take where it is called with a number
    near[0] = 1
    return near[0]


def calling_sized(a):
    a[0] = sized(8)


def test_what_compilers_take(simulated):
    """And pytest's own dicts and lists, where it rewrites an ``assert``."""

    def asserting(a):
        assert a[0] == 1, (a.size, [a[0]])
        assert max(a[0], a[1]) in (1, 2)

    simulated.run(asserting, 1, 1, np.ones(4))
    [got] = simulated.run(ordinary, 1, 1, np.ones(4), 3)
    assert got.tolist() == [5, 3, 1, 1]
    [got] = simulated.run(calling_sized, 1, 1, np.zeros(4))
    assert got[0] == 1


# -- names of one vendor's ---------------------------------------------------------------------------------------------


class syncwarp:
    __module__ = "numba.cuda.stubs"


class Dispatcher:
    __module__ = "numba.hip.dispatcher"


vendor = types.ModuleType("numba.cuda")
vendor.syncwarp = syncwarp
compiled = Dispatcher()


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (lambda: vendor.syncwarp(), r"vendor\.syncwarp works on CUDA alone: write devmem\.wavebarrier\(\)"),
        (lambda: syncwarp(), r"syncwarp works on CUDA alone: write devmem\.wavebarrier\(\)"),
        (lambda: compiled(), r"compiled works on ROCm alone: decorate it with @devmem\.kernel\(device=True\)"),
    ],
)
def test_names_of_one_vendors_compiler(simulated, kernel, told):
    with pytest.raises(UnsupportedError, match=rf"(?s){told}.*test_simulator_refused\.py:\d+ in <lambda>"):
        simulated(kernel, 1, 1)


def test_what_to_write_instead():
    for name in ("threadIdx", "shared", "atomic"):
        assert portable_advice(name) == f"write devmem.{name}"
    for name in ("ballot_sync", "shfl_up_sync"):
        assert "devmem.shared.array" in portable_advice(name)
    assert "end the kernel" in portable_advice("cg")
    assert "copysign" in portable_advice("cbrt"), "a power of what is negative is nan"
    assert "no name for it" in portable_advice("nanosleep")


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_that_no_compiler_has(simulated):
    def kernel():
        using()

    @dm.kernel(device=True, inlining="maybe")
    def using():
        pass

    compile_ = simulated.compiler.compile
    with pytest.raises(TypeError, match="option colour: the options are debug, fastmath"):
        compile_(named, (), simulated.driver, {"colour": 1})
    with pytest.raises(TypeError, match="option inlining"):
        compile_(kernel, (), simulated.driver, {})
    compile_(closed, (), simulated.driver, {"fastmath": True, "launch_bounds": 64, "lineinfo": True})


def test_numbas_own_functions():
    """What numba was told of may be called, as it may on a GPU."""
    pytest.importorskip("numba")
    from numba.extending import register_jitable

    from devmem.kernels.compilers.simulator.kernel_check import check_kernel as check

    def known(x):
        return x

    def kernel(a):
        a[0] = known(1)

    with pytest.raises(SimulatorError):
        check(kernel, {})
    register_jitable(known)
    check(kernel, {})


def test_a_launch_refuses_and_leaves_the_device_as_it_was(simulated):
    with pytest.raises(SimulatorError):
        simulated.run(named, 1, 1, np.ones(4))
    [got] = simulated.run(closed, 1, 1, np.ones(4))
    assert got[0] == 2

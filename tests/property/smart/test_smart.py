"""A state machine over SmartArrays and their views, against one ndarray: a read on either side gives the newest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import devmem as dm

SOURCES = {
    "c": lambda: np.arange(24).reshape(4, 6),
    "f": lambda: np.asfortranarray(np.arange(24).reshape(4, 6)),
    "gaps": lambda: np.arange(48).reshape(4, 12)[:, ::2],
    "backwards": lambda: np.arange(24).reshape(4, 6)[::-1, ::-1],
    "axes": lambda: np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    "none": lambda: np.array(5),
    "empty": lambda: np.empty((0, 3), int),
}
VIEWS = {
    "same": lambda a: a[...],
    "half": lambda a: a[::2] if a.ndim else a[...],
    "tail": lambda a: a[1:] if a.ndim else a[...],
    "backwards": lambda a: a[..., ::-1] if a.ndim else a[...],
    "transposed": lambda a: a.T,
    "column": lambda a: a[:, 1] if a.ndim > 1 and a.shape[1] > 1 else a[...],
    "spread": lambda a: a[None],
    "squeezed": lambda a: a.squeeze(),
    "flat": lambda a: a.ravel(),
    "flat f": lambda a: a.reshape(a.size, order="F"),
}
PICK = st.integers(0, 1 << 10)


@pytest.fixture(scope="module", autouse=True)
def closed():
    yield
    dm.close()


class Machine(RuleBasedStateMachine):
    """Pairs of a SmartArray and the ndarray that it should be. An array of its own, where NumPy copies, begins another family."""

    @initialize(source=st.sampled_from(sorted(SOURCES)), copied=st.booleans(), where=st.sampled_from(["host", "gpu"]))
    def begin(self, source, copied, where):
        # Copied, it lies as NumPy copies it: then NumPy has the same views of both.
        model = np.array(SOURCES[source](), order="K") if copied else SOURCES[source]()
        dm.transfer_stats(reset=True)
        self.roots = [(dm.SmartArray(SOURCES[source](), copied, where=where), model)]
        self.pairs = list(self.roots)
        self.value = 100
        self.stream = dm.stream(non_blocking=True)

    def pick(self, number):
        return self.pairs[number % len(self.pairs)]

    def next(self):
        self.value += 1
        return self.value

    def device(self, smart):
        """The device side, for work on the default stream: between streams that a user names, the user waits."""
        dm.default_stream().wait(self.stream)
        return smart.gpu()

    @precondition(lambda self: len(self.pairs) < 8)
    @rule(number=PICK, name=st.sampled_from(sorted(VIEWS)))
    def view(self, number, name):
        smart, model = self.pick(number)
        seen, expected = VIEWS[name](smart), VIEWS[name](model)
        assert seen.shape == expected.shape
        if not np.may_share_memory(expected, model) or seen._sides is not smart._sides:
            # NumPy copies, or one of the sides has no such view: then it is an array of its own, and so is its model.
            assert seen._sides is not smart._sides or not expected.size
            expected = expected.copy()
        self.pairs.append((seen, expected))

    @rule(number=PICK)
    def write_host(self, number):
        smart, model = self.pick(number)
        value = self.next()
        smart[...] = value
        model[...] = value

    @rule(number=PICK)
    def write_one(self, number):
        smart, model = self.pick(number)
        if model.size:
            value, at = self.next(), (0,) * model.ndim
            smart[at] = value
            model[at] = value

    @rule(number=PICK)
    def add_in_place(self, number):
        smart, model = self.pick(number)
        smart += 1
        model += 1

    @rule(number=PICK)
    def write_behind_its_back(self, number):
        smart, model = self.pick(number)
        value = self.next()
        smart.host()[...] = value
        smart.host_changed()
        model[...] = value

    @rule(number=PICK)
    def write_device(self, number):
        smart, model = self.pick(number)
        value = self.next()
        self.device(smart).fill(value)
        smart.gpu_changed()
        model[...] = value

    @rule(number=PICK)
    def write_device_late(self, number):
        smart, model = self.pick(number)
        value = self.next()
        new = dm.pinned_array(model.shape, model.dtype)
        new[...] = value
        smart.gpu().copy_to_device(new, stream=self.stream)
        smart.gpu_changed()
        model[...] = value

    @rule(number=PICK)
    def host_is_newest(self, number):
        smart, model = self.pick(number)
        np.testing.assert_array_equal(smart.host(), model)

    @rule(number=PICK)
    def method_is_newest(self, number):
        smart, model = self.pick(number)
        assert smart.sum() == model.sum()

    @rule(number=PICK)
    def device_is_newest(self, number):
        smart, model = self.pick(number)
        np.testing.assert_array_equal(self.device(smart).copy_to_host(), model)

    @rule(number=PICK)
    def nothing_moves_twice(self, number):
        smart, _ = self.pick(number)
        smart.host(), smart.gpu()
        dm.transfer_stats(reset=True)
        smart.host(), smart.gpu(), smart.sum()
        assert dm.transfer_stats() == {}

    @invariant()
    def some_side_is_newest(self):
        for smart, _ in getattr(self, "pairs", ()):
            assert "nowhere" not in repr(smart)

    def teardown(self):
        for smart, model in getattr(self, "pairs", ()):
            np.testing.assert_array_equal(smart, model)
            np.testing.assert_array_equal(self.device(smart).copy_to_host(), model)


def test_a_read_on_either_side_gives_the_newest(devmem_backend):
    class OnThis(Machine):
        pass

    OnThis.TestCase.settings = settings(stateful_step_count=30)
    OnThis.TestCase("runTest").runTest()

"""Every public verb with anything at all as its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import devmem as dm

from .conftest import ANYTHING, INTEGERS, attempt

#: What devmem itself hands out, made afresh for each example, among anything else.
OURS: dict[str, Callable[[], Any]] = {
    "device array": lambda: dm.to_device(np.arange(6, dtype="i4").reshape(2, 3)),
    "host array": lambda: np.arange(6, dtype="i4").reshape(2, 3),
    "pinned array": lambda: dm.pinned_array((2, 3), "i4"),
    "stream": lambda: dm.stream(),
    "event": lambda: dm.event(),
    "smart array": lambda: dm.SmartArray(np.arange(6.0)),
    "device": lambda: dm.device(),
    "empty": lambda: dm.zeros((0, 3)),
    "freed": lambda: freed(),
    "closed stream": lambda: closed(dm.stream()),
}


class Ours(str):
    """Stands for what devmem hands out under this name, until the example runs."""


ARGUMENT = ANYTHING | st.sampled_from([*OURS]).map(Ours)
VERBS = {
    "to_device": "obj stream copy to device",
    "device_array_like": "ary stream",
    "full": "shape fill_value dtype order stream",
    "as_device_array": "obj",
    "from_dlpack": "x copy",
    "is_device_array": "obj",
    "open_ipc_array": "handle shape dtype strides",
    "pinned_array_like": "ary",
    "mapped_array_like": "ary",
    "managed_array_like": "ary",
    "prefetch_managed": "arrays to_host stream device numa_node discard",
    "discard_managed": "arrays stream",
    "register": "array",
    "deregister": "array",
    "pinned": "array",
    "mapped": "array",
    "stream": "priority non_blocking",
    "external_stream": "ptr",
    "event": "timing",
    "event_elapsed_time": "start end",
    "copy_async": "src dst stream device",
    "copy_pitched": "dst src width height depth dst_pitch src_pitch dst_rows src_rows dst_offset src_offset stream",
    "to_device_many": "tree",
    "to_host_many": "tree",
    "scatter": "array devices axis",
    "gather": "arrays axis out",
    "save": "array path",
    "memory_info": "device",
    "transfer_stats": "reset device",
    "trim": "keep_bytes device",
    "device": "what",
    "use_backend": "name",
    "SmartArray": "obj",
    "simulator": "race_check shuffle wave_size",
    "kernel": "function",
}
#: Arguments that are only asked whether they are true, which not everything can tell.
FLAGS, FLAG = (
    {"reset", "non_blocking", "timing", "race_check", "to_host", "discard"},
    st.booleans() | INTEGERS | st.none() | st.text(max_size=2),
)
#: Methods of what devmem hands out.
METHODS = {
    "device array": "copy_to_host copy_to_device fill copy view bind item tolist __getitem__ __dlpack__ get_ipc_handle __array__",
    "stream": "wait record synchronize query",
    "event": "record wait elapsed_time synchronize query",
    "smart array": "__getitem__ host gpu",
}


def freed() -> Any:
    array = dm.zeros(3)
    array.free()
    return array


def closed(stream: Any) -> Any:
    stream.close()
    return stream


def real(value: Any) -> Any:
    """What is meant by an argument that was drawn."""
    return OURS[value]() if isinstance(value, Ours) else value


def fits(call: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    """Whether it takes so many arguments of these names."""
    try:
        inspect.signature(call).bind(*arguments, **named)
    except TypeError:
        return False
    return True


def use(made: Any) -> None:
    """End what a verb gave back."""
    if hasattr(made, "__exit__") and hasattr(made, "__enter__") and not isinstance(made, (dm.DeviceNDArray, dm.Stream)):
        with made:
            pass
    if isinstance(made, dm.Transfer):
        made.wait()
    if isinstance(made, (dm.Stream, dm.Event)):
        made.close()


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from(sorted(VERBS)), st.data())
def test_any_verb_takes_anything(tmp_path_factory: pytest.TempPathFactory, verb: str, data: st.DataObject) -> None:
    call, names = getattr(dm, verb), VERBS[verb].split()
    known = inspect.signature(call).parameters
    needed = [each for each in names if each in known and known[each].default is inspect.Parameter.empty]
    drawn = {
        name: data.draw(FLAG if name in FLAGS else ARGUMENT | INTEGERS)
        for name in names
        if name in needed or data.draw(st.booleans())
    }
    if verb == "save":
        drawn["path"] = str(tmp_path_factory.getbasetemp() / "saved.npy")

    def run() -> None:
        arguments = {name: real(value) for name, value in drawn.items()}
        first = [arguments.pop(name) for name in names[:1] if name not in known and name in arguments]
        use(call(*first, **arguments))

    attempt(run)


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from(sorted(METHODS)), st.data())
def test_any_method_takes_anything(kind: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(METHODS[kind].split()))
    drawn = data.draw(st.lists(ARGUMENT, max_size=2))

    def run() -> None:
        method, arguments = getattr(OURS[kind](), name), [*map(real, drawn)]
        if fits(method, *arguments):
            use(method(*arguments))

    attempt(run)


@given(
    st.sampled_from(["method", "property"]),
    ANYTHING
    | st.tuples(INTEGERS, INTEGERS)
    | st.tuples(st.just(0), INTEGERS | ANYTHING)
    | st.lists(INTEGERS, max_size=3),
)
def test_any_answer_of_another_librarys_stream(how: str, answer: Any) -> None:
    class Foreign:
        if how == "method":

            def __cuda_stream__(self) -> Any:
                return answer
        else:

            @property
            def __cuda_stream__(self) -> Any:
                return answer

    right = isinstance(answer, (tuple, list)) and len(answer) == 2 and all(type(each) is int for each in answer)
    told = attempt(lambda: dm.external_stream(Foreign()))
    if right and answer[0] == 0 and 0 <= answer[1] < 1 << 64:
        assert not told or "is not a stream of this device" in told or "is no stream" in told
    elif right or not isinstance(answer, (tuple, list)):
        assert told

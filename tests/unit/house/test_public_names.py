"""What public objects show, and what they say when they are used as another library's: `devmem._core.base.advice`."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest

import devmem as dm
from devmem._core.base import advice


def an_array():
    return dm.zeros((2, 3))


def a_plan():
    stream, array = dm.stream(), dm.zeros(3)
    with dm.capture(stream) as plan:
        array.fill(1, stream=stream)
    return plan


#: One object of each class that users hold in their hands.
OBJECTS = {
    "array": an_array,
    "record": lambda: dm.zeros(1, [("a", "i4")])[0],
    "stream": dm.stream,
    "closed stream": lambda: [stream := dm.stream(), stream.close()][0],
    "default stream": dm.default_stream,
    "event": dm.event,
    "closed event": lambda: [event := dm.event(), event.close()][0],
    "device": dm.current_device,
    "transfer": lambda: dm.copy_async(np.zeros(3)),
    "prefetch": lambda: dm.prefetch([np.zeros(3)]),
    "plan": a_plan,
    "mapped array": lambda: dm.mapped_array(3),
}


def listed(thing):
    return [name for name in dir(thing) if not name.startswith("_") and name.isidentifier()]  # pytest adds others


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_what_is_listed_is_documented(make):
    thing = make()
    kind = type(thing)
    attributes = "\n".join(base.__doc__ or "" for base in kind.__mro__)
    for name in listed(thing):
        found = inspect.getattr_static(kind, name, None)
        told = inspect.isdatadescriptor(found) or inspect.isroutine(found)
        slot = inspect.ismemberdescriptor(found) or inspect.isgetsetdescriptor(found)
        ours = not hasattr(np.ndarray, name)  # NumPy documents its own
        assert not ours or (told and not slot and inspect.getdoc(found)) or f"    {name} : " in attributes, name


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_what_is_not_listed_is_there(make):
    kind = type(make())
    absent = {
        name
        for table in (advice.ARRAY, advice.STREAM, advice.EVENT, advice.DEVICE, advice.IPC)
        for each in table
        for name in each.split()
    }
    own = getattr(kind, "_unlisted", frozenset()) - absent
    assert {name for name in own if inspect.getattr_static(kind, name, None) is None} == set()


def test_the_module_lists_what_it_exports():
    assert set(listed(dm)) == {name for name in dm.__all__ if not name.startswith("_")}


@pytest.mark.parametrize(
    "name", ["memory", "errors", "spill", "typing", "testing", "compat.numba_cuda", "compat.numba_roc"]
)
def test_so_do_the_other_public_modules(name):
    module = importlib.import_module(f"devmem.{name}")
    assert set(listed(module)) == set(module.__all__)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []


@pytest.mark.parametrize(
    ("make", "name", "verb"),
    [
        (dm.stream, "record_event", r"record\("),
        (dm.stream, "wait_event", r"wait\("),
        (dm.stream, "finish", "synchronize"),
        (dm.stream, "flush", "synchronize"),
        (dm.stream, "async_done", "copy_async"),
        (dm.current_device, "free_memory", r"memory_info\(\)"),
        (dm.current_device, "uuid", r"info\.uuid"),
        (dm.current_device, "pci_bus_id", r"info\.pci_id"),
        (dm.current_device, "properties", "info"),
        (dm.stream, "begin_capture", r"devmem\.capture"),
        (dm.event, "is_done", r"query\("),
        (dm.event, "time_till", r"elapsed_time"),
        (dm.current_device, "index", "ordinal"),
        (dm.current_device, "use", "with device"),
        (an_array, "clone", "copy"),
        (an_array, "setitem", r"copy_to_device\("),
        (lambda: an_array().get_ipc_handle(), "open", "open_ipc_array"),
    ],
)
def test_a_name_of_another_library_says_which_verb_it_is(make, name, verb):
    thing = make()
    assert not hasattr(thing, name)
    with pytest.raises(AttributeError, match=rf"{type(thing).__name__}.*'{name}': .*{verb}"):
        getattr(thing, name)


@pytest.mark.parametrize(
    "name", ["OutOfMemoryError", "list_devices", "mem_alloc", "float32", "memcpy_htod", "ascontiguousarray"]
)
def test_so_does_a_name_of_another_module(name):
    with pytest.raises(AttributeError, match=f"'devmem' has no attribute '{name}': ") as info:
        getattr(dm, name)
    assert (info.value.name, info.value.obj) == (name, dm)  # Python suggests what is spelt alike


TABLES = {
    "MODULE": lambda: dm,
    "ARRAY": an_array,
    "STREAM": dm.stream,
    "EVENT": dm.event,
    "DEVICE": dm.current_device,
    "IPC": lambda: an_array().get_ipc_handle(),
}


@pytest.mark.parametrize(("table", "make"), TABLES.items(), ids=TABLES)
def test_a_table_has_each_name_once_and_none_that_is_there(table, make):
    names = [name for several in getattr(advice, table) for name in several.split()]
    assert len(names) == len(set(names))
    thing = make()
    assert [name for name in names if hasattr(thing, name)] == []


@pytest.mark.parametrize("make", [dm.Event, dm.event, dm.Stream, dm.stream])
def test_a_keyword_of_another_library_says_what_to_write(make):
    given = {"enable_timing": True} if make in (dm.Event, dm.event) else {"device": 0}
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument '(enable_timing': write timing|device': .*with device)"
    ):
        make(**given)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'nonsense'$"):
        make(nonsense=1)


@pytest.mark.parametrize(
    ("call", "given", "advice"),
    [
        (lambda **k: dm.asarray([1], **k), {"order": "F"}, r"numpy\.asarray\(x, order="),
        (lambda **k: dm.asarray([1], **k), {"blocking": True}, "leave it out"),
        (lambda **k: dm.asarray([1], **k), {"requires_grad": True}, "no gradients"),
        (lambda **k: dm.prefetch([], **k), {"batch_size": 4}, "iterable"),
        (lambda **k: dm.prefetch([], **k), {"num_workers": 4}, "DataLoader"),
        (lambda **k: dm.prefetch([], **k), {"prefetch_factor": 4}, "write depth="),
        (lambda **k: dm.load("x.npy", **k), {"mmap_mode": "r"}, "leave it out"),
        (lambda **k: an_array().to("cuda", **k), {"non_blocking": True}, "write stream="),
        (lambda **k: an_array().to("cuda", **k), {"dtype": "f4"}, "converts on the host"),
        (lambda **k: an_array().copy(**k), {"order": "C"}, "order of axes is kept"),
    ],
)
def test_a_verb_says_what_to_write_for_a_keyword_of_another_library(call, given, advice):
    with pytest.raises(
        TypeError, match=rf"\w+\(\) got an unexpected keyword argument '{next(iter(given))}': .*{advice}"
    ):
        call(**given)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'nonsense'$"):
        call(nonsense=1)


def test_synchronize_takes_no_stream():
    with pytest.raises(TypeError, match=r"stream\.synchronize\(\)"):
        dm.synchronize(dm.stream())


def test_each_resource_is_looked_for_in_devmem_too():
    names = set(dm.memory.__all__) | set(dm.spill.__all__)
    for name in names:
        module = "memory" if name in dm.memory.__all__ else "spill"
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': it is in devmem\.{module}$"):
            getattr(dm, name)


def test_registrations_show_their_arrays():
    arrays = np.zeros(3), np.zeros(4)
    with dm.register(*arrays) as several:
        assert repr(several) == f"<Registration of 2 arrays on {dm.current_device()}>"
    assert repr(several) == f"<Registration closed on {dm.current_device()}>"
    with dm.pinned(arrays[0]) as one:
        assert " of 1 array on " in repr(one)
    with dm.use_backend("host"):
        mapping = dm.mapped(*arrays)
        assert repr(mapping) == f"<Mapping of <Registration of 2 arrays on {dm.current_device()}>>"
        mapping.close()


#: A public class, and the function that its error names.
MAKERS = {
    "DeviceNDArray": "to_device",
    "DeviceRecord": "to_device",
    "PinnedNDArray": "pinned_array",
    "MappedNDArray": "mapped_array",
    "ManagedNDArray": "managed_array",
    "Device": "devmem.device",
    "Transfer": "copy_async",
    "TransferPlan": "capture",
}


@pytest.mark.parametrize("given", [(), ((3,),), (np.zeros(3),), ("cuda", 1), (0,)], ids=repr)
@pytest.mark.parametrize(("name", "maker"), MAKERS.items(), ids=MAKERS)
def test_a_class_that_is_not_called_says_what_makes_its_objects(name, maker, given):
    with pytest.raises(TypeError, match=rf"{name} is not called: .*{maker}"):
        getattr(dm, name)(*given)


@pytest.mark.parametrize("make", [dm.Stream, dm.Event])
@pytest.mark.parametrize("given", [0, (3,), "cuda"], ids=repr)
def test_streams_and_events_say_what_they_take(make, given):
    with pytest.raises(TypeError, match=rf"{make.__name__}\(\) takes .*, not "):
        make(given)


def test_every_public_class_is_made_by_call_or_says_what_makes_it():
    values = {
        "BackendStatus",
        "DeviceInfo",
        "IpcHandle",
        "MemoryInfo",
        "Setting",
    }  # of fields, which their signature shows
    made = {"ArrayFile", "Event", "In", "InOut", "Out", "Prefetcher", "SmartArray", "Stream", "defer_cleanup"}
    classes = {
        name
        for name in dm.__all__
        if isinstance(thing := getattr(dm, name), type) and not issubclass(thing, BaseException)
    }
    assert classes == values | made | MAKERS.keys()


def test_a_prefetcher_and_a_file_are_made_by_call(tmp_path):
    assert [batch.tolist() for batch in dm.Prefetcher([np.arange(2)])] == [[0, 1]]
    dm.save({"x": dm.ones(2)}, tmp_path / "x.npz")
    assert dm.ArrayFile(str(tmp_path / "x.npz"))["x"].tolist() == [1.0, 1.0]


def test_a_subclass_of_an_array_class_has_a_constructor_of_its_own():
    class Mine(dm.DeviceNDArray):
        def __init__(self, length):
            made = dm.zeros(length)
            super().__init__(made.open_device, made.allocation, made.ptr, made.shape, made.dtype, made.strides)

    assert Mine(3).tolist() == [0.0, 0.0, 0.0]
    assert type(Mine(3)[1:]) is Mine

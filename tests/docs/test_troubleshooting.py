"""The page on error messages: each row's message is what devmem says, and the programs that provoke and cure it are here."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import devmem as dm
from devmem.backends.host.hooks import HostBackend

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "troubleshooting.md"
ROWS = re.findall(r"^\| `(\w+): (.+?)` \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def of_another_device():
    first, second = dm.devices()[:2]
    with second:
        stream = dm.stream()
    with first:
        dm.zeros(3, stream=stream)


def of_a_closed_stream():
    stream = dm.stream()
    stream.close()
    dm.zeros(3, stream=stream)


def of_a_freed_array():
    array = dm.zeros(3)
    array.free()
    array.copy_to_host()


def of_a_reset_device():
    array = dm.zeros(3, device=dm.devices()[0])
    array.device.reset()
    array.copy_to_host()


def of_a_read_only_destination():
    destination = np.zeros(3)
    destination.flags.writeable = False
    dm.zeros(3).copy_to_host(destination)


def of_a_backend_that_is_not_there():
    class Absent(HostBackend):
        name = "absent"

        def unavailable(self):
            return "no driver library was found"

    dm.register_backend(Absent())
    try:
        dm.use_backend("absent")
    finally:
        dm.unregister_backend("absent")


def beyond_a_limit():
    with dm.use_memory("limit:1MiB"):
        dm.empty(2 << 20, np.uint8)


def of_a_guarded_transfer():
    program = "import devmem as dm; dm.zeros(3)[0]"
    raise dm.TransferGuardError(run(program, DEVMEM_TRANSFER_GUARD="disallow"))


def of_numpy_for_the_memory_of_a_device():
    raise BufferError(run("import numpy, devmem; numpy.from_dlpack(devmem.zeros(3))", DEVMEM_HOST_STRICT="1"))


def in_a_forked_process():
    program = """
import os, sys, devmem as dm
dm.zeros(3)
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    try:
        dm.zeros(3)
    except dm.ForkedError as error:
        print(error, file=sys.stderr, flush=True)
    os._exit(0)
"""
    raise dm.ForkedError(run(program))


def run(program, **settings):
    """What a program of its own process says at its end."""
    environment = {**os.environ, "DEVMEM_BACKEND": "host", **settings}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment).stderr


#: By the words of the message on the page.
PROVOKED = {
    "module 'devmem' has no attribute '…': …": lambda: dm.mem_get_info,
    "'DeviceNDArray' object has no attribute '…': …": lambda: dm.zeros(3).astype("f4"),
    "… got an unexpected keyword argument '…': write …": lambda: dm.event(enable_timing=True),
    "… is not called: …": lambda: dm.DeviceNDArray((3,)),
    "operand 'DeviceNDArray' does not support ufuncs (__array_ufunc__=None)": lambda: np.sin(dm.zeros(3)),
    "devmem arrays have no arithmetic or comparison…": lambda: dm.zeros(3) + 1,
    "…was freed…": of_a_freed_array,
    "… was reset…": of_a_reset_device,
    "a device array cannot become an ndarray without a copy…": lambda: dm.zeros(3).__array__(copy=False),
    "…DEVMEM_TRANSFER_GUARD…": of_a_guarded_transfer,
    "copy_to_host: the destination has dtype …, the source …": lambda: dm.zeros(3).copy_to_host(np.zeros(3, "f4")),
    "…read-only…": of_a_read_only_destination,
    "asarray(dtype=…) of a device array of …": lambda: dm.asarray(dm.zeros(3), "f4"),
    "…references to Python objects…": lambda: dm.to_device(np.array([None, "x"], object)),
    "… is not an array: …": lambda: dm.to_device(n for n in range(3)),
    "…mask…": lambda: dm.to_device(np.ma.masked_array([1, 2], [True, False])),
    "…takes ints, slices, Ellipsis and None as indices…": lambda: dm.zeros(3)[[True, False, True]],
    "DLPack only supports native byte order.": lambda: dm.from_dlpack(np.zeros(3, np.dtype("f8").newbyteorder())),
    "Unsupported device in DLTensor.": of_numpy_for_the_memory_of_a_device,
    "…is not registered…": lambda: dm.deregister(np.zeros(3)),
    "… cannot order work on …": of_another_device,
    "this stream of … is closed…": of_a_closed_stream,
    "… is not the handle of a stream …": lambda: dm.zeros(3, stream=0x123450),
    "…INVALID_HANDLE…": lambda: dm.external_stream(12345),
    "a stream is 0, None, a devmem.Stream, …": lambda: dm.zeros(3, stream="main"),
    "an event made with timing=False has no time…": lambda: dm.event(False).elapsed_time(dm.event(False)),
    "a stream cannot be pickled or copied…": lambda: pickle.dumps(dm.stream()),
    "there is no device …": lambda: dm.device(99),
    "no backend is named …": lambda: dm.use_backend("CUDA"),
    "the backend '…' cannot be used…": of_a_backend_that_is_not_there,
    "…no memory resource is named '…'…": lambda: dm.use_memory("pol"),
    "…MiB…": beyond_a_limit,
    "…before this process was forked…": in_a_forked_process,
}


def with_a_stream_of_the_device():
    with dm.devices()[-1] as device:
        return dm.zeros(3, stream=dm.stream()).device == device


def freed_at_the_end():
    with dm.zeros(3) as array:
        return array.tolist() == [0, 0, 0]


def made_anew():
    dm.devices()[0].reset()
    return dm.zeros(3, device=dm.devices()[0]).tolist() == [0, 0, 0]


def registered_for_a_block():
    with dm.register(np.zeros(3)):
        pass


def bound_to_no_stream():
    stream = dm.stream()
    array = dm.zeros(3, stream=stream).bind(0)
    stream.synchronize()
    stream.close()
    return array.tolist() == [0, 0, 0]


def of_another_library():
    stream = dm.stream()
    with dm.zeros(3, stream=dm.external_stream(stream.handle)) as array:
        return array.tolist() == [0, 0, 0]


def timed():
    stream = dm.stream()
    start, end = stream.record(timing=True), stream.record(timing=True)
    end.synchronize()
    return start.elapsed_time(end) >= 0


def by_its_name():
    with dm.use_memory("pool"):
        return dm.zeros(3).tolist() == [0, 0, 0]


def within_the_limit():
    with dm.use_memory("limit:1MiB"):
        for _ in range(3):
            dm.empty(1 << 20, np.uint8).free()


def opened_behind_the_fork():
    program = """
import os, devmem as dm
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    os.write(2, str(dm.zeros(3).tolist()).encode())
    os._exit(0)
"""
    return run(program) == "[0.0, 0.0, 0.0]"


def as_the_doctor_says():
    return "host" in run(
        "import subprocess, sys; subprocess.run([sys.executable, '-m', 'devmem.cli', 'doctor'], stdout=2)"
    )


MASKED = np.ma.masked_array([1, 2], [True, False])
#: What the page advises, by the words of the message; False where it did not help.
CURED = {
    "module 'devmem' has no attribute '…': …": lambda: dm.memory_info().free > 0,
    "'DeviceNDArray' object has no attribute '…': …": lambda: dm.to_device(np.zeros(3).astype("f4")),
    "… got an unexpected keyword argument '…': write …": lambda: dm.event(timing=True),
    "… is not called: …": lambda: isinstance(dm.to_device(np.zeros(3)), dm.DeviceNDArray),
    "operand 'DeviceNDArray' does not support ufuncs (__array_ufunc__=None)": lambda: np.sin(
        dm.zeros(3).copy_to_host()
    ),
    "devmem arrays have no arithmetic or comparison…": lambda: dm.to_device(dm.zeros(3).copy_to_host() + 1),
    "…was freed…": freed_at_the_end,
    "… was reset…": made_anew,
    "a device array cannot become an ndarray without a copy…": lambda: dm.zeros(3).copy_to_host(),
    "…DEVMEM_TRANSFER_GUARD…": lambda: (
        run("import devmem as dm; dm.zeros(3).copy_to_host()[0]", DEVMEM_TRANSFER_GUARD="disallow") == ""
    ),
    "copy_to_host: the destination has dtype …, the source …": lambda: dm.zeros(3).copy_to_host(np.zeros(3)),
    "…read-only…": lambda: dm.zeros(3).copy_to_host(np.zeros(3)),
    "asarray(dtype=…) of a device array of …": lambda: dm.asarray(dm.zeros(3).copy_to_host(), "f4").dtype == "f4",
    "…references to Python objects…": lambda: dm.to_device(np.array(["y", "x"], "U16")),
    "… is not an array: …": lambda: dm.to_device(list(n for n in range(3))),  # noqa: C400  # as the message says
    "…mask…": lambda: [dm.to_device(each) for each in (MASKED.filled(0), MASKED.data, np.ma.getmaskarray(MASKED))],
    "…takes ints, slices, Ellipsis and None as indices…": lambda: dm.zeros(3).copy_to_host()[[True, False, True]],
    "DLPack only supports native byte order.": lambda: dm.to_device(np.zeros(3, np.dtype("f8").newbyteorder())),
    "Unsupported device in DLTensor.": lambda: dm.zeros(3).copy_to_host(),
    "…is not registered…": registered_for_a_block,
    "… cannot order work on …": with_a_stream_of_the_device,
    "this stream of … is closed…": bound_to_no_stream,
    "… is not the handle of a stream …": of_another_library,
    "…INVALID_HANDLE…": of_another_library,
    "a stream is 0, None, a devmem.Stream, …": lambda: [dm.zeros(3, stream=each) for each in (0, None, dm.stream())],
    "an event made with timing=False has no time…": timed,
    "a stream cannot be pickled or copied…": lambda: run("import devmem as dm; dm.stream()") == "",
    "there is no device …": lambda: (
        run("import devmem as dm; assert len(dm.devices()) == 3; dm.device(2)", DEVMEM_HOST_DEVICES="3") == ""
    ),
    "no backend is named …": lambda: dm.use_backend("host").close(),
    "the backend '…' cannot be used…": as_the_doctor_says,
    "…no memory resource is named '…'…": by_its_name,
    "…MiB…": within_the_limit,
    "…before this process was forked…": opened_behind_the_fork,
}


def test_each_row_is_provoked_and_cured():
    assert len(ROWS) == len(re.findall(r"^\| `", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert [words for _, words, _, _ in ROWS] == list(PROVOKED) == list(CURED)


@pytest.mark.parametrize("words", CURED)
def test_the_cure_helps(words):
    assert CURED[words]() is not False


@pytest.mark.parametrize(("kind", "words"), [row[:2] for row in ROWS], ids=[row[1] for row in ROWS])
def test_the_message_is_what_devmem_says(kind, words):
    with pytest.raises(Exception, match=".*".join(map(re.escape, words.split("…")))) as info:
        PROVOKED[words]()
    assert type(info.value).__name__ == kind


def test_words_that_devmem_does_not_say_are_noticed():
    with pytest.raises(AssertionError):
        test_the_message_is_what_devmem_says("TypeError", "this stream of … is closed…")

"""An interrupt behind an enqueued copy: both sides of it live until the stream has passed it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import devmem as dm
from devmem._core.copy.submit import Submitter
from devmem.testing import hold

pytestmark = pytest.mark.usefixtures("tidy")


class Interrupt(BaseException):
    """What Ctrl-C raises, without its side effects."""


def noting(original: Any, copied: list[bool]) -> Any:
    """The same call, which notes that it returned."""

    def copy(*arguments: Any, **keywords: Any) -> bool:
        running: bool = original(*arguments, **keywords)
        copied.append(running)
        return running

    return copy


def behind_the_copy(verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a verb that is interrupted at the first line of devmem's behind the driver's copy."""
    copied: list[bool] = []

    def line(frame: Any, event: str, argument: object) -> Any:
        if copied and event == "line" and frame.f_code.co_filename.endswith("engine.py"):
            copied.clear()
            raise Interrupt
        return line

    for name in ("copy", "copy_rows"):
        monkeypatch.setattr(Submitter, name, noting(getattr(Submitter, name), copied))
    before = sys.gettrace()
    sys.settrace(line)
    try:
        with pytest.raises(Interrupt):
            verb()
    finally:
        sys.settrace(before)


VERBS = {
    "upload": lambda array, host, stream: array.copy_to_device(host, stream),
    "upload of rows": lambda array, host, stream: array[:, :600].copy_to_device(host[:, :600], stream),
    "download": lambda array, host, stream: array.copy_to_host(host, stream),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_host_side_is_kept(verb, monkeypatch, need, need_kind):
    need_kind("pinned")
    if verb == "upload of rows":
        need(
            "strided_copy"
        )  # otherwise the rows are packed on the host, and the driver has read them when its copy returns
    stream = dm.stream()
    array = dm.zeros((8, 1024), np.uint8)
    host = dm.pinned_array((8, 1024), np.uint8)
    completions = dm.current_device().opened().completions
    with hold(stream):
        behind_the_copy(lambda: VERBS[verb](array, host, stream), monkeypatch)
        assert completions.is_busy(stream), "nothing keeps the host's side of the copy that is running"
    stream.synchronize()
    completions.poll()
    assert not completions.is_busy(stream)

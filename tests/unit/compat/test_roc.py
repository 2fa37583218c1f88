"""The names of ``devmem.compat.numba_roc``, as far as they need no device."""

from __future__ import annotations

import inspect

import pytest

import devmem
from devmem.compat import numba_roc as roc
from devmem.compat.numba_roc.hsadrv import error

#: What ``from numba import roc`` had, but for tests and the vectorizers.
NAMES = """
    activelanepermute_wavewidth agents atomic barrier coarsegrain_array CLK_GLOBAL_MEM_FENCE CLK_LOCAL_MEM_FENCE deregister
    device_array device_array_like devicearray ds_bpermute ds_permute finegrain_array get_context
    get_global_id get_global_size get_group_id
    get_local_id get_local_size get_num_groups get_work_dim is_available jit mem_fence register shared stream to_device
    wavebarrier
"""


def test_every_name_is_there():
    assert set(NAMES.split()) == set(roc.__all__)


def test_the_numbers_are_numba_rocs():
    assert (roc.CLK_LOCAL_MEM_FENCE, roc.CLK_GLOBAL_MEM_FENCE) == (0, 1)
    assert inspect.signature(roc.barrier).parameters["scope"].default == roc.CLK_GLOBAL_MEM_FENCE


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("to_device", "obj stream context copy to"),
        ("device_array", "shape dtype strides order"),
        ("device_array_like", "ary"),
        ("coarsegrain_array", "shape dtype strides order"),
        ("finegrain_array", "shape dtype strides order"),
        ("register", "args"),
        ("deregister", "args"),
        ("stream", ""),
        ("is_available", ""),
        ("jit", "signature device"),
    ],
)
def test_parameters_have_the_names_that_they_had(name, parameters):
    assert list(inspect.signature(getattr(roc, name)).parameters) == parameters.split()


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("__init__", "self shape strides dtype dgpu_data"),
        ("copy_to_host", "self ary stream"),
        ("copy_to_device", "self ary stream context"),
        ("ravel", "self order stream"),
    ],
)
def test_methods_have_the_parameters_that_they_had(method, parameters):
    found = inspect.signature(getattr(roc.devicearray.DeviceNDArray, method)).parameters
    assert [name for name, each in found.items() if each.kind is not each.KEYWORD_ONLY] == parameters.split()


@pytest.mark.parametrize(
    "call",
    [
        lambda: roc.get_global_id(0),
        lambda: roc.get_local_id(0),
        lambda: roc.get_group_id(0),
        lambda: roc.get_local_size(0),
        lambda: roc.get_global_size(0),
        lambda: roc.get_num_groups(0),
        roc.get_work_dim,
        roc.barrier,
        lambda: roc.mem_fence(0),
        roc.wavebarrier,
        lambda: roc.shared.array(3, "f4"),
        lambda: roc.atomic.add([0], 0, 1),
        lambda: roc.ds_permute(1, 2),
        lambda: roc.ds_bpermute(1, 2),
        lambda: roc.activelanepermute_wavewidth(1, 2, 3, 4),
        lambda: roc.jit(device=True)(lambda value: value)(3),
    ],
)
def test_device_side_names_on_the_host_are_not_implemented(call):
    with pytest.raises(NotImplementedError):
        call()


@pytest.mark.parametrize("signature", ["int32(int32)", "float32(float32[:], int32)", " f8 (f8)"])
def test_a_kernel_that_returns_something_is_a_type_error(signature):
    with pytest.raises(TypeError, match="a kernel returns nothing"):
        roc.jit(signature)
    roc.jit(signature, device=True)(lambda value: value)


@pytest.mark.parametrize("signature", [None, "void(int32[:])", "(int32[:],)", "none(int32)", object()])
def test_spellings_of_jit(signature):
    kernel = roc.jit(signature)(lambda array: None)
    assert kernel[2, 3].global_size == (6,)
    assert kernel[(2, 3), 4].global_size == (8, 3)
    assert kernel[(2, 3), 4].local_size == (4, 1)
    stream = object()
    assert kernel[2, 3, stream].stream is stream
    assert kernel.configure((4, 6), 2).local_size == (2, 1)
    assert kernel.configure(4).local_size is None
    assert kernel.forall(100).local_size == (50,)
    assert kernel.forall(13, 4).local_size == (1,)
    assert kernel.forall(3).local_size == (3,)


@pytest.mark.parametrize("size", ["a", 1.5, (2, None), [2, "3"]], ids=repr)
def test_sizes_that_are_no_integers_are_told(size):
    kernel = roc.jit(lambda array: None)
    for launch in (lambda: kernel[size, 1], lambda: kernel[1, size], lambda: kernel.configure(size)):
        with pytest.raises(TypeError) as caught:
            launch()
        assert f"a launch is given integers, not {size!r}" in str(caught.value)


def test_errors_are_related_as_they_were():
    assert issubclass(error.HsaSupportError, ImportError)
    for kind in (error.HsaApiError, error.HsaKernelLaunchError, error.HsaContextMismatchError):
        assert issubclass(kind, error.HsaDriverError)
    assert issubclass(error.HsaWarning, UserWarning)
    assert error.HsaApiError(7, "no").code == 7


def test_what_means_the_same_is_both():
    refused = devmem.BackendError("no", backend="x", call="f", code=3, name="BAD")
    found = error.translated(refused)
    assert isinstance(found, error.HsaApiError)
    assert isinstance(found, devmem.BackendError)
    assert (found.code, found.call, found.name, str(found)) == (3, "f", "BAD", str(refused))
    assert isinstance(error.translated(devmem.BackendUnavailable("x")), error.HsaSupportError)
    for known in (found, devmem.LayoutError("x")):
        with pytest.raises(type(known)) as raised:
            error.translated(known)
        assert raised.value is known


def test_what_was_translated_already_keeps_its_cause():
    @error.translating
    @error.translating
    def refuse():
        raise devmem.BackendError("no", code=3)

    with pytest.raises(error.HsaApiError) as caught:
        refuse()
    assert type(caught.value.__cause__) is devmem.BackendError

"""docs/reference/refused-names.md: what numba-cuda's registries type in kernels and devmem refuses, each with its reason.

The names are those of the registries of the installed numba-cuda. A name that is refused and has no reason here fails, as does a
reason for a name that is not refused. ``REFUSED_NAMES=write`` writes the page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import devmem as dm
from devmem.kernels.compilers.simulator.array_functions import FUNCTIONS, UFUNCS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "refused-names.md"
NUMPY_TYPES = "Numba's types: write NumPy's, such as `np.float32`, `np.intp`; signatures are text"
LINKED = "its code has to be linked, and devmem loads only code that needs no linker"
RUNTIME = "numba-cuda types them, and compiles them, if at all, with its runtime, which has to be linked"
HOST = "names a type for signatures, which are text"
NOT_COMPILED = "numba-cuda has the name, and does not compile it into a kernel"
NO_INDEX = "arrays are indexed, and not pointed to"
#: Numba registers these when they are used first, by whichever test that is.
LATE = re.compile(r"literal_unroll")
#: Names of numba.cuda itself, by what they are.
NAMES = {
    "bfloat16": "NumPy has no such type without ml_dtypes, and kernels of devmem take NumPy's",
    **dict.fromkeys(["Dim3", "GridGroup", "dim3", "grid_group", "none", "void"], HOST),
    **dict.fromkeys(["deferred_type", "ffi", "ffi_forced_object", "optional"], HOST),
}
#: Functions of numba.cuda.libdevice.
LIBDEVICE = dict.fromkeys(
    ["y0", "y0f", "y1", "y1f", "yn", "ynf"], "neither Python nor NumPy has Bessel functions of the second kind"
)
#: Attributes of arrays.
ARRAY = {
    **dict.fromkeys(["astype", "copy", "flags", "flatten", "nonzero", "ravel", "sort"], NOT_COMPILED),
    "ctypes": NO_INDEX,
}
USES = {
    "T": "a.T[0, 1]",
    "astype": "a.astype(np.int32)[0, 0]",
    "copy": "a.copy()[0, 0]",
    "ctypes": "a.ctypes.data",
    "dtype": "a.dtype.type(1)",
    "flags": "a.flags.c_contiguous",
    "flat": "a.flat[3]",
    "flatten": "a.flatten()[3]",
    "imag": "a.imag[0, 0]",
    "item": "a[:1, 0].item()",
    "nonzero": "a.nonzero()[0][0]",
    "ravel": "a.ravel()[3]",
    "real": "a.real[0, 0]",
    "reshape": "a.reshape(8)[3]",
    "shape": "a.shape[0]",
    "sort": "a[0].sort()",
    "strides": "a.strides[0]",
    "sum": "a.sum()",
    "transpose": "a.transpose()[0, 1]",
    "view": "a.view(np.int64)[0, 0]",
}


@pytest.fixture
def registries(devmem_backend):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    pytest.importorskip("greenlet", reason="the extra 'sim' is not installed")
    if devmem_backend != "host":
        pytest.skip("the simulator runs on the host backend")


def refused_names() -> dict[str, str]:
    """What numba.cuda has, its registry has a type for, and the drop-in lacks; NumPy's types by another name apart."""
    from numba import cuda
    from numba.cuda import types
    from numba.cuda.descriptor import cuda_target

    from devmem.compat import numba_cuda as ours

    found, plain = {}, 0
    for name in sorted(each for each in dir(cuda) if not each.startswith("_") and not LATE.fullmatch(each)):
        try:
            kind = cuda_target.typing_context.resolve_value_type(getattr(cuda, name))
        except Exception:
            continue
        # Modules, and constants of the host, have no meaning of their own in a kernel.
        if isinstance(kind, types.Module | types.Boolean | types.BaseTuple | types.UnicodeType) or hasattr(ours, name):
            continue
        if isinstance(kind, types.NumberClass) and name not in NAMES:
            plain += 1
        else:
            found[f"`cuda.{name}`"] = NAMES.pop(name)
    assert plain > 30
    return {"`cuda.float32`, `cuda.int32` and all other names of types": NUMPY_TYPES} | found


def refused_functions() -> dict[str, str]:
    """Functions of libdevice, atomic operations and what the module's template has, that the drop-in lacks."""
    from numba.cuda import cudadecl, libdevicefuncs

    from devmem.compat import numba_cuda as ours
    from devmem.compat.numba_cuda import libdevice

    for template, holder in ((cudadecl.CudaModuleTemplate, ours), (cudadecl.CudaAtomicTemplate, dm.atomic)):
        names = [each.removeprefix("resolve_") for each in dir(template) if each.startswith("resolve_")]
        assert [each for each in names if not hasattr(holder, each)] == []
    missing = [each.removeprefix("__nv_") for each in sorted(libdevicefuncs.functions)]
    missing = [each for each in missing if not hasattr(libdevice, each)]
    return {f"`cuda.libdevice.{each}`": LIBDEVICE.pop(each) for each in missing}


def refused_attributes() -> dict[str, str]:
    """Attributes of arrays in numba's registry that the simulator refuses."""
    from numba.cuda.typing.arraydecl import ArrayAttribute

    found = {}
    for name in sorted(each.removeprefix("resolve_") for each in dir(ArrayAttribute) if each.startswith("resolve_")):
        space = {"np": np}
        exec(f"def kernel(a, out):\n    out[0] = {USES.get(name, f'a.{name}')} or 0", space)
        try:
            dm.kernel(space["kernel"])[1, 1](dm.to_device(np.arange(8.0).reshape(2, 4)), dm.zeros(1))
            dm.current_device().synchronize()
        except dm.SimulatorError:
            found[f"`a.{name}`"] = ARRAY.pop(name)
    return found


def refused_of_numpy() -> dict[str, str]:
    """NumPy's functions that numba types in kernels and the simulator refuses for whole arrays."""
    from numba.cuda.descriptor import cuda_target

    context = cuda_target.typing_context
    context.refresh()
    ufuncs, functions = [], []
    for name in sorted(dir(np)):
        value = getattr(np, name)
        if not callable(value) or isinstance(value, type) or name in FUNCTIONS:
            continue
        try:
            context.resolve_value_type(value)
        except Exception:
            continue
        if isinstance(value, np.ufunc):
            ufuncs += [name] * (value.__name__ not in UFUNCS)
            continue
        space = {"np": np}
        exec(f"def kernel(a, out):\n    out[0] = np.{name}(a)", space)
        try:
            dm.kernel(space["kernel"])[1, 1](dm.to_device(np.arange(4.0)), dm.zeros(1))
            dm.current_device().synchronize()
        except dm.SimulatorError:
            functions.append(name)
    assert len(functions) > 100
    return {_named(ufuncs) + " of whole arrays": NOT_COMPILED, _named(functions) + " of whole arrays": RUNTIME}


def _named(functions: list[str]) -> str:
    return ", ".join(f"`np.{each}`" for each in functions)


INTRODUCTION = """\
# Names that kernels cannot use

What numba-cuda's registries of types have for kernels, and devmem's kernels refuse. A test compares this page with the
registries of numba-cuda 0.30.4 and with the simulator (`nox -s kernels`); everything else in them works on the host backend.
[](kernels.md) lists the statements that no compiler takes.

| name | why |
|---|---|
"""


def page(rows: dict[str, str]) -> str:
    rows = rows | {
        "`a[...] = b` of two arrays, and `a += 1`": RUNTIME,
        "`x is True`": "a bool of a kernel is no object: write `if x`",
        "an array of the device that is a global": "launches are ordered by the arrays that they are given: pass it",
    }
    rows = rows | {"`cuda.declare_device`, `jit(link=...)`; compiled, `cuda.fp16` and `a.reshape`": LINKED}
    return INTRODUCTION + "".join(f"| {name} | {why} |\n" for name, why in rows.items())


def test_the_page_lists_what_is_refused(registries):
    rows = refused_names() | refused_functions() | refused_attributes() | refused_of_numpy()
    assert not NAMES | LIBDEVICE | ARRAY, "reasons for names that are not refused"
    with pytest.raises(AttributeError, match="linked"):
        __import__("devmem.compat.numba_cuda", fromlist=["x"]).declare_device  # noqa: B018
    found = page(rows)
    if os.environ.get("REFUSED_NAMES") == "write":
        PAGE.write_text(found, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == found, "stale: REFUSED_NAMES=write nox -s kernels"

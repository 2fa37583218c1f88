"""Kernel numbers give what numba-cuda's PTX gives, bit for bit: for all operators, pairs of types and conversions.

Where numba-cuda and NVVM are installed (``nox -s kernels``), each expression is compiled, and its PTX is run by `ptx`. Checksums
of what that gave are in ``operators.json``, and are compared everywhere. ``OPERATORS=write`` writes them anew.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import operator_cases as cases
import pytest
from ptx import Program, Type, bits_of

from devmem.kernels.compilers.simulator.device_math import REPLACED
from devmem.kernels.compilers.simulator.numbers import numpy_type

RECORDED = Path(__file__).with_name("operators.json")
CASES = [(name, kind) for name in (*cases.OF_TWO, *cases.OF_ONE, *cases.STORED) for kind in cases.TYPES]
CASES = [
    (name, kind)
    for name, kind in CASES
    if (
        any(cases.compared(name, kind, each) for each in cases.TYPES)
        if name in cases.OF_TWO
        else cases.taken(name, kind)
    )
]


def label(name: str, kind: Any) -> str:
    return f"{cases.OF_TWO.get(name, name)} of {np.dtype(kind).name}"


def test_results_have_the_recorded_bits():
    recorded = json.loads(RECORDED.read_text())
    found = {}
    for name, kind in CASES:
        results = cases.of_two(name, kind) if name in cases.OF_TWO else cases.of_one(name, kind)
        found[label(name, kind)] = cases.digest(text for _, text in cases.silent(results))
    wrong = {each for each in recorded | found if recorded.get(each) != found.get(each)}
    assert not wrong, f"{sorted(wrong)}: nox -s kernels compares each number with compiled code"


# -- compiled ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cuda():
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    try:
        cuda.compile_ptx(lambda: None, (), cc=(9, 0))
    except Exception as error:  # of NVIDIA's libraries one is not there
        pytest.skip(f"numba-cuda cannot compile: {error}")
    return cuda


def compiled(cuda: Any, expressions: list[tuple[str, Any]], *kinds: Any) -> tuple[Program, dict[str, str]]:
    """A program that stores each expression, with the type of its result, in an array; and the types that numba gives them."""
    from numba.cuda import types
    from numba.cuda.compiler import compile_cuda

    lines = []
    for at, (expression, kind) in enumerate(expressions):
        lines += [f"    r{at} = {expression}", f"    o{cases.TYPES.index(kind)}[{at}] = r{at}"]
    made: dict[str, Any] = {"np": np, "math": math}
    arrays = ", ".join(f"o{at}" for at in range(len(cases.TYPES)))
    exec(f"def function({', '.join('xy'[: len(kinds)])}, {arrays}):\n" + "\n".join(lines), made)
    numbas = {each: getattr(types, np.dtype(each).name.replace("bool", "boolean")) for each in cases.TYPES}
    signature = (*(numbas[each] for each in kinds), *(each[::1] for each in numbas.values()))
    text, _ = cuda.compile_ptx(made["function"], types.void(*signature), cc=(9, 0))
    found = compile_cuda(made["function"], types.void, signature, cc=(9, 0)).type_annotation.typemap
    typed = {name.partition(".")[0]: str(types.unliteral(kind)) for name, kind in found.items()}
    return Program(text), {expression: typed[f"r{at}"] for at, (expression, _) in enumerate(expressions)}


def run(program: Program, expressions: list[tuple[str, Any]], *operands: Any) -> list[str]:
    """What each expression gave, as `operator_cases.told`."""
    arrays = [value for at in range(len(cases.TYPES)) for value in (0, 0, 1 << 10, 8, (at + 1) << 20, 1 << 10, 8)]
    memory = program.run(*map(bits_of, operands), *arrays)
    results = []
    for at, (_, kind) in enumerate(expressions):
        dtype = np.dtype(kind)
        bits = memory[((cases.TYPES.index(kind) + 1) << 20) + at * dtype.itemsize]
        nan = dtype.kind == "f" and np.isnan(Type(f"f{8 * dtype.itemsize}").read(bits))
        results.append(f"{dtype} nan" if nan else f"{dtype} {bits:x}")
    return results


def record(found: dict[str, list[str]], kind: Any) -> None:
    """Compare the checksums with those in the file, or write them there."""
    digests = {label(name, kind): cases.digest(results) for name, results in found.items() if results}
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("OPERATORS") == "write":
        RECORDED.write_text(json.dumps(dict(sorted((recorded | digests).items())), indent=0) + "\n")
    else:
        assert digests.items() <= recorded.items(), "run this test with OPERATORS=write"


def kind_of(results: list[tuple[str, str]]) -> Any:
    """The NumPy type of results that are all of one."""
    [name] = {text.partition(" ")[0] for _, text in results}
    return np.dtype(name).type


@pytest.mark.parametrize("left", cases.TYPES, ids=lambda kind: np.dtype(kind).name)
def test_expressions_of_two_numbers(cuda, left):
    ours = {name: cases.silent(cases.of_two(name, left)) for name in cases.OF_TWO}
    theirs: dict[str, list[str]] = {name: [] for name in ours}
    begin = dict.fromkeys(ours, 0)
    for right in cases.TYPES:
        names = [name for name in ours if cases.compared(name, left, right)]
        if not names:
            continue
        pairs = [(x, y) for x in cases.values(left) for y in cases.values(right)]
        kinds = [kind_of(ours[name][begin[name] : begin[name] + len(pairs)]) for name in names]
        expressions = [(cases.OF_TWO[name], kind) for name, kind in zip(names, kinds, strict=True)]
        program, typed = compiled(cuda, expressions, left, right)
        assert typed == {each: np.dtype(kind).name for each, kind in expressions}
        for pair in pairs:
            for name, text in zip(names, run(program, expressions, *pair), strict=True):
                theirs[name].append(text)
        for name in names:
            begin[name] += len(pairs)
    wrong = [
        f"{cases.OF_TWO[name]} of {what}: {text}, compiled {other}"
        for name, results in ours.items()
        for (what, text), other in zip(results, theirs[name], strict=True)
        if text != other
    ]
    assert not wrong, wrong[:20]
    record(theirs, left)


@pytest.mark.parametrize(
    "kinds", [("uint8",), ("uint32", "uint64"), ("int32",), ("int64", "uint16", "uint16")], ids=str
)
def test_numbers_of_a_range(cuda, kinds):
    from numba.cuda import types
    from numba.cuda.compiler import compile_cuda

    made: dict[str, Any] = {}
    names = ", ".join("abc"[: len(kinds)])
    exec(f"def function(out, {names}):\n    for each in range({names}):\n        out[0] = each", made)
    signature = (types.float64[::1], *(getattr(types, each) for each in kinds))
    found = compile_cuda(made["function"], types.void, signature, cc=(9, 0)).type_annotation.typemap
    [theirs] = {kind for name, kind in found.items() if name.startswith("each")}
    [first] = {
        type(each) for each in REPLACED[id(range)](*(np.dtype(each).type(2 + at) for at, each in enumerate(kinds)))
    }
    assert np.dtype(numpy_type(first)).kind == str(theirs)[0]


@pytest.mark.parametrize("kind", cases.TYPES, ids=lambda kind: np.dtype(kind).name)
def test_expressions_of_one_number(cuda, kind):
    names = [name for name in (*cases.OF_ONE, *cases.STORED) if cases.taken(name, kind)]
    ours = {name: cases.silent(cases.of_one(name, kind)) for name in names}
    expressions = [("x" if name in cases.STORED else name, kind_of(ours[name])) for name in names]
    program, typed = compiled(cuda, expressions, kind)
    assert {name: typed[name] for name in names if name in typed} == {
        name: np.dtype(found).name for name, found in expressions if name != "x"
    }
    theirs: dict[str, list[str]] = {name: [] for name in names}
    for x in cases.values(kind):
        for name, text in zip(names, run(program, expressions, x), strict=True):
            theirs[name].append(text)
    wrong = [
        f"{name} of {what}: {text}, compiled {other}"
        for name in names
        for (what, text), other in zip(ours[name], theirs[name], strict=True)
        if text != other
    ]
    assert not wrong, wrong[:20]
    record(theirs, kind)

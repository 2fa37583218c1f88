"""Each function of a vendor's library that a backend calls has a statement in the truth files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE, HERE = ROOT / "devmem", Path(__file__).parent
#: It tells where other functions are.
UNSTATED = {"cuGetProcAddress"}


def cuda_functions() -> set[str]:
    """Every word of the backend's that names a function of the binding, with its prefix or without."""
    driver = pytest.importorskip("cuda.bindings.driver", reason="it has the names of CUDA's functions")
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in (PACKAGE / "backends/cuda").glob("*.py"))))
    words |= set(re.findall(r"functions\.(\w+)", (PACKAGE / "toolkit/streams.py").read_text()))
    names = {word if word.startswith("cu") else f"cu{word}" for word in words}
    return {name for name in names if re.match("cu[A-Z]", name) and callable(getattr(driver, name, None))} - {
        name for name in names if isinstance(getattr(driver, name, None), type)
    }


def roc_functions() -> set[str]:
    return set(re.findall(r'"(hip[A-Z]\w+)":', (PACKAGE / "backends/roc/functions.py").read_text()))


@pytest.mark.parametrize("functions", [cuda_functions, roc_functions])
def test_each_function_is_in_a_statement(functions):
    vendor = functions.__name__.partition("_")[0]
    texts = [(HERE / f"test_truth_{vendor}.py").read_text(), (ROOT / "tests/helpers/truth.py").read_text()]
    stated = set(re.findall(r"\w+", "\n".join(texts)))
    called = functions()
    assert len(called) > 60, "the sources have another form"
    assert not called - stated - UNSTATED

"""Numbers of bytes as programs and people read them."""

import re
from pathlib import Path

import pytest

import devmem
from devmem.spi.sizes import exact_size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB (1,024 bytes)"),
        (1_600_000, "1.5 MiB (1,600,000 bytes)"),
        (5 << 40, "5.0 TiB (5,497,558,138,880 bytes)"),
    ],
)
def test_the_exact_number_has_its_size_beside_it(nbytes: int, text: str) -> None:
    assert exact_size(nbytes) == text


#: These compare numbers, of positions in files and in memory, in one sentence: units would hide the difference.
COMPARE = {
    "backends/opencl/memory.py",
    "backends/opencl/work.py",
    "_core/bulk/files/copies.py",
    "_core/bulk/files/safetensors.py",
    "_core/bulk/pitched.py",
    "_core/interop/ipc.py",
}
NOT_POSITIVE = {"_core/pool/engine.py", "backends/host/driver.py", "kernels/compilers/simulator/compiler.py"}


def test_messages_say_sizes_in_one_way() -> None:
    package = Path(devmem.__file__).parent
    raw = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "testing"
        and re.search(r"\{[^{}]*bytes[^{}()]*\} bytes", path.read_text(encoding="utf-8"))
    }
    raw -= {"spi/sizes.py"}
    assert raw == COMPARE | NOT_POSITIVE


def test_an_error_about_a_large_array_says_its_size_in_units() -> None:
    with devmem.use_backend("host"):
        array = devmem.empty(5 << 20, "u1")
        array.free()
        with pytest.raises(devmem.ClosedError, match=r"5\.0 MiB \(5,242,880 bytes\) on host:0"):
            array.copy_to_host()

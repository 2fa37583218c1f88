"""Numbers of bytes as programs and people read them."""

import pytest

from devmem.toolkit.sizes import exact_size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1024 bytes (1.0 KiB)"),
        (1_600_000, "1600000 bytes (1.5 MiB)"),
        (5 << 40, f"{5 << 40} bytes (5.0 TiB)"),
    ],
)
def test_the_exact_number_has_its_size_beside_it(nbytes: int, text: str) -> None:
    assert exact_size(nbytes) == text

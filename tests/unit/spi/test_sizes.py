"""Numbers of bytes as programs and people read them."""

import pytest

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

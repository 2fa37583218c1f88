"""``python -m devmem`` is the same as ``devmem``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from .cli import main

    sys.exit(main())

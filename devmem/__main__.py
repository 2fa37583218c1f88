"""``python -m devmem`` is the same as ``devmem``."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())

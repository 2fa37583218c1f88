"""``python -m devmem.cli`` is the same as ``devmem``."""

from __future__ import annotations

import sys

from . import main

sys.exit(main())

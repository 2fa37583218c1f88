"""The contract between devmem's generic machinery and everything that plugs into it.

It holds protocols, values and errors, and no behaviour: what several packages need to do alike is in `devmem.toolkit`.
`driver` says what a backend supplies, `memory` what an allocator supplies, `kernel` what a compiler supplies, `types` the
values that pass between them, `errors` what may be raised, `hookspecs` how all of them are found. It imports the standard
library only, so a plugin that is written against it drags in neither NumPy nor a vendor.
"""

from __future__ import annotations

#: Bumped when a backend written for the old contract would break. A backend that asks for a newer one is refused; one of the
#: previous contract runs, with a warning. What changed with each is in docs/reference/contract-changes.md.
SPI_VERSION = 2

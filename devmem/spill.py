"""Arrays that leave the device while nothing uses them: more of them than fit there."""

from ._core.bulk.spill.store import Store

__all__ = ["Store"]

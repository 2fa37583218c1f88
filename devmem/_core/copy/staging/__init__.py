"""Large copies of memory that the driver cannot reach directly, by way of a few page-locked slots."""

from .download import Download
from .growing_ring import GrowingRing
from .ring import Ring
from .upload import upload

__all__ = ["Download", "GrowingRing", "Ring", "upload"]

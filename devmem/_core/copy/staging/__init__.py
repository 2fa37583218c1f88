"""Large copies of memory that the driver cannot reach directly, by way of a few page-locked slots."""

from .download import Download
from .ring import Ring
from .upload import upload, upload_blocks

__all__ = ["Download", "Ring", "upload", "upload_blocks"]

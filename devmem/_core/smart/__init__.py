"""Arrays with a host side and a device side."""

from .array import SmartArray

__all__ = ["SmartArray"]

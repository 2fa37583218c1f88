"""Making a device current for a block of code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from ..device.open_device import Context


class Entered:
    """``with Entered(context) as driver:`` enter the device once, restore once.

    A class and not a generator: five times cheaper. The hottest verbs write the same three lines out.
    """

    __slots__ = ("driver", "token")

    def __init__(self, context: Context) -> None:
        self.driver = context.driver

    def __enter__(self) -> Any:
        self.token = self.driver.enter()
        return self.driver

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.token is not None:
            self.driver.exit(self.token)

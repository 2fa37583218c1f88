"""``DEVMEM_TRANSFER_GUARD``: what happens at a copy to the host that the program did not ask for by name."""

from __future__ import annotations

from ...spi.errors import TransferGuardError
from .call_site import Site, call_site
from .config import TransferGuard, settings

_logged_sites: set[Site] = set()


def guard(what: str) -> None:
    """Called before a copy to the host that the program did not ask for by name; obeys DEVMEM_TRANSFER_GUARD."""
    mode = settings().transfer_guard
    if mode is TransferGuard.ALLOW:
        return
    site = call_site()
    message = f"implicit copy from device to host by {what} at {site[0]}:{site[1]}"
    if mode is TransferGuard.DISALLOW:
        raise TransferGuardError(
            f"{message}, which DEVMEM_TRANSFER_GUARD=disallow forbids: call copy_to_host() yourself"
        )
    if site not in _logged_sites:
        _logged_sites.add(site)
        import logging  # takes longer to import than the rest of this module

        logging.getLogger("devmem").warning("%s", message)

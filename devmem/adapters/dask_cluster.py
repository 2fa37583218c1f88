"""A Dask cluster on the devices of this machine, one worker each, whose arrays move to the host and to disk when they must.

Both work on every backend, and on the host's devices without a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import devmem as dm
from devmem import spill

from .dask import INSTALL
from .foreign_resource import import_library

PURPOSE = "a Dask cluster"
#: Of results between workers, at once. They are outside the limits of a store while they are on their way.
TRANSFERS = {"incoming": 2, "outgoing": 2}


class WorkerStore(spill.Store):
    """A store for the results of a worker: Dask moves them to disk where the process needs too much host memory."""

    @property
    def fast(self) -> bool:
        """Whether something on the host could be moved."""
        return bool(self.stats()["host"]["count"])

    @property
    def spilled_total(self) -> tuple[int, int]:
        """Bytes of what is on disk, and of its files: the dashboard shows them."""
        nbytes = self.stats()["disk"]["bytes"]
        return nbytes, nbytes

    def evict(self) -> int:
        """Move one key from the host to disk; its bytes, or -1 if none can be moved. What fails stays where it is."""
        try:
            moved = self.spill(max(self.stats()["host"]["bytes"] - 1, 0), "host")
        except Exception:  # Dask asks again, as it does its own buffer
            return -1
        return moved or -1


def worker_store(
    worker_local_directory: str,
    device: int | str | None = None,
    host: int | str | None = None,
    disk: str | None = None,
    disk_bytes: int | str | None = None,
) -> WorkerStore:
    """The mapping ``data=`` of a Dask worker: ``Worker(..., data=(worker_store, {"device": "2GiB"}))``.

    In the place of dask-cuda's ``DeviceHostFile``, on every backend. The arguments are those of `devmem.spill.Store`; files are
    in the worker's own folder, if ``disk`` names none.
    """
    sizeof: Callable[[Any], int] = import_library("dask.sizeof", INSTALL, PURPOSE).sizeof
    folder = disk if disk is not None else str(Path(worker_local_directory) / "devmem")
    return WorkerStore(device, host, folder, disk_bytes=disk_bytes, sizeof=sizeof)


def local_cluster(
    devices: Iterable[Any] | None = None,
    *,
    memory: str | None = None,
    device_limit: int | str | None = "80%",
    host_limit: int | str | None = None,
    disk: str | None = None,
    disk_bytes: int | str | None = None,
    env: Mapping[str, str] | None = None,
    dashboard_address: str | None = ":8787",
    scheduler: Mapping[str, Any] | None = None,
    **worker: Any,
) -> Any:
    """A cluster with one worker process for each device, which is the process's default device.

    Parameters
    ----------
    devices : iterable of Device, int or str, optional
        Which: a device may occur several times. All of the current backend, if not given.
    memory : str, optional
        The workers' memory stack, as text: ``"limit:4GiB,statistics,pool"``.
    device_limit, host_limit, disk, disk_bytes
        What a worker's results may take up on each tier; see `devmem.spill.Store`.
    env : mapping, optional
        More environment variables of the workers; they win.
    dashboard_address, scheduler, worker
        For Dask: where the dashboard is, None for none; more options of the scheduler and, by keyword, of each worker, such
        as ``threads_per_worker`` (1), ``memory_limit`` (0: Dask watches nothing), ``config`` and ``protocol``, which is the
        scheduler's too. What a task uses, and what is on its way to another worker or from it, is on the device beside the
        store's limit: two results each way, and as many more as fit into ``distributed.worker.transfer.message-bytes-limit``
        (50 MB).

    Returns
    -------
    distributed.SpecCluster
        Use it in ``with``, and give it to ``distributed.Client``. A worker that dies is started again, and its tasks run again.

    Raises
    ------
    BackendUnavailable
        distributed is not installed.
    ConfigError
        There is no such device.
    """
    distributed = import_library("distributed", INSTALL, PURPOSE)
    current = dm.current_device().backend
    chosen = [each for each in dm.devices() if each.backend == current] if devices is None else list(devices)
    limits = {"device": device_limit, "host": host_limit, "disk": disk, "disk_bytes": disk_bytes}
    specification = {}
    for number, what in enumerate(chosen):
        device = what if isinstance(what, dm.Device) else dm.device(what)
        variables = {"DEVMEM_BACKEND": device.backend, "DEVMEM_DEVICE": str(device.id)}
        if memory is not None:
            variables["DEVMEM_MEMORY_MANAGER"] = memory
        options = {
            "nthreads": worker.get("threads_per_worker", 1),
            "memory_limit": 0,
            "data": (worker_store, limits),
            "env": variables | dict(env or {}),
            "dashboard": False,
            "silence_logs": logging.WARNING,
            "host": "127.0.0.1",
            **{name: value for name, value in worker.items() if name != "threads_per_worker"},
            "config": {"distributed.worker.connections": TRANSFERS, **worker.get("config", {})},
        }
        specification[f"{device}-{number}"] = {"cls": distributed.Nanny, "options": options}
    asked = {
        "protocol": worker.get("protocol"),
        "host": "127.0.0.1",
        "dashboard_address": dashboard_address or ":0",
        "dashboard": dashboard_address is not None,
    }
    return distributed.SpecCluster(
        workers=specification,
        scheduler={"cls": distributed.Scheduler, "options": asked | dict(scheduler or {})},
        silence_logs=logging.WARNING,
    )

"""Device arrays that Ray's actors send each other directly: a tensor transport of Ray, on every backend.

::

    devmem.adapters.ray.register()                       # before the classes of actors that use it

    @ray.remote(enable_tensor_transport=True)
    class Actor:
        @ray.method(tensor_transport="devmem")
        def array(self):
            return devmem.zeros(1000)                    # stays on the device of this actor

        def use(self, array): ...                        # arrives on the current device of that one

The transport is one-sided: the receiver opens the sender's memory (`open_ipc_array`), and copies it into an array of its own,
whose memory comes from its stack in force, a pool say. It holds the sender's memory for no longer than that. What cannot be
shared goes through Ray's object store instead, by one copy on the host: managed and imported memory, memory of a driver's own
pool that gives no file descriptors (capability `pool_ipc`), or of a backend without IPC. Both actors have to be on one machine.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import devmem as dm

from ..spi.errors import UnsupportedError
from .foreign_resource import import_library

INSTALL = "'devmem-arrays[ray]'"
PURPOSE = "sending arrays between Ray's actors"
NAME = "DEVMEM"


def register() -> None:
    """Make the transport known to Ray under the name ``"devmem"``. Further calls have no effect.

    Call it in the process that makes the actors, before their classes are defined; Ray passes it on to them.

    Raises
    ------
    BackendUnavailable
        Ray is not installed, or has no tensor transports.
    """
    util = import_library("ray.experimental.rdt.util", INSTALL, PURPOSE)
    if NAME not in util.transport_manager_info:
        util.register_tensor_transport(NAME, ["devmem"], transport_class(), dm.DeviceNDArray)


@dataclass
class SentArrays:
    """The arrays of a message, as the receiver is told of them besides what Ray itself sends.

    Attributes
    ----------
    node : str
        The machine that their memory is on.
    handles : list
        For each array what it is opened with; or a copy on the host, which Ray sends through its object store.
    """

    node: str = ""
    handles: list[Any] = field(default_factory=list)


def sent(arrays: Sequence[dm.DeviceNDArray[Any]]) -> SentArrays:
    """Describe arrays for a receiver. The work that devmem enqueued on them is waited for."""
    return SentArrays(socket.gethostname(), [_handle_of(array) for array in arrays])


def received(arrays: SentArrays, buffers: Sequence[dm.DeviceNDArray[Any]] | None = None) -> list[dm.DeviceNDArray[Any]]:
    """Arrays of this process with the elements of another's, in ``buffers`` if given; complete on return.

    Raises
    ------
    UnsupportedError
        The sender is on another machine, or the device is none of this process's.
    """
    opened = [isinstance(handle, dm.IpcHandle) for handle in arrays.handles]
    if arrays.node != socket.gethostname() and any(opened):
        raise UnsupportedError(
            f"these arrays are in memory of the machine {arrays.node!r}, which {socket.gethostname()!r} cannot open: send them "
            f"through Ray's object store, as host arrays"
        )
    result = []
    for number, handle in enumerate(arrays.handles):
        source = dm.open_ipc_array(handle) if opened[number] else handle
        if buffers:
            target = buffers[number]
            target.copy_to_device(source)
        else:
            target = dm.to_device(source)
            target = source.copy() if target is source else target
        if opened[number]:
            source.free()
        result.append(target)
    return result


def transport_class() -> type[Any]:
    """The class that Ray makes its transport of."""
    manager = import_library("ray.experimental.rdt.tensor_transport_manager", INSTALL, PURPOSE)

    @dataclass
    class Metadata(manager.TensorTransportMetadata):  # type: ignore[misc, name-defined]
        arrays: SentArrays = field(default_factory=SentArrays)

    class DevmemTransport(manager.TensorTransportManager):  # type: ignore[misc, name-defined]
        """Ray's side of the transport; see the module."""

        manager_of_process = _ManagerOfProcess()

        def tensor_transport_backend(self) -> str:
            return NAME

        @staticmethod
        def is_one_sided() -> bool:
            return True

        @staticmethod
        def can_abort_transport() -> bool:
            return True

        def actor_has_tensor_transport(self, actor: object) -> bool:
            return True

        def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Any:
            meta = [(array.shape, array.dtype) for array in rdt_object]
            return Metadata(meta, "devmem" if meta else None, sent(rdt_object))

        def get_communicator_metadata(self, src_actor: object, dst_actor: object, backend: str | None = None) -> Any:
            return manager.CommunicatorMetadata()

        def recv_multiple_tensors(
            self,
            obj_id: str,
            tensor_transport_metadata: Any,
            communicator_metadata: object,
            target_buffers: list[Any] | None = None,
        ) -> list[Any]:
            return received(tensor_transport_metadata.arrays, target_buffers)

        def send_multiple_tensors(
            self, tensors: list[Any], tensor_transport_metadata: object, communicator_metadata: object
        ) -> None:
            raise NotImplementedError("the receiver copies by itself")

        def garbage_collect(self, obj_id: str, tensor_transport_meta: object, tensors: list[Any]) -> None:
            """Nothing is registered: the memory goes back when Ray drops the arrays."""

        def abort_transport(self, obj_id: str, communicator_metadata: object) -> None:
            """Nothing is under way in the sender."""

    return DevmemTransport


class _ManagerOfProcess:
    """Has Ray make its manager of arrays in this process, and in each that unpickles the object.

    Ray makes the manager at its first use, without a lock. In an actor two threads come there at once: one receives an array, the
    other waits for it. Each made a manager with a store of its own, and the array was never found (TimeoutError after a minute).
    The object is a part of the transport's class, which an actor unpickles on one thread; Ray waits until it has, before it sends
    the actor an array or has it make one.
    """

    def __init__(self) -> None:
        worker = import_library("ray._private.worker", INSTALL, PURPOSE)
        self.manager = worker.global_worker.rdt_manager

    def __reduce__(self) -> tuple[type[_ManagerOfProcess], tuple[()]]:
        return _ManagerOfProcess, ()


def _handle_of(array: dm.DeviceNDArray[Any]) -> Any:
    if array.nbytes:
        try:
            return array.get_ipc_handle()
        except UnsupportedError:
            pass
    return array.copy_to_host()

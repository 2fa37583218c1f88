"""Uses every verb of the API once, to run under a memory checker."""

from __future__ import annotations

from typing import Any


def child_verbs() -> int:
    """Use every verb of the API once, on small arrays, and check the results."""
    import tempfile

    import numpy as np

    import devmem as dm

    a = np.arange(24, dtype=np.float32).reshape(4, 6)

    def equal(found: Any, wanted: Any) -> None:
        assert np.array_equal(np.asarray(found), np.asarray(wanted)), (found, wanted)

    d = dm.to_device(a)
    equal(d.copy_to_host(), a)
    out = np.zeros_like(a)
    equal(d.copy_to_host(out), a)
    d.copy_to_device(a + 1)
    equal(d.copy_to_host(), a + 1)
    dm.to_device(a, to=d)
    equal(d[1:3, ::2].copy_to_host(), a[1:3, ::2])
    equal(d.T.copy_to_host(), a.T)
    equal(d[::-1].copy_to_host(), a[::-1])
    d[1:3, ::2] = 7
    b = a.copy()
    b[1:3, ::2] = 7
    equal(d.copy_to_host(), b)
    equal(d.reshape(6, 4).ravel().copy_to_host(), b.ravel())
    equal(d.copy().copy_to_host(), b)
    equal(dm.to_device(a[:, ::2]).copy_to_host(), a[:, ::2])
    equal(dm.to_device(a.T).copy_to_host(), a.T)
    e = dm.device_array_like(a)
    e.copy_to_device(d)
    equal(e.copy_to_host(), b)
    e.fill(3)
    equal(e.copy_to_host(), np.full_like(a, 3))
    equal(dm.zeros(5, np.int16).copy_to_host(), np.zeros(5, np.int16))
    equal(dm.full(5, 2.5).copy_to_host(), np.full(5, 2.5))
    equal([part.copy_to_host().size for part in dm.to_device(np.arange(7)).split(3)], [3, 3, 1])
    assert dm.device_array((0, 3)).copy_to_host().shape == (0, 3)
    assert dm.to_device(np.float64(4.5)).item() == 4.5

    with dm.stream(non_blocking=True) as stream:
        p = dm.pinned_array_like(a)
        p[...] = a
        f = dm.to_device(p, stream)
        g = dm.device_array(a.shape, a.dtype, stream=stream)
        g.copy_to_device(f, stream)
        q = dm.pinned_array(a.shape, a.dtype)
        g.copy_to_host(q, stream)
        start, end = dm.event(), dm.event()
        start.record(stream)
        end.record(stream)
        stream.synchronize()
        equal(q, a)
        assert dm.event_elapsed_time(start, end) >= 0
        end.wait(dm.default_stream())
        assert stream.query()
    with dm.register(b), dm.pinned(out):
        equal(dm.to_device(b).copy_to_host(out), b)
    kinds = dm.current_device().info.memory_kinds
    if "mapped" in kinds:
        m = dm.mapped_array(16, np.float32)
        dm.as_device_array(m).fill(2)
        dm.synchronize()
        equal(m, np.full(16, 2, np.float32))
        del m
    if "managed" in kinds:
        n = dm.managed_array(16, np.float32)
        dm.as_device_array(n).fill(2)
        dm.synchronize()
        equal(n, np.full(16, 2, np.float32))
        del n
    with dm.use_memory(dm.memory.DriverMemory()):
        equal(dm.to_device(a).copy_to_host(), a)
    with dm.defer_cleanup():
        dm.to_device(a)
    for _ in range(100):
        dm.to_device(a)
    many, many_back = (getattr(dm, name, None) for name in ("to_device_many", "to_host_many"))
    if many is not None and many_back is not None:
        for found, wanted in zip(many_back(many([a, a + 1])), [a, a + 1], strict=True):
            equal(found, wanted)
    pieces = dm.scatter(a, [0, 0], axis=1)
    equal(dm.gather(pieces, axis=1), a)
    with tempfile.TemporaryDirectory() as folder:
        dm.save(pieces[0], f"{folder}/a.npy")
        equal(dm.load(f"{folder}/a.npy").copy_to_host(), a[:, :3])
        dm.save(pieces[0][:, ::2], f"{folder}/b.npy")
        equal(np.load(f"{folder}/b.npy"), a[:, :3:2])
    equal(pieces[1].copy_to_host(pinned=True), a[:, 3:])
    del d, e, f, g, p, q, pieces
    dm.trim()
    info = dm.memory_info()
    assert info.live == info.pending == info.host.live == info.host.pending == 0, info
    dm.close()
    print("every verb gave the right result")
    return 0

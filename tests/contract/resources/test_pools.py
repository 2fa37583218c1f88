"""The pools against the published suite of resources: alone, over each other's upstreams, and in stacks of three."""

from __future__ import annotations

import pytest

from devmem._core.pool.pinned_pool import PinnedPool
from devmem._core.pool.pool import PoolMemory
from devmem.backends.cuda.hooks import CudaBackend
from devmem.backends.host.hooks import HostBackend
from devmem.backends.roc.hooks import RocBackend
from devmem.memory import DriverMemory, Limit, Statistics, StreamOrderedMemory, VirtualMemory
from devmem.spi.driver import Backend, Driver
from devmem.spi.memory import MemoryResource
from devmem.spi.types import Capability
from devmem.testing import MemoryResourceTests


class OnHost(MemoryResourceTests):
    def make_backend(self) -> Backend:
        backend = HostBackend()
        backend.configure({"strict": True, "devices": 1})
        return backend


class TestPool(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return PoolMemory()

    def make_adaptor(self, upstream: MemoryResource) -> MemoryResource | None:
        return PoolMemory(upstream)


class TestPoolWithLimit(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return PoolMemory(max_bytes="64MiB")

    def make_adaptor(self, upstream: MemoryResource) -> MemoryResource | None:
        return PoolMemory(upstream, max_bytes=64 << 20)


class TestPoolOverStreamOrdered(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        if Capability.STREAM_ORDERED not in driver.info.capabilities:
            pytest.skip("no stream-ordered memory")
        return PoolMemory(StreamOrderedMemory())


class TestStackOfThree(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return Limit(Statistics(PoolMemory(DriverMemory())), 1 << 40)

    def make_adaptor(self, upstream: MemoryResource) -> MemoryResource | None:
        return Limit(Statistics(PoolMemory(upstream)), 1 << 40)


class TestPinnedPool(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return PinnedPool()

    def make_adaptor(self, upstream: MemoryResource) -> MemoryResource | None:
        return PinnedPool(upstream)


class TestPinnedPoolWithLimit(OnHost):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return PinnedPool(max_bytes="64MiB")


class OnCuda(MemoryResourceTests):
    def make_backend(self) -> Backend:
        return CudaBackend()


class OnRoc(MemoryResourceTests):
    def make_backend(self) -> Backend:
        return RocBackend()


class TestPoolOnCuda(OnCuda):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return PoolMemory()


class TestVirtualMemoryOnCuda(OnCuda):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return VirtualMemory()


class TestPinnedPoolOnCuda(OnCuda):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return PinnedPool()


class TestPoolOnRoc(OnRoc):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return PoolMemory()


class TestVirtualMemoryOnRoc(OnRoc):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return VirtualMemory()


class TestPinnedPoolOnRoc(OnRoc):
    def make_resource(self, driver: Driver) -> MemoryResource:
        return PinnedPool()

"""The CUDA backend against the published suite: on whatever driver the process has, emulated or real."""

from __future__ import annotations

import os

import pytest

from devmem.backends.cuda.hooks import CudaBackend
from devmem.spi.driver import Backend, Driver
from devmem.testing import DriverTests

_reason = CudaBackend().unavailable()
pytestmark = pytest.mark.skipif(_reason is not None, reason=f"no CUDA driver, real or emulated: {_reason}")

#: The function that the suite launches, see `DriverTests.kernel`.
PTX = b"""
.version 6.4
.target sm_70
.address_size 64

.visible .entry add_to(.param .u64 array, .param .u32 count, .param .u8 step)
{
    .reg .pred %outside;
    .reg .b32 %block, %threads, %thread, %i, %n, %more, %value;
    .reg .b64 %there, %offset;
    ld.param.u64 %there, [array];
    ld.param.u32 %n, [count];
    ld.param.u8 %more, [step];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %threads, %thread;
    setp.ge.u32 %outside, %i, %n;
    @%outside ret;
    cvta.to.global.u64 %there, %there;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %there, %there, %offset;
    ld.global.u32 %value, [%there];
    add.u32 %value, %value, %more;
    add.u32 %value, %value, %block;
    st.global.u32 [%there], %value;
    ret;
}
"""


class TestCuda(DriverTests):
    # A real driver leaves the use of handles that it never gave out undefined.
    strict = "DEVMEM_EMULATOR" in os.environ

    def make_backend(self) -> Backend:
        return CudaBackend()

    def kernel(self, driver: Driver) -> tuple[bytes, str]:
        if "DEVMEM_EMULATOR" in os.environ:
            pytest.skip("the emulated driver loads no code")
        return PTX, "add_to"

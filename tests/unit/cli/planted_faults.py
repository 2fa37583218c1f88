"""A program for numba.cuda with a fault in each kernel, and the same kernel without it beside it: `test_planted_faults` runs it.

The line of a fault ends with what is reported there: ``# kind, block, thread``.
"""

import numpy as np
from numba import cuda

N = 64
int32, float32 = np.int32, np.float32
CURVE = np.arange(5.0)

# -- races in shared memory --------------------------------------------------------------------------------------------


@cuda.jit
def neighbour(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[t] = a[t]
    a[t] = s[(t + 7) % 8]  # unwritten, 0, 0


@cuda.jit
def neighbour_fixed(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    a[t] = s[(t + 7) % 8]


@cuda.jit
def reversal(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[7 - t] = 0
    cuda.syncthreads()
    s[t] = a[t]  # race, 0, 4
    a[t] = s[7 - t]


@cuda.jit
def reversal_fixed(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[7 - t] = 0
    cuda.syncthreads()
    s[t] = a[t]
    cuda.syncthreads()
    a[t] = s[7 - t]


@cuda.jit
def reduction(a):
    s, t = cuda.shared.array(64, int32), cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = 32
    while step:
        if t < step:
            s[t] += s[t + step]  # race, 0, 1
        step //= 2
    if t == 0:
        a[cuda.grid(1)] = s[0]


@cuda.jit
def reduction_fixed(a):
    s, t = cuda.shared.array(64, int32), cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = 32
    while step:
        if t < step:
            s[t] += s[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        a[cuda.grid(1)] = s[0]


@cuda.jit
def scan(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    step = 1
    while step < 8:
        value = s[t - step] if t >= step else 0  # race, 0, 1
        s[t] += value
        cuda.syncthreads()
        step *= 2
    a[t] = s[t]


@cuda.jit
def scan_fixed(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    step = 1
    while step < 8:
        value = s[t - step] if t >= step else 0
        cuda.syncthreads()
        s[t] += value
        cuda.syncthreads()
        step *= 2
    a[t] = s[t]


@cuda.jit
def histogram(a):
    s, t = cuda.shared.array(4, int32), cuda.threadIdx.x
    if t < 4:
        s[t] = 0
    cuda.syncthreads()
    s[a[t] % 4] += 1  # race, 0, 4
    cuda.syncthreads()
    if t < 4:
        a[t] = s[t]


@cuda.jit
def histogram_fixed(a):
    s, t = cuda.shared.array(4, int32), cuda.threadIdx.x
    if t < 4:
        s[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, a[t] % 4, 1)
    cuda.syncthreads()
    if t < 4:
        a[t] = s[t]


@cuda.jit
def largest(a):
    s, t = cuda.shared.array(1, int32), cuda.threadIdx.x
    if t == 0:
        s[0] = -1
    cuda.syncthreads()
    if a[t] > s[0]:  # race, 0, 1
        s[0] = a[t]


@cuda.jit
def largest_fixed(a):
    s, t = cuda.shared.array(1, int32), cuda.threadIdx.x
    if t == 0:
        s[0] = -1
    cuda.syncthreads()
    cuda.atomic.max(s, 0, a[t])


@cuda.jit
def product(a):
    s, x, y = cuda.shared.array((4, 4), float32), cuda.threadIdx.x, cuda.threadIdx.y
    total = 0.0
    for tile in range(2):
        s[y, x] = a[(tile * 16 + y * 4 + x) % a.size]
        cuda.syncthreads()
        for k in range(4):
            total += s[y, k] * s[k, x]  # race, 0, 1
    a[y * 4 + x] = total


@cuda.jit
def product_fixed(a):
    s, x, y = cuda.shared.array((4, 4), float32), cuda.threadIdx.x, cuda.threadIdx.y
    total = 0.0
    for tile in range(2):
        s[y, x] = a[(tile * 16 + y * 4 + x) % a.size]
        cuda.syncthreads()
        for k in range(4):
            total += s[y, k] * s[k, x]
        cuda.syncthreads()
    a[y * 4 + x] = total


@cuda.jit
def transposed(a):
    s, x, y = cuda.shared.array((4, 4), float32), cuda.threadIdx.x, cuda.threadIdx.y
    s[y, x] = a[y * 4 + x]
    a[y * 4 + x] = s[x, y]  # unwritten, 0, 1


@cuda.jit
def transposed_fixed(a):
    s, x, y = cuda.shared.array((4, 4), float32), cuda.threadIdx.x, cuda.threadIdx.y
    s[y, x] = a[y * 4 + x]
    cuda.syncthreads()
    a[y * 4 + x] = s[x, y]


@cuda.jit
def views(a):
    whole, t = cuda.shared.array(0, int32), cuda.threadIdx.x
    halves = cuda.shared.array(0, float32)
    whole[t] = t  # race, 0, 1
    halves[(t + 1) % 8] = 0.5


@cuda.jit
def views_fixed(a):
    whole, t = cuda.shared.array(0, int32), cuda.threadIdx.x
    halves = cuda.shared.array(0, float32)
    whole[t] = t
    cuda.syncthreads()
    halves[(t + 1) % 8] = 0.5


@cuda.jit
def warps(a):
    s, t = cuda.shared.array(64, int32), cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncwarp()
    a[cuda.grid(1)] = s[(t + 32) % 64]  # race, 0, 0


@cuda.jit
def warps_fixed(a):
    s, t = cuda.shared.array(64, int32), cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncwarp()
    a[cuda.grid(1)] = s[t ^ 1]


@cuda.jit(device=True)
def publish(s, t, value):
    s[0] = value  # race, 0, 1


@cuda.jit
def by_a_function(a):
    s, t = cuda.shared.array(1, int32), cuda.threadIdx.x
    publish(s, t, t)


@cuda.jit
def by_a_function_fixed(a):
    s, t = cuda.shared.array(1, int32), cuda.threadIdx.x
    if t == 0:
        publish(s, t, t)


# -- lost updates in global memory -------------------------------------------------------------------------------------


@cuda.jit
def counter(a):
    a[0] += 1  # race, 0, 1


@cuda.jit
def counter_fixed(a):
    cuda.atomic.add(a, 0, 1)


@cuda.jit
def across_blocks(a):
    s, t = cuda.shared.array(1, int32), cuda.threadIdx.x
    if t == 0:
        s[0] = 0
    cuda.syncthreads()
    if t == 5:
        s[0] = cuda.blockIdx.x + 3
    cuda.syncthreads()
    if t == 0:
        a[1] = a[1] + s[0]  # race, 1, 0


@cuda.jit
def across_blocks_fixed(a):
    s, t = cuda.shared.array(1, int32), cuda.threadIdx.x
    if t == 0:
        s[0] = 0
    cuda.syncthreads()
    if t == 5:
        s[0] = cuda.blockIdx.x + 3
    cuda.syncthreads()
    if t == 0:
        cuda.atomic.add(a, 1, s[0])


# -- divergence --------------------------------------------------------------------------------------------------------


@cuda.jit
def conditional(a):
    if cuda.threadIdx.x < 5:
        cuda.syncthreads()  # divergence, 0, 0


@cuda.jit
def conditional_fixed(a):
    if cuda.threadIdx.x < 5:
        a[cuda.threadIdx.x] = 1
    cuda.syncthreads()


@cuda.jit
def early(a):
    i = cuda.grid(1)
    if i >= 13:
        return
    a[i] = 1
    cuda.syncthreads()  # divergence, 1, 0
    a[i] = 2


@cuda.jit
def early_fixed(a):
    i = cuda.grid(1)
    if i < 13:
        a[i] = 1
    cuda.syncthreads()
    if i < 13:
        a[i] = 2


@cuda.jit
def rounds(a):
    for _ in range(cuda.threadIdx.x % 2 + 1):
        cuda.syncthreads()  # divergence, 0, 1


@cuda.jit
def rounds_fixed(a):
    for k in range(2):
        if k <= cuda.threadIdx.x % 2:
            a[cuda.threadIdx.x] = k
        cuda.syncthreads()


@cuda.jit
def branches(a):
    if cuda.threadIdx.x % 2 == 0:
        cuda.syncthreads()  # divergence, 0, 0
    else:
        cuda.syncthreads()


@cuda.jit
def branches_fixed(a):
    if cuda.threadIdx.x % 2 == 0:
        a[cuda.threadIdx.x] = 1
    else:
        a[cuda.threadIdx.x] = 2
    cuda.syncthreads()


@cuda.jit(device=True)
def settle(a):
    cuda.syncthreads()  # divergence, 0, 1
    return a[0]


@cuda.jit
def in_a_function(a):
    if cuda.threadIdx.x:
        a[cuda.threadIdx.x] = settle(a)


@cuda.jit
def in_a_function_fixed(a):
    value = settle(a)
    if cuda.threadIdx.x:
        a[cuda.threadIdx.x] = value


@cuda.jit
def counted(a):
    if cuda.threadIdx.x != 3:
        a[cuda.threadIdx.x] = cuda.syncthreads_count(1)  # divergence, 0, 0


@cuda.jit
def counted_fixed(a):
    found = cuda.syncthreads_count(cuda.threadIdx.x != 3)
    if cuda.threadIdx.x != 3:
        a[cuda.threadIdx.x] = found


@cuda.jit
def left_loop(a):
    for k in range(4):
        if a[cuda.grid(1)] == k:
            break
        cuda.syncthreads()  # divergence, 0, 1


@cuda.jit
def left_loop_fixed(a):
    for k in range(4):
        if a[cuda.grid(1)] != k:
            a[cuda.grid(1)] += 4
        cuda.syncthreads()


# -- overruns ----------------------------------------------------------------------------------------------------------


@cuda.jit
def unguarded(a):
    a[cuda.grid(1) * 5] = 1  # out of bounds, 1, 5


@cuda.jit
def unguarded_fixed(a):
    i = cuda.grid(1) * 5
    if i < a.size:
        a[i] = 1


@cuda.jit
def read_beyond(a):
    i = cuda.grid(1) + a.size - 15
    a[0] = max(a[i], 0)  # out of bounds, 1, 7


@cuda.jit
def read_beyond_fixed(a):
    i = cuda.grid(1) + a.size - 16
    if a[i] < 0:
        a[i] = 0


@cuda.jit
def grid_of_two(a):
    x, y = cuda.grid(2)
    a.reshape(8, 8)[x + 5, y] = 1  # out of bounds, 0, 3


@cuda.jit
def grid_of_two_fixed(a):
    x, y = cuda.grid(2)
    if x + 5 < 8:
        a.reshape(8, 8)[x + 5, y] = 1


@cuda.jit
def by_atomics(a):
    cuda.atomic.add(a, cuda.grid(1) + 50, 1)  # out of bounds, 1, 6


@cuda.jit
def by_atomics_fixed(a):
    cuda.atomic.add(a, cuda.grid(1) + 48, 1)


@cuda.jit
def below(a):
    a[cuda.threadIdx.x] = a[cuda.threadIdx.x - 1]  # out of bounds, 0, 0


@cuda.jit
def below_fixed(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    if t > 0:
        a[t] = s[t - 1]


@cuda.jit
def far_below(a):
    a[-60 - cuda.threadIdx.x] = 1  # out of bounds, 0, 0


@cuda.jit
def far_below_fixed(a):
    a[a.size - 1 - cuda.threadIdx.x] = 1


@cuda.jit
def shared_write(a):
    s = cuda.shared.array(7, int32)
    s[cuda.threadIdx.x] = 1  # out of bounds, 0, 7


@cuda.jit
def shared_write_fixed(a):
    s = cuda.shared.array(8, int32)
    s[cuda.threadIdx.x] = 1


@cuda.jit
def shared_read(a):
    s, t = cuda.shared.array((2, 4), int32), cuda.threadIdx.x
    s[t // 4, t % 4] = t
    cuda.syncthreads()
    a[t] = s[t // 4, t % 4 + 1]  # out of bounds, 0, 3


@cuda.jit
def shared_read_fixed(a):
    s, t = cuda.shared.array((2, 4), int32), cuda.threadIdx.x
    s[t // 4, t % 4] = t
    cuda.syncthreads()
    a[t] = s[t // 4, (t + 1) % 4]


@cuda.jit
def shared_below(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[t - 12] = 1  # out of bounds, 0, 0


@cuda.jit
def shared_below_fixed(a):
    s, t = cuda.shared.array(8, int32), cuda.threadIdx.x
    s[7 - t] = 1


@cuda.jit
def dynamic(a):
    s, t = cuda.shared.array(0, float32), cuda.threadIdx.x
    s[t + 1] = 1  # out of bounds, 0, 7


@cuda.jit
def dynamic_fixed(a):
    s, t = cuda.shared.array(0, float32), cuda.threadIdx.x
    s[t] = 1


@cuda.jit
def local_write(a):
    mine = cuda.local.array(4, int32)
    for k in range(cuda.threadIdx.x):
        mine[k] = k  # out of bounds, 0, 5


@cuda.jit
def local_write_fixed(a):
    mine = cuda.local.array(8, int32)
    for k in range(cuda.threadIdx.x):
        mine[k] = k


@cuda.jit
def local_read(a):
    mine = cuda.local.array(4, int32)
    for k in range(4):
        mine[k] = k
    a[cuda.threadIdx.x] = mine[cuda.threadIdx.x + 1]  # out of bounds, 0, 3


@cuda.jit
def local_read_fixed(a):
    mine = cuda.local.array(4, int32)
    for k in range(4):
        mine[k] = k
    a[cuda.threadIdx.x] = mine[cuda.threadIdx.x % 4]


@cuda.jit
def constant(a):
    a[cuda.threadIdx.x] = cuda.const.array_like(CURVE)[cuda.threadIdx.x]  # out of bounds, 0, 5


@cuda.jit
def constant_fixed(a):
    a[cuda.threadIdx.x] = cuda.const.array_like(CURVE)[cuda.threadIdx.x % 5]


#: How a kernel is launched, where that is not with two blocks of eight threads.
LAUNCHES = {
    "reduction": (1, 64),
    "warps": (1, 64),
    "product": (1, (4, 4)),
    "transposed": (1, (4, 4)),
    "grid_of_two": (1, (8, 8)),
}


def launch(name, kernel):
    """Launch a kernel; its error, if it gives one."""
    grid, block = LAUNCHES.get(name.removesuffix("_fixed"), (2, 8))
    try:
        kernel[grid, block, 0, 32](cuda.to_device(np.arange(N)))
    except Exception as error:
        print(name, type(error).__name__)


if __name__ == "__main__":
    for name, kernel in list(globals().items()):
        if name + "_fixed" in globals():
            launch(name, kernel)
            launch(name + "_fixed", globals()[name + "_fixed"])

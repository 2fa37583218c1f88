/* HIP front: every call in which stream 0 has a meaning.
 *
 * Compiled twice, as the vendor's headers select it: here 0 is the null stream. hip_per_thread.c includes this file; there 0 is
 * the default stream of the calling thread, and the exported names end in _spt. Functions without such a variant are compiled
 * once. Any thread may call the functions; they run under the core's lock.
 */
#define _GNU_SOURCE
#include "hip.h"

#include <signal.h>
#include <stdlib.h>

#ifdef PER_THREAD
#define SPT(name) HIP(name##_spt)
#define DEFAULT_STREAM STREAM_PER_THREAD
#else
#define SPT(name) HIP(name)
#define DEFAULT_STREAM STREAM_LEGACY
#endif

/* ROCm 6.3 introduced 1 as a handle of the null stream; earlier runtimes dereference it. */
static handle stream_of(handle stream)
{
    if (stream == STREAM_LEGACY && hip_rocm() < 603) core_die(SIGSEGV, "stream 1 is no handle before ROCm 6.3");
    return stream ? stream : DEFAULT_STREAM;
}

#define STREAM_OF(stream) stream_of(stream)

/* --- linear copies ------------------------------------------------------------------------------------------------ */

/* The kind must be known; it is ignored, except that it must say host for two addresses that are both unknown. */
static status check_kind(uint64_t to, uint64_t from, int kind)
{
    if ((kind < KIND_HOST_TO_HOST || kind > KIND_DEFAULT) && kind != KIND_NO_KERNEL) return HIP_INVALID_DIRECTION;
    bool both_unknown = to && from && !block_find(to) && !block_find(from);
    bool says_host = kind == KIND_HOST_TO_HOST || kind == KIND_DEFAULT || core_setting("HSA_XNACK", 0) == 1;
    return both_unknown && !says_host ? INVALID_VALUE : OK;
}

static status linear(struct context *context, handle stream, uint64_t to, uint64_t from, size_t bytes, int kind, bool blocking)
{
    struct box box = linear_box(to, SIDE_ANY, from, SIDE_ANY, bytes);
    status right = bytes ? check_kind(to, from, kind) : OK;
    return right == OK ? copy_run(context, STREAM_OF(stream), &box, blocking) : right;
}

SPT(hipMemcpy)(uint64_t to, uint64_t from, size_t bytes, int kind)
{
    BEGIN(hipMemcpy, NEED_CONTEXT);
    END(linear(context, 0, to, from, bytes, kind, true));
}

SPT(hipMemcpyAsync)(uint64_t to, uint64_t from, size_t bytes, int kind, handle stream)
{
    BEGIN(hipMemcpyAsync, NEED_CONTEXT);
    END(linear(context, stream, to, from, bytes, kind, false));
}

#ifndef PER_THREAD
HIP(hipMemcpyWithStream)(uint64_t to, uint64_t from, size_t bytes, int kind, handle stream)
{
    BEGIN(hipMemcpyWithStream, NEED_CONTEXT);
    END(linear(context, stream, to, from, bytes, kind, true));
}

#define COPIES(name, kind)                                                                       \
    HIP(hipMemcpy##name)(uint64_t to, uint64_t from, size_t bytes)                               \
    {                                                                                            \
        BEGIN(hipMemcpy##name, NEED_CONTEXT);                                                    \
        END(linear(context, 0, to, from, bytes, kind, true));                                    \
    }                                                                                            \
    HIP(hipMemcpy##name##Async)(uint64_t to, uint64_t from, size_t bytes, handle stream)         \
    {                                                                                            \
        BEGIN(hipMemcpy##name##Async, NEED_CONTEXT);                                             \
        END(linear(context, stream, to, from, bytes, kind, false));                              \
    }

COPIES(HtoD, KIND_HOST_TO_DEVICE)
COPIES(DtoH, KIND_DEVICE_TO_HOST)
COPIES(DtoD, KIND_DEVICE_TO_DEVICE)

/* Peer access need not be enabled: the runtime copies by the host then. Devices and addresses are not compared. */
HIP(hipMemcpyPeer)(uint64_t to, int to_device, uint64_t from, int take_from_device, size_t bytes)
{
    BEGIN(hipMemcpyPeer, NEED_CONTEXT);
    REQUIRE(is_device(to_device) && is_device(take_from_device), INVALID_DEVICE);
    END(linear(context, 0, to, from, bytes, KIND_DEVICE_TO_DEVICE, true));
}

HIP(hipMemcpyPeerAsync)(uint64_t to, int to_device, uint64_t from, int take_from_device, size_t bytes, handle stream)
{
    BEGIN(hipMemcpyPeerAsync, NEED_CONTEXT);
    REQUIRE(is_device(to_device) && is_device(take_from_device), INVALID_DEVICE);
    END(linear(context, stream, to, from, bytes, KIND_DEVICE_TO_DEVICE, false));
}

static status run_batch(struct context *context, handle stream, const uint64_t *to, const uint64_t *from, const size_t *sizes,
                        size_t count, size_t *failed)
{
    struct box *boxes = calloc(count, sizeof *boxes);
    enum source_read *reads = calloc(count, sizeof *reads); /* zeros: READ_DEFAULT */
    if (!boxes || !reads) abort();
    for (size_t index = 0; index < count; index++)
        boxes[index] = linear_box(to[index], SIDE_ANY, from[index], SIDE_ANY, sizes[index]);
    status result = copy_batch(context, STREAM_OF(stream), boxes, reads, count, failed);
    free(boxes);
    free(reads);
    return result;
}

/* Exists since ROCm 7.1, attributes since 7.3. The documentation does not say whether the legacy stream is allowed;
 * CUDA's excludes that one only. */
HIP(hipMemcpyBatchAsync)(const uint64_t *to, const uint64_t *from, const size_t *sizes, size_t count, const void *attributes,
                         const size_t *firsts, size_t kinds, size_t *failed, handle stream)
{
    BEGIN(hipMemcpyBatchAsync, NEED_CONTEXT);
    (void)attributes, (void)firsts;
    REQUIRE(hip_rocm() >= 701 && (!kinds || hip_rocm() >= 703), NOT_SUPPORTED);
    REQUIRE(to && from && sizes && count && STREAM_OF(stream) != STREAM_LEGACY, INVALID_VALUE);
    size_t index = SIZE_MAX;
    status result = run_batch(context, stream, to, from, sizes, count, &index);
    if (failed && index != SIZE_MAX) *failed = index;
    END(result);
}
#endif

/* --- copies of boxes ---------------------------------------------------------------------------------------------- */

static bool on_device(uint64_t address)
{
    struct block *block = block_find(address);
    return block && is_device_memory(block);
}

static status run_box(struct context *context, handle stream, struct box *box, int kind, bool blocking)
{
    if (!box->width || !box->height || !box->depth) return OK;
    status right = check_kind(box->to.address, box->from.address, kind);
    if (right != OK) return right;
    if (!box->to.address || !box->from.address) return INVALID_VALUE;
    if (box->to.pitch < box->width || box->from.pitch < box->width) return HIP_INVALID_PITCH;
    /* Within a device a kernel copies boxes, of any pitch. Between device and host, the copy engines need multiples of 4. */
    bool engine = !on_device(box->to.address) || !on_device(box->from.address);
    bool uneven = (box->to.pitch | box->from.pitch) % 4;
    if ((box->height > 1 || box->depth > 1) && engine && uneven) atomic_fetch_add(&slow_copies, 1);
    return copy_run(context, STREAM_OF(stream), box, blocking);
}

static status run_2d(struct context *context, handle stream, uint64_t to, size_t to_pitch, uint64_t from, size_t from_pitch,
                     size_t width, size_t height, int kind, bool blocking)
{
    struct box box = {{to, to_pitch, 0, SIDE_ANY}, {from, from_pitch, 0, SIDE_ANY}, width, height, 1};
    return run_box(context, stream, &box, kind, blocking);
}

SPT(hipMemcpy2D)(uint64_t to, size_t to_pitch, uint64_t from, size_t from_pitch, size_t width, size_t height, int kind)
{
    BEGIN(hipMemcpy2D, NEED_CONTEXT);
    END(run_2d(context, 0, to, to_pitch, from, from_pitch, width, height, kind, true));
}

SPT(hipMemcpy2DAsync)(uint64_t to, size_t to_pitch, uint64_t from, size_t from_pitch, size_t width, size_t height, int kind,
                       handle stream)
{
    BEGIN(hipMemcpy2DAsync, NEED_CONTEXT);
    END(run_2d(context, stream, to, to_pitch, from, from_pitch, width, height, kind, false));
}

static struct box_end end_at(const struct pitched *memory, const struct position *at)
{
    size_t plane = size_times(memory->pitch, memory->ysize);
    size_t offset = size_plus(size_to_row(at->z, plane, at->y, memory->pitch), at->x);
    uint64_t base = address_of(memory->at);
    return (struct box_end){base ? size_plus(base, offset) : 0, memory->pitch, plane, SIDE_ANY};
}

static status run_3d(struct context *context, handle stream, const struct copy3d *copy, bool blocking)
{
    if (!copy) return INVALID_VALUE;
    if (copy->src_array || copy->dst_array) return NOT_SUPPORTED;
    struct extent extent = copy->extent;
    struct box box = {end_at(&copy->dst, &copy->dst_at), end_at(&copy->src, &copy->src_at), extent.width, extent.height,
                      extent.depth};
    bool rows = copy->dst.ysize >= size_plus(extent.height, copy->dst_at.y) &&
                copy->src.ysize >= size_plus(extent.height, copy->src_at.y);
    if (extent.depth > 1 && !rows) return INVALID_VALUE;
    return run_box(context, stream, &box, copy->kind, blocking);
}

SPT(hipMemcpy3D)(const struct copy3d *copy)
{
    BEGIN(hipMemcpy3D, NEED_CONTEXT);
    END(run_3d(context, 0, copy, true));
}

SPT(hipMemcpy3DAsync)(const struct copy3d *copy, handle stream)
{
    BEGIN(hipMemcpy3DAsync, NEED_CONTEXT);
    END(run_3d(context, stream, copy, false));
}

#ifndef PER_THREAD
struct corner {
    int type;
    const void *host, *device, *array;
    size_t x, y, z, pitch, height;
};

static status corner_of(const struct corner *corner, struct box_end *out)
{
    if (corner->type == HIP_MEMORY_ARRAY || corner->array) return NOT_SUPPORTED;
    bool known = corner->type == HIP_MEMORY_HOST || corner->type == HIP_MEMORY_DEVICE || corner->type == HIP_MEMORY_UNIFIED;
    if (!known) return INVALID_VALUE;
    struct pitched memory = {(void *)(uintptr_t)(corner->type == HIP_MEMORY_HOST ? corner->host : corner->device),
                             corner->pitch, 0, corner->height};
    struct position at = {corner->x, corner->y, corner->z};
    *out = end_at(&memory, &at);
    return OK;
}

static status run_corners(struct context *context, handle stream, const struct corner *to, const struct corner *from,
                          struct extent extent, bool blocking)
{
    struct box box = {.width = extent.width, .height = extent.height, .depth = extent.depth};
    status result = corner_of(to, &box.to);
    if (result == OK) result = corner_of(from, &box.from);
    return result == OK ? run_box(context, stream, &box, KIND_DEFAULT, blocking) : result;
}

static status run_driver_2d(struct context *context, handle stream, const struct driver_copy2d *copy, bool blocking)
{
    if (!copy) return INVALID_VALUE;
    struct corner to = {copy->dst_type, copy->dst_host, copy->dst_device, copy->dst_array, copy->dst_x, copy->dst_y, 0,
                        copy->dst_pitch, 0};
    struct corner from = {copy->src_type, copy->src_host, copy->src_device, copy->src_array, copy->src_x, copy->src_y, 0,
                          copy->src_pitch, 0};
    return run_corners(context, stream, &to, &from, (struct extent){copy->width, copy->height, 1}, blocking);
}

static status run_driver_3d(struct context *context, handle stream, const struct driver_copy3d *copy, bool blocking)
{
    if (!copy || copy->src_lod || copy->dst_lod) return INVALID_VALUE;
    if (copy->depth > 1 && (copy->dst_height < copy->height || copy->src_height < copy->height)) return INVALID_VALUE;
    struct corner to = {copy->dst_type, copy->dst_host, copy->dst_device, copy->dst_array, copy->dst_x, copy->dst_y,
                        copy->dst_z, copy->dst_pitch, copy->dst_height};
    struct corner from = {copy->src_type, copy->src_host, copy->src_device, copy->src_array, copy->src_x, copy->src_y,
                          copy->src_z, copy->src_pitch, copy->src_height};
    return run_corners(context, stream, &to, &from, (struct extent){copy->width, copy->height, copy->depth}, blocking);
}

HIP(hipMemcpyParam2D)(const struct driver_copy2d *copy)
{
    BEGIN(hipMemcpyParam2D, NEED_CONTEXT);
    END(run_driver_2d(context, 0, copy, true));
}

HIP(hipMemcpyParam2DAsync)(const struct driver_copy2d *copy, handle stream)
{
    BEGIN(hipMemcpyParam2DAsync, NEED_CONTEXT);
    END(run_driver_2d(context, stream, copy, false));
}

HIP(hipDrvMemcpy3D)(const struct driver_copy3d *copy)
{
    BEGIN(hipDrvMemcpy3D, NEED_CONTEXT);
    END(run_driver_3d(context, 0, copy, true));
}

HIP(hipDrvMemcpy3DAsync)(const struct driver_copy3d *copy, handle stream)
{
    BEGIN(hipDrvMemcpy3DAsync, NEED_CONTEXT);
    END(run_driver_3d(context, stream, copy, false));
}
#endif

/* --- fills -------------------------------------------------------------------------------------------------------- */

static status fill(struct context *context, handle stream, uint64_t to, size_t pitch, int value, struct extent extent,
                   size_t plane, bool blocking)
{
    if (!extent.width || !extent.height || !extent.depth) return OK;
    if ((extent.height > 1 || extent.depth > 1) && pitch < extent.width) return INVALID_VALUE;
    if (extent.depth > 1) {
        struct block *block = block_find(to);
        size_t bytes = size_of_box(extent.width, extent.height, extent.depth, pitch, plane);
        if (!block || plane < size_times(extent.height, pitch) || !block_contains(block, to, bytes)) return INVALID_VALUE;
    }
    for (size_t z = 0; z < extent.depth; z++) {
        status done = fill_run(context, STREAM_OF(stream), to + z * plane, pitch, (unsigned char)value, 1, extent.width,
                               extent.height, blocking);
        if (done != OK) return done;
    }
    return OK;
}

SPT(hipMemset)(uint64_t to, int value, size_t bytes)
{
    BEGIN(hipMemset, NEED_CONTEXT);
    END(fill(context, 0, to, 0, value, (struct extent){bytes, 1, 1}, 0, true));
}

SPT(hipMemsetAsync)(uint64_t to, int value, size_t bytes, handle stream)
{
    BEGIN(hipMemsetAsync, NEED_CONTEXT);
    END(fill(context, stream, to, 0, value, (struct extent){bytes, 1, 1}, 0, false));
}

SPT(hipMemset2D)(uint64_t to, size_t pitch, int value, size_t width, size_t height)
{
    BEGIN(hipMemset2D, NEED_CONTEXT);
    END(fill(context, 0, to, pitch, value, (struct extent){width, height, 1}, 0, true));
}

SPT(hipMemset2DAsync)(uint64_t to, size_t pitch, int value, size_t width, size_t height, handle stream)
{
    BEGIN(hipMemset2DAsync, NEED_CONTEXT);
    END(fill(context, stream, to, pitch, value, (struct extent){width, height, 1}, 0, false));
}

SPT(hipMemset3D)(struct pitched to, int value, struct extent extent)
{
    BEGIN(hipMemset3D, NEED_CONTEXT);
    END(fill(context, 0, address_of(to.at), to.pitch, value, extent, size_times(to.pitch, to.ysize), true));
}

SPT(hipMemset3DAsync)(struct pitched to, int value, struct extent extent, handle stream)
{
    BEGIN(hipMemset3DAsync, NEED_CONTEXT);
    END(fill(context, stream, address_of(to.at), to.pitch, value, extent, size_times(to.pitch, to.ysize), false));
}

#ifndef PER_THREAD
#define FILLS(bits, type)                                                                                 \
    HIP(hipMemsetD##bits)(uint64_t to, type value, size_t count)                                          \
    {                                                                                                     \
        BEGIN(hipMemsetD##bits, NEED_CONTEXT);                                                            \
        END(fill_run(context, DEFAULT_STREAM, to, 0, (uint32_t)value, bits / 8, count, 1, true));         \
    }                                                                                                     \
    HIP(hipMemsetD##bits##Async)(uint64_t to, type value, size_t count, handle stream)                    \
    {                                                                                                     \
        BEGIN(hipMemsetD##bits##Async, NEED_CONTEXT);                                                     \
        END(fill_run(context, STREAM_OF(stream), to, 0, (uint32_t)value, bits / 8, count, 1, false));     \
    }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, int)

/* --- stream-ordered memory ---------------------------------------------------------------------------------------- */

/* Zero bytes are an error before ROCm 7. */
static status alloc_ordered(struct context *context, struct pool *pool, uint64_t *out, size_t bytes, handle stream)
{
    if (!hip_has_pools()) return NOT_SUPPORTED;
    if (!out || (!bytes && hip_rocm() < 700)) return INVALID_VALUE;
    *out = 0;
    return bytes ? pool_alloc(context, pool, bytes, STREAM_OF(stream), out) : OK;
}

HIP(hipMallocAsync)(uint64_t *out, size_t bytes, handle stream)
{
    BEGIN(hipMallocAsync, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(alloc_ordered(context, devices[of->context->device].current_pool, out, bytes, stream));
}

HIP(hipMallocFromPoolAsync)(uint64_t *out, size_t bytes, handle which, handle stream)
{
    BEGIN(hipMallocFromPoolAsync, NEED_CONTEXT);
    struct pool *pool = handle_get(which, HANDLE_POOL);
    REQUIRE(pool, INVALID_VALUE);
    END(alloc_ordered(context, pool, out, bytes, stream));
}

/* Frees device memory of no pool too, after a wait for the device. */
HIP(hipFreeAsync)(uint64_t address, handle stream)
{
    BEGIN(hipFreeAsync, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    struct block *block = block_find(address);
    REQUIRE(address, hip_rocm() < 700 ? INVALID_VALUE : OK);
    REQUIRE(block, INVALID_VALUE);
    if (block->kind == BLOCK_POOLED) END(pool_free(context, block->base, STREAM_OF(stream)));
    END(block->kind == BLOCK_DEVICE || block->kind == BLOCK_MANAGED ? block_free(block) : INVALID_VALUE);
}

/* --- managed memory ----------------------------------------------------------------------------------------------- */

HIP(hipMemPrefetchAsync)(uint64_t address, size_t bytes, int device, handle stream)
{
    BEGIN(hipMemPrefetchAsync, NEED_CONTEXT);
    struct location to = {device == -1 ? LOCATION_HOST : LOCATION_DEVICE, device};
    END(managed_prefetch(context, STREAM_OF(stream), address, bytes, to));
}

HIP(hipMemPrefetchAsync_v2)(uint64_t address, size_t bytes, struct location to, unsigned flags, handle stream)
{
    BEGIN(hipMemPrefetchAsync_v2, NEED_CONTEXT);
    END(flags ? INVALID_VALUE : managed_prefetch(context, STREAM_OF(stream), address, bytes, to));
}

HIP(hipMemPrefetchBatchAsync)(const uint64_t *ranges, const size_t *sizes, size_t count, const struct location *to,
                              const size_t *firsts, size_t places, uint64_t flags, handle stream)
{
    BEGIN(hipMemPrefetchBatchAsync, NEED_CONTEXT);
    REQUIRE(to && firsts && places && places <= count && !flags, INVALID_VALUE);
    END(managed_batch(context, STREAM_OF(stream), ranges, sizes, count, to, firsts, places, false));
}

/* Discarding needs pages that migrate. */
HIP(hipMemDiscardBatchAsync)(const uint64_t *ranges, const size_t *sizes, size_t count, uint64_t flags, handle stream)
{
    BEGIN(hipMemDiscardBatchAsync, NEED_CONTEXT);
    REQUIRE(vendor_rules.takes_host_addresses(), NOT_SUPPORTED);
    END(flags ? INVALID_VALUE : managed_batch(context, STREAM_OF(stream), ranges, sizes, count, NULL, NULL, 0, true));
}

HIP(hipMemDiscardAndPrefetchBatchAsync)(const uint64_t *ranges, const size_t *sizes, size_t count, const struct location *to,
                                        const size_t *firsts, size_t places, uint64_t flags, handle stream)
{
    BEGIN(hipMemDiscardAndPrefetchBatchAsync, NEED_CONTEXT);
    REQUIRE(vendor_rules.takes_host_addresses(), NOT_SUPPORTED);
    REQUIRE(to && firsts && places && places <= count && !flags, INVALID_VALUE);
    END(managed_batch(context, STREAM_OF(stream), ranges, sizes, count, to, firsts, places, true));
}

/* --- waits for and writes of a word ------------------------------------------------------------------------------- */

#define WORDS(bits, type)                                                                                                  \
    HIP(hipStreamWaitValue##bits)(handle stream, uint64_t address, type value, unsigned flags, type mask)                  \
    {                                                                                                                      \
        BEGIN(hipStreamWaitValue##bits, NEED_CONTEXT);                                                                     \
        REQUIRE(address && flags <= 3, INVALID_VALUE);                                                                     \
        END(value_run(context, STREAM_OF(stream), address, (struct value){value, mask, bits / 8, flags}, false));          \
    }                                                                                                                      \
    HIP(hipStreamWriteValue##bits)(handle stream, uint64_t address, type value, unsigned flags)                            \
    {                                                                                                                      \
        BEGIN(hipStreamWriteValue##bits, NEED_CONTEXT);                                                                    \
        REQUIRE(address && !flags, INVALID_VALUE);                                                                         \
        END(value_run(context, STREAM_OF(stream), address, (struct value){value, 0, bits / 8, 0}, true));                  \
    }

WORDS(32, uint32_t)
WORDS(64, uint64_t)
#endif

/* --- streams ------------------------------------------------------------------------------------------------------ */

SPT(hipStreamQuery)(handle stream)
{
    BEGIN(hipStreamQuery, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(stream_query(of));
}

SPT(hipStreamSynchronize)(handle stream)
{
    BEGIN(hipStreamSynchronize, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(stream_synchronize(of));
}

SPT(hipStreamWaitEvent)(handle stream, handle event, unsigned flags)
{
    BEGIN(hipStreamWaitEvent, NEED_CONTEXT);
    status known = event_known(event);
    REQUIRE(known == OK, known);
    END(flags ? INVALID_VALUE : event_wait(context, STREAM_OF(stream), event));
}

static status record(struct context *context, handle event, handle stream)
{
    status known = event_known(event);
    return known == OK ? event_record(context, event, STREAM_OF(stream)) : known;
}

SPT(hipEventRecord)(handle event, handle stream)
{
    BEGIN(hipEventRecord, NEED_CONTEXT);
    END(record(context, event, stream));
}

STREAM_GETTER(SPT, hipStreamGetPriority, int, priority)
STREAM_GETTER(SPT, hipStreamGetFlags, unsigned, flags)

SPT(hipLaunchHostFunc)(handle stream, void (*call)(void *), void *data)
{
    BEGIN(hipLaunchHostFunc, NEED_CONTEXT);
    END(stream_call_host(context, STREAM_OF(stream), call, data));
}

#ifndef PER_THREAD
HIP(hipEventRecordWithFlags)(handle event, handle stream, unsigned flags)
{
    BEGIN(hipEventRecordWithFlags, NEED_CONTEXT);
    END(flags ? INVALID_VALUE : record(context, event, stream));
}

STREAM_GETTER(HIP, hipStreamGetDevice, int, context->device)
STREAM_GETTER(HIP, hipStreamGetId, unsigned long long, number)

HIP(hipStreamIsCapturing)(handle stream, int *out)
{
    BEGIN(hipStreamIsCapturing, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(capture_state(of, out, NULL));
}

HIP(hipStreamBeginCapture)(handle stream, int mode)
{
    BEGIN(hipStreamBeginCapture, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(capture_begin(of, mode, NULL));
}

HIP(hipStreamEndCapture)(handle stream, handle *graph)
{
    BEGIN(hipStreamEndCapture, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(graph ? capture_end(of, graph) : INVALID_VALUE);
}

HIP(hipThreadExchangeStreamCaptureMode)(int *mode)
{
    BEGIN(hipThreadExchangeStreamCaptureMode, NEED_INIT);
    END(capture_exchange(mode));
}

/* The flags do nothing there, as the vendor's page says. */
HIP(hipGraphInstantiateWithFlags)(handle *exec, handle graph, unsigned long long flags)
{
    BEGIN(hipGraphInstantiateWithFlags, NEED_CONTEXT);
    (void)flags;
    END(graph_instantiate(graph, exec));
}

HIP(hipGraphInstantiate)(handle *exec, handle graph, handle *failed, char *log, size_t bytes)
{
    BEGIN(hipGraphInstantiate, NEED_CONTEXT);
    if (failed) *failed = 0;
    if (log && bytes) *log = 0;
    END(graph_instantiate(graph, exec));
}

HIP(hipGraphLaunch)(handle exec, handle stream)
{
    BEGIN(hipGraphLaunch, NEED_CONTEXT);
    END(graph_launch(context, exec, STREAM_OF(stream)));
}

HIP(hipGraphDestroy)(handle graph)
{
    BEGIN(hipGraphDestroy, NEED_INIT);
    END(graph_destroy(graph, HANDLE_GRAPH));
}

HIP(hipGraphExecDestroy)(handle exec)
{
    BEGIN(hipGraphExecDestroy, NEED_INIT);
    END(graph_destroy(exec, HANDLE_GRAPH_EXEC));
}

/* Returns the device, not a status. */
int strict_hipGetStreamDeviceId(handle stream);
int strict_hipGetStreamDeviceId(handle stream)
{
    int device = -1;
    atomic_fetch_add_explicit(&function_calls[FUNCTION_hipGetStreamDeviceId], 1, memory_order_relaxed);
    return strict_hipStreamGetDevice(stream, &device) == OK ? device : -1;
}
#endif

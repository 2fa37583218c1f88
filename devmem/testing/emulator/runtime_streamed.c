/* CUDA runtime front: every call in which stream 0 has a meaning.
 *
 * Compiled twice, as the vendor's headers select it: here 0 is the legacy default stream. runtime_per_thread.c includes this
 * file; there 0 is the default stream of the calling thread, and the exported names end in _ptsz (the call takes a stream) or
 * _ptds (it takes none). The driver has the same two forms. Any thread may call the functions.
 */
#include "runtime.h"

#ifdef PER_THREAD
#define PTSZ(name) RUNTIME_CALL(name##_ptsz)
#define PTDS(name) RUNTIME_CALL(name##_ptds)
#define STREAMED(name) drivers[1].name
#else
#define PTSZ(name) RUNTIME_CALL(name)
#define PTDS(name) RUNTIME_CALL(name)
#define STREAMED(name) drivers[0].name
#endif

/* --- copies ------------------------------------------------------------------------------------------------------- */

static status check_kind(int kind) { return kind >= KIND_HOST_TO_HOST && kind <= KIND_DEFAULT ? OK : INVALID_DIRECTION; }

static int memory_type(int kind, bool target)
{
    if (kind == KIND_DEFAULT) return MEMORY_UNIFIED;
    bool host = kind == KIND_HOST_TO_HOST || kind == (target ? KIND_DEVICE_TO_HOST : KIND_HOST_TO_DEVICE);
    return host ? MEMORY_HOST : MEMORY_DEVICE;
}

/* What the driver knows of an address; nothing (zeros) of memory that it does not manage. */
struct known {
    unsigned type, managed;
    uint64_t start;
    size_t size;
};

static status look_up(uint64_t address, struct known *out)
{
    static const int wanted[] = {POINTER_MEMORY_TYPE, POINTER_IS_MANAGED, POINTER_RANGE_START, POINTER_RANGE_SIZE};
    void *results[] = {&out->type, &out->managed, &out->start, &out->size};
    *out = (struct known){0};
    return DRIVER(cuPointerGetAttributes)(4, wanted, results, address);
}

static status check_host(uint64_t address)
{
    struct known known;
    status found = look_up(address, &known);
    if (found != OK) return found;
    return known.type == MEMORY_DEVICE && !known.managed ? INVALID_VALUE : OK;
}

/* What copies or fills nothing names a stream that there is, all the same. */
static status do_nothing(bool blocking, handle stream)
{
    unsigned flags;
    return blocking ? OK : STREAMED(cuStreamGetFlags)(stream, &flags);
}

static status copy_host(uint64_t to, uint64_t from, size_t bytes, bool blocking, handle stream)
{
    status result = check_host(to);
    if (result == OK) result = check_host(from);
    if (result != OK) return result;
    return blocking ? STREAMED(cuMemcpy)(to, from, bytes) : STREAMED(cuMemcpyAsync)(to, from, bytes, stream);
}

/* A copy must go the way that its kind says: the vendor leaves everything else undefined. */
static status copy_linear(uint64_t to, uint64_t from, size_t bytes, int kind, bool blocking, handle stream)
{
    if (check_kind(kind) != OK) return check_kind(kind);
    if (!bytes) return do_nothing(blocking, stream);
    switch (kind) {
    case KIND_HOST_TO_HOST: return copy_host(to, from, bytes, blocking, stream);
    case KIND_HOST_TO_DEVICE:
        return blocking ? STREAMED(cuMemcpyHtoD)(to, from, bytes) : STREAMED(cuMemcpyHtoDAsync)(to, from, bytes, stream);
    case KIND_DEVICE_TO_HOST:
        return blocking ? STREAMED(cuMemcpyDtoH)(to, from, bytes) : STREAMED(cuMemcpyDtoHAsync)(to, from, bytes, stream);
    case KIND_DEVICE_TO_DEVICE:
        return blocking ? STREAMED(cuMemcpyDtoD)(to, from, bytes) : STREAMED(cuMemcpyDtoDAsync)(to, from, bytes, stream);
    default: return blocking ? STREAMED(cuMemcpy)(to, from, bytes) : STREAMED(cuMemcpyAsync)(to, from, bytes, stream);
    }
}

PTDS(cudaMemcpy)(uint64_t to, uint64_t from, size_t bytes, int kind)
{
    BEGIN(cudaMemcpy, NEED_CONTEXT);
    END(copy_linear(to, from, bytes, kind, true, 0));
}

PTSZ(cudaMemcpyAsync)(uint64_t to, uint64_t from, size_t bytes, int kind, handle stream)
{
    BEGIN(cudaMemcpyAsync, NEED_CONTEXT);
    END(copy_linear(to, from, bytes, kind, false, stream));
}

static status copy_box(const struct copy3d *copy, bool blocking, handle stream)
{
    if (!copy) return INVALID_VALUE;
    if (check_kind(copy->kind) != OK) return INVALID_DIRECTION;
    if (copy->src_array || copy->dst_array) return NOT_SUPPORTED;
    struct extent box = copy->extent;
    if (!box.width || !box.height || !box.depth) return do_nothing(blocking, stream);
    if (copy->dst.pitch < size_plus(box.width, copy->dst_at.x)) return INVALID_PITCH;
    if (copy->src.pitch < size_plus(box.width, copy->src_at.x)) return INVALID_PITCH;
    struct memcpy3d asked = {
        .src_x = copy->src_at.x, .src_y = copy->src_at.y, .src_z = copy->src_at.z, .src_type = memory_type(copy->kind, false),
        .src_host = copy->src.at, .src_device = address_of(copy->src.at), .src_pitch = copy->src.pitch,
        .src_height = copy->src.ysize, .dst_x = copy->dst_at.x, .dst_y = copy->dst_at.y, .dst_z = copy->dst_at.z,
        .dst_type = memory_type(copy->kind, true), .dst_host = copy->dst.at, .dst_device = address_of(copy->dst.at),
        .dst_pitch = copy->dst.pitch, .dst_height = copy->dst.ysize, .width = box.width, .height = box.height,
        .depth = box.depth};
    return blocking ? STREAMED(cuMemcpy3D)(&asked) : STREAMED(cuMemcpy3DAsync)(&asked, stream);
}

static struct copy3d plane(void *to, size_t to_pitch, void *from, size_t from_pitch, size_t width, size_t height, int kind)
{
    return (struct copy3d){.dst = {to, to_pitch, width, height}, .src = {from, from_pitch, width, height},
                           .extent = {width, height, 1}, .kind = kind};
}

PTDS(cudaMemcpy2D)(void *to, size_t to_pitch, void *from, size_t from_pitch, size_t width, size_t height, int kind)
{
    BEGIN(cudaMemcpy2D, NEED_CONTEXT);
    struct copy3d copy = plane(to, to_pitch, from, from_pitch, width, height, kind);
    END(copy_box(&copy, true, 0));
}

PTSZ(cudaMemcpy2DAsync)(void *to, size_t to_pitch, void *from, size_t from_pitch, size_t width, size_t height, int kind,
                        handle stream)
{
    BEGIN(cudaMemcpy2DAsync, NEED_CONTEXT);
    struct copy3d copy = plane(to, to_pitch, from, from_pitch, width, height, kind);
    END(copy_box(&copy, false, stream));
}

PTDS(cudaMemcpy3D)(const struct copy3d *copy)
{
    BEGIN(cudaMemcpy3D, NEED_CONTEXT);
    END(copy_box(copy, true, 0));
}

PTSZ(cudaMemcpy3DAsync)(const struct copy3d *copy, handle stream)
{
    BEGIN(cudaMemcpy3DAsync, NEED_CONTEXT);
    END(copy_box(copy, false, stream));
}

#define FIND_BOTH(to_device, from_device)                           \
    handle to_context, from_context;                                \
    status found = primary_of(to_device, &to_context);              \
    if (found == OK) found = primary_of(from_device, &from_context); \
    REQUIRE(found == OK, found)

PTDS(cudaMemcpyPeer)(uint64_t to, int to_device, uint64_t from, int from_device, size_t bytes)
{
    BEGIN(cudaMemcpyPeer, NEED_CONTEXT);
    FIND_BOTH(to_device, from_device);
    END(STREAMED(cuMemcpyPeer)(to, to_context, from, from_context, bytes));
}

PTSZ(cudaMemcpyPeerAsync)(uint64_t to, int to_device, uint64_t from, int from_device, size_t bytes, handle stream)
{
    BEGIN(cudaMemcpyPeerAsync, NEED_CONTEXT);
    FIND_BOTH(to_device, from_device);
    END(STREAMED(cuMemcpyPeerAsync)(to, to_context, from, from_context, bytes, stream));
}

/* The form of 12 also returns the index of the copy that was refused; the driver's form of 13 does not tell it. */
#if RUNTIME < 13
PTSZ(cudaMemcpyBatchAsync)(const uint64_t *to, const uint64_t *from, const size_t *sizes, size_t count,
                           const struct memcpy_attributes *attributes, const size_t *firsts, size_t kinds, size_t *failed,
                           handle stream)
#else
PTSZ(cudaMemcpyBatchAsync)(const uint64_t *to, const uint64_t *from, const size_t *sizes, size_t count,
                           const struct memcpy_attributes *attributes, const size_t *firsts, size_t kinds, handle stream)
#endif
{
    BEGIN(cudaMemcpyBatchAsync, NEED_CONTEXT);
#if RUNTIME < 13
    if (failed) *failed = SIZE_MAX;
#endif
    END(STREAMED(cuMemcpyBatchAsync)(to, from, sizes, count, attributes, firsts, kinds, stream));
}

/* --- variables of device code ------------------------------------------------------------------------------------- */

static status copy_symbol(const void *symbol, uint64_t other, size_t bytes, size_t offset, int kind, bool to_symbol,
                          bool blocking, handle stream)
{
    uint64_t address;
    size_t size;
    status found = symbol_find(symbol, &address, &size);
    if (found != OK) return found;
    if (kind == (to_symbol ? KIND_DEVICE_TO_HOST : KIND_HOST_TO_DEVICE) || kind == KIND_HOST_TO_HOST) return INVALID_DIRECTION;
    if (offset > size || bytes > size - offset) return INVALID_VALUE;
    return copy_linear(to_symbol ? address + offset : other, to_symbol ? other : address + offset, bytes, kind, blocking, stream);
}

PTDS(cudaMemcpyToSymbol)(const void *symbol, uint64_t from, size_t bytes, size_t offset, int kind)
{
    BEGIN(cudaMemcpyToSymbol, NEED_CONTEXT);
    END(copy_symbol(symbol, from, bytes, offset, kind, true, true, 0));
}

PTSZ(cudaMemcpyToSymbolAsync)(const void *symbol, uint64_t from, size_t bytes, size_t offset, int kind, handle stream)
{
    BEGIN(cudaMemcpyToSymbolAsync, NEED_CONTEXT);
    END(copy_symbol(symbol, from, bytes, offset, kind, true, false, stream));
}

PTDS(cudaMemcpyFromSymbol)(uint64_t to, const void *symbol, size_t bytes, size_t offset, int kind)
{
    BEGIN(cudaMemcpyFromSymbol, NEED_CONTEXT);
    END(copy_symbol(symbol, to, bytes, offset, kind, false, true, 0));
}

PTSZ(cudaMemcpyFromSymbolAsync)(uint64_t to, const void *symbol, size_t bytes, size_t offset, int kind, handle stream)
{
    BEGIN(cudaMemcpyFromSymbolAsync, NEED_CONTEXT);
    END(copy_symbol(symbol, to, bytes, offset, kind, false, false, stream));
}

/* --- fills -------------------------------------------------------------------------------------------------------- */

/* A fill of several planes is several fills of the driver: the last must fit before the first is made. */
static status check_planes(const struct pitched *at, struct extent box)
{
    struct known known;
    size_t plane = size_times(at->pitch, at->ysize), bytes = size_of_box(box.width, box.height, box.depth, at->pitch, plane);
    if (at->pitch < box.width) return INVALID_PITCH;
    status found = look_up(address_of(at->at), &known);
    if (found != OK) return found;
    return at->ysize >= box.height && size_plus(address_of(at->at), bytes) <= known.start + known.size ? OK : INVALID_VALUE;
}

static status fill(const struct pitched *at, int value, struct extent box, bool blocking, handle stream)
{
    uint64_t to = address_of(at->at);
    if (!box.width || !box.height || !box.depth) return do_nothing(blocking, stream);
    if (box.height > 1 && at->pitch < box.width) return INVALID_PITCH;
    status fits = box.depth > 1 ? check_planes(at, box) : OK;
    if (fits != OK) return fits;
    for (size_t z = 0; z < box.depth; z++, to += at->pitch * at->ysize) {
        unsigned char byte = (unsigned char)value;
        status done = box.height == 1 ? blocking ? STREAMED(cuMemsetD8)(to, byte, box.width)
                                                 : STREAMED(cuMemsetD8Async)(to, byte, box.width, stream)
                    : blocking ? STREAMED(cuMemsetD2D8)(to, at->pitch, byte, box.width, box.height)
                               : STREAMED(cuMemsetD2D8Async)(to, at->pitch, byte, box.width, box.height, stream);
        if (done != OK) return done;
    }
    return OK;
}

PTDS(cudaMemset)(void *to, int value, size_t bytes)
{
    BEGIN(cudaMemset, NEED_CONTEXT);
    END(fill(&(struct pitched){to, bytes, bytes, 1}, value, (struct extent){bytes, 1, 1}, true, 0));
}

PTSZ(cudaMemsetAsync)(void *to, int value, size_t bytes, handle stream)
{
    BEGIN(cudaMemsetAsync, NEED_CONTEXT);
    END(fill(&(struct pitched){to, bytes, bytes, 1}, value, (struct extent){bytes, 1, 1}, false, stream));
}

PTDS(cudaMemset2D)(void *to, size_t pitch, int value, size_t width, size_t height)
{
    BEGIN(cudaMemset2D, NEED_CONTEXT);
    END(fill(&(struct pitched){to, pitch, width, height}, value, (struct extent){width, height, 1}, true, 0));
}

PTSZ(cudaMemset2DAsync)(void *to, size_t pitch, int value, size_t width, size_t height, handle stream)
{
    BEGIN(cudaMemset2DAsync, NEED_CONTEXT);
    END(fill(&(struct pitched){to, pitch, width, height}, value, (struct extent){width, height, 1}, false, stream));
}

PTDS(cudaMemset3D)(struct pitched to, int value, struct extent extent)
{
    BEGIN(cudaMemset3D, NEED_CONTEXT);
    END(fill(&to, value, extent, true, 0));
}

PTSZ(cudaMemset3DAsync)(struct pitched to, int value, struct extent extent, handle stream)
{
    BEGIN(cudaMemset3DAsync, NEED_CONTEXT);
    END(fill(&to, value, extent, false, stream));
}

/* --- stream-ordered and managed memory ---------------------------------------------------------------------------- */

PTSZ(cudaMallocAsync)(uint64_t *out, size_t bytes, handle stream)
{
    BEGIN(cudaMallocAsync, NEED_CONTEXT);
    REQUIRE(out, INVALID_VALUE);
    *out = 0;
    END(bytes ? STREAMED(cuMemAllocAsync)(out, bytes, stream) : OK);
}

PTSZ(cudaMallocFromPoolAsync)(uint64_t *out, size_t bytes, handle pool, handle stream)
{
    BEGIN(cudaMallocFromPoolAsync, NEED_CONTEXT);
    REQUIRE(out, INVALID_VALUE);
    *out = 0;
    END(bytes ? STREAMED(cuMemAllocFromPoolAsync)(out, bytes, pool, stream) : OK);
}

PTSZ(cudaFreeAsync)(uint64_t address, handle stream)
{
    BEGIN(cudaFreeAsync, NEED_CONTEXT);
    END(STREAMED(cuMemFreeAsync)(address, stream));
}

static status prefetch(uint64_t address, size_t bytes, struct location to, unsigned flags, handle stream)
{
    BEGIN(cudaMemPrefetchAsync, NEED_CONTEXT);
    END(STREAMED(cuMemPrefetchAsync)(address, bytes, to, flags, stream));
}

#if RUNTIME < 13
PTSZ(cudaMemPrefetchAsync)(uint64_t address, size_t bytes, int device, handle stream)
{
    return prefetch(address, bytes, (struct location){device < 0 ? LOCATION_HOST : LOCATION_DEVICE, device}, 0, stream);
}

PTSZ(cudaMemPrefetchAsync_v2)(uint64_t address, size_t bytes, struct location to, unsigned flags, handle stream)
#else
PTSZ(cudaMemPrefetchAsync)(uint64_t address, size_t bytes, struct location to, unsigned flags, handle stream)
#endif
{
    return prefetch(address, bytes, to, flags, stream);
}

/* 0 bytes stand for the whole allocation. */
PTSZ(cudaStreamAttachMemAsync)(handle stream, uint64_t address, size_t bytes, unsigned flags)
{
    BEGIN(cudaStreamAttachMemAsync, NEED_CONTEXT);
    END(STREAMED(cuStreamAttachMemAsync)(stream, address, bytes, flags));
}

/* --- streams and events ------------------------------------------------------------------------------------------- */

PTSZ(cudaStreamQuery)(handle stream)
{
    BEGIN(cudaStreamQuery, NEED_CONTEXT);
    END(STREAMED(cuStreamQuery)(stream));
}

PTSZ(cudaStreamSynchronize)(handle stream)
{
    BEGIN(cudaStreamSynchronize, NEED_CONTEXT);
    END(STREAMED(cuStreamSynchronize)(stream));
}

PTSZ(cudaStreamWaitEvent)(handle stream, handle event, unsigned flags)
{
    BEGIN(cudaStreamWaitEvent, NEED_CONTEXT);
    END(STREAMED(cuStreamWaitEvent)(stream, event, flags));
}

#define GETTER(name, type)                            \
    PTSZ(cuda##name)(handle stream, type *out)        \
    {                                                 \
        BEGIN(cuda##name, NEED_CONTEXT);              \
        END(STREAMED(cu##name)(stream, out));         \
    }
GETTER(StreamGetPriority, int)
GETTER(StreamGetFlags, unsigned)
GETTER(StreamGetDevice, int)
GETTER(StreamGetId, unsigned long long)
GETTER(StreamIsCapturing, int)

PTSZ(cudaEventRecord)(handle event, handle stream)
{
    BEGIN(cudaEventRecord, NEED_CONTEXT);
    END(STREAMED(cuEventRecord)(event, stream));
}

PTSZ(cudaEventRecordWithFlags)(handle event, handle stream, unsigned flags)
{
    BEGIN(cudaEventRecordWithFlags, NEED_CONTEXT);
    END(STREAMED(cuEventRecordWithFlags)(event, stream, flags));
}

PTSZ(cudaLaunchHostFunc)(handle stream, void (*call)(void *), void *data)
{
    BEGIN(cudaLaunchHostFunc, NEED_CONTEXT);
    END(STREAMED(cuLaunchHostFunc)(stream, call, data));
}

PTSZ(cudaStreamAddCallback)(handle stream, stream_callback call, void *data, unsigned flags)
{
    BEGIN(cudaStreamAddCallback, NEED_CONTEXT);
    END(STREAMED(cuStreamAddCallback)(stream, call, data, flags));
}

/* --- capture ------------------------------------------------------------------------------------------------------ */

PTSZ(cudaStreamBeginCapture)(handle stream, int mode)
{
    BEGIN(cudaStreamBeginCapture, NEED_CONTEXT);
    END(STREAMED(cuStreamBeginCapture)(stream, mode));
}

PTSZ(cudaStreamBeginCaptureToGraph)(handle stream, handle graph, const void *nodes, const void *edges, size_t count, int mode)
{
    BEGIN(cudaStreamBeginCaptureToGraph, NEED_CONTEXT);
    END(STREAMED(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}

PTSZ(cudaStreamEndCapture)(handle stream, handle *graph)
{
    BEGIN(cudaStreamEndCapture, NEED_CONTEXT);
    END(STREAMED(cuStreamEndCapture)(stream, graph));
}

static status capture_info(handle stream, int *out, uint64_t *id, handle *graph, void **nodes, void **edges, size_t *count)
{
    BEGIN(cudaStreamGetCaptureInfo, NEED_CONTEXT);
    END(STREAMED(cuStreamGetCaptureInfo)(stream, out, id, graph, nodes, edges, count));
}

#if RUNTIME < 13
PTSZ(cudaStreamGetCaptureInfo)(handle stream, int *out, uint64_t *id)
{
    return capture_info(stream, out, id, NULL, NULL, NULL, NULL);
}

PTSZ(cudaStreamGetCaptureInfo_v2)(handle stream, int *out, uint64_t *id, handle *graph, void **nodes, size_t *count)
{
    return capture_info(stream, out, id, graph, nodes, NULL, count);
}

PTSZ(cudaStreamGetCaptureInfo_v3)(handle stream, int *out, uint64_t *id, handle *graph, void **nodes, void **edges, size_t *count)
#else
PTSZ(cudaStreamGetCaptureInfo)(handle stream, int *out, uint64_t *id, handle *graph, void **nodes, void **edges, size_t *count)
#endif
{
    return capture_info(stream, out, id, graph, nodes, edges, count);
}

PTSZ(cudaGraphLaunch)(handle exec, handle stream)
{
    BEGIN(cudaGraphLaunch, NEED_CONTEXT);
    END(STREAMED(cuGraphLaunch)(exec, stream));
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

PTSZ(cudaLaunchKernel)(const void *function, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, handle stream)
{
    BEGIN(cudaLaunchKernel, NEED_CONTEXT);
    (void)arguments;
    struct launch launch = {grid, block, shared, stream};
    END(launch_check(function, &launch, STREAMED(cuStreamGetFlags)));
}

PTSZ(cudaLaunchCooperativeKernel)(const void *function, struct dim3 grid, struct dim3 block, void **arguments, size_t shared,
                                  handle stream)
{
    BEGIN(cudaLaunchCooperativeKernel, NEED_CONTEXT);
    (void)arguments;
    struct launch launch = {grid, block, shared, stream};
    END(launch_check(function, &launch, STREAMED(cuStreamGetFlags)));
}

PTSZ(cudaLaunchKernelExC)(const struct launch *launch, const void *function, void **arguments)
{
    BEGIN(cudaLaunchKernelExC, NEED_CONTEXT);
    (void)arguments;
    END(launch ? launch_check(function, launch, STREAMED(cuStreamGetFlags)) : INVALID_VALUE);
}

/* The function is the kernel that __cudaGetKernel gave, which is the host function's address here. */
PTSZ(__cudaLaunchKernel)(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, handle stream)
{
    BEGIN(__cudaLaunchKernel, NEED_CONTEXT);
    (void)arguments;
    struct launch launch = {grid, block, shared, stream};
    END(launch_check(kernel, &launch, STREAMED(cuStreamGetFlags)));
}

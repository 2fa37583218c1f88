/* CUDA front: every call in which stream 0 has a meaning.
 *
 * Compiled twice, as the vendor's headers select it: here 0 is the legacy default stream. cuda_per_thread.c includes this
 * file; there 0 is the default stream of the calling thread, and the exported names end in _ptsz (the call takes a stream) or
 * _ptds (it takes none). Any thread may call the functions; they run under the core's lock.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

#ifdef PER_THREAD
#define PTSZ(name) EXPORT status name##_ptsz
#define PTDS(name) EXPORT status name##_ptds
#define DEFAULT_STREAM STREAM_PER_THREAD
#else
#define PTSZ(name) EXPORT status name
#define PTDS(name) EXPORT status name
#define DEFAULT_STREAM STREAM_LEGACY
#endif

#define STREAM_OF(stream) ((stream) ? (stream) : DEFAULT_STREAM)
#define MAX_PITCH 2147483647u

/* --- linear copies ------------------------------------------------------------------------------------------------ */

static status linear(struct context *context, handle stream, uint64_t to, enum side to_side, uint64_t from, enum side from_side,
                     size_t bytes, bool blocking)
{
    struct box box = linear_box(to, to_side, from, from_side, bytes);
    return copy_run(context, STREAM_OF(stream), &box, blocking);
}

PTDS(cuMemcpy)(deviceptr to, deviceptr from, size_t bytes)
{
    BEGIN(cuMemcpy, NEED_CONTEXT);
    END(linear(context, 0, to, SIDE_ANY, from, SIDE_ANY, bytes, true));
}

PTSZ(cuMemcpyAsync)(deviceptr to, deviceptr from, size_t bytes, handle stream)
{
    BEGIN(cuMemcpyAsync, NEED_CONTEXT);
    END(linear(context, stream, to, SIDE_ANY, from, SIDE_ANY, bytes, false));
}

#define COPIES(direction, to_side, from_side)                                                              \
    PTDS(cuMemcpy##direction##_v2)(uint64_t to, uint64_t from, size_t bytes)                               \
    {                                                                                                      \
        BEGIN(cuMemcpy##direction, NEED_CONTEXT);                                                          \
        END(linear(context, 0, to, to_side, from, from_side, bytes, true));                                \
    }                                                                                                      \
    PTSZ(cuMemcpy##direction##Async_v2)(uint64_t to, uint64_t from, size_t bytes, handle stream)           \
    {                                                                                                      \
        BEGIN(cuMemcpy##direction##Async, NEED_CONTEXT);                                                   \
        END(linear(context, stream, to, to_side, from, from_side, bytes, false));                          \
    }

COPIES(HtoD, SIDE_DEVICE, SIDE_HOST)
COPIES(DtoH, SIDE_HOST, SIDE_DEVICE)
COPIES(DtoD, SIDE_DEVICE, SIDE_DEVICE)

/* --- between devices ---------------------------------------------------------------------------------------------- */

static status on_device_of(handle which, uint64_t address)
{
    struct context *of;
    status found = context_of_handle(which, &of);
    if (found != OK) return found;
    struct block *block = block_find(address);
    return block && block->device == of->device ? OK : INVALID_VALUE;
}

static status between(struct context *context, handle stream, deviceptr to, handle to_context, deviceptr from,
                      handle from_context, size_t bytes)
{
    status result = bytes ? on_device_of(to_context, to) : OK;
    if (result == OK && bytes) result = on_device_of(from_context, from);
    return result == OK ? linear(context, stream, to, SIDE_DEVICE, from, SIDE_DEVICE, bytes, false) : result;
}

/* Documented as serialised with all pending and future work of both contexts: the call waits for both, before and after. */
PTDS(cuMemcpyPeer)(deviceptr to, handle to_context, deviceptr from, handle from_context, size_t bytes)
{
    BEGIN(cuMemcpyPeer, NEED_CONTEXT);
    struct context *target, *source;
    REQUIRE(context_of_handle(to_context, &target) == OK && context_of_handle(from_context, &source) == OK, INVALID_CONTEXT);
    host_wait_context(target);
    host_wait_context(source);
    REQUIRE(context->active, CONTEXT_IS_DESTROYED);
    status result = between(context, 0, to, to_context, from, from_context, bytes);
    if (result == OK) host_wait_context(context);
    END(result);
}

PTSZ(cuMemcpyPeerAsync)(deviceptr to, handle to_context, deviceptr from, handle from_context, size_t bytes,
                                       handle stream)
{
    BEGIN(cuMemcpyPeerAsync, NEED_CONTEXT);
    END(between(context, stream, to, to_context, from, from_context, bytes));
}

/* --- copies of boxes ---------------------------------------------------------------------------------------------- */

struct corner {
    int type;
    const void *host;
    deviceptr device;
    size_t x, y, z, pitch, height;
};

static status end_of(const struct corner *corner, const struct box *box, struct box_end *out)
{
    if (corner->type == MEMORY_ARRAY) return NOT_SUPPORTED;
    if (corner->type < MEMORY_HOST || corner->type > MEMORY_UNIFIED) return INVALID_VALUE;
    if (corner->pitch < size_plus(box->width, corner->x)) return INVALID_VALUE;
    if (box->depth > 1 && corner->height < size_plus(box->height, corner->y)) return INVALID_VALUE;
    uint64_t base = corner->type == MEMORY_HOST ? address_of(corner->host) : corner->device;
    out->side = corner->type == MEMORY_HOST ? SIDE_HOST : corner->type == MEMORY_DEVICE ? SIDE_DEVICE : SIDE_ANY;
    out->pitch = corner->pitch;
    out->plane = size_times(corner->pitch, corner->height);
    size_t offset = size_plus(size_to_row(corner->z, out->plane, corner->y, corner->pitch), corner->x);
    out->address = base ? size_plus(base, offset) : 0;
    return OK;
}

static status run_box(struct context *context, handle stream, struct box *box, const struct corner *to,
                      const struct corner *from, bool blocking)
{
    if (!box->width || !box->height || !box->depth) return OK;
    status result = end_of(to, box, &box->to);
    if (result == OK) result = end_of(from, box, &box->from);
    return result == OK ? copy_run(context, STREAM_OF(stream), box, blocking) : result;
}

static status run_2d(struct context *context, handle stream, const struct memcpy2d *copy, bool any_pitch, bool blocking)
{
    if (!copy) return INVALID_VALUE;
    if (!any_pitch && (copy->src_pitch > MAX_PITCH || copy->dst_pitch > MAX_PITCH)) return INVALID_VALUE;
    struct corner to = {copy->dst_type, copy->dst_host, copy->dst_device, copy->dst_x, copy->dst_y, 0, copy->dst_pitch, 0};
    struct corner from = {copy->src_type, copy->src_host, copy->src_device, copy->src_x, copy->src_y, 0, copy->src_pitch, 0};
    struct box box = {.width = copy->width, .height = copy->height, .depth = 1};
    return run_box(context, stream, &box, &to, &from, blocking);
}

static status run_3d(struct context *context, handle stream, const struct memcpy3d *copy, bool blocking)
{
    if (!copy || copy->src_lod || copy->dst_lod || copy->reserved0 || copy->reserved1) return INVALID_VALUE;
    if (copy->src_pitch > MAX_PITCH || copy->dst_pitch > MAX_PITCH) return INVALID_VALUE;
    struct corner to = {copy->dst_type, copy->dst_host, copy->dst_device, copy->dst_x, copy->dst_y, copy->dst_z,
                        copy->dst_pitch, copy->dst_height};
    struct corner from = {copy->src_type, copy->src_host, copy->src_device, copy->src_x, copy->src_y, copy->src_z,
                          copy->src_pitch, copy->src_height};
    struct box box = {.width = copy->width, .height = copy->height, .depth = copy->depth};
    return run_box(context, stream, &box, &to, &from, blocking);
}

PTDS(cuMemcpy2D_v2)(const struct memcpy2d *copy)
{
    BEGIN(cuMemcpy2D, NEED_CONTEXT);
    END(run_2d(context, 0, copy, false, true));
}

PTDS(cuMemcpy2DUnaligned_v2)(const struct memcpy2d *copy)
{
    BEGIN(cuMemcpy2DUnaligned, NEED_CONTEXT);
    END(run_2d(context, 0, copy, true, true));
}

PTSZ(cuMemcpy2DAsync_v2)(const struct memcpy2d *copy, handle stream)
{
    BEGIN(cuMemcpy2DAsync, NEED_CONTEXT);
    END(run_2d(context, stream, copy, false, false));
}

PTDS(cuMemcpy3D_v2)(const struct memcpy3d *copy)
{
    BEGIN(cuMemcpy3D, NEED_CONTEXT);
    END(run_3d(context, 0, copy, true));
}

PTSZ(cuMemcpy3DAsync_v2)(const struct memcpy3d *copy, handle stream)
{
    BEGIN(cuMemcpy3DAsync, NEED_CONTEXT);
    END(run_3d(context, stream, copy, false));
}

/* --- batches ------------------------------------------------------------------------------------------------------ */

#define ORDER_STREAM 1
#define ORDER_DURING_CALL 2
#define ORDER_ANY 3
#define PREFER_OVERLAP 1 /* the one flag of a copy */
#define BATCH_PIECE 64 /* arrays of up to this length are on the stack, longer ones on the heap */

static status check_attributes(const struct memcpy_attributes *attributes, const size_t *firsts, size_t kinds, size_t count)
{
    if (!attributes || !firsts || !kinds || kinds > count || firsts[0] != 0) return INVALID_VALUE;
    for (size_t index = 0; index < kinds; index++) {
        if (attributes[index].order < ORDER_STREAM || attributes[index].order > ORDER_ANY) return INVALID_VALUE;
        if (firsts[index] >= count || (index && firsts[index] <= firsts[index - 1])) return INVALID_VALUE;
    }
    return OK;
}

static status run_batch(struct context *context, handle stream, const deviceptr *to, const deviceptr *from, const size_t *sizes,
                        size_t count, const struct memcpy_attributes *attributes, const size_t *firsts, size_t kinds,
                        size_t *failed)
{
    if (STREAM_OF(stream) == STREAM_LEGACY) return INVALID_VALUE; /* the vendor's page forbids it */
    if (!to || !from || !sizes || !count) return INVALID_VALUE;
    status result = check_attributes(attributes, firsts, kinds, count);
    if (result != OK) return result;
    struct box boxes[count < BATCH_PIECE ? count : 1], *box = boxes;
    enum source_read reads[count < BATCH_PIECE ? count : 1], *read = reads;
    if (count >= BATCH_PIECE) {
        box = calloc(count, sizeof *box);
        read = calloc(count, sizeof *read);
        if (!box || !read) abort();
    }
    for (size_t index = 0, kind = 0; index < count; index++) {
        if (kind + 1 < kinds && firsts[kind + 1] == index) kind++;
        read[index] = attributes[kind].order == ORDER_DURING_CALL ? READ_DURING_CALL : READ_IN_STREAM_ORDER;
        box[index] = linear_box(to[index], SIDE_ANY, from[index], SIDE_ANY, sizes[index]);
    }
    result = copy_batch(context, STREAM_OF(stream), box, read, count, failed);
    if (box != boxes) free(box);
    if (read != reads) free(read);
    return result;
}

/* The form of CUDA 12.8, which returns the index of the refused copy. */
PTSZ(cuMemcpyBatchAsync)(const deviceptr *to, const deviceptr *from, const size_t *sizes, size_t count,
                                        const struct memcpy_attributes *attributes, const size_t *firsts, size_t kinds,
                                        size_t *failed, handle stream)
{
    BEGIN(cuMemcpyBatchAsync, NEED_CONTEXT);
    size_t index = SIZE_MAX;
    status result = run_batch(context, stream, to, from, sizes, count, attributes, firsts, kinds, &index);
    if (failed) *failed = index;
    END(result);
}

PTSZ(cuMemcpyBatchAsync_v2)(const deviceptr *to, const deviceptr *from, const size_t *sizes, size_t count,
                                           const struct memcpy_attributes *attributes, const size_t *firsts, size_t kinds,
                                           handle stream)
{
    BEGIN(cuMemcpyBatchAsync, NEED_CONTEXT);
    size_t index;
    END(run_batch(context, stream, to, from, sizes, count, attributes, firsts, kinds, &index));
}

/* What the vendor says of a batch holds for the one copy too: its page refers to the other. */
PTSZ(cuMemcpyWithAttributesAsync)(deviceptr to, deviceptr from, size_t bytes, const struct memcpy_attributes *attributes,
                                  handle stream)
{
    BEGIN(cuMemcpyWithAttributesAsync, NEED_CONTEXT);
    size_t first = 0, failed;
    END(run_batch(context, stream, &to, &from, &bytes, 1, attributes, &first, 1, &failed));
}

static status end_of_operand(const struct operand *operand, const struct box *box, struct box_end *out)
{
    if (operand->type == OPERAND_ARRAY) return NOT_SUPPORTED;
    if (operand->type != OPERAND_POINTER) return INVALID_VALUE;
    size_t row = operand->row ? operand->row : box->width, rows = operand->rows ? operand->rows : box->height;
    if (row < box->width || rows < box->height) return INVALID_VALUE;
    *out = (struct box_end){operand->address, row, size_times(row, rows), SIDE_ANY};
    return OK;
}

static status run_operations(struct context *context, handle stream, size_t count, const struct batch_operation *operations,
                             uint64_t flags, size_t *failed)
{
    if (STREAM_OF(stream) == STREAM_LEGACY) return INVALID_VALUE; /* the vendor's page forbids it */
    if (!operations || !count || flags) return INVALID_VALUE;
    struct box *boxes = calloc(count, sizeof *boxes);
    enum source_read *reads = calloc(count, sizeof *reads);
    if (!boxes || !reads) abort();
    status result = OK;
    for (size_t index = 0; index < count && result == OK; index++) {
        const struct batch_operation *one = &operations[index];
        struct box *box = &boxes[index];
        *box = (struct box){.width = one->width, .height = one->height, .depth = one->depth};
        reads[index] = one->order == ORDER_DURING_CALL ? READ_DURING_CALL : READ_IN_STREAM_ORDER;
        bool sound = one->width && one->height && one->depth && one->flags <= PREFER_OVERLAP;
        result = sound && one->order >= ORDER_STREAM && one->order <= ORDER_ANY ? OK : INVALID_VALUE;
        if (result == OK) result = end_of_operand(&one->destination, box, &box->to);
        if (result == OK) result = end_of_operand(&one->source, box, &box->from);
        if (result != OK) *failed = index;
    }
    if (result == OK) result = copy_batch(context, STREAM_OF(stream), boxes, reads, count, failed);
    free(boxes);
    free(reads);
    return result;
}

/* The form of CUDA 12.8, which returns the index of the refused copy. */
PTSZ(cuMemcpy3DBatchAsync)(size_t count, const struct batch_operation *operations, size_t *failed, uint64_t flags, handle stream)
{
    BEGIN(cuMemcpy3DBatchAsync, NEED_CONTEXT);
    size_t index = SIZE_MAX;
    status result = run_operations(context, stream, count, operations, flags, &index);
    if (failed) *failed = index;
    END(result);
}

PTSZ(cuMemcpy3DBatchAsync_v2)(size_t count, const struct batch_operation *operations, uint64_t flags, handle stream)
{
    BEGIN(cuMemcpy3DBatchAsync, NEED_CONTEXT);
    size_t index;
    END(run_operations(context, stream, count, operations, flags, &index));
}

/* --- fills -------------------------------------------------------------------------------------------------------- */

#define FILLS(bits, type)                                                                                                      \
    PTDS(cuMemsetD##bits##_v2)(deviceptr to, type value, size_t count)                                        \
    {                                                                                                                          \
        BEGIN(cuMemsetD##bits, NEED_CONTEXT);                                                                                  \
        END(fill_run(context, DEFAULT_STREAM, to, 0, value, bits / 8, count, 1, true));                                        \
    }                                                                                                                          \
    PTSZ(cuMemsetD##bits##Async)(deviceptr to, type value, size_t count, handle stream)                         \
    {                                                                                                                          \
        BEGIN(cuMemsetD##bits##Async, NEED_CONTEXT);                                                                           \
        END(fill_run(context, STREAM_OF(stream), to, 0, value, bits / 8, count, 1, false));                                    \
    }                                                                                                                          \
    PTDS(cuMemsetD2D##bits##_v2)(deviceptr to, size_t pitch, type value, size_t width, size_t height)         \
    {                                                                                                                          \
        BEGIN(cuMemsetD2D##bits, NEED_CONTEXT);                                                                                \
        END(fill_run(context, DEFAULT_STREAM, to, pitch, value, bits / 8, width, height, true));                               \
    }                                                                                                                          \
    PTSZ(cuMemsetD2D##bits##Async)(deviceptr to, size_t pitch, type value, size_t width, size_t height,         \
                                                  handle stream)                                                               \
    {                                                                                                                          \
        BEGIN(cuMemsetD2D##bits##Async, NEED_CONTEXT);                                                                         \
        END(fill_run(context, STREAM_OF(stream), to, pitch, value, bits / 8, width, height, false));                           \
    }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)

/* --- stream-ordered memory ---------------------------------------------------------------------------------------- */

PTSZ(cuMemAllocAsync)(deviceptr *out, size_t bytes, handle stream)
{
    BEGIN(cuMemAllocAsync, NEED_CONTEXT);
    REQUIRE(out, INVALID_VALUE);
    FIND_STREAM(of, stream);
    END(pool_alloc(context, devices[of->context->device].current_pool, bytes, STREAM_OF(stream), out));
}

PTSZ(cuMemAllocFromPoolAsync)(deviceptr *out, size_t bytes, handle which, handle stream)
{
    BEGIN(cuMemAllocFromPoolAsync, NEED_CONTEXT);
    struct pool *pool = handle_get(which, HANDLE_POOL);
    END(out && pool ? pool_alloc(context, pool, bytes, STREAM_OF(stream), out) : INVALID_VALUE);
}

PTSZ(cuMemFreeAsync)(deviceptr address, handle stream)
{
    BEGIN(cuMemFreeAsync, NEED_CONTEXT);
    END(pool_free(context, address, STREAM_OF(stream)));
}

/* --- managed memory ----------------------------------------------------------------------------------------------- */

PTSZ(cuMemPrefetchAsync)(deviceptr address, size_t bytes, int device, handle stream)
{
    BEGIN(cuMemPrefetchAsync, NEED_CONTEXT);
    struct location to = {device == -1 ? LOCATION_HOST : LOCATION_DEVICE, device};
    END(managed_prefetch(context, STREAM_OF(stream), address, bytes, to));
}

PTSZ(cuMemPrefetchAsync_v2)(deviceptr address, size_t bytes, struct location to, unsigned flags, handle stream)
{
    BEGIN(cuMemPrefetchAsync, NEED_CONTEXT);
    END(flags ? INVALID_VALUE : managed_prefetch(context, STREAM_OF(stream), address, bytes, to));
}

static status hints(struct context *context, handle stream, const deviceptr *ranges, const size_t *sizes, size_t count,
                    const struct location *to, const size_t *firsts, size_t places, uint64_t flags, bool discards)
{
    if (STREAM_OF(stream) == STREAM_LEGACY || flags) return INVALID_VALUE; /* the vendor's pages forbid both */
    return managed_batch(context, STREAM_OF(stream), ranges, sizes, count, to, firsts, places, discards);
}

PTSZ(cuMemPrefetchBatchAsync)(const deviceptr *ranges, const size_t *sizes, size_t count, const struct location *to,
                              const size_t *firsts, size_t places, uint64_t flags, handle stream)
{
    BEGIN(cuMemPrefetchBatchAsync, NEED_CONTEXT);
    bool sound = to && firsts && places && places <= count;
    END(sound ? hints(context, stream, ranges, sizes, count, to, firsts, places, flags, false) : INVALID_VALUE);
}

PTSZ(cuMemDiscardBatchAsync)(const deviceptr *ranges, const size_t *sizes, size_t count, uint64_t flags, handle stream)
{
    BEGIN(cuMemDiscardBatchAsync, NEED_CONTEXT);
    END(hints(context, stream, ranges, sizes, count, NULL, NULL, 0, flags, true));
}

PTSZ(cuMemDiscardAndPrefetchBatchAsync)(const deviceptr *ranges, const size_t *sizes, size_t count, const struct location *to,
                                        const size_t *firsts, size_t places, uint64_t flags, handle stream)
{
    BEGIN(cuMemDiscardAndPrefetchBatchAsync, NEED_CONTEXT);
    bool sound = to && firsts && places && places <= count;
    END(sound ? hints(context, stream, ranges, sizes, count, to, firsts, places, flags, true) : INVALID_VALUE);
}

#define ATTACH_SINGLE 4u

PTSZ(cuStreamAttachMemAsync)(handle stream, deviceptr address, size_t bytes, unsigned flags)
{
    BEGIN(cuStreamAttachMemAsync, NEED_CONTEXT);
    struct stream *on;
    struct block *block = block_find(address);
    status found = stream_for_work(context, STREAM_OF(stream), &on);
    REQUIRE(found == OK, found);
    REQUIRE(block && block->kind == BLOCK_MANAGED && block->base == address, INVALID_VALUE);
    REQUIRE(!bytes || bytes == block->size, INVALID_VALUE);
    REQUIRE(flags == 1 || flags == 2 || (flags == ATTACH_SINGLE && stream), INVALID_VALUE);
    stream_mark(on);
    END(OK);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

PTSZ(cuStreamQuery)(handle stream)
{
    BEGIN(cuStreamQuery, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(stream_query(of));
}

PTSZ(cuStreamSynchronize)(handle stream)
{
    BEGIN(cuStreamSynchronize, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(stream_synchronize(of));
}

/* The flags are for captured waits, which a capture does not accept here. */
PTSZ(cuStreamWaitEvent)(handle stream, handle event, unsigned flags)
{
    BEGIN(cuStreamWaitEvent, NEED_CONTEXT);
    END(flags ? INVALID_VALUE : event_wait(context, STREAM_OF(stream), event));
}

PTSZ(cuEventRecord)(handle event, handle stream)
{
    BEGIN(cuEventRecord, NEED_CONTEXT);
    END(event_record(context, event, STREAM_OF(stream)));
}

PTSZ(cuEventRecordWithFlags)(handle event, handle stream, unsigned flags)
{
    BEGIN(cuEventRecordWithFlags, NEED_CONTEXT);
    END(flags ? INVALID_VALUE : event_record(context, event, STREAM_OF(stream)));
}

STREAM_GETTER(PTSZ, cuStreamGetPriority, int, priority)
STREAM_GETTER(PTSZ, cuStreamGetFlags, unsigned, flags)
STREAM_GETTER(PTSZ, cuStreamGetCtx, handle, context->handle)
STREAM_GETTER(PTSZ, cuStreamGetDevice, int, context->device)

/* There are no green contexts here. */
PTSZ(cuStreamGetCtx_v2)(handle stream, handle *out, handle *green)
{
    BEGIN(cuStreamGetCtx, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    REQUIRE(out && green, INVALID_VALUE);
    *out = of->context->handle;
    *green = 0;
    END(OK);
}

STREAM_GETTER(PTSZ, cuStreamGetId, unsigned long long, number)

PTSZ(cuStreamBeginCapture_v2)(handle stream, int mode)
{
    BEGIN(cuStreamBeginCapture, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(capture_begin(of, mode, NULL));
}

/* Dependencies would be nodes of the graph, which has none. */
PTSZ(cuStreamBeginCaptureToGraph)(handle stream, handle graph, const void *nodes, const void *edges, size_t count, int mode)
{
    BEGIN(cuStreamBeginCaptureToGraph, NEED_CONTEXT);
    (void)nodes, (void)edges;
    FIND_STREAM(of, stream);
    END(graph_find(graph) && !count ? capture_begin(of, mode, graph_find(graph)) : INVALID_VALUE);
}

PTSZ(cuGraphLaunch)(handle exec, handle stream)
{
    BEGIN(cuGraphLaunch, NEED_CONTEXT);
    END(graph_launch(context, exec, STREAM_OF(stream)));
}

PTSZ(cuStreamEndCapture)(handle stream, handle *graph)
{
    BEGIN(cuStreamEndCapture, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(graph ? capture_end(of, graph) : INVALID_VALUE);
}

PTSZ(cuStreamIsCapturing)(handle stream, int *out)
{
    BEGIN(cuStreamIsCapturing, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    END(capture_state(of, out, NULL));
}

/* The graph has no nodes, so what comes next depends on none. */
static status capture_info(handle stream, int *out, uint64_t *id, handle *graph, void **nodes, size_t *count)
{
    BEGIN(cuStreamGetCaptureInfo, NEED_CONTEXT);
    FIND_STREAM(of, stream);
    status known = capture_state(of, out, id);
    REQUIRE(known == OK, known);
    if (graph) *graph = graph_handle(of->capture.graph);
    if (nodes) *nodes = NULL;
    if (count) *count = 0;
    END(OK);
}

PTSZ(cuStreamGetCaptureInfo_v2)(handle stream, int *out, uint64_t *id, handle *graph, void **nodes, size_t *count)
{
    return capture_info(stream, out, id, graph, nodes, count);
}

PTSZ(cuStreamGetCaptureInfo_v3)(handle stream, int *out, uint64_t *id, handle *graph, void **nodes, void **edges, size_t *count)
{
    if (edges) *edges = NULL;
    return capture_info(stream, out, id, graph, nodes, count);
}

PTSZ(cuLaunchHostFunc)(handle stream, void (*call)(void *), void *data)
{
    BEGIN(cuLaunchHostFunc, NEED_CONTEXT);
    END(stream_call_host(context, STREAM_OF(stream), call, data));
}

PTSZ(cuStreamAddCallback)(handle stream, stream_callback call, void *data, unsigned flags)
{
    BEGIN(cuStreamAddCallback, NEED_CONTEXT);
    END(flags ? INVALID_VALUE : stream_call_back(context, STREAM_OF(stream), call, data));
}

PTSZ(cuStreamWaitValue32_v2)(handle stream, deviceptr address, uint32_t value, unsigned flags)
{
    BEGIN(cuStreamWaitValue32, NEED_CONTEXT);
    REQUIRE(flags <= 2, flags <= 3 ? NOT_SUPPORTED : INVALID_VALUE);
    END(value_run(context, STREAM_OF(stream), address, (struct value){value, UINT64_MAX, 4, flags}, false));
}

PTSZ(cuStreamWriteValue32_v2)(handle stream, deviceptr address, uint32_t value, unsigned flags)
{
    BEGIN(cuStreamWriteValue32, NEED_CONTEXT);
    REQUIRE(flags <= 1, INVALID_VALUE);
    END(value_run(context, STREAM_OF(stream), address, (struct value){value, 0, 4, 0}, true));
}

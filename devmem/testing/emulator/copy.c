/* Copies, fills, and writes of and waits for a word: checks of addresses, staging, and the operation on the stream.
 *
 * A copy is a box of rows; each end has its pitch. copy_run(), copy_batch(), fill_run() and value_run() resolve addresses and
 * queue an operation; they are called with the core's lock, and release it while they wait. copy_perform() and fill_perform()
 * move the bytes on the stream's thread without the lock.
 */
#define _GNU_SOURCE
#include "core.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 16384u /* bytes copied at once to or from a shadow */

static size_t span(const struct box *box, const struct box_end *end)
{
    return size_of_box(box->width, box->height, box->depth, end->pitch, end->plane);
}

/* --- lookup of addresses ------------------------------------------------------------------------------------------ */

/* HIP copies from and to an unknown address with the processor. Unmapped memory then ends the process. */
static status resolve_unknown(uint64_t address, size_t bytes)
{
    if (is_reserved(address) || !range_is_mapped(address, bytes))
        core_die(SIGSEGV, "no live allocation holds the %zu bytes to copy at %#llx: they count as host memory, and are not "
                 "mapped", bytes, (unsigned long long)address);
    return OK;
}

/* A known block must contain the whole box; an unknown address must be mapped host memory. */
static status resolve(const struct box_end *end, size_t bytes, struct endpoint *out)
{
    if (!end->address || end->address + bytes < end->address) return INVALID_VALUE;
    struct block *block = block_find(end->address);
    *out = (struct endpoint){(char *)(uintptr_t)end->address, end->pitch, end->plane, NULL, block};
    if (!block) {
        if (vendor_rules.unknown_is_pageable && end->side != SIDE_DEVICE) return resolve_unknown(end->address, bytes);
        if ((end->side == SIDE_DEVICE && !vendor_rules.takes_host_addresses()) || is_reserved(end->address) || range_overlap(end->address, bytes)) return INVALID_VALUE;
        return range_is_mapped(end->address, bytes) ? OK : INVALID_VALUE;
    }
    if (end->side == SIDE_HOST && is_device_memory(block)) return INVALID_VALUE;
    if (!block_contains(block, end->address, bytes)) return INVALID_VALUE;
    out->bytes = block->access + (end->address - block->base);
    return OK;
}

static bool pageable(const struct endpoint *end) { return !end->block; }
static bool on_device(const struct endpoint *end) { return end->block && is_device_memory(end->block); }

static void retain_both_leases(struct transfer *transfer)
{
    if (transfer->to.block) transfer->to.lease = lease_retain(transfer->to.block->lease);
    if (transfer->from.block) transfer->from.lease = lease_retain(transfer->from.block->lease);
}

static status transfer_of(const struct box *box, struct transfer *out)
{
    memset(out, 0, sizeof *out);
    out->width = box->width;
    out->height = box->height;
    out->depth = box->depth;
    status found = resolve(&box->to, span(box, &box->to), &out->to);
    return found != OK ? found : resolve(&box->from, span(box, &box->from), &out->from);
}

/* --- moving bytes ------------------------------------------------------------------------------------------------- */

static struct shadow *shadow_of(const struct endpoint *end) { return end->lease ? end->lease->shadow : NULL; }

static void move_row(const struct endpoint *to, char *into, const struct endpoint *from, const char *out, size_t width)
{
    struct shadow *written = shadow_of(to), *read = shadow_of(from);
    char piece[PIECE];
    if (!written && !read) {
        memmove(into, out, width);
        return;
    }
    for (size_t done = 0; done < width; done += PIECE) {
        size_t bytes = width - done < PIECE ? width - done : PIECE;
        if (read) shadow_read(read, piece, out + done, bytes);
        else memcpy(piece, out + done, bytes);
        if (written) shadow_write(written, into + done, piece, bytes);
        else memcpy(into + done, piece, bytes);
    }
}

static void move_box(const struct endpoint *to, const struct endpoint *from, size_t width, size_t height, size_t depth)
{
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++)
            move_row(to, to->bytes + z * to->plane + y * to->pitch, from, from->bytes + z * from->plane + y * from->pitch, width);
}

/* The copies of a batch may run in any order. They run last to first, so that tests find programs that rely on it. */
void copy_perform(const struct transfer *transfers, size_t count)
{
    while (count-- > 0) {
        const struct transfer *transfer = &transfers[count];
        move_box(&transfer->to, &transfer->from, transfer->width, transfer->height, transfer->depth);
    }
}

void transfers_free(struct transfer *transfers, size_t count)
{
    for (size_t index = 0; index < count; index++) {
        lease_release(transfers[index].to.lease);
        lease_release(transfers[index].from.lease);
        free(transfers[index].staged);
    }
    free(transfers);
}

/* Copy the source to a packed staging buffer now, as drivers do for pageable memory. */
static status stage(struct transfer *transfer)
{
    size_t row = transfer->width, plane = row * transfer->height;
    transfer->staged = malloc(plane * transfer->depth);
    if (!transfer->staged) return OUT_OF_MEMORY;
    struct endpoint packed = {transfer->staged, row, plane, NULL, NULL};
    move_box(&packed, &transfer->from, row, transfer->height, transfer->depth);
    transfer->from = packed;
    return OK;
}

static struct op *copy_op(const struct transfer *transfer)
{
    struct op *op = op_new(OP_COPY);
    op->copy.transfers = malloc(sizeof *transfer);
    if (!op->copy.transfers) abort();
    *op->copy.transfers = *transfer;
    op->copy.count = 1;
    return op;
}

static status finish(struct context *context, struct op *op, bool wait)
{
    unsigned generation = context->generation;
    if (wait) {
        host_wait(op);
        shadows_publish();
    }
    op_release(op);
    return context->generation != generation ? CONTEXT_IS_DESTROYED : context->sticky;
}

static bool is_synchronous(const struct endpoint *at) { return at->block && at->block->sync_memops; }

/* `blocking`: a call without Async. Whether it waits follows the vendor's page on API synchronisation behaviour. */
status copy_run(struct context *context, uint64_t stream_handle, const struct box *box, bool blocking)
{
    struct transfer transfer;
    struct stream *stream;
    status result = stream_for_node(context, stream_handle, &stream);
    if (result != OK) return result;
    if (!box->width || !box->height || !box->depth) return OK;
    if (blocking && capture_active(stream)) return capture_check_wait(stream);
    result = transfer_of(box, &transfer);
    if (result != OK) return result;
    if (capture_active(stream)) {
        if (pageable(&transfer.from) || pageable(&transfer.to)) return NOT_SUPPORTED;
        graph_add(stream->capture.graph, (struct node){NODE_COPY, .copy = *box});
        return OK;
    }
    bool from_pageable = pageable(&transfer.from), host_to_host = !on_device(&transfer.to) && !on_device(&transfer.from);
    size_t bytes = size_times(size_times(box->width, box->height), box->depth);
    bool ahead = from_pageable && !host_to_host && bytes <= vendor_rules.staging_limit;
    if (ahead) {
        if (blocking && !vendor_rules.blocking_calls_complete) {
            /* Wait for the stream first. A host function may free memory meanwhile: look the addresses up again. */
            result = stream_synchronize(stream);
            if (result == OK) result = stream_for_work(context, stream_handle, &stream);
            if (result == OK) result = transfer_of(box, &transfer);
        }
        if (result == OK) result = stage(&transfer);
        if (result != OK) return result;
    }
    bool device_to_device = on_device(&transfer.to) && on_device(&transfer.from);
    bool wait = host_to_host || pageable(&transfer.to) || (from_pageable && !ahead);
    if (blocking && vendor_rules.blocking_calls_complete)
        wait = !device_to_device || transfer.to.block->device != transfer.from.block->device;
    else if (blocking) wait = wait || (!device_to_device && !from_pageable);
    wait = wait || (blocking && (is_synchronous(&transfer.to) || is_synchronous(&transfer.from)));
    retain_both_leases(&transfer);
    struct op *op = copy_op(&transfer);
    stream_submit(stream, op);
    return finish(context, op, wait);
}

/* A batch reads pageable sources in stream order, unless the caller asks for a read during the call. */
status copy_batch(struct context *context, uint64_t stream_handle, const struct box *boxes, const enum source_read *reads,
                  size_t count, size_t *failed)
{
    struct stream *stream;
    status result = stream_for_work(context, stream_handle, &stream);
    if (result != OK) return result;
    struct transfer *transfers = calloc(count, sizeof *transfers);
    if (!transfers) return OUT_OF_MEMORY;
    for (size_t index = 0; index < count && result == OK; index++) {
        result = boxes[index].width ? transfer_of(&boxes[index], &transfers[index]) : INVALID_VALUE;
        if (result == OK && reads[index] == READ_DURING_CALL && !on_device(&transfers[index].from))
            result = stage(&transfers[index]);
        if (result == OK) retain_both_leases(&transfers[index]);
        if (result != OK) *failed = index;
    }
    if (result != OK) {
        transfers_free(transfers, count);
        return result;
    }
    struct op *op = op_new(OP_COPY);
    op->copy.transfers = transfers;
    op->copy.count = count;
    stream_submit(stream, op);
    return finish(context, op, false);
}

/* --- fills -------------------------------------------------------------------------------------------------------- */

static void fill_shadowed(const struct endpoint *at, char *row, size_t bytes, uint32_t value, unsigned unit)
{
    char piece[PIECE];
    for (size_t x = 0; x < PIECE; x += unit) memcpy(piece + x, &value, unit);
    for (size_t done = 0; done < bytes; done += PIECE)
        shadow_write(shadow_of(at), row + done, piece, bytes - done < PIECE ? bytes - done : PIECE);
}

void fill_perform(const struct endpoint *at, size_t width, size_t height, uint32_t value, unsigned unit)
{
    for (size_t y = 0; y < height; y++) {
        char *row = at->bytes + y * at->pitch;
        if (shadow_of(at)) fill_shadowed(at, row, width * unit, value, unit);
        else if (unit == 1) memset(row, (int)(value & 0xff), width);
        else for (size_t x = 0; x < width; x++) memcpy(row + x * unit, &value, unit);
    }
}

/* `width` is in units. A fill without Async waits if the memory is host memory. */
status fill_run(struct context *context, uint64_t stream_handle, uint64_t address, size_t pitch, uint32_t value, unsigned unit,
                size_t width, size_t height, bool blocking)
{
    struct stream *stream;
    struct endpoint at;
    status result = stream_for_node(context, stream_handle, &stream);
    if (result != OK) return result;
    if (address % unit || (height > 1 && pitch % unit)) return INVALID_VALUE;
    if (!width || !height) return OK;
    size_t row = size_times(width, unit);
    if (height > 1 && pitch < row) return INVALID_VALUE;
    struct box_end end = {address, pitch, 0, SIDE_DEVICE};
    result = resolve(&end, size_of_box(row, height, 1, pitch, 0), &at);
    if (result != OK) return result;
    if (capture_active(stream)) {
        graph_add(stream->capture.graph, (struct node){NODE_FILL, .fill = {address, pitch, width, height, value, unit}});
        return OK;
    }
    if (at.block) at.lease = lease_retain(at.block->lease);
    struct op *op = op_new(OP_FILL);
    op->fill.at = at;
    op->fill.width = width;
    op->fill.height = height;
    op->fill.value = value;
    op->fill.unit = unit;
    stream_submit(stream, op);
    return finish(context, op, blocking && !on_device(&at));
}

/* --- words in memory ---------------------------------------------------------------------------------------------- */

status value_run(struct context *context, uint64_t stream_handle, uint64_t address, struct value value, bool writes)
{
    struct stream *stream;
    struct endpoint at;
    status result = stream_for_work(context, stream_handle, &stream);
    if (result != OK) return result;
    struct box_end end = {address, 0, 0, SIDE_DEVICE};
    if (address % value.width) return INVALID_VALUE;
    result = resolve(&end, value.width, &at);
    if (result != OK) return result;
    if (at.block) at.lease = lease_retain(at.block->lease);
    struct op *op = op_new(writes ? OP_WRITE_VALUE : OP_WAIT_VALUE);
    op->value.at = at;
    op->value.asked = value;
    stream_submit(stream, op);
    return finish(context, op, false);
}

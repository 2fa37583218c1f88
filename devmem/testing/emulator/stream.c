/* Streams: each runs its operations first in, first out, on one thread of its own, which starts with the first operation.
 *
 * An operation starts when those before it on its stream and those that op_after() named are complete. The legacy stream and
 * the blocking streams of its context wait for each other, as the vendors document. A destroyed stream completes its work and
 * then frees itself on its own thread. State is guarded by the core's lock; bytes are moved, and host functions called,
 * without it.
 */
#define _GNU_SOURCE
#include "core.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The per-thread default streams of the calling thread: one for each context. */
struct per_thread_stream {
    struct context *context;
    unsigned generation;
    uint64_t handle;
    struct per_thread_stream *next;
};

static _Thread_local struct per_thread_stream *per_thread_streams;
static pthread_key_t per_thread_key;
static pthread_once_t per_thread_once = PTHREAD_ONCE_INIT;
static uint64_t stream_numbers;

/* --- operations --------------------------------------------------------------------------------------------------- */

struct op *op_new(enum op_kind kind)
{
    struct op *op = calloc(1, sizeof *op);
    if (!op) abort();
    op->kind = kind;
    op->references = 1;
    return op;
}

void op_retain(struct op *op) { op->references++; }

static void op_free(struct op *op)
{
    if (op->kind == OP_COPY) transfers_free(op->copy.transfers, op->copy.count);
    if (op->kind == OP_FILL) lease_release(op->fill.at.lease);
    if (op->kind == OP_ALLOC) lease_release(op->alloc.at.lease);
    if (op->kind == OP_FREE) lease_release(op->freed_lease);
    if (op->kind == OP_WAIT_VALUE || op->kind == OP_WRITE_VALUE) lease_release(op->value.at.lease);
    free(op->successors);
    free(op);
}

void op_release(struct op *op)
{
    if (op && --op->references == 0) op_free(op);
}

/* Make `op`, which is not submitted yet, wait for `earlier`. */
void op_after(struct op *op, struct op *earlier)
{
    if (!earlier || earlier->done) return;
    if (earlier->successor_count == earlier->successor_room) {
        earlier->successor_room = earlier->successor_room ? earlier->successor_room * 2 : 4;
        earlier->successors = realloc(earlier->successors, (size_t)earlier->successor_room * sizeof(struct op *));
        if (!earlier->successors) abort();
    }
    earlier->successors[earlier->successor_count++] = op;
    op->waiting_for++;
    op_retain(op);
}

static void op_finish(struct op *op)
{
    watch_end(op);
    op->done = true;
    op->finished = core_now();
    for (int index = 0; index < op->successor_count; index++) {
        struct op *later = op->successors[index];
        if (--later->waiting_for == 0 && later->stream && !later->done) pthread_cond_signal(&later->stream->wake);
        op_release(later);
    }
    op->successor_count = 0;
    pthread_cond_broadcast(&progress);
}

/* --- the thread of a stream --------------------------------------------------------------------------------------- */

static bool usable(const struct endpoint *at) { return !at->lease || (at->lease->allocated && !at->lease->freed); }

static void running(const struct endpoint *at, int step)
{
    if (at->lease) at->lease->running += step;
}

static bool touch(struct op *op, int step)
{
    bool right = true;
    if (op->kind == OP_COPY) {
        for (size_t index = 0; index < op->copy.count; index++) {
            struct transfer *transfer = &op->copy.transfers[index];
            right = right && usable(&transfer->to) && usable(&transfer->from);
            running(&transfer->to, step);
            running(&transfer->from, step);
        }
    } else if (op->kind == OP_FILL) {
        right = usable(&op->fill.at);
        running(&op->fill.at, step);
    } else if (op->kind == OP_WAIT_VALUE || op->kind == OP_WRITE_VALUE) {
        right = usable(&op->value.at);
        running(&op->value.at, step);
    }
    return right;
}

static bool value_reached(const struct op *op)
{
    const struct value *value = &op->value.asked;
    bool wide = value->width == 8;
    uint64_t now = wide ? __atomic_load_n((uint64_t *)op->value.at.bytes, __ATOMIC_ACQUIRE)
                        : __atomic_load_n((uint32_t *)op->value.at.bytes, __ATOMIC_ACQUIRE);
    uint64_t asked = value->value;
    now &= value->mask;
    switch (value->how & 3) {
    case 0: return wide ? (int64_t)(now - asked) >= 0 : (int32_t)(uint32_t)(now - asked) >= 0;
    case 1: return now == asked;
    case 2: return (now & asked) != 0;
    default: return (wide ? ~(now | asked) : (uint32_t)~(now | asked)) != 0;
    }
}

/* Records of an event that processes share may complete in any order: the latest counts. */
static void raise_value(_Atomic uint64_t *at, uint64_t value)
{
    uint64_t now = atomic_load(at);
    while (now < value && !atomic_compare_exchange_weak(at, &now, value)) {}
}

static void write_value(const struct op *op)
{
    const struct value *value = &op->value.asked;
    if (value->how == VALUE_RAISE) raise_value((_Atomic uint64_t *)op->value.at.bytes, value->value);
    else if (op->value.at.lease && op->value.at.lease->shadow)
        shadow_write(op->value.at.lease->shadow, op->value.at.bytes, &value->value, value->width);
    else if (value->width == 8) __atomic_store_n((uint64_t *)op->value.at.bytes, value->value, __ATOMIC_RELEASE);
    else __atomic_store_n((uint32_t *)op->value.at.bytes, (uint32_t)value->value, __ATOMIC_RELEASE);
}

/* Called without the lock. */
static void op_execute(struct stream *stream, struct op *op)
{
    fault_delay(stream->number, op->sequence);
    if (op->kind == OP_COPY) copy_perform(op->copy.transfers, op->copy.count);
    if (op->kind == OP_FILL) fill_perform(&op->fill.at, op->fill.width, op->fill.height, op->fill.value, op->fill.unit);
    if (op->kind == OP_WRITE_VALUE) write_value(op);
    if (op->kind == OP_ALLOC)
        memset(op->alloc.at.bytes, POISON, op->alloc.bytes < POISON_LIMIT ? op->alloc.bytes : POISON_LIMIT);
    if (op->kind == OP_HOST) {
        inside_host_function = true;
        if (op->host.callback) op->host.callback(op->host.stream, stream->context->sticky, op->host.data);
        else op->host.call(op->host.data);
        inside_host_function = false;
    }
}

static void wait_for_value(struct stream *stream, struct op *op)
{
    while (!stream->aborting && !value_reached(op)) {
        pthread_mutex_unlock(&core_mutex);
        usleep(50);
        pthread_mutex_lock(&core_mutex);
    }
}

static void op_run(struct stream *stream, struct op *op)
{
    bool told = op->kind == OP_HOST && op->host.callback;
    if (stream->aborting || (stream->context->sticky != OK && !told)) return;
    if (op->kind == OP_WAIT_VALUE) wait_for_value(stream, op);
    if (!touch(op, +1)) { /* the memory is not allocated yet, or freed */
        front_device_failed(ILLEGAL_ADDRESS);
        context_fail(stream->context, ILLEGAL_ADDRESS);
    } else if (op->kind == OP_FREE) op->freed_lease->freed = true;
    else if (op->kind != OP_MARKER && op->kind != OP_WAIT_VALUE) {
        pthread_mutex_unlock(&core_mutex);
        op_execute(stream, op);
        pthread_mutex_lock(&core_mutex);
    }
    touch(op, -1);
    if (op->publishes) shadows_publish();
    if (op->kind == OP_ALLOC) op->alloc.at.lease->allocated = true;
}

static void stream_free(struct stream *stream)
{
    struct stream **link = &stream->context->streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    handle_free(stream->handle);
    op_release(stream->last);
    pthread_cond_destroy(&stream->wake);
    free(stream);
    pthread_cond_broadcast(&progress);
}

static void *stream_thread(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&core_mutex);
    while (stream->head || !stream->closing) {
        struct op *op = stream->head;
        if (!op || (!stream->aborting && (stream->held || op->waiting_for))) {
            pthread_cond_wait(&stream->wake, &core_mutex);
            continue;
        }
        op_run(stream, op);
        stream->head = op->next;
        if (!stream->head) stream->tail = NULL;
        op_finish(op);
        op_release(op);
    }
    stream_free(stream);
    pthread_mutex_unlock(&core_mutex);
    return NULL;
}

static void start_thread(struct stream *stream)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV); /* a program's host function may touch what is watched, or nothing at all */
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals go to the threads of the program */
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1u << 20);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, stream_thread, stream) != 0) {
        fputs("devmem emulator: cannot start a thread for one more stream\n", stderr);
        abort();
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stream->has_thread = true;
}

/* --- ordering ----------------------------------------------------------------------------------------------------- */

/* The legacy stream waits for the blocking streams of its context, and they wait for it. */
static void implied_waits(struct stream *stream, struct op *op)
{
    struct context *context = stream->context;
    if (stream->legacy) {
        for (struct stream *other = context->streams; other; other = other->next)
            if (other != stream && other->blocking) op_after(op, other->last);
    } else if (stream->blocking && context->legacy) op_after(op, context->legacy->last);
}

status stream_submit(struct stream *stream, struct op *op)
{
    op->stream = stream;
    op->sequence = ++stream->submitted;
    watch_begin(op);
    implied_waits(stream, op);
    op_retain(op);
    op_retain(op);
    if (stream->tail) stream->tail->next = op;
    else stream->head = op;
    stream->tail = op;
    op_release(stream->last);
    stream->last = op;
    if (!stream->has_thread) start_thread(stream);
    pthread_cond_signal(&stream->wake);
    return OK;
}

status stream_wait_op(struct stream *stream, struct op *earlier)
{
    if (!earlier || earlier->done) return OK;
    struct op *op = op_new(OP_MARKER);
    op_after(op, earlier);
    stream_submit(stream, op);
    op_release(op);
    return OK;
}

void host_wait(struct op *op)
{
    op_retain(op);
    while (!op->done) pthread_cond_wait(&progress, &core_mutex);
    op_release(op);
}

/* Wait for the operations that are queued now, not for those that other threads add meanwhile. */
static void wait_for_streams(struct context *context, bool blocking_only)
{
    size_t count = 0;
    for (struct stream *stream = context->streams; stream; stream = stream->next) count++;
    struct op **pending = calloc(count + 1, sizeof *pending);
    if (!pending) abort();
    count = 0;
    for (struct stream *stream = context->streams; stream; stream = stream->next) {
        if (!stream->last || stream->last->done || (blocking_only && !stream->blocking)) continue;
        op_retain(stream->last);
        pending[count++] = stream->last;
    }
    for (size_t index = 0; index < count; index++) {
        host_wait(pending[index]);
        op_release(pending[index]);
    }
    free(pending);
}

void host_wait_context(struct context *context) { wait_for_streams(context, false); }

void device_drain(int device)
{
    for (struct context *context = contexts; context; context = context->next)
        if (context->device == device && context->active) wait_for_streams(context, false);
}

/* --- creation and destruction ------------------------------------------------------------------------------------- */

struct stream *stream_open(struct context *context, unsigned flags, int priority)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream) abort();
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->blocking = !(flags & STREAM_NON_BLOCKING);
    stream->number = ++stream_numbers;
    stream->handle = handle_new(HANDLE_STREAM, stream);
    pthread_cond_init(&stream->wake, NULL);
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

status stream_create(struct context *context, unsigned flags, int priority, uint64_t *handle)
{
    struct stream *stream = stream_open(context, flags, priority);
    stream->counted = true;
    *handle = stream->handle;
    live_handles++;
    return OK;
}

/* Queued work still runs; then the thread of the stream frees it. */
static void stream_close(struct stream *stream)
{
    handle_free(stream->handle);
    capture_forget(stream);
    stream->closing = true;
    if (!stream->has_thread) stream_free(stream);
    else pthread_cond_signal(&stream->wake);
}

static void close_per_thread_streams(void *first)
{
    pthread_mutex_lock(&core_mutex);
    for (struct per_thread_stream *own = first, *next; own; own = next) {
        struct stream *stream = handle_get(own->handle, HANDLE_STREAM);
        if (stream) stream_close(stream);
        next = own->next;
        free(own);
    }
    pthread_mutex_unlock(&core_mutex);
}

static void make_per_thread_key(void) { pthread_key_create(&per_thread_key, close_per_thread_streams); }

static struct stream *per_thread_stream(struct context *context)
{
    struct per_thread_stream *own = per_thread_streams;
    while (own && own->context != context) own = own->next;
    if (!own) {
        pthread_once(&per_thread_once, make_per_thread_key);
        own = calloc(1, sizeof *own);
        if (!own) abort();
        own->context = context;
        own->next = per_thread_streams;
        per_thread_streams = own;
        pthread_setspecific(per_thread_key, own);
    }
    struct stream *stream = own->generation == context->generation ? handle_get(own->handle, HANDLE_STREAM) : NULL;
    if (stream) return stream;
    stream = stream_open(context, 0, 0);
    own->generation = context->generation;
    own->handle = stream->handle;
    return stream;
}

struct stream *stream_find(struct context *context, uint64_t handle)
{
    if (handle == 0 || handle == STREAM_LEGACY) return context->legacy;
    return handle == STREAM_PER_THREAD ? per_thread_stream(context) : handle_get(handle, HANDLE_STREAM);
}

status stream_get(struct context *context, uint64_t handle, struct stream **out)
{
    *out = stream_find(context, handle);
    return *out ? OK : front_unknown_stream(handle);
}

status stream_for_work(struct context *context, uint64_t handle, struct stream **out)
{
    status found = stream_get(context, handle, out);
    return found == OK ? capture_check_work(*out) : found;
}

/* As above, for a call that a capture accepts: the caller adds it to the graph. */
status stream_for_node(struct context *context, uint64_t handle, struct stream **out)
{
    status found = stream_for_work(context, handle, out);
    return found == NOT_SUPPORTED && capture_active(*out) ? OK : found;
}

status stream_destroy(uint64_t handle)
{
    struct stream *stream = handle_get(handle, HANDLE_STREAM);
    if (!stream) return front_unknown_stream(handle);
    if (!stream->counted) return INVALID_HANDLE;
    stream->counted = false;
    live_handles--;
    stream_close(stream);
    return OK;
}

static bool finished(const struct stream *stream) { return !stream->last || stream->last->done; }

/* Enqueue an operation without effect, which completes after the work before it. */
void stream_mark(struct stream *stream)
{
    struct op *op = op_new(OP_MARKER);
    stream_submit(stream, op);
    op_release(op);
}

/* Call a function of the program on the stream's thread, without the lock. */
static status call_host(struct context *context, uint64_t handle, void (*call)(void *), stream_callback callback, void *data)
{
    struct stream *stream;
    status found = call ? stream_for_node(context, handle, &stream) : stream_for_work(context, handle, &stream);
    if (found != OK) return found;
    if (!call && !callback) return INVALID_VALUE;
    if (capture_active(stream)) {
        graph_add(stream->capture.graph, (struct node){NODE_HOST, .host = {call, data}});
        return OK;
    }
    struct op *op = op_new(OP_HOST);
    op->host.call = call;
    op->host.callback = callback;
    op->host.data = data;
    op->host.stream = handle;
    stream_submit(stream, op);
    op_release(op);
    return OK;
}

status stream_call_host(struct context *context, uint64_t handle, void (*call)(void *), void *data)
{
    return call_host(context, handle, call, NULL, data);
}

status stream_call_back(struct context *context, uint64_t handle, stream_callback callback, void *data)
{
    return call_host(context, handle, NULL, callback, data);
}

status stream_query(struct stream *stream)
{
    struct context *context = stream->context;
    status free = capture_check_wait(stream);
    if (free != OK) return free;
    if (!finished(stream)) return NOT_READY;
    if (stream->legacy)
        for (struct stream *other = context->streams; other; other = other->next)
            if (other->blocking && !finished(other)) return NOT_READY;
    return context->sticky;
}

status stream_synchronize(struct stream *stream)
{
    struct context *context = stream->context;
    unsigned generation = context->generation;
    status free = capture_check_wait(stream);
    if (free != OK) return free;
    if (stream->legacy) wait_for_streams(context, true);
    else if (!finished(stream)) host_wait(stream->last);
    shadows_publish();
    if (context->generation != generation) return CONTEXT_IS_DESTROYED;
    pools_trim_to_threshold(context->device);
    return context->sticky;
}

/* Discard queued operations, let running ones complete, and wait until the threads of the context have ended. */
void streams_abort(struct context *context)
{
    for (struct stream *stream = context->streams, *next; stream; stream = next) {
        next = stream->next;
        if (stream->counted) live_handles--;
        stream->counted = false;
        stream->aborting = true;
        stream->held = 0;
        stream_close(stream);
    }
    while (context->streams) pthread_cond_wait(&progress, &core_mutex);
}

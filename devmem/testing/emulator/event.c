/* Events: a record is a marker operation on a stream, which host threads and other streams can wait for, query and time.
 *
 * An event keeps the marker of its last record; a later record does not change what a stream already waits for. An event that
 * was never recorded counts as complete. Called with the core's lock; event_synchronize() releases it while it waits.
 */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* How often an event that processes share was recorded, and which of the records the streams have passed. In memory that the
 * processes share; each keeps it mapped for good, as queued work may still write there. */
struct shared_event {
    _Atomic uint64_t recorded, passed;
};

/* Map the state of a shared event: that of `file`, or a new one. */
status event_share(struct event *event, int file)
{
    event->file = file >= 0 ? -1 : memfd_create("devmem event", MFD_CLOEXEC);
    int from = file >= 0 ? file : event->file;
    if (file < 0 && (from < 0 || ftruncate(from, sizeof *event->shared))) return OUT_OF_MEMORY;
    event->shared = mmap(NULL, sizeof *event->shared, PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
    return event->shared == MAP_FAILED ? MAP_FAILED_STATUS : OK;
}

static bool passed(const struct event *event)
{
    if (event->shared) return atomic_load(&event->shared->passed) >= atomic_load(&event->shared->recorded);
    return !event->last || event->last->done;
}

static struct op *shared_op(struct event *event, enum op_kind kind, struct value value)
{
    struct op *op = op_new(kind);
    op->value.at = (struct endpoint){.bytes = (char *)&event->shared->passed};
    op->value.asked = value;
    return op;
}

status event_create(struct context *context, unsigned flags, uint64_t *handle)
{
    struct event *event = calloc(1, sizeof *event);
    if (!event) abort();
    event->context = context;
    event->flags = flags;
    event->file = -1;
    if (flags & EVENT_INTERPROCESS && event_share(event, -1) != OK) {
        free(event);
        return OUT_OF_MEMORY;
    }
    *handle = event->handle = handle_new(HANDLE_EVENT, event);
    live_handles++;
    return OK;
}

static void event_free(struct event *event)
{
    handle_free(event->handle);
    op_release(event->last);
    if (event->file >= 0) close(event->file);
    free(event);
    live_handles--;
}

status event_destroy(uint64_t handle)
{
    struct event *event = handle_get(handle, HANDLE_EVENT);
    if (!event) return INVALID_HANDLE;
    event_free(event);
    return OK;
}

status event_record(struct context *context, uint64_t handle, uint64_t stream_handle)
{
    struct event *event = handle_get(handle, HANDLE_EVENT);
    struct stream *stream;
    if (!event) return INVALID_HANDLE;
    status found = stream_get(context, stream_handle, &stream);
    if (found != OK) return found;
    if (stream->context != event->context) return INVALID_HANDLE;
    status free = capture_check_work(stream);
    event->captured = free == NOT_SUPPORTED; /* the only operation that a capture accepts here */
    if (free != OK && !event->captured) return free;
    op_release(event->last);
    event->last = NULL;
    if (event->captured) return OK;
    if (event->shared) {
        uint64_t record = atomic_fetch_add(&event->shared->recorded, 1) + 1;
        event->last = shared_op(event, OP_WRITE_VALUE, (struct value){record, UINT64_MAX, 8, VALUE_RAISE});
    } else event->last = op_new(OP_MARKER);
    event->last->publishes = (event->flags & EVENT_RELEASE_TO_SYSTEM) != 0;
    return stream_submit(stream, event->last);
}

status event_query(uint64_t handle)
{
    struct event *event = handle_get(handle, HANDLE_EVENT);
    if (!event) return INVALID_HANDLE;
    if (event->captured) return CAPTURED_EVENT;
    if (!passed(event)) return NOT_READY;
    return event->context->sticky;
}

status event_synchronize(uint64_t handle)
{
    struct event *event = handle_get(handle, HANDLE_EVENT);
    if (!event) return INVALID_HANDLE;
    struct context *context = event->context;
    if (event->captured) return CAPTURED_EVENT;
    if (event->shared) {
        struct shared_event *shared = event->shared;
        uint64_t record = atomic_load(&shared->recorded);
        while (context->active && context->sticky == OK && atomic_load(&shared->passed) < record) {
            pthread_mutex_unlock(&core_mutex);
            usleep(50);
            pthread_mutex_lock(&core_mutex);
        }
    } else if (event->last) host_wait(event->last);
    if (!context->active) return CONTEXT_IS_DESTROYED;
    pools_trim_to_threshold(context->device);
    return context->sticky;
}

status event_elapsed(uint64_t start, uint64_t end, float *milliseconds)
{
    struct event *from = handle_get(start, HANDLE_EVENT), *to = handle_get(end, HANDLE_EVENT);
    if (!from || !to || !from->last || !to->last) return INVALID_HANDLE;
    if ((from->flags | to->flags) & EVENT_DISABLE_TIMING) return INVALID_HANDLE;
    if (from->context->device != to->context->device) return INVALID_HANDLE;
    if (!from->last->done || !to->last->done) return NOT_READY;
    *milliseconds = (float)((double)((int64_t)(to->last->finished - from->last->finished)) / 1e6);
    return OK;
}

/* The event may be of another context or device. Without a record there is nothing to wait for. */
status event_wait(struct context *context, uint64_t stream_handle, uint64_t handle)
{
    struct event *event = handle_get(handle, HANDLE_EVENT);
    struct stream *stream;
    if (!event) return INVALID_HANDLE;
    status found = stream_for_work(context, stream_handle, &stream);
    if (found == OK && event->captured) return NOT_SUPPORTED;
    if (found != OK || !event->shared) return found != OK ? found : stream_wait_op(stream, event->last);
    struct op *op = shared_op(event, OP_WAIT_VALUE, (struct value){atomic_load(&event->shared->recorded), UINT64_MAX, 8, 0});
    stream_submit(stream, op);
    op_release(op);
    return OK;
}

void events_free_context(struct context *context)
{
    size_t cursor = 0;
    for (struct event *event; (event = handle_next(HANDLE_EVENT, &cursor));)
        if (event->context == context) event_free(event);
}

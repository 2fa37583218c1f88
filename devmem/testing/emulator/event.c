/* Events: a record is a marker operation on a stream, which host threads and other streams can wait for, query and time.
 *
 * An event keeps the marker of its last record; a later record does not change what a stream already waits for. An event that
 * was never recorded counts as complete. Called with the core's lock; event_synchronize() releases it while it waits.
 */
#include "core.h"

#include <stdlib.h>

status event_create(struct context *context, unsigned flags, uint64_t *handle)
{
    struct event *event = calloc(1, sizeof *event);
    if (!event) abort();
    event->context = context;
    event->flags = flags;
    *handle = event->handle = handle_new(HANDLE_EVENT, event);
    live_handles++;
    return OK;
}

static void event_free(struct event *event)
{
    handle_free(event->handle);
    op_release(event->last);
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
    event->last = op_new(OP_MARKER);
    event->last->publishes = (event->flags & EVENT_RELEASE_TO_SYSTEM) != 0;
    return stream_submit(stream, event->last);
}

status event_query(uint64_t handle)
{
    struct event *event = handle_get(handle, HANDLE_EVENT);
    if (!event) return INVALID_HANDLE;
    if (event->captured) return CAPTURED_EVENT;
    if (event->last && !event->last->done) return NOT_READY;
    return event->context->sticky;
}

status event_synchronize(uint64_t handle)
{
    struct event *event = handle_get(handle, HANDLE_EVENT);
    if (!event) return INVALID_HANDLE;
    struct context *context = event->context;
    if (event->captured) return CAPTURED_EVENT;
    if (event->last) host_wait(event->last);
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
    return found != OK ? found : stream_wait_op(stream, event->last);
}

void events_free_context(struct context *context)
{
    size_t cursor = 0;
    for (struct event *event; (event = handle_next(HANDLE_EVENT, &cursor));)
        if (event->context == context) event_free(event);
}

/* Stream capture: which calls a capture forbids, and which become nodes of its graph: copies of page-locked and of device memory,
 * fills, and host functions, in the order of the calls. Others that enqueue work are refused.
 *
 * A call without a stream (allocate, free, query an event) cannot become part of the graph; the vendors call it potentially
 * unsafe while a stream is captured. Whether it is forbidden depends on the mode of the capture and on the mode of the calling
 * thread; a thread in relaxed mode may make every such call. A forbidden call fails and invalidates the captures that forbid
 * it. Called with the core's lock.
 */
#include "core.h"

static _Thread_local int thread_mode = CAPTURE_GLOBAL;
static _Thread_local char this_thread;     /* its address identifies the thread */
static int captures;                       /* number of capturing streams, invalidated ones included */
static uint64_t capture_numbers;

static bool is_capturing(const struct stream *stream) { return stream->capture.state != CAPTURE_STATE_NONE; }

static bool forbids(const struct stream *stream)
{
    const struct capture *capture = &stream->capture;
    if (!is_capturing(stream) || capture->mode == CAPTURE_RELAXED || thread_mode == CAPTURE_RELAXED) return false;
    return capture->thread == &this_thread || (capture->mode == CAPTURE_GLOBAL && thread_mode == CAPTURE_GLOBAL);
}

status capture_exchange(int *mode)
{
    if (!mode || *mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED) return INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return OK;
}

/* The graph is `into`, or a new one. */
status capture_begin(struct stream *stream, int mode, struct graph *into)
{
    if (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED) return INVALID_VALUE;
    if (stream->legacy) return CAPTURE_UNSUPPORTED;
    if (is_capturing(stream)) return ILLEGAL_STATE;
    struct graph *graph = into ? into : graph_open(HANDLE_GRAPH);
    stream->capture = (struct capture){CAPTURE_STATE_ACTIVE, mode, graph, into != NULL, &this_thread, ++capture_numbers};
    captures++;
    return OK;
}

void capture_forget(struct stream *stream)
{
    if (!is_capturing(stream)) return;
    captures--;
    stream->capture.state = CAPTURE_STATE_NONE;
    if (!stream->capture.into) graph_close(stream->capture.graph);
    stream->capture.graph = NULL;
}

status capture_end(struct stream *stream, uint64_t *graph)
{
    if (!is_capturing(stream)) return ILLEGAL_STATE;
    if (stream->capture.mode != CAPTURE_RELAXED && stream->capture.thread != &this_thread) return CAPTURE_WRONG_THREAD;
    bool invalidated = stream->capture.state == CAPTURE_STATE_INVALIDATED;
    *graph = invalidated ? 0 : graph_handle(stream->capture.graph);
    if (!invalidated) stream->capture.into = true; /* it is the program's from now on */
    capture_forget(stream);
    return invalidated ? CAPTURE_INVALIDATED : OK;
}

static bool legacy_waits_for_capture(const struct stream *stream)
{
    if (!captures || !stream->legacy) return false;
    for (struct stream *other = stream->context->streams; other; other = other->next)
        if (other->blocking && is_capturing(other)) return true;
    return false;
}

/* The state of the legacy stream is an error while it waits for a capturing stream; the query invalidates nothing. */
status capture_state(const struct stream *stream, int *out, uint64_t *number)
{
    if (!out) return INVALID_VALUE;
    if (legacy_waits_for_capture(stream)) return CAPTURE_IMPLICIT;
    *out = stream->capture.state;
    if (number && is_capturing(stream)) *number = stream->capture.number;
    return OK;
}

static status invalidate_implied(const struct stream *legacy)
{
    for (struct stream *other = legacy->context->streams; other; other = other->next)
        if (other->blocking && is_capturing(other)) other->capture.state = CAPTURE_STATE_INVALIDATED;
    return CAPTURE_IMPLICIT;
}

/* Before a call that is potentially unsafe. */
status capture_check_unsafe(void)
{
    status result = OK;
    for (struct context *context = captures ? contexts : NULL; context; context = context->next)
        for (struct stream *stream = context->streams; stream; stream = stream->next)
            if (forbids(stream)) {
                stream->capture.state = CAPTURE_STATE_INVALIDATED;
                result = CAPTURE_UNSUPPORTED;
            }
    return result;
}

bool capture_active(const struct stream *stream) { return stream->capture.state == CAPTURE_STATE_ACTIVE; }

/* Before work is enqueued on a stream. */
status capture_check_work(const struct stream *stream)
{
    if (legacy_waits_for_capture(stream)) return invalidate_implied(stream);
    if (!is_capturing(stream)) return OK;
    return stream->capture.state == CAPTURE_STATE_INVALIDATED ? CAPTURE_INVALIDATED : NOT_SUPPORTED;
}

/* Before a stream is queried or waited for; the mode makes no difference. */
status capture_check_wait(struct stream *stream)
{
    if (legacy_waits_for_capture(stream)) return invalidate_implied(stream);
    if (!is_capturing(stream)) return OK;
    stream->capture.state = CAPTURE_STATE_INVALIDATED;
    return CAPTURE_UNSUPPORTED;
}

/* Before a context is waited for; the mode makes no difference. */
status capture_check_wait_context(struct context *context)
{
    status result = OK;
    for (struct stream *stream = context->streams; captures && stream; stream = stream->next)
        if (is_capturing(stream)) result = capture_check_wait(stream);
    return result;
}

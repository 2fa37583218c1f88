/* Devices and contexts: primary contexts, the stack of contexts of each thread, reset, peer access.
 *
 * A context is never freed, since a stream thread may still refer to it; a reset deactivates it and frees its streams, events
 * and memory. Called with the core's lock; reset, destroy and synchronize release it while they wait.
 */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 64

int device_count;
struct device devices[MAX_DEVICES];
struct context *contexts;

static _Thread_local uint64_t context_stack[STACK_DEPTH];
static _Thread_local int context_depth;

/* --- opening ------------------------------------------------------------------------------------------------------ */

static struct context *context_new(int device, bool is_primary)
{
    struct context *context = calloc(1, sizeof *context);
    if (!context) abort();
    context->device = device;
    context->is_primary = is_primary;
    context->handle = handle_new(HANDLE_CONTEXT, context);
    context->next = contexts;
    contexts = context;
    return context;
}

bool is_device(int device) { return device >= 0 && device < device_count; }

status devices_open(void)
{
    size_t total = core_setting_within("DEVMEM_EMULATOR_DEVICES", 2, 0, MAX_DEVICES);
    size_t bytes = core_setting_within("DEVMEM_EMULATOR_MEMORY", 8ull << 30, LEAST_MEMORY, MOST_MEMORY);
    int physical[MAX_DEVICES];
    device_count = front_visible_devices(physical, (int)total);
    for (int index = 0; index < device_count; index++) {
        struct device *device = &devices[index];
        device->physical = physical[index];
        if (!heap_open(&device->heap, bytes, MAPPED_HIDDEN)) return OUT_OF_MEMORY;
        device->primary = context_new(index, true);
        device->default_pool = device->current_pool = pool_open(index);
        device->default_pool->is_default = true;
    }
    size_t host = core_setting_within("DEVMEM_EMULATOR_HOST_MEMORY", 8ull << 30, LEAST_MEMORY, MOST_MEMORY);
    enum heap_mapping page_locked = watch_wanted() ? MAPPED_TWICE : MAPPED_ONCE;
    return heap_open(&pinned_heap, host, page_locked) && heap_open(&managed_heap, host, MAPPED_ONCE) ? OK : OUT_OF_MEMORY;
}

/* --- the current context ------------------------------------------------------------------------------------------ */

uint64_t context_top(void) { return context_depth ? context_stack[context_depth - 1] : 0; }

struct context *context_current(status *why)
{
    uint64_t handle = context_top();
    struct context *context = handle ? handle_get(handle, HANDLE_CONTEXT) : NULL;
    *why = !handle ? INVALID_CONTEXT : !context || !context->active ? CONTEXT_IS_DESTROYED : OK;
    return *why == OK ? context : NULL;
}

status context_of_handle(uint64_t handle, struct context **out)
{
    *out = handle_get(handle, HANDLE_CONTEXT);
    return *out ? OK : INVALID_CONTEXT;
}

status context_push(uint64_t handle)
{
    if (!handle_get(handle, HANDLE_CONTEXT)) return INVALID_CONTEXT;
    if (context_depth == STACK_DEPTH) return INVALID_VALUE;
    context_stack[context_depth++] = handle;
    return OK;
}

status context_pop(uint64_t *handle)
{
    if (!context_depth) return INVALID_CONTEXT;
    uint64_t popped = context_stack[--context_depth];
    if (handle) *handle = popped;
    return OK;
}

status context_set(uint64_t handle)
{
    if (!handle) {
        if (context_depth) context_depth--;
        return OK;
    }
    if (!handle_get(handle, HANDLE_CONTEXT)) return INVALID_CONTEXT;
    if (!context_depth) context_depth = 1;
    context_stack[context_depth - 1] = handle;
    return OK;
}

/* --- creation, reset, destruction --------------------------------------------------------------------------------- */

static void context_activate(struct context *context)
{
    context->active = true;
    context->sticky = OK;
    context->peers = 0;
    context->legacy = stream_open(context, 0, 0);
    context->legacy->legacy = true;
}

/* Free everything that was created in the context; its handles and addresses are unknown from now on. Another thread may retain it
 * while this one waits for its streams: it waits in turn, or it would be given what is about to be freed. */
static void context_deactivate(struct context *context)
{
    if (!context->active) return;
    context->active = false;
    context->ending = true;
    context->generation++;
    streams_abort(context);
    context->legacy = NULL;
    events_free_context(context);
    blocks_free_context(context, context->device);
    if (context->is_primary) pools_reset(context->device);
    context->ending = false;
    pthread_cond_broadcast(&progress);
}

status primary_retain(int device, uint64_t *handle)
{
    struct context *context = devices[device].primary;
    while (context->ending) pthread_cond_wait(&progress, &core_mutex);
    if (!context->active) context_activate(context);
    context->retained++;
    *handle = context->handle;
    return OK;
}

status primary_release(int device)
{
    struct context *context = devices[device].primary;
    if (!context->retained) return INVALID_CONTEXT;
    if (--context->retained == 0) context_deactivate(context);
    return OK;
}

/* The reference count stays, so that later releases succeed; a later retain activates the context again. */
status primary_reset(int device)
{
    struct context *context = devices[device].primary;
    context_deactivate(context);
    return OK;
}

status context_create(int device, unsigned flags, uint64_t *handle)
{
    struct context *context = context_new(device, false);
    context->flags = flags;
    context_activate(context);
    live_handles++;
    *handle = context->handle;
    return context_push(context->handle);
}

status context_destroy(uint64_t handle)
{
    struct context *context = handle_get(handle, HANDLE_CONTEXT);
    if (!context || context->is_primary) return INVALID_CONTEXT;
    if (context_top() == handle) context_depth--;
    handle_free(handle);
    context_deactivate(context); /* the struct stays: see the top of the file */
    live_handles--;
    return OK;
}

status context_synchronize(struct context *context)
{
    unsigned generation = context->generation;
    status free = capture_check_wait_context(context);
    if (free != OK) return free;
    host_wait_context(context);
    shadows_publish();
    if (context->generation != generation) return CONTEXT_IS_DESTROYED;
    pools_trim_to_threshold(context->device);
    return context->sticky;
}

/* Record a sticky error: every later call in the context returns it, until a reset. */
void context_fail(struct context *context, status code)
{
    if (context->sticky == OK) context->sticky = code;
}

/* --- peers -------------------------------------------------------------------------------------------------------- */

status peer_enable(struct context *context, uint64_t peer)
{
    struct context *other;
    status found = context_of_handle(peer, &other);
    if (found != OK) return found;
    if (other->device == context->device) return INVALID_DEVICE;
    if (context->peers & (1u << other->device)) return PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1u << other->device;
    return OK;
}

status peer_disable(struct context *context, uint64_t peer)
{
    struct context *other;
    status found = context_of_handle(peer, &other);
    if (found != OK) return found;
    if (!(context->peers & (1u << other->device))) return PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~(1u << other->device);
    return OK;
}

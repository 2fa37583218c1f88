/* The interface of tests: failing calls, delays, held streams, and counters. control.py calls these functions by name.
 *
 * They may be called from any thread and take the core's lock themselves. fault_due() is called with the lock, fault_delay()
 * on a stream thread without it.
 */
#define _GNU_SOURCE
#include "core.h"

#include <string.h>
#include <unistd.h>

#define MAX_PLANS 64

atomic_ulong function_calls[MAX_FUNCTIONS], slow_copies;

/* A planned failure: of the n-th call from now, or of every call from the n-th on. */
struct plan {
    int function;
    unsigned long countdown;
    status code;
    bool repeat;
};

static struct plan plans[MAX_PLANS];
static int plan_count;
static atomic_ulong delay_microseconds, delay_jitter, delay_seed;

status fault_due(int function)
{
    for (int index = 0; index < plan_count; index++) {
        struct plan *plan = &plans[index];
        if (plan->function != function) continue;
        if (plan->countdown > 1) {
            plan->countdown--;
            continue;
        }
        status code = plan->code;
        if (!plan->repeat) *plan = plans[--plan_count];
        return code;
    }
    return OK;
}

/* Errors after which, by the vendors' documentation, the context is lost. */
bool fault_is_sticky(status code)
{
    return code == 214 || code == 220 || code == ILLEGAL_ADDRESS || code == 702 || code == 710
        || (code >= 714 && code <= 719);
}

static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/* Sleep before an operation. For one seed, the same operation of the same stream has the same delay. */
void fault_delay(uint64_t stream, uint64_t sequence)
{
    unsigned long fixed = atomic_load(&delay_microseconds), jitter = atomic_load(&delay_jitter);
    if (jitter) fixed += mix(mix(atomic_load(&delay_seed) ^ (stream << 32)) ^ sequence) % (jitter + 1);
    if (fixed) usleep((useconds_t)fixed);
}

static int function_spelled(const char *name, size_t length)
{
    for (int index = 0; index < function_count; index++)
        if (strncmp(function_names[index], name, length) == 0 && !function_names[index][length]) return index;
    return -1;
}

/* The number of a function, or -1. The name may have the suffix of a version (_v2) or of the per-thread variant (_spt). */
static int function_named(const char *name)
{
    size_t length = strlen(name);
    int exact = function_spelled(name, length);
    if (exact >= 0) return exact;
    const char *suffix = strrchr(name, '_');
    bool known = suffix && (strcmp(suffix, "_spt") == 0 || (suffix[1] == 'v' && strlen(suffix) == 3));
    return known ? function_spelled(name, (size_t)(suffix - name)) : -1;
}

EXPORT int devmem_emulator_fail(const char *function, unsigned long nth, int code, int repeat)
{
    int index = function_named(function), result = -1;
    if (index < 0 || !nth) return -1;
    pthread_mutex_lock(&core_mutex);
    if (plan_count < MAX_PLANS) {
        plans[plan_count++] = (struct plan){index, nth, code, repeat != 0};
        result = 0;
    }
    pthread_mutex_unlock(&core_mutex);
    return result;
}

EXPORT void devmem_emulator_delay(unsigned long microseconds, unsigned long jitter, unsigned long seed)
{
    atomic_store(&delay_microseconds, microseconds);
    atomic_store(&delay_jitter, jitter);
    atomic_store(&delay_seed, seed);
}

static struct stream *any_stream(uint64_t handle)
{
    status why;
    struct context *context = context_current(&why);
    if (!context && device_count && devices[0].primary->active) context = devices[0].primary;
    return context ? stream_find(context, handle) : NULL;
}

/* Stop a stream before its next operation. Returns the handle for the release: that of a default stream, too; 0 if unknown. */
EXPORT uint64_t devmem_emulator_hold(uint64_t handle)
{
    pthread_mutex_lock(&core_mutex);
    struct stream *stream = any_stream(handle);
    if (stream) stream->held++;
    uint64_t held = stream ? stream->handle : 0;
    pthread_mutex_unlock(&core_mutex);
    return held;
}

EXPORT int devmem_emulator_release(uint64_t handle)
{
    pthread_mutex_lock(&core_mutex);
    struct stream *stream = handle_get(handle, HANDLE_STREAM);
    if (!stream) { /* destroyed while held: its queued work must still run */
        for (struct context *context = contexts; context && !stream; context = context->next)
            for (stream = context->streams; stream && stream->handle != handle; stream = stream->next) {}
    }
    if (stream && stream->held) {
        stream->held--;
        pthread_cond_signal(&stream->wake);
    }
    pthread_mutex_unlock(&core_mutex);
    return stream ? 0 : -1;
}

/* Whether the address is in coarse-grained host memory: see coherence.c. */
EXPORT int devmem_emulator_is_coarse(uint64_t address)
{
    pthread_mutex_lock(&core_mutex);
    struct block *block = block_find(address);
    int coarse = block && block->lease && block->lease->shadow;
    pthread_mutex_unlock(&core_mutex);
    return coarse;
}

EXPORT unsigned long devmem_emulator_slow_copies(void) { return atomic_load(&slow_copies); }

EXPORT int devmem_emulator_function_count(void) { return function_count; }
EXPORT const char *devmem_emulator_function_name(int index) { return function_names[index]; }
EXPORT unsigned long devmem_emulator_function_calls(int index) { return atomic_load(&function_calls[index]); }

EXPORT void devmem_emulator_live(unsigned long *bytes, long *handles)
{
    pthread_mutex_lock(&core_mutex);
    *bytes = live_bytes;
    *handles = live_handles;
    pthread_mutex_unlock(&core_mutex);
}

/* Clear planned failures, delays, holds and counters. Memory, streams and contexts stay. */
EXPORT void devmem_emulator_reset(void)
{
    devmem_emulator_delay(0, 0, 0);
    pthread_mutex_lock(&core_mutex);
    plan_count = 0;
    atomic_store(&slow_copies, 0);
    for (int index = 0; index < function_count; index++) atomic_store(&function_calls[index], 0);
    for (struct context *context = contexts; context; context = context->next)
        for (struct stream *stream = context->streams; stream; stream = stream->next) {
            stream->held = 0;
            pthread_cond_signal(&stream->wake);
        }
    pthread_mutex_unlock(&core_mutex);
}

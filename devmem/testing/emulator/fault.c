/* The interface of tests: delays, held streams, and what is live. control.py calls these functions by name; calls.c has the rest.
 *
 * They may be called from any thread and take the core's lock themselves. fault_delay() is called on a stream thread without it.
 */
#define _GNU_SOURCE
#include "core.h"

#include <unistd.h>

atomic_ulong slow_copies;

static atomic_ulong delay_microseconds, delay_jitter, delay_seed;

/* Errors after which, by the vendors' documentation, the context is lost. */
bool fault_is_sticky(status code)
{
    return code == 214 || code == 220 || code == 226 || code == ILLEGAL_ADDRESS || code == 702 || code == 710
        || (code >= 714 && code <= 719) || code == 721 || code == 810 || code == 911;
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

EXPORT void devmem_emulator_live(unsigned long *bytes, long *handles)
{
    pthread_mutex_lock(&core_mutex);
    *bytes = live_bytes;
    *handles = live_handles;
    pthread_mutex_unlock(&core_mutex);
}

/* Clear delays and holds. Memory, streams and contexts stay. */
EXPORT void devmem_emulator_reset(void)
{
    devmem_emulator_delay(0, 0, 0);
    pthread_mutex_lock(&core_mutex);
    atomic_store(&slow_copies, 0);
    for (struct context *context = contexts; context; context = context->next)
        for (struct stream *stream = context->streams; stream; stream = stream->next) {
            stream->held = 0;
            pthread_cond_signal(&stream->wake);
        }
    pthread_mutex_unlock(&core_mutex);
}

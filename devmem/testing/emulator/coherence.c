/* Coarse-grained host memory (HIP): the host sees what the device wrote only after a release to the system.
 *
 * Each such block has a shadow, into which the device writes and through which it reads. Publishing copies the written bytes
 * to the memory that the host sees. It happens when a stream or device is synchronized, and when an event that releases to
 * the system completes. Shadows have a lock of their own, as stream threads use them without the core's lock.
 */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct shadow {
    char *visible;            /* what the host sees */
    char *written;            /* what the device wrote, where dirty */
    unsigned char *dirty;     /* one flag for each byte */
    size_t bytes, low, high;  /* all dirty bytes are within [low, high) */
    struct shadow *next, **link;
};

static pthread_mutex_t shadow_mutex = PTHREAD_MUTEX_INITIALIZER; /* taken after the core's lock, or alone */
static struct shadow *shadows;

static void *reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

/* Make a block coarse-grained. Its lease owns the shadow. */
void shadow_attach(struct block *block)
{
    struct shadow *shadow = calloc(1, sizeof *shadow);
    if (!shadow) abort();
    shadow->visible = block->access;
    shadow->bytes = shadow->low = block->size;
    shadow->written = reserve(block->size);
    shadow->dirty = reserve(block->size);
    pthread_mutex_lock(&shadow_mutex);
    shadow->next = shadows;
    shadow->link = &shadows;
    if (shadows) shadows->link = &shadow->next;
    shadows = shadow;
    pthread_mutex_unlock(&shadow_mutex);
    block->lease->shadow = shadow;
}

void shadow_free(struct shadow *shadow)
{
    if (!shadow) return;
    pthread_mutex_lock(&shadow_mutex);
    *shadow->link = shadow->next;
    if (shadow->next) shadow->next->link = shadow->link;
    pthread_mutex_unlock(&shadow_mutex);
    munmap(shadow->written, shadow->bytes);
    munmap(shadow->dirty, shadow->bytes);
    free(shadow);
}

void shadow_write(struct shadow *shadow, char *at, const void *from, size_t bytes)
{
    size_t offset = (size_t)(at - shadow->visible);
    pthread_mutex_lock(&shadow_mutex);
    memcpy(shadow->written + offset, from, bytes);
    memset(shadow->dirty + offset, 1, bytes);
    if (offset < shadow->low) shadow->low = offset;
    if (offset + bytes > shadow->high) shadow->high = offset + bytes;
    pthread_mutex_unlock(&shadow_mutex);
}

/* Find the next run of dirty bytes at or after `from`: returns its start, or `limit`, and stores its end. */
static size_t run_after(const struct shadow *shadow, size_t from, size_t limit, size_t *end)
{
    const unsigned char *first = from < limit ? memchr(shadow->dirty + from, 1, limit - from) : NULL;
    if (!first) return limit;
    size_t start = (size_t)(first - shadow->dirty);
    const unsigned char *past = memchr(first, 0, limit - start);
    *end = past ? (size_t)(past - shadow->dirty) : limit;
    return start;
}

void shadow_read(struct shadow *shadow, void *to, const char *at, size_t bytes)
{
    size_t offset = (size_t)(at - shadow->visible), limit = offset + bytes, end;
    pthread_mutex_lock(&shadow_mutex);
    memcpy(to, at, bytes);
    for (size_t start = offset; (start = run_after(shadow, start, limit, &end)) < limit; start = end)
        memcpy((char *)to + (start - offset), shadow->written + start, end - start);
    pthread_mutex_unlock(&shadow_mutex);
}

void shadows_publish(void)
{
    pthread_mutex_lock(&shadow_mutex);
    for (struct shadow *shadow = shadows; shadow; shadow = shadow->next) {
        size_t limit = shadow->high, end;
        if (shadow->low >= limit) continue;
        for (size_t start = shadow->low; (start = run_after(shadow, start, limit, &end)) < limit; start = end)
            memcpy(shadow->visible + start, shadow->written + start, end - start);
        memset(shadow->dirty + shadow->low, 0, limit - shadow->low);
        shadow->low = shadow->bytes;
        shadow->high = 0;
    }
    pthread_mutex_unlock(&shadow_mutex);
}

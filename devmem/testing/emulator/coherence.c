/* Coarse-grained host memory: what the device writes there, the host sees after the next release to the whole system.
 *
 * The device writes into a shade beside the memory that the host sees, and reads through it; publishing copies what was
 * written since. A stream or device that is waited for publishes, and so does an event made for it when it is reached.
 */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct shade {
    char *visible;            /* what the host sees */
    char *written;            /* what the device wrote, where dirty */
    unsigned char *dirty;     /* by byte */
    size_t bytes, low, high;  /* all dirty bytes are within [low, high) */
    struct shade *next, **link;
};

static pthread_mutex_t shade_mutex = PTHREAD_MUTEX_INITIALIZER; /* taken after the core's, or alone */
static struct shade *shades;

static void *reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

/* Make a block coarse-grained; it stays so until it is freed and no operation wants it. */
void shade_give(struct block *block)
{
    struct shade *shade = calloc(1, sizeof *shade);
    if (!shade) abort();
    shade->visible = block->access;
    shade->bytes = shade->low = block->size;
    shade->written = reserve(block->size);
    shade->dirty = reserve(block->size);
    pthread_mutex_lock(&shade_mutex);
    shade->next = shades;
    shade->link = &shades;
    if (shades) shades->link = &shade->next;
    shades = shade;
    pthread_mutex_unlock(&shade_mutex);
    block->lease->shade = shade;
}

void shade_drop(struct shade *shade)
{
    if (!shade) return;
    pthread_mutex_lock(&shade_mutex);
    *shade->link = shade->next;
    if (shade->next) shade->next->link = shade->link;
    pthread_mutex_unlock(&shade_mutex);
    munmap(shade->written, shade->bytes);
    munmap(shade->dirty, shade->bytes);
    free(shade);
}

void shade_write(struct shade *shade, char *at, const void *from, size_t bytes)
{
    size_t offset = (size_t)(at - shade->visible);
    pthread_mutex_lock(&shade_mutex);
    memcpy(shade->written + offset, from, bytes);
    memset(shade->dirty + offset, 1, bytes);
    if (offset < shade->low) shade->low = offset;
    if (offset + bytes > shade->high) shade->high = offset + bytes;
    pthread_mutex_unlock(&shade_mutex);
}

/* The next run of dirty bytes at or after `from`: its start, and its end in `end`; `limit` where there is none. */
static size_t run_after(const struct shade *shade, size_t from, size_t limit, size_t *end)
{
    const unsigned char *first = from < limit ? memchr(shade->dirty + from, 1, limit - from) : NULL;
    if (!first) return limit;
    size_t start = (size_t)(first - shade->dirty);
    const unsigned char *past = memchr(first, 0, limit - start);
    *end = past ? (size_t)(past - shade->dirty) : limit;
    return start;
}

void shade_read(struct shade *shade, void *to, const char *at, size_t bytes)
{
    size_t offset = (size_t)(at - shade->visible), limit = offset + bytes, end;
    pthread_mutex_lock(&shade_mutex);
    memcpy(to, at, bytes);
    for (size_t start = offset; (start = run_after(shade, start, limit, &end)) < limit; start = end)
        memcpy((char *)to + (start - offset), shade->written + start, end - start);
    pthread_mutex_unlock(&shade_mutex);
}

void shades_publish(void)
{
    pthread_mutex_lock(&shade_mutex);
    for (struct shade *shade = shades; shade; shade = shade->next) {
        size_t limit = shade->high, end;
        if (shade->low >= limit) continue;
        for (size_t start = shade->low; (start = run_after(shade, start, limit, &end)) < limit; start = end)
            memcpy(shade->visible + start, shade->written + start, end - start);
        memset(shade->dirty + shade->low, 0, limit - shade->low);
        shade->low = shade->bytes;
        shade->high = 0;
    }
    pthread_mutex_unlock(&shade_mutex);
}

/* Drives an emulated driver from several threads, without an interpreter: for the thread sanitizer (scripts/sanitize).
 *
 * Compiled with -Dover_cuda or -Dover_roc, and linked with the emulated library. Each thread has streams, events and memory of its own, and
 * works with its neighbour's event too, which is legal. Bytes that come back wrong, and calls that fail, end the program.
 *
 *   emulator_threads [ROUNDS]
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef over_cuda
#define CALL(cuda, hip) cuda
#else
#define CALL(cuda, hip) hip
#endif

enum { THREADS = 4, BYTES = 20000, NON_BLOCKING = 1, TO_DEVICE = 1, TO_HOST = 2, NOT_READY = 600 };

#define init CALL(cuInit, hipInit)
#define alloc CALL(cuMemAlloc_v2, hipMalloc)
#define release CALL(cuMemFree_v2, hipFree)
#define alloc_async CALL(cuMemAllocAsync, hipMallocAsync)
#define release_async CALL(cuMemFreeAsync, hipFreeAsync)
#define alloc_host CALL(cuMemHostAlloc, hipHostMalloc)
#define release_host CALL(cuMemFreeHost, hipHostFree)
#define lock_pages CALL(cuMemHostRegister_v2, hipHostRegister)
#define unlock_pages CALL(cuMemHostUnregister, hipHostUnregister)
#define memory_info CALL(cuMemGetInfo_v2, hipMemGetInfo)
#define fill CALL(cuMemsetD8Async, hipMemsetAsync)
#define stream_create CALL(cuStreamCreate, hipStreamCreateWithFlags)
#define stream_destroy CALL(cuStreamDestroy_v2, hipStreamDestroy)
#define stream_synchronize CALL(cuStreamSynchronize, hipStreamSynchronize)
#define stream_query CALL(cuStreamQuery, hipStreamQuery)
#define stream_wait CALL(cuStreamWaitEvent, hipStreamWaitEvent)
#define event_create CALL(cuEventCreate, hipEventCreateWithFlags)
#define event_destroy CALL(cuEventDestroy_v2, hipEventDestroy)
#define event_record CALL(cuEventRecord, hipEventRecord)
#define event_query CALL(cuEventQuery, hipEventQuery)
#define event_synchronize CALL(cuEventSynchronize, hipEventSynchronize)
#define call_host CALL(cuLaunchHostFunc, hipLaunchHostFunc)

int init(unsigned);
int alloc(uint64_t *, size_t);
int release(uint64_t);
int alloc_async(uint64_t *, size_t, uint64_t);
int release_async(uint64_t, uint64_t);
int alloc_host(void **, size_t, unsigned);
int release_host(void *);
int lock_pages(void *, size_t, unsigned);
int unlock_pages(void *);
int memory_info(size_t *, size_t *);
int stream_create(uint64_t *, unsigned);
int stream_destroy(uint64_t);
int stream_synchronize(uint64_t);
int stream_query(uint64_t);
int stream_wait(uint64_t, uint64_t, unsigned);
int event_create(uint64_t *, unsigned);
int event_destroy(uint64_t);
int event_record(uint64_t, uint64_t);
int event_query(uint64_t);
int event_synchronize(uint64_t);
int call_host(uint64_t, void (*)(void *), void *);

#ifdef over_cuda
static uint64_t context;

int cuDevicePrimaryCtxRetain(uint64_t *, int);
int cuCtxSetCurrent(uint64_t);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, uint64_t);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, uint64_t);
int fill(uint64_t, unsigned char, size_t, uint64_t);
#define upload cuMemcpyHtoDAsync_v2
#define download cuMemcpyDtoHAsync_v2
#else
int hipSetDevice(int);
int hipMemcpyAsync(void *, const void *, size_t, int, uint64_t);
int fill(uint64_t, int, size_t, uint64_t);
#define upload(to, from, bytes, stream) hipMemcpyAsync((void *)(to), from, bytes, TO_DEVICE, stream)
#define download(to, from, bytes, stream) hipMemcpyAsync(to, (const void *)(from), bytes, TO_HOST, stream)
#endif

static int rounds = 100;
static uint64_t events[THREADS];

static void check(int code, const char *what, int line)
{
    if (code) {
        fprintf(stderr, "line %d: %s: %d\n", line, what, code);
        exit(2);
    }
}

#define DO(call) check(call, #call, __LINE__)
/* A question that may be answered by "not ready". */
#define ASK(call)                                                                                                               \
    do {                                                                                                                        \
        int answer = call;                                                                                                      \
        check(answer == NOT_READY ? 0 : answer, #call, __LINE__);                                                               \
    } while (0)

static void enter(void)
{
#ifdef over_cuda
    DO(cuCtxSetCurrent(context));
#else
    DO(hipSetDevice(0));
#endif
}

static void count(void *data) { (*(int *)data)++; }

static void round_of(int me, int number, unsigned char *pageable)
{
    uint64_t stream, event, block, ordered;
    unsigned char *pinned;
    size_t available, total;
    int called = 0, value = (me * 50 + number) % 251;

    DO(stream_create(&stream, NON_BLOCKING));
    DO(event_create(&event, 0));
    DO(alloc(&block, BYTES));
    DO(alloc_host((void **)&pinned, BYTES, 0));
    memset(pinned, value, BYTES);
    DO(upload(block, pinned, BYTES, stream));
    DO(event_record(event, stream));
    DO(event_record(events[me], stream));
    ASK(event_query(events[(me + 1) % THREADS]));
    DO(stream_wait(stream, events[(me + 1) % THREADS], 0));
    DO(alloc_async(&ordered, BYTES, stream));
    DO(fill(ordered, value, BYTES, stream));
    DO(release_async(ordered, stream));
    DO(call_host(stream, count, &called));
    ASK(stream_query(stream));
    DO(event_synchronize(event));
    memset(pinned, 0, BYTES);
    DO(download(pinned, block, BYTES, stream));
    DO(download(pageable, block, BYTES, stream));
    DO(memory_info(&available, &total));
    DO(stream_synchronize(stream));
    if (pinned[0] != value || pinned[BYTES - 1] != value || memcmp(pinned, pageable, BYTES) || called != 1)
        check(1, "bytes", __LINE__);
    DO(lock_pages(pageable, BYTES, 0));
    DO(upload(block, pageable, BYTES, stream));
    DO(stream_synchronize(stream));
    DO(unlock_pages(pageable));
    DO(release(block));
    DO(release_host(pinned));
    DO(event_destroy(event));
    DO(stream_destroy(stream));
}

static void *work(void *data)
{
    int me = (int)(intptr_t)data;
    unsigned char *pageable = aligned_alloc(4096, (BYTES / 4096 + 1) * 4096);

    enter();
    for (int number = 0; number < rounds; number++)
        round_of(me, number, pageable);
    free(pageable);
    return NULL;
}

int main(int count_of_words, char **words)
{
    pthread_t threads[THREADS];

    if (count_of_words > 1)
        rounds = atoi(words[1]);
    DO(init(0));
#ifdef over_cuda
    DO(cuDevicePrimaryCtxRetain(&context, 0));
#endif
    enter();
    for (int each = 0; each < THREADS; each++)
        DO(event_create(&events[each], 0));
    for (int each = 0; each < THREADS; each++)
        DO(pthread_create(&threads[each], NULL, work, (void *)(intptr_t)each));
    for (int each = 0; each < THREADS; each++)
        DO(pthread_join(threads[each], NULL));
    printf("%d threads, %d rounds each: every byte was right\n", THREADS, rounds);
    return 0;
}

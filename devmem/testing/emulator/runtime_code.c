/* CUDA runtime front: device code that a program registers. It is kept, and none of it runs.
 *
 * A compiled program registers its fat binaries, kernels and variables when it is loaded, before anything else. A launch of a
 * registered kernel is cudaErrorNotSupported; with DEVMEM_EMULATOR_LAUNCHES=skip it succeeds and does nothing. A variable has
 * device memory from its first use on, with the contents of any new allocation. Any thread may call the functions.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_FIRST 1024u
#define MOST_THREADS 1024u

struct code {
    const void *host;         /* the address by which the program names it; NULL: a free slot */
    void **binary;            /* the registered fat binary it came from */
    bool is_variable;
    size_t bytes;
    uint64_t at[MAX_DEVICES];
};

/* All that is registered, by the hash of the host's address: tens of thousands in large libraries. */
static pthread_mutex_t code_lock = PTHREAD_MUTEX_INITIALIZER;
static struct code **table;
static size_t room, used;
static _Thread_local struct launch configuration;

static size_t slot_of(const void *host, size_t size)
{
    size_t slot = (size_t)(address_of(host) * 0x9e3779b97f4a7c15u >> 20) & (size - 1);
    while (table[slot] && table[slot]->host != host) slot = (slot + 1) & (size - 1);
    return slot;
}

static void grow(void)
{
    struct code **before = table;
    size_t old = room;
    room = room ? room * 2 : TABLE_FIRST;
    table = calloc(room, sizeof *table);
    if (!table) abort();
    for (size_t slot = 0; slot < old; slot++)
        if (before[slot]) table[slot_of(before[slot]->host, room)] = before[slot];
    free(before);
}

static void keep(void **binary, const void *host, bool is_variable, size_t bytes)
{
    pthread_mutex_lock(&code_lock);
    if (2 * (used + 1) > room) grow();
    size_t slot = slot_of(host, room);
    if (!table[slot]) {
        table[slot] = calloc(1, sizeof **table);
        if (!table[slot]) abort();
        used++;
    }
    *table[slot] = (struct code){host, binary, is_variable, bytes, {0}};
    pthread_mutex_unlock(&code_lock);
}

static struct code *find(const void *host, bool is_variable)
{
    pthread_mutex_lock(&code_lock);
    struct code *known = room ? table[slot_of(host, room)] : NULL;
    pthread_mutex_unlock(&code_lock);
    return known && known->binary && known->is_variable == is_variable ? known : NULL;
}

static void count(int function) { atomic_fetch_add_explicit(&function_calls[function], 1, memory_order_relaxed); }

/* --- registration: what compilers emit ----------------------------------------------------------------------------- */

EXPORT void **__cudaRegisterFatBinary(void *image)
{
    count(FUNCTION___cudaRegisterFatBinary);
    void **binary = malloc(sizeof *binary);
    if (!binary) abort();
    *binary = image;
    return binary;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **binary)
{
    (void)binary;
    count(FUNCTION___cudaRegisterFatBinaryEnd);
}

/* Its kernels and variables are unknown from now on; memory of the variables goes with the process. */
EXPORT void __cudaUnregisterFatBinary(void **binary)
{
    count(FUNCTION___cudaUnregisterFatBinary);
    pthread_mutex_lock(&code_lock);
    for (size_t slot = 0; slot < room; slot++)
        if (table[slot] && table[slot]->binary == binary) table[slot]->binary = NULL;
    pthread_mutex_unlock(&code_lock);
    free(binary);
}

EXPORT char __cudaInitModule(void **binary)
{
    (void)binary;
    count(FUNCTION___cudaInitModule);
    return 1;
}

EXPORT void __cudaRegisterFunction(void **binary, const void *host, char *device, const char *name, int threads, void *thread,
                                   void *block, void *block_size, void *grid_size, int *warp)
{
    (void)device, (void)name, (void)threads, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp;
    count(FUNCTION___cudaRegisterFunction);
    keep(binary, host, false, 0);
}

EXPORT void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int external, size_t bytes, int constant,
                              int global)
{
    (void)device, (void)name, (void)external, (void)constant, (void)global;
    count(FUNCTION___cudaRegisterVar);
    keep(binary, host, true, bytes);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

EXPORT unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, handle stream)
{
    count(FUNCTION___cudaPushCallConfiguration);
    configuration = (struct launch){grid, block, shared, stream};
    return 0;
}

EXPORT status __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, handle *stream)
{
    count(FUNCTION___cudaPopCallConfiguration);
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *stream = configuration.stream;
    return OK;
}

RUNTIME_CALL(__cudaGetKernel)(const void **kernel, const void *function)
{
    BEGIN(__cudaGetKernel, NEED_NOTHING);
    REQUIRE(find(function, false), INVALID_FUNCTION);
    *kernel = function;
    END(OK);
}

static bool launches_are_skipped(void)
{
    const char *wanted = getenv("DEVMEM_EMULATOR_LAUNCHES");
    return wanted && strcmp(wanted, "skip") == 0;
}

status launch_check(const void *function, const struct launch *launch, status (*flags_of)(handle, unsigned *))
{
    struct dim3 grid = launch->grid, block = launch->block;
    unsigned flags;
    if (!find(function, false)) return INVALID_FUNCTION;
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return INVALID_CONFIGURATION;
    if ((uint64_t)block.x * block.y * block.z > MOST_THREADS) return INVALID_CONFIGURATION;
    status known = flags_of(launch->stream, &flags);
    return known != OK ? known : launches_are_skipped() ? OK : NOT_SUPPORTED;
}

RUNTIME_CALL(cudaFuncGetAttributes)(struct function_attributes *out, const void *function)
{
    BEGIN(cudaFuncGetAttributes, NEED_CONTEXT);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(find(function, false), INVALID_FUNCTION);
    *out = (struct function_attributes){.threads = MOST_THREADS, .registers = 32, .ptx = 80, .binary = 80, .dynamic_shared = 49152};
    END(OK);
}

RUNTIME_CALL(cudaFuncSetAttribute)(const void *function, int attribute, int value)
{
    BEGIN(cudaFuncSetAttribute, NEED_CONTEXT);
    (void)attribute, (void)value;
    END(find(function, false) ? OK : INVALID_FUNCTION);
}

static status occupancy(int *blocks, const void *function, int threads)
{
    if (!blocks || threads <= 0) return INVALID_VALUE;
    if (!find(function, false)) return INVALID_FUNCTION;
    *blocks = threads <= (int)MOST_THREADS ? (int)MOST_THREADS / threads : 0;
    return OK;
}

RUNTIME_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, const void *function, int threads, size_t shared)
{
    BEGIN(cudaOccupancyMaxActiveBlocksPerMultiprocessor, NEED_CONTEXT);
    (void)shared;
    END(occupancy(blocks, function, threads));
}

RUNTIME_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(int *blocks, const void *function, int threads, size_t shared,
                                                                     unsigned flags)
{
    BEGIN(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, NEED_CONTEXT);
    (void)shared;
    END(flags <= 1 ? occupancy(blocks, function, threads) : INVALID_VALUE);
}

/* --- variables ---------------------------------------------------------------------------------------------------- */

/* Its address on the current device. */
status symbol_find(const void *symbol, uint64_t *address, size_t *bytes)
{
    struct code *variable = find(symbol, true);
    int device;
    if (!variable) return INVALID_SYMBOL;
    *bytes = variable->bytes;
    status result = DRIVER(cuCtxGetDevice)(&device, 0);
    if (result != OK) return result;
    pthread_mutex_lock(&code_lock);
    if (!variable->at[device]) result = DRIVER(cuMemAlloc)(&variable->at[device], variable->bytes);
    *address = variable->at[device];
    pthread_mutex_unlock(&code_lock);
    return result;
}

RUNTIME_CALL(cudaGetSymbolAddress)(uint64_t *out, const void *symbol)
{
    BEGIN(cudaGetSymbolAddress, NEED_CONTEXT);
    size_t bytes;
    END(out ? symbol_find(symbol, out, &bytes) : INVALID_VALUE);
}

RUNTIME_CALL(cudaGetSymbolSize)(size_t *out, const void *symbol)
{
    BEGIN(cudaGetSymbolSize, NEED_CONTEXT);
    uint64_t address;
    END(out ? symbol_find(symbol, &address, out) : INVALID_VALUE);
}

/* CUDA runtime front: finding the driver, the thread's device and last error, devices, creation of streams and events.
 *
 * The runtime uses the context that is current; where none is, it makes the primary context of the thread's device current.
 * Any thread may call the functions.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_DRIVER (RUNTIME * 1000)
#define REQUIRES_NEWER_DRIVER 36

struct driver drivers[2];

static pthread_mutex_t runtime_lock = PTHREAD_MUTEX_INITIALIZER;
static status opened = NOT_READY; /* what finding the driver gave: NOT_READY before the first call */
static status (*get_entry)(const char *, void **, int, uint64_t, int *);
static _Atomic uint64_t primaries[MAX_DEVICES];

static _Thread_local int chosen_device;
static _Thread_local status last_error;

/* --- the driver --------------------------------------------------------------------------------------------------- */

static status too_old(void) { return REQUIRES_NEWER_DRIVER; }

static void *driver_function(const char *name, int version, bool per_thread)
{
    void *found = NULL;
    status result = get_entry(name, &found, version, per_thread ? 2 : 1, NULL);
    return result == OK && found ? found : (void *)too_old;
}

static status driver_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&get_entry = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!get_entry) return INSUFFICIENT_DRIVER;
    int version = 0;
    status (*get_version)(int *);
    *(void **)&get_version = driver_function("cuDriverGetVersion", LEAST_DRIVER, false);
    status known = get_version(&version);
    if (known != OK || version < LEAST_DRIVER) return INSUFFICIENT_DRIVER;
#define FIND(name, parameters)                                                     \
    *(void **)&drivers[0].name = driver_function(#name, version, false);           \
    *(void **)&drivers[1].name = driver_function(#name, version, true);
    DRIVER_FUNCTIONS(FIND)
    return DRIVER(cuInit)(0);
}

/* cuInit is tried again after a failure other than a missing or an old driver. */
static status open_driver(void)
{
    pthread_mutex_lock(&runtime_lock);
    if (opened != OK && opened != INSUFFICIENT_DRIVER) opened = driver_open();
    status result = opened;
    pthread_mutex_unlock(&runtime_lock);
    return result;
}

status runtime_driver_entry(const char *name, void **out, int version, uint64_t flags, int *found)
{
    return get_entry(name, out, version, flags, found);
}

/* --- the context -------------------------------------------------------------------------------------------------- */

static bool is_active(int device)
{
    unsigned flags;
    int active = 0;
    return DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active) == OK && active;
}

/* Retained once for the process, and again after a reset. */
status primary_of(int device, handle *out)
{
    int count = 0;
    status result = DRIVER(cuDeviceGetCount)(&count);
    if (result != OK) return result;
    if (device < 0 || device >= count || device >= MAX_DEVICES) return INVALID_DEVICE;
    *out = atomic_load(&primaries[device]);
    if (*out && is_active(device)) return OK;
    result = DRIVER(cuDevicePrimaryCtxRetain)(out, device);
    if (result == OK) atomic_store(&primaries[device], *out);
    return result;
}

static int device_of_primary(handle context)
{
    for (int device = 0; device < MAX_DEVICES; device++)
        if (atomic_load(&primaries[device]) == context) return device;
    return -1;
}

static status ensure_context(void)
{
    handle current = 0;
    status result = DRIVER(cuCtxGetCurrent)(&current);
    if (result != OK) return result;
    int device = current ? device_of_primary(current) : chosen_device;
    if (current && (device < 0 || is_active(device))) return OK;
    result = primary_of(device, &current);
    return result == OK ? DRIVER(cuCtxSetCurrent)(current) : result;
}

status runtime_enter(int function, enum need need, struct context **context)
{
    (void)context;
    atomic_fetch_add_explicit(&function_calls[function], 1, memory_order_relaxed);
    status result = fault_due(function);
    if (result == OK && need != NEED_NOTHING) result = open_driver();
    if (result == OK && need == NEED_CONTEXT) result = ensure_context();
    return result == OK ? OK : runtime_leave(result);
}

status runtime_leave(status result)
{
    if (result != OK) last_error = result;
    return result;
}

/* --- errors and versions ------------------------------------------------------------------------------------------ */

/* The error of a lost context stays. */
RUNTIME_CALL(cudaGetLastError)(void)
{
    atomic_fetch_add_explicit(&function_calls[FUNCTION_cudaGetLastError], 1, memory_order_relaxed);
    status result = last_error;
    unsigned flags;
    bool stays = result != OK && opened == OK && DRIVER(cuCtxGetFlags)(&flags) == result;
    if (!stays) last_error = OK;
    return result;
}

RUNTIME_CALL(cudaPeekAtLastError)(void)
{
    atomic_fetch_add_explicit(&function_calls[FUNCTION_cudaPeekAtLastError], 1, memory_order_relaxed);
    return last_error;
}

RUNTIME_CALL(cudaRuntimeGetVersion)(int *version)
{
    BEGIN(cudaRuntimeGetVersion, NEED_NOTHING);
    REQUIRE(version, INVALID_VALUE);
    *version = RUNTIME < 13 ? 12090 : 13000;
    END(OK);
}

/* 0 where there is no driver. */
RUNTIME_CALL(cudaDriverGetVersion)(int *version)
{
    BEGIN(cudaDriverGetVersion, NEED_NOTHING);
    REQUIRE(version, INVALID_VALUE);
    *version = 0;
    END(open_driver() == INSUFFICIENT_DRIVER ? OK : DRIVER(cuDriverGetVersion)(version));
}

RUNTIME_CALL(cudaGetDriverEntryPointByVersion)(const char *name, void **out, unsigned version, unsigned long long flags, int *found)
{
    BEGIN(cudaGetDriverEntryPointByVersion, NEED_INIT);
    REQUIRE(name && out && flags <= 2, INVALID_VALUE);
    int why = 0;
    status result = runtime_driver_entry(name, out, (int)version, flags, &why);
    if (found) *found = why;
    END(result == NOT_FOUND ? OK : result);
}

RUNTIME_CALL(cudaGetDriverEntryPoint)(const char *name, void **out, unsigned long long flags, int *found)
{
    return cudaGetDriverEntryPointByVersion(name, out, LEAST_DRIVER, flags, found);
}

/* --- devices ------------------------------------------------------------------------------------------------------ */

RUNTIME_CALL(cudaGetDeviceCount)(int *count)
{
    if (count) *count = 0;
    BEGIN(cudaGetDeviceCount, NEED_INIT);
    END(count ? DRIVER(cuDeviceGetCount)(count) : INVALID_VALUE);
}

/* The device of the current context, else the one that the thread chose. */
RUNTIME_CALL(cudaGetDevice)(int *device)
{
    BEGIN(cudaGetDevice, NEED_INIT);
    REQUIRE(device, INVALID_VALUE);
    handle current = 0;
    status result = DRIVER(cuCtxGetCurrent)(&current);
    *device = chosen_device;
    END(result == OK && current ? DRIVER(cuCtxGetDevice)(device, 0) : result);
}

RUNTIME_CALL(cudaSetDevice)(int device)
{
    BEGIN(cudaSetDevice, NEED_INIT);
    handle context_of;
    status result = primary_of(device, &context_of);
    if (result == OK) result = DRIVER(cuCtxSetCurrent)(context_of);
    if (result == OK) chosen_device = device;
    END(result);
}

RUNTIME_CALL(cudaInitDevice)(int device, unsigned device_flags, unsigned flags)
{
    BEGIN(cudaInitDevice, NEED_INIT);
    REQUIRE(flags <= 1 && (flags || !device_flags), INVALID_VALUE);
    handle made;
    status result = flags ? DRIVER(cuDevicePrimaryCtxSetFlags)(device, device_flags) : OK;
    END(result == OK ? primary_of(device, &made) : result);
}

static status current_device(int *device) { return DRIVER(cuCtxGetDevice)(device, 0); }

RUNTIME_CALL(cudaDeviceReset)(void)
{
    BEGIN(cudaDeviceReset, NEED_CONTEXT);
    int device;
    status result = current_device(&device);
    END(result == OK ? DRIVER(cuDevicePrimaryCtxReset)(device) : result);
}

RUNTIME_CALL(cudaDeviceSynchronize)(void)
{
    BEGIN(cudaDeviceSynchronize, NEED_CONTEXT);
    END(DRIVER(cuCtxSynchronize)(0));
}

RUNTIME_CALL(cudaDeviceGetAttribute)(int *value, int attribute, int device)
{
    BEGIN(cudaDeviceGetAttribute, NEED_INIT);
    END(DRIVER(cuDeviceGetAttribute)(value, attribute, device));
}

static int attribute_of(int device, int attribute)
{
    int value = 0;
    DRIVER(cuDeviceGetAttribute)(&value, attribute, device);
    return value;
}

static void read_properties(struct properties *out, int device)
{
#define READ(field, number) out->field = (__typeof__(out->field))attribute_of(device, number);
    READ(threads_per_block, 1) READ(threads[0], 2) READ(threads[1], 3) READ(threads[2], 4) READ(grid[0], 5) READ(grid[1], 6)
    READ(grid[2], 7) READ(shared_per_block, 8) READ(constant_memory, 9) READ(warp_size, 10) READ(pitch, 11)
    READ(registers_per_block, 12) READ(texture_alignment, 14) READ(processors, 16) READ(integrated, 18) READ(can_map_host, 19)
    READ(surface_alignment, 30) READ(concurrent_kernels, 31) READ(ecc, 32) READ(pci_bus, 33) READ(pci_device, 34) READ(tcc, 35)
    READ(memory_bus_width, 37) READ(l2_cache, 38) READ(threads_per_processor, 39) READ(async_engines, 40)
    READ(unified_addressing, 41) READ(pci_domain, 50) READ(texture_pitch_alignment, 51) READ(major, 75) READ(minor, 76)
    READ(stream_priorities, 78) READ(l1_global, 79) READ(l1_local, 80) READ(shared_per_processor, 81)
    READ(registers_per_processor, 82) READ(managed, 83) READ(multi_board, 84) READ(board_group, 85) READ(host_atomics, 86)
    READ(pageable_access, 88) READ(concurrent_managed, 89) READ(preemption, 90) READ(host_pointer_registered, 91)
    READ(cooperative, 95) READ(shared_optin, 97) READ(host_register, 99) READ(pageable_by_host_tables, 100)
    READ(direct_managed, 101) READ(blocks_per_processor, 106) READ(persisting_l2, 108) READ(policy_window, 109)
    READ(shared_reserved, 111) READ(sparse, 112) READ(register_read_only, 113) READ(timeline, 114) READ(pools, 115)
    READ(rdma, 116) READ(rdma_flush, 117) READ(rdma_order, 118) READ(pool_handles, 119) READ(clusters, 120)
    READ(deferred_mapping, 121) READ(ipc_events, 125) READ(unified_functions, 129)
#if RUNTIME < 13
    READ(clock, 13) READ(overlap, 15) READ(timeout, 17) READ(compute_mode, 20) READ(memory_clock, 36) READ(double_ratio, 87)
#else
    READ(numa_config, 130) READ(numa_id, 131) READ(mps, 133) READ(host_numa_id, 134) READ(pci_device_id, 139)
    READ(pci_subsystem_id, 140) READ(multinode_ipc, 143)
#endif
}

/* In version 12 the plain name means the layout of 11, which is not offered. */
#if RUNTIME < 13
RUNTIME_CALL(cudaGetDeviceProperties_v2)(struct properties *out, int device)
#else
RUNTIME_CALL(cudaGetDeviceProperties)(struct properties *out, int device)
#endif
{
    BEGIN(cudaGetDeviceProperties, NEED_INIT);
    struct properties found = {0};
    REQUIRE(out, INVALID_VALUE);
    status result = DRIVER(cuDeviceGetName)(found.name, sizeof found.name, device);
    if (result == OK) result = DRIVER(cuDeviceGetUuid)(found.uuid, device);
    if (result == OK) result = DRIVER(cuDeviceTotalMem)(&found.total_memory, device);
    REQUIRE(result == OK, result);
    read_properties(&found, device);
    *out = found;
    END(OK);
}

RUNTIME_CALL(cudaDeviceGetPCIBusId)(char *text, int length, int device)
{
    BEGIN(cudaDeviceGetPCIBusId, NEED_INIT);
    END(DRIVER(cuDeviceGetPCIBusId)(text, length, device));
}

RUNTIME_CALL(cudaDeviceGetByPCIBusId)(int *device, const char *text)
{
    BEGIN(cudaDeviceGetByPCIBusId, NEED_INIT);
    END(DRIVER(cuDeviceGetByPCIBusId)(device, text));
}

RUNTIME_CALL(cudaGetDeviceFlags)(unsigned *flags)
{
    BEGIN(cudaGetDeviceFlags, NEED_CONTEXT);
    END(DRIVER(cuCtxGetFlags)(flags));
}

RUNTIME_CALL(cudaSetDeviceFlags)(unsigned flags)
{
    BEGIN(cudaSetDeviceFlags, NEED_INIT);
    END(DRIVER(cuDevicePrimaryCtxSetFlags)(chosen_device, flags));
}

RUNTIME_CALL(cudaDeviceGetStreamPriorityRange)(int *least, int *greatest)
{
    BEGIN(cudaDeviceGetStreamPriorityRange, NEED_CONTEXT);
    END(DRIVER(cuCtxGetStreamPriorityRange)(least, greatest));
}

RUNTIME_CALL(cudaDeviceCanAccessPeer)(int *can, int device, int peer)
{
    BEGIN(cudaDeviceCanAccessPeer, NEED_INIT);
    END(DRIVER(cuDeviceCanAccessPeer)(can, device, peer));
}

RUNTIME_CALL(cudaDeviceEnablePeerAccess)(int peer, unsigned flags)
{
    BEGIN(cudaDeviceEnablePeerAccess, NEED_CONTEXT);
    handle other;
    status result = primary_of(peer, &other);
    END(result == OK ? DRIVER(cuCtxEnablePeerAccess)(other, flags) : result);
}

RUNTIME_CALL(cudaDeviceDisablePeerAccess)(int peer)
{
    BEGIN(cudaDeviceDisablePeerAccess, NEED_CONTEXT);
    handle other;
    status result = primary_of(peer, &other);
    END(result == OK ? DRIVER(cuCtxDisablePeerAccess)(other) : result);
}

RUNTIME_CALL(cudaDeviceGetP2PAttribute)(int *value, int attribute, int from, int to)
{
    BEGIN(cudaDeviceGetP2PAttribute, NEED_INIT);
    END(DRIVER(cuDeviceGetP2PAttribute)(value, attribute, from, to));
}

/* --- streams and events: calls in which stream 0 has no meaning --------------------------------------------------- */

RUNTIME_CALL(cudaStreamCreateWithPriority)(handle *out, unsigned flags, int priority)
{
    BEGIN(cudaStreamCreateWithPriority, NEED_CONTEXT);
    END(DRIVER(cuStreamCreateWithPriority)(out, flags, priority));
}

RUNTIME_CALL(cudaStreamCreateWithFlags)(handle *out, unsigned flags)
{
    BEGIN(cudaStreamCreateWithFlags, NEED_CONTEXT);
    END(DRIVER(cuStreamCreateWithPriority)(out, flags, 0));
}

RUNTIME_CALL(cudaStreamCreate)(handle *out)
{
    BEGIN(cudaStreamCreate, NEED_CONTEXT);
    END(DRIVER(cuStreamCreateWithPriority)(out, 0, 0));
}

RUNTIME_CALL(cudaStreamDestroy)(handle stream)
{
    BEGIN(cudaStreamDestroy, NEED_CONTEXT);
    END(DRIVER(cuStreamDestroy)(stream));
}

RUNTIME_CALL(cudaEventCreateWithFlags)(handle *out, unsigned flags)
{
    BEGIN(cudaEventCreateWithFlags, NEED_CONTEXT);
    END(DRIVER(cuEventCreate)(out, flags));
}

RUNTIME_CALL(cudaEventCreate)(handle *out)
{
    BEGIN(cudaEventCreate, NEED_CONTEXT);
    END(DRIVER(cuEventCreate)(out, 0));
}

#define OF_EVENT(name, call)              \
    RUNTIME_CALL(name)(handle event)      \
    {                                     \
        BEGIN(name, NEED_CONTEXT);        \
        END(DRIVER(call)(event));         \
    }
OF_EVENT(cudaEventDestroy, cuEventDestroy)
OF_EVENT(cudaEventQuery, cuEventQuery)
OF_EVENT(cudaEventSynchronize, cuEventSynchronize)

RUNTIME_CALL(cudaEventElapsedTime)(float *milliseconds, handle start, handle end)
{
    BEGIN(cudaEventElapsedTime, NEED_CONTEXT);
    END(DRIVER(cuEventElapsedTime)(milliseconds, start, end));
}

/* --- capture and graphs ------------------------------------------------------------------------------------------- */

RUNTIME_CALL(cudaThreadExchangeStreamCaptureMode)(int *mode)
{
    BEGIN(cudaThreadExchangeStreamCaptureMode, NEED_INIT);
    END(DRIVER(cuThreadExchangeStreamCaptureMode)(mode));
}

RUNTIME_CALL(cudaGraphCreate)(handle *out, unsigned flags)
{
    BEGIN(cudaGraphCreate, NEED_INIT);
    END(DRIVER(cuGraphCreate)(out, flags));
}

RUNTIME_CALL(cudaGraphDestroy)(handle graph)
{
    BEGIN(cudaGraphDestroy, NEED_INIT);
    END(DRIVER(cuGraphDestroy)(graph));
}

RUNTIME_CALL(cudaGraphExecDestroy)(handle exec)
{
    BEGIN(cudaGraphExecDestroy, NEED_INIT);
    END(DRIVER(cuGraphExecDestroy)(exec));
}

RUNTIME_CALL(cudaGraphGetNodes)(handle graph, void *nodes, size_t *count)
{
    BEGIN(cudaGraphGetNodes, NEED_INIT);
    END(DRIVER(cuGraphGetNodes)(graph, nodes, count));
}

RUNTIME_CALL(cudaGraphInstantiateWithFlags)(handle *exec, handle graph, unsigned long long flags)
{
    BEGIN(cudaGraphInstantiateWithFlags, NEED_CONTEXT);
    END(DRIVER(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

RUNTIME_CALL(cudaGraphInstantiate)(handle *exec, handle graph, unsigned long long flags)
{
    BEGIN(cudaGraphInstantiate, NEED_CONTEXT);
    END(DRIVER(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

RUNTIME_CALL(cudaUserObjectCreate)(handle *out, void *data, void (*destroy)(void *), unsigned references, unsigned flags)
{
    BEGIN(cudaUserObjectCreate, NEED_INIT);
    END(DRIVER(cuUserObjectCreate)(out, data, destroy, references, flags));
}

RUNTIME_CALL(cudaUserObjectRetain)(handle object, unsigned count)
{
    BEGIN(cudaUserObjectRetain, NEED_INIT);
    END(DRIVER(cuUserObjectRetain)(object, count));
}

RUNTIME_CALL(cudaUserObjectRelease)(handle object, unsigned count)
{
    BEGIN(cudaUserObjectRelease, NEED_INIT);
    END(DRIVER(cuUserObjectRelease)(object, count));
}

RUNTIME_CALL(cudaGraphRetainUserObject)(handle graph, handle object, unsigned count, unsigned flags)
{
    BEGIN(cudaGraphRetainUserObject, NEED_INIT);
    END(DRIVER(cuGraphRetainUserObject)(graph, object, count, flags));
}

RUNTIME_CALL(cudaDeviceGetGraphMemAttribute)(int device, int attribute, uint64_t *out)
{
    BEGIN(cudaDeviceGetGraphMemAttribute, NEED_INIT);
    END(DRIVER(cuDeviceGetGraphMemAttribute)(device, attribute, out));
}

RUNTIME_CALL(cudaDeviceSetGraphMemAttribute)(int device, int attribute, const uint64_t *value)
{
    BEGIN(cudaDeviceSetGraphMemAttribute, NEED_INIT);
    END(DRIVER(cuDeviceSetGraphMemAttribute)(device, attribute, value));
}

/* --- not supported ------------------------------------------------------------------------------------------------ */

RUNTIME_CALL(cudaProfilerStart)(void)
{
    BEGIN(cudaProfilerStart, NEED_CONTEXT);
    END(OK); /* there is no profiler */
}

RUNTIME_CALL(cudaProfilerStop)(void)
{
    BEGIN(cudaProfilerStop, NEED_CONTEXT);
    END(OK);
}

/* The arguments are ignored, whatever they are; the calling convention of the platform allows that. */
#define UNSUPPORTED(name)            \
    EXPORT status name(void);        \
    EXPORT status name(void)         \
    {                                \
        BEGIN(name, NEED_INIT);      \
        END(NOT_SUPPORTED);          \
    }
RUNTIME_UNSUPPORTED(UNSUPPORTED)

/* CUDA front: initialisation, devices, contexts, peer access, creation of streams and events, capture mode.
 *
 * Any thread may call the functions; they run under the core's lock.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRIORITY_LEAST 0
#define PRIORITY_GREATEST (-5)
#define TOTAL_PITCH 2147483647

/* --- the driver --------------------------------------------------------------------------------------------------- */

/* The version of the driver API; cuGetProcAddress hides functions that are newer. */
int cuda_version(void)
{
    static atomic_int known;
    int version = atomic_load_explicit(&known, memory_order_relaxed);
    if (!version) {
        version = (int)core_setting_within("DEVMEM_EMULATOR_CUDA_VERSION", 13000, 1000, 99999);
        atomic_store_explicit(&known, version, memory_order_relaxed);
    }
    return version;
}

/* 1: devices have page tables of their own for pageable memory (HMM); 2: they use the host's (ATS). */
static int coherence(void) { return (int)core_setting("DEVMEM_EMULATOR_COHERENCE", 0); }
static bool takes_host_addresses(void) { return coherence() > 0; }

struct vendor_rules vendor_rules = {.staging_limit = SIZE_MAX, .takes_host_addresses = takes_host_addresses,
                                    .host_function_status = NOT_PERMITTED};

/* CUDA_VISIBLE_DEVICES: a list of ordinals, which ends at the first that does not exist. UUIDs are not supported. */
int front_visible_devices(int physical[MAX_DEVICES], int total)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!text) {
        for (; count < total; count++) physical[count] = count;
        return count;
    }
    while (count < MAX_DEVICES && *text) {
        char *end;
        long ordinal = strtol(text, &end, 10);
        if (end == text || ordinal < 0 || ordinal >= total) break;
        physical[count++] = (int)ordinal;
        if (*end != ',') break;
        text = end + 1;
    }
    return count;
}

status front_admit(enum need need) { return need == NEED_NOTHING || core_is_open() ? OK : NOT_INITIALIZED; }
void front_device_failed(status code) { (void)code; }

/* The vendor documents this for attributes of pools; for the other calls of pools it is assumed. Stream-ordered allocation
 * and freeing is part of a graph, and allowed. */
bool front_forbidden_in_capture(int function)
{
    switch (function) {
    case FUNCTION_cuMemAlloc: case FUNCTION_cuMemAllocPitch: case FUNCTION_cuMemFree: case FUNCTION_cuMemAllocManaged:
    case FUNCTION_cuMemAllocHost: case FUNCTION_cuMemHostAlloc: case FUNCTION_cuMemFreeHost: case FUNCTION_cuMemHostRegister:
    case FUNCTION_cuMemHostUnregister: case FUNCTION_cuMemPoolCreate: case FUNCTION_cuMemPoolDestroy:
    case FUNCTION_cuMemPoolSetAttribute: case FUNCTION_cuMemPoolGetAttribute: case FUNCTION_cuMemPoolTrimTo:
    case FUNCTION_cuEventQuery: case FUNCTION_cuEventSynchronize: return true;
    default: return false;
    }
}

status front_unknown_stream(uint64_t handle)
{
    (void)handle;
    return INVALID_HANDLE;
}

EXPORT status cuInit(unsigned flags)
{
    BEGIN(cuInit, NEED_NOTHING);
    END(flags ? INVALID_VALUE : core_initialize());
}

EXPORT status cuDriverGetVersion(int *version)
{
    BEGIN(cuDriverGetVersion, NEED_NOTHING);
    REQUIRE(version, INVALID_VALUE);
    *version = cuda_version();
    END(OK);
}

/* --- devices ------------------------------------------------------------------------------------------------------ */

EXPORT status cuDeviceGet(int *device, int ordinal)
{
    BEGIN(cuDeviceGet, NEED_INIT);
    REQUIRE(device, INVALID_VALUE);
    REQUIRE(is_device(ordinal), INVALID_DEVICE);
    *device = ordinal;
    END(OK);
}

EXPORT status cuDeviceGetCount(int *count)
{
    BEGIN(cuDeviceGetCount, NEED_INIT);
    REQUIRE(count, INVALID_VALUE);
    *count = device_count;
    END(OK);
}

EXPORT status cuDeviceGetName(char *name, int length, int device)
{
    BEGIN(cuDeviceGetName, NEED_INIT);
    REQUIRE(name && length > 0, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    snprintf(name, (size_t)length, "devmem emulated CUDA device %d", devices[device].physical);
    END(OK);
}

EXPORT status cuDeviceGetUuid(unsigned char uuid[16], int device)
{
    BEGIN(cuDeviceGetUuid, NEED_INIT);
    REQUIRE(uuid, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    memcpy(uuid, "devmem-emulated", 15);
    uuid[15] = (unsigned char)devices[device].physical;
    END(OK);
}

EXPORT status cuDeviceGetUuid_v2(unsigned char uuid[16], int device) { return cuDeviceGetUuid(uuid, device); }

EXPORT status cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    BEGIN(cuDeviceTotalMem, NEED_INIT);
    REQUIRE(bytes, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *bytes = devices[device].heap.bytes;
    END(OK);
}

/* Attribute and value. Attributes of the API that are not listed are 0: "no" or "unknown". */
static const int attributes[][2] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536}, {10, 32},
    {11, TOTAL_PITCH}, {12, 65536}, {13, 1000000}, {14, 512}, {15, 1}, {16, 4}, {19, 1}, {31, 1}, {34, 0}, {36, 1000000},
    {37, 256}, {38, 1 << 20}, {39, 1024}, {40, 2}, {41, 1}, {51, 32}, {75, 8}, {76, 0}, {78, 1}, {79, 1}, {80, 1}, {81, 65536},
    {82, 65536}, {83, 1}, {89, 1}, {91, 1}, {92, 0}, {93, 0}, {94, 0}, {97, 49152}, {99, 1}, {102, 1}, {103, 1}, {106, 16},
    {113, 1}, {115, 1}, {119, 1}, {125, 1}, {136, 7}, {137, 4 << 20}};

#define ATTRIBUTE_LAST 144
#define ATTRIBUTE_PCI_BUS 33
#define ATTRIBUTE_PAGEABLE 88
#define ATTRIBUTE_HOST_PAGE_TABLES 100
#define ATTRIBUTE_HOST_NODE 134
#define ATTRIBUTE_DECOMPRESS 136
#define ATTRIBUTE_FABRIC 128

EXPORT status cuDeviceGetAttribute(int *value, int attribute, int device)
{
    BEGIN(cuDeviceGetAttribute, NEED_INIT);
    REQUIRE(value && attribute > 0 && attribute <= ATTRIBUTE_LAST, INVALID_VALUE);
    REQUIRE(attribute < ATTRIBUTE_DECOMPRESS || cuda_version() >= DECOMPRESS_SINCE, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *value = attribute == ATTRIBUTE_PCI_BUS ? devices[device].physical + 1 : 0;
    if (attribute == ATTRIBUTE_HOST_NODE) *value = core_host_node();
    if (attribute == ATTRIBUTE_PAGEABLE || attribute == ATTRIBUTE_HOST_PAGE_TABLES)
        *value = coherence() >= (attribute == ATTRIBUTE_PAGEABLE ? 1 : 2);
    if (attribute == ATTRIBUTE_FABRIC) *value = core_setting("DEVMEM_EMULATOR_FABRIC", 0) == 1;
    for (size_t index = 0; index < sizeof attributes / sizeof *attributes; index++)
        if (attributes[index][0] == attribute) *value = attributes[index][1];
    END(OK);
}

EXPORT status cuDeviceComputeCapability(int *major, int *minor, int device)
{
    BEGIN(cuDeviceComputeCapability, NEED_INIT);
    REQUIRE(major && minor, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *major = 8;
    *minor = 0;
    END(OK);
}

EXPORT status cuDeviceGetPCIBusId(char *text, int length, int device)
{
    BEGIN(cuDeviceGetPCIBusId, NEED_INIT);
    REQUIRE(text && length >= 13, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    snprintf(text, (size_t)length, "0000:%02X:00.0", (unsigned)(devices[device].physical + 1) & 0xff);
    END(OK);
}

EXPORT status cuDeviceGetByPCIBusId(int *device, const char *text)
{
    BEGIN(cuDeviceGetByPCIBusId, NEED_INIT);
    unsigned domain = 0, bus = 0;
    REQUIRE(device && text, INVALID_VALUE);
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2) sscanf(text, "%x:", &bus);
    for (int index = 0; index < device_count; index++)
        if (bus == (unsigned)devices[index].physical + 1 && !domain) {
            *device = index;
            END(OK);
        }
    END(INVALID_DEVICE);
}

/* --- contexts ----------------------------------------------------------------------------------------------------- */

EXPORT status cuDevicePrimaryCtxRetain(handle *out, int device)
{
    BEGIN(cuDevicePrimaryCtxRetain, NEED_INIT);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    END(primary_retain(device, out));
}

EXPORT status cuDevicePrimaryCtxRelease_v2(int device)
{
    BEGIN(cuDevicePrimaryCtxRelease, NEED_INIT);
    END(is_device(device) ? primary_release(device) : INVALID_DEVICE);
}

EXPORT status cuDevicePrimaryCtxReset_v2(int device)
{
    BEGIN(cuDevicePrimaryCtxReset, NEED_INIT);
    END(is_device(device) ? primary_reset(device) : INVALID_DEVICE);
}

EXPORT status cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    BEGIN(cuDevicePrimaryCtxGetState, NEED_INIT);
    REQUIRE(flags && active, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *flags = devices[device].primary->flags;
    *active = devices[device].primary->active;
    END(OK);
}

EXPORT status cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags)
{
    BEGIN(cuDevicePrimaryCtxSetFlags, NEED_INIT);
    REQUIRE(is_device(device), INVALID_DEVICE);
    REQUIRE(!(flags & ~0xffu), INVALID_VALUE);
    devices[device].primary->flags = flags;
    END(OK);
}

EXPORT status cuCtxCreate_v2(handle *out, unsigned flags, int device)
{
    BEGIN(cuCtxCreate, NEED_INIT);
    REQUIRE(out && !(flags & ~0xffu), INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    END(context_create(device, flags, out));
}

EXPORT status cuCtxCreate_v3(handle *out, void *affinity, int count, unsigned flags, int device)
{
    return affinity || count ? NOT_SUPPORTED : cuCtxCreate_v2(out, flags, device);
}

EXPORT status cuCtxCreate_v4(handle *out, void *parameters, unsigned flags, int device)
{
    return parameters ? NOT_SUPPORTED : cuCtxCreate_v2(out, flags, device);
}

EXPORT status cuCtxDestroy_v2(handle which)
{
    BEGIN(cuCtxDestroy, NEED_INIT);
    END(context_destroy(which));
}

EXPORT status cuCtxGetCurrent(handle *out)
{
    BEGIN(cuCtxGetCurrent, NEED_INIT);
    REQUIRE(out, INVALID_VALUE);
    *out = context_top();
    END(OK);
}

EXPORT status cuCtxSetCurrent(handle which)
{
    BEGIN(cuCtxSetCurrent, NEED_INIT);
    END(context_set(which));
}

EXPORT status cuCtxPushCurrent_v2(handle which)
{
    BEGIN(cuCtxPushCurrent, NEED_INIT);
    END(context_push(which));
}

EXPORT status cuCtxPopCurrent_v2(handle *out)
{
    BEGIN(cuCtxPopCurrent, NEED_INIT);
    END(context_pop(out));
}

/* Succeeds for a context with a sticky error and after a reset too. */
EXPORT status cuCtxGetDevice(int *device)
{
    BEGIN(cuCtxGetDevice, NEED_INIT);
    struct context *top;
    REQUIRE(device, INVALID_VALUE);
    status found = context_of_handle(context_top(), &top);
    if (found == OK) *device = top->device;
    END(found);
}

EXPORT status cuCtxGetDevice_v2(int *device, handle which)
{
    if (!which) return cuCtxGetDevice(device);
    BEGIN(cuCtxGetDevice, NEED_INIT);
    struct context *of;
    REQUIRE(device, INVALID_VALUE);
    status found = context_of_handle(which, &of);
    if (found == OK) *device = of->device;
    END(found);
}

EXPORT status cuCtxGetFlags(unsigned *flags)
{
    BEGIN(cuCtxGetFlags, NEED_CONTEXT);
    REQUIRE(flags, INVALID_VALUE);
    *flags = context->flags;
    END(OK);
}

static status context_or_current(handle which, struct context **out)
{
    status why = OK;
    if (which) return context_of_handle(which, out);
    *out = context_current(&why);
    return why;
}

EXPORT status cuCtxGetId(handle which, unsigned long long *id)
{
    BEGIN(cuCtxGetId, NEED_INIT);
    struct context *of;
    REQUIRE(id, INVALID_VALUE);
    status found = context_or_current(which, &of);
    if (found == OK) *id = of->handle + of->generation; /* after a reset the handle is the same, the id is new */
    END(found);
}

EXPORT status cuCtxGetApiVersion(handle which, unsigned *version)
{
    BEGIN(cuCtxGetApiVersion, NEED_INIT);
    struct context *of;
    REQUIRE(version, INVALID_VALUE);
    status found = context_or_current(which, &of);
    if (found == OK) *version = 3020;
    END(found);
}

EXPORT status cuCtxSynchronize(void)
{
    BEGIN(cuCtxSynchronize, NEED_CONTEXT);
    END(context_synchronize(context));
}

EXPORT status cuCtxSynchronize_v2(handle which)
{
    if (!which) return cuCtxSynchronize();
    BEGIN(cuCtxSynchronize, NEED_INIT);
    struct context *of;
    status found = context_of_handle(which, &of);
    if (found == OK && !of->active) found = CONTEXT_IS_DESTROYED;
    END(found == OK ? context_synchronize(of) : found);
}

EXPORT status cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    BEGIN(cuCtxGetStreamPriorityRange, NEED_CONTEXT);
    if (least) *least = PRIORITY_LEAST;
    if (greatest) *greatest = PRIORITY_GREATEST;
    END(OK);
}

/* --- peers -------------------------------------------------------------------------------------------------------- */

EXPORT status cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    BEGIN(cuDeviceCanAccessPeer, NEED_INIT);
    REQUIRE(can, INVALID_VALUE);
    REQUIRE(is_device(device) && is_device(peer), INVALID_DEVICE);
    *can = device != peer;
    END(OK);
}

EXPORT status cuDeviceGetP2PAttribute(int *value, int attribute, int from, int to)
{
    BEGIN(cuDeviceGetP2PAttribute, NEED_INIT);
    REQUIRE(value && attribute >= 1 && attribute <= 5, INVALID_VALUE);
    REQUIRE(is_device(from) && is_device(to) && from != to, INVALID_DEVICE);
    *value = attribute == 2;
    END(OK);
}

EXPORT status cuCtxEnablePeerAccess(handle peer, unsigned flags)
{
    BEGIN(cuCtxEnablePeerAccess, NEED_CONTEXT);
    END(flags ? INVALID_VALUE : peer_enable(context, peer));
}

EXPORT status cuCtxDisablePeerAccess(handle peer)
{
    BEGIN(cuCtxDisablePeerAccess, NEED_CONTEXT);
    END(peer_disable(context, peer));
}

/* --- streams and events: calls in which stream 0 has no meaning --------------------------------------------------- */

EXPORT status cuStreamCreateWithPriority(handle *out, unsigned flags, int priority)
{
    BEGIN(cuStreamCreateWithPriority, NEED_CONTEXT);
    REQUIRE(out && flags <= STREAM_NON_BLOCKING, INVALID_VALUE);
    if (priority > PRIORITY_LEAST) priority = PRIORITY_LEAST;
    if (priority < PRIORITY_GREATEST) priority = PRIORITY_GREATEST;
    END(stream_create(context, flags, priority, out));
}

EXPORT status cuStreamCreate(handle *out, unsigned flags)
{
    BEGIN(cuStreamCreate, NEED_CONTEXT);
    REQUIRE(out && flags <= STREAM_NON_BLOCKING, INVALID_VALUE);
    END(stream_create(context, flags, PRIORITY_LEAST, out));
}

EXPORT status cuStreamDestroy_v2(handle stream)
{
    BEGIN(cuStreamDestroy, NEED_CONTEXT);
    END(stream_destroy(stream));
}

EXPORT status cuEventCreate(handle *out, unsigned flags)
{
    BEGIN(cuEventCreate, NEED_CONTEXT);
    bool shared_and_timed = (flags & EVENT_INTERPROCESS) && !(flags & EVENT_DISABLE_TIMING);
    REQUIRE(out && flags <= 7 && !shared_and_timed, INVALID_VALUE);
    END(event_create(context, flags, out));
}

EXPORT status cuEventDestroy_v2(handle event)
{
    BEGIN(cuEventDestroy, NEED_CONTEXT);
    END(event_destroy(event));
}

EXPORT status cuEventQuery(handle event)
{
    BEGIN(cuEventQuery, NEED_CONTEXT);
    END(event_query(event));
}

EXPORT status cuEventSynchronize(handle event)
{
    BEGIN(cuEventSynchronize, NEED_CONTEXT);
    END(event_synchronize(event));
}

EXPORT status cuEventElapsedTime(float *milliseconds, handle start, handle end)
{
    BEGIN(cuEventElapsedTime, NEED_CONTEXT);
    END(milliseconds ? event_elapsed(start, end, milliseconds) : INVALID_VALUE);
}

EXPORT status cuEventElapsedTime_v2(float *milliseconds, handle start, handle end)
{
    return cuEventElapsedTime(milliseconds, start, end);
}

/* --- capture ------------------------------------------------------------------------------------------------------ */

EXPORT status cuThreadExchangeStreamCaptureMode(int *mode)
{
    BEGIN(cuThreadExchangeStreamCaptureMode, NEED_INIT);
    END(capture_exchange(mode));
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

EXPORT status cuGraphCreate(handle *out, unsigned flags)
{
    BEGIN(cuGraphCreate, NEED_INIT);
    REQUIRE(out && !flags, INVALID_VALUE);
    *out = graph_handle(graph_open(HANDLE_GRAPH));
    END(OK);
}

EXPORT status cuGraphDestroy(handle graph)
{
    BEGIN(cuGraphDestroy, NEED_INIT);
    END(graph_destroy(graph, HANDLE_GRAPH));
}

EXPORT status cuGraphExecDestroy(handle exec)
{
    BEGIN(cuGraphExecDestroy, NEED_INIT);
    END(graph_destroy(exec, HANDLE_GRAPH_EXEC));
}

EXPORT status cuGraphGetNodes(handle graph, void *nodes, size_t *count)
{
    BEGIN(cuGraphGetNodes, NEED_INIT);
    (void)nodes;
    END(graph_nodes(graph, count));
}

EXPORT status cuGraphInstantiateWithFlags(handle *exec, handle graph, unsigned long long flags)
{
    BEGIN(cuGraphInstantiateWithFlags, NEED_CONTEXT);
    END(flags > 15 ? INVALID_VALUE : graph_instantiate(graph, exec));
}

#define NO_DESTRUCTOR_SYNC 1u
#define RETAIN_MOVES 1u

EXPORT status cuUserObjectCreate(handle *out, void *data, void (*destroy)(void *), unsigned references, unsigned flags)
{
    BEGIN(cuUserObjectCreate, NEED_INIT);
    END(out && flags == NO_DESTRUCTOR_SYNC ? user_object_create(data, destroy, references, out) : INVALID_VALUE);
}

EXPORT status cuUserObjectRetain(handle object, unsigned count)
{
    BEGIN(cuUserObjectRetain, NEED_INIT);
    END(user_object_change(object, count, false));
}

EXPORT status cuUserObjectRelease(handle object, unsigned count)
{
    BEGIN(cuUserObjectRelease, NEED_INIT);
    END(user_object_change(object, count, true));
}

EXPORT status cuGraphRetainUserObject(handle graph, handle object, unsigned count, unsigned flags)
{
    BEGIN(cuGraphRetainUserObject, NEED_INIT);
    END(flags <= RETAIN_MOVES ? graph_retain_object(graph, object, count, flags == RETAIN_MOVES) : INVALID_VALUE);
}

#define GRAPH_MEMORY_LAST 3 /* used and reserved memory, now and at most: graphs here allocate none */

EXPORT status cuDeviceGetGraphMemAttribute(int device, int attribute, uint64_t *out)
{
    BEGIN(cuDeviceGetGraphMemAttribute, NEED_INIT);
    REQUIRE(is_device(device), INVALID_DEVICE);
    REQUIRE(out && attribute >= 0 && attribute <= GRAPH_MEMORY_LAST, INVALID_VALUE);
    *out = 0;
    END(OK);
}

EXPORT status cuDeviceSetGraphMemAttribute(int device, int attribute, const uint64_t *value)
{
    BEGIN(cuDeviceSetGraphMemAttribute, NEED_INIT);
    REQUIRE(is_device(device), INVALID_DEVICE);
    END(value && !*value && attribute >= 0 && attribute <= GRAPH_MEMORY_LAST ? OK : INVALID_VALUE);
}

/* --- not supported ------------------------------------------------------------------------------------------------ */

/* The arguments are ignored, whatever they are; the calling convention of the platform allows that. */
#define UNSUPPORTED(name)            \
    EXPORT status name(void);        \
    EXPORT status name(void)         \
    {                                \
        BEGIN(name, NEED_INIT);      \
        END(NOT_SUPPORTED);          \
    }
CUDA_UNSUPPORTED(UNSUPPORTED)

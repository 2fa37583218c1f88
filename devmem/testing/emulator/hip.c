/* HIP front: opening, versions, last errors, the current device, properties, peer access, creation of streams and events.
 *
 * The runtime opens itself with the first call. The current device and the last error belong to the calling thread. Any thread
 * may call the functions; they run under the core's lock.
 */
#define _GNU_SOURCE
#include "hip.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRIORITY_LEAST 1
#define PRIORITY_GREATEST (-1)
#define WAVE 64
#define STAGING_LIMIT (4u << 20)

static bool takes_host_addresses(void) { return core_setting("HSA_XNACK", 0) == 1; }

struct vendor_rules vendor_rules = {.unknown_is_pageable = true, .blocking_calls_complete = true, .imports_are_distinct = true,
                                    .staging_limit = STAGING_LIMIT, .takes_host_addresses = takes_host_addresses,
                                    .host_function_status = NOT_SUPPORTED};

static _Thread_local int current_device;
static _Thread_local status last_error, last_result;

/* --- versions ----------------------------------------------------------------------------------------------------- */

/* The emulated ROCm, 10.0 by default; where the runtime's behaviour changed, this number selects it. */
int hip_rocm(void)
{
    static atomic_int known;
    int major = 10, minor = 0, version = atomic_load_explicit(&known, memory_order_relaxed);
    if (version) return version;
    const char *text = getenv("DEVMEM_EMULATOR_ROCM");
    int read = text ? sscanf(text, "%d.%d", &major, &minor) : 2;
    if (read == 1) minor = 0;
    if (read < 1 && *text) fprintf(stderr, "devmem emulator: DEVMEM_EMULATOR_ROCM=%s is no version: the default, 10.0, is used\n", text);
    version = major * 100 + minor;
    atomic_store_explicit(&known, version, memory_order_relaxed);
    return version;
}

/* ROCm 10 ships HIP 7.15; earlier the two numbers agree. */
int hip_version(void)
{
    int rocm = hip_rocm();
    return rocm >= 800 ? 71526333 : rocm / 100 * 10000000 + rocm % 100 * 100000;
}

bool hip_has_pools(void) { return core_setting("HIP_MEM_POOL_SUPPORT", 1) != 0; }

/* --- opening ------------------------------------------------------------------------------------------------------ */

static uint64_t identity(int physical) { return 0xde5e3e0000000000u | (unsigned)physical; }

/* Parse an entry of a device list: an ordinal among the devices still visible, or GPU- and sixteen hexadecimal digits. */
static int parse_entry(const char *text, const char **end, const int *physical, int count)
{
    char *after;
    if (strncmp(text, "GPU-", 4) == 0) {
        uint64_t asked = strtoull(text + 4, &after, 16);
        *end = after;
        for (int index = 0; index < count; index++)
            if (identity(physical[index]) == asked) return index;
        return -1;
    }
    long ordinal = strtol(text, &after, 10);
    *end = after;
    return after != text && ordinal >= 0 && ordinal < count ? (int)ordinal : -1;
}

/* Apply a device list. It ends at the first entry that does not exist; an empty list hides nothing. */
static int filter_devices(const char *text, int *physical, int count)
{
    int chosen[MAX_DEVICES], kept = 0;
    if (!text || !*text) return count;
    while (kept < MAX_DEVICES) {
        int index = parse_entry(text, &text, physical, count);
        if (index < 0) break;
        chosen[kept++] = physical[index];
        if (*text++ != ',') break;
    }
    memcpy(physical, chosen, (size_t)kept * sizeof *physical);
    return kept;
}

int front_visible_devices(int physical[MAX_DEVICES], int total)
{
    const char *own = getenv("HIP_VISIBLE_DEVICES");
    for (int index = 0; index < total; index++) physical[index] = index;
    total = filter_devices(getenv("ROCR_VISIBLE_DEVICES"), physical, total);
    return filter_devices(own && *own ? own : getenv("CUDA_VISIBLE_DEVICES"), physical, total);
}

/* Without a device the first call of a process returns 101, later ones 100; before ROCm 6 all return 101. */
static status no_device_status(void)
{
    static bool called;
    bool first = !called;
    called = true;
    return first || hip_rocm() < 600 ? INVALID_DEVICE : NO_DEVICE;
}

/* Open the runtime if need be, and make the primary context of the thread's device current. */
status front_admit(enum need need)
{
    if (need == NEED_NOTHING) return OK;
    status opened = core_is_open() ? OK : core_initialize();
    if (opened == NO_DEVICE) return no_device_status();
    if (opened != OK) return opened;
    struct context *primary = devices[current_device].primary;
    uint64_t context = primary->handle;
    status entered = primary->active ? OK : primary_retain(current_device, &context);
    return entered == OK && context_top() != context ? context_set(context) : entered;
}

/* Events are checked since ROCm 7. Stream-ordered allocation and freeing, and calls of pools, are allowed. */
bool front_forbidden_in_capture(int function)
{
    switch (function) {
    case FUNCTION_hipMalloc: case FUNCTION_hipExtMallocWithFlags: case FUNCTION_hipMallocPitch: case FUNCTION_hipMalloc3D:
    case FUNCTION_hipFree: case FUNCTION_hipMallocManaged: case FUNCTION_hipHostMalloc: case FUNCTION_hipHostAlloc:
    case FUNCTION_hipHostFree: case FUNCTION_hipHostRegister: case FUNCTION_hipHostUnregister: return true;
    case FUNCTION_hipEventQuery: case FUNCTION_hipEventSynchronize: return hip_rocm() >= 700;
    default: return false;
    }
}

/* Before ROCm 7 a fault on the device ends the process; since then it is a sticky error. */
void front_device_failed(status code)
{
    if (hip_rocm() < 700) core_die(SIGABRT, "Memory access fault by GPU node-1: error %d", code);
}

status front_unknown_stream(uint64_t stream)
{
    if (hip_rocm() >= 700)
        core_die(SIGSEGV, "stream %#llx is unknown or destroyed: since ROCm 7 handles are not checked, and the process dies",
                 (unsigned long long)stream);
    return CONTEXT_IS_DESTROYED;
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

static status remember(status result)
{
    last_result = result;
    if (hip_rocm() < 700 || (result != OK && result != NOT_READY)) last_error = result;
    return result;
}

status hip_enter(int function, enum need need, struct context **context)
{
    status result = core_enter(function, need, context);
    return result == OK ? OK : remember(result);
}

status hip_leave(status result) { return remember(core_leave(result)); }

/* The thread's last failure, until it is read; before ROCm 7 its last result. */
HIP(hipGetLastError)(void)
{
    struct context *context;
    status begun = core_enter(FUNCTION_hipGetLastError, NEED_CONTEXT, &context);
    status result = begun == OK ? last_error : begun;
    last_error = OK;
    return begun == OK ? core_leave(result) : result;
}

HIP(hipPeekAtLastError)(void)
{
    struct context *context;
    status begun = core_enter(FUNCTION_hipPeekAtLastError, NEED_CONTEXT, &context);
    return begun == OK ? core_leave(last_error) : begun;
}

HIP(hipExtGetLastError)(void)
{
    struct context *context;
    status begun = core_enter(FUNCTION_hipExtGetLastError, NEED_CONTEXT, &context);
    status result = begun == OK ? last_result : begun;
    last_result = OK;
    return begun == OK ? core_leave(result) : result;
}

/* --- the runtime -------------------------------------------------------------------------------------------------- */

HIP(hipInit)(unsigned flags)
{
    BEGIN(hipInit, NEED_INIT);
    END(flags ? INVALID_VALUE : OK);
}

HIP(hipRuntimeGetVersion)(int *version)
{
    BEGIN(hipRuntimeGetVersion, NEED_NOTHING);
    REQUIRE(version, INVALID_VALUE);
    *version = hip_version();
    END(OK);
}

HIP(hipDriverGetVersion)(int *version)
{
    BEGIN(hipDriverGetVersion, NEED_NOTHING);
    REQUIRE(version, INVALID_VALUE);
    *version = hip_version();
    END(OK);
}

/* --- the current device ------------------------------------------------------------------------------------------- */

HIP(hipGetDeviceCount)(int *count)
{
    if (count) *count = 0;
    status begun = hip_enter(FUNCTION_hipGetDeviceCount, NEED_INIT, &(struct context *){NULL});
    if (begun != OK) return begun == INVALID_DEVICE && !core_is_open() ? remember(NO_DEVICE) : begun;
    REQUIRE(count, INVALID_VALUE);
    *count = device_count;
    END(OK);
}

HIP(hipGetDevice)(int *device)
{
    BEGIN(hipGetDevice, NEED_INIT);
    REQUIRE(device, INVALID_VALUE);
    *device = current_device;
    END(OK);
}

HIP(hipSetDevice)(int device)
{
    BEGIN(hipSetDevice, NEED_INIT);
    REQUIRE(is_device(device), INVALID_DEVICE);
    current_device = device;
    END(OK);
}

HIP(hipDeviceSynchronize)(void)
{
    BEGIN(hipDeviceSynchronize, NEED_CONTEXT);
    END(context_synchronize(context));
}

HIP(hipDeviceReset)(void)
{
    BEGIN(hipDeviceReset, NEED_INIT);
    END(primary_reset(current_device));
}

HIP(hipGetDeviceFlags)(unsigned *flags)
{
    BEGIN(hipGetDeviceFlags, NEED_INIT);
    REQUIRE(flags, INVALID_VALUE);
    *flags = 0;
    END(OK);
}

HIP(hipDeviceGetStreamPriorityRange)(int *least, int *greatest)
{
    BEGIN(hipDeviceGetStreamPriorityRange, NEED_INIT);
    if (least) *least = PRIORITY_LEAST;
    if (greatest) *greatest = PRIORITY_GREATEST;
    END(OK);
}

/* --- device properties -------------------------------------------------------------------------------------------- */

HIP(hipDeviceGet)(int *device, int ordinal)
{
    BEGIN(hipDeviceGet, NEED_INIT);
    REQUIRE(device, INVALID_VALUE);
    REQUIRE(is_device(ordinal), INVALID_DEVICE);
    *device = ordinal;
    END(OK);
}

static void device_name(int device, char *name, size_t room)
{
    snprintf(name, room, "devmem emulated HIP device %d", devices[device].physical);
}

HIP(hipDeviceGetName)(char *name, int length, int device)
{
    BEGIN(hipDeviceGetName, NEED_INIT);
    REQUIRE(name && length > 0, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    device_name(device, name, (size_t)length);
    END(OK);
}

void device_uuid(int device, unsigned char uuid[16])
{
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)identity(devices[device].physical));
    memcpy(uuid, digits, 16);
}

HIP(hipDeviceGetUuid)(unsigned char uuid[16], int device)
{
    BEGIN(hipDeviceGetUuid, NEED_INIT);
    REQUIRE(uuid, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    device_uuid(device, uuid);
    END(OK);
}

/* HIP's contexts are deprecated: each device has one, always there, and retaining it only names it. */
HIP(hipDevicePrimaryCtxRetain)(handle *retained, int device)
{
    BEGIN(hipDevicePrimaryCtxRetain, NEED_INIT);
    REQUIRE(is_device(device), INVALID_DEVICE);
    REQUIRE(retained, INVALID_VALUE);
    *retained = (handle)(uintptr_t)&devices[device];
    END(OK);
}

HIP(hipDevicePrimaryCtxRelease)(int device)
{
    BEGIN(hipDevicePrimaryCtxRelease, NEED_INIT);
    REQUIRE(is_device(device), INVALID_DEVICE);
    END(OK);
}

HIP(hipDeviceTotalMem)(size_t *bytes, int device)
{
    BEGIN(hipDeviceTotalMem, NEED_INIT);
    REQUIRE(bytes, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *bytes = devices[device].heap.bytes;
    END(OK);
}

/* Attribute and value. Attributes of the API that are not listed are 0: "no" or "unknown". */
static const int attributes[][2] = {
    {2, 2}, {3, 1}, {5, 1700000}, {8, 1}, {19, 8 << 20}, {23, 9}, {24, 1}, {26, 1024}, {27, 1024}, {28, 1024},
    {29, 2147483647}, {30, 65536}, {31, 65536}, {55, 1024}, {56, 1024}, {57, 2048}, {58, 2147483647}, {59, 4096},
    {60, 1600000}, {63, 104}, {68, 0}, {69, 0}, {71, 65536}, {72, 65536}, {74, 65536}, {78, 1}, {79, 256}, {81, 256}, {82, 256},
    {83, 2147483647}, {85, 1}, {87, WAVE}, {89, 1}, {90, 1}, {10013, 1}, {10014, 0}, {10015, 104}, {10016, 1}, {10017, 100000},
    {10018, 1}};

enum {
    ATTRIBUTE_CONCURRENT_MANAGED = 9, ATTRIBUTE_INTEGRATED = 16, ATTRIBUTE_PAGEABLE = 65, ATTRIBUTE_PCI_BUS = 67,
    ATTRIBUTE_TOTAL = 84, ATTRIBUTE_POOLS = 88, ATTRIBUTE_HOST_NODE = 92, ATTRIBUTE_FABRIC = 95, ATTRIBUTE_LAST = 95,
    ATTRIBUTE_AMD = 10000, ATTRIBUTE_LARGE_BAR = 10011,
    ATTRIBUTE_AMD_LAST = 10022
};

/* Page migration is off unless HSA_XNACK is 1; managed memory then stays on the host. */
int attribute_of(int device, int attribute)
{
    bool migrates = takes_host_addresses();
    switch (attribute) {
    case ATTRIBUTE_CONCURRENT_MANAGED:
    case ATTRIBUTE_PAGEABLE: return migrates;
    case ATTRIBUTE_INTEGRATED: return core_setting("DEVMEM_EMULATOR_INTEGRATED", 0) == 1;
    case ATTRIBUTE_LARGE_BAR: return core_setting("DEVMEM_EMULATOR_LARGE_BAR", 0) == 1;
    case ATTRIBUTE_PCI_BUS: return devices[device].physical + 1;
    case ATTRIBUTE_TOTAL: return (int)devices[device].heap.bytes;
    case ATTRIBUTE_POOLS: return hip_has_pools();
    case ATTRIBUTE_HOST_NODE: return core_host_node();
    case ATTRIBUTE_FABRIC: return core_setting("DEVMEM_EMULATOR_FABRIC", 0) == 1;
    default: break;
    }
    for (size_t index = 0; index < sizeof attributes / sizeof *attributes; index++)
        if (attributes[index][0] == attribute) return attributes[index][1];
    return 0;
}

HIP(hipDeviceGetAttribute)(int *value, int attribute, int device)
{
    BEGIN(hipDeviceGetAttribute, NEED_INIT);
    bool common = attribute >= 0 && attribute <= ATTRIBUTE_LAST;
    bool amd = attribute >= ATTRIBUTE_AMD && attribute <= ATTRIBUTE_AMD_LAST;
    REQUIRE(value && (common || amd), INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *value = attribute_of(device, attribute);
    END(OK);
}

HIP(hipGetDevicePropertiesR0600)(struct properties *out, int device)
{
    BEGIN(hipGetDevicePropertiesR0600, NEED_INIT);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    bool migrates = attribute_of(device, ATTRIBUTE_PAGEABLE);
    *out = (struct properties){
        .total_memory = devices[device].heap.bytes, .shared_per_block = 65536, .registers_per_block = 65536, .warp_size = WAVE,
        .pitch = 2147483647, .threads_per_block = 1024, .threads = {1024, 1024, 1024}, .grid = {2147483647, 65536, 65536},
        .clock = 1700000, .constant_memory = 2147483647, .major = 9, .texture_alignment = 256, .texture_pitch_alignment = 256,
        .overlap = 1, .processors = 104, .integrated = attribute_of(device, ATTRIBUTE_INTEGRATED), .can_map_host = 1,
        .concurrent_kernels = 1, .pci_bus = attribute_of(device, ATTRIBUTE_PCI_BUS), .async_engines = 2,
        .unified_addressing = 1, .memory_clock = 1600000, .memory_bus_width = 4096, .l2_cache = 8 << 20,
        .threads_per_processor = 2048, .stream_priorities = 1, .managed = 1, .pageable_access = migrates,
        .concurrent_managed = migrates, .host_register = 1, .pools = hip_has_pools(),
        .large_bar = attribute_of(device, ATTRIBUTE_LARGE_BAR)};
    device_name(device, out->name, sizeof out->name);
    device_uuid(device, out->uuid);
    snprintf(out->arch_name, sizeof out->arch_name, "gfx90a:sramecc+:xnack%c", migrates ? '+' : '-');
    END(OK);
}

HIP(hipDeviceComputeCapability)(int *major, int *minor, int device)
{
    BEGIN(hipDeviceComputeCapability, NEED_INIT);
    REQUIRE(major && minor, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    *major = 9;
    *minor = 0;
    END(OK);
}

HIP(hipDeviceGetPCIBusId)(char *text, int length, int device)
{
    BEGIN(hipDeviceGetPCIBusId, NEED_INIT);
    REQUIRE(text && length >= 13, INVALID_VALUE);
    REQUIRE(is_device(device), INVALID_DEVICE);
    snprintf(text, (size_t)length, "0000:%02x:00.0", (unsigned)attribute_of(device, ATTRIBUTE_PCI_BUS) & 0xff);
    END(OK);
}

HIP(hipDeviceGetByPCIBusId)(int *device, const char *text)
{
    BEGIN(hipDeviceGetByPCIBusId, NEED_INIT);
    unsigned domain = 1, bus = 0;
    REQUIRE(device && text, INVALID_VALUE);
    REQUIRE(sscanf(text, "%x:%x:", &domain, &bus) == 2, INVALID_VALUE);
    for (int index = 0; index < device_count; index++)
        if (bus == (unsigned)attribute_of(index, ATTRIBUTE_PCI_BUS) && !domain) {
            *device = index;
            END(OK);
        }
    END(INVALID_VALUE);
}

/* --- peers -------------------------------------------------------------------------------------------------------- */

HIP(hipDeviceCanAccessPeer)(int *can, int device, int peer)
{
    BEGIN(hipDeviceCanAccessPeer, NEED_INIT);
    REQUIRE(can, INVALID_VALUE);
    REQUIRE(is_device(device) && is_device(peer), INVALID_DEVICE);
    *can = device != peer;
    END(OK);
}

HIP(hipDeviceGetP2PAttribute)(int *value, int attribute, int from, int to)
{
    BEGIN(hipDeviceGetP2PAttribute, NEED_INIT);
    REQUIRE(value && attribute >= 0 && attribute <= 3, INVALID_VALUE);
    REQUIRE(is_device(from) && is_device(to) && from != to, INVALID_DEVICE);
    *value = attribute == 1;
    END(OK);
}

HIP(hipExtGetLinkTypeAndHopCount)(int from, int to, unsigned *type, unsigned *hops)
{
    BEGIN(hipExtGetLinkTypeAndHopCount, NEED_INIT);
    REQUIRE(type && hops, INVALID_VALUE);
    REQUIRE(is_device(from) && is_device(to) && from != to, INVALID_DEVICE);
    *type = 2; /* PCI Express */
    *hops = 1;
    END(OK);
}

HIP(hipDeviceEnablePeerAccess)(int peer, unsigned flags)
{
    BEGIN(hipDeviceEnablePeerAccess, NEED_CONTEXT);
    REQUIRE(!flags, INVALID_VALUE);
    REQUIRE(is_device(peer), INVALID_DEVICE);
    END(peer_enable(context, devices[peer].primary->handle));
}

HIP(hipDeviceDisablePeerAccess)(int peer)
{
    BEGIN(hipDeviceDisablePeerAccess, NEED_CONTEXT);
    REQUIRE(is_device(peer), INVALID_DEVICE);
    END(peer_disable(context, devices[peer].primary->handle));
}

/* --- streams and events by handle --------------------------------------------------------------------------------- */

static int clamped(int priority)
{
    return priority > PRIORITY_LEAST ? PRIORITY_LEAST : priority < PRIORITY_GREATEST ? PRIORITY_GREATEST : priority;
}

HIP(hipStreamCreateWithPriority)(handle *out, unsigned flags, int priority)
{
    BEGIN(hipStreamCreateWithPriority, NEED_CONTEXT);
    REQUIRE(out && flags <= STREAM_NON_BLOCKING, INVALID_VALUE);
    END(stream_create(context, flags, clamped(priority), out));
}

HIP(hipStreamCreateWithFlags)(handle *out, unsigned flags)
{
    BEGIN(hipStreamCreateWithFlags, NEED_CONTEXT);
    REQUIRE(out && flags <= STREAM_NON_BLOCKING, INVALID_VALUE);
    END(stream_create(context, flags, 0, out));
}

HIP(hipStreamCreate)(handle *out)
{
    BEGIN(hipStreamCreate, NEED_CONTEXT);
    END(out ? stream_create(context, 0, 0, out) : INVALID_VALUE);
}

HIP(hipStreamDestroy)(handle stream)
{
    BEGIN(hipStreamDestroy, NEED_CONTEXT);
    REQUIRE(stream > STREAM_PER_THREAD, INVALID_HANDLE);
    END(stream_destroy(stream));
}

#define EVENT_BLOCKING 1u
#define EVENT_NO_FENCE 0x20000000u
#define EVENT_RELEASE_TO_DEVICE 0x40000000u
#define EVENT_SCOPES (EVENT_NO_FENCE | EVENT_RELEASE_TO_DEVICE | EVENT_RELEASE_TO_SYSTEM)

static status make_event(struct context *context, handle *out, unsigned flags)
{
    unsigned scope = flags & EVENT_SCOPES;
    bool shared_and_timed = (flags & EVENT_INTERPROCESS) && !(flags & EVENT_DISABLE_TIMING);
    if (!out || (flags & ~(EVENT_BLOCKING | EVENT_DISABLE_TIMING | EVENT_INTERPROCESS | EVENT_SCOPES))) return INVALID_VALUE;
    if ((scope & (scope - 1)) || shared_and_timed) return INVALID_VALUE; /* at most one release scope */
    return flags & EVENT_INTERPROCESS ? NOT_SUPPORTED : event_create(context, flags, out);
}

HIP(hipEventCreateWithFlags)(handle *out, unsigned flags)
{
    BEGIN(hipEventCreateWithFlags, NEED_CONTEXT);
    END(make_event(context, out, flags));
}

HIP(hipEventCreate)(handle *out)
{
    BEGIN(hipEventCreate, NEED_CONTEXT);
    END(make_event(context, out, 0));
}

status event_known(handle event)
{
    if (!event) return INVALID_HANDLE;
    return handle_get(event, HANDLE_EVENT) ? OK : CONTEXT_IS_DESTROYED;
}

HIP(hipEventDestroy)(handle event)
{
    BEGIN(hipEventDestroy, NEED_CONTEXT);
    status known = event_known(event);
    END(known == OK ? event_destroy(event) : known);
}

HIP(hipEventQuery)(handle event)
{
    BEGIN(hipEventQuery, NEED_CONTEXT);
    status known = event_known(event);
    END(known == OK ? event_query(event) : known);
}

HIP(hipEventSynchronize)(handle event)
{
    BEGIN(hipEventSynchronize, NEED_CONTEXT);
    status known = event_known(event);
    END(known == OK ? event_synchronize(event) : known);
}

HIP(hipEventElapsedTime)(float *milliseconds, handle start, handle end)
{
    BEGIN(hipEventElapsedTime, NEED_CONTEXT);
    REQUIRE(milliseconds, INVALID_VALUE);
    END(event_elapsed(start, end, milliseconds));
}

/* --- not supported ------------------------------------------------------------------------------------------------ */

/* The arguments are ignored, whatever they are; the calling convention of the platform allows that. */
#define UNSUPPORTED(name)                 \
    HIP(name)(void);                      \
    HIP(name)(void)                       \
    {                                     \
        BEGIN(name, NEED_INIT);           \
        END(NOT_SUPPORTED);               \
    }
HIP_UNSUPPORTED(UNSUPPORTED)

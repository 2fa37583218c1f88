/* The emulated CUDA runtime: a front over the functions of the driver, which it finds by cuGetProcAddress.
 *
 * Compiled once for each major version of the API: RUNTIME is 12 or 13. The part of the runtime's binary interface that it needs
 * is declared here, so that no vendor header is needed.
 */
#ifndef DEVMEM_EMULATOR_RUNTIME_H
#define DEVMEM_EMULATOR_RUNTIME_H

#define FRONT_ENTER runtime_enter
#define FRONT_LEAVE runtime_leave

#include "cuda_abi.h"
#include "front.h"

enum {
    INVALID_CONFIGURATION = 9,
    INVALID_PITCH = 12,
    INVALID_SYMBOL = 13,
    INVALID_DIRECTION = 21,
    INSUFFICIENT_DRIVER = 35,
    INVALID_FUNCTION = 98
};

enum { KIND_HOST_TO_HOST, KIND_HOST_TO_DEVICE, KIND_DEVICE_TO_HOST, KIND_DEVICE_TO_DEVICE, KIND_DEFAULT };
enum { TYPE_UNREGISTERED, TYPE_HOST, TYPE_DEVICE, TYPE_MANAGED };

/* The first 24 bytes of the vendor's struct; newer versions add reserved fields, which stay as they are. */
struct pointer_attributes {
    int type, device;
    void *device_pointer, *host_pointer;
};

struct function_attributes {
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache, dynamic_shared, carveout;
};

/* cudaDeviceProp: version 13 left out what attributes tell as well. */
struct properties {
    char name[256];
    unsigned char uuid[16], luid[8];
    unsigned luid_mask;
    size_t total_memory, shared_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int threads_per_block, threads[3], grid[3];
#if RUNTIME < 13
    int clock;
#endif
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
#if RUNTIME < 13
    int overlap;
#endif
    int processors;
#if RUNTIME < 13
    int timeout;
#endif
    int integrated, can_map_host;
#if RUNTIME < 13
    int compute_mode;
#endif
    int texture_1d, texture_1d_mipmap;
#if RUNTIME < 13
    int texture_1d_linear;
#endif
    int texture[15], texture_cubemap, texture_layered[7], surface[6], surface_layered[5], surface_cubemap[3];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, async_engines, unified_addressing;
#if RUNTIME < 13
    int memory_clock;
#endif
    int memory_bus_width, l2_cache, persisting_l2, threads_per_processor, stream_priorities, l1_global, l1_local;
    size_t shared_per_processor;
    int registers_per_processor, managed, multi_board, board_group, host_atomics;
#if RUNTIME < 13
    int double_ratio;
#endif
    int pageable_access, concurrent_managed, preemption, host_pointer_registered, cooperative;
#if RUNTIME < 13
    int cooperative_multi;
#endif
    size_t shared_optin;
    int pageable_by_host_tables, direct_managed, blocks_per_processor, policy_window;
    size_t shared_reserved;
    int host_register, sparse, register_read_only, timeline, pools, rdma;
    unsigned rdma_flush;
    int rdma_order;
    unsigned pool_handles;
    int deferred_mapping, ipc_events, clusters, unified_functions;
#if RUNTIME < 13
    int reserved[63];
#else
    int numa_config, numa_id, mps, host_numa_id;
    unsigned pci_device_id, pci_subsystem_id;
    int multinode_ipc, reserved[56];
#endif
};

#if RUNTIME < 13
_Static_assert(sizeof(struct properties) == 1032, "layout of cudaDeviceProp in CUDA 12");
#endif

/* The functions of the driver that this front calls. Before 13.0 two of them take no context: that one is then ignored. */
#define DRIVER_FUNCTIONS(X) \
    X(cuInit, (unsigned)) X(cuDriverGetVersion, (int *)) X(cuDeviceGetCount, (int *)) X(cuDeviceGetName, (char *, int, int)) \
    X(cuDeviceGetUuid, (unsigned char *, int)) X(cuDeviceTotalMem, (size_t *, int)) \
    X(cuDeviceGetAttribute, (int *, int, int)) X(cuDeviceGetPCIBusId, (char *, int, int)) \
    X(cuDeviceGetByPCIBusId, (int *, const char *)) X(cuDevicePrimaryCtxRetain, (handle *, int)) \
    X(cuDevicePrimaryCtxReset, (int)) X(cuDevicePrimaryCtxGetState, (int, unsigned *, int *)) \
    X(cuDevicePrimaryCtxSetFlags, (int, unsigned)) X(cuCtxGetCurrent, (handle *)) X(cuCtxSetCurrent, (handle)) \
    X(cuCtxGetDevice, (int *, handle)) X(cuCtxGetFlags, (unsigned *)) X(cuCtxSynchronize, (handle)) \
    X(cuCtxGetStreamPriorityRange, (int *, int *)) X(cuCtxEnablePeerAccess, (handle, unsigned)) \
    X(cuCtxDisablePeerAccess, (handle)) X(cuDeviceCanAccessPeer, (int *, int, int)) \
    X(cuDeviceGetP2PAttribute, (int *, int, int, int)) \
    X(cuMemAlloc, (uint64_t *, size_t)) X(cuMemFree, (uint64_t)) X(cuMemGetInfo, (size_t *, size_t *)) \
    X(cuMemHostAlloc, (void **, size_t, unsigned)) X(cuMemFreeHost, (void *)) X(cuMemHostRegister, (void *, size_t, unsigned)) \
    X(cuMemHostUnregister, (void *)) X(cuMemHostGetDevicePointer, (uint64_t *, void *, unsigned)) \
    X(cuMemHostGetFlags, (unsigned *, void *)) X(cuMemAllocManaged, (uint64_t *, size_t, unsigned)) \
    X(cuMemAdvise, (uint64_t, size_t, int, struct location)) \
    X(cuPointerGetAttributes, (unsigned, const int *, void **, uint64_t)) \
    X(cuMemPoolCreate, (handle *, const struct pool_properties *)) X(cuMemPoolDestroy, (handle)) \
    X(cuMemPoolSetAttribute, (handle, int, const void *)) X(cuMemPoolGetAttribute, (handle, int, void *)) \
    X(cuMemPoolTrimTo, (handle, size_t)) X(cuMemPoolSetAccess, (handle, const struct access_description *, size_t)) \
    X(cuMemPoolGetAccess, (int *, handle, const struct location *)) X(cuDeviceGetDefaultMemPool, (handle *, int)) \
    X(cuDeviceGetMemPool, (handle *, int)) X(cuDeviceSetMemPool, (int, handle)) \
    X(cuIpcGetMemHandle, (struct ipc_handle *, uint64_t)) X(cuIpcOpenMemHandle, (uint64_t *, struct ipc_handle, unsigned)) \
    X(cuIpcCloseMemHandle, (uint64_t)) X(cuIpcGetEventHandle, (struct ipc_handle *, handle)) \
    X(cuIpcOpenEventHandle, (handle *, struct ipc_handle)) \
    X(cuStreamCreateWithPriority, (handle *, unsigned, int)) X(cuStreamDestroy, (handle)) \
    X(cuEventCreate, (handle *, unsigned)) X(cuEventDestroy, (handle)) X(cuEventQuery, (handle)) X(cuEventSynchronize, (handle)) \
    X(cuEventElapsedTime, (float *, handle, handle)) X(cuThreadExchangeStreamCaptureMode, (int *)) \
    X(cuGraphCreate, (handle *, unsigned)) X(cuGraphDestroy, (handle)) X(cuGraphExecDestroy, (handle)) \
    X(cuGraphGetNodes, (handle, void *, size_t *)) X(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
    X(cuUserObjectCreate, (handle *, void *, void (*)(void *), unsigned, unsigned)) X(cuUserObjectRetain, (handle, unsigned)) \
    X(cuUserObjectRelease, (handle, unsigned)) X(cuGraphRetainUserObject, (handle, handle, unsigned, unsigned)) \
    X(cuDeviceGetGraphMemAttribute, (int, int, uint64_t *)) X(cuDeviceSetGraphMemAttribute, (int, int, const uint64_t *)) \
    X(cuMemcpy, (uint64_t, uint64_t, size_t)) X(cuMemcpyAsync, (uint64_t, uint64_t, size_t, handle)) \
    X(cuMemcpyHtoD, (uint64_t, uint64_t, size_t)) X(cuMemcpyHtoDAsync, (uint64_t, uint64_t, size_t, handle)) \
    X(cuMemcpyDtoH, (uint64_t, uint64_t, size_t)) X(cuMemcpyDtoHAsync, (uint64_t, uint64_t, size_t, handle)) \
    X(cuMemcpyDtoD, (uint64_t, uint64_t, size_t)) X(cuMemcpyDtoDAsync, (uint64_t, uint64_t, size_t, handle)) \
    X(cuMemcpyPeer, (uint64_t, handle, uint64_t, handle, size_t)) \
    X(cuMemcpyPeerAsync, (uint64_t, handle, uint64_t, handle, size_t, handle)) \
    X(cuMemcpy3D, (const struct memcpy3d *)) X(cuMemcpy3DAsync, (const struct memcpy3d *, handle)) \
    X(cuMemcpyBatchAsync, (const uint64_t *, const uint64_t *, const size_t *, size_t, const struct memcpy_attributes *, \
                           const size_t *, size_t, handle)) \
    X(cuMemsetD2D8, (uint64_t, size_t, unsigned char, size_t, size_t)) \
    X(cuMemsetD2D8Async, (uint64_t, size_t, unsigned char, size_t, size_t, handle)) \
    X(cuMemsetD8, (uint64_t, unsigned char, size_t)) X(cuMemsetD8Async, (uint64_t, unsigned char, size_t, handle)) \
    X(cuMemAllocAsync, (uint64_t *, size_t, handle)) X(cuMemAllocFromPoolAsync, (uint64_t *, size_t, handle, handle)) \
    X(cuMemFreeAsync, (uint64_t, handle)) X(cuMemPrefetchAsync, (uint64_t, size_t, struct location, unsigned, handle)) \
    X(cuStreamAttachMemAsync, (handle, uint64_t, size_t, unsigned)) \
    X(cuStreamQuery, (handle)) X(cuStreamSynchronize, (handle)) X(cuStreamWaitEvent, (handle, handle, unsigned)) \
    X(cuStreamGetPriority, (handle, int *)) X(cuStreamGetFlags, (handle, unsigned *)) X(cuStreamGetDevice, (handle, int *)) \
    X(cuStreamGetId, (handle, unsigned long long *)) X(cuEventRecord, (handle, handle)) \
    X(cuEventRecordWithFlags, (handle, handle, unsigned)) X(cuLaunchHostFunc, (handle, void (*)(void *), void *)) \
    X(cuStreamAddCallback, (handle, stream_callback, void *, unsigned)) \
    X(cuStreamBeginCapture, (handle, int)) X(cuStreamEndCapture, (handle, handle *)) X(cuStreamIsCapturing, (handle, int *)) \
    X(cuStreamBeginCaptureToGraph, (handle, handle, const void *, const void *, size_t, int)) \
    X(cuStreamGetCaptureInfo, (handle, int *, uint64_t *, handle *, void **, void **, size_t *)) X(cuGraphLaunch, (handle, handle))

#define DRIVER_MEMBER(name, parameters) status (*name) parameters;

struct driver {
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
};

/* The functions of this front, by the names under which they are counted and made to fail. */
#define RUNTIME_FUNCTIONS(X) \
    X(cudaDriverGetVersion) X(cudaRuntimeGetVersion) X(cudaGetErrorName) X(cudaGetErrorString) X(cudaGetLastError) \
    X(cudaPeekAtLastError) X(cudaGetDriverEntryPoint) X(cudaGetDriverEntryPointByVersion) \
    X(cudaGetDeviceCount) X(cudaGetDevice) X(cudaSetDevice) X(cudaInitDevice) X(cudaDeviceReset) X(cudaDeviceSynchronize) \
    X(cudaDeviceGetAttribute) X(cudaGetDeviceProperties) X(cudaDeviceGetPCIBusId) X(cudaDeviceGetByPCIBusId) \
    X(cudaGetDeviceFlags) X(cudaSetDeviceFlags) X(cudaDeviceGetStreamPriorityRange) X(cudaDeviceCanAccessPeer) \
    X(cudaDeviceEnablePeerAccess) X(cudaDeviceDisablePeerAccess) X(cudaDeviceGetP2PAttribute) \
    X(cudaMalloc) X(cudaMallocPitch) X(cudaMalloc3D) X(cudaFree) X(cudaMemGetInfo) X(cudaPointerGetAttributes) \
    X(cudaMallocHost) X(cudaHostAlloc) X(cudaFreeHost) X(cudaHostRegister) X(cudaHostUnregister) X(cudaHostGetDevicePointer) \
    X(cudaHostGetFlags) X(cudaMallocManaged) X(cudaMemPrefetchAsync) X(cudaMemAdvise) X(cudaStreamAttachMemAsync) \
    X(cudaMallocAsync) X(cudaMallocFromPoolAsync) X(cudaFreeAsync) X(cudaMemPoolCreate) X(cudaMemPoolDestroy) \
    X(cudaMemPoolSetAttribute) X(cudaMemPoolGetAttribute) X(cudaMemPoolTrimTo) X(cudaMemPoolSetAccess) X(cudaMemPoolGetAccess) \
    X(cudaDeviceGetDefaultMemPool) X(cudaDeviceGetMemPool) X(cudaDeviceSetMemPool) \
    X(cudaIpcGetMemHandle) X(cudaIpcOpenMemHandle) X(cudaIpcCloseMemHandle) X(cudaIpcGetEventHandle) X(cudaIpcOpenEventHandle) \
    X(cudaMemcpy) X(cudaMemcpyAsync) X(cudaMemcpy2D) X(cudaMemcpy2DAsync) X(cudaMemcpy3D) X(cudaMemcpy3DAsync) X(cudaMemcpyPeer) \
    X(cudaMemcpyPeerAsync) X(cudaMemcpyBatchAsync) X(cudaMemcpyToSymbol) X(cudaMemcpyToSymbolAsync) X(cudaMemcpyFromSymbol) \
    X(cudaMemcpyFromSymbolAsync) X(cudaMemset) X(cudaMemsetAsync) X(cudaMemset2D) X(cudaMemset2DAsync) X(cudaMemset3D) \
    X(cudaMemset3DAsync) \
    X(cudaStreamCreate) X(cudaStreamCreateWithFlags) X(cudaStreamCreateWithPriority) X(cudaStreamDestroy) X(cudaStreamQuery) \
    X(cudaStreamSynchronize) X(cudaStreamWaitEvent) X(cudaStreamGetPriority) X(cudaStreamGetFlags) X(cudaStreamGetDevice) \
    X(cudaStreamGetId) X(cudaLaunchHostFunc) X(cudaStreamAddCallback) \
    X(cudaEventCreate) X(cudaEventCreateWithFlags) X(cudaEventDestroy) X(cudaEventRecord) X(cudaEventRecordWithFlags) \
    X(cudaEventQuery) X(cudaEventSynchronize) X(cudaEventElapsedTime) \
    X(cudaStreamBeginCapture) X(cudaStreamBeginCaptureToGraph) X(cudaStreamEndCapture) X(cudaStreamIsCapturing) \
    X(cudaStreamGetCaptureInfo) X(cudaThreadExchangeStreamCaptureMode) X(cudaGraphCreate) X(cudaGraphDestroy) \
    X(cudaGraphExecDestroy) X(cudaGraphGetNodes) X(cudaGraphInstantiate) X(cudaGraphInstantiateWithFlags) X(cudaGraphLaunch) \
    X(cudaUserObjectCreate) X(cudaUserObjectRetain) X(cudaUserObjectRelease) X(cudaGraphRetainUserObject) \
    X(cudaDeviceGetGraphMemAttribute) X(cudaDeviceSetGraphMemAttribute) \
    X(__cudaRegisterFatBinary) X(__cudaRegisterFatBinaryEnd) X(__cudaUnregisterFatBinary) X(__cudaRegisterFunction) \
    X(__cudaRegisterVar) X(__cudaInitModule) X(__cudaPushCallConfiguration) X(__cudaPopCallConfiguration) X(__cudaGetKernel) \
    X(__cudaLaunchKernel) X(cudaLaunchKernel) X(cudaLaunchKernelExC) X(cudaLaunchCooperativeKernel) X(cudaFuncGetAttributes) \
    X(cudaFuncSetAttribute) X(cudaGetSymbolAddress) X(cudaGetSymbolSize) X(cudaOccupancyMaxActiveBlocksPerMultiprocessor) \
    X(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) X(cudaProfilerStart) X(cudaProfilerStop) \
    RUNTIME_UNSUPPORTED(X)

/* Exported to return cudaErrorNotSupported. functions.py reads this list. */
#define RUNTIME_UNSUPPORTED(X) \
    X(cudaGraphAddNode) X(cudaGraphConditionalHandleCreate) X(cudaGraphNodeGetDependencies) X(cudaGraphExecUpdate) \
    X(cudaGraphDebugDotPrint) X(cudaStreamUpdateCaptureDependencies) X(cudaLibraryLoadData) X(cudaLibraryUnload) \
    X(cudaLibraryGetKernel) X(cudaKernelSetAttributeForDevice) X(cudaDeviceGetLimit) X(cudaDeviceSetLimit) X(cudaMallocArray) \
    X(cudaMalloc3DArray) X(cudaFreeArray) X(cudaMemcpyToArray) X(cudaMemcpyFromArray) X(cudaMemRangeGetAttribute) \
    X(cudaMemPoolExportToShareableHandle) X(cudaMemPoolImportFromShareableHandle) X(cudaMemPoolExportPointer) \
    X(cudaMemPoolImportPointer) X(cudaMemcpy3DPeer) X(cudaMemcpy3DPeerAsync) X(cudaCreateTextureObject) \
    X(cudaDestroyTextureObject) X(cudaCreateSurfaceObject) X(cudaDestroySurfaceObject)

enum { RUNTIME_FUNCTIONS(FUNCTION_NUMBER) FUNCTION_TOTAL };
_Static_assert(FUNCTION_TOTAL <= MAX_FUNCTIONS, "room for all counters");

#define RUNTIME_CALL(name) EXPORT status name

extern struct driver drivers[2];        /* its functions, for the legacy and for the per-thread default stream */
#define DRIVER(name) drivers[0].name

status runtime_enter(int function, enum need need, struct context **context);
status runtime_leave(status result);
status runtime_driver_entry(const char *name, void **out, int version, uint64_t flags, int *found);
status primary_of(int device, handle *out);
status launch_check(const void *function, const struct launch *launch, status (*flags_of)(handle, unsigned *));
status symbol_find(const void *symbol, uint64_t *address, size_t *bytes);

#endif

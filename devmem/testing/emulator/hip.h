/* The part of the HIP runtime's binary interface that the front needs, declared here so that no vendor header is needed. */
#ifndef DEVMEM_EMULATOR_HIP_H
#define DEVMEM_EMULATOR_HIP_H

#define FRONT_ENTER hip_enter
#define FRONT_LEAVE hip_leave

#include "front.h"

enum {
    HIP_INVALID_PITCH = 12,
    HIP_INVALID_DEVICE_POINTER = 17,
    HIP_INVALID_DIRECTION = 21
};

enum {
    HIP_MEMORY_UNREGISTERED, HIP_MEMORY_HOST, HIP_MEMORY_DEVICE, HIP_MEMORY_MANAGED, HIP_MEMORY_ARRAY = 10,
    HIP_MEMORY_UNIFIED
};
enum { KIND_HOST_TO_HOST, KIND_HOST_TO_DEVICE, KIND_DEVICE_TO_HOST, KIND_DEVICE_TO_DEVICE, KIND_DEFAULT, KIND_NO_KERNEL = 1024 };

#define HOST_MAPPED 2u
#define HOST_NUMA_USER 0x20000000u
#define HOST_COHERENT 0x40000000u
#define HOST_NON_COHERENT 0x80000000u

struct driver_copy2d {
    size_t src_x, src_y;
    int src_type;
    void *src_host, *src_device, *src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_type;
    void *dst_host, *dst_device, *dst_array;
    size_t dst_pitch, width, height;
};

struct driver_copy3d {
    size_t src_x, src_y, src_z, src_lod;
    int src_type;
    void *src_host, *src_device, *src_array;
    size_t src_pitch, src_height, dst_x, dst_y, dst_z, dst_lod;
    int dst_type;
    void *dst_host, *dst_device, *dst_array;
    size_t dst_pitch, dst_height, width, height, depth;
};

struct pointer_attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int is_managed;
    unsigned flags;
};

/* hipDeviceProp_tR0600: the layout since ROCm 6. */
struct properties {
    char name[256];
    unsigned char uuid[16], luid[8];
    unsigned luid_mask;
    size_t total_memory, shared_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int threads_per_block, threads[3], grid[3], clock;
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int overlap, processors, timeout, integrated, can_map_host, compute_mode;
    int texture[18];
    int texture_cubemap, texture_layered[7], surface[14];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, async_engines, unified_addressing;
    int memory_clock, memory_bus_width, l2_cache, persisting_l2, threads_per_processor, stream_priorities, l1_global, l1_local;
    size_t shared_per_processor;
    int registers_per_processor, managed, multi_board, board_group, host_atomics, double_ratio, pageable_access;
    int concurrent_managed, preemption, host_pointer_registered, cooperative, cooperative_multi;
    size_t shared_optin;
    int pageable_by_host_tables, direct_managed, blocks_per_processor, policy_window;
    size_t shared_reserved;
    int host_register, sparse, register_read_only, timeline, pools, rdma;
    unsigned rdma_flush;
    int rdma_order;
    unsigned pool_handles;
    int deferred_mapping, ipc_events, clusters, unified_functions, reserved[63], hip_reserved[32];
    char arch_name[256];
    size_t shared_per_multiprocessor;
    int instruction_clock;
    unsigned arch;
    void *hdp_memory, *hdp_register;
    int unmatched[4], large_bar, revision;
};

_Static_assert(sizeof(struct driver_copy2d) == 128 && sizeof(struct driver_copy3d) == 184,
               "layouts of the copy descriptors");
_Static_assert(sizeof(struct pointer_attributes) == 32 && sizeof(struct properties) == 1472, "layouts that bindings read");

/* Functions are defined as strict_NAME; hip_table.c exports NAME as this function or as that of the null mode. */
#define HIP(name) status strict_##name

/* The functions of this front, by the names under which they are counted and made to fail. */
#define HIP_FUNCTIONS(X) \
    X(hipInit) X(hipDriverGetVersion) X(hipRuntimeGetVersion) X(hipGetErrorName) X(hipGetErrorString) X(hipDrvGetErrorName) \
    X(hipDrvGetErrorString) X(hipGetLastError) X(hipPeekAtLastError) \
    X(hipGetDeviceCount) X(hipGetDevice) X(hipSetDevice) X(hipDeviceGet) X(hipDeviceGetName) X(hipDeviceGetUuid) \
    X(hipDevicePrimaryCtxRetain) X(hipDevicePrimaryCtxRelease) \
    X(hipDeviceTotalMem) X(hipDeviceGetAttribute) X(hipDeviceGetPCIBusId) X(hipDeviceGetByPCIBusId) \
    X(hipDeviceComputeCapability) X(hipDeviceSynchronize) X(hipDeviceReset) X(hipGetDeviceFlags) \
    X(hipDeviceCanAccessPeer) X(hipDeviceEnablePeerAccess) X(hipDeviceDisablePeerAccess) X(hipDeviceGetP2PAttribute) \
    X(hipExtGetLinkTypeAndHopCount) X(hipDeviceGetStreamPriorityRange) \
    X(hipMalloc) X(hipExtMallocWithFlags) X(hipMallocPitch) X(hipMalloc3D) X(hipFree) X(hipMemGetInfo) \
    X(hipMemGetAddressRange) X(hipMemPtrGetInfo) X(hipPointerGetAttributes) X(hipPointerGetAttribute) \
    X(hipDrvPointerGetAttributes) \
    X(hipHostMalloc) X(hipHostFree) X(hipHostGetDevicePointer) X(hipHostGetFlags) X(hipHostRegister) X(hipHostUnregister) \
    X(hipMallocManaged) X(hipMemPrefetchAsync) X(hipMemAdvise) \
    X(hipIpcGetMemHandle) X(hipIpcOpenMemHandle) X(hipIpcCloseMemHandle) \
    X(hipMemcpy) X(hipMemcpyAsync) X(hipMemcpyWithStream) X(hipMemcpyHtoD) X(hipMemcpyHtoDAsync) X(hipMemcpyDtoH) \
    X(hipMemcpyDtoHAsync) X(hipMemcpyDtoD) X(hipMemcpyDtoDAsync) X(hipMemcpyPeer) X(hipMemcpyPeerAsync) \
    X(hipMemcpy2D) X(hipMemcpy2DAsync) X(hipMemcpyParam2D) X(hipMemcpyParam2DAsync) X(hipMemcpy3D) X(hipMemcpy3DAsync) \
    X(hipDrvMemcpy3D) X(hipDrvMemcpy3DAsync) \
    X(hipMemset) X(hipMemsetAsync) X(hipMemsetD8) X(hipMemsetD8Async) X(hipMemsetD16) X(hipMemsetD16Async) X(hipMemsetD32) \
    X(hipMemsetD32Async) X(hipMemset2D) X(hipMemset2DAsync) X(hipMemset3D) X(hipMemset3DAsync) \
    X(hipStreamCreate) X(hipStreamCreateWithFlags) X(hipStreamCreateWithPriority) X(hipStreamDestroy) X(hipStreamQuery) \
    X(hipStreamSynchronize) X(hipStreamWaitEvent) X(hipStreamGetFlags) X(hipStreamGetPriority) X(hipStreamWaitValue32) \
    X(hipStreamWaitValue64) X(hipStreamWriteValue32) X(hipStreamWriteValue64) X(hipStreamIsCapturing) \
    X(hipStreamBeginCapture) X(hipStreamEndCapture) X(hipThreadExchangeStreamCaptureMode) X(hipGraphDestroy) \
    X(hipGraphInstantiate) X(hipGraphInstantiateWithFlags) X(hipGraphLaunch) \
    X(hipLaunchHostFunc) \
    X(hipEventCreate) X(hipEventCreateWithFlags) X(hipEventDestroy) X(hipEventRecord) X(hipEventQuery) \
    X(hipEventSynchronize) X(hipEventElapsedTime) \
    X(hipGraphExecDestroy) X(__hipRegisterFatBinary) X(__hipUnregisterFatBinary) X(__hipRegisterFunction) X(__hipRegisterVar) \
    X(__hipPushCallConfiguration) X(__hipPopCallConfiguration) \
    HIP_NEWER(X) HIP_UNSUPPORTED(X)

/* Functions that older runtimes lack, each some of them; the layout "old" exports none. */
#define HIP_NEWER(X) \
    X(hipGetDevicePropertiesR0600) X(hipExtGetLastError) X(hipHostAlloc) X(hipStreamGetDevice) X(hipStreamGetId) \
    X(hipGetStreamDeviceId) \
    X(hipEventRecordWithFlags) X(hipMemPrefetchAsync_v2) X(hipMemAdvise_v2) X(hipMemcpyBatchAsync) \
    X(hipMemPrefetchBatchAsync) X(hipMemDiscardBatchAsync) X(hipMemDiscardAndPrefetchBatchAsync) \
    X(hipMallocAsync) X(hipMallocFromPoolAsync) X(hipFreeAsync) X(hipMemPoolCreate) X(hipMemPoolDestroy) \
    X(hipMemPoolSetAttribute) X(hipMemPoolGetAttribute) X(hipMemPoolTrimTo) X(hipMemPoolSetAccess) X(hipMemPoolGetAccess) \
    X(hipDeviceGetDefaultMemPool) X(hipDeviceGetMemPool) X(hipDeviceSetMemPool) \
    X(hipMemPoolExportToShareableHandle) X(hipMemPoolImportFromShareableHandle) X(hipMemPoolExportPointer) \
    X(hipMemPoolImportPointer) X(hipMemAddressReserve) X(hipMemAddressFree) X(hipMemCreate) X(hipMemRelease) X(hipMemMap) \
    X(hipMemUnmap) X(hipMemSetAccess) X(hipMemGetAllocationGranularity) X(hipMemGetAllocationPropertiesFromHandle) \
    X(hipMemExportToShareableHandle) X(hipMemImportFromShareableHandle)

/* Variants in which stream 0 is that of the calling thread; counted and made to fail under the plain name. */
#define HIP_PER_THREAD(X) \
    X(hipMemcpy_spt) X(hipMemcpyAsync_spt) X(hipMemcpy2D_spt) X(hipMemcpy2DAsync_spt) X(hipMemcpy3D_spt) X(hipMemcpy3DAsync_spt) \
    X(hipMemset_spt) X(hipMemsetAsync_spt) X(hipMemset2D_spt) X(hipMemset2DAsync_spt) X(hipMemset3D_spt) \
    X(hipMemset3DAsync_spt) X(hipStreamQuery_spt) X(hipStreamSynchronize_spt) X(hipStreamWaitEvent_spt) \
    X(hipStreamGetFlags_spt) X(hipStreamGetPriority_spt) X(hipEventRecord_spt) X(hipLaunchHostFunc_spt)

/* Exported to return hipErrorNotSupported; in the null mode they return success. functions.py reads this list. */
#define HIP_UNSUPPORTED(X) \
    X(hipModuleLoad) X(hipModuleLoadData) X(hipModuleLoadDataEx) X(hipModuleUnload) X(hipModuleGetFunction) \
    X(hipModuleGetGlobal) X(hipModuleLaunchKernel) X(hipExtModuleLaunchKernel) X(hipLaunchKernel) \
    X(hipLaunchCooperativeKernel) X(hipLaunchKernelExC) X(hipDrvLaunchKernelEx) X(hipFuncGetAttribute) X(hipFuncGetAttributes) \
    X(hipFuncSetAttribute) X(hipStreamAddCallback) X(hipStreamGetCaptureInfo) \
    X(hipStreamGetCaptureInfo_v2) X(hipStreamUpdateCaptureDependencies) X(hipGraphCreate) \
    X(hipExtStreamCreateWithCUMask) X(hipStreamAttachMemAsync) X(hipIpcGetEventHandle) \
    X(hipIpcOpenEventHandle) X(hipMemRangeGetAttribute) X(hipMemcpy3DBatchAsync) X(hipMallocArray) \
    X(hipFreeArray) X(hipMemcpyToArray) X(hipPointerSetAttribute) X(hipGetDevicePropertiesR0000) X(hipGetDeviceProperties) \
    X(hipGetProcAddress) X(hipCtxCreate) X(hipCtxDestroy) X(hipCtxGetCurrent) X(hipCtxSetCurrent) X(hipCtxPushCurrent) \
    X(hipCtxPopCurrent) X(hipCtxGetDevice) X(hipCtxSynchronize) \
    X(hipDevicePrimaryCtxGetState) X(hipProfilerStart) X(hipProfilerStop) \
    X(hipCreateSurfaceObject) X(hipDestroySurfaceObject) X(hipDeviceGetLimit) X(hipGraphDebugDotPrint) \
    X(hipOccupancyMaxActiveBlocksPerMultiprocessor) X(hipOccupancyMaxPotentialBlockSize)

enum { HIP_FUNCTIONS(FUNCTION_NUMBER) FUNCTION_TOTAL };
_Static_assert(FUNCTION_TOTAL <= MAX_FUNCTIONS, "room for all counters");

int hip_rocm(void);            /* the emulated ROCm version: major * 100 + minor */
int hip_version(void);         /* the result of hipRuntimeGetVersion */
bool hip_has_pools(void);
void device_uuid(int device, unsigned char uuid[16]);
int attribute_of(int device, int attribute);
status event_known(handle event);
status hip_enter(int function, enum need need, struct context **context);
status hip_leave(status result);
void *null_function(const char *name);

#endif

/* Names and texts of the driver's status codes. */
#define CUDA_ERRORS(X) \
    X(0, "CUDA_SUCCESS", "no error") \
    X(1, "CUDA_ERROR_INVALID_VALUE", "invalid argument") \
    X(2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory") \
    X(3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error") \
    X(4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down") \
    X(5, "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled") \
    X(6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized") \
    X(7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started") \
    X(8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped") \
    X(34, "CUDA_ERROR_STUB_LIBRARY", "stub library") \
    X(36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "call requires newer driver") \
    X(46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device unavailable") \
    X(47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL", "multicast resource full") \
    X(100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected") \
    X(101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal") \
    X(102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device not licensed") \
    X(200, "CUDA_ERROR_INVALID_IMAGE", "invalid image") \
    X(201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context") \
    X(202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context already current") \
    X(205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed") \
    X(206, "CUDA_ERROR_UNMAP_FAILED", "unmap failed") \
    X(207, "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped") \
    X(208, "CUDA_ERROR_ALREADY_MAPPED", "already mapped") \
    X(209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no binary for gpu") \
    X(210, "CUDA_ERROR_ALREADY_ACQUIRED", "already acquired") \
    X(211, "CUDA_ERROR_NOT_MAPPED", "not mapped") \
    X(212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "not mapped as array") \
    X(213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "not mapped as pointer") \
    X(214, "CUDA_ERROR_ECC_UNCORRECTABLE", "ecc uncorrectable") \
    X(215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "unsupported limit") \
    X(216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "context already in use") \
    X(217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access unsupported") \
    X(218, "CUDA_ERROR_INVALID_PTX", "invalid ptx") \
    X(219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid graphics context") \
    X(220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "nvlink uncorrectable") \
    X(221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "jit compiler not found") \
    X(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "unsupported ptx version") \
    X(223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "jit compilation disabled") \
    X(224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "unsupported exec affinity") \
    X(225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "unsupported devside sync") \
    X(226, "CUDA_ERROR_CONTAINED", "contained") \
    X(227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", "insufficient loader version") \
    X(300, "CUDA_ERROR_INVALID_SOURCE", "invalid source") \
    X(301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found") \
    X(302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found") \
    X(303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object init failed") \
    X(304, "CUDA_ERROR_OPERATING_SYSTEM", "operating system") \
    X(400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle") \
    X(401, "CUDA_ERROR_ILLEGAL_STATE", "illegal state") \
    X(402, "CUDA_ERROR_LOSSY_QUERY", "lossy query") \
    X(500, "CUDA_ERROR_NOT_FOUND", "named symbol not found") \
    X(600, "CUDA_ERROR_NOT_READY", "device not ready") \
    X(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered") \
    X(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "launch out of resources") \
    X(702, "CUDA_ERROR_LAUNCH_TIMEOUT", "launch timeout") \
    X(703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "launch incompatible texturing") \
    X(704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled") \
    X(705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled") \
    X(708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "primary context active") \
    X(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed") \
    X(710, "CUDA_ERROR_ASSERT", "assert") \
    X(711, "CUDA_ERROR_TOO_MANY_PEERS", "too many peers") \
    X(712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped") \
    X(713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region") \
    X(714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error") \
    X(715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "illegal instruction") \
    X(716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address") \
    X(717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "invalid address space") \
    X(718, "CUDA_ERROR_INVALID_PC", "invalid pc") \
    X(719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure") \
    X(720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "cooperative launch too large") \
    X(721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory leak") \
    X(800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted") \
    X(801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported") \
    X(802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not ready") \
    X(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system driver mismatch") \
    X(804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "compat not supported on device") \
    X(805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "mps connection failed") \
    X(806, "CUDA_ERROR_MPS_RPC_FAILURE", "mps rpc failure") \
    X(807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "mps server not ready") \
    X(808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "mps max clients reached") \
    X(809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "mps max connections reached") \
    X(810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "mps client terminated") \
    X(811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "cdp not supported") \
    X(812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "cdp version mismatch") \
    X(900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "stream capture unsupported") \
    X(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "stream capture invalidated") \
    X(902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "stream capture merge") \
    X(903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "stream capture unmatched") \
    X(904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "stream capture unjoined") \
    X(905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "stream capture isolation") \
    X(906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "stream capture implicit") \
    X(907, "CUDA_ERROR_CAPTURED_EVENT", "captured event") \
    X(908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "stream capture wrong thread") \
    X(909, "CUDA_ERROR_TIMEOUT", "timeout") \
    X(910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "graph exec update failure") \
    X(911, "CUDA_ERROR_EXTERNAL_DEVICE", "external device") \
    X(912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size") \
    X(913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "function not loaded") \
    X(914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "invalid resource type") \
    X(915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "invalid resource configuration") \
    X(916, "CUDA_ERROR_KEY_ROTATION", "key rotation") \
    X(917, "CUDA_ERROR_STREAM_DETACHED", "stream detached") \
    X(918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", "graph recapture failure") \
    X(919, "CUDA_ERROR_FABRIC_NOT_READY", "fabric not ready") \
    X(999, "CUDA_ERROR_UNKNOWN", "unknown error")

/* Names and texts of the runtime's status codes. */
#define RUNTIME_ERRORS(X) \
    X(0, "cudaSuccess", "no error") \
    X(1, "cudaErrorInvalidValue", "invalid argument") \
    X(2, "cudaErrorMemoryAllocation", "out of memory") \
    X(3, "cudaErrorInitializationError", "initialization error") \
    X(4, "cudaErrorCudartUnloading", "driver shutting down") \
    X(5, "cudaErrorProfilerDisabled", "profiler disabled") \
    X(6, "cudaErrorProfilerNotInitialized", "profiler not initialized") \
    X(7, "cudaErrorProfilerAlreadyStarted", "profiler already started") \
    X(8, "cudaErrorProfilerAlreadyStopped", "profiler already stopped") \
    X(9, "cudaErrorInvalidConfiguration", "invalid configuration") \
    X(10, "cudaErrorVersionTranslation", "version translation") \
    X(12, "cudaErrorInvalidPitchValue", "invalid pitch value") \
    X(13, "cudaErrorInvalidSymbol", "invalid symbol") \
    X(16, "cudaErrorInvalidHostPointer", "invalid host pointer") \
    X(17, "cudaErrorInvalidDevicePointer", "invalid device pointer") \
    X(18, "cudaErrorInvalidTexture", "invalid texture") \
    X(19, "cudaErrorInvalidTextureBinding", "invalid texture binding") \
    X(20, "cudaErrorInvalidChannelDescriptor", "invalid channel descriptor") \
    X(21, "cudaErrorInvalidMemcpyDirection", "invalid memcpy direction") \
    X(22, "cudaErrorAddressOfConstant", "address of constant") \
    X(23, "cudaErrorTextureFetchFailed", "texture fetch failed") \
    X(24, "cudaErrorTextureNotBound", "texture not bound") \
    X(25, "cudaErrorSynchronizationError", "synchronization error") \
    X(26, "cudaErrorInvalidFilterSetting", "invalid filter setting") \
    X(27, "cudaErrorInvalidNormSetting", "invalid norm setting") \
    X(28, "cudaErrorMixedDeviceExecution", "mixed device execution") \
    X(31, "cudaErrorNotYetImplemented", "not yet implemented") \
    X(32, "cudaErrorMemoryValueTooLarge", "memory value too large") \
    X(34, "cudaErrorStubLibrary", "stub library") \
    X(35, "cudaErrorInsufficientDriver", "insufficient driver") \
    X(36, "cudaErrorCallRequiresNewerDriver", "call requires newer driver") \
    X(37, "cudaErrorInvalidSurface", "invalid surface") \
    X(43, "cudaErrorDuplicateVariableName", "duplicate variable name") \
    X(44, "cudaErrorDuplicateTextureName", "duplicate texture name") \
    X(45, "cudaErrorDuplicateSurfaceName", "duplicate surface name") \
    X(46, "cudaErrorDevicesUnavailable", "device unavailable") \
    X(49, "cudaErrorIncompatibleDriverContext", "incompatible driver context") \
    X(52, "cudaErrorMissingConfiguration", "missing configuration") \
    X(53, "cudaErrorPriorLaunchFailure", "prior launch failure") \
    X(65, "cudaErrorLaunchMaxDepthExceeded", "launch max depth exceeded") \
    X(66, "cudaErrorLaunchFileScopedTex", "launch file scoped tex") \
    X(67, "cudaErrorLaunchFileScopedSurf", "launch file scoped surf") \
    X(68, "cudaErrorSyncDepthExceeded", "sync depth exceeded") \
    X(69, "cudaErrorLaunchPendingCountExceeded", "launch pending count exceeded") \
    X(98, "cudaErrorInvalidDeviceFunction", "invalid device function") \
    X(100, "cudaErrorNoDevice", "no CUDA-capable device is detected") \
    X(101, "cudaErrorInvalidDevice", "invalid device ordinal") \
    X(102, "cudaErrorDeviceNotLicensed", "device not licensed") \
    X(103, "cudaErrorSoftwareValidityNotEstablished", "software validity not established") \
    X(127, "cudaErrorStartupFailure", "startup failure") \
    X(200, "cudaErrorInvalidKernelImage", "invalid image") \
    X(201, "cudaErrorDeviceUninitialized", "invalid device context") \
    X(205, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed") \
    X(206, "cudaErrorUnmapBufferObjectFailed", "unmap failed") \
    X(207, "cudaErrorArrayIsMapped", "array is mapped") \
    X(208, "cudaErrorAlreadyMapped", "already mapped") \
    X(209, "cudaErrorNoKernelImageForDevice", "no binary for gpu") \
    X(210, "cudaErrorAlreadyAcquired", "already acquired") \
    X(211, "cudaErrorNotMapped", "not mapped") \
    X(212, "cudaErrorNotMappedAsArray", "not mapped as array") \
    X(213, "cudaErrorNotMappedAsPointer", "not mapped as pointer") \
    X(214, "cudaErrorECCUncorrectable", "ecc uncorrectable") \
    X(215, "cudaErrorUnsupportedLimit", "unsupported limit") \
    X(216, "cudaErrorDeviceAlreadyInUse", "context already in use") \
    X(217, "cudaErrorPeerAccessUnsupported", "peer access unsupported") \
    X(218, "cudaErrorInvalidPtx", "invalid ptx") \
    X(219, "cudaErrorInvalidGraphicsContext", "invalid graphics context") \
    X(220, "cudaErrorNvlinkUncorrectable", "nvlink uncorrectable") \
    X(221, "cudaErrorJitCompilerNotFound", "jit compiler not found") \
    X(222, "cudaErrorUnsupportedPtxVersion", "unsupported ptx version") \
    X(223, "cudaErrorJitCompilationDisabled", "jit compilation disabled") \
    X(224, "cudaErrorUnsupportedExecAffinity", "unsupported exec affinity") \
    X(225, "cudaErrorUnsupportedDevSideSync", "unsupported devside sync") \
    X(226, "cudaErrorContained", "contained") \
    X(227, "cudaErrorInsufficientLoaderVersion", "insufficient loader version") \
    X(300, "cudaErrorInvalidSource", "invalid source") \
    X(301, "cudaErrorFileNotFound", "file not found") \
    X(302, "cudaErrorSharedObjectSymbolNotFound", "shared object symbol not found") \
    X(303, "cudaErrorSharedObjectInitFailed", "shared object init failed") \
    X(304, "cudaErrorOperatingSystem", "operating system") \
    X(400, "cudaErrorInvalidResourceHandle", "invalid resource handle") \
    X(401, "cudaErrorIllegalState", "illegal state") \
    X(402, "cudaErrorLossyQuery", "lossy query") \
    X(500, "cudaErrorSymbolNotFound", "named symbol not found") \
    X(600, "cudaErrorNotReady", "device not ready") \
    X(700, "cudaErrorIllegalAddress", "an illegal memory access was encountered") \
    X(701, "cudaErrorLaunchOutOfResources", "launch out of resources") \
    X(702, "cudaErrorLaunchTimeout", "launch timeout") \
    X(703, "cudaErrorLaunchIncompatibleTexturing", "launch incompatible texturing") \
    X(704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled") \
    X(705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled") \
    X(708, "cudaErrorSetOnActiveProcess", "primary context active") \
    X(709, "cudaErrorContextIsDestroyed", "context is destroyed") \
    X(710, "cudaErrorAssert", "assert") \
    X(711, "cudaErrorTooManyPeers", "too many peers") \
    X(712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped") \
    X(713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region") \
    X(714, "cudaErrorHardwareStackError", "hardware stack error") \
    X(715, "cudaErrorIllegalInstruction", "illegal instruction") \
    X(716, "cudaErrorMisalignedAddress", "misaligned address") \
    X(717, "cudaErrorInvalidAddressSpace", "invalid address space") \
    X(718, "cudaErrorInvalidPc", "invalid pc") \
    X(719, "cudaErrorLaunchFailure", "unspecified launch failure") \
    X(720, "cudaErrorCooperativeLaunchTooLarge", "cooperative launch too large") \
    X(721, "cudaErrorTensorMemoryLeak", "tensor memory leak") \
    X(800, "cudaErrorNotPermitted", "operation not permitted") \
    X(801, "cudaErrorNotSupported", "operation not supported") \
    X(802, "cudaErrorSystemNotReady", "system not ready") \
    X(803, "cudaErrorSystemDriverMismatch", "system driver mismatch") \
    X(804, "cudaErrorCompatNotSupportedOnDevice", "compat not supported on device") \
    X(805, "cudaErrorMpsConnectionFailed", "mps connection failed") \
    X(806, "cudaErrorMpsRpcFailure", "mps rpc failure") \
    X(807, "cudaErrorMpsServerNotReady", "mps server not ready") \
    X(808, "cudaErrorMpsMaxClientsReached", "mps max clients reached") \
    X(809, "cudaErrorMpsMaxConnectionsReached", "mps max connections reached") \
    X(810, "cudaErrorMpsClientTerminated", "mps client terminated") \
    X(811, "cudaErrorCdpNotSupported", "cdp not supported") \
    X(812, "cudaErrorCdpVersionMismatch", "cdp version mismatch") \
    X(900, "cudaErrorStreamCaptureUnsupported", "stream capture unsupported") \
    X(901, "cudaErrorStreamCaptureInvalidated", "stream capture invalidated") \
    X(902, "cudaErrorStreamCaptureMerge", "stream capture merge") \
    X(903, "cudaErrorStreamCaptureUnmatched", "stream capture unmatched") \
    X(904, "cudaErrorStreamCaptureUnjoined", "stream capture unjoined") \
    X(905, "cudaErrorStreamCaptureIsolation", "stream capture isolation") \
    X(906, "cudaErrorStreamCaptureImplicit", "stream capture implicit") \
    X(907, "cudaErrorCapturedEvent", "captured event") \
    X(908, "cudaErrorStreamCaptureWrongThread", "stream capture wrong thread") \
    X(909, "cudaErrorTimeout", "timeout") \
    X(910, "cudaErrorGraphExecUpdateFailure", "graph exec update failure") \
    X(911, "cudaErrorExternalDevice", "external device") \
    X(912, "cudaErrorInvalidClusterSize", "invalid cluster size") \
    X(913, "cudaErrorFunctionNotLoaded", "function not loaded") \
    X(914, "cudaErrorInvalidResourceType", "invalid resource type") \
    X(915, "cudaErrorInvalidResourceConfiguration", "invalid resource configuration") \
    X(917, "cudaErrorStreamDetached", "stream detached") \
    X(918, "cudaErrorGraphRecaptureFailure", "graph recapture failure") \
    X(919, "cudaErrorFabricNotReady", "fabric not ready") \
    X(999, "cudaErrorUnknown", "unknown error")

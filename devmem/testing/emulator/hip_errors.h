/* Names and texts of the runtime's status codes. */
#define HIP_ERRORS(X) \
    X(0, "hipSuccess", "no error") \
    X(1, "hipErrorInvalidValue", "invalid argument") \
    X(2, "hipErrorOutOfMemory", "out of memory") \
    X(3, "hipErrorNotInitialized", "initialization error") \
    X(4, "hipErrorDeinitialized", "driver shutting down") \
    X(9, "hipErrorInvalidConfiguration", "invalid configuration argument") \
    X(12, "hipErrorInvalidPitchValue", "invalid pitch argument") \
    X(13, "hipErrorInvalidSymbol", "invalid device symbol") \
    X(17, "hipErrorInvalidDevicePointer", "invalid device pointer") \
    X(21, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy") \
    X(35, "hipErrorInsufficientDriver", "driver version is insufficient for runtime version") \
    X(98, "hipErrorInvalidDeviceFunction", "invalid device function") \
    X(100, "hipErrorNoDevice", "no ROCm-capable device is detected") \
    X(101, "hipErrorInvalidDevice", "invalid device ordinal") \
    X(200, "hipErrorInvalidImage", "device kernel image is invalid") \
    X(201, "hipErrorInvalidContext", "invalid device context") \
    X(205, "hipErrorMapFailed", "mapping of buffer object failed") \
    X(206, "hipErrorUnmapFailed", "unmapping of buffer object failed") \
    X(209, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device") \
    X(214, "hipErrorECCNotCorrectable", "uncorrectable ECC error encountered") \
    X(215, "hipErrorUnsupportedLimit", "limit is not supported on this architecture") \
    X(216, "hipErrorContextAlreadyInUse", "exclusive-thread device already in use by a different thread") \
    X(217, "hipErrorPeerAccessUnsupported", "peer access is not supported between these two devices") \
    X(304, "hipErrorOperatingSystem", "OS call failed or operation not supported on this OS") \
    X(400, "hipErrorInvalidHandle", "invalid resource handle") \
    X(401, "hipErrorIllegalState", "the operation cannot be performed in the present state") \
    X(500, "hipErrorNotFound", "named symbol not found") \
    X(600, "hipErrorNotReady", "device not ready") \
    X(700, "hipErrorIllegalAddress", "an illegal memory access was encountered") \
    X(701, "hipErrorLaunchOutOfResources", "too many resources requested for launch") \
    X(702, "hipErrorLaunchTimeOut", "the launch timed out and was terminated") \
    X(704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled") \
    X(705, "hipErrorPeerAccessNotEnabled", "peer access has not been enabled") \
    X(708, "hipErrorSetOnActiveProcess", "cannot set while device is active in this process") \
    X(709, "hipErrorContextIsDestroyed", "context is destroyed") \
    X(710, "hipErrorAssert", "device-side assert triggered") \
    X(712, "hipErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped") \
    X(713, "hipErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region") \
    X(719, "hipErrorLaunchFailure", "unspecified launch failure") \
    X(720, "hipErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch") \
    X(801, "hipErrorNotSupported", "operation not supported") \
    X(900, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing") \
    X(901, "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture") \
    X(906, "hipErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream") \
    X(907, "hipErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream") \
    X(908, "hipErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread") \
    X(999, "hipErrorUnknown", "unknown error") \
    X(1052, "hipErrorRuntimeMemory", "runtime memory call returned error") \
    X(1053, "hipErrorRuntimeOther", "runtime call other than memory returned error")

/* HIP front: what compilers emit to register device code. None of it is kept, as launches are not supported.
 *
 * Any thread may call the functions; they need no device.
 */
#include "hip.h"

static _Thread_local struct launch configuration;

#define COUNT(name) atomic_fetch_add_explicit(&function_calls[FUNCTION_##name], 1, memory_order_relaxed)
#define REGISTERS(name)                       \
    void strict_##name(void);                 \
    void strict_##name(void) { COUNT(name); }

/* The handle of a binary is an address that the program hands back. */
void **strict___hipRegisterFatBinary(void *image);
void **strict___hipRegisterFatBinary(void *image)
{
    static void *binary;
    (void)image;
    COUNT(__hipRegisterFatBinary);
    return &binary;
}

REGISTERS(__hipUnregisterFatBinary)
REGISTERS(__hipRegisterFunction)
REGISTERS(__hipRegisterVar)

HIP(__hipPushCallConfiguration)(struct dim3 grid, struct dim3 block, size_t shared, handle stream)
{
    COUNT(__hipPushCallConfiguration);
    configuration = (struct launch){grid, block, shared, stream};
    return OK;
}

HIP(__hipPopCallConfiguration)(struct dim3 *grid, struct dim3 *block, size_t *shared, handle *stream)
{
    COUNT(__hipPopCallConfiguration);
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *stream = configuration.stream;
    return OK;
}

/* The part of the CUDA driver's binary interface that its front and the runtime over it need. */
#ifndef DEVMEM_EMULATOR_CUDA_ABI_H
#define DEVMEM_EMULATOR_CUDA_ABI_H

#include "core.h"

typedef uint64_t deviceptr;

enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };

struct memcpy2d {
    size_t src_x, src_y;
    int src_type;
    void *src_host;
    deviceptr src_device;
    void *src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_type;
    void *dst_host;
    deviceptr dst_device;
    void *dst_array;
    size_t dst_pitch, width, height;
};

struct memcpy3d {
    size_t src_x, src_y, src_z, src_lod;
    int src_type;
    void *src_host;
    deviceptr src_device;
    void *src_array, *reserved0;
    size_t src_pitch, src_height, dst_x, dst_y, dst_z, dst_lod;
    int dst_type;
    void *dst_host;
    deviceptr dst_device;
    void *dst_array, *reserved1;
    size_t dst_pitch, dst_height, width, height, depth;
};

struct memcpy_attributes {
    int order;
    struct location source, destination;
    unsigned flags;
};

enum { OPERAND_POINTER = 1, OPERAND_ARRAY = 2 };

/* Either end of a copy of a batch in three dimensions; of a CUDA array there are its handle and an offset. */
struct operand {
    int type;
    deviceptr address;
    size_t row, rows; /* elements and rows to the next one; 0: as the copy has */
    struct location hint;
};

struct batch_operation {
    struct operand source, destination;
    size_t width, height, depth;
    int order;
    unsigned flags;
};

_Static_assert(sizeof(struct operand) == 40 && sizeof(struct batch_operation) == 112, "layouts of batches");
_Static_assert(sizeof(struct memcpy2d) == 128 && sizeof(struct memcpy3d) == 200, "layouts of the copy descriptors");
_Static_assert(sizeof(struct memcpy_attributes) == 24 && sizeof(struct pool_properties) == 88, "layouts of newer structs");

#endif

/* The entry points of a vendor's library that a driver hands to the core: `devmem.spi.driver_table` documents each field. */
#ifndef DEVMEM_DRIVER_TABLE_H
#define DEVMEM_DRIVER_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum { TABLE_VERSION = 4 };
enum { TABLE_USABLE = 1, TABLE_UPLOADS_WAIT = 2, TABLE_COPIES_TAKE_STREAM = 4 };
/* The kinds of copies that are given then; and the status of a stream or an event that has not passed all of its work. */
enum { KIND_UP = 1, KIND_DOWN = 2, NOT_READY = 600 };
/* What `refused` is told that has failed, in the order of the fields. */
enum table_call {
    GET_CURRENT, SET_CURRENT, ALLOCATE, FREE, COPY_UP, COPY_DOWN, SYNCHRONIZE, STREAM_QUERY, EVENT_QUERY, EVENT_RECORD, CAPTURE_MODE,
    IS_CAPTURING, ENQUEUE_UP, ENQUEUE_DOWN
};

struct driver_table {
    uint32_t version, flags;
    uint64_t current, pool, stream, relaxed;
    int (*get_current)(uint64_t *current);
    int (*set_current)(uint64_t current);
    int (*allocate)(uint64_t *address, size_t nbytes, uint64_t pool, uint64_t stream);
    int (*free)(uint64_t address, uint64_t stream);
    int (*copy_up)(uint64_t to, uint64_t from, size_t nbytes);
    int (*copy_down)(uint64_t to, uint64_t from, size_t nbytes);
    int (*synchronize)(uint64_t stream);
    int (*stream_query)(uint64_t stream);
    int (*event_query)(uint64_t event);
    int (*event_record)(uint64_t event, uint64_t stream);
    int (*capture_mode)(uint64_t *mode);
    int (*is_capturing)(uint64_t stream, uint64_t *found);
    int (*enqueue_up)(uint64_t to, uint64_t from, size_t nbytes, uint64_t stream);
    int (*enqueue_down)(uint64_t to, uint64_t from, size_t nbytes, uint64_t stream);
};

#endif

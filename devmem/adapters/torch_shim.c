/* What PyTorch calls for memory. The pointers are null before Python has connected and after it has gone: then nothing is handed
 * out, and what comes back is left to the end of the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>

#define EXPORTED __attribute__((visibility("default")))

typedef void *(*allocate_fn)(ssize_t nbytes, int device, void *stream);
typedef void (*free_fn)(void *ptr, ssize_t nbytes, int device, void *stream);

static _Atomic(allocate_fn) to_allocate;
static _Atomic(free_fn) to_free;

EXPORTED void devmem_connect(allocate_fn allocate, free_fn release)
{
    atomic_store(&to_free, release);
    atomic_store(&to_allocate, allocate);
}

EXPORTED void devmem_disconnect(void)
{
    atomic_store(&to_allocate, (allocate_fn)0);
    atomic_store(&to_free, (free_fn)0);
}

/* Why the last request of this thread was refused, and whether for lack of memory. */
static _Thread_local char reason[1024];
static _Thread_local int no_memory;

EXPORTED void devmem_refuse(const char *why, int out_of_memory)
{
    strncpy(reason, why, sizeof reason - 1);
    no_memory = out_of_memory;
}

/* Python loads PyTorch, and with it these libraries, with local symbols: they have to be opened by their names. */
static void *symbol_of(const char *library, const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name), *opened;
    if (found) return found;
    opened = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return opened ? dlsym(opened, name) : NULL;
}

#define CXX(name) symbol_of("libstdc++.so.6", name)
#define TORCH(name) symbol_of("libc10.so", name)
#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define ROOM_OF_EXCEPTION 2048 /* several times what PyTorch's takes */

struct location { /* c10::SourceLocation */
    const char *function, *file;
    unsigned line;
};

struct text { /* std::string, whose characters are in itself if they are few */
    char *at;
    size_t length, capacity, rest;
};

/* Throw PyTorch's own exception, c10::OutOfMemoryError, by the functions that its library exports; return if it has none. */
static void throw_pytorchs(void)
{
    void *(*allocate_exception)(size_t) = (void *(*)(size_t))CXX("__cxa_allocate_exception");
    void (*throw_exception)(void *, void *, void (*)(void *)) = (void (*)(void *, void *, void (*)(void *)))CXX("__cxa_throw");
    void *(*allocate_text)(size_t) = (void *(*)(size_t))CXX("_Znwm");
    void (*construct)(void *, struct location, struct text *) =
        (void (*)(void *, struct location, struct text *))TORCH("_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationE" STRING);
    void *type = TORCH("_ZTIN3c1016OutOfMemoryErrorE");
    if (!allocate_exception || !throw_exception || !allocate_text || !construct || !type) return;
    size_t length = strlen(reason);
    struct text text = {allocate_text(length + 1 > 16 ? length + 1 : 16), length, length > 15 ? length : 15, 0};
    memcpy(text.at, reason, length + 1);
    void *error = allocate_exception(ROOM_OF_EXCEPTION);
    construct(error, (struct location){"devmem_allocate", "devmem", 0}, &text); /* takes the characters */
    throw_exception(error, type, **(void (***)(void *))error); /* its destructor is the first of its virtual functions */
}

/* PyTorch takes a null pointer for memory, so something is thrown; without PyTorch and C++ nothing would catch it. */
static void refuse(void)
{
    if (no_memory) throw_pytorchs();
    void *bad_alloc = CXX("_ZSt17__throw_bad_allocv");
    if (bad_alloc) ((void (*)(void))bad_alloc)();
}

EXPORTED void *devmem_allocate(ssize_t nbytes, int device, void *stream)
{
    allocate_fn allocate = atomic_load(&to_allocate);
    void *ptr = allocate ? allocate(nbytes, device, stream) : NULL;
    if (!ptr && nbytes > 0)
        refuse();
    return ptr;
}

EXPORTED void devmem_free(void *ptr, ssize_t nbytes, int device, void *stream)
{
    free_fn release = atomic_load(&to_free);
    if (release && ptr)
        release(ptr, nbytes, device, stream);
}

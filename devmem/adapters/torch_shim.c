/* What PyTorch calls for memory. The pointers are null before Python has connected and after it has gone: then nothing is handed
 * out, and what comes back is left to the end of the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
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

/* PyTorch takes a null pointer for memory. What it understands is std::bad_alloc, which the C++ library that it has loaded can
 * throw for us; without that library nothing would catch it. Python loads PyTorch, and with it that library, with local
 * symbols: it has to be opened by its name. */
static void out_of_memory(void)
{
    static const char name[] = "_ZSt17__throw_bad_allocv";
    void *symbol = dlsym(RTLD_DEFAULT, name);
    if (!symbol) {
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
        symbol = library ? dlsym(library, name) : NULL;
    }
    if (symbol)
        ((void (*)(void))symbol)();
}

EXPORTED void *devmem_allocate(ssize_t nbytes, int device, void *stream)
{
    allocate_fn allocate = atomic_load(&to_allocate);
    void *ptr = allocate ? allocate(nbytes, device, stream) : NULL;
    if (!ptr && nbytes > 0)
        out_of_memory();
    return ptr;
}

EXPORTED void devmem_free(void *ptr, ssize_t nbytes, int device, void *stream)
{
    free_fn release = atomic_load(&to_free);
    if (release && ptr)
        release(ptr, nbytes, device, stream);
}

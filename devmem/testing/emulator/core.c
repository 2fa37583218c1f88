/* Entry and exit of exported functions, the handle table, and settings from environment variables.
 *
 * core_enter() counts the call, takes the lock and decides whether the call may run: not in a forked child, not while the
 * process exits, not if a test planned a failure, not in a lost context, not against the rules of a capture. Any thread.
 */
#define _GNU_SOURCE
#include "core.h"

#include <ctype.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t core_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
_Thread_local bool inside_host_function;
long live_handles;

static bool initialized;
static atomic_bool forked, finished;

struct slot {
    void *object;
    uint32_t generation;
    uint8_t kind;
    uint32_t next_free;
};

static struct slot *slots;
static uint32_t slot_count, slot_room, free_slot; /* free_slot: index + 1, 0 = none */

/* --- settings ----------------------------------------------------------------------------------------------------- */

/* Read a number: digits, and optionally K, M, G or T for a power of 1024 ("64M", "64MiB"). Return where it ends, or NULL. */
static const char *read_number(const char *text, double *out)
{
    static const char units[] = "KMGT";
    char *end;
    *out = strtod(text, &end);
    if (end == text) return NULL;
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    for (long power = unit ? unit - units + 1 : 0; power > 0; power--) *out *= 1024;
    if (!unit) return end;
    end++;
    return end + (strncmp(end, "iB", 2) == 0 ? 2 : *end == 'B');
}

static bool is_size(double number) { return number >= 0 && number < 0x1p64 && number == (double)(size_t)number; }

/* Read a number from a variable. What follows the number is ignored, and so is a text that is no number. */
size_t core_setting(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    double number;
    return text && read_number(text, &number) && number >= 0 && number < 0x1p64 ? (size_t)number : otherwise;
}

/* The NUMA node of the host that is nearest to a device; -1: none, as where the system has no nodes. */
int core_host_node(void) { return (int)core_setting("DEVMEM_EMULATOR_HOST_NODE", (size_t)-1); }

/* Read a number of a range from a variable of the emulator's own. Any other text is reported, and the default used. */
size_t core_setting_within(const char *name, size_t otherwise, size_t least, size_t most)
{
    const char *text = getenv(name);
    double number;
    if (!text || !*text) return otherwise;
    const char *end = read_number(text, &number);
    if (end && !*end && is_size(number) && (size_t)number >= least && (size_t)number <= most) return (size_t)number;
    fprintf(stderr, "devmem emulator: %s=%s is no whole number from %zu to %zu, optionally with K, M, G or T (powers of 1024): "
            "the default, %zu, is used\n", name, text, least, most, otherwise);
    return otherwise;
}

bool core_null_mode(void)
{
    const char *mode = getenv("DEVMEM_EMULATOR_MODE");
    return mode && strcmp(mode, "null") == 0;
}

uint64_t core_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- entry and exit ----------------------------------------------------------------------------------------------- */

/* fork() happens with the lock held, so that the child can release it. In the child every call is refused. */
static void before_fork(void) { pthread_mutex_lock(&core_mutex); }
static void after_fork(void) { pthread_mutex_unlock(&core_mutex); }

static void after_fork_in_child(void)
{
    atomic_store(&forked, true);
    watch_after_fork_in_child();
    pthread_mutex_unlock(&core_mutex);
}

__attribute__((destructor)) static void at_unload(void) { atomic_store(&finished, true); }

bool core_is_open(void) { return initialized && device_count; }

/* End the process with the signal of the vendor's library, after a message that the library does not print. */
_Noreturn void core_die(int number, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("devmem emulator: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    signal(number, SIG_DFL);
    raise(number);
    abort();
}

status core_initialize(void)
{
    if (initialized) return device_count ? OK : NO_DEVICE;
    status result = devices_open();
    if (result != OK) return result;
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
    initialized = true;
    return device_count ? OK : NO_DEVICE;
}

static status admit(int function, enum need need, struct context **context)
{
    status why = OK;
    if (inside_host_function && need != NEED_NOTHING) return vendor_rules.host_function_status;
    status ready = front_admit(need);
    if (ready != OK) return ready;
    status injected = fault_due(function);
    if (injected != OK && !fault_is_sticky(injected)) return injected;
    if (need == NEED_CONTEXT || injected != OK) *context = context_current(&why);
    if (injected != OK) {
        if (*context) context_fail(*context, injected);
        return injected;
    }
    if (why != OK) return why;
    if (need == NEED_CONTEXT && (*context)->sticky != OK) return (*context)->sticky;
    return front_forbidden_in_capture(function) ? capture_check_unsafe() : OK;
}

/* Begin a call. After OK the lock is held and the caller must call core_leave(). */
status core_enter(int function, enum need need, struct context **context)
{
    atomic_fetch_add_explicit(&function_calls[function], 1, memory_order_relaxed);
    if (atomic_load_explicit(&forked, memory_order_relaxed)) return NOT_INITIALIZED;
    if (atomic_load_explicit(&finished, memory_order_relaxed)) return DEINITIALIZED;
    pthread_mutex_lock(&core_mutex);
    status result = admit(function, need, context);
    if (result != OK) pthread_mutex_unlock(&core_mutex);
    return result;
}

status core_leave(status result)
{
    pthread_mutex_unlock(&core_mutex);
    return result;
}

/* --- handles ------------------------------------------------------------------------------------------------------ */

/* A handle looks like a pointer. It holds slot and generation, so that the handle of a destroyed object stays invalid. */
static uint64_t handle_of(uint32_t index)
{
    return ((uint64_t)slots[index].generation << 28) | ((uint64_t)index << 4) | slots[index].kind;
}

uint64_t handle_new(enum handle_kind kind, void *object)
{
    uint32_t index;
    if (free_slot) {
        index = free_slot - 1;
        free_slot = slots[index].next_free;
    } else {
        if (slot_count == slot_room) {
            slot_room = slot_room ? slot_room * 2 : 64;
            slots = realloc(slots, slot_room * sizeof *slots);
            if (!slots) abort();
        }
        index = slot_count++;
        slots[index].generation = 0;
    }
    slots[index].generation = (slots[index].generation & 0x7ffff) + 1;
    slots[index].object = object;
    slots[index].kind = (uint8_t)kind;
    return handle_of(index);
}

static struct slot *slot_of(uint64_t handle, enum handle_kind kind)
{
    uint64_t index = (handle >> 4) & 0xffffff;
    if ((handle & 15) != (uint64_t)kind || index >= slot_count) return NULL;
    struct slot *slot = &slots[index];
    return slot->object && handle_of((uint32_t)index) == handle ? slot : NULL;
}

void *handle_get(uint64_t handle, enum handle_kind kind)
{
    struct slot *slot = slot_of(handle, kind);
    return slot ? slot->object : NULL;
}

void handle_free(uint64_t handle)
{
    struct slot *slot = slot_of(handle, (enum handle_kind)(handle & 15));
    if (!slot) return;
    slot->object = NULL;
    slot->next_free = free_slot;
    free_slot = (uint32_t)(slot - slots) + 1;
}

/* Iterate over the live objects of a kind; `cursor` starts at 0. The caller may free the object that was returned. */
void *handle_next(enum handle_kind kind, size_t *cursor)
{
    while (*cursor < slot_count) {
        struct slot *slot = &slots[(*cursor)++];
        if (slot->object && slot->kind == kind) return slot->object;
    }
    return NULL;
}

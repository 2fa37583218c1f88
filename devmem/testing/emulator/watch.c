/* What the program itself does to page-locked memory that a copy, which is not complete, reads or writes.
 *
 * Where DEVMEM_RACES asks for it the page-locked heap is mapped twice: streams copy by a mapping of their own, and the pages at
 * the program's addresses are protected while a copy is queued or runs: against writes where it reads them, against every access
 * where it writes them. Only pages that are wholly inside of what a copy touches are protected, so a program that waits for its
 * copies never meets one. An access that does is noted in a file, with the Python stack if a signal for that is given (Python's
 * faulthandler writes it, which needs no interpreter lock); then the pages are opened and the program goes on.
 *
 * The counts change under the core's lock. The handler takes no lock of the core's: it may interrupt any code.
 */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096u
#define MOST_NOTES 10000u    /* no more are kept: the program may never read them */

static _Atomic uint32_t *readers, *writers; /* copies that are not complete, for each page of the page-locked heap */
static _Atomic uint32_t *last;              /* for each page, the number of the side of a copy that was queued there last */
static uint32_t sides;
static atomic_int notes = -1, stack_signal;
static atomic_uint noted;
static atomic_flag noting = ATOMIC_FLAG_INIT;
static struct sigaction before;
static bool passed_on;

bool watch_wanted(void)
{
    const char *races = getenv("DEVMEM_RACES");
    return races && *races && strcmp(races, "0") != 0 && !core_null_mode();
}

/* --- protection --------------------------------------------------------------------------------------------------- */

static char *program_page(size_t page) { return (char *)(uintptr_t)pinned_heap.base + page * PAGE; }

static int protection_of(size_t page)
{
    return writers[page] ? PROT_NONE : readers[page] ? PROT_READ : PROT_READ | PROT_WRITE;
}

static bool alike(size_t page, size_t other)
{
    return protection_of(page) == protection_of(other) && last[page] == last[other];
}

static void protect(size_t first, size_t past)
{
    for (size_t from = first, to; from < past; from = to) {
        int protection = protection_of(from);
        for (to = from + 1; to < past && protection_of(to) == protection; to++) {}
        /* The kernel may be out of mappings. A page that stays open is not watched; the handler opens one that stays closed. */
        (void)!mprotect(program_page(from), (to - from) * PAGE, protection);
    }
}

static void count_run(const char *at, size_t bytes, bool writes, int step)
{
    if (at < pinned_heap.access || at >= pinned_heap.access + pinned_heap.bytes) return;
    size_t offset = (size_t)(at - pinned_heap.access), first = (offset + PAGE - 1) / PAGE, past = (offset + bytes) / PAGE;
    for (size_t page = first; page < past; page++) {
        (writes ? writers : readers)[page] += (uint32_t)step;
        if (step > 0) last[page] = sides;
    }
    if (first < past) protect(first, past);
}

static void count_rows(const struct endpoint *at, const struct transfer *transfer, bool writes, int step)
{
    size_t width = transfer->width, height = transfer->height, depth = transfer->depth;
    if (height == 1 || at->pitch == width) {
        width *= height;
        height = 1;
    }
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++) count_run(at->bytes + z * at->plane + y * at->pitch, width, writes, step);
}

static void count(const struct op *op, int step)
{
    for (size_t index = 0; index < op->copy.count; index++) {
        const struct transfer *transfer = &op->copy.transfers[index];
        sides++;
        count_rows(&transfer->to, transfer, true, step);
        sides++;
        count_rows(&transfer->from, transfer, false, step);
    }
}

/* --- the handler -------------------------------------------------------------------------------------------------- */

static void note(uint64_t address, bool only_writes)
{
    char line[96];
    int file = atomic_load(&notes), stack = atomic_load(&stack_signal);
    if (file < 0 || atomic_fetch_add(&noted, 1) >= MOST_NOTES) return;
    while (atomic_flag_test_and_set(&noting)) {} /* another thread's note, which waits for nothing */
    int length = snprintf(line, sizeof line, "access %llx %d %ld\n", (unsigned long long)address, only_writes, syscall(SYS_gettid));
    (void)!write(file, line, (size_t)length);
    if (stack) raise(stack); /* handled before this returns, unless the thread blocks it */
    (void)!write(file, "end\n", 4);
    atomic_flag_clear(&noting);
}

/* A fault that is none of ours: the handler of before meets it when the instruction is tried again. */
static void pass_on(int number, bool sent)
{
    struct sigaction otherwise = {.sa_handler = SIG_DFL};
    sigaction(number, passed_on ? &otherwise : &before, NULL); /* that handler may have put this one back, and raised it again */
    passed_on = true;
    if (sent) raise(number);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    int error = errno;
    uint64_t at = (uint64_t)(uintptr_t)info->si_addr;
    if (info->si_code != SEGV_ACCERR || at < pinned_heap.base || at >= pinned_heap.base + pinned_heap.bytes) {
        pass_on(number, info->si_code <= 0);
        return;
    }
    passed_on = false; /* the handler of before has brought this one back, and met its own fault */
    size_t first = (at - pinned_heap.base) / PAGE, past = first + 1, pages = pinned_heap.bytes / PAGE;
    int protection = protection_of(first);
    if (protection != (PROT_READ | PROT_WRITE)) note(at, protection == PROT_READ);
    /* All around that the same copy touches, so that one access to an array is one note, and one to its neighbour another. */
    while (protection != (PROT_READ | PROT_WRITE) && first && alike(first - 1, first)) first--;
    while (protection != (PROT_READ | PROT_WRITE) && past < pages && alike(past, past - 1)) past++;
    if (mprotect(program_page(first), (past - first) * PAGE, PROT_READ | PROT_WRITE) != 0)
        mprotect(program_page(0), pinned_heap.bytes, PROT_READ | PROT_WRITE);
    errno = error;
}

/* Programs install handlers of their own at any time: what is there is looked at before pages are protected. */
static void install(void)
{
    struct sigaction now, ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, NULL, &now);
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault) return;
    before = now;
    passed_on = false;
    sigaction(SIGSEGV, &ours, NULL);
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

/* A copy is queued. Called with the core's lock, as is the next. */
void watch_begin(struct op *op)
{
    if (atomic_load(&notes) < 0 || op->kind != OP_COPY) return;
    install();
    op->watched = true;
    count(op, +1);
}

/* It is complete, or given up, and the program cannot know yet. */
void watch_end(struct op *op)
{
    if (op->watched) count(op, -1);
    op->watched = false;
}

/* The child of a fork has its own memory, as it would have had, and nothing is noted in it. What the parent writes from here on it
 * does not see: a private mapping of the file would show that on each page that the child has not written to. */
void watch_after_fork_in_child(void)
{
    atomic_store(&notes, -1);
    int file = pinned_heap.file;
    if (file < 0) return;
    mmap(program_page(0), pinned_heap.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | MAP_ANONYMOUS, -1, 0);
    for (off_t from = 0, to; (from = lseek(file, from, SEEK_DATA)) >= 0; from = to) {
        to = lseek(file, from, SEEK_HOLE);
        while (from < to) {
            ssize_t bytes = pread(file, program_page(0) + from, (size_t)(to - from), from);
            if (bytes <= 0) return;
            from += bytes;
        }
    }
}

/* Note accesses in a file, with the stack that the handler of a signal writes there. 0, or -1 where the heap is mapped once. */
EXPORT int devmem_emulator_watch(int file, int signal_of_stack)
{
    pthread_mutex_lock(&core_mutex);
    bool possible = pinned_heap.bytes && pinned_heap.file >= 0;
    if (possible && !readers) {
        readers = calloc(pinned_heap.bytes / PAGE, sizeof *readers);
        writers = calloc(pinned_heap.bytes / PAGE, sizeof *writers);
        last = calloc(pinned_heap.bytes / PAGE, sizeof *last);
        if (!readers || !writers || !last) abort();
    }
    if (possible) {
        atomic_store(&stack_signal, signal_of_stack);
        atomic_store(&notes, file);
    }
    pthread_mutex_unlock(&core_mutex);
    return possible ? 0 : -1;
}

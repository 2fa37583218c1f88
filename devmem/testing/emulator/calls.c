/* The calls of a front's functions: counted, and made to fail as a test planned. control.py calls the exported functions by name.
 *
 * Any thread may call them; the plans have a lock of their own, as the front of the CUDA runtime has no core.
 */
#include "core.h"

#include <string.h>

#define MAX_PLANS 64

atomic_ulong function_calls[MAX_FUNCTIONS];

/* A planned failure: of the n-th call from now, or of every call from the n-th on. */
struct plan {
    int function;
    unsigned long countdown;
    status code;
    bool repeat;
};

static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER;
static struct plan plans[MAX_PLANS];
static atomic_int plan_count;

static status due(int function)
{
    for (int index = 0; index < plan_count; index++) {
        struct plan *plan = &plans[index];
        if (plan->function != function) continue;
        if (plan->countdown > 1) {
            plan->countdown--;
            continue;
        }
        status code = plan->code;
        if (!plan->repeat) *plan = plans[--plan_count];
        return code;
    }
    return OK;
}

status fault_due(int function)
{
    if (!atomic_load_explicit(&plan_count, memory_order_relaxed)) return OK;
    pthread_mutex_lock(&plans_lock);
    status code = due(function);
    pthread_mutex_unlock(&plans_lock);
    return code;
}

static int function_spelled(const char *name, size_t length)
{
    for (int index = 0; index < function_count; index++)
        if (strncmp(function_names[index], name, length) == 0 && !function_names[index][length]) return index;
    return -1;
}

/* The number of a function, or -1. The name may have the suffix of a version (_v2) or of the per-thread variant (_spt, _ptsz, _ptds). */
static int function_named(const char *name)
{
    size_t length = strlen(name);
    int exact = function_spelled(name, length);
    if (exact >= 0) return exact;
    const char *suffix = strrchr(name, '_');
    bool known = suffix && (strcmp(suffix, "_spt") == 0 || strcmp(suffix, "_ptsz") == 0 || strcmp(suffix, "_ptds") == 0
                            || (suffix[1] == 'v' && strlen(suffix) == 3));
    return known ? function_spelled(name, (size_t)(suffix - name)) : -1;
}

EXPORT int devmem_emulator_fail(const char *function, unsigned long nth, int code, int repeat)
{
    int index = function_named(function), result = -1;
    if (index < 0 || !nth) return -1;
    pthread_mutex_lock(&plans_lock);
    if (plan_count < MAX_PLANS) {
        plans[plan_count++] = (struct plan){index, nth, code, repeat != 0};
        result = 0;
    }
    pthread_mutex_unlock(&plans_lock);
    return result;
}

EXPORT int devmem_emulator_function_count(void) { return function_count; }
EXPORT const char *devmem_emulator_function_name(int index) { return function_names[index]; }
EXPORT unsigned long devmem_emulator_function_calls(int index) { return atomic_load(&function_calls[index]); }

EXPORT void devmem_emulator_forget_calls(void)
{
    pthread_mutex_lock(&plans_lock);
    plan_count = 0;
    pthread_mutex_unlock(&plans_lock);
    for (int index = 0; index < function_count; index++) atomic_store(&function_calls[index], 0);
}

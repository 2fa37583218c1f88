/* The exported names, and the texts of errors. */
#define _GNU_SOURCE
#include "hip.h"
#include "hip_errors.h"

#include <string.h>

#ifndef __GLIBC__
#error "the emulated HIP runtime needs indirect functions (ifunc), which glibc's loader supports"
#endif

const char *const function_names[] = {HIP_FUNCTIONS(FUNCTION_NAME)};
const int function_count = FUNCTION_TOTAL;

/* --- errors ------------------------------------------------------------------------------------------------------- */

static const struct error_text errors[] = {HIP_ERRORS(ERROR_TEXT)};

static const char *describe(int code, bool by_name)
{
    const struct error_text *known = error_find(errors, sizeof errors / sizeof *errors, code);
    return !known ? NULL : by_name ? known->name : known->text;
}

static void count(int function) { atomic_fetch_add_explicit(&function_calls[function], 1, memory_order_relaxed); }

/* These two return the text, and do not change the last error. */
#define HIP_TEXT(name) const char *strict_##name

HIP_TEXT(hipGetErrorName)(int code)
{
    count(FUNCTION_hipGetErrorName);
    const char *known = describe(code, true);
    return known ? known : "hipErrorUnknown";
}

HIP_TEXT(hipGetErrorString)(int code)
{
    count(FUNCTION_hipGetErrorString);
    const char *known = describe(code, false);
    return known ? known : "unknown error";
}

HIP(hipDrvGetErrorName)(int code, const char **out)
{
    BEGIN(hipDrvGetErrorName, NEED_NOTHING);
    REQUIRE(out, INVALID_VALUE);
    *out = describe(code, true);
    END(*out ? OK : INVALID_VALUE);
}

HIP(hipDrvGetErrorString)(int code, const char **out)
{
    BEGIN(hipDrvGetErrorString, NEED_NOTHING);
    REQUIRE(out, INVALID_VALUE);
    *out = describe(code, false);
    END(*out ? OK : INVALID_VALUE);
}

/* --- exports ------------------------------------------------------------------------------------------------------ */

/* The loader resolves each exported name to the strict function or to that of the null mode, once. So neither has to test for
 * the mode. */
typedef void (*entry_point)(void);

#define DECLARE(name) extern char name##_address[] __asm__("strict_" #name) __attribute__((visibility("hidden")));
#define CHOOSE(name)                                                                                   \
    static entry_point choose_##name(void)                                                             \
    {                                                                                                  \
        void *null = core_null_mode() ? null_function(#name) : NULL;                                  \
        return (entry_point)(null ? null : name##_address);                                          \
    }                                                                                                  \
    EXPORT void name(void) __attribute__((ifunc("choose_" #name)));

#ifdef OLD_RUNTIME
#undef HIP_NEWER
#define HIP_NEWER(X)
#endif

HIP_FUNCTIONS(DECLARE)
HIP_FUNCTIONS(CHOOSE)
HIP_PER_THREAD(DECLARE)
HIP_PER_THREAD(CHOOSE)

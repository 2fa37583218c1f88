/* The names of the functions, and the texts of errors. */
#include "runtime.h"
#include "runtime_errors.h"

const char *const function_names[] = {RUNTIME_FUNCTIONS(FUNCTION_NAME)};
const int function_count = FUNCTION_TOTAL;

static const struct error_text errors[] = {RUNTIME_ERRORS(ERROR_TEXT)};

static const struct error_text *describe(int function, int code)
{
    atomic_fetch_add_explicit(&function_calls[function], 1, memory_order_relaxed);
    return error_find(errors, sizeof errors / sizeof *errors, code);
}

/* These two return the text, and do not change the last error. */
EXPORT const char *cudaGetErrorName(int code)
{
    const struct error_text *known = describe(FUNCTION_cudaGetErrorName, code);
    return known ? known->name : "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(int code)
{
    const struct error_text *known = describe(FUNCTION_cudaGetErrorString, code);
    return known ? known->text : "unrecognized error code";
}

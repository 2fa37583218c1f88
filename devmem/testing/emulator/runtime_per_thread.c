/* The functions of runtime_streamed.c once more, for programs whose default stream is that of the calling thread. */
#define PER_THREAD 1
#include "runtime_streamed.c"

/* The same functions for programs whose default stream is the calling thread's own. */
#define PER_THREAD 1
#include "hip_streamed.c"

/* The same functions for programs whose default stream is the calling thread's own. */
#define PER_THREAD 1
#include "cuda_streamed.c"

/* The functions of hip_streamed.c once more, for programs whose default stream is that of the calling thread. */
#define PER_THREAD 1
#include "hip_streamed.c"

/* Work that a few threads share (threads.c). */

#include "lanes.h"

typedef void (*share_work)(const void *job, i64 begin, i64 end);

/* Call `work` for ranges that cover 0 .. count, on as many threads as the caller may use. `bytes`: that it reads. */
void share(share_work work, const void *job, i64 count, i64 bytes);

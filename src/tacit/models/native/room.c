/* Memory that a thread's kernels work in: kept from call to call, so that it is the same, and close, each time. */
#include "room.h"

#include <stdlib.h>

enum { MOST = 16 };

static __thread struct {
    void *at;
    size_t bytes;
} rooms[MOST];
static __thread int taken;

void *room(size_t numbers)
{
    size_t bytes = (4 * numbers + 64 + 63) / 64 * 64;
    if (rooms[taken].bytes < bytes) {
        free(rooms[taken].at);
        rooms[taken].at = aligned_alloc(64, bytes);
        rooms[taken].bytes = bytes;
    }
    if (!rooms[taken].at) abort();
    return rooms[taken++].at;
}

void leave(void) { taken = 0; }

/* Memory that a thread's kernels work in: kept from call to call, so that it is the same, and close, each time. */
#include "room.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 16 };

static __thread struct {
    void *at;
    size_t bytes;
} rooms[MOST];
static __thread int taken;

/* There is nobody to tell it to who could go on without the memory: the process says why, and ends. */
static void give_up(const char *why, size_t bytes)
{
    fprintf(stderr, "tacit: %s (%zu bytes): use smaller chunks, or TACIT_NATIVE=0 to go without compiled kernels\n", why,
            bytes);
    abort();
}

void *room(size_t numbers)
{
    size_t bytes = (4 * numbers + 64 + 63) / 64 * 64;
    if (numbers > SIZE_MAX / 8) give_up("a compiled kernel asked for more memory than there can be", numbers);
    if (taken >= MOST) give_up("a compiled kernel asked for more than 16 pieces of memory at a time", bytes);
    if (rooms[taken].bytes < bytes) {
        free(rooms[taken].at);
        rooms[taken].at = aligned_alloc(64, bytes);
        rooms[taken].bytes = rooms[taken].at ? bytes : 0;
    }
    if (!rooms[taken].at) give_up("no memory is left for a compiled kernel", bytes);
    return rooms[taken++].at;
}

void leave(void) { taken = 0; }

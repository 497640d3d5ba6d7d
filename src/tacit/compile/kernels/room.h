/* Memory for as many numbers of four bytes, until `leave` is called; at most 16 at a time. */
#ifndef TACIT_ROOM
#define TACIT_ROOM

#include <stddef.h>

void *room(size_t numbers);
void leave(void);

#endif

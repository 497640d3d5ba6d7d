/* Rows copied past the cache: they are not read again before they would have left it, and what lies where they go need
   not be fetched first. */
#include <stdint.h>
#include <string.h>

#ifdef __SSE__
#include <xmmintrin.h>

static void copy(char *to, const char *from, long bytes)
{
    long head = (16 - ((uintptr_t)to & 15)) & 15, at;
    if (head > bytes) head = bytes;
    memcpy(to, from, head);
    for (at = head; at + 64 <= bytes; at += 64)
        for (int i = 0; i < 64; i += 16)
            _mm_stream_ps((float *)(to + at + i), _mm_loadu_ps((const float *)(from + at + i)));
    memcpy(to + at, from + at, bytes - at);
}
static void done(void) { _mm_sfence(); }
#else
static void copy(char *to, const char *from, long bytes) { memcpy(to, from, bytes); }
static void done(void) {}
#endif

/* From each of these addresses to each of those. */
void copy_rows(char *const *from, char *const *to, long several, long bytes)
{
    for (long i = 0; i < several; i++) copy(to[i], from[i], bytes);
    done();
}

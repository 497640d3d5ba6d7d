/* Standard normal numbers of a key: a counter-based generator and Box and Muller's transform, a tile at a time.

   The reference is `keyed_normal.py`, which says what is promised. Nothing else is linked with this file.

   Philox4x32-10 (Salmon et al. 2011): block b of a call is the cipher of the counter (b, call, high word of the key) under
   the low word of the key, so that no two of (key, call, block) share a counter and a key. A block is four words, two pairs
   of a radius and an angle, four numbers.

   A tile is sixteen blocks, 64 numbers: first all first numbers of its blocks, then all second ones, and so on. So numbers
   do not depend on the width of the processor's vectors, but for the last bit of a product that is rounded once or twice. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif
#ifdef __AVX512F__
enum { WIDTH = 16 };
#else
enum { WIDTH = 8 };
#endif
enum { BLOCKS = 16, TILE = 4 * BLOCKS, ROUNDS = 10 };

typedef uint32_t words __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef int32_t integers __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef uint64_t pairs __attribute__((vector_size(4 * WIDTH), aligned(4)));

_Static_assert(sizeof(long) == 8, "Python gives numbers of 64 bits");

#define INLINE static inline __attribute__((always_inline))

INLINE vector chosen(integers when, vector yes, vector no)
{
    return (vector)(((integers)yes & when) | ((integers)no & ~when));
}

INLINE pairs times(pairs lower, uint32_t factor)  /* of the lower word of each pair */
{
#if defined(__AVX512F__)
    return (pairs)_mm512_mul_epu32((__m512i)lower, _mm512_set1_epi64((long long)factor));
#elif defined(__AVX2__)
    return (pairs)_mm256_mul_epu32((__m256i)lower, _mm256_set1_epi64x((long long)factor));
#else
    return (lower & 0xFFFFFFFFu) * (uint64_t)factor;
#endif
}

INLINE void multiply(words of, uint32_t factor, words *high, words *low)
{
    pairs even = times((pairs)of, factor), odd = times((pairs)of >> 32, factor);
    *low = (words)((even & 0xFFFFFFFFu) | (odd << 32));
    *high = (words)((even >> 32) | (odd & 0xFFFFFFFF00000000u));
}

INLINE vector root(vector of)
{
#if defined(__AVX512F__)
    return (vector)_mm512_sqrt_ps((__m512)of);
#elif defined(__AVX2__)
    return (vector)_mm256_sqrt_ps((__m256)of);
#else
    for (int i = 0; i < WIDTH; i++) of[i] = sqrtf(of[i]);
    return of;
#endif
}

/* sqrt(-2 ln u) of u = (word + 1/2) / 2^32. The logarithm is that of Cephes: a power of two, and a polynomial around 1. */
INLINE vector radius(words word)
{
    integers bits = (integers)(__builtin_convertvector(word, vector) + 0.5f) - 0x3f3504f3;  /* less sqrt(1/2) */
    vector power = __builtin_convertvector((bits >> 23) - 32, vector);
    vector x = (vector)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    vector p = 7.0376836292e-2f * x - 1.1514610310e-1f;
    p = p * x + 1.1676998740e-1f;
    p = p * x - 1.2420140846e-1f;
    p = p * x + 1.4249322787e-1f;
    p = p * x - 1.6668057665e-1f;
    p = p * x + 2.0000714765e-1f;
    p = p * x - 2.4999993993e-1f;
    p = p * x + 3.3333331174e-1f;
    vector square = -2.0f * (power * 0.693147180559945f + (x + x * x * (p * x - 0.5f)));
    return root(chosen(square > 0.0f, square, (vector){0}));
}

/* Two numbers: r cos and r sin of a word's share of a full turn, by quarters and polynomials on [-pi/4, pi/4). */
INLINE void turn(vector r, words word, float *first, float *second)
{
    words turned = word + 0x20000000u;
    integers quarter = (integers)(turned >> 30);
    vector t = __builtin_convertvector((integers)((turned & 0x3fffffffu) - 0x20000000u), vector) * 1.4629180792671596e-9f;
    vector t2 = t * t;
    vector sine = t + t * t2 * (-1.6666654611e-1f + t2 * (8.3321608736e-3f + t2 * -1.9515295891e-4f));
    vector cosine = -1.388731625493765e-3f + t2 * 2.443315711809948e-5f;
    cosine = 1.0f + t2 * (-0.5f + t2 * (4.166664568298827e-2f + t2 * cosine));
    integers odd = -(quarter & 1);
    r = (vector)((integers)r ^ ((quarter & 2) << 30));
    *(vector *)first = r * chosen(odd, -sine, cosine);
    *(vector *)second = r * chosen(odd, cosine, sine);
}

INLINE void blocks(float *to, words at, uint32_t call, uint64_t low, uint64_t high)
{
    words c0 = at, c1 = call - (words){0}, c2 = (uint32_t)high - (words){0}, c3 = (uint32_t)(high >> 32) - (words){0};
    uint32_t k0 = (uint32_t)low, k1 = (uint32_t)(low >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        words high0, low0, high2, low2;
        multiply(c0, 0xD2511F53u, &high0, &low0);
        multiply(c2, 0xCD9E8D57u, &high2, &low2);
        c0 = high2 ^ c1 ^ k0;
        c1 = low2;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    turn(radius(c0), c1, to, to + BLOCKS);
    turn(radius(c2), c3, to + 2 * BLOCKS, to + 3 * BLOCKS);
}

INLINE void tile(float *to, long number, uint32_t call, uint64_t low, uint64_t high)
{
    words lane;
    for (int i = 0; i < WIDTH; i++) lane[i] = (uint32_t)i;
    for (int i = 0; i < BLOCKS; i += WIDTH) blocks(to + i, lane + (uint32_t)(number * BLOCKS + i), call, low, high);
}

/* [rows, size] of keys [rows, 2] */
void normals(float *to, const uint64_t *keys, long rows, long size, long call)
{
    float part[TILE];
    for (long row = 0; row < rows; row++, to += size)
        for (long at = 0; at < size; at += TILE) {
            tile(part, at / TILE, (uint32_t)call, keys[2 * row], keys[2 * row + 1]);
            memcpy(to + at, part, sizeof(float) * (size_t)(size - at < TILE ? size - at : TILE));
        }
}

/* (from + std * number) / divisor, [rows, size]; std and divisor [rows]. A row without noise is not drawn. */
void noisy(float *to, const float *from, const uint64_t *keys, const float *std, const float *divisor, long rows,
           long size, long call)
{
    float part[TILE] = {0};
    for (long row = 0; row < rows; row++, to += size, from += size) {
        float factor = std[row], by = divisor[row];
        for (long at = 0; at < size; at += TILE) {
            if (factor != 0.0f) tile(part, at / TILE, (uint32_t)call, keys[2 * row], keys[2 * row + 1]);
            else memset(part, 0, sizeof part);
            if (size - at >= TILE)
                for (long i = 0; i < TILE; i++) to[at + i] = (from[at + i] + factor * part[i]) / by;
            else
                for (long i = 0; i < size - at; i++) to[at + i] = (from[at + i] + factor * part[i]) / by;
        }
    }
}

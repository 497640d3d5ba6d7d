/* Vectors of the machine's width and a small matrix product on them. GCC and clang alone know these extensions. */
#ifndef TACIT_VECTORS
#define TACIT_VECTORS

#include <stdint.h>
#include <string.h>

#include "room.h"

#ifdef __AVX512F__
#include <immintrin.h>
enum { WIDTH = 16, COLUMNS = 4 };  /* numbers of a vector; vectors of a row that registers hold at once */
#else
enum { WIDTH = 8, COLUMNS = 2 };
#endif

typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef int32_t lanes __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef uint8_t octets __attribute__((vector_size(WIDTH), aligned(1)));

#ifdef __clang__
#define SHUFFLED(a, b, places) shuffled(a, b, places)
#else
#define SHUFFLED(a, b, places) __builtin_shuffle(a, b, places)
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

INLINE vector load(const float *at) { return *(const vector *)at; }
INLINE void store(float *at, vector value) { *(vector *)at = value; }
INLINE vector all(float number) { return number - (vector){0}; }
INLINE vector chosen(lanes when, vector yes, vector no) { return (vector)(((lanes)yes & when) | ((lanes)no & ~when)); }

#ifdef __clang__  /* which wants constants; its optimizer finds the shuffle */
INLINE vector shuffled(vector a, vector b, lanes places)
{
    vector out;
    UNROLLED for (int i = 0; i < WIDTH; i++) out[i] = places[i] < WIDTH ? a[places[i]] : b[places[i] - WIDTH];
    return out;
}
#endif

typedef float eight __attribute__((vector_size(32), aligned(4)));
typedef float four __attribute__((vector_size(16), aligned(4)));

/* All numbers of a vector joined, half with half: `join` joins vectors, `join_two` numbers. */
#define FOLDED(several, join, join_two)                                                                                \
    ({                                                                                                                 \
        union { vector whole; eight part[WIDTH / 8]; } wide_ = {several};                                              \
        eight some_ = wide_.part[0];                                                                                   \
        if (WIDTH == 16) some_ = join(some_, wide_.part[WIDTH / 16]);                                                  \
        union { eight whole; four part[2]; } less_ = {some_};                                                          \
        four last_ = join(less_.part[0], less_.part[1]);                                                               \
        float x_ = join_two(last_[0], last_[2]), y_ = join_two(last_[1], last_[3]);                                    \
        join_two(x_, y_);                                                                                              \
    })
#define PLUS(x, y) ((x) + (y))

INLINE float total(vector several) { return FOLDED(several, PLUS, PLUS); }

/* The first `several` of a vector's numbers, where there may be no more of them; the others are `otherwise`. */
#ifdef __AVX512F__
INLINE vector load_part(const float *at, long several, vector otherwise)
{
    return (vector)_mm512_mask_loadu_ps((__m512)otherwise, (__mmask16)((1u << several) - 1), at);
}
INLINE void store_part(float *at, vector value, long several)
{
    _mm512_mask_storeu_ps(at, (__mmask16)((1u << several) - 1), (__m512)value);
}
#else
INLINE vector load_part(const float *at, long several, vector otherwise)
{
    if (several == WIDTH) return load(at);
    for (int i = 0; i < several; i++) otherwise[i] = at[i];
    return otherwise;
}
INLINE void store_part(float *at, vector value, long several)
{
    if (several == WIDTH)
        store(at, value);
    else
        for (int i = 0; i < several; i++) at[i] = value[i];
}
#endif

INLINE long smaller(long a, long b) { return a < b ? a : b; }
INLINE long up_to(long number, long multiple) { return (number + multiple - 1) / multiple * multiple; }

/* WIDTH rows of WIDTH numbers, turned in registers: blocks of 1, 2, 4, .. change places across the diagonal. */
INLINE void turn_block(vector *rows)
{
    UNROLLED for (int size = 1; size < WIDTH; size *= 2) {
        lanes first, second;
        UNROLLED for (int i = 0; i < WIDTH; i++) {
            first[i] = i & size ? WIDTH + i - size : i;
            second[i] = i & size ? WIDTH + i : i + size;
        }
        UNROLLED for (int r = 0; r < WIDTH; r++) {
            if (r & size) continue;
            vector a = rows[r], b = rows[r + size];
            rows[r] = SHUFFLED(a, b, first);
            rows[r + size] = SHUFFLED(a, b, second);
        }
    }
}

/* [rows, columns] -> [columns, rows]; with `room_after`, a few numbers behind the end may be written, too. */
INLINE void turn(const float *from, float *to, long rows, long columns, const int room_after)
{
    for (long c = 0; c < columns; c += WIDTH)
        for (long r = 0; r < rows; r += WIDTH) {
            long high = rows - r < WIDTH ? rows - r : WIDTH, wide = columns - c < WIDTH ? columns - c : WIDTH;
            if (wide == WIDTH && (high == WIDTH || (room_after && rows < WIDTH))) {
                vector part[WIDTH];
                UNROLLED for (int i = 0; i < WIDTH; i++)
                    part[i] = i < high ? load(from + (r + i) * columns + c) : (vector){0};
                turn_block(part);
                UNROLLED for (int i = 0; i < WIDTH; i++) store(to + (c + i) * rows + r, part[i]);
                continue;
            }
            for (long i = c; i < c + wide; i++)
                for (long j = r; j < r + high; j++) to[i * rows + j] = from[j * columns + i];
        }
}

/* Where a window's gradient goes: to one of its four places, or, as the output of a ReLU that is 0, nowhere. */
enum { NOWHERE = 4 };

#if defined __AVX512BW__ && defined __AVX512VL__  /* compared and chosen in one instruction each */
typedef octets targets;
#define SAME(a, b) _mm_cmpeq_epi8_mask((__m128i)(a), (__m128i)(b))

INLINE void larger(vector *best, targets *which, vector other, int place)
{
    __m512 now = (__m512)*best, next = (__m512)other;
    __mmask16 wins = _mm512_cmp_ps_mask(next, now, _CMP_GT_OQ) | _mm512_cmp_ps_mask(next, next, _CMP_UNORD_Q);
    *best = (vector)_mm512_mask_mov_ps(now, wins, next);  /* what is not a number stays seen */
    *which = (targets)_mm_mask_mov_epi8((__m128i)*which, wins, _mm_set1_epi8(place));
}

INLINE void rectify(vector *value, targets *which)
{
    __mmask16 off = _mm512_cmp_ps_mask((__m512)*value, _mm512_setzero_ps(), _CMP_LE_OQ);
    *value = (vector)_mm512_mask_mov_ps((__m512)*value, off, _mm512_setzero_ps());
    *which = (targets)_mm_mask_mov_epi8((__m128i)*which, off, _mm_set1_epi8(NOWHERE));
}

INLINE void keep(uint8_t *at, targets which) { *(octets *)at = which; }
INLINE targets kept(const uint8_t *at) { return *(const octets *)at; }
INLINE vector where(targets which, int place, vector given)
{
    return (vector)_mm512_maskz_mov_ps(SAME(which, _mm_set1_epi8(place)), (__m512)given);
}
INLINE vector anywhere(targets which, vector given)
{
    return (vector)_mm512_maskz_mov_ps(~SAME(which, _mm_set1_epi8(NOWHERE)), (__m512)given);
}
#else
typedef lanes targets;

INLINE void larger(vector *best, targets *which, vector other, int place)
{
    lanes wins = (other > *best) | (other != other);  /* what is not a number stays seen */
    *best = chosen(wins, other, *best);
    *which = (wins & place) | (~wins & *which);
}

INLINE void rectify(vector *value, targets *which)
{
    lanes off = *value <= (vector){0};
    *value = chosen(off, (vector){0}, *value);
    *which = (off & NOWHERE) | (~off & *which);
}

INLINE void keep(uint8_t *at, targets which) { *(octets *)at = __builtin_convertvector(which, octets); }
INLINE targets kept(const uint8_t *at) { return __builtin_convertvector(*(const octets *)at, lanes); }
INLINE vector where(targets which, int place, vector given) { return chosen(which == place, given, (vector){0}); }
INLINE vector anywhere(targets which, vector given) { return chosen(which == NOWHERE, (vector){0}, given); }
#endif

/* c[r, :] (+)= sum over k of a[r, k] b[k, :], for `rows` rows and `columns` vectors; a by its strides, b and c by
   rows. Where places are given, they say where the numbers of one k are found, in a or in b. */
INLINE void block(const int rows, const int columns, long depth, const float *a, long a_row, long a_depth,
                  const long *a_places, const float *b, long b_row, const long *b_places, float *c, long c_row,
                  const int add)
{
    vector sum[2 * 6][COLUMNS];  /* as large as any; what is not used takes no register */
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int q = 0; q < columns; q++)
            sum[r][q] = add ? load(c + r * c_row + q * WIDTH) : (vector){0};
    for (long k = 0; k < depth; k++) {
        const float *one_of = a + (a_places ? a_places[k] : k * a_depth), *from = b + (b_places ? b_places[k] : k * b_row);
        vector row[COLUMNS];
        UNROLLED for (int q = 0; q < columns; q++) row[q] = load(from + q * WIDTH);
        UNROLLED for (int r = 0; r < rows; r++) {
            vector one = all(one_of[r * a_row]);
            UNROLLED for (int q = 0; q < columns; q++) sum[r][q] += one * row[q];
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int q = 0; q < columns; q++) store(c + r * c_row + q * WIDTH, sum[r][q]);
}

/* c (+)= a b, where a has a multiple of 2 `rows` of rows and b of WIDTH columns. */

INLINE void panel(const int rows, const int columns, long several, long depth, const float *a, long a_row, long a_depth,
                  const float *b, long b_row, float *c, long c_row, const int add)
{
    for (long r = 0; r + rows <= several; r += rows)
        block(rows, columns, depth, a + r * a_row, a_row, a_depth, 0, b, b_row, 0, c + r * c_row, c_row, add);
}

INLINE void product(const int rows, long several, long wide, long depth, const float *a, long a_row, long a_depth,
                    const float *b, float *c, const int add)
{
    long at = 0;
    for (; at + COLUMNS * WIDTH <= wide; at += COLUMNS * WIDTH)
        panel(rows, COLUMNS, several, depth, a, a_row, a_depth, b + at, wide, c + at, wide, add);
    for (; COLUMNS > 2 && at + 2 * WIDTH <= wide; at += 2 * WIDTH)
        panel(2 * rows, 2, several, depth, a, a_row, a_depth, b + at, wide, c + at, wide, add);
    for (; at + WIDTH <= wide; at += WIDTH)
        panel(rows, 1, several, depth, a, a_row, a_depth, b + at, wide, c + at, wide, add);
}

#endif

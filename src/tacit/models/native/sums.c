/* What a chunk's uploads come down to: each one's sum of squares, and the sum of all of them by weight.

   Uploads [clients, numbers], or as they come about: y' x of each client, y [clients, rows, outputs], x [clients, rows,
   inputs], made piece by piece in registers, the same numbers both times, and never stored. An upload of weight 0 is not
   looked at, whatever is in it. inputs are a multiple of WIDTH. */
#include "sums.h"

#include "vectors.h"

enum { PIECE = 1024, GROUP = 5 };

/* Few squares at a time in single precision, their sums in double. */
INLINE double squares_of(const float *from, long several)
{
    vector sum = {0};
    long at = 0;
    float rest = 0;
    for (; at + WIDTH <= several; at += WIDTH) sum += load(from + at) * load(from + at);
    for (; at < several; at++) rest += from[at] * from[at];
    return (double)total(sum) + (double)rest;
}

float square_sum(const float *upload, long numbers)
{
    double sum = 0;
    for (long at = 0; at < numbers; at += PIECE) sum += squares_of(upload + at, smaller(PIECE, numbers - at));
    return (float)sum;
}

void square_sums(const float *uploads, float *sums, long clients, long numbers)
{
    for (long k = 0; k < clients; k++) sums[k] = square_sum(uploads + k * numbers, numbers);
}

INLINE void add(float *to, const float *from, float weight, long several)
{
    long at = 0;
    for (; at + WIDTH <= several; at += WIDTH) store(to + at, load(to + at) + weight * load(from + at));
    for (; at < several; at++) to[at] += weight * from[at];
}

/* weights [levels, clients], totals [levels, numbers] */
void weighted_sum(const float *weights, const float *uploads, float *totals, long levels, long clients, long numbers)
{
    memset(totals, 0, 4 * levels * numbers);
    for (long at = 0; at < numbers; at += PIECE)
        for (long k = 0; k < clients; k++)
            for (long l = 0; l < levels; l++)
                if (weights[l * clients + k] != 0)
                    add(totals + l * numbers + at, uploads + k * numbers + at, weights[l * clients + k],
                        smaller(PIECE, numbers - at));
}

typedef struct {
    long rows, inputs, outputs;
} Shape;

/* y' x for up to GROUP outputs and `columns` vectors of inputs. */
INLINE void tile(long several, const int columns, const float *y, const float *x, float *to, Shape s)
{
#define TILE(n) block(n, columns, s.rows, y, 1, s.outputs, 0, x, s.inputs, 0, to, COLUMNS * WIDTH, 0)
    switch (several) {
        case 5: TILE(5); break;
        case 4: TILE(4); break;
        case 3: TILE(3); break;
        case 2: TILE(2); break;
        default: TILE(1);
    }
}

/* Calls `use` with each tile of an upload: where it begins, how many outputs and inputs it has. */
#define FOR_TILES(y, x, s, made, use)                                                                              \
    for (long i = 0, wide; i < s.inputs; i += wide) {                                                              \
        wide = i + COLUMNS * WIDTH <= s.inputs ? COLUMNS * WIDTH : WIDTH;                                           \
        for (long o = 0; o < s.outputs; o += GROUP) {                                                              \
            long several = smaller(GROUP, s.outputs - o);                                                          \
            if (wide == WIDTH)                                                                                     \
                tile(several, 1, y + o, x + i, made, s);                                                           \
            else                                                                                                   \
                tile(several, COLUMNS, y + o, x + i, made, s);                                                     \
            for (long r = 0; r < several; r++) use;                                                                \
        }                                                                                                          \
    }

void outer_squares(const float *y, const float *x, float *sums, long clients, long rows, long inputs, long outputs)
{
    Shape s = {rows, inputs, outputs};
    float made[GROUP * COLUMNS * WIDTH];
    for (long k = 0; k < clients; k++) {
        const float *own = y + k * rows * outputs, *other = x + k * rows * inputs;
        double sum = 0;
        FOR_TILES(own, other, s, made, sum += squares_of(made + r * COLUMNS * WIDTH, wide))
        sums[k] = (float)sum;
    }
}

void outer_sum(const float *weights, const float *y, const float *x, float *totals, long levels, long clients, long rows,
               long inputs, long outputs)
{
    Shape s = {rows, inputs, outputs};
    float made[GROUP * COLUMNS * WIDTH];
    memset(totals, 0, 4 * levels * outputs * inputs);
    for (long l = 0; l < levels; l++)
        for (long k = 0; k < clients; k++) {
            const float *own = y + k * rows * outputs, *other = x + k * rows * inputs;
            float weight = weights[l * clients + k];
            float *to = totals + l * outputs * inputs;
            if (weight == 0) continue;
            FOR_TILES(own, other, s, made, add(to + (o + r) * inputs + i, made + r * COLUMNS * WIDTH, weight, wide))
        }
}

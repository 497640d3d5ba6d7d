/* A linear layer of each client on few rows: three products that read a large matrix once, at the speed of its memory.

   x [clients, rows, inputs], weight [clients, outputs, inputs], y [clients, rows, outputs]. inputs are a multiple of
   WIDTH, outputs of 4. A piece of PIECE inputs is worked on at a time, and the rows' part of it lies together: rows of a
   power of two apart would push one another out of the cache. */
#include "vectors.h"

enum { PIECE = 1024, GROUP = 5, QUAD = 4, DEPTH = 16 };

INLINE void copy_rows(const float *from, long from_row, float *to, long to_row, long rows, long piece)
{
    for (long r = 0; r < rows; r++) memcpy(to + r * to_row, from + r * from_row, 4 * piece);
}

/* Sums of vectors of products, still to be totalled: [rows, outputs] of them. */
INLINE void dots(const int rows, const float *x, const float *weight, long inputs, long piece, vector *sums, long outputs)
{
    vector sum[GROUP][QUAD];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < QUAD; o++) sum[r][o] = sums[r * outputs + o];
    for (long i = 0; i < piece; i += WIDTH) {
        vector w[QUAD];
        UNROLLED for (int o = 0; o < QUAD; o++) {
            w[o] = load(weight + o * inputs + i);
            __builtin_prefetch(weight + (o + QUAD) * inputs + i);  /* what the next outputs want: it lies far away */
        }
        UNROLLED for (int r = 0; r < rows; r++) {
            vector one = load(x + r * PIECE + i);
            UNROLLED for (int o = 0; o < QUAD; o++) sum[r][o] += one * w[o];
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < QUAD; o++) sums[r * outputs + o] = sum[r][o];
}

#define FOR_ROWS(several, call)          \
    switch (several) {                   \
        case 5: call(5); break;          \
        case 4: call(4); break;          \
        case 3: call(3); break;          \
        case 2: call(2); break;          \
        default: call(1);                \
    }

/* y = x weight' + bias; bias may be null. Steps are numbers from client to client, 0 where all have the same. */
void linear_forward(const float *x, const float *weight, const float *bias, float *y, long step, long bias_step,
                    long clients, long rows, long inputs, long outputs)
{
    vector *sums = room(rows * outputs * WIDTH);
    float *close = room(rows * PIECE);
    for (long k = 0; k < clients; k++) {
        memset(sums, 0, sizeof(vector) * rows * outputs);
        for (long at = 0; at < inputs; at += PIECE) {
            long piece = smaller(PIECE, inputs - at);
            copy_rows(x + k * rows * inputs + at, inputs, close, PIECE, rows, piece);
            for (long o = 0; o < outputs; o += QUAD)
                for (long r = 0; r < rows; r += GROUP) {
                    const float *own = weight + k * step + o * inputs + at;
#define DOTS(n) dots(n, close + r * PIECE, own, inputs, piece, sums + r * outputs + o, outputs)
                    FOR_ROWS(smaller(GROUP, rows - r), DOTS)
                }
        }
        for (long r = 0; r < rows; r++)
            for (long o = 0; o < outputs; o++)
                y[(k * rows + r) * outputs + o] = total(sums[r * outputs + o]) + (bias ? bias[k * bias_step + o] : 0);
    }
    leave();
}

INLINE void spread(const int rows, const float *y, const float *weight, float *x, long inputs, long outputs, long piece,
                   long depth, long add)
{
    long i = 0;
    for (; i + COLUMNS * WIDTH <= piece; i += COLUMNS * WIDTH)
        if (add)
            block(rows, COLUMNS, depth, y, outputs, 1, 0, weight + i, inputs, 0, x + i, PIECE, 1);
        else
            block(rows, COLUMNS, depth, y, outputs, 1, 0, weight + i, inputs, 0, x + i, PIECE, 0);
    for (; i < piece; i += WIDTH)
        if (add)
            block(rows, 1, depth, y, outputs, 1, 0, weight + i, inputs, 0, x + i, PIECE, 1);
        else
            block(rows, 1, depth, y, outputs, 1, 0, weight + i, inputs, 0, x + i, PIECE, 0);
}

/* QUAD rows of a weight += y' x, for a piece of them. */
INLINE void grow(float *weight, const float *y, const float *x, long rows, long inputs, long outputs, long piece)
{
    long i = 0;
    for (; i + COLUMNS * WIDTH <= piece; i += COLUMNS * WIDTH)
        block(QUAD, COLUMNS, rows, y, 1, outputs, 0, x + i, PIECE, 0, weight + i, inputs, 1);
    for (; i < piece; i += WIDTH) block(QUAD, 1, rows, y, 1, outputs, 0, x + i, PIECE, 0, weight + i, inputs, 1);
}

/* x = y weight, if there is an x, and then weight += factor y' other, if there is one: one trip through the matrix. */
void linear_step(float *weight, const float *y, const float *other, float *x, long step, double factor, long clients,
                 long rows, long inputs, long outputs)
{
    float *scaled = room(rows * outputs), *close = room(rows * PIECE), *from = room(rows * PIECE);
    for (long k = 0; k < clients; k++) {
        for (long i = 0; i < rows * outputs; i++) scaled[i] = (float)factor * y[k * rows * outputs + i];
        for (long at = 0; at < inputs; at += PIECE) {
            long piece = smaller(PIECE, inputs - at);
            if (other) copy_rows(other + k * rows * inputs + at, inputs, from, PIECE, rows, piece);
            for (long o = 0; o < outputs; o += DEPTH) {
                float *own = weight + k * step + o * inputs + at;
                long depth = smaller(DEPTH, outputs - o);
                for (long r = 0; x && r < rows; r += GROUP) {
                    const float *given = y + (k * rows + r) * outputs + o;
#define SPREAD(n) spread(n, given, own, close + r * PIECE, inputs, outputs, piece, depth, o)
                    FOR_ROWS(smaller(GROUP, rows - r), SPREAD)
                }
                for (long q = 0; other && q < depth; q += QUAD)
                    grow(own + q * inputs, scaled + o + q, from, rows, inputs, outputs, piece);
            }
            if (x) copy_rows(close, PIECE, x + k * rows * inputs + at, inputs, rows, piece);
        }
    }
    leave();
}

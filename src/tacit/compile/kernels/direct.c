/* Small convolutions of one client after another, images last, straight from the definition.

   With images last, the places of a row and their images are one run of memory, and a filter's tap is a shift of it: no
   patches are cut. One client's images stay in a core's cache from the first tap to the pool.
   x [clients, inputs, high, wide, images], weight [clients, outputs, inputs, side, side] at `step` numbers from client
   to client, y [clients, outputs, high - side + 1, wide - side + 1, images], half as high and wide with `pool`. With
   `turned`, images come first in x (forward) or in y's gradient (backward). With `pool` or `relu`, `which` says where
   gradients go. side is 3 or 5; with `pool`, rows and columns of places are even. */
#include "vectors.h"

enum { MOST_TAPS = 5, SLACK = 4 * WIDTH * COLUMNS };

typedef struct {
    long images, inputs, high, wide, outputs, side;
    long pool, relu;
} Shape;

INLINE long rows_of(Shape s) { return s.high - s.side + 1; }
INLINE long columns_of(Shape s) { return s.wide - s.side + 1; }
INLINE long taps_of(Shape s) { return s.inputs * s.side * s.side; }
INLINE long outputs_of(Shape s) { return s.outputs * rows_of(s) * columns_of(s) * s.images / (s.pool ? 4 : 1); }
INLINE lanes below(long several)
{
    lanes at;
    UNROLLED for (int i = 0; i < WIDTH; i++) at[i] = i;
    return at < (int32_t)several;
}

/* to[r, :] = sum over taps of weight[tap, r] from[places[tap] + :], for `rows` rows of `run` numbers and a little more. */
INLINE void taps(const int rows, long run, long depth, const float *weight, const float *from, const long *places,
                 float *to, long line)
{
    long at = 0;
    for (; at + COLUMNS * WIDTH <= run; at += COLUMNS * WIDTH)
        block(rows, COLUMNS, depth, weight, 1, rows, 0, from + at, 0, places, to + at, line, 0);
    for (; at + WIDTH * COLUMNS / 2 < run; at += COLUMNS * WIDTH)
        block(rows, COLUMNS, depth, weight, 1, rows, 0, from + at, 0, places, to + at, line, 0);
    for (; at + WIDTH < run; at += 2 * WIDTH)
        block(rows, 2, depth, weight, 1, rows, 0, from + at, 0, places, to + at, line, 0);
    for (; at < run; at += WIDTH)
        block(rows, 1, depth, weight, 1, rows, 0, from + at, 0, places, to + at, line, 0);
}

/* The same for 1 to 6 rows. */
static void some_taps(long rows, long run, long depth, const float *weight, const float *from, const long *places,
                      float *to, long line)
{
    switch (rows) {
        case 6: taps(6, run, depth, weight, from, places, to, line); break;
        case 5: taps(5, run, depth, weight, from, places, to, line); break;
        case 4: taps(4, run, depth, weight, from, places, to, line); break;
        case 3: taps(3, run, depth, weight, from, places, to, line); break;
        case 2: taps(2, run, depth, weight, from, places, to, line); break;
        default: taps(1, run, depth, weight, from, places, to, line);
    }
}

/* How many of so many are made at once: at most `most`, and about as many the last time. */
INLINE long at_once(long several, long most)
{
    long times = (several + most - 1) / most;
    return (several + times - 1) / times;
}

/* Two rows of places as one of windows. What is written past the end of a window is written again by the next one; past
   the end of the row there is room. */
INLINE void pooled(const float *upper, const float *lower, float bias, float *y, uint8_t *which, Shape s)
{
    for (long j = 0; j < columns_of(s) / 2; j++)
        for (long i = 0; i < s.images; i += WIDTH) {
            long left = 2 * j * s.images + i, right = left + s.images;
            vector best = load(upper + left);
            targets at = {0};
            larger(&best, &at, load(upper + right), 1);
            larger(&best, &at, load(lower + left), 2);
            larger(&best, &at, load(lower + right), 3);
            best += bias;
            if (s.relu) rectify(&best, &at);
            store(y + j * s.images + i, best);
            keep(which + j * s.images + i, at);
        }
}

/* Each window's gradient to its place; gives the sum of what went anywhere. */
INLINE vector unpooled(const float *y, const uint8_t *which, float *upper, float *lower, Shape s)
{
    vector sum = {0};
    for (long j = 0; j < columns_of(s) / 2; j++)
        for (long i = (s.images - 1) / WIDTH * WIDTH; i >= 0; i -= WIDTH) {  /* zeros past the end are written over */
            long from = j * s.images + i, left = 2 * j * s.images + i, right = left + s.images;
            vector given = chosen(below(s.images - i), load(y + from), (vector){0});
            targets at = kept(which + from);
            sum += anywhere(at, given);
            store(upper + left, where(at, 0, given));
            store(upper + right, where(at, 1, given));
            store(lower + left, where(at, 2, given));
            store(lower + right, where(at, 3, given));
        }
    return sum;
}

/* A row of places as it is, in place. */
INLINE void activated(float *row, float bias, uint8_t *which, Shape s)
{
    for (long c = 0; c < columns_of(s) * s.images; c += WIDTH) {
        vector value = load(row + c) + bias;
        targets at = {0};
        if (s.relu) rectify(&value, &at);
        store(row + c, value);
        keep(which + c, at);
    }
}

void direct_forward(const float *x, const float *weight, const float *bias, float *y, uint8_t *which, long step,
                    long bias_step, long clients, long images, long inputs, long high, long wide, long outputs,
                    long side, long pool, long relu, long turned)
{
    Shape s = {images, inputs, high, wide, outputs, side, pool, relu};
    long all_of = inputs * high * wide * images, depth = taps_of(s), row = wide * images, run = columns_of(s) * images;
    long several = at_once(outputs, 6), line = up_to(run, WIDTH) + SLACK, made = outputs_of(s);
    float *from = room(all_of + SLACK), *filter = room(depth * several), *lines = room(2 * several * line);
    float *out = room(line);
    uint8_t *chose = room(line);
    long *places = room(2 * depth);
    for (long i = 0, t = 0; i < inputs; i++)
        for (long kh = 0; kh < side; kh++)
            for (long kw = 0; kw < side; kw++) places[t++] = (i * high + kh) * row + kw * images;
    for (long k = 0; k < clients; k++) {
        if (turned)
            turn(x + k * all_of, from, images, all_of / images, 1);
        else
            memcpy(from, x + k * all_of, 4 * all_of);
        memset(from + all_of, 0, 4 * SLACK);
        for (long o = 0; o < outputs; o += several) {
            long now = smaller(several, outputs - o);
            const float *own = weight + k * step + o * depth;
            for (long t = 0; t < depth; t++)
                for (long r = 0; r < now; r++) filter[t * now + r] = own[r * depth + t];
            for (long i = 0; i < rows_of(s); i += 2) {
                long several_rows = i + 2 <= rows_of(s) ? 2 : 1;
                for (long h = 0; h < several_rows; h++)
                    some_taps(now, run, depth, filter, from + (i + h) * row, places, lines + h * several * line, line);
                for (long r = 0; r < now; r++) {
                    float *upper = lines + r * line, *lower = upper + several * line, b = bias[k * bias_step + o + r];
                    if (pool) {
                        long to = k * made + ((o + r) * rows_of(s) + i) / 2 * run / 2;
                        pooled(upper, lower, b, out, chose, s);
                        memcpy(y + to, out, 4 * run / 2);
                        memcpy(which + to, chose, run / 2);
                        continue;
                    }
                    for (long h = 0; h < several_rows; h++) {
                        long to = k * made + ((o + r) * rows_of(s) + i + h) * run;
                        activated(h ? lower : upper, b, chose, s);
                        memcpy(y + to, h ? lower : upper, 4 * run);
                        if (relu) memcpy(which + to, chose, run);
                    }
                }
            }
        }
    }
    leave();
}

/* Sums of products of `rows` outputs' lines with `side` shifts of the inputs', over all rows and places. */
INLINE void shifted_sums(const int rows, const int side, const float *g, long g_plane, long g_line, const float *x,
                         long x_line, long several, long run, long images, float *to, long to_row)
{
    vector sum[MOST_TAPS][MOST_TAPS];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int t = 0; t < side; t++) sum[r][t] = (vector){0};
    for (long i = 0; i < several; i++)
        for (long at = 0; at < run; at += WIDTH) {
            vector shift[MOST_TAPS];
            UNROLLED for (int t = 0; t < side; t++) shift[t] = load(x + i * x_line + at + t * images);
            UNROLLED for (int r = 0; r < rows; r++) {
                vector given = load(g + r * g_plane + i * g_line + at);
                UNROLLED for (int t = 0; t < side; t++) sum[r][t] += given * shift[t];
            }
        }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int t = 0; t < side; t++) to[r * to_row + t] = total(sum[r][t]);
}

INLINE void some_sums(const int side, long rows, const float *g, long g_plane, long g_line, const float *x, long x_line,
                      long several, long run, long images, float *to, long to_row)
{
    switch (rows) {
        case 5: shifted_sums(5, side, g, g_plane, g_line, x, x_line, several, run, images, to, to_row); break;
        case 4: shifted_sums(4, side, g, g_plane, g_line, x, x_line, several, run, images, to, to_row); break;
        case 3: shifted_sums(3, side, g, g_plane, g_line, x, x_line, several, run, images, to, to_row); break;
        case 2: shifted_sums(2, side, g, g_plane, g_line, x, x_line, several, run, images, to, to_row); break;
        default: shifted_sums(1, side, g, g_plane, g_line, x, x_line, several, run, images, to, to_row);
    }
}

INLINE void weight_gradient(const int side, const float *g, long g_line, const float *x, float *to, Shape s)
{
    long g_plane = rows_of(s) * g_line, row = s.wide * s.images, depth = taps_of(s), run = columns_of(s) * s.images;
    long several = at_once(s.outputs, smaller(MOST_TAPS, (COLUMNS == 4 ? 20 : 10) / side));
    for (long o = 0; o < s.outputs; o += several)
        for (long i = 0; i < s.inputs; i++)
            for (long kh = 0; kh < side; kh++)
                some_sums(side, smaller(several, s.outputs - o), g + o * g_plane, g_plane, g_line,
                          x + (i * s.high + kh) * row, row, rows_of(s), run, s.images,
                          to + o * depth + (i * side + kh) * side, depth);
}

/* Gradients of the inputs: of each of their rows, over the rows of places that saw it. Taps are sorted by the rows they
   reach up to, so that those of an input's row are neighbours. */
INLINE void input_gradient(const float *g, long g_line, const float *weight, float *filter, long *places, float *lines,
                           float *to, Shape s)
{
    long side = s.side, row = s.wide * s.images, several = at_once(s.inputs, 6), line = up_to(row, WIDTH) + SLACK;
    long together = s.outputs * side;
    for (long i = 0; i < s.inputs; i += several) {
        long now = smaller(several, s.inputs - i), t = 0;
        for (long kh = 0; kh < side; kh++)
            for (long o = 0; o < s.outputs; o++)
                for (long kw = 0; kw < side; kw++, t++) {
                    places[t] = (o * rows_of(s) - kh) * g_line - kw * s.images;
                    for (long r = 0; r < now; r++)
                        filter[t * now + r] = weight[((o * s.inputs + i + r) * side + kh) * side + kw];
                }
        for (long h = 0; h < s.high; h++) {
            long first = h < rows_of(s) ? 0 : h - rows_of(s) + 1, end = smaller(h + 1, side);
            some_taps(now, row, (end - first) * together, filter + first * together * now, g + h * g_line,
                      places + first * together, lines, line);
            for (long r = 0; r < now; r++) memcpy(to + ((i + r) * s.high + h) * row, lines + r * line, 4 * row);
        }
    }
}

/* to_x may be null where nobody wants it. */
void direct_backward(const float *y, const uint8_t *which, const float *x, const float *weight, float *to_x,
                     float *to_weight, float *to_bias, long step, long clients, long images, long inputs, long high, long wide,
                     long outputs, long side, long pool, long relu, long turned)
{
    Shape s = {images, inputs, high, wide, outputs, side, pool, relu};
    long all_of = inputs * high * wide * images, depth = taps_of(s), made = outputs_of(s);
    long run = columns_of(s) * images, before = to_x ? up_to(side * images, WIDTH) : 0;  /* zeros around each row */
    long line = up_to(run + WIDTH, WIDTH) + 2 * before, spread = outputs * rows_of(s) * line + SLACK;
    float *from = room(all_of + SLACK), *g = room(spread), *out = room(made + SLACK);
    uint8_t *chose = room(made / 4 + SLACK);
    float *filter = room(outputs * side * side * 6), *lines = room(6 * (up_to(wide * images, WIDTH) + SLACK));
    long *places = room(2 * outputs * side * side);
    memset(from + all_of, 0, 4 * SLACK);
    memset(g, 0, 4 * spread);
    for (long k = 0; k < clients; k++) {
        memcpy(from, x + k * all_of, 4 * all_of);
        if (turned)
            turn(y + k * made, out, images, made / images, 1);
        else
            memcpy(out, y + k * made, 4 * made);
        if (pool || relu) memcpy(chose, which + k * made, made);
        for (long o = 0; o < outputs; o++) {
            vector sum = {0};
            float rest = 0;
            for (long i = 0; i < rows_of(s); i += pool ? 2 : 1) {
                float *upper = g + (o * rows_of(s) + i) * line + before;
                if (pool) {
                    long at = (o * rows_of(s) / 2 + i / 2) * run / 2;
                    sum += unpooled(out + at, chose + at, upper, upper + line, s);
                    continue;
                }
                long at = (o * rows_of(s) + i) * run;
                for (long c = 0; c < run; c++) {
                    upper[c] = relu && chose[at + c] == NOWHERE ? 0 : out[at + c];
                    rest += upper[c];
                }
            }
            to_bias[k * outputs + o] = total(sum) + rest;
        }
        float *own = to_weight + k * outputs * depth;
        if (side == 5)
            weight_gradient(5, g + before, line, from, own, s);
        else
            weight_gradient(3, g + before, line, from, own, s);
        if (to_x)
            input_gradient(g + before, line, weight + k * step, filter, places, lines, to_x + k * all_of, s);
    }
    leave();
}

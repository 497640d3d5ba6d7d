/* 3 x 3 convolutions with few inputs and many outputs, channels last, of one client after another: a network's first.

   Nobody asks for the gradient of its inputs. x [clients, images, high, wide, inputs], weight [clients, outputs, inputs,
   3, 3] at `step` numbers from client to client, y [clients, images, high - 2, wide - 2, outputs]. With `relu`, `which`
   says where gradients go. outputs are a multiple of WIDTH, wide - 2 is at least FEWEST. */
#include "vectors.h"

enum { SIDE = 3, TAPS = SIDE * SIDE, FEWEST = 6, PAIR = 2 };

typedef struct {
    long images, high, wide, inputs, outputs;
} Shape;

/* Where a tap finds its input, from the place of the output. */
INLINE long place(long tap, Shape s)
{
    return ((tap / SIDE % SIDE) * s.wide + tap % SIDE) * s.inputs + tap / TAPS;
}

/* A row of places for `columns` vectors of outputs, `several` places at once; the last ones may be made twice. */
INLINE void row(const int several, const int columns, const float *x, const long *places, const float *filter, float *y,
                Shape s)
{
    long across = s.wide - 2;
    for (long at = 0; at < across; at += several) {
        long from = at + several <= across ? at : across - several;
        block(several, columns, s.inputs * TAPS, x + from * s.inputs, s.inputs, 0, places, filter, s.outputs, 0,
              y + from * s.outputs, s.outputs, 0);
    }
}

INLINE void rows(const float *x, const long *places, const float *filter, float *y, Shape s)
{
    long o = 0;
    for (; o + PAIR * WIDTH <= s.outputs; o += PAIR * WIDTH)
        if ((int)COLUMNS > (int)PAIR && s.wide - 2 >= 2 * FEWEST)
            row(2 * FEWEST, PAIR, x, places, filter + o, y + o, s);
        else
            row(FEWEST, PAIR, x, places, filter + o, y + o, s);
    for (; o < s.outputs; o += WIDTH) row(FEWEST, 1, x, places, filter + o, y + o, s);
}

INLINE void activated(float *y, const float *bias, uint8_t *which, Shape s)
{
    for (long at = 0; at < (s.wide - 2) * s.outputs; at += s.outputs)
        for (long o = 0; o < s.outputs; o += WIDTH) {
            vector value = load(y + at + o) + load(bias + o);
            targets goes = {0};
            if (which) {
                rectify(&value, &goes);
                keep(which + at + o, goes);
            }
            store(y + at + o, value);
        }
}

void first_forward(const float *x, const float *weight, const float *bias, float *y, uint8_t *which, long step,
                   long bias_step, long clients, long images, long high, long wide, long inputs, long outputs, long relu)
{
    Shape s = {images, high, wide, inputs, outputs};
    long taps = inputs * TAPS, *places = room(2 * taps);
    float *filter = room(taps * outputs);
    for (long t = 0; t < taps; t++) places[t] = place(t, s);
    for (long k = 0; k < clients; k++) {
        turn(weight + k * step, filter, outputs, taps, 0);
        for (long i = 0; i < images * (high - 2); i++) {
            long n = k * images + i / (high - 2), to = (n * (high - 2) + i % (high - 2)) * (wide - 2) * outputs;
            rows(x + (n * high + i % (high - 2)) * wide * inputs, places, filter, y + to, s);
            activated(y + to, bias + k * bias_step, relu ? which + to : 0, s);
        }
    }
    leave();
}

/* Adds to nine taps' gradients what a row of places gives, for `columns` vectors of outputs. */
INLINE void taps_of_row(const int columns, const float *x, const long *places, const float *y, float *filter, Shape s)
{
    vector sum[TAPS][PAIR];
    UNROLLED for (int t = 0; t < TAPS; t++)
        UNROLLED for (int q = 0; q < columns; q++) sum[t][q] = load(filter + t * s.outputs + q * WIDTH);
    for (long at = 0; at < s.wide - 2; at++) {
        vector given[PAIR];
        UNROLLED for (int q = 0; q < columns; q++) given[q] = load(y + at * s.outputs + q * WIDTH);
        UNROLLED for (int t = 0; t < TAPS; t++) {
            vector one = all(x[places[t] + at * s.inputs]);
            UNROLLED for (int q = 0; q < columns; q++) sum[t][q] += one * given[q];
        }
    }
    UNROLLED for (int t = 0; t < TAPS; t++)
        UNROLLED for (int q = 0; q < columns; q++) store(filter + t * s.outputs + q * WIDTH, sum[t][q]);
}

INLINE void all_taps_of_row(const float *x, const long *places, const float *y, float *filter, Shape s)
{
    for (long i = 0; i < s.inputs; i++) {
        float *own = filter + i * TAPS * s.outputs;
        long o = 0;
        if ((int)COLUMNS > (int)PAIR)
            for (; o + PAIR * WIDTH <= s.outputs; o += PAIR * WIDTH)
                taps_of_row(PAIR, x, places + i * TAPS, y + o, own + o, s);
        for (; o < s.outputs; o += WIDTH) taps_of_row(1, x, places + i * TAPS, y + o, own + o, s);
    }
}

/* A row's gradient as far as it goes anywhere, and added up by output. */
INLINE void gated(const float *y, const uint8_t *which, float *line, float *sums, Shape s)
{
    for (long o = 0; o < s.outputs; o += WIDTH) {
        vector sum = load(sums + o);
        for (long at = o; at < (s.wide - 2) * s.outputs; at += s.outputs) {
            vector given = load(y + at);
            if (which) given = where(kept(which + at), 0, given);
            store(line + at, given);
            sum += given;
        }
        store(sums + o, sum);
    }
}

void first_backward(const float *y, const uint8_t *which, const float *x, float *to_weight, float *to_bias, long clients,
                    long images, long high, long wide, long inputs, long outputs, long relu)
{
    Shape s = {images, high, wide, inputs, outputs};
    long taps = inputs * TAPS, *places = room(2 * taps);
    float *filter = room(taps * outputs), *line = room((wide - 2) * outputs);
    for (long t = 0; t < taps; t++) places[t] = place(t, s);
    for (long k = 0; k < clients; k++) {
        float *sums = to_bias + k * outputs;
        memset(filter, 0, 4 * taps * outputs);
        memset(sums, 0, 4 * outputs);
        for (long i = 0; i < images * (high - 2); i++) {
            long n = k * images + i / (high - 2), at = (n * (high - 2) + i % (high - 2)) * (wide - 2) * outputs;
            gated(y + at, relu ? which + at : 0, line, sums, s);
            all_taps_of_row(x + (n * high + i % (high - 2)) * wide * inputs, places, line, filter, s);
        }
        turn(filter, to_weight + k * outputs * taps, taps, outputs, 0);
    }
    leave();
}

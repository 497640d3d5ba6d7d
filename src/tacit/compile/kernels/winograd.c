/* 3 x 3 convolutions of one client after another by Winograd's method, channels last; winograd.py has the mathematics.

   An image's tiles are taken at a time, so that their values, what comes of them and the filters' stay in a core's cache.
   x [clients, images, high, wide, inputs], weight [clients, outputs, inputs, 3, 3] at `step` numbers from client to
   client, y [clients, images, high - 2, wide - 2, outputs], half as high and wide with `pool`; or with `turned` [clients,
   images, outputs, ..], as a linear layer wants them. With `pool` or `relu`, `which` says where gradients go. inputs and
   outputs are multiples of WIDTH, high - 2 and wide - 2 of 4. */
#include "vectors.h"

enum { SIDE = 4, SPAN = 6, VALUES = SPAN * SPAN, TAPS = 9, ROWS = 6, LINE = 16 };

#define P 0.625f
#define Q 1.5f
#define PP (P * P)
#define QQ (Q * Q)

typedef struct {
    long images, high, wide, inputs, outputs;
    long pool, relu;
} Shape;

INLINE long tiles_across(Shape s) { return (s.wide - 2) / SIDE; }
INLINE long tiles_of(Shape s) { return tiles_across(s) * ((s.high - 2) / SIDE); }
INLINE long outputs_of(Shape s) { return s.images * (s.high - 2) * (s.wide - 2) * s.outputs / (s.pool ? 4 : 1); }
INLINE long padded_of(Shape s) { return up_to(tiles_of(s), 2 * ROWS); }
INLINE long weights_of(Shape s) { return s.outputs * s.inputs * TAPS; }

/* From one of the 36 values to the next, of so many numbers: an odd number of cache lines, so that a tile's values do not
   all want the same place in the cache. */
INLINE long apart(long numbers) { return (up_to(numbers, LINE) / LINE | 1) * LINE; }
INLINE long filters_apart(Shape s) { return apart(s.inputs * s.outputs); }
INLINE long tiles_apart(long channels, Shape s) { return apart(padded_of(s) * channels); }

/* One direction each: B' d, its transpose, A' m, its transpose, G w, its transpose. */

INLINE void inputs_to_values(const vector *d, vector *v, const int by)
{
    vector even_p = d[4 * by] - QQ * d[2 * by], odd_p = P * (d[3 * by] - QQ * d[by]);
    vector even_q = d[4 * by] - PP * d[2 * by], odd_q = Q * (d[3 * by] - PP * d[by]);
    v[0] = PP * QQ * d[0] - (PP + QQ) * d[2 * by] + d[4 * by];
    v[by] = even_p + odd_p;
    v[2 * by] = even_p - odd_p;
    v[3 * by] = even_q + odd_q;
    v[4 * by] = even_q - odd_q;
    v[5 * by] = PP * QQ * d[by] - (PP + QQ) * d[3 * by] + d[5 * by];
}

INLINE void values_to_inputs(const vector *v, vector *d, const int by)
{
    vector even_p = v[by] + v[2 * by], odd_p = P * (v[by] - v[2 * by]);
    vector even_q = v[3 * by] + v[4 * by], odd_q = Q * (v[3 * by] - v[4 * by]);
    vector first = v[0], last = v[5 * by];
    d[0] = PP * QQ * first;
    d[by] = PP * QQ * last - QQ * odd_p - PP * odd_q;
    d[2 * by] = -(PP + QQ) * first - QQ * even_p - PP * even_q;
    d[3 * by] = odd_p + odd_q - (PP + QQ) * last;
    d[4 * by] = first + even_p + even_q;
    d[5 * by] = last;
}

INLINE void values_to_outputs(const vector *m, vector *y, const int from, const int to)
{
    vector even_p = m[from] + m[2 * from], odd_p = P * (m[from] - m[2 * from]);
    vector even_q = m[3 * from] + m[4 * from], odd_q = Q * (m[3 * from] - m[4 * from]);
    y[0] = m[0] + even_p + even_q;
    y[to] = odd_p + odd_q;
    y[2 * to] = PP * even_p + QQ * even_q;
    y[3 * to] = PP * odd_p + QQ * odd_q + m[5 * from];
}

INLINE void outputs_to_values(const vector *y, vector *m, const int from, const int to)
{
    vector even_p = y[0] + PP * y[2 * from], odd_p = P * (y[from] + PP * y[3 * from]);
    vector even_q = y[0] + QQ * y[2 * from], odd_q = Q * (y[from] + QQ * y[3 * from]);
    m[0] = y[0];
    m[to] = even_p + odd_p;
    m[2 * to] = even_p - odd_p;
    m[3 * to] = even_q + odd_q;
    m[4 * to] = even_q - odd_q;
    m[5 * to] = y[3 * from];
}

#define SCALE_0 (1 / (PP * QQ))
#define SCALE_P (1 / (2 * PP * (PP - QQ)))
#define SCALE_Q (1 / (2 * QQ * (QQ - PP)))

INLINE void filter_to_values(const vector *w, vector *u, const int from, const int to)
{
    vector even_p = SCALE_P * (w[0] + PP * w[2 * from]), odd_p = (P * SCALE_P) * w[from];
    vector even_q = SCALE_Q * (w[0] + QQ * w[2 * from]), odd_q = (Q * SCALE_Q) * w[from];
    u[0] = SCALE_0 * w[0];
    u[to] = even_p + odd_p;
    u[2 * to] = even_p - odd_p;
    u[3 * to] = even_q + odd_q;
    u[4 * to] = even_q - odd_q;
    u[5 * to] = w[2 * from];
}

INLINE void values_to_filter(const vector *u, vector *w, const int from, const int to)
{
    vector even_p = SCALE_P * (u[from] + u[2 * from]), odd_p = (P * SCALE_P) * (u[from] - u[2 * from]);
    vector even_q = SCALE_Q * (u[3 * from] + u[4 * from]), odd_q = (Q * SCALE_Q) * (u[3 * from] - u[4 * from]);
    w[0] = SCALE_0 * u[0] + even_p + even_q;
    w[to] = odd_p + odd_q;
    w[2 * to] = PP * even_p + QQ * even_q + u[5 * from];
}

/* Filters: [outputs, inputs, 9] <-> values [36, inputs, outputs]; in between [inputs, 9, outputs]. */

INLINE void filters(const float *weight, float *turned, float *values, Shape s)
{
    turn(weight, turned, s.outputs, s.inputs * TAPS, 0);
    for (long i = 0; i < s.inputs; i++)
        for (long o = 0; o < s.outputs; o += WIDTH) {
            vector w[TAPS], half[SPAN * 3], u[VALUES];
            UNROLLED for (int tap = 0; tap < TAPS; tap++) w[tap] = load(turned + (i * TAPS + tap) * s.outputs + o);
            UNROLLED for (int j = 0; j < 3; j++) filter_to_values(w + j, half + j, 3, 3);
            UNROLLED for (int j = 0; j < SPAN; j++) filter_to_values(half + 3 * j, u + SPAN * j, 1, 1);
            for (int p = 0; p < VALUES; p++) store(values + p * filters_apart(s) + i * s.outputs + o, u[p]);
        }
}

INLINE void to_filters(const float *values, float *turned, float *weight, Shape s)
{
    for (long i = 0; i < s.inputs; i++)
        for (long o = 0; o < s.outputs; o += WIDTH) {
            vector w[TAPS], half[SPAN * 3], u[VALUES];
            for (int p = 0; p < VALUES; p++) u[p] = load(values + p * filters_apart(s) + i * s.outputs + o);
            UNROLLED for (int j = 0; j < SPAN; j++) values_to_filter(u + SPAN * j, half + 3 * j, 1, 1);
            UNROLLED for (int j = 0; j < 3; j++) values_to_filter(half + j, w + j, 3, 3);
            UNROLLED for (int tap = 0; tap < TAPS; tap++) store(turned + (i * TAPS + tap) * s.outputs + o, w[tap]);
        }
    turn(turned, weight, s.inputs * TAPS, s.outputs, 0);
}

/* One image: its tiles' inputs as values [36, tiles, inputs], and back, added up where tiles overlap. */

INLINE void image_to_values(const float *x, float *values, Shape s)
{
    long across = tiles_across(s), tiles = tiles_of(s), line = s.wide * s.inputs;
    for (long t = 0; t < tiles; t++)
        for (long c = 0; c < s.inputs; c += WIDTH) {
            const float *corner = x + (t / across * line + t % across * s.inputs) * SIDE + c;
            vector d[VALUES], half[VALUES], v[VALUES];
            UNROLLED for (int i = 0; i < SPAN; i++)
                UNROLLED for (int j = 0; j < SPAN; j++) d[SPAN * i + j] = load(corner + i * line + j * s.inputs);
            UNROLLED for (int j = 0; j < SPAN; j++) inputs_to_values(d + j, half + j, SPAN);
            UNROLLED for (int i = 0; i < SPAN; i++) inputs_to_values(half + SPAN * i, v + SPAN * i, 1);
            for (int p = 0; p < VALUES; p++) store(values + p * tiles_apart(s.inputs, s) + t * s.inputs + c, v[p]);
        }
}

INLINE void values_to_image(const float *values, float *x, Shape s)
{
    long across = tiles_across(s), tiles = tiles_of(s), line = s.wide * s.inputs;
    memset(x, 0, 4 * s.high * line);
    for (long t = 0; t < tiles; t++)
        for (long c = 0; c < s.inputs; c += WIDTH) {
            float *corner = x + (t / across * line + t % across * s.inputs) * SIDE + c;
            vector d[VALUES], half[VALUES], v[VALUES];
            for (int p = 0; p < VALUES; p++) v[p] = load(values + p * tiles_apart(s.inputs, s) + t * s.inputs + c);
            UNROLLED for (int i = 0; i < SPAN; i++) values_to_inputs(v + SPAN * i, half + SPAN * i, 1);
            UNROLLED for (int j = 0; j < SPAN; j++) values_to_inputs(half + j, d + j, SPAN);
            UNROLLED for (int i = 0; i < SPAN; i++)
                UNROLLED for (int j = 0; j < SPAN; j++) {
                    float *place = corner + i * line + j * s.inputs;
                    store(place, load(place) + d[SPAN * i + j]);
                }
        }
}

/* One image: values [36, tiles, outputs] as outputs, pooled or not, and back. */

INLINE void values_to_places(const float *values, const float *bias, float *y, uint8_t *which, Shape s)
{
    long across = tiles_across(s), tiles = tiles_of(s), side = s.pool ? SIDE / 2 : SIDE;
    long line = across * side * s.outputs;
    for (long t = 0; t < tiles; t++)
        for (long c = 0; c < s.outputs; c += WIDTH) {
            long corner = (t / across * line + t % across * s.outputs) * side + c;
            vector m[VALUES], half[SIDE * SPAN], out[SIDE * SIDE], b = load(bias + c);
            for (int p = 0; p < VALUES; p++) m[p] = load(values + p * tiles_apart(s.outputs, s) + t * s.outputs + c);
            UNROLLED for (int j = 0; j < SPAN; j++) values_to_outputs(m + j, half + j, SPAN, SPAN);
            UNROLLED for (int i = 0; i < SIDE; i++) values_to_outputs(half + SPAN * i, out + SIDE * i, 1, 1);
            for (int i = 0; i < side; i++)
                for (int j = 0; j < side; j++) {
                    long place = corner + i * line + j * s.outputs;
                    const vector *window = out + (s.pool ? 2 : 1) * (SIDE * i + j);
                    vector best = window[0];
                    targets at = {0};
                    if (s.pool) {
                        larger(&best, &at, window[1], 1);
                        larger(&best, &at, window[SIDE], 2);
                        larger(&best, &at, window[SIDE + 1], 3);
                    }
                    best += b;
                    if (s.relu) rectify(&best, &at);
                    store(y + place, best);
                    if (s.pool || s.relu) keep(which + place, at);
                }
        }
}

/* Adds up in `sums` what went anywhere, by output. */
INLINE void places_to_values(const float *y, const uint8_t *which, float *values, float *sums, Shape s)
{
    long across = tiles_across(s), tiles = tiles_of(s), side = s.pool ? SIDE / 2 : SIDE;
    long line = across * side * s.outputs;
    for (long t = 0; t < tiles; t++)
        for (long c = 0; c < s.outputs; c += WIDTH) {
            long corner = (t / across * line + t % across * s.outputs) * side + c;
            vector m[VALUES], half[SPAN * SIDE], out[SIDE * SIDE], sum = load(sums + c);
            for (int i = 0; i < side; i++)
                for (int j = 0; j < side; j++) {
                    long place = corner + i * line + j * s.outputs;
                    vector given = load(y + place);
                    vector *window = out + (s.pool ? 2 : 1) * (SIDE * i + j);
                    targets at = s.pool || s.relu ? kept(which + place) : (targets){0};
                    sum += anywhere(at, given);
                    window[0] = where(at, 0, given);
                    if (!s.pool) continue;
                    window[1] = where(at, 1, given);
                    window[SIDE] = where(at, 2, given);
                    window[SIDE + 1] = where(at, 3, given);
                }
            store(sums + c, sum);
            UNROLLED for (int j = 0; j < SIDE; j++) outputs_to_values(out + j, half + j, SIDE, SIDE);
            UNROLLED for (int i = 0; i < SPAN; i++) outputs_to_values(half + SIDE * i, m + SPAN * i, 1, 1);
            for (int p = 0; p < VALUES; p++) store(values + p * tiles_apart(s.outputs, s) + t * s.outputs + c, m[p]);
        }
}

void winograd_forward(const float *x, const float *weight, const float *bias, float *y, uint8_t *which, long step,
                      long bias_step, long clients, long images, long high, long wide, long inputs, long outputs,
                      long pool, long relu, long turned)
{
    Shape s = {images, high, wide, inputs, outputs, pool, relu};
    long per_image = outputs_of(s) / images;
    long by_u = filters_apart(s), by_v = tiles_apart(inputs, s), by_m = tiles_apart(outputs, s);
    float *u = room(VALUES * by_u), *v = room(VALUES * by_v), *m = room(VALUES * by_m);
    float *filter = room(weights_of(s)), *places = room(per_image);
    if (padded_of(s) > tiles_of(s)) memset(v, 0, 4 * VALUES * by_v);
    for (long k = 0; k < clients; k++) {
        if (k == 0 || step) filters(weight + k * step, filter, u, s);
        for (long n = k * images; n < (k + 1) * images; n++) {
            float *own = y + n * per_image;
            image_to_values(x + n * high * wide * inputs, v, s);
            for (long p = 0; p < VALUES; p++)
                product(ROWS, padded_of(s), outputs, inputs, v + p * by_v, inputs, 1, u + p * by_u, m + p * by_m, 0);
            values_to_places(m, bias + k * bias_step, turned ? places : own, which + n * per_image, s);
            if (turned) turn(places, own, per_image / outputs, outputs, 0);
        }
    }
    leave();
}

/* to_x may be null where nobody wants it. */
void winograd_backward(const float *y, const uint8_t *which, const float *x, const float *weight, float *to_x,
                       float *to_weight, float *to_bias, long step, long clients, long images, long high,
                       long wide, long inputs, long outputs, long pool, long relu, long turned)
{
    Shape s = {images, high, wide, inputs, outputs, pool, relu};
    long per_image = outputs_of(s) / images;
    long by_u = filters_apart(s), by_v = tiles_apart(inputs, s), by_m = tiles_apart(outputs, s);
    float *u = room(VALUES * by_u), *ut = room(VALUES * by_u), *du = room(VALUES * by_u);
    float *v = room(VALUES * by_v), *m = room(VALUES * by_m);
    float *filter = room(weights_of(s)), *places = room(per_image);
    if (padded_of(s) > tiles_of(s)) memset(m, 0, 4 * VALUES * by_m);
    for (long k = 0; k < clients; k++) {
        if (to_x && (k == 0 || step)) {
            filters(weight + k * step, filter, u, s);
            for (long p = 0; p < VALUES; p++) turn(u + p * by_u, ut + p * by_u, inputs, outputs, 0);
        }
        memset(du, 0, 4 * VALUES * by_u);
        memset(to_bias + k * outputs, 0, 4 * outputs);
        for (long n = k * images; n < (k + 1) * images; n++) {
            long image = n * high * wide * inputs;
            if (turned) turn(y + n * per_image, places, outputs, per_image / outputs, 0);
            places_to_values(turned ? places : y + n * per_image, which + n * per_image, m, to_bias + k * outputs, s);
            image_to_values(x + image, v, s);
            for (long p = 0; p < VALUES; p++)
                product(4, inputs, outputs, tiles_of(s), v + p * by_v, 1, inputs, m + p * by_m, du + p * by_u, 1);
            if (!to_x) continue;
            for (long p = 0; p < VALUES; p++)
                product(ROWS, padded_of(s), inputs, outputs, m + p * by_m, outputs, 1, ut + p * by_u, v + p * by_v, 0);
            values_to_image(v, to_x + image, s);
        }
        to_filters(du, filter, to_weight + k * weights_of(s), s);
    }
    leave();
}

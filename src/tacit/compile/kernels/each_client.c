/* A list of small operations, all of it for one client, then for the next: what a client computes stays in a core's
   cache, and starting an operation costs next to nothing.

   Every operand says where a client's numbers lie: in which memory, from which number on, how far the next client's are,
   and how far the next along each of three dimensions. Memory 0 is the list's own, and the same for all clients.
   `each_client.py` makes such lists; kinds and fields are in its order. */
#include "vectors.h"

typedef struct {
    long memory, offset, step, stride[3];
} Operand;

typedef struct {
    long kind, size[3], depth;
    Operand to, a, b, c, unless;  /* unless: a byte of the client's that says so */
} Operation;

typedef struct {
    float alpha, beta;
} Factors;

enum { SUM, PRODUCT, QUOTIENT, MULTIPLE, RECTIFIED, GATED, EXPONENTIAL, ADDED_PRODUCT, FILLED, CHOSEN, TOTAL, LARGEST, MATRIX, TAKE_ROWS, ADD_ROWS };
enum { GROUP = 5, QUAD = 4, NOTHING = -1 };

/* e^x as 2^n e^r, where |r| is at most half of ln 2 and e^r a polynomial; to two units in the last place. */
INLINE vector exponential(vector x)
{
    vector n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  /* the nearest whole number */
    vector r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    vector p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    lanes low = x < all(-104.0f), high = x > all(88.7228391f), odd = x != x;
    lanes whole = __builtin_convertvector(chosen(low | high | odd, (vector){0}, n), lanes), half = whole >> 1;
    p = p * (vector)((half + 127) << 23) * (vector)((whole - half + 127) << 23);
    return chosen(odd, x, chosen(low, (vector){0}, chosen(high, all(__builtin_inff()), p)));
}

INLINE vector part(const float *at, long stride, long place, long several, vector otherwise)
{
    if (!stride) return all(*at);
    return several == WIDTH ? load(at + place) : load_part(at + place, several, otherwise);
}

INLINE lanes mask_part(const uint8_t *at, long stride, long place, long several)
{
    lanes found = {0};
    if (!stride) return found - (*at != 0);
    octets bytes = {0};
    if (several == WIDTH)
        bytes = *(const octets *)(at + place);
    else
        for (int i = 0; i < several; i++) bytes[i] = at[place + i];
    return __builtin_convertvector(bytes, lanes) != 0;
}

/* Along three dimensions, the last one in vectors; operands have a stride of 1 or 0 along it. `make` makes a vector of
   x, y and z, those of a, b and c; masks are bytes. */
#define ALONG(make)                                                                                                    \
    for (long i = 0; i < o->size[0]; i++)                                                                              \
        for (long j = 0; j < o->size[1]; j++) {                                                                        \
            float *row = to + i * o->to.stride[0] + j * o->to.stride[1];                                               \
            long at = 0;                                                                                               \
            for (; at + WIDTH <= o->size[2]; at += WIDTH) {                                                            \
                const long several = WIDTH;                                                                            \
                store(row + at, make);                                                                                 \
            }                                                                                                          \
            long several = o->size[2] - at;                                                                            \
            if (several) store_part(row + at, make, several);                                                          \
        }
#define OF(from, operand)                                                                                              \
    part((from) + i * o->operand.stride[0] + j * o->operand.stride[1], o->operand.stride[2], at, several, (vector){0})
#define MASK(from, operand)                                                                                            \
    mask_part((const uint8_t *)(from) + i * o->operand.stride[0] + j * o->operand.stride[1], o->operand.stride[2], at, \
              several)

INLINE vector gated(vector gradient, vector x, float threshold)
{
    return chosen(x <= all(threshold), (vector){0}, gradient);
}

INLINE vector rectified(vector x) { return chosen(x <= (vector){0}, (vector){0}, x); }

/* What is not a number is larger than any. */
#define LARGER(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
#define LARGER_ONES(x, y)                                                                    \
    ({                                                                                       \
        typeof((x) > (y)) wins_ = ((x) > (y)) | ((x) != (x));                                \
        (typeof(x))(((typeof(wins_))(x) & wins_) | ((typeof(wins_))(y) & ~wins_));           \
    })

INLINE vector joined(const int largest, vector x, vector y) { return largest ? LARGER_ONES(y, x) : x + y; }

INLINE float together(const int largest, vector several)
{
    return largest ? FOLDED(several, LARGER_ONES, LARGER) : total(several);
}

/* to[i, :] = the sum, or the largest, of a[i, j, :] over j. */
INLINE void reduce(const int largest, const Operation *o, const float *a, float *to)
{
    vector nothing = largest ? all(-__builtin_inff()) : (vector){0};
    for (long i = 0; i < o->size[0]; i++) {
        const float *from = a + i * o->a.stride[0];
        float *out = to + i * o->to.stride[0];
        if (o->size[2] == 1) {  /* along a row; its numbers are neighbours */
            vector found = nothing;
            for (long at = 0; at < o->size[1]; at += WIDTH)
                found = joined(largest, found, load_part(from + at, smaller(WIDTH, o->size[1] - at), nothing));
            *out = together(largest, found);
            continue;
        }
        for (long at = 0; at < o->size[2]; at += WIDTH) {
            long several = smaller(WIDTH, o->size[2] - at);
            vector found = nothing;
            for (long j = 0; j < o->size[1]; j++)
                found = joined(largest, found, load_part(from + j * o->a.stride[1] + at, several, nothing));
            store_part(out + at, found, several);
        }
    }
}

/* to = beta c + alpha a b for `rows` rows and `columns` vectors, the last of which has `last` numbers. */
INLINE void tile(const int rows, const int columns, long last, const Operation *o, Factors f, const float *a, const float *b,
                 const float *c, float *to)
{
    vector sum[GROUP][COLUMNS];
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int q = 0; q < columns; q++) sum[r][q] = (vector){0};
    for (long k = 0; k < o->depth; k++) {
        vector row[COLUMNS];
        UNROLLED for (int q = 0; q < columns; q++)
            row[q] = q + 1 < columns ? load(b + k * o->b.stride[0] + q * WIDTH)
                                     : load_part(b + k * o->b.stride[0] + q * WIDTH, last, (vector){0});
        UNROLLED for (int r = 0; r < rows; r++) {
            vector one = all(a[r * o->a.stride[0] + k * o->a.stride[1]]);
            UNROLLED for (int q = 0; q < columns; q++) sum[r][q] += one * row[q];
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int q = 0; q < columns; q++) {
            long several = q + 1 < columns ? WIDTH : last;
            vector made = f.alpha * sum[r][q];
            if (c) made += f.beta * part(c + r * o->c.stride[0], o->c.stride[1], q * WIDTH, several, (vector){0});
            store_part(to + r * o->to.stride[0] + q * WIDTH, made, several);
        }
}

#define FOR_COLUMNS(rows)                                                                     \
    switch (columns) {                                                                        \
        case 1: tile(rows, 1, last, o, f, a, b, c, to); break;                                \
        case 2: tile(rows, 2, last, o, f, a, b, c, to); break;                                \
        case 3: tile(rows, COLUMNS < 3 ? COLUMNS : 3, last, o, f, a, b, c, to); break;        \
        default: tile(rows, COLUMNS, last, o, f, a, b, c, to);                                \
    }                                                                                         \
    break;

static void some_rows(long rows, long columns, long last, const Operation *o, Factors f, const float *a, const float *b,
                      const float *c, float *to)
{
    switch (rows) {
        case 1: FOR_COLUMNS(1)
        case 2: FOR_COLUMNS(2)
        case 3: FOR_COLUMNS(3)
        case 4: FOR_COLUMNS(4)
        default: FOR_COLUMNS(GROUP)
    }
}

/* Where neighbours in b are of one row: vectors of columns. */
static void by_columns(const Operation *o, Factors f, const float *a, const float *b, const float *c, float *to)
{
    for (long j = 0; j < o->size[1]; j += COLUMNS * WIDTH) {
        long wide = smaller(COLUMNS * WIDTH, o->size[1] - j), columns = (wide + WIDTH - 1) / WIDTH;
        for (long i = 0; i < o->size[0]; i += GROUP)
            some_rows(smaller(GROUP, o->size[0] - i), columns, wide - (columns - 1) * WIDTH, o, f, a + i * o->a.stride[0],
                      b + j, c ? c + i * o->c.stride[0] + j * o->c.stride[1] : c, to + i * o->to.stride[0] + j);
    }
}

/* Of vectors `size` apart, each lane and the one `size` further: the first vector's where `size` is not in the lane. */
INLINE void fold(const int size, vector *several)
{
    lanes near, far;
    UNROLLED for (int i = 0; i < WIDTH; i++) {
        near[i] = i & size ? WIDTH + i - size : i;
        far[i] = i & size ? WIDTH + i : i + size;
    }
    UNROLLED for (int v = 0; v < WIDTH; v += 2 * size)
        several[v] = SHUFFLED(several[v], several[v + size], near) + SHUFFLED(several[v], several[v + size], far);
}

/* The totals of WIDTH vectors, one in each lane. */
INLINE vector totals(vector *several)
{
    fold(1, several);
    fold(2, several);
    fold(4, several);
    if (WIDTH == 16) fold(8, several);
    return several[0];
}

#define MORE(get)                                                                            \
    {                                                                                        \
        vector other[QUAD];                                                                  \
        UNROLLED for (int q = 0; q < QUAD; q++) other[q] = get(columns[q] + k);              \
        UNROLLED for (int r = 0; r < QUAD; r++) {                                            \
            vector one = get(rows[r] + k);                                                   \
            UNROLLED for (int q = 0; q < QUAD; q++) sum[r][q] += one * other[q];             \
        }                                                                                    \
    }

INLINE void sums(const float *const *rows, const float *const *columns, long depth, float alpha, float *found)
{
    vector sum[QUAD][QUAD];
    UNROLLED for (int r = 0; r < QUAD; r++)
        UNROLLED for (int q = 0; q < QUAD; q++) sum[r][q] = (vector){0};
    long k = 0;
    for (; k + WIDTH <= depth; k += WIDTH) MORE(load)
#define LAST(at) load_part(at, depth - k, (vector){0})
    if (k < depth) MORE(LAST)
    UNROLLED for (int r = 0; r < QUAD; r += WIDTH / QUAD) {
        vector some[WIDTH];
        UNROLLED for (int i = 0; i < WIDTH; i++) some[i] = sum[r + i / QUAD][i % QUAD];
        store(found + r * QUAD, alpha * totals(some));
    }
}

/* Where neighbours in a and b are along the depth: QUAD x QUAD sums of products, totalled together. */
static void by_depth(const Operation *o, Factors f, const float *a, const float *b, const float *c, float *to)
{
    for (long j = 0; j < o->size[1]; j += QUAD)  /* b, which is often the larger one, is gone through once */
        for (long i = 0; i < o->size[0]; i += QUAD) {
            const float *rows[QUAD], *columns[QUAD];
            float found[QUAD * QUAD];
            UNROLLED for (int q = 0; q < QUAD; q++) {  /* at the end, some again: they are not stored */
                rows[q] = a + smaller(i + q, o->size[0] - 1) * o->a.stride[0];
                columns[q] = b + smaller(j + q, o->size[1] - 1) * o->b.stride[1];
            }
            sums(rows, columns, o->depth, f.alpha, found);
            for (long r = 0; r < smaller(QUAD, o->size[0] - i); r++)
                for (long q = 0; q < smaller(QUAD, o->size[1] - j); q++) {
                    float more = c ? f.beta * c[(i + r) * o->c.stride[0] + (j + q) * o->c.stride[1]] : 0;
                    to[(i + r) * o->to.stride[0] + j + q] = found[r * QUAD + q] + more;
                }
        }
}

static void matrix(const Operation *o, Factors f, const float *a, const float *b, const float *c, float *to)
{
    if (o->b.stride[1] == 1)
        by_columns(o, f, a, b, c, to);
    else
        by_depth(o, f, a, b, c, to);
}

/* to = rows of a, by their numbers in b; a number of no row gives what is not a number. */
static void picked(const Operation *o, const float *a, const long *b, float *to)
{
    for (long j = 0; j < o->size[1]; j++) {
        long row = b[j * o->b.stride[1]];
        float *out = to + j * o->to.stride[1];
        if (row >= 0 && row < o->depth)
            memcpy(out, a + row * o->a.stride[1], 4 * o->size[2]);
        else
            for (long i = 0; i < o->size[2]; i++) out[i] = __builtin_nanf("");
    }
}

/* to = beta c + alpha times the rows b, each added to the row that a names; c may be nothing, or `to` itself. */
static void put(const Operation *o, Factors f, const long *a, const float *b, const float *c, float *to)
{
    long wide = o->size[1];
    if (!c) memset(to, 0, 4 * o->size[0] * wide);
    if (c && (c != to || f.beta != 1))
        for (long i = 0; i < o->size[0] * wide; i++) to[i] = f.beta * c[i];
    for (long k = 0; k < o->depth; k++) {
        const float *from = b + k * o->b.stride[0];
        long row = a[k * o->a.stride[0]];
        if (row < 0 || row >= o->size[0]) continue;
        for (long i = 0; i < wide; i++) to[row * wide + i] += f.alpha * from[i];
    }
}

static void once(const Operation *o, Factors f, const float *a, const float *b, const float *c, float *to)
{
    switch (o->kind) {
        case SUM: ALONG(f.beta * OF(a, a) + f.alpha * OF(b, b)) break;
        case PRODUCT: ALONG(OF(a, a) * OF(b, b)) break;
        case QUOTIENT: ALONG(OF(a, a) / OF(b, b)) break;
        case MULTIPLE: ALONG(f.alpha * OF(a, a)) break;
        case RECTIFIED: ALONG(rectified(OF(a, a))) break;
        case GATED: ALONG(gated(OF(a, a), OF(b, b), f.alpha)) break;
        case EXPONENTIAL: ALONG(exponential(OF(a, a))) break;
        case ADDED_PRODUCT: ALONG(OF(a, a) + f.alpha * OF(b, b) * OF(c, c)) break;
        case FILLED: ALONG(chosen(MASK(b, b), all(f.alpha), OF(a, a))) break;
        case CHOSEN: ALONG(chosen(MASK(a, a), OF(b, b), OF(c, c))) break;
        case TOTAL: reduce(0, o, a, to); break;
        case LARGEST: reduce(1, o, a, to); break;
        case MATRIX: matrix(o, f, a, b, c, to); break;
        case TAKE_ROWS: picked(o, a, (const long *)b, to); break;
        case ADD_ROWS: put(o, f, (const long *)a, b, c, to); break;
    }
}

INLINE void *found(void *const *memory, const Operand *operand, long client, long bytes)
{
    return operand->memory == NOTHING
               ? 0
               : (char *)memory[operand->memory] + bytes * (operand->offset + client * operand->step);
}

/* Masks have a byte for each place, row numbers eight. */
INLINE long bytes(long kind, long masks, long rows) { return kind == masks ? 1 : kind == rows ? 8 : 4; }

/* Every memory that a list speaks of, and how many bytes of it there are; from `outputs` on they may be written to. */
typedef struct {
    void *const *at;
    const long *bytes;
    long several, outputs, clients;
} Memory;

/* Places that an operation goes to, along up to three dimensions. */
typedef struct {
    long size[3], stride[3];
} Box;

/* Whether all places of a box, for the first client and the last, lie in an operand's memory. Strides are not negative,
   so that these two have the first place and the last. */
static int inside(const Memory *m, const Operand *operand, long width, Box box)
{
    __int128 last = 0;
    if (operand->memory < 0 || operand->memory >= m->several || operand->offset < 0 || operand->step < 0) return 0;
    for (int d = 0; d < 3; d++) {
        if (box.size[d] < 1 || box.stride[d] < 0) return 0;
        last += (__int128)(box.size[d] - 1) * box.stride[d];
    }
    last += (__int128)operand->offset + (__int128)(m->clients - 1) * operand->step;
    return (last + 1) * width <= m->bytes[operand->memory];
}

/* Along the last dimension numbers are neighbours, or one number is meant. */
static int along(const Memory *m, const Operation *o, const Operand *operand, long width)
{
    const long *s = operand->stride;
    return (s[2] == 0 || s[2] == 1) && inside(m, operand, width, (Box){{o->size[0], o->size[1], o->size[2]}, {s[0], s[1], s[2]}});
}

static int along_matrix(const Memory *m, const Operand *operand, long rows, long columns)
{
    return inside(m, operand, 4, (Box){{rows, columns, 1}, {operand->stride[0], operand->stride[1], 0}});
}

/* Whether an operation stays within its memory: the cases follow `once`, operand by operand. */
static int stays(const Memory *m, const Operation *o)
{
    const long *n = o->size, depth = o->depth;
    const Operand *to = &o->to, *a = &o->a, *b = &o->b, *c = &o->c;
    if (to->memory != 0 && to->memory < m->outputs) return 0;
    if (o->unless.memory != NOTHING && !inside(m, &o->unless, 1, (Box){{1, 1, 1}, {0, 0, 0}})) return 0;
    if (n[0] < 1 || n[1] < 1 || n[2] < 1 || depth < 0) return 0;
    int written = inside(m, to, 4, (Box){{n[0], n[1], n[2]}, {to->stride[0], to->stride[1], 1}});
    switch (o->kind) {
        case MULTIPLE: case RECTIFIED: case EXPONENTIAL: return written && along(m, o, a, 4);
        case SUM: case PRODUCT: case QUOTIENT: case GATED: return written && along(m, o, a, 4) && along(m, o, b, 4);
        case ADDED_PRODUCT: return written && along(m, o, a, 4) && along(m, o, b, 4) && along(m, o, c, 4);
        case FILLED: return written && along(m, o, a, 4) && along(m, o, b, 1);
        case CHOSEN: return written && along(m, o, a, 1) && along(m, o, b, 4) && along(m, o, c, 4);
        case TOTAL: case LARGEST: {
            int row = n[2] == 1;  /* along which numbers are neighbours */
            return inside(m, to, 4, (Box){{n[0], 1, n[2]}, {to->stride[0], 0, 1}}) &&
                   inside(m, a, 4, (Box){{n[0], n[1], n[2]}, {a->stride[0], row ? 1 : a->stride[1], 1}});
        }
        case MATRIX:
            return (b->stride[1] == 1 || (a->stride[1] == 1 && b->stride[0] == 1)) &&
                   inside(m, to, 4, (Box){{n[0], n[1], 1}, {to->stride[0], 1, 0}}) &&
                   (depth == 0 || (along_matrix(m, a, n[0], depth) && along_matrix(m, b, depth, n[1]))) &&
                   (c->memory == NOTHING ||
                    ((c->stride[1] == 0 || c->stride[1] == 1) && along_matrix(m, c, n[0], n[1])));
        case TAKE_ROWS:
            return inside(m, to, 4, (Box){{1, n[1], n[2]}, {0, to->stride[1], 1}}) &&
                   (depth == 0 || inside(m, a, 4, (Box){{1, depth, n[2]}, {0, a->stride[1], 1}})) &&
                   inside(m, b, 8, (Box){{1, n[1], 1}, {0, b->stride[1], 0}});
        case ADD_ROWS:
            return inside(m, to, 4, (Box){{n[0], n[1], 1}, {n[1], 1, 0}}) &&
                   (depth == 0 || (inside(m, a, 8, (Box){{depth, 1, 1}, {a->stride[0], 0, 0}}) &&
                                   inside(m, b, 4, (Box){{depth, n[1], 1}, {b->stride[0], 1, 0}}))) &&
                   (c->memory == NOTHING || inside(m, c, 4, (Box){{n[0], n[1], 1}, {n[1], 1, 0}}));
    }
    return 0;
}

/* 0, or the number of the first operation (from 1 on) that would leave its memory: then nothing was done. `bytes` are
   those of each of the `memories`, outputs from the number `outputs` on; the first is this list's own. */
long each_client(const Operation *operations, const Factors *factors, void **memory, long *bytes_of, long several,
                 long clients, long numbers, long memories, long outputs)
{
    Memory all_of = {memory, bytes_of, memories, outputs, clients};
    if (clients < 1) return 0;
    bytes_of[0] = 4 * numbers;
    for (long i = 0; i < several; i++)
        if (!stays(&all_of, operations + i)) return i + 1;
    memory[0] = room(numbers);
    for (long k = 0; k < clients; k++)
        for (const Operation *o = operations; o < operations + several; o++) {
            const uint8_t *unless = found(memory, &o->unless, k, 1);
            if (unless && *unless) continue;
            once(o, factors[o - operations], found(memory, &o->a, k, bytes(o->kind, CHOSEN, ADD_ROWS)),
                 found(memory, &o->b, k, bytes(o->kind, FILLED, TAKE_ROWS)), found(memory, &o->c, k, 4),
                 found(memory, &o->to, k, 4));
        }
    leave();
    return 0;
}

/* The boundary of the privacy room for a chunk of clients: measure, clip and sum their uploads, by level.

   The reference is `clip.py`; `clipped_upload_sum.py` says what is promised. Nothing else is linked with this file.

   An upload is a list of leaves. A leaf is stored, [clients, numbers], or a product that is stored for one client at a
   time: left' right of each client, left [clients, rows, outputs], right [clients, rows, inputs], inputs a multiple of 16.

   Order of arithmetic, always the same: clients in order; of a client first the squares of all leaves, then one factor,
   then all leaves times that factor are added to its level's totals. The numbers that are measured are those that are
   summed: both are read from the same memory, that of a stored leaf or that to which the client's product was written.

   Rounding: up to PIECE squares are added in single precision, in 4 WIDTH lanes; all else in double. With u = 2^-24 a sum
   of squares is off by at most (PIECE / (4 WIDTH) + 6) u < 2e-6 of itself and a norm by half of that; the factor and its
   products add 3 u. The clip keeps a slack of 1e-5. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
enum { WIDTH = 16, COLUMNS = 4 };  /* numbers of a vector; vectors of a tile's row */
#else
enum { WIDTH = 8, COLUMNS = 2 };
#endif
enum { PIECE = 512, GROUP = 5, WIDE = COLUMNS * WIDTH };

typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4)));

typedef struct {
    const float *left, *right;  /* without `right` the leaf is stored: [clients, inputs] from `left` on */
    float *totals;              /* [levels, outputs, inputs] */
    float *made;                /* [outputs, inputs]: one client's product */
    int64_t rows, outputs, inputs;
} Leaf;

_Static_assert(sizeof(Leaf) == 7 * 8 && sizeof(long) == 8, "Python writes leaves as seven numbers of 64 bits");

static inline vector load(const float *at) { return *(const vector *)at; }
static inline void store(float *at, vector value) { *(vector *)at = value; }
static inline int64_t size(const Leaf *leaf) { return leaf->outputs * leaf->inputs; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static double squares_of_piece(const float *from, int64_t several)
{
    vector sum[4] = {{0}};
    double total = 0;
    int64_t at = 0;
    for (; at + 4 * WIDTH <= several; at += 4 * WIDTH)
        for (int i = 0; i < 4; i++) sum[i] += load(from + at + i * WIDTH) * load(from + at + i * WIDTH);
    for (; at + WIDTH <= several; at += WIDTH) sum[0] += load(from + at) * load(from + at);
    for (; at < several; at++) total += (double)from[at] * (double)from[at];
    vector all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int i = 0; i < WIDTH; i++) total += (double)all[i];
    return total;
}

static void add(float *to, const float *from, float factor, int64_t several)
{
    int64_t at = 0;
    for (; at + WIDTH <= several; at += WIDTH) store(to + at, load(to + at) + factor * load(from + at));
    for (; at < several; at++) to[at] += factor * from[at];
}

/* `outputs` rows of `columns` vectors of left' right. */
static inline __attribute__((always_inline)) void block(const int outputs, const int columns, const float *left,
                                                        const float *right, const Leaf *leaf, float *to)
{
    vector sum[GROUP][COLUMNS] = {{{0}}};
    for (int64_t k = 0; k < leaf->rows; k++) {
        vector row[COLUMNS];
        for (int q = 0; q < columns; q++) row[q] = load(right + k * leaf->inputs + q * WIDTH);
        for (int r = 0; r < outputs; r++)
            for (int q = 0; q < columns; q++) sum[r][q] += left[k * leaf->outputs + r] * row[q];
    }
    for (int r = 0; r < outputs; r++)
        for (int q = 0; q < columns; q++) store(to + r * leaf->inputs + q * WIDTH, sum[r][q]);
}

static void tile(int64_t outputs, int64_t columns, const float *left, const float *right, const Leaf *leaf, float *to)
{
#define TILE(n) columns == COLUMNS ? block(n, COLUMNS, left, right, leaf, to) : block(n, 1, left, right, leaf, to)
    switch (outputs) {
        case 5: TILE(5); break;
        case 4: TILE(4); break;
        case 3: TILE(3); break;
        case 2: TILE(2); break;
        default: TILE(1);
    }
#undef TILE
}

/* Where a client's numbers lie; those of a product are written to `made` first. */
static const float *numbers(const Leaf *leaf, int64_t client)
{
    if (!leaf->right) return leaf->left + client * leaf->inputs;
    const float *left = leaf->left + client * leaf->rows * leaf->outputs;
    const float *right = leaf->right + client * leaf->rows * leaf->inputs;
    for (int64_t i = 0, wide; i < leaf->inputs; i += wide) {
        wide = i + WIDE <= leaf->inputs ? WIDE : WIDTH;
        for (int64_t o = 0; o < leaf->outputs; o += GROUP)
            tile(smaller(GROUP, leaf->outputs - o), wide / WIDTH, left + o, right + i, leaf,
                 leaf->made + o * leaf->inputs + i);
    }
    return leaf->made;
}

static double squares(const float *from, int64_t several)
{
    double sum = 0;
    for (int64_t at = 0; at < several; at += PIECE) sum += squares_of_piece(from + at, smaller(PIECE, several - at));
    return sum;
}

/* `clip.shrinking` in single precision: what the upload is multiplied with, 0 where it may not be kept. */
static float shrinking(double sum, float limit, float least)
{
    float norm = sqrtf((float)sum);
    if (!isfinite(norm) || !(limit >= least)) return 0;
    return norm > limit ? limit / norm : 1;
}

/* level [clients], real [clients]; norms squared and factors of each client are written, too. Clients that are not
   real are not looked at. */
void clipped_upload_sum(const Leaf *leaves, const int64_t *level, const uint8_t *real, double *powers, float *factors,
                        long several, long clients, long levels, double limit, double least)
{
    for (long l = 0; l < several; l++)
        memset(leaves[l].totals, 0, (size_t)(4 * levels * size(leaves + l)));
    for (long k = 0; k < clients; k++) {
        powers[k] = factors[k] = 0;
        if (!real[k] || level[k] < 0 || level[k] >= levels) continue;
        for (long l = 0; l < several; l++) powers[k] += squares(numbers(leaves + l, k), size(leaves + l));
        factors[k] = shrinking(powers[k], (float)limit, (float)least);
        if (factors[k] == 0) continue;  /* whatever is in it */
        for (long l = 0; l < several; l++) {
            const Leaf *leaf = leaves + l;
            const float *from = leaf->right ? leaf->made : numbers(leaf, k);
            add(leaf->totals + level[k] * size(leaf), from, factors[k], size(leaf));
        }
    }
}

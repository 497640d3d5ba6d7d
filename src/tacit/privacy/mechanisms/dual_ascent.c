/* Dual coordinate ascent for a chunk of clients: `dual_ascent.py` says what is solved, and has the same in torch.

   Of each client and column: rows in an order that is shuffled before every pass, each set to its best alpha; margins are
   kept up to date by the row's line of the Gram matrix. After a pass the duality gap of all columns together is compared
   with what was asked for. Nothing here is trusted: the gap is computed again, elsewhere, from rows and alphas. */
#include <stdint.h>

typedef struct {
    const double *gram, *start, *y; /* [rows, rows]; margins at the centre [rows, columns]; targets [rows, columns] */
    const uint8_t *mask;            /* [rows] */
    double *alpha;                  /* [rows, columns], read and written */
    double *margins;                /* [columns, rows], scratch */
    double curvature, smooth;
    int64_t rows, columns;
} Problem;

static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

static void begin(const Problem *p)
{
    for (int64_t c = 0; c < p->columns; c++) {
        double *margins = p->margins + c * p->rows;
        for (int64_t i = 0; i < p->rows; i++) margins[i] = p->start[i * p->columns + c];
        for (int64_t i = 0; i < p->rows; i++) {
            const double moved = p->curvature * p->alpha[i * p->columns + c];
            const double *line = p->gram + i * p->rows;
            if (moved != 0 && p->mask[i])
                for (int64_t j = 0; j < p->rows; j++) margins[j] += moved * line[j];
        }
    }
}

static double gap(const Problem *p)
{
    double total = 0;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t c = 0; c < p->columns && p->mask[i]; c++) {
            const double y = p->y[i * p->columns + c], alpha = p->alpha[i * p->columns + c];
            const double margin = p->margins[c * p->rows + i], shortfall = 1 - y * margin;
            if (y == 0) continue;
            double loss = larger(0, shortfall);
            if (p->smooth > 0 && loss > 0)
                loss = loss < p->smooth ? loss * loss / (2 * p->smooth) : loss - p->smooth / 2;
            total += loss + p->smooth / 2 * alpha * alpha - alpha * y + alpha * margin;
        }
    return total;
}

static void pass(const Problem *p, const int64_t *order)
{
    for (int64_t c = 0; c < p->columns; c++) {
        double *margins = p->margins + c * p->rows;
        for (int64_t k = 0; k < p->rows; k++) {
            const int64_t i = order[k];
            const double *line = p->gram + i * p->rows;
            const double slope = p->curvature * line[i] + p->smooth, y = p->y[i * p->columns + c];
            double *alpha = p->alpha + i * p->columns + c;
            if (!p->mask[i] || y == 0 || !(slope > 0)) continue;
            double best = *alpha + (y - margins[i] - p->smooth * *alpha) / slope;
            best = smaller(larger(best, smaller(y, 0)), larger(y, 0));
            const double moved = p->curvature * (best - *alpha);
            *alpha = best;
            if (moved != 0)
                for (int64_t j = 0; j < p->rows; j++) margins[j] += moved * line[j];
        }
    }
}

static void shuffle(int64_t *order, int64_t rows, uint64_t *state)
{
    for (int64_t i = rows - 1; i > 0; i--) {
        *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
        const int64_t other = (int64_t)(*state % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[other], order[other] = kept;
    }
}

/* gram [clients, rows, rows]; start, y, alpha [clients, rows, columns]; mask [clients, rows]; curvature, wanted [clients];
   margins [columns, rows] and order [rows] are scratch. */
void dual_ascent(const double *gram, const double *start, const double *y, const uint8_t *mask, const double *curvature,
                 const double *wanted, double *alpha, double *margins, int64_t *order, long clients, long rows,
                 long columns, long most, double smooth)
{
    for (int64_t k = 0; k < clients; k++) {
        const int64_t at = k * rows * columns;
        const Problem problem = {gram + k * rows * rows, start + at, y + at, mask + k * rows, alpha + at,
                                 margins, curvature[k], smooth, rows, columns};
        uint64_t state = 88172645463325252u;
        for (int64_t i = 0; i < rows; i++) order[i] = i;
        begin(&problem);
        for (long passes = 0; passes < most && !(gap(&problem) <= wanted[k]); passes++) {
            shuffle(order, rows, &state);
            pass(&problem, order);
        }
    }
}

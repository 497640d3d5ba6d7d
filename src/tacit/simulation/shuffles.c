/* Shuffled passes over each client's rows in batches, as `tacit.sampling.cohorts` draws them: the same numbers, from the
   stream of the client's own key (Philox with 64-bit words and ten rounds, as NumPy has it), sorted. */
#include <stdint.h>
#include <string.h>


enum { WORDS = 4, ROUNDS = 10, BITS = 53 };

typedef struct {
    uint64_t counter, key[2], words[WORDS];
    int left;
} Stream;

static void more(Stream *s)
{
    uint64_t x[WORDS] = {++s->counter, 0, 0, 0}, k0 = s->key[0], k1 = s->key[1];
    for (int round = 0; round < ROUNDS; round++, k0 += 0x9E3779B97F4A7C15u, k1 += 0xBB67AE8584CAA73Bu) {
        unsigned __int128 a = (unsigned __int128)0xD2E7470EE14C6C93u * x[0], b = (unsigned __int128)0xCA5A826395121157u * x[2];
        uint64_t next[WORDS] = {(uint64_t)(b >> 64) ^ x[1] ^ k0, (uint64_t)b, (uint64_t)(a >> 64) ^ x[3] ^ k1, (uint64_t)a};
        memcpy(x, next, sizeof x);
    }
    memcpy(s->words, x, sizeof x);
    s->left = WORDS;
}

/* What a uniform number in [0, 1) is, times 2^53. */
static uint64_t drawn(Stream *s)
{
    if (!s->left) more(s);
    return s->words[WORDS - s->left--] >> (64 - BITS);
}

typedef struct {
    uint64_t lot;
    long row;
} Ticket;

/* Rows 0 .. n - 1 by their lots. Lots are uniform: one in each of as many drawers, or so, and then few are out of order. */
static void shuffle(Stream *s, long n, Ticket *tickets, Ticket *sorted, long *ends)
{
    int bits = 1;
    while (1l << bits < n) bits++;
    memset(ends, 0, sizeof *ends << bits);
    for (long i = 0; i < n; i++) {
        tickets[i] = (Ticket){drawn(s), i};
        ends[tickets[i].lot >> (BITS - bits)]++;
    }
    for (long d = 1; d < 1l << bits; d++) ends[d] += ends[d - 1];
    for (long i = n - 1; i >= 0; i--) sorted[--ends[tickets[i].lot >> (BITS - bits)]] = tickets[i];
    for (long i = 1; i < n; i++) {
        Ticket one = sorted[i];
        long at = i;
        for (; at > 0 && sorted[at - 1].lot > one.lot; at--) sorted[at] = sorted[at - 1];
        sorted[at] = one;
    }
}

/* keys [clients, 2], sizes and firsts [clients]: how many rows a client has, and where they begin. To rows and mask
   [clients, steps, batch], live [clients, steps]; steps are no fewer than anybody's. `scratch` has 64 bytes for each row of the largest client. */
void shuffled_rows(const uint64_t *keys, const long *sizes, const long *firsts, long *rows, uint8_t *mask, uint8_t *live,
                   char *scratch, long clients, long epochs, long batch, long steps)
{
    long most = 1;
    if (!clients || !steps || !batch) return;  /* then there is no memory to write to */
    for (long k = 0; k < clients; k++) most = sizes[k] > most ? sizes[k] : most;
    Ticket *tickets = (Ticket *)scratch, *sorted = tickets + most;
    long *ends = (long *)(sorted + most);
    memset(mask, 0, clients * steps * batch);
    memset(live, 0, clients * steps);
    for (long k = 0; k < clients; k++) {
        Stream s = {.key = {keys[2 * k], keys[2 * k + 1]}};
        long n = sizes[k], whole = (n + batch - 1) / batch * batch, *to = rows + k * steps * batch;
        uint8_t *real = mask + k * steps * batch;
        for (long e = 0; e < epochs; e++, to += whole, real += whole) {
            shuffle(&s, n, tickets, sorted, ends);
            for (long i = 0; i < n; i++) to[i] = firsts[k] + sorted[i].row;
            for (long i = n; i < whole; i++) to[i] = to[i - n];
            memset(real, 1, n);
        }
        memset(live + k * steps, 1, epochs * whole / batch);
        for (; to < rows + (k + 1) * steps * batch; to++) *to = firsts[k];
    }
}

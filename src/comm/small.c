/* Small blocking operations of all ranks, as trees of messages: a rank sends and receives about log2(ranks)
 * of them. They are posted as everything else is, so operations under way advance, and the watchdog and
 * failures of other ranks are noticed.
 *
 * The k-th small operation of a rank is the k-th of all ranks: `sequence` makes the key of its messages. A
 * header with another key is an error (transfer.c), so ranks that are not at the same operation find out. */
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"

/* ---- single messages ---- */

static ErrorCode enter(Comm *c, Error *err) {
    comm_lock(c);
    ErrorCode code = comm_refused(c, err);
    if (code != OK) comm_unlock(c);
    return code;
}

/* Starts a message of small operation number `sequence`. */
static ErrorCode start(Comm *c, OpKind kind, int peer, uint64_t sequence, void *data, size_t bytes,
                       const char *name, CommRequest *request, Error *err) {
    *request = 0;
    TRY(enter(c, err));
    Op *op = message_begin(c, kind, c->small, peer, sequence, data, bytes);
    if (op) {
        op->name = name;
        *request = op_request(c, op);
    }
    ErrorCode code = comm_refused(c, err);
    comm_unlock(c);
    return code;
}

/* Starts a message and waits for it. */
static ErrorCode pass(Comm *c, OpKind kind, int peer, uint64_t sequence, void *data, size_t bytes,
                      const char *name, Error *err) {
    CommRequest request;
    TRY(start(c, kind, peer, sequence, data, bytes, name, &request, err));
    return comm_wait(c, request, err);
}

/* Posts the receive first: over a transport that copies only when the receive is posted, two sends would wait
 * for each other's receive forever. */
static ErrorCode exchange(Comm *c, int peer, uint64_t sequence, void *mine, void *theirs, size_t bytes,
                          const char *name, Error *err) {
    CommRequest receive, send;
    TRY(start(c, OP_RECV, peer, sequence, theirs, bytes, name, &receive, err));
    TRY(start(c, OP_SEND, peer, sequence, mine, bytes, name, &send, err));
    TRY(comm_wait(c, receive, err));
    return comm_wait(c, send, err);
}

/* Grows to the largest record, once; after that nothing is allocated (rule 2 of comm.h). */
static char *scratch(Comm *c, size_t bytes) {
    if (bytes > c->small_capacity) {
        c->small_scratch = mem_grow(c->small_scratch, bytes);
        c->small_capacity = bytes;
    }
    return c->small_scratch;
}

/* ---- combining ----
 *
 * Recursive doubling over m vranks, where m is the largest power of two up to the number of ranks. In round k
 * the vranks p and p ^ 2^k exchange their records of two neighbouring runs of ranks, and both combine the
 * lower with the upper. The first 2 (n - m) ranks share vranks in pairs: the odd rank gives its record to the
 * even one before, and gets the result afterwards. So a record is always that of a run of ranks, and every
 * rank combines the same bytes in the same tree.
 *
 *   six ranks, m = 4    ranks    0 1   2 3   4   5
 *                       vranks    0     1    2   3
 *   fold                1 -> 0, 3 -> 2
 *   k = 0               vranks 0 <-> 1, 2 <-> 3
 *   k = 1               vranks 0 <-> 2, 1 <-> 3
 *   hand back           0 -> 1, 2 -> 3 */

static int vranks_of(int ranks) {
    int m = 1;
    while (2 * m <= ranks) m *= 2;
    return m;
}

/* The rank at vrank p. */
static int rank_at(int p, int doubled) { return p < doubled ? 2 * p : p + doubled; }

static ErrorCode double_up(Comm *c, int vrank, int vranks, int doubled, uint64_t sequence, void *record,
                           size_t bytes, void (*combine)(void *into, const void *from), const char *name,
                           Error *err) {
    char *theirs = scratch(c, 2 * bytes + 1), *sum = theirs + bytes;
    for (int bit = 1; bit < vranks; bit *= 2) {
        TRY(exchange(c, rank_at(vrank ^ bit, doubled), sequence, record, theirs, bytes, name, err));
        /* `combine` need not commute: the lower run is on the left on both sides. */
        bool lower = (vrank & bit) == 0;
        if (bytes == 0) continue;
        memcpy(sum, lower ? record : theirs, bytes);
        combine(sum, lower ? theirs : record);
        memcpy(record, sum, bytes);
    }
    return OK;
}

/* `record` becomes the same bytes on every rank. */
static ErrorCode combine_all(Comm *c, void *record, size_t bytes,
                             void (*combine)(void *into, const void *from), const char *name, Error *err) {
    int vranks = vranks_of(c->size), doubled = c->size - vranks, vrank = c->rank - doubled;
    uint64_t sequence = c->small_started++;
    if (c->rank < 2 * doubled) {
        if (c->rank % 2) {
            TRY(pass(c, OP_SEND, c->rank - 1, sequence, record, bytes, name, err));
            return pass(c, OP_RECV, c->rank - 1, sequence, record, bytes, name, err);
        }
        vrank = c->rank / 2;
        TRY(pass(c, OP_RECV, c->rank + 1, sequence, scratch(c, 2 * bytes + 1), bytes, name, err));
        if (bytes) combine(record, c->small_scratch);
    }
    TRY(double_up(c, vrank, vranks, doubled, sequence, record, bytes, combine, name, err));
    return c->rank < 2 * doubled ? pass(c, OP_SEND, c->rank + 1, sequence, record, bytes, name, err) : OK;
}

ErrorCode comm_barrier(Comm *c, Error *err) {
    return c->joined ? combine_all(c, NULL, 0, NULL, "a barrier", err) : OK;
}

ErrorCode comm_combine(Comm *c, void *record, size_t bytes, void (*combine)(void *into, const void *from),
                       Error *err) {
    return c->joined ? combine_all(c, record, bytes, combine, "combining records", err) : OK;
}

void comm_add_int64(void *into, const void *from) { *(int64_t *)into += *(const int64_t *)from; }
void comm_add_double(void *into, const void *from) { *(double *)into += *(const double *)from; }

/* ---- broadcast and gather ---- */

/* Ranks are counted from the root on. A rank that has the data sends it to the one `bit` further, with bits
 * descending. */
ErrorCode comm_broadcast(Comm *c, void *data, size_t bytes, int root, Error *err) {
    if (!c->joined) return OK;
    uint64_t sequence = c->small_started++;
    int vrank = (c->rank - root + c->size) % c->size, bit = 1;
    while (bit < c->size && (vrank & bit) == 0) bit *= 2;
    if (vrank)
        TRY(pass(c, OP_RECV, (c->rank - bit + c->size) % c->size, sequence, data, bytes, "a broadcast", err));
    for (bit /= 2; bit > 0; bit /= 2)
        if (vrank + bit < c->size)
            TRY(pass(c, OP_SEND, (c->rank + bit) % c->size, sequence, data, bytes, "a broadcast", err));
    return OK;
}

ErrorCode comm_broadcast_text(Comm *c, const char *mine, char **first, Error *err) {
    int64_t length = c->rank == 0 ? (int64_t)strlen(mine) : 0;
    *first = NULL;
    TRY(comm_broadcast(c, &length, sizeof length, 0, err));
    char *text = mem_alloc((size_t)length + 1);
    if (c->rank == 0) memcpy(text, mine, (size_t)length);
    ErrorCode code = comm_broadcast(c, text, (size_t)length, 0, err);
    text[length] = '\0';
    if (code == OK) *first = text;
    if (code != OK) free(text);
    return code;
}

/* Rank 0's side. First all lengths, for one allocation, then all pieces, in the order of ranks. */
static ErrorCode collect(Comm *c, uint64_t sequence, const void *mine, size_t bytes, char **all,
                         size_t *lengths, Error *err) {
    static const char name[] = "gathering data";
    size_t total = bytes, at = bytes;
    lengths[0] = bytes;
    for (int p = 1; p < c->size; total += lengths[p++])
        TRY(pass(c, OP_RECV, p, sequence, &lengths[p], sizeof *lengths, name, err));
    char *out = mem_alloc(total + 1);
    if (bytes) memcpy(out, mine, bytes);
    ErrorCode code = OK;
    for (int p = 1; p < c->size && code == OK; at += lengths[p++])
        code = pass(c, OP_RECV, p, sequence + 1, out + at, lengths[p], name, err);
    if (code == OK) {
        *all = out;
    } else {
        free(out);
    }
    return code;
}

ErrorCode comm_gather(Comm *c, const void *mine, size_t bytes, char **all, size_t *lengths, Error *err) {
    *all = NULL;
    if (!c->joined) {
        *all = mem_alloc(bytes + 1);
        if (bytes) memcpy(*all, mine, bytes);
        lengths[0] = bytes;
        return OK;
    }
    uint64_t sequence = c->small_started;
    c->small_started += 2;
    if (c->rank == 0) return collect(c, sequence, mine, bytes, all, lengths, err);
    TRY(pass(c, OP_SEND, 0, sequence, &bytes, sizeof bytes, "gathering data", err));
    return pass(c, OP_SEND, 0, sequence + 1, (void *)(uintptr_t)mine, bytes, "gathering data", err);
}

ErrorCode comm_concatenate(Comm *c, const void *mine, size_t bytes, char **all, size_t *total, Error *err) {
    size_t sum = 0, *lengths = mem_alloc_array((size_t)c->size, sizeof *lengths);
    ErrorCode code = comm_gather(c, mine, bytes, all, lengths, err);
    for (int p = 0; *all && p < c->size; p++) sum += lengths[p];
    if (total) *total = sum;
    free(lengths);
    return code;
}

/* ---- agreement ---- */

typedef struct Verdict {
    int rank, failed; /* the lowest that failed, or -1; how many failed */
    Error error;
} Verdict;

/* Keeps the failure of the lowest rank; `into` is always from lower ranks. */
static void combine_verdicts(void *into, const void *from) {
    Verdict *a = into;
    const Verdict *b = from;
    int failed = a->failed + b->failed;
    if (a->rank < 0 && b->rank >= 0) *a = *b;
    a->failed = failed;
}

/* err->reported stays unset on the rank that failed and is set on the others, so that one line is printed. */
ErrorCode comm_agree(Comm *c, ErrorCode code, Error *err) {
    if (!c->joined) return code;
    Verdict v = {.rank = -1};
    if (code != OK) {
        v = (Verdict){c->rank, 1, {.code = code}};
        if (err) v.error = *err;
        v.error.code = code;
    }
    TRY(comm_combine(c, &v, sizeof v, combine_verdicts, err));
    if (v.rank < 0) return OK;
    bool reported = v.rank != c->rank || v.error.reported;
    /* A failure of all ranks is about the run, not about one rank. */
    if (v.failed == c->size) {
        error_set(err, v.error.code, "%s", v.error.message);
    } else {
        error_set(err, v.error.code, "rank %d: %s", v.rank, v.error.message);
    }
    if (err) err->reported = reported;
    return v.error.code;
}

/* Best fit, longest first. The free space of a row is an integer up to the context. A bitmap tree over spaces
 * finds the row with the least sufficient space, and counting sort orders the documents. This takes N log C
 * for N documents and a context of C, whatever their lengths.
 *
 *     documents by falling length --> the row with the least space >= length, else a new one
 *
 *     space      0   1   2   3   4   5   6   7
 *     rows       -   -   7   -   -   2,5 -   1     a document of 3 goes into row 5, whose space is then 2
 *
 *  P1. open[r] is the row that was last added to those with space r, next[row] the one added before it, NONE
 *      ends the list. A row is in one such list, or full.
 *  P2. Bit r of level 0: a row with space r exists. Bit i of level l + 1: word i of level l is not zero.
 *
 * Elsewhere called: sequence packing, best fit. */
#include "data/packing.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define NONE UINT64_MAX
enum { LEVELS = 6, WORD = 64 }; /* contexts below 2^36 */

typedef struct Bins {
    uint64_t *level[LEVELS];
    uint64_t *open; /* [context + 1] */
    uint64_t *next; /* [rows] */
} Bins;

static void bins_open(Bins *r, size_t spaces, size_t rows) {
    size_t bits = spaces;
    for (int l = 0; l < LEVELS; l++) {
        bits = (bits + WORD - 1) / WORD;
        r->level[l] = mem_alloc_array(bits, sizeof(uint64_t));
    }
    r->open = mem_alloc_array(spaces, sizeof *r->open);
    for (size_t i = 0; i < spaces; i++) r->open[i] = NONE;
    r->next = mem_alloc_array(rows + 1, sizeof *r->next);
}

static void bins_free(Bins *r) {
    for (int l = 0; l < LEVELS; l++) free(r->level[l]);
    free(r->open);
    free(r->next);
}

static void bins_put(Bins *r, uint64_t space, uint64_t row) {
    r->next[row] = r->open[space];
    r->open[space] = row;
    for (int l = 0; l < LEVELS; l++, space /= WORD) r->level[l][space / WORD] |= UINT64_C(1) << space % WORD;
}

static uint64_t bins_take(Bins *r, uint64_t space) {
    uint64_t row = r->open[space];
    r->open[space] = r->next[row];
    if (r->open[space] != NONE) return row;
    for (int l = 0; l < LEVELS; l++, space /= WORD) {
        r->level[l][space / WORD] &= ~(UINT64_C(1) << space % WORD);
        if (r->level[l][space / WORD]) break;
    }
    return row;
}

/* The least existing space that is at least `space`; NONE if there is none. Goes up until a word has a bit at
 * or after the position, then down along the lowest bits. */
static uint64_t bins_find(const Bins *r, uint64_t space, uint64_t spaces) {
    for (int l = 0; l < LEVELS && space < spaces; l++) {
        uint64_t word = r->level[l][space / WORD] & (~UINT64_C(0) << space % WORD);
        if (word) {
            space = space / WORD * WORD + (uint64_t)__builtin_ctzll(word);
            while (l-- > 0) space = space * WORD + (uint64_t)__builtin_ctzll(r->level[l][space]);
            return space;
        }
        space = space / WORD + 1;
        spaces = (spaces + WORD - 1) / WORD;
    }
    return NONE;
}

/* ---- documents of a stream ---- */

typedef struct Documents {
    PackedDocument *items;
    uint64_t count, capacity;
} Documents;

/* Whether any of the tokens is trained on. */
static ErrorCode has_targets(const TokenStream *s, uint64_t begin, uint64_t count, int32_t vocabulary,
                             bool *out, Error *err) {
    int32_t ids[512], starts[512];
    *out = false;
    for (uint64_t done = 0; done < count && !*out; done += 512) {
        uint64_t n = count - done < 512 ? count - done : 512;
        TRY(stream_read(s, begin + done, n, ids, starts, err));
        for (uint64_t i = 0; i < n; i++) *out |= ids[i] >= vocabulary;
    }
    return OK;
}

/* The first token of a document is never a target, since nothing precedes it. */
static ErrorCode add_document(Packing *p, Documents *d, const TokenStream *s, uint64_t begin, uint64_t tokens,
                              int64_t context, int32_t vocabulary, Error *err) {
    bool keep = tokens > 1;
    uint64_t positions = tokens - 1;
    if (positions > (uint64_t)context) {
        positions = (uint64_t)context;
        TRY(has_targets(s, begin + 1, positions, vocabulary, &keep, err));
        if (keep) p->cut++, p->cut_tokens += tokens - 1 - positions;
    }
    if (!keep) {
        p->dropped++;
        return OK;
    }
    if (d->count == d->capacity) {
        d->capacity = 2 * d->capacity + 256;
        d->items = mem_grow(d->items, (size_t)d->capacity * sizeof *d->items);
    }
    d->items[d->count++] = (PackedDocument){begin, (uint32_t)positions};
    p->positions += positions;
    return OK;
}

static ErrorCode list_documents(Packing *p, Documents *d, const TokenStream *s, int64_t context,
                                int32_t vocabulary, Error *err) {
    for (size_t i = 0; i < s->count; i++) {
        const StreamSegment *g = &s->segments[i];
        for (uint64_t at = g->begin, end; at < g->end; at = end) {
            end = token_cache_document_end(s->cache, at + 1);
            if (end > g->end) end = g->end;
            TRY(add_document(p, d, s, g->at + (at - g->begin), end - at, context, vocabulary, err));
        }
    }
    return OK;
}

/* ---- rows ---- */

/* Indices of the documents, longest first; documents of equal length are in the order of the stream. */
static uint64_t *by_length(const Documents *d, int64_t context) {
    uint64_t *order = mem_alloc_array((size_t)d->count + 1, sizeof *order),
             *from = mem_alloc_array((size_t)context + 2, sizeof *from);
    for (uint64_t i = 0; i < d->count; i++) from[(uint64_t)context - d->items[i].positions + 1]++;
    for (int64_t l = 0; l <= context; l++) from[l + 1] += from[l];
    for (uint64_t i = 0; i < d->count; i++) order[from[(uint64_t)context - d->items[i].positions]++] = i;
    free(from);
    return order;
}

/* Fills row_of[document]; sets p->rows. */
static void put_documents(Packing *p, const Documents *d, int64_t context, uint64_t *row_of) {
    Bins r;
    uint64_t *order = by_length(d, context);
    bins_open(&r, (size_t)context + 1, (size_t)d->count);
    for (uint64_t i = 0; i < d->count; i++) {
        uint64_t positions = d->items[order[i]].positions,
                 space = bins_find(&r, positions, (uint64_t)context + 1),
                 row = space == NONE ? p->rows++ : bins_take(&r, space);
        if (space == NONE) space = (uint64_t)context;
        row_of[order[i]] = row;
        if (space > positions) bins_put(&r, space - positions, row);
    }
    bins_free(&r);
    free(order);
}

/* Documents row after row; within a row in the order of the stream. */
static void lay_out(Packing *p, const Documents *d, const uint64_t *row_of) {
    p->documents = d->count;
    p->first = mem_alloc_array((size_t)p->rows + 2, sizeof *p->first);
    p->document = mem_alloc_array((size_t)d->count + 1, sizeof *p->document);
    for (uint64_t i = 0; i < d->count; i++) p->first[row_of[i] + 2]++;
    for (uint64_t row = 0; row < p->rows; row++) p->first[row + 2] += p->first[row + 1];
    for (uint64_t i = 0; i < d->count; i++) p->document[p->first[row_of[i] + 1]++] = d->items[i];
}

ErrorCode packing_build(Packing *p, const TokenStream *s, int64_t context, int32_t vocabulary, Error *err) {
    Documents d = {0};
    *p = (Packing){0};
    ErrorCode code = list_documents(p, &d, s, context, vocabulary, err);
    if (code == OK) {
        uint64_t *row_of = mem_alloc_array((size_t)d.count + 1, sizeof *row_of);
        put_documents(p, &d, context, row_of);
        lay_out(p, &d, row_of);
        free(row_of);
    }
    free(d.items);
    return code;
}

void packing_free(Packing *p) {
    free(p->first);
    free(p->document);
    *p = (Packing){0};
}

/* ---- samples ---- */

/* A run of positions that starts at 0 and attends to itself only. */
static void begin_run(const SampleRow *row, int64_t at, int64_t positions) {
    for (int64_t t = 0; t < positions; t++) {
        row->positions[at + t] = (int32_t)t;
        row->first_key[at + t] = row->base + (int32_t)at;
    }
}

/* Converts the ids in row->inputs to inputs and targets; `next` is the id after them. */
static int64_t split_ids(const SampleRow *row, int64_t at, int64_t positions, int32_t next,
                         int32_t vocabulary) {
    int64_t valid = 0;
    for (int64_t t = at; t < at + positions; t++) {
        int32_t target = t + 1 < at + positions ? row->inputs[t + 1] : next;
        row->targets[t] = target >= vocabulary ? target - vocabulary : -1;
        valid += target >= vocabulary;
    }
    for (int64_t t = at; t < at + positions; t++) row->inputs[t] %= vocabulary;
    return valid;
}

ErrorCode packing_row(const Packing *p, const TokenStream *s, int64_t context, int32_t vocabulary,
                      uint64_t row, const SampleRow *out, int64_t *valid, Error *err) {
    int64_t at = 0;
    if (row >= p->rows)
        return error_set(err, ERR_INTERNAL, "row %llu asked of a packing of %llu", (unsigned long long)row,
                         (unsigned long long)p->rows);
    for (uint64_t i = p->first[row]; i < p->first[row + 1]; i++) {
        int64_t positions = p->document[i].positions;
        int32_t next, starts;
        TRY(stream_read(s, p->document[i].begin, (uint64_t)positions, out->inputs + at, out->targets + at,
                        err));
        TRY(stream_read(s, p->document[i].begin + (uint64_t)positions, 1, &next, &starts, err));
        *valid += split_ids(out, at, positions, next, vocabulary);
        begin_run(out, at, positions);
        at += positions;
    }
    begin_run(out, at, context - at);
    for (int64_t t = at; t < context; t++) out->inputs[t] = 0, out->targets[t] = -1;
    return OK;
}

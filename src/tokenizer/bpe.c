/* Byte-pair encoding of one pre-token: its bytes or characters become tokens, then the adjacent pair whose
 * merge has the lowest rank is joined, the leftmost first, until no pair has a merge (Sennrich et al., 2016;
 * ranks as in GPT-2). SentencePiece's BPE is the same for files that list merges.
 *
 *  B1. `slots` is an open-addressing table from pair to rank, at most half full, so that searches end.
 *  B2. All merges of one rank have the same result. tiktoken's files have several pairs per rank;
 *      tokenizer.json has one.
 *  B3. Both encoders below give the same ids. The length of the pre-token alone decides which one runs.
 *
 *   ids     l   o   w   e   r       ranks (l,o) none, (o,w) 7, (w,e) 3, (e,r) 5
 *           l   o   we  r           3 is lowest; the two pairs with the new token are looked up again
 *           l   o   we  r           no pair has a rank: these are the tokens */
#include "tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* Pre-tokens up to this many bytes are merged by repeated search for the lowest rank: quadratic, but without
 * set-up, and nearly all pre-tokens are shorter than ten bytes. */
#define SMALL_PRE_TOKEN 40

typedef struct PairSlot {
    uint64_t pair;
    uint32_t rank; /* BPE_NO_RANK: the slot is free */
    uint32_t unused;
} PairSlot;

static uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Fibonacci hashing. The high bits, where the product mixes best, are folded onto the low ones, which are
 * used. */
static size_t pair_hash(uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15U;
    return (size_t)(pair ^ pair >> 32);
}

/* Linear probing through adjacent slots, four per cache line. */
static PairSlot *slot_of(const Bpe *b, uint64_t pair) {
    size_t i = pair_hash(pair) & b->mask;
    while (b->slots[i].rank != BPE_NO_RANK && b->slots[i].pair != pair) i = (i + 1) & b->mask;
    return &b->slots[i];
}

static uint32_t rank_of(const Bpe *b, int32_t left, int32_t right) {
    return slot_of(b, pair_key(left, right))->rank;
}

/* Refuses a pair that occurs twice, since the result would depend on the order of the file. */
ErrorCode bpe_init(Bpe *b, const char *where, const int32_t byte_ids[256], MergeRule *rules, size_t count,
                   Error *err) {
    *b = (Bpe){.rules = rules, .count = count, .ranks = count ? rules[count - 1].rank + 1 : 0};
    memcpy(b->byte_ids, byte_ids, sizeof b->byte_ids);
    size_t slots = 64;
    while (slots < count * 2) slots *= 2;
    b->mask = slots - 1;
    b->slots = mem_alloc_array(slots, sizeof *b->slots);
    for (size_t i = 0; i < slots; i++) b->slots[i].rank = BPE_NO_RANK;
    b->results = mem_alloc_array((size_t)b->ranks + 1, sizeof *b->results);
    for (size_t i = 0; i < count; i++) {
        const MergeRule *rule = &rules[i];
        PairSlot *slot = slot_of(b, pair_key(rule->left, rule->right));
        if (slot->rank != BPE_NO_RANK) {
            return error_set(err, ERR_DATA,
                             "%s: merge %zu joins the tokens %d and %d, which an earlier merge did already",
                             where, i, rule->left, rule->right);
        }
        *slot = (PairSlot){.pair = pair_key(rule->left, rule->right), .rank = rule->rank};
        b->results[rule->rank] = rule->result;
    }
    return OK;
}

/* Also after bpe_init has failed, since it has taken ownership of the rules. */
void bpe_free(Bpe *b) {
    free(b->rules);
    free(b->results);
    free(b->slots);
    *b = (Bpe){0};
}

/* ranks[i] is the rank of the pair (out[i], out[i + 1]); the last one is BPE_NO_RANK. */
static size_t merge_small(const Bpe *b, int32_t *out, size_t count) {
    uint32_t ranks[SMALL_PRE_TOKEN];
    size_t n = count;
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = rank_of(b, out[i], out[i + 1]);
    ranks[n - 1] = BPE_NO_RANK;
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i < n; i++) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == BPE_NO_RANK) return n;
        out[best] = b->results[ranks[best]];
        n--;
        memmove(out + best + 1, out + best + 2, (n - best - 1) * sizeof *out);
        memmove(ranks + best + 1, ranks + best + 2, (n - best - 1) * sizeof *ranks);
        ranks[best] = best + 1 < n ? rank_of(b, out[best], out[best + 1]) : BPE_NO_RANK;
        if (best > 0) ranks[best - 1] = rank_of(b, out[best - 1], out[best]);
    }
}

/* State for a long pre-token: a doubly linked list of symbols and a heap of (rank, position). The heap may
 * hold entries of pairs that no longer exist; an entry is valid only while its rank is the one stored for its
 * position. Each merge takes one entry out and adds at most two, so space for 2n entries suffices. */
typedef struct LongPreToken {
    int32_t *ids;
    uint32_t *next, *previous, *ranks;
    uint64_t *heap;
    size_t heap_count;
    uint32_t n;
} LongPreToken;

static void heap_sink(uint64_t *heap, size_t count, size_t at) {
    uint64_t value = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

/* A value holds rank and position in one number, so one comparison orders by both. */
static void heap_push(LongPreToken *p, uint64_t value) {
    size_t at = p->heap_count++;
    for (size_t parent; at > 0 && p->heap[parent = (at - 1) / 2] > value; at = parent)
        p->heap[at] = p->heap[parent];
    p->heap[at] = value;
}

static uint64_t heap_pop(LongPreToken *p) {
    uint64_t top = p->heap[0];
    p->heap[0] = p->heap[--p->heap_count];
    if (p->heap_count > 0) heap_sink(p->heap, p->heap_count, 0);
    return top;
}

/* Stores the rank of the pair that starts at `at`, and adds it to the heap. */
static void rank_pair(const Bpe *b, LongPreToken *p, uint32_t at) {
    uint32_t next = p->next[at];
    p->ranks[at] = next < p->n ? rank_of(b, p->ids[at], p->ids[next]) : BPE_NO_RANK;
    if (p->ranks[at] != BPE_NO_RANK) heap_push(p, (uint64_t)p->ranks[at] << 32 | at);
}

/* Joins position `at` with the next one. Heap entries of the pairs that disappear stay: their stored ranks no
 * longer match. */
static void merge_at(const Bpe *b, LongPreToken *p, uint32_t at) {
    uint32_t gone = p->next[at], after = p->next[gone];
    p->ids[at] = b->results[p->ranks[at]];
    p->ranks[gone] = BPE_NO_RANK;
    p->next[at] = after;
    if (after < p->n) p->previous[after] = at;
    rank_pair(b, p, at);
    if (at > 0) rank_pair(b, p, p->previous[at]);
}

/* The heap is ordered by (rank, position), so the leftmost comes first among equal ranks, as above. All pairs
 * are added before the heap is ordered once, which is linear. */
static size_t merge_long(const Bpe *b, int32_t *out, size_t length) {
    uint32_t n = (uint32_t)length;
    LongPreToken p = {.ids = out, .n = n};
    p.next = mem_alloc_array(length, sizeof *p.next);
    p.previous = mem_alloc_array(length, sizeof *p.previous);
    p.ranks = mem_alloc_array(length, sizeof *p.ranks);
    p.heap = mem_alloc_array(length * 2, sizeof *p.heap);
    for (uint32_t i = 0; i < n; i++) {
        p.next[i] = i + 1;
        p.previous[i] = i - (i > 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        p.ranks[i] = i + 1 < n ? rank_of(b, p.ids[i], p.ids[i + 1]) : BPE_NO_RANK;
        if (p.ranks[i] != BPE_NO_RANK) p.heap[p.heap_count++] = (uint64_t)p.ranks[i] << 32 | i;
    }
    for (size_t i = p.heap_count / 2; i-- > 0;) heap_sink(p.heap, p.heap_count, i);
    while (p.heap_count > 0) {
        uint64_t top = heap_pop(&p);
        uint32_t at = (uint32_t)top;
        if (p.ranks[at] == top >> 32) merge_at(b, &p, at);
    }
    size_t count = 0;
    for (uint32_t i = 0; i < n; i = p.next[i]) out[count++] = p.ids[i];
    free(p.next);
    free(p.previous);
    free(p.ranks);
    free(p.heap);
    return count;
}

/* One token has no neighbours. Pre-tokens of one byte are common, so this is checked first. */
size_t bpe_merge(const Bpe *b, int32_t *ids, size_t count) {
    if (count < 2) return count;
    return count <= SMALL_PRE_TOKEN ? merge_small(b, ids, count) : merge_long(b, ids, count);
}

size_t bpe_encode(const Bpe *b, const unsigned char *bytes, size_t length, int32_t *out) {
    for (size_t i = 0; i < length; i++) out[i] = b->byte_ids[bytes[i]];
    return bpe_merge(b, out, length);
}

/* The merge engine of byte-pair encoding.
 *
 * A pre-token starts as one token per byte, or as the tokens of its characters. The adjacent pair with the
 * lowest rank merges (the leftmost among equals) until no pair has a rank. Constant once built. Memory is
 * linear in the pre-token; time n log n. */
#ifndef WEFT_TOKENIZER_BPE_H
#define WEFT_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define BPE_NO_RANK UINT32_MAX

/* Rule number r merges (left, right) into `result`, with rank `rank`; rules of equal rank have equal results.
 */
typedef struct MergeRule {
    int32_t left, right, result;
    uint32_t rank;
} MergeRule;

typedef struct Bpe {
    int32_t byte_ids[256];
    MergeRule *rules; /* [count], by rank */
    size_t count;
    int32_t *results; /* [ranks] token by rank */
    uint32_t ranks;
    struct PairSlot *slots; /* hash from pair to rank; the number of slots is mask + 1 */
    size_t mask;
} Bpe;

/* Takes ownership of `rules` (from mem_alloc), sorted by rank. A duplicate pair is ERR_DATA. */
ErrorCode bpe_init(Bpe *b, const char *where, const int32_t byte_ids[256], MergeRule *rules, size_t count,
                   Error *err);
void bpe_free(Bpe *b);

/* Merges the ids of a pre-token in place; returns the number left. count < 2^31. */
size_t bpe_merge(const Bpe *b, int32_t *ids, size_t count);
/* The same from bytes: writes at most `length` ids to `out`. */
size_t bpe_encode(const Bpe *b, const unsigned char *bytes, size_t length, int32_t *out);

#endif

/* A stream: the tokens of a source that are for training, or those for validation, as one sequence, and its
 * windows.
 *
 * Window w of a stream of N tokens takes tokens [w C, w C + C) as inputs and [w C + 1, w C + C + 1) as
 * targets (C: context). There are ceil((N - 1) / C) of them: each token but the first is a target exactly
 * once. The last window may be short: what is missing is input 0 with no target.
 *
 * With document_mask, a document sees nothing outside itself: positions and first_key restart with it (and
 * with each window), and its first token is no target, because nothing inside the document comes before it.
 */
#ifndef WEFT_DATA_STREAM_H
#define WEFT_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "data/token_cache.h"

#define STREAM_SEGMENTS 65 /* most there can be */

/* Tokens [begin, end) of the cache stand at `at` in the stream. */
typedef struct StreamSegment {
    uint64_t begin, end, at;
} StreamSegment;

typedef struct TokenStream {
    const TokenCache *cache;
    size_t count;
    StreamSegment segments[STREAM_SEGMENTS];
    uint64_t tokens;
} TokenStream;

/* One row of a batch; arrays of `context` numbers. */
typedef struct SampleRow {
    int32_t *inputs, *targets, *positions, *first_key;
    int32_t base; /* index of the row's first token in the batch: first_key counts from the batch */
} SampleRow;

void stream_whole(TokenStream *s, const TokenCache *cache);

/* Keeps `fraction` of the tokens out of training, spread evenly: the cache is cut into up to 64 stripes,
 * fewer if they would hold less than 4,096 tokens of validation, and the end of each stripe is for
 * validation. Borders move forward to the end of a document where there is one near (within half a stretch),
 * else they cut a document, unless documents must stay `whole`. A function of the cache and the fraction
 * only, so neither context nor seed moves text from one side to the other. */
void stream_split(TokenStream *train, TokenStream *validation, const TokenCache *cache, double fraction,
                  bool whole);

/* Tokens [begin, begin + count); starts[i]: a document (or what is left of it in this stream) starts there.
 */
ErrorCode stream_read(const TokenStream *s, uint64_t begin, uint64_t count, int32_t *ids, int32_t *starts,
                      Error *err);

uint64_t stream_windows(const TokenStream *s, int64_t context);
/* Adds the row's number of targets to *valid. */
ErrorCode stream_window(const TokenStream *s, int64_t context, uint64_t window, bool document_mask,
                        const SampleRow *row, int64_t *valid, Error *err);
/* A row without targets. */
void stream_empty_row(int64_t context, const SampleRow *row);

#endif

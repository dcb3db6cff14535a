/* A stream: the training tokens, or the validation tokens, of a source as one sequence, and its windows.
 *
 * Window w of a stream of N tokens takes tokens [w C, w C + C) as inputs and [w C + 1, w C + C + 1) as
 * targets (C: context). There are ceil((N - 1) / C) windows: each token but the first is a target exactly
 * once. The last window may be short; it is padded with input 0 and no target.
 *
 * With document_mask, attention stays within a document: positions and first_key restart with it (and with
 * each window). Its first token is no target, because nothing inside the document precedes it. */
#ifndef WEFT_DATA_STREAM_H
#define WEFT_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "data/token_cache.h"

#define STREAM_SEGMENTS 65 /* maximum */

/* Tokens [begin, end) of the cache are at offset `at` of the stream. */
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

/* Holds out `fraction` of the tokens for validation, spread evenly: the cache is cut into up to 64 stripes,
 * fewer if they would hold less than 4,096 tokens of validation, and the end of each stripe is for
 * validation. A border moves forward to the next end of a document if that is near (at most half of the
 * shorter part of a stripe). Otherwise it cuts a document, unless documents must stay `whole`. A function of
 * the cache and the fraction only, so neither context nor seed moves text from one side to the other. */
void stream_split(TokenStream *train, TokenStream *validation, const TokenCache *cache, double fraction,
                  bool whole);

/* Reads tokens [begin, begin + count). starts[i]: a document (or its remainder in this stream) starts
 * there. */
ErrorCode stream_read(const TokenStream *s, uint64_t begin, uint64_t count, int32_t *ids, int32_t *starts,
                      Error *err);

uint64_t stream_windows(const TokenStream *s, int64_t context);
/* Adds the row's number of targets to *valid. */
ErrorCode stream_window(const TokenStream *s, int64_t context, uint64_t window, bool document_mask,
                        const SampleRow *row, int64_t *valid, Error *err);
/* A row without targets. */
void stream_empty_row(int64_t context, const SampleRow *row);

#endif

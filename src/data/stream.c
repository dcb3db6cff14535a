/* Splits a source's tokens into training and validation streams: segments of the cache read as one sequence.
 *
 *  T1. Segments are ascending and not adjacent; `at` is the offset of each in the stream.
 *  T2. Held-out tokens come from several segments (STRIPES at most), so that a corpus sorted by subject or
 *      time is held out evenly. Where it costs little, segments end at ends of documents, so that no document
 *      is on both sides.
 *  T3. Windows overlap by one token: the last target of one is the first input of the next. Every token
 *      but the very first is a target once. */
#include "data/stream.h"

#include <string.h>

/* One less than the maximum number of segments; fewer where a stripe would hold out less than a few pages of
 * text, which is not worth cutting a document for. */
enum { STRIPES = STREAM_SEGMENTS - 1, STRIPE_TOKENS = 4096 };

static void add_segment(TokenStream *s, uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    s->segments[s->count++] = (StreamSegment){begin, end, s->tokens};
    s->tokens += end - begin;
}

/* A source without held-out tokens is one segment. */
void stream_whole(TokenStream *s, const TokenCache *cache) {
    *s = (TokenStream){.cache = cache};
    add_segment(s, 0, token_cache_tokens(cache));
}

/* Moves to the end of the document, if it is within the tolerance. */
static uint64_t snap(const TokenCache *cache, uint64_t token, uint64_t tolerance) {
    uint64_t end = token_cache_document_end(cache, token);
    return end - token <= tolerance ? end : token;
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

void stream_split(TokenStream *train, TokenStream *validation, const TokenCache *cache, double fraction,
                  bool whole) {
    *train = *validation = (TokenStream){.cache = cache};
    uint64_t tokens = token_cache_tokens(cache), wanted = (uint64_t)((double)tokens * fraction);
    uint64_t stripes = wanted / STRIPE_TOKENS;
    stripes = stripes < 1 ? 1 : stripes > STRIPES ? STRIPES : stripes;
    uint64_t kept = wanted / stripes, rest = tokens / stripes - kept;
    /* Half of the shorter part, so that borders never overtake each other. With whole documents they may;
     * then they wait for the previous one. */
    uint64_t tolerance = whole ? UINT64_MAX : (kept < rest ? kept : rest) / 2;
    uint64_t done = 0;
    for (uint64_t i = 0; i < stripes; i++) {
        uint64_t end = tokens / stripes * (i + 1);
        uint64_t begin = later(done, snap(cache, end - kept, tolerance));
        end = later(begin, i + 1 == stripes ? tokens : snap(cache, end, tolerance));
        if (kept == 0) begin = end;
        add_segment(train, done, begin);
        add_segment(validation, begin, end);
        done = end;
    }
}

/* Index of the segment that holds the token. */
static size_t segment_of(const TokenStream *s, uint64_t token) {
    size_t i = 0;
    while (i + 1 < s->count && s->segments[i + 1].at <= token) i++;
    return i;
}

ErrorCode stream_read(const TokenStream *s, uint64_t begin, uint64_t count, int32_t *ids, int32_t *starts,
                      Error *err) {
    size_t i = segment_of(s, begin);
    for (uint64_t done = 0; done < count; i++) {
        const StreamSegment *segment = &s->segments[i];
        uint64_t offset = begin + done - segment->at, left = segment->end - segment->begin - offset;
        uint64_t n = count - done < left ? count - done : left;
        TRY(token_cache_read(s->cache, segment->begin + offset, n, ids + done, starts + done, err));
        /* The text before a segment is not in the stream, so a document starts here. */
        if (offset == 0) starts[done] = 1;
        done += n;
    }
    return OK;
}

/* ceil((tokens - 1) / context): one token alone has nothing to predict. */
uint64_t stream_windows(const TokenStream *s, int64_t context) {
    return s->tokens < 2 ? 0 : (s->tokens - 2) / (uint64_t)context + 1;
}

/* Positions and keys are those of a row with one document, so that attention has valid input. There are no
 * targets. */
void stream_empty_row(int64_t context, const SampleRow *row) {
    for (int64_t t = 0; t < context; t++) {
        row->inputs[t] = 0;
        row->targets[t] = -1;
        row->positions[t] = (int32_t)t;
        row->first_key[t] = row->base;
    }
}

/* Converts `known` inputs and document starts (in first_key) into the row. next: the token after the inputs,
 * or -1; next_starts: whether a document starts with it. */
static int64_t finish_row(int64_t context, int64_t known, int32_t next, bool next_starts, bool document_mask,
                          const SampleRow *row) {
    int64_t valid = 0;
    int32_t start = 0;
    for (int64_t t = 0; t < context; t++) {
        if (document_mask && t < known && row->first_key[t]) start = (int32_t)t;
        bool inside = t + 1 < context;
        int32_t target = inside ? (t + 1 < known ? row->inputs[t + 1] : -1) : next;
        bool crosses = inside ? t + 1 < known && row->first_key[t + 1] : next_starts;
        if (document_mask && crosses) target = -1;
        row->targets[t] = target;
        row->positions[t] = (int32_t)t - start;
        row->first_key[t] = row->base + start;
        valid += target >= 0;
    }
    return valid;
}

/* Reads the token after the window separately: it is the last target, unless a document starts with it. */
ErrorCode stream_window(const TokenStream *s, int64_t context, uint64_t window, bool document_mask,
                        const SampleRow *row, int64_t *valid, Error *err) {
    uint64_t begin = window * (uint64_t)context;
    if (window >= stream_windows(s, context))
        return error_set(err, ERR_INTERNAL, "window %llu asked of a stream of %llu",
                         (unsigned long long)window, (unsigned long long)stream_windows(s, context));
    uint64_t left = s->tokens - begin;
    int64_t known = left < (uint64_t)context ? (int64_t)left : context;
    TRY(stream_read(s, begin, (uint64_t)known, row->inputs, row->first_key, err));
    memset(row->inputs + known, 0, (size_t)(context - known) * sizeof *row->inputs);
    int32_t next = -1, next_starts = 0;
    if (left > (uint64_t)context) TRY(stream_read(s, begin + (uint64_t)context, 1, &next, &next_starts, err));
    *valid += finish_row(context, known, next, next_starts != 0, document_mask, row);
    return OK;
}

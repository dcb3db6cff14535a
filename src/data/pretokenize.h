/* Cutting text into the pieces within which byte-pair encoding works.
 *
 * Only known patterns: a tokenizer file cannot bring a regular expression of its own, which could be slow
 * without bound. They run on PCRE2 with Unicode properties, compiled to machine code where the system allows
 * it. White space is spelled out in them, since PCRE2's \s also takes U+180E, which Unicode does not call
 * white space. */
#ifndef WEFT_DATA_PRETOKENIZE_H
#define WEFT_DATA_PRETOKENIZE_H

#include <stddef.h>

#include "base/error.h"

typedef enum Pattern {
    PATTERN_NONE, /* the whole text is one piece; for vocabularies without merges */
    PATTERN_GPT2,
    PATTERN_LLAMA3,
    PATTERN_QWEN2,
    PATTERN_COUNT
} Pattern;

const char *pattern_name(Pattern pattern); /* "gpt2" */
/* The pattern of that name, or PATTERN_COUNT. */
Pattern pattern_by_name(const char *name);
/* The regular expression as tokenizer.json files write it. */
const char *pattern_source(Pattern pattern);
/* The pattern that a file's regular expression means, or PATTERN_COUNT when it is none of the known. */
Pattern pattern_by_source(const char *source);

/* A compiled pattern, shared by threads; NULL for PATTERN_NONE. */
typedef struct Splitter Splitter;
ErrorCode splitter_create(Splitter **s, Pattern pattern, Error *err);
void splitter_free(Splitter *s);
/* "14.0.0": version of Unicode that the character classes follow. */
void splitter_unicode_version(char out[32]);

/* What one thread needs to run a pattern. */
typedef struct SplitState SplitState;
SplitState *split_state_create(const Splitter *s);
void split_state_free(SplitState *state);

/* End of the piece that starts at `from` < length. The text is valid UTF-8. */
ErrorCode split_next(const Splitter *s, SplitState *state, const char *text, size_t length, size_t from,
                     size_t *end, Error *err);

/* The largest n < length where text can be cut without changing its pieces, whatever comes after it; 0 when
 * there is none. */
size_t split_cut(const char *text, size_t length);

#endif

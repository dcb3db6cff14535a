/* Splits text into pre-tokens, within which byte-pair encoding works.
 *
 * Only known patterns: a regular expression from a tokenizer file could be slow without bound. They run on
 * PCRE2 with Unicode properties, JIT-compiled where the system allows it.
 *
 * A file may name several patterns. Each splits the pre-tokens of the previous one, and treats each of them
 * as the whole text. */
#ifndef WEFT_TOKENIZER_PRETOKENIZE_H
#define WEFT_TOKENIZER_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/text.h"

typedef enum Pattern {
    PATTERN_NONE, /* the whole text is one pre-token; for vocabularies without merges */
    /* Their matches cover every character; weft trains with any of them. */
    PATTERN_GPT2,
    PATTERN_LLAMA3,
    PATTERN_QWEN2,
    PATTERN_QWEN35,
    PATTERN_TEKKEN,
    PATTERN_O200K,
    PATTERN_WHOLE_END,
    /* They isolate something; the text between their matches becomes pre-tokens too. */
    PATTERN_DEEPSEEK3 = PATTERN_WHOLE_END,
    PATTERN_DIGIT,
    PATTERN_DIGITS,
    PATTERN_THREE_DIGITS,
    PATTERN_CHINESE,
    PATTERN_NEWLINE,
    PATTERN_CASED_LETTERS,
    PATTERN_LETTERS,
    PATTERN_PUNCTUATION_RANGES,
    PATTERN_PUNCTUATION,
    PATTERN_TRAILING_SPACE,
    PATTERN_EAST_ASIAN,
    PATTERN_COUNT
} Pattern;

const char *pattern_name(Pattern pattern); /* "gpt2" */
/* The pattern of that name among those that cover every character, or PATTERN_COUNT. */
Pattern pattern_by_name(const char *name);
/* Appends the names of these patterns: "gpt2, llama3 and qwen2". */
void pattern_list(Text *out);
/* The regular expression as tokenizer.json files write it. */
const char *pattern_source(Pattern pattern);
/* The pattern of a file's regular expression, or PATTERN_COUNT when it is unknown. */
Pattern pattern_by_source(const char *source);
static inline bool pattern_is_whole(Pattern p) { return p < PATTERN_WHOLE_END; }

/* Patterns in the order in which they split. */
#define SPLIT_STEPS 8

typedef struct Splits {
    Pattern steps[SPLIT_STEPS]; /* without PATTERN_NONE */
    int count;                  /* 0: the whole text is one pre-token */
} Splits;

Splits splits_of(Pattern pattern);
/* Whether every pre-token ends between a printable ASCII character and a space. If not, split_cut finds no
 * cut for these patterns. */
bool splits_end_at_spaces(const Splits *splits);
/* Whether a pre-token ends at every newline between two characters that are neither white space nor a
 * slash. */
bool splits_end_at_newlines(const Splits *splits);

/* Compiled patterns, shared by threads; NULL for no pattern. */
typedef struct Splitter Splitter;
ErrorCode splitter_create(Splitter **s, const Splits *splits, Error *err);
void splitter_free(Splitter *s);
/* "14.0.0": version of Unicode that the character classes follow. */
void splitter_unicode_version(char out[32]);

/* Per-thread state for running the patterns on one text at a time. */
typedef struct SplitState SplitState;
SplitState *split_state_create(const Splitter *s);
void split_state_free(SplitState *state);

/* End of the pre-token that starts at `from` < length. The text is valid UTF-8. Call it for the pre-tokens in
 * order, starting from 0. */
ErrorCode split_next(const Splitter *s, SplitState *state, const char *text, size_t length, size_t from,
                     size_t *end, Error *err);

/* The largest n < length where text can be cut without changing its pre-tokens, whatever follows; 0 when
 * there is none. */
size_t split_cut(const char *text, size_t length);

#endif

/* Cutting text into pieces by the regular expressions of GPT-2, Llama 3 and Qwen 2, run by PCRE2.
 *
 *  P1. Files name a pattern by its source text; what PCRE2 runs is written for it, since its \s is not
 *      Unicode's White_Space, on which `tokenizers` and `tiktoken` cut. Equality of ids is tested against
 *      both.
 *  P2. Each pattern matches at every place, so pieces follow each other without gaps and none is empty.
 *  P3. Text is valid UTF-8 when it comes here (tokenizer.c sees to it), so PCRE2 need not look again. */
#include "data/pretokenize.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/text.h"

/* Unicode's White_Space. */
#define SPACE                                                                                                \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{" \
    "3000}"

#define SOURCE_LLAMA3(digits)                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"                                         \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define REGEX_LLAMA3(digits)                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| ?[^" SPACE \
    "\\p{L}\\p{N}]+[\\r\\n]*|"                                                               \
    "[" SPACE "]*[\\r\\n]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

typedef struct PatternText {
    const char *name;
    const char *source; /* as files have it */
    const char *regex;  /* as PCRE2 runs it */
} PatternText;

static const PatternText patterns[PATTERN_COUNT] = {
    [PATTERN_NONE] = {"none", "", ""},
    [PATTERN_GPT2] = {"gpt2",
                      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE
                      "]+(?![^" SPACE "])|[" SPACE "]+"},
    [PATTERN_LLAMA3] = {"llama3", SOURCE_LLAMA3("{1,3}"), REGEX_LLAMA3("{1,3}")},
    [PATTERN_QWEN2] = {"qwen2", SOURCE_LLAMA3(""), REGEX_LLAMA3("")},
};

const char *pattern_name(Pattern pattern) { return patterns[pattern].name; }

/* As files have it, to the letter: readers compare it so. */
const char *pattern_source(Pattern pattern) { return patterns[pattern].source; }

Pattern pattern_by_name(const char *name) {
    for (Pattern p = PATTERN_GPT2; p < PATTERN_COUNT; p++) {
        if (strcmp(patterns[p].name, name) == 0) return p;
    }
    return PATTERN_COUNT;
}

Pattern pattern_by_source(const char *source) {
    for (Pattern p = PATTERN_GPT2; p < PATTERN_COUNT; p++) {
        if (strcmp(patterns[p].source, source) == 0) return p;
    }
    return PATTERN_COUNT;
}

struct Splitter {
    pcre2_code *code;
    bool compiled; /* to machine code */
};

struct SplitState {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

#define JIT_STACK_START (32 * 1024)
#define JIT_STACK_LIMIT (8 * 1024 * 1024)

ErrorCode splitter_create(Splitter **s, Pattern pattern, Error *err) {
    *s = NULL;
    if (pattern == PATTERN_NONE) return OK;
    int code;
    PCRE2_SIZE at;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)patterns[pattern].regex, PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    if (!compiled) {
        PCRE2_UCHAR reason[128] = {0};
        pcre2_get_error_message(code, reason, sizeof reason);
        return error_set(err, ERR_UNAVAILABLE, "this PCRE2 does not compile the %s pattern (at %zu): %s",
                         patterns[pattern].name, (size_t)at, (const char *)reason);
    }
    *s = mem_alloc(sizeof **s);
    /* Without machine code (a hardened kernel, an odd processor) the interpreter gives the same pieces, more
     * slowly. */
    **s = (Splitter){.code = compiled, .compiled = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0};
    return OK;
}

void splitter_free(Splitter *s) {
    if (!s) return;
    pcre2_code_free(s->code);
    free(s);
}

void splitter_unicode_version(char out[32]) {
    if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) > 32 ||
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, out) < 0) {
        snprintf(out, 32, "unknown");
    }
}

SplitState *split_state_create(const Splitter *s) {
    if (!s) return NULL;
    SplitState *state = mem_alloc(sizeof *state);
    state->match = pcre2_match_data_create(1, NULL);
    state->context = pcre2_match_context_create(NULL);
    CHECK(state->match && state->context);
    /* The patterns backtrack over one run of characters at most, so the limits would only refuse long runs.
     */
    pcre2_set_match_limit(state->context, UINT32_MAX);
    pcre2_set_heap_limit(state->context, UINT32_MAX);
    if (s->compiled) {
        state->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
        if (state->stack) pcre2_jit_stack_assign(state->context, NULL, state->stack);
    }
    return state;
}

void split_state_free(SplitState *state) {
    if (!state) return;
    pcre2_match_data_free(state->match);
    pcre2_match_context_free(state->context);
    if (state->stack) pcre2_jit_stack_free(state->stack);
    free(state);
}

static bool is_ascii_letter(char c) { return ((unsigned char)(c | 0x20) - (unsigned)'a') < 26; }

/* Nearly all of most text is an optional space and ASCII letters, up to another ASCII character. In every
 * pattern that is a piece, so it needs no regular expression. Returns `from` where that does not hold. */
static size_t plain_word(const char *text, size_t length, size_t from) {
    size_t i = from + (text[from] == ' ');
    size_t letters = i;
    while (i < length && is_ascii_letter(text[i])) i++;
    if (i == letters || (i < length && (unsigned char)text[i] >= 0x80)) return from;
    return i;
}

ErrorCode split_next(const Splitter *s, SplitState *state, const char *text, size_t length, size_t from,
                     size_t *end, Error *err) {
    if (!s) {
        *end = length;
        return OK;
    }
    *end = plain_word(text, length, from);
    if (*end > from) return OK;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = s->compiled ? pcre2_jit_match(s->code, subject, length, from, 0, state->match, state->context)
                         : pcre2_match(s->code, subject, length, from, PCRE2_NO_UTF_CHECK, state->match,
                                       state->context);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(state->match);
    /* Every character is a letter, a digit, white space or something else, so there is always a match, and it
     * starts here. */
    if (rc < 0 || range[0] != from || range[1] <= from) {
        return error_set(err, ERR_INTERNAL,
                         "PCRE2 found no piece at byte %zu of a text of %zu bytes (code %d)", from, length,
                         rc);
    }
    *end = range[1];
    return OK;
}

/* In every pattern a piece that has a character other than white space ends before a space, looks no further,
 * and begins without regard to what came before. */
size_t split_cut(const char *text, size_t length) {
    for (size_t i = length; i-- > 1;) {
        if (text[i] == ' ' && text[i - 1] > ' ' && text[i - 1] < 0x7F) return i;
    }
    return 0;
}

/* Splits text into pre-tokens by the regular expressions of the families, run by PCRE2.
 *
 *  P1. Files identify a pattern by its source text. One spelling per pattern serves two purposes: sources are
 *      compared in an ASCII spelling (raw characters as \x{...}), and PCRE2's expression is derived from it.
 *      Only white space differs: \s means Unicode's White_Space in `tokenizers` and `tiktoken`, but includes
 *      U+180E in PCRE2. So \s is spelled out. Equality of ids is tested against both packages.
 *  P2. A whole pattern matches at every position, so its pre-tokens are adjacent and not empty. The other
 *      patterns isolate their matches; the text between matches is passed to the next pattern.
 *  P3. Text is valid UTF-8 here (tokenizer_encode.c ensures it), so PCRE2 need not check again.
 *  P4. Each pattern splits the pre-tokens of the previous one, and (?!\S) at the end of a pre-token sees the
 *      end of the text. So patterns cannot be joined into one regular expression. */
#include "tokenizer/pretokenize.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Unicode's White_Space. */
#define SPACE                                                                                                \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{" \
    "3000}"

/* Which simple words are certain to be pre-tokens (plain_word). */
typedef enum Words {
    WORDS_UNKNOWN,
    WORDS_LETTERS, /* letters, in any case */
    WORDS_CASED,   /* capitals, then small letters */
    WORDS_SUFFIXED /* the same, but suffixes such as 's belong to the word */
} Words;

/* Where a pre-token always ends: after these kinds of printable ASCII before a space, and at a newline that
 * neither white space nor a slash (which tekken and o200k append) follows. */
enum {
    ENDS_LETTERS = 1,
    ENDS_DIGITS = 2,
    ENDS_PUNCTUATION = 4,
    ENDS_WORDS = 7,
    ENDS_NEWLINE = 8,
    ENDS_ALL = 15
};

typedef struct PatternText {
    const char *name;
    const char *source; /* as in files, raw characters as \x{...} */
    Words words;
    unsigned ends;
    const char *regex; /* what PCRE2 runs, if it is not derived from the source */
} PatternText;

#define LLAMA3(digits, letters, marks)                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letters "+|\\p{N}" digits "| ?[^\\s\\p{L}" marks \
    "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN(suffix, digits)                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix \
    "|\\p{N}" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Letters with case, in the Unicode version of DeepSeek's first tokenizers. */
#define CASED                                                                                         \
    "\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"         \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"             \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"   \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"   \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}" \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"  \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"  \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}" \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"   \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"            \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"            \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}" \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"                \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"            \
    "\\x{1e900}-\\x{1e943}"

static const PatternText patterns[PATTERN_COUNT] = {
    [PATTERN_NONE] = {.name = "none", .source = ""},
    [PATTERN_GPT2] = {"gpt2",
                      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                      WORDS_LETTERS, ENDS_ALL, NULL},
    /* Llama 3's pattern is also that of GPT-4 (cl100k), OLMo 2, Phi-4 and GLM. */
    [PATTERN_LLAMA3] = {"llama3", LLAMA3("{1,3}", "\\p{L}", ""), WORDS_LETTERS, ENDS_ALL, NULL},
    [PATTERN_QWEN2] = {"qwen2", LLAMA3("", "\\p{L}", ""), WORDS_LETTERS, ENDS_ALL, NULL},
    [PATTERN_QWEN35] = {"qwen35", LLAMA3("", "[\\p{L}\\p{M}]", "\\p{M}"), WORDS_LETTERS, ENDS_ALL, NULL},
    [PATTERN_TEKKEN] = {"tekken", TEKKEN("", ""), WORDS_CASED, ENDS_ALL, NULL},
    /* GPT-4o's pattern; also that of gpt-oss, Llama 4 and Phi-4-mini. */
    [PATTERN_O200K] = {"o200k", TEKKEN("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"), WORDS_SUFFIXED, ENDS_ALL,
                       NULL},
    [PATTERN_DEEPSEEK3] = {"deepseek3",
                           "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                           "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"
                           "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                           WORDS_LETTERS, ENDS_ALL, NULL},
    [PATTERN_DIGIT] = {"digit", "\\p{N}", WORDS_UNKNOWN, ENDS_DIGITS, NULL},
    [PATTERN_DIGITS] = {"digits", "\\p{N}+", WORDS_UNKNOWN, ENDS_DIGITS, NULL},
    [PATTERN_THREE_DIGITS] = {"three-digits", "\\p{N}{1,3}", WORDS_UNKNOWN, ENDS_DIGITS, NULL},
    [PATTERN_CHINESE] = {"chinese", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
                         WORDS_UNKNOWN, 0, NULL},
    [PATTERN_NEWLINE] = {"newline", "[\\r\\n]", WORDS_UNKNOWN, ENDS_NEWLINE, NULL},
    [PATTERN_CASED_LETTERS] = {"cased-letters", "\\s?[A-Za-z" CASED "]+", WORDS_UNKNOWN, ENDS_LETTERS, NULL},
    [PATTERN_LETTERS] = {"letters", "\\s?\\p{L}+", WORDS_UNKNOWN, ENDS_LETTERS, NULL},
    [PATTERN_PUNCTUATION_RANGES] = {"punctuation-ranges",
                                    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}"
                                    "\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
                                    WORDS_UNKNOWN, ENDS_PUNCTUATION | ENDS_LETTERS, NULL},
    [PATTERN_PUNCTUATION] = {"punctuation", "\\s?\\p{P}+", WORDS_UNKNOWN, 0, NULL},
    /* White space that does not reach the end is not tried again from each of its characters, which would be
     * quadratic. */
    [PATTERN_TRAILING_SPACE] = {"trailing-space", "\\s+$", WORDS_UNKNOWN, 0,
                                "(?<![" SPACE "])[" SPACE "]++\\z"},
    [PATTERN_EAST_ASIAN] = {"east-asian", "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+",
                            WORDS_UNKNOWN, 0, NULL},
};

const char *pattern_name(Pattern pattern) { return patterns[pattern].name; }

const char *pattern_source(Pattern pattern) { return patterns[pattern].source; }

/* Whole patterns only: a trained tokenizer has one pattern, and it must split everything. */
Pattern pattern_by_name(const char *name) {
    for (Pattern p = PATTERN_GPT2; p < PATTERN_WHOLE_END; p++) {
        if (strcmp(patterns[p].name, name) == 0) return p;
    }
    return PATTERN_COUNT;
}

void pattern_list(Text *out) {
    for (Pattern p = PATTERN_GPT2; p < PATTERN_WHOLE_END; p++) {
        text_puts(out, p == PATTERN_GPT2 ? "" : p + 1 == PATTERN_WHOLE_END ? " and " : ", ");
        text_puts(out, patterns[p].name);
    }
}

/* Spells a regular expression in ASCII, since files may write newlines and non-ASCII characters raw or
 * escaped. */
static void spell_in_ascii(const char *source, Text *out) {
    size_t length = strlen(source);
    for (size_t i = 0, bytes; i < length; i += bytes) {
        uint32_t code = 0;
        bytes = text_utf8(source + i, length - i, &code);
        if (bytes == 0) bytes = 1; /* cannot happen: strings of files are valid */
        if (source[i] == '\r' || source[i] == '\n') {
            text_puts(out, source[i] == '\r' ? "\\r" : "\\n");
        } else if (code < 0x80) {
            text_add(out, source + i, 1);
        } else {
            text_printf(out, "\\x{%x}", (unsigned)code);
        }
    }
}

Pattern pattern_by_source(const char *source) {
    Text ascii = {0};
    spell_in_ascii(source, &ascii);
    Pattern p = PATTERN_GPT2;
    while (p < PATTERN_COUNT && (ascii.length == 0 || strcmp(patterns[p].source, ascii.data) != 0)) p++;
    text_free(&ascii);
    return p;
}

Splits splits_of(Pattern pattern) { return (Splits){.steps = {pattern}, .count = pattern != PATTERN_NONE}; }

static unsigned all_ends(const Splits *splits) {
    unsigned ends = 0;
    for (int i = 0; i < splits->count; i++) ends |= patterns[splits->steps[i]].ends;
    return ends;
}

/* PATTERN_PUNCTUATION does not cover all ASCII punctuation: + and < are symbols. */
bool splits_end_at_spaces(const Splits *splits) { return (all_ends(splits) & ENDS_WORDS) == ENDS_WORDS; }

bool splits_end_at_newlines(const Splits *splits) { return all_ends(splits) & ENDS_NEWLINE; }

/* Converts a source of the table to PCRE2's expression, with \s and \S spelled out, inside and outside of
 * brackets. */
static void spell_for_pcre2(const char *source, Text *out) {
    bool in_class = false;
    for (const char *p = source; *p; p++) {
        if (p[0] == '\\' && (p[1] == 's' || p[1] == 'S')) {
            text_puts(out, in_class ? SPACE : p[1] == 's' ? "[" SPACE "]" : "[^" SPACE "]");
            p++;
            continue;
        }
        if (*p == '[' && !in_class)
            in_class = true;
        else if (*p == ']')
            in_class = false;
        text_add(out, p, 1);
        if (p[0] == '\\') text_add(out, ++p, 1);
    }
}

typedef struct SplitStep {
    pcre2_code *code;
    bool compiled; /* to machine code (JIT) */
    bool whole;
    Words words;
} SplitStep;

struct Splitter {
    SplitStep steps[SPLIT_STEPS];
    int count;
};

/* Position of a step in the text: its current pre-token ends at `end`; the next match is [from, to). */
typedef struct SplitLevel {
    size_t end, from, to;
} SplitLevel;

struct SplitState {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    SplitLevel levels[SPLIT_STEPS];
};

/* PCRE2's machine code keeps backtracking state on a stack of its own, which a run of a megabyte of letters
 * needs. If it overflows, the match fails with an error, never with a wrong pre-token. */
#define JIT_STACK_START (32 * 1024)
#define JIT_STACK_LIMIT (8 * 1024 * 1024)

static ErrorCode step_create(SplitStep *s, Pattern pattern, Error *err) {
    int code;
    PCRE2_SIZE at;
    Text regex = {0};
    const PatternText *p = &patterns[pattern];
    if (p->regex)
        text_puts(&regex, p->regex);
    else
        spell_for_pcre2(p->source, &regex);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)regex.data, PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    text_free(&regex);
    if (!compiled) {
        PCRE2_UCHAR reason[128] = {0};
        pcre2_get_error_message(code, reason, sizeof reason);
        return error_set(err, ERR_UNAVAILABLE, "this PCRE2 does not compile the %s pattern (at %zu): %s",
                         p->name, (size_t)at, (const char *)reason);
    }
    /* Without machine code (a hardened kernel, an unusual processor) the interpreter gives the same
     * pre-tokens, more slowly. */
    *s = (SplitStep){.code = compiled,
                     .compiled = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0,
                     .whole = pattern_is_whole(pattern),
                     .words = p->words};
    return OK;
}

ErrorCode splitter_create(Splitter **s, const Splits *splits, Error *err) {
    *s = NULL;
    if (splits->count == 0) return OK;
    Splitter *made = mem_alloc(sizeof *made);
    ErrorCode code = OK;
    for (int i = 0; i < splits->count && code == OK; i++) {
        code = step_create(&made->steps[i], splits->steps[i], err);
        made->count += code == OK;
    }
    if (code == OK)
        *s = made;
    else
        splitter_free(made);
    return code;
}

void splitter_free(Splitter *s) {
    if (!s) return;
    for (int i = 0; i < s->count; i++) pcre2_code_free(s->steps[i].code);
    free(s);
}

/* Part of every tokenizer's fingerprint (tokenizer.c). */
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
    /* The patterns backtrack over at most one run of characters, so limits would only refuse long runs. */
    pcre2_set_match_limit(state->context, UINT32_MAX);
    pcre2_set_heap_limit(state->context, UINT32_MAX);
    bool compiled = false;
    for (int i = 0; i < s->count; i++) compiled |= s->steps[i].compiled;
    if (compiled) {
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

static bool is_small(char c) { return (unsigned char)(c - 'a') < 26; }

static bool is_capital(char c) { return (unsigned char)(c - 'A') < 26; }

/* Most of most text is an optional space and ASCII letters, followed by another ASCII character. In every
 * whole pattern that is a pre-token (where case matters, if it is capitals and then small letters), so it
 * needs no regular expression. A non-ASCII character may be a letter or mark that continues the word. Returns
 * `from` if nothing is certain. */
static size_t plain_word(Words words, const char *text, size_t length, size_t from) {
    size_t letters = from + (text[from] == ' '), i = letters;
    if (words == WORDS_LETTERS) {
        while (i < length && (is_small(text[i]) || is_capital(text[i]))) i++;
    } else {
        while (i < length && is_capital(text[i])) i++;
        while (i < length && is_small(text[i])) i++;
    }
    if (i == letters || (i < length && (unsigned char)text[i] >= 0x80)) return from;
    return words == WORDS_SUFFIXED && i < length && text[i] == '\'' ? from : i;
}

/* The first match in text[from, length), which counts as the whole text. *found false: none. */
static ErrorCode find_match(const SplitStep *s, SplitState *state, const char *text, size_t length,
                            size_t from, bool *found, Error *err) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text + from;
    size_t left = length - from;
    int rc = s->compiled
                 ? pcre2_jit_match(s->code, subject, left, 0, 0, state->match, state->context)
                 : pcre2_match(s->code, subject, left, 0, PCRE2_NO_UTF_CHECK, state->match, state->context);
    *found = rc >= 0;
    if (rc >= 0 || (rc == PCRE2_ERROR_NOMATCH && !s->whole)) return OK;
    /* Every character is a letter, a digit, white space or something else, so a whole pattern matches. */
    return error_set(err, ERR_INTERNAL,
                     "PCRE2 found no pre-token at byte %zu of a text of %zu bytes (code %d)", from, length,
                     rc);
}

/* The step's pre-token that starts at `from`, within a pre-token of the previous step that ends at
 * `limit`. */
static ErrorCode next_pre_token(const SplitStep *s, SplitState *state, SplitLevel *l, const char *text,
                                size_t limit, size_t from, Error *err) {
    if (l->from == from && l->to > from) { /* the match that follows the previous pre-token */
        l->end = l->to;
        return OK;
    }
    l->end = s->words == WORDS_UNKNOWN ? from : plain_word(s->words, text, limit, from);
    if (l->end > from) return OK;
    bool found;
    TRY(find_match(s, state, text, limit, from, &found, err));
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(state->match);
    *l = found ? (SplitLevel){.from = from + range[0], .to = from + range[1]} : (SplitLevel){.from = limit};
    l->end = l->from == from ? l->to : l->from;
    if (l->end > from && l->end <= limit && (l->end == l->to || !s->whole)) return OK;
    return error_set(err, ERR_INTERNAL, "PCRE2 found an odd pre-token at byte %zu of a text of %zu bytes",
                     from, limit);
}

/* Where a step's pre-token ends, one of every later step ends too. So all steps whose pre-token ends at
 * `from` search again, outermost first. */
ErrorCode split_next(const Splitter *s, SplitState *state, const char *text, size_t length, size_t from,
                     size_t *end, Error *err) {
    *end = length;
    if (!s) return OK;
    if (from == 0) memset(state->levels, 0, sizeof state->levels);
    for (int i = 0; i < s->count; i++) {
        SplitLevel *l = &state->levels[i];
        if (l->end <= from) TRY(next_pre_token(&s->steps[i], state, l, text, *end, from, err));
        *end = l->end;
    }
    return OK;
}

/* In every pattern, a pre-token with a character other than white space ends before a space, looks no
 * further, and starts without regard to what precedes it. */
size_t split_cut(const char *text, size_t length) {
    for (size_t i = length; i-- > 1;) {
        if (text[i] == ' ' && text[i - 1] > ' ' && text[i - 1] < 0x7F) return i;
    }
    return 0;
}

/* tiktoken's files (Llama 3's tokenizer.model): a line a token, its bytes in base64 and its rank, which is
 * its id. Merges are not in the file; they follow from the ranks: tiktoken joins the neighbours whose bytes
 * together are the token of the lowest rank. So each way to cut a token into two tokens is a merge, all
 * those of one token with one rank (data/bpe.h allows that). Special tokens are not in the file either:
 * they are Llama 3's, 256 of them behind the last rank.
 *
 * The file says nothing of a pattern. Llama 3's is taken, since its file is the only one of the kind that
 * models are published with.
 *
 *   IQ== 0          the byte 0x21, "!", has the id 0
 *   Ig== 1          the byte 0x22
 *   ...
 *   n lines, then by number:  n      <|begin_of_text|>       n + 6  <|start_header_id|>
 *                             n + 1  <|end_of_text|>         n + 7  <|end_header_id|>
 *                             n + 9  <|eot_id|>              the rest up to n + 255: reserved */
#include "data/tiktoken.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define SPECIALS 256
#define SPECIAL_NAME 48
/* Each split of a token is looked up, so the work grows with the square of its length. The longest in use has
 * 128 bytes. */
#define LONGEST_TOKEN 2048

typedef struct RankLine {
    char *bytes; /* into the decoded copy of the file */
    size_t length;
    int64_t rank;
} RankLine;

/* By hand, since libraries skip what they do not know, and a wrong digit here is a wrong token. */
static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Strict: four characters a group, '=' at the end only. Returns the bytes written, 0 when malformed. */
static size_t base64_decode(const char *text, size_t length, char *out) {
    if (length == 0 || length % 4 != 0) return 0;
    size_t padding = text[length - 1] != '=' ? 0 : text[length - 2] != '=' ? 1 : 2;
    size_t n = 0;
    for (size_t i = 0; i < length; i += 4) {
        size_t kept = i + 4 == length ? 3 - padding : 3;
        uint32_t group = 0;
        for (size_t k = 0; k < 4; k++) {
            int digit = k <= kept ? base64_digit(text[i + k]) : 0;
            if (digit < 0) return 0;
            group = group << 6 | (uint32_t)digit;
        }
        for (size_t k = 0; k < kept; k++) out[n++] = (char)(group >> (16 - 8 * k) & 0xFF);
    }
    return n;
}

/* Digits only, at most nine of them; -1 otherwise. Nine digits fit an id of 32 bits whatever they are. */
static int64_t parse_rank(const char *text, size_t length) {
    if (length == 0 || length > 9) return -1;
    int64_t rank = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        rank = rank * 10 + (text[i] - '0');
    }
    return rank;
}

/* The line's number is in each message: these files have 128,000 lines that look alike. */
static ErrorCode read_line(RankLine *line, const char *where, size_t number, const char *text, size_t length,
                           char *out, Error *err) {
    const char *space = memchr(text, ' ', length);
    size_t head = space ? (size_t)(space - text) : length;
    line->bytes = out;
    line->length = base64_decode(text, head, out);
    line->rank = space ? parse_rank(space + 1, length - head - 1) : -1;
    if (line->length == 0 || line->rank < 0) {
        char shown[60];
        error_escape(shown, sizeof shown, text, length);
        return error_set(err, ERR_DATA,
                         "%s:%zu: expected \"base64 rank\" as in a tiktoken file, found \"%s\"", where,
                         number, shown);
    }
    if (line->length > LONGEST_TOKEN) {
        return error_set(err, ERR_DATA, "%s:%zu: a token of %zu bytes; the longest allowed has %d", where,
                         number, line->length, LONGEST_TOKEN);
    }
    return OK;
}

/* An upper bound, for one allocation. */
static size_t count_lines(const char *data, size_t length) {
    size_t lines = 1;
    for (const char *p = data; (p = memchr(p, '\n', length - (size_t)(p - data))); p++) lines++;
    return lines;
}

/* Decodes all lines; blank ones are skipped. `decoded` has room for the whole file. */
static ErrorCode read_lines(const char *where, const char *data, size_t length, RankLine *lines,
                            size_t *count, char *decoded, Error *err) {
    size_t number = 0;
    *count = 0;
    for (size_t at = 0; at < length;) {
        const char *line = data + at, *newline = memchr(line, '\n', length - at);
        size_t size = newline ? (size_t)(newline - line) : length - at;
        at += size + 1;
        number++;
        if (size > 0 && line[size - 1] == '\r') size--;
        if (size == 0) continue;
        RankLine *rank_line = &lines[(*count)++];
        TRY(read_line(rank_line, where, number, line, size, decoded, err));
        decoded += rank_line->length;
    }
    return *count ? OK : error_set(err, ERR_DATA, "%s: no tokens; expected lines of \"base64 rank\"", where);
}

/* Llama 3's own numbering: five names among the first ten, the rest reserved and counted on their own. */
static void special_name(int k, char out[SPECIAL_NAME]) {
    static const char *const named[10] = {[0] = "begin_of_text",
                                          [1] = "end_of_text",
                                          [6] = "start_header_id",
                                          [7] = "end_header_id",
                                          [9] = "eot_id"};
    if (k < 10 && named[k]) {
        snprintf(out, SPECIAL_NAME, "<|%s|>", named[k]);
        return;
    }
    int reserved = k < 6 ? k - 2 : k == 8 ? 4 : k - 5;
    snprintf(out, SPECIAL_NAME, "<|reserved_special_token_%d|>", reserved);
}

/* Ranks must be the numbers from 0 without gaps, in any order of lines: they are ids, and the special
 * ones follow behind. */
static ErrorCode fill_vocabulary(Tokenizer *t, const char *where, const RankLine *lines, size_t count,
                                 Error *err) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += lines[i].length;
    Vocabulary *v = &t->vocabulary;
    TRY(vocabulary_init(v, where, count + SPECIALS, total + SPECIALS * SPECIAL_NAME, err));
    for (size_t i = 0; i < count; i++) {
        if (lines[i].rank >= (int64_t)count) {
            return error_set(err, ERR_DATA,
                             "%s: rank %lld in a file of %zu tokens; ranks must run from 0 without gaps",
                             where, (long long)lines[i].rank, count);
        }
        TRY(vocabulary_set(v, where, lines[i].rank, lines[i].bytes, lines[i].length, TOKEN_TEXT, err));
    }
    for (int k = 0; k < SPECIALS; k++) {
        char name[SPECIAL_NAME];
        special_name(k, name);
        TRY(vocabulary_set(v, where, (int64_t)count + k, name, strlen(name), TOKEN_SPECIAL, err));
    }
    return vocabulary_seal(v, where, err);
}

/* bpe_init wants rules by rank. Pairs only make the order, and with it the fingerprint, independent of
 * qsort. */
static int by_rank_and_pair(const void *a, const void *b) {
    const MergeRule *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

/* Two neighbours merge when their bytes together are a token, and its id is the rank: so each way to split a
 * token into two tokens is a rule. */
static MergeRule *derive_rules(const Vocabulary *v, size_t total_bytes, size_t *count) {
    MergeRule *rules = mem_alloc_array(total_bytes + 1, sizeof *rules);
    size_t n = 0;
    for (int32_t id = 0; id < v->count; id++) {
        const Token *token = &v->tokens[id];
        if (token->kind != TOKEN_TEXT) continue;
        for (uint32_t cut = 1; cut < token->length; cut++) {
            int32_t left = vocabulary_find(v, token->bytes, cut);
            int32_t right = left < 0 ? -1 : vocabulary_find(v, token->bytes + cut, token->length - cut);
            if (right >= 0) rules[n++] = (MergeRule){left, right, id, (uint32_t)id};
        }
    }
    qsort(rules, n, sizeof *rules, by_rank_and_pair);
    *count = n;
    return rules;
}

/* whole_first is tiktoken's rule: a piece that is a token is not merged at all. It differs from merging
 * where a token's parts are not tokens. */
static ErrorCode build(Tokenizer *t, const char *where, const RankLine *lines, size_t count, Error *err) {
    TRY(fill_vocabulary(t, where, lines, count, err));
    int32_t byte_ids[256];
    TRY(vocabulary_bytes(&t->vocabulary, where, NAME_TEXT, byte_ids, err));
    size_t rule_count;
    MergeRule *rules = derive_rules(&t->vocabulary, t->vocabulary.arena_used, &rule_count);
    TRY(bpe_init(&t->bpe, where, byte_ids, rules, rule_count, err));
    t->splits = splits_of(PATTERN_LLAMA3);
    t->whole_first = true;
    t->bos = (int32_t)count;
    t->eos = (int32_t)count + 1;
    return OK;
}

/* Base64 never grows when it is decoded, so a buffer as long as the file holds all tokens; the vocabulary
 * copies what it keeps. */
ErrorCode tiktoken_read(Tokenizer *t, const char *where, const char *data, size_t length, Error *err) {
    RankLine *lines = mem_alloc_array(count_lines(data, length), sizeof *lines);
    char *decoded = mem_alloc(length + 1);
    size_t count;
    ErrorCode code = read_lines(where, data, length, lines, &count, decoded, err);
    if (code == OK) code = build(t, where, lines, count, err);
    free(lines);
    free(decoded);
    return code;
}

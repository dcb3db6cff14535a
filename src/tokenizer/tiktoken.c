/* tiktoken's rank files: one line per token, with its bytes in base64 and its rank, which is its id. The file
 * has no merges; they follow from the ranks: tiktoken joins the neighbours whose concatenated bytes are the
 * token with the lowest rank. So each split of a token into two tokens is a merge, and all merges of one
 * token have the same rank (tokenizer/bpe.h allows that).
 *
 *   IQ== 0          the byte 0x21, "!", has the id 0
 *   Ig== 1          the byte 0x22
 *
 * Pattern and special tokens are not in the file either, and files of different kinds look alike: the first
 * 100,256 ranks of Llama 3 are those of cl100k_base. So a file is recognised by its digest alone. Other files
 * are refused, unless the configuration names their kind. */
#include "tokenizer/tiktoken.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/lines.h"
#include "base/text.h"

#define SPECIAL_NAME 64
/* Each split of a token is looked up, so the work is quadratic in its length. The longest in use has 128
 * bytes. */
#define LONGEST_TOKEN 2048

typedef struct RankLine {
    char *bytes; /* points into the decoded copy of the file */
    size_t length;
    int64_t rank;
    const char *base64; /* [base64_length], points into the file */
    size_t base64_length;
} RankLine;

/* Special tokens with consecutive ids: "<|name|>", or `count` of them, "<|name0|>" etc., starting from
 * `first`. */
typedef struct SpecialRun {
    int at; /* id of the first, relative to the end of the ranks */
    const char *name;
    int count, first;
} SpecialRun;

typedef struct RankKind {
    const char *name;
    const char *sha256; /* of the published file; NULL: it shares another kind's file, or has no single one */
    Pattern pattern;
    bool form_c; /* text is normalized to NFC first */
    int holes;   /* ranks that are missing from the file, and belong to special tokens */
    const SpecialRun *specials;
} RankKind;

/* Implemented here, since libraries skip unknown characters, and a wrong digit would be a wrong token. */
static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Strict: groups of four characters, '=' only at the end. Returns the number of bytes written, 0 if
 * malformed. */
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

/* At most nine digits, which fit an id of 32 bits; -1 otherwise. */
static int64_t parse_rank(const char *text, size_t length) {
    if (length == 0 || length > 9) return -1;
    int64_t rank = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        rank = rank * 10 + (text[i] - '0');
    }
    return rank;
}

/* Messages have the line number, since these files have 128,000 similar lines. */
static ErrorCode read_line(RankLine *line, const char *where, size_t number, const char *text, size_t length,
                           char *out, Error *err) {
    const char *space = memchr(text, ' ', length);
    size_t head = space ? (size_t)(space - text) : length;
    line->bytes = out;
    line->base64 = text, line->base64_length = head;
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

/* Decodes all lines, skipping blank ones. `decoded` has space for the whole file. */
static ErrorCode read_lines(const char *where, Lines lines, RankLine *ranks, size_t *count, char *decoded,
                            Error *err) {
    *count = 0;
    for (Line line; lines_next(&lines, &line);) {
        if (line.length > 0 && line.text[line.length - 1] == '\r') line.length--;
        if (line.length == 0) continue;
        RankLine *rank = &ranks[(*count)++];
        TRY(read_line(rank, where, line.number, line.text, line.length, decoded, err));
        decoded += rank->length;
    }
    return *count ? OK : error_set(err, ERR_DATA, "%s: no tokens; expected lines of \"base64 rank\"", where);
}

/* ---- kinds of files ---- */

static const SpecialRun gpt2_specials[] = {{0, "endoftext", 0, 0}, {0, NULL, 0, 0}};
static const SpecialRun p50k_specials[] = {{-25, "endoftext", 0, 0}, {0, NULL, 0, 0}};
static const SpecialRun cl100k_specials[] = {{1, "endoftext", 0, 0},    {2, "fim_prefix", 0, 0},
                                             {3, "fim_middle", 0, 0},   {4, "fim_suffix", 0, 0},
                                             {20, "endofprompt", 0, 0}, {0, NULL, 0, 0}};
static const SpecialRun o200k_specials[] = {
    {1, "endoftext", 0, 0}, {20, "endofprompt", 0, 0}, {0, NULL, 0, 0}};
static const SpecialRun harmony_specials[] = {{0, "startoftext", 0, 0}, {1, "endoftext", 0, 0},
                                              {4, "return", 0, 0},      {5, "constrain", 0, 0},
                                              {7, "channel", 0, 0},     {8, "start", 0, 0},
                                              {9, "end", 0, 0},         {10, "message", 0, 0},
                                              {14, "call", 0, 0},       {1089, "reserved_201087", 0, 0},
                                              {0, NULL, 0, 0}};
/* Of Llama 3.1 and later. 3.0 had other names for unused tokens. */
static const SpecialRun llama3_specials[] = {{0, "begin_of_text", 0, 0},
                                             {1, "end_of_text", 0, 0},
                                             {2, "reserved_special_token_", 2, 0},
                                             {4, "finetune_right_pad_id", 0, 0},
                                             {5, "step_id", 0, 0},
                                             {6, "start_header_id", 0, 0},
                                             {7, "end_header_id", 0, 0},
                                             {8, "eom_id", 0, 0},
                                             {9, "eot_id", 0, 0},
                                             {10, "python_tag", 0, 0},
                                             {11, "image", 0, 0},
                                             {12, "reserved_special_token_", 244, 2},
                                             {0, NULL, 0, 0}};
static const SpecialRun llama4_specials[] = {{0, "begin_of_text", 0, 0},
                                             {1, "end_of_text", 0, 0},
                                             {2, "fim_prefix", 0, 0},
                                             {3, "fim_middle", 0, 0},
                                             {4, "fim_suffix", 0, 0},
                                             {5, "header_start", 0, 0},
                                             {6, "header_end", 0, 0},
                                             {7, "eom", 0, 0},
                                             {8, "eot", 0, 0},
                                             {9, "step", 0, 0},
                                             {10, "text_post_train_reserved_special_token_", 6, 0},
                                             {16, "python_start", 0, 0},
                                             {17, "python_end", 0, 0},
                                             {18, "finetune_right_pad", 0, 0},
                                             {19, "text_post_train_reserved_special_token_", 61, 8},
                                             {80, "image_start", 0, 0},
                                             {81, "image_end", 0, 0},
                                             {82, "vision_reserved_special_token_", 2, 0},
                                             {84, "tile_x_separator", 0, 0},
                                             {85, "tile_y_separator", 0, 0},
                                             {86, "vision_reserved_special_token_", 4, 2},
                                             {90, "image", 0, 0},
                                             {91, "vision_reserved_special_token_", 1, 6},
                                             {92, "patch", 0, 0},
                                             {93, "vision_reserved_special_token_", 1041, 7},
                                             {1134, "reasoning_reserved_special_token_", 8, 0},
                                             {1142, "reasoning_thinking_start", 0, 0},
                                             {1143, "reasoning_thinking_end", 0, 0},
                                             {1144, "reserved_special_token_", 904, 0},
                                             {0, NULL, 0, 0}};
static const SpecialRun qwen_specials[] = {{0, "endoftext", 0, 0},
                                           {1, "im_start", 0, 0},
                                           {2, "im_end", 0, 0},
                                           {3, "extra_", 205, 0},
                                           {0, NULL, 0, 0}};
static const SpecialRun no_specials[] = {{0, NULL, 0, 0}};

/* cl100k's own pattern differs from Llama 3's where white space after a newline ends a text. No token of
 * cl100k joins the two, so its ids are the same. */
static const RankKind kinds[] = {
    {"gpt2", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", PATTERN_GPT2, false, 0,
     gpt2_specials},
    {"p50k", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069", PATTERN_GPT2, false, 1,
     p50k_specials},
    {"cl100k", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7", PATTERN_LLAMA3, false, 0,
     cl100k_specials},
    {"o200k", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d", PATTERN_O200K, false, 0,
     o200k_specials},
    {"harmony", NULL, PATTERN_O200K, false, 0, harmony_specials}, /* the file of o200k */
    {"llama3", "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55", PATTERN_LLAMA3, false, 0,
     llama3_specials},
    {"llama4", "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed", PATTERN_O200K, false, 0,
     llama4_specials},
    {"qwen", "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186", PATTERN_QWEN2, true, 0,
     qwen_specials},
    {"qwen2", NULL, PATTERN_QWEN2, false, 0, no_specials},
    {"qwen35", NULL, PATTERN_QWEN35, false, 0, no_specials},
    {"tekken", NULL, PATTERN_TEKKEN, false, 0, no_specials}};
#define KINDS (sizeof kinds / sizeof *kinds)

static void list_kinds(Text *out) {
    for (size_t i = 0; i < KINDS; i++)
        text_printf(out, "%s%s", i == 0 ? "" : i + 1 == KINDS ? " or " : ", ", kinds[i].name);
}

static int by_rank(const void *a, const void *b) {
    const RankLine *x = a, *y = b;
    return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : 0;
}

/* Hashes the lines as published files have them: in the order of their ranks, with newlines only. So a copy
 * with another order or other line ends is recognised too. */
static void digest_lines(const RankLine *lines, size_t count, char out[65]) {
    Sha256 *h = sha256_start();
    uint8_t digest[32];
    char rank[24];
    for (size_t i = 0; i < count; i++) {
        sha256_add(h, lines[i].base64, lines[i].base64_length);
        sha256_add(h, rank, (size_t)snprintf(rank, sizeof rank, " %lld\n", (long long)lines[i].rank));
    }
    sha256_finish(h, digest);
    sha256_hex(digest, out);
}

static ErrorCode find_kind(const char *where, const char *name, const char *digest, size_t count,
                           const RankKind **out, Error *err) {
    bool named = name && *name;
    for (*out = kinds; *out < kinds + KINDS; ++*out)
        if (named ? strcmp((*out)->name, name) == 0 : (*out)->sha256 && strcmp((*out)->sha256, digest) == 0)
            return OK;
    Text known = {0};
    char shown[60];
    list_kinds(&known);
    ErrorCode code =
        named ? error_set(err, ERR_CONFIG, "tokenizer.pattern is \"%s\": expected %s",
                          error_escape(shown, sizeof shown, name, strlen(name)), known.data)
              : error_set(
                    err, ERR_DATA,
                    "%s: a rank file of %zu tokens that weft does not know (SHA-256 %.16s...), and neither "
                    "its pattern nor its special tokens are in it: take the model's tokenizer.json, or "
                    "name what it is like by tokenizer.pattern (%s)",
                    where, count, digest, known.data);
    text_free(&known);
    return code;
}

/* ---- vocabulary ---- */

/* Names the unnamed ids before the last special token. */
static ErrorCode fill_unnamed(Vocabulary *v, const char *where, int64_t from, int64_t to, Error *err) {
    char name[SPECIAL_NAME];
    for (int64_t id = from; id < to; id++) {
        if (v->tokens[id].kind != TOKEN_NONE) continue;
        int length = snprintf(name, sizeof name, "<|reserved_%lld|>", (long long)id);
        TRY(vocabulary_set(v, where, id, name, (size_t)length, TOKEN_SPECIAL, err));
    }
    return OK;
}

static int run_length(const SpecialRun *run) { return run->count > 0 ? run->count : 1; }

static ErrorCode put_specials(Vocabulary *v, const char *where, const RankKind *kind, int64_t end,
                              Error *err) {
    char name[SPECIAL_NAME];
    int64_t last = end;
    for (const SpecialRun *run = kind->specials; run->name; run++) {
        for (int k = 0; k < run_length(run); k++) {
            int length = run->count == 0 ? snprintf(name, sizeof name, "<|%s|>", run->name)
                                         : snprintf(name, sizeof name, "<|%s%d|>", run->name, run->first + k);
            TRY(vocabulary_set(v, where, end + run->at + k, name, (size_t)length, TOKEN_SPECIAL, err));
        }
        if (end + run->at + run_length(run) > last) last = end + run->at + run_length(run);
    }
    return fill_unnamed(v, where, end, last, err);
}

/* The configured special tokens, instead of the kind's, with ids after the ranks. */
static ErrorCode put_named(Vocabulary *v, const char *where, const StringList *names, int64_t end,
                           Error *err) {
    for (size_t i = 0; i < names->count; i++)
        TRY(vocabulary_set(v, where, end + (int64_t)i, names->items[i], strlen(names->items[i]),
                           TOKEN_SPECIAL, err));
    return OK;
}

/* Upper bounds for special tokens: ids, and bytes of their names. */
static void size_specials(const RankKind *kind, const StringList *names, size_t *ids, size_t *bytes) {
    *ids = names->count, *bytes = 0;
    for (size_t i = 0; i < names->count; i++) *bytes += strlen(names->items[i]);
    if (names->count > 0) return;
    for (const SpecialRun *run = kind->specials; run->name; run++) {
        int last = run->at + run_length(run);
        if (last > 0 && (size_t)last > *ids) *ids = (size_t)last;
    }
    *ids += (size_t)kind->holes;
    *bytes = *ids * SPECIAL_NAME;
}

/* Ranks must be the numbers from 0 without gaps, except for the kind's holes, in any order of lines: they are
 * ids, and special tokens follow them. */
static ErrorCode fill_vocabulary(Tokenizer *t, const char *where, const RankLine *lines, size_t count,
                                 const RankKind *kind, const StringList *names, Error *err) {
    size_t total = 0, more, bytes;
    int64_t end = (int64_t)count + kind->holes;
    for (size_t i = 0; i < count; i++) total += lines[i].length;
    size_specials(kind, names, &more, &bytes);
    Vocabulary *v = &t->vocabulary;
    TRY(vocabulary_init(v, where, count + more, total + bytes, err));
    for (size_t i = 0; i < count; i++) {
        if (lines[i].rank >= end) {
            return error_set(err, ERR_DATA,
                             "%s: rank %lld in a file of %zu tokens; ranks must run from 0 without gaps",
                             where, (long long)lines[i].rank, count);
        }
        TRY(vocabulary_set(v, where, lines[i].rank, lines[i].bytes, lines[i].length, TOKEN_TEXT, err));
    }
    TRY(names->count > 0 ? put_named(v, where, names, end, err) : put_specials(v, where, kind, end, err));
    return vocabulary_seal(v, where, err);
}

/* bpe_init needs rules by rank. Comparing pairs as well makes the order, and with it the fingerprint,
 * independent of qsort. */
static int by_rank_and_pair(const void *a, const void *b) {
    const MergeRule *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

/* Each split of a token into two tokens is a rule, whose rank is the id of the whole token. */
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

/* whole_first is tiktoken's rule: a pre-token that is a token is not merged at all. That differs from merging
 * where parts of a token are not tokens. */
static ErrorCode build(Tokenizer *t, const char *where, const RankLine *lines, size_t count,
                       const RankKind *kind, const StringList *names, Error *err) {
    TRY(fill_vocabulary(t, where, lines, count, kind, names, err));
    int32_t byte_ids[256];
    TRY(vocabulary_bytes(&t->vocabulary, where, NAME_TEXT, byte_ids, err));
    size_t rule_count;
    MergeRule *rules = derive_rules(&t->vocabulary, t->vocabulary.arena_used, &rule_count);
    TRY(bpe_init(&t->bpe, where, byte_ids, rules, rule_count, err));
    t->splits = splits_of(kind->pattern);
    t->whole_first = true;
    if (kind->form_c) t->normalizer.steps[t->normalizer.count++].kind = NORMALIZE_NFC;
    return OK;
}

static ErrorCode check_forms(const RankKind *kind, const char *where, Error *err) {
    if (!kind->form_c || unicode_available()) return OK;
    return error_set(
        err, ERR_UNAVAILABLE,
        "%s: text of this tokenizer is put into NFC first, which needs libutf8proc: this build lacks "
        "it; install libutf8proc-dev and build again",
        where);
}

/* Decoding base64 never makes it longer, so a buffer as long as the file suffices; the vocabulary copies what
 * it keeps. */
ErrorCode tiktoken_read(Tokenizer *t, const char *where, const char *data, size_t length,
                        const TokenizerKeys *keys, Error *err) {
    Lines lines = lines_of(data, length);
    RankLine *ranks = mem_alloc_array(lines_count(lines) + 1, sizeof *ranks);
    char *decoded = mem_alloc(length + 1), digest[65];
    size_t count;
    const RankKind *kind = NULL;
    ErrorCode code = read_lines(where, lines, ranks, &count, decoded, err);
    if (code == OK) {
        qsort(ranks, count, sizeof *ranks, by_rank);
        digest_lines(ranks, count, digest);
        code = find_kind(where, keys->pattern, digest, count, &kind, err);
    }
    if (code == OK) code = check_forms(kind, where, err);
    if (code == OK) code = build(t, where, ranks, count, kind, &keys->special, err);
    free(ranks);
    free(decoded);
    return code;
}

/* weft tokenizer train | encode | decode.
 *
 *     train     files of text, by path or URL --> words counted, pairs merged --> tokenizer.json (--out)
 *     encode    text on standard input --> ids on standard output, IDS_PER_LINE a line
 *     decode    ids on standard input --> bytes on standard output
 *
 * Three verbs for one file format. Training reads whole corpora and may take long. encode and decode are
 * streams, so that texts of any length pass through a pipe in little memory, and decode returns the bytes
 * that encode read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/fetch.h"
#include "cli/cli.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_train.h"

/* A block of 1 MiB: large enough that the number of calls does not matter, small compared to any model's
 * memory. */
#define READ_SIZE ((size_t)1 << 20)
#define IDS_PER_LINE 20

/* --- train --- */

/* Splits "a,b,c"; the parts point into `copy`, which must outlive them. At least one name, unless the text is
 * empty: "" means no special tokens. The caller frees the array. */
static const char **split_names(char *copy, size_t *count) {
    size_t parts = 1, n = 0;
    for (const char *p = copy; *p; p++) parts += *p == ',';
    const char **names = mem_alloc_array(parts, sizeof *names);
    for (char *name = copy; name && *copy;) {
        char *comma = strchr(name, ',');
        if (comma) *comma = 0;
        names[n++] = name;
        name = comma ? comma + 1 : NULL;
    }
    *count = n;
    return names;
}

/* Caches and checkpoints identify a tokenizer by the printed fingerprint. */
static ErrorCode train_and_save(const Arguments *args, const TokenizerTrainOptions *o, const char *out,
                                Error *err) {
    Tokenizer *t = NULL;
    /* Checked before the work, which may take an hour. */
    TRY(file_check_write(out, err));
    TRY(tokenizer_train_files(&t, o, args->operands, (size_t)args->operand_count,
                              arguments_flag(args, "--key"), err));
    ErrorCode code = tokenizer_save(t, out, err);
    char fingerprint[65];
    tokenizer_fingerprint(t, fingerprint);
    if (code == OK) log_info("%s: %d tokens, fingerprint %.16s", out, tokenizer_vocab_size(t), fingerprint);
    tokenizer_free(t);
    return code;
}

/* At least the 256 bytes: a vocabulary without one of them could not encode every text. --vocab and --out
 * have no defaults: the size is the user's decision, and a default file might overwrite one that is needed. 0
 * threads means all cores. */
static ErrorCode run_train(const Arguments *args, Error *err) {
    int64_t vocab = 0, threads = 0;
    const char *out = arguments_flag(args, "--out"), *specials = arguments_flag(args, "--special");
    TRY(arguments_int(args, "--vocab", 256, 1 << 24, &vocab, err));
    TRY(arguments_int(args, "--threads", 1, 1024, &threads, err));
    if (!vocab || !out) return error_set(err, ERR_USAGE, "tokenizer train needs --vocab N and --out FILE");
    char *copy = mem_strdup(specials ? specials : "<|begin_of_text|>,<|end_of_text|>");
    TokenizerTrainOptions o = {.vocab_size = (int32_t)vocab,
                               .pattern = arguments_flag(args, "--pattern"),
                               .threads = (int)threads,
                               .any_bytes = arguments_has(args, "--bytes"),
                               .cache_dir = FETCH_CACHE};
    const char **names = split_names(copy, &o.special_count);
    o.specials = names;
    ErrorCode code = train_and_save(args, &o, out, err);
    free(names);
    free(copy);
    return code;
}

static const Flag train_flags[] = {
    {"--vocab", 'n', "N", "entries of the vocabulary in all: 256 bytes, merges, special tokens"},
    {"--out", 'o', "FILE", "the tokenizer.json to write"},
    {"--pattern", 'p', "NAME",
     "how text is cut into pre-tokens: gpt2, llama3 (default), qwen2, qwen35, tekken or o200k"},
    {"--special", 's', "A,B,...",
     "special tokens, with the last ids; default <|begin_of_text|>,<|end_of_text|>"},
    {"--key", 'k', "NAME", "JSON lines and Parquet: the member or column that holds the text; default text"},
    {"--bytes", 'b', NULL, "take files as they are; without it what is not UTF-8 text is refused"},
    {"--threads", 't', "N", "threads; default: all cores. The result does not depend on it"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_tokenizer_train = {
    .name = "tokenizer train",
    .summary = "train a byte-level BPE tokenizer from text",
    .synopsis = "FILE|URL... --vocab N --out tokenizer.json",
    .details =
        "Counts the words of text and JSON-lines files (.jsonl), plain or compressed (gzip, zstd), and of "
        "Parquet files (.parquet), and merges the most frequent pair of neighbours until the vocabulary is "
        "full. The result is a Hugging Face tokenizer.json, and depends on the text alone.\n\n"
        "https:// and s3:// URLs, with braces or patterns as in data.sources, are fetched into "
        ".weft-cache/remote first.\n\n"
        "  weft tokenizer train bible.txt --vocab 4096 --out tokenizer.json\n"
        "  weft tokenizer train 's3://bucket/corpus/{00..07}.jsonl.zst' --vocab 65536 --out tokenizer.json",
    .flags = train_flags,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_train,
};

/* --- encode --- */

static const Flag file_flags[] = {
    {"--pattern", 'p', "NAME",
     "of a tiktoken rank file that weft does not know: what it is like, as tokenizer.pattern"},
    {NULL, 0, NULL, NULL},
};

static ErrorCode open_tokenizer(Tokenizer **t, const Arguments *args, Error *err) {
    const char *pattern = arguments_flag(args, "--pattern");
    TokenizerKeys keys = {.pattern = mem_strdup(pattern ? pattern : "")};
    ErrorCode code = tokenizer_open_as(t, args->operands[0], &keys, err);
    free(keys.pattern);
    return code;
}

/* State between blocks: ids that are not printed yet, the line being built, and the number of ids, by which
 * lines are broken. */
typedef struct IdWriter {
    TokenList list;
    Text line;
    size_t written; /* ids so far */
} IdWriter;

/* Twenty per line, since some editors and tools fail on a line of millions. */
static ErrorCode write_ids(IdWriter *w, Error *err) {
    text_clear(&w->line);
    for (size_t i = 0; i < w->list.count; i++) {
        if (w->written) text_puts(&w->line, w->written % IDS_PER_LINE ? " " : "\n");
        text_printf(&w->line, "%d", w->list.ids[i]);
        w->written++;
    }
    w->list.count = 0;
    if (w->line.length && fwrite(w->line.data, 1, w->line.length, stdout) != w->line.length) {
        return error_errno(err, ERR_IO, "cannot write to standard output");
    }
    return OK;
}

/* Encodes text[0, length) and moves the rest to the front. The text keeps its memory, which grows only to the
 * longest run of text without a safe cut. */
static ErrorCode encode_front(const Tokenizer *t, Text *text, size_t length, IdWriter *w, Error *err) {
    if (length == 0) return OK;
    TRY(tokenizer_encode(t, text->data, length, &w->list, err));
    memmove(text->data, text->data + length, text->length - length);
    text->length -= length;
    return write_ids(w, err);
}

/* Text is encoded as it comes, up to a position where cutting does not change the result; only text without
 * such a position is kept whole. A newline ends the list of ids, unless it is empty. */
static ErrorCode encode_stream(const Tokenizer *t, IdWriter *w, Text *text, char *block, Error *err) {
    size_t got,
        wanted = READ_SIZE; /* looking for a cut again only when the text has doubled keeps the work linear */
    while ((got = fread(block, 1, READ_SIZE, stdin)) > 0) {
        text_add(text, block, got);
        if (text->length < wanted) continue;
        TRY(encode_front(t, text, tokenizer_cut(t, text->data, text->length), w, err));
        wanted = text->length < READ_SIZE ? READ_SIZE : 2 * text->length;
    }
    if (ferror(stdin)) return error_errno(err, ERR_IO, "cannot read standard input");
    TRY(encode_front(t, text, text->length, w, err));
    if (w->written) putchar('\n');
    return OK;
}

/* No BOS and no EOS: the output stands for the text and nothing else, so that decode returns it. Memory grows
 * only with text that cannot be cut. */
static ErrorCode run_encode(const Arguments *args, Error *err) {
    Tokenizer *t = NULL;
    TRY(open_tokenizer(&t, args, err));
    IdWriter w = {0};
    Text text = {0};
    char *block = mem_alloc(READ_SIZE);
    ErrorCode code = encode_stream(t, &w, &text, block, err);
    free(block);
    text_free(&text);
    text_free(&w.line);
    token_list_free(&w.list);
    tokenizer_free(t);
    return code;
}

const Verb verb_tokenizer_encode = {
    .name = "tokenizer encode",
    .summary = "turn text on standard input into token ids",
    .synopsis = "TOKENIZER",
    .details = "TOKENIZER is \"bytes\", a tokenizer.json, a directory that holds one, or a tiktoken rank "
               "file. Special tokens in the text are plain text.\n\n"
               "  weft tokenizer encode tokenizer.json < bible.txt > ids.txt",
    .flags = file_flags,
    .min_operands = 1,
    .max_operands = 1,
    .run = run_encode,
};

/* --- decode --- */

/* Reads the next number of the input into *id; *id = -1 at the end. `count` numbers the ids for errors.
 * Unlocked I/O: one thread reads, and there may be billions of ids. */
static ErrorCode read_id(size_t count, int32_t *id, Error *err) {
    int c;
    do c = getchar_unlocked();
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r');
    *id = -1;
    if (c == EOF) return ferror(stdin) ? error_errno(err, ERR_IO, "cannot read standard input") : OK;
    int64_t value = 0;
    for (; c >= '0' && c <= '9' && value <= INT32_MAX; c = getchar_unlocked()) value = value * 10 + (c - '0');
    bool ended = c == EOF || c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!ended || value > INT32_MAX) {
        return error_set(
            err, ERR_DATA,
            "standard input: token %zu is not a token id; expected decimal numbers with space between",
            count);
    }
    *id = (int32_t)value;
    return OK;
}

/* An id outside the vocabulary ends the stream; the output so far is valid. Errors count ids from 1. The
 * tokenizer is told which id is the first, since some tokenizers put a blank before each text and omit it
 * there. */
static ErrorCode decode_stream(const Tokenizer *t, Error *err) {
    for (size_t count = 1;; count++) {
        int32_t id = -1;
        TRY(read_id(count, &id, err));
        if (id < 0) return OK;
        size_t length;
        const char *bytes = tokenizer_token_text(t, id, count == 1, &length);
        if (!bytes) {
            return error_set(err, ERR_DATA, "standard input: token %zu is %d, outside the vocabulary of %d",
                             count, id, tokenizer_vocab_size(t));
        }
        /* Raw bytes: exactly the encoded text, valid UTF-8 or not. */
        if (fwrite(bytes, 1, length, stdout) != length)
            return error_errno(err, ERR_IO, "cannot write to standard output");
    }
}

/* Writes as it reads. Special tokens are written as their text, which encode would read as plain text: such
 * ids do not round-trip. */
static ErrorCode run_decode(const Arguments *args, Error *err) {
    Tokenizer *t = NULL;
    TRY(open_tokenizer(&t, args, err));
    ErrorCode code = decode_stream(t, err);
    tokenizer_free(t);
    return code;
}

const Verb verb_tokenizer_decode = {
    .name = "tokenizer decode",
    .summary = "turn token ids on standard input into text",
    .synopsis = "TOKENIZER",
    .details = "Ids are decimal numbers with white space between, as \"tokenizer encode\" writes them. The "
               "output is exactly the bytes of the tokens.\n\n"
               "  weft tokenizer decode tokenizer.json < ids.txt",
    .flags = file_flags,
    .min_operands = 1,
    .max_operands = 1,
    .run = run_decode,
};

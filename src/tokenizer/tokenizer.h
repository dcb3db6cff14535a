/* Tokenizers: bytes to ids and back.
 *
 * A Tokenizer is immutable once opened; every function that takes a const Tokenizer may be called from any
 * number of threads. Ids are 0 .. vocab_size - 1 without gaps. Text is bytes, not characters: whatever goes
 * in, invalid UTF-8 included, comes out of decoding again, except for what some tokenizer files change by
 * intent (docs/use/tokenizer-files.md): normalizers, a space before the text, white space next to added
 * tokens.
 *
 * Special-token strings in text are plain text: no document can produce a control id. They are got by
 * tokenizer_bos, tokenizer_eos and tokenizer_special only. Added tokens that a file does not call special are
 * cut out of the text first, as Hugging Face's `tokenizers` does.
 *
 * Invalid UTF-8: each maximal run of bytes that belong to no valid character is a piece of its own, and
 * pieces never cross its borders. Text before such a run is split as if it ended there. */
#ifndef WEFT_TOKENIZER_TOKENIZER_H
#define WEFT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"

typedef struct Tokenizer Tokenizer;

/* What a tokenizer's files do not say, or say otherwise: the section `tokenizer`. Zeroed: they say
 * everything. */
typedef struct TokenizerKeys {
    char *pattern; /* what a rank file that weft does not know is like (tokenizer/tiktoken.c); "": none */
    StringList special; /* its special tokens, with the ids behind the ranks; none: those of the pattern */
    char *bos, *pad;    /* texts of tokens, or "none"; NULL, "": as the files say */
    StringList eos;     /* all end a text; documents end with the first */
} TokenizerKeys;
extern const Option tokenizer_options[];

/* Growing list of ids. Zero-initialise; free with token_list_free. */
typedef struct TokenList {
    int32_t *ids;
    size_t count, capacity;
} TokenList;
void token_list_reserve(TokenList *list, size_t more); /* room for `more` ids behind the present ones */
void token_list_free(TokenList *list);

/* `spec` is "bytes" (256 bytes, <|begin_of_text|> 256, <|end_of_text|> 257), the path of a tokenizer.json, of
 * a directory that holds one, or of a tiktoken rank file. tokenizer_config.json beside it says which tokens
 * begin and end a text. */
ErrorCode tokenizer_open(Tokenizer **t, const char *spec, Error *err);
ErrorCode tokenizer_open_as(Tokenizer **t, const char *spec, const TokenizerKeys *keys, Error *err);
/* From memory; `where` names the source in errors. Bounds are those of names in use. */
ErrorCode tokenizer_parse(Tokenizer **t, const char *where, const char *data, size_t length, Error *err);
ErrorCode tokenizer_parse_as(Tokenizer **t, const char *where, const char *data, size_t length,
                             const TokenizerKeys *keys, Error *err);
void tokenizer_free(Tokenizer *t); /* NULL is fine */

int32_t tokenizer_vocab_size(const Tokenizer *t);
int32_t tokenizer_bos(const Tokenizer *t); /* begin of text, -1 when there is none */
int32_t tokenizer_eos(const Tokenizer *t); /* end of text, -1 when there is none */
int32_t tokenizer_pad(const Tokenizer *t); /* that the keys name, -1: they name none */
#define TOKENIZER_ENDS 8
/* All that end a text, tokenizer_eos first. At most TOKENIZER_ENDS. */
const int32_t *tokenizer_ends(const Tokenizer *t, int *count);
int32_t tokenizer_special(const Tokenizer *t, const char *name); /* id of a special token by its text, -1 */

/* SHA-256 (hex) over everything that decides ids, the Unicode version of the character classes included. */
void tokenizer_fingerprint(const Tokenizer *t, char out[65]);
/* Whether both make the same ids of text, whatever begins and ends it. */
bool tokenizer_same_ids(const Tokenizer *a, const Tokenizer *b);

/* Appends the ids of the text to `out`. Time n log n at most, whatever the text. */
ErrorCode tokenizer_encode(const Tokenizer *t, const char *text, size_t length, TokenList *out, Error *err);

/* The same for a part of a document; `begins` says that it is the first, before which tokenizers that put a
 * space before a text put it. Parts have together the ids of the document if each ends behind a newline
 * between two characters that are neither white space nor a slash, unless tokenizer_whole_documents. */
ErrorCode tokenizer_encode_part(const Tokenizer *t, const char *text, size_t length, bool begins,
                                TokenList *out, Error *err);
/* Appends the ids of text that a chat template has made: special tokens in it are their ids. A byte
 * TOKENIZER_CUT stands for nothing; no token reaches across it, and special tokens that are written with one
 * in them are plain text. The text stands behind token `before`, -1: it begins one. */
#define TOKENIZER_CUT '\xff' /* is in no UTF-8 */
ErrorCode tokenizer_encode_chat(const Tokenizer *t, const char *text, size_t length, int32_t before,
                                TokenList *out, Error *err);
bool tokenizer_is_special(const Tokenizer *t, int32_t id);
/* Documents must be encoded whole: something in this tokenizer may reach across a newline. */
bool tokenizer_whole_documents(const Tokenizer *t);

/* The largest n < length such that encode(text) = encode(text[0, n)) + encode(text[n, length)) whatever comes
 * after text[length); 0 when none is known. For streams, and for sharing one huge document between threads.
 */
size_t tokenizer_cut(const Tokenizer *t, const char *text, size_t length);

/* Raw bytes of an id (no NUL at the end); NULL and 0 for an id outside the vocabulary. Special tokens give
 * their text. */
const char *tokenizer_token_bytes(const Tokenizer *t, int32_t id, size_t *length);
/* The same as part of a text that is decoded token by token: `first` says that no token came before.
 * Tokenizers that put a space before each text leave it out there. A character may lie in several tokens. */
const char *tokenizer_token_text(const Tokenizer *t, int32_t id, bool first, size_t *length);
/* Appends the text of the ids, which begin one. ERR_DATA names an id outside the vocabulary. */
ErrorCode tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, Text *out, Error *err);

/* Writes a tokenizer.json; byte for byte the file it came from when that was a tokenizer.json. */
ErrorCode tokenizer_save(const Tokenizer *t, const char *path, Error *err);

#endif

/* Tokenizers: bytes to ids and back.
 *
 * A Tokenizer is immutable once opened: every function that takes a const Tokenizer is thread-safe. Ids are 0
 * .. vocab_size - 1 without gaps. Text is bytes, not characters: decoding returns exactly the encoded bytes,
 * invalid UTF-8 included, except for intentional changes of some tokenizer files
 * (docs/use/tokenizer-files.md): normalizers, a space before the text, white space next to added tokens.
 *
 * The spelling of a special token in text is plain text: no document can produce a control id. Only
 * tokenizer_bos, tokenizer_eos, tokenizer_special and tokenizer_encode_chat give them. Added tokens that a
 * file does not mark as special are cut out of the text first, as in Hugging Face's `tokenizers`.
 *
 * Invalid UTF-8: each maximal run of bytes that belong to no valid character is a pre-token, and no pre-token
 * crosses its borders. Text before such a run is split as if it ended there. */
#ifndef WEFT_TOKENIZER_TOKENIZER_H
#define WEFT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"

typedef struct Tokenizer Tokenizer;

/* Overrides of a tokenizer's files: the section `tokenizer`. Zeroed: none. */
typedef struct TokenizerKeys {
    char *pattern;      /* kind of an unknown rank file (tokenizer/tiktoken.c); "": none */
    StringList special; /* its special tokens, with ids after the ranks; empty: those of the pattern */
    char *bos, *pad;    /* texts of tokens, or "none"; NULL, "": from the files */
    StringList eos;     /* all end a text; documents end with the first */
} TokenizerKeys;
extern const Option tokenizer_options[];

/* Growing list of ids. Zero-initialise; free with token_list_free. */
typedef struct TokenList {
    int32_t *ids;
    size_t count, capacity;
} TokenList;
void token_list_reserve(TokenList *list, size_t more); /* reserves space for `more` further ids */
void token_list_free(TokenList *list);

/* `spec` is "bytes" (256 bytes, <|begin_of_text|> 256, <|end_of_text|> 257), or the path of a tokenizer.json,
 * of a directory that holds one, or of a tiktoken rank file. A tokenizer_config.json next to it defines BOS
 * and EOS. */
ErrorCode tokenizer_open(Tokenizer **t, const char *spec, Error *err);
ErrorCode tokenizer_open_as(Tokenizer **t, const char *spec, const TokenizerKeys *keys, Error *err);
/* From memory; `where` names the source in errors. BOS and EOS are recognised by their usual names. */
ErrorCode tokenizer_parse(Tokenizer **t, const char *where, const char *data, size_t length, Error *err);
ErrorCode tokenizer_parse_as(Tokenizer **t, const char *where, const char *data, size_t length,
                             const TokenizerKeys *keys, Error *err);
void tokenizer_free(Tokenizer *t); /* NULL is fine */

int32_t tokenizer_vocab_size(const Tokenizer *t);
int32_t tokenizer_bos(const Tokenizer *t); /* begin of text, -1 when there is none */
int32_t tokenizer_eos(const Tokenizer *t); /* end of text, -1 when there is none */
/* What begins and ends each document; -1: nothing. One token that is both only ends it. */
void tokenizer_document_ends(const Tokenizer *t, bool add_bos, bool add_eos, int32_t *bos, int32_t *eos);
int32_t tokenizer_pad(const Tokenizer *t); /* named by the keys, or -1 */
#define TOKENIZER_ENDS 8
/* All tokens that end a text, tokenizer_eos first. At most TOKENIZER_ENDS. */
const int32_t *tokenizer_ends(const Tokenizer *t, int *count);
int32_t tokenizer_special(const Tokenizer *t, const char *name); /* id of a special token by its text, -1 */

/* SHA-256 (hex) over everything that decides ids, including the Unicode version of the character classes. */
void tokenizer_fingerprint(const Tokenizer *t, char out[65]);
/* Whether both give the same ids for every text, apart from BOS and EOS. */
bool tokenizer_same_ids(const Tokenizer *a, const Tokenizer *b);

/* Appends the ids of the text to `out`. Time n log n at most, whatever the text. */
ErrorCode tokenizer_encode(const Tokenizer *t, const char *text, size_t length, TokenList *out, Error *err);

/* The same for a chunk of a document. `begins`: it is the first chunk, where some tokenizers add a space. The
 * chunks together have the ids of the document if each ends after a newline between two characters that are
 * neither white space nor a slash, unless tokenizer_whole_documents. */
ErrorCode tokenizer_encode_part(const Tokenizer *t, const char *text, size_t length, bool begins,
                                TokenList *out, Error *err);
/* Appends the ids of text rendered by a chat template: special tokens in it become their ids. A byte
 * TOKENIZER_CUT is removed: no token crosses it, and a special token with one inside is plain text. `before`
 * is the preceding token, or -1 at the start of a text. */
#define TOKENIZER_CUT '\xff' /* never occurs in UTF-8 */
ErrorCode tokenizer_encode_chat(const Tokenizer *t, const char *text, size_t length, int32_t before,
                                TokenList *out, Error *err);
bool tokenizer_is_special(const Tokenizer *t, int32_t id);
/* Documents must be encoded whole: a token or rule of this tokenizer may cross a newline. */
bool tokenizer_whole_documents(const Tokenizer *t);

/* The largest n < length such that encode(text) = encode(text[0, n)) + encode(text[n, length)) whatever
 * follows text[length); 0 when none is known. For streams, and for splitting one huge document between
 * threads. */
size_t tokenizer_cut(const Tokenizer *t, const char *text, size_t length);

/* Raw bytes of an id (no NUL at the end); NULL and 0 for an id outside the vocabulary. Special tokens give
 * their text. */
const char *tokenizer_token_bytes(const Tokenizer *t, int32_t id, size_t *length);
/* Bytes of text that an id stands for: none for control tokens (begin, end, turns), nor outside of the
 * vocabulary. */
size_t tokenizer_text_bytes(const Tokenizer *t, int32_t id);
/* The bytes when decoding token by token. `first`: no token came before; tokenizers that put a space before
 * each text omit it there. A character may span several tokens. */
const char *tokenizer_token_text(const Tokenizer *t, int32_t id, bool first, size_t *length);
/* Appends the text of the ids, which start a text. ERR_DATA names an id outside the vocabulary. */
ErrorCode tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, Text *out, Error *err);

/* Writes a tokenizer.json. If the tokenizer came from one, it is copied byte for byte. */
ErrorCode tokenizer_save(const Tokenizer *t, const char *path, Error *err);

#endif

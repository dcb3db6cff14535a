/* Conversations: messages rendered by a chat template and tokenized, with a loss mask.
 *
 * Which tokens are an assistant turn: the turn begins where its generation prompt ends. For assistant message
 * i, the template renders the messages before i with add_generation_prompt. That text, P, must be a prefix of
 * the rendering F of messages 0 to i, and the turn is the rest of F. The text is cut at both borders before
 * it is tokenized, so that no token crosses one, and the ids before a turn are those that `weft generate
 * --chat` feeds to the model. After the last special token of a turn (end of turn) only white space may
 * follow, and it is not trained on: generation has stopped there. Templates with {% generation %} mark
 * assistant turns themselves.
 *
 * Some templates render earlier turns differently once later ones exist (they leave past reasoning out). F of
 * one turn is then not a prefix of F of the next, and the conversation becomes several documents, each with
 * those turns whose context it shows as the model will see it.
 *
 * Only the template can write special tokens. In messages their spelling is plain text: it is cut after its
 * first character, so that no message can end or begin a turn. */
#ifndef WEFT_DATA_CHAT_H
#define WEFT_DATA_CHAT_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"
#include "data/config.h"
#include "tokenizer/tokenizer.h"

typedef struct Chat Chat; /* constant once open: any number of threads may use it */

typedef struct ChatOptions {
    const char *tokenizer; /* as for tokenizer_open; the template is looked for next to it */
    const char *template;  /* a separate file; NULL or "": chat_template.jinja or tokenizer_config.json */
    const char *date;      /* YYYY-MM-DD for strftime_now; NULL or "": that function is undefined */
    ChatLossOn loss_on;
} ChatOptions;

/* Reads the template that the options select. *where is its origin (caller frees). ERR_NOINPUT when there is
 * none. */
ErrorCode chat_read_template(const ChatOptions *o, Text *out, char **where, Error *err);

/* ERR_CONFIG unless it is NULL, "" or a day, YYYY-MM-DD. */
ErrorCode chat_check_date(const char *date, Error *err);
/* The tokenizer must outlive the chat. */
ErrorCode chat_open(Chat **chat, const ChatOptions *o, const Tokenizer *t, Error *err);
void chat_close(Chat *c); /* NULL is fine */
/* Hashes everything that decides ids, except the tokenizer. */
void chat_hash(const Chat *c, Sha256 *h);

/* Ends of documents, in tokens. Zero-initialise; free(ends). */
typedef struct DocumentEnds {
    uint64_t *ends;
    size_t count, capacity;
} DocumentEnds;
void document_ends_add(DocumentEnds *e, uint64_t end);

/* A line of JSON, or an element of an array, and how it is read. */
typedef struct ChatLine {
    const char *where; /* the file, for errors */
    uint64_t number;
    ChatForm form;   /* AUTO: by its members (data/chat_form.h) */
    const char *key; /* the member with a list of messages; NULL or "": "messages" */
    bool row;        /* of a Parquet file: `number` is that of the row */
} ChatLine;

/* Encodes a line in any form of data/chat_form.h. "tools" and "chat_template_kwargs" are passed to the
 * template. Appends the ids of the line's documents and their ends, and adds the bytes of text. The
 * vocabulary size is added to each id that is trained on; split_ids (packing.c) makes the target -1 of the
 * others. Thread-safe. */
ErrorCode chat_encode_line(const Chat *c, const ChatLine *line, const char *data, size_t length,
                           TokenList *ids, DocumentEnds *ends, uint64_t *bytes, Error *err);
/* The same in two steps, for lines that may be large: the line's text can be freed between them. Parsing
 * overwrites the numbers in it. `parsed` is freed as soon as it is not needed, also after an error. */
ErrorCode chat_parse_line(const ChatLine *line, char *data, size_t length, cJSON **parsed, Error *err);
ErrorCode chat_encode_parsed(const Chat *c, const ChatLine *line, cJSON *parsed, TokenList *ids,
                             DocumentEnds *ends, uint64_t *bytes, Error *err);

/* Ids of the prompt for an answer to `messages`, an array. `where` is for errors. */
ErrorCode chat_prompt(const Chat *c, const char *where, cJSON *messages, TokenList *ids, Error *err);
/* The special token that ends an assistant turn, or -1. */
int32_t chat_end_token(const Chat *c);

#endif

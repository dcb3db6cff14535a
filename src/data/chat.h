/* Conversations: messages rendered by a chat template and tokenized, with what is to be learned of them.
 *
 * Whose words a token is. An answer begins where the prompt for it ends: for message i, of the assistant, the
 * template renders the messages before i with add_generation_prompt; that text, P, must be the beginning of
 * what it makes of messages 0 to i, F, and the answer is the rest of F. Text is cut at both borders before it
 * is tokenized, so that no token lies across one, and the ids before an answer are those that
 * `weft generate --chat` feeds. Behind the last special token of an answer (the end of the turn) nothing but
 * blanks may follow in it, which are not learned: who generates has stopped there. Templates with
 * {% generation %} say themselves what is an answer.
 *
 * Some templates render earlier turns otherwise once later ones are there (reasoning is left out of the
 * past). F of one answer is then no beginning of F of the next, and the conversation becomes several
 * documents, each with the answers whose context it shows as the model will see it.
 *
 * Special tokens are what the template writes. In messages their texts are plain text: such text is cut
 * behind its first character, so that no message can end a turn or begin one. */
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
    const char *tokenizer; /* as of tokenizer_open: the template is looked for beside it */
    const char *template;  /* a file of its own; NULL or "": chat_template.jinja or tokenizer_config.json */
    const char *date;      /* YYYY-MM-DD for strftime_now; NULL or "": templates have no such function */
    ChatLossOn loss_on;
} ChatOptions;

/* The text of the template that these options mean, and where it is from (caller frees); ERR_NOINPUT when
 * there is none. */
ErrorCode chat_read_template(const ChatOptions *o, Text *out, char **where, Error *err);

/* The tokenizer must outlive the chat. */
ErrorCode chat_open(Chat **chat, const ChatOptions *o, const Tokenizer *t, Error *err);
void chat_close(Chat *c); /* NULL is fine */
/* Everything that decides ids but the tokenizer. */
void chat_hash(const Chat *c, Sha256 *h);

/* Where documents end, counted in tokens. Zero-initialise; free(ends). */
typedef struct DocumentEnds {
    uint64_t *ends;
    size_t count, capacity;
} DocumentEnds;
void document_ends_add(DocumentEnds *e, uint64_t end);

/* A line of JSON: {"messages": [...]} (or the member `key`), or {"prompt": , "completion": }, of strings or
 * of messages; "tools" and "chat_template_kwargs" go to the template. Appends the ids of its documents, each
 * id that is learned raised by the size of the vocabulary, their ends, and adds the bytes of text. `where`
 * and `line` are for errors. Any thread. */
ErrorCode chat_encode_line(const Chat *c, const char *where, uint64_t line, const char *data, size_t length,
                           const char *key, TokenList *ids, DocumentEnds *ends, uint64_t *bytes, Error *err);
/* The same in two, for lines that may be large: between them the text of the line may go, in which numbers
 * have been overwritten. `parsed` goes as soon as it is not needed, after an error too. */
ErrorCode chat_parse_line(const char *where, uint64_t line, char *data, size_t length, cJSON **parsed,
                          Error *err);
ErrorCode chat_encode_parsed(const Chat *c, const char *where, uint64_t line, cJSON *parsed, const char *key,
                             TokenList *ids, DocumentEnds *ends, uint64_t *bytes, Error *err);

/* The ids that a model is given to answer the messages, an array. `where` is for errors. */
ErrorCode chat_prompt(const Chat *c, const char *where, cJSON *messages, TokenList *ids, Error *err);
/* The special token that ends an answer, -1 for none. */
int32_t chat_end_token(const Chat *c);

#endif

/* The forms in which conversations come, each converted to the messages that a chat template renders:
 *
 *     messages            {"messages": [{"role": "user", "content": "..."}, ...]}
 *     sharegpt            {"conversations": [{"from": "human", "value": "..."}, ...], "system": "..."}
 *     alpaca              {"instruction": "...", "input": "...", "output": "...", "system", "history"}
 *     prompt_completion   {"prompt": "...", "completion": "..."}, with texts or lists of messages
 *
 * A line is recognised by its members, by itself: lines of one file may have several forms. A line that fits
 * two of them is refused, and one of preferences, unless the source names the form. */
#ifndef WEFT_DATA_CHAT_FORM_H
#define WEFT_DATA_CHAT_FORM_H

#include <cjson/cJSON.h>

#include "base/error.h"
#include "data/config.h"

typedef struct Conversation {
    const char *where;        /* "file:line" */
    cJSON *messages;          /* an array of objects with a role; the caller frees it, also after an error */
    cJSON *tools, *variables; /* for the template, owned by the line; NULL: none */
    ChatForm form;            /* as which the line was read */
    int count, first;         /* messages; those from `first` on may be trained on */
} Conversation;

/* Moves the messages of a line, an object, into the conversation, whose `where` is set. `key`: the member
 * that holds a list of messages, if it is not one of those above. */
ErrorCode chat_form_read(Conversation *v, ChatForm form, cJSON *line, const char *key, Error *err);

/* Columns of a Parquet file that may hold such lines; those before CHAT_LISTS hold lists, or JSON as text. */
enum { CHAT_COLUMNS = 11, CHAT_LISTS = 3 };
extern const char *const chat_columns[CHAT_COLUMNS];

/* Whether a member or column of this name states that a line is one of preferences (DPO, KTO). */
bool chat_marks_preference(const char *member, bool is_bool);
/* ERR_DATA. `form`: of the conversation that the line has, too; AUTO: it has none, or that is not known. */
ErrorCode chat_refuse_preference(const char *where, const char *member, ChatForm form, Error *err);

const char *chat_role(const cJSON *message); /* NULL: it has none */
/* ERR_DATA unless there are messages, and each is an object with a role. */
ErrorCode chat_check_messages(const Conversation *v, Error *err);

#endif

/* Converts a line of any form to messages. Their texts are moved, not copied, since they may be large. */
#include "data/chat_form.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

const char *const chat_columns[CHAT_COLUMNS] = {"messages",   "conversations", "conversation", "instruction",
                                                "input",      "output",        "history",      "prompt",
                                                "completion", "system",        "tools"};

/* ---- messages ---- */

const char *chat_role(const cJSON *message) {
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    return cJSON_IsString(role) ? role->valuestring : NULL;
}

ErrorCode chat_check_messages(const Conversation *v, Error *err) {
    int i = 0;
    for (const cJSON *m = v->messages->child; m; m = m->next, i++)
        if (!cJSON_IsObject(m) || !chat_role(m))
            return error_set(err, ERR_DATA, "%s: message %d is no object with a role and a content", v->where,
                             i + 1);
    if (i == 0) return error_set(err, ERR_DATA, "%s: there are no messages", v->where);
    return OK;
}

static bool is_given(const cJSON *item) { return item && !cJSON_IsNull(item); }

static cJSON *given(const cJSON *line, const char *name) {
    cJSON *item = cJSON_GetObjectItemCaseSensitive(line, name);
    return is_given(item) ? item : NULL;
}

/* Reasoning has three names; templates read the first or the second. NULL: there is none. */
static const cJSON *reasoning_of(const cJSON *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *item = given(message, names[i]);
        if (item) return item;
    }
    return NULL;
}

/* Converts a message as transformers does before rendering: drops null members, which templates would print
 * as None, and then gives reasoning both names that templates read. */
static cJSON *take_message(cJSON *message) {
    if (!cJSON_IsObject(message)) return message;
    cJSON *taken = cJSON_CreateObject();
    const cJSON *reasoning = reasoning_of(message);
    if (reasoning && !given(message, "thinking"))
        cJSON_AddItemToObject(taken, "thinking", cJSON_Duplicate(reasoning, true));
    for (cJSON *item = message->child, *next; item; item = next) {
        next = item->next;
        if (is_given(item))
            cJSON_AddItemToObject(taken, item->string, cJSON_DetachItemViaPointer(message, item));
    }
    if (reasoning && !cJSON_GetObjectItemCaseSensitive(taken, "reasoning_content"))
        cJSON_AddItemToObject(taken, "reasoning_content", cJSON_Duplicate(reasoning, true));
    cJSON_Delete(message);
    return taken;
}

static void take_messages(const Conversation *v, cJSON *list) {
    while (list->child)
        cJSON_AddItemToArray(v->messages, take_message(cJSON_DetachItemViaPointer(list, list->child)));
}

/* `content` becomes the message's. */
static cJSON *add_message(const Conversation *v, const char *role, cJSON *content) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddItemToObject(message, "content", content);
    cJSON_AddItemToArray(v->messages, message);
    return message;
}

/* ---- ShareGPT ---- */

/* The names of LLaMA-Factory and of the data sets that it reads. */
static const struct {
    const char *from, *role;
} roles[] = {{"human", "user"},
             {"user", "user"},
             {"gpt", "assistant"},
             {"assistant", "assistant"},
             {"chatgpt", "assistant"},
             {"model", "assistant"},
             {"bing", "assistant"},
             {"bard", "assistant"},
             {"system", "system"},
             {"observation", "tool"},
             {"tool", "tool"},
             {"function_response", "tool"},
             {"function_call", "assistant"}};

static ErrorCode map_role(const Conversation *v, int number, const char *from, const char **role,
                          Error *err) {
    char shown[40];
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        *role = roles[i].role;
        if (strcmp(roles[i].from, from) == 0) return OK;
    }
    return error_set(err, ERR_DATA,
                     "%s: message %d is from \"%s\": expected human, user, gpt, assistant, chatgpt, model, "
                     "bing, bard, system, tool, observation, function_call or function_response",
                     v->where, number, error_escape(shown, sizeof shown, from, strlen(from)));
}

/* Parses a member that is JSON as text. Errors have its name, and the position in that text. */
static ErrorCode parse_text(const Conversation *v, const char *name, const char *text, cJSON **parsed,
                            Error *err) {
    Error why = {0};
    const JsonPlace place = {.where = "", .line = 1};
    ErrorCode code = json_parse_literals(place, text, strlen(text), parsed, &why);
    if (code == OK) return OK;
    return error_set(err, code, "%s: the text of %s is no JSON: %s", v->where, name, why.message);
}

/* A call, or a list of calls, as text: {"name": ..., "arguments": ...}. */
static ErrorCode add_calls(const Conversation *v, int number, cJSON *message, const char *text, Error *err) {
    char name[40];
    cJSON *parsed, *calls = cJSON_AddArrayToObject(message, "tool_calls");
    snprintf(name, sizeof name, "message %d (function_call)", number);
    TRY(parse_text(v, name, text, &parsed, err));
    cJSON *list = cJSON_IsArray(parsed) ? parsed : cJSON_CreateArray();
    if (list != parsed) cJSON_AddItemToArray(list, parsed);
    while (list->child) {
        cJSON *call = cJSON_CreateObject();
        cJSON_AddStringToObject(call, "type", "function");
        cJSON_AddItemToObject(call, "function", cJSON_DetachItemViaPointer(list, list->child));
        cJSON_AddItemToArray(calls, call);
    }
    cJSON_Delete(list);
    return OK;
}

static ErrorCode add_shared(const Conversation *v, int number, cJSON *item, Error *err) {
    const cJSON *from = cJSON_GetObjectItemCaseSensitive(item, "from");
    cJSON *value = cJSON_GetObjectItemCaseSensitive(item, "value");
    cJSON *weight = given(item, "weight"); /* axolotl's */
    const char *role = NULL;
    if (!cJSON_IsString(from) || !cJSON_IsString(value))
        return error_set(err, ERR_DATA, "%s: message %d has no \"from\" and \"value\" that are texts",
                         v->where, number);
    TRY(map_role(v, number, from->valuestring, &role, err));
    if (strcmp(from->valuestring, "function_call") == 0)
        return add_calls(v, number, add_message(v, role, cJSON_CreateString("")), value->valuestring, err);
    cJSON *message = add_message(v, role, cJSON_DetachItemViaPointer(item, value));
    if (weight) cJSON_AddItemToObject(message, "weight", cJSON_DetachItemViaPointer(item, weight));
    return OK;
}

static bool is_shared(const cJSON *list) {
    const cJSON *first = list->child;
    return cJSON_GetObjectItemCaseSensitive(first, "from") &&
           !cJSON_GetObjectItemCaseSensitive(first, "role");
}

/* ---- members with texts of other programs ---- */

/* A system message outside of the conversation; one in the conversation goes first. */
static void add_system(const Conversation *v, cJSON *line, const cJSON *list) {
    cJSON *system = given(line, "system");
    const cJSON *from = list ? cJSON_GetObjectItemCaseSensitive(list->child, "from") : NULL;
    bool inside = cJSON_IsString(from) && strcmp(from->valuestring, "system") == 0;
    if (cJSON_IsString(system) && system->valuestring[0] && !inside)
        add_message(v, "system", cJSON_DetachItemViaPointer(line, system));
}

/* A text of JSON, which templates want as a list. */
static ErrorCode parse_tools(const Conversation *v, cJSON *line, Error *err) {
    const cJSON *tools = given(line, "tools");
    cJSON *parsed;
    if (!cJSON_IsString(tools)) return OK;
    if (tools->valuestring[strspn(tools->valuestring, " \t\r\n")] == '\0') {
        cJSON_DeleteItemFromObjectCaseSensitive(line, "tools");
        return OK;
    }
    TRY(parse_text(v, "\"tools\"", tools->valuestring, &parsed, err));
    cJSON_ReplaceItemInObjectCaseSensitive(line, "tools", parsed);
    return OK;
}

/* ---- forms ---- */

static ErrorCode read_shared(Conversation *v, cJSON *line, cJSON *list, Error *err) {
    int number = 1;
    v->form = CHAT_SHAREGPT;
    add_system(v, line, list);
    for (cJSON *item = list->child; item; item = item->next) TRY(add_shared(v, number++, item, err));
    return parse_tools(v, line, err);
}

static ErrorCode read_list(Conversation *v, ChatForm form, cJSON *line, const char *name, Error *err) {
    cJSON *list = given(line, name);
    if (!cJSON_IsArray(list))
        return error_set(err, ERR_DATA, "%s: \"%s\" is no list of messages", v->where, name);
    if (form == CHAT_SHAREGPT || (form == CHAT_AUTO && is_shared(list)))
        return read_shared(v, line, list, err);
    v->form = CHAT_MESSAGES;
    take_messages(v, list);
    return OK;
}

static ErrorCode need_text(const Conversation *v, const cJSON *line, const char *name, Error *err) {
    if (cJSON_IsString(given(line, name))) return OK;
    return error_set(err, ERR_DATA, "%s: \"%s\" is no text", v->where, name);
}

/* [[question, answer], ...]: earlier turns, whose answers are trained on as LLaMA-Factory does. */
static ErrorCode add_history(const Conversation *v, const cJSON *history, Error *err) {
    if (history && !cJSON_IsArray(history))
        return error_set(err, ERR_DATA, "%s: \"history\" is no list of questions and answers", v->where);
    for (cJSON *turn = history ? history->child : NULL; turn; turn = turn->next) {
        if (cJSON_GetArraySize(turn) != 2 || !cJSON_IsString(turn->child) ||
            !cJSON_IsString(turn->child->next))
            return error_set(err, ERR_DATA, "%s: \"history\" has a turn that is no pair of texts", v->where);
        add_message(v, "user", cJSON_DetachItemViaPointer(turn, turn->child));
        add_message(v, "assistant", cJSON_DetachItemViaPointer(turn, turn->child));
    }
    return OK;
}

/* The question is instruction, newline, input, as LLaMA-Factory makes it. The headings of Stanford's Alpaca,
 * which torchtune and axolotl add by default, are a template of their own. */
static ErrorCode read_alpaca(Conversation *v, cJSON *line, Error *err) {
    cJSON *instruction = given(line, "instruction"), *input = given(line, "input");
    TRY(need_text(v, line, "instruction", err));
    TRY(need_text(v, line, "output", err));
    if (input) TRY(need_text(v, line, "input", err));
    add_system(v, line, NULL);
    TRY(add_history(v, given(line, "history"), err));
    Text question = {0};
    text_puts(&question, instruction->valuestring);
    if (input && input->valuestring[0])
        text_printf(&question, "%s%s", question.length ? "\n" : "", input->valuestring);
    add_message(v, "user", cJSON_CreateString(question.data ? question.data : ""));
    text_free(&question);
    add_message(v, "assistant", cJSON_DetachItemFromObjectCaseSensitive(line, "output"));
    return parse_tools(v, line, err);
}

/* A prompt or a completion: messages as they are, or a text as one message of the given role. */
static ErrorCode add_part(const Conversation *v, cJSON *line, const char *name, const char *role,
                          Error *err) {
    cJSON *part = given(line, name);
    if (!cJSON_IsString(part) && !cJSON_IsArray(part))
        return error_set(err, ERR_DATA, "%s: prompt and completion are texts, or lists of messages",
                         v->where);
    if (cJSON_IsString(part))
        add_message(v, role, cJSON_DetachItemViaPointer(line, part));
    else
        take_messages(v, part);
    return OK;
}

static ErrorCode read_pair(Conversation *v, cJSON *line, Error *err) {
    TRY(add_part(v, line, "prompt", "user", err));
    v->first = cJSON_GetArraySize(v->messages);
    return add_part(v, line, "completion", "assistant", err);
}

/* ---- recognition ---- */

/* The members by which a form is known. Two rows may stand for one form. */
typedef struct Sign {
    ChatForm form;
    const char *first, *second; /* second NULL: the first holds a list of messages */
} Sign;

/* NULL in the first row stands for the key. */
static const Sign signs[] = {{CHAT_MESSAGES, NULL, NULL},
                             {CHAT_SHAREGPT, "conversations", NULL},
                             {CHAT_SHAREGPT, "conversation", NULL},
                             {CHAT_ALPACA, "instruction", "output"},
                             {CHAT_PROMPT_COMPLETION, "prompt", "completion"}};

/* Every list may hold messages of either kind. */
static bool may_be(const Sign *s, ChatForm form) {
    bool list = form == CHAT_MESSAGES || form == CHAT_SHAREGPT;
    return form == CHAT_AUTO || s->form == form || (list && !s->second);
}

static const char *form_name(ChatForm form) {
    static const char *const names[] = {CHAT_FORMS(CHOICE_NAME)};
    return names[form];
}

static ErrorCode refuse_unknown(const Conversation *v, ChatForm form, const cJSON *line, const char *key,
                                Error *err) {
    char names[JSON_NAMES], only[80];
    bool any = form == CHAT_AUTO, list = may_be(&signs[0], form);
    snprintf(only, sizeof only, ", by chat_format: %s; without it, every form is read", form_name(form));
    Text expected = {0};
    if (list) text_printf(&expected, "a list of messages under \"%s\" or \"conversations\"", key);
    if (any) text_puts(&expected, ", or ");
    if (any || form == CHAT_ALPACA) text_puts(&expected, "\"instruction\" and \"output\"");
    if (any) text_puts(&expected, ", or ");
    if (any || form == CHAT_PROMPT_COMPLETION) text_puts(&expected, "\"prompt\" and \"completion\"");
    error_set(err, ERR_DATA, "%s: no conversation: it has %s; expected %s%s%s", v->where,
              json_names(line, names), expected.data, any ? "" : only,
              list ? "; name another member with `key` in the source" : "");
    text_free(&expected);
    return ERR_DATA;
}

/* Members of the same form differ by their names alone. */
static ErrorCode refuse_both(const Conversation *v, const Sign *a, const Sign *b, Error *err) {
    return error_set(err, ERR_DATA,
                     a->form == b->form
                         ? "%s: it has \"%s\" and \"%s\", two lists of messages: name one with `key` in the "
                           "source (Parquet: `column`)"
                         : "%s: it has \"%s\" and \"%s\", which belong to two forms of conversations: name "
                           "one with chat_format in the source",
                     v->where, a->first, b->first);
}

/* How much the source speaks for a sign: it names the member, or the form. The default key names nothing. */
static int weight_of(const Sign *s, ChatForm form, const char *key) {
    if (strcmp(key, "messages") != 0 && strcmp(key, s->first) == 0) return 2;
    return s->form == form;
}

/* The sign that weighs most. Two of the same weight are an error: nothing tells which is meant. */
static ErrorCode find_form(const Conversation *v, ChatForm form, const cJSON *line, const char *key,
                           Sign *found, Error *err) {
    Sign other = {0}; /* weighs as much as `found` */
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        Sign s = signs[i];
        if (!s.first) s.first = key;
        if (!may_be(&s, form) || !given(line, s.first) || (s.second && !given(line, s.second))) continue;
        if (found->first && strcmp(found->first, s.first) == 0) continue;
        int more = found->first ? weight_of(&s, form, key) - weight_of(found, form, key) : 1;
        if (more == 0 && !other.first) other = s;
        if (more > 0) *found = s, other = (Sign){0};
    }
    if (!found->first) return refuse_unknown(v, form, line, key, err);
    return other.first ? refuse_both(v, found, &other, err) : OK;
}

static ErrorCode read_found(Conversation *v, ChatForm form, cJSON *line, const Sign *found, Error *err) {
    v->form = found->form;
    if (found->form == CHAT_ALPACA) return read_alpaca(v, line, err);
    if (found->form == CHAT_PROMPT_COMPLETION) return read_pair(v, line, err);
    return read_list(v, form, line, found->first, err);
}

/* ---- preferences ---- */

/* KTO's label is a bool; others are classes. */
bool chat_marks_preference(const char *member, bool is_bool) {
    static const char *const names[] = {"chosen", "rejected", "label", "kto_tag"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(member, names[i]) == 0) return i < 2 || is_bool;
    return false;
}

ErrorCode chat_refuse_preference(const char *where, const char *member, ChatForm form, Error *err) {
    char advice[200] = "for the chosen answers alone, write them as messages; if the lines are conversations "
                       "all the same, name their form with chat_format in the source";
    if (form != CHAT_AUTO)
        snprintf(
            advice, sizeof advice,
            "if all of its answers are to be learned, give the source chat_format: %s, and other members "
            "are ignored",
            form_name(form));
    return error_set(err, ERR_DATA,
                     "%s: \"%s\" stands for preferences (DPO, KTO), which weft does not train on; %s", where,
                     member, advice);
}

/* Rejected answers must not be learned in silence: a line with preferences may hold a conversation, too. A
 * source that names the form, or one of these members, has said what it wants. */
static ErrorCode check_preferences(const Conversation *v, const cJSON *line, const char *key, Error *err) {
    if (chat_marks_preference(key, false)) return OK;
    for (const cJSON *m = line->child; m; m = m->next)
        if (is_given(m) && chat_marks_preference(m->string, cJSON_IsBool(m)))
            return chat_refuse_preference(v->where, m->string, v->form, err);
    return OK;
}

static ErrorCode read_form(Conversation *v, ChatForm form, cJSON *line, const char *key, Error *err) {
    Sign found = {0};
    ErrorCode code = find_form(v, form, line, key, &found, err);
    if (code == OK) code = read_found(v, form, line, &found, err);
    /* Before what else is wrong: that could be mended in vain. */
    if (form == CHAT_AUTO) TRY(check_preferences(v, line, key, err));
    return code;
}

static ErrorCode read_variables(Conversation *v, const cJSON *line, Error *err) {
    v->tools = cJSON_GetObjectItemCaseSensitive(line, "tools");
    v->variables = cJSON_GetObjectItemCaseSensitive(line, "chat_template_kwargs");
    if (v->variables && !cJSON_IsObject(v->variables) && !cJSON_IsNull(v->variables))
        return error_set(err, ERR_DATA, "%s: chat_template_kwargs must be an object", v->where);
    if (!cJSON_GetObjectItemCaseSensitive(v->variables, "messages") &&
        !cJSON_GetObjectItemCaseSensitive(v->variables, "add_generation_prompt"))
        return OK;
    return error_set(err, ERR_DATA,
                     "%s: chat_template_kwargs has messages or add_generation_prompt, which weft itself says",
                     v->where);
}

ErrorCode chat_form_read(Conversation *v, ChatForm form, cJSON *line, const char *key, Error *err) {
    v->messages = cJSON_CreateArray();
    if (!cJSON_IsObject(line)) return error_set(err, ERR_DATA, "%s: expected a JSON object", v->where);
    TRY(read_form(v, form, line, key, err));
    v->count = cJSON_GetArraySize(v->messages);
    TRY(read_variables(v, line, err));
    return chat_check_messages(v, err);
}

/* Converts conversations to ids.
 *
 *     a line --> messages, special tokens in them disarmed --> turns: text and the answers in it --> ids
 *
 *  C1. `Turns` is one document: its text as rendered by the template, and the ranges of it that are assistant
 *      turns, ascending and disjoint. Each range is tokenized on its own, so borders of turns are borders of
 *      tokens.
 *  C2. A rendered text is the template's bytes, plus TOKENIZER_CUT exactly where a special token's spelling
 *      in a message was disarmed: JSON and templates hold only UTF-8, which never contains that byte. */
#include "data/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "data/chat_form.h"
#include "template/template.h"
#include "tokenizer/tokenizer_config.h"

#define TEMPLATE_LIMIT ((size_t)1 << 22)

struct Chat {
    const Tokenizer *tokenizer;
    Template *template;
    Text source; /* of the template */
    char *date;  /* NULL: none */
    ChatLossOn loss_on;
    cJSON *variables;      /* common to all renderings: bos_token etc. */
    const char **specials; /* [special_count] texts of special tokens, owned by the tokenizer */
    size_t *special_lengths, special_count;
    bool special_first[256]; /* whether any of them begins with this byte */
    int32_t end_token;
};

void document_ends_add(DocumentEnds *e, uint64_t end) {
    if (e->count == e->capacity) {
        e->capacity = 2 * e->capacity + 64;
        e->ends = mem_grow(e->ends, e->capacity * sizeof *e->ends);
    }
    e->ends[e->count++] = end;
}

/* ---- the template's files ---- */

/* A string, or a list of named ones, of which the one named "default" is used. */
static const char *template_of(const cJSON *config) {
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(config, "chat_template");
    if (cJSON_IsString(t)) return t->valuestring;
    for (const cJSON *item = cJSON_IsArray(t) ? t->child : NULL; item; item = item->next) {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name"),
                    *text = cJSON_GetObjectItemCaseSensitive(item, "template");
        if (cJSON_IsString(name) && cJSON_IsString(text) && strcmp(name->valuestring, "default") == 0)
            return text->valuestring;
    }
    return NULL;
}

static ErrorCode read_from_config(const ChatOptions *o, Text *out, char **where, Error *err) {
    cJSON *config;
    TRY(tokenizer_config_read(o->tokenizer, &config, err));
    const char *text = template_of(config);
    if (text) text_puts(out, text);
    cJSON_Delete(config);
    if (!text)
        return error_set(
            err, ERR_NOINPUT,
            "%s: no chat template: neither chat_template.jinja nor chat_template in "
            "tokenizer_config.json is next to this tokenizer; name a file with data.chat_template "
            "(generate: --template)",
            o->tokenizer);
    *where = tokenizer_sibling(o->tokenizer, "tokenizer_config.json: chat_template");
    return OK;
}

ErrorCode chat_read_template(const ChatOptions *o, Text *out, char **where, Error *err) {
    char *path = o->template && o->template[0] ? mem_strdup(o->template)
                                               : tokenizer_sibling(o->tokenizer, "chat_template.jinja");
    bool given = o->template && o->template[0];
    *where = NULL;
    if (!given && (!path || !file_exists(path))) {
        free(path);
        return read_from_config(o, out, where, err);
    }
    ErrorCode code = file_read_text(path, TEMPLATE_LIMIT, out, err);
    if (code == OK)
        *where = path;
    else
        free(path);
    return code;
}

/* ---- opening ---- */

static void add_id_text(Chat *c, const char *name, int32_t id) {
    size_t length;
    const char *bytes = tokenizer_token_bytes(c->tokenizer, id, &length);
    if (!bytes || cJSON_GetObjectItemCaseSensitive(c->variables, name)) return;
    char *text = mem_alloc(length + 1);
    memcpy(text, bytes, length);
    cJSON_AddStringToObject(c->variables, name, text);
    free(text);
}

/* The variables that transformers gives to every template: the named special tokens that exist. */
static void collect_variables(Chat *c, const cJSON *config) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    c->variables = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = tokenizer_config_token(config, names[i]);
        if (text) cJSON_AddStringToObject(c->variables, names[i], text);
    }
    add_id_text(c, "bos_token", tokenizer_bos(c->tokenizer));
    add_id_text(c, "eos_token", tokenizer_eos(c->tokenizer));
}

static void collect_specials(Chat *c) {
    int32_t vocabulary = tokenizer_vocab_size(c->tokenizer);
    for (int32_t id = 0; id < vocabulary; id++) c->special_count += tokenizer_is_special(c->tokenizer, id);
    c->specials = mem_alloc_array(c->special_count + 1, sizeof *c->specials);
    c->special_lengths = mem_alloc_array(c->special_count + 1, sizeof *c->special_lengths);
    size_t n = 0;
    for (int32_t id = 0; id < vocabulary; id++) {
        if (!tokenizer_is_special(c->tokenizer, id)) continue;
        c->specials[n] = tokenizer_token_bytes(c->tokenizer, id, &c->special_lengths[n]);
        c->special_first[(unsigned char)c->specials[n++][0]] = true;
    }
}

ErrorCode chat_check_date(const char *date, Error *err) {
    struct tm day;
    if (!date || !date[0]) return OK;
    const char *end = strptime(date, "%Y-%m-%d", &day);
    if (end && !*end && strlen(date) == 10) return OK;
    return error_set(err, ERR_CONFIG, "\"%.40s\" is no day: expected YYYY-MM-DD", date);
}

static void find_end_token(Chat *c);

static ErrorCode open_template(Chat *c, const ChatOptions *o, Error *err) {
    char *where;
    cJSON *config;
    TRY(chat_read_template(o, &c->source, &where, err));
    ErrorCode code =
        template_parse(&c->template, where, c->source.data ? c->source.data : "", c->source.length, err);
    free(where);
    TRY(code);
    TRY(tokenizer_config_read(o->tokenizer, &config, err));
    collect_variables(c, config);
    cJSON_Delete(config);
    return OK;
}

ErrorCode chat_open(Chat **chat, const ChatOptions *o, const Tokenizer *t, Error *err) {
    *chat = NULL;
    Chat *c = mem_alloc(sizeof *c);
    c->tokenizer = t;
    c->loss_on = o->loss_on;
    c->end_token = -1;
    ErrorCode code = chat_check_date(o->date, err);
    if (code == OK && o->date && o->date[0]) c->date = mem_strdup(o->date);
    if (code == OK) code = open_template(c, o, err);
    if (code != OK) {
        chat_close(c);
        return code;
    }
    collect_specials(c);
    find_end_token(c);
    *chat = c;
    return OK;
}

void chat_close(Chat *c) {
    if (!c) return;
    template_free(c->template);
    text_free(&c->source);
    cJSON_Delete(c->variables);
    free(c->date);
    free(c->specials);
    free(c->special_lengths);
    free(c);
}

static void hash_string(Sha256 *h, const char *s) {
    sha256_add_u64(h, strlen(s));
    sha256_add(h, s, strlen(s));
}

/* The number is increased when the same template and line give other ids. */
void chat_hash(const Chat *c, Sha256 *h) {
    hash_string(h, "weft chat 2");
    hash_string(h, c->source.data ? c->source.data : "");
    for (const cJSON *v = c->variables->child; v; v = v->next) {
        hash_string(h, v->string);
        hash_string(h, v->valuestring);
    }
    hash_string(h, c->date ? c->date : "");
    sha256_add_u64(h, (uint64_t)c->loss_on);
}

int32_t chat_end_token(const Chat *c) { return c->end_token; }

/* ---- messages ---- */

/* Length of the special token that text[0, length) begins with; 0: none. */
static size_t special_at(const Chat *c, const char *text, size_t length) {
    if (!c->special_first[(unsigned char)text[0]]) return 0;
    size_t most = 0;
    for (size_t i = 0; i < c->special_count; i++) {
        size_t n = c->special_lengths[i];
        if (n > most && n <= length && memcmp(c->specials[i], text, n) == 0) most = n;
    }
    return most;
}

/* Inserts a cut after the first character of each special token's text. A special token of one character
 * cannot be cut, and is an error. *changed: whether there was any. */
static ErrorCode disarm_text(const Chat *c, const char *where, const char *text, Text *out, bool *changed,
                             Error *err) {
    static const char cut = TOKENIZER_CUT;
    size_t length = strlen(text);
    *changed = false;
    for (size_t at = 0; at < length;) {
        size_t special = special_at(c, text + at, length - at),
               first = text_utf8(text + at, length - at, NULL);
        if (first == 0) first = 1;
        if (special > 0 && special <= first)
            return error_set(err, ERR_DATA,
                             "%s: a message holds a character that is a special token, and could not be told "
                             "from it",
                             where);
        text_add(out, text + at, first);
        if (special > 0) text_add(out, &cut, 1);
        *changed |= special > 0;
        at += first;
    }
    return OK;
}

static ErrorCode disarm_string(const Chat *c, const char *where, cJSON *item, Error *err) {
    Text out = {0};
    bool changed;
    ErrorCode code = disarm_text(c, where, item->valuestring, &out, &changed, err);
    if (code == OK && changed) cJSON_SetValuestring(item, out.data);
    text_free(&out);
    return code;
}

/* Disarms all strings of a message. Names of members cannot be changed, so they must not contain special
 * tokens. */
static ErrorCode disarm(const Chat *c, const char *where, cJSON *item, Error *err) {
    if (cJSON_IsString(item)) return disarm_string(c, where, item, err);
    for (cJSON *child = item->child; child; child = child->next) {
        for (const char *at = child->string; at && *at; at++)
            if (special_at(c, at, strlen(at)))
                return error_set(err, ERR_DATA, "%s: a member's name holds the text of a special token",
                                 where);
        TRY(disarm(c, where, child, err));
    }
    return OK;
}

static bool is_answer(const cJSON *message) { return strcmp(chat_role(message), "assistant") == 0; }

/* OpenAI's fine-tuning format: an answer with weight 0 is context. check_weights has seen it. */
static bool is_learned(const cJSON *message) {
    const cJSON *weight = cJSON_GetObjectItemCaseSensitive(message, "weight");
    return is_answer(message) && !(cJSON_IsNumber(weight) && weight->valuedouble == 0);
}

/* ---- rendering ---- */

/* The variables of one rendering: messages[0, count), and the common ones. */
static cJSON *variables_of(const Chat *c, const Conversation *v, int count, bool prompt) {
    cJSON *all = cJSON_CreateObject(), *messages = cJSON_CreateArray();
    for (const cJSON *m = v->messages->child; m && count-- > 0; m = m->next)
        cJSON_AddItemReferenceToArray(messages, (cJSON *)(uintptr_t)m);
    for (const cJSON *k = c->variables->child; k; k = k->next)
        cJSON_AddItemReferenceToObject(all, k->string, (cJSON *)(uintptr_t)k);
    cJSON_AddItemToObject(all, "messages", messages);
    cJSON_AddBoolToObject(all, "add_generation_prompt", prompt);
    if (v->tools)
        cJSON_AddItemReferenceToObject(all, "tools", v->tools);
    else
        cJSON_AddNullToObject(all, "tools");
    cJSON_AddNullToObject(all, "documents");
    for (const cJSON *k = v->variables ? v->variables->child : NULL; k; k = k->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(all, k->string);
        cJSON_AddItemReferenceToObject(all, k->string, (cJSON *)(uintptr_t)k);
    }
    return all;
}

static ErrorCode render(const Chat *c, const Conversation *v, int count, bool prompt, Text *out,
                        TemplateSpans *answers, Error *err) {
    cJSON *variables = variables_of(c, v, count, prompt);
    ErrorCode code = template_render(c->template, variables, c->date, out, answers, err);
    cJSON_Delete(variables);
    return code == OK ? OK : error_context(err, "%s", v->where);
}

/* ---- turns ---- */

/* A document (C1). */
typedef struct Turns {
    Text text;
    TemplateSpans answers;
} Turns;

static void turns_free(Turns *t) {
    text_free(&t->text);
    template_spans_free(&t->answers);
}

/* The first `same` bytes are known to be equal. */
static bool begins_with(const Text *text, const Text *with, size_t same) {
    if (text->length < with->length) return false;
    return with->length <= same || memcmp(text->data + same, with->data + same, with->length - same) == 0;
}

/* State of rendering a conversation message by message. */
typedef struct Growing {
    const Conversation *v;
    TemplateGrowth *growth;
    const Text *text; /* of the last rendering */
    Error *err;
} Growing;

static ErrorCode grow(Growing *g, int count, bool prompt) {
    ErrorCode code = template_growth_render(g->growth, (size_t)count, prompt, &g->text, g->err);
    return code == OK ? OK : error_context(g->err, "%s", g->v->where);
}

/* *begin: where the assistant turn of message i (from 0) begins in the rendering of messages 0 to i, which
 * becomes g->text. */
static ErrorCode render_answer(Growing *g, int i, size_t *begin) {
    Text prompt = {0}; /* the part of the prompt that the next rendering may change */
    TRY(grow(g, i, true));
    size_t kept = template_growth_kept(g->growth);
    *begin = g->text->length;
    text_add(&prompt, g->text->data + kept, g->text->length - kept);
    ErrorCode code = grow(g, i + 1, false);
    bool begins = code == OK && g->text->length >= *begin &&
                  (prompt.length == 0 || memcmp(g->text->data + kept, prompt.data, prompt.length) == 0);
    text_free(&prompt);
    if (code != OK || begins) return code;
    return error_set(
        g->err, ERR_DATA,
        "%s: message %d: what the template makes of the answer does not begin with the prompt "
        "that it makes for it, so where the answer begins cannot be determined; mark it with {%% "
        "generation %%} in a template of your own (data.chat_template)",
        g->v->where, i + 1);
}

/* Where complete documents go. */
typedef struct Sink {
    const Chat *chat;
    TokenList *ids;
    DocumentEnds *ends; /* NULL: a prompt, without a loss mask */
    uint64_t bytes;
    Error *err;
} Sink;

static ErrorCode put_document(Sink *s, const Turns *t);

/* Adds the assistant turn of message i. If the new rendering does not continue the document in *t, that
 * document is complete and is put first. *kept: number of leading bytes that the document and the rendering
 * are known to share. */
static ErrorCode add_answer(Sink *s, Growing *g, int i, Turns *t, size_t *kept) {
    size_t begin = 0;
    TRY(render_answer(g, i, &begin));
    if (begin < t->text.length || !begins_with(g->text, &t->text, *kept)) {
        TRY(put_document(s, t));
        t->answers.count = 0;
    }
    if (*kept < t->text.length) t->text.length = *kept;
    text_add(&t->text, g->text->data + t->text.length, g->text->length - t->text.length);
    *kept = template_growth_kept(g->growth);
    template_spans_add(&t->answers, (TemplateSpan){begin, t->text.length});
    return OK;
}

/* Adds the assistant turns from message `from` on. They belong to one document as long as each rendering is a
 * prefix of the next. */
static ErrorCode put_answers(Sink *s, const Conversation *v, int from, Turns *t) {
    cJSON *variables = variables_of(s->chat, v, v->count, true);
    Growing g = {.v = v, .err = s->err};
    g.growth = template_growth_open(s->chat->template, variables, s->chat->date);
    cJSON_Delete(variables);
    ErrorCode code = OK;
    size_t kept = 0;
    int i = 0;
    for (const cJSON *m = v->messages->child; m && code == OK; m = m->next, i++)
        if (i >= from && is_learned(m)) code = add_answer(s, &g, i, t, &kept);
    template_growth_close(g.growth);
    return code;
}

typedef bool IsWanted(const cJSON *message);

static int answers_of(const Conversation *v, int from, IsWanted *is_wanted, int *last) {
    int count = 0, i = 0;
    *last = -1;
    for (const cJSON *m = v->messages->child; m; m = m->next, i++)
        if (i >= from && is_wanted(m)) count++, *last = i;
    return count;
}

/* Uses the template's own marks; drops the ranges of turns that are not trained on. */
static ErrorCode put_marked(Sink *s, const Conversation *v, Turns *t) {
    int last, all = answers_of(v, 0, is_answer, &last), own = answers_of(v, v->first, is_learned, &last);
    TRY(render(s->chat, v, v->count, false, &t->text, &t->answers, s->err));
    int wanted = s->chat->loss_on == LOSS_ON_LAST ? 1 : own, marked = (int)t->answers.count;
    if (wanted == all && marked > 0) return OK;
    if (marked != all)
        return error_set(s->err, ERR_DATA,
                         "%s: the template marks %d runs with {%% generation %%}, and there are %d answers: "
                         "which are to be trained on cannot be determined",
                         v->where, marked, all);
    int from = s->chat->loss_on == LOSS_ON_LAST ? last : v->first, i = 0, mark = 0;
    t->answers.count = 0;
    for (const cJSON *m = v->messages->child; m; m = m->next, i++) {
        if (i >= from && is_learned(m)) t->answers.items[t->answers.count++] = t->answers.items[mark];
        mark += is_answer(m);
    }
    return OK;
}

/* "user, gpt": each role once, as far as it fits. */
static const char *roles_found(const Conversation *v, char *out, size_t size) {
    out[0] = 0;
    for (const cJSON *m = v->messages->child; m; m = m->next) {
        bool seen = false;
        for (const cJSON *k = v->messages->child; k != m && !seen; k = k->next)
            seen = strcmp(chat_role(k), chat_role(m)) == 0;
        size_t used = strlen(out);
        char shown[40];
        error_escape(shown, sizeof shown, chat_role(m), strlen(chat_role(m)));
        if (!seen && used + strlen(shown) + 8 < size)
            snprintf(out + used, size - used, "%s\"%s\"", used ? ", " : "", shown);
    }
    return out;
}

/* Refuses misspellings of "assistant", since such answers would silently become context. */
static ErrorCode check_roles(const Conversation *v, Error *err) {
    int i = 1;
    for (const cJSON *m = v->messages->child; m; m = m->next, i++) {
        char shown[40];
        const char *role = chat_role(m);
        if (is_answer(m) || text_distance(role, "assistant") > 2) continue;
        return error_set(err, ERR_DATA, "%s: message %d has the role \"%s\": expected \"assistant\"",
                         v->where, i, error_escape(shown, sizeof shown, role, strlen(role)));
    }
    return OK;
}

/* Only answers have weights. With data.chat_loss_on all, every token of a conversation is learned. */
static ErrorCode check_weights(const Sink *s, const Conversation *v) {
    int i = 1;
    for (const cJSON *m = v->messages->child; m; m = m->next, i++) {
        const cJSON *weight = cJSON_GetObjectItemCaseSensitive(m, "weight");
        if (!weight || !is_answer(m)) continue;
        if (!cJSON_IsNumber(weight) || (weight->valuedouble != 0 && weight->valuedouble != 1))
            return error_set(s->err, ERR_DATA,
                             "%s: message %d has a \"weight\" that is neither 0 (an answer that is not "
                             "learned) nor 1",
                             v->where, i);
        if (weight->valuedouble == 0 && s->chat->loss_on == LOSS_ON_ALL)
            return error_set(
                s->err, ERR_DATA,
                "%s: message %d has weight 0, and data.chat_loss_on is all: set it to assistant, "
                "or remove the weights",
                v->where, i);
    }
    return OK;
}

static ErrorCode refuse_no_answer(const Sink *s, const Conversation *v) {
    char roles[200];
    int last;
    if (answers_of(v, v->first, is_answer, &last) > 0)
        return error_set(s->err, ERR_DATA,
                         "%s: all of its answers have weight 0: there is nothing to train on; remove the "
                         "conversation",
                         v->where);
    return error_set(s->err, ERR_DATA,
                     "%s: no message has the role \"assistant\", found %s: there is nothing to train on; "
                     "rename the role whose messages are answers (data.chat_loss_on=all trains on every "
                     "message)",
                     v->where, roles_found(v, roles, sizeof roles));
}

/* The last document stays in *t. */
static ErrorCode put_conversation(Sink *s, const Conversation *v, Turns *t) {
    int last, count = answers_of(v, v->first, is_learned, &last);
    TRY(check_weights(s, v));
    if (s->chat->loss_on != LOSS_ON_ALL) TRY(check_roles(v, s->err));
    if (s->chat->loss_on == LOSS_ON_ALL) {
        TRY(render(s->chat, v, v->count, false, &t->text, NULL, s->err));
        template_spans_add(&t->answers, (TemplateSpan){0, t->text.length});
    } else if (count == 0) {
        return refuse_no_answer(s, v);
    } else if (template_marks_assistant(s->chat->template)) {
        TRY(put_marked(s, v, t));
    } else {
        TRY(put_answers(s, v, s->chat->loss_on == LOSS_ON_LAST ? last : v->first, t));
    }
    return OK;
}

/* ---- ids ---- */

static bool is_blank(const Tokenizer *t, int32_t id) {
    size_t length;
    const char *bytes = tokenizer_token_bytes(t, id, &length);
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n", bytes[i]) || !bytes[i]) return false;
    return true;
}

/* End of the trained ids of an assistant turn: without white space after the end-of-turn token. */
static size_t trained_end(const Tokenizer *t, const int32_t *ids, size_t from, size_t to) {
    size_t end = to;
    while (end > from && !tokenizer_is_special(t, ids[end - 1]) && is_blank(t, ids[end - 1])) end--;
    return end > from && tokenizer_is_special(t, ids[end - 1]) ? end : to;
}

/* Encodes text[from, to) of the document whose ids begin at index `first`. */
static ErrorCode put_run(Sink *s, const Text *text, TemplateSpan run, size_t first, bool trained) {
    const Tokenizer *t = s->chat->tokenizer;
    int32_t vocabulary = tokenizer_vocab_size(t);
    size_t from = s->ids->count;
    int32_t before = from > first ? s->ids->ids[from - 1] % vocabulary : -1;
    if (run.end > run.begin)
        TRY(tokenizer_encode_chat(t, text->data + run.begin, run.end - run.begin, before, s->ids, s->err));
    if (!trained || !s->ends) return OK;
    size_t end = s->chat->loss_on == LOSS_ON_ALL || template_marks_assistant(s->chat->template)
                     ? s->ids->count
                     : trained_end(t, s->ids->ids, from, s->ids->count);
    for (size_t i = from; i < end; i++) s->ids->ids[i] += vocabulary;
    return OK;
}

static ErrorCode put_runs(Sink *s, const Turns *t) {
    size_t first = s->ids->count, at = 0;
    for (size_t i = 0; i < t->answers.count; i++) {
        TemplateSpan answer = t->answers.items[i];
        TRY(put_run(s, &t->text, (TemplateSpan){at, answer.begin}, first, false));
        TRY(put_run(s, &t->text, answer, first, true));
        at = answer.end;
    }
    return put_run(s, &t->text, (TemplateSpan){at, t->text.length}, first, false);
}

static ErrorCode put_document(Sink *s, const Turns *t) {
    if (t->text.length == 0) return OK;
    TRY(put_runs(s, t));
    s->bytes += t->text.length;
    if (s->ends) document_ends_add(s->ends, s->ids->count);
    return OK;
}

/* ---- interface ---- */

static ErrorCode read_turns(Sink *s, Conversation *v, cJSON *root, const ChatLine *line, Turns *t) {
    const char *key = line->key && line->key[0] ? line->key : "messages";
    TRY(chat_form_read(v, line->form, root, key, s->err));
    TRY(disarm(s->chat, v->where, v->messages, s->err));
    if (v->tools) TRY(disarm(s->chat, v->where, v->tools, s->err));
    if (v->variables) TRY(disarm(s->chat, v->where, v->variables, s->err));
    return put_conversation(s, v, t);
}

/* "file:line" */
enum { LOCATION = 440 };

static const char *location_of(const ChatLine *line, char out[LOCATION]) {
    char path[400];
    error_escape(path, sizeof path, line->where, strlen(line->where));
    snprintf(out, LOCATION, "%s:%llu", path, (unsigned long long)line->number);
    return out;
}

static JsonPlace place_of(const ChatLine *line) {
    return (JsonPlace){line->where, (size_t)line->number, line->row};
}

ErrorCode chat_parse_line(const ChatLine *line, char *data, size_t length, cJSON **parsed, Error *err) {
    return json_parse_literals_in(place_of(line), data, length, parsed, err);
}

/* The last document, usually the only one, is encoded after everything else of the line has been freed. */
ErrorCode chat_encode_parsed(const Chat *c, const ChatLine *line, cJSON *parsed, TokenList *ids,
                             DocumentEnds *ends, uint64_t *bytes, Error *err) {
    char location[LOCATION];
    Sink s = {.chat = c, .ids = ids, .ends = ends, .err = err};
    Conversation v = {.where = location_of(line, location)};
    Turns t = {0};
    ErrorCode code = read_turns(&s, &v, parsed, line, &t);
    cJSON_Delete(v.messages);
    cJSON_Delete(parsed);
    if (code == OK) code = put_document(&s, &t);
    turns_free(&t);
    *bytes += s.bytes;
    return code;
}

ErrorCode chat_encode_line(const Chat *c, const ChatLine *line, const char *data, size_t length,
                           TokenList *ids, DocumentEnds *ends, uint64_t *bytes, Error *err) {
    cJSON *parsed;
    TRY(json_parse_literals(place_of(line), data, length, &parsed, err));
    return chat_encode_parsed(c, line, parsed, ids, ends, bytes, err);
}

/* Encodes a prompt with the cuts that a training document of these turns would have: around its assistant
 * turns, if the rendering continues them. */
static ErrorCode put_prompt(Sink *s, const Conversation *v, Turns *t) {
    Text prompt = {0};
    bool marks = template_marks_assistant(s->chat->template);
    TRY(chat_check_messages(v, s->err));
    if (!marks) TRY(put_answers(s, v, 0, t));
    s->ids->count = 0; /* drops the ids of documents before this one */
    if (marks) t->answers.count = 0;
    ErrorCode code = render(s->chat, v, v->count, true, &prompt, marks ? &t->answers : NULL, s->err);
    if (code == OK && !marks && !begins_with(&prompt, &t->text, 0)) t->answers.count = 0;
    text_free(&t->text);
    t->text = prompt;
    return code == OK ? put_document(s, t) : code;
}

ErrorCode chat_prompt(const Chat *c, const char *where, cJSON *messages, TokenList *ids, Error *err) {
    Conversation v = {.where = where, .messages = messages, .count = cJSON_GetArraySize(messages)};
    Sink s = {.chat = c, .ids = ids, .err = err};
    Turns t = {0};
    ErrorCode code = disarm(c, where, messages, err);
    if (code == OK) code = put_prompt(&s, &v, &t);
    turns_free(&t);
    return code;
}

/* Finds the last special token of an assistant turn, by rendering an example. -1 remains for templates that
 * need more than a question and an answer. */
static void find_end_token(Chat *c) {
    TokenList ids = {0};
    DocumentEnds ends = {0};
    uint64_t bytes = 0;
    static const char text[] = "{\"prompt\": \"a\", \"completion\": \"a\"}";
    static const ChatLine line = {.where = ""};
    int32_t vocabulary = tokenizer_vocab_size(c->tokenizer);
    ErrorCode code = chat_encode_line(c, &line, text, strlen(text), &ids, &ends, &bytes, NULL);
    for (size_t i = 0; code == OK && i < ids.count; i++)
        if (ids.ids[i] >= vocabulary && tokenizer_is_special(c->tokenizer, ids.ids[i] - vocabulary))
            c->end_token = ids.ids[i] - vocabulary;
    token_list_free(&ids);
    free(ends.ends);
}

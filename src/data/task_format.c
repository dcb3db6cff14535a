/* Converts documents to questions.
 *
 *     document --templates, members--> contexts, continuations     " " + choice after the context
 *
 * Prompts follow lm-evaluation-harness to the letter, oddities included: HellaSwag's contexts consist of two
 * parts of which the second is capitalised, which lowers the case of its rest; double spaces are replaced in
 * one pass, so that three become two; WinoGrande scores the rest of the sentence, not the word. */
#include "data/task_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/normalize.h"
#include "tokenizer/utf8.h"

#define QUESTION "Question: {question}\nAnswer:"

const TaskFormat task_formats[] = {
    {.name = "hellaswag",
     .context = "{activity_label}: {ctx_a} {ctx_b|capitalize}",
     .choices = "endings[]",
     .gold = "label",
     .wikihow = true,
     .normalised = true},
    {.name = "arc_easy",
     .context = QUESTION,
     .choices = "choices.text[]",
     .gold = "answerKey",
     .labels = "choices.label",
     .normalised = true},
    {.name = "arc_challenge",
     .context = QUESTION,
     .choices = "choices.text[]",
     .gold = "answerKey",
     .labels = "choices.label",
     .normalised = true},
    {.name = "piqa",
     .context = "Question: {goal}\nAnswer:",
     .choices = "sol1 sol2",
     .gold = "label",
     .normalised = true},
    {.name = "sciq",
     .context = "{support|lstrip}\nQuestion: {question}\nAnswer:",
     .choices = "distractor1 distractor2 distractor3 correct_answer",
     .normalised = true},
    {.name = "openbookqa",
     .context = "{question_stem}",
     .choices = "choices.text[]",
     .gold = "answerKey",
     .labels = "choices.label",
     .normalised = true},
    {.name = "boolq",
     .context = "{passage}\nQuestion: {question}?\nAnswer:",
     .choices = "=no yes",
     .gold = "label|answer"},
    {.name = "winogrande",
     .kind = TASK_BLANK,
     .context = "sentence",
     .choices = "option1 option2",
     .gold = "answer",
     .base = 1},
    {.name = "social_iqa",
     .context = "Q: {context} {question}\nA:",
     .choices = "answerA answerB answerC",
     .gold = "label",
     .base = 1},
    {.name = "commonsense_qa",
     .context = "Question: {question|strip}\nA. {choices.text.0}\nB. {choices.text.1}\nC. {choices.text.2}\n"
                "D. {choices.text.3}\nE. {choices.text.4}\nAnswer:",
     .choices = "=A B C D E",
     .gold = "answerKey",
     .labels = "choices.label"},
    {.name = "mmlu",
     .description = "The following are multiple choice questions (with answers) about {subject|spaces}.\n\n",
     .context = "{question|strip}\nA. {choices.0}\nB. {choices.1}\nC. {choices.2}\nD. {choices.3}\nAnswer:",
     .choices = "=A B C D",
     .gold = "answer"},
    {.name = "lambada", .kind = TASK_WORD, .context = "text"},
    {.name = "text", .kind = TASK_TEXT, .context = "text"},
    {.name = NULL},
};

/* The rest of the name distinguishes files of one format. */
const TaskFormat *task_format_find(const char *name) {
    const TaskFormat *best = NULL;
    for (const TaskFormat *f = task_formats; f->name; f++) {
        size_t length = strlen(f->name);
        bool begins = strncmp(name, f->name, length) == 0 && strchr("_-.", name[length]) != NULL;
        if (begins && (!best || length > strlen(best->name))) best = f;
    }
    return best;
}

void task_format_names(Text *out) {
    for (const TaskFormat *f = task_formats; f->name; f++)
        text_printf(out, "%s%s", f == task_formats ? "" : ", ", f->name);
}

/* ---- white space ---- */

/* str.isspace: Unicode's white space, and four separators of ASCII. */
static bool is_space(uint32_t code) { return utf8_is_space(code) || (code >= 0x1c && code <= 0x1f); }

/* Length of the white-space character that the text begins with; 0: none. */
static size_t space_at(const char *text, size_t length) {
    uint32_t code = 0;
    size_t n = text_utf8(text, length, &code);
    return n > 0 && is_space(code) ? n : 0;
}

size_t task_leading_space(const char *text, size_t length) {
    size_t at = 0;
    for (size_t n; at < length && (n = space_at(text + at, length - at)) > 0;) at += n;
    return at;
}

/* Backwards: a character begins at the last byte that is not a continuation byte. */
size_t task_trailing_space(const char *text, size_t length) {
    size_t end = length;
    while (end > 0) {
        size_t begin = end - 1;
        while (begin > 0 && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
        if (space_at(text + begin, end - begin) != end - begin) break;
        end = begin;
    }
    return length - end;
}

size_t task_words(const char *text, size_t length) {
    size_t words = 1;
    for (size_t at = 0; at < length;) {
        size_t space = task_leading_space(text + at, length - at);
        words += space > 0;
        at += space;
        while (at < length && space_at(text + at, length - at) == 0) at++;
    }
    return words;
}

/* ---- members ---- */

/* "a.b.0": the first element of member b of a. Names have at most 31 letters, as in the table. */
static const cJSON *find(const cJSON *value, const char *path, size_t length) {
    for (size_t at = 0; value && at < length;) {
        const char *dot = memchr(path + at, '.', length - at);
        size_t n = dot ? (size_t)(dot - path) - at : length - at;
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)n, path + at);
        value = cJSON_IsArray(value) ? cJSON_GetArrayItem(value, atoi(name))
                                     : cJSON_GetObjectItemCaseSensitive(value, name);
        at += n + 1;
    }
    return value;
}

static ErrorCode refuse(const TaskFormat *f, const char *where, const char *path, size_t length,
                        const char *expected, Error *err) {
    return error_set(err, ERR_DATA, "%s: %.*s: expected %s, as documents of %s have it", where, (int)length,
                     path, expected, f->name);
}

static ErrorCode get_text(const TaskFormat *f, const char *where, const cJSON *document, const char *path,
                          size_t length, const char **out, Error *err) {
    const cJSON *member = find(document, path, length);
    if (!cJSON_IsString(member)) return refuse(f, where, path, length, "a text", err);
    *out = member->valuestring;
    return OK;
}

/* ---- templates ---- */

static void add_filtered(const char *filter, const char *text, Text *out) {
    size_t length = strlen(text), skip = 0;
    if (strncmp(filter, "strip}", 6) == 0) length -= task_trailing_space(text, length);
    if (strncmp(filter, "strip}", 6) == 0 || strncmp(filter, "lstrip}", 7) == 0)
        skip = task_leading_space(text, length);
    if (strncmp(filter, "capitalize}", 11) == 0) {
        unicode_capitalize(text, length, out);
        return;
    }
    size_t from = out->length;
    text_add(out, text + skip, length - skip);
    for (size_t i = from; strncmp(filter, "spaces}", 7) == 0 && i < out->length; i++)
        if (out->data[i] == '_') out->data[i] = ' ';
}

static ErrorCode fill(const TaskFormat *f, const char *template, const char *where, const cJSON *document,
                      Text *out, Error *err) {
    for (const char *at = template; *at;) {
        size_t plain = strcspn(at, "{");
        text_add(out, at, plain);
        at += plain;
        if (!*at) break;
        size_t name = strcspn(++at, "|}");
        const char *text = NULL;
        TRY(get_text(f, where, document, at, name, &text, err));
        add_filtered(at[name] == '|' ? at + name + 1 : "", text, out);
        at = strchr(at, '}') + 1;
    }
    return OK;
}

/* text = text.replace(from, to). */
static void replace(Text *text, const char *from, const char *to) {
    Text out = {0};
    size_t length = strlen(from);
    const char *at = text->data, *end = at + text->length;
    for (const char *found; (found = strstr(at, from)) != NULL; at = found + length) {
        text_add(&out, at, (size_t)(found - at));
        text_puts(&out, to);
    }
    text_add(&out, at, (size_t)(end - at));
    text_free(text);
    *text = out;
}

/* re.sub(r"\[.*?\]", "", text): from each "[" to the next "]" of the same line. */
static void drop_brackets(Text *text) {
    Text out = {0};
    for (size_t i = 0; i < text->length; i++) {
        size_t n = text->data[i] == '[' ? strcspn(text->data + i, "]\n") : 0;
        if (n > 0 && text->data[i + n] == ']')
            i += n;
        else
            text_add(&out, text->data + i, 1);
    }
    text_free(text);
    *text = out;
}

static void tidy(const TaskFormat *f, Text *text) {
    if (!f->wikihow || text->length == 0) return;
    size_t end = text->length - task_trailing_space(text->data, text->length);
    size_t begin = task_leading_space(text->data, end);
    Text inner = {0};
    text_add(&inner, text->data + begin, end - begin);
    text_free(text);
    *text = inner;
    replace(text, " [title]", ". ");
    drop_brackets(text);
    if (text->length) replace(text, "  ", " ");
}

/* ---- choices ---- */

static ErrorCode add_choice(const TaskFormat *f, const char *where, const char *text, size_t length,
                            TaskQuestion *q, Error *err) {
    if (q->count == TASK_CHOICES)
        return error_set(err, ERR_DATA, "%s: more than %d choices", where, TASK_CHOICES);
    text_add(&q->choices[q->count], text, length);
    tidy(f, &q->choices[q->count]);
    q->count++;
    return OK;
}

static ErrorCode list_choices(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                              Error *err) {
    size_t length = strlen(f->choices) - 2;
    const cJSON *list = find(document, f->choices, length), *item;
    if (!cJSON_IsArray(list)) return refuse(f, where, f->choices, length, "an array of texts", err);
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsString(item)) return refuse(f, where, f->choices, length, "an array of texts", err);
        TRY(add_choice(f, where, item->valuestring, strlen(item->valuestring), q, err));
    }
    return OK;
}

/* Members of the document, or after "=" the words themselves, separated by spaces. */
static ErrorCode take_choices(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                              Error *err) {
    bool words = f->choices[0] == '=';
    if (strchr(f->choices, '[')) return list_choices(f, where, document, q, err);
    for (const char *at = f->choices + words; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        const char *text = at;
        if (!words) TRY(get_text(f, where, document, at, length, &text, err));
        TRY(add_choice(f, where, text, words ? length : strlen(text), q, err));
        at += length;
    }
    return OK;
}

/* Index of an answer among the labels. Leading spaces are ignored, for OpenBookQA. */
static int index_of(const cJSON *labels, const char *answer) {
    const cJSON *item;
    int index = 0;
    answer += task_leading_space(answer, strlen(answer));
    cJSON_ArrayForEach(item, labels) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, answer) == 0) return index;
        index++;
    }
    return -1;
}

/* Numbers occur as numbers, as strings, and as true and false. */
static int number_of(const cJSON *value) {
    if (cJSON_IsBool(value)) return cJSON_IsTrue(value) ? 1 : 0;
    if (cJSON_IsNumber(value) && value->valuedouble >= 0 && value->valuedouble <= TASK_CHOICES)
        return (int)value->valuedouble;
    if (!cJSON_IsString(value) || value->valuestring[0] < '0' || value->valuestring[0] > '9') return -1;
    char *end;
    long number = strtol(value->valuestring, &end, 10);
    return *end == '\0' && number <= TASK_CHOICES ? (int)number : -1;
}

static ErrorCode take_gold(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                           Error *err) {
    q->gold = q->count - 1;
    if (!f->gold) return OK;
    size_t first = strcspn(f->gold, "|");
    const cJSON *value = find(document, f->gold, first);
    if (!value && f->gold[first]) value = find(document, f->gold + first + 1, strlen(f->gold + first + 1));
    if (!f->labels)
        q->gold = number_of(value) - f->base;
    else
        q->gold = cJSON_IsString(value)
                      ? index_of(find(document, f->labels, strlen(f->labels)), value->valuestring)
                      : -1;
    if (q->gold >= 0 && q->gold < q->count) return OK;
    return error_set(err, ERR_DATA,
                     "%s: %.*s: expected which of the %d choices is right, as documents of %s have it; test "
                     "splits without answers cannot be used",
                     where, (int)first, f->gold, q->count, f->name);
}

/* ---- questions by kind ---- */

static ErrorCode ask_choices(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                             Error *err) {
    TRY(take_choices(f, where, document, q, err));
    TRY(take_gold(f, where, document, q, err));
    TRY(fill(f, f->context, where, document, &q->contexts[0], err));
    tidy(f, &q->contexts[0]);
    for (int i = 0; i < q->count; i++) {
        if (i > 0) text_add(&q->contexts[i], q->contexts[0].data, q->contexts[0].length);
        text_puts(&q->continuations[i], " ");
        text_add(&q->continuations[i], q->choices[i].data, q->choices[i].length);
    }
    return OK;
}

/* Partial evaluation: Trinh & Le, "A simple method for commonsense reasoning", 2018. */
static ErrorCode ask_blank(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                           Error *err) {
    const char *text = NULL;
    TRY(get_text(f, where, document, f->context, strlen(f->context), &text, err));
    const char *blank = strchr(text, '_');
    if (!blank) return refuse(f, where, f->context, strlen(f->context), "a text with a \"_\"", err);
    TRY(take_choices(f, where, document, q, err));
    TRY(take_gold(f, where, document, q, err));
    const char *rest = blank + 1;
    rest += task_leading_space(rest, strlen(rest));
    size_t length = strlen(rest) - task_trailing_space(rest, strlen(rest));
    for (int i = 0; i < q->count; i++) {
        text_add(&q->contexts[i], text, (size_t)(blank - text));
        text_add(&q->contexts[i], q->choices[i].data, q->choices[i].length);
        text_puts(&q->continuations[i], " ");
        text_add(&q->continuations[i], rest, length);
    }
    return OK;
}

/* The word after the last space, with that space. */
static ErrorCode ask_word(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                          Error *err) {
    const char *text = NULL;
    TRY(get_text(f, where, document, f->context, strlen(f->context), &text, err));
    const char *space = strrchr(text, ' '), *word = space ? space + 1 : text;
    text_add(&q->contexts[0], text, space ? (size_t)(space - text) : 0);
    text_printf(&q->continuations[0], " %s", word);
    text_puts(&q->choices[0], word);
    q->count = 1;
    return OK;
}

static ErrorCode ask_text(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                          Error *err) {
    const char *text = NULL;
    TRY(get_text(f, where, document, f->context, strlen(f->context), &text, err));
    text_puts(&q->continuations[0], text);
    q->count = 1;
    return OK;
}

ErrorCode task_question(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                        Error *err) {
    q->count = q->gold = 0;
    for (int i = 0; i < TASK_CHOICES; i++) {
        text_clear(&q->contexts[i]);
        text_clear(&q->continuations[i]);
        text_clear(&q->choices[i]);
    }
    text_clear(&q->description);
    if (!cJSON_IsObject(document)) return error_set(err, ERR_DATA, "%s: expected an object", where);
    if (f->description) TRY(fill(f, f->description, where, document, &q->description, err));
    switch (f->kind) {
    case TASK_CHOICE: return ask_choices(f, where, document, q, err);
    case TASK_BLANK: return ask_blank(f, where, document, q, err);
    case TASK_WORD: return ask_word(f, where, document, q, err);
    case TASK_TEXT: return ask_text(f, where, document, q, err);
    }
    return OK;
}

/* A space between question and answer. A word already begins with one, so there are two, as in the
 * harness. */
void task_example(const TaskFormat *f, const TaskQuestion *q, Text *out) {
    const Text *context = &q->contexts[q->gold], *answer = &q->continuations[q->gold];
    text_add(out, context->data, context->length);
    if (f->kind == TASK_WORD) text_puts(out, " ");
    text_add(out, answer->data, answer->length);
}

void task_question_free(TaskQuestion *q) {
    text_free(&q->description);
    for (int i = 0; i < TASK_CHOICES; i++) {
        text_free(&q->contexts[i]);
        text_free(&q->continuations[i]);
        text_free(&q->choices[i]);
    }
}

/* Formats of evaluation tasks: the fields of a document, and the question that it asks a model.
 *
 * A document is a JSON object in the data set's own fields. A model is asked how likely continuations are
 * after contexts, with the prompts of EleutherAI's lm-evaluation-harness (Gao et al., "A framework for
 * few-shot language model evaluation", 2021), so that metrics are comparable with published ones. Each task
 * is a row of a table; the row's fields are the whole language for describing tasks. */
#ifndef WEFT_DATA_TASK_FORMAT_H
#define WEFT_DATA_TASK_FORMAT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/text.h"

typedef enum TaskKind {
    TASK_CHOICE, /* one context, a continuation per choice; scored by the likeliest */
    TASK_BLANK,  /* one continuation, a context per choice, which replaces the "_" */
    TASK_WORD,   /* the last word of a text: does greedy decoding give it? */
    TASK_TEXT,   /* the likelihood of a whole text */
} TaskKind;

typedef struct TaskFormat {
    const char *name;
    TaskKind kind;
    /* Text with "{member}" for a string of the document, "{a.b.0}" for a nested one, and after a bar the
     * transformations: strip, lstrip, capitalize, spaces (for each underscore). For TASK_BLANK, TASK_WORD and
     * TASK_TEXT: the member that holds the text. */
    const char *context;
    const char *description; /* text before everything, examples included; same syntax; NULL: none */
    /* "endings[]": an array of strings; "sol1 sol2": one member each; "=no yes": these literal words. */
    const char *choices;
    /* The member with the right choice: its number counted from `base`, or with `labels` its index in that
     * array. "label|answer" where data sets use either name. NULL: the last choice is right. */
    const char *gold, *labels;
    int base;
    bool wikihow;    /* strip WikiHow's markup from context and choices */
    bool normalised; /* reports acc_norm */
} TaskFormat;

extern const TaskFormat task_formats[]; /* ended by name == NULL */

/* The format with this name, or the one with the longest name that is a prefix of `name`: "mmlu_anatomy" is
 * mmlu. NULL: none. */
const TaskFormat *task_format_find(const char *name);
/* "hellaswag, arc_easy, ..." */
void task_format_names(Text *out);

enum { TASK_CHOICES = 16 };

/* The question of one document. Zero-initialise; reusable for the next document; free with
 * task_question_free. */
typedef struct TaskQuestion {
    int count; /* pairs of context and continuation; TASK_TEXT: one, with an empty context */
    int gold;  /* index of the right one, for TASK_CHOICE and TASK_BLANK; TASK_WORD: 0 */
    Text description;
    Text contexts[TASK_CHOICES], continuations[TASK_CHOICES];
    Text choices[TASK_CHOICES]; /* as in the document; their lengths normalise log-likelihoods */
} TaskQuestion;

/* `where` names the document in errors: "hellaswag.jsonl:12". ERR_DATA for a member that is missing or of the
 * wrong type. */
ErrorCode task_question(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                        Error *err);
void task_question_free(TaskQuestion *q);
/* The question with its right answer, as a few-shot example. Not for TASK_TEXT. */
void task_example(const TaskFormat *f, const TaskQuestion *q, Text *out);

/* Bytes of Python's white space at the start and at the end of valid UTF-8; and the number of words between
 * white space. */
size_t task_leading_space(const char *text, size_t length);
size_t task_trailing_space(const char *text, size_t length);
size_t task_words(const char *text, size_t length); /* as re.split(r"\s+", text) counts them: at least 1 */

#endif

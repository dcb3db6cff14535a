/* Tasks by which models are compared: what stands in a document of each, and what a model is asked about it.
 *
 * A document is a JSON object in the data set's own fields. A model is asked how likely continuations are
 * after contexts, in the words of EleutherAI's lm-evaluation-harness (Gao et al., "A framework for few-shot
 * language model evaluation", 2021), so that its figures are those of others.
 * A task is a row of a table; what the rows may say is all the language there is. */
#ifndef WEFT_DATA_TASK_FORMAT_H
#define WEFT_DATA_TASK_FORMAT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/text.h"

typedef enum TaskKind {
    TASK_CHOICE, /* one context, a continuation for each choice: which is the likeliest? */
    TASK_BLANK,  /* one continuation, a context for each choice, with the choice in place of the "_" */
    TASK_WORD,   /* the last word of a text: is it the one that the model would say? */
    TASK_TEXT,   /* a whole text: how likely? */
} TaskKind;

typedef struct TaskFormat {
    const char *name;
    TaskKind kind;
    /* Text with "{member}" for a string of the document, "{a.b.0}" for one further down, and after a bar what
     * is done to it: strip, lstrip, capitalize, spaces (for each underscore). Of TASK_BLANK, TASK_WORD and
     * TASK_TEXT the member that holds the text. */
    const char *context;
    const char *description; /* the same, of what stands before all, examples too; NULL: nothing does */
    /* "endings[]", an array of strings; "sol1 sol2", a member each; "=no yes", words that stand here. */
    const char *choices;
    /* The member that tells the right choice: its number from `base` on, or with `labels` its place in that
     * array. Where two names are in use, "label|answer". NULL: it is the last choice. */
    const char *gold, *labels;
    int base;
    bool wikihow;    /* marks of that source are taken out of context and choices */
    bool normalised; /* acc_norm is one of its figures */
} TaskFormat;

extern const TaskFormat task_formats[]; /* ended by name == NULL */

/* The format of this name, or the longest whose name a file's begins with: "mmlu_anatomy" is mmlu. NULL:
 * none. */
const TaskFormat *task_format_find(const char *name);
/* "hellaswag, arc_easy, ..." */
void task_format_names(Text *out);

enum { TASK_CHOICES = 16 };

/* What a document asks. Zero-initialise; used again for the next document; freed by task_question_free. */
typedef struct TaskQuestion {
    int count; /* pairs of context and continuation; TASK_TEXT: one, of which the context is empty */
    int gold;  /* the right one of TASK_CHOICE and TASK_BLANK; 0 of TASK_WORD */
    Text description;
    Text contexts[TASK_CHOICES], continuations[TASK_CHOICES];
    Text choices[TASK_CHOICES]; /* as they stand in the document: what sums are divided by the length of */
} TaskQuestion;

/* `where` names the document in errors: "hellaswag.jsonl:12". ERR_DATA for a member that is missing or of
 * another kind. */
ErrorCode task_question(const TaskFormat *f, const char *where, const cJSON *document, TaskQuestion *q,
                        Error *err);
void task_question_free(TaskQuestion *q);
/* The question with its right answer, as an example for others: not of TASK_TEXT. */
void task_example(const TaskFormat *f, const TaskQuestion *q, Text *out);

/* White space as Python has it, at the front and at the end of valid UTF-8, in bytes; and how often it parts
 * a text. */
size_t task_leading_space(const char *text, size_t length);
size_t task_trailing_space(const char *text, size_t length);
size_t task_words(const char *text, size_t length); /* as re.split(r"\s+", text) counts them: at least 1 */

#endif

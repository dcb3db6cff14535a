/* An evaluation task: turns a file of documents into requests to a model, and the model's scores into
 * metrics.
 *
 * A request is a sequence of tokens of which the last ones are scored: the sum of their log-likelihoods given
 * the tokens before them. Tokenization follows lm-evaluation-harness, including the border between context
 * and continuation:
 *
 *     white space at the end of the context moves to the continuation
 *     n = tokens(context);  continuation = tokens(context + continuation)[n:]
 *     too long: tokens are dropped at the left of the context, which is counted as truncated
 *     an empty context is the BOS, or the EOS where there is none
 *     few-shot examples (num_fewshot) precede the context, each as question, answer and an empty line
 *     a text (TASK_TEXT) is scored in windows: each token once, with as much before it as fits
 *
 * Requests follow from files, tokenizer and context length alone, so all ranks split the same list. */
#ifndef WEFT_DATA_TASK_H
#define WEFT_DATA_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "data/config.h"
#include "data/input_files.h"
#include "data/task_format.h"
#include "formats/text_form.h"
#include "tokenizer/tokenizer.h"

typedef struct TaskRequest {
    size_t at;     /* index of its first token in Task.tokens */
    int32_t count; /* tokens: at most the context and one more */
    int32_t first; /* index of the first scored token, at least 1 */
    size_t slot;   /* slot that its score is added to */
} TaskRequest;

/* Scores of one request, or of several together; all zero: none yet. */
typedef struct TaskScore {
    double sum;        /* of log-likelihoods, nats */
    int64_t missed;    /* tokens that were not the argmax; 0: greedy decoding gives the continuation */
    int64_t nonfinite; /* tokens whose log-likelihood is not finite */
} TaskScore;

/* A question; its scores begin at slot `first`. */
typedef struct TaskDocument {
    size_t first;
    int count, gold;
} TaskDocument;

/* Lengths of the scored text: of a choice without the space before it, or of a text. */
typedef struct TaskLength {
    int64_t characters, bytes, words;
} TaskLength;

typedef struct Task {
    const TaskFormat *format;
    char *name;
    size_t documents, slots, requests;
    int64_t truncated;                  /* requests whose context was too long */
    uint64_t text_bytes, invalid_bytes; /* of its files; invalid: not UTF-8 */
    const TextForm *form;               /* of a text that is markup, a table, ..., else NULL */
    TaskDocument *document;             /* [documents] */
    TaskLength *length;                 /* [slots] */
    TaskRequest *request;               /* [requests] */
    TokenList tokens;
    char print[65]; /* SHA-256 of all requests; equal for tasks that ask the same */
} Task;

/* A metric that the task does not have is NaN. Standard errors are those of a mean, with n - 1. */
typedef struct TaskFigures {
    int64_t documents, truncated;
    int64_t nonfinite; /* tokens with a non-finite log-likelihood; if any, every metric is NaN */
    double acc;        /* fraction of documents answered correctly (TASK_WORD: by greedy decoding) */
    double acc_stderr;
    double acc_norm; /* the same by log-likelihood over characters of the choice */
    double acc_norm_stderr;
    double gold_bits_per_byte; /* -log2 of the right choice over its bytes, mean over documents */
    double perplexity;         /* TASK_WORD: exp(-mean log-likelihood of the words) */
    double perplexity_stderr;  /* by the delta method */
    double word_perplexity, byte_perplexity, bits_per_byte; /* TASK_TEXT: of all texts together */
} TaskFigures;

/* ERR_CONFIG for a source that is wrong whatever its files hold. */
ErrorCode task_check(const TaskSource *source, Error *err);
/* The name of its metrics: the given one, or that of the file up to its first dot. The caller frees it. */
char *task_name(const TaskSource *source);
/* Opens a task. `cache`: for files that are URLs. `context`: the most tokens that fit into the model at once.
 * add_bos: contexts begin with the BOS, if the tokenizer has one. ERR_NOINPUT, or ERR_DATA with file and
 * line. Keeps no reference to the source. */
ErrorCode task_open(Task **task, const TaskSource *source, const InputCache *cache,
                    const Tokenizer *tokenizer, int64_t context, bool add_bos, Error *err);
void task_close(Task *t); /* NULL is fine */

/* Adds up the scores of the requests of each slot. */
void task_slots(const Task *t, const TaskScore *scores /* [requests] */, TaskScore *slots /* [slots] */);
void task_figures(const Task *t, const TaskScore *slots /* [slots] */, TaskFigures *out);

#endif

/* A task: a file of documents as requests to a model, and what its answers come to.
 *
 * A request is a sequence of tokens of which the last ones are scored: their log-likelihoods, given those
 * before them, are added up. Tokens are made as lm-evaluation-harness makes them, border between context and
 * continuation included:
 *
 *     white space at the end of the context goes over to the continuation
 *     n = tokens(context);  continuation = tokens(context + continuation)[n:]
 *     too long: tokens are dropped at the left of the context, which is counted as truncated
 *     an empty context is the BOS, or the EOS where there is none
 *     examples (num_fewshot) stand before the context, each as question and answer and an empty line
 *     a text (TASK_TEXT) is scored in windows: each token once, with as much before it as there is room for
 *
 * Everything follows from files, tokenizer and context length: what ranks share out is the same list. */
#ifndef WEFT_DATA_TASK_H
#define WEFT_DATA_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "data/config.h"
#include "data/task_format.h"
#include "tokenizer/tokenizer.h"

typedef struct TaskRequest {
    size_t at;     /* of its first token among the task's */
    int32_t count; /* tokens: at most the context and one more */
    int32_t first; /* the first one that is scored, at least 1 */
    size_t slot;   /* what it is part of the score of */
} TaskRequest;

/* What a model says to one request, or to several together; all zero: nothing yet. */
typedef struct TaskScore {
    double sum; /* of log-likelihoods, nats */
    int64_t
        missed; /* tokens that were not the likeliest; 0: the continuation is what greedy decoding gives */
    int64_t nonfinite; /* tokens whose log-likelihood is no number */
} TaskScore;

/* Of a question: its scores begin at slot `first`. */
typedef struct TaskDocument {
    size_t first;
    int count, gold;
} TaskDocument;

/* Lengths of what a slot scores: of a choice without the space before it, of a text. */
typedef struct TaskLength {
    int64_t characters, bytes, words;
} TaskLength;

typedef struct Task {
    const TaskFormat *format;
    char *name;
    size_t documents, slots, requests;
    int64_t truncated;                  /* requests whose context was too long */
    uint64_t text_bytes, invalid_bytes; /* of its files; invalid: not UTF-8 */
    TaskDocument *document;             /* [documents] */
    TaskLength *length;                 /* [slots] */
    TaskRequest *request;               /* [requests] */
    TokenList tokens;
    char print[65]; /* SHA-256 of all requests: two tasks with the same one ask the same */
} Task;

/* Each is NaN where the task does not have it. Standard errors are those of a mean, with n - 1. */
typedef struct TaskFigures {
    int64_t documents, truncated;
    int64_t nonfinite; /* tokens whose log-likelihood is no number: then every figure is NaN */
    double acc;        /* share of documents in which the likeliest choice is right, or the word is what
                          * greedy decoding gives */
    double acc_stderr;
    double acc_norm; /* the same by log-likelihood over characters of the choice */
    double acc_norm_stderr;
    double gold_bits_per_byte; /* -log2 of the right choice over its bytes, mean over documents */
    double perplexity;         /* TASK_WORD: exp(-mean log-likelihood of the words) */
    double perplexity_stderr;  /* by the delta method */
    double word_perplexity, byte_perplexity, bits_per_byte; /* TASK_TEXT: of all texts together */
} TaskFigures;

/* `context`: the most tokens that go into the model at once. add_bos: contexts begin with the BOS, if the
 * tokenizer has one. ERR_NOINPUT, ERR_DATA with file and line. Nothing of the source is kept. */
ErrorCode task_open(Task **task, const TaskSource *source, const Tokenizer *tokenizer, int64_t context,
                    bool add_bos, Error *err);
void task_close(Task *t); /* NULL is fine */

/* What the requests of each slot come to together. */
void task_slots(const Task *t, const TaskScore *scores /* [requests] */, TaskScore *slots /* [slots] */);
void task_figures(const Task *t, const TaskScore *slots /* [slots] */, TaskFigures *out);

#endif

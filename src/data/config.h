/* Configuration of a run's data: plain fields that an option table fills (data/options.c). */
#ifndef WEFT_DATA_CONFIG_H
#define WEFT_DATA_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/choices.h"
#include "base/options.h"
#include "formats/recoder.h"
#include "formats/token_file.h"
#include "tokenizer/tokenizer.h"

#define SOURCE_FORMATS(X)  \
    X(FORMAT_AUTO, "auto") \
    X(FORMAT_TEXT, "text") \
    X(FORMAT_JSONL, "jsonl") X(FORMAT_CHAT, "chat") X(FORMAT_PARQUET, "parquet") X(FORMAT_TOKENS, "tokens")
typedef enum SourceFormat { SOURCE_FORMATS(CHOICE_CONSTANT) } SourceFormat;
/* How a text file is split into documents. */
#define SOURCE_SPLITS(X) X(SPLIT_FILE, "file") X(SPLIT_PARAGRAPHS, "paragraphs") X(SPLIT_LINES, "lines")
typedef enum SourceSplit { SOURCE_SPLITS(CHOICE_CONSTANT) } SourceSplit;
/* What to do with a malformed JSON line. */
#define BAD_LINES_KINDS(X) X(BAD_LINES_ERROR, "error") X(BAD_LINES_SKIP, "skip")
typedef enum BadLines { BAD_LINES_KINDS(CHOICE_CONSTANT) } BadLines;
/* How a line holds a conversation (data/chat_form.h). */
#define CHAT_FORMS(X)            \
    X(CHAT_AUTO, "auto")         \
    X(CHAT_MESSAGES, "messages") \
    X(CHAT_SHAREGPT, "sharegpt") \
    X(CHAT_ALPACA, "alpaca") X(CHAT_PROMPT_COMPLETION, "prompt_completion")
typedef enum ChatForm { CHAT_FORMS(CHOICE_CONSTANT) } ChatForm;
/* Which tokens of a conversation are trained on. */
#define CHAT_LOSS_ON_KINDS(X) X(LOSS_ON_ASSISTANT, "assistant") X(LOSS_ON_LAST, "last") X(LOSS_ON_ALL, "all")
typedef enum ChatLossOn { CHAT_LOSS_ON_KINDS(CHOICE_CONSTANT) } ChatLossOn;
#define MIXTURE_WEIGHTS(X) X(WEIGHTS_TOKENS, "tokens") X(WEIGHTS_DOCUMENTS, "documents")
typedef enum MixtureWeights { MIXTURE_WEIGHTS(CHOICE_CONSTANT) } MixtureWeights;

#define DEDUP_KINDS(X) X(DEDUP_NONE, "none") X(DEDUP_EXACT, "exact")
typedef enum Dedup { DEDUP_KINDS(CHOICE_CONSTANT) } Dedup;

/* How validation_fraction is drawn. */
#define HOLDOUT_KINDS(X) X(HOLDOUT_POSITION, "position") X(HOLDOUT_HASH, "hash")
typedef enum HoldoutKind { HOLDOUT_KINDS(CHOICE_CONSTANT) } HoldoutKind;

#define SAMPLE_ORDERS(X) X(ORDER_SHUFFLE, "shuffle") X(ORDER_STREAM, "stream")
typedef enum SampleOrder { SAMPLE_ORDERS(CHOICE_CONSTANT) } SampleOrder;

typedef struct DataSource {
    char *path;      /* a file, a shell pattern or a URL */
    double weight;   /* weight in the mixture, relative to the others; 0 for all: one corpus */
    int format;      /* SourceFormat */
    char *key;       /* JSON lines: the member that holds the text, or a conversation's messages */
    char *column;    /* Parquet: the column that holds the text */
    int chat_format; /* ChatForm */
    int dtype;       /* TokenType */
    char *end;       /* token files: the id between documents; "": the tokenizer's EOS; "none" */
    int boundary;    /* TokenBoundary */
    int split;       /* SourceSplit */
    int encoding;    /* TextEncoding */
    int64_t min_bytes, max_bytes; /* of a document's text; 0: any */
    char *name; /* name of the validation set that its validation data belongs to; "": none */
} DataSource;

typedef struct TaskSource {
    char *path;          /* a file of documents */
    char *task;          /* its format (data/task_format.h); "auto": by the file's name */
    char *name;          /* name of its metrics; "": the file's name up to the first dot */
    int64_t limit;       /* documents; 0: all */
    int64_t num_fewshot; /* examples before each question; 0: none */
    char *examples;      /* the file that holds the examples; "": path */
} TaskSource;

typedef struct DataConfig {
    ObjectList sources;            /* of DataSource */
    ObjectList validation_sources; /* of DataSource; empty: take validation_fraction of the sources */
    double validation_fraction;    /* of each source, 0 for none */
    int holdout_by;                /* HoldoutKind */
    char *tokenizer;               /* "bytes", or path of tokenizer.json or of a tiktoken rank file */
    TokenizerKeys tokenizer_keys;
    char *cache_dir;
    const char *remote_dir;  /* of copies of remote files, in REMOTE_DIR/remote; NULL: cache_dir; no key */
    double remote_cache_gib; /* of these copies; 0: no limit */
    uint64_t unit_bytes;     /* data/token_units.h; set by tests, no key */
    int weights;             /* MixtureWeights */
    int order;               /* SampleOrder */
    int64_t stream_block;    /* ORDER_STREAM: tokens within which samples are shuffled */
    bool document_mask;      /* positions restart and attention stays inside documents */
    bool add_bos, add_eos;   /* around each document */
    int dedup;               /* Dedup */
    int bad_lines;           /* BadLines */
    double bad_lines_limit;  /* per source: a count, or a fraction of its lines if below 1 */
    int chat_loss_on;        /* ChatLossOn */
    char *chat_template;     /* a file; empty: the tokenizer's own */
    char *chat_date;         /* date that templates see; empty: none */
    int64_t seed;            /* of the order of samples */
    int64_t prefetch;        /* microbatches kept ready */
    bool audit;              /* record the samples of each step (observe/audit.h) */
} DataConfig;

/* Bytes that copies of remote files may take; 0: any number. */
uint64_t data_remote_limit(const DataConfig *c);
/* Why data.order: stream does not go with other keys, all of which need the whole of the data; NULL: it
 * does. */
const char *data_order_conflict(const DataConfig *c);

extern const Option data_options[];
extern const Option task_options[]; /* of a TaskSource */

#endif

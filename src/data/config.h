/* What a run reads: plain fields that an option table fills (data/options.c). */
#ifndef WEFT_DATA_CONFIG_H
#define WEFT_DATA_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/options.h"
#include "tokenizer/tokenizer.h"

typedef enum SourceFormat { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSONL, FORMAT_CHAT } SourceFormat;
typedef enum SourceSplit {
    SPLIT_FILE,
    SPLIT_PARAGRAPHS,
    SPLIT_LINES
} SourceSplit; /* what a document of a text file is */
typedef enum SourceEncoding { ENCODING_UTF8, ENCODING_BYTES } SourceEncoding; /* BYTES: whatever they are */
typedef enum BadLines { BAD_LINES_ERROR, BAD_LINES_SKIP } BadLines;           /* of JSON */
typedef enum ChatLearn { LEARN_ASSISTANT, LEARN_LAST, LEARN_ALL } ChatLearn;  /* of a conversation */
typedef enum MixtureWeights { WEIGHTS_TOKENS, WEIGHTS_DOCUMENTS } MixtureWeights;

typedef struct DataSource {
    char *path;    /* a file or a shell pattern */
    double weight; /* share of the mixture, relative to the others; 0 for all: one corpus */
    int format;    /* SourceFormat */
    char *key;     /* JSON lines: the member that holds the text, or a conversation's messages */
    int split;     /* SourceSplit */
    int encoding;  /* SourceEncoding */
    char *name;    /* of the validation set that its validation belongs to; "": none */
} DataSource;

typedef struct TaskSource {
    char *path;          /* a file of documents */
    char *task;          /* its format (data/task_format.h); "auto": by the file's name */
    char *name;          /* of its figures; "": the file's name up to the first dot */
    int64_t limit;       /* documents; 0: all */
    int64_t num_fewshot; /* examples before each question; 0: none */
    char *examples;      /* the file that they are from; "": path */
} TaskSource;

typedef struct DataConfig {
    ObjectList sources;            /* of DataSource */
    ObjectList validation_sources; /* of DataSource; empty: take validation_fraction of the sources */
    double validation_fraction;    /* of each source's documents, 0 for none */
    char *tokenizer;               /* "bytes", or path of tokenizer.json or of a tiktoken rank file */
    TokenizerKeys tokenizer_keys;
    char *cache_dir;
    uint64_t unit_bytes;    /* data/token_units.h; of no key, for tests */
    int weights;            /* MixtureWeights */
    bool document_mask;     /* positions restart and attention stays inside documents */
    bool add_bos, add_eos;  /* around each document */
    int bad_lines;          /* BadLines */
    double bad_lines_limit; /* of a source: a count, or a share of its lines below 1 */
    int chat_learn;         /* ChatLearn */
    char *chat_template;    /* a file; empty: the tokenizer's own */
    char *chat_date;        /* that templates are told; empty: none */
    int64_t seed;           /* of the order of samples */
    int64_t prefetch;       /* microbatches kept ready */
    bool audit;             /* record the samples of each step (observe/audit.h) */
} DataConfig;

extern const Option data_options[];
extern const Option task_options[]; /* of a TaskSource */

#endif

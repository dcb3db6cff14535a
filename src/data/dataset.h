/* The data of a run: its sources in token caches, what of them is for training and for validation, and sample
 * k of either.
 *
 * Sample k of training is a function of (dataset fingerprint, seed, mixture weights, context) alone
 * (sampler.h, stream.h). Sample k of validation is window k of the validation streams, one source after the
 * other, in order; with names, set after set.
 *
 * Weights: all 0 means that the sources are one corpus, each window once an epoch; otherwise each must be
 * positive, and is a share of tokens, or of documents, which is turned into one of tokens by the mean length
 * of the source's documents.
 *
 * A source of conversations (format chat) is cut into packed rows where others are cut into windows
 * (packing.h); what is said of windows here holds for these rows.
 *
 * BOS and EOS go around each document of text if asked for and if the tokenizer has them. A tokenizer with
 * one token for both purposes gets it once, at the end. */
#ifndef WEFT_DATA_DATASET_H
#define WEFT_DATA_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "data/chat.h"
#include "data/config.h"
#include "data/sampler.h"
#include "data/stream.h"
#include "tokenizer/tokenizer.h"

typedef struct Dataset Dataset;

/* Whether some source holds conversations, and how these are read. */
bool data_has_conversations(const DataConfig *c);
ChatOptions data_chat_options(const DataConfig *c);

/* Tokenizes what no cache holds yet, with a progress bar each source. threads 0: one per core. Config and
 * tokenizer are not kept. */
ErrorCode dataset_open(Dataset **dataset, const DataConfig *config, const Tokenizer *tokenizer,
                       int64_t context, int threads, Error *err);
void dataset_close(Dataset *d); /* NULL is fine */
/* Names of the caches that dataset_open would look for, a line each, there or not; files that are new or have
 * changed are read, and nothing is tokenized. */
ErrorCode dataset_name_caches(const DataConfig *config, const Tokenizer *tokenizer, int64_t context,
                              Text *names, Error *err);
/* Of what is not as it should be in the sources: bytes, lines, conversations. For one rank, at every start,
 * since a log is read when something is wrong, and that may be long after tokenizing. */
void dataset_warn(const Dataset *d);

/* SHA-256 (hex) of the training data: caches (text, tokenizer, BOS and EOS) in the order of the sources, and
 * the validation split. */
void dataset_fingerprint(const Dataset *d, char out[65]);
/* All that was read, also for validation: SHA-256 and name of each file and of the chat template, a line each
 * (agree_on_files). */
void dataset_list(const Dataset *d, Text *out);
/* What a source was read from: data.sources in their order, then data.validation. */
typedef struct DatasetInput {
    const char *path; /* as configured, perhaps a pattern; the dataset's */
    bool trains;
    size_t files;
    int64_t bytes;
    char
        sha256[65]; /* of the file; of several: of the lines that sha256sum prints of them, in sorted order */
} DatasetInput;
size_t dataset_inputs(const Dataset *d);
DatasetInput dataset_input(const Dataset *d, size_t i);
int64_t dataset_context(const Dataset *d);
/* Files that hold the same bytes as one that is trained on: how many, and the first pair. */
typedef struct DatasetRepeat {
    size_t files;
    const char *path, *again; /* the dataset's */
} DatasetRepeat;
typedef struct DatasetRepeats {
    DatasetRepeat trained_twice, validated_on;
} DatasetRepeats;
DatasetRepeats dataset_repeats(const Dataset *d);

uint64_t dataset_tokens(const Dataset *d); /* for training, all sources */
uint64_t
dataset_text_bytes(const Dataset *d); /* of the sources, before tokenization, validation split included */
uint64_t dataset_samples_per_epoch(const Dataset *d); /* windows for training, all sources */
uint64_t dataset_validation_tokens(const Dataset *d);
uint64_t dataset_validation_samples(const Dataset *d); /* 0: no validation data */

/* Validation samples [first, first + samples): those of the sources of one name, in the order in which names
 * come. All samples are one set of no name where no source has one. */
typedef struct ValidationSet {
    const char *name; /* "": none */
    uint64_t first, samples;
} ValidationSet;
enum { VALIDATION_NAME = 64 }; /* bytes of a name, at most */
size_t dataset_validation_sets(const Dataset *d);
ValidationSet dataset_validation_set(const Dataset *d, size_t set);

size_t dataset_sources(const Dataset *d);
uint64_t dataset_source_windows(const Dataset *d, size_t source); /* for training */
bool dataset_is_mixture(const Dataset *d); /* sources have epochs of their own; else all have one */
/* "7,2,1": the slots of a cycle that each source has (sampler.h), by whatever weights they came about; "0"
 * when it is no mixture. */
enum { DATASET_MIXTURE = 7 * SAMPLER_SOURCES };
void dataset_mixture(const Dataset *d, char out[DATASET_MIXTURE]);
const char *dataset_source_name(const Dataset *d, size_t source);
Sample dataset_locate(const Dataset *d, uint64_t k); /* of training sample k */
/* How many times each source has been read after the first k samples, [sources]. Sources without weights are
 * one corpus, and are read alike. */
void dataset_epochs(const Dataset *d, uint64_t k, double *out);
/* A table of the sources, for people; of a run of so many samples how often it reads each. */
void dataset_describe(const Dataset *d, uint64_t samples /* 0: not said */, Text *out);

/* Sample k as a row of a batch; adds its targets to *valid. Any thread. A validation sample behind the last
 * is a row without targets, so that a last batch may be partly filled. */
ErrorCode dataset_sample(const Dataset *d, bool validation, uint64_t k, const SampleRow *row, int64_t *valid,
                         Error *err);
/* Compares every byte of the caches with its checksum (otherwise that happens on first use). */
ErrorCode dataset_verify(const Dataset *d, Error *err);

#endif

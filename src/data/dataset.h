/* The data of a run: its sources in token caches, their split into training and validation, and sample k of
 * either.
 *
 * Training sample k is a function of (dataset fingerprint, seed, mixture weights, context) alone
 * (sampler.h, stream.h), with data.order: stream also of its block (block_order.h). Validation sample k is
 * window k of the validation streams, in order, one source after the other; with named sets, set after
 * set.
 *
 * Weights: all 0 means that the sources are one corpus, each window once per epoch. Otherwise each weight
 * must be positive, and is a fraction of tokens or of documents. A fraction of documents is converted into
 * one of tokens by the mean length of the source's documents.
 *
 * A source of conversations (format chat) is cut into packed rows instead of windows (packing.h). Everything
 * said of windows here holds for these rows.
 *
 * BOS and EOS surround each document of text if the configuration asks for them and the tokenizer has them. A
 * tokenizer with one token for both purposes gets it once, at the end. */
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

/* Whether any source holds conversations; the options for reading them. */
bool data_has_conversations(const DataConfig *c);
ChatOptions data_chat_options(const DataConfig *c);

/* ERR_CONFIG for what is wrong with the keys by themselves, whatever the files hold; no source at all is left
 * to dataset_open. */
ErrorCode dataset_check(const DataConfig *c, int64_t context, Error *err);
/* Opens the dataset. Tokenizes what no cache holds yet, with a progress bar per source. threads 0: one per
 * core. Config and tokenizer are not kept. */
ErrorCode dataset_open(Dataset **dataset, const DataConfig *config, const Tokenizer *tokenizer,
                       int64_t context, int threads, Error *err);
/* The same, but with data.order: stream the training sources are tokenized while samples are drawn. Until
 * all of it is tokenized, numbers of the whole are 0, and epochs NaN. Config and tokenizer must
 * outlive the dataset. */
ErrorCode dataset_open_growing(Dataset **dataset, const DataConfig *config, const Tokenizer *tokenizer,
                               int64_t context, int threads, Error *err);
void dataset_close(Dataset *d); /* NULL is fine */
/* Whether training sample k can be drawn without waiting. Where it cannot, this starts tokenizing in the
 * background, whose failure it reports. */
ErrorCode dataset_ready(const Dataset *d, uint64_t k, bool *ready, Error *err);
/* Names of the caches that dataset_open would look for, one per line, whether or not they exist, and paths of
 * copies of remote files. Reads new and changed files to hash them; tokenizes nothing. */
ErrorCode dataset_name_caches(const DataConfig *config, const Tokenizer *tokenizer, int64_t context,
                              Text *names, Error *err);
/* Warns about invalid bytes, bad lines and bad conversations in the sources. Call it on one rank at every
 * start: logs are read when something is wrong, which may be long after tokenizing. */
void dataset_warn(const Dataset *d);

/* SHA-256 (hex) of the training data: caches (text, tokenizer, BOS and EOS) in the order of the sources, and
 * the validation split. */
void dataset_fingerprint(const Dataset *d, char out[65]);
/* With data.order: stream, remote files may be fetched while the run trains. Then dataset_fingerprint has
 * their versions in place of their contents. dataset_contents is what it would be with contents: DATA_UNKNOWN
 * until all files have come; "" for other datasets, whose fingerprint is of contents. */
#define DATA_UNKNOWN "unknown"
void dataset_contents(const Dataset *d, char out[65]);
/* Fetches all files whose contents are not known. Before the first sample is asked for. */
ErrorCode dataset_know_contents(Dataset *d, Error *err);
/* Appends the names of such files that are on the server in another version than when they were fetched, as
 * far as data.cache_dir remembers. */
void dataset_changed(const Dataset *d, Text *names);
/* Everything that was read, for validation too: SHA-256 and name of each file and of the chat template, one
 * per line (agree_on_files). */
void dataset_list(const Dataset *d, Text *out);
/* The files of a source: data.sources in their order, then data.validation. */
typedef struct DatasetInput {
    const char *path; /* as configured, perhaps a pattern; owned by the dataset */
    bool trains;
    size_t files;
    int64_t bytes;
    char sha256[65]; /* of one file; several: of the sorted lines that sha256sum prints for them */
} DatasetInput;
size_t dataset_inputs(const Dataset *d);
DatasetInput dataset_input(const Dataset *d, size_t i);
/* All ids of a source: training ones, held-out ones; those that are held out by hash are in the second cache,
 * which else is NULL. Of conversations they tell what is learned, too. NULL for a source that grows. */
const TokenCache *dataset_cache(const Dataset *d, size_t i);
const TokenCache *dataset_held_cache(const Dataset *d, size_t i);
int64_t dataset_context(const Dataset *d);
/* Files with the same bytes as a file used for training: their number, and the first pair. */
typedef struct DatasetRepeat {
    size_t files;
    const char *path, *again; /* owned by the dataset */
} DatasetRepeat;
typedef struct DatasetRepeats {
    DatasetRepeat trained_twice, validated_on;
} DatasetRepeats;
DatasetRepeats dataset_repeats(const Dataset *d);

uint64_t dataset_tokens(const Dataset *d);            /* for training, all sources */
uint64_t dataset_samples_per_epoch(const Dataset *d); /* windows for training, all sources */
uint64_t dataset_validation_tokens(const Dataset *d);
uint64_t dataset_validation_samples(const Dataset *d); /* 0: no validation data */

/* Validation samples [first, first + samples): those of all sources with one name, in the order in which
 * names first occur. If no source has a name, all samples are one unnamed set. */
typedef struct ValidationSet {
    const char *name; /* "": none */
    uint64_t first, samples;
} ValidationSet;
enum { VALIDATION_NAME = 64 }; /* bytes of a name, at most */
size_t dataset_validation_sets(const Dataset *d);
ValidationSet dataset_validation_set(const Dataset *d, size_t set);

size_t dataset_sources(const Dataset *d);
/* For training. 0 with data.order: stream: ranks must agree, and each sees another state of the caches. */
uint64_t dataset_source_windows(const Dataset *d, size_t source);
bool dataset_is_mixture(const Dataset *d); /* each source has its own epochs; else all share one */
/* "7,2,1": slots per cycle of each source (sampler.h), however the weights were given; "0" when it is no
 * mixture. */
enum { DATASET_MIXTURE = 7 * SAMPLER_SOURCES };
void dataset_mixture(const Dataset *d, char out[DATASET_MIXTURE]);
const char *dataset_source_name(const Dataset *d, size_t source);
Sample dataset_locate(const Dataset *d, uint64_t k); /* of training sample k */
/* How many times each source has been read after the first k samples, [sources]. Sources without weights are
 * one corpus and have equal counts. */
void dataset_epochs(const Dataset *d, uint64_t k, double *out);
/* A table of the sources for the reader: with `samples`, how often a run of that length reads each. */
void dataset_describe(const Dataset *d, uint64_t samples /* 0: unknown */, Text *out);

/* Sample k as a row of a batch; adds its number of targets to *valid. Thread-safe. Waits until it is
 * ready. A validation sample past the last is a row without targets, so that the last batch may be partly
 * filled. */
ErrorCode dataset_sample(const Dataset *d, bool validation, uint64_t k, const SampleRow *row, int64_t *valid,
                         Error *err);
/* Verifies the checksums of all blocks of the caches (otherwise done on first use). */
ErrorCode dataset_verify(const Dataset *d, Error *err);

#endif

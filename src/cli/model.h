/* A trained model opened for use: what eval and generate share. */
#ifndef WEFT_CLI_MODEL_H
#define WEFT_CLI_MODEL_H

#include "checkpoint/adapter.h"
#include "cli/cli.h"
#include "cli/needs.h"
#include "config/config.h"
#include "tokenizer/tokenizer.h"
#include "engine/engine.h"

/* Opened in two steps, so that what goes to the model can be read, and the memory that it takes be known,
 * before its weights are loaded. */
typedef struct OpenModel {
    char *dir;          /* where its files are */
    AdapterDir adapter; /* on it; of others empty */
    Tokenizer *tokenizer;
    Device device;
    Layout layout;
    RankPlan plan; /* inference only */
    /* What a run would be told of passes and ranks; the rest of it is as by default. */
    Config config;
    OptionSet set;
    Comm *comm;
    bool alone;     /* comm is the model's own: of this process alone */
    Engine *engine; /* NULL before load_model */
    TokenList ends; /* ids that end a text: of config.json, generation_config.json and the tokenizer */
} OpenModel;

/* Passes that the engine is made for. */
typedef struct PassShape {
    int64_t context;   /* longest sequence; 0: what the model is for, but no more than `most` */
    int64_t most;      /* 0: no limit */
    int64_t sequences; /* of `context` tokens in a pass; 0: passes of `tokens` tokens */
    int64_t tokens;
} PassShape;

/* Ranks that share a model out, or its work: a Comm without a mesh as yet, and how its ranks are laid, by
 * keys of that section, "mesh.pp=2", the degrees whose bits passes have, "numerics.canonical_tp=4", and how
 * long they wait for each other, "comm.watchdog_s=60". */
typedef struct ModelRanks {
    Comm *comm;
    int key_count;
    const char *const *keys;
} ModelRanks;

/* Whether a word is about one of these. */
bool model_is_key(const char *word);
/* Before anything is opened, or started: refused unless so many ranks can be laid so. */
ErrorCode model_check_ranks(const ModelRanks *ranks, int size, Error *err);

/* How long they wait; as a run has it by default, where no key says so. */
ErrorCode model_watchdog(const ModelRanks *ranks, double *seconds, Error *err);

/* `where` is a model directory, an adapter, a checkpoint, or a run directory (its newest checkpoint). Flags
 * --tokenizer, --base, --compute, --device, --threads of the verb are obeyed. ranks: NULL for this process
 * alone; else all of them call it, with the same model, and a failure of one is that of all. Close it also
 * after a failure. */
ErrorCode open_model(OpenModel *m, const char *where, const Arguments *args, PassShape shape,
                     const ModelRanks *ranks, Error *err);
/* Reports the memory that is needed, takes it, and loads the weights. ERR_MEMORY, before any is taken, where
 * less is free. Collective, as open_model. */
ErrorCode load_model(OpenModel *m, const NeedsSpec *needs, Error *err);
void close_model(OpenModel *m);
bool model_ends_text(const OpenModel *m, int32_t id);

/* Of --dtype: fp32 unless asked otherwise, so that what is written is what was trained, to the bit. */
ErrorCode stored_type(const Arguments *args, SafeType *out, Error *err);

/* clang-format off */
#define BASE_FLAG {"--base", 0, "DIR", "of an adapter: where its base model is, when not where it says itself"}
/* clang-format on */
#define MODEL_FLAGS                                                                                     \
    {"--tokenizer", 0, "SPEC",                                                                          \
     "tokenizer, when it is not beside the model: bytes, tokenizer.json or a rank file"},               \
        BASE_FLAG,                                                                                      \
        {"--compute", 0, "TYPE", "fp32 or bf16; the default is what the processor multiplies fastest"}, \
        {"--device", 0, "KIND", "auto, cpu or cuda, as run.device; the default is the CPU"}, {          \
        "--threads", 't', "N", "threads; 0, the default, means one per core"                            \
    }

#endif

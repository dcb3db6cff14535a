/* A trained model opened for inference: shared by eval and generate. */
#ifndef WEFT_CLI_MODEL_H
#define WEFT_CLI_MODEL_H

#include "checkpoint/adapter.h"
#include "cli/cli.h"
#include "cli/needs.h"
#include "config/config.h"
#include "tokenizer/tokenizer.h"
#include "engine/engine.h"

/* Opened in two steps, so that the model's input can be read, and the memory it needs be known, before
 * weights are loaded. */
typedef struct OpenModel {
    char *dir;          /* where its files are */
    AdapterDir adapter; /* its adapter; otherwise empty */
    Tokenizer *tokenizer;
    Device device;
    Layout layout;
    RankPlan plan; /* inference only */
    /* Configuration of passes and ranks as a run would have it; all else is default. */
    Config config;
    OptionSet set;
    Comm *comm;
    bool alone;     /* the model owns comm, of this process alone */
    Engine *engine; /* NULL before load_model */
    TokenList ends; /* ids that end a text, from config.json, generation_config.json and the tokenizer */
} OpenModel;

/* Shapes of the engine's passes. */
typedef struct PassShape {
    int64_t context;   /* longest sequence; 0: the model's context, at most `most` */
    int64_t most;      /* 0: no limit */
    int64_t sequences; /* of `context` tokens per pass; 0: passes of `tokens` tokens */
    int64_t tokens;
} PassShape;

/* The ranks that shard a model or split its work: a Comm without a mesh yet; and keys: the layout of ranks
 * ("mesh.pp=2"), the degrees whose bits the passes reproduce ("numerics.tp_invariant_up_to=4"), and how long
 * ranks wait for each other ("comm.watchdog_s=60"). */
typedef struct ModelRanks {
    Comm *comm;
    int key_count;
    const char *const *keys;
} ModelRanks;

/* Whether a word sets one of these keys. */
bool model_is_key(const char *word);
/* Fails unless `size` ranks can be laid out by these keys. Call it before anything is opened or started. */
ErrorCode model_check_ranks(const ModelRanks *ranks, int size, Error *err);

/* How long ranks wait for each other: the key's value, or a run's default. */
ErrorCode model_watchdog(const ModelRanks *ranks, double *seconds, Error *err);

/* `where` is a model directory, an adapter, a checkpoint, or a run directory (its newest checkpoint). Uses
 * the verb's flags --tokenizer, --base, --compute, --device, --threads. ranks: NULL for this process alone;
 * otherwise collective: all ranks call it with the same model, and all fail if one fails. Close the model
 * also after a failure. */
ErrorCode open_model(OpenModel *m, const char *where, const Arguments *args, PassShape shape,
                     const ModelRanks *ranks, Error *err);
/* Reports the needed memory, allocates it, and loads the weights. ERR_MEMORY, before anything is allocated,
 * if less is free. Collective, as open_model. */
ErrorCode load_model(OpenModel *m, const NeedsSpec *needs, Error *err);
void close_model(OpenModel *m);
bool model_ends_text(const OpenModel *m, int32_t id);

/* The type of --dtype; fp32 by default, so that stored weights are bit for bit the trained ones. */
ErrorCode stored_type(const Arguments *args, SafeType *out, Error *err);

/* clang-format off */
#define BASE_FLAG \
    {"--base", 0, "DIR", "of an adapter: the directory of its base model, if not the one that it names"}
/* clang-format on */
#define MODEL_FLAGS                                                                                     \
    {"--tokenizer", 0, "SPEC",                                                                          \
     "tokenizer, when it is not next to the model: bytes, tokenizer.json or a rank file"},              \
        BASE_FLAG,                                                                                      \
        {"--compute", 0, "TYPE", "fp32 or bf16; the default is what the processor multiplies fastest"}, \
        {"--device", 0, "KIND", "auto, cpu or cuda, as run.device; the default is the CPU"}, {          \
        "--threads", 't', "N", "threads; 0, the default, means one per core"                            \
    }

#endif

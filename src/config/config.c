/* The option table, and what is checked across its rows.
 *
 *  C1. A key is one row: parsing, help, the resolved configuration, agreement of ranks and resuming read
 *      it there.
 *  C2. What one row can say (bounds, choices, what another value does to a run) stands in the row; only
 *      what takes several keys is code, below the table.
 *  C3. A value that follows from others is set through the options with where it came from, so that what
 *      is written down reads back to the same values.
 *
 * What a row's `effect` is, and how one decides it for a new key: does another value, from here on, give
 * other bits? No, whatever it is: EFFECT_NOTHING. Only through the order in which sums are taken, which is
 * told as a fact (setup_sums): EFFECT_SUMS. Last bits, of the same mathematics: EFFECT_BITS. Other
 * mathematics: EFFECT_CURVE. Weights or states of another shape, so that nothing can go on: EFFECT_RUN.
 * Read once, when a run begins: EFFECT_START. The name of something that is compared by its content:
 * EFFECT_CONTENT. tests/program/test_resume.sh tries every row with another value and holds the program to
 * what the row says.
 *
 * Bounds keep values within what the rest computes with: 2^53 for seeds and counts, which pass through
 * JSON's doubles; 1e12 for steps and tokens, whose products must fit 64 bits; below 1 for what decays
 * geometrically.
 *
 * Where a value comes from. Of what is given the later wins; the rest fills in what nobody gave:
 *
 *     default -> file -> command line -> model.config or model.init -> other keys -> tokenizer, mesh, device
 *     (table)    (options_apply_*)       (take_shape)                  (follows)     (train/setup.c) */
#include "config/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "device/device.h"
#include "model/families/family.h"

#define AT(field) offsetof(Config, field)
#define IN(field) offsetof(DataSource, field)

enum { MOST_MICROBATCHES = 1000000 }; /* of a step, on a rank: programs have an action for each */

/* Items of data.sources and data.validation. A weight of 0 for all is the default: sources are one corpus,
 * and a mixture is asked for. */
static const Option source_options[] = {
    /* First, since a bare text in the list stands for this: data.sources=[a.txt, b.txt]. */
    {.key = "path",
     .type = OPT_STRING,
     .offset = IN(path),
     .fallback = "",
     .required = true,
     .help = "A file or a shell pattern; relative to where weft runs."},
    {.key = "weight",
     .type = OPT_DOUBLE,
     .offset = IN(weight),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Share of the mixture, relative to the other sources; 0 for all: sources are one corpus."},
    /* A name need not tell: auto can be overruled by who knows what is in the file. */
    {.key = "format",
     .type = OPT_CHOICE,
     .offset = IN(format),
     .fallback = "auto",
     .choices = "auto|text|jsonl|chat",
     .help = "auto goes by the name: .jsonl, .json, .ndjson are JSON lines; a further .zst is ignored. chat: "
             "a conversation a line, as messages or prompt and completion."},
    {.key = "key",
     .type = OPT_STRING,
     .offset = IN(key),
     .fallback = "",
     .help = "JSON lines: the member that holds the text, or the messages; empty: text, messages."},
    {.key = "split",
     .type = OPT_CHOICE,
     .offset = IN(split),
     .fallback = "file",
     .choices = "file|paragraphs|lines",
     .help = "What a document of a text file is; paragraphs are separated by blank lines."},
    /* What is no text is refused, since nothing else would tell that a model learned an archive. */
    {.key = "encoding",
     .type = OPT_CHOICE,
     .offset = IN(encoding),
     .fallback = "utf-8",
     .choices = "utf-8|bytes",
     .help = "bytes: take a file as it is, whatever it holds; else what is not UTF-8 text is refused."},
    /* Sources of one name are one set. The name becomes part of tags and of checkpoint.keep_best. */
    {.key = "name",
     .type = OPT_STRING,
     .offset = IN(name),
     .fallback = "",
     .help = "Validation set with figures of its own that what is held out of this, or all of it in "
             "data.validation, belongs to; given to each source, or to none."},
    {.key = NULL}};

#define ON(field) offsetof(TaskSource, field)

/* Items of evaluation.tasks. Nobody asks these rows for an effect: the list is compared as a whole. */
static const Option task_options[] = {
    /* First, since a bare text in the list stands for this. */
    {.key = "path",
     .type = OPT_STRING,
     .offset = ON(path),
     .fallback = "",
     .required = true,
     .help = "A file of documents, as the data set has them: JSON lines; relative to where weft runs."},
    {.key = "task",
     .type = OPT_STRING,
     .offset = ON(task),
     .fallback = "auto",
     .help = "What a document of it is (docs/use/evaluation.md); auto: the name that the file's name begins "
             "with."},
    /* What a run knows the figures by, over all its restarts. */
    {.key = "name",
     .type = OPT_STRING,
     .offset = ON(name),
     .fallback = "",
     .help = "What the figures are called; empty: the file's name up to its first dot."},
    {.key = "limit",
     .type = OPT_INT,
     .offset = ON(limit),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Only so many documents, the first ones; 0 means all."},
    /* The key of lm-evaluation-harness. */
    {.key = "num_fewshot",
     .type = OPT_INT,
     .offset = ON(num_fewshot),
     .fallback = "0",
     .min = 0,
     .max = 1000,
     .help =
         "Examples with their answers before each question: the first documents of `examples`, but for what "
         "is asked."},
    {.key = "examples",
     .type = OPT_STRING,
     .offset = ON(examples),
     .fallback = "",
     .help = "The file that they are from, of the same kind; empty: `path`."},
    {.key = NULL}};

#define OF(field) offsetof(OptimizerGroup, field)

/* Items of optimizer.groups. What is `optional` and left out is taken from the section, when the model is
 * known (optimizer/groups.c). The list has an effect, and what does nothing to a run says so. */
static const Option group_options[] = {
    {.key = "match",
     .type = OPT_STRING,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(match),
     .fallback = "",
     .required = true,
     .help = "Regular expression (PCRE2) that is found in the names of these parameters."},
    {.key = "kind",
     .type = OPT_CHOICE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.kind),
     .optional = true,
     .choices = "adamw|sgd|muon",
     .help = "Of these parameters."},
    {.key = "lr",
     .type = OPT_DOUBLE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.lr),
     .optional = true,
     .min = 0,
     .max = 1000,
     .help = "Peak learning rate of these, on the same schedule."},
    {.key = "weight_decay",
     .type = OPT_DOUBLE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.weight_decay),
     .optional = true,
     .min = 0,
     .max = 100,
     .help = "Of all of these, vectors too."},
    {.key = "beta1",
     .type = OPT_DOUBLE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.beta1),
     .optional = true,
     .min = 0,
     .max = 0.999999,
     .help = "adamw: memory of the mean of gradients."},
    {.key = "beta2",
     .type = OPT_DOUBLE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.beta2),
     .optional = true,
     .min = 0,
     .max = 0.999999,
     .help = "adamw: memory of the mean of their squares."},
    {.key = "eps",
     .type = OPT_DOUBLE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.eps),
     .optional = true,
     .min = 1e-30,
     .max = 1,
     .help = "adamw: added to the root of that."},
    {.key = "momentum",
     .type = OPT_DOUBLE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.momentum),
     .optional = true,
     .min = 0,
     .max = 0.999999,
     .help = "sgd, muon: memory of gradients; sgd: 0 for none, and no memory for it."},
    {.key = "nesterov",
     .type = OPT_CHOICE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.nesterov),
     .optional = true,
     .choices = "false|true",
     .help = "sgd, muon: Nesterov's momentum."},
    {.key = "muon_scale",
     .type = OPT_CHOICE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.muon_scale),
     .optional = true,
     .choices = MUON_SCALES,
     .help = "muon: how far a matrix moves."},
    {.key = "muon_coefficients",
     .type = OPT_CHOICE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.muon_coefficients),
     .optional = true,
     .choices = MUON_COEFFICIENTS,
     .help = "muon: of its iterations."},
    {.key = "states",
     .type = OPT_CHOICE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(settings.states),
     .optional = true,
     .choices = "fp32|bf16",
     .help = "Dtype of moments and momentum; bf16 halves their memory and is rounded stochastically."},
    {.key = "whole",
     .type = OPT_CHOICE,
     .effect = EFFECT_NOTHING,
     .offset = OF(whole),
     .optional = true,
     .choices = "false|true",
     .help = "true: with dp_shard, each matrix of these lives on one rank, and is not cut; the same bits."},
    {.key = "frozen",
     .type = OPT_CHOICE,
     .effect = EFFECT_UNKNOWN,
     .offset = OF(frozen),
     .optional = true,
     .choices = "false|true",
     .help = "true: these keep their values; they have no states, count in no norm, and matrices have no "
             "gradient."},
    {.key = NULL}};

const Option config_options[] = {
    /* Where a run lies and how it is driven: nothing of it reaches the curve but the seed of the first
     * weights. `local` values may differ from rank to rank, as machines do: agreement of ranks leaves them
     * out. */
    {.key = "run.dir",
     .type = OPT_STRING,
     .effect = EFFECT_NOTHING,
     .offset = AT(run.dir),
     .fallback = "runs/run",
     .required = true,
     .help = "Run directory: all that a run writes."},
    /* Of the first weights alone. The order of samples and the rounding of states have seeds of their own,
     * so that each can be changed without the others. */
    {.key = "run.seed",
     .type = OPT_INT,
     .effect = EFFECT_START,
     .offset = AT(run.seed),
     .fallback = "42",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "Seed of the initial weights."},
    {.key = "run.threads",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .local = true,
     .offset = AT(run.threads),
     .fallback = "0",
     .min = 0,
     .max = 4096,
     .help = "Threads; 0 means one per core. Results do not depend on it."},
    /* Kernels add in other orders: last bits, told as "the kernels" (RunFacts). */
    {.key = "run.device",
     .type = OPT_CHOICE,
     .effect = EFFECT_SUMS,
     .local = true,
     .offset = AT(run.device),
     .fallback = "auto",
     .choices = DEVICE_KINDS,
     .help = "auto, cpu: the best kernels that the processor runs, or some by name; cuda: a GPU "
             "(docs/cuda.md)."},
    /* Said again at each start, or never: train_supervised says it once for all restarts. */
    {.key = "run.overwrite",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(run.overwrite),
     .fallback = "false",
     .help =
         "Start anew in a directory that already holds a run, whose records and checkpoints are removed."},
    {.key = "run.allow_changes",
     .type = OPT_STRINGS,
     .effect = EFFECT_NOTHING,
     .offset = AT(run.allow_changes),
     .fallback = "",
     .help = "Keys that may differ from those of the checkpoint that a run goes on from; also data, "
             "tokenizer, mixture."},

    /* The shape, by the names of Hugging Face's config.json: what is written there reads back here. It
     * cannot change under weights that have it, hence EFFECT_RUN; constants of the mathematics could,
     * hence EFFECT_CURVE for them. */
    {.key = "model.config",
     .type = OPT_STRING,
     .effect = EFFECT_START,
     .offset = AT(model.config),
     .fallback = "",
     .help = "A Hugging Face config.json to take the shape from; keys given here win."},
    {.key = "model.family",
     .type = OPT_CHOICE,
     .effect = EFFECT_RUN,
     .offset = AT(model.family),
     .fallback = "llama",
     .choices = FAMILY_NAMES,
     .help = "Kind of model, by Hugging Face's model_type (weft models); its defaults hold for keys that "
             "nobody gives."},
    /* 0 can stand until the tokenizer is open, which is after this table has been read (setup_shape).
     * Larger than the tokenizer is allowed: rows may be there for padding. */
    {.key = "model.vocab_size",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.vocab_size),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_VOCAB,
     .help = "Rows of the embedding; 0 means the tokenizer's size."},
    {.key = "model.hidden_size",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.hidden_size),
     .fallback = "256",
     .min = 1,
     .max = MODEL_MAX_WIDTH,
     .help = "Width."},
    /* Not four times the width by rule: gated MLPs have three matrices, and published models choose it
     * freely. */
    {.key = "model.intermediate_size",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.intermediate_size),
     .fallback = "768",
     .min = 1,
     .max = MODEL_MAX_WIDTH,
     .help = "Width of the MLP."},
    {.key = "model.num_hidden_layers",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.num_hidden_layers),
     .fallback = "6",
     .min = 1,
     .max = MODEL_MAX_COUNT,
     .help = "Transformer blocks."},
    {.key = "model.num_attention_heads",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.num_attention_heads),
     .fallback = "8",
     .min = 1,
     .max = MODEL_MAX_COUNT,
     .help = "Query heads."},
    /* Fewer than query heads: grouped queries (Ainslie and others, "GQA", 2023), which need less memory
     * for keys and values when text is generated. */
    {.key = "model.num_key_value_heads",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.num_key_value_heads),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_COUNT,
     .help = "Key and value heads; 0 means as many as query heads."},
    /* A key of its own, since published models have heads whose sizes do not add up to the width. */
    {.key = "model.head_dim",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.head_dim),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_COUNT,
     .help = "Size of a head; 0 means hidden_size / num_attention_heads."},
    /* Only written into config.json, for those who use the model; positions themselves are computed as
     * they come. */
    {.key = "model.max_position_embeddings",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .follows = "train.context",
     .offset = AT(model.shape.max_position_embeddings),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_POSITIONS,
     .help = "Longest sequence the model is for; 0 means train.context."},
    /* Zhang and Sennrich, "Root mean square layer normalization", 2019. 1e-5 is what Llama 2 and 3 have;
     * another one with the same weights is another function of them. */
    {.key = "model.rms_norm_eps",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rms_norm_eps),
     .fallback = "1e-5",
     .min = 0,
     .max = 1,
     .help = "Added to the mean square."},
    /* Su and others, "RoFormer", 2021, whose base is 10,000. From here to rope_truncate: all of it only
     * turns heads, so weights keep their shape. */
    {.key = "model.rope_theta",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_theta),
     .fallback = "10000",
     .min = 1,
     .max = 1e12,
     .help = "Base of the rotary frequencies."},
    /* The type says nothing while the factor is 1, which is the default. So the default may be the
     * commonest of them, and who gives a factor need not give a type. */
    {.key = "model.rope_type",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.kind),
     .fallback = "llama3",
     .choices = ROPE_KINDS,
     .help = "How rotary frequencies are stretched for long contexts."},
    {.key = "model.rope_factor",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.factor),
     .fallback = "1",
     .min = 1,
     .max = 1e6,
     .help = "By how much; 1 means not at all, whatever the type."},
    /* 1 and 4, with 8,192 positions: what config.json of Llama 3.1 has. Between the two wavelengths the
     * frequencies go over from the one to the other (model/rotation.c). */
    {.key = "model.rope_low_freq_factor",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.low_freq_factor),
     .fallback = "1",
     .min = 0,
     .max = 1e6,
     .help = "llama3: wavelengths longer than the original context divided by this are stretched."},
    {.key = "model.rope_high_freq_factor",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.high_freq_factor),
     .fallback = "4",
     .min = 0,
     .max = 1e6,
     .help = "llama3: wavelengths shorter than the original context divided by this are kept."},
    {.key = "model.rope_original_positions",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.original_max_position_embeddings),
     .fallback = "8192",
     .min = 0,
     .max = MODEL_MAX_POSITIONS,
     .help = "llama3, yarn, longrope: the original context."},
    /* Peng and others, "YaRN", 2023; its ramp from 32 turns to 1 is what they found for Llama. 0 stands
     * for the formula, which never gives a length of 0. */
    {.key = "model.rope_attention_factor",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.attention_factor),
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .help = "yarn, longrope: length of sines and cosines; 0 means by the kind's formula."},
    {.key = "model.rope_beta_fast",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.beta_fast),
     .fallback = "32",
     .min = 0,
     .max = 1e6,
     .help = "yarn: pairs that turn more often within the original context are kept."},
    {.key = "model.rope_beta_slow",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.beta_slow),
     .fallback = "1",
     .min = 0,
     .max = 1e6,
     .help = "yarn: pairs that turn less often are stretched."},
    {.key = "model.rope_mscale",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.mscale),
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .help = "yarn: with rope_mscale_all_dim, another formula for the length; 0 means none."},
    /* Lists of model files, one number for each pair that is turned. Where a file has the shape they are set
     * from there. */
    {.key = "model.rope_short_factor",
     .type = OPT_STRINGS,
     .effect = EFFECT_CURVE,
     .offset = AT(model.rope_short_factor),
     .fallback = "[]",
     .help = "longrope: by what each pair's frequency is divided in contexts up to the original one."},
    {.key = "model.rope_long_factor",
     .type = OPT_STRINGS,
     .effect = EFFECT_CURVE,
     .offset = AT(model.rope_long_factor),
     .fallback = "[]",
     .help = "longrope: and in longer ones."},
    {.key = "model.rope_mscale_all_dim",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.mscale_all_dim),
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .help = "yarn: see there."},
    {.key = "model.rope_truncate",
     .type = OPT_BOOL,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_scaling.truncate),
     .fallback = "true",
     .help = "yarn: the ramp begins and ends at whole pairs."},
    /* Windows are short, and want another base than what reaches over the whole context. 0: the same as
     * rope_theta, where the family tells the two apart at all. */
    {.key = "model.rope_local_theta",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.rope_local_theta),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Base of the frequencies in layers with windows, in families that tell them apart."},
    {.key = "model.partial_rotary_factor",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.partial_rotary_factor),
     .fallback = "1",
     .min = 0,
     .max = 1,
     .help = "Share of each head that is turned."},
    /* A pattern is two numbers, so that it is one fact of any depth of model and fits a key. A period ends
     * at 52: every mask is then a whole number that a double, and so JSON, holds. */
    {.key = "model.no_rope_period",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.no_rope.period),
     .fallback = "0",
     .min = 0,
     .max = LAYER_SET_PERIOD,
     .help = "Layers after which the pattern of those that are not turned repeats; 0 means all are."},
    {.key = "model.no_rope_layers",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.no_rope.layers),
     .fallback = "0",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "That pattern: bit i is layer i of the period."},
    /* Beltagy and others, "Longformer", 2020. The number alone changes nothing: the pattern below says
     * which layers have a window. */
    {.key = "model.sliding_window",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.sliding_window),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_POSITIONS,
     .help = "Keys that a token sees, itself the last, in layers with a window; 0 means no windows."},
    {.key = "model.window_period",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.windows.period),
     .fallback = "0",
     .min = 0,
     .max = LAYER_SET_PERIOD,
     .help = "Layers after which the pattern of those with a window repeats; 0 means none has."},
    {.key = "model.window_layers",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.windows.layers),
     .fallback = "0",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "That pattern: bit i is layer i of the period."},
    /* Of Llama 4, by its own keys. */
    {.key = "model.attn_scale",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.attn_scale),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Queries of layers that are not turned are multiplied by 1 + attn_scale log(1 + floor((p + 1) / "
             "floor_scale)) at position p; 0: they stay."},
    {.key = "model.floor_scale",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.floor_scale),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_POSITIONS,
     .help = "Positions after which that factor grows."},
    {.key = "model.use_qk_norm",
     .type = OPT_BOOL,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.use_qk_norm),
     .fallback = "false",
     .help = "Norm heads of queries and keys, without weights, behind their rotation."},
    /* Experts in place of MLPs, by the keys of transformers' Qwen 3 MoE. How many there are and how wide is
     * the shape of the weights; how many of them a token meets is not, but another number is another
     * model. */
    {.key = "model.num_experts",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.num_experts),
     .fallback = "0",
     .min = 0,
     .max = EXPERTS_MAX,
     .help = "Experts in place of the MLP, in families that have them; 0 means none."},
    {.key = "model.num_experts_per_tok",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.num_experts_per_tok),
     .fallback = "0",
     .min = 0,
     .max = EXPERTS_MAX,
     .help = "Experts that each token goes to."},
    {.key = "model.moe_intermediate_size",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.moe_intermediate_size),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_WIDTH,
     .help = "Width of an expert; 0 means intermediate_size."},
    {.key = "model.dense_period",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.dense_layers.period),
     .fallback = "0",
     .min = 0,
     .max = LAYER_SET_PERIOD,
     .help = "Layers after which the pattern of those without experts repeats; 0 means all have them."},
    {.key = "model.dense_layers",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.dense_layers.layers),
     .fallback = "0",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "That pattern: bit i is layer i of the period."},
    {.key = "model.first_k_dense_replace",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.first_k_dense_replace),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_COUNT,
     .help = "And so many of the first have none."},
    /* From here to v_head_dim: the keys of DeepSeek's config.json. */
    {.key = "model.n_shared_experts",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.n_shared_experts),
     .fallback = "0",
     .min = 0,
     .max = EXPERTS_MAX,
     .help = "An MLP as wide as so many experts, which all tokens meet besides; 0 means none."},
    {.key = "model.n_group",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.n_group),
     .fallback = "0",
     .min = 0,
     .max = EXPERTS_MAX,
     .help = "Groups that experts are in; a token's are of topk_group of them. Up to 1: no groups."},
    {.key = "model.topk_group",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.topk_group),
     .fallback = "0",
     .min = 0,
     .max = EXPERTS_MAX,
     .help = "Groups that a token's experts are from."},
    {.key = "model.routed_scaling_factor",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.routed_scaling_factor),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Weights of a token's experts are multiplied by it; 0 means by 1."},
    {.key = "model.q_lora_rank",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.q_lora_rank),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_WIDTH,
     .help = "Width of the latent of queries, of latent attention; 0 means they have none."},
    {.key = "model.kv_lora_rank",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.kv_lora_rank),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_WIDTH,
     .help = "Width of the latent of keys and values; 0 means attention is not latent."},
    {.key = "model.qk_nope_head_dim",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.qk_nope_head_dim),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_COUNT,
     .help = "Of a head of latent attention: elements of queries and keys that are not turned."},
    {.key = "model.qk_rope_head_dim",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.qk_rope_head_dim),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_COUNT,
     .help = "And those that are; of keys they are one for all heads."},
    {.key = "model.v_head_dim",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.v_head_dim),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_COUNT,
     .help = "And elements of values."},
    /* A pattern of names, which is one fact of any depth of model. Where a file has the shape it is set from
     * there. */
    {.key = "model.mixer",
     .type = OPT_STRINGS,
     .effect = EFFECT_RUN,
     .offset = AT(model.mixer),
     .fallback = "[]",
     .help = "What blocks do along the sequence, in the family recurrent: " MIXER_NAMES
             ", or a list of these, which repeats over the blocks."},
    {.key = "model.recurrent_size",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.recurrent_size),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_WIDTH,
     .help = "Channels of a recurrence; 0 means twice hidden_size, with hawk alone 4/3 of it in whole 256."},
    {.key = "model.mamba_d_state",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.mamba_d_state),
     .fallback = "0",
     .min = 0,
     .max = MAMBA_STATE,
     .help = "Numbers of the state of mamba2 for each channel; 0 means 128."},
    {.key = "model.mamba_d_head",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.mamba_d_head),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_COUNT,
     .help = "Channels of a head of mamba2; 0 means 64. They divide model.recurrent_size."},
    {.key = "model.mamba_n_groups",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.mamba_n_groups),
     .fallback = "0",
     .min = 0,
     .max = MODEL_MAX_WIDTH,
     .help = "Groups of heads of mamba2 that have B and C in common; 0 means 1."},
    {.key = "model.conv_size",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.conv_size),
     .fallback = "0",
     .min = 0,
     .max = CONV_TAPS,
     .help = "Tokens that the convolution before a recurrence's gates sees; 0 means there is none."},
    {.key = "model.norm_topk_prob",
     .type = OPT_BOOL,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.norm_topk_prob),
     .fallback = "false",
     .help = "Divide the weights of a token's experts by their sum."},
    /* Two keys, since transformers has two: it takes the coefficient only where logits of routers are put
     * out. */
    {.key = "model.output_router_logits",
     .type = OPT_BOOL,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.output_router_logits),
     .fallback = "false",
     .help = "Train with the balance loss of experts, times router_aux_loss_coef."},
    {.key = "model.router_aux_loss_coef",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.router_aux_loss_coef),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Coefficient of the loss that is least where experts have equally many tokens; counts only with "
             "output_router_logits."},
    {.key = "model.query_pre_attn_scalar",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.query_pre_attn_scalar),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Scores are divided by its root; 0 means head_dim."},
    /* Gemma 2 ("Gemma 2: Improving open language models at a practical size", 2024). It bounds scores
     * before the softmax; its derivative is smooth, which a clamp's is not. */
    {.key = "model.attn_logit_softcapping",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.attn_logit_softcapping),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Scores s become c tanh(s / c); 0 means they stay."},
    {.key = "model.final_logit_softcapping",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(model.shape.final_logit_softcapping),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "And logits."},
    /* Press and Wolf, "Using the output embedding to improve language models", 2017. One tensor less:
     * EFFECT_RUN, since a run could neither drop the head nor make one up. */
    {.key = "model.tie_word_embeddings",
     .type = OPT_BOOL,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.tie_word_embeddings),
     .fallback = "false",
     .help = "The head reads the embedding."},
    /* Biases are tensors of their own: with another value a checkpoint would lack some or have some too
     * many. */
    {.key = "model.attention_bias",
     .type = OPT_BOOL,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.attention_bias),
     .fallback = "false",
     .help = "Biases on q, k, v, o."},
    {.key = "model.mlp_bias",
     .type = OPT_BOOL,
     .effect = EFFECT_RUN,
     .offset = AT(model.shape.mlp_bias),
     .fallback = "false",
     .help = "Biases on gate, up, down."},
    /* What weights start from: over when a run has begun. */
    {.key = "model.init",
     .type = OPT_STRING,
     .effect = EFFECT_START,
     .offset = AT(model.init),
     .fallback = "",
     .help = "A Hugging Face directory of a family of model.family, checkpoint or run to take shape and "
             "weights from; empty means random weights."},
    {.key = "model.initialiser",
     .type = OPT_CHOICE,
     .effect = EFFECT_START,
     .offset = AT(model.initialiser),
     .fallback = "torchtitan",
     .choices = INIT_NAMES,
     .help =
         "Random weights; a function of (seed, name, element) alone. Families have defaults of their own."},
    /* Of one initialiser only. The others have scales of their own, by role and depth
     * (model/initialiser.c). */
    {.key = "model.init_std",
     .type = OPT_DOUBLE,
     .effect = EFFECT_START,
     .offset = AT(model.init_std),
     .fallback = "0.02",
     .min = 0,
     .max = 100,
     .help = "Standard deviation of initialiser: normal."},

    /* Adapters. Which weights there are hangs on rank and match, so another value is another run. */
    {.key = "lora.rank",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(lora.rank),
     .fallback = "0",
     .min = 0,
     .max = 65536,
     .help = "Rank of adapters (LoRA) on matrices of model.init, of which nothing else is trained; "
             "checkpoints are PEFT adapters; 0: none."},
    {.key = "lora.alpha",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(lora.alpha),
     .fallback = "16",
     .min = 1e-6,
     .max = 1e6,
     .help = "What adapters add is scaled by alpha / rank."},
    /* Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with LoRA", 2023. */
    {.key = "lora.rslora",
     .type = OPT_BOOL,
     .effect = EFFECT_CURVE,
     .offset = AT(lora.rslora),
     .fallback = "false",
     .help = "The scale is alpha / sqrt(rank)."},
    {.key = "lora.match",
     .type = OPT_STRING,
     .effect = EFFECT_RUN,
     .offset = AT(lora.match),
     .fallback = "",
     .help = "Regular expression (PCRE2) that is found in the names of matrices that get an adapter; empty: "
             "all of the blocks, attention and MLP."},

    /* What is trained on, in what order. Files are compared by fingerprint (data/fingerprint.c): they may
     * move, but not change. What decides the ids of a cache or the order of samples is EFFECT_CURVE. */
    {.key = "data.sources",
     .type = OPT_LIST,
     .effect = EFFECT_CONTENT,
     .offset = AT(data.sources),
     .fallback = "",
     .item = source_options,
     .item_size = sizeof(DataSource),
     .help = "What to train on: paths, or maps of path, weight, format, key, split, encoding, name."},
    /* Other figures of the same run. */
    {.key = "data.validation",
     .type = OPT_LIST,
     .effect = EFFECT_MEASURES,
     .offset = AT(data.validation_sources),
     .fallback = "",
     .item = source_options,
     .item_size = sizeof(DataSource),
     .help =
         "What to validate on; maps with a name make named sets; empty: validation_fraction of the sources."},
    /* EFFECT_CURVE and not EFFECT_MEASURES: what is held out is missing from training. Less than all, so
     * that there is something to train on. */
    {.key = "data.validation_fraction",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(data.validation_fraction),
     .fallback = "0",
     .min = 0,
     .max = 0.9,
     .help = "Share of each source kept out of training for validation."},
    /* The path may change with the machine; what counts is the fingerprint of what is found there. The
     * default needs no file, so that the smallest configuration trains. */
    {.key = "data.tokenizer",
     .type = OPT_STRING,
     .effect = EFFECT_CONTENT,
     .offset = AT(data.tokenizer),
     .fallback = "bytes",
     .help = "bytes, or a Hugging Face tokenizer.json, or a tiktoken rank file."},
    /* What the tokenizer's files leave open. All of it is in the tokenizer's fingerprint, but for the ends
     * that are written down and end no document. */
    {.key = "tokenizer.pattern",
     .type = OPT_STRING,
     .effect = EFFECT_CONTENT,
     .offset = AT(data.tokenizer_keys.pattern),
     .fallback = "",
     .help = "What a tiktoken rank file that weft does not know is like: gpt2, p50k, cl100k, o200k, harmony, "
             "llama3, llama4, qwen, qwen2, qwen35 or tekken; empty: such files are refused."},
    {.key = "tokenizer.special",
     .type = OPT_STRINGS,
     .effect = EFFECT_CONTENT,
     .offset = AT(data.tokenizer_keys.special),
     .fallback = "",
     .help =
         "Special tokens of a tiktoken rank file, with the ids behind its ranks; empty: those of its kind."},
    {.key = "tokenizer.bos",
     .type = OPT_STRING,
     .effect = EFFECT_CONTENT,
     .offset = AT(data.tokenizer_keys.bos),
     .fallback = "",
     .help =
         "The token that begins a text, by its text, or none; empty: as tokenizer_config.json and names in "
         "use say."},
    {.key = "tokenizer.eos",
     .type = OPT_STRINGS,
     .effect = EFFECT_CONTENT,
     .offset = AT(data.tokenizer_keys.eos),
     .fallback = "",
     .help =
         "The token that ends a text, or several, of which the first ends documents and all are the model's "
         "eos_token_id; none; empty: as tokenizer_config.json, names in use and model.init say."},
    {.key = "tokenizer.pad",
     .type = OPT_STRING,
     .effect = EFFECT_NOTHING,
     .offset = AT(data.tokenizer_keys.pad),
     .fallback = "",
     .help = "The token that fills up rows elsewhere, for pad_token_id; empty: that of model.init."},
    /* Each machine may keep its own. A cache is found by the content of what it was made of, so nothing in
     * it can be mistaken for another's. */
    {.key = "data.cache_dir",
     .type = OPT_STRING,
     .effect = EFFECT_NOTHING,
     .local = true,
     .offset = AT(data.cache_dir),
     .fallback = ".weft-cache",
     .required = true,
     .help = "Where token caches are kept."},
    /* Documents of one source may be long and those of another short: a share of one is then no share of
     * the other. */
    {.key = "data.weights",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(data.weights),
     .fallback = "tokens",
     .choices = "tokens|documents",
     .help = "What the weights of sources are shares of."},
    /* Which keys a token sees: the mathematics. */
    {.key = "data.document_mask",
     .type = OPT_BOOL,
     .effect = EFFECT_CURVE,
     .offset = AT(data.document_mask),
     .fallback = "false",
     .help = "Positions restart and attention stays inside documents; of conversations they always do."},
    /* Both by default, so that a model learns where a text begins and where it ends: generate starts with
     * the one and stops at the other. */
    {.key = "data.add_bos",
     .type = OPT_BOOL,
     .effect = EFFECT_CURVE,
     .offset = AT(data.add_bos),
     .fallback = "true",
     .help = "Begin each document of text with the tokenizer's BOS, if any."},
    {.key = "data.add_eos",
     .type = OPT_BOOL,
     .effect = EFFECT_CURVE,
     .offset = AT(data.add_eos),
     .fallback = "true",
     .help = "End each document of text with the tokenizer's EOS, if any."},
    /* What is skipped is missing from the data. */
    {.key = "data.bad_lines",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(data.bad_lines),
     .fallback = "error",
     .choices = "error|skip",
     .help =
         "What becomes of a line of JSON that is broken or has no text: end, or skip, count and list it."},
    {.key = "data.bad_lines_limit",
     .type = OPT_DOUBLE,
     .effect = EFFECT_NOTHING,
     .offset = AT(data.bad_lines_limit),
     .fallback = "0.01",
     .min = 0,
     .max = 1e12,
     .help = "Lines of a source that may be skipped: a count, or, below 1, a share."},
    /* Conversations. What is learned decides targets; the template is compared by its text, which is in the
     * fingerprint of the data. */
    {.key = "data.chat_learn",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(data.chat_learn),
     .fallback = "assistant",
     .choices = "assistant|last|all",
     .help =
         "What of a conversation is learned: the answers of the assistant, the last of them, or everything."},
    {.key = "data.chat_template",
     .type = OPT_STRING,
     .effect = EFFECT_CONTENT,
     .offset = AT(data.chat_template),
     .fallback = "",
     .help = "A chat template (Jinja) for sources of format chat; empty: the one beside data.tokenizer."},
    /* A date of its own: with today's the same lines would be other data tomorrow. */
    {.key = "data.chat_date",
     .type = OPT_STRING,
     .effect = EFFECT_CURVE,
     .offset = AT(data.chat_date),
     .fallback = "",
     .help = "The day, YYYY-MM-DD, that chat templates are told when they ask for the date; empty: they are "
             "told that nobody knows it."},
    /* Apart from run.seed: the same order of samples under other first weights, and the other way round. */
    {.key = "data.seed",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(data.seed),
     .fallback = "42",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "Seed of the order of samples."},
    /* Written beside the run; a run can begin or end with it at any start. */
    {.key = "data.audit",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(data.audit),
     .fallback = "false",
     .help = "Record the samples of each step, for \"weft audit\"; about 25 bytes a sample."},
    /* Read ahead; what is read is decided by the sampler. */
    {.key = "data.prefetch",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .local = true,
     .offset = AT(data.prefetch),
     .fallback = "4",
     .min = 1,
     .max = 1024,
     .help = "Microbatches kept ready."},

    /* The step: how many tokens, in what pieces, with which numbers. Longer training is the same run as
     * far as it goes; a schedule that follows train.steps is told by its own key (follows). */
    {.key = "train.steps",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(train.steps),
     .fallback = "1000",
     .min = 1,
     .max = 1e12,
     .help = "Optimizer steps."},
    /* Other windows of the same text: no sample of before would be a sample any more, so nothing of the
     * order could go on. */
    {.key = "train.context",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(train.context),
     .fallback = "512",
     .min = 1,
     .max = 16777216,
     .help = "Tokens of a sequence."},
    /* The same sum in other groups: last bits. Which tokens are in a step is train.tokens_per_step. */
    {.key = "train.microbatch",
     .type = OPT_INT,
     .effect = EFFECT_BITS,
     .offset = AT(train.microbatch),
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .help = "Sequences of a microbatch; 0 means about 2,048 tokens."},
    /* In tokens and not in microbatches: the number stays when ranks or memory change, and with it the
     * curve. It must divide into whole microbatches (config_geometry). */
    {.key = "train.tokens_per_step",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(train.tokens_per_step),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Tokens of an optimizer step; 0 means one microbatch. More accumulate gradients."},
    /* Smith and others, "Don't decay the learning rate, increase the batch size", 2018; McCandlish and
     * others, "An empirical model of large-batch training", 2018: at first gradients tell the same with few
     * tokens. Doubled, and not raised by little, since each size has a program of its own. */
    {.key = "train.batch_start",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(train.batch_start),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Tokens of the first steps, which are doubled until they are train.tokens_per_step; 0: no batch "
             "warm-up."},
    {.key = "train.batch_warmup",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(train.batch_warmup),
     .fallback = "0",
     .min = 0,
     .max = 1e15,
     .help = "Tokens over which they are: an equal share for each size, in whole steps."},
    /* Another dtype is other mathematics. `auto` is decided once in the life of a run (train/setup.c). */
    {.key = "train.compute",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(train.compute),
     .fallback = "auto",
     .choices = "auto|bf16|fp32",
     .help = "Dtype of activations and products; auto is bf16 where the processor multiplies it natively."},
    /* Chen and others, "Training deep nets with sublinear memory cost", 2016; selective: Korthikanti and
     * others, "Reducing activation recomputation in large transformer models", 2022. What is made again
     * equals what it was, bit for bit (model/layers/layer.h): memory is paid for with time, never with the
     * curve. */
    {.key = "train.recompute",
     .type = OPT_CHOICE,
     .effect = EFFECT_NOTHING,
     .offset = AT(train.recompute),
     .fallback = "none",
     .choices = "none|selective|full",
     .help = "What the backward pass makes again instead of keeping."},
    /* Logits take tokens times vocabulary, which may be more than all else of a microbatch: so only some
     * rows exist at a time. Chunks of the loss are added one after the other: their size groups the sums,
     * and is not chosen by the memory that happens to be there. */
    {.key = "train.loss_rows",
     .type = OPT_INT,
     .effect = EFFECT_BITS,
     .offset = AT(train.loss_rows),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Tokens whose logits exist at a time; 0 means chosen by the vocabulary."},
    /* Chowdhery and others, "PaLM", 2022, with 1e-4. A softmax does not see what is added to all logits of a
     * row; in bf16 it matters, and this keeps it near 0. */
    {.key = "train.z_loss",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(train.z_loss),
     .fallback = "0",
     .min = 0,
     .max = 1,
     .help = "Coefficient of the squared log of the softmax's denominator, a loss beside the cross-entropy "
             "that is "
             "trained on and told apart; 0 for none, 1e-4 is usual."},
    /* Wang and others, "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024. No loss,
     * so no gradient; DeepSeek-V3 had 0.001 for most of its training. */
    {.key = "train.router_bias_speed",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(train.router_bias_speed),
     .fallback = "0",
     .min = 0,
     .max = 1,
     .help = "Of the bias by which experts are chosen: what is added to it after a step where an expert had "
             "fewer tokens than the mean, and taken off where it had more; 0 is none. Where nobody says it, "
             "experts that start from random weights have 0.02, of llama4_text 0.01, of deepseek_v3 0.001."},
    {.key = "train.expert_capacity",
     .type = OPT_DOUBLE,
     .effect = EFFECT_NOTHING,
     .offset = AT(train.expert_capacity),
     .fallback = "1.25",
     .min = 1,
     .max = 64,
     .help = "With mesh.ep: rows that a rank's experts have memory for at a time, as a multiple of those of "
             "its own "
             "tokens. What is more comes in further rounds: nothing is dropped, and the bits are the same."},
    /* Gloeckle and others, "Better & faster large language models via multi-token prediction", 2024: heads of
     * their own on the same states. They are part of the model that is trained. */
    {.key = "train.multi_token",
     .type = OPT_INT,
     .effect = EFFECT_RUN,
     .offset = AT(train.multi_token),
     .fallback = "0",
     .min = 0,
     .max = FURTHER_HEADS,
     .help = "Further heads, the k-th of which is trained on the k-th token behind the next one; validation, "
             "generation and Hugging Face's classes use none of them."},
    {.key = "train.multi_token_kind",
     .type = OPT_CHOICE,
     .effect = EFFECT_RUN,
     .offset = AT(train.multi_token_kind),
     .fallback = "heads",
     .choices = "heads|module",
     .help = "What they are. heads: a matrix each, on the states of the head. module: one as DeepSeek-V3 has "
             "it, a block behind the last that reads the next token too and ends in the model's own head. "
             "For deepseek_v3, whose files have it."},
    {.key = "train.multi_token_weight",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(train.multi_token_weight),
     .fallback = "1",
     .min = 0,
     .max = 100,
     .help = "What the loss of each further head is multiplied with before it is added to that of the head."},
    /* The halves compute what the whole does, element by element: a schedule may set the one for the
     * weights aside until a rank has nothing else to do. */
    {.key = "train.split_backward",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(train.split_backward),
     .fallback = "false",
     .help = "Run the input and weight halves of the backward pass apart; same bits."},
    /* A run that only skips steps trains nothing, and should say so before the night is over. */
    {.key = "train.stop_after_bad",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(train.stop_after_bad),
     .fallback = "5",
     .min = 1,
     .max = 1e9,
     .help = "Stop after this many non-finite steps in a row; each is skipped and counted."},

    /* Sums in fixed point have no order, since adding whole numbers is associative. It costs memory and
     * traffic (docs/parallelism.md has figures), which is why it is asked for. */
    {.key = "train.numerics",
     .type = OPT_CHOICE,
     .effect = EFFECT_SUMS,
     .offset = AT(train.numerics),
     .fallback = "fast",
     .choices = "fast|exact",
     .help = "exact: gradients of microbatches are summed in fixed point, the same bits however the "
             "microbatches of a step are shared out among ranks and accumulation; another train.microbatch "
             "makes other bits."},
    /* How often sums cross decides what is added to what first; exact numerics take that away. Auto follows
     * from other keys alone (plan/sync.h) and is written down as what it was taken for. */
    {.key = "train.gradient_sync",
     .type = OPT_CHOICE,
     .effect = EFFECT_SUMS,
     .offset = AT(train.gradient_sync),
     .fallback = "auto",
     .choices = "step|microbatch|replica|auto",
     .help = "When gradients cross the network: once a step; once a microbatch (less memory when sharded); "
             "or over dp_shard once a microbatch and over dp_replicate once a step; auto: the fewest bytes "
             "that pipeline.memory_gib allows, and of as many bytes the least memory."},
    /* Memory against traffic: the values gathered are the same. */
    {.key = "train.reshard_after_forward",
     .type = OPT_CHOICE,
     .effect = EFFECT_NOTHING,
     .offset = AT(train.reshard),
     .fallback = "auto",
     .choices = "auto|always|never",
     .help = "Whether gathered parameters are dropped after use and gathered again for the backward pass; "
             "auto: yes, but not in pipelines."},

    /* Leaves and the tree over them: device.h, base/tree.h. Kept for the life of a run, so that it may go on
     * with fewer tensor-parallel ranks; what other trainers cannot do is to go on with the same bits. */
    {.key = "numerics.canonical_tp",
     .type = OPT_INT,
     .effect = EFFECT_BITS,
     .offset = AT(numerics.canonical_tp),
     .fallback = "0",
     .min = 0,
     .max = 64,
     .help =
         "Pieces into which sums that mesh.tp shares are cut, on one rank as well: every degree whose share "
         "of them is a power of two has the same bits; 0: mesh.tp when the run begins."},

    /* The same of tokens. In fast numerics cp is one more axis whose ranks are terms of a sum. */
    {.key = "numerics.canonical_cp",
     .type = OPT_INT,
     .effect = EFFECT_BITS,
     .offset = AT(numerics.canonical_cp),
     .fallback = "0",
     .min = 0,
     .max = 4096,
     .help =
         "Spans of a microbatch's tokens whose gradients exact numerics round each by itself, on one rank as "
         "well: every mesh.cp that divides it has the same bits, by keys where that takes two of them or "
         "more, in "
         "powers of two; 0: mesh.cp when the run begins, twice that by keys. Fast numerics have none."},

    /* How ranks are laid out. Sums over data-parallel ranks have their order by how many there are, so
     * another mesh is other last bits, unless numerics are exact. */
    {.key = "mesh.pp",
     .type = OPT_INT,
     .effect = EFFECT_SUMS,
     .offset = AT(mesh.pp),
     .fallback = "1",
     .min = 1,
     .max = 1e6,
     .help = "Pipeline ranks."},
    /* Between these groups gradients cross and parameters do not: the axis for the slower network. */
    {.key = "mesh.dp_replicate",
     .type = OPT_INT,
     .effect = EFFECT_SUMS,
     .offset = AT(mesh.dp_replicate),
     .fallback = "1",
     .min = 1,
     .max = 1e6,
     .help = "Data-parallel groups that hold whole copies of the parameters' shards: DDP, or the outer axis "
             "of HSDP."},
    /* -1 by default: all ranks that nobody else takes share the parameters, so that a mesh need not be
     * counted out. Rajbhandari and others, "ZeRO", 2020; Zhao and others, "PyTorch FSDP", 2023. */
    {.key = "mesh.dp_shard",
     .type = OPT_INT,
     .effect = EFFECT_SUMS,
     .offset = AT(mesh.dp_shard),
     .fallback = "-1",
     .min = -1,
     .max = 1e6,
     .help = "Ranks that share parameters, gradients and optimizer out among them: FSDP; -1: the ranks that "
             "are left."},
    {.key = "mesh.cp",
     .type = OPT_INT,
     .effect = EFFECT_SUMS,
     .offset = AT(mesh.cp),
     .fallback = "1",
     .min = 1,
     .max = 1e6,
     .help =
         "Context-parallel ranks: they share the tokens of each sequence, and what a rank holds as dp_shard "
         "does; see parallel.context."},
    {.key = "mesh.tp",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(mesh.tp),
     .fallback = "1",
     .min = 1,
     .max = 1e6,
     .help =
         "Tensor-parallel ranks: they share heads, the MLP, the vocabulary, and the tokens between them; the "
         "curve has the same bits (numerics.canonical_tp)."},
    {.key = "mesh.ep",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(mesh.ep),
     .fallback = "1",
     .min = 1,
     .max = 1e6,
     .help = "Expert-parallel ranks: of those of dp_shard x cp, so many neighbours share the experts of each "
             "layer out, and send them each other's tokens; a power of two. The curve has the same bits."},
    /* In exact numerics both have the same bits. */
    {.key = "parallel.context",
     .type = OPT_CHOICE,
     .effect = EFFECT_SUMS,
     .offset = AT(parallel.context),
     .fallback = "auto",
     .choices = "auto|heads|keys",
     .help = "How ranks of mesh.cp attend to each other's tokens: heads: they change tokens for heads, at "
             "most as "
             "many ranks as key and value heads; keys: each gathers keys and values of all, any number of "
             "ranks; auto: "
             "what sends fewer bytes, of those that can be."},
    /* Many MPI libraries move data only while a call into them is going on: without a thread, transfers
     * that ought to be hidden behind products would wait for the end of these. */
    {.key = "comm.progress_thread",
     .type = OPT_CHOICE,
     .effect = EFFECT_NOTHING,
     .local = true,
     .offset = AT(comm.progress_thread),
     .fallback = "auto",
     .choices = "auto|true|false",
     .help = "A thread that moves messages while the others compute; auto: where a core is left for it."},
    /* Not an option of the curve: raising it must be possible for a run that goes on. */
    {.key = "comm.watchdog_s",
     .type = OPT_DOUBLE,
     .effect = EFFECT_NOTHING,
     .offset = AT(comm.watchdog_s),
     .fallback = "600",
     .min = 0,
     .max = 1e9,
     .help = "A rank that waits this many seconds for another ends the run, and each says what it was doing; "
             "0: never."},

    /* Only some schedules take microbatches out of order (schedule_adds_in_order); for the others it
     * changes nothing. Text and not a choice, since a file may stand here. 1f1b by default: it keeps the
     * activations of as many microbatches as there are stages, where gpipe keeps those of all. */
    {.key = "pipeline.schedule",
     .type = OPT_STRING,
     .effect = EFFECT_SUMS,
     .offset = AT(pipeline.schedule),
     .fallback = "1f1b",
     .help = "gpipe, 1f1b, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, interleaved_zero_bubble, zbv, "
             "dualpipev, or a CSV file of compute actions."},
    /* Says the same as train.microbatch from the other side: one of the two follows. */
    {.key = "pipeline.microbatches",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(pipeline.microbatches),
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .help = "Microbatches of a step through the pipeline; 0: as many as train.tokens_per_step and "
             "train.microbatch make."},
    /* Stages decide who computes a unit, not what; so do the keys below. */
    {.key = "pipeline.split",
     .type = OPT_STRINGS,
     .effect = EFFECT_NOTHING,
     .offset = AT(pipeline.split),
     .fallback = "[auto]",
     .instead = "the number of layers of a stage is pipeline.layers_per_stage",
     .help = "Stages: auto (even in time), uniform (TorchTitan's rule), or where new ones start, such as "
             "[layers.4, layers.8]."},
    {.key = "pipeline.layers_per_stage",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(pipeline.layers_per_stage),
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .help =
         "At most this many layers a stage, by the uniform rule; 0: as many stages as the schedule wants."},
    {.key = "pipeline.stages_per_rank",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(pipeline.stages_per_rank),
     .fallback = "0",
     .min = 0,
     .max = 1e6,
     .help = "For schedules that take several; 0: 1, or 2 for those made for more."},
    /* TorchTitan's two numbers by its names: embedding and head take time as layers do, so the first and
     * the last stage get fewer layers. 1 each where nobody has measured. */
    {.key = "pipeline.first_stage_less_layers",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(pipeline.first_stage_less),
     .fallback = "1",
     .min = 0,
     .max = 1e6,
     .help = "Uniform split: layers that the embedding counts as."},
    {.key = "pipeline.last_stage_less_layers",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(pipeline.last_stage_less),
     .fallback = "1",
     .min = 0,
     .max = 1e6,
     .help = "Uniform split: layers that the norm and the head count as."},
    /* A figure and not this machine's: a plan is often made elsewhere than it is run, and all ranks must
     * come to the same stages. */
    {.key = "pipeline.memory_gib",
     .type = OPT_DOUBLE,
     .effect = EFFECT_NOTHING,
     .offset = AT(pipeline.memory_gib),
     .fallback = "0",
     .min = 0,
     .max = 1e9,
     .help = "Memory of a rank, to which split: auto and train.gradient_sync: auto keep by the figures of "
             "\"weft plan\"; 0: they look at time and bytes only."},

    /* What makes updates of gradients. Another kind has other states: another run. Settings of one kind
     * may change on the way, and change the curve. */
    {.key = "optimizer.kind",
     .type = OPT_CHOICE,
     .effect = EFFECT_RUN,
     .offset = AT(optimizer.settings.kind),
     .fallback = "adamw",
     .choices = "adamw|sgd|muon",
     .help = "What makes updates of gradients; muon: of the matrices of blocks, the rest by adamw."},
    /* 1,000 is beyond all sense and says that a decimal point is missing; 0 is allowed, to see what a run
     * does without learning. */
    {.key = "optimizer.lr",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.lr),
     .fallback = "3e-4",
     .min = 0,
     .max = 1000,
     .help = "Peak learning rate."},
    /* Loshchilov and Hutter, "Decoupled weight decay regularization", 2019. Times the learning rate, so it
     * falls with the schedule. 0.1 with betas of 0.9 and 0.95 and a norm of 1: what GPT-3 was trained with
     * (Brown and others, 2020), and many since. */
    {.key = "optimizer.weight_decay",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.weight_decay),
     .fallback = "0.1",
     .min = 0,
     .max = 100,
     .help = "adamw, muon: decoupled, times the learning rate; sgd: added to the gradient."},
    /* Below 1 by 1e-6: with 1 a mean would never learn anything. */
    {.key = "optimizer.beta1",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.beta1),
     .fallback = "0.9",
     .min = 0,
     .max = 0.999999,
     .help = "adamw: memory of the mean of gradients."},
    {.key = "optimizer.beta2",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.beta2),
     .fallback = "0.95",
     .min = 0,
     .max = 0.999999,
     .help = "adamw: memory of the mean of their squares."},
    /* Not 0: an element whose gradient never was anything but 0 has moments of 0, and 0/0 would be its
     * update. */
    {.key = "optimizer.eps",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.eps),
     .fallback = "1e-8",
     .min = 1e-30,
     .max = 1,
     .help = "adamw: added to the root of that."},
    /* With 0 there is no state at all, so an optimizer without memory needs no kind of its own. */
    {.key = "optimizer.momentum",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.momentum),
     .fallback = "0.9",
     .min = 0,
     .max = 0.999999,
     .help = "sgd, muon: memory of gradients; sgd: 0 for none, and no memory for it."},
    /* A choice of two words where others are OPT_BOOL: an item of optimizer.groups may leave it out, and a
     * bool has no third value for that. */
    {.key = "optimizer.nesterov",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.nesterov),
     .fallback = "false",
     .choices = "false|true",
     .help = "sgd, muon: Nesterov's momentum."},
    /* moonlight by default, since with it AdamW's learning rate and decay serve both kinds of parameters. */
    {.key = "optimizer.muon_scale",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.muon_scale),
     .fallback = "moonlight",
     .choices = MUON_SCALES,
     .help =
         "muon: how far a matrix [outputs, inputs] moves, times the learning rate: moonlight 0.2 sqrt(larger "
         "side), as far as under adamw; jordan sqrt(max(1, outputs / inputs)); spectral sqrt(outputs / "
         "inputs)."},
    {.key = "optimizer.muon_coefficients",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.muon_coefficients),
     .fallback = "jordan",
     .choices = MUON_COEFFICIENTS,
     .help = "muon: of the five Newton-Schulz iterations that bring singular values to about 1."},
    /* EFFECT_CURVE: with half the bits every update is another one. Rounding to the nearest would lose
     * small updates for good, which is why it is by chance, by optimizer.seed. */
    {.key = "optimizer.states",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.settings.states),
     .fallback = "fp32",
     .choices = "fp32|bf16",
     .help = "Dtype of moments and momentum; bf16 halves their memory and is rounded stochastically."},
    /* By common practice norms and biases do not decay. */
    {.key = "optimizer.decay",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.decay),
     .fallback = "matrices",
     .choices = "matrices|all",
     .help = "What optimizer.weight_decay is for: matrices only, or norms and biases too."},
    {.key = "optimizer.seed",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.seed),
     .fallback = "42",
     .min = 0,
     .max = 9007199254740992.0,
     .help = "Seed of the rounding of states in bf16."},
    /* Beside the run, which does not read it: another value changes what an average is of, not the curve. */
    {.key = "optimizer.ema",
     .type = OPT_DOUBLE,
     .effect = EFFECT_MEASURES,
     .offset = AT(optimizer.ema),
     .fallback = "0",
     .min = 0,
     .max = 0.999999999,
     .help = "Decay of a moving average of the weights, kept in fp32 and in each checkpoint as "
             "model.ema.safetensors; 0 "
             "for none, 0.999 is the mean of about the last 1,000 updates."},
    /* Compared as a whole. Which parameters an item finds follows from names, so groups are the same on
     * every mesh (optimizer/groups.c). */
    {.key = "optimizer.groups",
     .type = OPT_LIST,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.groups),
     .fallback = "",
     .item = group_options,
     .item_size = sizeof(OptimizerGroup),
     .help = "Parameters that are treated otherwise, the first match counts: maps of match, kind, lr, "
             "weight_decay, beta1, beta2, eps, momentum, nesterov, muon_scale, muon_coefficients, states, "
             "whole, frozen; what a group leaves out is as in this section."},
    /* Pascanu and others, "On the difficulty of training recurrent neural networks", 2013. The norm is of
     * the whole gradient, over all ranks: with a norm of each share the curve would depend on the mesh. */
    {.key = "optimizer.clip",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.clip),
     .fallback = "1",
     .min = 0,
     .max = 1e12,
     .help = "Largest gradient norm; 0 means no clipping."},
    {.key = "optimizer.clip_norm",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(optimizer.clip_norm),
     .fallback = "2",
     .min = 1,
     .max = (double)INFINITY,
     .help = "Which norm: any p >= 1, or inf."},

    /* The learning rate over the steps, relative to optimizer.lr (optimizer/learning_rate.h has the
     * formulas). cosine: Loshchilov and Hutter, "SGDR", 2016; wsd: Hu and others, "MiniCPM", 2024. */
    {.key = "schedule.kind",
     .type = OPT_CHOICE,
     .effect = EFFECT_CURVE,
     .offset = AT(schedule.kind),
     .fallback = "cosine",
     .choices = "constant|linear|cosine|sqrt|wsd|exponential|drops|cosine_linear|inverse_sqrt|range|power|"
                "lingua_linear|lingua_cosine|lingua_wsd|lingua_inverse_sqrt",
     .help =
         "Shape after the warmup: linear, cosine, sqrt, exponential fall over schedule.decay_ratio of the "
         "steps, wsd linearly over the last tenth; drops: two steps down; cosine_linear: a cosine whose "
         "tail goes to 0; power: a power of the step, then linearly to the floor. range is a learning-rate "
         "range test: from min_factor of the peak up to it, by the same factor each step. The lingua_ ones "
         "are Lingua's formulas, cosine right at its end."},
    /* Adam's second moments are means of few gradients at first, and its steps accordingly wild. Liu and
     * others, "On the variance of the adaptive learning rate and beyond", 2019. */
    {.key = "schedule.warmup_steps",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .offset = AT(schedule.warmup_steps),
     .fallback = "200",
     .min = 0,
     .max = 1e12,
     .help = "Linear warmup, of as many steps whatever train.steps is: a tenth of a short run is usual."},
    {.key = "schedule.warmup_from",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(schedule.warmup_from),
     .fallback = "0",
     .min = 0,
     .max = 1,
     .help = "Where the warmup begins, as a share of the peak."},
    /* Not train.steps itself: a run may be planned longer than it is trained today. */
    {.key = "schedule.total_steps",
     .type = OPT_INT,
     .effect = EFFECT_CURVE,
     .follows = "train.steps",
     .offset = AT(schedule.total_steps),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Length of the schedule; 0 means train.steps."},
    /* Negative and not 0 for "not given": a schedule that never decays is something one may want. */
    {.key = "schedule.decay_ratio",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(schedule.decay_ratio),
     .fallback = "-1",
     .min = -1,
     .max = 1,
     .help = "Share of the steps that decay, at the end; -1 means all after the warmup (wsd, cosine_linear, "
             "power: 0.1; "
             "exponential, drops: 0.2)."},
    /* A share and not a rate: groups have peaks of their own, and all follow one schedule. */
    {.key = "schedule.min_factor",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(schedule.min_factor),
     .fallback = "0",
     .min = 0,
     .max = 1,
     .help = "Lowest learning rate, as a share of the peak; range starts there."},
    /* 0.5: Vaswani and others, "Attention is all you need", 2017. */
    {.key = "schedule.exponent",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(schedule.exponent),
     .fallback = "0.5",
     .min = 0,
     .max = 10,
     .help = "inverse_sqrt, power: exponent of warmup / step."},
    {.key = "schedule.cycle_length",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(schedule.cycle_length),
     .fallback = "1",
     .min = 1e-6,
     .max = 1,
     .help = "lingua_cosine, lingua_wsd: share of the steps in a cycle."},
    {.key = "schedule.theta",
     .type = OPT_DOUBLE,
     .effect = EFFECT_CURVE,
     .offset = AT(schedule.theta),
     .fallback = "1",
     .min = 1e-6,
     .max = 100,
     .help = "lingua_cosine: exponent of the progress."},

    /* Looking does not change what is looked at. Before step 1, too: a curve should begin where the model
     * does, and what is wrong with the text is found at once. */
    {.key = "validation.every",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(validation.every),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Steps between validations, the first before step 1; 0 means at the end only."},
    /* Other figures, not another run: a mean over other samples cannot be laid beside those of before, and
     * this is said. */
    {.key = "validation.samples",
     .type = OPT_INT,
     .effect = EFFECT_MEASURES,
     .offset = AT(validation.samples),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Sequences of a validation, of each of its sets; 0 means all."},

    /* Files of documents, and not names of data sets: a run fetches nothing. */
    {.key = "evaluation.tasks",
     .type = OPT_LIST,
     .effect = EFFECT_MEASURES,
     .offset = AT(evaluation.tasks),
     .fallback = "",
     .item = task_options,
     .item_size = sizeof(TaskSource),
     .help = "Tasks that the model is tried on: paths, or maps of path, task, name, limit, num_fewshot, "
             "examples."},
    {.key = "evaluation.every",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(evaluation.every),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Steps between evaluations by the tasks, the first before step 1; 0 means at the end only."},
    /* The figures of others are without it, as a rule. */
    {.key = "evaluation.add_bos",
     .type = OPT_BOOL,
     .effect = EFFECT_MEASURES,
     .offset = AT(evaluation.add_bos),
     .fallback = "false",
     .help = "Begin each context of a task with the tokenizer's BOS, if any."},

    /* Saving does not either, not even as bf16: the exact weights are then beside it. */
    {.key = "checkpoint.every",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(checkpoint.every),
     .fallback = "500",
     .min = 0,
     .max = 1e12,
     .help = "Steps between checkpoints; 0 means at the end only."},
    /* At least two: the newest may be found damaged later, and then the one before it is all there is to
     * go on from. */
    {.key = "checkpoint.keep",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(checkpoint.keep),
     .fallback = "2",
     .min = 2,
     .max = 1e6,
     .help = "Newest checkpoints kept."},
    /* Beside the newest: one comes back to them to see how a model became what it is, or to go another way
     * from there. */
    {.key = "checkpoint.keep_every",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(checkpoint.keep_every),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Checkpoints at multiples of this step are kept for good; 0 means none."},
    /* Of those that are saved anyway: what is kept must not decide how often is saved. */
    {.key = "checkpoint.keep_best",
     .type = OPT_STRING,
     .effect = EFFECT_NOTHING,
     .offset = AT(checkpoint.keep_best),
     .fallback = "",
     .help = "Keep the checkpoint that is best by this figure, measured at its step: validation/loss, "
             "validation/NAME/loss, task/NAME/acc_norm; empty means none."},
    {.key = "checkpoint.dtype",
     .type = OPT_CHOICE,
     .effect = EFFECT_NOTHING,
     .offset = AT(checkpoint.dtype),
     .fallback = "fp32",
     .choices = "fp32|bf16",
     .help = "Of the model file; with bf16 the exact weights go beside the moments, so that resuming stays "
             "exact."},
    {.key = "checkpoint.async",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(checkpoint.async),
     .fallback = "true",
     .help = "Write checkpoints from a copy in memory while training goes on; false takes no memory for the "
             "copy, and training waits. With checkpoint.every 0 there is no copy."},
    /* For models that are given away. */
    {.key = "checkpoint.last_weights_only",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(checkpoint.last_weights_only),
     .fallback = "false",
     .help = "The last checkpoint holds no optimizer: smaller, but the run cannot go on from it."},
    /* With what a save is seen to cost, Young's formula gives the interval that loses least time
     * (checkpoint/async.c). Only suggested: the user knows what else hangs on it. */
    {.key = "checkpoint.mttf_hours",
     .type = OPT_DOUBLE,
     .effect = EFFECT_NOTHING,
     .offset = AT(checkpoint.mttf_hours),
     .fallback = "24",
     .min = 0,
     .max = 1e6,
     .help = "Mean time to failure, from which an interval between checkpoints is suggested; 0 for no "
             "suggestion."},

    /* What is said and kept of a run. How often also decides what two runs can be compared by afterwards:
     * steps that both have a record of. */
    {.key = "metrics.log_freq",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.log_freq),
     .fallback = "10",
     .min = 1,
     .max = 1e9,
     .help = "Steps between log lines."},
    {.key = "metrics.tensorboard",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.tensorboard),
     .fallback = "true",
     .help = "Write TensorBoard events."},
    /* A mark and no more: nothing is skipped for being unusual. */
    {.key = "metrics.spike",
     .type = OPT_DOUBLE,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.spike),
     .fallback = "8",
     .min = 0,
     .max = 1e9,
     .help = "Robust deviations of loss or gradient norm that are marked as a spike; 0 marks none."},
    /* McCandlish and others, "An empirical model of large-batch training", 2018. It is asked for, since it
     * reads the gradients of one rank once more. */
    {.key = "metrics.noise_scale",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.noise_scale),
     .fallback = "false",
     .help = "Estimate the gradient noise scale, the tokens of a step beyond which more bring little, from "
             "the first "
             "microbatch of each step and the whole of it."},
    /* Rank 0 has the figures of all. The lines of others tell what only they see, when one looks for the
     * rank that is slow. */
    {.key = "metrics.log_ranks",
     .type = OPT_STRINGS,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.log_ranks),
     .fallback = "[0]",
     .help = "Ranks whose lines are printed; the lines begin with [rank N], unless only rank 0 is named."},
    {.key = "metrics.all_ranks",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.all_ranks),
     .fallback = "false",
     .help = "Keep a metrics file for each rank: metrics-00001.jsonl and so on, beside that of rank 0."},
    /* Of a few steps: the file has a span for each action of each rank, and grows with all of them. */
    {.key = "metrics.trace",
     .type = OPT_STRING,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.trace),
     .fallback = "",
     .help = "Steps whose actions are timed on every rank, as in 3-5: trace.json, for Perfetto, and a "
             "picture in the report, planned beside measured."},
    /* What passes make anyway is looked at while it is there: no step more is run for it. */
    {.key = "metrics.probe",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.probe),
     .fallback = "0",
     .min = 0,
     .max = 1e12,
     .help = "Steps between probes: size of what each unit puts out, of its gradient, of its weights and of "
             "theirs; 0 means none."},
    /* Without a shell, so that nothing in a path or a name is taken for syntax. As words, therefore, and
     * not as a line. */
    {.key = "metrics.command",
     .type = OPT_STRINGS,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.command),
     .fallback = "",
     .help =
         "A program and its arguments, started by rank 0 without a shell, that gets every record as a line "
         "of JSON on its standard input; no run waits for it, or ends with it."},
    {.key = "metrics.command_wait_s",
     .type = OPT_DOUBLE,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.command_wait_s),
     .fallback = "30",
     .min = 0,
     .max = 86400,
     .help = "Seconds that the end of a run waits for that program to end; then it is ended."},
    {.key = "metrics.profile",
     .type = OPT_BOOL,
     .effect = EFFECT_NOTHING,
     .offset = AT(metrics.profile),
     .fallback = "false",
     .help = "Print where the time of the steps went, by operation."},

    /* Copies that differ are found at the next comparison, so at most so many steps are lost. Nothing else
     * would say it: each copy trains on by itself, and the loss is that of all together. */
    {.key = "check.replicas_every",
     .type = OPT_INT,
     .effect = EFFECT_NOTHING,
     .offset = AT(check.replicas_every),
     .fallback = "100",
     .min = 0,
     .max = 1e12,
     .help = "Steps between comparisons of what several ranks hold alike (dp_replicate, tied embeddings "
             "across stages), which also come before each checkpoint; 0 means never."},

    /* Read by the supervisor, before there is a run. A pause that doubles, so that a disk or a machine
     * that is away for minutes does not use up all restarts in the first of them. */
    {.key = "restart.backoff_s",
     .type = OPT_DOUBLE,
     .effect = EFFECT_NOTHING,
     .offset = AT(restart.backoff_s),
     .fallback = "1",
     .min = 0,
     .max = 3600,
     .help = "With --restarts: seconds before the first restart; doubled with each, up to 60, until one ran "
             "for ten minutes."},
    {.key = NULL}};

/* Patterns may say the same in two ways. */
static bool same_layers(LayerSet a, LayerSet b, const ModelConfig *c) {
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        if (layer_set_has(a, i) != layer_set_has(b, i)) return false;
    return true;
}

/* What model.init brings has this shape: a key that says another cannot win. A key that says the same is
 * allowed: configurations of checkpoints are complete. Heads are compared by what they take of the weights
 * (number times size), since either may be given. A vocabulary of 0 asks for none. Only keys that somebody
 * gave are looked at: the rest have taken the file's value already. */
static ErrorCode check_shape(const OptionSet *set, const ModelConfig *own, const ModelConfig *asked,
                             const char *dir, Error *err) {
#define HEADS(c, heads) ((c)->heads * ((c)->head_dim ? (c)->head_dim : model_usual_head_dim(c)))
    const struct {
        const char *key;
        int64_t own, asked;
    } sizes[] = {
        {"model.vocab_size", own->vocab_size, asked->vocab_size ? asked->vocab_size : own->vocab_size},
        {"model.hidden_size", own->hidden_size, asked->hidden_size},
        {"model.intermediate_size", own->intermediate_size, asked->intermediate_size},
        {"model.num_hidden_layers", own->num_hidden_layers, asked->num_hidden_layers},
        {"model.num_attention_heads", HEADS(own, num_attention_heads), HEADS(asked, num_attention_heads)},
        {"model.num_key_value_heads", HEADS(own, num_key_value_heads), HEADS(asked, num_key_value_heads)},
        {"model.head_dim", HEADS(own, num_attention_heads), HEADS(asked, num_attention_heads)},
        {"model.tie_word_embeddings", own->tie_word_embeddings,
         own->tie_word_embeddings && asked->tie_word_embeddings},
        {"model.attention_bias", own->attention_bias, asked->attention_bias},
        {"model.num_experts", own->num_experts, asked->num_experts},
        {"model.moe_intermediate_size", own->moe_intermediate_size, asked->moe_intermediate_size},
        {"model.dense_period", 0, !same_layers(own->dense_layers, asked->dense_layers, own)},
        {"model.first_k_dense_replace", own->first_k_dense_replace, asked->first_k_dense_replace},
        {"model.n_shared_experts", own->n_shared_experts, asked->n_shared_experts},
        {"model.q_lora_rank", own->q_lora_rank, asked->q_lora_rank},
        {"model.kv_lora_rank", own->kv_lora_rank, asked->kv_lora_rank},
        {"model.qk_nope_head_dim", own->qk_nope_head_dim, asked->qk_nope_head_dim},
        {"model.qk_rope_head_dim", own->qk_rope_head_dim, asked->qk_rope_head_dim},
        {"model.v_head_dim", own->v_head_dim, asked->v_head_dim},
        {"model.dense_layers", 0, !same_layers(own->dense_layers, asked->dense_layers, own)},
        {"model.mixer", 0, !mixers_equal(&own->mixers, &asked->mixers, own->num_hidden_layers)},
        {"model.recurrent_size", own->recurrent_size, asked->recurrent_size},
        {"model.conv_size", own->conv_size, asked->conv_size},
        {"model.mamba_d_state", own->mamba_d_state, asked->mamba_d_state},
        {"model.mamba_d_head", own->mamba_d_head, asked->mamba_d_head},
        {"model.mamba_n_groups", own->mamba_n_groups, asked->mamba_n_groups},
        {"model.mlp_bias", own->mlp_bias, asked->mlp_bias},
    };
#undef HEADS
    /* The first that does not fit is enough: the cure is the same for all, to leave the shape to the file. */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (options_is_set(set, sizes[i].key) && sizes[i].own != sizes[i].asked)
            return error_set(err, ERR_CONFIG,
                             "%s does not fit the weights of model.init, %s, which have the shape in its "
                             "config.json: leave the key out",
                             sizes[i].key, dir);
    return OK;
}

/* shape.family goes with the key that names it: the index is what is written down and compared, the
 * pointer what the model is built by, and neither may say another family than the other. A family that was
 * asked for and is not the file's is refused, since names and meaning of its tensors may be others. */
static ErrorCode take_family(Config *c, OptionSet *set, const ModelConfig *own, const char *where,
                             Error *err) {
    const char *name = model_family(own)->model_type;
    if (options_is_set(set, "model.family") && families[c->model.family] != model_family(own))
        return options_fail(set, "model.family", err, "%s is of the family %s: leave the key out", where,
                            name);
    TRY(options_derive(set, "model.family", name, where, err));
    c->model.shape.family = model_family(own);
    return OK;
}

/* shape.mixers goes with the key, as shape.family does with its own: names become a pattern ... */
static ErrorCode read_mixers(Config *c, OptionSet *set, Error *err) {
    const StringList *names = &c->model.mixer;
    MixerPattern *p = &c->model.shape.mixers;
    if (names->count > MIXER_PERIOD)
        return options_fail(set, "model.mixer", err, "%zu mixers are a pattern longer than %d", names->count,
                            MIXER_PERIOD);
    *p = (MixerPattern){.period = (int64_t)names->count};
    for (size_t i = 0; i < names->count; i++) {
        Mixer mixer;
        if (!mixer_find(names->items[i], &mixer))
            return options_fail(set, "model.mixer", err,
                                "\"%s\" is no mixer that models have: expected " MIXER_NAMES,
                                names->items[i]);
        p->kind[i] = (uint8_t)mixer;
    }
    return OK;
}

/* ... and a pattern from a file names. */
static ErrorCode take_mixers(Config *c, OptionSet *set, const ModelConfig *own, const char *where,
                             Error *err) {
    Text names = {0};
    if (options_is_set(set, "model.mixer") || own->mixers.period == 0) return OK;
    c->model.shape.mixers = own->mixers;
    text_puts(&names, "[");
    model_mixers_text(own, &names);
    text_puts(&names, "]");
    ErrorCode code = options_derive(set, "model.mixer", names.data, where, err);
    text_free(&names);
    return code;
}

/* The keys of longrope's factors, and where in the scaling they are. */
static const struct {
    const char *key;
    size_t list, factors;
} rope_factors[] = {
    {"model.rope_short_factor", AT(model.rope_short_factor), offsetof(RopeScaling, short_factor)},
    {"model.rope_long_factor", AT(model.rope_long_factor), offsetof(RopeScaling, long_factor)}};

static ErrorCode read_factor(const OptionSet *set, const char *key, const char *text, double *out,
                             Error *err) {
    char *end;
    *out = strtod(text, &end);
    if (end != text && *end == '\0') return OK;
    return options_fail(set, key, err, "\"%s\" is no number", text);
}

/* shape.rope_scaling's factors go with their keys, as mixers do ... */
static ErrorCode read_rope_factors(Config *c, OptionSet *set, Error *err) {
    RopeScaling *s = &c->model.shape.rope_scaling;
    for (int i = 0; i < 2; i++) {
        const StringList *list = (const StringList *)(const void *)((char *)c + rope_factors[i].list);
        double *factors = (double *)(void *)((char *)s + rope_factors[i].factors);
        if (list->count > ROPE_PAIRS || (i > 0 && (int)list->count != s->pairs))
            return options_fail(
                set, rope_factors[i].key, err,
                "%zu numbers, expected one for each pair that is turned, in both lists, and at "
                "most %d",
                list->count, ROPE_PAIRS);
        s->pairs = (int)list->count;
        for (int p = 0; p < s->pairs; p++)
            TRY(read_factor(set, rope_factors[i].key, list->items[p], &factors[p], err));
    }
    return OK;
}

/* ... and those of a file to keys. */
static ErrorCode take_rope_factors(Config *c, OptionSet *set, const ModelConfig *own, const char *where,
                                   Error *err) {
    RopeScaling *s = &c->model.shape.rope_scaling;
    for (int i = 0; i < 2; i++) {
        const double *from =
            (const double *)(const void *)((const char *)&own->rope_scaling + rope_factors[i].factors);
        Text list = {0};
        char number[32];
        if (options_is_set(set, rope_factors[i].key) || own->rope_scaling.pairs == 0) continue;
        for (int p = 0; p < own->rope_scaling.pairs; p++)
            text_printf(&list, "%s%s", p == 0 ? "[" : ", ", text_double(from[p], number));
        text_puts(&list, "]");
        ErrorCode code = options_derive(set, rope_factors[i].key, list.data, where, err);
        text_free(&list);
        TRY(code);
        memcpy((char *)s + rope_factors[i].factors, from, sizeof s->short_factor);
        s->pairs = own->rope_scaling.pairs;
    }
    return OK;
}

/* What the family has where nobody says anything. Llama's own defaults are those of the table, so for
 * family 0 there is nothing to do. They count as derived, not as given: what a file or the command line
 * says has won before. */
static ErrorCode take_defaults(Config *c, OptionSet *set, Error *err) {
    const Family *f = families[c->model.family];
    ModelConfig defaults = family_defaults(f, &c->model.shape);
    c->model.shape.family = f;
    if (c->model.family == 0) return OK;
    return options_derive_part(set, &c->model.shape, &defaults, sizeof defaults, false,
                               "default of model.family", err);
}

/* In the order of InitKind. How a family draws its weights is its default; it has a key all the same,
 * since config.json does not say it. */
static ErrorCode take_initialiser(const Config *c, OptionSet *set, Error *err) {
    static const char *const names[INIT_KINDS] = {"normal", "torchtitan", "lingua", "gpt2"};
    if (c->model.family == 0 || options_is_set(set, "model.initialiser")) return OK;
    return options_derive(set, "model.initialiser", names[families[c->model.family]->init],
                          "default of model.family", err);
}

/* Two equal drops to a floor of nothing would both be to nothing. */
static ErrorCode check_schedule(const Config *c, const OptionSet *set, Error *err) {
    if (c->schedule.kind != SCHEDULE_DROPS || c->schedule.min_factor > 0) return OK;
    return options_fail(
        set, "schedule.min_factor", err,
        "schedule.kind drops goes down to it in two equal steps: expected more than 0, such as 0.1");
}

int config_step_sizes(const Config *c, int64_t tokens[STEP_SIZES]) {
    int count = 0;
    for (int64_t size = c->train.batch_start; size > 0 && size < c->train.tokens_per_step; size *= 2)
        tokens[count++] = size;
    tokens[count++] = c->train.tokens_per_step;
    return count;
}

/* Walks through the sizes of the warm-up: the one that `step` has, or, where it is behind them, none (0) and
 * how many steps they are. */
static int64_t size_of_step(const Config *c, int64_t step, int64_t *all) {
    int64_t sizes[STEP_SIZES];
    int growing = config_step_sizes(c, sizes) - 1;
    *all = 0;
    for (int i = 0; i < growing; i++) {
        int64_t share = (c->train.batch_warmup + growing - 1) / growing;
        *all += (share + sizes[i] - 1) / sizes[i];
        if (step < *all) return sizes[i];
    }
    return 0;
}

int64_t config_step_tokens(const Config *c, int64_t step) {
    int64_t all, size = size_of_step(c, step, &all);
    return size > 0 ? size : c->train.tokens_per_step;
}

int64_t config_first_whole_step(const Config *c) {
    int64_t all;
    size_of_step(c, INT64_MAX, &all);
    return all;
}

/* One source's loss is the run's; of very many nobody reads each. */
int config_told_sources(const Config *c) {
    size_t count = c->data.sources.count;
    return count > 1 && count <= 64 ? (int)count : 0;
}

double config_tokens_from(const Config *c, int64_t step) {
    int64_t end = c->train.steps, whole = config_first_whole_step(c);
    double sum = 0;
    for (; step < end && step < whole; step++) sum += (double)config_step_tokens(c, step);
    return step < end ? sum + (double)(end - step) * (double)c->train.tokens_per_step : sum;
}

uint64_t config_samples(const Config *c) {
    return (uint64_t)fmin(config_tokens_from(c, 0) / (double)c->train.context, 1e18);
}

double config_steps_from(const Config *c, int64_t step) {
    if (config_first_whole_step(c) <= step) return (double)(c->train.steps - step);
    return config_tokens_from(c, step) / (double)c->train.tokens_per_step;
}

/* The bias of a base is in no checkpoint of adapters. */
static ErrorCode check_router_bias(const Config *c, const OptionSet *set, Error *err) {
    const Family *f = families[c->model.family];
    if (c->train.router_bias_speed <= 0) return OK;
    if (!family_has_experts(f))
        return options_fail(set, "train.router_bias_speed", err,
                            "the family %s has no experts: leave the key out", f->model_type);
    if (c->lora.rank == 0) return OK;
    return options_fail(set, "train.router_bias_speed", err,
                        "beside adapters (lora.rank) all of the base stays as it is: leave the key out");
}

/* DeepSeek's speed is its own; the others bring experts together within some tens of steps. */
const char *config_bias_speed(const Config *c) {
    const Arch *a = &families[c->model.family]->arch;
    return a->sigmoid_router ? "0.001" : a->weighs_input ? "0.01" : "0.02";
}

/* Experts that learn from nothing all but collapse within some steps, since those that are chosen are those
 * that learn. A balance loss that is asked for is enough. Given weights stay what they are, and so does a run
 * that goes on (setup_keep_balance). */
static ErrorCode take_router_bias(Config *c, OptionSet *set, Error *err) {
    const ModelConfig *m = &c->model.shape;
    bool starts = family_has_experts(families[c->model.family]) && !c->model.init[0] &&
                  m->num_experts > m->num_experts_per_tok && !m->output_router_logits;
    if (options_is_set(set, "train.router_bias_speed") || !starts) return OK;
    return options_derive(set, "train.router_bias_speed", config_bias_speed(c),
                          "default of experts from random weights", err);
}

/* A step is cut into whole microbatches on every mesh: those of the warm-up too, which
 * layout_build sees to. */
static ErrorCode check_batch_warmup(const Config *c, const OptionSet *set, Error *err) {
    int64_t start = c->train.batch_start, whole = c->train.tokens_per_step, size = start, first, last;
    if (start == 0 && c->train.batch_warmup == 0) return OK;
    if (start == 0 || c->train.batch_warmup == 0)
        return options_fail(set, start ? "train.batch_warmup" : "train.batch_start", err,
                            "a batch warm-up is said by train.batch_start and train.batch_warmup together");
    if (whole == 0)
        return options_fail(set, "train.batch_start", err,
                            "a batch warm-up wants train.tokens_per_step said, too");
    while (size < whole) size *= 2;
    if (size != whole || start == whole)
        return options_fail(
            set, "train.batch_start", err,
            "%lld, doubled again and again, never is train.tokens_per_step, %lld: expected its half, "
            "quarter, ...",
            (long long)start, (long long)whole);
    if (config_traces(c, &first, &last) && first <= config_first_whole_step(c))
        return options_fail(set, "metrics.trace", err,
                            "steps of the batch warm-up are not traced: it ends with step %lld",
                            (long long)config_first_whole_step(c));
    return OK;
}

static ErrorCode check_spans(const Config *c, const OptionSet *set, Error *err) {
    if (c->numerics.canonical_cp == 0 || c->train.numerics == NUMERICS_EXACT) return OK;
    return options_fail(set, "numerics.canonical_cp", err,
                        "%lld, which is of train.numerics: exact; in fast numerics the ranks of mesh.cp "
                        "are terms of sums as data-parallel ones are: leave it out",
                        (long long)c->numerics.canonical_cp);
}

/* Norms of both are taken in one way, and squares must add up. */
static ErrorCode check_noise(const Config *c, const OptionSet *set, Error *err) {
    if (!c->metrics.noise_scale || (c->optimizer.clip_norm >= 2 && c->optimizer.clip_norm <= 2)) return OK;
    return options_fail(set, "metrics.noise_scale", err,
                        "it is made of squares: expected optimizer.clip_norm 2, found %g",
                        c->optimizer.clip_norm);
}

static bool names_muon(const OptimizerOptions *o) {
    const OptimizerGroup *groups = (const OptimizerGroup *)(const void *)o->groups.items;
    for (size_t i = 0; i < o->groups.count; i++)
        if (groups[i].settings.kind == OPTIMIZER_MUON) return true;
    return o->settings.kind == OPTIMIZER_MUON;
}

/* What Muon is known with. AdamW reads neither, so only a section of SGD's has them for itself. */
static ErrorCode take_momentum(const Config *c, OptionSet *set, Error *err) {
    static const char *const defaults[][2] = {{"optimizer.momentum", "0.95"}, {"optimizer.nesterov", "true"}};
    if (!names_muon(&c->optimizer) || c->optimizer.settings.kind == OPTIMIZER_SGD) return OK;
    for (int i = 0; i < 2; i++)
        if (!options_is_set(set, defaults[i][0]))
            TRY(options_derive(set, defaults[i][0], defaults[i][1], "default of muon", err));
    return OK;
}

/* Why a model or mesh has no module; NULL: it may have one. */
static const char *refuses_module(const Config *c) {
    if (c->train.multi_token > 1)
        return "train.multi_token above 1: checkpoints of the family have one module";
    if (!model_family(&c->model.shape)->arch.module)
        return "another model.family than deepseek_v3: files of no other one have a module";
    return NULL;
}

static ErrorCode check_module(const Config *c, const OptionSet *set, Error *err) {
    const char *why = refuses_module(c);
    if (c->train.multi_token_kind != FURTHER_MODULE) return OK;
    if (c->train.multi_token == 0)
        return options_fail(set, "train.multi_token_kind", err,
                            "a module is one: set train.multi_token to 1");
    if (!why) return OK;
    return options_fail(set, "train.multi_token_kind", err, "a module is not in this version beside %s", why);
}

/* What is not there beside further heads. A tied head's gradient takes a way of its own, and weights to start
 * from have no such heads. */
static ErrorCode check_multi_token(const Config *c, const OptionSet *set, Error *err) {
    bool heads = c->train.multi_token_kind == FURTHER_HEAD;
    const char *other = c->lora.rank > 0                     ? "lora.rank"
                        : c->model.init[0] && heads          ? "model.init"
                        : c->model.shape.tie_word_embeddings ? "model.tie_word_embeddings"
                                                             : NULL;
    if (c->train.multi_token == 0 || !other) return check_module(c, set, err);
    return options_fail(set, "train.multi_token", err,
                        "further heads beside %s are not in this version: leave "
                        "one of them out",
                        other);
}

/* What is not there beside adapters. */
static ErrorCode check_lora(const Config *c, const OptionSet *set, Error *err) {
    if (c->lora.rank == 0) return OK;
    if (!c->model.init[0])
        return options_fail(set, "lora.rank", err,
                            "adapters go to a model that is there: set model.init to its directory");
    if (c->optimizer.ema > 0)
        return options_fail(set, "optimizer.ema", err,
                            "no average of weights is kept with lora.rank: set it to 0");
    return OK;
}

/* A key from config.json counts unless the run's own configuration gives it. Special tokens have no key:
 * they come from the file, later from the tokenizer. *own is the shape as the file has it, for
 * check_shape. The path is escaped: it becomes the `where` of every key, which is printed and written
 * down. */
static ErrorCode take_shape(Config *c, OptionSet *set, const char *path, ModelConfig *own, Error *err) {
    ModelConfig *shape = &c->model.shape;
    char where[512];
    TRY(model_config_read(own, path, err));
    shape->bos_token_id = own->bos_token_id;
    shape->eos_token_id = own->eos_token_id;
    shape->more_eos = own->more_eos;
    shape->has_pad = own->has_pad;
    shape->pad_token_id = own->pad_token_id;
    error_escape(where, sizeof where, path, strlen(path));
    TRY(take_family(c, set, own, where, err));
    TRY(take_mixers(c, set, own, where, err));
    TRY(take_rope_factors(c, set, own, where, err));
    return options_derive_part(set, shape, own, sizeof *own, false, where, err);
}

/* `find` is checkpoint_find_model, given from above: config/ lies below checkpoint/. A run given by name
 * stands for its newest checkpoint, so the directory of the message is the one that was found. */
static ErrorCode take_shape_of_model(Config *c, OptionSet *set, FindModel find, Error *err) {
    char *dir;
    ModelConfig own;
    TRY(find(c->model.init, &dir, err));
    char *path = path_join(dir, "config.json");
    ErrorCode code = take_shape(c, set, path, &own, err);
    if (code == OK) code = check_shape(set, &own, &c->model.shape, dir, err);
    free(path);
    free(dir);
    return code;
}

/* "3-5", "3". Digits are asked for before each strtoll, which would take signs and blanks. A number beyond
 * 64 bits becomes the largest there is: a step that never comes, and no error. */
static bool parse_range(const char *text, int64_t *first, int64_t *last) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    *first = *last = strtoll(text, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') *last = strtoll(end + 1, &end, 10);
    return *end == '\0' && *first >= 1 && *last >= *first;
}

bool config_saves_async(const Config *c) { return c->checkpoint.async && c->checkpoint.every > 0; }

/* The text is parsed again where it is asked for: it is short, has been checked, and no second field has
 * to be kept equal to it. */
bool config_traces(const Config *c, int64_t *first, int64_t *last) {
    return parse_range(c->metrics.trace, first, last);
}

/* When the configuration is read, and not at the first traced step, hours later. Empty is no trace. */
static ErrorCode check_trace(const OptionSet *set, const char *text, Error *err) {
    int64_t first, last;
    char shown[80];
    if (*text == '\0' || parse_range(text, &first, &last)) return OK;
    return options_fail(set, "metrics.trace", err, "expected steps as in 3-5, counted from 1, found \"%s\"",
                        error_escape(shown, sizeof shown, text, strlen(text)));
}

/* A rank as people write it; -1 for anything else. As text, since a list of numbers is a list of texts to
 * the options. A digit comes first, which strtoll does not ask for: " 3" and "+3" are no ranks. */
static int64_t rank_of(const char *text) {
    char *end;
    if (*text < '0' || *text > '9') return -1;
    long long value = strtoll(text, &end, 10);
    return *end == '\0' && value <= INT32_MAX ? (int64_t)value : -1;
}

bool config_logs_rank(const Config *c, int rank) {
    for (size_t i = 0; i < c->metrics.log_ranks.count; i++)
        if (rank_of(c->metrics.log_ranks.items[i]) == rank) return true;
    return false;
}

/* What can be said without knowing how many ranks there are; the rest is config_check_ranks'. */
static ErrorCode check_ranks(const StringList *ranks, Error *err) {
    char shown[80];
    for (size_t i = 0; i < ranks->count; i++)
        if (rank_of(ranks->items[i]) < 0)
            return error_set(err, ERR_CONFIG,
                             "metrics.log_ranks: expected whole numbers as in [0, 3], found \"%s\"",
                             error_escape(shown, sizeof shown, ranks->items[i], strlen(ranks->items[i])));
    return OK;
}

/* A product of factors starts from something. */
static ErrorCode check_range_test(const OptionSet *set, const ScheduleOptions *s, Error *err) {
    if (s->kind == SCHEDULE_RANGE && s->warmup_from > 0)
        return options_fail(set, "schedule.warmup_from", err, "schedule.kind: range has no warmup");
    if (s->kind != SCHEDULE_RANGE || s->min_factor > 0) return OK;
    return options_fail(set, "schedule.min_factor", err,
                        "schedule.kind: range starts at this share of optimizer.lr, which must be above 0: "
                        "1e-5, say");
}

/* Beside keys what the run was trained on. A misspelt key would be found only when a run is to go on,
 * which may be at night, by the supervisor: so it is refused when the configuration is read. */
static ErrorCode check_changes(const OptionSet *set, const StringList *keys, Error *err) {
    for (size_t i = 0; i < keys->count; i++) {
        const char *key = keys->items[i];
        if (strcmp(key, "data") == 0 || strcmp(key, "tokenizer") == 0 || strcmp(key, "mixture") == 0 ||
            strcmp(key, "base") == 0)
            continue;
        TRY(options_check_key(set, "run.allow_changes", key, err));
    }
    return OK;
}

/* When the number of ranks is known, which is after the configuration is read. A rank that is not there is
 * an error: its lines would be waited for in vain. */
ErrorCode config_check_ranks(const Config *c, int world, Error *err) {
    const StringList *ranks = &c->metrics.log_ranks;
    for (size_t i = 0; i < ranks->count; i++)
        if (rank_of(ranks->items[i]) >= world)
            return error_set(err, ERR_CONFIG, "metrics.log_ranks names rank %s: %s %d", ranks->items[i],
                             world == 1 ? "there is only rank" : "ranks are 0 to", world - 1);
    return OK;
}

/* Sequences of a microbatch when the user leaves it open: some 2,048 tokens, or what pipeline.microbatches
 * makes. The number of ranks matters only where that many do not fit, so that the curve does not depend on
 * it. 2,048 tokens fill the products of a small model. */
static int64_t choose_sequences(const Config *c, int ranks) {
    /* What the smallest step is made of makes up the others. */
    int64_t context = c->train.context,
            step = c->train.batch_start > 0 ? c->train.batch_start : c->train.tokens_per_step;
    if (step > 0 && c->pipeline.microbatches > 0 && step % (c->pipeline.microbatches * ranks * context) == 0)
        return step / (c->pipeline.microbatches * ranks * context);
    int64_t chosen = (2048 + context - 1) / context;
    while (step > 0 && chosen > 1 && step % (chosen * context) != 0) chosen--;
    while (step > 0 && chosen > 1 && step % (chosen * context * ranks) != 0) chosen--;
    return chosen;
}

/* With the nearest numbers that would do: the multiples of a round of microbatches below and above. There
 * is none below where the step is smaller than one round. */
static ErrorCode refuse_step(const Config *c, int64_t step, int64_t sequences, int ranks, Error *err) {
    int64_t unit = sequences * c->train.context * ranks, below = step / unit * unit;
    char lower[40] = "";
    if (below > 0) snprintf(lower, sizeof lower, "%lld or ", (long long)below);
    return error_set(err, ERR_CONFIG,
                     "train.tokens_per_step is %lld, which microbatches of %lld sequences of %lld tokens on "
                     "%d data-parallel ranks do not divide: %s%lld would",
                     (long long)step, (long long)sequences, (long long)c->train.context, ranks, lower,
                     (long long)(below + unit));
}

/* Into whole microbatches, however many. *sequences and *microbatches are set, also where the step is
 * refused: config_geometry is asked with what they are. */
static ErrorCode divide_step(const Config *c, int ranks, int64_t *sequences, int64_t *microbatches,
                             Error *err) {
    int64_t step = c->train.tokens_per_step, asked = c->pipeline.microbatches;
    *sequences = c->train.microbatch > 0 ? c->train.microbatch : choose_sequences(c, ranks);
    int64_t unit = *sequences * c->train.context * ranks;
    if (step == 0) step = unit * (asked > 0 ? asked : 1);
    *microbatches = step / unit;
    return step % unit == 0 ? OK : refuse_step(c, step, *sequences, ranks, err);
}

/* All three of tokens, microbatch and microbatches may be given if they agree; what is open follows from
 * the others:
 *
 *     train.tokens_per_step = microbatches * sequences * train.context * ranks
 *
 * Refused and never rounded: a step of other tokens than were asked for would be another curve. */
ErrorCode config_geometry(const Config *c, int ranks, int64_t *sequences, int64_t *microbatches, Error *err) {
    int64_t context = c->train.context, asked = c->pipeline.microbatches;
    TRY(divide_step(c, ranks, sequences, microbatches, err));
    if (*microbatches > MOST_MICROBATCHES)
        return error_set(err, ERR_CONFIG,
                         "train.tokens_per_step asks for %lld microbatches a step: at most 1,000,000",
                         (long long)*microbatches);
    if (asked > 0 && asked != *microbatches)
        return error_set(err, ERR_CONFIG,
                         "pipeline.microbatches is %lld, but %lld tokens a step in microbatches of %lld "
                         "sequences of %lld tokens on %d data-parallel ranks are %lld: leave one of them to "
                         "weft (0)",
                         (long long)asked, (long long)(*sequences * *microbatches * context * ranks),
                         (long long)*sequences, (long long)context, ranks, (long long)*microbatches);
    return OK;
}

/* Without scaling its other numbers say nothing, and are always the same. Two configurations that mean no
 * scaling so have the same digest, whatever else they say of it. `given` gives way here too: a value that
 * was given and means nothing must not tell two runs apart. */
static ErrorCode derive_rope(Config *c, OptionSet *set, Error *err) {
    RopeScaling *rope = &c->model.shape.rope_scaling, none = ROPE_UNSCALED;
    if (rope_is_scaled(rope) || rope->factor < 1) return OK;
    return options_derive_part(set, rope, &none, sizeof none, true, "derived from model.rope_factor", err);
}

/* Also of a saved configuration, when it is read back (train/saved.c): both are compared with everything
 * derived. */
ErrorCode config_derive(Config *c, OptionSet *set, Error *err) {
    c->model.shape.further_heads = c->train.multi_token;
    c->model.shape.further_module = c->train.multi_token > 0 && c->train.multi_token_kind == FURTHER_MODULE;
    c->model.shape.balance_bias =
        c->train.router_bias_speed > 0 && !families[c->model.family]->arch.sigmoid_router;
    TRY(options_follow(set, err));
    return derive_rope(c, set, err);
}

/* In this order: defaults, file, command line, then what only several keys tell, then shapes from files,
 * then what follows. A wrong word is so found before the file of a model is opened, and what follows sees
 * everything that it could follow from. `set` and `c` are the caller's to free by options_free, after a
 * failure too. */
ErrorCode config_load(Config *c, OptionSet *set, const char *path, int override_count,
                      const char *const *overrides, FindModel find, Error *err) {
    memset(c, 0, sizeof *c);
    TRY(options_init(set, config_options, c, err));
    set->synonyms = config_synonyms;
    if (path) TRY(options_apply_file(set, path, err));
    for (int i = 0; i < override_count; i++) TRY(options_apply_override(set, overrides[i], err));
    TRY(check_ranks(&c->metrics.log_ranks, err));
    TRY(check_trace(set, c->metrics.trace, err));
    TRY(check_range_test(set, &c->schedule, err));
    if (c->metrics.command.count > 0 && !*c->metrics.command.items[0])
        return options_fail(set, "metrics.command", err, "expected a program as the first word, found \"\"");
    TRY(check_changes(set, &c->run.allow_changes, err));
    c->model.shape.bos_token_id = c->model.shape.eos_token_id = -1;
    TRY(read_mixers(c, set, err));
    TRY(read_rope_factors(c, set, err));
    if (c->model.config[0]) TRY(take_shape(c, set, c->model.config, &(ModelConfig){0}, err));
    if (c->model.init[0]) TRY(take_shape_of_model(c, set, find, err));
    if (!c->model.config[0] && !c->model.init[0]) TRY(take_defaults(c, set, err));
    TRY(take_initialiser(c, set, err));
    TRY(take_momentum(c, set, err));
    TRY(check_schedule(c, set, err));
    TRY(check_batch_warmup(c, set, err));
    TRY(check_spans(c, set, err));
    TRY(check_noise(c, set, err));
    TRY(check_lora(c, set, err));
    TRY(take_router_bias(c, set, err));
    TRY(check_router_bias(c, set, err));
    TRY(check_multi_token(c, set, err));
    TRY(config_derive(c, set, err));
    if (c->train.context > c->model.shape.max_position_embeddings)
        return error_set(err, ERR_CONFIG,
                         "train.context is %lld but model.max_position_embeddings is %lld: lower the one or "
                         "raise the other",
                         (long long)c->train.context, (long long)c->model.shape.max_position_embeddings);
    /* For its error only. */
    int64_t sequences, microbatches;
    /* With more ranks less is possible, never more; what the mesh makes of it is seen when the mesh is
     * known. */
    return c->pipeline.microbatches ? OK : divide_step(c, 1, &sequences, &microbatches, err);
}

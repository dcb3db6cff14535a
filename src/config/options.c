/* The option table: sections whose keys several directories above this one read, and those of the directories
 * below. A key is one row (base/option_rows.h), which parsing, help, the resolved configuration, the
 * comparison between ranks and resuming all use. Constraints of one key (bounds, choices, the effect of a
 * change) are in its row; only constraints across keys are code (config.c). */
#include <pthread.h>

#include "base/option_rows.h"
#include "config/config.h"
#include "device/device.h"
#include "model/layers/layer.h"

#define TARGET Config
static const Option run_options[] = {
    /* The location of a run and how it is executed: only the seed of the initial weights affects the curve.
     * `local` values may differ between ranks, like machines do: the comparison between ranks skips them. */
    TEXT("run.dir", run.dir, "runs/run", NOTHING, "Run directory: all that a run writes.", REQUIRED),
    /* Only of the initial weights. The order of samples and the rounding of states have separate seeds, so
     * that each can be changed alone. */
    INT("run.seed", run.seed, "42", 0, MOST_EXACT, START, "Seed of the initial weights."),
    INT("run.threads", run.threads, "0", 0, 4096, NOTHING,
        "Threads; 0 means one per core. Results do not depend on it.", LOCAL),
    /* Kernels add in other orders: last bits, reported as "the kernels" (RunFacts). */
    CHOICE("run.device", run.device, "auto", DEVICE_KINDS, SUMS,
           "auto, cpu: the best kernels that the processor runs, or some by name; cuda: a GPU "
           "(docs/use/gpus.md).",
           LOCAL),
    /* Hashes what the step has made; a checkpoint states the last receipt. */
    BOOL("run.receipts", run.receipts, "false", NOTHING,
         "Write a hash chain of configuration, samples and weights of each logged step to receipts.jsonl, "
         "which weft verify proves."),
    /* Must be given at each start; for restarts train_supervised applies it only once. */
    BOOL("run.overwrite", run.overwrite, "false", NOTHING,
         "Start over in a directory that already holds a run, whose records and checkpoints are removed."),
    TEXTS("run.allow_changes", run.allow_changes, "", NOTHING,
          "Keys that may differ from those of the checkpoint that a run goes on from; also data, tokenizer, "
          "mixture, base; unknown: keys that this weft does not know."),
    TABLE_END};

static const Option train_options[] = {
    /* The step: number of tokens, division into microbatches, number formats. Longer training only extends
     * the run; a learning-rate schedule that follows train.steps has its own key (follows). */
    INT("train.steps", train.steps, "1000", 1, 1e12, NOTHING, "Number of optimizer steps."),
    /* Changes the windows of the text: no earlier sample would exist any more, so the order of samples could
     * not continue. */
    INT("train.context", train.context, "512", 1, 16777216, CURVE, "Tokens of a sequence (sequence length)."),
    /* The same sum grouped differently: last bits. train.tokens_per_step determines the tokens of a step. */
    INT("train.microbatch", train.microbatch, "0", 0, 1e6, BITS,
        "Sequences of a microbatch; 0 means about 2,048 tokens."),
    /* In tokens rather than microbatches, so that it is independent of ranks and memory, and so is the curve.
     * It must divide into whole microbatches (config_geometry). */
    INT("train.tokens_per_step", train.tokens_per_step, "0", 0, 1e12, CURVE,
        "Tokens of an optimizer step; 0 means one microbatch. More than that accumulates gradients."),
    /* Smith and others, "Don't decay the learning rate, increase the batch size", 2018; McCandlish and
     * others, "An empirical model of large-batch training", 2018: early in training few tokens give as good a
     * gradient. The size doubles instead of growing in small steps, since each size needs a program of its
     * own. */
    INT("train.rampup_start", train.rampup_start, "0", 0, 1e12, CURVE,
        "Tokens of the first steps, which are doubled until they are train.tokens_per_step; 0: no ramp-up of "
        "the batch size."),
    INT("train.rampup_tokens", train.rampup_tokens, "0", 0, 1e15, CURVE,
        "Ramp-up of the batch size: tokens over which steps grow from train.rampup_start to "
        "train.tokens_per_step, an equal share for each size, in whole steps."),
    /* Another dtype is other mathematics. `auto` is resolved once in the life of a run (train/setup.c). */
    CHOICE("train.compute", train.compute, "auto", CHOICE_WORDS(COMPUTE_KINDS), CURVE,
           "Dtype of activations and products; auto is bf16 where the processor multiplies it natively."),
    /* Chen and others, "Training deep nets with sublinear memory cost", 2016; selective: Korthikanti and
     * others, "Reducing activation recomputation in large transformer models", 2022. Recomputed values are
     * bitwise equal (model/layers/layer.h): this trades time for memory and never changes the curve. */
    CHOICE("train.recompute", train.recompute, "none", CHOICE_WORDS(RECOMPUTE_KINDS), NOTHING,
           "Activation checkpointing: what the backward pass recomputes in place of keeping it."),
    /* Logits take tokens times vocabulary, possibly more than everything else of a microbatch, so only some
     * rows exist at a time. The chunks' losses are added one after the other: the chunk size groups the sum,
     * and therefore does not depend on the available memory. */
    INT("train.loss_rows", train.loss_rows, "0", 0, 1e9, BITS,
        "Tokens whose logits exist at a time; 0 means chosen by the vocabulary."),
    /* Chowdhery and others, "PaLM", 2022, with 1e-4. A softmax is invariant to a constant added to all logits
     * of a row; in bf16 that constant matters, and this loss keeps it near 0. */
    REAL("train.z_loss", train.z_loss, "0", 0, 1, CURVE,
         "Coefficient of the squared log of the softmax's denominator, a loss in addition to the "
         "cross-entropy that is trained on and reported separately; 0 for none, 1e-4 is usual."),
    /* Wang and others, "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024. Not a
     * loss, so no gradient; DeepSeek-V3 used 0.001 for most of its training. */
    REAL("train.router_bias_speed", train.router_bias_speed, "0", 0, 1, CURVE,
         "Balance of experts without a loss: what is added after each step to the bias by which an expert is "
         "chosen, if it had fewer tokens than the mean, and taken off if it had more; 0 is none. Where "
         "nobody says it, experts that start from random weights have 0.02, of llama4_text 0.01, of "
         "deepseek_v3 0.001."),
    REAL("train.ep_buffer_factor", train.ep_buffer_factor, "1.25", 1, 64, NOTHING,
         "With mesh.ep: rows that a rank's experts have memory for at a time, as a multiple of those of its "
         "own tokens. What is more comes in further rounds: nothing is dropped, and the bits are the same."),
    /* Gloeckle and others, "Better & faster large language models via multi-token prediction", 2024: separate
     * heads on the same hidden states. They are part of the trained model. */
    INT("train.mtp_depth", train.mtp_depth, "0", 0, MTP_DEPTH_MAX, RUN,
        "Multi-token prediction: MTP heads, the k-th of which is trained on the k-th token behind the "
        "next one; validation, generation and Hugging Face's classes use none of them."),
    CHOICE("train.mtp_kind", train.mtp_kind, "heads", CHOICE_WORDS(MTP_KINDS), RUN,
           "What the MTP heads of train.mtp_depth are. heads: a matrix each, on the states of the "
           "head. module: one as DeepSeek-V3 has it, a block behind the last that reads the next token too "
           "and ends in the model's own head. For deepseek_v3, whose files have it."),
    REAL("train.mtp_loss_weight", train.mtp_loss_weight, "1", 0, 100, CURVE,
         "Weight of the loss of each MTP head of train.mtp_depth in the sum that is trained on."),
    /* dgrad and wgrad compute the same elements as the combined backward: a schedule may delay the wgrad
     * until a rank has nothing else to do. */
    BOOL("train.split_backward", train.split_backward, "false", NOTHING,
         "Run the input gradients and the weight gradients (dgrad and wgrad) of the backward pass as "
         "separate actions; same bits."),
    /* A run that only skips steps trains nothing, and should stop soon. */
    INT("train.stop_after_bad", train.stop_after_bad, "5", 1, 1e9, NOTHING,
        "Stop after this many non-finite steps in a row; each is skipped and counted."),

    /* The frequency of reductions determines the order of sums, except in exact numerics. auto follows from
     * other keys alone (plan/sync.h) and is saved as the resolved value. */
    CHOICE("train.gradient_sync", train.gradient_sync, "auto", CHOICE_WORDS(SYNC_KINDS), SUMS,
           "When gradients cross the network: once a step; once a microbatch (less memory when sharded); or "
           "over dp_shard once a microbatch and over dp_replicate once a step; auto: the fewest bytes that "
           "pipeline.memory_gib allows, and of as many bytes the least memory."),
    /* Trades memory for traffic: the gathered values are the same. */
    CHOICE("train.reshard_after_forward", train.reshard, "auto", CHOICE_WORDS(RESHARD_KINDS), NOTHING,
           "Whether gathered parameters are dropped after use and gathered again for the backward pass; "
           "auto: yes, but not in pipelines."),

    /* Sums in fixed point do not depend on the order, since integer addition is associative. They cost memory
     * and traffic (figures in docs/use/reproducibility.md), so they are optional. */
    CHOICE("numerics.mode", numerics.mode, "fast", CHOICE_WORDS(NUMERICS_KINDS), SUMS,
           "How gradients of microbatches are summed. exact: in fixed point, the same bits however the "
           "microbatches of a step are shared out among ranks and accumulation; another train.microbatch "
           "makes other bits. fast: in floating point."),
    /* For partials and the tree over them see device/shapes.h, base/tree.h. Fixed for the life of a run, so
     * that it may continue with fewer tensor-parallel ranks and the same bits. */
    INT("numerics.tp_invariant_up_to", numerics.tp_invariant_up_to, "0", 0, 64, BITS,
        "Pieces into which sums that mesh.tp shares are cut, on one rank as well: every degree whose share "
        "of them is a power of two has the same bits; 0: mesh.tp when the run begins."),

    /* The same for tokens. In fast numerics cp is one more axis whose ranks contribute terms to a sum. */
    INT("numerics.cp_invariant_up_to", numerics.cp_invariant_up_to, "0", 0, 4096, BITS,
        "Spans of a microbatch's tokens whose gradients exact numerics round each by itself, on one rank as "
        "well: every mesh.cp that divides it has the same bits, by all_gather where that takes two of them "
        "or more, in powers of two; 0: mesh.cp when the run begins, twice that by all_gather. Fast numerics "
        "have none."),
    TABLE_END};

static const Option cp_options[] = {
    /* In exact numerics both have the same bits. */
    CHOICE("mesh.cp_comm", cp_comm, "auto", CHOICE_WORDS(CP_COMMS), SUMS,
           "How ranks of mesh.cp attend to each other's tokens. all_to_all: they exchange tokens for heads "
           "(DeepSpeed Ulysses), at most as many ranks as key and value heads; all_gather: each gathers "
           "keys and values of all, any number of ranks; auto: what sends fewer bytes, of those that can "
           "be."),
    TABLE_END};

static const Option pipeline_options[] = {
    /* Only some schedules take microbatches out of order (schedule_adds_in_order); the others do not affect
     * sums. Text and not a choice, since it may name a file. The default is 1f1b, which keeps the activations
     * of as many microbatches as there are stages, where gpipe keeps those of all. */
    TEXT("pipeline.schedule", pipeline.schedule, "1f1b", SUMS,
         "Pipeline schedule: gpipe, 1f1b, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, "
         "interleaved_zero_bubble, zbv, dualpipev, or a CSV file of compute actions."),
    /* An alternative to train.microbatch: each follows from the other. */
    INT("pipeline.microbatches", pipeline.microbatches, "0", 0, 1e6, NOTHING,
        "Microbatches of a step through the pipeline; 0: as many as train.tokens_per_step and "
        "train.microbatch make."),
    /* Stages decide who computes a unit, not what it computes; the same holds for the keys below. */
    TEXTS("pipeline.split", pipeline.split, "[auto]", NOTHING,
          "Stages: auto (even in time), uniform (TorchTitan's rule), or where new ones start, such as "
          "[layers.4, layers.8].",
          INSTEAD("the number of layers of a stage is pipeline.layers_per_stage")),
    INT("pipeline.layers_per_stage", pipeline.layers_per_stage, "0", 0, 1e6, NOTHING,
        "At most this many layers a stage, by the uniform rule; 0: as many stages as the schedule wants."),
    INT("pipeline.stages_per_rank", pipeline.stages_per_rank, "0", 0, 1e6, NOTHING,
        "Stages of each rank, for schedules that take several; 0: 1, or 2 for those made for more."),
    /* TorchTitan's two numbers under its names: embedding and head take time like layers, so the first and
     * the last stage get fewer layers. 1 each unless measured. */
    INT("pipeline.first_stage_less_layers", pipeline.first_stage_less, "1", 0, 1e6, NOTHING,
        "Split by the uniform rule: number of layers that the embedding counts as."),
    INT("pipeline.last_stage_less_layers", pipeline.last_stage_less, "1", 0, 1e6, NOTHING,
        "Split by the uniform rule: number of layers that the norm and the head count as."),
    /* A number instead of this machine's memory: a plan is often made on another machine than it runs on, and
     * all ranks must arrive at the same stages. */
    REAL("pipeline.memory_gib", pipeline.memory_gib, "0", 0, 1e9, NOTHING,
         "Memory of a rank, to which split: auto and train.gradient_sync: auto keep by the figures of \"weft "
         "plan\"; 0: they look at time and bytes only."),
    TABLE_END};

static const Option record_options[] = {
    /* Validation does not change the run. It also runs before step 1, so that the curve starts with the
     * untrained model, and errors in the text are found at once. */
    INT("validation.every", validation.every, "0", 0, 1e12, NOTHING,
        "Steps between validations, the first before step 1; 0 means at the end only."),
    /* Other figures, not another run: means over different samples are not comparable, and the change is
     * reported. */
    INT("validation.samples", validation.samples, "0", 0, 1e12, MEASURES,
        "Sequences of a validation, of each of its sets; 0 means all."),

    /* Files of documents, not names of data sets: a run downloads nothing. */
    LIST("evaluation.tasks", evaluation.tasks, TaskSource, task_options, MEASURES,
         "Tasks that the model is tried on: paths, or maps of path, task, name, limit, num_fewshot, "
         "examples."),
    INT("evaluation.every", evaluation.every, "0", 0, 1e12, NOTHING,
        "Steps between evaluations by the tasks, the first before step 1; 0 means at the end only."),
    /* Published figures are usually without it. */
    BOOL("evaluation.add_bos", evaluation.add_bos, "false", MEASURES,
         "Begin each context of a task with the tokenizer's BOS, if any."),

    /* Saving does not change the run either, not even as bf16, since the exact weights are then saved too. */
    INT("checkpoint.every", checkpoint.every, "500", 0, 1e12, NOTHING,
        "Steps between checkpoints; 0 means at the end only."),
    /* At least two: if the newest turns out to be damaged, the previous one is the only one to resume
     * from. */
    INT("checkpoint.keep", checkpoint.keep, "2", 2, 1e6, NOTHING,
        "Number of newest checkpoints that are kept."),
    /* In addition to the newest: for studying how a model developed, or for branching off. */
    INT("checkpoint.keep_every", checkpoint.keep_every, "0", 0, 1e12, NOTHING,
        "Checkpoints at multiples of this step are kept for good; 0 means none."),
    /* Only among regular checkpoints: the choice of what to keep must not change how often the run saves. */
    TEXT("checkpoint.keep_best", checkpoint.keep_best, "", NOTHING,
         "Keep the checkpoint that is best by this figure, measured at its step: validation/loss, "
         "validation/NAME/loss, task/NAME/acc_norm; empty means none."),
    CHOICE("checkpoint.dtype", checkpoint.dtype, "fp32", CHOICE_WORDS(STORE_TYPES), NOTHING,
           "Dtype of the model file; with bf16 the exact weights go into the file of the moments, so that "
           "resuming stays exact."),
    BOOL("checkpoint.async", checkpoint.async, "true", NOTHING,
         "Write checkpoints from a copy in memory while training goes on; false takes no memory for the "
         "copy, and training waits. With checkpoint.every 0 there is no copy."),
    TEXT("checkpoint.mirror", checkpoint.mirror, "", NOTHING,
         "s3://BUCKET/PREFIX: copy each checkpoint there while training goes on; empty means none."),
    /* For models that are published. */
    BOOL("checkpoint.last_weights_only", checkpoint.last_weights_only, "false", NOTHING,
         "The last checkpoint holds no optimizer: smaller, but the run cannot go on from it."),
    /* From the measured cost of a save, Young's formula gives the interval that loses the least time
     * (checkpoint/async.c). Only suggested, since the user may have other reasons for an interval. */
    REAL("checkpoint.mttf_hours", checkpoint.mttf_hours, "24", 0, 1e6, NOTHING,
         "Mean time to failure, from which an interval between checkpoints is suggested; 0 for no "
         "suggestion."),

    /* Logging and records of a run. The frequency also limits how two runs can be compared: by steps that
     * both have recorded. */
    INT("metrics.log_freq", metrics.log_freq, "10", 1, 1e9, NOTHING, "Steps between log lines."),
    BOOL("metrics.tensorboard", metrics.tensorboard, "true", NOTHING, "Write TensorBoard events."),
    /* Only marks: nothing is skipped for being unusual. */
    REAL("metrics.spike", metrics.spike, "8", 0, 1e9, NOTHING,
         "Robust deviations of loss or gradient norm that are marked as a spike; 0 marks none."),
    /* McCandlish and others, "An empirical model of large-batch training", 2018. Optional, since it reads the
     * gradients of one rank once more. */
    BOOL("metrics.noise_scale", metrics.noise_scale, "false", NOTHING,
         "Estimate the gradient noise scale, the tokens of a step beyond which more bring little, from the "
         "first microbatch of each step and the whole of it."),
    /* Rank 0 has the figures of all ranks. The lines of the others help to find a slow rank. */
    TEXTS("metrics.log_ranks", metrics.log_ranks, "[0]", NOTHING,
          "Ranks whose lines are printed; the lines begin with [rank N], unless only rank 0 is named."),
    BOOL("metrics.all_ranks", metrics.all_ranks, "false", NOTHING,
         "Keep a metrics file for each rank: metrics-00001.jsonl and so on, next to that of rank 0."),
    /* For a few steps: the file has an entry for each action of each rank and step. */
    TEXT("metrics.trace", metrics.trace, "", NOTHING,
         "Steps whose actions are timed on every rank, as in 3-5: trace.json, for Perfetto, and a picture in "
         "the report, planned next to measured."),
    /* It only examines values that the passes compute anyway; it runs no additional step. */
    INT("metrics.probe", metrics.probe, "0", 0, 1e12, NOTHING,
        "Steps between probes: size of what each unit puts out, of its gradient, of its weights and of "
        "theirs; 0 means none."),
    /* A list of words, started without a shell, so that nothing in a path or a name is taken as syntax. */
    TEXTS("metrics.command", metrics.command, "", NOTHING,
          "A program and its arguments, started by rank 0 without a shell, that gets every record as a line "
          "of JSON on its standard input; no run waits for it, or ends with it."),
    REAL("metrics.command_wait_s", metrics.command_wait_s, "30", 0, 86400, NOTHING,
         "Seconds that the end of a run waits for the program of metrics.command to end; then it is killed."),
    BOOL("metrics.profile", metrics.profile, "false", NOTHING,
         "Print where the time of the steps went, by operation."),

    /* Replicas that differ are found at the next comparison, so at most this many steps are lost. Nothing
     * else would show it: each replica trains on alone, and the loss averages over all of them. */
    INT("check.replicas_every", check.replicas_every, "100", 0, 1e12, NOTHING,
        "Steps between comparisons of what several ranks hold alike (dp_replicate, tied embeddings across "
        "stages), which also come before each checkpoint; 0 means never."),

    /* The supervisor reads it before there is a run. The pause doubles, so that a disk or a machine that is
     * away for minutes does not use up all restarts at once. */
    REAL("restart.backoff_s", restart.backoff_s, "1", 0, 3600, NOTHING,
         "With --restarts: seconds before the first restart; doubled with each, up to 60, until one ran for "
         "ten minutes."),
    TABLE_END};

/* Each with the offset in Config of the struct that its rows describe. Help and the written configuration
 * have their sections in this order. */
static const struct {
    const Option *rows;
    size_t at;
} sections[] = {
    {run_options, 0},
    {model_options, offsetof(Config, model)},
    {lora_options, offsetof(Config, lora)},
    {data_options, offsetof(Config, data)},
    {tokenizer_options, offsetof(Config, data.tokenizer_keys)},
    {train_options, 0},
    {mesh_options, offsetof(Config, mesh)},
    {cp_options, 0},
    {comm_options, offsetof(Config, comm)},
    {pipeline_options, 0},
    {optimizer_options, offsetof(Config, optimizer)},
    {schedule_options, offsetof(Config, lr_schedule)},
    {record_options, 0},
};

static Option joined[256];

static void join(void) {
    size_t count = 0;
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        for (const Option *row = sections[i].rows; row->key; row++) {
            CHECK(count + 1 < sizeof joined / sizeof *joined); /* the last one ends the table */
            joined[count] = *row;
            joined[count++].offset += sections[i].at;
        }
}

const Option *config_options(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, join);
    return joined;
}

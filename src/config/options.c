/* The option table: sections whose keys several rooms above this one read, and those of the rooms below.
 * A key is one row (base/option_rows.h): parsing, help, the resolved configuration, agreement of ranks and
 * resuming read it there. What one row can say (bounds, choices, what another value does to a run) stands in
 * the row; only what takes several keys is code (config.c). */
#include <pthread.h>

#include "base/option_rows.h"
#include "config/config.h"
#include "device/device.h"
#include "model/layers/layer.h"

#define TARGET Config
static const Option run_options[] = {
    /* Where a run lies and how it is driven: nothing of it reaches the curve but the seed of the first
     * weights. `local` values may differ from rank to rank, as machines do: agreement of ranks leaves them
     * out. */
    TEXT("run.dir", run.dir, "runs/run", NOTHING, "Run directory: all that a run writes.", REQUIRED),
    /* Of the first weights alone. The order of samples and the rounding of states have seeds of their own,
     * so that each can be changed without the others. */
    INT("run.seed", run.seed, "42", 0, MOST_EXACT, START, "Seed of the initial weights."),
    INT("run.threads", run.threads, "0", 0, 4096, NOTHING,
        "Threads; 0 means one per core. Results do not depend on it.", LOCAL),
    /* Kernels add in other orders: last bits, told as "the kernels" (RunFacts). */
    CHOICE("run.device", run.device, "auto", DEVICE_KINDS, SUMS,
           "auto, cpu: the best kernels that the processor runs, or some by name; cuda: a GPU "
           "(docs/use/gpus.md).",
           LOCAL),
    /* Said again at each start, or never: train_supervised says it once for all restarts. */
    BOOL("run.overwrite", run.overwrite, "false", NOTHING,
         "Start anew in a directory that already holds a run, whose records and checkpoints are removed."),
    TEXTS("run.allow_changes", run.allow_changes, "", NOTHING,
          "Keys that may differ from those of the checkpoint that a run goes on from; also data, tokenizer, "
          "mixture."),
    TABLE_END};

static const Option train_options[] = {
    /* The step: how many tokens, in what pieces, with which numbers. Longer training is the same run as
     * far as it goes; a schedule that follows train.steps is told by its own key (follows). */
    INT("train.steps", train.steps, "1000", 1, 1e12, NOTHING, "Number of optimizer steps."),
    /* Other windows of the same text: no sample of before would be a sample any more, so nothing of the
     * order could go on. */
    INT("train.context", train.context, "512", 1, 16777216, CURVE, "Tokens of a sequence (sequence length)."),
    /* The same sum in other groups: last bits. Which tokens are in a step is train.tokens_per_step. */
    INT("train.microbatch", train.microbatch, "0", 0, 1e6, BITS,
        "Sequences of a microbatch; 0 means about 2,048 tokens."),
    /* In tokens and not in microbatches: the number stays when ranks or memory change, and with it the
     * curve. It must divide into whole microbatches (config_geometry). */
    INT("train.tokens_per_step", train.tokens_per_step, "0", 0, 1e12, CURVE,
        "Tokens of an optimizer step; 0 means one microbatch. More than that accumulates gradients."),
    /* Smith and others, "Don't decay the learning rate, increase the batch size", 2018; McCandlish and
     * others, "An empirical model of large-batch training", 2018: at first gradients tell the same with few
     * tokens. Doubled, and not raised by little, since each size has a program of its own. */
    INT("train.batch_start", train.batch_start, "0", 0, 1e12, CURVE,
        "Tokens of the first steps, which are doubled until they are train.tokens_per_step; 0: no batch "
        "warm-up."),
    INT("train.batch_warmup", train.batch_warmup, "0", 0, 1e15, CURVE,
        "Batch warm-up: tokens over which steps grow from train.batch_start to train.tokens_per_step, an "
        "equal share for each size, in whole steps."),
    /* Another dtype is other mathematics. `auto` is decided once in the life of a run (train/setup.c). */
    CHOICE("train.compute", train.compute, "auto", CHOICE_WORDS(COMPUTE_KINDS), CURVE,
           "Dtype of activations and products; auto is bf16 where the processor multiplies it natively."),
    /* Chen and others, "Training deep nets with sublinear memory cost", 2016; selective: Korthikanti and
     * others, "Reducing activation recomputation in large transformer models", 2022. What is made again
     * equals what it was, bit for bit (model/layers/layer.h): memory is paid for with time, never with the
     * curve. */
    CHOICE("train.recompute", train.recompute, "none", CHOICE_WORDS(RECOMPUTE_KINDS), NOTHING,
           "Activation checkpointing: what the backward pass recomputes in place of keeping it."),
    /* Logits take tokens times vocabulary, which may be more than all else of a microbatch: so only some
     * rows exist at a time. Chunks of the loss are added one after the other: their size groups the sums,
     * and is not chosen by the memory that happens to be there. */
    INT("train.loss_rows", train.loss_rows, "0", 0, 1e9, BITS,
        "Tokens whose logits exist at a time; 0 means chosen by the vocabulary."),
    /* Chowdhery and others, "PaLM", 2022, with 1e-4. A softmax does not see what is added to all logits of a
     * row; in bf16 it matters, and this keeps it near 0. */
    REAL("train.z_loss", train.z_loss, "0", 0, 1, CURVE,
         "Coefficient of the squared log of the softmax's denominator, a loss beside the cross-entropy that "
         "is trained on and told apart; 0 for none, 1e-4 is usual."),
    /* Wang and others, "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024. No loss,
     * so no gradient; DeepSeek-V3 had 0.001 for most of its training. */
    REAL("train.router_bias_speed", train.router_bias_speed, "0", 0, 1, CURVE,
         "Balance of experts without a loss: what is added after each step to the bias by which an expert is "
         "chosen, if it had fewer tokens than the mean, and taken off if it had more; 0 is none. Where "
         "nobody says it, experts that start from random weights have 0.02, of llama4_text 0.01, of "
         "deepseek_v3 0.001."),
    REAL("train.expert_capacity", train.expert_capacity, "1.25", 1, 64, NOTHING,
         "With mesh.ep: rows that a rank's experts have memory for at a time, as a multiple of those of its "
         "own tokens. What is more comes in further rounds: nothing is dropped, and the bits are the same."),
    /* Gloeckle and others, "Better & faster large language models via multi-token prediction", 2024: heads of
     * their own on the same states. They are part of the model that is trained. */
    INT("train.multi_token", train.mtp_depth, "0", 0, MTP_DEPTH_MAX, RUN,
        "Multi-token prediction: MTP heads, the k-th of which is trained on the k-th token behind the "
        "next one; validation, generation and Hugging Face's classes use none of them."),
    CHOICE("train.multi_token_kind", train.mtp_kind, "heads", CHOICE_WORDS(MTP_KINDS), RUN,
           "What the MTP heads of train.multi_token are. heads: a matrix each, on the states of the "
           "head. module: one as DeepSeek-V3 has it, a block behind the last that reads the next token too "
           "and ends in the model's own head. For deepseek_v3, whose files have it."),
    REAL("train.multi_token_weight", train.mtp_loss_weight, "1", 0, 100, CURVE,
         "Weight of the loss of each MTP head of train.multi_token in the sum that is trained on."),
    /* The halves compute what the whole does, element by element: a schedule may set the one for the
     * weights aside until a rank has nothing else to do. */
    BOOL("train.split_backward", train.split_backward, "false", NOTHING,
         "Run the input gradients and the weight gradients (dgrad and wgrad) of the backward pass as "
         "separate actions; same bits."),
    /* A run that only skips steps trains nothing, and should say so before the night is over. */
    INT("train.stop_after_bad", train.stop_after_bad, "5", 1, 1e9, NOTHING,
        "Stop after this many non-finite steps in a row; each is skipped and counted."),

    /* Sums in fixed point have no order, since adding whole numbers is associative. It costs memory and
     * traffic (docs/use/reproducibility.md has figures), which is why it is asked for. */
    CHOICE("train.numerics", train.numerics, "fast", CHOICE_WORDS(NUMERICS_KINDS), SUMS,
           "How gradients of microbatches are summed. exact: in fixed point, the same bits however the "
           "microbatches of a step are shared out among ranks and accumulation; another train.microbatch "
           "makes other bits. fast: in floating point."),
    /* How often sums cross decides what is added to what first; exact numerics take that away. Auto follows
     * from other keys alone (plan/sync.h) and is written down as what it was taken for. */
    CHOICE("train.gradient_sync", train.gradient_sync, "auto", CHOICE_WORDS(SYNC_KINDS), SUMS,
           "When gradients cross the network: once a step; once a microbatch (less memory when sharded); or "
           "over dp_shard once a microbatch and over dp_replicate once a step; auto: the fewest bytes that "
           "pipeline.memory_gib allows, and of as many bytes the least memory."),
    /* Memory against traffic: the values gathered are the same. */
    CHOICE("train.reshard_after_forward", train.reshard, "auto", CHOICE_WORDS(RESHARD_KINDS), NOTHING,
           "Whether gathered parameters are dropped after use and gathered again for the backward pass; "
           "auto: yes, but not in pipelines."),

    /* Leaves and the tree over them: device.h, base/tree.h. Kept for the life of a run, so that it may go on
     * with fewer tensor-parallel ranks; what other trainers cannot do is to go on with the same bits. */
    INT("numerics.canonical_tp", numerics.canonical_tp, "0", 0, 64, BITS,
        "Pieces into which sums that mesh.tp shares are cut, on one rank as well: every degree whose share "
        "of them is a power of two has the same bits; 0: mesh.tp when the run begins."),

    /* The same of tokens. In fast numerics cp is one more axis whose ranks are terms of a sum. */
    INT("numerics.canonical_cp", numerics.canonical_cp, "0", 0, 4096, BITS,
        "Spans of a microbatch's tokens whose gradients exact numerics round each by itself, on one rank as "
        "well: every mesh.cp that divides it has the same bits, by keys where that takes two of them or "
        "more, in powers of two; 0: mesh.cp when the run begins, twice that by keys. Fast numerics have "
        "none."),
    TABLE_END};

static const Option parallel_options[] = {
    /* In exact numerics both have the same bits. */
    CHOICE("parallel.context", parallel.context, "auto", CHOICE_WORDS(CP_COMMS), SUMS,
           "How ranks of mesh.cp attend to each other's tokens: heads: they change tokens for heads, at most "
           "as many ranks as key and value heads; keys: each gathers keys and values of all, any number of "
           "ranks; auto: what sends fewer bytes, of those that can be."),
    TABLE_END};

static const Option pipeline_options[] = {
    /* Only some schedules take microbatches out of order (schedule_adds_in_order); for the others it
     * changes nothing. Text and not a choice, since a file may stand here. 1f1b by default: it keeps the
     * activations of as many microbatches as there are stages, where gpipe keeps those of all. */
    TEXT("pipeline.schedule", pipeline.schedule, "1f1b", SUMS,
         "Pipeline schedule: gpipe, 1f1b, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, "
         "interleaved_zero_bubble, zbv, dualpipev, or a CSV file of compute actions."),
    /* Says the same as train.microbatch from the other side: one of the two follows. */
    INT("pipeline.microbatches", pipeline.microbatches, "0", 0, 1e6, NOTHING,
        "Microbatches of a step through the pipeline; 0: as many as train.tokens_per_step and "
        "train.microbatch make."),
    /* Stages decide who computes a unit, not what; so do the keys below. */
    TEXTS("pipeline.split", pipeline.split, "[auto]", NOTHING,
          "Stages: auto (even in time), uniform (TorchTitan's rule), or where new ones start, such as "
          "[layers.4, layers.8].",
          INSTEAD("the number of layers of a stage is pipeline.layers_per_stage")),
    INT("pipeline.layers_per_stage", pipeline.layers_per_stage, "0", 0, 1e6, NOTHING,
        "At most this many layers a stage, by the uniform rule; 0: as many stages as the schedule wants."),
    INT("pipeline.stages_per_rank", pipeline.stages_per_rank, "0", 0, 1e6, NOTHING,
        "Stages of each rank, for schedules that take several; 0: 1, or 2 for those made for more."),
    /* TorchTitan's two numbers by its names: embedding and head take time as layers do, so the first and
     * the last stage get fewer layers. 1 each where nobody has measured. */
    INT("pipeline.first_stage_less_layers", pipeline.first_stage_less, "1", 0, 1e6, NOTHING,
        "Split by the uniform rule: number of layers that the embedding counts as."),
    INT("pipeline.last_stage_less_layers", pipeline.last_stage_less, "1", 0, 1e6, NOTHING,
        "Split by the uniform rule: number of layers that the norm and the head count as."),
    /* A figure and not this machine's: a plan is often made elsewhere than it is run, and all ranks must
     * come to the same stages. */
    REAL("pipeline.memory_gib", pipeline.memory_gib, "0", 0, 1e9, NOTHING,
         "Memory of a rank, to which split: auto and train.gradient_sync: auto keep by the figures of \"weft "
         "plan\"; 0: they look at time and bytes only."),
    TABLE_END};

static const Option record_options[] = {
    /* Looking does not change what is looked at. Before step 1, too: a curve should begin where the model
     * does, and what is wrong with the text is found at once. */
    INT("validation.every", validation.every, "0", 0, 1e12, NOTHING,
        "Steps between validations, the first before step 1; 0 means at the end only."),
    /* Other figures, not another run: a mean over other samples cannot be laid beside those of before, and
     * this is said. */
    INT("validation.samples", validation.samples, "0", 0, 1e12, MEASURES,
        "Sequences of a validation, of each of its sets; 0 means all."),

    /* Files of documents, and not names of data sets: a run fetches nothing. */
    LIST("evaluation.tasks", evaluation.tasks, TaskSource, task_options, MEASURES,
         "Tasks that the model is tried on: paths, or maps of path, task, name, limit, num_fewshot, "
         "examples."),
    INT("evaluation.every", evaluation.every, "0", 0, 1e12, NOTHING,
        "Steps between evaluations by the tasks, the first before step 1; 0 means at the end only."),
    /* The figures of others are without it, as a rule. */
    BOOL("evaluation.add_bos", evaluation.add_bos, "false", MEASURES,
         "Begin each context of a task with the tokenizer's BOS, if any."),

    /* Saving does not either, not even as bf16: the exact weights are then beside it. */
    INT("checkpoint.every", checkpoint.every, "500", 0, 1e12, NOTHING,
        "Steps between checkpoints; 0 means at the end only."),
    /* At least two: the newest may be found damaged later, and then the one before it is all there is to
     * go on from. */
    INT("checkpoint.keep", checkpoint.keep, "2", 2, 1e6, NOTHING,
        "Number of newest checkpoints that are kept."),
    /* Beside the newest: one comes back to them to see how a model became what it is, or to go another way
     * from there. */
    INT("checkpoint.keep_every", checkpoint.keep_every, "0", 0, 1e12, NOTHING,
        "Checkpoints at multiples of this step are kept for good; 0 means none."),
    /* Of those that are saved anyway: what is kept must not decide how often is saved. */
    TEXT("checkpoint.keep_best", checkpoint.keep_best, "", NOTHING,
         "Keep the checkpoint that is best by this figure, measured at its step: validation/loss, "
         "validation/NAME/loss, task/NAME/acc_norm; empty means none."),
    CHOICE("checkpoint.dtype", checkpoint.dtype, "fp32", CHOICE_WORDS(STORE_TYPES), NOTHING,
           "Dtype of the model file; with bf16 the exact weights go into the file of the moments, so that "
           "resuming stays exact."),
    BOOL("checkpoint.async", checkpoint.async, "true", NOTHING,
         "Write checkpoints from a copy in memory while training goes on; false takes no memory for the "
         "copy, and training waits. With checkpoint.every 0 there is no copy."),
    /* For models that are given away. */
    BOOL("checkpoint.last_weights_only", checkpoint.last_weights_only, "false", NOTHING,
         "The last checkpoint holds no optimizer: smaller, but the run cannot go on from it."),
    /* With what a save is seen to cost, Young's formula gives the interval that loses least time
     * (checkpoint/async.c). Only suggested: the user knows what else hangs on it. */
    REAL("checkpoint.mttf_hours", checkpoint.mttf_hours, "24", 0, 1e6, NOTHING,
         "Mean time to failure, from which an interval between checkpoints is suggested; 0 for no "
         "suggestion."),

    /* What is said and kept of a run. How often also decides what two runs can be compared by afterwards:
     * steps that both have a record of. */
    INT("metrics.log_freq", metrics.log_freq, "10", 1, 1e9, NOTHING, "Steps between log lines."),
    BOOL("metrics.tensorboard", metrics.tensorboard, "true", NOTHING, "Write TensorBoard events."),
    /* A mark and no more: nothing is skipped for being unusual. */
    REAL("metrics.spike", metrics.spike, "8", 0, 1e9, NOTHING,
         "Robust deviations of loss or gradient norm that are marked as a spike; 0 marks none."),
    /* McCandlish and others, "An empirical model of large-batch training", 2018. It is asked for, since it
     * reads the gradients of one rank once more. */
    BOOL("metrics.noise_scale", metrics.noise_scale, "false", NOTHING,
         "Estimate the gradient noise scale, the tokens of a step beyond which more bring little, from the "
         "first microbatch of each step and the whole of it."),
    /* Rank 0 has the figures of all. The lines of others tell what only they see, when one looks for the
     * rank that is slow. */
    TEXTS("metrics.log_ranks", metrics.log_ranks, "[0]", NOTHING,
          "Ranks whose lines are printed; the lines begin with [rank N], unless only rank 0 is named."),
    BOOL("metrics.all_ranks", metrics.all_ranks, "false", NOTHING,
         "Keep a metrics file for each rank: metrics-00001.jsonl and so on, beside that of rank 0."),
    /* Of a few steps: the file has a span for each action of each rank, and grows with all of them. */
    TEXT("metrics.trace", metrics.trace, "", NOTHING,
         "Steps whose actions are timed on every rank, as in 3-5: trace.json, for Perfetto, and a picture in "
         "the report, planned beside measured."),
    /* What passes make anyway is looked at while it is there: no step more is run for it. */
    INT("metrics.probe", metrics.probe, "0", 0, 1e12, NOTHING,
        "Steps between probes: size of what each unit puts out, of its gradient, of its weights and of "
        "theirs; 0 means none."),
    /* Without a shell, so that nothing in a path or a name is taken for syntax. As words, therefore, and
     * not as a line. */
    TEXTS("metrics.command", metrics.command, "", NOTHING,
          "A program and its arguments, started by rank 0 without a shell, that gets every record as a line "
          "of JSON on its standard input; no run waits for it, or ends with it."),
    REAL("metrics.command_wait_s", metrics.command_wait_s, "30", 0, 86400, NOTHING,
         "Seconds that the end of a run waits for the program of metrics.command to end; then it is killed."),
    BOOL("metrics.profile", metrics.profile, "false", NOTHING,
         "Print where the time of the steps went, by operation."),

    /* Copies that differ are found at the next comparison, so at most so many steps are lost. Nothing else
     * would say it: each copy trains on by itself, and the loss is that of all together. */
    INT("check.replicas_every", check.replicas_every, "100", 0, 1e12, NOTHING,
        "Steps between comparisons of what several ranks hold alike (dp_replicate, tied embeddings across "
        "stages), which also come before each checkpoint; 0 means never."),

    /* Read by the supervisor, before there is a run. A pause that doubles, so that a disk or a machine
     * that is away for minutes does not use up all restarts in the first of them. */
    REAL("restart.backoff_s", restart.backoff_s, "1", 0, 3600, NOTHING,
         "With --restarts: seconds before the first restart; doubled with each, up to 60, until one ran for "
         "ten minutes."),
    TABLE_END};

/* Each with the place in Config of the struct that its rows are of. Help and what is written have sections
 * in this order. */
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
    {parallel_options, 0},
    {comm_options, offsetof(Config, comm)},
    {pipeline_options, 0},
    {optimizer_options, offsetof(Config, optimizer)},
    {schedule_options, offsetof(Config, schedule)},
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

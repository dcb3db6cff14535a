/* Options of the sections `run`, `train`, `numerics`, `validation`, `evaluation`, `check`, `restart` and
 * `recovery`. */
#include "base/option_rows.h"
#include "config/config.h"
#include "device/device.h"
#include "model/layers/layer.h"

#define TARGET Config
const Option run_options[] = {
    /* The location of a run and how it is executed: only the seed of the initial weights affects the curve.
     * `local` values may differ between ranks, like machines do: the comparison between ranks skips them. */
    TEXT("run.dir", run.dir, "runs/run", NOTHING, "Run directory: all that a run writes.", REQUIRED,
         ELSEWHERE("dump_dir dump_folder out_dir output_dir save_dir")),
    /* Only of the initial weights. The order of samples and the rounding of states have separate seeds, so
     * that each can be changed alone. */
    INT("run.seed", run.seed, "42", 0, MOST_EXACT, START, "Seed of the initial weights.",
        ELSEWHERE("random_seed")),
    INT("run.threads", run.threads, "0", 0, 4096, NOTHING,
        "Threads; 0 means one per core. Results do not depend on it.", LOCAL,
        ELSEWHERE("OMP_NUM_THREADS MKL_NUM_THREADS")),
    /* Kernels add in other orders: last bits, reported as "the kernels" (RunFacts). */
    CHOICE("run.device", run.device, "auto", DEVICE_KINDS, SUMS,
           "auto, cpu: the best kernels that the processor runs, or some by name; cuda: a GPU "
           "(docs/use/gpus.md).",
           LOCAL),
    /* Looked for once a step by one rank of each machine. Machines may have other paths. */
    TEXT("run.notice_file", run.notice_file, "", NOTHING,
         "File that announces on any machine of the run that it will be taken away (a spot instance, "
         "maintenance): once it is there, the run saves after its step and ends with status 75; none by "
         "default (docs/use/reliability.md).",
         LOCAL),
    /* Hashes what the step has made; a checkpoint states the last receipt. */
    BOOL("run.receipts", run.receipts, "false", NOTHING,
         "Write a hash chain of configuration, samples and weights of each logged step to receipts.jsonl, "
         "for weft verify."),
    /* Must be given at each start; for restarts train_supervised applies it only once. */
    BOOL("run.overwrite", run.overwrite, "false", NOTHING,
         "Start over in a directory that already holds a run, whose records and checkpoints are removed.",
         ELSEWHERE("overwrite_output_dir dirs_exists_ok")),
    TEXTS("run.allow_changes", run.allow_changes, "", NOTHING,
          "Keys that may differ from those of the checkpoint that a run goes on from; also data, tokenizer, "
          "mixture, base; unknown: keys that this weft does not know.",
          ELSEWHERE("exclude_from_loading")),
    TABLE_END};

const Option train_options[] = {
    /* The step: number of tokens, division into microbatches, number formats. Longer training only extends
     * the run; a learning-rate schedule that follows train.steps has its own key (follows). */
    INT("train.steps", train.steps, "1000", 1, 1e12, NOTHING, "Number of optimizer steps.",
        ELSEWHERE("max_steps max_iters num_steps train_iters total_iters num_train_steps num_train_epochs "
                  "num_epochs epochs")),
    /* Changes the windows of the text: no earlier sample would exist any more, so the order of samples could
     * not continue. */
    INT("train.context", train.context, "512", 1, 16777216, CURVE, "Tokens of a sequence (sequence length).",
        ELSEWHERE("seq_len sequence_length seq_length block_size max_seq_length context_length "
                  "max_context_length ctx_len model_max_length")),
    /* The same sum grouped differently: last bits. train.tokens_per_step determines the tokens of a step. */
    INT("train.microbatch", train.microbatch, "0", 0, 1e6, BITS,
        "Sequences of a microbatch; 0 means about 2,048 tokens.",
        ELSEWHERE("batch_size local_batch_size micro_batch_size per_device_train_batch_size "
                  "num_tokens_per_microbatch_per_dp_rank pipeline_parallel_microbatch_size")),
    /* In tokens rather than microbatches, so that it is independent of ranks and memory, and so is the curve.
     * It must divide into whole microbatches (config_geometry). */
    INT("train.tokens_per_step", train.tokens_per_step, "0", 0, 1e12, CURVE,
        "Tokens of an optimizer step; 0 means one microbatch. More than that accumulates gradients.",
        ELSEWHERE("global_batch_size gradient_accumulation_steps grad_acc_steps gradient_accumulation_iters "
                  "accumulate_grad_batches tokens_per_batch num_tokens_per_train_step")),
    /* Smith and others, "Don't decay the learning rate, increase the batch size", 2018; McCandlish and
     * others, "An empirical model of large-batch training", 2018: early in training few tokens give as good a
     * gradient. The size doubles instead of growing in small steps, since each size needs a program of its
     * own. */
    INT("train.rampup_start", train.rampup_start, "0", 0, 1e12, CURVE,
        "Tokens of the first steps, which are doubled until they are train.tokens_per_step; 0: no ramp-up of "
        "the batch size.",
        WAS("train.batch_start"), ELSEWHERE("rampup_batch_size")),
    INT("train.rampup_tokens", train.rampup_tokens, "0", 0, 1e15, CURVE,
        "Ramp-up of the batch size: tokens over which steps grow from train.rampup_start to "
        "train.tokens_per_step, an equal share for each size, in whole steps.",
        WAS("train.batch_warmup")),
    /* Another dtype is other mathematics. `auto` is resolved once in the life of a run (train/setup.c). */
    CHOICE("train.compute", train.compute, "auto", CHOICE_WORDS(COMPUTE_KINDS), CURVE,
           "Dtype of activations and products; auto is bf16 where the processor multiplies it natively.",
           ELSEWHERE("precision mixed_precision mixed_precision_param bf16 fp16 torch_dtype model_dtype "
                     "train.dtype run.dtype")),
    /* Chen and others, "Training deep nets with sublinear memory cost", 2016; selective in the sense of
     * Korthikanti and others, "Reducing activation recomputation in large transformer models", 2022, but of
     * other ops: attention is never stored as scores, so there is no need to repeat it. Recomputed values are
     * bitwise equal (model/layers/layer.h): this trades time for memory and never changes the curve. */
    CHOICE(
        "train.recompute", train.recompute, "none", CHOICE_WORDS(RECOMPUTE_KINDS), NOTHING,
        "Activation checkpointing: selective recomputes norms, convolutions, and the gate and up products of "
        "MLPs, and keeps the result of attention; full recomputes whole blocks from their inputs.",
        ELSEWHERE("activation_checkpoint activation_checkpointing gradient_checkpointing "
                  "selective_activation_checkpointing activation_checkpoint.mode recompute_granularity")),
    /* Logits take tokens times vocabulary, possibly more than everything else of a microbatch, so only some
     * rows exist at a time. The chunks' losses are added one after the other: the chunk size groups the sum,
     * and therefore does not depend on the available memory. */
    INT("train.loss_rows", train.loss_rows, "0", 0, 1e9, BITS,
        "Tokens whose logits exist at a time; 0 means chosen by the vocabulary.",
        ELSEWHERE("num_chunks enable_fused_linear_cross_entropy")),
    /* Chowdhery and others, "PaLM", 2022, with 1e-4. A softmax is invariant to a constant added to all logits
     * of a row; in bf16 that constant matters, and this loss keeps it near 0. */
    REAL("train.z_loss", train.z_loss, "0", 0, 1, CURVE,
         "Coefficient of the squared log of the softmax's denominator, a loss in addition to the "
         "cross-entropy that is trained on and reported separately; 0 for none, 1e-4 is usual."),
    /* Wang and others, "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024. Not a
     * loss, so no gradient; DeepSeek-V3 used 0.001 for most of its training. */
    REAL("train.router_bias_speed", train.router_bias_speed, "0", 0, 1, CURVE,
         "Balance of experts without a loss: what is added after each step to the bias by which an expert is "
         "chosen, if it had fewer tokens than the mean, and taken off if it had more; 0 is none. By "
         "default, experts that start from random weights have 0.02, of llama4_text 0.01, of deepseek_v3 "
         "0.001.",
         ELSEWHERE("load_balance_coeff router_bias_update_speed moe_router_bias_update_rate")),
    REAL("train.ep_buffer_factor", train.ep_buffer_factor, "1.25", 1, 64, NOTHING,
         "With mesh.ep: rows that a rank's experts have memory for at a time, as a multiple of those of its "
         "local tokens. More rows take several dispatch chunks: nothing is dropped, and the bits are the "
         "same.",
         WAS("train.expert_capacity")),
    /* Gloeckle and others, "Better & faster large language models via multi-token prediction", 2024: separate
     * heads on the same hidden states. They are part of the trained model. */
    INT("train.mtp_depth", train.mtp_depth, "0", 0, MTP_DEPTH_MAX, RUN,
        "Multi-token prediction: MTP heads, the k-th of which is trained on the k-th token behind the "
        "next one; validation, generation and Hugging Face's classes use none of them.",
        WAS("train.multi_token"), ELSEWHERE("mtp_layers mtp_num_layers n_future_head")),
    CHOICE("train.mtp_kind", train.mtp_kind, "heads", CHOICE_WORDS(MTP_KINDS), RUN,
           "What the MTP heads of train.mtp_depth are. heads: a matrix each, on the states of the "
           "head. module: one as DeepSeek-V3 has it, a block behind the last that reads the next token too "
           "and ends in the model's own head. For deepseek_v3, whose files have it.",
           WAS("train.multi_token_kind")),
    REAL("train.mtp_loss_weight", train.mtp_loss_weight, "1", 0, 100, CURVE,
         "Weight of the loss of each MTP head of train.mtp_depth in the sum that is trained on.",
         WAS("train.multi_token_weight"), ELSEWHERE("mtp_scale mtp_loss_scaling_factor")),
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
           "auto: yes, but not in pipelines.",
           ELSEWHERE("fsdp_reshard_after_forward")),

    /* Sums in fixed point do not depend on the order, since integer addition is associative. They cost memory
     * and traffic (figures in docs/use/reproducibility.md), so they are optional. */
    CHOICE("numerics.mode", numerics.mode, "fast", CHOICE_WORDS(NUMERICS_KINDS), SUMS,
           "How gradients of microbatches are summed. exact: in fixed point, the same bits however the "
           "microbatches of a step are shared out among ranks and accumulation; another train.microbatch "
           "makes other bits. fast: in floating point.",
           WAS("train.numerics"), ELSEWHERE("deterministic")),
    /* For partials and the tree over them see device/shapes.h, base/tree.h. Fixed for the life of a run, so
     * that it may continue with fewer tensor-parallel ranks and the same bits. */
    INT("numerics.tp_invariant_up_to", numerics.tp_invariant_up_to, "0", 0, 64, BITS,
        "Splits of the sums that mesh.tp shards, on one rank as well: every degree that leaves each rank a "
        "power of two of them has the same bits; 0: mesh.tp when the run begins.",
        WAS("numerics.canonical_tp")),
    /* Of the same, only these two numbers are possible: whole experts, or experts cut as MLPs are. */
    INT("numerics.etp_invariant_up_to", numerics.etp_invariant_up_to, "0", 0, 64, BITS,
        "Splits of the sums over an expert's width, also on one rank. 1: whole experts (mesh.etp 1). "
        "numerics.tp_invariant_up_to: experts split over mesh.tp. 0: chosen by mesh.etp when the run "
        "begins."),

    /* The same for tokens. In fast numerics cp is one more axis whose ranks contribute terms to a sum. */
    INT("numerics.cp_invariant_up_to", numerics.cp_invariant_up_to, "0", 0, 4096, BITS,
        "With numerics.mode: exact: chunks of a microbatch's tokens whose gradients are rounded separately, "
        "also on one rank. Every mesh.cp that divides this number has the same bits; with mesh.cp_comm "
        "all_gather each rank needs two chunks or more, a power of two. 0: mesh.cp when the run begins, "
        "twice that with all_gather.",
        WAS("numerics.canonical_cp")),
    TABLE_END};

const Option evaluation_options[] = {
    /* Validation does not change the run. It also runs before step 1, so that the curve starts with the
     * untrained model, and errors in the text are found at once. */
    INT("validation.every", validation.every, "0", 0, 1e12, NOTHING,
        "Steps between validations, the first before step 1; 0 means at the end only.",
        ELSEWHERE("eval_interval eval_steps eval_every val_check_interval validation.freq validation.enable "
                  "validation.enabled validator.freq validator.enable eval.interval")),
    /* Other figures, not another run: means over different samples are not comparable, and the change is
     * reported. */
    INT("validation.samples", validation.samples, "0", 0, 1e12, MEASURES,
        "Sequences of a validation, of each of its sets; 0 means all.",
        ELSEWHERE("eval_iters validation.steps validator.steps eval.validation.max_steps max_eval_samples")),

    /* Files of documents, not names of data sets: a run downloads nothing. */
    LIST("evaluation.tasks", evaluation.tasks, TaskSource, task_options, MEASURES,
         "Tasks that the model is tried on: paths, or maps of path, task, name, limit, num_fewshot, "
         "examples.",
         ELSEWHERE("harness.tasks eval.harness.tasks")),
    INT("evaluation.every", evaluation.every, "0", 0, 1e12, NOTHING,
        "Steps between evaluations by the tasks, the first before step 1; 0 means at the end only."),
    /* Published figures are usually without it. */
    BOOL("evaluation.add_bos", evaluation.add_bos, "false", MEASURES,
         "Begin each context of a task with the tokenizer's BOS, if any."),
    TABLE_END};

const Option check_options[] = {
    /* Replicas that differ are found at the next comparison, so at most this many steps are lost. Nothing
     * else would show it: each replica trains on alone, and the loss averages over all of them. */
    INT("check.replicas_every", check.replicas_every, "100", 0, 1e12, NOTHING,
        "Steps between comparisons of what several ranks hold alike (dp_replicate, tied embeddings across "
        "stages), which also come before each checkpoint; 0 means never."),
    /* Passes alone: a microbatch of N steps is computed once more. It needs a program of one microbatch. */
    INT("check.replay_every", check.replay_every, "0", 0, 1e12, NOTHING,
        "Steps between replays: one microbatch of each rank is computed again by another rank with the same "
        "weights, and compared in bits; 0 means never (docs/use/replica-checks.md)."),
    /* One small message a window. */
    INT("check.stragglers_every", check.stragglers_every, "100", 0, 1e12, NOTHING,
        "Steps of a window over which a rank that the others wait for is named; 0 means never."),

    /* The supervisor reads it before there is a run. The pause doubles, so that a disk or a machine that is
     * away for minutes does not use up all restarts at once. */
    REAL("restart.backoff_s", restart.backoff_s, "1", 0, 3600, NOTHING,
         "With --restarts: seconds before the first restart; doubled with each, up to 60, until one ran for "
         "ten minutes."),

    /* Bits are those of an undisturbed run, so nothing about the curve depends on it. */
    CHOICE(
        "recovery.mode", recovery.mode, "restart", CHOICE_WORDS(RECOVERY_MODES), NOTHING,
        "When a rank dies: restart ends the run, which goes on from its last checkpoint once it is started "
        "again; in_place goes on with the ranks that are left, in the same step "
        "(docs/use/in-place-recovery.md)."),
    /* Another place for the same bytes, so nothing about the curve depends on it either. */
    BOOL(
        "recovery.partner_copy", recovery.partner_copy, "false", NOTHING,
        "With recovery.mode: in_place and mesh.dp_replicate 1: keep a copy of each rank's master weights and "
        "optimizer states in the memory of another rank, from which the others restore them when it dies."),
    /* Who waits computes nothing. */
    INT("recovery.spares", recovery.spares, "0", 0, 4096, NOTHING,
        "With recovery.mode: in_place: so many ranks more than the mesh needs are started, and wait. When a "
        "rank dies, one of them takes its place in the same mesh. -n is without them, --of of weft launch "
        "with them; ranks over sockets only."),
    TABLE_END};

/* The sections optimizer and schedule, and the items of optimizer.groups. */
#include "optimizer/options.h"

#include <math.h>

#include "base/option_rows.h"

#define SWITCH "false|true"      /* for a bool that may be left out */
#define STATE_DTYPES "fp32|bf16" /* Dtype */

/* Items of optimizer.groups. `optional` keys that are left out are taken from the section when the model is
 * known (optimizer/groups.c). The list as a whole has an effect; keys without any are marked NOTHING. */
#define TARGET OptimizerGroup
const Option group_options[] = {
    TEXT("match", match, "", UNKNOWN,
         "Regular expression (PCRE2) that is found in the names of these parameters.", REQUIRED),
    CHOICE("kind", settings.kind, NULL, CHOICE_WORDS(OPTIMIZER_NAMES), UNKNOWN,
           "Optimizer of these parameters.", OPTIONAL),
    REAL("lr", settings.lr, NULL, 0, 1000, UNKNOWN, "Peak learning rate of these, on the same schedule.",
         OPTIONAL),
    REAL("weight_decay", settings.weight_decay, NULL, 0, 100, UNKNOWN,
         "Weight decay of all of these, vectors too.", OPTIONAL),
    REAL("beta1", settings.beta1, NULL, 0, 0.999999, UNKNOWN,
         "adamw: decay of the first moment, the mean of gradients.", OPTIONAL),
    REAL("beta2", settings.beta2, NULL, 0, 0.999999, UNKNOWN,
         "adamw: decay of the second moment, the mean of squared gradients.", OPTIONAL),
    REAL("eps", settings.eps, NULL, 1e-30, 1, UNKNOWN, "adamw: added to the root of the second moment.",
         OPTIONAL),
    REAL("momentum", settings.momentum, NULL, 0, 0.999999, UNKNOWN,
         "sgd, muon: decay of the momentum of gradients; sgd: 0 for none, and no memory for it.", OPTIONAL),
    CHOICE("nesterov", settings.nesterov, NULL, SWITCH, UNKNOWN, "sgd, muon: use Nesterov's momentum.",
           OPTIONAL),
    CHOICE("muon_scale", settings.muon_scale, NULL, CHOICE_WORDS(MUON_SCALES), UNKNOWN,
           "muon: how far a matrix moves (as optimizer.muon_scale).", OPTIONAL),
    CHOICE("muon_coefficients", settings.muon_coefficients, NULL, CHOICE_WORDS(MUON_COEFFICIENTS), UNKNOWN,
           "muon: coefficients of the Newton-Schulz iterations.", OPTIONAL),
    CHOICE("states", settings.states, NULL, STATE_DTYPES, UNKNOWN,
           "Dtype of moments and momentum; bf16 halves their memory and is rounded stochastically.",
           OPTIONAL),
    CHOICE("whole", whole, NULL, SWITCH, NOTHING,
           "true: with dp_shard, each matrix of these lives on one rank, and is not cut; the same bits.",
           OPTIONAL),
    CHOICE("frozen", frozen, NULL, SWITCH, UNKNOWN,
           "true: these keep their values; they have no states, count in no norm, and matrices have no "
           "gradient.",
           OPTIONAL),
    TABLE_END};

#undef TARGET
#define TARGET OptimizerOptions
const Option optimizer_options[] = {
    /* How updates are made from gradients. Another kind has other states, so it makes another run. The
     * settings of one kind may change during a run, and change the curve. */
    CHOICE("optimizer.kind", settings.kind, "adamw", CHOICE_WORDS(OPTIMIZER_NAMES), RUN,
           "The optimizer; muon: for the matrices of blocks, the rest by adamw.",
           ELSEWHERE("optimizer.name optimizer.type optimizer_type")),
    /* 1,000 is absurd and means that a decimal point is missing; 0 is allowed, to see what a run does without
     * learning. */
    REAL("optimizer.lr", settings.lr, "3e-4", 0, 1000, CURVE, "Peak learning rate.",
         ELSEWHERE("learning_rate max_lr peak_lr base_lr max_learning_rate")),
    /* Loshchilov and Hutter, "Decoupled weight decay regularization", 2019. It is multiplied by the learning
     * rate, so it falls with the schedule. 0.1 with betas of 0.9 and 0.95 and a norm of 1 is what GPT-3 was
     * trained with (Brown and others, 2020), and many models since. */
    REAL("optimizer.weight_decay", settings.weight_decay, "0.1", 0, 100, CURVE,
         "Weight decay: adamw, muon: decoupled, times the learning rate; sgd: added to the gradient.",
         ELSEWHERE("wd")),
    /* At most 1 - 1e-6: with 1 a mean would never change. */
    REAL("optimizer.beta1", settings.beta1, "0.9", 0, 0.999999, CURVE,
         "adamw: decay of the first moment, the mean of gradients.", ELSEWHERE("adam_beta1 betas")),
    REAL("optimizer.beta2", settings.beta2, "0.95", 0, 0.999999, CURVE,
         "adamw: decay of the second moment, the mean of squared gradients.", ELSEWHERE("adam_beta2")),
    /* Not 0: an element whose gradient was always 0 has moments of 0, and its update would be 0/0. */
    REAL("optimizer.eps", settings.eps, "1e-8", 1e-30, 1, CURVE,
         "adamw: added to the root of the second moment.", ELSEWHERE("adam_epsilon adam_eps epsilon")),
    /* With 0 there is no state at all, so an optimizer without memory needs no kind of its own. */
    REAL("optimizer.momentum", settings.momentum, "0.9", 0, 0.999999, CURVE,
         "sgd, muon: decay of the momentum of gradients; sgd: 0 for none, and no memory for it."),
    /* A choice of two words where others are OPT_BOOL: an item of optimizer.groups may leave it out, and a
     * bool has no third value for that. */
    CHOICE("optimizer.nesterov", settings.nesterov, "false", SWITCH, CURVE,
           "sgd, muon: use Nesterov's momentum."),
    /* moonlight by default, because with it AdamW's learning rate and decay suit both kinds of parameters. */
    CHOICE("optimizer.muon_scale", settings.muon_scale, "moonlight", CHOICE_WORDS(MUON_SCALES), CURVE,
           "muon: how far a matrix [outputs, inputs] moves, times the learning rate: moonlight 0.2 "
           "sqrt(larger side), as far as under adamw; jordan sqrt(max(1, outputs / inputs)); spectral "
           "sqrt(outputs / inputs)."),
    CHOICE("optimizer.muon_coefficients", settings.muon_coefficients, "jordan",
           CHOICE_WORDS(MUON_COEFFICIENTS), CURVE,
           "muon: coefficients of the five Newton-Schulz iterations that bring singular values to about 1."),
    /* EFFECT_CURVE: with half the bits every update differs. Rounding to nearest would lose small updates for
     * good, so rounding is stochastic, with optimizer.seed. */
    CHOICE("optimizer.states", settings.states, "fp32", STATE_DTYPES, CURVE,
           "Dtype of moments and momentum; bf16 halves their memory and is rounded stochastically."),
    /* Common practice: norms and biases do not decay. */
    CHOICE("optimizer.decay", decay, "matrices", CHOICE_WORDS(DECAY_RULES), CURVE,
           "Parameters that optimizer.weight_decay applies to: matrices only, or norms and biases too."),
    INT("optimizer.seed", seed, "42", 0, MOST_EXACT, CURVE, "Seed of the rounding of states in bf16."),
    /* The run does not read the average: another value changes what it is an average of, not the curve. */
    REAL("optimizer.ema", ema, "0", 0, 0.999999999, MEASURES,
         "Decay of a moving average of the weights, kept in fp32 and in each checkpoint as "
         "model.ema.safetensors; 0 for none, 0.999 is the mean of about the last 1,000 updates.",
         ELSEWHERE("ema_decay")),
    /* Compared as a whole. Which parameters an item matches depends on names only, so groups are the same on
     * every mesh (optimizer/groups.c). */
    LIST("optimizer.groups", groups, OptimizerGroup, group_options, CURVE,
         "Parameters that are treated otherwise, the first match counts: maps of match, kind, lr, "
         "weight_decay, beta1, beta2, eps, momentum, nesterov, muon_scale, muon_coefficients, states, whole, "
         "frozen; what a group leaves out is as in this section.",
         ELSEWHERE("param_groups optimizer.param_groups.pattern")),
    /* Pascanu and others, "On the difficulty of training recurrent neural networks", 2013. The norm is of the
     * whole gradient, over all ranks: with a norm per shard the curve would depend on the mesh. */
    REAL("optimizer.clip", clip, "1", 0, 1e12, CURVE,
         "Largest norm of the whole gradient: a larger one is clipped to it; 0 means no clipping.",
         ELSEWHERE("max_grad_norm grad_clip max_norm clip_grad gradient_clip_val gradient_clipping")),
    REAL("optimizer.clip_norm", clip_norm, "2", 1, (double)INFINITY, CURVE,
         "Norm that optimizer.clip takes of the gradient: any p >= 1, or inf."),
    TABLE_END};

#undef TARGET
#define TARGET LrScheduleOptions
const Option lr_schedule_options[] = {
    /* The learning rate over the steps, relative to optimizer.lr (optimizer/learning_rate.h has the
     * formulas). cosine: Loshchilov and Hutter, "SGDR", 2016; wsd: Hu and others, "MiniCPM", 2024. */
    CHOICE(
        "lr_schedule.kind", kind, "cosine", CHOICE_WORDS(LR_SCHEDULE_KINDS), CURVE,
        "Shape after the warmup: linear, cosine, sqrt, exponential fall over lr_schedule.decay_ratio of "
        "the steps, wsd linearly over the last tenth; drops: two steps down; cosine_linear: a cosine whose "
        "tail goes to 0; power: a power of the step, then linearly to the floor. range is a learning-rate "
        "range test: from min_factor of the peak up to it, by the same factor each step. The lingua_ ones "
        "are Lingua's formulas, cosine right at its end.",
        ELSEWHERE("lr_scheduler_type lr_decay_style decay_type decay_lr optim.scheduler")),
    /* At first Adam's second moments are means of few gradients, so its steps are erratic. Liu and others,
     * "On the variance of the adaptive learning rate and beyond", 2019. */
    INT("lr_schedule.warmup_steps", warmup_steps, "200", 0, 1e12, CURVE,
        "Linear warmup, of as many steps whatever train.steps is: a tenth of a short run is usual.",
        ELSEWHERE("warmup warmup_iters warmup_ratio lr_warmup_steps lr_warmup_iters lr_warmup_fraction "
                  "num_warmup_steps")),
    REAL("lr_schedule.warmup_from", warmup_from, "0", 0, 1, CURVE,
         "Where the warmup begins, as a share of the peak."),
    /* Not train.steps itself: a run may be planned for longer than it is trained today. */
    INT("lr_schedule.total_steps", total_steps, "0", 0, 1e12, CURVE,
        "Length of the schedule; 0 means train.steps.", FOLLOWS("train.steps"),
        ELSEWHERE("lr_decay_iters lr_decay_steps")),
    /* Negative and not 0 for "not given": a schedule that never decays is a valid choice. */
    REAL("lr_schedule.decay_ratio", decay_ratio, "-1", -1, 1, CURVE,
         "Share of the steps that decay, at the end; -1 means all after the warmup (wsd, cosine_linear, "
         "power: 0.1; exponential, drops: 0.2).",
         ELSEWHERE("decay_fraction")),
    /* A fraction and not a rate: groups have different peaks, and all follow one schedule. */
    REAL("lr_schedule.min_factor", min_factor, "0", 0, 1, CURVE,
         "Lowest learning rate, as a share of the peak; range starts there.",
         ELSEWHERE("min_lr lr_min lr_min_ratio min_lr_factor min_lr_ratio min_lr_rate")),
    /* 0.5: Vaswani and others, "Attention is all you need", 2017. */
    REAL("lr_schedule.exponent", exponent, "0.5", 0, 10, CURVE,
         "inverse_sqrt, power: exponent of warmup / step.", ELSEWHERE("exp_factor")),
    REAL("lr_schedule.cycle_length", cycle_length, "1", 1e-6, 1, CURVE,
         "lingua_cosine, lingua_wsd: share of the steps in a cycle."),
    REAL("lr_schedule.theta", theta, "1", 1e-6, 100, CURVE, "lingua_cosine: exponent of the progress.",
         ELSEWHERE("cosine_theta")),
    TABLE_END};

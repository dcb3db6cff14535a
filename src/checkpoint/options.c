/* Options of the section `checkpoint`. */
#include "base/option_rows.h"
#include "config/config.h"

#define TARGET Config
const Option checkpoint_options[] = {
    /* Saving does not change the run either, not even as bf16, since the exact weights are then saved too. */
    INT("checkpoint.every", checkpoint.every, "500", 0, 1e12, NOTHING,
        "Steps between checkpoints; 0 means at the end only.",
        ELSEWHERE("interval interval_type save_steps save_interval save_every enable_first_step_checkpoint")),
    /* At least two: if the newest turns out to be damaged, the previous one is the only one to resume
     * from. */
    INT("checkpoint.keep", checkpoint.keep, "2", 2, 1e6, NOTHING,
        "Number of newest checkpoints that are kept.", ELSEWHERE("keep_latest_k save_total_limit")),
    /* In addition to the newest: for studying how a model developed, or for branching off. */
    INT("checkpoint.keep_every", checkpoint.keep_every, "0", 0, 1e12, NOTHING,
        "Checkpoints at multiples of this step are kept for good; 0 means none."),
    /* Only among regular checkpoints: the choice of what to keep must not change how often the run saves. */
    TEXT("checkpoint.keep_best", checkpoint.keep_best, "", NOTHING,
         "Keep the checkpoint that is best by this figure, measured at its step: validation/loss, "
         "validation/NAME/loss, task/NAME/acc_norm; empty means none.",
         ELSEWHERE("load_best_model_at_end always_save_checkpoint")),
    CHOICE("checkpoint.dtype", checkpoint.dtype, "fp32", CHOICE_WORDS(STORE_TYPES), NOTHING,
           "Dtype of the model file; with bf16 the exact weights go into the file of the moments, so that "
           "resuming stays exact.",
           ELSEWHERE("export_dtype")),
    BOOL("checkpoint.async", checkpoint.async, "true", NOTHING,
         "Write checkpoints from a copy in memory while training goes on; false takes no memory for the "
         "copy, and training waits. With checkpoint.every 0 there is no copy."),
    TEXT("checkpoint.mirror", checkpoint.mirror, "", NOTHING,
         "s3://BUCKET/PREFIX: copy each checkpoint there while training goes on; empty means none."),
    TEXT(
        "checkpoint.restore", checkpoint.restore, "", NOTHING,
        "URL of a mirrored run or step, s3:// or https://: a run whose directory holds no checkpoint goes on "
        "from that one; empty means none."),
    /* For models that are published. */
    BOOL("checkpoint.last_weights_only", checkpoint.last_weights_only, "false", NOTHING,
         "The last checkpoint holds no optimizer: smaller, but the run cannot go on from it.",
         ELSEWHERE("last_save_model_only")),
    /* From the measured cost of a save, Young's formula gives the interval that loses the least time
     * (checkpoint/async.c). Only suggested, since the user may have other reasons for an interval. */
    REAL("checkpoint.mttf_hours", checkpoint.mttf_hours, "24", 0, 1e6, NOTHING,
         "Mean time to failure, from which an interval between checkpoints is suggested; 0 for no "
         "suggestion."),
    TABLE_END};

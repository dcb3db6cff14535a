/* weft audit: proves from the records of a run which samples it used.
 *
 * The proof needs the logs of all ranks (RUN/audit-*.log; observe/audit.h has format and invariants), and one
 * fact that they do not contain: up to which step the run was saved. A record missing after the newest
 * checkpoint belongs to a step that was killed; one missing before it is a gap.
 *
 * The status is 0 for a proven run, ERR_DATA for one that fails the proof, ERR_NOINPUT if there are no
 * logs. */
#include <stdio.h>
#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/find.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "observe/audit.h"
#include "train/state.h"

/* Step of the newest checkpoint, 0 for none: up to it no record may be missing. Judged by the manifest only;
 * `weft checkpoint verify` checks the bytes. The list ascends, so the last good one counts. */
static ErrorCode saved_step(const char *run_dir, int64_t *step, Error *err) {
    CheckpointSet set;
    char *dir = checkpoint_directory(run_dir);
    ErrorCode code = checkpoint_list(&set, dir, CHECK_MANIFEST, err);
    free(dir);
    *step = 0;
    TRY(code);
    for (size_t i = 0; i < set.count; i++)
        if (set.items[i].good) *step = set.items[i].step;
    checkpoint_set_free(&set);
    return OK;
}

/* The caller frees the figures, also after an error: the comparison needs those of both runs. */
static ErrorCode audit(const char *dir, AuditFigures *figures, Error *err) {
    AuditRun run;
    Text out = {0};
    int64_t saved;
    *figures = (AuditFigures){0};
    TRY(saved_step(dir, &saved, err));
    ErrorCode code = audit_read(&run, dir, err);
    if (code == OK) code = audit_check(&run, saved, figures, &out, err);
    /* The findings are printed in any case, before the verdict. */
    if (out.length) terminal_printf("%s", out.data);
    text_free(&out);
    audit_free(&run);
    return code;
}

/* Each run is first proven alone: two runs with the same error are not correct. */
static ErrorCode compare(const Arguments *args, const AuditFigures *a, Error *err) {
    AuditFigures b;
    ErrorCode code = audit(args->operands[1], &b, err);
    if (code == OK) code = audit_compare(args->operands[0], a, args->operands[1], &b, err);
    if (code == OK)
        terminal_printf("both used the same samples in each of their %lld steps\n", (long long)a->steps);
    audit_figures_free(&b);
    return code;
}

/* The exit status is the verdict, for scripts. */
static ErrorCode run_audit(const Arguments *args, Error *err) {
    AuditFigures a;
    ErrorCode code = audit(args->operands[0], &a, err);
    if (code == OK && args->operand_count > 1) code = compare(args, &a, err);
    audit_figures_free(&a);
    return code;
}

const Verb verb_audit = {
    .name = "audit",
    .summary = "prove that a run used each sample exactly once",
    .synopsis = "RUN [RUN2]",
    .details = "RUN is the directory of a run with data.audit: true, however often it was stopped, killed "
               "and resumed, and on however many ranks. Of each step the attempt counts whose work is in the "
               "run; the records of every rank must be there, samples must come once each and in order, no "
               "window of the data may come twice in an epoch or be missing from one that is over, and a "
               "window must always hold the same tokens; all ranks and attempts must have drawn from the "
               "same data, by the same seed and mixture. What is wrong is named with samples and steps, and "
               "the status is 65.\n\n"
               "With RUN2 both are checked, and then that they used the same samples, with the same tokens, "
               "in each step.\n\n"
               "Examples:\n"
               "  weft audit runs/demo\n"
               "  weft audit runs/on-one-rank runs/on-eight-ranks",
    .min_operands = 1,
    .max_operands = 2,
    .run = run_audit,
};

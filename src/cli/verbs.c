/* Every verb, in the order of "weft --help". A new verb needs a file and two lines here.
 *
 * The order is roughly that of use: training first, then verbs for its results, then looking at runs, and
 * last the machine and the program. Verbs of one group ("tokenizer ...") must be adjacent, since help and
 * completion list them in this order.
 *
 * Declared here and not in a header: a verb is found only by its name (verb_find), and no other file refers
 * to one. */
#include "cli/cli.h"

extern const Verb verb_audit;
extern const Verb verb_checkpoint;
extern const Verb verb_compare;
extern const Verb verb_config;
extern const Verb verb_data_inspect;
extern const Verb verb_data_prune;
extern const Verb verb_doctor;
extern const Verb verb_eval;
extern const Verb verb_export;
extern const Verb verb_generate;
extern const Verb verb_help;
extern const Verb verb_inspect;
extern const Verb verb_launch;
extern const Verb verb_merge;
extern const Verb verb_models;
extern const Verb verb_plan;
extern const Verb verb_report;
extern const Verb verb_resize;
extern const Verb verb_schedule;
extern const Verb verb_tokenize;
extern const Verb verb_tokenizer_decode;
extern const Verb verb_tokenizer_encode;
extern const Verb verb_tokenizer_train;
extern const Verb verb_slurm;
extern const Verb verb_stop;
extern const Verb verb_train;
extern const Verb verb_verify;
extern const Verb verb_watch;

/* One line each, so that additions merge. */
// clang-format off
const Verb *const verbs[] = {
    &verb_train,
    &verb_stop,
    &verb_resize,
    &verb_launch,
    &verb_slurm,
    &verb_plan,
    &verb_schedule,
    &verb_eval,
    &verb_generate,
    &verb_tokenizer_train,
    &verb_tokenizer_encode,
    &verb_tokenizer_decode,
    &verb_export,
    &verb_merge,
    &verb_inspect,
    &verb_models,
    &verb_checkpoint,
    &verb_tokenize,
    &verb_data_inspect,
    &verb_data_prune,
    &verb_watch,
    &verb_report,
    &verb_compare,
    &verb_audit,
    &verb_verify,
    &verb_config,
    &verb_doctor,
    &verb_help,
    NULL,
};
// clang-format on

/* state.json: what is written can be read back; the first version can be read as far as it goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "train/changes.h"
#include "train/saved.h"

static const char first_version[] =
    "{\"version\": 1, \"weft\": \"0.1.0\", \"step\": 5, \"tokens\": 5120, \"skipped\": 1, \"updates\": 4,"
    " \"data\": \"aa\", \"tokenizer\": \"bb\", \"loss_window\": [5.5, 5.25], \"grad_norm_window\": [1],"
    " \"config\": \"train: {context: 64}\\nmodel: {rope_original_positions: 0, rope_high_freq_factor: 0}\\n"
    "gone: {key: 1}\\n\"}";

static void the_first_version_tells_samples(void **unused) {
    (void)unused;
    static SavedRun saved;
    Error err = {0};
    assert_int_equal(saved_parse(&saved, first_version, &err), OK);
    assert_int_equal(saved.state.step, 5);
    assert_int_equal(saved.state.samples, 80);
    assert_int_equal(saved.config.train.tokens_per_step, 1024);
    assert_int_equal(saved.config.model.shape.rope_scaling.original_max_position_embeddings, 8192);
    assert_string_equal(saved.facts.data, "aa");
    assert_string_equal(saved.facts.mixture, "");
    saved_free(&saved);
}

static void what_is_written_reads_back(void **unused) {
    (void)unused;
    static SavedRun before, after;
    static RunFacts facts = {.data = "aa",
                             .tokenizer = "bb",
                             .mixture = "7,2,1",
                             .sums = "exact",
                             .kernels = "avx2",
                             .build = "1"};
    Error err = {0};
    Text text = {0};
    assert_int_equal(saved_parse(&before, first_version, &err), OK);
    before.state.samples = 81;
    assert_int_equal(before.state.best.step, 0);
    before.state.best = (BestCheckpoint){"validation/loss", 4, 0.1 + 0.2};
    saved_write(&before.state, 7, &before.set, &facts, &text);
    assert_int_equal(saved_parse(&after, text.data, &err), OK);
    assert_int_equal(after.state.samples, 81);
    assert_int_equal(after.updates, 7);
    assert_string_equal(after.state.best.figure, "validation/loss");
    assert_int_equal(after.state.best.step, 4);
    assert_true(after.state.best.value == 0.1 + 0.2);
    BestCheckpoint best;
    assert_int_equal(saved_parse_best(&best, text.data, &err), OK);
    assert_memory_equal(&best, &after.state.best, sizeof best);
    assert_memory_equal(&after.facts, &facts, sizeof facts);
    char a[65], b[65];
    options_digest(&before.set, NULL, a);
    options_digest(&after.set, NULL, b);
    assert_string_equal(a, b);
    text_free(&text);
    saved_free(&before);
    saved_free(&after);
}

static void a_newer_version_is_refused(void **unused) {
    (void)unused;
    static SavedRun saved;
    Error err = {0};
    assert_int_equal(saved_parse(&saved, "{\"version\": 3}", &err), ERR_DATA);
    assert_non_null(strstr(err.message, "use the weft that wrote it"));
    saved_free(&saved);
}

#define STATE(config)                                                                                   \
    "{\"version\": 1, \"step\": 5, \"tokens\": 5120, \"skipped\": 0, \"updates\": 5, \"data\": \"aa\"," \
    " \"tokenizer\": \"bb\", \"loss_window\": [], \"grad_norm_window\": [], \"config\": \"" config "\"}"

static const char old_keys[] = STATE(
    "data: {chat_learn: all}\\ntrain: {context: 64, tokens_per_step: 1024, numerics: exact, multi_token: "
    "1, multi_token_kind: module, multi_token_weight: 0.5, expert_capacity: 2, batch_start: 256, "
    "batch_warmup: 4096}\\nnumerics: {canonical_tp: 2, canonical_cp: 4}\\nparallel: {context: "
    "keys}\\nschedule: {kind: wsd, warmup_steps: 2, warmup_from: 0.1, total_steps: 8, decay_ratio: 0.5, "
    "min_factor: 0.1, exponent: 0.25, cycle_length: 0.5, theta: 2}\\n");
static const char new_keys[] =
    STATE("data: {chat_loss_on: all}\\ntrain: {context: 64, tokens_per_step: 1024, mtp_depth: 1, mtp_kind: "
          "module, mtp_loss_weight: 0.5, ep_buffer_factor: 2, rampup_start: 256, rampup_tokens: "
          "4096}\\nnumerics: {mode: exact, tp_invariant_up_to: 2, cp_invariant_up_to: 4}\\nmesh: {cp_comm: "
          "all_gather}\\nlr_schedule: {kind: wsd, warmup_steps: 2, warmup_from: 0.1, total_steps: 8, "
          "decay_ratio: 0.5, min_factor: 0.1, exponent: 0.25, cycle_length: 0.5, theta: 2}\\n");

static void fail_difference(void *context, const Option *o, const char *old, const char *new) {
    (void)context;
    fail_msg("%s: %s by the old key, %s by the new one", o->key, old, new);
}

static void old_keys_are_read(void **unused) {
    (void)unused;
    static SavedRun old, new;
    Error err = {0};
    if (saved_parse(&old, old_keys, &err) != OK || saved_parse(&new, new_keys, &err) != OK)
        fail_msg("%s", err.message);
    options_compare(&old.set, &new.set, fail_difference, NULL);
    assert_int_equal(old.set.unknown.length, 0);
    assert_int_equal(old.config.numerics.tp_invariant_up_to, 2);
    assert_int_equal(old.config.cp_comm, CP_COMM_ALL_GATHER);
    assert_true(old.config.lr_schedule.theta >= 2 && old.config.model.shape.mtp_module);
    saved_free(&old);
    saved_free(&new);
}

/* Nobody knows what an unknown key did to the curve. */
static void unknown_keys_are_refused(void **unused) {
    (void)unused;
    static SavedRun then, now;
    Error err = {0};
    Text said = {0}, idle = {0};
    assert_int_equal(saved_parse(&then, first_version, &err), OK);
    assert_int_equal(saved_parse(&now, first_version, &err), OK);
    assert_int_equal(changes_check(&then, &now.config, &now.set, &then.facts, &said, &idle, &err),
                     ERR_CONFIG);
    assert_non_null(strstr(err.message, "which may change the curve: gone.key: 1; "));
    assert_int_equal(options_apply_override(&now.set, "run.allow_changes=[unknown]", &err), OK);
    assert_int_equal(changes_check(&then, &now.config, &now.set, &then.facts, &said, &idle, &err), OK);
    assert_string_equal(said.data,
                        "keys that this weft does not know are dropped: gone.key: 1 (another curve)");
    text_free(&said);
    text_free(&idle);
    saved_free(&then);
    saved_free(&now);
}

/* An old checkpoint does not have the mixture, so other sources are reported by name. */
static void what_an_old_checkpoint_does_not_say_is_said(void **unused) {
    (void)unused;
    static SavedRun then, now;
    Error err = {0};
    Text said = {0}, idle = {0};
    assert_int_equal(saved_parse(&then, first_version, &err), OK);
    assert_int_equal(saved_parse(&now, first_version, &err), OK);
    assert_int_equal(options_apply_override(&now.set, "data.sources=[{path: a, weight: 2}]", &err), OK);
    assert_int_equal(options_apply_override(&now.set, "run.allow_changes=[unknown]", &err), OK);
    assert_int_equal(changes_check(&then, &now.config, &now.set, &then.facts, &said, &idle, &err), OK);
    assert_non_null(strstr(said.data, "data.sources was [] and is ["));
    text_free(&said);
    text_free(&idle);
    saved_free(&then);
    saved_free(&now);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_version_tells_samples),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(a_newer_version_is_refused),
        cmocka_unit_test(old_keys_are_read),
        cmocka_unit_test(unknown_keys_are_refused),
        cmocka_unit_test(what_an_old_checkpoint_does_not_say_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

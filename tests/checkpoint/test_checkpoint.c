/* Checkpoints: round trip, every kind of damage, the state after a kill or a failing call at every single
 * step of the commit protocol, retention, and the background writer.
 *
 *     test_checkpoint [TEST]     only tests of that name, which may contain * */
#include "support/files.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/async.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "device/pool.h"
#include "support/faulty_files.h"
#include "support/saved_numbers.h"

static char *step_dir(const char *dir, int step) {
    char name[32];
    snprintf(name, sizeof name, "step-%08d", step);
    return path_join(dir, name);
}

static void what_was_saved_is_loaded(void **state) {
    (void)state;
    const char *dir = files_path("round");
    char *latest = path_join(dir, "latest"), target[64] = "";
    int64_t step = 0;
    must_save(dir, 7, 3);
    assert_int_equal(number_in(dir, &step), 3);
    assert_int_equal(step, 7);
    must_save(dir, 8, 4);
    assert_int_equal(number_in(dir, &step), 4);
    assert_int_equal(number_in(latest, &step), 4);
    assert_true(readlink(latest, target, sizeof target - 1) > 0);
    assert_string_equal(target, "step-00000008");
    must_save(dir, 8, 5); /* the same step again */
    assert_int_equal(number_in(dir, &step), 5);
    assert_int_equal(entries_with_dot(dir), 0);
    char *old = step_dir(dir, 7);
    assert_int_equal(number_in(old, &step), 3);
    free(old);
    free(latest);
}

static void weights_alone_are_not_resumed(void **state) {
    (void)state;
    Trainer t;
    Lists l;
    Checkpoint c;
    Error err = {.message = ""};
    const char *dir = files_path("weights");
    char *last = step_dir(dir, 2);
    must_save(dir, 1, 1);
    fill(&t, 2);
    make_lists(&l, &t);
    CheckpointSave save = {
        .step = 2, .model = &l.model, .files = saved_files, .file_count = 2, .shard_bytes = 200};
    assert_int_equal(checkpoint_save(NULL, dir, &save, NULL, &err), OK);
    assert_int_equal(number_in(dir, NULL), 1);
    assert_int_equal(checkpoint_open(&c, last, true, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "weights only"));
    assert_int_equal(checkpoint_open(&c, dir, false, &err), OK);
    assert_int_equal(c.step, 2);
    assert_int_equal(c.model.file_count, 2); /* shards, verified like the rest */
    assert_null(c.state);
    checkpoint_close(&c);
    free(last);
}

static void nothing_there_is_an_error(void **state) {
    (void)state;
    Checkpoint c;
    Error err;
    const char *dir = files_path("none");
    assert_int_equal(checkpoint_open(&c, dir, true, &err), ERR_NOINPUT);
    assert_int_equal(file_make_dirs(dir, &err), OK);
    assert_int_equal(checkpoint_open(&c, dir, true, &err), ERR_NOINPUT);
}

/* Damage. */

static const char *const parts[] = {"config.json",           "tokenizer.json", "model.safetensors",
                                    "optimizer.safetensors", "state.json",     "manifest.json"};

static void expect_damage(const char *dir, const char *what, size_t at) {
    Error err = {.message = ""};
    if (checkpoint_verify(dir, &err) == OK) fail_msg("%s at byte %zu: not noticed", what, at);
    assert_true(err.message[0] != 0);
}

static void damage_part(const char *dir, const char *name) {
    char *path = path_join(dir, name), *data;
    size_t length;
    Error err;
    assert_int_equal(file_read(path, 1 << 20, &data, &length, &err), OK);
    for (size_t i = 0; i < length; i++) {
        data[i] ^= (char)(1 << i % 8);
        files_write(path, data, length);
        expect_damage(dir, name, i);
        data[i] ^= (char)(1 << i % 8);
    }
    for (size_t n = 0; n < length; n += 1 + length / 64) {
        files_write(path, data, n);
        expect_damage(dir, name, n);
    }
    files_write(path, data, length + 1); /* the NUL that file_read puts after the content */
    expect_damage(dir, name, length);
    assert_int_equal(unlink(path), 0);
    expect_damage(dir, name, 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    expect_damage(dir, name, 0);
    assert_int_equal(unlink(path), 0);
    files_write(path, data, length);
    assert_int_equal(checkpoint_verify(dir, &err), OK);
    free(data);
    free(path);
}

static void every_flipped_byte_and_truncation_is_noticed(void **state) {
    (void)state;
    const char *dir = files_path("damage");
    char *one = step_dir(dir, 1);
    must_save(dir, 1, 1);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) damage_part(one, parts[i]);
    free(one);
}

static void flip(const char *dir, int step, const char *name, long at) {
    char *one = step_dir(dir, step), *path = path_join(one, name);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(c ^ 1, f);
    assert_int_equal(fclose(f), 0);
    free(path);
    free(one);
}

static void a_damaged_one_is_passed_over(void **state) {
    (void)state;
    CheckpointSet set;
    Error err;
    int64_t step = 0;
    const char *dir = files_path("fallback");
    for (int i = 1; i <= 3; i++) must_save(dir, i, i);
    flip(dir, 3, "model.safetensors", 700);
    assert_int_equal(number_in(dir, &step), 2);
    assert_int_equal(checkpoint_list(&set, dir, CHECK_CONTENTS, &err), OK);
    assert_int_equal(set.count, 3);
    assert_false(set.items[2].good);
    assert_non_null(strstr(set.items[2].problem, "step-00000003/model.safetensors: w"));
    assert_true(set.items[1].good && set.items[1].resumable && set.items[1].bytes > 1000);
    checkpoint_set_free(&set);
    flip(dir, 2, "manifest.json", 30);
    assert_int_equal(number_in(dir, &step), 1);
    flip(dir, 1, "state.json", 5);
    assert_int_equal(number_in(dir, &step), -1);
    must_save(dir, 3, 9); /* replaces the damaged one */
    assert_int_equal(number_in(dir, &step), 9);
}

static void put_manifest(const char *dir, const char *body) {
    Text text = {0};
    char *path = path_join(dir, MANIFEST_FILE);
    text_puts(&text, body);
    text_printf(&text, "  \"checksum\": \"%016" PRIx64 "\"\n}\n", hash64(text.data, text.length));
    files_write(path, text.data, text.length);
    text_free(&text);
    free(path);
}

#define HEAD                                                                                               \
    "{\"format\": \"weft-checkpoint\", \"version\": 1, \"step\": 1, \"time\": \"\", \"resumable\": true, " \
    "\"files\": "

static void sealed_nonsense_is_refused(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{",
        "{\"format\": \"other\", \"version\": 1,",
        "{\"format\": \"weft-checkpoint\", \"version\": 3, \"step\": 1, \"time\": \"\", \"resumable\": true, "
        "\"files\": [],",
        HEAD "{},",
        HEAD "[1],",
        HEAD "[{\"name\": \"../x\", \"bytes\": 1, \"checksum\": \"0123456789abcdef\"}],",
        HEAD "[{\"name\": \"x\", \"bytes\": -1, \"checksum\": \"0123456789abcdef\"}],",
        HEAD "[{\"name\": \"x\", \"bytes\": 1, \"checksum\": \"xyz\"}],",
        HEAD "[{\"name\": \"x\", \"bytes\": 1, \"header\": \"0123456789abcdef\", \"tensors\": []}],",
        HEAD "[{\"name\": \"x\", \"bytes\": 1, \"checksum\": \"0123456789abcdef\"}],"};
    const char *dir = files_path("nonsense");
    Error err;
    assert_int_equal(file_make_dirs(dir, &err), OK);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        put_manifest(dir, bodies[i]);
        if (checkpoint_verify(dir, &err) == OK) fail_msg("accepted: %s", bodies[i]);
    }
    put_manifest(dir, bodies[2]);
    assert_int_equal(checkpoint_verify(dir, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "version 3"));
}

static void seal_manifest(const char *dir, const Manifest *m) {
    Text text = {0};
    char *path = path_join(dir, MANIFEST_FILE);
    manifest_write(m, &text);
    files_write(path, text.data, text.length);
    text_free(&text);
    free(path);
}

/* Removes `count` files from `first` on from the manifest, with a correct seal. */
static void expect_incomplete(const char *dir, size_t first, size_t count, const char *word) {
    Manifest m, fewer;
    Checkpoint c;
    Error err = {.message = ""};
    assert_int_equal(manifest_read(&m, dir, &err), OK);
    fewer = m;
    fewer.files = mem_alloc_array(m.file_count, sizeof *m.files);
    fewer.file_count = m.file_count - count;
    memcpy(fewer.files, m.files, first * sizeof *m.files);
    memcpy(fewer.files + first, m.files + first + count, (m.file_count - first - count) * sizeof *m.files);
    seal_manifest(dir, &fewer);
    if (checkpoint_verify(dir, &err) != ERR_DATA || !strstr(err.message, word))
        fail_msg("%zu files from %zu on not listed: expected \"%s\", found \"%s\"", count, first, word,
                 err.message);
    assert_int_equal(checkpoint_open(&c, dir, true, &err), ERR_DATA);
    seal_manifest(dir, &m);
    assert_int_equal(checkpoint_verify(dir, &err), OK);
    free(fewer.files);
    manifest_free(&m);
}

static void a_resealed_manifest_that_leaves_something_out_is_refused(void **state) {
    (void)state;
    const char *dir = files_path("resealed");
    char *one = step_dir(dir, 1);
    Manifest m;
    Error err;
    must_save(dir, 1, 1);
    assert_int_equal(manifest_read(&m, one, &err), OK);
    for (size_t i = 0; i < m.file_count; i++) expect_incomplete(one, i, 1, m.files[i].name);
    expect_incomplete(one, 0, m.file_count, "lists no weights");
    ManifestFile second = m.files[1];
    m.files[1] = m.files[0];
    seal_manifest(one, &m);
    m.files[1] = second;
    manifest_free(&m);
    assert_int_equal(checkpoint_verify(one, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "twice"));
    free(one);
}

static void a_resealed_manifest_that_leaves_out_a_shard_is_refused(void **state) {
    (void)state;
    const char *dir = files_path("resealed-shards");
    char *one = step_dir(dir, 1);
    Trainer t;
    Lists l;
    Manifest m;
    Error err = {.message = ""};
    fill(&t, 2);
    make_lists(&l, &t);
    CheckpointSave save = save_of(&l, &t, 1);
    save.shard_bytes = 200;
    assert_int_equal(checkpoint_save(NULL, dir, &save, NULL, &err), OK);
    assert_int_equal(manifest_read(&m, one, &err), OK);
    size_t shards = 0;
    for (size_t i = 0; i < m.file_count; i++)
        if (strncmp(m.files[i].name, "model-", 6) == 0) {
            expect_incomplete(one, i, 1, m.files[i].name);
            shards++;
        }
    assert_int_equal(shards, 2);
    manifest_free(&m);
    free(one);
}

static void steps_that_do_not_agree_are_refused(void **state) {
    (void)state;
    const char *dir = files_path("steps");
    char *one = step_dir(dir, 1), *two = step_dir(dir, 2), *kept = path_join(dir, "kept");
    Trainer t;
    Lists l;
    Checkpoint c;
    Error err = {.message = ""};
    fill(&t, 1);
    make_lists(&l, &t);
    snprintf(t.state, sizeof t.state, "{\"number\": 1, \"step\": 7}");
    CheckpointSave save = save_of(&l, &t, 1);
    assert_int_equal(checkpoint_save(NULL, dir, &save, NULL, &err), OK);
    assert_int_equal(checkpoint_open(&c, one, true, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "state.json is of step 7, the manifest of step 1"));
    must_save(dir, 1, 1);
    assert_int_equal(rename(one, two), 0);
    assert_int_equal(checkpoint_open(&c, two, true, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "it holds the checkpoint of step 1"));
    assert_int_equal(checkpoint_verify(two, &err), ERR_DATA);
    assert_int_equal(number_in(dir, NULL), -1);
    assert_int_equal(rename(two, kept), 0); /* under any other name it is accepted */
    assert_int_equal(number_in(kept, NULL), 1);
    free(one);
    free(two);
    free(kept);
}

static void only_proper_names_are_checkpoints(void **state) {
    (void)state;
    CheckpointSet set;
    Error err;
    static const char *const names[] = {"step-1",         "step-00000001x",     "step--0000001",
                                        "step-000000010", ".tmp-step-00000001", "step-99999999999999999999",
                                        "step-"};
    const char *dir = files_path("names");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = path_join(dir, names[i]);
        assert_int_equal(file_make_dirs(path, &err), OK);
        free(path);
    }
    assert_int_equal(checkpoint_list(&set, dir, CHECK_MANIFEST, &err), OK);
    assert_int_equal(set.count, 0);
    checkpoint_set_free(&set);
    must_save(dir, 123456789, 1);
    assert_int_equal(number_in(dir, NULL), 1);
}

/* Faults. */

/* A run's actions at a save: with three checkpoints present, a fourth is written, and the oldest is
 * removed. */
static ErrorCode save_and_prune(const FileOps *ops, const char *dir, int64_t step, int number, Error *err) {
    TRY(save_number(ops, dir, step, number, err));
    return checkpoint_prune(ops, dir, (CheckpointKeep){.last = 2}, -1, CHECK_MANIFEST, NULL, err);
}

static void prepare(const char *dir) {
    file_remove_tree(dir, NULL);
    must_save(dir, 1, 1);
    must_save(dir, 2, 2);
}

/* Number of calls that a save over `step` makes. */
static int count_calls(const char *dir, int64_t step, bool no_exchange) {
    Faults f = {.at = -1, .no_exchange = no_exchange};
    FileOps ops = faulty_ops(&f);
    Error err = {.message = ""};
    prepare(dir);
    if (save_and_prune(&ops, dir, step, 3, &err) != OK) fail_msg("%s", err.message);
    text_free(&f.trace);
    return f.calls;
}

/* Kills a child at one point; then the old or the new checkpoint exists, complete, and the next save
 * succeeds. */
static void kill_at(const char *dir, int64_t step, FaultKind kind, int at, bool no_exchange) {
    prepare(dir);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        Faults f = {.kind = kind, .at = at, .no_exchange = no_exchange};
        FileOps ops = faulty_ops(&f);
        Error err;
        save_and_prune(&ops, dir, step, 3, &err);
        _exit(0);
    }
    int status = 0;
    int64_t found_step = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    int found = number_in(dir, &found_step);
    /* Where directories cannot be exchanged, the previous checkpoint may be the newest. */
    bool old_or_new = found == 2 || found == 3 || (no_exchange && found == 1);
    if (!old_or_new)
        fail_msg("killed %s call %d: found %d", kind == KILL_BEFORE ? "before" : "after", at, found);
    assert_int_equal(found_step, found == 3 ? step : found);
    must_save(dir, step + 1, 4);
    Error err;
    assert_int_equal(checkpoint_prune(NULL, dir, (CheckpointKeep){.last = 2}, -1, CHECK_CONTENTS, NULL, &err),
                     OK);
    assert_int_equal(number_in(dir, NULL), 4);
    assert_int_equal(entries_with_dot(dir), 0);
}

static void kill_everywhere(const char *name, int64_t step, bool no_exchange) {
    const char *dir = files_path(name);
    int calls = count_calls(dir, step, no_exchange);
    assert_true(calls > 30);
    for (int at = 0; at < calls; at++) {
        kill_at(dir, step, KILL_BEFORE, at, no_exchange);
        kill_at(dir, step, KILL_AFTER, at, no_exchange);
    }
}

static void a_kill_anywhere_leaves_the_old_or_the_new(void **state) {
    (void)state;
    kill_everywhere("kill-new", 3, false);
    kill_everywhere("kill-same", 2, false);
    kill_everywhere("kill-plain", 2, true);
}

static void fail_everywhere(const char *dir, int64_t step, int error) {
    int calls = count_calls(dir, step, false);
    for (int at = 0; at < calls; at++) {
        Faults f = {.kind = FAIL, .at = at, .error = error};
        FileOps ops = faulty_ops(&f);
        Error err = {.message = ""};
        prepare(dir);
        ErrorCode code = save_and_prune(&ops, dir, step, 3, &err);
        int found = number_in(dir, NULL);
        if (found != 2 && found != 3) fail_msg("call %d failed: found %d", at, found);
        if (code == OK)
            assert_int_equal(found, 3);
        else
            assert_true(err.code == code && strstr(err.message, strerror(error)) != NULL);
        text_free(&f.trace);
    }
}

static void a_failing_call_leaves_the_old_or_the_new(void **state) {
    (void)state;
    const char *dir = files_path("fail");
    fail_everywhere(dir, 3, ENOSPC);
    fail_everywhere(dir, 3, EIO);
    fail_everywhere(dir, 2, EIO);
}

static void interruptions_and_short_writes_do_no_harm(void **state) {
    (void)state;
    const char *dir = files_path("interrupt");
    int calls = count_calls(dir, 3, false);
    for (int at = -1; at < calls; at++) {
        Faults f = {.kind = at < 0 ? SHORT_WRITES : INTERRUPT, .at = at};
        FileOps ops = faulty_ops(&f);
        Error err = {.message = ""};
        prepare(dir);
        if (save_and_prune(&ops, dir, 3, 3, &err) != OK) fail_msg("call %d interrupted: %s", at, err.message);
        assert_int_equal(number_in(dir, NULL), 3);
        text_free(&f.trace);
    }
}

/* Position of the next `word` in the trace at or after `from`; fails if there is none. */
static size_t next(const char *trace, size_t from, const char *word) {
    const char *found = strstr(trace + from, word);
    if (found == NULL) fail_msg("no \"%s\" in \"%s\"", word, trace + from);
    return (size_t)(found - trace);
}

static size_t last(const char *trace, const char *word) {
    size_t at = next(trace, 0, word);
    for (const char *found; (found = strstr(trace + at + 1, word)) != NULL;) at = (size_t)(found - trace);
    return at;
}

/* Checks that the file opened at `from` is written, synced and closed; returns the position of the close. */
static size_t synced(const char *trace, size_t from) {
    size_t wrote = next(trace, from, "write "), sync = next(trace, wrote, "sync "),
           closed = next(trace, from, "close ");
    assert_true(sync < closed);
    return closed;
}

/* A power cut keeps what was synced, in the order of the syncs. */
static void syncs_stand_where_the_protocol_has_them(void **state) {
    (void)state;
    const char *dir = files_path("order");
    Faults f = {.at = -1};
    FileOps ops = faulty_ops(&f);
    Error err;
    prepare(dir);
    text_clear(&f.trace);
    assert_int_equal(save_number(&ops, dir, 3, 3, &err), OK);
    const char *trace = f.trace.data;
    size_t at = next(trace, 0, "mkdir ");
    size_t sealed = next(trace, 0, "sync-temporary "), renamed = next(trace, 0, "rename ");
    size_t manifest = last(trace, "create "), made = 0, filled = 0;
    for (; at < manifest && (at = next(trace, at, "create ")) < manifest; made++) at = synced(trace, at);
    for (at = next(trace, 0, "open "); at < manifest && filled < 2; filled++)
        at = synced(trace, next(trace, at, "open "));
    assert_int_equal(made + 1, sizeof parts / sizeof *parts);
    assert_int_equal(filled, 2); /* the tensors of both files */
    assert_true(at < manifest);
    at = synced(trace, manifest);
    assert_true(at < sealed && sealed < renamed);
    at = next(trace, renamed, "sync-parent ");
    at = next(trace, at, "symlink ");
    at = next(trace, at, "rename ");
    next(trace, at, "sync-parent ");
    text_free(&f.trace);
}

static void steps_left(const char *dir, char out[128]) {
    CheckpointSet set;
    Error err;
    size_t used = 0;
    out[0] = 0;
    assert_int_equal(checkpoint_list(&set, dir, CHECK_MANIFEST, &err), OK);
    for (size_t i = 0; i < set.count; i++)
        used += (size_t)snprintf(out + used, 128 - used, "%s%d", used ? " " : "", (int)set.items[i].step);
    checkpoint_set_free(&set);
}

/* One tensor of 20 MiB. */
enum { WIDE = 5 << 20 };

static ErrorCode fetch_ones(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    (void)ctx, (void)index, (void)offset, (void)err;
    memset(host, 1, bytes);
    return OK;
}

static void save_wide(const char *name, Faults *f) {
    Error err = {.message = ""};
    TensorDesc wide = {"wide", SAFE_F32, SAFE_F32, 1, {WIDE}};
    TensorList model = {.count = 1, .tensors = &wide, .fetch = fetch_ones};
    CheckpointSave save = {.step = 1, .model = &model};
    FileOps ops = faulty_ops(f);
    if (checkpoint_save(&ops, files_path(name), &save, NULL, &err) != OK) fail_msg("%s", err.message);
    char *one = step_dir(files_path(name), 1);
    if (checkpoint_verify(one, &err) != OK) fail_msg("%s", err.message);
    free(one);
}

/* Calls in a trace up to the first one of `name`; -1 if there is none. */
static int calls_before(const char *trace, const char *name) {
    const char *at = strstr(trace, name);
    int calls = 0;
    for (const char *p = trace; at && p < at; p++) calls += *p == ' ';
    return at ? calls : -1;
}

/* 8 MiB at a time, after they have been written to the file; the rest is left to the sync. The disk need not
 * support it. */
static void the_disk_writes_during_a_save(void **state) {
    (void)state;
    static const char *const order = "open write write behind write write behind write sync close ";
    Faults usual = {.kind = FAULT_NONE};
    save_wide("behind", &usual);
    if (!strstr(usual.trace.data, order)) fail_msg("%s", usual.trace.data);
    Faults refused = {.kind = FAIL, .at = calls_before(usual.trace.data, "behind"), .error = ENOSYS};
    save_wide("behind-refused", &refused);
    assert_string_equal(refused.trace.data, usual.trace.data);
    text_free(&usual.trace);
    text_free(&refused.trace);
}

static void the_last_and_every_nth_are_kept(void **state) {
    (void)state;
    const char *dir = files_path("keep");
    char left[128];
    Error err;
    int removed = 0;
    for (int i = 1; i <= 8; i++) must_save(dir, 10 * i, i);
    assert_int_equal(
        checkpoint_prune(NULL, dir, (CheckpointKeep){0, 0, 0}, -1, CHECK_MANIFEST, &removed, &err), OK);
    assert_int_equal(removed, 0);
    assert_int_equal(
        checkpoint_prune(NULL, dir, (CheckpointKeep){3, 40, 30}, 20, CHECK_MANIFEST, &removed, &err), OK);
    steps_left(dir, left);
    assert_string_equal(left, "20 30 40 60 70 80");
    assert_int_equal(removed, 2);
    /* A damaged one does not count, and is kept for inspection. */
    flip(dir, 80, "optimizer.safetensors", 900);
    assert_int_equal(
        checkpoint_prune(NULL, dir, (CheckpointKeep){1, 0, 0}, -1, CHECK_CONTENTS, &removed, &err), OK);
    steps_left(dir, left);
    assert_string_equal(left, "60 70 80");
}

/* The background writer. */

static CheckpointWriter *start_writer(const FileOps *ops, const char *dir, const Lists *l) {
    CheckpointWriter *w;
    Error err = {.message = ""};
    size_t bytes = checkpoint_staging_bytes(&l->model, &l->optimizer, NULL);
    WriterSetup setup = {
        .ops = ops, .dir = dir, .keep = {.last = 2}, .in_use = -1, .ranks = 1, .staging_bytes = bytes};
    assert_true(bytes >= sizeof(float) * 3 * COUNT * ELEMENTS);
    if (checkpoint_writer_start(&w, &setup, &err) != OK) fail_msg("%s", err.message);
    return w;
}

static void the_background_writer_saves_what_was_there_at_the_call(void **state) {
    (void)state;
    const char *dir = files_path("async");
    char left[128];
    Faults f = {.at = -1, .slow = 3000};
    FileOps ops = faulty_ops(&f);
    Trainer t;
    Lists l;
    SaveReport report;
    Error err = {.message = ""};
    make_lists(&l, &t);
    fill(&t, 1);
    CheckpointWriter *w = start_writer(&ops, dir, &l);
    assert_false(checkpoint_writer_report(w, &report));
    for (int i = 1; i <= 4; i++) {
        fill_values(&t, i);
        CheckpointSave save = save_of(&l, &t, i);
        if (checkpoint_writer_save(w, &save, &err) != OK) fail_msg("%s", err.message);
        memset(t.values, 0x55, sizeof t.values); /* training continues while the thread writes */
        t.state[3] = '!';
    }
    assert_int_equal(checkpoint_writer_wait(w, &err), OK);
    assert_true(checkpoint_writer_report(w, &report));
    assert_int_equal(report.step, 4);
    assert_true(report.bytes > 1000 && report.seconds > 0.015);
    assert_true(report.waited > report.copied); /* three writes of 3 ms or more per save */
    assert_int_equal(report.removed, 1);
    assert_false(checkpoint_writer_report(w, &report));
    assert_int_equal(checkpoint_writer_stop(w, &err), OK);
    assert_int_equal(number_in(dir, NULL), 4);
    steps_left(dir, left);
    assert_string_equal(left, "3 4");
    text_free(&f.trace);
}

/* A bit that flips in staging memory would get a checksum that agrees with it. It is found, whichever it is:
 * the save fails, and the next one is whole again. */
static void a_copy_that_changed_is_not_saved(void **state) {
    (void)state;
    const char *dir = files_path("flipped");
    Trainer t;
    Lists l;
    Error err = {.message = ""};
    fill(&t, 1);
    make_lists(&l, &t);
    size_t bytes = checkpoint_staging_bytes(&l.model, &l.optimizer, NULL);
    CheckpointWriter *w = start_writer(NULL, dir, &l);
    const uint64_t bits[] = {0, 4 * bytes, 8 * (bytes - POOL_ALIGN)};
    for (int i = 0; i < 3; i++) {
        CheckpointSave save = save_of(&l, &t, i + 1);
        checkpoint_writer_flip(w, bits[i]);
        assert_int_equal(checkpoint_writer_save(w, &save, &err), OK);
        assert_int_equal(checkpoint_writer_wait(w, &err), ERR_REPLICAS);
        assert_non_null(strstr(err.message, " from which it was written changed in memory of host "));
        assert_int_equal(number_in(dir, NULL), -1);
    }
    CheckpointSave save = save_of(&l, &t, 4);
    assert_int_equal(checkpoint_writer_save(w, &save, &err), OK);
    assert_int_equal(checkpoint_writer_wait(w, &err), OK);
    assert_int_equal(checkpoint_writer_stop(w, &err), OK);
    assert_int_equal(number_in(dir, NULL), 1);
}

/* Without staging memory the file holds what the caller left unchanged until the writer was idle. */
static void a_direct_writer_takes_no_memory(void **state) {
    (void)state;
    const char *dir = files_path("direct"), *copied = files_path("copied");
    Trainer t;
    Lists l;
    Error err = {.message = ""};
    fill(&t, 1);
    make_lists(&l, &t);
    WriterSetup setup = {.dir = dir, .keep = {.last = 2}, .in_use = -1, .ranks = 1, .direct = true};
    CheckpointWriter *w, *other = start_writer(NULL, copied, &l);
    if (checkpoint_writer_start(&w, &setup, &err) != OK) fail_msg("%s", err.message);
    CheckpointSave save = save_of(&l, &t, 1);
    if (checkpoint_writer_save(w, &save, &err) != OK) fail_msg("%s", err.message);
    if (checkpoint_writer_save(other, &save, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(checkpoint_writer_wait(w, &err), OK);
    assert_int_equal(checkpoint_writer_wait(other, &err), OK);
    assert_int_equal(checkpoint_writer_stop(w, &err), OK);
    assert_int_equal(checkpoint_writer_stop(other, &err), OK);
    Text command = {0};
    text_printf(&command, "diff -r %s %s", dir, copied);
    assert_int_equal(system(command.data), 0);
    text_free(&command);
}

static ErrorCode slow_fetch(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    usleep(3000);
    return fetch(ctx, index, offset, bytes, host, err);
}

static ErrorCode failing_fetch(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    (void)ctx, (void)index, (void)offset, (void)bytes, (void)host;
    return error_set(err, ERR_IO, "the device is gone");
}

static void the_background_copy_may_run_beside_the_training(void **state) {
    (void)state;
    const char *dir = files_path("beside");
    Trainer t;
    Lists l;
    SaveReport report;
    Error err = {.message = ""};
    fill(&t, 1);
    make_lists(&l, &t);
    l.model.fetch = slow_fetch;
    CheckpointWriter *w = start_writer(NULL, dir, &l);
    checkpoint_writer_copied(w); /* no copy is in progress */
    CheckpointSave save = save_of(&l, &t, 1);
    assert_int_equal(checkpoint_writer_begin(w, &save, &err), OK);
    checkpoint_writer_copied(w);
    memset(t.values, 0x55, sizeof t.values); /* the next update */
    assert_int_equal(checkpoint_writer_wait(w, &err), OK);
    assert_true(checkpoint_writer_report(w, &report));
    assert_true(report.copied > 0.009);
    assert_int_equal(number_in(dir, NULL), 1);
    l.model.fetch = failing_fetch;
    save.step = 2;
    assert_int_equal(checkpoint_writer_save(w, &save, &err), OK);
    assert_int_equal(checkpoint_writer_wait(w, &err), ERR_IO);
    assert_non_null(strstr(err.message, "the device is gone"));
    assert_int_equal(checkpoint_writer_stop(w, &err), OK);
    assert_int_equal(number_in(dir, NULL), 1);
}

static void a_failure_in_the_background_is_returned_once(void **state) {
    (void)state;
    const char *dir = files_path("async-fail");
    Faults f = {.kind = FAIL, .at = 5, .error = ENOSPC};
    FileOps ops = faulty_ops(&f);
    Trainer t;
    Lists l;
    Error err = {.message = ""};
    fill(&t, 1);
    make_lists(&l, &t);
    CheckpointWriter *w = start_writer(&ops, dir, &l);
    CheckpointSave save = save_of(&l, &t, 1);
    assert_int_equal(checkpoint_writer_save(w, &save, &err), OK);
    ErrorCode code = checkpoint_writer_save(w, &save, &err);
    assert_true(code != OK && strstr(err.message, "step 1") != NULL &&
                strstr(err.message, strerror(ENOSPC)) != NULL);
    assert_int_equal(checkpoint_writer_save(w, &save, &err), OK);
    assert_int_equal(checkpoint_writer_stop(w, &err), OK);
    assert_int_equal(number_in(dir, NULL), 1);
    assert_int_equal(checkpoint_writer_stop(NULL, &err), OK);
    text_free(&f.trace);
}

static void the_interval_is_youngs(void **state) {
    (void)state;
    double t = checkpoint_interval(11100.0, 6.3, 10.0);
    assert_true(t > 373.9 && t < 374.1);
    t = checkpoint_interval(100.0, 0.01, 60.0);
    assert_true(t > 59.9 && t < 60.1);
}

static void companions_are_json(void **state) {
    (void)state;
    Text text = {0};
    cJSON *root;
    Error err;
    ModelConfig c = {.bos_token_id = -1, .eos_token_id = 7};
    TokenChanges none = {.answer_end = -1};
    assert_int_equal(checkpoint_generation_config(&c, NULL, &none, &text, &err), OK);
    assert_int_equal(json_parse("generation", text.data, text.length, &root, &err), OK);
    assert_null(cJSON_GetObjectItem(root, "bos_token_id"));
    assert_int_equal(cJSON_GetObjectItem(root, "eos_token_id")->valueint, 7);
    cJSON_Delete(root);
    text_clear(&text);
    TokenNames names = {.eos = "<|end_of_text|>"};
    assert_int_equal(checkpoint_tokenizer_config(NULL, &names, &none, 512, false, &text, &err), OK);
    assert_int_equal(json_parse("tokenizer", text.data, text.length, &root, &err), OK);
    assert_string_equal(cJSON_GetObjectItem(root, "eos_token")->valuestring, "<|end_of_text|>");
    cJSON_Delete(root);
    text_free(&text);
}

static cJSON *generation(const ModelConfig *c, const TokenChanges *changes, Text *text) {
    cJSON *root;
    Error err;
    text_clear(text);
    assert_int_equal(checkpoint_generation_config(c, files_path("base"), changes, text, &err), OK);
    assert_int_equal(json_parse("generation", text->data, text->length, &root, &err), OK);
    return root;
}

/* The base model's file is copied byte for byte; only a token that a key names, or a missing end of an
 * assistant turn, changes it. */
static void companions_of_a_base_stay(void **state) {
    (void)state;
    static const char file[] = "{\"eos_token_id\": [5, 9], \"pad_token_id\": 3,\n\"temperature\": 0.60}";
    Text text = {0};
    files_mkdir("base");
    files_text("base/generation_config.json", file);
    ModelConfig c = {.bos_token_id = 1, .eos_token_id = 7};
    cJSON_Delete(generation(&c, &(TokenChanges){.answer_end = 9}, &text));
    assert_string_equal(text.data, file);
    cJSON *root = generation(&c, &(TokenChanges){.answer_end = 4}, &text);
    const cJSON *ends = cJSON_GetObjectItem(root, "eos_token_id");
    assert_int_equal(cJSON_GetArraySize(ends), 3);
    assert_int_equal(cJSON_GetArrayItem(ends, 2)->valueint, 4);
    assert_int_equal(cJSON_GetObjectItem(root, "pad_token_id")->valueint, 3);
    assert_null(cJSON_GetObjectItem(root, "bos_token_id"));
    cJSON_Delete(root);
    root = generation(&c, &(TokenChanges){.eos = true, .bos = true, .answer_end = -1}, &text);
    assert_int_equal(cJSON_GetObjectItem(root, "eos_token_id")->valueint, 7);
    assert_int_equal(cJSON_GetObjectItem(root, "bos_token_id")->valueint, 1);
    assert_true(cJSON_GetObjectItem(root, "temperature")->valuedouble == 0.6);
    cJSON_Delete(root);
    text_free(&text);
}

static int set_up(void **state) {
    log_set_level(LOG_ERROR); /* the warnings about damage are expected here */
    return files_setup_in_memory(state);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_saved_is_loaded),
        cmocka_unit_test(weights_alone_are_not_resumed),
        cmocka_unit_test(nothing_there_is_an_error),
        cmocka_unit_test(every_flipped_byte_and_truncation_is_noticed),
        cmocka_unit_test(a_damaged_one_is_passed_over),
        cmocka_unit_test(sealed_nonsense_is_refused),
        cmocka_unit_test(a_resealed_manifest_that_leaves_something_out_is_refused),
        cmocka_unit_test(a_resealed_manifest_that_leaves_out_a_shard_is_refused),
        cmocka_unit_test(steps_that_do_not_agree_are_refused),
        cmocka_unit_test(only_proper_names_are_checkpoints),
        cmocka_unit_test(a_kill_anywhere_leaves_the_old_or_the_new),
        cmocka_unit_test(a_failing_call_leaves_the_old_or_the_new),
        cmocka_unit_test(interruptions_and_short_writes_do_no_harm),
        cmocka_unit_test(syncs_stand_where_the_protocol_has_them),
        cmocka_unit_test(the_disk_writes_during_a_save),
        cmocka_unit_test(the_last_and_every_nth_are_kept),
        cmocka_unit_test(the_background_writer_saves_what_was_there_at_the_call),
        cmocka_unit_test(a_copy_that_changed_is_not_saved),
        cmocka_unit_test(a_direct_writer_takes_no_memory),
        cmocka_unit_test(the_background_copy_may_run_beside_the_training),
        cmocka_unit_test(a_failure_in_the_background_is_returned_once),
        cmocka_unit_test(the_interval_is_youngs),
        cmocka_unit_test(companions_are_json),
        cmocka_unit_test(companions_of_a_base_stay),
    };
    return cmocka_run_group_tests(tests, set_up, files_teardown);
}

/* Checkpoints of many ranks, simulated in one process or as processes: the files do not depend on how the
 * tensors are distributed, any distribution can read them, everything missing, doubled or damaged is refused,
 * and a rank that dies or fails at any step leaves the old checkpoint or the new one. */
#include "support/files.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/async.h"
#include "checkpoint/internal.h"
#include "checkpoint/manifest.h"
#include "support/faulty_files.h"

#define TENSORS 5
#define MAX_RANKS 8
#define MAX_SEGMENTS 64

/* The same on every rank: weights, all but one rounded in their file, and a moment of each. */
static const TensorDesc model_tensors[TENSORS] = {{"embed", SAFE_F32, SAFE_BF16, 2, {13, 7}},
                                                  {"norm", SAFE_F32, SAFE_F32, 1, {7}},
                                                  {"block.up", SAFE_F32, SAFE_BF16, 2, {5, 7}},
                                                  {"empty", SAFE_F32, SAFE_BF16, 2, {0, 7}},
                                                  {"block.down", SAFE_F32, SAFE_BF16, 2, {1, 1}}};
static const TensorDesc moment_tensors[TENSORS] = {{"m.embed", SAFE_F32, SAFE_F32, 2, {13, 7}},
                                                   {"m.norm", SAFE_F32, SAFE_F32, 1, {7}},
                                                   {"m.block.up", SAFE_F32, SAFE_F32, 2, {5, 7}},
                                                   {"m.empty", SAFE_F32, SAFE_F32, 2, {0, 7}},
                                                   {"m.block.down", SAFE_F32, SAFE_F32, 2, {1, 1}}};

/* Exact in bf16, different for each element. */
static float value_of(int number, int list, int tensor, int64_t element) {
    return ldexpf(1.0f + (float)((tensor * 19 + element) % 128) / 128.0f, 2 * number + list);
}

/* The local segments of one list. */
typedef struct Held {
    const TensorDesc *tensors;
    TensorSegment segments[MAX_SEGMENTS];
    float *values[MAX_SEGMENTS];
    int count;
} Held;

typedef struct Rank {
    Held held[2];
    TensorList lists[2];
    char state[32];
} Rank;

static ErrorCode fetch(void *ctx, int segment, size_t offset, size_t bytes, void *host, Error *err) {
    const Held *h = ctx;
    (void)err;
    assert_true(offset + bytes <= (size_t)h->segments[segment].count * sizeof(float));
    memcpy(host, (const char *)h->values[segment] + offset, bytes);
    return OK;
}

static ErrorCode store(void *ctx, int segment, size_t offset, size_t bytes, const void *host, Error *err) {
    const Held *h = ctx;
    (void)err;
    assert_true(offset + bytes <= (size_t)h->segments[segment].count * sizeof(float));
    memcpy((char *)h->values[segment] + offset, host, bytes);
    return OK;
}

static uint32_t seed = 1;
static uint32_t draw(uint32_t below) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

static void hold(Rank *r, int list, int tensor, int64_t first, int64_t count) {
    Held *h = &r->held[list];
    assert_true(h->count < MAX_SEGMENTS);
    h->segments[h->count] = (TensorSegment){tensor, first, count};
    h->values[h->count++] = mem_alloc_array((size_t)count, sizeof(float));
}

/* Every tensor is cut at random positions and its segments distributed: some ranks get several, some none. */
static void spread(Rank *ranks, int count) {
    memset(ranks, 0, (size_t)count * sizeof *ranks);
    for (int list = 0; list < 2; list++)
        for (int t = 0; t < TENSORS; t++) {
            int64_t elements = tensor_elements(list ? &moment_tensors[t] : &model_tensors[t]);
            for (int64_t first = 0, n; first < elements; first += n) {
                n = count == 1 ? elements : 1 + draw((uint32_t)(elements - first));
                hold(&ranks[draw((uint32_t)count)], list, t, first, n);
            }
        }
    for (int i = 0; i < count; i++)
        for (int list = 0; list < 2; list++) {
            Held *h = &ranks[i].held[list];
            h->tensors = list ? moment_tensors : model_tensors;
            ranks[i].lists[list] = (TensorList){TENSORS, h->tensors, h, fetch, store, h->count, h->segments};
        }
}

static void fill(Rank *ranks, int count, int number) {
    for (int i = 0; i < count; i++) {
        for (int list = 0; list < 2; list++) {
            Held *h = &ranks[i].held[list];
            for (int p = 0; p < h->count; p++)
                for (int64_t k = 0; k < h->segments[p].count; k++)
                    h->values[p][k] = value_of(number, list, h->segments[p].tensor, h->segments[p].first + k);
        }
        /* Only rank 0's state is used. */
        snprintf(ranks[i].state, sizeof ranks[i].state, "{\"number\": %d}", i == 0 ? number : -1);
    }
}

static void check(const Rank *ranks, int count, int number) {
    for (int i = 0; i < count; i++)
        for (int list = 0; list < 2; list++) {
            const Held *h = &ranks[i].held[list];
            for (int p = 0; p < h->count; p++)
                for (int64_t k = 0; k < h->segments[p].count; k++) {
                    float expect = value_of(number, list, h->segments[p].tensor, h->segments[p].first + k);
                    if (memcmp(&h->values[p][k], &expect, sizeof expect) != 0)
                        fail_msg("tensor %d element %d: %g, expected %g", h->segments[p].tensor,
                                 (int)(h->segments[p].first + k), (double)h->values[p][k], (double)expect);
                }
        }
}

static void let_go(Rank *ranks, int count) {
    for (int i = 0; i < count; i++)
        for (int list = 0; list < 2; list++)
            for (int p = 0; p < ranks[i].held[list].count; p++) free(ranks[i].held[list].values[p]);
}

static const CheckpointFile files[] = {{"config.json", "{}\n", 3}};

static CheckpointSave save_of(const Rank *r, int64_t step) {
    return (CheckpointSave){.step = step,
                            .model = &r->lists[0],
                            .optimizer = &r->lists[1],
                            .state = r->state,
                            .files = files,
                            .file_count = 1,
                            .shard_bytes = 99};
}

static CheckpointBlob blob_of(const Text *t) { return (CheckpointBlob){t->data, t->length}; }

/* The phases in a caller's order; ops [count] or NULL. */
static ErrorCode save(const FileOps *const *ops, const char *dir, const Rank *ranks, int count, int64_t step,
                      Error *err) {
    Text blobs[MAX_RANKS] = {{0}};
    CheckpointBlob all[MAX_RANKS];
    uint64_t bytes;
    CheckpointSave first = save_of(&ranks[0], step);
    TRY(checkpoint_begin(ops ? ops[0] : NULL, dir, &first, err));
    for (int i = count; i-- > 0;) { /* in any order */
        CheckpointSave s = save_of(&ranks[i], step);
        checkpoint_write(ops ? ops[i] : NULL, dir, &s, &blobs[i], NULL);
        all[i] = blob_of(&blobs[i]);
    }
    ErrorCode code = checkpoint_commit(ops ? ops[0] : NULL, dir, &first, all, count, &bytes, err);
    for (int i = 0; i < count; i++) text_free(&blobs[i]);
    return code;
}

static void must_save(const char *dir, int count, int64_t step, int number) {
    Rank ranks[MAX_RANKS];
    Error err = {.message = ""};
    spread(ranks, count);
    fill(ranks, count, number);
    if (save(NULL, dir, ranks, count, step, &err) != OK) fail_msg("%s", err.message);
    let_go(ranks, count);
}

/* Reads like the ranks of a run: rank 0's candidates, each rank its part, then each its local segments.
 * Returns the number of the checkpoint that was found, -1 for none. */
static int load(const char *dir, int count, int64_t *step) {
    Rank ranks[MAX_RANKS];
    CheckpointSet set;
    Error err = {.message = ""};
    int number = -1;
    assert_int_equal(checkpoint_candidates(&set, dir, &err), OK);
    for (size_t i = set.count; i-- > 0 && number < 0;) {
        bool good = true;
        for (int r = 0; r < count; r++)
            good = checkpoint_check_part(set.items[i].path, r, count, &err) == OK && good;
        if (!good) continue;
        spread(ranks, count);
        for (int r = 0; r < count; r++) {
            Checkpoint c;
            if (checkpoint_open_verified(&c, set.items[i].path, true, &err) != OK)
                fail_msg("%s", err.message);
            assert_int_equal(sscanf(c.state, "{\"number\": %d}", &number), 1);
            if (modelfiles_load(&c.model, &ranks[r].lists[0], &err) != OK) fail_msg("%s", err.message);
            if (modelfiles_load(&c.optimizer, &ranks[r].lists[1], &err) != OK) fail_msg("%s", err.message);
            if (step) *step = c.step;
            checkpoint_close(&c);
        }
        check(ranks, count, number);
        let_go(ranks, count);
    }
    checkpoint_set_free(&set);
    return number;
}

static char *part_path(const char *dir, int step, const char *name) {
    char below[96];
    snprintf(below, sizeof below, "step-%08d/%s", step, name);
    return path_join(dir, below);
}

static const char *const tensor_files[] = {"model-00001-of-00003.safetensors",
                                           "model-00002-of-00003.safetensors",
                                           "model-00003-of-00003.safetensors", "optimizer.safetensors"};
#define TENSOR_FILES (sizeof tensor_files / sizeof *tensor_files)

static void read_part(const char *dir, int step, const char *name, char **data, size_t *length) {
    char *path = part_path(dir, step, name);
    *data = files_read(path, length);
    free(path);
}

static void write_part(const char *dir, int step, const char *name, const char *data, size_t length) {
    char *path = part_path(dir, step, name);
    files_write(path, data, length);
    free(path);
}

static const int rank_counts[] = {1, 2, 3, 8};
#define RANK_COUNTS (sizeof rank_counts / sizeof *rank_counts)

static void files_and_values_do_not_depend_on_the_ranks(void **unused) {
    (void)unused;
    const char *dir = files_path("spread");
    char *data[2];
    size_t length[2];
    int64_t step = 0;
    must_save(dir, 1, 1, 9);
    for (int round = 0; round < 8; round++)
        for (size_t i = 0; i < RANK_COUNTS; i++) {
            must_save(dir, rank_counts[i], 2, 9);
            for (size_t f = 0; f < TENSOR_FILES; f++) {
                for (int s = 0; s < 2; s++) read_part(dir, 1 + s, tensor_files[f], &data[s], &length[s]);
                assert_int_equal(length[0], length[1]);
                assert_memory_equal(data[0], data[1], length[0]);
                free(data[0]);
                free(data[1]);
            }
            for (size_t k = 0; k < RANK_COUNTS; k++) assert_int_equal(load(dir, rank_counts[k], &step), 9);
            assert_int_equal(step, 2);
        }
    assert_int_equal(entries_with_dot(dir), 0);
}

static void one_process_that_holds_all_writes_the_same(void **unused) {
    (void)unused;
    const char *dir = files_path("whole");
    char *data[2];
    size_t length[2];
    Rank rank;
    Checkpoint c;
    Error err = {.message = ""};
    spread(&rank, 1);
    fill(&rank, 1, 4);
    /* Without cuts, the segments are the tensors except the empty one, which is segment 3 of a list without
     * segments. */
    for (int list = 0; list < 2; list++) {
        Held *h = &rank.held[list];
        hold(&rank, list, 4, 0, 1);
        h->values[4][0] = h->values[3][0];
        h->segments[3].count = 0;
        rank.lists[list].segments = NULL;
    }
    CheckpointSave s = save_of(&rank, 1);
    if (checkpoint_save(NULL, dir, &s, NULL, &err) != OK) fail_msg("%s", err.message);
    must_save(dir, 3, 2, 4);
    for (size_t f = 0; f < TENSOR_FILES; f++) {
        for (int i = 0; i < 2; i++) read_part(dir, 1 + i, tensor_files[f], &data[i], &length[i]);
        assert_int_equal(length[0], length[1]);
        assert_memory_equal(data[0], data[1], length[0]);
        free(data[0]);
        free(data[1]);
    }
    assert_int_equal(checkpoint_open(&c, dir, true, &err), OK);
    assert_int_equal(c.step, 2);
    checkpoint_close(&c);
    let_go(&rank, 1);
}

/* Segments that do not fit together. */

static void refused(const char *dir, const Rank *ranks, const Text *blobs, int count, const char *why) {
    Error err = {.message = ""};
    CheckpointBlob all[MAX_RANKS];
    uint64_t bytes;
    CheckpointSave s = save_of(&ranks[0], 2);
    assert_int_equal(checkpoint_begin(NULL, dir, &s, &err), OK);
    for (int i = 0; i < count; i++) all[i] = blob_of(&blobs[i]);
    if (checkpoint_commit(NULL, dir, &s, all, count, &bytes, &err) == OK) fail_msg("accepted: %s", why);
    if (strstr(err.message, why) == NULL) fail_msg("expected \"%s\" in \"%s\"", why, err.message);
    assert_int_equal(entries_with_dot(dir), 0);
    assert_int_equal(load(dir, 2, NULL), 1);
}

static void write_blob(const char *dir, const Rank *r, int64_t step, Text *blob) {
    CheckpointSave s = save_of(r, step);
    Error err = {.message = ""};
    assert_int_equal(checkpoint_begin(NULL, dir, &s, &err), OK);
    text_clear(blob);
    if (checkpoint_write(NULL, dir, &s, blob, &err) != OK) fail_msg("%s", err.message);
}

/* Two ranks: the second has elements 20 to 29 of "embed", the first the rest. */
static void cut_simply(Rank *ranks) {
    memset(ranks, 0, 2 * sizeof *ranks);
    for (int list = 0; list < 2; list++) {
        hold(&ranks[0], list, 0, 0, 20);
        hold(&ranks[1], list, 0, 20, 10);
        hold(&ranks[0], list, 0, 30, 61);
        hold(&ranks[0], list, 1, 0, 7);
        hold(&ranks[0], list, 2, 0, 35);
        hold(&ranks[0], list, 4, 0, 1);
        for (int i = 0; i < 2; i++) {
            Held *h = &ranks[i].held[list];
            h->tensors = list ? moment_tensors : model_tensors;
            ranks[i].lists[list] = (TensorList){TENSORS, h->tensors, h, fetch, store, h->count, h->segments};
        }
    }
    fill(ranks, 2, 5);
}

static void pieces_that_do_not_fit_are_refused(void **unused) {
    (void)unused;
    const char *dir = files_path("fit");
    Rank ranks[2];
    Text blobs[2] = {{0}};
    must_save(dir, 2, 1, 1);
    cut_simply(ranks);
    for (int i = 0; i < 2; i++) write_blob(dir, &ranks[i], 2, &blobs[i]);
    refused(dir, ranks, blobs, 1, "tensor embed: elements 20 to 29 were written by no rank");
    Text swapped[2] = {blobs[0], blobs[0]};
    refused(dir, ranks, swapped, 2, "tensor embed: elements 0 to 19 were written by rank 0 and rank 1");
    swapped[0] = (Text){0};
    refused(dir, ranks, swapped, 2, "rank 0 reports of its part is damaged");

    ranks[1].held[0].segments[0].first = 19;
    write_blob(dir, &ranks[1], 2, &blobs[1]);
    refused(dir, ranks, blobs, 2, "elements 19 to 19 were written by rank 0 and rank 1");
    ranks[1].held[0].segments[0] = (TensorSegment){0, 20, 9};
    write_blob(dir, &ranks[1], 2, &blobs[1]);
    refused(dir, ranks, blobs, 2, "elements 29 to 29 were written by no rank");
    ranks[1].held[0].segments[0].count = 10;

    write_blob(dir, &ranks[1], 3, &blobs[1]);
    checkpoint_clean(&file_ops_system, dir); /* those of the other step */
    refused(dir, ranks, blobs, 2, "rank 1 reports of its part is of another step");
    TensorDesc other[TENSORS];
    memcpy(other, model_tensors, sizeof other);
    other[2].shape[0] = 6;
    ranks[1].lists[0].tensors = other;
    for (int i = 0; i < 2; i++) write_blob(dir, &ranks[i == 0], 2, &blobs[i == 0]);
    refused(dir, ranks, blobs, 2, "rank 1 reports of its part is of other tensors");
    for (int i = 0; i < 2; i++) text_free(&blobs[i]);
    let_go(ranks, 2);
}

static void no_byte_of_a_blob_is_free_to_change(void **unused) {
    (void)unused;
    const char *dir = files_path("blob");
    Rank ranks[2];
    Text blobs[2] = {{0}}, failed = {0};
    must_save(dir, 2, 1, 1);
    cut_simply(ranks);
    for (int i = 0; i < 2; i++) write_blob(dir, &ranks[i], 2, &blobs[i]);
    for (size_t i = 0; i < blobs[1].length; i++) {
        blobs[1].data[i] ^= 4;
        refused(dir, ranks, blobs, 2, "rank 1 reports of its part is damaged");
        blobs[1].data[i] ^= 4;
    }
    for (size_t n = 0; n < blobs[1].length; n++) {
        Text shorter[2] = {blobs[0], {blobs[1].data, n, 0}};
        refused(dir, ranks, shorter, 2, "rank 1 reports of its part is damaged");
    }
    Error cause = {.code = ERR_IO, .message = "the disk of this node is gone"};
    checkpoint_blob_failure(&cause, &failed);
    Text with_failure[2] = {blobs[0], failed};
    refused(dir, ranks, with_failure, 2, "rank 1: the disk of this node is gone");
    for (int i = 0; i < 2; i++) text_free(&blobs[i]);
    text_free(&failed);
    let_go(ranks, 2);
}

/* Damage. */

static int parts_that_notice(const char *one, int ranks) {
    int count = 0;
    Error err;
    for (int r = 0; r < ranks; r++) count += checkpoint_check_part(one, r, ranks, &err) != OK;
    return count;
}

static void damage_file(const char *dir, const char *name, int ranks) {
    char *data, *one = part_path(dir, 1, "");
    size_t length;
    Error err;
    read_part(dir, 1, name, &data, &length);
    bool shared = strstr(name, ".safetensors") && !strstr(name, ".json");
    for (size_t i = 0; i < length; i++) {
        data[i] ^= (char)(1 << i % 8);
        write_part(dir, 1, name, data, length);
        int noticed = parts_that_notice(one, ranks);
        if (noticed == 0 || checkpoint_verify(one, &err) == OK)
            fail_msg("%s, byte %zu: not noticed", name, i);
        /* Only the rank to whose part they belong reads the tensors' bytes. */
        bool of_a_tensor = shared && i >= 8 + (size_t)((uint8_t)data[0] | (uint8_t)data[1] << 8);
        if (of_a_tensor && noticed != 1)
            fail_msg("%s, byte %zu: %d of %d ranks read it", name, i, noticed, ranks);
        data[i] ^= (char)(1 << i % 8);
    }
    for (size_t n = 0; n < length; n += 1 + length / 16) {
        write_part(dir, 1, name, data, n);
        assert_true(parts_that_notice(one, ranks) > 0);
    }
    write_part(dir, 1, name, data, length);
    assert_int_equal(parts_that_notice(one, ranks), 0);
    free(data);
    free(one);
}

static void damage_is_noticed_by_the_rank_whose_share_it_is(void **unused) {
    (void)unused;
    const char *dir = files_path("damage");
    must_save(dir, 3, 1, 1);
    for (size_t f = 0; f < TENSOR_FILES; f++) damage_file(dir, tensor_files[f], 3);
    damage_file(dir, "state.json", 3);
    damage_file(dir, "config.json", 3);
    damage_file(dir, MANIFEST_FILE, 3);
}

static void the_newest_that_all_find_good_is_taken(void **unused) {
    (void)unused;
    const char *dir = files_path("newest");
    char *data, *one;
    size_t length;
    int64_t step = 0;
    for (int i = 1; i <= 3; i++) must_save(dir, 3, i, i);
    read_part(dir, 3, "optimizer.safetensors", &data, &length);
    data[length - 1] ^= 1;
    write_part(dir, 3, "optimizer.safetensors", data, length);
    free(data);
    assert_int_equal(load(dir, 3, &step), 2);
    assert_int_equal(step, 2);
    one = part_path(dir, 1, "");
    assert_int_equal(load(one, 2, &step), 1); /* one by its path */
    free(one);
}

static void reseal(const char *dir, int step, const char *text, size_t length) {
    Text out = {0};
    text_add(&out, text, length);
    text_printf(&out, "  \"checksum\": \"%016" PRIx64 "\"\n}\n", hash64(out.data, out.length));
    write_part(dir, step, MANIFEST_FILE, out.data, out.length);
    text_free(&out);
}

static void manifests_without_pieces_still_read(void **unused) {
    (void)unused;
    const char *dir = files_path("version");
    char *data;
    size_t length;
    must_save(dir, 1, 1, 6);
    read_part(dir, 1, MANIFEST_FILE, &data, &length);
    char *version = strstr(data, "\"version\": 2");
    assert_non_null(version);
    assert_null(strstr(data, "\"embed\": [")); /* one rank holds unsharded tensors */
    version[strlen("\"version\": ")] = '1';
    reseal(dir, 1, data, length - 35);
    assert_int_equal(load(dir, 3, NULL), 6);
    free(data);
}

static void pieces_in_a_manifest_must_make_up_the_tensor(void **unused) {
    (void)unused;
    static const char *const segments[] = {
        "[]",
        "[1]",
        ("[{\"bytes\": 4, \"checksum\": \"0123456789abcdef\"}, "
         "{\"bytes\": 0, \"checksum\": \"2d06800538d394c2\"}]"),
        "[{\"bytes\": 400, \"checksum\": \"0123456789abcdef\"}]",
        "[{\"bytes\": 4503599627370496, \"checksum\": \"0123456789abcdef\"}]",
        "[{\"bytes\": 2}]"};
    const char *dir = files_path("pieces");
    char *one = part_path(dir, 1, ""), *data;
    size_t length;
    Error err;
    must_save(dir, 1, 1, 6);
    read_part(dir, 1, MANIFEST_FILE, &data, &length);
    char *sum = strstr(data, "\"m.block.down\": ");
    assert_non_null(sum);
    sum += strlen("\"m.block.down\": ");
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        Text changed = {0};
        text_add(&changed, data, (size_t)(sum - data));
        text_puts(&changed, segments[i]);
        text_add(&changed, sum + 18, length - 35 - (size_t)(sum + 18 - data));
        reseal(dir, 1, changed.data, changed.length);
        if (checkpoint_verify(one, &err) == OK) fail_msg("accepted: %s", segments[i]);
        text_free(&changed);
    }
    reseal(dir, 1, data, length - 35);
    assert_int_equal(checkpoint_verify(one, &err), OK);
    free(data);
    free(one);
}

/* Faults. */

static void prepare(const char *dir) {
    Error err;
    assert_int_equal(file_remove_tree(dir, &err), OK);
    must_save(dir, 2, 1, 1);
    must_save(dir, 2, 2, 2);
}

static ErrorCode prune(const FileOps *ops, const char *dir, Error *err) {
    return checkpoint_prune(ops, dir, (CheckpointKeep){.last = 2}, -1, CHECK_MANIFEST, NULL, err);
}

static int count_calls(const char *dir, int rank) {
    Rank ranks[2];
    Faults f = {.at = -1};
    FileOps faulty = faulty_ops(&f);
    const FileOps *ops[2] = {rank == 0 ? &faulty : NULL, rank == 1 ? &faulty : NULL};
    Error err = {.message = ""};
    prepare(dir);
    cut_simply(ranks);
    if (save(ops, dir, ranks, 2, 3, &err) != OK || prune(ops[0], dir, &err) != OK)
        fail_msg("%s", err.message);
    let_go(ranks, 2);
    text_free(&f.trace);
    return f.calls;
}

static void a_failure_of_one_rank_is_one_of_the_save(void **unused) {
    (void)unused;
    const char *dir = files_path("fail");
    int calls = count_calls(dir, 1);
    assert_true(calls >= 8);
    for (int at = 0; at < calls; at++) {
        Rank ranks[2];
        Faults f = {.kind = FAIL, .at = at, .error = ENOSPC};
        FileOps faulty = faulty_ops(&f);
        const FileOps *ops[2] = {NULL, &faulty};
        Error err = {.message = ""};
        cut_simply(ranks);
        prepare(dir);
        assert_int_not_equal(save(ops, dir, ranks, 2, 3, &err), OK);
        assert_non_null(strstr(err.message, "rank 1: "));
        assert_non_null(strstr(err.message, strerror(ENOSPC)));
        assert_int_equal(load(dir, 2, NULL), 2);
        assert_int_equal(entries_with_dot(dir), 0);
        let_go(ranks, 2);
        text_free(&f.trace);
    }
}

/* Complete messages through pipes; a rank whose partner is gone ends, like a job that loses a rank. */
static void send_text(int fd, const void *data, size_t length) {
    if (write(fd, &length, sizeof length) != sizeof length || write(fd, data, length) != (ssize_t)length)
        _exit(1);
}

static void receive_text(int fd, Text *out) {
    size_t length;
    char data[4096];
    if (read(fd, &length, sizeof length) != sizeof length || length > sizeof data) _exit(1);
    if (length > 0 && read(fd, data, length) != (ssize_t)length) _exit(1);
    text_add(out, data, length);
}

/* Rank 0 reports that it has begun, rank 1 sends its blob. */
static void be_rank(int rank, const char *dir, Faults f, int in, int out) {
    Rank ranks[2];
    Text blob = {0}, other = {0};
    Error err = {.message = ""};
    uint64_t bytes;
    FileOps ops = faulty_ops(&f);
    signal(SIGPIPE, SIG_IGN);
    cut_simply(ranks);
    fill(ranks, 2, 3);
    CheckpointSave s = save_of(&ranks[rank], 3);
    if (rank == 0 && checkpoint_begin(&ops, dir, &s, &err) != OK) _exit(1);
    if (rank == 0)
        send_text(out, "", 0);
    else
        receive_text(in, &other);
    if (checkpoint_write(&ops, dir, &s, &blob, &err) != OK) _exit(1);
    if (rank == 1) {
        send_text(out, blob.data, blob.length);
        receive_text(in, &other); /* until the other has finished */
        _exit(0);
    }
    receive_text(in, &other);
    CheckpointBlob blobs[2] = {blob_of(&blob), blob_of(&other)};
    if (checkpoint_commit(&ops, dir, &s, blobs, 2, &bytes, &err) != OK || prune(&ops, dir, &err) != OK)
        _exit(1);
    send_text(out, "", 0);
    _exit(0);
}

static pid_t start_rank(int rank, const char *dir, Faults f, int pipes[2][2]) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    close(pipes[rank][0]);
    close(pipes[1 - rank][1]);
    be_rank(rank, dir, f, pipes[1 - rank][0], pipes[rank][1]);
    return 0;
}

static void run_ranks(const char *dir, const Faults faults[2], int status[2]) {
    int pipes[2][2]; /* pipes[r]: messages from rank r */
    pid_t children[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pipe(pipes[i]), 0);
    for (int i = 0; i < 2; i++) children[i] = start_rank(i, dir, faults[i], pipes);
    for (int i = 0; i < 2; i++) {
        close(pipes[i][0]);
        close(pipes[i][1]);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(waitpid(children[i], &status[i], 0), children[i]);
}

static void kill_ranks(const char *dir, FaultKind kind, int at0, int at1) {
    Faults faults[2] = {{.kind = kind, .at = at0}, {.kind = kind, .at = at1}};
    int status[2];
    Error err = {.message = ""};
    prepare(dir);
    run_ranks(dir, faults, status);
    assert_true(WIFSIGNALED(status[0]) || WIFSIGNALED(status[1]));
    int found = load(dir, 3, NULL);
    if (found != 2 && found != 3) fail_msg("killed at calls %d and %d: found %d", at0, at1, found);
    if (at0 < 0 && found != 2) fail_msg("rank 1 was killed at call %d, and yet there is a checkpoint", at1);
    must_save(dir, 2, 4, 4); /* the run continues */
    if (prune(NULL, dir, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(load(dir, 2, NULL), 4);
    assert_int_equal(entries_with_dot(dir), 0);
}

static void ranks_killed_anywhere_leave_the_old_or_the_new(void **unused) {
    (void)unused;
    const char *dir = files_path("kill");
    int calls[2] = {count_calls(dir, 0), count_calls(dir, 1)}, status[2];
    assert_true(calls[0] > 40 && calls[1] >= 8);
    Faults none[2] = {{.at = -1}, {.at = -1}};
    prepare(dir);
    run_ranks(dir, none, status);
    assert_true(status[0] == 0 && status[1] == 0);
    assert_int_equal(load(dir, 2, NULL), 3);
    for (int at = 0; at < calls[0]; at++) kill_ranks(dir, at % 2 ? KILL_AFTER : KILL_BEFORE, at, -1);
    for (int at = 0; at < calls[1]; at++) {
        kill_ranks(dir, KILL_BEFORE, -1, at);
        kill_ranks(dir, KILL_AFTER, -1, at);
    }
    for (int at = 0; at < calls[1]; at++)
        kill_ranks(dir, at % 2 ? KILL_BEFORE : KILL_AFTER, calls[0] / 3 + at, at);
}

/* Writers. */

typedef struct Fleet {
    int count;
    Rank ranks[MAX_RANKS];
    CheckpointWriter *writers[MAX_RANKS];
} Fleet;

static void start_fleet(Fleet *f, int count, const char *dir, const FileOps *ops, int faulty) {
    Error err = {.message = ""};
    f->count = count;
    spread(f->ranks, count);
    for (int i = 0; i < count; i++) {
        WriterSetup setup = {.ops = i == faulty ? ops : NULL,
                             .dir = dir,
                             .keep = {.last = 2},
                             .in_use = -1,
                             .rank = i,
                             .ranks = count};
        setup.staging_bytes = checkpoint_staging_bytes(&f->ranks[i].lists[0], &f->ranks[i].lists[1], NULL);
        if (checkpoint_writer_start(&f->writers[i], &setup, &err) != OK) fail_msg("%s", err.message);
    }
}

static void begin_all(Fleet *f, int64_t step, int number) {
    Error err = {.message = ""};
    fill(f->ranks, f->count, number);
    for (int i = 0; i < f->count; i++) {
        CheckpointSave s = save_of(&f->ranks[i], step);
        if (checkpoint_writer_begin(f->writers[i], &s, &err) != OK) fail_msg("%s", err.message);
    }
    for (int i = 0; i < f->count; i++) checkpoint_writer_copied(f->writers[i]);
    fill(f->ranks, f->count, 77); /* the next update */
}

/* One boundary; returns false if nothing is in flight. */
static bool boundary(Fleet *f) {
    WriterWord combined = {0, ~0u};
    CheckpointBlob blobs[MAX_RANKS];
    int gather = 0;
    for (int i = 0; i < f->count; i++) {
        WriterWord word = checkpoint_writer_word(f->writers[i]);
        combined.any |= word.any;
        combined.all &= word.all;
    }
    for (int i = 0; i < f->count; i++) gather += checkpoint_writer_advance(f->writers[i], combined);
    assert_true(gather == 0 || gather == f->count);
    for (int i = 0; i < f->count && gather > 0; i++) blobs[i] = checkpoint_writer_blob(f->writers[i]);
    for (int i = 0; i < f->count && gather > 0; i++)
        checkpoint_writer_commit(f->writers[i], i == 0 ? blobs : NULL);
    return !checkpoint_writer_idle(f->writers[0]);
}

/* All ranks see the end at the same boundary. Returns the number of boundaries. */
static int wait_all(Fleet *f) {
    int boundaries = 0;
    while (boundary(f)) {
        for (int i = 0; i < f->count; i++) checkpoint_writer_settle(f->writers[i]);
        boundaries++;
    }
    for (int i = 0; i < f->count; i++) assert_true(checkpoint_writer_idle(f->writers[i]));
    return boundaries;
}

static void stop_all(Fleet *f) {
    Error err = {.message = ""};
    for (int i = 0; i < f->count; i++) assert_int_equal(checkpoint_writer_stop(f->writers[i], &err), OK);
    let_go(f->ranks, f->count);
}

static void writers_save_beside_the_training(void **unused) {
    (void)unused;
    for (size_t n = 0; n < RANK_COUNTS; n++) {
        Fleet f;
        SaveReport report;
        Error err;
        int64_t step = 0;
        char name[16];
        snprintf(name, sizeof name, "fleet%d", rank_counts[n]);
        const char *dir = files_path(name);
        start_fleet(&f, rank_counts[n], dir, NULL, -1);
        assert_false(boundary(&f)); /* nothing is in flight */
        for (int i = 1; i <= 3; i++) {
            begin_all(&f, 10 * i, i);
            for (int k = 0; k < i; k++) boundary(&f); /* steps in between */
            assert_true(wait_all(&f) < 10);
            assert_int_equal(load(dir, 3, &step), i);
            assert_int_equal(step, 10 * i);
            for (int r = 0; r < f.count; r++)
                assert_int_equal(checkpoint_writer_wait(f.writers[r], &err), OK);
            assert_true(checkpoint_writer_report(f.writers[0], &report));
            assert_true(report.step == 10 * i && report.bytes > 1000 && report.removed == (i == 3));
        }
        stop_all(&f);
        assert_int_equal(entries_with_dot(dir), 0);
    }
}

/* With a fault on rank `faulty` at call `at` the first save fails on all ranks; the next one succeeds. */
static void fail_fleet(const char *dir, int faulty, int at, const char *cause) {
    Fleet f;
    SaveReport report;
    Error err = {.message = ""};
    Faults faults = {.kind = FAIL, .at = at, .error = ENOSPC};
    FileOps ops = faulty_ops(&faults);
    assert_int_equal(file_remove_tree(dir, &err), OK);
    must_save(dir, 3, 1, 1);
    start_fleet(&f, 3, dir, &ops, faulty);
    begin_all(&f, 2, 2);
    wait_all(&f);
    assert_int_equal(load(dir, 2, NULL), 1);
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(checkpoint_writer_wait(f.writers[i], &err), OK);
        assert_non_null(strstr(err.message, "step 2"));
        assert_non_null(strstr(err.message, i == 0 ? cause : "rank 0 knows why"));
        if (i == 0) assert_non_null(strstr(err.message, strerror(ENOSPC)));
        assert_int_equal(checkpoint_writer_wait(f.writers[i], &err), OK); /* once */
        assert_false(checkpoint_writer_report(f.writers[i], &report));
    }
    assert_int_equal(entries_with_dot(dir), 0);
    begin_all(&f, 3, 3);
    wait_all(&f);
    assert_int_equal(load(dir, 2, NULL), 3);
    stop_all(&f);
    text_free(&faults.trace);
}

static void a_failing_rank_fails_the_save_of_all(void **unused) {
    (void)unused;
    const char *dir = files_path("fleet-fail");
    seed = 5; /* a distribution in which rank 2 holds something of every file */
    for (int at = 0; at < 4; at++) fail_fleet(dir, 2, at, "rank 2: ");
    for (int at = 0; at < 12; at++) fail_fleet(dir, 0, at, "");
}

static void a_save_in_flight_is_given_up(void **unused) {
    (void)unused;
    const char *dir = files_path("fleet-stop");
    Fleet f;
    Error err;
    must_save(dir, 3, 1, 1);
    start_fleet(&f, 3, dir, NULL, -1);
    begin_all(&f, 2, 2);
    boundary(&f);
    stop_all(&f);
    assert_int_equal(load(dir, 2, NULL), 1);
    assert_int_equal(prune(NULL, dir, &err), OK);
    assert_int_equal(entries_with_dot(dir), 0);
}

static int set_up(void **state) {
    log_set_level(LOG_ERROR);
    return files_setup_in_memory(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_and_values_do_not_depend_on_the_ranks),
        cmocka_unit_test(one_process_that_holds_all_writes_the_same),
        cmocka_unit_test(pieces_that_do_not_fit_are_refused),
        cmocka_unit_test(no_byte_of_a_blob_is_free_to_change),
        cmocka_unit_test(damage_is_noticed_by_the_rank_whose_share_it_is),
        cmocka_unit_test(the_newest_that_all_find_good_is_taken),
        cmocka_unit_test(manifests_without_pieces_still_read),
        cmocka_unit_test(pieces_in_a_manifest_must_make_up_the_tensor),
        cmocka_unit_test(a_failure_of_one_rank_is_one_of_the_save),
        cmocka_unit_test(ranks_killed_anywhere_leave_the_old_or_the_new),
        cmocka_unit_test(writers_save_beside_the_training),
        cmocka_unit_test(a_failing_rank_fails_the_save_of_all),
        cmocka_unit_test(a_save_in_flight_is_given_up),
    };
    return cmocka_run_group_tests(tests, set_up, files_teardown);
}

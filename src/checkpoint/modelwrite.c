/* Writing the weights of a model directory, cut into shards where they are large. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/modelfiles.h"

typedef struct Shards {
    int count;
    int *of;       /* [list->count] shard of each tensor */
    int64_t total; /* bytes of tensors */
} Shards;

/* In list order; a shard is closed when the next tensor would take it over the limit. A larger tensor has one to itself. */
static Shards cut(const TensorList *list, uint64_t limit) {
    Shards s = {.count = 1, .of = mem_alloc_array((size_t)list->count, sizeof *s.of)};
    uint64_t used = 0;
    for (int i = 0; i < list->count; i++) {
        uint64_t bytes = tensor_stored_bytes(&list->tensors[i]);
        if (used > 0 && used + bytes > limit) {
            s.count++;
            used = 0;
        }
        used += bytes;
        s.total += (int64_t)bytes;
        s.of[i] = s.count - 1;
    }
    return s;
}

static void shard_name(char out[96], const char *stem, int shard, int count) {
    if (count == 1)
        snprintf(out, 96, "%s.safetensors", stem);
    else
        snprintf(out, 96, "%s-%05d-of-%05d.safetensors", stem, shard + 1, count);
}

static ErrorCode write_shard(const FileOps *ops, const char *dir, const char *name, const TensorList *list, const Shards *s,
                             int shard, ModelFileAdded *added, void *ctx, Error *err) {
    int *order = mem_alloc_array((size_t)list->count, sizeof *order), n = 0;
    SafeSums sums;
    for (int i = 0; i < list->count; i++)
        if (s->of[i] == shard) order[n++] = i;
    char *path = path_join(dir, name);
    ErrorCode code = safe_write(ops, path, list, order, n, &sums, err);
    if (code == OK) {
        added(ctx, name, &sums, order, n);
        free(sums.tensors);
    }
    free(path);
    free(order);
    return code;
}

static void make_index(Text *out, const TensorList *list, const Shards *s, const char *stem) {
    JsonWriter w;
    char name[96];
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_key(&w, "metadata");
    json_begin_object(&w);
    json_key(&w, "total_size");
    json_int(&w, s->total);
    json_end_object(&w);
    json_key(&w, "weight_map");
    json_begin_object(&w);
    for (int i = 0; i < list->count; i++) {
        shard_name(name, stem, s->of[i], s->count);
        json_key(&w, list->tensors[i].name);
        json_string(&w, name);
    }
    json_end_object(&w);
    json_end_object(&w);
    text_puts(out, "\n");
}

static ErrorCode write_index(const FileOps *ops, const char *dir, const char *stem, const TensorList *list, const Shards *s,
                             ModelFileAdded *added, void *ctx, Error *err) {
    Text text = {0};
    char name[96];
    snprintf(name, sizeof name, "%s.safetensors.index.json", stem);
    make_index(&text, list, s, stem);
    char *path = path_join(dir, name);
    ErrorCode code = fileops_put(ops, path, text.data, text.length, err);
    SafeSums sums = {.bytes = text.length, .header = XXH3_64bits(text.data, text.length)};
    if (code == OK) added(ctx, name, &sums, NULL, 0);
    free(path);
    text_free(&text);
    return code;
}

ErrorCode modelfiles_write(const FileOps *ops, const char *dir, const char *stem, const TensorList *list, uint64_t shard_bytes,
                           ModelFileAdded *added, void *ctx, Error *err) {
    Shards s = cut(list, shard_bytes);
    ErrorCode code = OK;
    char name[96];
    for (int i = 0; i < s.count && code == OK; i++) {
        shard_name(name, stem, i, s.count);
        code = write_shard(ops, dir, name, list, &s, i, added, ctx, err);
    }
    if (code == OK && s.count > 1) code = write_index(ops, dir, stem, list, &s, added, ctx, err);
    free(s.of);
    return code;
}

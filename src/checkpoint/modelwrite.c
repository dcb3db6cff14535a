/* Writes the weights of a model directory, divided into files (checkpoint shards, max_shard_size) if large.
 *
 * Everything here depends only on the list's descriptions and the limit: each rank computes the same layout
 * itself, and knows the offsets of its segments without communication.
 *
 *     list        t0  t1  t2  t3  t4      in the order of the model
 *     file[i]      0   0   1   1   2      its shard: cut
 *     at[i]        first byte of its data in that shard: lay_out, from the sorted header
 *     index       tensor --> shard, if there are several: make_index */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/modelfiles.h"

/* In list order; a shard is closed when the next tensor would exceed the limit. A larger tensor gets a shard
 * of its own. The list is in the order of the model, so neighbours end up in one shard. */
static void cut(ModelLayout *l, uint64_t limit) {
    uint64_t used = 0;
    l->file_count = 1;
    for (int i = 0; i < l->list->count; i++) {
        uint64_t bytes = tensor_stored_bytes(&l->list->tensors[i]);
        if (used > 0 && used + bytes > limit) {
            l->file_count++;
            used = 0;
        }
        used += bytes;
        l->file[i] = l->file_count - 1;
    }
}

/* "model-00001-of-00003.safetensors": the only form that transformers recognises. */
static void lay_out(ModelLayout *l, const char *stem, int file) {
    LayoutFile *f = &l->files[file];
    int *order = mem_alloc_array((size_t)l->list->count, sizeof *order), n = 0;
    if (l->file_count == 1)
        snprintf(f->name, sizeof f->name, "%s.safetensors", stem);
    else
        snprintf(f->name, sizeof f->name, "%s-%05d-of-%05d.safetensors", stem, file + 1, l->file_count);
    for (int i = 0; i < l->list->count; i++)
        if (l->file[i] == file) order[n++] = i;
    f->bytes = safe_layout(l->list, order, n, &f->header, l->at);
    free(order);
}

/* In list order; total_size counts the tensors, without headers. */
static void make_index(ModelLayout *l, const char *stem) {
    JsonWriter w;
    int64_t total = 0;
    snprintf(l->index_name, sizeof l->index_name, "%s.safetensors.index.json", stem);
    for (int i = 0; i < l->list->count; i++) total += (int64_t)tensor_stored_bytes(&l->list->tensors[i]);
    json_start(&w, &l->index, 2);
    json_begin_object(&w);
    json_key(&w, "metadata");
    json_begin_object(&w);
    json_key(&w, "total_size");
    json_int(&w, total);
    json_end_object(&w);
    json_key(&w, "weight_map");
    json_begin_object(&w);
    for (int i = 0; i < l->list->count; i++) {
        json_key(&w, l->list->tensors[i].name);
        json_string(&w, l->files[l->file[i]].name);
    }
    json_end_object(&w);
    json_end_object(&w);
    text_puts(&l->index, "\n");
}

/* The list must outlive the layout, which points to it. A single shard has no index, as in transformers. */
void modellayout_make(ModelLayout *l, const TensorList *list, const char *stem, uint64_t shard_bytes) {
    *l = (ModelLayout){.list = list};
    l->file = mem_alloc_array((size_t)list->count, sizeof *l->file);
    l->at = mem_alloc_array((size_t)list->count, sizeof *l->at);
    cut(l, shard_bytes);
    l->files = mem_alloc_array((size_t)l->file_count, sizeof *l->files);
    for (int i = 0; i < l->file_count; i++) lay_out(l, stem, i);
    if (l->file_count > 1) make_index(l, stem);
}

void modellayout_free(ModelLayout *l) {
    for (int i = 0; i < l->file_count; i++) text_free(&l->files[i].header);
    text_free(&l->index);
    free(l->files);
    free(l->file);
    free(l->at);
    *l = (ModelLayout){0};
}

/* One rank makes headers, the full length of each file, and the index, before any rank writes data. Files are
 * synced one by one; after a failure the caller removes the directory. */
ErrorCode modelfiles_create(const FileOps *ops, const char *dir, const ModelLayout *l, Error *err) {
    ErrorCode code = OK;
    for (int i = 0; i < l->file_count && code == OK; i++) {
        char *path = path_join(dir, l->files[i].name);
        code = safe_create(ops, path, &l->files[i].header, l->files[i].bytes, err);
        free(path);
    }
    if (code != OK || l->index.length == 0) return code;
    char *path = path_join(dir, l->index_name);
    code = fileops_put(ops, path, l->index.data, l->index.length, err);
    free(path);
    return code;
}

/* Start of a segment, for writing each file from front to back. Segments are in list order, the tensors of a
 * file in another. Sorted by offset, a rank writes without seeking back, which is faster on disks and network
 * file systems. */
typedef struct Start {
    int file, segment;
    uint64_t at;
} Start;

/* No two segments with elements begin at one offset, so the order is total. */
static int by_offset(const void *a, const void *b) {
    const Start *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Skips empty segments; returns the number of the others. */
static int sort_segments(const ModelLayout *l, Start *starts) {
    int n = 0;
    for (int i = 0; i < tensor_segments(l->list); i++) {
        TensorSegment p = tensor_segment(l->list, i);
        uint64_t each = (uint64_t)safe_type_bits(l->list->tensors[p.tensor].stored) / 8;
        if (p.count > 0)
            starts[n++] = (Start){l->file[p.tensor], i, l->at[p.tensor] + (uint64_t)p.first * each};
    }
    if (n > 0) qsort(starts, (size_t)n, sizeof *starts, by_offset);
    return n;
}

/* sums[p] is the checksum of segment p of the list, as the blob needs it; empty segments keep 0. */
ErrorCode modelfiles_write(const FileOps *ops, const char *dir, const ModelLayout *l, uint64_t *sums,
                           Error *err) {
    Start *starts = mem_alloc_array((size_t)tensor_segments(l->list), sizeof *starts);
    int *segments = mem_alloc_array((size_t)tensor_segments(l->list), sizeof *segments),
        n = sort_segments(l, starts);
    ErrorCode code = OK;
    for (int i = 0; i < n; i++) segments[i] = starts[i].segment;
    for (int first = 0, end; first < n && code == OK; first = end) {
        for (end = first + 1; end < n && starts[end].file == starts[first].file;) end++;
        char *path = path_join(dir, l->files[starts[first].file].name);
        code = safe_write_segments(ops, path, l->list, segments + first, end - first, l->at, sums, err);
        free(path);
    }
    free(starts);
    free(segments);
    return code;
}

/* Writes safetensors: the header first, then segments of tensors through one staging buffer, computing
 * checksums on the way.
 *
 * The layout of a file, and who writes which part. Rank 0 makes the header and the full length. The data is a
 * hole until each rank has written its segments into it:
 *
 *     8 bytes N | N bytes of header, blanks up to a multiple of 8 | tensor, tensor, ...
 *     `-------------------- safe_create -----------------------'    safe_write_segments
 *
 * Tensors are sorted by descending alignment of their types and, among equals, by name. So every tensor
 * begins at a multiple of its element size, without padding, and the order depends only on the
 * descriptions. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/json.h"
#include "checkpoint/convert.h"
#include "checkpoint/safetensors.h"

/* Elements moved at a time: large enough for the full write rate, small compared to any model. */
#define CHUNK ((size_t)1 << 20)

/* Bytes that the disk begins to write at once; 32 MiB made no clear difference (docs/lab/performance.md). */
#define BEHIND ((uint64_t)8 << 20)

typedef struct Writer {
    const FileOps *ops;
    const char *path;
    const TensorList *list;
    int fd;
    XXH3_state_t *hash;
    void *fetched, *converted; /* CHUNK elements of up to 8 bytes */
    uint64_t from, end;        /* bytes that are written to the file, and not yet begun on the disk */
} Writer;

/* CHECK: weft made these shapes, from a configuration that was bounded when it was read. */
int64_t tensor_elements(const TensorDesc *t) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) CHECK(!__builtin_mul_overflow(count, t->shape[i], &count));
    return count;
}

/* Types below a byte are never written. */
static size_t bytes_of(int64_t elements, SafeType type) {
    size_t bytes;
    CHECK(safe_type_bits(type) % 8 == 0 &&
          size_multiply((size_t)elements, (size_t)safe_type_bits(type) / 8, &bytes));
    return bytes;
}

/* In the file, not in memory: the two differ if weights are rounded. */
size_t tensor_stored_bytes(const TensorDesc *t) { return bytes_of(tensor_elements(t), t->stored); }

/* Without a list of segments each tensor is one. */
int tensor_segments(const TensorList *list) {
    return list->segments != NULL ? list->segment_count : list->count;
}

TensorSegment tensor_segment(const TensorList *list, int segment) {
    if (list->segments == NULL) return (TensorSegment){segment, 0, tensor_elements(&list->tensors[segment])};
    /* A segment that extends beyond its tensor would overwrite the next one. */
    TensorSegment p = list->segments[segment];
    CHECK(p.tensor >= 0 && p.tensor < list->count && p.first >= 0 && p.count >= 0);
    int64_t elements = tensor_elements(&list->tensors[p.tensor]);
    CHECK(p.first <= elements && p.count <= elements - p.first);
    return p;
}

size_t tensor_segment_bytes(const TensorList *list, int segment) {
    TensorSegment p = tensor_segment(list, segment);
    return bytes_of(p.count, list->tensors[p.tensor].memory);
}

/* A tensor with its index in the list, for sorting. */
typedef struct Slot {
    const TensorDesc *tensor;
    int index;
} Slot;

static int by_alignment_then_name(const void *a, const void *b) {
    const Slot *x = a, *y = b;
    if (x->tensor->stored != y->tensor->stored) return x->tensor->stored < y->tensor->stored ? -1 : 1;
    return strcmp(x->tensor->name, y->tensor->name);
}

/* qsort passes no context to the comparison, hence slots that carry what is compared. */
static void sort_order(const TensorList *list, int *order, int count) {
    Slot *slots = mem_alloc_array((size_t)count, sizeof *slots);
    for (int i = 0; i < count; i++) slots[i] = (Slot){&list->tensors[order[i]], order[i]};
    if (count > 0) qsort(slots, (size_t)count, sizeof *slots, by_alignment_then_name);
    for (int i = 0; i < count; i++) order[i] = slots[i].index;
    free(slots);
}

static void write_entry(JsonWriter *w, const TensorDesc *t, int64_t begin, int64_t end) {
    json_key(w, t->name);
    json_begin_object(w);
    json_key(w, "dtype");
    json_string(w, safe_type_name(t->stored));
    json_key(w, "shape");
    json_begin_array(w);
    for (int i = 0; i < t->rank; i++) json_int(w, t->shape[i]);
    json_end_array(w);
    json_key(w, "data_offsets");
    json_begin_array(w);
    json_int(w, begin);
    json_int(w, end);
    json_end_array(w);
    json_end_object(w);
}

static void write_entries(Text *out, const TensorList *list, const int *order, int count, uint64_t *at) {
    JsonWriter w;
    uint64_t offset = 0;
    json_start(&w, out, 0);
    json_begin_object(&w);
    json_key(&w, "__metadata__");
    json_begin_object(&w);
    json_key(&w, "format");
    json_string(&w, "pt"); /* transformers requires it */
    json_end_object(&w);
    for (int i = 0; i < count; i++) {
        const TensorDesc *t = &list->tensors[order[i]];
        at[order[i]] = offset;
        offset += tensor_stored_bytes(t);
        write_entry(&w, t, (int64_t)at[order[i]], (int64_t)offset);
    }
    json_end_object(&w);
}

/* N is known only after the JSON is written: its bytes are reserved, and filled in at the end. Returns the
 * size of the whole file. */
uint64_t safe_layout(const TensorList *list, int *order, int count, Text *header, uint64_t *at) {
    size_t start = header->length;
    uint64_t bytes = 0;
    sort_order(list, order, count);
    text_add(header, "\0\0\0\0\0\0\0\0", 8);
    write_entries(header, list, order, count, at);
    /* The data starts at a multiple of 8. Blanks after the closing brace are JSON's white space, and count
     * into N. */
    while ((header->length - start) % 8 != 0) text_puts(header, " ");
    uint64_t length = header->length - start;
    for (int i = 0; i < 8; i++) header->data[start + (size_t)i] = (char)(uint8_t)((length - 8) >> (8 * i));
    for (int i = 0; i < count; i++) {
        at[order[i]] += length;
        bytes += tensor_stored_bytes(&list->tensors[order[i]]);
    }
    return length + bytes;
}

ErrorCode safe_create(const FileOps *ops, const char *path, const Text *header, uint64_t bytes, Error *err) {
    int fd;
    CHECK(header->length >= 8 && bytes >= header->length);
    /* Checked when writing too: nobody could read such a file. */
    if (header->length - 8 > SAFE_MAX_HEADER)
        return error_set(err, ERR_CANTCREATE, "%s: the header would be larger than the format allows", path);
    TRY(fileops_create(ops, path, &fd, err));
    ErrorCode code = fileops_write(ops, fd, path, header->data, header->length, 0, err);
    /* The full length at once, so that a full disk fails now. It may make a sparse file; then a full disk
     * fails when segments are written. */
    if (code == OK) code = fileops_resize(ops, fd, path, bytes, err);
    if (code == OK) return fileops_finish(ops, fd, path, err);
    ops->close(ops->ctx, fd);
    return code;
}

/* The file's bytes for n elements from `offset` in memory on. Only fp32 is converted (weights to bf16);
 * moments and states are stored as they are. */
static ErrorCode take(Writer *w, const TensorDesc *t, int segment, size_t offset, size_t n, const void **data,
                      Error *err) {
    TRY(w->list->fetch(w->list->ctx, segment, offset, bytes_of((int64_t)n, t->memory), w->fetched, err));
    *data = w->fetched;
    if (t->memory == t->stored) return OK;
    CHECK(t->memory == SAFE_F32);
    convert_from_f32(t->stored, w->fetched, w->converted, n);
    *data = w->converted;
    return OK;
}

/* The disk works while the next chunks are copied and hashed, and the sync at the end waits for little. A
 * failure is ignored: the sync reports what matters. */
static void write_behind(Writer *w, uint64_t at, uint64_t bytes) {
    if (at != w->end) w->from = at;
    w->end = at + bytes;
    if (w->end - w->from < BEHIND) return;
    w->ops->write_behind(w->ops->ctx, w->fd, w->from, w->end - w->from);
    w->from = w->end;
}

/* `at`: first byte of the tensor in the file. The checksum is computed from the bytes that go to the file, in
 * the same loop: it does not detect wrong conversions or copies before, but any change after. */
static ErrorCode write_segment(Writer *w, int segment, uint64_t at, uint64_t *sum, Error *err) {
    TensorSegment p = tensor_segment(w->list, segment);
    const TensorDesc *t = &w->list->tensors[p.tensor];
    XXH3_64bits_reset(w->hash);
    at += bytes_of(p.first, t->stored);
    for (size_t done = 0, n; done < (size_t)p.count; done += n) {
        const void *data;
        n = (size_t)p.count - done < CHUNK ? (size_t)p.count - done : CHUNK;
        TRY(take(w, t, segment, bytes_of((int64_t)done, t->memory), n, &data, err));
        size_t bytes = bytes_of((int64_t)n, t->stored);
        XXH3_64bits_update(w->hash, data, bytes);
        TRY(fileops_write(w->ops, w->fd, w->path, data, bytes, at, err));
        write_behind(w, at, bytes);
        at += bytes;
    }
    *sum = XXH3_64bits_digest(w->hash);
    return OK;
}

/* The error gets the tensor's name here; the functions below know only the file. */
static ErrorCode write_all(Writer *w, const int *segments, int count, const uint64_t *at, uint64_t *sums,
                           Error *err) {
    for (int i = 0; i < count; i++) {
        int tensor = tensor_segment(w->list, segments[i]).tensor;
        if (write_segment(w, segments[i], at[tensor], &sums[segments[i]], err) != OK)
            return error_context(err, "tensor %s", w->list->tensors[tensor].name);
    }
    return OK;
}

/* This call has its own descriptor: several ranks have the file open at once, each for its own ranges. */
ErrorCode safe_write_segments(const FileOps *ops, const char *path, const TensorList *list,
                              const int *segments, int count, const uint64_t *at, uint64_t *sums,
                              Error *err) {
    Writer w = {.ops = ops, .path = path, .list = list};
    TRY(fileops_open(ops, path, &w.fd, err));
    w.hash = XXH3_createState();
    CHECK(w.hash != NULL);
    w.fetched = mem_alloc(CHUNK * 8);
    w.converted = mem_alloc(CHUNK * 8);
    ErrorCode code = write_all(&w, segments, count, at, sums, err);
    if (code == OK)
        code = fileops_finish(ops, w.fd, path, err);
    else
        ops->close(ops->ctx, w.fd);
    free(w.fetched);
    free(w.converted);
    XXH3_freeState(w.hash);
    return code;
}

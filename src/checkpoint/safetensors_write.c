/* Writing safetensors: the header first, then the tensors through one staging buffer, with checksums on the way. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/json.h"
#include "checkpoint/convert.h"
#include "checkpoint/safetensors.h"

/* Elements that are moved at a time: large enough for full write rate, small beside any model. */
#define CHUNK ((size_t)1 << 20)

typedef struct Writer {
    const FileOps *ops;
    const char *path;
    const TensorList *list;
    int fd;
    XXH3_state_t *hash;
    void *fetched, *converted; /* CHUNK elements of up to 8 bytes */
    uint64_t written;
} Writer;

int64_t tensor_elements(const TensorDesc *t) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) CHECK(!__builtin_mul_overflow(count, t->shape[i], &count));
    return count;
}

static size_t bytes_of(int64_t elements, SafeType type) {
    size_t bytes;
    CHECK(safe_type_bits(type) % 8 == 0 && size_multiply((size_t)elements, (size_t)safe_type_bits(type) / 8, &bytes));
    return bytes;
}

size_t tensor_stored_bytes(const TensorDesc *t) { return bytes_of(tensor_elements(t), t->stored); }

/* Position in the list and in `order`: what is sorted for the file. */
typedef struct Slot {
    const TensorDesc *tensor;
    int index, position;
} Slot;

static int by_alignment_then_name(const void *a, const void *b) {
    const Slot *x = a, *y = b;
    if (x->tensor->stored != y->tensor->stored) return x->tensor->stored < y->tensor->stored ? -1 : 1;
    return strcmp(x->tensor->name, y->tensor->name);
}

static Slot *sort_slots(const TensorList *list, const int *order, int count) {
    Slot *slots = mem_alloc_array((size_t)count, sizeof *slots);
    for (int i = 0; i < count; i++) slots[i] = (Slot){&list->tensors[order[i]], order[i], i};
    if (count > 0) qsort(slots, (size_t)count, sizeof *slots, by_alignment_then_name);
    return slots;
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

/* Size field and JSON, padded so that the data starts at a multiple of 8. */
static void make_header(Text *out, const Slot *slots, int count) {
    JsonWriter w;
    int64_t offset = 0;
    text_add(out, "\0\0\0\0\0\0\0\0", 8);
    json_start(&w, out, 0);
    json_begin_object(&w);
    json_key(&w, "__metadata__");
    json_begin_object(&w);
    json_key(&w, "format");
    json_string(&w, "pt"); /* transformers insists on it */
    json_end_object(&w);
    for (int i = 0; i < count; i++) {
        int64_t end = offset + (int64_t)tensor_stored_bytes(slots[i].tensor);
        write_entry(&w, slots[i].tensor, offset, end);
        offset = end;
    }
    json_end_object(&w);
    while (out->length % 8 != 0) text_puts(out, " ");
    uint64_t size = out->length - 8;
    for (int i = 0; i < 8; i++) out->data[i] = (char)(uint8_t)(size >> (8 * i));
}

static ErrorCode put(Writer *w, const void *data, size_t bytes, Error *err) {
    XXH3_64bits_update(w->hash, data, bytes);
    w->written += bytes;
    return fileops_write(w->ops, w->fd, w->path, data, bytes, err);
}

static ErrorCode write_tensor(Writer *w, const Slot *slot, uint64_t *sum, Error *err) {
    const TensorDesc *t = slot->tensor;
    int64_t left = tensor_elements(t);
    size_t offset = 0;
    XXH3_64bits_reset(w->hash);
    while (left > 0) {
        size_t n = left < (int64_t)CHUNK ? (size_t)left : CHUNK, bytes = bytes_of((int64_t)n, t->memory);
        const void *data = w->fetched;
        TRY(w->list->fetch(w->list->ctx, slot->index, offset, bytes, w->fetched, err));
        if (t->memory != t->stored) {
            CHECK(t->memory == SAFE_F32);
            convert_from_f32(t->stored, w->fetched, w->converted, n);
            data = w->converted;
        }
        TRY(put(w, data, bytes_of((int64_t)n, t->stored), err));
        offset += bytes;
        left -= (int64_t)n;
    }
    *sum = XXH3_64bits_digest(w->hash);
    return OK;
}

static ErrorCode write_all(Writer *w, const Slot *slots, int count, SafeSums *sums, Error *err) {
    Text header = {0};
    make_header(&header, slots, count);
    XXH3_64bits_reset(w->hash);
    ErrorCode code = header.length - 8 <= SAFE_MAX_HEADER
                         ? put(w, header.data, header.length, err)
                         : error_set(err, ERR_CANTCREATE, "%s: the header would be larger than the format allows", w->path);
    text_free(&header);
    sums->header = XXH3_64bits_digest(w->hash);
    for (int i = 0; i < count && code == OK; i++) {
        code = write_tensor(w, &slots[i], &sums->tensors[slots[i].position], err);
        if (code != OK) error_context(err, "tensor %s", slots[i].tensor->name);
    }
    sums->bytes = w->written;
    return code;
}

ErrorCode safe_write(const FileOps *ops, const char *path, const TensorList *list, const int *order, int count, SafeSums *sums,
                     Error *err) {
    Writer w = {.ops = ops, .path = path, .list = list};
    *sums = (SafeSums){0};
    TRY(fileops_create(ops, path, &w.fd, err));
    sums->tensors = mem_alloc_array((size_t)count, sizeof *sums->tensors);
    w.hash = XXH3_createState();
    CHECK(w.hash != NULL);
    w.fetched = mem_alloc(CHUNK * 8);
    w.converted = mem_alloc(CHUNK * 8);
    Slot *slots = sort_slots(list, order, count);
    ErrorCode code = write_all(&w, slots, count, sums, err);
    if (code == OK)
        code = fileops_finish(ops, w.fd, path, err);
    else
        ops->close(ops->ctx, w.fd);
    free(slots);
    free(w.fetched);
    free(w.converted);
    XXH3_freeState(w.hash);
    if (code != OK) {
        free(sums->tensors);
        *sums = (SafeSums){0};
    }
    return code;
}

/* The blobs that ranks pass to rank 0 when a save is written, and the check that they cover every element of
 * every tensor exactly once. Blobs are checked like files: another rank may run another build.
 *
 * Order: blobs are read rank by rank, then all segments are sorted by offset, then each tensor is walked from
 * its first element to its last. A missing or doubled element shows as the first offset that the walk does
 * not find; the error names the elements and the ranks. It is ERR_INTERNAL, since weft alone decides who
 * writes what (program/partition.c).
 *
 * A blob, in words of 8 bytes, little-endian; the last word is hash64 of all before it:
 *
 *     segments  MAGIC | 1 | step | digest of the layout | n | n times: list, tensor, first, count, checksum |
 *     failure   MAGIC | 2 | code | bytes of the message | message, NULs up to a whole word | */
#include "checkpoint/segments.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"

#define MAGIC UINT64_C(0x626f6c6274666577) /* "weftblob" */
enum { KIND_SEGMENTS = 1, KIND_FAILURE = 2, WORD = 8, SEGMENT_WORDS = 5, HEAD_WORDS = 5 };

/* Layout. */

/* Headers hold names, shapes, types and offsets: equal headers mean equal files, except for the values. */
static uint64_t digest_of(const SaveLayout *l) {
    Text all = {0};
    for (int i = 0; i < l->count; i++)
        for (int f = 0; f < l->lists[i].file_count; f++) {
            const LayoutFile *file = &l->lists[i].files[f];
            text_add(&all, file->name, sizeof file->name);
            text_add(&all, file->header.data, file->header.length);
        }
    uint64_t digest = hash64(all.data, all.length);
    text_free(&all);
    return digest;
}

void savelayout_make(SaveLayout *l, const CheckpointSave *save) {
    *l = (SaveLayout){.step = save->step};
    /* Only model files are sharded, since other programs read them. Only weft reads the optimizer's file; an
     * average's shards would need another index name; and PEFT knows no shards of an adapter. */
    uint64_t shard = save->adapter ? UINT64_MAX : save->shard_bytes ? save->shard_bytes : SHARD_BYTES;
    modellayout_make(&l->lists[l->count++], save->model, save->adapter ? "adapter_model" : "model", shard);
    if (save->optimizer) modellayout_make(&l->lists[l->count++], save->optimizer, "optimizer", UINT64_MAX);
    if (save->average) modellayout_make(&l->lists[l->count++], save->average, "model.ema", UINT64_MAX);
    l->digest = digest_of(l);
}

void savelayout_free(SaveLayout *l) {
    for (int i = 0; i < l->count; i++) modellayout_free(&l->lists[i]);
    *l = (SaveLayout){0};
}

/* Writing blobs. */

/* Byte by byte, independent of this machine's byte order. */
static void put(Text *blob, uint64_t value) {
    char bytes[WORD];
    for (int i = 0; i < WORD; i++) bytes[i] = (char)(uint8_t)(value >> (8 * i));
    text_add(blob, bytes, WORD);
}

static void put_checksum(Text *blob, size_t start) {
    put(blob, hash64(blob->data + start, blob->length - start));
}

/* Empty segments are skipped on both sides; a rank may hold nothing of a tensor. */
static uint64_t count_segments(const SaveLayout *l) {
    uint64_t count = 0;
    for (int i = 0; i < l->count; i++)
        for (int p = 0; p < tensor_segments(l->lists[i].list); p++)
            count += tensor_segment(l->lists[i].list, p).count > 0;
    return count;
}

/* Appends to the text; the checksum covers this blob only. */
void blob_write(Text *blob, const SaveLayout *l, uint64_t *const sums[SAVE_LISTS]) {
    size_t start = blob->length;
    put(blob, MAGIC);
    put(blob, KIND_SEGMENTS);
    put(blob, (uint64_t)l->step);
    put(blob, l->digest);
    put(blob, count_segments(l));
    for (int i = 0; i < l->count; i++)
        for (int p = 0; p < tensor_segments(l->lists[i].list); p++) {
            TensorSegment segment = tensor_segment(l->lists[i].list, p);
            if (segment.count == 0) continue;
            put(blob, (uint64_t)i);
            put(blob, (uint64_t)segment.tensor);
            put(blob, (uint64_t)segment.first);
            put(blob, (uint64_t)segment.count);
            put(blob, sums[i][p]);
        }
    put_checksum(blob, start);
}

/* A message is padded with NULs to whole words; a separate word holds its length. */
void checkpoint_blob_failure(const Error *failure, Text *blob) {
    size_t start = blob->length, length = strlen(failure->message);
    put(blob, MAGIC);
    put(blob, KIND_FAILURE);
    put(blob, (uint64_t)failure->code);
    put(blob, length);
    text_add(blob, failure->message, length);
    text_add(blob, "\0\0\0\0\0\0\0", (WORD - length % WORD) % WORD);
    put_checksum(blob, start);
}

/* Reading blobs. */

static uint64_t word(const CheckpointBlob *blob, size_t at) {
    return little_endian(blob->data + at * WORD, WORD);
}

static ErrorCode bad_blob(int rank, const char *what, Error *err) {
    return error_set(err, ERR_DATA, "what rank %d reports of its part %s", rank, what);
}

/* Checks the checksum and that the length is an integral number of words. Returns the number of words without
 * the checksum, 0 for an invalid blob. */
static size_t words_of(const CheckpointBlob *blob) {
    size_t words = blob->length / WORD;
    if (blob->length % WORD != 0 || words < HEAD_WORDS) return 0;
    if (word(blob, 0) != MAGIC || word(blob, words - 1) != hash64(blob->data, (words - 1) * WORD)) return 0;
    return words - 1;
}

/* The rank's message and code become those of the save. */
static ErrorCode failure_of(const CheckpointBlob *blob, size_t words, int rank, int ranks, Error *err) {
    uint64_t code = word(blob, 2), length = word(blob, 3);
    char shown[sizeof err->message];
    if (code == OK || code > ERR_CONFIG || length == 0 || length > (words - 4) * WORD)
        return bad_blob(rank, "is malformed", err);
    error_escape(shown, sizeof shown, blob->data + 4 * WORD, length);
    if (ranks == 1) return error_set(err, (ErrorCode)code, "%s", shown);
    return error_set(err, (ErrorCode)code, "rank %d: %s", rank, shown);
}

/* The segment whose words begin at `at`. Checked as unsigned, before any of it becomes an index; `count >
 * elements - first` cannot overflow. */
static ErrorCode read_segment(SavedSegment *p, const SaveLayout *l, const CheckpointBlob *blob, size_t at,
                              int rank, Error *err) {
    uint64_t list = word(blob, at), tensor = word(blob, at + 1), first = word(blob, at + 2),
             count = word(blob, at + 3);
    if (list >= (uint64_t)l->count || tensor >= (uint64_t)l->lists[list].list->count)
        return bad_blob(rank, "names a tensor that is not there", err);
    uint64_t elements = (uint64_t)tensor_elements(&l->lists[list].list->tensors[tensor]);
    if (count == 0 || first > elements || count > elements - first)
        return bad_blob(rank, "names elements that are not there", err);
    *p = (SavedSegment){(int)list, (int)tensor, (int64_t)first, (int64_t)count, word(blob, at + 4), rank};
    return OK;
}

static ErrorCode read_segments(SavedSegments *all, const SaveLayout *l, const CheckpointBlob *blob,
                               size_t words, int rank, Error *err) {
    if (word(blob, 2) != (uint64_t)l->step) return bad_blob(rank, "is of another step", err);
    if (word(blob, 3) != l->digest) return bad_blob(rank, "is of other tensors", err);
    /* The count word and the length must agree: otherwise a blob truncated at a segment could pass its own
     * check. */
    size_t count = (words - HEAD_WORDS) / SEGMENT_WORDS;
    if (words != HEAD_WORDS + count * SEGMENT_WORDS || word(blob, 4) != count)
        return bad_blob(rank, "is malformed", err);
    all->items = mem_grow(all->items, (all->count + count) * sizeof *all->items);
    for (size_t i = 0; i < count; i++)
        TRY(read_segment(&all->items[all->count++], l, blob, HEAD_WORDS + i * SEGMENT_WORDS, rank, err));
    return OK;
}

/* The checksum comes first: no word of a damaged blob is trusted. */
static ErrorCode read_blob(SavedSegments *all, const SaveLayout *l, const CheckpointBlob *blob, int rank,
                           int ranks, Error *err) {
    size_t words = words_of(blob);
    if (words == 0) return bad_blob(rank, "is damaged", err);
    if (word(blob, 1) == KIND_FAILURE) return failure_of(blob, words, rank, ranks, err);
    if (word(blob, 1) != KIND_SEGMENTS || words < HEAD_WORDS) return bad_blob(rank, "is malformed", err);
    return read_segments(all, l, blob, words, rank, err);
}

/* Coverage. */

static int by_offset(const void *a, const void *b) {
    const SavedSegment *x = a, *y = b;
    if (x->list != y->list) return x->list < y->list ? -1 : 1;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* Elements count from 0, and `end` is exclusive. */
static ErrorCode not_once(const TensorDesc *t, int64_t first, int64_t end, const char *what, Error *err) {
    return error_set(err, ERR_INTERNAL, "tensor %s: elements %" PRId64 " to %" PRId64 " were written by %s",
                     t->name, first, end - 1, what);
}

/* The segments of this tensor start at *next, and end where the next tensor's begin; advances *next past
 * them. */
static ErrorCode check_tensor(const SavedSegments *all, size_t *next, int list, int tensor,
                              const TensorDesc *t, Error *err) {
    int64_t covered = 0, elements = tensor_elements(t);
    for (; *next < all->count; ++*next) {
        const SavedSegment *p = &all->items[*next];
        if (p->list != list || p->tensor != tensor) break;
        if (p->first > covered) return not_once(t, covered, p->first, "no rank", err);
        if (p->first < covered) {
            char who[64];
            snprintf(who, sizeof who, "rank %d and rank %d", all->items[*next - 1].rank, p->rank);
            return not_once(t, p->first, covered, who, err);
        }
        covered += p->count;
    }
    return covered == elements ? OK : not_once(t, covered, elements, "no rank", err);
}

static ErrorCode check_coverage(const SavedSegments *all, const SaveLayout *l, Error *err) {
    size_t next = 0;
    for (int i = 0; i < l->count; i++)
        for (int t = 0; t < l->lists[i].list->count; t++)
            TRY(check_tensor(all, &next, i, t, &l->lists[i].list->tensors[t], err));
    return OK;
}

/* On success the caller owns the segments, sorted by offset; after a failure there are none. The failure of
 * the first failed rank is reported. */
ErrorCode segments_collect(SavedSegments *all, const SaveLayout *l, const CheckpointBlob *blobs, int ranks,
                           Error *err) {
    ErrorCode code = OK;
    *all = (SavedSegments){0};
    for (int i = 0; i < ranks && code == OK; i++) code = read_blob(all, l, &blobs[i], i, ranks, err);
    if (code == OK && all->count > 0) qsort(all->items, all->count, sizeof *all->items, by_offset);
    if (code == OK) code = check_coverage(all, l, err);
    if (code != OK) segments_free(all);
    return code;
}

void segments_free(SavedSegments *all) {
    free(all->items);
    *all = (SavedSegments){0};
}

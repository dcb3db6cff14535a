/* Fuzzes what one rank reports of its part of a checkpoint, alongside a correct rank. The mutator corrects
 * the checksum. An accepted report completes every tensor: each element once, with the other rank's where
 * they are. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "checkpoint/segments.h"
#include "fuzz.h"

enum { PER_BYTE = 16, FIXED = 1 << 16, STEP = 7 };

static const TensorDesc model_tensors[] = {{"a", SAFE_F32, SAFE_BF16, 2, {3, 4}},
                                           {"b", SAFE_F32, SAFE_F32, 1, {5}}};
static const TensorDesc moment_tensors[] = {{"m.a", SAFE_F32, SAFE_F32, 2, {3, 4}},
                                            {"m.b", SAFE_F32, SAFE_F32, 1, {5}}};

/* Rank 0 has the first elements of each "a"; rank 1 has the rest. */
static const TensorSegment held[] = {{0, 0, 5}};
static const TensorList lists[2] = {
    {.count = 2, .tensors = model_tensors, .segment_count = 1, .segments = held},
    {.count = 2, .tensors = moment_tensors, .segment_count = 1, .segments = held}};

static void check_pieces(const SavedSegments *all) {
    bool covered[2][2][12] = {{{false}}};
    int count = 0;
    for (size_t i = 0; i < all->count; i++) {
        const SavedSegment *p = &all->items[i];
        REQUIRE(p->list >= 0 && p->list < 2 && p->tensor >= 0 && p->tensor < 2 && p->first >= 0 &&
                p->count > 0);
        for (int64_t k = p->first; k < p->first + p->count; k++) {
            REQUIRE(k < tensor_elements(&lists[p->list].tensors[p->tensor]) &&
                    !covered[p->list][p->tensor][k]);
            REQUIRE((p->rank == 0) == (p->tensor == 0 && k < 5));
            covered[p->list][p->tensor][k] = true;
            count++;
        }
    }
    REQUIRE(count == 2 * (12 + 5));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static SaveLayout layout;
    static Text first;
    Error err = {.message = ""};
    SavedSegments all;
    uint64_t one = 1;
    uint64_t *const sums[SAVE_LISTS] = {&one, &one};
    CheckpointSave save = {.step = STEP, .model = &lists[0], .optimizer = &lists[1]};
    if (layout.count == 0) {
        savelayout_make(&layout, &save);
        blob_write(&first, &layout, sums);
    }
    char *copy = mem_alloc(size);
    if (size > 0) memcpy(copy, data, size);
    CheckpointBlob blobs[2] = {{first.data, first.length}, {copy, size}};
    fuzz_memory_start();
    ErrorCode code = segments_collect(&all, &layout, blobs, 2, &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    free(copy);
    /* Ranks that disagree about who has what are a bug of weft, and so may be another rank's report. */
    if (code == ERR_INTERNAL)
        REQUIRE(err.code == code &&
                (strstr(err.message, "were written by") || strncmp(err.message, "rank 1: ", 8) == 0));
    if (code != ERR_INTERNAL && fuzz_ok(code, &err)) check_pieces(&all);
    segments_free(&all);
    return 0;
}

#ifdef WEFT_FUZZ

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    if (seed % 16 == 0 || size < 16 || max_size < 16) return LLVMFuzzerMutate(data, size, max_size);
    size_t body = LLVMFuzzerMutate(data, size - 8, max_size - 8) / 8 * 8;
    uint64_t sum = hash64(data, body);
    for (int i = 0; i < 8; i++) data[body + (size_t)i] = (uint8_t)(sum >> (8 * i));
    return body + 8;
}

#endif

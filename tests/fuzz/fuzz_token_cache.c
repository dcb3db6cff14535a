/* Fuzzes a token cache: one shard, followed by a second one unless the first is marked as the last. An
 * accepted one can be read completely: ids are below the vocabulary, documents begin where others end, and
 * windows add up. Checksums must detect damage, so the mutator corrects them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/stream.h"
#include "fuzz.h"

enum { PER_BYTE = 4, FIXED = 1 << 16, CONTEXT = 7, MOST_TOKENS = 1 << 16 };

/* Length of the first shard; everything if it is unknown, or if nothing follows. */
static size_t part_length(const uint8_t *data, size_t size) {
    TokenHeader h;
    TokenLayout layout;
    if (size < sizeof h) return size;
    memcpy(&h, data, sizeof h);
    return !h.last && token_layout(&h, &layout) && layout.file_bytes < size ? (size_t)layout.file_bytes
                                                                            : size;
}

static void check_tokens(const TokenCache *cache, uint64_t vocabulary, Error *err) {
    uint64_t tokens = token_cache_tokens(cache), documents = 0;
    int32_t *ids = mem_alloc_array((size_t)tokens + 1, sizeof *ids),
            *starts = mem_alloc_array((size_t)tokens + 1, sizeof *starts);
    bool intact = fuzz_ok(token_cache_verify(cache, err), err);
    bool read = fuzz_ok(token_cache_read(cache, 0, tokens, ids, starts, err), err);
    REQUIRE(intact == read);
    for (uint64_t i = 0; read && i < tokens; i++) {
        REQUIRE(ids[i] >= 0 && (uint64_t)ids[i] < vocabulary);
        REQUIRE(starts[i] == 0 || starts[i] == 1);
        documents += starts[i];
        uint64_t end = token_cache_document_end(cache, i);
        REQUIRE(end >= i && end <= tokens);
        REQUIRE(i == 0 || !starts[i] || token_cache_document_end(cache, i) == i);
    }
    if (read && tokens > 0) REQUIRE(documents >= 1 && documents <= token_cache_documents(cache) + 1);
    free(ids);
    free(starts);
}

static void check_stream(const TokenStream *s, Error *err) {
    int32_t inputs[CONTEXT], targets[CONTEXT], positions[CONTEXT], first_key[CONTEXT];
    SampleRow row = {inputs, targets, positions, first_key, 0};
    uint64_t windows = stream_windows(s, CONTEXT);
    int64_t valid = 0;
    for (uint64_t w = 0; w < windows; w++) {
        if (!fuzz_ok(stream_window(s, CONTEXT, w, w % 2, &row, &valid, err), err)) return;
        for (int t = 0; t < CONTEXT; t++)
            REQUIRE(positions[t] >= 0 && first_key[t] >= 0 && first_key[t] <= t);
    }
    REQUIRE(valid >= 0 && (uint64_t)valid <= (s->tokens ? s->tokens - 1 : 0));
}

static void check_streams(const TokenCache *cache, Error *err) {
    TokenStream whole, train, validation;
    stream_whole(&whole, cache);
    check_stream(&whole, err);
    stream_split(&train, &validation, cache, 0.3, false);
    REQUIRE(train.tokens + validation.tokens == whole.tokens);
    check_stream(&train, err);
    check_stream(&validation, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    TokenHeader header = {.vocabulary = 1};
    TokenCache *cache = NULL;
    size_t first = part_length(data, size);
    const char *second = fuzz_file("part-00001.tok", data + first, size - first);
    if (first == size) REQUIRE(unlink(second) == 0);
    fuzz_file("part-00000.tok", data, first);
    if (size >= sizeof header) memcpy(&header, data, sizeof header);
    /* No tokenizer has more entries; a cache with more belongs to none. */
    uint64_t vocabulary = header.vocabulary <= INT32_MAX ? header.vocabulary : INT32_MAX;
    fuzz_memory_start();
    bool good = fuzz_ok(token_cache_open(&cache, fuzz_directory(), header.key, vocabulary, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    REQUIRE(good == (cache != NULL));
    if (good && token_cache_tokens(cache) <= MOST_TOKENS) {
        REQUIRE(token_cache_last_shard(cache));
        check_tokens(cache, vocabulary, &err);
        check_streams(cache, &err);
    }
    token_cache_close(cache);
    return 0;
}

#ifdef WEFT_FUZZ

/* Corrects the checksums of the shard at `data`, wherever its counts place them. */
static void seal(uint8_t *data, size_t size) {
    TokenHeader h;
    TokenLayout layout;
    if (size < TOKEN_HEADER_BYTES) return;
    memcpy(&h, data, sizeof h);
    if (token_layout(&h, &layout) && layout.file_bytes <= size) {
        for (uint64_t b = 0; b < layout.blocks; b++) {
            uint64_t at = b * TOKEN_BLOCK_BYTES, left = layout.ids_bytes - at;
            uint64_t sum = hash64(data + TOKEN_HEADER_BYTES + at,
                                  (size_t)(left < TOKEN_BLOCK_BYTES ? left : TOKEN_BLOCK_BYTES));
            memcpy(data + layout.sums_at + 8 * b, &sum, sizeof sum);
        }
        h.index_checksum = hash64(data + layout.ends_at, (size_t)(layout.file_bytes - layout.ends_at));
    }
    h.header_checksum = hash64(&h, offsetof(TokenHeader, header_checksum));
    memcpy(data, &h, sizeof h);
}

/* Changes one count of the header a little, or makes it large. */
static void change_count(uint8_t *data, unsigned seed) {
    size_t field = offsetof(TokenHeader, vocabulary) / 8 + seed / 4 % 13;
    uint64_t value;
    memcpy(&value, data + 8 * field, sizeof value);
    switch (seed % 4) {
    case 0: value += 1; break;
    case 1: value -= 1; break;
    case 2: value = (uint64_t)1 << (seed >> 8) % 64; break;
    default: value = (seed >> 8) % 100; break;
    }
    memcpy(data + 8 * field, &value, sizeof value);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    if (size < TOKEN_HEADER_BYTES || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
    /* The rest of the header's page is zeros, which are not worth mutating. */
    if (seed % 2)
        change_count(data, seed >> 4);
    else
        size = TOKEN_HEADER_BYTES + LLVMFuzzerMutate(data + TOKEN_HEADER_BYTES, size - TOKEN_HEADER_BYTES,
                                                     max_size - TOKEN_HEADER_BYTES);
    size_t first = part_length(data, size);
    seal(data, first);
    seal(data + first, size - first);
    return size;
}

#endif

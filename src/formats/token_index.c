/* Layout, little-endian and without padding:
 *
 *     "MMIDIDX\0\0" | u64 version 1 | u8 type | u64 S | u64 D
 *     i32 [S] lengths of sequences, in ids | i64 [S] their offsets in the .bin, in bytes
 *     i64 [D] first sequences of documents, and S at the end | i8 [S] modes, of multimodal data only
 *
 * Document k is sequences [first[k], first[k + 1]). */
#include "formats/token_index.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/text.h"
#include "formats/stored_file.h"

enum { HEADER = 34 };
static const char magic[9] = "MMIDIDX\0";

struct TokenIndex {
    StoredFile file;
    const unsigned char *bytes; /* mapped */
    TokenType type;
    unsigned width;
    uint64_t sequences, documents;
    const unsigned char *lengths, *offsets, *firsts;
};

bool token_index_is(const char *path) {
    char head[sizeof magic];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool good = fd >= 0 && pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head &&
                memcmp(head, magic, sizeof magic) == 0;
    if (fd >= 0) close(fd);
    return good;
}

char *token_index_path(const char *path) {
    size_t length = strlen(path);
    if (length < 4 || strcmp(path + length - 4, ".bin") != 0) return NULL;
    char *index = mem_strdup(path);
    memcpy(index + length - 3, "idx", 3);
    if (token_index_is(index)) return index;
    free(index);
    return NULL;
}

static uint64_t length_of(const TokenIndex *x, uint64_t s) { return little_endian(x->lengths + 4 * s, 4); }
static uint64_t first_of(const TokenIndex *x, uint64_t k) { return little_endian(x->firsts + 8 * k, 8); }

/* Ids in front of a sequence; of the one behind the last, all. */
static uint64_t token_of(const TokenIndex *x, uint64_t s) {
    if (s == 0) return 0;
    return little_endian(x->offsets + 8 * (s - 1), 8) / x->width + length_of(x, s - 1);
}

static const char *read_type(TokenIndex *x) {
    switch (x->bytes[17]) {
    case 8: x->type = TOKEN_UINT16; break;
    case 4: x->type = TOKEN_INT32; break;
    default: return "its ids are neither uint16 nor int32";
    }
    x->width = x->type == TOKEN_UINT16 ? 2 : 4;
    return NULL;
}

/* The size of the file follows from its counts, which are compared before they are used. */
static const char *read_layout(TokenIndex *x) {
    const unsigned char *bytes = x->bytes;
    uint64_t size = x->file.size, s = little_endian(bytes + 18, 8), d = little_endian(bytes + 26, 8);
    if (little_endian(bytes + 9, 8) != 1) return "it has an unknown version";
    if (s > size / 12 || d > size / 8 || d == 0) return "it has more entries than bytes";
    uint64_t plain = HEADER + 12 * s + 8 * d;
    if (size != plain && size != plain + s) return "its size does not fit its counts";
    x->sequences = s;
    x->documents = d - 1;
    x->lengths = bytes + HEADER;
    x->offsets = x->lengths + 4 * s;
    x->firsts = x->offsets + 8 * s;
    return NULL;
}

static const char *check_sequences(const TokenIndex *x, uint64_t bytes) {
    uint64_t at = 0;
    for (uint64_t s = 0; s < x->sequences; s++) {
        uint64_t length = length_of(x, s);
        if (length > INT32_MAX) return "a sequence has a negative length";
        if (little_endian(x->offsets + 8 * s, 8) != at)
            return "its sequences do not follow each other (part of a data set, or a merged one)";
        if (length > (bytes - at) / x->width) return "its sequences are longer than the .bin";
        at += length * x->width;
    }
    return at == bytes ? NULL : "its sequences are shorter than the .bin";
}

static const char *check_documents(const TokenIndex *x) {
    if (first_of(x, 0) != 0 || first_of(x, x->documents) != x->sequences)
        return "its documents do not cover its sequences";
    for (uint64_t k = 0; k < x->documents; k++)
        if (first_of(x, k) > first_of(x, k + 1)) return "its documents are not in order";
    return NULL;
}

static const char *read_index(TokenIndex *x, uint64_t bytes) {
    if (memcmp(x->bytes, magic, sizeof magic) != 0) return "it does not begin as one";
    const char *wrong = read_type(x);
    if (!wrong) wrong = read_layout(x);
    if (!wrong) wrong = check_sequences(x, bytes);
    return wrong ? wrong : check_documents(x);
}

/* Mapped, since it may have a gigabyte, and is read at few places. */
static const char *map_index(TokenIndex *x) {
    if (x->file.size < HEADER) return "it is truncated";
    void *at = mmap(NULL, (size_t)x->file.size, PROT_READ, MAP_PRIVATE, x->file.fd, 0);
    if (at == MAP_FAILED) return "it cannot be mapped into memory";
    x->bytes = at;
    return NULL;
}

ErrorCode token_index_open(TokenIndex **out, const char *path, uint64_t bytes, Error *err) {
    StoredFile file;
    *out = NULL;
    TRY(stored_open(&file, path, err));
    TokenIndex *x = mem_alloc(sizeof *x);
    x->file = file;
    const char *wrong = map_index(x);
    if (!wrong) wrong = read_index(x, bytes);
    *out = wrong ? NULL : x;
    if (!wrong) return OK;
    token_index_close(x);
    return error_set(err, ERR_DATA, "%s: an index of Megatron that weft cannot use: %s", path, wrong);
}

void token_index_close(TokenIndex *x) {
    if (!x) return;
    if (x->bytes) munmap((void *)(uintptr_t)x->bytes, (size_t)x->file.size);
    stored_close(&x->file);
    free(x);
}

TokenType token_index_type(const TokenIndex *x) { return x->type; }

/* Documents without ids have the end of the one before. */
uint64_t token_index_end(const TokenIndex *x, uint64_t token) {
    uint64_t low = 1, high = x->documents;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (token_of(x, first_of(x, middle)) > token)
            high = middle;
        else
            low = middle + 1;
    }
    return token_of(x, first_of(x, low));
}

/* Fuzzes a safetensors file. An accepted one covers the data exactly, and reads back the same after
 * writing. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/text.h"
#include "checkpoint/modelfiles.h"
#include "fuzz.h"

/* A tensor entry takes about 200 bytes, from at least six bytes of header; cJSON's nodes take 64 bytes for
 * every two. */
enum { PER_BYTE = 128, FIXED = 1 << 16 };

static int memory_file(const uint8_t *data, size_t size) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    return fd;
}

static void check_tensors(const SafeFile *f, const uint8_t *file, size_t size, Error *err) {
    uint64_t covered = 0;
    REQUIRE(f->data_start + f->data_bytes == size);
    for (size_t i = 0; i < f->count; i++) {
        const SafeTensor *t = &f->tensors[i];
        size_t bytes = (size_t)(t->end - t->begin);
        REQUIRE(i == 0 || strcmp(f->tensors[i - 1].name, t->name) < 0);
        REQUIRE(safe_find(f, t->name) == t);
        REQUIRE(t->begin <= t->end && t->end <= f->data_bytes && t->rank <= SAFE_MAX_RANK);
        REQUIRE((unsigned __int128)t->elements * (unsigned)safe_type_bits(t->type) ==
                (unsigned __int128)bytes * 8);
        char *host = mem_alloc(bytes + 1);
        REQUIRE(safe_read(f, t, 0, host, bytes, err) == OK);
        REQUIRE(memcmp(host, file + f->data_start + t->begin, bytes) == 0);
        free(host);
        covered += bytes;
    }
    REQUIRE(covered == f->data_bytes);
}

typedef struct Source {
    const SafeFile *file;
    const SafeTensor **tensors;
} Source;

static ErrorCode fetch(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    const Source *s = ctx;
    return safe_read(s->file, s->tensors[index], offset, host, bytes, err);
}

/* The writer supports whole bytes, four dimensions, and sizes of tensors that fit in memory. */
static bool can_write(const SafeTensor *t) {
    bool fits = t->rank <= TENSOR_MAX_RANK && safe_type_bits(t->type) % 8 == 0;
    for (int d = 0; d < t->rank; d++) fits = fits && t->shape[d] <= INT32_MAX;
    return fits;
}

static int describe(const SafeFile *f, TensorDesc *descriptions, Source *source, int *order) {
    int count = 0;
    for (size_t i = 0; i < f->count; i++) {
        const SafeTensor *t = &f->tensors[i];
        if (!can_write(t)) continue;
        TensorDesc *d = &descriptions[count];
        *d = (TensorDesc){.name = t->name, .memory = t->type, .stored = t->type, .rank = t->rank};
        for (int k = 0; k < t->rank; k++) d->shape[k] = (int64_t)t->shape[k];
        source->tensors[count] = t;
        order[count] = count;
        count++;
    }
    return count;
}

static void compare(const SafeFile *a, const SafeFile *b, const Source *source, int count, Error *err) {
    REQUIRE(b->count == (size_t)count);
    for (int i = 0; i < count; i++) {
        const SafeTensor *x = source->tensors[i], *y = safe_find(b, x->name);
        REQUIRE(y && x->type == y->type && x->rank == y->rank &&
                memcmp(x->shape, y->shape, sizeof x->shape) == 0);
        size_t bytes = (size_t)(x->end - x->begin);
        char *first = mem_alloc(bytes + 1), *second = mem_alloc(bytes + 1);
        REQUIRE(safe_read(a, x, 0, first, bytes, err) == OK && safe_read(b, y, 0, second, bytes, err) == OK);
        REQUIRE(memcmp(first, second, bytes) == 0);
        free(first);
        free(second);
    }
}

static void check_round_trip(const SafeFile *f, Error *err) {
    TensorDesc *descriptions = mem_alloc_array(f->count + 1, sizeof *descriptions);
    Source source = {f, mem_alloc_array(f->count + 1, sizeof *source.tensors)};
    int *order = mem_alloc_array(f->count + 1, sizeof *order);
    int count = describe(f, descriptions, &source, order);
    const char *path = fuzz_file("written.safetensors", "", 0);
    REQUIRE(unlink(path) == 0);
    TensorList list = {.count = count, .tensors = descriptions, .ctx = &source, .fetch = fetch};
    uint64_t *at = mem_alloc_array(f->count + 1, sizeof *at),
             *sums = mem_alloc_array(f->count + 1, sizeof *sums);
    Text header = {0};
    uint64_t bytes = safe_layout(&list, order, count, &header, at);
    if (!fuzz_ok(safe_create(&file_ops_system, path, &header, bytes, err), err) ||
        !fuzz_ok(safe_write_segments(&file_ops_system, path, &list, order, count, at, sums, err), err))
        fuzz_fail(__FILE__, __LINE__, "what was read can be written", err->message);
    text_free(&header);
    free(at);
    free(sums);
    SafeFile again;
    if (safe_open(&again, path, err) != OK)
        fuzz_fail(__FILE__, __LINE__, "what was written can be read", err->message);
    compare(f, &again, &source, count, err);
    safe_close(&again);
    free(descriptions);
    free(source.tensors);
    free(order);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    SafeFile f;
    fuzz_directory();
    fuzz_memory_start();
    bool good =
        fuzz_ok(safe_open_fd(&f, "file\x1b[31m.safetensors", memory_file(data, size), size, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    if (!good) return 0;
    check_tensors(&f, data, size, &err);
    check_round_trip(&f, &err);
    safe_close(&f);
    return 0;
}

#ifdef WEFT_FUZZ

static void put_length(uint8_t *data, size_t header) {
    for (int i = 0; i < 8; i++) data[i] = (uint8_t)((uint64_t)header >> (8 * i));
}

/* Replaces a number by an interesting one; returns the new length of the header. */
static size_t change_number(uint8_t *header, size_t size, size_t capacity, unsigned seed) {
    static const char *const numbers[] = {"0",
                                          "1",
                                          "2",
                                          "4",
                                          "8",
                                          "255",
                                          "65535",
                                          "2147483648",
                                          "4294967296",
                                          "9007199254740991",
                                          "9007199254740992",
                                          "9223372036854775807",
                                          "18446744073709551615",
                                          "1e3",
                                          "-1",
                                          "07",
                                          "1.0"};
    size_t starts = 0, chosen = size;
    for (size_t i = 1; i < size; i++) {
        bool start = header[i] >= '0' && header[i] <= '9' && !(header[i - 1] >= '0' && header[i - 1] <= '9');
        if (start && (seed >> 8) % ++starts == 0) chosen = i;
    }
    if (chosen == size) return size;
    size_t end = chosen;
    while (end < size && header[end] >= '0' && header[end] <= '9') end++;
    char text[32];
    size_t count = sizeof numbers / sizeof *numbers;
    if (seed % 2)
        snprintf(text, sizeof text, "%s", numbers[(seed >> 1) % count]);
    else
        snprintf(text, sizeof text, "%llu",
                 strtoull((const char *)header + chosen, NULL, 10) + (seed >> 1) % 17 - 8);
    size_t length = strlen(text);
    if (size - (end - chosen) + length > capacity) return size;
    memmove(header + chosen + length, header + end, size - end);
    memcpy(header + chosen, text, length);
    return size - (end - chosen) + length;
}

/* Most random changes break the length field, or the JSON at its first byte, and find nothing. So this
 * mutates the header alone, one number of it, or the data alone, and then corrects the length field. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    if (seed % 8 == 0 || size < 10) return LLVMFuzzerMutate(data, size, max_size);
    uint64_t said = 0;
    for (int i = 7; i >= 0; i--) said = said << 8 | data[i];
    size_t header = said <= size - 8 ? (size_t)said : size - 8, tail = size - 8 - header,
           capacity = max_size - 8;
    uint8_t *copy = mem_alloc(max_size + 32);
    memcpy(copy, data + 8, size - 8);
    uint8_t *behind = mem_alloc(max_size + 1);
    memcpy(behind, copy + header, tail);
    if (seed % 8 < 4)
        header = change_number(copy, header, capacity, seed >> 3);
    else if (seed % 8 < 7)
        header = LLVMFuzzerMutate(copy, header, capacity);
    else
        tail = LLVMFuzzerMutate(behind, tail, max_size);
    if (header > capacity) header = capacity;
    if (tail > capacity - header) tail = capacity - header;
    put_length(data, header);
    memcpy(data + 8, copy, header);
    memcpy(data + 8 + header, behind, tail);
    free(copy);
    free(behind);
    return 8 + header + tail;
}

#endif

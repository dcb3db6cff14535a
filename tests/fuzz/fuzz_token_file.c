/* Fuzzes a file of token ids; the first byte selects how it is read, and whether an index of Megatron stands
 * in front. Pieces together are the ids, all of them in the vocabulary; a reader that begins anywhere returns
 * the rest. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "formats/token_index.h"
#include "fuzz.h"

/* Blocks and headers have fixed sizes. */
enum { PER_BYTE = 4, FIXED = 1 << 20, VOCABULARY = 60000 };

typedef struct Joined {
    Text ids; /* int32_t, an end as -1 */
    uint64_t next;
} Joined;

static ErrorCode read_ids(const char *path, const TokenFileOptions *o, uint64_t first, Joined *out,
                          Error *err) {
    TokenFile *f;
    TokenPiece p;
    bool more = true;
    TRY(token_file_open(&f, path, o, err));
    ErrorCode code = first > 0 ? token_file_skip_to(f, first, err) : OK;
    out->next = first;
    while (code == OK && (code = token_file_next(f, &p, &more, err)) == OK && more) {
        REQUIRE(p.count > 0 && p.first == out->next);
        for (size_t i = 0; i < p.count; i++) REQUIRE(p.ids[i] >= 0 && p.ids[i] < VOCABULARY);
        text_add(&out->ids, (const char *)p.ids, p.count * sizeof *p.ids);
        if (p.ends) text_add(&out->ids, "\xff\xff\xff\xff", 4);
        out->next += p.count;
    }
    token_file_close(f);
    return code;
}

static void check_restart(const char *path, const TokenFileOptions *o, const Joined *all) {
    Error err = {0};
    Joined rest = {0};
    REQUIRE(read_ids(path, o, all->next / 2, &rest, &err) == OK && rest.next == all->next);
    size_t n = rest.ids.length;
    REQUIRE(n <= all->ids.length);
    if (n) REQUIRE(memcmp(all->ids.data + all->ids.length - n, rest.ids.data, n) == 0);
    text_free(&rest.ids);
}

/* An index in front of the ids; its length stands before it. */
static const char *split_index(const uint8_t **data, size_t *size) {
    size_t length = *size > 0 ? (*data)[0] : 0;
    if (length + 1 > *size) length = *size > 0 ? *size - 1 : 0;
    const char *path = fuzz_file("ids.idx", *size > 0 ? *data + 1 : *data, length);
    *data += *size > 0 ? length + 1 : 0;
    *size -= *size > 0 ? length + 1 : 0;
    return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    Joined all = {0};
    if (size < 1) return 0;
    TokenFileOptions o = {(TokenType)(data[0] % 4), (TokenBoundary)(data[0] / 4 % 3),
                          data[0] & 64    ? -1
                          : data[0] & 128 ? 0
                                          : 50256,
                          VOCABULARY, NULL};
    const uint8_t *ids = data + 1;
    size_t length = size - 1;
    if (data[0] & 32) o.index = split_index(&ids, &length);
    const char *path = fuzz_file("ids\x1b[31m.bin", ids, length);
    fuzz_memory_start();
    bool good = fuzz_ok(read_ids(path, &o, 0, &all, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED + 4 * all.ids.length);
    if (good) check_restart(path, &o, &all);
    text_free(&all.ids);
    return 0;
}

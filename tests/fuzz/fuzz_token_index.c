/* An index of Megatron; the first two bytes are the size of its .bin. In an accepted one each id belongs to a
 * document, whose end lies behind it, and documents follow each other up to the last id. */
#include "base/bytes.h"
#include "formats/token_index.h"
#include "fuzz.h"

enum { PER_BYTE = 1, FIXED = 1 << 12 };

static void check_documents(const TokenIndex *x, uint64_t tokens) {
    for (uint64_t at = 0; at < tokens;) {
        uint64_t end = token_index_end(x, at);
        REQUIRE(end > at && end <= tokens);
        REQUIRE(token_index_end(x, end - 1) == end);
        at = end;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    TokenIndex *x;
    if (size < 2) return 0;
    uint64_t bytes = little_endian(data, 2);
    const char *path = fuzz_file("ids\x1b[31m.idx", data + 2, size - 2);
    fuzz_memory_start();
    if (fuzz_ok(token_index_open(&x, path, bytes, &err), &err))
        check_documents(x, bytes / (token_index_type(x) == TOKEN_UINT16 ? 2 : 4));
    fuzz_memory_check(size, PER_BYTE, FIXED);
    token_index_close(x);
    return 0;
}

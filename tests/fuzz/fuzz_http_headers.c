/* The headers of an answer. Numbers are in their ranges, texts are whole or empty. */
#include <string.h>

#include "fuzz.h"
#include "remote/http_headers.h"

enum { PER_BYTE = 2, FIXED = 1 << 16 };

static void check_text(const char *text, size_t size) {
    REQUIRE(memchr(text, '\0', size) != NULL);
    REQUIRE(!strpbrk(text, "\n"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    HttpReply r = {0};
    Text target = {0};
    const char *text = (const char *)data;
    fuzz_memory_start();
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at + 1 : size - at;
        http_take_header(&r, &target, text + at, length);
        at += length;
    }
    fuzz_memory_check(size, PER_BYTE, FIXED);
    check_text(r.etag, sizeof r.etag);
    check_text(r.modified, sizeof r.modified);
    check_text(r.region, sizeof r.region);
    REQUIRE(!r.has_range || r.first < r.size);
    REQUIRE(r.retry_after >= 0 && r.retry_after < 1e18);
    REQUIRE(target.length <= size && (target.length == 0 || strlen(target.data) == target.length));
    text_free(&target);
    return 0;
}

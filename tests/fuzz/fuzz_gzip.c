/* gzip data, in memory: members, and what may stand behind them. The first two bytes are the sizes of the
 * pieces in which it is read and of the buffers that are filled; with any, the same bytes come out, and the
 * same verdict. */
#include <string.h>

#include "base/text.h"
#include "formats/decoder.h"
#include "formats/file_format.h"
#include "fuzz.h"

/* zlib holds a window of 32 KiB. */
enum { MOST_OUT = 1 << 14, MOST_BUFFER = 1 << 12, FIXED = 1 << 18 };

typedef struct Decoded {
    Text text;
    const char *wrong;
    bool whole;
} Decoded;

/* Reads as formats/input.c does: more input when all of it is used, until the data or MOST_OUT is reached. */
static void decode(const Decoder *d, const char *data, size_t size, size_t piece, size_t capacity,
                   Decoded *out) {
    char buffer[MOST_BUFFER];
    DecoderBytes b = {.in = data};
    void *state = d->open();
    REQUIRE(state != NULL);
    while (!out->wrong && out->text.length < MOST_OUT) {
        if (b.in_at == b.in_size && b.in_size == size) break;
        if (b.in_at == b.in_size) b.in_size = size - b.in_size < piece ? size : b.in_size + piece;
        size_t before = b.in_at;
        b.out = buffer;
        b.out_size = capacity;
        b.out_at = 0;
        out->wrong = d->run(state, &b, &out->whole);
        REQUIRE(b.in_at <= b.in_size && b.out_at <= capacity);
        REQUIRE(out->wrong || b.in_at > before || b.out_at > 0);
        text_add(&out->text, buffer, b.out_at);
    }
    d->close(state);
}

static void check_same(const Decoded *a, const Decoded *b) {
    size_t shorter = a->text.length < b->text.length ? a->text.length : b->text.length;
    REQUIRE(shorter == 0 || memcmp(a->text.data, b->text.data, shorter) == 0);
    if (a->text.length >= MOST_OUT || b->text.length >= MOST_OUT) return;
    /* Damage may lie behind the end of the input for one, which then is truncated: both are refused. */
    bool good = a->whole && !a->wrong;
    REQUIRE(good == (b->whole && !b->wrong));
    if (good) REQUIRE(a->text.length == b->text.length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const Decoder *d = decoder_of(KIND_GZIP);
    const char *bytes = (const char *)data + 2;
    Decoded once = {0}, again = {0};
    fuzz_memory_start();
    decode(d, bytes, size - 2, SIZE_MAX, MOST_BUFFER, &once);
    decode(d, bytes, size - 2, (size_t)data[0] + 1, (size_t)data[1] + 1, &again);
    fuzz_memory_check(size, 0, FIXED);
    check_same(&once, &again);
    text_free(&once.text);
    text_free(&again.text);
    return 0;
}

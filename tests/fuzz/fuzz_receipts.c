/* Fuzzes RUN/receipts.jsonl: the input unchanged, and its lines with correct hashes, to reach the code after
 * them. A chain that was accepted can be continued, and any change of it is noticed. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "fuzz.h"
#include "observe/receipts.h"

/* A line of at least 150 bytes makes a Receipt, and a JSON object of a dozen members. */
enum { PER_BYTE = 64, FIXED = 1 << 17 };

static void complete_line(Text *out, const char *line, size_t length, char h[RECEIPT_HEX]) {
    uint8_t digest[32];
    Sha256 *sum = sha256_start();
    sha256_add(sum, h, RECEIPT_HEX - 1);
    sha256_add(sum, line, length);
    sha256_finish(sum, digest);
    sha256_hex(digest, h);
    text_add(out, line, length);
    text_printf(out, ", \"h\": \"%s\"}\n", h);
}

/* Lines that have a hash lose it first. */
static void complete(Text *out, const char *data, size_t size) {
    char h[RECEIPT_HEX];
    memset(h, '0', RECEIPT_HEX - 1);
    h[RECEIPT_HEX - 1] = 0;
    for (const char *at = data, *end = data + size; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at), tail = strlen(", \"h\": \"\"}") + 64;
        bool whole = length > tail && memcmp(at + length - tail, ", \"h\": \"", 8) == 0;
        complete_line(out, at, whole ? length - tail : length, h);
        at = newline ? newline + 1 : end;
    }
}

/* Lines that count follow each other, and are found by their steps. */
static void check_order(const Receipts *r) {
    for (size_t i = 0; i < r->valid_count; i++) {
        const Receipt *now = &r->items[r->valid[i]], *last = i ? &r->items[r->valid[i - 1]] : NULL;
        Text out = {0};
        REQUIRE(receipts_have(r, now->h) && now->weights && (last || now->begin));
        if (now->begin) continue;
        REQUIRE(now->step > last->step && now->first == last->first + last->samples);
        REQUIRE(receipts_of_step(r, now->step) == now);
        const Receipt *begin = receipts_begin_of(r, now->step);
        REQUIRE(begin && begin->begin && receipt_fact(r, begin, "config"));
        receipt_compare(now, now, begin->names, &out);
        REQUIRE(out.length == 0);
        if (!last->begin) receipt_compare(last, now, begin->names, &out);
        text_free(&out);
    }
}

static size_t count_lines(ErrorCode *code, Error *err) {
    Receipts r;
    *err = (Error){.code = OK};
    *code = receipts_read(&r, fuzz_directory(), err);
    size_t count = r.count;
    receipts_free(&r);
    return count;
}

/* One more line, after a torn one was cut off. */
static void check_going_on(const Receipts *r) {
    Error err = {0};
    ErrorCode code;
    ReceiptLog log;
    const Receipt *last = r->valid_count ? &r->items[r->valid[r->valid_count - 1]] : NULL;
    Receipt next = {.begin = true, .ranks = 1, .weights = "00"};
    if (last) next.step = last->step, next.first = last->first + last->samples, next.weights = last->weights;
    REQUIRE(receipts_open(&log, fuzz_directory(), r->count ? r->items[r->count - 1].h : "", &err) == OK);
    REQUIRE(receipts_add(&log, &next, &err) == OK);
    receipts_close(&log);
    REQUIRE(count_lines(&code, &err) == r->count + 1 && code == OK);
}

/* A changed bit in a line that counted. */
static void check_change(char *data, const Receipts *r) {
    ErrorCode code;
    Error err;
    if (r->length == 0) return;
    data[r->length * 2 / 3] ^= 1;
    fuzz_file(RECEIPTS_FILE, data, r->length);
    REQUIRE(count_lines(&code, &err) < r->count || code != OK);
    data[r->length * 2 / 3] ^= 1;
}

static void check_file(char *data, size_t size) {
    Error err = {0};
    Receipts r;
    fuzz_file(RECEIPTS_FILE, data, size);
    fuzz_memory_start();
    ErrorCode code = receipts_read(&r, fuzz_directory(), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    check_order(&r);
    if (fuzz_ok(code, &err)) {
        check_going_on(&r);
        check_change(data, &r);
    }
    receipts_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Text all = {0};
    text_add(&all, (const char *)data, size);
    if (size > 0) check_file(all.data, size);
    text_clear(&all);
    complete(&all, (const char *)data, size);
    if (all.length > 0) check_file(all.data, all.length);
    text_free(&all);
    return 0;
}

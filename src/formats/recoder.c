#include "formats/recoder.h"

#include <string.h>

#include "tokenizer/utf8.h"

/* Characters of bytes 80 to 9f; the five that are not assigned keep their number, as in browsers. */
static const uint16_t windows_1252[32] = {0x20ac, 0x0081, 0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021,
                                          0x02c6, 0x2030, 0x0160, 0x2039, 0x0152, 0x008d, 0x017d, 0x008f,
                                          0x0090, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
                                          0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0x009d, 0x017e, 0x0178};

bool recoder_needed(TextEncoding encoding) {
    return encoding == ENCODING_LATIN1 || encoding == ENCODING_WINDOWS_1252 || encoding == ENCODING_UTF16;
}

/* Spaces and ends of lines tell the order of bytes: in the wrong order they are characters that hardly occur
 * (U+2000, U+0A00). A text without them is mostly ASCII, or its order is not known. `count` is even. */
static bool is_big_endian(const unsigned char *bytes, size_t count) {
    size_t nuls[2] = {0}, blanks[2] = {0};
    for (size_t i = 0; i < count; i++) {
        unsigned char other = bytes[i ^ 1];
        if (bytes[i] != 0) continue;
        nuls[i % 2]++;
        blanks[i % 2] += other == ' ' || other == '\n';
    }
    if (blanks[0] != blanks[1]) return blanks[0] > blanks[1];
    return nuls[0] > nuls[1] && nuls[0] > count / 4;
}

static bool has_utf16_mark(const char *bytes, size_t count) {
    return count >= 2 && (memcmp(bytes, "\xff\xfe", 2) == 0 || memcmp(bytes, "\xfe\xff", 2) == 0);
}

const char *recoder_doubt(TextEncoding encoding, const char *bytes, size_t count) {
    enum { LOOK = 4096, CUT = 3 }; /* bytes, of which the last may be a part of a character */
    if (count >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)
        return "it begins with the mark of UTF-8: leave encoding out";
    if (encoding != ENCODING_UTF16 || count == 0 || has_utf16_mark(bytes, count)) return NULL;
    size_t look = count < LOOK ? count : LOOK, valid = utf8_valid_run(bytes, look);
    if (valid + (look == LOOK ? CUT : 0) >= look && !memchr(bytes, 0, look))
        return "it has no mark of UTF-16, and is valid UTF-8: leave encoding out";
    return is_big_endian((const unsigned char *)bytes, look / 2 * 2)
               ? "it looks like UTF-16 with the upper byte first, and has no mark that says so: convert it "
                 "with: iconv -f UTF-16BE -t UTF-8"
               : NULL;
}

static void add_bytes(const Recoder *r, const unsigned char *bytes, size_t count, Text *out) {
    size_t plain = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned char c = bytes[i];
        if (c < 0x80) continue;
        text_add(out, (const char *)bytes + plain, i - plain);
        text_put_character(out,
                           r->encoding == ENCODING_WINDOWS_1252 && c < 0xa0 ? windows_1252[c - 0x80] : c);
        plain = i + 1;
    }
    text_add(out, (const char *)bytes + plain, count - plain);
}

static uint32_t unit_at(const Recoder *r, size_t i) {
    return (uint32_t)r->pending[i + !r->big] << 8 | r->pending[i + r->big];
}

/* The first unit of a file may be the mark. */
static bool is_mark(Recoder *r) {
    if (r->started) return false;
    r->started = true;
    r->big = unit_at(r, 0) == 0xfffe;
    return unit_at(r, 0) == 0xfeff;
}

/* Two or four bytes are pending. */
static const char *add_unit(Recoder *r, Text *out) {
    if (r->pending_count == 2 && is_mark(r)) {
        r->pending_count = 0;
        return NULL;
    }
    uint32_t first = unit_at(r, 0);
    if (first >= 0xdc00 && first < 0xe000) return "the second half of a character without its first";
    bool pair = first >= 0xd800 && first < 0xdc00;
    if (pair && r->pending_count == 2) return NULL;
    uint32_t second = pair ? unit_at(r, 2) : 0;
    if (pair && (second < 0xdc00 || second >= 0xe000))
        return "the first half of a character without its second";
    text_put_character(out, pair ? 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00) : first);
    r->pending_count = 0;
    return NULL;
}

const char *recoder_add(Recoder *r, const char *bytes, size_t count, Text *out, size_t *at) {
    const char *wrong = NULL;
    *at = 0;
    if (r->encoding != ENCODING_UTF16) add_bytes(r, (const unsigned char *)bytes, count, out);
    while (r->encoding == ENCODING_UTF16 && *at < count && !wrong) {
        r->pending[r->pending_count++] = (unsigned char)bytes[(*at)++];
        if (r->pending_count % 2 == 0) wrong = add_unit(r, out);
    }
    return wrong;
}

const char *recoder_end(const Recoder *r) {
    return r->pending_count > 0 ? "it ends in the middle of a character" : NULL;
}

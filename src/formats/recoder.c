#include "formats/recoder.h"

#include "tokenizer/utf8.h"

/* Characters of bytes 80 to 9f; the five that are not assigned keep their number, as in browsers. */
static const uint16_t windows_1252[32] = {0x20ac, 0x0081, 0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021,
                                          0x02c6, 0x2030, 0x0160, 0x2039, 0x0152, 0x008d, 0x017d, 0x008f,
                                          0x0090, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
                                          0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0x009d, 0x017e, 0x0178};

bool recoder_needed(TextEncoding encoding) {
    return encoding == ENCODING_LATIN1 || encoding == ENCODING_WINDOWS_1252 || encoding == ENCODING_UTF16;
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

/* GPT-2's mapping of bytes to printable characters. Bytes that are printable in Latin-1 map to themselves;
 * the other 68 map, in ascending order, to U+0100 to U+0143. Files write tokens this way because JSON cannot
 * hold bytes.
 *
 * The mapping is computed, since typed tables invite errors. */
#include "tokenizer/byte_level.h"

#define FIRST_MOVED 0x100U
#define MOVED_COUNT 68U

static bool stands_for_itself(uint32_t code) {
    return (code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xAC) || (code >= 0xAE && code <= 0xFF);
}

/* Number of bytes below this one that map to U+0100 and up. */
static uint32_t moved_below(uint32_t byte) {
    uint32_t count = 0;
    for (uint32_t b = 0; b < byte; b++) count += !stands_for_itself(b);
    return count;
}

/* At most 256 steps per byte, but only when vocabularies are read and written: encoding works on bytes. */
static uint32_t character_of(uint8_t byte) {
    return stands_for_itself(byte) ? byte : FIRST_MOVED + moved_below(byte);
}

static int byte_of(uint32_t code) {
    if (stands_for_itself(code)) return (int)code;
    if (code < FIRST_MOVED || code >= FIRST_MOVED + MOVED_COUNT) return -1;
    uint32_t left = code - FIRST_MOVED;
    for (uint32_t b = 0;; b++) {
        if (!stands_for_itself(b) && left-- == 0) return (int)b;
    }
}

/* Bytes in the order of their characters, in which vocabularies list the 256 single bytes. */
uint8_t byte_level_nth(int k) {
    for (uint32_t code = 0;; code++) {
        int byte = byte_of(code);
        if (byte >= 0 && k-- == 0) return (uint8_t)byte;
    }
}

void byte_level_write(Text *out, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        uint32_t code = character_of((uint8_t)bytes[i]); /* at most two bytes of UTF-8 */
        char character[2] = {(char)(code < 0x80 ? code : 0xC0 | code >> 6), (char)(0x80 | (code & 0x3F))};
        text_add(out, character, code < 0x80 ? 1 : 2);
    }
}

/* A token with a character outside the alphabet is written literally (an added token): treating its other
 * characters as bytes would mix two spellings. */
bool byte_level_read(const char *text, size_t length, char *out, size_t *out_length) {
    size_t n = 0;
    for (size_t i = 0; i < length;) {
        uint32_t code;
        size_t bytes = text_utf8(text + i, length - i, &code);
        int byte = bytes ? byte_of(code) : -1;
        if (byte < 0) return false;
        out[n++] = (char)byte;
        i += bytes;
    }
    *out_length = n;
    return true;
}

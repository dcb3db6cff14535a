/* The byte alphabet of byte-level BPE files: each byte is written as one printable character. Bytes
 * 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for themselves; the other 68 are U+0100 and up, in increasing
 * order. */
#ifndef WEFT_TOKENIZER_BYTE_LEVEL_H
#define WEFT_TOKENIZER_BYTE_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* The k-th byte in order of its character: the order in which trained vocabularies list the bytes. */
uint8_t byte_level_nth(int k);

/* Appends the bytes as characters. */
void byte_level_write(Text *out, const char *bytes, size_t length);

/* Turns characters into bytes (out has room for `length`). False, with nothing said about `out`, when the
 * text has a character outside the alphabet. */
bool byte_level_read(const char *text, size_t length, char *out, size_t *out_length);

#endif

/* The byte alphabet of byte-level BPE files: each byte is written as one printable character. Bytes
 * 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF are themselves; the other 68 are U+0100 and up, in increasing order. */
#ifndef WEFT_TOKENIZER_BYTE_LEVEL_H
#define WEFT_TOKENIZER_BYTE_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* The k-th byte in order of its character: trained vocabularies list the bytes in this order. */
uint8_t byte_level_nth(int k);

/* Appends the bytes as characters. */
void byte_level_write(Text *out, const char *bytes, size_t length);

/* Converts characters into bytes (out has space for `length`). False when the text has a character outside
 * the alphabet; `out` is then unspecified. */
bool byte_level_read(const char *text, size_t length, char *out, size_t *out_length);

#endif

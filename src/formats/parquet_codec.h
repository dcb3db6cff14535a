/* Compression of Parquet's pages: a row of the table for each codec of the format, also of those that weft
 * does not read. */
#ifndef WEFT_FORMATS_PARQUET_CODEC_H
#define WEFT_FORMATS_PARQUET_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PARQUET_UNCOMPRESSED = 0 };

/* "an unknown codec" for numbers that the format does not define. */
const char *parquet_codec_name(int codec);
bool parquet_codec_is_read(int codec);
/* The most that `stored` bytes can decompress to, or more. */
uint64_t parquet_codec_most(int codec, uint64_t stored);
/* Decompresses to exactly `out_size` bytes. Returns NULL, or what is wrong. */
const char *parquet_decompress(int codec, const char *in, size_t in_size, char *out, size_t out_size);

#endif

/* Bytes of one input file, plain or compressed with zstd or gzip (detected by content, not name), read from
 * front to back. */
#ifndef WEFT_FORMATS_INPUT_H
#define WEFT_FORMATS_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Input Input;

/* Opens a regular file. Known non-text formats (formats/file_format.h) are refused by name. With `any`, only
 * compressed files that weft cannot decompress are refused. */
ErrorCode input_open(Input **input, const char *path, bool any, Error *err);
void input_close(Input *input);

/* Reads up to `capacity` bytes of content; *got == 0 only at the end. A truncated or
 * damaged compressed file is ERR_DATA, with the offset in the stored file. */
ErrorCode input_read(Input *input, char *out, size_t capacity, size_t *got, Error *err);
/* Moves forward to byte `offset` of the content: a seek in a plain file, decompression in a compressed one.
 */
ErrorCode input_skip_to(Input *input, uint64_t offset, Error *err);
/* Bytes of the stored file consumed so far, for progress. */
uint64_t input_stored_position(const Input *input);

#endif

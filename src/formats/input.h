/* Bytes of one input file, plain or compressed with zstd or gzip (detected by content, not name), and
 * converted to UTF-8 if they are in another encoding, read from front to back. */
#ifndef WEFT_FORMATS_INPUT_H
#define WEFT_FORMATS_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "formats/recoder.h"

typedef struct Input Input;

/* Opens a regular file. Known non-text formats (formats/file_format.h) are refused by name; of ENCODING_BYTES
 * only compressed files that weft cannot decompress. */
ErrorCode input_open(Input **input, const char *path, TextEncoding encoding, Error *err);
void input_close(Input *input);

/* Reads up to `capacity` bytes of content; *got == 0 only at the end. A truncated or
 * damaged compressed file is ERR_DATA, with the offset in the stored file. */
ErrorCode input_read(Input *input, char *out, size_t capacity, size_t *got, Error *err);
/* Moves forward to byte `offset` of the content: a seek in a plain file; a compressed or converted one is
 * read up to there. */
ErrorCode input_skip_to(Input *input, uint64_t offset, Error *err);
/* Bytes of the stored file consumed so far, for progress. */
uint64_t input_stored_position(const Input *input);

#endif

/* Bytes of one input file, plain or zstd-compressed (told by its content, not its name), read from front to
 * back. */
#ifndef WEFT_DATA_INPUT_H
#define WEFT_DATA_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Input Input;

/* Regular files only. What is known not to be text (data/file_format.h) is refused by name, unless `any`
 * bytes will do: then compressed files other than zstd's alone. */
ErrorCode input_open(Input **input, const char *path, bool any, Error *err);
void input_close(Input *input);

/* Up to `capacity` bytes of content; *got == 0 at the end only. A compressed file that stops in the middle is
 * ERR_DATA. */
ErrorCode input_read(Input *input, char *out, size_t capacity, size_t *got, Error *err);
/* Moves forward to byte `offset` of the content: a seek in a plain file, decompression in a compressed one.
 */
ErrorCode input_skip_to(Input *input, uint64_t offset, Error *err);
/* Bytes consumed of the file as it is stored: for progress. */
uint64_t input_stored_position(const Input *input);

#endif

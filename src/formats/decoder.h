/* Streaming decompression: a row of the table for each compression that weft reads. formats/input.c chooses
 * the row by the content of a file. */
#ifndef WEFT_FORMATS_DECODER_H
#define WEFT_FORMATS_DECODER_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/file_format.h"

/* Compressed bytes in, content out; the positions move as far as either goes. */
typedef struct DecoderBytes {
    const char *in;
    size_t in_size, in_at;
    char *out;
    size_t out_size, out_at;
} DecoderBytes;

typedef struct Decoder {
    const char *name;
    void *(*open)(void);        /* NULL: no memory */
    void (*close)(void *state); /* NULL is fine */
    /* Decompresses from a `b` with at least one byte in and space for one byte out. Returns NULL, or what is
     * wrong with the data. *whole: the position is between two frames (or members), the only place where a
     * file may end. */
    const char *(*run)(void *state, DecoderBytes *b, bool *whole);
} Decoder;

/* NULL: files of this kind are not compressed, or not read. */
const Decoder *decoder_of(FileKind kind);

#endif

/* Recognises files that are not text by their content: data formats that weft does not read, and the
 * compressed ones that it does. Names decide only where a format has no magic number.
 *
 * Each format is a row of the table in file_format.c. A format that weft learns to read gets a `kind` of its
 * own, by which formats/decoder.c finds its decoder. */
#ifndef WEFT_FORMATS_FILE_FORMAT_H
#define WEFT_FORMATS_FILE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { FILE_HEAD_BYTES = 512, FILE_TAIL_BYTES = 16 };

/* First and last bytes of a file, or of decompressed content, whose tail and size are not known. */
typedef struct FileEnds {
    const char *path;
    unsigned char head[FILE_HEAD_BYTES], tail[FILE_TAIL_BYTES];
    size_t head_length, tail_length;
    uint64_t size; /* 0: not known */
} FileEnds;

typedef enum FileKind {
    KIND_NOT_TEXT, /* refused, unless raw bytes are asked for */
    KIND_STAND_IN, /* the same; another file was meant, whatever its format */
    KIND_PARQUET,  /* the same, unless the source names a column */
    KIND_TOKENS,   /* the same, unless the source has tokens */
    KIND_UTF16,    /* the same, unless it is what is asked for */
    KIND_PACKED,   /* always refused: nobody wants to train on compressed bytes */
    KIND_ZSTD,
    KIND_GZIP
} FileKind;

typedef struct FileFormat {
    const char *name, *advice;
    FileKind kind;
    size_t at;         /* offset of the magic number */
    const char *magic; /* NULL: `also` decides alone */
    size_t length;
    bool (*also)(const FileEnds *ends); /* second check if the magic number could begin a text, or NULL */
} FileFormat;

/* Last part of the error for a file that can still be read as raw bytes. */
#define FILE_ANY_BYTES \
    "if its bytes are what you want, give the source encoding: bytes (weft tokenizer train: --bytes)"

/* Characters that no text has: ends of line, tabs, backspaces and escapes remain. */
static inline bool file_is_control(unsigned char byte) { return byte < 7 || (byte > 13 && byte < 27); }

/* The file's format, or NULL if it may be text. */
const FileFormat *file_format_of(const FileEnds *ends);
/* Whether ids of tokens cannot look like it by chance. */
bool file_format_is_certain(const FileFormat *format, const FileEnds *ends);
/* ERR_DATA with the format's name and what to do. */
ErrorCode file_format_refuse(const FileFormat *format, const char *path, Error *err);

#endif

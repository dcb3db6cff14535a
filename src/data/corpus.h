/* Text corpora: files into documents.
 *
 * A text file is one document, or with `split` several: lines (a document is a non-blank line and the blank
 * lines after it) or paragraphs (a run of non-blank lines and the blank lines after it). The documents of a
 * file put together are the file, byte for byte, but for a byte order mark. A JSON-lines file holds a
 * document a line, under a named key, or a conversation a line (data/chat.h). Each may be zstd-compressed.
 * What is not text is refused, by its format (data/file_format.h) or by its bytes (data/text_check.h).
 *
 * Memory is bounded: a long document comes in pieces, which are cut behind a newline that stands alone
 * between two characters that are neither white space nor a slash. Most tokenizers end a token there, so that
 * the pieces have together the tokens of the document; whoever uses one that may not
 * (tokenizer_whole_documents) puts the pieces together again. Only text without such a newline for
 * CORPUS_CHUNK_LIMIT bytes is cut elsewhere, between two characters. */
#ifndef WEFT_DATA_CORPUS_H
#define WEFT_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "data/config.h"

#define CORPUS_CHUNK_BYTES (256u << 10) /* pieces of a long document are at least this long */
#define CORPUS_CHUNK_LIMIT (16u << 20)  /* ... and at most this */
#define CORPUS_LINE_LIMIT (256u << 20)  /* longest line of a JSON-lines file */

/* How to read one file. */
typedef struct CorpusFile {
    const char *path;
    /* AUTO: JSON lines if the name ends in .jsonl, .ndjson or .json (before any .zst), else text */
    SourceFormat format;
    SourceSplit split; /* text only */
    const char *key;   /* JSON lines only; NULL or "" means "text" */
    SourceEncoding encoding;
} CorpusFile;

SourceFormat corpus_format(const CorpusFile *file); /* any but FORMAT_AUTO */

/* A place between two pieces, where reading can go on later. */
typedef struct CorpusPosition {
    uint64_t offset;  /* in the decompressed content */
    uint64_t line;    /* 0-based */
    bool in_document; /* the next piece continues a document */
} CorpusPosition;

/* A piece of text, or one raw line of JSON. */
typedef struct CorpusChunk {
    const char *bytes; /* until the next call */
    size_t length;
    uint64_t line;     /* 1-based, of the first byte */
    bool starts, ends; /* of a document */
} CorpusChunk;

typedef struct CorpusReader CorpusReader;

/* `from` NULL: from the beginning. The CorpusFile and its strings must outlive the reader. */
ErrorCode corpus_open(CorpusReader **reader, const CorpusFile *file, const CorpusPosition *from, Error *err);
void corpus_close(CorpusReader *reader);
/* *more is false at the end of the file. Blank lines of JSON-lines files are skipped. */
ErrorCode corpus_next(CorpusReader *reader, CorpusChunk *chunk, bool *more, Error *err);
void corpus_shrink(CorpusReader *reader); /* gives back the memory of a long piece, which is gone */
CorpusPosition corpus_position(const CorpusReader *reader); /* after the last piece */
uint64_t corpus_stored_position(const CorpusReader *reader);
uint64_t corpus_text_bytes(const CorpusReader *reader);    /* of what was handed out */
uint64_t corpus_invalid_bytes(const CorpusReader *reader); /* of them, not UTF-8 */
void corpus_report(const CorpusReader *reader); /* a warning that says how many, where there are any */

/* The text of a line of JSON, put in place of what was in `out`. Safe to call from any thread. */
ErrorCode corpus_decode_json(const CorpusFile *file, const CorpusChunk *chunk, Text *out, Error *err);

#endif

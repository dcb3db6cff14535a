/* Text corpora: splits files into documents.
 *
 * A text file is one document, or several with `split`: lines (a document is a non-blank line and the blank
 * lines after it) or paragraphs (a run of non-blank lines and the blank lines after it). The concatenated
 * documents of a file are the file, byte for byte, except for a byte order mark. A JSON-lines file holds one
 * document per line, under a named key, or one conversation per line (data/chat.h); if the file begins with a
 * bracket, it is one array, whose elements are read like lines. Each may be compressed with zstd or gzip. A
 * Parquet file holds one document per row, in a named column (formats/parquet.h), or one conversation
 * (formats/parquet_rows.h). A token file holds ids that another program made (formats/token_file.h). Files
 * that are not text are refused, by their format (formats/file_format.h), by their bytes
 * (formats/text_check.h), or since they are JSON (formats/text_form.h).
 *
 * Memory is bounded: a long document comes in chunks, cut after a lone newline between two characters that
 * are neither white space nor a slash. Most tokenizers end a token there, so that the chunks together have
 * the tokens of the document. A caller whose tokenizer may not end a token there (tokenizer_whole_documents)
 * joins the chunks again. Only text without such a newline for CORPUS_CHUNK_LIMIT bytes is cut elsewhere,
 * between two characters. */
#ifndef WEFT_DATA_CORPUS_H
#define WEFT_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "data/config.h"
#include "data/fingerprint.h"
#include "data/holdout.h"
#include "formats/parquet.h"
#include "formats/text_form.h"
#include "formats/token_file.h"

#define CORPUS_CHUNK_BYTES (256u << 10) /* least size of a long document's chunks */
#define CORPUS_CHUNK_LIMIT (16u << 20)  /* their greatest size */
#define CORPUS_LINE_LIMIT (256u << 20)  /* longest line of a JSON-lines file */

/* How to read one file. */
typedef struct CorpusFile {
    const char *path;
    /* AUTO: JSON lines if the name ends in .jsonl, .ndjson or .json, before any .zst, .gz or .bgz; Parquet if
     * it ends in .parquet; else text */
    SourceFormat format;
    SourceSplit split; /* text only */
    const char *key;   /* of JSON lines, or the column of Parquet; NULL or "" means "text" */
    TextEncoding encoding;
    ChatForm chat_form; /* conversations only */
    bool column;        /* key is the column of a Parquet file with conversations, whatever its name */
    uint64_t min_bytes, max_bytes; /* of a document that is kept; 0: any */
    Holdout holdout;               /* which documents are kept */
    TokenFileOptions tokens;       /* token files only */
    Fingerprint *index;            /* of tokens.index; NULL without one */
} CorpusFile;

SourceFormat corpus_format(const CorpusFile *file); /* any but FORMAT_AUTO */
/* Lists of messages, or a pair of texts: other names of conversations occur in tables of any kind. */
bool corpus_has_chat_columns(const ParquetLeaves *leaves);
bool corpus_has_rows(const CorpusFile *file); /* it is a Parquet file */
/* Whether the source leaves out a document with so much text. */
bool corpus_is_short(const CorpusFile *file, uint64_t bytes);
bool corpus_is_long(const CorpusFile *file, uint64_t bytes);
/* Whether JSON in a text file is refused, and markup warned of: a source that states its format means it, and
 * one that asks for bytes takes any. */
bool corpus_doubts_form(SourceFormat format, TextEncoding encoding);
bool corpus_has_lines(SourceFormat format); /* of JSON, each of which may be broken by itself */
/* For estimates of size: whether the name ends as those of compressed files do. */
bool corpus_named_compressed(const char *path);

/* A position between two chunks, where reading can resume later. */
typedef struct CorpusPosition {
    uint64_t offset;  /* in the decompressed content; of Parquet the row, of token files the token */
    uint64_t line;    /* 0-based; likewise */
    bool in_document; /* the next chunk continues a document */
} CorpusPosition;

/* A chunk of text, one raw line or element of JSON, the text of a row, or ids (int32_t). */
typedef struct CorpusChunk {
    const char *bytes; /* valid until the next call */
    size_t length;
    uint64_t line;     /* 1-based, of the first byte; or the row, or the token */
    bool starts, ends; /* at a document's boundary */
} CorpusChunk;

typedef struct CorpusReader CorpusReader;

/* `from` NULL: from the beginning. The CorpusFile and its strings must outlive the reader. */
ErrorCode corpus_open(CorpusReader **reader, const CorpusFile *file, const CorpusPosition *from, Error *err);
void corpus_close(CorpusReader *reader);
/* *more is false at the end of the file. Blank lines of JSON-lines files and rows without text are
 * skipped. */
ErrorCode corpus_next(CorpusReader *reader, CorpusChunk *chunk, bool *more, Error *err);
void corpus_shrink(CorpusReader *reader); /* frees the memory of a long chunk that is no longer used */
CorpusPosition corpus_position(const CorpusReader *reader); /* after the last chunk */
uint64_t corpus_stored_position(const CorpusReader *reader);
/* The same without what was read ahead, about; to estimate what the rest of the file holds. */
double corpus_stored_given(const CorpusReader *reader);
bool corpus_is_array(const CorpusReader *reader); /* of JSON */
/* What else than text a text file is, by its beginning; NULL: nothing, or reading did not start there. */
const TextForm *corpus_form(const CorpusReader *reader);
const TextForm *
corpus_doubtful_form(const CorpusReader *reader);          /* unless the source states that it is text */
uint64_t corpus_text_bytes(const CorpusReader *reader);    /* of all chunks so far */
uint64_t corpus_invalid_bytes(const CorpusReader *reader); /* of these, not UTF-8 */
uint64_t corpus_null_rows(const CorpusReader *reader);     /* rows so far that are null */
void corpus_report(const CorpusReader *reader);            /* warns of invalid bytes and null rows, if any */

/* The text of a line of JSON, which replaces the contents of `out`. Thread-safe. */
ErrorCode corpus_decode_json(const CorpusFile *file, const CorpusChunk *chunk, Text *out, Error *err);

#endif

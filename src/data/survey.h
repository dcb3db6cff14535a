/* What is in a file of data, as training would read it: weft data inspect.
 *
 * A file is read once, from front to back, by the readers of training (data/corpus.h). Memory does not depend
 * on its size, except for one digest of 16 bytes a document, in a table of two to four times as many places
 * (data/seen_set.h). Lengths are counted in classes: exact below 4 KiB, else to one part in 2,048. */
#ifndef WEFT_DATA_SURVEY_H
#define WEFT_DATA_SURVEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "data/chat.h"
#include "data/corpus.h"
#include "data/seen_set.h"
#include "formats/parquet_meta.h"

enum { SURVEY_FORMS = 5 }; /* ChatForm */

/* Of a file, or summed over files. Zero-initialise. */
typedef struct SurveyFigures {
    uint64_t stored; /* bytes on disk */
    uint64_t documents;
    uint64_t measured; /* documents whose text is known: not of token files without a tokenizer */
    uint64_t bytes, least, most;
    uint64_t *lengths;         /* documents of each class of length; NULL: none */
    uint64_t checked, invalid; /* bytes; those that are not UTF-8 */
    uint64_t duplicates, duplicate_bytes;
    uint64_t null_rows, bad_lines, left_out; /* left_out: by min_bytes and max_bytes */
    uint64_t tokens, encoded;                /* encoded: bytes of text that they stand for */
    uint64_t timed;                          /* of these, bytes that were tokenized */
    double seconds;                          /* that this took, on one thread */
    double all;                              /* the same for whole files, estimated where not all was read */
} SurveyFigures;

void survey_add(SurveyFigures *sum, const SurveyFigures *more);
double survey_median(const SurveyFigures *f); /* of the lengths of documents */

typedef struct SurveyOptions {
    const Tokenizer *tokenizer; /* NULL: nothing is tokenized */
    const Chat *chat;           /* NULL: conversations are not tokenized */
    int32_t bos, eos;           /* -1: none */
    bool guess;                 /* the format by the content, where the file's is auto */
    uint64_t limit;             /* documents of a file; 0: all */
    size_t samples;
    SeenSet *seen; /* documents of all files so far */
} SurveyOptions;

typedef struct Survey {
    SourceFormat format;
    bool rows, array;        /* a Parquet file; one array of JSON */
    const char *recognised;  /* "by its name" */
    const char *compression; /* NULL: none */
    const TextForm *form;    /* of a text that is markup, a table, ..., else NULL */
    Text key;                /* the member or column that is read; "" where there is none */
    Text source;             /* keys that its source needs besides the path: "format: tokens"; "": none */
    uint64_t forms[SURVEY_FORMS];
    TokenType type;
    ParquetLeaves columns;
    size_t groups;
    uint64_t row_count;
    const char *codec;
    SurveyFigures figures;
    Text *samples; /* beginnings of the first documents */
    size_t sample_count;
    bool undivided; /* token file: only a tokenizer tells its documents, which are not counted */
    bool cut;       /* the limit was reached */
    Error bad;      /* of the first line that could not be read */
} Survey;

/* `file` may be changed to the format that was recognised. After an error, too, what is known is in `s`. */
ErrorCode survey_file(Survey *s, CorpusFile *file, const SurveyOptions *o, Error *err);
void survey_free(Survey *s);

#endif

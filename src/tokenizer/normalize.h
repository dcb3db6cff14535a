/* Normalizers: transformations of text before tokenization. A list of steps, each of which turns valid UTF-8
 * into valid UTF-8.
 *
 * Unicode forms and lower case use libutf8proc, if the build has it. */
#ifndef WEFT_TOKENIZER_NORMALIZE_H
#define WEFT_TOKENIZER_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/text.h"

typedef enum NormalizeKind {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE,
    NORMALIZE_STRIP,   /* remove white space at the ends */
    NORMALIZE_REPLACE, /* replace each `from` by `to` */
    NORMALIZE_PREPEND, /* put `to` before text that is not empty */
    NORMALIZE_KINDS
} NormalizeKind;

typedef struct NormalizeStep {
    NormalizeKind kind;
    char *from, *to;  /* from mem_strdup; NULL where the kind has none. `from` is not empty */
    bool left, right; /* STRIP: which ends */
} NormalizeStep;

#define NORMALIZE_STEPS 8

typedef struct Normalizer {
    NormalizeStep steps[NORMALIZE_STEPS];
    int count;
} Normalizer;

bool unicode_available(void);            /* this build has libutf8proc */
const char *unicode_forms_version(void); /* Unicode version of its tables, "15.0.0"; "" without it */

/* Letters, marks, digits, connectors and joiners: what \w means in `tokenizers`. False without libutf8proc.
 */
bool unicode_is_word(uint32_t code);
/* Python's str.isprintable: not a control, format, private or unassigned character, and no separator except
 * the space. Without libutf8proc all characters from U+00A0 on are printable. */
bool unicode_is_printable(uint32_t code);

/* The character that Python's upper, title or lower ('u', 't', 'l') maps `code` to. 0 if it maps to several
 * or depends on its neighbours, and without libutf8proc for every non-ASCII character. */
uint32_t unicode_case(uint32_t code, char to);

/* Appends valid UTF-8 with its first letter in upper case and all others in lower case, each mapped on its
 * own. Without libutf8proc only ASCII letters change. */
void unicode_capitalize(const char *text, size_t length, Text *out);

const char *normalize_name(NormalizeKind kind); /* as files write it: "NFC" */
/* The kind of that name, or NORMALIZE_KINDS. */
NormalizeKind normalize_by_name(const char *name);
/* Does the step need libutf8proc? */
bool normalize_needs_unicode(NormalizeKind kind);

void normalizer_free(Normalizer *n);
/* Runs all steps in order. *changed: the result is in `out` (cleared first); false: the text needs no change.
 * `begins` false omits PREPEND, for text that continues after invalid bytes. */
ErrorCode normalizer_run(const Normalizer *n, const char *text, size_t length, bool begins, Text *out,
                         bool *changed, Error *err);

#endif

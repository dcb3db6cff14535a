/* Normalizers: what a tokenizer file does to text before it looks for tokens. A list of steps, each of which
 * turns valid UTF-8 into valid UTF-8.
 *
 * Unicode forms and lower case are libutf8proc's, where the build has it. */
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
    NORMALIZE_STRIP,   /* white space off the ends */
    NORMALIZE_REPLACE, /* each `from` by `to` */
    NORMALIZE_PREPEND, /* `to` before text that is not empty */
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
const char *unicode_forms_version(void); /* of its tables: "15.0.0"; "" without it */

/* Letters, marks, digits, connectors and joiners: what \w means in `tokenizers`. False without libutf8proc.
 */
bool unicode_is_word(uint32_t code);
/* What Python's str.isprintable means: no control, format or private character, none that is not assigned,
 * and no separator but the blank. Without libutf8proc all from U+00A0 on are printable. */
bool unicode_is_printable(uint32_t code);

/* The character that Python's upper, title or lower makes of one, by 'u', 't' and 'l'; 0 where it makes
 * several, or where neighbours decide, and without libutf8proc for all beyond ASCII. */
uint32_t unicode_case(uint32_t code, char to);

/* Appends valid UTF-8 with its first letter large and all others small, each by itself; without libutf8proc
 * only ASCII's change. */
void unicode_capitalize(const char *text, size_t length, Text *out);

const char *normalize_name(NormalizeKind kind); /* as files write it: "NFC" */
/* The kind of that name, or NORMALIZE_KINDS. */
NormalizeKind normalize_by_name(const char *name);
/* Does the step need libutf8proc? */
bool normalize_needs_unicode(NormalizeKind kind);

void normalizer_free(Normalizer *n);
/* All steps in their order. *changed says whether the result is in `out` (cleared first), or the text is as
 * it should be already. `begins`: false leaves PREPEND out, for text that goes on after bytes that are
 * none. */
ErrorCode normalizer_run(const Normalizer *n, const char *text, size_t length, bool begins, Text *out,
                         bool *changed, Error *err);

#endif

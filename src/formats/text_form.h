/* Recognises text that holds more than text, by its beginning: records of JSON, which are refused unless the
 * source names its format, and markup, tables and encoded bytes, which are read with a warning.
 *
 * Each form is a row of the table in text_form.c. */
#ifndef WEFT_FORMATS_TEXT_FORM_H
#define WEFT_FORMATS_TEXT_FORM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* The beginning of a file's text, in UTF-8, without a byte order mark. */
typedef struct TextHead {
    const char *path, *text;
    size_t length;
    bool whole; /* the text ends there */
} TextHead;

typedef struct TextForm {
    const char *name, *advice;
    bool refused;
    bool (*is)(const TextHead *head);
} TextForm;

enum { TEXT_FORMS = 8 }; /* the most that there may be: token caches count files of each */

/* Whether more text may change the answer. */
bool text_form_needs_more(const TextHead *head);
/* NULL: text and nothing else, as far as can be told. */
const TextForm *text_form_of(const TextHead *head);
size_t text_form_index(const TextForm *form); /* below TEXT_FORMS */
const TextForm *text_form_at(size_t index);   /* NULL: there is none */
/* ERR_DATA with the form's name and what to do. */
ErrorCode text_form_refuse(const TextForm *form, const char *path, Error *err);

#endif

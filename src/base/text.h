/* Growing strings and number formatting. */
#ifndef WEFT_BASE_TEXT_H
#define WEFT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* A growing byte string. Zero-initialise; data is NUL-terminated once anything was added. */
typedef struct Text {
    char *data;
    size_t length, capacity;
} Text;

void text_add(Text *t, const char *bytes, size_t length);
void text_puts(Text *t, const char *string);
void text_printf(Text *t, const char *format, ...) PRINTF_LIKE(2, 3);
void text_clear(Text *t); /* length 0, memory kept */
void text_free(Text *t);
/* Whether text[0, length) ends with `end`. */
bool text_ends(const char *text, size_t length, const char *end);

/* Shortest decimal that reads back as the same double ("0.1"; "NaN", "Infinity", "-Infinity"). Returns out.
 */
char *text_double(double value, char out[32]);
/* 12345678 -> "12,345,678". Returns out. */
char *text_count(int64_t value, char out[32]);
/* 1536 -> "1.50 KiB". Returns out. */
char *text_bytes(double bytes, char out[32]);
/* Length of the well-formed UTF-8 character at the start (1 to 4; 0 if there is none); its code point in
 * *code unless NULL. */
size_t text_utf8(const char *bytes, size_t length, uint32_t *code);
/* Whether a terminal interprets the character or shows nothing: C0, DEL, C1, and the marks that reorder or
 * hide text. */
bool text_is_unprintable(uint32_t code);
/* The printable form of the character at the start, or of an invalid byte: itself, or \xNN for each byte.
 * Returns how many bytes of the text it represents. */
enum { TEXT_SHOWN = 4 * 4 + 1 };
size_t text_shown(const char *bytes, size_t length, char out[TEXT_SHOWN]);
/* Appends the text in printable form, for everything that goes to a terminal. Flags let newlines and tabs, or
 * colours (escape sequences that end in m), pass unchanged. */
enum { TEXT_KEEP_LINES = 1, TEXT_KEEP_COLOURS = 2 };
void text_add_shown(Text *t, const char *bytes, size_t length, int keep);
/* 0 when equal; Levenshtein distance capped at 99: for "did you mean". */
int text_distance(const char *a, const char *b);

/* Allocation that cannot fail: on exhaustion it prints the size and exits with ERR_MEMORY. For small host
 * objects; tensors come from pools. */
void *mem_alloc(size_t bytes);                    /* zeroed */
void *mem_alloc_array(size_t count, size_t each); /* zeroed; the product is checked */
void *mem_grow(void *p, size_t bytes);
char *mem_strdup(const char *s);
/* Checked product of sizes: returns 0 and leaves *out unchanged on overflow, else 1. */
int size_multiply(size_t a, size_t b, size_t *out);

#endif

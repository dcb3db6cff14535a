/* Streaming JSON writer.
 *
 * `first`: the innermost container is still empty. `after_key`: the next value follows a key on the same
 * line. begin_item, which every value and key calls, updates both.
 *
 * With indent 0 everything is on one line, separated by ", ", like Python's json.dumps.
 *
 *     call                       first, after_key      text, with indent 2
 *     json_begin_object          true                  {
 *     json_key "a"               false, true           {\n  "a":
 *     json_int 1                 false, false          {\n  "a": 1
 *     json_end_object            false                 {\n  "a": 1\n} */
#include <math.h>
#include <string.h>

#include "base/json.h"

/* The caller owns the text, which may already have content. */
void json_start(JsonWriter *w, Text *out, int indent) {
    *w = (JsonWriter){.out = out, .indent = indent, .first = true};
}

/* Only with an indent: otherwise everything is on one line. */
static void new_line(JsonWriter *w) {
    if (w->indent == 0) return;
    text_puts(w->out, "\n");
    for (int i = 0; i < w->depth * w->indent; i++) text_puts(w->out, " ");
}

/* At depth 0 there is nothing to separate: the document is one value. */
static void begin_item(JsonWriter *w) {
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->depth == 0) return;
    if (!w->first) text_puts(w->out, w->indent ? "," : ", ");
    w->first = false;
    new_line(w);
}

/* Named like C library calls, but static: nothing here opens or closes a file. */
static void open(JsonWriter *w, const char *bracket) {
    begin_item(w);
    text_puts(w->out, bracket);
    w->depth++;
    w->first = true;
}

/* An empty container closes on its line: {} and []. */
static void close(JsonWriter *w, const char *bracket) {
    CHECK(w->depth > 0 && !w->after_key);
    w->depth--;
    if (!w->first) new_line(w);
    text_puts(w->out, bracket);
    w->first = false;
}

void json_begin_object(JsonWriter *w) { open(w, "{"); }
void json_end_object(JsonWriter *w) { close(w, "}"); }
void json_begin_array(JsonWriter *w) { open(w, "["); }
void json_end_array(JsonWriter *w) { close(w, "]"); }

/* Invalid UTF-8 becomes U+FFFD: a file that no reader accepts would be worse than a replaced byte. Characters
 * that a terminal interprets are escaped, since JSON is also printed. */
static void write_quoted(Text *out, const char *value, size_t length) {
    static const char letters[] = "btnvfr"; /* of bytes 8 to 13; JSON has no \v */
    text_puts(out, "\"");
    for (size_t at = 0; at < length;) {
        unsigned char c = (unsigned char)value[at];
        uint32_t code = 0;
        size_t bytes = text_utf8(value + at, length - at, &code);
        if (bytes == 0)
            text_puts(out, "\xef\xbf\xbd");
        else if (c == '"' || c == '\\')
            text_printf(out, "\\%c", c);
        else if (c >= 8 && c <= 13 && c != 11)
            text_printf(out, "\\%c", letters[c - 8]);
        else if (text_is_unprintable(code)) /* none is beyond U+FFFF */
            text_printf(out, "\\u%04x", (unsigned)code);
        else
            text_add(out, value + at, bytes);
        at += bytes ? bytes : 1;
    }
    text_puts(out, "\"");
}

/* Keys are not checked for duplicates, since the program chooses them. */
void json_key(JsonWriter *w, const char *key) {
    begin_item(w);
    write_quoted(w->out, key, strlen(key));
    text_puts(w->out, ": ");
    w->after_key = true;
}

/* All 64 bits; readers that store numbers as doubles lose some beyond 2^53. */
void json_int(JsonWriter *w, int64_t value) {
    begin_item(w);
    text_printf(w->out, "%lld", (long long)value);
}

/* JSON has no NaN and no infinities: readers of metrics take null as "not finite". */
void json_double(JsonWriter *w, double value) {
    char number[32];
    begin_item(w);
    text_puts(w->out, isfinite(value) ? text_double(value, number) : "null");
}

void json_bool(JsonWriter *w, bool value) {
    begin_item(w);
    text_puts(w->out, value ? "true" : "false");
}

void json_null(JsonWriter *w) {
    begin_item(w);
    text_puts(w->out, "null");
}

/* For NUL-terminated text; json_bytes for text that may contain NULs. */
void json_string(JsonWriter *w, const char *value) { json_bytes(w, value, strlen(value)); }

void json_bytes(JsonWriter *w, const char *value, size_t length) {
    begin_item(w);
    write_quoted(w->out, value, length);
}

void json_put_int(JsonWriter *w, const char *key, int64_t value) {
    json_key(w, key);
    json_int(w, value);
}

void json_put_double(JsonWriter *w, const char *key, double value) {
    json_key(w, key);
    json_double(w, value);
}

void json_put_bool(JsonWriter *w, const char *key, bool value) {
    json_key(w, key);
    json_bool(w, value);
}

void json_put_null(JsonWriter *w, const char *key) {
    json_key(w, key);
    json_null(w);
}

void json_put_string(JsonWriter *w, const char *key, const char *value) {
    json_key(w, key);
    json_string(w, value);
}

void json_put_bytes(JsonWriter *w, const char *key, const char *value, size_t length) {
    json_key(w, key);
    json_bytes(w, value, length);
}

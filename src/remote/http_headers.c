/* A value that is too long or not as expected counts as missing. */
#include "remote/http_headers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_NUMBER = 128, MOST_TARGET = 1 << 16 };

/* A cut ETag would be another one. */
static void copy(char *to, size_t size, const char *value, size_t length) {
    if (length >= size || memchr(value, '\0', length)) length = 0;
    memcpy(to, value, length);
    to[length] = '\0';
}

/* At most 18 digits; *text is moved behind them. */
static bool take_number(const char **text, uint64_t *out) {
    size_t digits = strspn(*text, "0123456789");
    if (digits == 0 || digits > 18) return false;
    *out = strtoull(*text, NULL, 10);
    *text += digits;
    return true;
}

/* "bytes FIRST-LAST/SIZE"; of an answer 416, "bytes" and the size behind a star. */
static void take_range(HttpReply *r, const char *value) {
    uint64_t first = 0, last = 0, size = 0;
    bool none = strncmp(value, "bytes */", 8) == 0;
    const char *at = value + 8;
    r->has_range = false; /* the last one counts */
    r->size = 0;
    if (none) {
        if (take_number(&at, &size) && !*at) r->size = size;
        return;
    }
    if (strncmp(value, "bytes ", 6) != 0) return;
    at = value + 6;
    if (!take_number(&at, &first) || *at++ != '-' || !take_number(&at, &last) || *at++ != '/' ||
        !take_number(&at, &size) || *at || first > last || last >= size)
        return;
    r->has_range = true;
    r->first = first;
    r->size = size;
}

static void take_length(HttpReply *r, const char *value) {
    r->has_length = take_number(&value, &r->length) && !*value;
}

/* Seconds; a date is not read, and counts as 0. */
static void take_wait(HttpReply *r, const char *value) {
    uint64_t seconds = 0;
    r->retry_after = take_number(&value, &seconds) && !*value ? (double)seconds : 0;
}

static bool is_page(const char *type) {
    return strncasecmp(type, "text/html", 9) == 0 || strncasecmp(type, "application/xhtml", 17) == 0;
}

static void take(HttpReply *r, Text *target, const char *name, const char *value, size_t length) {
    char text[MOST_NUMBER];
    copy(text, sizeof text, value, length);
    if (strcmp(name, "etag") == 0) copy(r->etag, sizeof r->etag, value, length);
    if (strcmp(name, "last-modified") == 0) copy(r->modified, sizeof r->modified, value, length);
    if (strcmp(name, "x-amz-bucket-region") == 0) copy(r->region, sizeof r->region, value, length);
    if (strcmp(name, "content-type") == 0) r->html = is_page(text);
    if (strcmp(name, "content-range") == 0) take_range(r, text);
    if (strcmp(name, "content-length") == 0) take_length(r, text);
    if (strcmp(name, "retry-after") == 0) take_wait(r, text);
    if (strcmp(name, "location") != 0 || length > MOST_TARGET || memchr(value, '\0', length)) return;
    text_clear(target);
    text_add(target, value, length);
}

static void trim(const char **value, size_t *length) {
    while (*length > 0 && strchr(" \t", (*value)[0])) (*value)++, (*length)--;
    while (*length > 0 && strchr(" \t\r\n", (*value)[*length - 1])) (*length)--;
}

void http_take_header(HttpReply *reply, Text *target, const char *line, size_t length) {
    char name[32];
    size_t at = 0;
    if (length > 5 && strncasecmp(line, "HTTP/", 5) == 0) {
        *reply = (HttpReply){0};
        text_clear(target);
        return;
    }
    for (; at < length && at < sizeof name - 1 && line[at] != ':'; at++)
        name[at] = (char)(line[at] >= 'A' && line[at] <= 'Z' ? line[at] + 32 : line[at]);
    if (at == length || line[at] != ':') return;
    name[at++] = '\0';
    const char *value = line + at;
    length -= at;
    trim(&value, &length);
    take(reply, target, name, value, length);
}

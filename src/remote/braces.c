#include "remote/braces.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

enum { MOST_TEXTS = 100000, MOST_DIGITS = 9 };

typedef struct Expansion {
    Text front; /* what stands before `rest`, expanded */
    char **texts;
    size_t count, capacity;
} Expansion;

/* A number range: {first..last}, both of `width` digits if either begins with 0. */
typedef struct Range {
    long first, last;
    int width;
} Range;

static ErrorCode expand(Expansion *e, const char *rest, Error *err);

static ErrorCode add(Expansion *e, const char *rest, Error *err) {
    if (e->count == MOST_TEXTS)
        return error_set(err, ERR_CONFIG, "braces stand for more than %d files: use several sources",
                         MOST_TEXTS);
    if (e->count == e->capacity) {
        e->capacity = 2 * e->capacity + 16;
        e->texts = mem_grow(e->texts, e->capacity * sizeof *e->texts);
    }
    Text whole = {0};
    text_add(&whole, e->front.data ? e->front.data : "", e->front.length);
    text_puts(&whole, rest);
    e->texts[e->count++] = whole.data;
    return OK;
}

/* The alternative, then everything that follows the braces. */
static ErrorCode expand_with(Expansion *e, const char *word, size_t length, const char *rest, Error *err) {
    size_t before = e->front.length;
    text_add(&e->front, word, length);
    ErrorCode code = expand(e, rest, err);
    e->front.length = before;
    return code;
}

static bool read_number(const char *from, size_t length, long *value) {
    if (length == 0 || length > MOST_DIGITS || strspn(from, "0123456789") < length) return false;
    *value = strtol(from, NULL, 10);
    return true;
}

static bool read_range(const char *from, size_t length, Range *r) {
    const char *dots = memmem(from, length, "..", 2);
    if (!dots) return false;
    size_t left = (size_t)(dots - from), right = length - left - 2;
    if (!read_number(from, left, &r->first) || !read_number(dots + 2, right, &r->last)) return false;
    bool padded = (*from == '0' && left > 1) || (dots[2] == '0' && right > 1);
    r->width = padded ? (int)(left > right ? left : right) : 0;
    return true;
}

static ErrorCode expand_range(Expansion *e, const Range *r, const char *rest, Error *err) {
    long step = r->first <= r->last ? 1 : -1;
    for (long i = r->first;; i += step) {
        char word[16];
        int length = snprintf(word, sizeof word, "%0*ld", r->width, i);
        TRY(expand_with(e, word, (size_t)length, rest, err));
        if (i == r->last) return OK;
    }
}

static ErrorCode expand_words(Expansion *e, const char *from, const char *end, const char *rest, Error *err) {
    for (const char *word = from;;) {
        const char *comma = memchr(word, ',', (size_t)(end - word));
        TRY(expand_with(e, word, (size_t)((comma ? comma : end) - word), rest, err));
        if (!comma) return OK;
        word = comma + 1;
    }
}

static ErrorCode expand(Expansion *e, const char *rest, Error *err) {
    size_t plain = strcspn(rest, "{}");
    const char *from = rest + plain + 1, *end = rest[plain] == '{' ? strpbrk(from, "{}") : NULL;
    Range r;
    if (!rest[plain]) return add(e, rest, err);
    if (!end || *end != '}')
        return error_set(err, ERR_CONFIG, "braces do not match: expected {00..99} or {a,b}, not nested");
    size_t before = e->front.length, length = (size_t)(end - from);
    bool range = read_range(from, length, &r);
    if (!range && !memchr(from, ',', length))
        return error_set(err, ERR_CONFIG, "{%.*s}: expected {00..99} or {a,b}", (int)length, from);
    text_add(&e->front, rest, plain);
    ErrorCode code = range ? expand_range(e, &r, end + 1, err) : expand_words(e, from, end, end + 1, err);
    e->front.length = before;
    return code;
}

ErrorCode braces_expand(const char *pattern, char ***out, size_t *count, Error *err) {
    Expansion e = {0};
    ErrorCode code = expand(&e, pattern, err);
    text_free(&e.front);
    if (code != OK) {
        file_glob_free(e.texts, e.count);
        return code;
    }
    *out = e.texts;
    *count = e.count;
    return OK;
}

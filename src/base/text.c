/* Growing strings, numbers as text, and allocation that cannot fail.
 *
 * Invariant of Text: data is NULL with capacity 0, or length < capacity and data[length] is NUL.
 *
 * Memory here is small: texts, names, tables. Tensor memory comes from pools (device/pool.h), where running
 * out is an error with advice. */
#include "base/text.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not through the log, which allocates. */
static _Noreturn void out_of_memory(size_t bytes) {
    fprintf(stderr, "weft: error: the system gave no memory for %zu bytes\n", bytes);
    exit(ERR_MEMORY);
}

/* Use it for all products of sizes that come from files. */
int size_multiply(size_t a, size_t b, size_t *out) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return 0;
    *out = product;
    return 1;
}

/* Zeroed. If small memory is exhausted, ending the process is the only sensible reaction. */
void *mem_alloc(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

/* Use it for every count that comes from outside: an overflow ends as out of memory, not as a short array. */
void *mem_alloc_array(size_t count, size_t each) {
    size_t bytes;
    if (!size_multiply(count, each, &bytes)) out_of_memory(SIZE_MAX);
    return mem_alloc(bytes);
}

/* The new part is not zeroed, unlike mem_alloc's. */
void *mem_grow(void *p, size_t bytes) {
    void *grown = realloc(p, bytes ? bytes : 1);
    if (!grown) out_of_memory(bytes);
    return grown;
}

char *mem_strdup(const char *s) {
    size_t bytes = strlen(s) + 1;
    return memcpy(mem_alloc(bytes), s, bytes);
}

/* Capacity for `more` bytes and the NUL. Doubles, so that adding n bytes one by one costs n, not n * n. At
 * least 64: most texts are lines. */
static void reserve(Text *t, size_t more) {
    if (more >= SIZE_MAX / 2 - t->length) out_of_memory(SIZE_MAX);
    size_t need = t->length + more + 1;
    if (need <= t->capacity) return;
    size_t capacity = t->capacity < 64 ? 64 : t->capacity * 2;
    t->capacity = capacity < need ? need : capacity;
    t->data = mem_grow(t->data, t->capacity);
}

void text_add(Text *t, const char *bytes, size_t length) {
    reserve(t, length);
    if (length) memcpy(t->data + t->length, bytes, length);
    t->length += length;
    t->data[t->length] = 0;
}

void text_puts(Text *t, const char *string) { text_add(t, string, strlen(string)); }

/* CHECK: a negative length means an invalid format, which the compiler already checks (PRINTF_LIKE). */
void text_printf(Text *t, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    /* Formatted twice, for the length and for the bytes; the first pass consumes `args`. */
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(length >= 0);
    reserve(t, (size_t)length);
    vsnprintf(t->data + t->length, (size_t)length + 1, format, again);
    va_end(again);
    t->length += (size_t)length;
}

/* Keeps the memory: a text that is reused does not allocate again once it has its largest size. */
void text_clear(Text *t) {
    t->length = 0;
    if (t->data) t->data[0] = 0;
}

void text_free(Text *t) {
    free(t->data);
    *t = (Text){0};
}

bool text_ends(const char *text, size_t length, const char *end) {
    size_t n = strlen(end);
    return length >= n && memcmp(text + length - n, end, n) == 0;
}

/* The fewest digits that read back as the same double, so that files can be compared as text. */
char *text_double(double value, char out[32]) {
    if (isnan(value)) return strcpy(out, "NaN");
    if (isinf(value)) return strcpy(out, value > 0 ? "Infinity" : "-Infinity");
    /* Up to 15 digits always survive a round trip, and %g drops their trailing zeros; subnormals have fewer
     * significant digits. */
    int digits = fabs(value) < DBL_MIN ? 1 : DBL_DIG;
    for (; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    return out;
}

/* Negated as unsigned: INT64_MIN has no positive counterpart. */
char *text_count(int64_t value, char out[32]) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%llu",
                          value < 0 ? 0ull - (unsigned long long)value : (unsigned long long)value);
    char *to = out;
    if (value < 0) *to++ = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = 0;
    return out;
}

char *text_bytes(double bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    /* 1023.995 would print as "1024.00". */
    while (fabs(bytes) >= 1023.995 && unit + 1 < sizeof units / sizeof *units) bytes /= 1024, unit++;
    snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
    return out;
}

/* RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF. */
size_t text_utf8(const char *bytes, size_t length, uint32_t *code) {
    const unsigned char *b = (const unsigned char *)bytes;
    uint32_t value;
    size_t count;
    if (length == 0) return 0;
    /* 0xc0 and 0xc1 could only begin overlong forms of ASCII, 0xf5 and above only code points beyond
     * U+10FFFF. */
    if (b[0] < 0x80)
        count = 1, value = b[0];
    else if (b[0] >= 0xc2 && b[0] <= 0xdf)
        count = 2, value = b[0] & 0x1f;
    else if (b[0] >= 0xe0 && b[0] <= 0xef)
        count = 3, value = b[0] & 0x0f;
    else if (b[0] >= 0xf0 && b[0] <= 0xf4)
        count = 4, value = b[0] & 0x07;
    else
        return 0;
    if (count > length) return 0;
    for (size_t i = 1; i < count; i++) {
        if ((b[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (b[i] & 0x3f);
    }
    if ((count == 3 && value < 0x800) || (count == 4 && (value < 0x10000 || value > 0x10ffff))) return 0;
    if (value >= 0xd800 && value <= 0xdfff) return 0;
    if (code) *code = value;
    return count;
}

bool text_is_unprintable(uint32_t code) {
    return code < 0x20 || (code >= 0x7f && code <= 0x9f) || (code >= 0x200b && code <= 0x200f) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

size_t text_shown(const char *bytes, size_t length, char out[TEXT_SHOWN]) {
    uint32_t code = 0;
    size_t count = text_utf8(bytes, length, &code), used = count;
    bool plain = count > 0 && !text_is_unprintable(code);
    if (count == 0) count = 1;
    if (plain) memcpy(out, bytes, count);
    if (!plain) used = 0;
    for (size_t i = 0; !plain && i < count; i++)
        used += (size_t)snprintf(out + used, TEXT_SHOWN - used, "\\x%02X", (unsigned char)bytes[i]);
    out[used] = 0;
    return count;
}

/* Length of a sequence like "\033[1;31m" at the start; 0 if there is none. */
static size_t colour_sequence(const char *bytes, size_t length) {
    size_t at = 2;
    if (length < 3 || bytes[0] != '\033' || bytes[1] != '[') return 0;
    while (at < length && (bytes[at] == ';' || (bytes[at] >= '0' && bytes[at] <= '9'))) at++;
    return at < length && bytes[at] == 'm' ? at + 1 : 0;
}

void text_add_shown(Text *t, const char *bytes, size_t length, int keep) {
    char shown[TEXT_SHOWN];
    for (size_t at = 0; at < length;) {
        bool line = keep & TEXT_KEEP_LINES && (bytes[at] == '\n' || bytes[at] == '\t');
        size_t kept = line ? 1 : keep & TEXT_KEEP_COLOURS ? colour_sequence(bytes + at, length - at) : 0;
        size_t read = kept ? kept : text_shown(bytes + at, length - at, shown);
        text_add(t, kept ? bytes + at : shown, kept ? kept : strlen(shown));
        at += read;
    }
}

/* Levenshtein distance with one row of the matrix: row[j] is the distance between a's first i letters and b's
 * first j; `diagonal` is the previous row[j - 1]. For names longer than CAP the result is 0 or CAP. */
int text_distance(const char *a, const char *b) {
    enum { CAP = 99 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > CAP || nb > CAP) return strcmp(a, b) ? CAP : 0;
    int row[CAP + 1];
    for (size_t j = 0; j <= nb; j++) row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

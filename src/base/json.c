/* Strict reading of JSON.
 *
 * weft's own scanner checks the grammar, with positions; cJSON then builds the tree from text that is known
 * to be well-formed; finally, keys are compared as decoded. Invariant: everything that cJSON sees fits its
 * limits (nesting, digits), and its C strings are complete, except for values of lines, whose text is then
 * taken from the source.
 *
 *     bytes -> scan_document (grammar, UTF-8, depth, digits) -> cJSON -> find_duplicate -> tree
 *                                                                          |
 *                       scan_document again, which stops at that key and so knows its line <+ */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* cJSON itself stops at 1000 levels by default. The scan and find_duplicate recurse as deep as the document,
 * so the bound is checked here, where the position is known. */
#define MAX_DEPTH 64
#define MAX_NUMBER 63    /* cJSON copies a number into 64 bytes */
#define MAX_LITERAL 4300 /* Python's limit for the digits of an integer */

typedef struct Scan {
    const char *where, *data;
    size_t length, at;
    size_t line;                  /* number of the first one */
    bool row;                     /* JsonPlace */
    size_t column, column_length; /* of a row: the last key at the top */
    size_t value;                 /* of a row: where that key's value begins */
    bool nul_in_values;           /* \u0000 is allowed in values */
    size_t keys, stop_key;        /* keys seen; the ordinal at which to report a duplicate */
    char *without_numbers;        /* the data, in which each number becomes "0" and blanks; NULL: unchanged */
    Text literals;                /* of those numbers, each followed by a NUL */
    Error *err;
} Scan;

/* An error at `at`; lines and columns count from 1, columns in characters. */
static ErrorCode fail(const Scan *s, size_t at, const char *what) {
    size_t begin = s->value, line = s->row ? 1 : s->line, column = 1;
    for (size_t i = begin; i < at; i++) {
        if (s->data[i] == '\n')
            line++, column = 1;
        else if (((unsigned char)s->data[i] & 0xc0) != 0x80)
            column++;
    }
    if (s->row)
        return error_set(s->err, ERR_DATA, "%s:%zu: in column %.*s: %zu:%zu: %s", s->where, s->line,
                         (int)s->column_length, s->data + s->column, line, column, what);
    return error_set(s->err, ERR_DATA, "%s%s%zu:%zu: %s", s->where, *s->where ? ":" : "", line, column, what);
}

/* "expected X, found Y" at the current byte. */
static ErrorCode expected(const Scan *s, const char *what) {
    char found[32] = "the end", message[128];
    if (s->at < s->length) {
        size_t bytes = text_utf8(s->data + s->at, s->length - s->at, NULL);
        char shown[20];
        snprintf(found, sizeof found, "'%s'",
                 error_escape(shown, sizeof shown, s->data + s->at, bytes ? bytes : 1));
    }
    snprintf(message, sizeof message, "expected %s, found %s", what, found);
    return fail(s, s->at, message);
}

/* -1 at the end: it differs from every byte, so callers need not check for the end first. */
static int peek(const Scan *s) { return s->at < s->length ? (unsigned char)s->data[s->at] : -1; }

/* JSON's four, not isspace's six: accepting a form feed would make this reader disagree with others. */
static void skip_space(Scan *s) {
    int c;
    while ((c = peek(s)) == ' ' || c == '\t' || c == '\n' || c == '\r') s->at++;
}

/* Four hexadecimal digits after "\u"; -1 if there are not four. */
static int hex4(const Scan *s, size_t at) {
    int value = 0;
    if (s->length - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = s->data[i];
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Surrogates must come in pairs: a lone one is no character, and readers interpret it differently. */
static ErrorCode scan_escape(Scan *s, bool may_be_nul) {
    size_t start = s->at++;
    int c = peek(s);
    if (c > 0 && strchr("\"\\/bfnrt", c)) {
        s->at++;
        return OK;
    }
    int unit = c == 'u' ? hex4(s, s->at + 1) : -1;
    if (unit < 0) return fail(s, start, "bad escape in a string");
    if (unit == 0 && !may_be_nul) return fail(s, start, "a string must not hold \\u0000");
    s->at += 5;
    if (unit >= 0xdc00 && unit <= 0xdfff) return fail(s, start, "lone low surrogate in a string");
    if (unit < 0xd800 || unit > 0xdbff) return OK;
    bool pair = s->length - s->at >= 6 && s->data[s->at] == '\\' && s->data[s->at + 1] == 'u';
    int low = pair ? hex4(s, s->at + 2) : -1;
    if (low < 0xdc00 || low > 0xdfff) return fail(s, start, "lone high surrogate in a string");
    s->at += 6;
    return OK;
}

/* Bytes beyond ASCII must be UTF-8, since all later stages expect it. */
static ErrorCode scan_string(Scan *s, bool may_hold_nul) {
    size_t start = s->at++;
    for (;;) {
        int c = peek(s);
        if (c < 0) return fail(s, start, "this string does not end");
        if (c == '"') break;
        if (c < 0x20) return fail(s, s->at, "a control byte in a string must be escaped");
        if (c == '\\') {
            TRY(scan_escape(s, may_hold_nul));
            continue;
        }
        size_t bytes = text_utf8(s->data + s->at, s->length - s->at, NULL);
        if (bytes == 0) return fail(s, s->at, "invalid UTF-8 in a string");
        s->at += bytes;
    }
    s->at++;
    return OK;
}

/* Returns the number of digits. */
static size_t skip_digits(Scan *s) {
    size_t start = s->at;
    while (peek(s) >= '0' && peek(s) <= '9') s->at++;
    return s->at - start;
}

/* Keeps the literal and replaces it by a zero, since cJSON would round it. */
static ErrorCode take_literal(Scan *s, size_t start) {
    size_t length = s->at - start;
    if (length > MAX_LITERAL) return fail(s, start, "this number has too many digits");
    text_add(&s->literals, s->data + start, length);
    text_add(&s->literals, "", 1);
    memset(s->without_numbers + start, ' ', length);
    s->without_numbers[start] = '0';
    return OK;
}

/* Numbers as in RFC 8259. Those that overflow a double are refused: they would be read as infinity. */
static ErrorCode scan_number(Scan *s) {
    size_t start = s->at;
    if (peek(s) == '-') s->at++;
    /* Some readers take "01" as octal, others as 1. */
    size_t whole = s->at;
    if (!skip_digits(s)) return expected(s, "a digit");
    if (s->data[whole] == '0' && s->at - whole > 1) return fail(s, start, "a number must not start with 0");
    if (peek(s) == '.') {
        s->at++;
        if (!skip_digits(s)) return expected(s, "a digit after the point");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-') s->at++;
        if (!skip_digits(s)) return expected(s, "a digit in the exponent");
    }
    if (s->without_numbers) return take_literal(s, start);
    if (s->at - start > MAX_NUMBER) return fail(s, start, "this number has too many digits");
    /* strtod needs a NUL-terminated string; the text has a length instead, and may end here. */
    char copy[MAX_NUMBER + 1] = {0};
    memcpy(copy, s->data + start, s->at - start);
    if (!isfinite(strtod(copy, NULL))) return fail(s, start, "this number is out of range");
    return OK;
}

/* A longer word with this prefix ("trueish") fails at the next token, which must be a comma, a bracket, or
 * the end. */
static ErrorCode scan_word(Scan *s, const char *word) {
    size_t length = strlen(word);
    if (s->length - s->at < length || memcmp(s->data + s->at, word, length) != 0)
        return expected(s, "a value");
    s->at += length;
    return OK;
}

static ErrorCode scan_value(Scan *s, int depth);

/* Keys are numbered in document order, as find_duplicate counts them in the tree. stop_key is SIZE_MAX in the
 * first scan. */
static ErrorCode scan_key(Scan *s) {
    if (peek(s) != '"') return expected(s, "a key in double quotes");
    if (s->keys++ == s->stop_key) return fail(s, s->at, "duplicate key");
    TRY(scan_string(s, false));
    skip_space(s);
    if (peek(s) != ':') return expected(s, "':' after the key");
    s->at++;
    return OK;
}

/* A key at the top, by which the errors of a row tell its columns. */
static ErrorCode scan_column(Scan *s) {
    size_t begin = s->at;
    TRY(scan_key(s));
    if (!s->row) return OK;
    s->column = begin;
    s->column_length = s->at - 1 - begin;
    skip_space(s);
    s->value = s->at;
    return OK;
}

/* The members of an object or the elements of an array, including brackets. A comma must be followed by a
 * value: scan_value or scan_key fails on a trailing comma. */
static ErrorCode scan_items(Scan *s, int depth, bool object) {
    const char close = object ? '}' : ']';
    if (depth > MAX_DEPTH) return fail(s, s->at, "nested more than 64 deep");
    s->at++;
    skip_space(s);
    if (peek(s) == close) {
        s->at++;
        return OK;
    }
    for (;;) {
        skip_space(s);
        if (object) TRY(depth == 1 ? scan_column(s) : scan_key(s));
        TRY(scan_value(s, depth));
        skip_space(s);
        if (peek(s) == close) break;
        if (peek(s) != ',') return expected(s, object ? "',' or '}'" : "',' or ']'");
        s->at++;
    }
    s->at++;
    return OK;
}

/* Chosen by its first byte, which determines the type in JSON. */
static ErrorCode scan_value(Scan *s, int depth) {
    skip_space(s);
    const int c = peek(s);
    switch (c) {
    case '{': return scan_items(s, depth + 1, true);
    case '[': return scan_items(s, depth + 1, false);
    case '"': return scan_string(s, s->nul_in_values);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    default: return c == '-' || (c >= '0' && c <= '9') ? scan_number(s) : expected(s, "a value");
    }
}

/* Starts at the beginning each time: the second scan must number keys as the first did. */
static ErrorCode scan_document(Scan *s) {
    s->at = 0;
    s->keys = 0;
    TRY(scan_value(s, 0));
    skip_space(s);
    if (s->at < s->length) return expected(s, "the end");
    return OK;
}

/* A key of one object, and its number among all keys of the document. */
typedef struct KeyPlace {
    const char *key;
    size_t ordinal;
} KeyPlace;

/* Sorted by ordinal among equals, so that the duplicate is the later one. */
static int compare_keys(const void *a, const void *b) {
    const KeyPlace *x = a, *y = b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x->ordinal > y->ordinal) - (x->ordinal < y->ordinal);
}

/* Ordinal, in document order, of a key that repeats an earlier key of its object; SIZE_MAX if there is none.
 * n log n in the keys of an object; cJSON's own look-ups would make it n * n. */
static size_t find_duplicate(const cJSON *node, size_t *keys) {
    size_t count = 0, found = SIZE_MAX;
    for (const cJSON *child = node->child; child; child = child->next) count++;
    KeyPlace *places = cJSON_IsObject(node) && count ? mem_alloc_array(count, sizeof *places) : NULL;
    size_t i = 0;
    for (const cJSON *child = node->child; child && found == SIZE_MAX; child = child->next, i++) {
        /* Numbered before the child's own keys: the order in which the scan met them. */
        if (places) places[i] = (KeyPlace){child->string, (*keys)++};
        found = find_duplicate(child, keys);
    }
    if (places && found == SIZE_MAX) {
        qsort(places, count, sizeof *places, compare_keys);
        for (i = 1; i < count && found == SIZE_MAX; i++)
            if (strcmp(places[i - 1].key, places[i].key) == 0) found = places[i].ordinal;
    }
    free(places);
    return found;
}

/* A byte order mark is not JSON, but editors on Windows write one. */
static void skip_mark(const char **data, size_t *length) {
    if (*length >= 3 && memcmp(*data, "\xef\xbb\xbf", 3) == 0) *data += 3, *length -= 3;
}

/* Assigns the literals to the numbers of the tree in document order, which is the order of the scan. */
static void give_literals(cJSON *node, const char **literal) {
    if (cJSON_IsNumber(node)) {
        node->valuestring = mem_strdup(*literal);
        cJSON_SetNumberHelper(node, strtod(*literal, NULL));
        *literal += strlen(*literal) + 1;
    }
    for (cJSON *child = node->child; child; child = child->next) give_literals(child, literal);
}

/* The scan holds the source and its name. */
static ErrorCode parse(Scan *s, cJSON **root) {
    char name[512];
    *root = NULL;
    s->where = error_escape(name, sizeof name, s->where, strlen(s->where));
    s->stop_key = SIZE_MAX;
    skip_mark(&s->data, &s->length);
    TRY(scan_document(s));
    cJSON *tree = cJSON_ParseWithLength(s->data, s->length);
    /* Impossible while the scan is stricter than cJSON. Returned as an error instead of a CHECK, since it
     * depends on input. */
    if (!tree) return error_set(s->err, ERR_DATA, "%s: cJSON could not parse this", name);
    size_t keys = 0, duplicate = find_duplicate(tree, &keys);
    if (duplicate != SIZE_MAX) {
        cJSON_Delete(tree);
        s->stop_key = duplicate;
        return scan_document(s);
    }
    *root = tree;
    return OK;
}

/* On success the caller owns *root (cJSON_Delete); after a failure it is NULL. */
ErrorCode json_parse(const char *where, const char *data, size_t length, cJSON **root, Error *err) {
    Scan scan = {.where = where, .data = data, .length = length, .line = 1, .err = err};
    return parse(&scan, root);
}

/* For a line of a corpus: its texts are arbitrary data, including NULs, and errors name the line of the
 * file. */
ErrorCode json_parse_line(const char *where, size_t line, const char *data, size_t length, cJSON **root,
                          Error *err) {
    Scan scan = {
        .where = where, .data = data, .length = length, .line = line, .nul_in_values = true, .err = err};
    return parse(&scan, root);
}

ErrorCode json_parse_literals_in(JsonPlace place, char *data, size_t length, cJSON **root, Error *err) {
    const char *text = data;
    skip_mark(&text, &length);
    Scan scan = {.where = place.where,
                 .data = text,
                 .length = length,
                 .line = place.line,
                 .row = place.row,
                 .err = err};
    scan.without_numbers = data + (text - data);
    ErrorCode code = parse(&scan, root);
    const char *literal = scan.literals.data;
    if (code == OK) give_literals(*root, &literal);
    text_free(&scan.literals);
    return code;
}

ErrorCode json_parse_literals(JsonPlace place, const char *data, size_t length, cJSON **root, Error *err) {
    char *copy = mem_alloc(length + 1);
    if (length) memcpy(copy, data, length);
    ErrorCode code = json_parse_literals_in(place, copy, length, root, err);
    free(copy);
    return code;
}

/* Decodes a string without \u0000 by cJSON; bytes are those between the quotes. */
static void add_decoded(const char *bytes, size_t length, Text *quoted, Text *out) {
    text_clear(quoted);
    text_puts(quoted, "\"");
    text_add(quoted, bytes, length);
    text_puts(quoted, "\"");
    cJSON *string = cJSON_ParseWithLength(quoted->data, quoted->length);
    CHECK(cJSON_IsString(string));
    text_puts(out, string->valuestring);
    cJSON_Delete(string);
}

/* Appends the decoded string, including its NULs. It begins at bytes[0], after its quote, and was scanned
 * before. */
static void add_parts(const char *bytes, Text *out) {
    Text quoted = {0};
    const char *at = bytes;
    while (*at != '"') {
        if (strncmp(at, "\\u0000", 6) != 0) {
            at += *at == '\\' ? 2 : 1;
            continue;
        }
        add_decoded(bytes, (size_t)(at - bytes), &quoted, out);
        text_add(out, "", 1);
        at += 6;
        bytes = at;
    }
    add_decoded(bytes, (size_t)(at - bytes), &quoted, out);
    text_free(&quoted);
}

/* Moves to the value of the member with that ordinal, in an object that was scanned before. */
static void find_value(Scan *s, size_t ordinal) {
    skip_space(s);
    for (;; ordinal--) {
        s->at++; /* the brace or the comma */
        skip_space(s);
        CHECK(scan_key(s) == OK);
        skip_space(s);
        if (ordinal == 0) return;
        CHECK(scan_value(s, 1) == OK);
        skip_space(s);
    }
}

/* Most lines contain no such escape, and then cJSON's string is complete. Otherwise the value is located
 * again in the source, since cJSON cut it at the NUL. */
void json_line_string(const char *data, size_t length, const cJSON *root, cJSON *member, Text *out) {
    text_free(out);
    if (!memmem(data, length, "\\u0000", 6)) {
        size_t found = strlen(member->valuestring);
        *out = (Text){member->valuestring, found, found + 1};
        member->valuestring = NULL;
        return;
    }
    skip_mark(&data, &length);
    Scan s = {.where = "", .data = data, .length = length, .stop_key = SIZE_MAX, .nul_in_values = true};
    size_t ordinal = 0;
    for (const cJSON *child = root->child; child != member; child = child->next) ordinal++;
    find_value(&s, ordinal);
    add_parts(s.data + s.at + 1, out);
}

/* `limit` bounds the memory: a tree takes several times the bytes of its text. */
ErrorCode json_read(const char *path, size_t limit, cJSON **root, Error *err) {
    char *data;
    size_t length;
    *root = NULL;
    TRY(file_read(path, limit, &data, &length, err));
    ErrorCode code = json_parse(path, data, length, root, err);
    free(data);
    return code;
}

const cJSON *json_first(const cJSON *member) { return cJSON_IsArray(member) ? member->child : member; }

const cJSON *json_next(const cJSON *member, const cJSON *item) {
    return cJSON_IsArray(member) ? item->next : NULL;
}

/* A parser never produces cJSON_IsRaw or invalid nodes. */
static const char *kind_of(const cJSON *node) {
    if (!node) return "nothing";
    if (cJSON_IsObject(node)) return "an object";
    if (cJSON_IsArray(node)) return "an array";
    if (cJSON_IsString(node)) return "a string";
    if (cJSON_IsNumber(node)) return "a number";
    if (cJSON_IsBool(node)) return "true or false";
    return "null";
}

/* *member is NULL if the key is missing or null and not required. Keys are case-sensitive, unlike cJSON's
 * default: {"Vocab_Size"} is another key. */
static ErrorCode find_member(const cJSON *object, const char *where, const char *key, bool required,
                             const cJSON **member, Error *err) {
    *member = NULL;
    if (!cJSON_IsObject(object))
        return error_set(err, ERR_DATA, "%s: expected an object, found %s", where, kind_of(object));
    *member = cJSON_GetObjectItemCaseSensitive(object, key);
    if (cJSON_IsNull(*member)) *member = NULL;
    if (!*member && required) return error_set(err, ERR_DATA, "%s: key \"%s\" is missing", where, key);
    return OK;
}

/* The message has what a user needs to fix the file: where, which key, what was expected and found. */
static ErrorCode wrong_kind(const cJSON *member, const char *where, const char *key, const char *wanted,
                            Error *err) {
    return error_set(err, ERR_DATA, "%s: \"%s\": expected %s, found %s", where, key, wanted, kind_of(member));
}

/* cJSON stores doubles, which represent integers exactly only up to 2^53. Beyond it, the file may have held
 * another number. */
ErrorCode json_get_int(const cJSON *object, const char *where, const char *key, bool required, int64_t min,
                       int64_t max, int64_t *out, Error *err) {
    const cJSON *member = NULL;
    char number[32];
    TRY(find_member(object, where, key, required, &member, err));
    if (!member) return OK;
    if (!cJSON_IsNumber(member)) return wrong_kind(member, where, key, "a whole number", err);
    double value = member->valuedouble;
    bool exact = value == floor(value) && fabs(value) < 0x1p53;
    if (!exact || (int64_t)value < min || (int64_t)value > max)
        return error_set(err, ERR_DATA, "%s: \"%s\": expected a whole number between %lld and %lld, found %s",
                         where, key, (long long)min, (long long)max, text_double(value, number));
    *out = (int64_t)value;
    return OK;
}

/* Like the others: a key that is missing or null and not required leaves *out unchanged, so that the caller's
 * default stays. */
ErrorCode json_get_double(const cJSON *object, const char *where, const char *key, bool required, double *out,
                          Error *err) {
    const cJSON *member = NULL;
    TRY(find_member(object, where, key, required, &member, err));
    if (!member) return OK;
    if (!cJSON_IsNumber(member)) return wrong_kind(member, where, key, "a number", err);
    *out = member->valuedouble;
    return OK;
}

ErrorCode json_get_bool(const cJSON *object, const char *where, const char *key, bool required, bool *out,
                        Error *err) {
    const cJSON *member = NULL;
    TRY(find_member(object, where, key, required, &member, err));
    if (!member) return OK;
    if (!cJSON_IsBool(member)) return wrong_kind(member, where, key, "true or false", err);
    *out = cJSON_IsTrue(member);
    return OK;
}

/* The tree owns the text. */
ErrorCode json_get_string(const cJSON *object, const char *where, const char *key, bool required,
                          const char **out, Error *err) {
    const cJSON *member = NULL;
    TRY(find_member(object, where, key, required, &member, err));
    if (!member) return OK;
    if (!cJSON_IsString(member)) return wrong_kind(member, where, key, "a string", err);
    *out = member->valuestring;
    return OK;
}

const char *json_names(const cJSON *object, char out[JSON_NAMES]) {
    size_t used = 0;
    out[0] = '\0';
    for (const cJSON *item = object->child; item && used + 40 < JSON_NAMES; item = item->next) {
        char name[33];
        error_escape(name, sizeof name, item->string, strlen(item->string));
        used += (size_t)snprintf(out + used, JSON_NAMES - used, "%s%s", used ? ", " : "", name);
    }
    return out;
}

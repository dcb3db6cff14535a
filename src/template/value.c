/* Values of a template with Python's semantics: truth, equality, and output as str, repr and JSON.
 *
 * Strings are UTF-8; lengths count characters. A byte that is not UTF-8 counts as one character: callers
 * insert such bytes to find a position again (data/chat.c). */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/normalize.h"
#include "template/internal.h"

/* ---- memory ---- */

enum { CHUNK = 16 << 10 };

typedef struct ArenaChunk {
    struct ArenaChunk *before;
    size_t used, size;
    _Alignas(16) char bytes[];
} ArenaChunk;

void *arena_take(Arena *a, size_t bytes) {
    bytes = (bytes + 15) / 16 * 16;
    if (!a->chunks || a->chunks->size - a->chunks->used < bytes) {
        size_t size = bytes > CHUNK ? bytes : CHUNK;
        ArenaChunk *fresh = mem_alloc(sizeof *fresh + size);
        fresh->before = a->chunks;
        fresh->size = size;
        a->chunks = fresh;
    }
    char *at = a->chunks->bytes + a->chunks->used;
    a->chunks->used += bytes;
    a->used += bytes;
    return at;
}

void arena_free(Arena *a) {
    while (a->chunks) {
        ArenaChunk *chunk = a->chunks;
        a->chunks = chunk->before;
        free(chunk);
    }
    *a = (Arena){0};
}

Value value_word(const char *word) { return value_string(word, strlen(word)); }

Value value_copy(Arena *a, const char *bytes, size_t size) {
    char *copy = arena_take(a, size + 1);
    if (size) memcpy(copy, bytes, size);
    return value_string(copy, size);
}

/* ---- from JSON ---- */

Value value_whole(Arena *a, const char *digits) {
    errno = 0;
    long long integer = strtoll(digits, NULL, 10);
    if (errno == 0) return value_int(integer);
    bool below = digits[0] == '-';
    digits += strspn(digits, "+-0");
    size_t length = strlen(digits);
    char *copy = arena_take(a, length + 2);
    copy[0] = '-';
    memcpy(copy + below, digits, length + 1);
    return (Value){.kind = VALUE_LONG, .bytes = copy, .size = length + below};
}

/* As in Python: a number without point and exponent is an integer, of any size. A tree that was not read by
 * json_parse_literals has only doubles, of which whole ones count as integers. */
static Value number_of(Arena *a, const cJSON *item) {
    const char *literal = item->valuestring;
    double number = item->valuedouble;
    bool whole = literal ? !strpbrk(literal, ".eE") : fabs(number) <= 0x1p53 && floor(number) >= number;
    if (!whole) return (Value){.kind = VALUE_FLOAT, .number = number};
    return literal ? value_whole(a, literal) : value_int((int64_t)number);
}

/* Recursion is safe: base/json.h bounds the depth of arrays and objects. */
Value value_of_json(Arena *a, const cJSON *item, bool copies) {
    if (cJSON_IsString(item) && !copies) return value_word(item->valuestring);
    if (cJSON_IsString(item)) return value_copy(a, item->valuestring, strlen(item->valuestring));
    if (cJSON_IsBool(item)) return value_bool(cJSON_IsTrue(item));
    if (cJSON_IsNumber(item)) return number_of(a, item);
    if (!cJSON_IsArray(item) && !cJSON_IsObject(item)) return (Value){.kind = VALUE_NONE};
    bool dict = cJSON_IsObject(item);
    size_t count = 0, n = 0;
    for (const cJSON *child = item->child; child; child = child->next) count++;
    Value *items = arena_take(a, count * (dict ? 2 : 1) * sizeof *items);
    for (const cJSON *child = item->child; child; child = child->next) {
        if (dict) items[n++] = value_copy(a, child->string, strlen(child->string));
        items[n++] = value_of_json(a, child, copies);
    }
    return (Value){.kind = dict ? VALUE_DICT : VALUE_LIST, .items = items, .size = count};
}

/* ---- truth and order ---- */

bool value_is_number(const Value *v) {
    return v->kind == VALUE_BOOL || v->kind == VALUE_INT || v->kind == VALUE_LONG || v->kind == VALUE_FLOAT;
}

double value_number(const Value *v) {
    if (v->kind == VALUE_LONG) return strtod(v->bytes, NULL);
    return v->kind == VALUE_FLOAT ? v->number : (double)v->integer;
}

/* The digits of an integer, with its sign. A double of 2^63 or more is an integer, which "%.0f" prints
 * exactly. */
static const char *digits_of(const Value *v, char out[400]) {
    if (v->kind == VALUE_LONG) return v->bytes;
    if (v->kind == VALUE_FLOAT)
        snprintf(out, 400, "%.0f", v->number);
    else
        snprintf(out, 400, "%lld", (long long)v->integer);
    return out;
}

static int order_digits(const char *a, const char *b) {
    bool below = a[0] == '-';
    if (below != (b[0] == '-')) return below ? -1 : 1;
    size_t x = strlen(a), y = strlen(b);
    int order = x != y ? (x < y ? -1 : 1) : strcmp(a, b);
    order = (order > 0) - (order < 0);
    return below ? -order : order;
}

static int order_doubles(double x, double y) { return x < y ? -1 : x > y; }

/* As in Python, an integer and a float are compared without rounding either. */
int value_order(const Value *a, const Value *b) {
    char x[400], y[400];
    if (a->kind == VALUE_FLOAT && b->kind != VALUE_FLOAT) {
        int order = value_order(b, a);
        return order == 2 ? 2 : -order;
    }
    if (b->kind != VALUE_FLOAT) return order_digits(digits_of(a, x), digits_of(b, y));
    if (isnan(b->number) || (a->kind == VALUE_FLOAT && isnan(a->number))) return 2;
    if (a->kind == VALUE_FLOAT) return order_doubles(a->number, b->number);
    if (isinf(b->number)) return b->number < 0 ? 1 : -1;
    if (fabs(b->number) >= 0x1p63) return order_digits(digits_of(a, x), digits_of(b, y));
    if (a->kind == VALUE_LONG) return a->bytes[0] == '-' ? -1 : 1;
    int64_t whole = (int64_t)floor(b->number);
    if (a->integer != whole) return a->integer < whole ? -1 : 1;
    return floor(b->number) < b->number ? -1 : 0;
}

bool value_truth(const Value *v) {
    switch (v->kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL:
    case VALUE_INT: return v->integer != 0;
    case VALUE_LONG: return true;
    case VALUE_FLOAT: return v->number < 0 || v->number > 0 || isnan(v->number);
    case VALUE_STRING:
    case VALUE_LIST:
    case VALUE_DICT: return v->size > 0;
    case VALUE_NAMESPACE:
    case VALUE_MACRO: return true;
    }
    return false;
}

static bool dicts_equal(const Value *a, const Value *b) {
    for (size_t i = 0; i < a->size; i++) {
        bool found = false;
        for (size_t k = 0; k < b->size && !found; k++)
            found = value_equal(&a->items[2 * i], &b->items[2 * k]) &&
                    value_equal(&a->items[2 * i + 1], &b->items[2 * k + 1]);
        if (!found) return false;
    }
    return a->size == b->size;
}

static bool lists_equal(const Value *a, const Value *b) {
    if ((a->form == FORM_TUPLE) != (b->form == FORM_TUPLE)) return false;
    for (size_t i = 0; i < a->size && a->size == b->size; i++)
        if (!value_equal(&a->items[i], &b->items[i])) return false;
    return a->size == b->size;
}

bool value_equal(const Value *a, const Value *b) {
    if (value_is_number(a) && value_is_number(b)) return value_order(a, b) == 0;
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: return true;
    case VALUE_STRING: return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
    case VALUE_LIST: return lists_equal(a, b);
    case VALUE_DICT: return dicts_equal(a, b);
    case VALUE_NAMESPACE: return a->space == b->space;
    case VALUE_MACRO: return a->macro == b->macro;
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_LONG:
    case VALUE_FLOAT: break; /* handled above */
    }
    return false;
}

const Value *value_member(const Value *v, const char *key, size_t length) {
    const Value *items = v->kind == VALUE_NAMESPACE ? v->space->items : v->items;
    size_t count = v->kind == VALUE_NAMESPACE ? v->space->count : v->kind == VALUE_DICT ? v->size : 0;
    for (size_t i = 0; i < count; i++) {
        const Value *name = &items[2 * i];
        if (name->kind == VALUE_STRING && name->size == length && memcmp(name->bytes, key, length) == 0)
            return &items[2 * i + 1];
    }
    return NULL;
}

const Value *value_item(const Value *dict, const Value *key) {
    for (size_t i = 0; i < dict->size; i++)
        if (value_equal(&dict->items[2 * i], key)) return &dict->items[2 * i + 1];
    return NULL;
}

bool value_is_key(const Value *v) {
    return v->kind == VALUE_STRING || v->kind == VALUE_NONE || value_is_number(v);
}

const char *value_kind_name(const Value *v) {
    static const char *const names[] = {
        "undefined", "none",     "a bool", "a whole number", "a whole number beyond 64 bits",
        "a number",  "a string", "a list", "a mapping",      "a namespace",
        "a function"};
    return names[v->kind];
}

bool value_weigh(const Value *v, int depth, size_t *left) {
    if (*left == 0 || depth == 0) return false;
    --*left;
    size_t count = v->kind == VALUE_DICT ? 2 * v->size : v->kind == VALUE_LIST ? v->size : 0;
    for (size_t i = 0; i < count; i++)
        if (!value_weigh(&v->items[i], depth - 1, left)) return false;
    return true;
}

/* ---- characters ---- */

static size_t character_bytes(const char *bytes, size_t size) {
    size_t n = text_utf8(bytes, size, NULL);
    return n ? n : 1;
}

size_t string_characters(const char *bytes, size_t size) {
    size_t count = 0;
    for (size_t at = 0; at < size; at += character_bytes(bytes + at, size - at)) count++;
    return count;
}

size_t string_offset(const char *bytes, size_t size, size_t character) {
    size_t at = 0;
    for (; character > 0 && at < size; character--) at += character_bytes(bytes + at, size - at);
    return at;
}

/* The white space that str.strip removes, which is not quite Unicode's White_Space. */
bool is_python_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

Value value_escape(Arena *a, const Value *v) {
    static const char special[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (v->form == FORM_MARKUP) return *v;
    Text text = {0};
    for (size_t i = 0; i < v->size; i++) {
        const char *at = v->bytes[i] ? strchr(special, v->bytes[i]) : NULL;
        if (at)
            text_puts(&text, entities[at - special]);
        else
            text_add(&text, &v->bytes[i], 1);
    }
    Value out = value_copy(a, text.data, text.length);
    out.form = FORM_MARKUP;
    text_free(&text);
    return out;
}

/* ---- output ---- */

/* Whether this many decimals identify the number. Above a power of two, doubles are twice as far apart as
 * below: there the next larger decimals may identify it where the nearest do not. */
static bool shortest(double number, int places, char digits[40]) {
    snprintf(digits, 40, "%.*e", places, number);
    if (order_doubles(strtod(digits, NULL), number) == 0) return true;
    snprintf(digits, 40, "%.*Le", places, number * (1 + 0x1p-53L));
    return order_doubles(strtod(digits, NULL), number) == 0;
}

/* Python's repr of a float: the shortest digits, ".0" if it is whole, "1e+16" from 1e16 on and "1e-05" below
 * 1e-4. `words` are those for NaN and the infinities, which differ in JSON. */
static void print_float(double number, const char *const words[3], Text *out) {
    char digits[40], *point;
    if (isnan(number) || isinf(number)) {
        text_puts(out, words[isnan(number) ? 0 : number > 0 ? 1 : 2]);
        return;
    }
    int places = 0;
    while (places < 17 && !shortest(number, places, digits)) places++;
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        text_puts(out, digits);
        return;
    }
    snprintf(digits, sizeof digits, "%.*f", places > exponent ? places - exponent : 0, number);
    point = strchr(digits, '.');
    text_printf(out, "%s%s", digits, point ? "" : ".0");
}

/* The escape for characters that repr does not print: controls, formats, separators except the space, and
 * unassigned ones. */
static void print_code(uint32_t code, Text *out) {
    text_printf(out, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
}

static void print_character(const char *bytes, size_t n, char quote, Text *out) {
    static const char letters[] = "\n\r\t\\", names[] = "nrt\\";
    uint32_t code = 0;
    const char *letter = bytes[0] ? strchr(letters, bytes[0]) : NULL;
    if (letter)
        text_printf(out, "\\%c", names[letter - letters]);
    else if (bytes[0] == quote)
        text_printf(out, "\\%c", quote);
    else if (text_utf8(bytes, n, &code) && !unicode_is_printable(code))
        print_code(code, out);
    else
        text_add(out, bytes, n);
}

/* Python's repr of a string: single quotes, unless it contains such and no double ones. */
static void print_quoted(const Value *v, Text *out) {
    bool single = memchr(v->bytes, '\'', v->size) != NULL, twice = memchr(v->bytes, '"', v->size) != NULL;
    char quote = single && !twice ? '"' : '\'';
    if (v->form == FORM_MARKUP) text_puts(out, "Markup(");
    text_add(out, &quote, 1);
    for (size_t at = 0, n; at < v->size; at += n) {
        n = character_bytes(v->bytes + at, v->size - at);
        print_character(v->bytes + at, n, quote, out);
    }
    text_add(out, &quote, 1);
    if (v->form == FORM_MARKUP) text_puts(out, ")");
}

static void print_item(const Value *v, Text *out) {
    if (v->kind == VALUE_STRING)
        print_quoted(v, out);
    else
        value_print(v, out);
}

static void print_items(const Value *v, Text *out) {
    bool dict = v->kind == VALUE_DICT, tuple = !dict && v->form == FORM_TUPLE;
    text_puts(out, dict ? "{" : tuple ? "(" : "[");
    for (size_t i = 0; i < v->size; i++) {
        if (i > 0) text_puts(out, ", ");
        print_item(&v->items[dict ? 2 * i : i], out);
        if (!dict) continue;
        text_puts(out, ": ");
        print_item(&v->items[2 * i + 1], out);
    }
    if (tuple && v->size == 1) text_puts(out, ",");
    text_puts(out, dict ? "}" : tuple ? ")" : "]");
}

void value_print(const Value *v, Text *out) {
    switch (v->kind) {
    case VALUE_UNDEFINED: break;
    case VALUE_NONE: text_puts(out, "None"); break;
    case VALUE_BOOL: text_puts(out, v->integer ? "True" : "False"); break;
    case VALUE_INT: text_printf(out, "%lld", (long long)v->integer); break;
    case VALUE_FLOAT: print_float(v->number, (const char *const[]){"nan", "inf", "-inf"}, out); break;
    case VALUE_LONG:
    case VALUE_STRING: text_add(out, v->bytes, v->size); break;
    case VALUE_LIST:
    case VALUE_DICT: print_items(v, out); break;
    case VALUE_NAMESPACE: text_puts(out, "<Namespace>"); break;
    case VALUE_MACRO: text_puts(out, "<Macro>"); break;
    }
}

/* ---- JSON output ---- */

/* Not base/json.h's writer: each byte must be that of json.dumps. */
static void json_character(const char *bytes, size_t n, bool ascii, Text *out) {
    static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    uint32_t code = 0;
    const char *at = bytes[0] ? strchr(plain, bytes[0]) : NULL;
    bool known = text_utf8(bytes, n, &code) > 0;
    if (at)
        text_printf(out, "\\%c", letters[at - plain]);
    else if (known && (code < 0x20 || (ascii && code >= 0x7f && code < 0x10000)))
        text_printf(out, "\\u%04x", code);
    else if (known && ascii && code >= 0x10000)
        text_printf(out, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
    else
        text_add(out, bytes, n);
}

static void json_text(const Value *v, bool ascii, Text *out) {
    text_puts(out, "\"");
    for (size_t at = 0, n; at < v->size; at += n) {
        n = character_bytes(v->bytes + at, v->size - at);
        json_character(v->bytes + at, n, ascii, out);
    }
    text_puts(out, "\"");
}

static int by_key(const void *a, const void *b) {
    const Value *x = *(const Value *const *)a, *y = *(const Value *const *)b;
    size_t least = x->size < y->size ? x->size : y->size;
    int order = x->kind == VALUE_STRING && y->kind == VALUE_STRING ? memcmp(x->bytes, y->bytes, least) : 0;
    if (order != 0) return order;
    return x->size < y->size ? -1 : x->size > y->size;
}

static void json_value(const Value *v, JsonStyle s, Text *out);

static void json_line(JsonStyle s, Text *out) {
    if (s.indent < 0) return;
    text_puts(out, "\n");
    for (int i = 0; i < s.indent * s.depth; i++) text_puts(out, " ");
}

/* A key that is not a string is written as one. */
static void json_key(const Value *key, JsonStyle s, Text *out) {
    const char *quote = key->kind == VALUE_STRING ? "" : "\"";
    text_puts(out, quote);
    json_value(key, s, out);
    text_puts(out, quote);
}

static void json_items(const Value *v, JsonStyle s, Text *out) {
    bool dict = v->kind == VALUE_DICT;
    const Value **order = mem_alloc_array(v->size + 1, sizeof(Value *));
    for (size_t i = 0; i < v->size; i++) order[i] = &v->items[dict ? 2 * i : i];
    if (dict && s.sorted) qsort(order, v->size, sizeof(Value *), by_key);
    JsonStyle inner = s;
    inner.depth++;
    text_puts(out, dict ? "{" : "[");
    for (size_t i = 0; i < v->size; i++) {
        if (i > 0) text_add(out, s.comma.bytes, s.comma.size);
        json_line(inner, out);
        if (!dict) {
            json_value(order[i], inner, out);
            continue;
        }
        json_key(order[i], inner, out);
        text_add(out, s.colon.bytes, s.colon.size);
        json_value(order[i] + 1, inner, out);
    }
    if (v->size) json_line(s, out);
    text_puts(out, dict ? "}" : "]");
    free(order);
}

static void json_value(const Value *v, JsonStyle s, Text *out) {
    switch (v->kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: text_puts(out, "null"); break;
    case VALUE_BOOL: text_puts(out, v->integer ? "true" : "false"); break;
    case VALUE_INT:
    case VALUE_LONG: value_print(v, out); break;
    case VALUE_FLOAT:
        print_float(v->number, (const char *const[]){"NaN", "Infinity", "-Infinity"}, out);
        break;
    case VALUE_STRING: json_text(v, s.ascii, out); break;
    case VALUE_LIST:
    case VALUE_DICT: json_items(v, s, out); break;
    case VALUE_NAMESPACE:
    case VALUE_MACRO: break; /* the filter refuses them */
    }
}

void value_json(const Value *v, JsonStyle style, Text *out) { json_value(v, style, out); }

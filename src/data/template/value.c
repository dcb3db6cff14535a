/* Values of a template, as Python has them: truth, equality, and the two ways in which they are written.
 *
 * Strings are UTF-8 and count in characters. A byte that is no UTF-8 counts as a character: callers put such
 * bytes between others to find a place again (data/chat.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/template/internal.h"

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

/* cJSON keeps doubles: what is whole is taken for a whole number, as nearly all are. */
static Value number_of(double number) {
    bool whole = number >= -9007199254740992.0 && number <= 9007199254740992.0 && floor(number) >= number;
    if (whole) return value_int((int64_t)number);
    return (Value){.kind = VALUE_FLOAT, .number = number};
}

/* Arrays and objects are few and shallow (base/json.h bounds their depth). */
Value value_of_json(Arena *a, const cJSON *item) {
    if (cJSON_IsString(item)) return value_copy(a, item->valuestring, strlen(item->valuestring));
    if (cJSON_IsBool(item)) return value_bool(cJSON_IsTrue(item));
    if (cJSON_IsNumber(item)) return number_of(item->valuedouble);
    if (!cJSON_IsArray(item) && !cJSON_IsObject(item)) return (Value){.kind = VALUE_NONE};
    bool dict = cJSON_IsObject(item);
    size_t count = 0, n = 0;
    for (const cJSON *child = item->child; child; child = child->next) count++;
    Value *items = arena_take(a, count * (dict ? 2 : 1) * sizeof *items);
    for (const cJSON *child = item->child; child; child = child->next) {
        if (dict) items[n++] = value_copy(a, child->string, strlen(child->string));
        items[n++] = value_of_json(a, child);
    }
    return (Value){.kind = dict ? VALUE_DICT : VALUE_LIST, .items = items, .size = count};
}

/* ---- what they are worth ---- */

bool value_is_number(const Value *v) {
    return v->kind == VALUE_BOOL || v->kind == VALUE_INT || v->kind == VALUE_FLOAT;
}

double value_number(const Value *v) { return v->kind == VALUE_FLOAT ? v->number : (double)v->integer; }

bool value_truth(const Value *v) {
    switch (v->kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL:
    case VALUE_INT: return v->integer != 0;
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
    if (value_is_number(a) && value_is_number(b)) {
        double x = value_number(a), y = value_number(b);
        return x <= y && x >= y;
    }
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
    case VALUE_FLOAT: break; /* above */
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

const char *value_kind_name(const Value *v) {
    static const char *const names[] = {"undefined", "none",   "a bool",    "a whole number", "a number",
                                        "a string",  "a list", "a mapping", "a namespace",    "a macro"};
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

/* What str.strip takes off, which is not quite Unicode's White_Space. */
bool is_python_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

/* ---- written out ---- */

/* Python's repr of a float: the shortest digits, ".0" where it is whole, "1e+16" beyond. */
static void print_float(double number, Text *out) {
    char digits[32];
    if (isnan(number) || isinf(number)) {
        text_puts(out, isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
        return;
    }
    if (floor(number) >= number && fabs(number) < 1e16) {
        text_printf(out, "%.1f", number);
        return;
    }
    text_double(number, digits);
    if (fabs(number) >= 1e-4 && fabs(number) < 1e16 && strchr(digits, 'e')) {
        int places = 0;
        char fixed[64];
        do snprintf(fixed, sizeof fixed, "%.*f", ++places, number);
        while (places < 40 && (strtod(fixed, NULL) < number || strtod(fixed, NULL) > number));
        text_puts(out, fixed);
        return;
    }
    text_puts(out, digits);
}

/* Python's repr of a string: single quotes, unless it holds such and no double ones. */
static void print_quoted(const Value *v, Text *out) {
    bool single = memchr(v->bytes, '\'', v->size) != NULL, twice = memchr(v->bytes, '"', v->size) != NULL;
    char quote = single && !twice ? '"' : '\'';
    text_add(out, &quote, 1);
    for (size_t i = 0; i < v->size; i++) {
        unsigned char c = (unsigned char)v->bytes[i];
        if (c == '\n' || c == '\r' || c == '\t')
            text_puts(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (c < 0x20 || c == 0x7f)
            text_printf(out, "\\x%02x", c);
        else {
            if (c == '\\' || c == (unsigned char)quote) text_puts(out, "\\");
            text_add(out, &v->bytes[i], 1);
        }
    }
    text_add(out, &quote, 1);
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
    case VALUE_FLOAT: print_float(v->number, out); break;
    case VALUE_STRING: text_add(out, v->bytes, v->size); break;
    case VALUE_LIST:
    case VALUE_DICT: print_items(v, out); break;
    case VALUE_NAMESPACE: text_puts(out, "<Namespace>"); break;
    case VALUE_MACRO: text_puts(out, "<Macro>"); break;
    }
}

/* ---- as JSON ---- */

/* Not base/json.h's writer, which writes as its own readers like it: here each byte must be json.dumps's. */
static void json_text(const Value *v, Text *out) {
    static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    text_puts(out, "\"");
    for (size_t i = 0; i < v->size; i++) {
        char c = v->bytes[i];
        const char *at = c ? strchr(plain, c) : NULL;
        if (at)
            text_printf(out, "\\%c", letters[at - plain]);
        else if ((unsigned char)c < 0x20)
            text_printf(out, "\\u%04x", (unsigned)c);
        else
            text_add(out, &c, 1);
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

typedef struct JsonStyle {
    int indent;
    bool sorted;
    int depth;
} JsonStyle;

static void json_value(const Value *v, JsonStyle s, Text *out);

static void json_line(JsonStyle s, Text *out) {
    if (s.indent < 0) return;
    text_puts(out, "\n");
    for (int i = 0; i < s.indent * s.depth; i++) text_puts(out, " ");
}

static void json_items(const Value *v, JsonStyle s, Text *out) {
    bool dict = v->kind == VALUE_DICT;
    const Value **order = mem_alloc_array(v->size + 1, sizeof(Value *));
    for (size_t i = 0; i < v->size; i++) order[i] = &v->items[dict ? 2 * i : i];
    if (dict && s.sorted) qsort(order, v->size, sizeof(Value *), by_key);
    JsonStyle inner = {s.indent, s.sorted, s.depth + 1};
    text_puts(out, dict ? "{" : "[");
    for (size_t i = 0; i < v->size; i++) {
        if (i > 0) text_puts(out, s.indent < 0 ? ", " : ",");
        json_line(inner, out);
        json_value(order[i], inner, out);
        if (!dict) continue;
        text_puts(out, ": ");
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
    case VALUE_FLOAT: value_print(v, out); break;
    case VALUE_STRING: json_text(v, out); break;
    case VALUE_LIST:
    case VALUE_DICT: json_items(v, s, out); break;
    case VALUE_NAMESPACE:
    case VALUE_MACRO: break; /* the filter refuses them */
    }
}

void value_json(const Value *v, int indent, bool sorted, Text *out) {
    json_value(v, (JsonStyle){indent, sorted, 0}, out);
}

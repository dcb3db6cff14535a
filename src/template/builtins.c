/* What templates can call: filters, tests, methods of strings and mappings, functions. A builtin is a table
 * entry and a function; arguments, positional or named, are bound to parameters in one place for all.
 *
 * Letters whose other case has several characters or depends on neighbours (upper, lower, capitalize, title)
 * are refused: an error is better than a different result. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "tokenizer/normalize.h"
#include "template/internal.h"

enum { ANY = -1, PARAMETERS = 4, LONGEST_RANGE = 100000 /* the sandbox's own limit */ };

/* A call with its arguments bound to parameters; missing ones are NULL. */
typedef struct Frame {
    Run *run;
    int line;
    const char *name;
    const Value *self;
    const Value *args[PARAMETERS];
    const Call *call;
} Frame;

typedef struct Builtin {
    const char *name;
    ErrorCode (*call)(Frame *f, Value *out);
    int least; /* number of required arguments; ANY: any number, none bound to a parameter */
    const char *parameters[PARAMETERS];
} Builtin;

static ErrorCode bind(const Builtin *b, Call *c, Frame *f) {
    *f = (Frame){.run = c->run, .line = c->line, .name = b->name, .self = c->self, .call = c};
    size_t most = 0;
    if (b->least == ANY) return OK;
    while (most < PARAMETERS && b->parameters[most]) most++;
    if (c->count > most)
        return run_fail(c->run, c->line, "%s takes at most %zu arguments, and here are %zu", b->name, most,
                        c->count);
    for (size_t i = 0; i < c->count; i++) f->args[i] = &c->items[i];
    for (size_t i = 0; i < c->named; i++) {
        size_t k = 0;
        while (k < most && strcmp(b->parameters[k], c->names[i]) != 0) k++;
        if (k == most || f->args[k])
            return run_fail(c->run, c->line, "%s takes no argument %s=, or not twice", b->name, c->names[i]);
        f->args[k] = &c->named_items[i];
    }
    for (int i = 0; i < b->least; i++)
        if (!f->args[i])
            return run_fail(c->run, c->line, "%s lacks its argument %s", b->name, b->parameters[i]);
    return OK;
}

static int find(const Builtin *table, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0) return i;
    return -1;
}

/* ---- arguments ---- */

static ErrorCode need_string(const Frame *f, const Value *v) {
    if (v->kind == VALUE_STRING) return OK;
    return run_fail(f->run, f->line, "%s wants a string, and got %s", f->name, value_kind_name(v));
}

static bool given(const Value *v) { return v && v->kind != VALUE_NONE; }

/* Filters of strings accept any value, as it would print. */
static Value as_string(Frame *f, const Value *v) {
    if (v->kind == VALUE_STRING) return *v;
    Text text = {0};
    value_print(v, &text);
    Value copy = value_copy(&f->run->arena, text.data, text.length);
    text_free(&text);
    return copy;
}

/* ---- strings ---- */

typedef enum Side { SIDE_LEFT = 1, SIDE_RIGHT = 2 } Side;

/* Whether a character is one of `chars`, or white space without them. */
static bool strips(const Value *chars, const char *at, size_t bytes) {
    uint32_t code;
    if (!given(chars)) return text_utf8(at, bytes, &code) > 0 && is_python_space(code);
    for (size_t i = 0, n; i < chars->size; i += n) {
        n = text_utf8(chars->bytes + i, chars->size - i, NULL);
        if (n == 0) n = 1;
        if (n == bytes && memcmp(chars->bytes + i, at, n) == 0) return true;
    }
    return false;
}

static Value strip(Value s, const Value *chars, int sides) {
    while ((sides & SIDE_LEFT) && s.size > 0) {
        size_t n = string_offset(s.bytes, s.size, 1);
        if (!strips(chars, s.bytes, n)) break;
        s = value_string(s.bytes + n, s.size - n);
    }
    while ((sides & SIDE_RIGHT) && s.size > 0) {
        size_t at = s.size - 1;
        while (at > 0 && s.size - at < 4 && ((unsigned char)s.bytes[at] & 0xc0) == 0x80) at--;
        if (!strips(chars, s.bytes + at, s.size - at)) break;
        s.size = at;
    }
    return s;
}

static ErrorCode strip_sides(Frame *f, int sides, Value *out) {
    if (given(f->args[0])) TRY(need_string(f, f->args[0]));
    Value s = as_string(f, f->self);
    *out = strip(s, f->args[0], sides);
    out->form = s.form;
    return OK;
}

static ErrorCode do_strip(Frame *f, Value *out) { return strip_sides(f, SIDE_LEFT | SIDE_RIGHT, out); }
static ErrorCode do_lstrip(Frame *f, Value *out) { return strip_sides(f, SIDE_LEFT, out); }
static ErrorCode do_rstrip(Frame *f, Value *out) { return strip_sides(f, SIDE_RIGHT, out); }

/* Appends one character in another case. A byte that is not a character is unchanged. */
static ErrorCode put_case(Frame *f, const char *bytes, size_t n, char to, Text *out) {
    uint32_t code = 0;
    if (text_utf8(bytes, n, &code) == 0) {
        text_add(out, bytes, n);
        return OK;
    }
    uint32_t other = unicode_case(code, to);
    if (other == 0 && code != 0)
        return run_fail(f->run, f->line, "weft's %s does not have the letter U+%04X", f->name, code);
    text_put_character(out, other);
    return OK;
}

/* Converts each character to case `rest`, or to `first` where begins(text, offset) is true. */
static ErrorCode change_case(Frame *f, char first, char rest, bool (*begins)(const char *, size_t),
                             Value *out) {
    Value s = as_string(f, f->self);
    Text text = {0};
    ErrorCode code = OK;
    for (size_t at = 0, n; at < s.size && code == OK; at += n) {
        n = string_offset(s.bytes + at, s.size - at, 1);
        code = put_case(f, s.bytes + at, n, begins(s.bytes, at) ? first : rest, &text);
    }
    *out = value_copy(&f->run->arena, text.data, text.length);
    out->form = s.form;
    text_free(&text);
    return code;
}

static bool at_start(const char *bytes, size_t at) {
    (void)bytes;
    return at == 0;
}

/* Words of Jinja's title begin after white space, hyphens and opening brackets. */
static bool at_word(const char *bytes, size_t at) {
    if (at == 0 || (bytes[at - 1] && strchr("-({[<", bytes[at - 1]))) return true;
    size_t before = at - 1;
    uint32_t code = 0;
    while (before > 0 && ((unsigned char)bytes[before] & 0xc0) == 0x80) before--;
    return text_utf8(bytes + before, at - before, &code) > 0 && is_python_space(code);
}

static bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static bool behind_letters(const char *bytes, size_t at) {
    return at == 0 || !is_ascii_letter(bytes[at - 1]);
}

static ErrorCode do_upper(Frame *f, Value *out) { return change_case(f, 'u', 'u', at_start, out); }
static ErrorCode do_lower(Frame *f, Value *out) { return change_case(f, 'l', 'l', at_start, out); }
static ErrorCode do_capitalize(Frame *f, Value *out) { return change_case(f, 't', 'l', at_start, out); }

static ErrorCode do_title(Frame *f, Value *out) {
    TRY(change_case(f, 'u', 'l', at_word, out));
    out->form = FORM_PLAIN;
    return OK;
}

/* For Python's method, words are runs of letters: "it's" becomes "It'S". */
static ErrorCode do_title_method(Frame *f, Value *out) {
    for (size_t i = 0; i < f->self->size; i++)
        if ((unsigned char)f->self->bytes[i] >= 0x80)
            return run_fail(f->run, f->line, "weft's .title() is for ASCII alone");
    return change_case(f, 't', 'l', behind_letters, out);
}

static ErrorCode whole_number(const Frame *f, const Value *v, int64_t *out) {
    *out = 0;
    if (v->kind != VALUE_INT && v->kind != VALUE_BOOL)
        return run_fail(f->run, f->line, "%s wants a whole number, and got %s", f->name, value_kind_name(v));
    *out = v->integer;
    return OK;
}

static ErrorCode do_replace(Frame *f, Value *out) {
    Value s = as_string(f, f->self), old = as_string(f, f->args[0]), new = as_string(f, f->args[1]);
    int64_t most = -1;
    if (given(f->args[2])) TRY(whole_number(f, f->args[2], &most));
    if (old.size == 0) return run_fail(f->run, f->line, "replace of an empty string");
    Text text = {0};
    const char *at = s.bytes, *end = s.bytes + s.size, *hit;
    ErrorCode code = OK;
    while (code == OK && most-- != 0 && (hit = memmem(at, (size_t)(end - at), old.bytes, old.size)) != NULL) {
        text_add(&text, at, (size_t)(hit - at));
        text_add(&text, new.bytes, new.size);
        at = hit + old.size;
        code = run_check_size(f->run, f->line, text.length);
    }
    text_add(&text, at, (size_t)(end - at));
    *out = value_copy(&f->run->arena, text.data, text.length);
    text_free(&text);
    return code;
}

/* The filter's result is plain; the method of Markup escapes the replacement. */
static ErrorCode do_replace_method(Frame *f, Value *out) {
    Value new = *f->args[1];
    TRY(need_string(f, f->args[0]));
    TRY(need_string(f, &new));
    if (f->self->form == FORM_MARKUP) new = value_escape(&f->run->arena, &new);
    f->args[1] = &new;
    return do_replace(f, out);
}

/* A growing list of values, to be moved to the arena. */
typedef struct Values {
    Value *items;
    size_t count, capacity;
} Values;

static void values_add(Values *v, Value item) {
    if (v->count == v->capacity) {
        v->capacity = 2 * v->capacity + 16;
        v->items = mem_grow(v->items, v->capacity * sizeof *v->items);
    }
    v->items[v->count++] = item;
}

static Value values_list(Frame *f, Values *v) {
    Value *items = arena_take(&f->run->arena, (v->count + 1) * sizeof *items);
    if (v->count) memcpy(items, v->items, v->count * sizeof *items);
    Value list = value_list(items, v->count);
    free(v->items);
    return list;
}

/* Splits at runs of white space. */
static Value split_words(Frame *f, Value s, int64_t most) {
    Values parts = {0};
    for (;;) {
        s = strip(s, NULL, SIDE_LEFT);
        if (s.size == 0) break;
        size_t end = 0;
        while (end < s.size) {
            size_t n = string_offset(s.bytes + end, s.size - end, 1);
            if (strips(NULL, s.bytes + end, n)) break;
            end += n;
        }
        if (most-- == 0) end = strip(s, NULL, SIDE_RIGHT).size;
        values_add(&parts, value_string(s.bytes, end));
        s = value_string(s.bytes + end, s.size - end);
    }
    return values_list(f, &parts);
}

static ErrorCode do_split(Frame *f, Value *out) {
    Value s = *f->self;
    int64_t most = -1;
    if (f->args[1]) TRY(whole_number(f, f->args[1], &most));
    if (!given(f->args[0])) {
        *out = split_words(f, s, most);
        return OK;
    }
    TRY(need_string(f, f->args[0]));
    const Value *by = f->args[0];
    if (by->size == 0) return run_fail(f->run, f->line, "split at an empty string");
    Values parts = {0};
    const char *at = s.bytes, *end = s.bytes + s.size, *hit;
    while (most-- != 0 && (hit = memmem(at, (size_t)(end - at), by->bytes, by->size)) != NULL) {
        values_add(&parts, value_string(at, (size_t)(hit - at)));
        at = hit + by->size;
    }
    values_add(&parts, value_string(at, (size_t)(end - at)));
    *out = values_list(f, &parts);
    return OK;
}

/* Splits from the right. */
static ErrorCode do_rsplit(Frame *f, Value *out) {
    int64_t most = -1;
    if (f->args[1]) TRY(whole_number(f, f->args[1], &most));
    TRY(do_split(
        &(Frame){.run = f->run, .line = f->line, .name = f->name, .self = f->self, .args = {f->args[0]}},
        out));
    size_t parts = out->size, joined = most >= 0 && parts > (size_t)most + 1 ? parts - (size_t)most : 1;
    if (joined == 1) return OK;
    if (!given(f->args[0])) return run_fail(f->run, f->line, "weft's rsplit at blanks takes no maxsplit");
    Value *items = arena_take(&f->run->arena, (parts + 1) * sizeof *items);
    memcpy(items, out->items + joined - 1, (parts - joined + 1) * sizeof *items);
    const Value *last = &out->items[joined - 1];
    items[0] = value_string(f->self->bytes, (size_t)(last->bytes + last->size - f->self->bytes));
    *out = value_list(items, parts - joined + 1);
    return OK;
}

/* Length of the line end that the text begins with; 0: none. */
static size_t line_end(const char *at, size_t left) {
    uint32_t c = 0;
    size_t n = text_utf8(at, left, &c);
    if (c == '\r' && left > 1 && at[1] == '\n') return 2;
    bool ends =
        (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return ends ? n : 0;
}

static Value split_lines(Frame *f, const Value *s) {
    Values lines = {0};
    size_t from = 0;
    for (size_t at = 0; at < s->size;) {
        size_t ends = line_end(s->bytes + at, s->size - at);
        if (ends) values_add(&lines, value_string(s->bytes + from, at - from));
        at += ends ? ends : string_offset(s->bytes + at, s->size - at, 1);
        if (ends) from = at;
    }
    if (from < s->size) values_add(&lines, value_string(s->bytes + from, s->size - from));
    return values_list(f, &lines);
}

static ErrorCode do_splitlines(Frame *f, Value *out) {
    *out = split_lines(f, f->self);
    return OK;
}

static bool has_at(const Value *s, const Value *part, bool front) {
    if (part->kind != VALUE_STRING || part->size > s->size) return false;
    return memcmp(s->bytes + (front ? 0 : s->size - part->size), part->bytes, part->size) == 0;
}

/* The argument is one string, or a tuple of which any may match. */
static ErrorCode has_any(Frame *f, bool front, Value *out) {
    const Value *parts = f->args[0];
    bool found = parts->kind == VALUE_STRING && has_at(f->self, parts, front);
    for (size_t i = 0; parts->kind == VALUE_LIST && i < parts->size; i++)
        found |= has_at(f->self, &parts->items[i], front);
    if (parts->kind != VALUE_LIST) TRY(need_string(f, parts));
    *out = value_bool(found);
    return OK;
}

static ErrorCode do_startswith(Frame *f, Value *out) { return has_any(f, true, out); }
static ErrorCode do_endswith(Frame *f, Value *out) { return has_any(f, false, out); }

static ErrorCode do_removeprefix(Frame *f, Value *out) {
    TRY(need_string(f, f->args[0]));
    size_t n = has_at(f->self, f->args[0], true) ? f->args[0]->size : 0;
    *out = value_string(f->self->bytes + n, f->self->size - n);
    return OK;
}

static ErrorCode do_removesuffix(Frame *f, Value *out) {
    TRY(need_string(f, f->args[0]));
    size_t n = has_at(f->self, f->args[0], false) ? f->args[0]->size : 0;
    *out = value_string(f->self->bytes, f->self->size - n);
    return OK;
}

static ErrorCode do_find(Frame *f, Value *out) {
    TRY(need_string(f, f->args[0]));
    const Value *s = f->self, *part = f->args[0];
    const char *hit = part->size ? memmem(s->bytes, s->size, part->bytes, part->size) : s->bytes;
    *out = value_int(hit ? (int64_t)string_characters(s->bytes, (size_t)(hit - s->bytes)) : -1);
    return OK;
}

static ErrorCode do_count(Frame *f, Value *out) {
    TRY(need_string(f, f->args[0]));
    const Value *s = f->self, *part = f->args[0];
    const char *at = s->bytes, *end = at + s->size, *hit;
    int64_t count = part->size ? 0 : (int64_t)string_characters(s->bytes, s->size) + 1;
    while (part->size && (hit = memmem(at, (size_t)(end - at), part->bytes, part->size)) != NULL) {
        count++;
        at = hit + part->size;
    }
    *out = value_int(count);
    return OK;
}

/* The sandbox that transformers uses refuses these methods too, when a rendering reaches them. */
static ErrorCode do_mutate(Frame *f, Value *out) {
    (void)out;
    return run_fail(f->run, f->line,
                    ".%s() would change a list or mapping, which templates may not, in transformers' sandbox "
                    "neither; collect in a namespace: ns.items = ns.items + [item]",
                    f->name);
}

static ErrorCode join(Frame *f, const Value *by, const Value *items, size_t count, Value *out) {
    Text text = {0};
    ErrorCode code = OK;
    for (size_t i = 0; i < count && code == OK; i++) {
        if (i > 0) text_add(&text, by->bytes, by->size);
        value_print(&items[i], &text);
        code = run_check_size(f->run, f->line, text.length);
    }
    *out = value_copy(&f->run->arena, text.data, text.length);
    text_free(&text);
    return code;
}

/* The method requires strings; the filter prints any value. */
static ErrorCode do_join_method(Frame *f, Value *out) {
    const Value *items;
    size_t count;
    TRY(value_iterate(f->run, f->line, f->args[0], &items, &count));
    Value *strings = arena_take(&f->run->arena, (count + 1) * sizeof *strings);
    for (size_t i = 0; i < count; i++) {
        TRY(need_string(f, &items[i]));
        strings[i] = f->self->form == FORM_MARKUP ? value_escape(&f->run->arena, &items[i]) : items[i];
    }
    return join(f, f->self, strings, count, out);
}

/* ---- mappings ---- */

static ErrorCode do_get(Frame *f, Value *out) {
    const Value *key = f->args[0];
    if (!value_is_key(key)) return run_fail(f->run, f->line, "%s cannot be a key", value_kind_name(key));
    const Value *found = value_item(f->self, key);
    *out = found ? *found : f->args[1] ? *f->args[1] : (Value){.kind = VALUE_NONE};
    return OK;
}

/* A list that Python yields item by item: it has at most a length. */
static Value view(Value list) {
    list.form = FORM_VIEW;
    return list;
}

static Value pair(Frame *f, const Value *key, const Value *value) {
    Value *both = arena_take(&f->run->arena, 2 * sizeof *both);
    both[0] = *key;
    both[1] = *value;
    return (Value){.kind = VALUE_LIST, .form = FORM_TUPLE, .items = both, .size = 2};
}

/* 'k': keys, 'v': values, 'i': pairs of both. */
static ErrorCode dict_part(Frame *f, char part, Value *out) {
    Values list = {0};
    const Value *d = f->self;
    if (d->kind == VALUE_UNDEFINED && part == 'i') {
        *out = values_list(f, &list);
        return OK;
    }
    if (d->kind != VALUE_DICT)
        return run_fail(f->run, f->line, "%s wants a mapping, and got %s", f->name, value_kind_name(d));
    for (size_t i = 0; i < d->size; i++) {
        const Value *key = &d->items[2 * i], *value = key + 1;
        values_add(&list, part == 'k' ? *key : part == 'v' ? *value : pair(f, key, value));
    }
    *out = view(values_list(f, &list));
    return OK;
}

static ErrorCode do_keys(Frame *f, Value *out) { return dict_part(f, 'k', out); }
static ErrorCode do_values(Frame *f, Value *out) { return dict_part(f, 'v', out); }
static ErrorCode do_items(Frame *f, Value *out) { return dict_part(f, 'i', out); }

/* ---- filters ---- */

static ErrorCode do_length(Frame *f, Value *out) {
    const Value *v = f->self;
    bool sized = v->kind == VALUE_LIST || v->kind == VALUE_DICT || v->kind == VALUE_STRING;
    if (!sized && v->kind != VALUE_UNDEFINED)
        return run_fail(f->run, f->line, "%s has no length", value_kind_name(v));
    *out = value_int(v->kind == VALUE_STRING ? (int64_t)string_characters(v->bytes, v->size)
                     : sized                 ? (int64_t)v->size
                                             : 0);
    return OK;
}

static ErrorCode do_default(Frame *f, Value *out) {
    bool falsy = f->args[1] && value_truth(f->args[1]) && !value_truth(f->self);
    *out = *f->self;
    if (f->self->kind == VALUE_UNDEFINED || falsy) *out = f->args[0] ? *f->args[0] : value_word("");
    return OK;
}

static ErrorCode end_item(Frame *f, bool last, Value *out) {
    const Value *items;
    size_t count;
    TRY(value_iterate(f->run, f->line, f->self, &items, &count));
    *out = (Value){.kind = VALUE_UNDEFINED, .bytes = "an item of an empty list"};
    if (count > 0) *out = items[last ? count - 1 : 0];
    return OK;
}

static ErrorCode do_first(Frame *f, Value *out) { return end_item(f, false, out); }
static ErrorCode do_last(Frame *f, Value *out) { return end_item(f, true, out); }

static ErrorCode do_list(Frame *f, Value *out) {
    const Value *items;
    size_t count;
    TRY(value_iterate(f->run, f->line, f->self, &items, &count));
    *out = value_list(items, count);
    return OK;
}

static ErrorCode do_string(Frame *f, Value *out) {
    *out = as_string(f, f->self);
    return OK;
}

static ErrorCode do_safe(Frame *f, Value *out) {
    *out = as_string(f, f->self);
    out->form = FORM_MARKUP;
    return OK;
}

static ErrorCode do_escape(Frame *f, Value *out) {
    Value s = as_string(f, f->self);
    *out = value_escape(&f->run->arena, &s);
    return OK;
}

static ErrorCode do_forceescape(Frame *f, Value *out) {
    Value s = as_string(f, f->self);
    s.form = FORM_PLAIN;
    *out = value_escape(&f->run->arena, &s);
    return OK;
}

/* Copies a string without surrounding white space to `digits`, with a NUL; false if it is longer than a
 * number, or has other characters. */
static bool number_text(const Value *v, char digits[400]) {
    Value s = strip(*v, NULL, SIDE_LEFT | SIDE_RIGHT);
    if (s.size == 0 || s.size >= 400) return false;
    memcpy(digits, s.bytes, s.size);
    digits[s.size] = 0;
    return strspn(digits, "0123456789+-.eE") == s.size;
}

static bool is_whole(const char *digits) {
    digits += *digits == '+' || *digits == '-';
    return *digits && strspn(digits, "0123456789") == strlen(digits);
}

/* A number, or a string that contains one. *whole is set if it is an integer as written. */
static bool number_in(Frame *f, const Value *v, double *number, Value *whole) {
    char digits[400], *end;
    *number = 0;
    *whole = v->kind == VALUE_BOOL ? value_int(v->integer) : *v;
    if (value_is_number(v)) {
        *number = value_number(v);
        return true;
    }
    if (v->kind != VALUE_STRING || !number_text(v, digits)) return false;
    if (is_whole(digits)) *whole = value_whole(&f->run->arena, digits);
    *number = strtod(digits, &end);
    return *end == 0;
}

/* Rounds towards zero. */
static Value truncated(Frame *f, double number) {
    char digits[400];
    snprintf(digits, sizeof digits, "%.0f", trunc(number));
    return value_whole(&f->run->arena, digits);
}

/* The default if the value is not a number. */
static ErrorCode do_int(Frame *f, Value *out) {
    double number;
    bool good = number_in(f, f->self, &number, out);
    if (good && (out->kind == VALUE_INT || out->kind == VALUE_LONG)) return OK;
    if (good && isfinite(number))
        *out = truncated(f, number);
    else
        *out = f->args[0] ? *f->args[0] : value_int(0);
    return OK;
}

static ErrorCode do_float(Frame *f, Value *out) {
    double number;
    Value whole;
    bool good = number_in(f, f->self, &number, &whole);
    *out = (Value){.kind = VALUE_FLOAT, .number = number};
    if (!good && f->args[0]) *out = *f->args[0];
    return OK;
}

/* "function.name": a member of a member. */
static Value attribute_path(const Value *of, const Value *path) {
    Value at = *of;
    const char *from = path->bytes, *end = path->bytes + path->size;
    while (from <= end) {
        const char *dot = memchr(from, '.', (size_t)(end - from));
        size_t length = (size_t)((dot ? dot : end) - from);
        at = value_attribute(&at, from, length);
        from += length + 1;
    }
    return at;
}

static ErrorCode do_join(Frame *f, Value *out) {
    const Value *items;
    size_t count;
    Value by = f->args[0] ? as_string(f, f->args[0]) : value_word("");
    TRY(value_iterate(f->run, f->line, f->self, &items, &count));
    if (given(f->args[1])) {
        TRY(need_string(f, f->args[1]));
        Value *parts = arena_take(&f->run->arena, (count + 1) * sizeof *parts);
        for (size_t i = 0; i < count; i++) parts[i] = attribute_path(&items[i], f->args[1]);
        items = parts;
    }
    return join(f, &by, items, count, out);
}

static ErrorCode do_reverse(Frame *f, Value *out) {
    const Value *items;
    size_t count;
    TRY(value_iterate(f->run, f->line, f->self, &items, &count));
    Value *reversed = arena_take(&f->run->arena, (count + 1) * sizeof *reversed);
    for (size_t i = 0; i < count; i++) reversed[i] = items[count - 1 - i];
    *out = view(value_list(reversed, count));
    if (f->self->kind != VALUE_STRING) return OK;
    Value nothing = value_word("");
    TRY(join(f, &nothing, reversed, count, out));
    out->form = f->self->form;
    return OK;
}

/* A call of another builtin on an item, with the arguments of this one after the first `skip`. */
static Call call_on(Frame *f, const Value *item, const char *name, size_t skip) {
    Call c = {.run = f->run, .line = f->line, .name = name, .self = item};
    for (size_t i = skip; i < f->call->count; i++) c.items[c.count++] = f->call->items[i];
    return c;
}

/* The name is a string of the template, which may contain any bytes. */
static ErrorCode unknown_name(const Frame *f, const char *kind, const Value *named) {
    char shown[100];
    return run_fail(f->run, f->line, "weft knows no %s %s", kind,
                    error_escape(shown, sizeof shown, named->bytes, named->size));
}

/* Items if the value is true: select, reject and map treat none, 0 etc. as empty. */
static ErrorCode items_if_any(Frame *f, const Value **items, size_t *count) {
    *items = NULL;
    *count = 0;
    return value_truth(f->self) ? value_iterate(f->run, f->line, f->self, items, count) : OK;
}

/* map(attribute='name'), map('filter', arguments). */
static ErrorCode do_map(Frame *f, Value *out) {
    const Value *items;
    size_t count;
    TRY(items_if_any(f, &items, &count));
    Value *made = arena_take(&f->run->arena, (count + 1) * sizeof *made);
    const Value *attribute = f->args[3];
    if (!attribute && !f->args[0]) return run_fail(f->run, f->line, "map wants a filter or attribute=");
    const Value *named = attribute ? attribute : f->args[0];
    TRY(need_string(f, named));
    const char *name = value_copy(&f->run->arena, named->bytes, named->size).bytes;
    int filter = attribute ? 0 : filter_find(name);
    if (filter < 0) return unknown_name(f, "filter", named);
    for (size_t i = 0; i < count; i++) {
        made[i] = attribute ? attribute_path(&items[i], attribute) : items[i];
        Call c = call_on(f, &items[i], name, 1);
        if (!attribute) TRY(filter_call(filter, &c, &made[i]));
    }
    *out = view(value_list(made, count));
    return OK;
}

/* Whether an item passes the test that is argument `at`; without it, whether the item is true. */
static ErrorCode passes(Frame *f, size_t at, const Value *item, bool *pass) {
    *pass = value_truth(item);
    if (f->call->count <= at) return OK;
    const Value *named = &f->call->items[at];
    TRY(need_string(f, named));
    const char *name = value_copy(&f->run->arena, named->bytes, named->size).bytes;
    int test = test_find(name);
    if (test < 0) return unknown_name(f, "test", named);
    Call c = call_on(f, item, name, at + 1);
    return test_call(test, &c, pass);
}

static ErrorCode filter_items(Frame *f, bool by_attribute, bool wanted, Value *out) {
    const Value *items;
    size_t count, n = 0;
    TRY(items_if_any(f, &items, &count));
    Value *kept = arena_take(&f->run->arena, (count + 1) * sizeof *kept);
    if (by_attribute) TRY(need_string(f, f->args[0]));
    for (size_t i = 0; i < count; i++) {
        bool pass;
        Value tested = by_attribute ? attribute_path(&items[i], f->args[0]) : items[i];
        TRY(passes(f, by_attribute, &tested, &pass));
        if (pass == wanted) kept[n++] = items[i];
    }
    *out = view(value_list(kept, n));
    return OK;
}

static ErrorCode do_select(Frame *f, Value *out) { return filter_items(f, false, true, out); }
static ErrorCode do_reject(Frame *f, Value *out) { return filter_items(f, false, false, out); }
static ErrorCode do_selectattr(Frame *f, Value *out) { return filter_items(f, true, true, out); }
static ErrorCode do_rejectattr(Frame *f, Value *out) { return filter_items(f, true, false, out); }

/* ---- order ---- */

typedef struct Keyed {
    Value item, key;
} Keyed;

static ErrorCode is_less(Frame *f, const Value *a, const Value *b, bool *less) {
    f->run->steps++;
    return value_compare(f->run, f->line, LESS, a, b, less);
}

/* Items with their sort keys: a member of each, in lower case unless `exact`. */
static ErrorCode keyed_items(Frame *f, const Value *attribute, bool exact, Keyed **out, size_t *count) {
    const Value *items;
    if (given(attribute)) TRY(need_string(f, attribute));
    TRY(value_iterate(f->run, f->line, f->self, &items, count));
    *out = arena_take(&f->run->arena, (*count + 1) * sizeof **out);
    for (size_t i = 0; i < *count; i++) {
        Keyed *k = &(*out)[i];
        *k = (Keyed){items[i], given(attribute) ? attribute_path(&items[i], attribute) : items[i]};
        Value key = k->key;
        Frame lower = {.run = f->run, .line = f->line, .name = f->name, .self = &key};
        if (!exact && key.kind == VALUE_STRING) TRY(do_lower(&lower, &k->key));
    }
    return OK;
}

/* Merges two sorted halves; equal items keep their order. `down`: the greater comes first. */
static ErrorCode merge(Frame *f, Keyed *items, size_t half, size_t count, bool down, Keyed *scratch) {
    size_t a = 0, b = half, n = 0;
    memcpy(scratch, items, count * sizeof *scratch);
    while (a < half && b < count) {
        bool second;
        TRY(is_less(f, down ? &scratch[a].key : &scratch[b].key, down ? &scratch[b].key : &scratch[a].key,
                    &second));
        items[n++] = second ? scratch[b++] : scratch[a++];
    }
    memcpy(&items[n], a < half ? &scratch[a] : &scratch[b], (count - n) * sizeof *items);
    return OK;
}

static ErrorCode sort_items(Frame *f, Keyed *items, size_t count, bool down, Keyed *scratch) {
    if (count < 2) return OK;
    TRY(sort_items(f, items, count / 2, down, scratch));
    TRY(sort_items(f, items + count / 2, count - count / 2, down, scratch));
    return merge(f, items, count / 2, count, down, scratch);
}

static bool is_set(const Value *v) { return v && value_truth(v); }

static ErrorCode put_sorted(Frame *f, Keyed *items, size_t count, bool down, Value *out) {
    Keyed *scratch = arena_take(&f->run->arena, (count + 1) * sizeof *scratch);
    Value *list = arena_take(&f->run->arena, (count + 1) * sizeof *list);
    TRY(sort_items(f, items, count, down, scratch));
    for (size_t i = 0; i < count; i++) list[i] = items[i].item;
    *out = value_list(list, count);
    return OK;
}

static ErrorCode do_sort(Frame *f, Value *out) {
    Keyed *items;
    size_t count;
    TRY(keyed_items(f, f->args[2], is_set(f->args[1]), &items, &count));
    return put_sorted(f, items, count, is_set(f->args[0]), out);
}

/* Pairs of a mapping, sorted by key or by value. */
static ErrorCode do_dictsort(Frame *f, Value *out) {
    Keyed *items;
    size_t count;
    Value pairs, by = f->args[1] ? *f->args[1] : value_word("key"), value = value_word("value");
    if (f->self->kind != VALUE_DICT)
        return run_fail(f->run, f->line, "dictsort wants a mapping, and got %s", value_kind_name(f->self));
    TRY(dict_part(f, value_equal(&by, &value) ? 'v' : 'k', &pairs));
    Frame keys = *f;
    keys.self = &pairs;
    TRY(keyed_items(&keys, NULL, is_set(f->args[0]), &items, &count));
    for (size_t i = 0; i < count; i++)
        items[i].item = pair(f, &f->self->items[2 * i], &f->self->items[2 * i + 1]);
    return put_sorted(f, items, count, is_set(f->args[2]), out);
}

/* The first of the least, or greatest, items. */
static ErrorCode end_of_order(Frame *f, bool greatest, Value *out) {
    Keyed *items;
    size_t count, at = 0;
    TRY(keyed_items(f, f->args[1], is_set(f->args[0]), &items, &count));
    for (size_t i = 1; i < count; i++) {
        bool better;
        const Value *a = &items[i].key, *b = &items[at].key;
        TRY(is_less(f, greatest ? b : a, greatest ? a : b, &better));
        if (better) at = i;
    }
    *out = count ? items[at].item
                 : (Value){.kind = VALUE_UNDEFINED, .bytes = "the end of an empty list", .size = 24};
    return OK;
}

static ErrorCode do_min(Frame *f, Value *out) { return end_of_order(f, false, out); }
static ErrorCode do_max(Frame *f, Value *out) { return end_of_order(f, true, out); }

static ErrorCode do_unique(Frame *f, Value *out) {
    Keyed *items;
    size_t count, n = 0;
    TRY(keyed_items(f, f->args[1], is_set(f->args[0]), &items, &count));
    Value *list = arena_take(&f->run->arena, (count + 1) * sizeof *list);
    for (size_t i = 0; i < count; i++) {
        if (items[i].key.kind == VALUE_DICT ||
            (items[i].key.kind == VALUE_LIST && items[i].key.form != FORM_TUPLE))
            return run_fail(f->run, f->line, "unique of %s, which Python cannot hash",
                            value_kind_name(&items[i].key));
        size_t k = 0;
        while (k < n && !value_equal(&items[k].key, &items[i].key)) k++;
        f->run->steps += (int64_t)k;
        if (k < n) continue;
        list[n] = items[i].item;
        items[n++] = items[i];
    }
    *out = view(value_list(list, n));
    return OK;
}

/* ---- text ---- */

/* Indents all lines but the first, or with `first` all of them; empty ones only with `blank`. */
static ErrorCode do_indent(Frame *f, Value *out) {
    int64_t width = 4;
    Text text = {0}, by = {0};
    TRY(need_string(f, f->self));
    if (f->self->form == FORM_MARKUP) return run_fail(f->run, f->line, "weft does not indent Markup");
    bool given_text = f->args[0] && f->args[0]->kind == VALUE_STRING;
    if (f->args[0] && !given_text) TRY(whole_number(f, f->args[0], &width));
    if (width > 1000) return run_fail(f->run, f->line, "an indent of %lld", (long long)width);
    for (int64_t i = 0; i < width && !given_text; i++) text_puts(&by, " ");
    if (given_text) text_add(&by, f->args[0]->bytes, f->args[0]->size);
    Text ended = {0}; /* Jinja appends a newline, so that an empty text is a line too */
    text_add(&ended, f->self->bytes, f->self->size);
    text_puts(&ended, "\n");
    Value copy = value_copy(&f->run->arena, ended.data, ended.length), lines = split_lines(f, &copy);
    text_free(&ended);
    for (size_t i = 0; i < lines.size; i++) {
        if (i > 0) text_puts(&text, "\n");
        bool moved = i == 0 ? is_set(f->args[1]) : lines.items[i].size > 0 || is_set(f->args[2]);
        if (moved) text_add(&text, by.data, by.length);
        text_add(&text, lines.items[i].bytes, lines.items[i].size);
    }
    *out = value_copy(&f->run->arena, text.data, text.length);
    text_free(&text);
    text_free(&by);
    return run_check_size(f->run, f->line, out->size);
}

static ErrorCode do_format(Frame *f, Value *out) {
    Value format = as_string(f, f->self);
    if (f->call->named) return run_fail(f->run, f->line, "weft's format takes values by place");
    return format_percent(f->run, f->line, &format, f->call->items, f->call->count, out);
}

static ErrorCode do_format_method(Frame *f, Value *out) { return format_braces(f->call, out); }

/* Not in transformers. Templates written for other programs call it where the arguments of a call are
 * text. */
static ErrorCode do_from_json(Frame *f, Value *out) {
    cJSON *root;
    char where[300];
    TRY(need_string(f, f->self));
    snprintf(where, sizeof where, "%.200s:%d: from_json", f->run->t->where, f->line);
    TRY(json_parse_literals((JsonPlace){where, 1, false}, f->self->bytes, f->self->size, &root, f->run->err));
    *out = value_of_json(&f->run->arena, root, true);
    cJSON_Delete(root);
    return OK;
}

static bool holds_no_json(const Value *v) {
    if (v->kind == VALUE_NAMESPACE || v->kind == VALUE_MACRO || v->kind == VALUE_UNDEFINED) return true;
    if (v->kind != VALUE_LIST && v->kind != VALUE_DICT) return false;
    if (v->form == FORM_VIEW) return true;
    size_t count = v->kind == VALUE_DICT ? 2 * v->size : v->size;
    for (size_t i = 0; i < count; i++)
        if (holds_no_json(&v->items[i])) return true;
    return false;
}

/* Whether any key, at any depth, is not a string. */
static bool has_odd_keys(const Value *v) {
    if (v->kind != VALUE_LIST && v->kind != VALUE_DICT) return false;
    size_t count = v->kind == VALUE_DICT ? 2 * v->size : v->size;
    for (size_t i = 0; i < count; i++)
        if ((v->kind == VALUE_DICT && i % 2 == 0 && v->items[i].kind != VALUE_STRING) ||
            has_odd_keys(&v->items[i]))
            return true;
    return false;
}

/* Two strings: between items, and between keys and values. */
static ErrorCode read_separators(Frame *f, const Value *v, JsonStyle *s) {
    if (v->kind != VALUE_LIST || v->size != 2)
        return run_fail(f->run, f->line, "tojson: separators are two strings, and got %s",
                        value_kind_name(v));
    TRY(need_string(f, &v->items[0]));
    TRY(need_string(f, &v->items[1]));
    s->comma = v->items[0];
    s->colon = v->items[1];
    return OK;
}

/* transformers' version: json.dumps with ensure_ascii off, and without HTML escaping. */
static ErrorCode do_tojson(Frame *f, Value *out) {
    int64_t indent = -1;
    if (given(f->args[1])) TRY(whole_number(f, f->args[1], &indent));
    if (indent > 16) return run_fail(f->run, f->line, "weft's tojson has no indent above 16");
    if (holds_no_json(f->self))
        return run_fail(f->run, f->line, "tojson of %s, or of what holds such", value_kind_name(f->self));
    JsonStyle style = {.indent = (int)indent,
                       .sorted = is_set(f->args[3]),
                       .ascii = is_set(f->args[0]),
                       .comma = value_word(indent < 0 ? ", " : ","),
                       .colon = value_word(": ")};
    if (given(f->args[2])) TRY(read_separators(f, f->args[2], &style));
    if (style.sorted && has_odd_keys(f->self))
        return run_fail(f->run, f->line, "weft's tojson sorts keys that are texts alone");
    Text text = {0};
    value_json(f->self, style, &text);
    *out = value_copy(&f->run->arena, text.data, text.length);
    text_free(&text);
    return OK;
}

static const Builtin filters[] = {
    {"capitalize", do_capitalize, 0, {NULL}},
    {"count", do_length, 0, {NULL}},
    {"d", do_default, 0, {"default_value", "boolean"}},
    {"default", do_default, 0, {"default_value", "boolean"}},
    {"dictsort", do_dictsort, 0, {"case_sensitive", "by", "reverse"}},
    {"e", do_escape, 0, {NULL}},
    {"escape", do_escape, 0, {NULL}},
    {"first", do_first, 0, {NULL}},
    {"float", do_float, 0, {"default"}},
    {"forceescape", do_forceescape, 0, {NULL}},
    {"format", do_format, ANY, {NULL}},
    {"from_json", do_from_json, 0, {NULL}},
    {"indent", do_indent, 0, {"width", "first", "blank"}},
    {"int", do_int, 0, {"default"}},
    {"items", do_items, 0, {NULL}},
    {"join", do_join, 0, {"d", "attribute"}},
    {"last", do_last, 0, {NULL}},
    {"length", do_length, 0, {NULL}},
    {"list", do_list, 0, {NULL}},
    {"lower", do_lower, 0, {NULL}},
    {"map", do_map, 0, {"filter", "first", "second", "attribute"}},
    {"max", do_max, 0, {"case_sensitive", "attribute"}},
    {"min", do_min, 0, {"case_sensitive", "attribute"}},
    {"reject", do_reject, 0, {"test", "value", "other"}},
    {"rejectattr", do_rejectattr, 1, {"attribute", "test", "value", "other"}},
    {"replace", do_replace, 2, {"old", "new", "count"}},
    {"reverse", do_reverse, 0, {NULL}},
    {"safe", do_safe, 0, {NULL}},
    {"select", do_select, 0, {"test", "value", "other"}},
    {"selectattr", do_selectattr, 1, {"attribute", "test", "value", "other"}},
    {"sort", do_sort, 0, {"reverse", "case_sensitive", "attribute"}},
    {"string", do_string, 0, {NULL}},
    {"title", do_title, 0, {NULL}},
    {"tojson", do_tojson, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", do_strip, 0, {"chars"}},
    {"unique", do_unique, 0, {"case_sensitive", "attribute"}},
    {"upper", do_upper, 0, {NULL}},
};
enum { FILTERS = sizeof filters / sizeof *filters };

int filter_find(const char *name) { return find(filters, FILTERS, name); }

ErrorCode filter_call(int filter, Call *c, Value *out) {
    Frame f;
    TRY(bind(&filters[filter], c, &f));
    return filters[filter].call(&f, out);
}

/* ---- methods ---- */

static const Builtin methods[] = {
    {"strip", do_strip, 0, {"chars"}},
    {"lstrip", do_lstrip, 0, {"chars"}},
    {"rstrip", do_rstrip, 0, {"chars"}},
    {"split", do_split, 0, {"sep", "maxsplit"}},
    {"startswith", do_startswith, 1, {"prefix"}},
    {"endswith", do_endswith, 1, {"suffix"}},
    {"removeprefix", do_removeprefix, 1, {"prefix"}},
    {"removesuffix", do_removesuffix, 1, {"suffix"}},
    {"replace", do_replace_method, 2, {"old", "new", "count"}},
    {"find", do_find, 1, {"sub"}},
    {"join", do_join_method, 1, {"iterable"}},
    {"upper", do_upper, 0, {NULL}},
    {"lower", do_lower, 0, {NULL}},
    {"capitalize", do_capitalize, 0, {NULL}},
    {"title", do_title_method, 0, {NULL}},
    {"rsplit", do_rsplit, 0, {"sep", "maxsplit"}},
    {"splitlines", do_splitlines, 0, {NULL}},
    {"count", do_count, 1, {"sub"}},
    {"format", do_format_method, ANY, {NULL}},
    {"get", do_get, 1, {"key", "default"}},
    {"keys", do_keys, 0, {NULL}},
    {"values", do_values, 0, {NULL}},
    {"items", do_items, 0, {NULL}},
    {"append", do_mutate, ANY, {NULL}},
    {"clear", do_mutate, ANY, {NULL}},
    {"extend", do_mutate, ANY, {NULL}},
    {"insert", do_mutate, ANY, {NULL}},
    {"pop", do_mutate, ANY, {NULL}},
    {"remove", do_mutate, ANY, {NULL}},
    {"setdefault", do_mutate, ANY, {NULL}},
    {"update", do_mutate, ANY, {NULL}},
};
enum { METHODS = sizeof methods / sizeof *methods, STRING_METHODS = 19, DICT_METHODS = 23 };

int method_find(const char *name) { return find(methods, METHODS, name); }

bool method_is_of(int method, const Value *v) {
    if (method < STRING_METHODS) return v->kind == VALUE_STRING;
    return v->kind == VALUE_DICT || (method >= DICT_METHODS && v->kind == VALUE_LIST);
}

/* Results of Markup's methods are Markup. */
static void mark(Run *r, Value *v) {
    if (v->kind == VALUE_STRING) v->form = FORM_MARKUP;
    if (v->kind != VALUE_LIST) return;
    Value *items = arena_take(&r->arena, (v->size + 1) * sizeof *items);
    for (size_t i = 0; i < v->size; i++) {
        items[i] = v->items[i];
        mark(r, &items[i]);
    }
    v->items = items;
}

ErrorCode method_call(int method, Call *c, Value *out) {
    Frame f;
    if (!method_is_of(method, c->self))
        return run_fail(c->run, c->line, "%s has no method .%s()", value_kind_name(c->self), c->name);
    TRY(bind(&methods[method], c, &f));
    TRY(methods[method].call(&f, out));
    if (c->self->form == FORM_MARKUP) mark(c->run, out);
    return OK;
}

/* ---- tests ---- */

/* Tests for a kind of value; several kinds share a name, and some have several names. */
static const struct {
    const char *name;
    unsigned kinds;
} kind_tests[] = {
    {"undefined", 1u << VALUE_UNDEFINED},
    {"none", 1u << VALUE_NONE},
    {"boolean", 1u << VALUE_BOOL},
    {"integer", 1u << VALUE_INT | 1u << VALUE_LONG},
    {"float", 1u << VALUE_FLOAT},
    {"number", 1u << VALUE_BOOL | 1u << VALUE_INT | 1u << VALUE_LONG | 1u << VALUE_FLOAT},
    {"string", 1u << VALUE_STRING},
    {"mapping", 1u << VALUE_DICT},
    {"sequence", 1u << VALUE_UNDEFINED | 1u << VALUE_STRING | 1u << VALUE_LIST | 1u << VALUE_DICT},
    {"iterable", 1u << VALUE_UNDEFINED | 1u << VALUE_STRING | 1u << VALUE_LIST | 1u << VALUE_DICT},
    {"callable", 1u << VALUE_MACRO},
};
enum { KIND_TESTS = sizeof kind_tests / sizeof *kind_tests };

static const struct {
    const char *name;
    Operator op;
} comparisons[] = {{"eq", EQUAL},      {"equalto", EQUAL}, {"ne", UNEQUAL},       {"lt", LESS},
                   {"le", LESS_EQUAL}, {"gt", GREATER},    {"ge", GREATER_EQUAL}, {"in", IN}};
enum { COMPARISONS = sizeof comparisons / sizeof *comparisons };

static ErrorCode do_defined(Frame *f, Value *out) {
    *out = value_bool(f->self->kind != VALUE_UNDEFINED);
    return OK;
}

static ErrorCode do_true(Frame *f, Value *out) {
    *out = value_bool(f->self->kind == VALUE_BOOL && f->self->integer);
    return OK;
}

static ErrorCode do_false(Frame *f, Value *out) {
    *out = value_bool(f->self->kind == VALUE_BOOL && !f->self->integer);
    return OK;
}

static ErrorCode divides(Frame *f, int64_t by, int64_t rest, Value *out) {
    int64_t n;
    TRY(whole_number(f, f->self, &n));
    if (by == 0) return run_fail(f->run, f->line, "division by zero");
    *out = value_bool((by == -1 ? 0 : (n % by + by) % by) == rest);
    return OK;
}

static ErrorCode do_odd(Frame *f, Value *out) { return divides(f, 2, 1, out); }
static ErrorCode do_even(Frame *f, Value *out) { return divides(f, 2, 0, out); }

static ErrorCode do_divisibleby(Frame *f, Value *out) {
    int64_t by;
    TRY(whole_number(f, f->args[0], &by));
    return divides(f, by, 0, out);
}

static const Builtin other_tests[] = {
    {"defined", do_defined, 0, {NULL}}, {"true", do_true, 0, {NULL}},
    {"false", do_false, 0, {NULL}},     {"odd", do_odd, 0, {NULL}},
    {"even", do_even, 0, {NULL}},       {"divisibleby", do_divisibleby, 1, {"num"}},
};
enum { OTHER_TESTS = sizeof other_tests / sizeof *other_tests };

/* Indices continue through the three tables. */
int test_find(const char *name) {
    for (int i = 0; i < KIND_TESTS; i++)
        if (strcmp(kind_tests[i].name, name) == 0) return i;
    for (int i = 0; i < COMPARISONS; i++)
        if (strcmp(comparisons[i].name, name) == 0) return KIND_TESTS + i;
    int other = find(other_tests, OTHER_TESTS, name);
    return other < 0 ? -1 : KIND_TESTS + COMPARISONS + other;
}

bool test_is_of_kind(int test) { return test < KIND_TESTS || test == test_find("defined"); }

ErrorCode test_call(int test, Call *c, bool *out) {
    static const Builtin none = {"this test", NULL, 0, {NULL}}, one = {"this test", NULL, 1, {"value"}};
    Frame f;
    if (test < KIND_TESTS) {
        *out = kind_tests[test].kinds >> c->self->kind & 1;
        return bind(&none, c, &f);
    }
    test -= KIND_TESTS;
    if (test < COMPARISONS) {
        TRY(bind(&one, c, &f));
        return value_compare(c->run, c->line, comparisons[test].op, c->self, f.args[0], out);
    }
    Value answer;
    TRY(bind(&other_tests[test - COMPARISONS], c, &f));
    TRY(other_tests[test - COMPARISONS].call(&f, &answer));
    *out = answer.integer;
    return OK;
}

/* ---- functions ---- */

static ErrorCode do_range(Frame *f, Value *out) {
    int64_t from = 0, to, step = 1, count;
    TRY(whole_number(f, f->args[0], &to));
    if (f->args[1]) {
        from = to;
        TRY(whole_number(f, f->args[1], &to));
    }
    if (f->args[2]) TRY(whole_number(f, f->args[2], &step));
    bool near = llabs(from) < 1 << 30 && llabs(to) < 1 << 30 && llabs(step) < 1 << 30;
    if (!near || step == 0) return run_fail(f->run, f->line, "a range that cannot be");
    count = step > 0 ? (to - from + step - 1) / step : (from - to - step - 1) / -step;
    if (count < 0) count = 0;
    if (count > LONGEST_RANGE) return run_fail(f->run, f->line, "a range of more than %d", LONGEST_RANGE);
    Value *items = arena_take(&f->run->arena, ((size_t)count + 1) * sizeof *items);
    for (int64_t i = 0; i < count; i++) items[i] = value_int(from + i * step);
    *out = view(value_list(items, (size_t)count));
    return OK;
}

/* Members are the named arguments, after those of a mapping given as positional argument. */
static ErrorCode collect_members(const Call *c, Namespace *n) {
    const Value *from = c->count ? &c->items[0] : NULL;
    if (c->count > 1 || (from && from->kind != VALUE_DICT))
        return run_fail(c->run, c->line, "%s takes one mapping, and members by name", c->name);
    for (size_t i = 0; from && i < from->size; i++) {
        if (from->items[2 * i].kind != VALUE_STRING)
            return run_fail(c->run, c->line, "%s: a member whose name is no string", c->name);
        namespace_set(&c->run->arena, n, from->items[2 * i].bytes, &from->items[2 * i + 1]);
    }
    for (size_t i = 0; i < c->named; i++) namespace_set(&c->run->arena, n, c->names[i], &c->named_items[i]);
    return OK;
}

static ErrorCode make_namespace(Call *c, Value *out) {
    Namespace *n = arena_take(&c->run->arena, sizeof *n);
    TRY(collect_members(c, n));
    n->before = c->run->spaces;
    c->run->spaces = n;
    *out = (Value){.kind = VALUE_NAMESPACE, .space = n};
    return OK;
}

static ErrorCode make_dict(Call *c, Value *out) {
    Namespace n = {0};
    TRY(collect_members(c, &n));
    *out = (Value){.kind = VALUE_DICT, .items = n.items, .size = n.count};
    return run_weigh(c->run, c->line, out);
}

/* A template's own refusal of a conversation. */
static ErrorCode do_raise(Frame *f, Value *out) {
    (void)out;
    char shown[300];
    Value message = as_string(f, f->args[0]);
    return run_fail(f->run, f->line, "the template refuses the conversation: %s",
                    error_escape(shown, sizeof shown, message.bytes, message.size));
}

/* A fixed date, so that the same data result on another day. */
static ErrorCode do_strftime(Frame *f, Value *out) {
    TRY(need_string(f, f->args[0]));
    struct tm day = {0};
    if (!f->run->date)
        return run_fail(
            f->run, f->line,
            "the template asks for today's date, which would change the text from day to day: set "
            "data.chat_date, such as 2025-01-31 (generate: --date)");
    if (!strptime(f->run->date, "%Y-%m-%d", &day))
        return run_fail(f->run, f->line, "the date \"%.20s\" is no day", f->run->date);
    char *text = arena_take(&f->run->arena, 256);
    const char *format = value_copy(&f->run->arena, f->args[0]->bytes, f->args[0]->size).bytes;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, 256, format, &day);
#pragma GCC diagnostic pop
    *out = value_string(text, n);
    return OK;
}

static const Builtin functions[] = {
    {"range", do_range, 1, {"start", "stop", "step"}},
    {"raise_exception", do_raise, 1, {"message"}},
    {"strftime_now", do_strftime, 1, {"format"}},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

bool function_exists(const char *name) {
    return find(functions, FUNCTIONS, name) >= 0 || strcmp(name, "namespace") == 0 ||
           strcmp(name, "dict") == 0;
}

ErrorCode function_call(Call *c, Value *out) {
    if (strcmp(c->name, "namespace") == 0) return make_namespace(c, out);
    if (strcmp(c->name, "dict") == 0) return make_dict(c, out);
    int i = find(functions, FUNCTIONS, c->name);
    CHECK(i >= 0);
    Frame f;
    TRY(bind(&functions[i], c, &f));
    return functions[i].call(&f, out);
}

/* Evaluates the tree of a template.
 *
 *  R1. Scopes are as in Jinja: each iteration of a loop has a new scope, `if` has none. What is set within a
 *      loop is lost after it, hence namespaces. A macro sees the template's global names.
 *  R2. An undefined value is false and prints as nothing; accessing its members is an error.
 *  R3. Using an open value (growth.c) counts as looking at it: evaluate records that; evaluate_open leaves it
 *      to callers that depend on only a part of the value.
 *  R4. Steps, memory and depth are bounded, so every template terminates. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/internal.h"

enum {
    MOST_STEPS = 1 << 24,
    MOST_BYTES = 1 << 28,
    DEEPEST = 200,
    MOST_PARTS = 200000, /* parts of a value: more than the longest range has */
    DEEPEST_VALUE = 100
};

typedef enum Flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } Flow;

static ErrorCode evaluate(Run *r, const Scope *s, const Node *n, Value *out);
static ErrorCode evaluate_open(Run *r, const Scope *s, const Node *n, Value *out);
static ErrorCode evaluate_truth(Run *r, const Scope *s, const Node *n, Value *out, bool *truth);
static ErrorCode execute(Run *r, Scope *s, const Node *n, Flow *flow);

ErrorCode run_fail(const Run *r, int line, const char *format, ...) {
    char message[700];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return error_set(r->err, ERR_DATA, "%s:%d: %s", r->t->where, line, message);
}

ErrorCode run_check_size(Run *r, int line, size_t bytes) {
    if (bytes < MOST_BYTES && r->arena.used < MOST_BYTES && r->out->length < MOST_BYTES) return OK;
    return run_fail(r, line, "the template makes more than %d MiB", MOST_BYTES >> 20);
}

ErrorCode run_weigh(Run *r, int line, const Value *v) {
    size_t left = MOST_PARTS;
    bool light = value_weigh(v, DEEPEST_VALUE, &left);
    r->steps += (int64_t)(MOST_PARTS - left);
    if (light) return OK;
    return run_fail(r, line, "a value of more than %d parts, or %d levels", MOST_PARTS, DEEPEST_VALUE);
}

static ErrorCode count_step(Run *r, int line) {
    if (++r->steps > MOST_STEPS) return run_fail(r, line, "the template does not come to an end");
    return run_check_size(r, line, 0);
}

/* ---- names ---- */

void namespace_set(Arena *a, Namespace *n, const char *name, const Value *v) {
    size_t length = strlen(name);
    for (size_t i = 0; i < n->count; i++)
        if (n->items[2 * i].size == length && memcmp(n->items[2 * i].bytes, name, length) == 0) {
            n->items[2 * i + 1] = *v;
            return;
        }
    if (n->count == n->capacity) {
        size_t capacity = 2 * n->capacity + 4;
        Value *grown = arena_take(a, 2 * capacity * sizeof *grown);
        if (n->count) memcpy(grown, n->items, 2 * n->count * sizeof *grown);
        n->items = grown;
        n->capacity = capacity;
    }
    n->items[2 * n->count] = value_string(name, length);
    n->items[2 * n->count++ + 1] = *v;
}

static Value undefined(const char *name) {
    return (Value){.kind = VALUE_UNDEFINED, .bytes = name, .size = strlen(name)};
}

/* From the innermost scope outwards. Functions are names too, for "is defined". */
static Value look_up(const Run *r, const Scope *s, const char *name) {
    size_t length = strlen(name);
    for (; s; s = s->parent) {
        Value names = {.kind = VALUE_DICT, .items = s->names.items, .size = s->names.count};
        const Value *found = value_member(&names, name, length);
        if (found) return *found;
    }
    bool dated = strcmp(name, "strftime_now") != 0 || r->date;
    if (function_exists(name) && dated) return (Value){.kind = VALUE_MACRO};
    return undefined(name);
}

/* An undefined result has a copy of the name, for error messages. */
Value value_attribute(const Value *v, const char *name, size_t length) {
    const Value *found = value_member(v, name, length);
    if (found) return *found;
    return (Value){.kind = VALUE_UNDEFINED, .bytes = name, .size = length};
}

static ErrorCode need_defined(const Run *r, int line, const Value *v) {
    char shown[100];
    if (v->kind != VALUE_UNDEFINED) return OK;
    return run_fail(r, line, "'%s' is undefined", error_escape(shown, sizeof shown, v->bytes, v->size));
}

/* ---- items ---- */

static Value *characters(Run *r, const Value *v, size_t *count) {
    *count = string_characters(v->bytes, v->size);
    Value *out = arena_take(&r->arena, (*count + 1) * sizeof *out);
    for (size_t i = 0, at = 0; i < *count; i++) {
        size_t n = string_offset(v->bytes + at, v->size - at, 1);
        out[i] = value_string(v->bytes + at, n);
        at += n;
    }
    return out;
}

ErrorCode value_iterate(Run *r, int line, const Value *v, const Value **items, size_t *count) {
    *count = 0;
    *items = NULL;
    r->steps += (int64_t)v->size; /* iterating takes as many steps */
    if (v->kind == VALUE_LIST) {
        *items = v->items;
        *count = v->size;
    } else if (v->kind == VALUE_STRING) {
        TRY(run_check_size(r, line, v->size * sizeof(Value)));
        *items = characters(r, v, count);
    } else if (v->kind == VALUE_DICT) {
        Value *keys = arena_take(&r->arena, (v->size + 1) * sizeof *keys);
        for (size_t i = 0; i < v->size; i++) keys[i] = v->items[2 * i];
        *items = keys;
        *count = v->size;
    } else if (v->kind != VALUE_UNDEFINED) {
        return run_fail(r, line, "%s has no items", value_kind_name(v));
    }
    return OK;
}

/* ---- operators ---- */

static ErrorCode contains(Run *r, int line, const Value *item, const Value *in, bool *out) {
    *out = false;
    if (in->kind == VALUE_STRING) {
        if (item->kind != VALUE_STRING)
            return run_fail(r, line, "%s in a string: only strings are", value_kind_name(item));
        r->steps += (int64_t)in->size / 64; /* bytes are fast */
        *out = item->size == 0 || memmem(in->bytes, in->size, item->bytes, item->size) != NULL;
        return OK;
    }
    const Value *items;
    size_t count;
    TRY(value_iterate(r, line, in, &items, &count));
    for (size_t i = 0; i < count && !*out; i++) *out = value_equal(item, &items[i]);
    return OK;
}

/* -1, 0, 1; 2 if a number is NaN. UTF-8 strings sort as their characters do. */
static ErrorCode order(Run *r, int line, const Value *a, const Value *b, int *out) {
    if (value_is_number(a) && value_is_number(b)) {
        *out = value_order(a, b);
        return OK;
    }
    if (a->kind != VALUE_STRING || b->kind != VALUE_STRING)
        return run_fail(r, line, "%s and %s have no order", value_kind_name(a), value_kind_name(b));
    size_t least = a->size < b->size ? a->size : b->size;
    int by_bytes = least ? memcmp(a->bytes, b->bytes, least) : 0;
    *out = by_bytes < 0 ? -1 : by_bytes > 0 ? 1 : a->size < b->size ? -1 : a->size > b->size;
    return OK;
}

ErrorCode value_compare(Run *r, int line, Operator op, const Value *a, const Value *b, bool *out) {
    int sign = 0;
    bool ordered = op == LESS || op == LESS_EQUAL || op == GREATER || op == GREATER_EQUAL;
    if (op == EQUAL || op == UNEQUAL) {
        *out = value_equal(a, b) == (op == EQUAL);
        return OK;
    }
    if (!ordered) {
        TRY(contains(r, line, a, b, out));
        *out = *out == (op == IN);
        return OK;
    }
    TRY(order(r, line, a, b, &sign));
    if (sign == 2) sign = op == LESS || op == LESS_EQUAL ? 1 : -1; /* a comparison with NaN is false */
    *out = op == LESS ? sign < 0 : op == LESS_EQUAL ? sign <= 0 : op == GREATER ? sign > 0 : sign >= 0;
    return OK;
}

static ErrorCode joined(Run *r, int line, const Value *a, const Value *b, Value *out) {
    TRY(run_check_size(r, line, a->size + b->size));
    if (a->form != b->form) {
        Value x = value_escape(&r->arena, a), y = value_escape(&r->arena, b);
        return joined(r, line, &x, &y, out);
    }
    char *bytes = arena_take(&r->arena, a->size + b->size + 1);
    if (a->size) memcpy(bytes, a->bytes, a->size);
    if (b->size) memcpy(bytes + a->size, b->bytes, b->size);
    *out = value_string(bytes, a->size + b->size);
    out->form = a->form;
    return OK;
}

static ErrorCode repeated(Run *r, int line, const Value *text, const Value *times, Value *out) {
    if (times->kind != VALUE_INT && times->kind != VALUE_BOOL)
        return run_fail(r, line, "weft cannot reckon with a string and %s", value_kind_name(times));
    size_t count = times->integer < 0 || text->size == 0 ? 0 : (size_t)times->integer, bytes;
    if (!size_multiply(count, text->size, &bytes)) bytes = SIZE_MAX;
    TRY(run_check_size(r, line, bytes));
    char *copies = arena_take(&r->arena, bytes + 1);
    for (size_t i = 0; i < count; i++) memcpy(copies + i * text->size, text->bytes, text->size);
    *out = value_string(copies, bytes);
    out->form = text->form;
    return OK;
}

static ErrorCode joined_lists(Run *r, int line, const Value *a, const Value *b, Value *out) {
    TRY(run_check_size(r, line, (a->size + b->size) * sizeof(Value)));
    Value *items = arena_take(&r->arena, (a->size + b->size + 1) * sizeof *items);
    if (a->size) memcpy(items, a->items, a->size * sizeof *items);
    if (b->size) memcpy(items + a->size, b->items, b->size * sizeof *items);
    *out = value_list(items, a->size + b->size);
    return OK;
}

/* Views, functions and namespaces print in ways that no template wants, so they are refused. */
static ErrorCode need_text(Run *r, int line, const Value *v) {
    if (v->kind == VALUE_LIST && v->form == FORM_VIEW)
        return run_fail(r, line, "items that are made one by one have no text: put |list behind them");
    if (v->kind == VALUE_MACRO || v->kind == VALUE_NAMESPACE)
        return run_fail(r, line, "%s has no text", value_kind_name(v));
    return OK;
}

/* Prints both, one after the other. */
static ErrorCode concatenate(Run *r, int line, const Value *a, const Value *b, Value *out) {
    Text text = {0};
    TRY(need_text(r, line, a));
    TRY(need_text(r, line, b));
    value_print(a, &text);
    value_print(b, &text);
    ErrorCode code = run_check_size(r, line, text.length);
    if (code == OK) *out = value_copy(&r->arena, text.data, text.length);
    text_free(&text);
    return code;
}

/* As in Python: the quotient is rounded down, and the remainder has the divisor's sign. */
static int64_t floor_quotient(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

/* Results outside the range are refused, not wrapped. */
static ErrorCode whole_arithmetic(Run *r, int line, int op, int64_t a, int64_t b, Value *out) {
    int64_t result = 0;
    bool wraps = false;
    if ((op == DIVIDE_WHOLE || op == REMAINDER) && (b == 0 || b == -1)) {
        if (b == 0) return run_fail(r, line, "division by zero");
        wraps = op == DIVIDE_WHOLE && __builtin_sub_overflow(0, a, &result);
    } else if (op == ADD) {
        wraps = __builtin_add_overflow(a, b, &result);
    } else if (op == SUBTRACT) {
        wraps = __builtin_sub_overflow(a, b, &result);
    } else if (op == MULTIPLY) {
        wraps = __builtin_mul_overflow(a, b, &result);
    } else if (op == POWER) {
        result = 1;
        wraps = b < 0 || b > 64;
        for (int64_t i = 0; i < b && !wraps; i++) wraps = __builtin_mul_overflow(result, a, &result);
    } else {
        result = op == DIVIDE_WHOLE ? floor_quotient(a, b) : a - floor_quotient(a, b) * b;
    }
    if (wraps) return run_fail(r, line, "a whole number that is too large, or a fraction");
    *out = value_int(result);
    return OK;
}

static ErrorCode arithmetic(Run *r, const Node *n, const Value *a, const Value *b, Value *out) {
    if (!value_is_number(a) || !value_is_number(b))
        return run_fail(r, n->line, "weft cannot reckon with %s and %s", value_kind_name(a),
                        value_kind_name(b));
    if (a->kind == VALUE_LONG || b->kind == VALUE_LONG)
        return run_fail(r, n->line, "weft does not reckon with a whole number beyond 64 bits");
    if (a->kind != VALUE_FLOAT && b->kind != VALUE_FLOAT && n->op != DIVIDE)
        return whole_arithmetic(r, n->line, n->op, a->integer, b->integer, out);
    double x = value_number(a), y = value_number(b);
    bool divides = n->op == DIVIDE || n->op == DIVIDE_WHOLE || n->op == REMAINDER;
    if (divides && !(y < 0) && !(y > 0)) return run_fail(r, n->line, "division by zero");
    double result = n->op == ADD            ? x + y
                    : n->op == SUBTRACT     ? x - y
                    : n->op == MULTIPLY     ? x * y
                    : n->op == DIVIDE       ? x / y
                    : n->op == DIVIDE_WHOLE ? floor(x / y)
                    : n->op == REMAINDER    ? x - floor(x / y) * y
                                            : pow(x, y);
    *out = (Value){.kind = VALUE_FLOAT, .number = result};
    return OK;
}

static ErrorCode binary(Run *r, const Scope *s, const Node *n, Value *out) {
    Value a, b;
    TRY(evaluate(r, s, n->a, &a));
    TRY(evaluate(r, s, n->b, &b));
    if (n->op == CONCATENATE) return concatenate(r, n->line, &a, &b, out);
    TRY(need_defined(r, n->line, &a));
    TRY(need_defined(r, n->line, &b));
    if (n->op == ADD && a.kind == VALUE_STRING && b.kind == VALUE_STRING)
        return joined(r, n->line, &a, &b, out);
    if (n->op == ADD && a.kind == VALUE_LIST && b.kind == VALUE_LIST)
        return joined_lists(r, n->line, &a, &b, out);
    if (n->op == MULTIPLY && (a.kind == VALUE_STRING || b.kind == VALUE_STRING))
        return a.kind == VALUE_STRING ? repeated(r, n->line, &a, &b, out) : repeated(r, n->line, &b, &a, out);
    if (n->op == REMAINDER && a.kind == VALUE_STRING) {
        bool tuple = b.kind == VALUE_LIST && b.form == FORM_TUPLE;
        return format_percent(r, n->line, &a, tuple ? b.items : &b, tuple ? b.size : 1, out);
    }
    return arithmetic(r, n, &a, &b, out);
}

/* "a < b < c": evaluates each operand once, and stops at the first comparison that fails. */
static ErrorCode comparison(Run *r, const Scope *s, const Node *n, Value *out) {
    Value left, right;
    bool holds = true;
    TRY(evaluate(r, s, n->a, &left));
    for (const Node *o = n->b; o && holds; o = o->next) {
        TRY(evaluate(r, s, o->a, &right));
        TRY(value_compare(r, o->line, (Operator)o->op, &left, &right, &holds));
        left = right;
    }
    *out = value_bool(holds);
    return OK;
}

/* ---- members ---- */

static ErrorCode indexed(Run *r, const Scope *s, const Node *n, Value *out) {
    Value of, at;
    TRY(evaluate_open(r, s, n->a, &of));
    TRY(evaluate(r, s, n->b, &at));
    TRY(need_defined(r, n->line, &of));
    *out = undefined("an item that is not there");
    if (of.open != CLOSED && of.kind != VALUE_DICT && at.kind != VALUE_INT) r->looked_ahead = true;
    if (at.kind == VALUE_STRING) {
        *out = value_attribute(&of, at.bytes, at.size);
        return OK;
    }
    if (of.kind == VALUE_DICT) {
        const Value *found = value_item(&of, &at);
        if (found) *out = *found;
        return OK;
    }
    if (at.kind != VALUE_INT || (of.kind != VALUE_LIST && of.kind != VALUE_STRING)) return OK;
    size_t count = of.kind == VALUE_LIST ? of.size : string_characters(of.bytes, of.size);
    if (of.open != CLOSED && (at.integer < 0 || at.integer >= (int64_t)count)) r->looked_ahead = true;
    int64_t i = at.integer < 0 ? at.integer + (int64_t)count : at.integer;
    if (i < 0 || i >= (int64_t)count) return OK;
    if (of.kind == VALUE_LIST) {
        *out = of.items[i];
        return OK;
    }
    size_t from = string_offset(of.bytes, of.size, (size_t)i);
    *out = value_string(of.bytes + from, string_offset(of.bytes + from, of.size - from, 1));
    out->form = of.form;
    return OK;
}

/* One end of a slice, clipped as in Python. */
static ErrorCode slice_end(Run *r, const Scope *s, const Node *n, int64_t count, int64_t otherwise, bool back,
                           int64_t *out) {
    Value v = {.kind = VALUE_NONE};
    *out = otherwise;
    if (n) TRY(evaluate(r, s, n, &v));
    if (v.kind == VALUE_NONE) return OK;
    if (v.kind != VALUE_INT)
        return run_fail(r, n->line, "a slice wants whole numbers, and got %s", value_kind_name(&v));
    int64_t i = v.integer < 0 ? v.integer + count : v.integer, least = back ? -1 : 0,
            most = back ? count - 1 : count;
    *out = i < least ? least : i > most ? most : i;
    return OK;
}

static ErrorCode slice_step(Run *r, const Scope *s, const Node *n, int64_t *out) {
    Value v = value_int(1);
    if (n->d) TRY(evaluate(r, s, n->d, &v));
    if (v.kind != VALUE_INT || v.integer == 0 || llabs(v.integer) > 1 << 20)
        return run_fail(r, n->line, "a slice in steps of %s", value_kind_name(&v));
    *out = v.integer;
    return OK;
}

/* [1:] and similar slices do not look at the end of the list. */
static bool takes_rest(const Node *n) {
    bool known = !n->b || (n->b->kind == NODE_LITERAL && n->b->literal.kind == VALUE_INT);
    return known && !n->c && !n->d;
}

static ErrorCode sliced(Run *r, const Scope *s, const Node *n, Value *out) {
    Value of;
    int64_t step = 1, from, to;
    TRY(evaluate_open(r, s, n->a, &of));
    TRY(need_defined(r, n->line, &of));
    if (of.kind != VALUE_LIST && of.kind != VALUE_STRING)
        return run_fail(r, n->line, "%s cannot be sliced", value_kind_name(&of));
    if (of.open != CLOSED && of.kind == VALUE_LIST && takes_rest(n)) {
        size_t first = n->b ? (size_t)n->b->literal.integer : 0;
        *out = of;
        out->items += first < of.size ? first : of.size;
        out->size -= first < of.size ? first : of.size;
        if (first > of.size) r->looked_ahead = true; /* it is not known yet where it begins */
        return OK;
    }
    r->looked_ahead |= of.open != CLOSED;
    TRY(slice_step(r, s, n, &step));
    const Value *items;
    size_t size;
    TRY(value_iterate(r, n->line, &of, &items, &size));
    int64_t count = (int64_t)size;
    TRY(slice_end(r, s, n->b, count, step < 0 ? count - 1 : 0, step < 0, &from));
    TRY(slice_end(r, s, n->c, count, step < 0 ? -1 : count, step < 0, &to));
    Value *kept = arena_take(&r->arena, (size + 1) * sizeof *kept);
    size_t k = 0;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) kept[k++] = items[i];
    *out = value_list(kept, k);
    if (of.kind == VALUE_LIST) return OK;
    Text text = {0};
    for (size_t i = 0; i < k; i++) text_add(&text, kept[i].bytes, kept[i].size);
    *out = value_copy(&r->arena, text.data, text.length);
    out->form = of.form;
    text_free(&text);
    return OK;
}

/* A method that is named but not called. Python prefers it to a key of that name. */
static bool is_method_name(const Value *of, const char *name) {
    int method = method_find(name);
    bool dict = of->kind == VALUE_DICT && (strcmp(name, "copy") == 0 || strcmp(name, "popitem") == 0);
    return dict || (method >= 0 && method_is_of(method, of));
}

static ErrorCode member(Run *r, const Scope *s, const Node *n, Value *out) {
    Value of;
    TRY(evaluate_open(r, s, n->a, &of));
    r->looked_ahead |= of.open != CLOSED && of.kind != VALUE_DICT;
    TRY(need_defined(r, n->line, &of));
    if (is_method_name(&of, n->name)) {
        *out = (Value){.kind = VALUE_MACRO};
        return OK;
    }
    *out = value_attribute(&of, n->name, strlen(n->name));
    return OK;
}

/* ---- calls ---- */

static ErrorCode gather(Run *r, const Scope *s, const Node *n, Call *c) {
    *c = (Call){.run = r, .line = n->line, .name = n->name};
    for (const Node *a = n->arguments; a; a = a->next) {
        Value v;
        TRY(evaluate(r, s, a->a, &v));
        if (a->name) {
            c->names[c->named] = a->name;
            c->named_items[c->named++] = v;
        } else {
            c->items[c->count++] = v;
        }
    }
    return OK;
}

/* Renders statements into a value. */
static ErrorCode capture(Run *r, Scope *s, const Node *body, Value *out) {
    Text text = {0}, *before = r->out;
    Flow flow = FLOW_ON;
    r->out = &text;
    r->captures++;
    ErrorCode code = execute(r, s, body, &flow);
    r->captures--;
    r->out = before;
    if (code == OK) *out = value_copy(&r->arena, text.data, text.length);
    text_free(&text);
    return code;
}

static ErrorCode call_macro(Run *r, Call *c, const Node *macro, Value *out) {
    Scope own = {.parent = &r->root};
    size_t position = 0, taken = 0;
    for (const Node *p = macro->arguments; p; p = p->next) {
        Value v = undefined(p->name);
        size_t k = 0;
        while (k < c->named && strcmp(c->names[k], p->name) != 0) k++;
        if (position < c->count)
            v = c->items[position++];
        else if (k < c->named)
            v = c->named_items[k], taken++;
        else if (p->a)
            TRY(evaluate(r, &own, p->a, &v));
        namespace_set(&r->arena, &own.names, p->name, &v);
    }
    if (position < c->count || taken < c->named)
        return run_fail(r, c->line, "macro %s takes no such arguments", macro->name);
    return capture(r, &own, macro->b, out);
}

static ErrorCode call(Run *r, const Scope *s, const Node *n, Value *out) {
    Call c;
    TRY(gather(r, s, n, &c));
    c.name = n->a->name;
    Value v = look_up(r, s, c.name);
    if (v.kind == VALUE_MACRO && v.macro) return call_macro(r, &c, v.macro, out);
    if (function_exists(c.name)) return function_call(&c, out);
    return run_fail(r, n->line, "'%s' is no function here", c.name);
}

/* "| default(x)" of a defined value, which returns the value itself. */
static bool is_default_of(const Node *n, const Value *self) {
    bool one = n->arguments && !n->arguments->next && !n->arguments->name;
    return n->kind == NODE_FILTER && strcmp(n->name, "default") == 0 && one && self->kind != VALUE_UNDEFINED;
}

static ErrorCode apply(Run *r, const Scope *s, const Node *n, Value *out) {
    Call c;
    Value self;
    bool answer;
    TRY(evaluate_open(r, s, n->a, &self));
    TRY(gather(r, s, n, &c));
    c.self = &self;
    if (self.open != CLOSED && is_default_of(n, &self)) {
        *out = self;
        return OK;
    }
    bool by_kind = n->kind == NODE_TEST && test_is_of_kind(n->op) && self.kind != VALUE_UNDEFINED;
    r->looked_ahead |= self.open != CLOSED && !by_kind;
    if (n->kind == NODE_FILTER) return filter_call(n->op, &c, out);
    if (n->kind == NODE_METHOD) {
        TRY(need_defined(r, n->line, &self));
        return method_call(n->op, &c, out);
    }
    TRY(test_call(n->op, &c, &answer));
    *out = value_bool(answer);
    return OK;
}

/* ---- expressions ---- */

static ErrorCode listed(Run *r, const Scope *s, const Node *n, Value *out) {
    size_t count = 0, k = 0;
    bool dict = n->kind == NODE_DICT;
    for (const Node *item = n->a; item; item = item->next) count++;
    Value *items = arena_take(&r->arena, (count + 1) * (dict ? 2 : 1) * sizeof *items);
    for (const Node *item = n->a; item; item = item->next) {
        TRY(evaluate(r, s, dict ? item->a : item, &items[k++]));
        if (!dict) continue;
        if (!value_is_key(&items[k - 1]))
            return run_fail(r, item->line, "%s cannot be a key", value_kind_name(&items[k - 1]));
        TRY(evaluate(r, s, item->b, &items[k++]));
        Value before = {.kind = VALUE_DICT, .items = items, .size = k / 2 - 1};
        const Value *same = value_item(&before, &items[k - 2]);
        if (!same) continue;
        items[same - items] = items[k - 1];
        k -= 2;
    }
    if (dict) count = k / 2;
    *out = (Value){
        .kind = dict ? VALUE_DICT : VALUE_LIST, .form = (ValueForm)n->op, .items = items, .size = count};
    return run_weigh(r, n->line, out);
}

static ErrorCode negative(Run *r, const Scope *s, const Node *n, Value *out) {
    TRY(evaluate(r, s, n->a, out));
    if (!value_is_number(out) || out->kind == VALUE_LONG)
        return run_fail(r, n->line, "minus %s", value_kind_name(out));
    if (out->kind == VALUE_FLOAT) {
        out->number = -out->number;
        return OK;
    }
    return whole_arithmetic(r, n->line, SUBTRACT, 0, out->integer, out);
}

/* `and` and `or` return the operand that decides, not only its truth. */
static ErrorCode decided(Run *r, const Scope *s, const Node *n, Value *out) {
    bool truth;
    TRY(evaluate_truth(r, s, n->a, out, &truth));
    if (truth == (n->kind == NODE_OR)) return OK;
    return evaluate_open(r, s, n->b, out);
}

static ErrorCode chosen(Run *r, const Scope *s, const Node *n, Value *out) {
    Value condition;
    bool truth;
    TRY(evaluate_truth(r, s, n->a, &condition, &truth));
    const Node *branch = truth ? n->b : n->c;
    *out = undefined("the other side of an if without else");
    return branch ? evaluate_open(r, s, branch, out) : OK;
}

static ErrorCode evaluate_node(Run *r, const Scope *s, const Node *n, Value *out) {
    Value v;
    bool truth;
    switch (n->kind) {
    case NODE_LITERAL: *out = n->literal; return OK;
    case NODE_NAME: *out = look_up(r, s, n->name); return OK;
    case NODE_LIST:
    case NODE_DICT: return listed(r, s, n, out);
    case NODE_MEMBER: return member(r, s, n, out);
    case NODE_INDEX: return indexed(r, s, n, out);
    case NODE_SLICE: return sliced(r, s, n, out);
    case NODE_CALL: return call(r, s, n, out);
    case NODE_METHOD:
    case NODE_FILTER:
    case NODE_TEST: return apply(r, s, n, out);
    case NODE_NOT:
        TRY(evaluate_truth(r, s, n->a, &v, &truth));
        *out = value_bool(!truth);
        return OK;
    case NODE_NEGATIVE: return negative(r, s, n, out);
    case NODE_AND:
    case NODE_OR: return decided(r, s, n, out);
    case NODE_CHOICE: return chosen(r, s, n, out);
    case NODE_BINARY: return binary(r, s, n, out);
    case NODE_COMPARE: return comparison(r, s, n, out);
    case NODE_TEXT:
    case NODE_PRINT:
    case NODE_IF:
    case NODE_FOR:
    case NODE_SET:
    case NODE_SET_BLOCK:
    case NODE_FILTERED:
    case NODE_MACRO:
    case NODE_BREAK:
    case NODE_CONTINUE:
    case NODE_GENERATION:
    case NODE_ARGUMENT:
    case NODE_OPERAND: break;
    }
    return error_set(r->err, ERR_INTERNAL, "a node of kind %d among expressions", (int)n->kind);
}

static ErrorCode evaluate(Run *r, const Scope *s, const Node *n, Value *out) {
    TRY(evaluate_open(r, s, n, out));
    r->looked_ahead |= out->open != CLOSED;
    return OK;
}

/* Whether it is true. What has items stays true, however many follow. */
static ErrorCode evaluate_truth(Run *r, const Scope *s, const Node *n, Value *out, bool *truth) {
    TRY(evaluate_open(r, s, n, out));
    *truth = value_truth(out);
    r->looked_ahead |=
        out->open != CLOSED && !(*truth && (out->kind == VALUE_LIST || out->kind == VALUE_DICT));
    return OK;
}

static ErrorCode evaluate_open(Run *r, const Scope *s, const Node *n, Value *out) {
    TRY(count_step(r, n->line));
    if (++r->depth > DEEPEST) return run_fail(r, n->line, "nested more than %d deep", DEEPEST);
    ErrorCode code = evaluate_node(r, s, n, out);
    r->depth--;
    return code;
}

/* ---- loops ---- */

/* Assigns an item to the names of a loop. */
static ErrorCode assign(Run *r, Scope *s, const Node *n, const Value *item) {
    size_t count = 0, i = 0;
    for (const Node *name = n->arguments; name; name = name->next) count++;
    if (count == 1) {
        namespace_set(&r->arena, &s->names, n->arguments->name, item);
        return OK;
    }
    if (item->kind != VALUE_LIST || item->size != count)
        return run_fail(r, n->line, "%zu names for %s of another number", count, value_kind_name(item));
    for (const Node *name = n->arguments; name; name = name->next)
        namespace_set(&r->arena, &s->names, name->name, &item->items[i++]);
    return OK;
}

/* The items that pass the loop's `if`. */
static ErrorCode select_items(Run *r, const Scope *s, const Node *n, const Value *over, const Value **items,
                              size_t *count) {
    Value pass;
    TRY(value_iterate(r, n->line, over, items, count));
    if (!n->d) return OK;
    Value *kept = arena_take(&r->arena, (*count + 1) * sizeof *kept);
    size_t k = 0;
    for (size_t i = 0; i < *count; i++) {
        Scope own = {.parent = s};
        TRY(assign(r, &own, n, &(*items)[i]));
        TRY(evaluate(r, &own, n->d, &pass));
        if (value_truth(&pass)) kept[k++] = (*items)[i];
    }
    *items = kept;
    *count = k;
    return OK;
}

/* The members of `loop`. In a growing loop, it is open as a whole, and so are the members that an additional
 * item would change. */
static Value loop_of(Run *r, const Value *items, size_t i, size_t count, bool grows) {
    Value *m = arena_take(&r->arena, 18 * sizeof *m);
    int64_t at = (int64_t)i, all = (int64_t)count;
    const struct {
        const char *name;
        Value value;
    } members[] = {{"index0", value_int(at)},
                   {"index", value_int(at + 1)},
                   {"revindex0", value_int(all - 1 - at)},
                   {"revindex", value_int(all - at)},
                   {"first", value_bool(i == 0)},
                   {"last", value_bool(i + 1 == count)},
                   {"length", value_int(all)},
                   {"previtem", i > 0 ? items[i - 1] : undefined("loop.previtem")},
                   {"nextitem", i + 1 < count ? items[i + 1] : undefined("loop.nextitem")}};
    const bool open[9] = {[2] = true, [3] = true, [5] = i + 1 == count, [6] = true, [8] = i + 1 == count};
    for (size_t k = 0; k < 9; k++) {
        m[2 * k] = value_word(members[k].name);
        m[2 * k + 1] = members[k].value;
        m[2 * k + 1].open = grows && open[k] ? OPEN : CLOSED;
    }
    return (Value){.kind = VALUE_DICT, .items = m, .size = 9, .open = grows ? OPEN : CLOSED};
}

/* Runs the items from `from` on. A growth saves the state before each, and before a possible one after the
 * last. A loop that ends without a break has looked at the number of items. */
static ErrorCode loop_from(Run *r, Scope *s, const Node *n, const Value *over, size_t from) {
    const Value *items;
    size_t count, i = from;
    Flow flow = FLOW_ON;
    bool grows = over->open != CLOSED && n->op && !n->d && r->growth;
    r->looked_ahead |= over->open != CLOSED && !grows;
    TRY(select_items(r, s, n, over, &items, &count));
    for (; i < count && flow != FLOW_BREAK; i++) {
        Scope own = {.parent = s};
        if (grows && !r->looked_ahead) growth_save(r->growth, n, over, i);
        Value about = loop_of(r, items, i, count, grows);
        TRY(count_step(r, n->line));
        TRY(assign(r, &own, n, &items[i]));
        namespace_set(&r->arena, &own.names, "loop", &about);
        flow = FLOW_ON;
        TRY(execute(r, &own, n->b, &flow));
    }
    if (grows && !r->looked_ahead && flow != FLOW_BREAK) growth_save(r->growth, n, over, count);
    r->looked_ahead |= grows && flow != FLOW_BREAK;
    flow = FLOW_ON;
    Scope own = {.parent = s};
    return count == 0 && n->c ? execute(r, &own, n->c, &flow) : OK;
}

static ErrorCode loop(Run *r, Scope *s, const Node *n) {
    Value over;
    TRY(evaluate_open(r, s, n->a, &over));
    return loop_from(r, s, n, &over, 0);
}

ErrorCode run_on(Run *r, const Node *n, const Value *over, size_t from) {
    Flow flow = FLOW_ON;
    r->depth = 1; /* the depth that execute would have here */
    TRY(loop_from(r, &r->root, n, over, from));
    r->depth = 0;
    return execute(r, &r->root, n->next, &flow);
}

/* ---- statements ---- */

static ErrorCode assign_name(Run *r, Scope *s, const Node *n) {
    Value v, space;
    TRY(evaluate_open(r, s, n->a, &v));
    /* Saved states keep lists up to date, and namespaces outlive an iteration's `loop`. */
    r->looked_ahead |= v.open == OPEN && v.kind != VALUE_LIST && (v.kind != VALUE_DICT || n->member);
    if (!n->member) {
        namespace_set(&r->arena, &s->names, n->name, &v);
        return OK;
    }
    space = look_up(r, s, n->name);
    if (space.kind != VALUE_NAMESPACE)
        return run_fail(r, n->line, "%s.%s is set, but %s is no namespace", n->name, n->member, n->name);
    namespace_set(&r->arena, space.space, n->member, &v);
    return OK;
}

static ErrorCode print(Run *r, Scope *s, const Node *n) {
    Value v;
    TRY(evaluate(r, s, n->a, &v));
    TRY(need_text(r, n->line, &v));
    value_print(&v, r->out);
    return run_check_size(r, n->line, 0);
}

/* {% filter %}: its filters apply to the name "", which no variable has. */
static ErrorCode filtered(Run *r, Scope *s, const Node *n) {
    Value v;
    Scope own = {.parent = s};
    TRY(capture(r, s, n->b, &v));
    namespace_set(&r->arena, &own.names, "", &v);
    TRY(evaluate(r, &own, n->a, &v));
    value_print(&v, r->out);
    return run_check_size(r, n->line, 0);
}

/* Text that is captured for later has no position yet, so {% generation %} is refused in it. */
static ErrorCode generation(Run *r, Scope *s, const Node *n, Flow *flow) {
    if (r->captures > 0)
        return run_fail(r, n->line,
                        "{%% generation %%} within {%% set %%} or a macro: weft cannot tell where "
                        "the answer will stand");
    size_t begin = r->out->length;
    TRY(execute(r, s, n->b, flow));
    if (r->answers && r->out->length > begin)
        template_spans_add(r->answers, (TemplateSpan){begin, r->out->length});
    return OK;
}

static ErrorCode execute_node(Run *r, Scope *s, const Node *n, Flow *flow) {
    Value v;
    bool truth;
    switch (n->kind) {
    case NODE_TEXT: text_add(r->out, n->literal.bytes, n->literal.size); return run_check_size(r, n->line, 0);
    case NODE_PRINT: return print(r, s, n);
    case NODE_IF:
        TRY(evaluate_truth(r, s, n->a, &v, &truth));
        return execute(r, s, truth ? n->b : n->c, flow);
    case NODE_FOR: return loop(r, s, n);
    case NODE_SET: return assign_name(r, s, n);
    case NODE_SET_BLOCK:
        TRY(capture(r, s, n->b, &v));
        namespace_set(&r->arena, &s->names, n->name, &v);
        return OK;
    case NODE_FILTERED: return filtered(r, s, n);
    case NODE_MACRO:
        v = (Value){.kind = VALUE_MACRO, .macro = n};
        namespace_set(&r->arena, &s->names, n->name, &v);
        return OK;
    case NODE_BREAK: *flow = FLOW_BREAK; return OK;
    case NODE_CONTINUE: *flow = FLOW_CONTINUE; return OK;
    case NODE_GENERATION: return generation(r, s, n, flow);
    case NODE_LITERAL:
    case NODE_NAME:
    case NODE_LIST:
    case NODE_DICT:
    case NODE_MEMBER:
    case NODE_INDEX:
    case NODE_SLICE:
    case NODE_CALL:
    case NODE_METHOD:
    case NODE_FILTER:
    case NODE_TEST:
    case NODE_NOT:
    case NODE_NEGATIVE:
    case NODE_AND:
    case NODE_OR:
    case NODE_CHOICE:
    case NODE_BINARY:
    case NODE_COMPARE:
    case NODE_ARGUMENT:
    case NODE_OPERAND: break;
    }
    return error_set(r->err, ERR_INTERNAL, "a node of kind %d among statements", (int)n->kind);
}

static ErrorCode execute(Run *r, Scope *s, const Node *n, Flow *flow) {
    if (++r->depth > DEEPEST) return run_fail(r, n ? n->line : 0, "nested more than %d deep", DEEPEST);
    for (; n && *flow == FLOW_ON; n = n->next) {
        TRY(count_step(r, n->line));
        TRY(execute_node(r, s, n, flow));
    }
    r->depth--;
    return OK;
}

ErrorCode run_template(Run *r) {
    Flow flow = FLOW_ON;
    return execute(r, &r->root, r->t->body, &flow);
}

ErrorCode template_render(const Template *t, const cJSON *variables, const char *date, Text *out,
                          TemplateSpans *answers, Error *err) {
    Run r = {.t = t, .date = date, .out = out, .answers = answers, .err = err};
    for (const cJSON *v = variables->child; v; v = v->next) {
        Value value = value_of_json(&r.arena, v, false);
        namespace_set(&r.arena, &r.root.names, v->string, &value);
    }
    ErrorCode code = run_template(&r);
    arena_free(&r.arena);
    return code;
}

/* String formatting, as Python's "%s of %d" % (a, b) and "{} of {n}".format(a, n=b).
 *
 * A conversion with flags, a width or a precision is refused, and the error quotes it: templates use none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/internal.h"

static ErrorCode put(Run *r, int line, const Value *format, const Value *v, Text *out) {
    if (v->kind == VALUE_UNDEFINED) return run_fail(r, line, "a format is given an undefined value");
    Text text = {0};
    value_print(v, &text);
    Value printed = value_string(text.data ? text.data : "", text.length);
    printed.form = v->kind == VALUE_STRING ? v->form : FORM_PLAIN;
    if (format->form == FORM_MARKUP) printed = value_escape(&r->arena, &printed);
    text_add(out, printed.bytes, printed.size);
    text_free(&text);
    return run_check_size(r, line, out->length);
}

static ErrorCode put_whole(Run *r, int line, const Value *v, Text *out) {
    Value whole = v->kind == VALUE_BOOL ? value_int(v->integer) : *v;
    if (whole.kind != VALUE_INT && whole.kind != VALUE_LONG)
        return run_fail(r, line, "%%d is for whole numbers, and got %s", value_kind_name(v));
    value_print(&whole, out);
    return OK;
}

static ErrorCode percent(Run *r, int line, const Value *format, const Value *args, size_t count, Text *out) {
    size_t used = 0;
    for (size_t i = 0; i < format->size; i++) {
        char c = format->bytes[i], kind = i + 1 < format->size ? format->bytes[i + 1] : 0;
        if (c != '%') {
            text_add(out, &c, 1);
            continue;
        }
        i++;
        if (kind == '%') {
            text_puts(out, "%");
            continue;
        }
        if (!kind || !strchr("sdi", kind))
            return run_fail(r, line, "weft formats by %%s, %%d and %%%%, and not by %%%c",
                            kind > ' ' && kind < 0x7f ? kind : '?');
        if (used == count) return run_fail(r, line, "a format of more than %zu values", count);
        const Value *v = &args[used++];
        TRY(kind == 's' ? put(r, line, format, v, out) : put_whole(r, line, v, out));
    }
    return used == count ? OK : run_fail(r, line, "a format of %zu values, and here are %zu", used, count);
}

static Value made(Run *r, const Value *format, Text *text) {
    Value v = value_copy(&r->arena, text->data, text->length);
    v.form = format->form;
    text_free(text);
    return v;
}

ErrorCode format_percent(Run *r, int line, const Value *format, const Value *args, size_t count, Value *out) {
    Text text = {0};
    ErrorCode code = percent(r, line, format, args, count, &text);
    *out = made(r, format, &text);
    return code;
}

/* The value of a field, which is the next positional argument, a number, or a name. */
static const Value *field(const Call *c, const char *name, size_t length, size_t *next) {
    size_t position = length == 0 ? (*next)++ : 0;
    for (size_t i = 0; i < length && position < MOST_ARGUMENTS; i++) {
        if (name[i] < '0' || name[i] > '9') {
            for (size_t k = 0; k < c->named; k++)
                if (strlen(c->names[k]) == length && memcmp(c->names[k], name, length) == 0)
                    return &c->named_items[k];
            return NULL;
        }
        position = position * 10 + (size_t)(name[i] - '0');
    }
    return position < c->count ? &c->items[position] : NULL;
}

static ErrorCode braces(const Call *c, Text *out) {
    const char *at = c->self->bytes, *end = at + c->self->size;
    size_t next = 0;
    for (; at < end; at++) {
        bool twice = at + 1 < end && at[1] == at[0];
        if ((*at != '{' && *at != '}') || twice) {
            text_add(out, at, 1);
            at += twice && (*at == '{' || *at == '}');
            continue;
        }
        const char *close = memchr(at, '}', (size_t)(end - at));
        char shown[60];
        const Value *v = *at == '{' && close ? field(c, at + 1, (size_t)(close - at - 1), &next) : NULL;
        if (!v)
            return run_fail(c->run, c->line,
                            "weft's format has {}, {0} and {name} of its arguments, and not %s",
                            error_escape(shown, sizeof shown, at, (size_t)((close ? close + 1 : end) - at)));
        TRY(put(c->run, c->line, c->self, v, out));
        at = close;
    }
    return OK;
}

ErrorCode format_braces(const Call *c, Value *out) {
    Text text = {0};
    ErrorCode code = braces(c, &text);
    *out = made(c->run, c->self, &text);
    return code;
}

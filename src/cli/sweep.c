/* Values for keys, and all their combinations.
 *
 *     "a.b=1,2; c.d=x,[y,z]"  -->  a.b: 1 | 2      members 0 to 3:  1 x, 1 [y,z], 2 x, 2 [y,z]
 *                                  c.d: x | [y,z] */
#include "cli/sweep.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

/* The position of the first of `stops` outside brackets and quotes, or the end; NULL if a bracket or a quote
 * is not closed. */
static const char *find_end(const char *text, const char *stops) {
    int depth = 0;
    char quote = 0;
    for (; *text; text++) {
        if (quote) {
            if (*text == quote) quote = 0;
        } else if (*text == '"' || *text == '\'') {
            quote = *text;
        } else if (strchr("[{", *text)) {
            depth++;
        } else if (strchr("]}", *text)) {
            depth--;
        } else if (depth == 0 && strchr(stops, *text)) {
            return text;
        }
    }
    return depth == 0 && !quote ? text : NULL;
}

/* Strips blanks; the caller frees the copy. */
static char *copy_trimmed(const char *from, const char *end) {
    while (from < end && isspace((unsigned char)*from)) from++;
    while (end > from && isspace((unsigned char)end[-1])) end--;
    Text t = {0};
    text_add(&t, from, (size_t)(end - from));
    return t.data ? t.data : mem_strdup("");
}

static ErrorCode refuse(const char *item, const char *end, const char *why, Error *err) {
    char shown[80];
    return error_set(err, ERR_USAGE, "--sweep: \"%s\" %s; expected section.key=value,value as in %s",
                     error_escape(shown, sizeof shown, item, (size_t)(end - item)), why,
                     "\"optimizer.lr=1e-3,2e-3; train.steps=100,200\"");
}

static void add_value(StringList *list, char *value) {
    list->items = mem_grow(list->items, (list->count + 1) * sizeof *list->items);
    list->items[list->count++] = value;
}

/* A repeated value would start one run twice, in one directory. */
static ErrorCode read_values(SweepKey *k, const char *item, const char *from, const char *end, Error *err) {
    for (const char *start = from, *stop;; start = stop + 1) {
        stop = find_end(start, ",;");
        char *value = copy_trimmed(start, stop);
        add_value(&k->values, value);
        if (!*value) return refuse(item, end, "has an empty value", err);
        for (size_t i = 0; i + 1 < k->values.count; i++)
            if (strcmp(k->values.items[i], value) == 0) return refuse(item, end, "has a value twice", err);
        if (*stop != ',') return OK;
    }
}

static ErrorCode read_key(Sweep *s, const char *item, const char *end, Error *err) {
    const char *equals = memchr(item, '=', (size_t)(end - item));
    if (s->key_count == SWEEP_KEYS) return error_set(err, ERR_USAGE, "--sweep: at most %d keys", SWEEP_KEYS);
    if (!equals) return refuse(item, end, "has no \"=\"", err);
    SweepKey *k = &s->keys[s->key_count++];
    k->key = copy_trimmed(item, equals);
    if (strcmp(k->key, "run.dir") == 0)
        return error_set(err, ERR_USAGE,
                         "--sweep: run.dir is not swept: each member gets a directory below it");
    for (size_t i = 0; i + 1 < s->key_count; i++)
        if (strcmp(s->keys[i].key, k->key) == 0) return refuse(item, end, "names a key again", err);
    TRY(read_values(k, item, equals + 1, end, err));
    s->members *= k->values.count;
    if (s->members > SWEEP_MEMBERS)
        return error_set(err, ERR_USAGE, "--sweep: more than %d combinations", SWEEP_MEMBERS);
    return OK;
}

ErrorCode sweep_parse(Sweep *s, const char *text, Error *err) {
    *s = (Sweep){.members = 1};
    if (!text || !*text) return OK;
    for (const char *item = text, *end;; item = end + 1) {
        end = find_end(item, ";");
        if (!end) return refuse(item, item + strlen(item), "has a bracket or quote that is not closed", err);
        TRY(read_key(s, item, end, err));
        if (!*end) return OK;
    }
}

void sweep_free(Sweep *s) {
    for (size_t k = 0; k < s->key_count; k++) {
        for (size_t i = 0; i < s->keys[k].values.count; i++) free(s->keys[k].values.items[i]);
        free(s->keys[k].values.items);
        free(s->keys[k].key);
    }
    *s = (Sweep){0};
}

/* ---- members ---- */

/* A member is a number whose digits select the values; the last key's is the least significant. */
const char *sweep_value(const Sweep *s, size_t member, size_t k) {
    for (size_t i = s->key_count; --i > k;) member /= s->keys[i].values.count;
    return s->keys[k].values.items[member % s->keys[k].values.count];
}

void sweep_name(const Sweep *s, size_t member, Text *out) {
    size_t from = out->length;
    for (size_t k = 0; k < s->key_count; k++)
        text_printf(out, "%s%s=%s", k ? "," : "", s->keys[k].key, sweep_value(s, member, k));
    for (size_t i = from; i < out->length; i++)
        if (!isalnum((unsigned char)out->data[i]) && !strchr("._+-=,", out->data[i])) out->data[i] = '_';
}

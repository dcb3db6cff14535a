/* Values of options by type.
 *
 * A value is complete before it replaces the old one, so that a failure leaves the field as it was. A field
 * owns its strings, which are never NULL once it has its default.
 *
 * Only the table gives a struct its meaning as a list of fields: they are accessed as `char **`, `int *` and
 * so on at their offset, by the type that the row declares. That cast is the price of having one table, and
 * is confined to this file, options.c and options_write.c.
 *
 * The accepted forms by type; everything else is refused with what was expected:
 *
 *     OPT_BOOL      true, false
 *     OPT_INT       digits, single underscores between them, k, M or G (powers of ten) at the end
 *     OPT_DOUBLE    decimal notation; .inf, inf, infinity
 *     OPT_STRING    any scalar, quoted or not
 *     OPT_CHOICE    one of its names
 *     OPT_STRINGS   a list of scalars; one scalar is a list of one, nothing an empty list
 *     OPT_LIST      a list of maps by the item table; a map alone, or a scalar (the item's first option) */
#include "base/option_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The common form of all errors about values: WHERE[:LINE:COLUMN]: KEY: what. Formatted separately first,
 * since an argument may point into origin->err. */
ErrorCode value_fail(const ValueOrigin *origin, int line, int column, const char *key, const char *format,
                     ...) {
    Error reason;
    char message[sizeof reason.message], name[128];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    error_escape(name, sizeof name, key, strlen(key));
    if (!origin->has_lines)
        return error_set(origin->err, ERR_CONFIG, "%s: %s: %s", origin->where, name, message);
    return error_set(origin->err, ERR_CONFIG, "%s:%d:%d: %s: %s", origin->where, line, column, name, message);
}

/* What was found, for messages: text is escaped and cut, since it may be anything. */
const char *value_describe(const YamlNode *node, char out[128]) {
    char text[80];
    if (node->kind == YAML_NODE_MAP) return strcpy(out, "a map");
    if (node->kind == YAML_NODE_LIST) return strcpy(out, "a list");
    if (!*node->text && !node->quoted) return strcpy(out, "nothing");
    snprintf(out, 128, "\"%s\"", error_escape(text, sizeof text, node->text, strlen(node->text)));
    return out;
}

/* Both zero means that there are none: no option accepts only 0. */
static bool has_bounds(const Option *o) { return o->min != 0 || o->max != 0; }

/* "a number between 0 and 10": what the option accepts, for "expected ...". Shows finite bounds only. */
static void describe_type(const Option *o, Text *out) {
    char low[32], high[32];
    switch (o->type) {
    case OPT_BOOL: text_puts(out, "true or false"); return;
    case OPT_STRING: text_puts(out, o->required ? "text that is not empty" : "text"); return;
    case OPT_STRINGS: text_puts(out, "a list of texts"); return;
    case OPT_LIST: text_puts(out, "a list"); return;
    case OPT_CHOICE:
        text_puts(out, "one of ");
        for (const char *c = o->choices; *c; c++) text_add(out, *c == '|' ? ", " : c, *c == '|' ? 2 : 1);
        return;
    case OPT_INT: text_puts(out, "a whole number"); break;
    case OPT_DOUBLE: text_puts(out, "a number"); break;
    }
    if (!has_bounds(o)) return;
    text_double(o->min, low);
    text_double(o->max, high);
    if (isinf(o->max))
        text_printf(out, " of at least %s", low);
    else if (isinf(o->min))
        text_printf(out, " of at most %s", high);
    else
        text_printf(out, " between %s and %s", low, high);
}

/* "expected X, found Y", followed by advice. */
static ErrorCode mismatch(const Option *o, const char *key, const YamlNode *node, const char *advice,
                          const ValueOrigin *origin) {
    Text wanted = {0};
    char found[128];
    /* Users coming from JSON or shells quote numbers; "expected a number, found 5" would not help them. */
    bool unquote = node->kind == YAML_NODE_SCALAR && node->quoted && o->type != OPT_CHOICE;
    describe_type(o, &wanted);
    ErrorCode code =
        value_fail(origin, node->line, node->column, key, "expected %s, found %s%s%s", wanted.data,
                   unquote ? "the quoted text " : "", value_describe(node, found), advice);
    text_free(&wanted);
    return code;
}

/* Not isdigit, which depends on the locale. */
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Digits, single underscores between them, one of k, M, G at the end. Powers of ten, since they count tokens
 * and steps; no option is in bytes. */
static bool parse_int(const char *text, int64_t *out) {
    bool negative = *text == '-';
    if (*text == '-' || *text == '+') text++;
    int64_t value = 0, scale = 1;
    if (!is_digit(*text)) return false;
    for (; is_digit(*text) || (*text == '_' && is_digit(text[-1]) && is_digit(text[1])); text++) {
        if (*text == '_') continue;
        int digit = *text - '0';
        if (__builtin_mul_overflow(value, 10, &value)) return false;
        /* Accumulated with its sign, since the least int64 has no positive counterpart. */
        if (__builtin_add_overflow(value, negative ? -digit : digit, &value)) return false;
    }
    if (*text == 'k') scale = 1000;
    if (*text == 'M') scale = 1000 * 1000;
    if (*text == 'G') scale = 1000 * 1000 * 1000;
    if (scale != 1) text++;
    return *text == 0 && !__builtin_mul_overflow(value, scale, out);
}

/* Decimal notation or an infinity; strtod alone would also accept hexadecimal, "nan" and leading blanks. A
 * number that overflows to infinity is refused; ".inf" is accepted. */
static bool parse_double(const char *text, double *out) {
    const char *p = text;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+') p++;
    if (strcmp(p, ".inf") == 0 || strcmp(p, "inf") == 0 || strcmp(p, "infinity") == 0) {
        *out = negative ? -(double)INFINITY : (double)INFINITY;
        return true;
    }
    /* ".5" and "5." are numbers, "." is not. */
    size_t digits = 0;
    for (; is_digit(*p); p++) digits++;
    if (*p == '.') p++;
    for (; is_digit(*p); p++) digits++;
    if (digits == 0) return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '-' || *p == '+') p++;
        if (!is_digit(*p)) return false;
        while (is_digit(*p)) p++;
    }
    *out = strtod(text, NULL);
    return *p == 0 && isfinite(*out);
}

/* Bounds beyond 64 bits have no effect. The others are compared as integers, since doubles cannot distinguish
 * 2^53 + 1 from 2^53. ceil and floor, since a bound may be 0.5. */
static bool int_in_bounds(const Option *o, int64_t value) {
    if (!has_bounds(o)) return true;
    if (o->min > -0x1p63 && value < (int64_t)ceil(o->min)) return false;
    return !(o->max < 0x1p63 && value > (int64_t)floor(o->max));
}

/* YAML 1.1 has eleven spellings of true, and readers differ in which they accept. Only one is accepted here;
 * for the others the error names it. Quoted "true" is refused as well: every reader takes it as text. */
static ErrorCode set_bool(const Option *o, bool *field, const char *key, const YamlNode *node,
                          const ValueOrigin *origin) {
    static const char *const like_true[] = {"yes", "Yes", "YES", "on", "On", "ON", "True", "TRUE", "1", "y"};
    static const char *const like_false[] = {"no",  "No",    "NO",    "off", "Off",
                                             "OFF", "False", "FALSE", "0",   "n"};
    bool is_true = strcmp(node->text, "true") == 0;
    if (!node->quoted && (is_true || strcmp(node->text, "false") == 0)) {
        *field = is_true;
        return OK;
    }
    const char *advice = "";
    for (size_t i = 0; i < sizeof like_true / sizeof *like_true; i++) {
        if (strcmp(node->text, like_true[i]) == 0) advice = "; write true";
        if (strcmp(node->text, like_false[i]) == 0) advice = "; write false";
    }
    return mismatch(o, key, node, advice, origin);
}

/* Stored as an index: code compares enums, files and messages use the names. */
static ErrorCode set_choice(const Option *o, int *field, const char *key, const YamlNode *node,
                            const ValueOrigin *origin) {
    /* At most two edits, and fewer than the name has letters: otherwise all two-letter names would match each
     * other. */
    char name[64], nearest[64] = "", advice[96] = "";
    int best = 3;
    for (int i = 0; *options_choice_name(o, i, name); i++) {
        int distance = text_distance(node->text, name);
        if (distance == 0) {
            *field = i;
            return OK;
        }
        if (distance < best && distance < (int)strlen(name)) {
            best = distance;
            memcpy(nearest, name, sizeof nearest);
        }
    }
    if (*nearest) snprintf(advice, sizeof advice, "; did you mean %s?", nearest);
    return mismatch(o, key, node, advice, origin);
}

/* `!(a && b)` instead of inverted comparisons: a NaN would then be out of bounds. */
static ErrorCode set_number(const Option *o, void *field, const char *key, const YamlNode *node,
                            const ValueOrigin *origin) {
    if (o->type == OPT_INT) {
        int64_t value;
        if (node->quoted || !parse_int(node->text, &value) || !int_in_bounds(o, value))
            return mismatch(o, key, node, "", origin);
        *(int64_t *)field = value;
    } else {
        double value;
        bool good = !node->quoted && parse_double(node->text, &value);
        if (!good || (has_bounds(o) && !(value >= o->min && value <= o->max)))
            return mismatch(o, key, node, "", origin);
        *(double *)field = value;
    }
    return OK;
}

/* "key:" with nothing after it. A quoted empty text is not nothing. */
static bool is_nothing(const YamlNode *node) {
    return node->kind == YAML_NODE_SCALAR && !node->quoted && !*node->text;
}

/* Leaves an empty list, which is valid. */
static void free_strings(StringList *list) {
    for (size_t i = 0; i < list->count; i++) free(list->items[i]);
    free(list->items);
    *list = (StringList){0};
}

/* Nothing is an empty list, and one bare text a list of one. The new list is complete before the old one is
 * freed. */
static ErrorCode set_strings(const Option *o, StringList *field, const char *key, const YamlNode *node,
                             const ValueOrigin *origin) {
    char advice[160] = "";
    if (o->instead) snprintf(advice, sizeof advice, "; %s", o->instead);
    if (node->kind == YAML_NODE_MAP) return mismatch(o, key, node, advice, origin);
    const bool single = node->kind == YAML_NODE_SCALAR;
    StringList list = {.count = single ? !is_nothing(node) : node->count};
    list.items = mem_alloc_array(list.count, sizeof *list.items);
    for (size_t i = 0; i < list.count; i++) {
        const YamlNode *item = single ? node : node->items[i];
        if (item->kind != YAML_NODE_SCALAR) {
            free_strings(&list);
            return mismatch(o, key, item, " in it", origin);
        }
        list.items[i] = mem_strdup(item->text);
    }
    free_strings(field);
    *field = list;
    return OK;
}

/* Item tables have a few rows and no sections. */
static const Option *find_item_option(const Option *table, const char *name) {
    for (const Option *o = table; o->key; o++)
        if (strcmp(o->key, name) == 0) return o;
    return NULL;
}

/* Suggests the nearest name if one is near, else lists all. */
static ErrorCode unknown_item_key(const Option *table, const char *path, const YamlNode *map, size_t i,
                                  const ValueOrigin *origin) {
    Text names = {0};
    const char *nearest = NULL;
    int best = 3;
    for (const Option *o = table; o->key; o++) {
        int distance = text_distance(map->keys[i], o->key);
        if (distance < best) best = distance, nearest = o->key;
        text_printf(&names, "%s%s", o == table ? "" : ", ", o->key);
    }
    ErrorCode code = nearest ? value_fail(origin, map->key_lines[i], map->key_columns[i], path,
                                          "unknown key; did you mean %s?", nearest)
                             : value_fail(origin, map->key_lines[i], map->key_columns[i], path,
                                          "unknown key; there are %s", names.data);
    text_free(&names);
    return code;
}

/* Checked after all keys of an item, since they come in any order. Only texts can be required: every number
 * has a default. */
static ErrorCode check_item(const Option *table, const char *item, const char *key, const YamlNode *node,
                            const ValueOrigin *origin) {
    for (const Option *o = table; o->key; o++)
        if (o->required && !**(char *const *)(const void *)(item + o->offset))
            return value_fail(origin, node->line, node->column, key, "%s is missing; expected {%s: ...}",
                              o->key, o->key);
    return OK;
}

bool option_is_unset(const Option *o, const void *field) {
    CHECK(o->type == OPT_DOUBLE || o->type == OPT_CHOICE);
    return o->type == OPT_DOUBLE ? isnan(*(const double *)field) : *(const int *)field < 0;
}

/* Values that parsing never yields: NaN (see parse_double), and -1 for choices, which count from 0. They mark
 * an item's field as "not given"; the code that knows the section decides what it then means. */
static void unset(const Option *o, void *field) {
    if (o->type == OPT_DOUBLE)
        *(double *)field = (double)NAN;
    else
        *(int *)field = -1;
}

/* One item: defaults first, then the node's keys, in any order. Keys that a map omits keep the default, or
 * are "not given". */
static ErrorCode set_item(const Option *table, char *item, const char *key, const YamlNode *node,
                          const ValueOrigin *origin) {
    const ValueOrigin defaults = {.where = "default", .err = origin->err};
    for (const Option *o = table; o->key; o++)
        if (o->optional)
            unset(o, item + o->offset);
        else
            TRY(value_set_text(o, item + o->offset, o->key, o->default_value, &defaults));
    /* A bare text is the item's first option, as in `sources: [a.txt]`. */
    if (node->kind != YAML_NODE_MAP) return value_set(table, item + table->offset, key, node, origin);
    ErrorCode code = OK;
    Text path = {0};
    for (size_t i = 0; i < node->count && code == OK; i++) {
        text_clear(&path);
        text_printf(&path, "%s.%s", key, node->keys[i]);
        const Option *o = find_item_option(table, node->keys[i]);
        code = o ? value_set(o, item + o->offset, path.data, node->items[i], origin)
                 : unknown_item_key(table, path.data, node, i, origin);
    }
    text_free(&path);
    return code == OK ? check_item(table, item, key, node, origin) : code;
}

/* Also for a partially built list: mem_alloc_array has zeroed the rest, and value_free accepts NULL. */
static void free_list(const Option *o, ObjectList *list) {
    for (size_t i = 0; i < list->count; i++)
        for (const Option *part = o->item; part->key; part++)
            value_free(part, list->items + i * o->item_size + part->offset);
    free(list->items);
    *list = (ObjectList){0};
}

/* Nothing is an empty list; a scalar or a map alone is a list of one. Errors name the item:
 * data.sources[2].weight. */
static ErrorCode set_list(const Option *o, ObjectList *field, const char *key, const YamlNode *node,
                          const ValueOrigin *origin) {
    const bool single = node->kind != YAML_NODE_LIST;
    ObjectList list = {.count = single ? !is_nothing(node) : node->count};
    list.items = mem_alloc_array(list.count, o->item_size);
    ErrorCode code = OK;
    Text path = {0};
    for (size_t i = 0; i < list.count && code == OK; i++) {
        text_clear(&path);
        text_printf(&path, "%s[%zu]", key, i);
        code = set_item(o->item, list.items + i * o->item_size, path.data, single ? node : node->items[i],
                        origin);
    }
    text_free(&path);
    if (code != OK) {
        free_list(o, &list);
        return code;
    }
    free_list(o, field);
    *field = list;
    return OK;
}

/* Lists first: they accept every kind of node. All other types need a scalar. */
ErrorCode value_set(const Option *option, void *field, const char *key, const YamlNode *node,
                    const ValueOrigin *origin) {
    if (option->type == OPT_STRINGS) return set_strings(option, field, key, node, origin);
    if (option->type == OPT_LIST) return set_list(option, field, key, node, origin);
    if (node->kind != YAML_NODE_SCALAR) return mismatch(option, key, node, "", origin);
    if (option->type == OPT_BOOL) return set_bool(option, field, key, node, origin);
    if (option->type == OPT_CHOICE) return set_choice(option, field, key, node, origin);
    if (option->type != OPT_STRING) return set_number(option, field, key, node, origin);
    /* A required option may be empty only as the default, until it is given. */
    if (option->required && !*node->text && *(char **)field) return mismatch(option, key, node, "", origin);
    char *text = mem_strdup(node->text);
    free(*(char **)field);
    *(char **)field = text;
    return OK;
}

/* Text of the command line is YAML if it is quoted or a list, and literal otherwise: nobody should need to
 * quote a path for weft after quoting it for the shell. */
ErrorCode value_set_text(const Option *option, void *field, const char *key, const char *text,
                         const ValueOrigin *origin) {
    const size_t length = strlen(text);
    const bool is_list = option->type == OPT_STRINGS || option->type == OPT_LIST;
    const bool in_quotes = length >= 2 && (*text == '"' || *text == '\'') && text[length - 1] == *text;
    if (!in_quotes && !(is_list && (*text == '[' || *text == '{'))) {
        char *copy = mem_strdup(text);
        const YamlNode node = {.kind = YAML_NODE_SCALAR, .text = copy};
        ErrorCode code = value_set(option, field, key, &node, origin);
        free(copy);
        return code;
    }
    YamlNode *node;
    ErrorCode code = yaml_tree_parse(origin->where, text, length, &node, origin->err);
    if (code != OK) return error_context(origin->err, "%s", key), code;
    code = value_set(option, field, key, node, origin);
    yaml_tree_free(node);
    return code;
}

/* Other types own nothing. */
void value_free(const Option *option, void *field) {
    if (option->type == OPT_STRINGS) free_strings(field);
    if (option->type == OPT_LIST) free_list(option, field);
    if (option->type != OPT_STRING) return;
    free(*(char **)field);
    *(char **)field = NULL;
}

/* Unquoted only if every YAML reader takes it as this text: letters, digits and a few marks, beginning with a
 * letter or a slash, and none of the words that some version of YAML reads as a boolean or null. */
static bool is_plain(const char *text) {
    static const char *const words[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
    const bool letter = (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') || *text == '/';
    for (const char *p = text; *p; p++)
        if (!(is_digit(*p) || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || strchr("/._+-", *p)))
            return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(text, words[i]) == 0) return false;
    return letter;
}

/* Characters that YAML accepts unescaped inside double quotes, and that no terminal interprets. */
static bool is_literal(uint32_t code) {
    if (text_is_unprintable(code) || code == '"' || code == '\\') return false;
    return code < 0xfffe || code >= 0x10000;
}

/* Always UTF-8 that reads back as the same bytes: these lines become config.yaml of a run, and are hashed. */
static void write_string(const char *text, Text *out) {
    if (is_plain(text)) {
        text_puts(out, text);
        return;
    }
    text_puts(out, "\"");
    for (size_t at = 0, length = strlen(text); at < length;) {
        uint32_t code = (unsigned char)text[at];
        size_t bytes = text_utf8(text + at, length - at, &code);
        if (bytes && is_literal(code))
            text_add(out, text + at, bytes);
        else if (code == '"' || code == '\\')
            text_printf(out, "\\%c", (int)code);
        else if (code == '\n')
            text_puts(out, "\\n");
        else if (code == '\t')
            text_puts(out, "\\t");
        else
            text_printf(out, code < 0x100 ? "\\x%02X" : "\\u%04X", (unsigned)code);
        at += bytes ? bytes : 1;
    }
    text_puts(out, "\"");
}

/* Shortest digits that read back the same; infinities in YAML's spelling. */
static void write_double(double value, Text *out) {
    char number[32];
    text_puts(out, isinf(value) ? (value > 0 ? ".inf" : "-.inf") : text_double(value, number));
}

/* In the order of the table, whatever order the file had: equal items have equal texts. */
void value_write_item(const Option *option, const ObjectList *list, size_t index, Text *out) {
    const char *gap = "";
    text_puts(out, "{");
    for (const Option *part = option->item; part->key; part++) {
        const void *field = list->items + index * option->item_size + part->offset;
        if (part->optional && option_is_unset(part, field)) continue;
        text_printf(out, "%s%s: ", gap, part->key);
        value_write(part, field, out);
        gap = ", ";
    }
    text_puts(out, "}");
}

/* The text from which value_set makes the same value, for every type; digests and comparisons rely on it. */
void value_write(const Option *option, const void *field, Text *out) {
    char name[64];
    switch (option->type) {
    case OPT_BOOL: text_puts(out, *(const bool *)field ? "true" : "false"); return;
    case OPT_INT: text_printf(out, "%lld", (long long)*(const int64_t *)field); return;
    case OPT_DOUBLE: write_double(*(const double *)field, out); return;
    case OPT_STRING: write_string(*(char *const *)field, out); return;
    case OPT_CHOICE: text_puts(out, options_choice_name(option, *(const int *)field, name)); return;
    case OPT_STRINGS: {
        const StringList *list = field;
        text_puts(out, "[");
        for (size_t i = 0; i < list->count; i++) {
            if (i > 0) text_puts(out, ", ");
            write_string(list->items[i], out);
        }
        text_puts(out, "]");
        return;
    }
    case OPT_LIST: {
        const ObjectList *list = field;
        text_puts(out, "[");
        for (size_t i = 0; i < list->count; i++) {
            if (i > 0) text_puts(out, ", ");
            value_write_item(option, list, i, out);
        }
        text_puts(out, "]");
        return;
    }
    }
}

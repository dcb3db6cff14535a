/* Option tables applied: defaults, files, overrides, and where each value came from.
 *
 * Invariant of an OptionSet after options_init: every field holds a valid value of its type, and every source
 * is set.
 *
 * Every input path ends in value_set of option_value.c, which either sets a complete value or leaves the old
 * one, and then in set_source. The paths differ in the origin of the value, and thus in the location that an
 * error can name:
 *
 *     way in                      origin     where
 *     options_init                default    "default"
 *     options_apply_yaml, _file   given      FILE:LINE, and the column in errors
 *     options_apply_written       given      NAME:LINE of the written configuration; old names are accepted,
 *                                            unknown keys are skipped and listed
 *     options_apply_override      given      "command line"
 *     options_derive, _follow     derived    what it follows from, in words */
#include "base/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/option_value.h"

/* Only this function and its const twin in options_write.c convert a row of the table into an address. */
static void *field_of(const OptionSet *set, size_t i) { return (char *)set->target + set->table[i].offset; }

/* Copied before the old one is freed: `where` may be the old one. */
static void set_source(OptionSet *set, size_t i, OptionOrigin origin, const char *where) {
    char *copy = mem_strdup(where);
    free(set->sources[i].where);
    set->sources[i] = (OptionSource){origin, copy};
}

/* A default goes through the same parser as a user's value, so the table can only hold what a file could say.
 * A default that does not parse is a bug of the table; any program that starts finds it. */
ErrorCode options_init(OptionSet *set, const Option *table, void *target, Error *err) {
    const ValueOrigin origin = {.where = "default", .err = err};
    *set = (OptionSet){.table = table, .target = target};
    while (table[set->count].key) set->count++;
    set->sources = mem_alloc_array(set->count, sizeof *set->sources);
    /* All sources before the first value: options_free, which the next loop may call, visits them all. */
    for (size_t i = 0; i < set->count; i++) set_source(set, i, ORIGIN_DEFAULT, "default");
    for (size_t i = 0; i < set->count; i++) {
        if (value_set_text(&table[i], field_of(set, i), table[i].key, table[i].default_value, &origin) == OK)
            continue;
        options_free(set);
        error_context(err, "a bad default in the option table");
        if (err) err->code = ERR_INTERNAL;
        return ERR_INTERNAL;
    }
    return OK;
}

/* Also for a set whose initialisation failed: fields without a value are zero, which value_free accepts. */
void options_free(OptionSet *set) {
    for (size_t i = 0; i < set->count; i++) {
        value_free(&set->table[i], field_of(set, i));
        free(set->sources[i].where);
    }
    free(set->sources);
    text_free(&set->unknown);
    *set = (OptionSet){0};
}

/* Linear: a table has some 120 rows, and each is looked up a few times in the life of a process. */
static size_t find_option(const OptionSet *set, const char *key) {
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->table[i].key, key) == 0) return i;
    return SIZE_MAX;
}

/* Whether the user set it in a file or on the command line; derived values do not count. */
bool options_is_set(const OptionSet *set, const char *key) {
    size_t i = find_option(set, key);
    CHECK(i != SIZE_MAX);
    return set->sources[i].origin == ORIGIN_GIVEN;
}

const char *options_where(const OptionSet *set, const char *key) {
    size_t i = find_option(set, key);
    CHECK(i != SIZE_MAX);
    return set->sources[i].where;
}

void options_write_value(const OptionSet *set, const char *key, Text *out) {
    size_t i = find_option(set, key);
    CHECK(i != SIZE_MAX);
    value_write(&set->table[i], field_of(set, i), out);
}

/* ---- values that follow from others ---- */

/* The source changes only after the value did: a refused value changes neither. */
static ErrorCode derive(OptionSet *set, size_t i, const char *text, const char *where, Error *err) {
    const ValueOrigin origin = {.where = where, .err = err};
    TRY(value_set_text(&set->table[i], field_of(set, i), set->table[i].key, text, &origin));
    set_source(set, i, ORIGIN_DERIVED, where);
    return OK;
}

ErrorCode options_derive(OptionSet *set, const char *key, const char *text, const char *where, Error *err) {
    size_t i = find_option(set, key);
    CHECK(i != SIZE_MAX);
    return derive(set, i, text, where, err);
}

/* Fields are compared in their written form, not by their bytes: a struct has padding, and equal texts have
 * different addresses. Only differing values are derived, so that a key keeps its source if it already had
 * the value. */
ErrorCode options_derive_part(OptionSet *set, const void *part, const void *from, size_t size, bool given,
                              const char *where, Error *err) {
    ErrorCode code = OK;
    Text has = {0}, gets = {0};
    const size_t first = (size_t)((const char *)part - (const char *)set->target);
    for (size_t i = 0; i < set->count && code == OK; i++) {
        const Option *o = &set->table[i];
        /* The rows of the part are those whose fields lie inside it. */
        if (o->offset < first || o->offset >= first + size) continue;
        if (!given && set->sources[i].origin == ORIGIN_GIVEN) continue;
        text_clear(&has);
        text_clear(&gets);
        value_write(o, field_of(set, i), &has);
        value_write(o, (const char *)from + o->offset - first, &gets);
        if (strcmp(has.data, gets.data) != 0) code = derive(set, i, gets.data, where, err);
    }
    text_free(&has);
    text_free(&gets);
    return code;
}

/* Only integers follow, and 0 means "not given". The table is processed once, in order, so a leader that
 * itself follows another key must come before its follower. */
ErrorCode options_follow(OptionSet *set, Error *err) {
    ErrorCode code = OK;
    Text value = {0}, where = {0};
    for (size_t i = 0; i < set->count && code == OK; i++) {
        const char *leader = set->table[i].follows;
        if (!leader || *(const int64_t *)field_of(set, i) != 0) continue;
        text_clear(&value);
        text_clear(&where);
        options_write_value(set, leader, &value);
        text_printf(&where, "derived from %s", leader);
        code = derive(set, i, value.data, where.data, err);
    }
    text_free(&value);
    text_free(&where);
    return code;
}

/* ---- two sets compared ---- */

/* In the order of the table; the texts are valid until `differs` returns. */
void options_compare(const OptionSet *a, const OptionSet *b,
                     void (*differs)(void *context, const Option *option, const char *in_a, const char *in_b),
                     void *context) {
    Text in_a = {0}, in_b = {0};
    CHECK(a->table == b->table);
    for (size_t i = 0; i < a->count; i++) {
        text_clear(&in_a);
        text_clear(&in_b);
        value_write(&a->table[i], field_of(a, i), &in_a);
        value_write(&b->table[i], field_of(b, i), &in_b);
        if (strcmp(in_a.data, in_b.data) != 0) differs(context, &a->table[i], in_a.data, in_b.data);
    }
    text_free(&in_a);
    text_free(&in_b);
}

bool option_differs(const Option *row, const void *a, const void *b) {
    Text in_a = {0}, in_b = {0};
    value_write(row, (const char *)a + row->offset, &in_a);
    value_write(row, (const char *)b + row->offset, &in_b);
    bool differs = strcmp(in_a.data, in_b.data) != 0;
    text_free(&in_a);
    text_free(&in_b);
    return differs;
}

/* Items are compared by index: with another order or number of items, a different one may be the first that
 * matters. */
static bool items_act_alike(const Option *list, const ObjectList *a, const ObjectList *b) {
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count * list->item_size; i += list->item_size)
        for (const Option *row = list->item; row->key; row++)
            if (row->effect != EFFECT_NOTHING && option_differs(row, a->items + i, b->items + i))
                return false;
    return true;
}

OptionEffect options_difference(const OptionSet *a, const OptionSet *b, const Option *o) {
    size_t i = (size_t)(o - a->table);
    return o->type == OPT_LIST && items_act_alike(o, field_of(a, i), field_of(b, i)) ? EFFECT_NOTHING
                                                                                     : o->effect;
}

/* For cross-checks, which refer to a key long after it was read: the error still names the line that set it.
 * `where` of a given key already ends in its line. */
ErrorCode options_fail(const OptionSet *set, const char *key, Error *err, const char *format, ...) {
    size_t i = find_option(set, key);
    CHECK(i != SIZE_MAX);
    const ValueOrigin origin = {.where = set->sources[i].where, .err = err}; /* the line is part of it */
    Error reason;
    va_list args;
    va_start(args, format);
    vsnprintf(reason.message, sizeof reason.message, format, args);
    va_end(args);
    return value_fail(&origin, 0, 0, key, "%s", reason.message);
}

/* A section exists if a key lies in it, so no separate list of sections is needed. */
static bool is_section(const OptionSet *set, const char *path) {
    size_t length = strlen(path);
    for (size_t i = 0; i < set->count; i++)
        if (strncmp(set->table[i].key, path, length) == 0 && set->table[i].key[length] == '.') return true;
    return false;
}

/* A key of a renamed section counts only if the new section has it. */
bool options_rename(const OptionSet *set, const char *name, Text *key) {
    text_clear(key);
    for (size_t i = 0; i < set->count && !key->length; i++)
        if (set->table[i].was && strcmp(set->table[i].was, name) == 0) text_puts(key, set->table[i].key);
    for (const OptionSection *s = set->sections; s && s->name && !key->length; s++) {
        size_t length = s->was ? strlen(s->was) : 0;
        if (!length || strncmp(name, s->was, length) != 0) continue;
        if (name[length] == '\0' || name[length] == '.') text_printf(key, "%s%s", s->name, name + length);
    }
    return key->length && (find_option(set, key->data) != SIZE_MAX || is_section(set, key->data));
}

/* The new name of a choice, or NULL if it kept its name. */
static const char *renamed_choice(const Option *row, const char *value) {
    for (const char *const *pair = row->choices_were; pair && *pair; pair += 2)
        if (strcmp(pair[0], value) == 0) return pair[1];
    return NULL;
}

static const char *last_part(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static bool has_word(const char *words, const char *word) {
    size_t length = strlen(word);
    for (; words; words = strchr(words, ' ')) {
        words += *words == ' ';
        if (strncmp(words, word, length) == 0 && (words[length] == ' ' || words[length] == '\0')) return true;
    }
    return false;
}

static const char *known_elsewhere(const OptionSet *set, const char *name) {
    for (size_t i = 0; i < set->count; i++)
        if (has_word(set->table[i].elsewhere, name)) return set->table[i].key;
    for (const OptionSection *s = set->sections; s && s->name; s++)
        if (has_word(s->elsewhere, name)) return s->name;
    return NULL;
}

const char *options_synonym(const OptionSet *set, const char *name) {
    const char *key = known_elsewhere(set, name);
    return key ? key : known_elsewhere(set, last_part(name));
}

/* The nearest key or section for an unknown one: by spelling, or the same last component in another section.
 * NULL if nothing is near. The text lives in `out`. */
static const char *nearest_key(const OptionSet *set, const char *path, Text *out) {
    const char *last = last_part(path);
    /* One more edit is allowed per four letters; beyond that "did you mean" would be a guess. */
    int best = 2 + (int)(strlen(last) / 4);
    bool found = false;
    for (size_t i = 0; i < set->count; i++) {
        const char *key = set->table[i].key, *dot = strrchr(key, '.');
        /* The right name in the wrong section costs 1, so that an exact match of the whole key wins. */
        int whole = text_distance(path, key), part = 1 + text_distance(last, last_part(key));
        int distance = whole < part ? whole : part;
        size_t length = strlen(key);
        /* A bare word may also be a misspelt section: "optimiser" for "optimizer". */
        if (dot && !strchr(path, '.')) {
            Text section = {0};
            text_add(&section, key, (size_t)(dot - key));
            int to_section = text_distance(path, section.data);
            if (to_section < distance) distance = to_section, length = section.length;
            text_free(&section);
        }
        if (distance >= best) continue;
        best = distance;
        found = true;
        text_clear(out);
        text_add(out, key, length);
    }
    return found ? out->data : NULL;
}

/* The error for an old name. `value` as in unknown_key. */
static ErrorCode old_name(const OptionSet *set, const char *path, const char *key, const char *value,
                          int line, int column, const ValueOrigin *origin) {
    size_t option = find_option(set, key);
    const char *now = value && option != SIZE_MAX ? renamed_choice(&set->table[option], value) : NULL;
    if (option == SIZE_MAX)
        return value_fail(origin, line, column, path, "the section is called %s now", key);
    if (!now) return value_fail(origin, line, column, path, "the key is called %s now", key);
    return value_fail(origin, line, column, path, "the key is called %s now, and its value %s is %s", key,
                      value, now);
}

/* An unknown key always fails: if it were ignored, another model than intended would be trained. `value` is
 * its scalar text, or NULL. */
static ErrorCode unknown_key(const OptionSet *set, const char *path, const char *value, int line, int column,
                             const ValueOrigin *origin) {
    Text name = {0};
    ErrorCode code;
    bool renamed = options_rename(set, path, &name);
    const char *meant = options_synonym(set, path);
    if (!renamed && !meant) meant = nearest_key(set, path, &name);
    if (renamed)
        code = old_name(set, path, name.data, value, line, column, origin);
    else if (meant)
        code = value_fail(origin, line, column, path, "unknown key; did you mean %s?", meant);
    else
        code = value_fail(origin, line, column, path, "unknown key; see --help for all keys");
    text_free(&name);
    return code;
}

ErrorCode options_check_key(const OptionSet *set, const char *where, const char *key, Error *err) {
    const ValueOrigin origin = {.where = where, .err = err};
    return find_option(set, key) != SIZE_MAX ? OK : unknown_key(set, key, NULL, 0, 0, &origin);
}

static bool is_last_part(const OptionSet *set, const char *name) {
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(last_part(set->table[i].key), name) == 0) return true;
    return false;
}

static bool is_renamed(const OptionSet *set, const char *path) {
    Text key = {0};
    bool is = options_rename(set, path, &key);
    text_free(&key);
    return is;
}

/* Whether a key in an unknown section deserves a message of its own: the key is an old name or a synonym, or
 * it is one of weft's keys and its section is a synonym. */
static bool is_known(const OptionSet *set, const char *section, const char *path) {
    return is_renamed(set, path) || options_synonym(set, path) ||
           (options_synonym(set, section) && is_last_part(set, last_part(path)));
}

static const char *scalar_text(const YamlNode *node) {
    return node->kind == YAML_NODE_SCALAR ? node->text : NULL;
}

/* Returns the error for the first such key at any depth, or OK if there is none. */
static ErrorCode unknown_inside(const OptionSet *set, const char *section, const YamlNode *map,
                                const ValueOrigin *origin) {
    ErrorCode code = OK;
    for (size_t i = 0; map->kind == YAML_NODE_MAP && i < map->count && code == OK; i++) {
        Text path = {0};
        text_printf(&path, "%s.%s", section, map->keys[i]);
        code = unknown_inside(set, path.data, map->items[i], origin);
        if (code == OK && is_known(set, section, path.data))
            code = unknown_key(set, path.data, scalar_text(map->items[i]), map->key_lines[i],
                               map->key_columns[i], origin);
        text_free(&path);
    }
    return code;
}

static ErrorCode apply_section(OptionSet *set, const char *section, const YamlNode *map,
                               const ValueOrigin *origin);

static ErrorCode set_given(OptionSet *set, size_t option, const char *path, const YamlNode *value, int line,
                           const ValueOrigin *origin) {
    TRY(value_set(&set->table[option], field_of(set, option), path, value, origin));
    Text where = {0};
    text_printf(&where, "%s:%d", origin->where, line);
    set_source(set, option, ORIGIN_GIVEN, where.data);
    text_free(&where);
    return OK;
}

/* Sets the new key to the new name of the value. If a file has both keys, the new one wins. */
static ErrorCode set_renamed(OptionSet *set, size_t option, const YamlNode *value, int line,
                             const ValueOrigin *origin) {
    const char *text = scalar_text(value), *now = text ? renamed_choice(&set->table[option], text) : NULL;
    YamlNode node = *value;
    if (set->sources[option].origin == ORIGIN_GIVEN) return OK;
    if (now) node.text = (char *)(uintptr_t)now;
    return set_given(set, option, set->table[option].key, &node, line, origin);
}

static void add_unknown(OptionSet *set, const char *path, const YamlNode *value) {
    char name[128], text[128];
    const char *shown = scalar_text(value) ? value->text : value->kind == YAML_NODE_LIST ? "[...]" : "{}";
    text_printf(&set->unknown, "%s%s: %s", set->unknown.length ? ", " : "",
                error_escape(name, sizeof name, path, strlen(path)),
                error_escape(text, sizeof text, shown, strlen(shown)));
}

/* A key that another version of weft wrote: an old name, or one that this version does not know. Every map is
 * read as a section. */
static ErrorCode apply_foreign(OptionSet *set, const char *path, const YamlNode *value, int line,
                               const ValueOrigin *origin) {
    Text key = {0};
    size_t option = options_rename(set, path, &key) ? find_option(set, key.data) : SIZE_MAX;
    text_free(&key);
    if (option != SIZE_MAX) return set_renamed(set, option, value, line, origin);
    if (value->kind == YAML_NODE_MAP && value->count > 0) return apply_section(set, path, value, origin);
    add_unknown(set, path, value);
    return OK;
}

/* The error for a user's key or section that does not exist. A section is explained by its first key that has
 * a message of its own: an old name, or one of another program. */
static ErrorCode refuse_entry(const OptionSet *set, const char *path, const YamlNode *value, int line,
                              int column, const ValueOrigin *origin) {
    TRY(unknown_inside(set, path, value, origin));
    return unknown_key(set, path, scalar_text(value), line, column, origin);
}

/* One key of a section: an option, a nested section, or an error. */
static ErrorCode apply_entry(OptionSet *set, const char *path, const YamlNode *map, size_t i,
                             const ValueOrigin *origin) {
    const int line = map->key_lines[i], column = map->key_columns[i];
    const YamlNode *value = map->items[i];
    char found[128];
    size_t option = find_option(set, path);
    /* `a.b: 1` as a single key in a file would work too, but then a section `a` could give another value for
     * it. */
    if (option != SIZE_MAX && strchr(map->keys[i], '.'))
        return value_fail(origin, line, column, path,
                          "keys with dots are for the command line; write a section with a key in it");
    if (option != SIZE_MAX) return set_given(set, option, path, value, line, origin);
    if (!is_section(set, path))
        return origin->written ? apply_foreign(set, path, value, line, origin)
                               : refuse_entry(set, path, value, line, column, origin);
    if (value->kind == YAML_NODE_MAP) return apply_section(set, path, value, origin);
    /* "section:" with nothing below it, all its keys commented out. */
    if (value->kind == YAML_NODE_SCALAR && !value->quoted && !*value->text) return OK;
    return value_fail(origin, value->line, value->column, path,
                      "expected a section with keys of its own, found %s", value_describe(value, found));
}

static ErrorCode apply_section(OptionSet *set, const char *section, const YamlNode *map,
                               const ValueOrigin *origin) {
    ErrorCode code = OK;
    Text path = {0};
    for (size_t i = 0; i < map->count && code == OK; i++) {
        text_clear(&path);
        text_printf(&path, "%s%s%s", section, *section ? "." : "", map->keys[i]);
        code = apply_entry(set, path.data, map, i, origin);
    }
    text_free(&path);
    return code;
}

/* Sections may come in several files and calls: the later value wins, key by key. After a failure the earlier
 * values stay applied; callers give up then. */
ErrorCode options_apply_yaml(OptionSet *set, const char *where, const YamlNode *root, Error *err) {
    char name[512], found[128];
    const ValueOrigin origin = {
        .where = error_escape(name, sizeof name, where, strlen(where)), .has_lines = true, .err = err};
    if (root->kind != YAML_NODE_MAP)
        return error_set(err, ERR_CONFIG, "%s:%d:%d: expected sections with keys, found %s", name, root->line,
                         root->column, value_describe(root, found));
    return apply_section(set, "", root, &origin);
}

ErrorCode options_apply_written(OptionSet *set, const char *where, const char *yaml, Error *err) {
    YamlNode *root;
    char name[512], found[128];
    const ValueOrigin origin = {.where = error_escape(name, sizeof name, where, strlen(where)),
                                .has_lines = true,
                                .written = true,
                                .err = err};
    TRY(yaml_tree_parse(where, yaml, strlen(yaml), &root, err));
    ErrorCode code = root->kind == YAML_NODE_MAP
                         ? apply_section(set, "", root, &origin)
                         : error_set(err, ERR_CONFIG, "%s: expected sections with keys, found %s", name,
                                     value_describe(root, found));
    yaml_tree_free(root);
    return code;
}

/* Whether the word sets a key of the table, or an unknown key in one of its sections. */
static bool is_assignment(const OptionSet *set, const char *word) {
    Text key = {0};
    size_t length = strcspn(word, "=");
    if (!word[length]) return false;
    text_add(&key, word, length);
    bool is = find_option(set, key.data) != SIZE_MAX || is_renamed(set, key.data);
    key.data[strcspn(key.data, ".")] = '\0';
    is |= length > 0 && is_section(set, key.data);
    text_free(&key);
    return is;
}

/* If the configuration file was omitted, the message must not complain about a file named like an
 * assignment. */
ErrorCode options_apply_file(OptionSet *set, const char *path, Error *err) {
    YamlNode *root;
    if (is_assignment(set, path) && !file_exists(path)) {
        char shown[128];
        error_escape(shown, sizeof shown, path, strlen(path));
        return error_set(err, ERR_USAGE,
                         "the configuration file is missing: it comes before what is assigned, as in "
                         "my.yaml %s",
                         shown);
    }
    TRY(yaml_tree_read(path, &root, err));
    ErrorCode code = options_apply_yaml(set, path, root, err);
    yaml_tree_free(root);
    return code;
}

/* Arguments are bytes; values must be text. */
static ErrorCode check_argument(const char *assignment, Error *err) {
    char shown[128];
    size_t length = strlen(assignment);
    error_escape(shown, sizeof shown, assignment, length);
    if (!strchr(assignment, '=') || *assignment == '=')
        return error_set(err, ERR_USAGE, "command line: expected section.key=value, found \"%s\"", shown);
    for (size_t at = 0, bytes; at < length; at += bytes) {
        bytes = text_utf8(assignment + at, length - at, NULL);
        if (bytes == 0) return error_set(err, ERR_USAGE, "command line: expected UTF-8, found \"%s\"", shown);
    }
    return OK;
}

/* The key ends at the first '=': values may contain more, as patterns and paths do. */
ErrorCode options_apply_override(OptionSet *set, const char *assignment, Error *err) {
    const ValueOrigin origin = {.where = "command line", .err = err};
    TRY(check_argument(assignment, err));
    Text key = {0};
    const char *value = strchr(assignment, '=') + 1;
    text_add(&key, assignment, (size_t)(value - 1 - assignment));
    size_t i = find_option(set, key.data);
    ErrorCode code;
    if (i != SIZE_MAX) {
        code = value_set_text(&set->table[i], field_of(set, i), key.data, value, &origin);
        if (code == OK) set_source(set, i, ORIGIN_GIVEN, "command line");
    } else if (is_section(set, key.data)) {
        code = value_fail(&origin, 0, 0, key.data,
                          "this is a section; name one of its keys, as in %s.key=value", key.data);
    } else {
        code = unknown_key(set, key.data, value, 0, 0, &origin);
    }
    text_free(&key);
    return code;
}

/* Choices are one text, "a|b|c", as help shows them. Returns "" after the last, which ends the callers'
 * loops. */
const char *options_choice_name(const Option *option, int index, char out[64]) {
    const char *name = option->choices;
    for (; index > 0 && name; index--) {
        name = strchr(name, '|');
        if (name) name++;
    }
    *out = 0;
    if (!name || index < 0) return out;
    size_t length = strcspn(name, "|");
    CHECK(length < 64);
    memcpy(out, name, length);
    out[length] = 0;
    return out;
}

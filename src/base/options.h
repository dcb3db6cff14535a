/* One table of options makes parsing, --help, documentation, the resolved configuration with the source of
 * each value, shell completion, the man page, and "unknown key, did you mean ...".
 *
 * A table is an array of Option, one per dotted key ("optimizer.lr"), each naming a field of one plain struct
 * by offset. Nothing else knows about configuration keys. Value storage by type:
 *
 *     OPT_BOOL bool     OPT_INT int64_t     OPT_DOUBLE double     OPT_STRING char * (owned, never NULL after defaults)
 *     OPT_CHOICE int (index into choices)   OPT_STRINGS StringList    OPT_LIST ObjectList (maps, by an item table)
 *
 * OPT_INT takes "1_000_000", "64k", "2M" (powers of ten: k, M, G) as well as plain numbers. */
#ifndef WEFT_BASE_OPTIONS_H
#define WEFT_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "base/yaml.h"

typedef enum OptionType {
    OPT_BOOL,
    OPT_INT,
    OPT_DOUBLE,
    OPT_STRING,
    OPT_CHOICE,
    OPT_STRINGS,
    OPT_LIST
} OptionType;

typedef struct StringList {
    size_t count;
    char **items;
} StringList;

/* A list of structs described by a table of their own. A bare scalar in place of a map sets the item's first
 * option. */
typedef struct ObjectList {
    size_t count;
    char *items; /* count * item_size bytes */
} ObjectList;

typedef struct Option {
    const char *key; /* "section.name"; in an item table just "name" */
    OptionType type;
    size_t offset;
    const char *fallback;      /* default, as it would be written in YAML; "" for an empty string or list */
    double min, max;           /* OPT_INT, OPT_DOUBLE: inclusive; both 0 means no bounds */
    const char *choices;       /* OPT_CHOICE: "none|selective|full" */
    const char *help;          /* one sentence, with unit */
    bool required;             /* OPT_STRING: empty text is refused; in an item table the key must be given */
    const struct Option *item; /* OPT_LIST: table of the items, ended by key == NULL */
    size_t item_size;          /* OPT_LIST */
    const char *instead;       /* OPT_STRINGS: what to say to who gives a map, or NULL */
} Option;

/* Where each value came from, parallel to the table. */
typedef struct OptionSource {
    char *where; /* "default", "demo.yaml:12", "command line"; owned */
} OptionSource;

typedef struct OptionSet {
    const Option *table; /* ended by key == NULL */
    size_t count;
    void *target;          /* the struct */
    OptionSource *sources; /* [count] */
} OptionSet;

/* Sets every field to its default. target must be zeroed. */
ErrorCode options_init(OptionSet *set, const Option *table, void *target, Error *err);
/* Reads a tree of sections over the values that are there. */
ErrorCode options_apply_yaml(OptionSet *set, const char *where, const YamlNode *root, Error *err);
ErrorCode options_apply_file(OptionSet *set, const char *path, Error *err);
/* "section.key=value"; lists in YAML flow form: data.sources=[a.txt, {path: b.txt, weight: 2}]. */
ErrorCode options_apply_override(OptionSet *set, const char *assignment, Error *err);
/* Refuses, as `where`, a key that is none of the table's, with the nearest name. */
ErrorCode options_check_key(const OptionSet *set, const char *where, const char *key, Error *err);
bool options_is_set(const OptionSet *set, const char *key); /* given by a file or the command line */
/* ERR_CONFIG for a value that is there: "demo.yaml:12: section.key: ...", for what a table cannot say of it.
 */
ErrorCode options_fail(const OptionSet *set, const char *key, Error *err, const char *format, ...)
    PRINTF_LIKE(4, 5);
void options_free(OptionSet *set); /* frees owned fields of target and the sources */

/* The resolved configuration as YAML that reads back to the same values; with_sources adds "# demo.yaml:12"
 * to each line. */
void options_write_yaml(const OptionSet *set, Text *out, bool with_sources);
/* Help: one line an option (key, type or choices, default, help), grouped by section, wrapped at `width`. */
void options_write_help(const Option *table, Text *out, int width);
/* SHA-256 (hex) over the values of the keys for which keep(key) is true (all when keep is NULL). */
void options_digest(const OptionSet *set, bool (*keep)(const char *key), char out[65]);
/* Name of a choice by its index. */
const char *options_choice_name(const Option *option, int index, char out[64]);

#endif

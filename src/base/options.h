/* One table of options provides parsing, --help, documentation, the resolved configuration with the source of
 * each value, shell completion, the man page, and "unknown key, did you mean ...".
 *
 * A table is an array of Option, one per dotted key ("optimizer.lr"), each naming a field of one plain struct
 * by offset. Nothing else knows about configuration keys. Value storage by type:
 *
 *     OPT_BOOL    bool                      OPT_STRING   char * (owned, never NULL after defaults)
 *     OPT_INT     int64_t                   OPT_STRINGS  StringList
 *     OPT_DOUBLE  double                    OPT_LIST     ObjectList (maps, by an item table)
 *     OPT_CHOICE  int (index into choices)
 *
 * OPT_INT accepts "1_000_000", "64k", "2M" (powers of ten: k, M, G) as well as plain numbers. */
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

/* A list of structs described by an item table. A bare scalar instead of a map sets the item's first
 * option. */
typedef struct ObjectList {
    size_t count;
    char *items; /* count * item_size bytes */
} ObjectList;

/* The effect of changing a key between the start of a run and its continuation from a checkpoint. */
typedef enum OptionEffect {
    EFFECT_UNKNOWN,  /* not asked of this table */
    EFFECT_NOTHING,  /* the bits of the run do not change */
    EFFECT_START,    /* the same: the key is read only when a run begins */
    EFFECT_MEASURES, /* the run does not change, but figures about it do: reported */
    EFFECT_SUMS,     /* at most last bits, if it changes the order of sums: reported when it does */
    EFFECT_BITS,     /* last bits: reported */
    EFFECT_CONTENT,  /* the key names something that is compared by content */
    EFFECT_CURVE,    /* another curve from here on: refused, or allowed by name and reported */
    EFFECT_RUN,      /* another run: refused */
} OptionEffect;

typedef struct Option {
    const char *key; /* "section.name"; in an item table just "name" */
    OptionType type;
    OptionEffect effect;
    bool local;          /* ranks of one run may have different values */
    const char *follows; /* OPT_INT: 0 means the value of that key */
    size_t offset;
    const char *default_value; /* default, as it would be written in YAML; "" for an empty string or list */
    double min, max;           /* OPT_INT, OPT_DOUBLE: inclusive; both 0 means no bounds */
    const char *choices;       /* OPT_CHOICE: "none|selective|full" */
    const char *help;          /* one sentence, with unit */
    bool required;             /* OPT_STRING: empty text is refused; in an item table the key must be given */
    bool optional;             /* in an item table: without a value until it is given; option_is_unset */
    const struct Option *item; /* OPT_LIST: table of the items, ended by key == NULL */
    size_t item_size;          /* OPT_LIST */
    const char *instead;       /* OPT_STRINGS: hint for a user who gives a map, or NULL */
    const char *elsewhere;     /* other programs' names, as of OptionSection; NULL: none */
    const char *was;           /* its old name; NULL: none */
    const char *const *choices_were; /* pairs of old and new choice, ended by NULL; NULL: unchanged */
} Option;

/* Names of a section. An old name of a key or section is an error that gives the new name, but
 * options_apply_written accepts it, since run directories and checkpoints contain it for good. Other
 * programs' names (TorchTitan, Lingua, transformers, litgpt, nanoGPT, Megatron-LM), separated by blanks, are
 * only for hints. One with a dot matches exactly; one without matches the last component of any unknown key,
 * and is not the last component of a key of weft's, so that the right name in the wrong section finds its own
 * key. */
typedef struct OptionSection {
    const char *name, *was, *elsewhere; /* was, elsewhere: NULL for none */
} OptionSection;

typedef enum OptionOrigin { ORIGIN_DEFAULT, ORIGIN_GIVEN, ORIGIN_DERIVED } OptionOrigin;

/* Whether an optional OPT_DOUBLE or OPT_CHOICE of an item was not given: it is NaN or -1. */
bool option_is_unset(const Option *o, const void *field);

/* Where each value came from, parallel to the table. */
typedef struct OptionSource {
    OptionOrigin origin;
    char *where; /* "default", "demo.yaml:12", "command line", "derived from train.steps"; owned */
} OptionSource;

typedef struct OptionSet {
    const Option *table; /* ended by key == NULL */
    size_t count;
    void *target;                  /* the struct */
    OptionSource *sources;         /* [count] */
    const OptionSection *sections; /* those with other names, ended by name == NULL; NULL for none */
    Text unknown;                  /* skipped by options_apply_written: "train.speed: 2, other.key: [...]" */
} OptionSet;

/* Sets every field to its default. target must be zeroed. */
ErrorCode options_init(OptionSet *set, const Option *table, void *target, Error *err);
/* Reads a tree of sections over the existing values. */
ErrorCode options_apply_yaml(OptionSet *set, const char *where, const YamlNode *root, Error *err);
ErrorCode options_apply_file(OptionSet *set, const char *path, Error *err);
/* "section.key=value"; lists in YAML flow form: data.sources=[a.txt, {path: b.txt, weight: 2}]. */
ErrorCode options_apply_override(OptionSet *set, const char *assignment, Error *err);
/* Sets a value that follows from others, which `where` names: "derived from ...". Overrides a given value. */
ErrorCode options_derive(OptionSet *set, const char *key, const char *text, const char *where, Error *err);
/* Derives every key whose field lies in `part`, a struct inside the target, and differs from `from`, a struct
 * of the same type with `size` bytes. Keys that were given keep their value, unless `given` is set. */
ErrorCode options_derive_part(OptionSet *set, const void *part, const void *from, size_t size, bool given,
                              const char *where, Error *err);
/* Derives the keys that follow others, if they are 0. */
ErrorCode options_follow(OptionSet *set, Error *err);
/* Reads the output of options_write_yaml by any version: old names are accepted, and keys that are not in the
 * table are skipped and listed in set->unknown. */
ErrorCode options_apply_written(OptionSet *set, const char *where, const char *yaml, Error *err);
/* ERR_CONFIG, with `where` and the nearest name, for a key that is not in the table. */
ErrorCode options_check_key(const OptionSet *set, const char *where, const char *key, Error *err);
/* Whether `name` is the old name of a key or section, with the new one in `key`. */
bool options_rename(const OptionSet *set, const char *name, Text *key);
/* weft's key or section for another program's name, or NULL. */
const char *options_synonym(const OptionSet *set, const char *name);
bool options_is_set(const OptionSet *set, const char *key); /* given by a file or the command line */
/* OptionSource.where; valid until the value is set again. */
const char *options_where(const OptionSet *set, const char *key);
/* Writes one value on a line, like options_write_yaml; `key` must be in the table. */
void options_write_value(const OptionSet *set, const char *key, Text *out);
/* Calls `differs` for every key whose values differ between two sets of one table. */
void options_compare(const OptionSet *a, const OptionSet *b,
                     void (*differs)(void *context, const Option *option, const char *in_a, const char *in_b),
                     void *context);
/* Whether the row's field differs between two structs of the row's type. */
bool option_differs(const Option *row, const void *a, const void *b);
/* The effect of the difference between the two sets' values of a key: the row's effect. For a list it is
 * EFFECT_NOTHING if all differences between its items have that effect. */
OptionEffect options_difference(const OptionSet *a, const OptionSet *b, const Option *option);
/* ERR_CONFIG for an existing value: "demo.yaml:12: section.key: ...", for constraints that a table cannot
 * express. */
ErrorCode options_fail(const OptionSet *set, const char *key, Error *err, const char *format, ...)
    PRINTF_LIKE(4, 5);
void options_free(OptionSet *set); /* frees owned fields of target and the sources */

/* The resolved configuration as YAML that reads back to the same values; with_sources appends "#
 * demo.yaml:12" to each line. */
void options_write_yaml(const OptionSet *set, Text *out, bool with_sources);
/* Help: one line per option (key, type or choices, default, help), grouped by section, wrapped at `width`. */
void options_write_help(const Option *table, Text *out, int width);
/* The same for one section, or one key by its full name; false, and nothing written, if there is none. */
bool options_write_help_of(const Option *table, const char *name, Text *out, int width);
/* The effect of changing the key, in a few words: "another curve"; NULL if there is nothing to say. */
const char *options_effect_name(OptionEffect effect);
/* SHA-256 (hex) over the values of the rows for which `keep` is true (all when it is NULL). */
void options_digest(const OptionSet *set, bool (*keep)(const Option *option), char out[65]);
/* Name of a choice by its index. */
const char *options_choice_name(const Option *option, int index, char out[64]);

#endif

/* The rows of an option table (argparse, parse_args), a macro call each:
 *
 *     INT, REAL    (key, field, default, least, most, effect, help ...)
 *     CHOICE       (key, field, default, words, effect, help ...)
 *     BOOL         (key, field, default, effect, help ...)
 *     TEXT, TEXTS  (key, field, default, effect, help ...)
 *     LIST         (key, field, struct of an item, its table, effect, help ...)
 *
 * The file of a table defines TARGET, the struct that contains the fields: a field whose type does not match
 * the row does not compile. The default is written as in YAML, or NULL if the row is OPTIONAL. After the help
 * come the properties that few rows have: LOCAL, REQUIRED, OPTIONAL, FOLLOWS, INSTEAD, ELSEWHERE, WAS,
 * CHOICES_WERE (see base/options.h).
 *
 * An effect is one of OptionEffect without its prefix. To choose it for a new key, ask how another value
 * changes the bits from this step on:
 *
 *     NOTHING   never
 *     SUMS      only through the order of sums, which is recorded as a fact (setup_sums)
 *     BITS      last bits, with the same mathematics
 *     CURVE     different mathematics
 *     RUN       weights or states of another shape, so that the run cannot continue
 *     START     the key is read once, when a run begins
 *     CONTENT   it names something that is compared by its content
 *     MEASURES  not the run, only figures about it
 *
 * tests/program/test_resume.sh tries every row with another value and checks the effect that the row claims.
 *
 * Bounds keep values within the range of later computations: 2^53 (MOST_EXACT) for seeds and masks, which
 * pass through JSON's doubles; 1e12 for steps and tokens, whose products must fit in 64 bits; below 1 for
 * geometric decay. */
#ifndef WEFT_BASE_OPTION_ROWS_H
#define WEFT_BASE_OPTION_ROWS_H

#include "base/options.h"

#define MOST_EXACT 9007199254740992.0

#define OPTION_FIELD(storage, field) _Generic(((TARGET *)0)->field, storage : offsetof(TARGET, field))
/* The last arguments are the help and what follows it. */
#define OPTION_ROW(named, kind, storage, field_, default_, effect_, ...)                             \
    .key = named, .type = kind, .effect = EFFECT_##effect_, .offset = OPTION_FIELD(storage, field_), \
    .default_value = default_, .help = __VA_ARGS__

#define INT(key_, field, fallback_, least, most, effect_, ...) \
    { OPTION_ROW(key_, OPT_INT, int64_t, field, fallback_, effect_, __VA_ARGS__), .min = least, .max = most }
#define REAL(key_, field, fallback_, least, most, effect_, ...)                                     \
    {                                                                                               \
        OPTION_ROW(key_, OPT_DOUBLE, double, field, fallback_, effect_, __VA_ARGS__), .min = least, \
                                                                                      .max = most   \
    }
#define CHOICE(key_, field, fallback_, words, effect_, ...) \
    { OPTION_ROW(key_, OPT_CHOICE, int, field, fallback_, effect_, __VA_ARGS__), .choices = words }
#define BOOL(key_, field, fallback_, effect_, ...) \
    { OPTION_ROW(key_, OPT_BOOL, bool, field, fallback_, effect_, __VA_ARGS__) }
#define TEXT(key_, field, fallback_, effect_, ...) \
    { OPTION_ROW(key_, OPT_STRING, char *, field, fallback_, effect_, __VA_ARGS__) }
#define TEXTS(key_, field, fallback_, effect_, ...) \
    { OPTION_ROW(key_, OPT_STRINGS, StringList, field, fallback_, effect_, __VA_ARGS__) }
#define LIST(key_, field, struct_, table, effect_, ...)                          \
    {                                                                            \
        OPTION_ROW(key_, OPT_LIST, ObjectList, field, "", effect_, __VA_ARGS__), \
            .item = table, .item_size = sizeof(struct_)                          \
    }
#define TABLE_END \
    { .key = NULL }

#define LOCAL .local = true
#define REQUIRED .required = true
#define OPTIONAL .optional = true
#define FOLLOWS(key_) .follows = key_
#define INSTEAD(text) .instead = text
#define ELSEWHERE(names) .elsewhere = names
#define WAS(key_) .was = key_
#define CHOICES_WERE(...) \
    .choices_were = (const char *const[]) { __VA_ARGS__, NULL }

#endif

/* The rows of an option table, a call each:
 *
 *     INT, REAL    (key, field, default, least, most, effect, help ...)
 *     CHOICE       (key, field, default, words, effect, help ...)
 *     BOOL         (key, field, default, effect, help ...)
 *     TEXT, TEXTS  (key, field, default, effect, help ...)
 *     LIST         (key, field, struct of an item, its table, effect, help ...)
 *
 * The file of a table defines TARGET, the struct that its fields are of: a field of another type than the
 * row's does not compile. The default is what YAML would say, NULL where a row is OPTIONAL. Behind the help
 * stands what few rows have: LOCAL, REQUIRED, OPTIONAL, FOLLOWS, INSTEAD (base/options.h says what they are).
 *
 * An effect is one of OptionEffect without its prefix. How one decides it for a new key: does another value,
 * from here on, give other bits? No, whatever it is: NOTHING. Only through the order in which sums are taken,
 * which is told as a fact (setup_sums): SUMS. Last bits, of the same mathematics: BITS. Other mathematics:
 * CURVE. Weights or states of another shape, so that nothing can go on: RUN. Read once, when a run begins:
 * START. The name of something that is compared by its content: CONTENT. Other figures of the same run:
 * MEASURES. tests/program/test_resume.sh tries every row with another value and holds the program to what the
 * row says.
 *
 * Bounds keep values within what the rest computes with: 2^53 (MOST_EXACT) for seeds and masks, which pass
 * through JSON's doubles; 1e12 for steps and tokens, whose products must fit 64 bits; below 1 for what decays
 * geometrically. */
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

#endif

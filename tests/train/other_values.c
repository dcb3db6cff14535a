/* For tests of what a run does with other values: goes through the option table and prints, for each row, its
 * key, its effect and a value that differs from the configuration's.
 *
 *     other_values CONFIG.yaml [section.key=value ...]
 *
 * Numbers are doubled, and choices move to the next one. A text gets a "2" appended, and an empty one becomes
 * the key itself: a test creates files with those names. Lists are emptied, and empty ones filled. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/find.h"
#include "config/config.h"

static const char *effect_word(OptionEffect effect) {
    switch (effect) {
    case EFFECT_UNKNOWN: return "unknown";
    case EFFECT_NOTHING: return "nothing";
    case EFFECT_START: return "start";
    case EFFECT_MEASURES: return "measures";
    case EFFECT_SUMS: return "sums";
    case EFFECT_BITS: return "bits";
    case EFFECT_CONTENT: return "content";
    case EFFECT_CURVE: return "curve";
    case EFFECT_RUN: return "run";
    }
    return "unknown";
}

/* The next choice. "auto" leaves the value open, so it does not count as another value. */
static void other_choice(const Option *o, int index, Text *out) {
    char name[64];
    if (!*options_choice_name(o, ++index, name)) options_choice_name(o, index = 0, name);
    if (strcmp(name, "auto") == 0) options_choice_name(o, index + 1, name);
    text_puts(out, name);
}

static void other_int(const Option *o, int64_t value, Text *out) {
    int64_t next = value > 0 && 2 * (double)value <= o->max ? 2 * value
                   : (double)value < o->max                 ? value + 1
                                                            : value - 1;
    text_printf(out, "%lld", (long long)next);
}

static void other_double(const Option *o, double value, Text *out) {
    char text[32];
    double next = value > 0 && 2 * value <= o->max ? 2 * value : value > 0 ? value / 2 : fmin(o->max, 0.25);
    text_puts(out, text_double(next, text));
}

static void other_value(const Option *o, const void *field, Text *out) {
    switch (o->type) {
    case OPT_BOOL: text_puts(out, *(const bool *)field ? "false" : "true"); return;
    case OPT_INT: other_int(o, *(const int64_t *)field, out); return;
    case OPT_DOUBLE: other_double(o, *(const double *)field, out); return;
    case OPT_CHOICE: other_choice(o, *(const int *)field, out); return;
    case OPT_STRING: {
        const char *text = *(char *const *)field;
        text_printf(out, *text ? "%s2" : "%s", *text ? text : o->key);
        return;
    }
    case OPT_STRINGS: text_puts(out, ((const StringList *)field)->count ? "[]" : "[data]"); return;
    case OPT_LIST: text_puts(out, ((const ObjectList *)field)->count ? "[]" : "[text.txt]"); return;
    }
}

int main(int count, char **words) {
    Config c;
    OptionSet set;
    Error err = {0};
    if (count < 2 || config_load(&c, &set, words[1], count - 2, (const char *const *)(words + 2),
                                 checkpoint_find_shape, &err) != OK) {
        fprintf(stderr, "other_values: %s\n", count < 2 ? "which configuration?" : err.message);
        return 1;
    }
    for (const Option *o = config_options(); o->key; o++) {
        Text value = {0};
        other_value(o, (const char *)&c + o->offset, &value);
        printf("%s\t%s\t%s\n", o->key, effect_word(o->effect), value.data);
        text_free(&value);
    }
    options_free(&set);
    return 0;
}

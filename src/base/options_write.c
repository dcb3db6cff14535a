/* Option tables written out: the resolved configuration, its digest, help.
 *
 * options_apply_written reads this output, and ranks compare its digest. Hence the order is that of the
 * table, or of the keys where it must survive an edit of the table, and each value has exactly one spelling
 * (value_write). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/option_value.h"
#include "base/options.h"

/* The option's value in the struct that the set fills. */
static const void *field_of(const OptionSet *set, size_t i) {
    return (const char *)set->target + set->table[i].offset;
}

static void add_spaces(Text *out, size_t count) {
    while (count-- > 0) text_puts(out, " ");
}

/* Sources are comments: the file reads back the same with them. */
static void end_line(const OptionSet *set, size_t i, Text *out, bool with_sources) {
    if (with_sources) {
        const char *where = set->sources[i].where;
        text_puts(out, "  # ");
        text_add_shown(out, where, strlen(where), 0);
    }
    text_puts(out, "\n");
}

/* A list of items takes a line per item: on a single line it would be hard to read and to diff. */
static void write_option(const OptionSet *set, size_t i, const char *name, size_t indent, Text *out,
                         bool with_sources) {
    const Option *o = &set->table[i];
    add_spaces(out, indent);
    text_printf(out, "%s:", name);
    const ObjectList *list = o->type == OPT_LIST ? field_of(set, i) : NULL;
    if (!list || list->count == 0) {
        text_puts(out, " ");
        value_write(o, field_of(set, i), out);
        end_line(set, i, out, with_sources);
        return;
    }
    end_line(set, i, out, with_sources);
    for (size_t item = 0; item < list->count; item++) {
        add_spaces(out, indent + 2);
        text_puts(out, "- ");
        value_write_item(o, list, item, out);
        text_puts(out, "\n");
    }
}

/* Whether an earlier option opened the section that key starts with up to `length`. Section and dot, so that
 * "data." does not match "database.x". */
static bool is_section_seen(const OptionSet *set, size_t i, size_t length) {
    for (size_t j = 0; j < i; j++)
        if (strncmp(set->table[j].key, set->table[i].key, length) == 0) return true;
    return false;
}

/* Everything below the first `length` bytes of a key ("section."). Each section is written once, where its
 * first key is, with all its keys, even if the table interleaves sections. Sections nest as deep as keys have
 * dots. */
static void write_section(const OptionSet *set, const char *section, size_t length, size_t indent, Text *out,
                          bool with_sources) {
    for (size_t i = 0; i < set->count; i++) {
        const char *key = set->table[i].key;
        if (strncmp(key, section, length) != 0) continue;
        const char *dot = strchr(key + length, '.');
        if (!dot) {
            write_option(set, i, key + length, indent, out, with_sources);
            continue;
        }
        size_t below = (size_t)(dot + 1 - key);
        if (is_section_seen(set, i, below)) continue;
        add_spaces(out, indent);
        text_add(out, key + length, below - length - 1);
        text_puts(out, ":\n");
        write_section(set, key, below, indent + 2, out, with_sources);
    }
}

/* options_apply_written reads back the same values; `with_sources` adds only comments. */
void options_write_yaml(const OptionSet *set, Text *out, bool with_sources) {
    /* An empty table writes "", not NULL. */
    text_add(out, "", 0);
    write_section(set, "", 0, 0, out, with_sources);
}

/* Keys are unique, so the order is total. */
static int compare_options(const void *a, const void *b) {
    return strcmp((*(const Option *const *)a)->key, (*(const Option *const *)b)->key);
}

/* `keep` selects the options; NULL selects all of them. */
void options_digest(const OptionSet *set, bool (*keep)(const Option *option), char out[65]) {
    /* Sorted by key, so that moving a line of the table does not change the digest. NULs separate the
     * strings. */
    const Option **kept = mem_alloc_array(set->count, sizeof *kept);
    size_t count = 0;
    for (size_t i = 0; i < set->count; i++)
        if (!keep || keep(&set->table[i])) kept[count++] = &set->table[i];
    qsort(kept, count, sizeof *kept, compare_options);
    Sha256 *hash = sha256_start();
    Text value = {0};
    for (size_t i = 0; i < count; i++) {
        text_clear(&value);
        value_write(kept[i], (const char *)set->target + kept[i]->offset, &value);
        sha256_add(hash, kept[i]->key, strlen(kept[i]->key) + 1);
        sha256_add(hash, value.data, value.length + 1);
    }
    uint8_t digest[32];
    sha256_finish(hash, digest);
    sha256_hex(digest, out);
    text_free(&value);
    free(kept);
}

/* As in shell usage texts: capitals mark what the user has to replace. */
static const char *type_name(const Option *o) {
    switch (o->type) {
    case OPT_BOOL: return "true|false";
    case OPT_INT: return "N";
    case OPT_DOUBLE: return "X";
    case OPT_STRING: return "TEXT";
    case OPT_CHOICE: return o->choices;
    case OPT_STRINGS: return "[TEXT, ...]";
    case OPT_LIST: return "[{...}, ...]";
    }
    return "";
}

/* Wraps words, each line from column `indent` on; the first line starts at the current `column`. */
static void wrap(Text *out, const char *words, size_t indent, size_t column, size_t width) {
    bool at_start = true;
    while (*words) {
        size_t length = strcspn(words, " "), columns = 0;
        /* Columns of a terminal are characters, not bytes: continuation bytes of UTF-8 take none. */
        for (size_t i = 0; i < length; i++) columns += ((unsigned char)words[i] & 0xc0) != 0x80;
        if (!at_start && column + 1 + columns > width) {
            text_puts(out, "\n");
            add_spaces(out, indent);
            column = indent;
            at_start = true;
        }
        if (!at_start) text_puts(out, " "), column++;
        text_add(out, words, length);
        column += columns;
        at_start = false;
        words += length;
        while (*words == ' ') words++;
    }
    text_puts(out, "\n");
}

/* NULL: nothing to tell the user, since the effect is unknown or the bits do not change. */
const char *options_effect_name(OptionEffect effect) {
    switch (effect) {
    case EFFECT_UNKNOWN:
    case EFFECT_NOTHING: return NULL;
    case EFFECT_START: return "read at the start only";
    case EFFECT_MEASURES: return "other figures";
    case EFFECT_SUMS: return "last bits at most";
    case EFFECT_BITS: return "last bits";
    case EFFECT_CONTENT: return "compared by content";
    case EFFECT_CURVE: return "another curve";
    case EFFECT_RUN: return "another run";
    }
    return NULL;
}

/* "(0 to 10; default 0.0003; on resume: another curve)" after the help sentence. Nothing at all if there are
 * no facts. */
static void add_facts(const Option *o, Text *out) {
    char low[32], high[32];
    const bool bounded = (o->type == OPT_INT || o->type == OPT_DOUBLE) && (o->min != 0 || o->max != 0);
    const char *effect = options_effect_name(o->effect), *gap = "";
    const bool has_default = !o->optional && *o->default_value != 0;
    if (!bounded && !has_default && !effect) return;
    text_puts(out, " (");
    if (bounded) {
        text_double(o->min, low);
        text_double(o->max, high);
        if (isinf(o->max))
            text_printf(out, "at least %s", low);
        else if (isinf(o->min))
            text_printf(out, "at most %s", high);
        else
            text_printf(out, "%s to %s", low, high);
        gap = "; ";
    }
    if (has_default) text_printf(out, "%sdefault %s", gap, o->default_value), gap = "; ";
    if (effect) text_printf(out, "%son resume: %s", gap, effect);
    text_puts(out, ")");
}

/* Longer keys get a line of their own, and the help begins below: they must not move all other help texts to
 * the right. */
enum { MAX_LEFT = 34 };

/* What follows "key=", from column `at` on: choices that exceed a line are broken after one. */
static void add_type(const Option *o, size_t at, size_t indent, size_t width, Text *out) {
    const char *name = type_name(o);
    while (o->type == OPT_CHOICE && at + strlen(name) > width) {
        size_t fits = 0;
        for (size_t i = 0; name[i] && at + i < width; i++)
            if (name[i] == '|') fits = i + 1;
        if (fits == 0) break;
        text_add(out, name, fits);
        text_puts(out, "\n");
        add_spaces(out, indent);
        name += fits, at = indent;
    }
    text_puts(out, name);
}

/* key=TYPE, as on the command line. */
static void write_help_line(const Option *o, size_t indent, size_t column, size_t width, Text *out) {
    Text help = {0};
    text_puts(&help, o->help ? o->help : "");
    add_facts(o, &help);
    size_t start = out->length;
    add_spaces(out, indent);
    text_printf(out, "%s=", o->key);
    add_type(o, indent + strlen(o->key) + 1, indent + 4, width, out);
    size_t used = out->length - start;
    if (used + 2 > column) text_puts(out, "\n"), used = 0;
    add_spaces(out, column - used);
    wrap(out, help.data, column, column, width);
    text_free(&help);
    if (o->type == OPT_LIST)
        for (const Option *part = o->item; part->key; part++)
            write_help_line(part, indent + 4, column, width, out);
}

/* 0 for a key that is in no section. */
static size_t section_length(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot ? (size_t)(dot - key) : 0;
}

/* Lengths first: "a.b" and "a.bc" begin alike. */
static bool same_section(const char *a, const char *b) {
    return section_length(a) == section_length(b) && strncmp(a, b, section_length(a)) == 0;
}

/* Tables may interleave sections, help does not. */
static bool is_section_listed(const Option *table, const Option *o) {
    for (const Option *earlier = table; earlier < o; earlier++)
        if (same_section(earlier->key, o->key)) return true;
    return false;
}

/* The column of the longest key that is not too long. */
static size_t help_column(const Option *table) {
    size_t column = 0;
    for (const Option *o = table; o->key; o++) {
        size_t left = 2 + strlen(o->key) + 1 + strlen(type_name(o)) + 2;
        if (left > column && left <= MAX_LEFT) column = left;
    }
    return column ? column : MAX_LEFT;
}

/* Below 60 columns the help column would be one word wide. */
static size_t help_columns(int width) { return width < 60 ? 60 : (size_t)width; }

/* The section whose first row is `first`. */
static void write_help_section(const Option *table, const Option *first, Text *out, int width) {
    size_t length = section_length(first->key);
    text_add(out, first->key, length);
    text_puts(out, length ? "\n" : "");
    for (const Option *member = first; member->key; member++)
        if (same_section(first->key, member->key))
            write_help_line(member, 2, help_column(table), help_columns(width), out);
}

void options_write_help(const Option *table, Text *out, int width) {
    for (const Option *o = table; o->key; o++) {
        if (is_section_listed(table, o)) continue;
        if (o != table) text_puts(out, "\n");
        write_help_section(table, o, out, width);
    }
}

bool options_write_help_of(const Option *table, const char *name, Text *out, int width) {
    for (const Option *o = table; o->key; o++) {
        bool key = strcmp(o->key, name) == 0;
        bool section = strlen(name) == section_length(o->key) && strncmp(name, o->key, strlen(name)) == 0;
        if (!key && !section) continue;
        if (key)
            write_help_line(o, 2, help_column(table), help_columns(width), out);
        else
            write_help_section(table, o, out, width);
        return true;
    }
    return false;
}

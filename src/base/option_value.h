/* One option's value: read from a YAML node, written as YAML text, freed. Only this file knows what an
 * OptionType means; options.c deals with keys and sections. */
#ifndef WEFT_BASE_OPTION_VALUE_H
#define WEFT_BASE_OPTION_VALUE_H

#include <stdbool.h>

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"
#include "base/yaml.h"

/* The origin of values, and its name in errors. */
typedef struct ValueOrigin {
    const char *where; /* escaped for printing */
    bool has_lines;    /* the lines and columns of nodes are meaningful */
    bool written;      /* by any version of weft: old names are accepted, unknown keys skipped */
    Error *err;
} ValueOrigin;

/* Sets an error with the prefix "where:line:column: key: ". */
ErrorCode value_fail(const ValueOrigin *origin, int line, int column, const char *key, const char *format,
                     ...) PRINTF_LIKE(5, 6);
/* Describes a node for "found ...": `"text"`, "nothing", "a map", "a list". Returns out. */
const char *value_describe(const YamlNode *node, char out[128]);

/* Replaces *field by the node's value; on failure the field keeps its value. `key` names the option in
 * errors. */
ErrorCode value_set(const Option *option, void *field, const char *key, const YamlNode *node,
                    const ValueOrigin *origin);
/* The same from text of a command line or a table of defaults: strings literally, lists in flow form. */
ErrorCode value_set_text(const Option *option, void *field, const char *key, const char *text,
                         const ValueOrigin *origin);
void value_free(const Option *option, void *field);

/* Writes the value on one line of YAML, which value_set reads back to the same value. */
void value_write(const Option *option, const void *field, Text *out);
/* Item `index` of an OPT_LIST, in the same form. */
void value_write_item(const Option *option, const ObjectList *list, size_t index, Text *out);

#endif

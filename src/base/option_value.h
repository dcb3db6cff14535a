/* One option's value: from a YAML node, to YAML text, freed. What an OptionType means is known here and
 * nowhere else; options.c deals with keys and sections. */
#ifndef WEFT_BASE_OPTION_VALUE_H
#define WEFT_BASE_OPTION_VALUE_H

#include <stdbool.h>

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"
#include "base/yaml.h"

/* Where values come from, and how errors name it. */
typedef struct ValueOrigin {
    const char *where; /* as it may be printed */
    bool has_lines;    /* node positions mean something */
    bool written;      /* by weft, of whatever version: unknown keys are passed over */
    Error *err;
} ValueOrigin;

/* An error in front of which stands "where:line:column: key: ". */
ErrorCode value_fail(const ValueOrigin *origin, int line, int column, const char *key, const char *format,
                     ...) PRINTF_LIKE(5, 6);
/* What a node is, for "found ...": `"text"`, "nothing", "a map", "a list". Returns out. */
const char *value_describe(const YamlNode *node, char out[128]);

/* Replaces *field by what the node says; on failure the field keeps its value. `key` names the option in
 * errors. */
ErrorCode value_set(const Option *option, void *field, const char *key, const YamlNode *node,
                    const ValueOrigin *origin);
/* The same from text as it stands on a command line or in a table of defaults: strings literally, lists in
 * flow form. */
ErrorCode value_set_text(const Option *option, void *field, const char *key, const char *text,
                         const ValueOrigin *origin);
void value_free(const Option *option, void *field);

/* The value on one line of YAML, which value_set reads back to the same value. */
void value_write(const Option *option, const void *field, Text *out);
/* Item `index` of an OPT_LIST, in the same form. */
void value_write_item(const Option *option, const ObjectList *list, size_t index, Text *out);

#endif

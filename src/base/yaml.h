/* YAML by libyaml, as a plain tree with positions. Scalars stay text here: the declared type of an option
 * decides what they mean (options.h). Refused, with file:line:column: aliases, anchors, tags, duplicate keys,
 * several documents, non-scalar keys, nesting beyond 32. */
#ifndef WEFT_BASE_YAML_H
#define WEFT_BASE_YAML_H

#include <stddef.h>

#include "base/error.h"

typedef enum YamlKind { YAML_NODE_SCALAR, YAML_NODE_MAP, YAML_NODE_LIST } YamlKind;

typedef struct YamlNode {
    YamlKind kind;
    int line, column; /* 1-based, of the node */
    int quoted;       /* scalar written in quotes: always a string */
    char *text;       /* scalar: its text, NUL-terminated UTF-8 */
    size_t count;     /* map, list: number of items */
    char **keys;      /* map */
    int *key_lines, *key_columns;
    struct YamlNode **items; /* map: values; list: items */
} YamlNode;

/* `where` names the source in errors (a path, or "command line"). An empty document gives an empty map. */
ErrorCode yaml_tree_parse(const char *where, const char *data, size_t length, YamlNode **root, Error *err);
ErrorCode yaml_tree_read(const char *path, YamlNode **root, Error *err); /* 1 MiB at most */
void yaml_tree_free(YamlNode *root);

#endif

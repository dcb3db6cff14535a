/* YAML into a plain tree.
 *
 * libyaml produces events; recursive descent over them, at most 32 levels deep, builds the tree. Features by
 * which one place of a file changes another (anchors, aliases, tags, repeated keys, further documents) are
 * refused with their position.
 *
 * Ownership: a node owns its text, keys and children, and yaml_tree_free of the root frees everything. While
 * a tree is built, each complete node is attached to its parent at once; build frees the node that fails, so
 * an error leaks nothing.
 *
 *     a: [1, 2]    MAPPING-START  SCALAR a   SEQUENCE-START  SCALAR 1  SCALAR 2  SEQUENCE-END  MAPPING-END
 *                  build_map      take_text  build_list      build     build     it returns    it returns */
#include "base/yaml.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file.h"
#include "base/text.h"

/* The depth bounds the recursion, and so the stack, for any file. A configuration is a page or two; a file of
 * a megabyte is the wrong file. */
#define MAX_DEPTH 32
#define MAX_BYTES ((size_t)1 << 20)

typedef struct Reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one */
    bool has_event;
    const char *where;
    Error *err;
} Reader;

/* The position in the file: FILE:LINE:COLUMN, as compilers print it. */
static ErrorCode fail_at(const Reader *r, yaml_mark_t mark, const char *what) {
    return error_set(r->err, ERR_CONFIG, "%s:%zu:%zu: %s", r->where, mark.line + 1, mark.column + 1, what);
}

/* At the current event, the one that was just read. */
static ErrorCode fail_here(const Reader *r, const char *what) {
    return fail_at(r, r->event.start_mark, what);
}

/* libyaml's own error. The reader knows only a byte offset, no line. libyaml's wording is kept, since it
 * names what was expected. */
static ErrorCode fail_parser(const Reader *r) {
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "not YAML";
    if (p->error == YAML_READER_ERROR)
        return error_set(r->err, ERR_CONFIG, "%s: byte %zu: %s", r->where, p->problem_offset, problem);
    if (p->error == YAML_MEMORY_ERROR)
        return error_set(r->err, ERR_MEMORY, "%s: the system gave no memory", r->where);
    if (p->context)
        return error_set(r->err, ERR_CONFIG, "%s:%zu:%zu: %s (%s)", r->where, p->problem_mark.line + 1,
                         p->problem_mark.column + 1, problem, p->context);
    return fail_at(r, p->problem_mark, problem);
}

/* The only place that replaces the current event: after a failure there is none, and nothing to delete. */
static ErrorCode next_event(Reader *r) {
    if (r->has_event) yaml_event_delete(&r->event);
    r->has_event = yaml_parser_parse(&r->parser, &r->event) == 1;
    return r->has_event ? OK : fail_parser(r);
}

/* Lines and columns count from 1 for people, from 0 in libyaml. */
static YamlNode *new_node(const Reader *r, YamlKind kind) {
    YamlNode *node = mem_alloc(sizeof *node);
    node->kind = kind;
    node->line = (int)r->event.start_mark.line + 1;
    node->column = (int)r->event.start_mark.column + 1;
    return node;
}

/* Anchors alone would be harmless, but they exist for aliases, which make a tree a graph: a few lines could
 * expand to gigabytes ("billion laughs"). */
static ErrorCode refuse_properties(const Reader *r, const yaml_char_t *anchor, const yaml_char_t *tag) {
    if (anchor) return fail_here(r, "anchors (&name) are not supported");
    if (tag) return fail_here(r, "tags (!name) are not supported; the option's declared type decides");
    return OK;
}

/* The text of the current scalar event, in new memory. */
static ErrorCode take_text(const Reader *r, char **text) {
    const char *value = (const char *)r->event.data.scalar.value;
    const bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    TRY(refuse_properties(r, r->event.data.scalar.anchor, r->event.data.scalar.tag));
    /* A lone "!" is a tag without a name, which libyaml reports only by this flag. */
    if (plain && !r->event.data.scalar.plain_implicit) return fail_here(r, "tags (!) are not supported");
    /* "\0" in double quotes is valid YAML, but would end a C string early. */
    if (strlen(value) != r->event.data.scalar.length) return fail_here(r, "a scalar must not hold NUL");
    *text = mem_strdup(value);
    return OK;
}

static ErrorCode build(Reader *r, int depth, YamlNode **out);

/* Makes space for one more item; capacities are powers of two. The arrays of a map grow together: their
 * common length is `count`. */
static void grow(YamlNode *node) {
    if (node->count & (node->count - 1)) return;
    size_t capacity = node->count ? 2 * node->count : 1;
    node->items = mem_grow(node->items, capacity * sizeof *node->items);
    if (node->kind != YAML_NODE_MAP) return;
    node->keys = mem_grow(node->keys, capacity * sizeof *node->keys);
    node->key_lines = mem_grow(node->key_lines, capacity * sizeof *node->key_lines);
    node->key_columns = mem_grow(node->key_columns, capacity * sizeof *node->key_columns);
}

/* Each item is built from its first event to its last; the event after that is the next item's or the end. */
static ErrorCode build_list(Reader *r, int depth, YamlNode *list) {
    TRY(refuse_properties(r, r->event.data.sequence_start.anchor, r->event.data.sequence_start.tag));
    for (;;) {
        TRY(next_event(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return OK;
        YamlNode *item;
        TRY(build(r, depth, &item));
        grow(list);
        list->items[list->count++] = item;
    }
}

typedef struct KeyPlace {
    const char *key;
    size_t index;
} KeyPlace;

static int compare_keys(const void *a, const void *b) {
    const KeyPlace *x = a, *y = b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* Sorted, so that a map of many keys does not take quadratic time; by position among equals, so that the
 * error is at the second one and names the line of the first. */
static ErrorCode refuse_duplicates(const Reader *r, const YamlNode *map) {
    KeyPlace *places = mem_alloc_array(map->count, sizeof *places);
    for (size_t i = 0; i < map->count; i++) places[i] = (KeyPlace){map->keys[i], i};
    qsort(places, map->count, sizeof *places, compare_keys);
    ErrorCode code = OK;
    for (size_t i = 1; i < map->count && code == OK; i++) {
        size_t first = places[i - 1].index, again = places[i].index;
        char shown[128];
        if (strcmp(map->keys[first], map->keys[again]) == 0)
            code = error_set(r->err, ERR_CONFIG, "%s:%d:%d: %s: this key stands in line %d already", r->where,
                             map->key_lines[again], map->key_columns[again],
                             error_escape(shown, sizeof shown, map->keys[again], strlen(map->keys[again])),
                             map->key_lines[first]);
    }
    free(places);
    return code;
}

/* This call owns a key until the key is in the map. */
static ErrorCode build_map(Reader *r, int depth, YamlNode *map) {
    TRY(refuse_properties(r, r->event.data.mapping_start.anchor, r->event.data.mapping_start.tag));
    for (;;) {
        TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return refuse_duplicates(r, map);
        if (r->event.type == YAML_ALIAS_EVENT) return fail_here(r, "aliases (*name) are not supported");
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_here(r, "expected a plain key, found a map or a list");
        char *key;
        TRY(take_text(r, &key));
        /* Taken now: the value's events replace this one before the map grows. */
        int line = (int)r->event.start_mark.line + 1, column = (int)r->event.start_mark.column + 1;
        YamlNode *value;
        ErrorCode code = next_event(r);
        if (code == OK) code = build(r, depth, &value);
        if (code != OK) {
            free(key);
            return code;
        }
        grow(map);
        map->keys[map->count] = key;
        map->key_lines[map->count] = line;
        map->key_columns[map->count] = column;
        map->items[map->count++] = value;
    }
}

/* Builds the node that starts with the current event; ends on its last event. */
static ErrorCode build(Reader *r, int depth, YamlNode **out) {
    if (depth >= MAX_DEPTH) return fail_here(r, "nested more than 32 deep");
    YamlNode *node = NULL;
    ErrorCode code = OK;
    switch (r->event.type) {
    case YAML_SCALAR_EVENT:
        node = new_node(r, YAML_NODE_SCALAR);
        node->quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        code = take_text(r, &node->text);
        break;
    case YAML_SEQUENCE_START_EVENT:
        node = new_node(r, YAML_NODE_LIST);
        code = build_list(r, depth + 1, node);
        break;
    case YAML_MAPPING_START_EVENT:
        node = new_node(r, YAML_NODE_MAP);
        code = build_map(r, depth + 1, node);
        break;
    case YAML_ALIAS_EVENT: return fail_here(r, "aliases (*name) are not supported");
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_START_EVENT:
    case YAML_DOCUMENT_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: break;
    }
    if (!node) return fail_here(r, "expected a value");
    if (code != OK) {
        yaml_tree_free(node);
        return code;
    }
    *out = node;
    return OK;
}

/* An empty file, or one of comments only, is an empty map: all defaults. */
static ErrorCode read_document(Reader *r, YamlNode **root) {
    TRY(next_event(r)); /* stream start */
    TRY(next_event(r));
    if (r->event.type == YAML_STREAM_END_EVENT) {
        *root = new_node(r, YAML_NODE_MAP);
        return OK;
    }
    TRY(next_event(r));
    TRY(build(r, 0, root));
    TRY(next_event(r)); /* document end */
    TRY(next_event(r));
    if (r->event.type != YAML_STREAM_END_EVENT) return fail_here(r, "expected one document, found a second");
    YamlNode *node = *root;
    if (node->kind == YAML_NODE_SCALAR && !node->quoted && !*node->text) node->kind = YAML_NODE_MAP;
    return OK;
}

/* The parser reads from memory only: the caller has read the file and checked its size. */
ErrorCode yaml_tree_parse(const char *where, const char *data, size_t length, YamlNode **root, Error *err) {
    char name[512];
    Reader r = {.where = error_escape(name, sizeof name, where, strlen(where)), .err = err};
    *root = NULL;
    if (length > MAX_BYTES)
        return error_set(err, ERR_CONFIG, "%s: expected at most %zu bytes, found %zu", name, MAX_BYTES,
                         length);
    if (length >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0) data += 3, length -= 3;
    if (!yaml_parser_initialize(&r.parser))
        return error_set(err, ERR_MEMORY, "%s: the system gave no memory", name);
    /* Set explicitly, so that libyaml does not guess UTF-16 from the first bytes. */
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)data, length);
    ErrorCode code = read_document(&r, root);
    if (r.has_event) yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (code != OK) {
        yaml_tree_free(*root);
        *root = NULL;
    }
    return code;
}

/* The caller owns *root on success; after a failure it is NULL. */
ErrorCode yaml_tree_read(const char *path, YamlNode **root, Error *err) {
    char *data;
    size_t length;
    *root = NULL;
    TRY(file_read(path, MAX_BYTES, &data, &length, err));
    ErrorCode code = yaml_tree_parse(path, data, length, root, err);
    free(data);
    return code;
}

/* Recursive, as deep as build was. */
void yaml_tree_free(YamlNode *root) {
    if (!root) return;
    for (size_t i = 0; i < root->count; i++) {
        yaml_tree_free(root->items[i]);
        if (root->kind == YAML_NODE_MAP) free(root->keys[i]);
    }
    free(root->text);
    free(root->items);
    free(root->keys);
    free(root->key_lines);
    free(root->key_columns);
    free(root);
}

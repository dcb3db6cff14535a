/* The footer of a Parquet file and the headers of its pages.
 *
 * The schema is a tree, written depth first. Its leaves are the columns; leaf k has the k-th chunk of each
 * row group. What the file states is checked before it is used: offsets and counts come from strangers. */
#include "formats/parquet_meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "formats/parquet_codec.h"

enum { MOST_ELEMENTS = 10000, MOST_DEPTH = 32, MOST_SHOWN = 1000, NONE = -1 };
enum { BYTE_ARRAY = 6 };
enum { REQUIRED, OPTIONAL, REPEATED };
/* Kinds of text, by the numbers of ConvertedType and of LogicalType. */
enum { CONVERTED_UTF8 = 0, CONVERTED_ENUM = 4, CONVERTED_JSON = 19 };
enum { LOGICAL_STRING = 1, LOGICAL_ENUM = 4, LOGICAL_JSON = 12 };

#define REWRITE(how) "rewrite the file, for example with pyarrow: " how

typedef struct Element {
    ThriftBytes name;
    int type, repetition, converted, logical; /* NONE: not given */
    int children;
} Element;

typedef struct Leaf {
    Element element;
    size_t index;
    int optional, lists;
} Leaf;

/* Where a walk is. */
typedef struct Place {
    int depth, optional, lists; /* optional: and repeated members of the path */
    int list_level;             /* of the outermost list */
    int element_depth;          /* of that list's elements */
} Place;

/* A walk over the schema in search of a column, or of all. */
typedef struct Walk {
    const char *column; /* NULL: all */
    bool in_list;       /* it may be in one */
    ParquetLeaves *leaves_out;
    const Element *elements;
    size_t count, next, leaves;
    Text path;
    Leaf found;
    size_t matches;
    bool group;   /* it is the name of a group */
    Text strings; /* names of columns that could be read */
} Walk;

typedef struct Footer {
    const char *path, *column;
    uint64_t pages_end;
    Walk walk;
    bool has_schema, has_groups;
    int64_t rows;
    ParquetColumn *out;
    size_t capacity;
} Footer;

/* A chunk of the column, as it is described; NONE where nothing is. */
typedef struct Chunk {
    int type, codec;
    int64_t values, stored, data, dictionary;
    bool has_meta, same_path, elsewhere, encrypted;
} Chunk;

static ErrorCode damaged(const Footer *f, const char *why, Error *err) {
    return error_set(err, ERR_DATA, "%s: damaged Parquet metadata: %s; fetch the file again", f->path, why);
}

/* ---- schema ---- */

static int logical_type(Thrift *t, const ThriftField *outer) {
    ThriftField f = {0};
    int type = NONE;
    thrift_struct(t, outer);
    while (thrift_field(t, &f)) {
        type = f.id;
        thrift_skip(t, f.type);
    }
    return type;
}

static Element read_element(Thrift *t) {
    Element e = {.name = {"", 0}, .type = NONE, .repetition = NONE, .converted = NONE, .logical = NONE};
    ThriftField f = {0};
    while (thrift_field(t, &f)) switch (f.id) {
        case 1: e.type = thrift_i32(t, &f); break;
        case 3: e.repetition = thrift_i32(t, &f); break;
        case 4: e.name = thrift_bytes(t, &f); break;
        case 5: e.children = thrift_i32(t, &f); break;
        case 6: e.converted = thrift_i32(t, &f); break;
        case 10: e.logical = logical_type(t, &f); break;
        default: thrift_skip(t, f.type);
        }
    return e;
}

static bool is_text(const Element *e) {
    bool converted = e->converted == NONE || e->converted == CONVERTED_UTF8 ||
                     e->converted == CONVERTED_ENUM || e->converted == CONVERTED_JSON;
    bool logical = e->logical == NONE || e->logical == LOGICAL_STRING || e->logical == LOGICAL_ENUM ||
                   e->logical == LOGICAL_JSON;
    return e->type == BYTE_ARRAY && converted && logical;
}

static bool is_here(const Walk *w) {
    return w->column && w->path.length == strlen(w->column) &&
           memcmp(w->path.data, w->column, w->path.length) == 0;
}

/* A few names, for messages. */
static void note_string(Walk *w) {
    char name[65];
    if (w->strings.length > 200) return;
    error_escape(name, sizeof name, w->path.data, w->path.length);
    text_printf(&w->strings, "%s%s", w->strings.length ? ", " : "", name);
}

static const char *type_name(int type) {
    static const char *const names[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                        "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
    return type >= 0 && type < 8 ? names[type] : "an unknown type";
}

static void list_leaf(const Walk *w, const Element *e, const Place *at) {
    ParquetLeaves *l = w->leaves_out;
    if (l->count == l->capacity) {
        l->capacity = 2 * l->capacity + 16;
        l->items = mem_grow(l->items, l->capacity * sizeof *l->items);
    }
    size_t length = w->path.length < MOST_SHOWN ? w->path.length : MOST_SHOWN;
    char *path = mem_alloc(length + 1);
    if (length) memcpy(path, w->path.data, length);
    int member = at->lists ? at->depth - at->element_depth : 0;
    l->items[l->count++] = (ParquetLeaf){path,      is_text(e),     is_text(e) ? "text" : type_name(e->type),
                                         at->lists, at->list_level, member};
}

static void see_leaf(Walk *w, const Element *e, const Place *at) {
    if (is_here(w)) {
        w->found = (Leaf){*e, w->leaves, at->optional, at->lists};
        w->matches++;
    }
    if (w->leaves_out) list_leaf(w, e, at);
    if (is_text(e) && at->lists == 0) note_string(w);
    w->leaves++;
}

static bool is_named(const Element *e, const char *end) {
    size_t length = strlen(end);
    return e->name.length >= length && memcmp(e->name.data + e->name.length - length, end, length) == 0;
}

/* Whether the elements of a list are what is repeated, and not its only child: the rules of the format for
 * files of older writers. */
static bool is_element(const Walk *w, const Element *e) {
    if (e->children != 1 || w->next == w->count) return true;
    return w->elements[w->next].repetition == REPEATED || (e->name.length == 5 && is_named(e, "array")) ||
           is_named(e, "_tuple");
}

static const char *enter(const Walk *w, const Element *e, Place *at) {
    if (e->repetition < REQUIRED || e->repetition > REPEATED) return "a column has an unknown repetition";
    at->optional += e->repetition != REQUIRED;
    if (e->repetition != REPEATED) return NULL;
    if (at->lists++ > 0) return NULL;
    at->list_level = at->optional;
    at->element_depth = is_element(w, e) ? at->depth : at->depth + 1;
    return NULL;
}

static const char *see_element(Walk *w, Place at);

static const char *see_children(Walk *w, const Element *e, Place at) {
    w->group |= at.depth > 0 && is_here(w);
    at.depth++;
    for (int i = 0; i < e->children; i++) {
        const char *wrong = see_element(w, at);
        if (wrong) return wrong;
    }
    return NULL;
}

/* Depth 0 is the root, which has no part in paths. */
static const char *see_element(Walk *w, Place at) {
    if (w->next == w->count) return "its schema ends too early";
    if (at.depth > MOST_DEPTH) return "its schema is nested too deeply";
    const Element *e = &w->elements[w->next++];
    size_t length = w->path.length;
    const char *wrong = NULL;
    if (at.depth > 1) text_puts(&w->path, ".");
    if (at.depth > 0) text_add(&w->path, e->name.data, e->name.length);
    if (at.depth > 0) wrong = enter(w, e, &at);
    if (wrong) return wrong;
    if (at.depth > 0 && e->type != NONE && e->children == 0)
        see_leaf(w, e, &at);
    else
        wrong = see_children(w, e, at);
    w->path.length = length;
    if (w->path.data) w->path.data[length] = '\0';
    return wrong;
}

static ErrorCode read_schema(Footer *f, Thrift *t, const ThriftField *field, Error *err) {
    size_t count = thrift_list(t, field, THRIFT_STRUCT);
    if (count > MOST_ELEMENTS) return damaged(f, "its schema has more than 10,000 elements", err);
    Element *elements = mem_alloc_array(count + 1, sizeof *elements);
    for (size_t i = 0; i < count; i++) elements[i] = read_element(t);
    Walk *w = &f->walk;
    w->elements = elements;
    w->count = count;
    const char *wrong = f->has_schema ? "it has two schemas" : t->wrong;
    if (!wrong) wrong = see_element(w, (Place){0});
    if (!wrong && w->next != count) wrong = "its schema has elements outside of its tree";
    f->has_schema = true;
    w->elements = NULL;
    free(elements);
    return wrong ? damaged(f, wrong, err) : OK;
}

/* What is there instead, since another name for the text is the commonest mistake. */
static ErrorCode check_column(const Footer *f, Error *err) {
    const Walk *w = &f->walk;
    const Element *e = &w->found.element;
    const char *others = w->strings.length ? w->strings.data : "none";
    char name[160];
    error_escape(name, sizeof name, f->column, strlen(f->column));
    if (w->matches > 1) return error_set(err, ERR_DATA, "%s: two columns are called '%s'", f->path, name);
    if (w->matches == 0)
        return error_set(err, ERR_DATA, "%s: %s%s'; columns of text: %s; %s", f->path,
                         w->group ? "a struct or list, not a column of text, is called '" : "no column '",
                         name, others,
                         w->strings.length ? "name one with `column` in the source"
                                           : "write a file that has one document per row, as a string");
    if (w->found.lists > w->in_list)
        return error_set(
            err, ERR_DATA,
            "%s: column '%s' is in a list (repeated), which weft does not read; columns of text: "
            "%s",
            f->path, name, others);
    if (!is_text(e))
        return error_set(err, ERR_DATA, "%s: column '%s' is no text but %s; columns of text: %s", f->path,
                         name, e->type == BYTE_ARRAY ? "bytes of another meaning" : type_name(e->type),
                         others);
    f->out->optional = w->found.optional;
    f->out->repeated = w->found.lists > 0;
    f->out->text = e->converted != NONE || e->logical != NONE;
    return OK;
}

/* ---- row groups ---- */

/* The names of the path, joined as the schema's are. */
static bool is_column(Thrift *t, const ThriftField *field, const char *column) {
    size_t count = thrift_list(t, field, THRIFT_BINARY), at = 0, length = strlen(column);
    bool same = true;
    for (size_t i = 0; i < count; i++) {
        ThriftBytes name = thrift_element_bytes(t);
        if (i > 0) same = same && at < length && column[at++] == '.';
        same = same && length - at >= name.length && memcmp(column + at, name.data, name.length) == 0;
        if (same) at += name.length;
    }
    return same && at == length;
}

static void read_chunk_meta(Thrift *t, const ThriftField *outer, const char *column, Chunk *c) {
    ThriftField f = {0};
    thrift_struct(t, outer);
    c->has_meta = true;
    while (thrift_field(t, &f)) switch (f.id) {
        case 1: c->type = thrift_i32(t, &f); break;
        case 3: c->same_path = is_column(t, &f, column); break;
        case 4: c->codec = thrift_i32(t, &f); break;
        case 5: c->values = thrift_i64(t, &f); break;
        case 7: c->stored = thrift_i64(t, &f); break;
        case 9: c->data = thrift_i64(t, &f); break;
        case 11: c->dictionary = thrift_i64(t, &f); break;
        default: thrift_skip(t, f.type);
        }
}

static Chunk read_chunk(Thrift *t, const char *column) {
    Chunk c = {NONE, NONE, NONE, NONE, NONE, NONE, false, false, false, false};
    ThriftField f = {0};
    while (thrift_field(t, &f)) switch (f.id) {
        case 1:
            c.elsewhere = true;
            thrift_skip(t, f.type);
            break;
        case 3: read_chunk_meta(t, &f, column, &c); break;
        case 8:
        case 9:
            c.encrypted = true;
            thrift_skip(t, f.type);
            break;
        default: thrift_skip(t, f.type);
        }
    return c;
}

/* Counts the chunks, and reads that of the column. */
static Chunk read_chunks(const Footer *f, Thrift *t, const ThriftField *field, size_t *count) {
    Chunk c = {0};
    *count = thrift_list(t, field, THRIFT_STRUCT);
    for (size_t i = 0; i < *count && !t->wrong; i++) {
        if (i == f->walk.found.index)
            c = read_chunk(t, f->column);
        else
            thrift_skip(t, THRIFT_STRUCT);
    }
    return c;
}

/* What weft does not do, by its name. */
static ErrorCode check_chunk(const Footer *f, const Chunk *c, Error *err) {
    if (c->encrypted)
        return error_set(err, ERR_DATA, "%s: column '%s' is encrypted, which weft does not read; decrypt it",
                         f->path, f->column);
    if (c->elsewhere)
        return error_set(err, ERR_DATA,
                         "%s: the data of column '%s' is in another file (file_path), which weft does not "
                         "read: write a file that holds its own data",
                         f->path, f->column);
    if (!c->has_meta || c->type != f->walk.found.element.type || !c->same_path || c->codec == NONE)
        return damaged(f, "a row group does not fit its schema", err);
    if (parquet_codec_is_read(c->codec)) return OK;
    return error_set(err, ERR_DATA,
                     "%s: column '%s' is compressed with %s, which weft does not read; " REWRITE(
                         "pq.write_table(pq.read_table(old), new, compression='zstd')"),
                     f->path, f->column, parquet_codec_name(c->codec));
}

/* Older writers leave the dictionary's offset out, or let the data begin at it. */
static ErrorCode add_group(Footer *f, const Chunk *c, int64_t rows, Error *err) {
    int64_t begin = c->dictionary > 0 && c->dictionary < c->data ? c->dictionary : c->data;
    if (c->values < rows || (!f->out->repeated && c->values != rows))
        return damaged(f, "a row group has another number of values than of rows", err);
    if (begin < 4 || c->stored < 0 || (uint64_t)begin > f->pages_end ||
        (uint64_t)c->stored > f->pages_end - (uint64_t)begin)
        return damaged(f, "the pages of a row group lie outside of the file", err);
    ParquetColumn *out = f->out;
    if (out->group_count == f->capacity) {
        f->capacity = 2 * f->capacity + 8;
        out->groups = mem_grow(out->groups, f->capacity * sizeof *out->groups);
    }
    out->groups[out->group_count++] =
        (ParquetGroup){(uint64_t)begin, (uint64_t)(begin + c->stored), out->rows,
                       (uint64_t)rows,  (uint64_t)c->values,           c->codec};
    return OK;
}

static ErrorCode read_group(Footer *f, Thrift *t, Error *err) {
    Chunk c = {0};
    int64_t rows = NONE;
    size_t columns = 0;
    ThriftField field = {0};
    while (thrift_field(t, &field)) switch (field.id) {
        case 1: c = read_chunks(f, t, &field, &columns); break;
        case 3: rows = thrift_i64(t, &field); break;
        default: thrift_skip(t, field.type);
        }
    if (t->wrong) return damaged(f, t->wrong, err);
    if (rows < 0 || (uint64_t)rows > (uint64_t)INT64_MAX - f->out->rows)
        return damaged(f, "a row group has no valid number of rows", err);
    if (columns != f->walk.leaves) return damaged(f, "a row group has other columns than its schema", err);
    if (rows == 0) return OK;
    TRY(check_chunk(f, &c, err));
    TRY(add_group(f, &c, rows, err));
    f->out->rows += (uint64_t)rows;
    return OK;
}

static ErrorCode read_groups(Footer *f, Thrift *t, const ThriftField *field, Error *err) {
    size_t count = thrift_list(t, field, THRIFT_STRUCT);
    if (!f->has_schema) return damaged(f, t->wrong ? t->wrong : "its row groups come before its schema", err);
    if (f->has_groups) return damaged(f, "it has two lists of row groups", err);
    f->has_groups = true;
    TRY(check_column(f, err));
    for (size_t i = 0; i < count; i++) TRY(read_group(f, t, err));
    return OK;
}

static ErrorCode read_leaves(Footer *f, Thrift *t, Error *err) {
    ThriftField field = {0};
    while (thrift_field(t, &field)) {
        if (field.id == 2)
            TRY(read_schema(f, t, &field, err));
        else
            thrift_skip(t, field.type);
    }
    return t->wrong ? damaged(f, t->wrong, err) : OK;
}

ErrorCode parquet_find_leaves(ParquetLeaves *leaves, const char *path, const char *footer, size_t length,
                              Error *err) {
    Thrift t = {(const uint8_t *)footer, (const uint8_t *)footer + length, NULL, false, 0};
    Footer f = {.path = path, .walk = {.leaves_out = leaves}};
    ErrorCode code = read_leaves(&f, &t, err);
    text_free(&f.walk.path);
    text_free(&f.walk.strings);
    return code;
}

void parquet_leaves_free(ParquetLeaves *leaves) {
    for (size_t i = 0; i < leaves->count; i++) free(leaves->items[i].path);
    free(leaves->items);
    *leaves = (ParquetLeaves){0};
}

static ErrorCode read_footer(Footer *f, Thrift *t, Error *err) {
    ThriftField field = {0};
    while (thrift_field(t, &field)) switch (field.id) {
        case 2: TRY(read_schema(f, t, &field, err)); break;
        case 3: f->rows = thrift_i64(t, &field); break;
        case 4: TRY(read_groups(f, t, &field, err)); break;
        default: thrift_skip(t, field.type);
        }
    if (t->wrong) return damaged(f, t->wrong, err);
    if (!f->has_groups) return damaged(f, "it lists no row groups", err);
    if (f->rows < 0 || (uint64_t)f->rows != f->out->rows)
        return damaged(f, "it has another number of rows than its row groups", err);
    return OK;
}

ErrorCode parquet_find_column(ParquetColumn *found, const char *path, const char *column, bool in_list,
                              const char *footer, size_t length, uint64_t pages_end, Error *err) {
    *found = (ParquetColumn){0};
    Thrift t = {(const uint8_t *)footer, (const uint8_t *)footer + length, NULL, false, 0};
    Footer f = {.path = path,
                .column = column,
                .pages_end = pages_end,
                .walk = {.column = column, .in_list = in_list},
                .rows = NONE,
                .out = found};
    ErrorCode code = read_footer(&f, &t, err);
    text_free(&f.walk.path);
    text_free(&f.walk.strings);
    if (code != OK) parquet_column_free(found);
    return code;
}

void parquet_column_free(ParquetColumn *column) {
    free(column->groups);
    *column = (ParquetColumn){0};
}

/* ---- pages ---- */

static void read_data_header(Thrift *t, const ThriftField *outer, ParquetPage *p) {
    ThriftField f = {0};
    thrift_struct(t, outer);
    while (thrift_field(t, &f)) switch (f.id) {
        case 1: p->values = thrift_i32(t, &f); break;
        case 2: p->encoding = thrift_i32(t, &f); break;
        case 3: p->level_encoding = thrift_i32(t, &f); break;
        case 4: p->repetition_encoding = thrift_i32(t, &f); break;
        default: thrift_skip(t, f.type);
        }
}

static void read_data_header_v2(Thrift *t, const ThriftField *outer, ParquetPage *p) {
    ThriftField f = {0};
    thrift_struct(t, outer);
    while (thrift_field(t, &f)) switch (f.id) {
        case 1: p->values = thrift_i32(t, &f); break;
        case 2: p->nulls = thrift_i32(t, &f); break;
        case 3: p->rows = thrift_i32(t, &f); break;
        case 4: p->encoding = thrift_i32(t, &f); break;
        case 5: p->definition_bytes = thrift_i32(t, &f); break;
        case 6: p->repetition_bytes = thrift_i32(t, &f); break;
        case 7: p->compressed = thrift_bool(t, &f); break;
        default: thrift_skip(t, f.type);
        }
}

static void read_dictionary_header(Thrift *t, const ThriftField *outer, ParquetPage *p) {
    ThriftField f = {0};
    thrift_struct(t, outer);
    while (thrift_field(t, &f)) switch (f.id) {
        case 1: p->values = thrift_i32(t, &f); break;
        case 2: p->encoding = thrift_i32(t, &f); break;
        default: thrift_skip(t, f.type);
        }
}

/* Only the header of the page's kind counts; the kind comes before it. */
static void read_own_header(Thrift *t, const ThriftField *f, ParquetPage *p) {
    if (f->id == 5 && p->kind == PARQUET_DATA_PAGE)
        read_data_header(t, f, p);
    else if (f->id == 7 && p->kind == PARQUET_DICTIONARY_PAGE)
        read_dictionary_header(t, f, p);
    else if (f->id == 8 && p->kind == PARQUET_DATA_PAGE_V2)
        read_data_header_v2(t, f, p);
    else
        thrift_skip(t, f->type);
}

ParquetPage parquet_page_header(Thrift *t) {
    ParquetPage p = {NONE, NONE, NONE, false, 0, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, true};
    ThriftField f = {0};
    while (thrift_field(t, &f)) switch (f.id) {
        case 1: p.kind = thrift_i32(t, &f); break;
        case 2: p.size = thrift_i32(t, &f); break;
        case 3: p.stored = thrift_i32(t, &f); break;
        case 4:
            p.crc = thrift_i32(t, &f);
            p.has_crc = true;
            break;
        default: read_own_header(t, &f, &p);
        }
    bool values =
        p.kind == PARQUET_DATA_PAGE || p.kind == PARQUET_DICTIONARY_PAGE || p.kind == PARQUET_DATA_PAGE_V2;
    if (!t->wrong && (p.kind < 0 || p.size < 0 || p.stored < 0 || (values && p.values < 0)))
        t->wrong = "a page's header is incomplete";
    return p;
}

/* Joins columns by their rows. Each column has a reader of its own, since their pages end at different rows.
 *
 *  J1. Each column's `slot` is its next one, if it has `more`. Between two rows, that of every column begins
 *      the same row, or all are at the end.
 *  J2. The columns of a list have the same slots in each row: as many, and there from the same level on. */
#include "formats/parquet_rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "formats/parquet.h"
#include "formats/parquet_values.h"

typedef struct Column {
    Parquet *parquet;
    char *path;
    const char *name; /* of the member, the end of the path */
    int list_level;
    ParquetSlot slot;
    bool more;
} Column;

/* A text has one column, a list one for each member of its structs. */
typedef struct Field {
    ParquetField is;
    bool list;
    size_t first, count; /* columns */
} Field;

struct ParquetRows {
    char *path;
    Field *fields;
    Column *columns;
    size_t field_count, column_count, column_capacity;
    Text object;
    bool started; /* J1 holds; before, rows may be skipped */
    uint64_t nulls;
};

/* ---- choice of columns ---- */

/* Whether the path is the field, or inside of it. */
static bool belongs(const ParquetLeaf *leaf, const char *name) {
    size_t length = strlen(name);
    return strncmp(leaf->path, name, length) == 0 && (!leaf->path[length] || leaf->path[length] == '.');
}

static ErrorCode refuse_field(const ParquetRows *r, const char *name, const ParquetLeaf *leaf, Error *err) {
    char shown[200];
    return error_set(
        err, ERR_DATA,
        "%s: column '%s' is neither text nor a list of structs of text: it has '%s'; name another "
        "with `column` in the source, or write it as JSON text",
        r->path, name, error_escape(shown, sizeof shown, leaf->path, strlen(leaf->path)));
}

static void add_column(ParquetRows *r, const ParquetLeaf *leaf) {
    if (r->column_count == r->column_capacity) {
        r->column_capacity = 2 * r->column_capacity + 8;
        r->columns = mem_grow(r->columns, r->column_capacity * sizeof *r->columns);
    }
    Column *c = &r->columns[r->column_count++];
    *c = (Column){.path = mem_strdup(leaf->path), .list_level = leaf->list_level};
    const char *dot = strrchr(c->path, '.');
    c->name = dot ? dot + 1 : c->path;
}

/* Numbers in structs are left out: a conversation is made of texts. But answers of weight 0 are not learned
 * (data/chat.c), which must not be ignored. */
static ErrorCode check_number(const ParquetRows *r, const ParquetLeaf *leaf, Error *err) {
    const char *dot = strrchr(leaf->path, '.');
    if (!dot || strcmp(dot, ".weight") != 0) return OK;
    return error_set(
        err, ERR_DATA,
        "%s: the messages have the number \"weight\", which weft reads from JSON alone: write the "
        "conversations as JSON lines, or leave this member out to learn all answers",
        r->path);
}

static ErrorCode add_leaf(ParquetRows *r, Field *f, const ParquetLeaf *leaf, Error *err) {
    bool text = leaf->lists == 0 && leaf->text && strcmp(leaf->path, f->is.name) == 0;
    bool member = leaf->lists == 1 && leaf->member == 1;
    if (!text && !member) return refuse_field(r, f->is.name, leaf, err);
    f->list = member;
    if (!leaf->text) return check_number(r, leaf, err);
    add_column(r, leaf);
    f->count++;
    return OK;
}

static ErrorCode add_field(ParquetRows *r, const ParquetField *field, const ParquetLeaves *leaves,
                           Error *err) {
    Field f = {.is = *field, .first = r->column_count};
    const ParquetLeaf *any = NULL;
    for (size_t i = 0; i < leaves->count; i++) {
        if (!belongs(&leaves->items[i], field->name)) continue;
        any = &leaves->items[i];
        TRY(add_leaf(r, &f, any, err));
    }
    if (any && f.count == 0) return refuse_field(r, field->name, any, err);
    if (any) r->fields[r->field_count++] = f;
    return OK;
}

static ErrorCode refuse_none(const ParquetRows *r, const ParquetField *fields, size_t count,
                             const ParquetLeaves *leaves, Error *err) {
    Text wanted = {0}, there = {0};
    char shown[65];
    for (size_t i = 0; i < count; i++) text_printf(&wanted, "%s'%s'", i ? ", " : "", fields[i].name);
    for (size_t i = 0; i < leaves->count && there.length < 200; i++)
        text_printf(&there, "%s%s", i ? ", " : "",
                    error_escape(shown, sizeof shown, leaves->items[i].path, strlen(leaves->items[i].path)));
    ErrorCode code =
        error_set(err, ERR_DATA, "%s: no column %s; its columns: %s; name one with `column` in the source",
                  r->path, wanted.data, there.length ? there.data : "none");
    text_free(&wanted);
    text_free(&there);
    return code;
}

static ErrorCode choose(ParquetRows *r, const ParquetField *fields, size_t count, Error *err) {
    ParquetLeaves leaves;
    ErrorCode code = parquet_leaves(&leaves, r->path, err);
    for (size_t i = 0; i < count && code == OK; i++) code = add_field(r, &fields[i], &leaves, err);
    if (code == OK && r->field_count == 0) code = refuse_none(r, fields, count, &leaves, err);
    parquet_leaves_free(&leaves);
    return code;
}

/* ---- opening ---- */

static ErrorCode open_columns(ParquetRows *r, const ParquetField *fields, size_t count, Error *err) {
    TRY(choose(r, fields, count, err));
    for (size_t i = 0; i < r->column_count; i++)
        TRY(parquet_open_slots(&r->columns[i].parquet, r->path, r->columns[i].path, err));
    return OK;
}

ErrorCode parquet_rows_open(ParquetRows **rows, const char *path, const ParquetField *fields, size_t count,
                            Error *err) {
    ParquetRows *r = mem_alloc(sizeof *r);
    *rows = NULL;
    r->path = mem_strdup(path);
    r->fields = mem_alloc_array(count, sizeof *r->fields);
    ErrorCode code = open_columns(r, fields, count, err);
    if (code != OK)
        parquet_rows_close(r);
    else
        *rows = r;
    return code;
}

void parquet_rows_close(ParquetRows *r) {
    if (!r) return;
    for (size_t i = 0; i < r->column_count; i++) {
        parquet_close(r->columns[i].parquet);
        free(r->columns[i].path);
    }
    free(r->columns);
    free(r->fields);
    free(r->path);
    text_free(&r->object);
    free(r);
}

static ErrorCode next_slot(Column *c, Error *err) {
    return parquet_next_slot(c->parquet, &c->slot, &c->more, err);
}

ErrorCode parquet_rows_skip_to(ParquetRows *r, uint64_t row, Error *err) {
    for (size_t i = 0; i < r->column_count; i++) TRY(parquet_skip_to(r->columns[i].parquet, row, err));
    return OK;
}

/* ---- rows ---- */

static ErrorCode damaged(const ParquetRows *r, const Column *c, Error *err) {
    return error_set(err, ERR_DATA,
                     "%s: damaged Parquet data: near row %" PRIu64
                     " column '%s' does not fit its neighbours; fetch the file again",
                     r->path, c->slot.row + 1, c->path);
}

/* A string of JSON with the bytes as they are: the reader of the object refuses what is not UTF-8. */
static void add_string(Text *out, const char *bytes, size_t length) {
    size_t plain = 0;
    text_puts(out, "\"");
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c >= ' ' && c != '"' && c != '\\') continue;
        text_add(out, bytes + plain, i - plain);
        text_printf(out, c < ' ' ? "\\u%04x" : "\\%c", c);
        plain = i + 1;
    }
    text_add(out, bytes + plain, length - plain);
    text_puts(out, "\"");
}

static void add_key(Text *out, const char *name) {
    char last = out->data[out->length - 1];
    if (last != '{' && last != '[') text_puts(out, ", ");
    add_string(out, name, strlen(name));
    text_puts(out, ": ");
}

static ErrorCode add_plain(ParquetRows *r, const Field *f, Error *err) {
    Column *c = &r->columns[f->first];
    if (c->slot.present) {
        add_key(&r->object, f->is.name);
        if (f->is.json)
            text_add(&r->object, c->slot.bytes, c->slot.length);
        else
            add_string(&r->object, c->slot.bytes, c->slot.length);
    }
    return next_slot(c, err);
}

/* Adds the next element of each column, and moves on. */
static ErrorCode add_element(ParquetRows *r, const Field *f, Error *err) {
    const ParquetSlot first = r->columns[f->first].slot;
    bool element = first.level >= r->columns[f->first].list_level;
    if (element) text_puts(&r->object, r->object.data[r->object.length - 1] == '[' ? "{" : ", {");
    for (size_t i = f->first; i < f->first + f->count; i++) {
        Column *c = &r->columns[i];
        if (!c->more || c->slot.row != first.row || c->slot.begins != first.begins ||
            (c->slot.level >= c->list_level) != element)
            return damaged(r, c, err);
        if (c->slot.present) add_key(&r->object, c->name);
        if (c->slot.present) add_string(&r->object, c->slot.bytes, c->slot.length);
        TRY(next_slot(c, err));
    }
    if (element) text_puts(&r->object, "}");
    return OK;
}

/* The row's only field, if that is text of a whole object; else NULL. */
static const char *whole_object(const ParquetRows *r, size_t *length) {
    const ParquetSlot *s = &r->columns[0].slot;
    if (r->field_count != 1 || !r->fields[0].is.json || r->fields[0].list || !s->present) return NULL;
    size_t at = 0;
    while (at < s->length && strchr(" \t\r\n", s->bytes[at])) at++;
    *length = s->length - at;
    return *length > 0 && s->bytes[at] == '{' ? s->bytes + at : NULL;
}

/* A list that is null is left out. */
static ErrorCode add_list(ParquetRows *r, const Field *f, Error *err) {
    const Column *c = &r->columns[f->first];
    bool null = c->slot.level + 1 < c->list_level;
    if (!null) add_key(&r->object, f->is.name);
    if (!null) text_puts(&r->object, "[");
    do TRY(add_element(r, f, err));
    while (c->more && !c->slot.begins && r->object.length <= PARQUET_MOST_VALUE);
    if (!null) text_puts(&r->object, "]");
    return OK;
}

/* J1 */
static ErrorCode check_rows(const ParquetRows *r, Error *err) {
    const Column *first = &r->columns[0];
    for (size_t i = 0; i < r->column_count; i++) {
        const Column *c = &r->columns[i];
        if (c->more != first->more || (c->more && (c->slot.row != first->slot.row || !c->slot.begins)))
            return damaged(r, c, err);
    }
    return OK;
}

static ErrorCode read_row(ParquetRows *r, uint64_t row, Error *err) {
    size_t length = 0;
    const char *object = whole_object(r, &length);
    text_clear(&r->object);
    if (object) {
        text_add(&r->object, object, length);
        return next_slot(&r->columns[0], err);
    }
    text_puts(&r->object, "{");
    for (size_t i = 0; i < r->field_count; i++) {
        TRY((r->fields[i].list ? add_list : add_plain)(r, &r->fields[i], err));
        if (r->object.length > PARQUET_MOST_VALUE)
            return error_set(err, ERR_DATA,
                             "%s: row %" PRIu64 " has more than 256 MiB of text, the most that weft reads: "
                             "split it into several rows, or leave it out",
                             r->path, row + 1);
    }
    text_puts(&r->object, "}");
    return OK;
}

/* If the next row is null, so are those behind it that all columns have as null. */
static void pass_null_rows(ParquetRows *r) {
    uint64_t rows = UINT64_MAX;
    for (size_t i = 0; i < r->column_count && rows > 0; i++) {
        const Column *c = &r->columns[i];
        bool null = c->more && c->slot.begins && c->slot.level == 0 && !c->slot.present;
        uint64_t run = null ? parquet_null_rows(c->parquet) : 0;
        if (run < rows) rows = run;
    }
    for (size_t i = 0; i < r->column_count && rows > 0; i++) {
        parquet_pass_null_rows(r->columns[i].parquet, rows);
        r->columns[i].slot.row += rows;
    }
    r->nulls += rows;
}

static ErrorCode start(ParquetRows *r, Error *err) {
    for (size_t i = 0; i < r->column_count && !r->started; i++) TRY(next_slot(&r->columns[i], err));
    r->started = true;
    return OK;
}

ErrorCode parquet_rows_next(ParquetRows *r, ParquetRow *row, bool *more, Error *err) {
    TRY(start(r, err));
    for (;;) {
        TRY(check_rows(r, err));
        *more = r->columns[0].more;
        if (!*more) return OK;
        row->row = r->columns[0].slot.row;
        TRY(read_row(r, row->row, err));
        if (r->object.length > strlen("{}")) break;
        r->nulls++;
        pass_null_rows(r);
    }
    row->object = r->object.data;
    row->length = r->object.length;
    return OK;
}

uint64_t parquet_rows_nulls(const ParquetRows *r) { return r->nulls; }

/* Of the columns together: the first is read alongside the others. */
uint64_t parquet_rows_stored_position(const ParquetRows *r) {
    return parquet_stored_position(r->columns[0].parquet);
}

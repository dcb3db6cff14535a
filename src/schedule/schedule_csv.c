/* Schedules as CSV: a line for each rank, a column for each cell.
 *
 *     cell      = "" | action | composite          blanks around it are ignored
 *     action    = STAGE KIND [MICROBATCH]          decimal, no sign, no leading zeros
 *     composite = "(" action ";" action ")OVERLAP_F_B"
 *
 * A cell must match in full. The valid range of the numbers is not known until all lines are read: counts and
 * placement come from the largest numbers and from the line of each stage. They are compared with the number
 * of cells before they size anything. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/lines.h"
#include "schedule/schedule.h"
#include "schedule/schedule_internal.h"

/* 64 MiB are some ten million cells: more than any schedule has, and small enough to read at once. */
#define MAX_BYTES ((size_t)64 << 20)
#define MAX_NUMBER 9999999 /* of a stage or a microbatch: seven digits */
#define COMPOSITE_END ")OVERLAP_F_B"

/* State of reading, with what a message needs to name the position. */
typedef struct Reader {
    const char *where;
    Error *err;
    Schedule *s;
    int rank, column; /* of the current cell; column from 1 */
    const char *cell; /* the current cell, without blanks */
    size_t cell_length;
    const char *at, *end; /* what is left of it */
} Reader;

/* Reports rank, line, column and the cell itself: schedule files are wide, and editors do not show CSV
 * columns. */
static ErrorCode fail(const Reader *r, const char *what) {
    char shown[64];
    error_escape(shown, sizeof shown, r->cell, r->cell_length);
    return error_set(r->err, ERR_DATA, "%s: rank %d (line %d), cell %d (%s): %s", r->where, r->rank,
                     r->rank + 1, r->column, shown, what);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Returns a number, or -1 where there is no valid one. Stops growing beyond MAX_NUMBER, so a long run of
 * digits cannot overflow. */
static int read_number(Reader *r) {
    const char *first = r->at;
    int value = 0;
    for (; r->at < r->end && is_digit(*r->at); r->at++)
        if (value <= MAX_NUMBER) value = 10 * value + (*r->at - '0');
    bool leading_zero = r->at - first > 1 && *first == '0';
    return r->at == first || leading_zero || value > MAX_NUMBER ? -1 : value;
}

/* The kind is the longest run of capitals and underscores. */
static CellKind read_kind(Reader *r) {
    const char *first = r->at;
    while (r->at < r->end && ((*r->at >= 'A' && *r->at <= 'Z') || *r->at == '_')) r->at++;
    size_t length = (size_t)(r->at - first);
    for (int k = CELL_F; k < CELL_KINDS; k++) {
        const char *name = cell_kind_name((CellKind)k);
        if (strlen(name) == length && memcmp(name, first, length) == 0) return (CellKind)k;
    }
    return CELL_IDLE;
}

/* Each kind of mistake has its own message: large files are written by programs, whose author must know which
 * rule was broken. */
static ErrorCode read_action(Reader *r, Cell *out) {
    *out = (Cell){CELL_IDLE, -1, -1, false};
    out->stage = read_number(r);
    if (out->stage < 0 && r->at > r->cell && is_digit(r->at[-1]))
        return fail(r, "the stage is no number from 0 to 9999999 without leading zeros");
    if (out->stage < 0)
        return fail(r,
                    "starts with no stage; a cell is like 0F3, 1SEND_B2, 2UNSHARD or (0F4;7B1)OVERLAP_F_B");
    out->kind = read_kind(r);
    if (out->kind == CELL_IDLE)
        return fail(
            r, "no such action: F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD or REDUCE_GRAD");
    bool digit = r->at < r->end && is_digit(*r->at);
    if (digit != cell_has_microbatch(out->kind))
        return fail(r, digit ? "this action takes no microbatch" : "a microbatch must follow");
    if (digit && (out->microbatch = read_number(r)) < 0)
        return fail(r, "the microbatch is no number from 0 to 9999999 without leading zeros");
    return OK;
}

/* Becomes two cells, the first marked `overlap`. */
static ErrorCode read_composite(Reader *r, Order *o) {
    size_t length = strlen(COMPOSITE_END);
    Cell first, second;
    r->at++;
    TRY(read_action(r, &first));
    if (r->at == r->end || *r->at++ != ';') return fail(r, "a composite is like (0F4;7B1)OVERLAP_F_B");
    TRY(read_action(r, &second));
    if ((size_t)(r->end - r->at) != length || memcmp(r->at, COMPOSITE_END, length) != 0)
        return fail(r, "a composite ends in " COMPOSITE_END);
    first.overlap = true;
    order_add(o, first);
    order_add(o, second);
    return OK;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Ignores blanks around a cell. An empty cell is idle, so that columns stay columns. */
static ErrorCode read_cell(Reader *r, const char *first, const char *last) {
    Order *o = &r->s->orders[r->rank];
    while (first < last && is_blank(*first)) first++;
    while (first < last && is_blank(last[-1])) last--;
    r->cell = r->at = first;
    r->end = last;
    r->cell_length = (size_t)(last - first);
    if (first == last) {
        order_add(o, (Cell){CELL_IDLE, -1, -1, false});
        return OK;
    }
    if (*first == '(') return read_composite(r, o);
    Cell cell;
    TRY(read_action(r, &cell));
    if (r->at < r->end) return fail(r, "more than an action");
    order_add(o, cell);
    return OK;
}

/* A line is a rank. A line without any action is an error: it is usually an empty line left by mistake. */
static ErrorCode read_line(Reader *r, const char *first, const char *last) {
    for (r->column = 1;; r->column++) {
        const char *comma = memchr(first, ',', (size_t)(last - first));
        TRY(read_cell(r, first, comma ? comma : last));
        if (!comma) break;
        first = comma + 1;
    }
    const Order *o = &r->s->orders[r->rank];
    for (int i = 0; i < o->count; i++)
        if (o->cells[i].kind != CELL_IDLE) return OK;
    return error_set(r->err, ERR_DATA, "%s: rank %d (line %d) does nothing", r->where, r->rank, r->rank + 1);
}

/* Line k is rank k. */
static ErrorCode read_lines(Reader *r, Lines lines) {
    for (Line line; lines_next(&lines, &line); r->rank++)
        TRY(read_line(r, line.text, line.text + line.length));
    return OK;
}

/* The largest stage and microbatch, and the number of forwards and cells. */
typedef struct Extent {
    int stage, microbatch;
    int64_t forwards, cells;
} Extent;

/* A file has no header, so its cells show whether backward passes are split. */
static Extent measure(Schedule *s) {
    Extent e = {-1, -1, 0, 0};
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++) {
            Cell cell = s->orders[r].cells[i];
            if (cell.stage > e.stage) e.stage = cell.stage;
            if (cell.microbatch > e.microbatch) e.microbatch = cell.microbatch;
            e.forwards += cell.kind == CELL_F;
            e.cells += cell.kind != CELL_IDLE;
            s->split_backward |= cell.kind == CELL_I || cell.kind == CELL_W;
        }
    return e;
}

/* Puts each stage on the rank where it first appears; schedule_check refuses others. */
static void place_stages(Schedule *s) {
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++) {
            int stage = s->orders[r].cells[i].stage;
            if (stage >= 0 && s->rank_of_stage[stage] < 0) s->rank_of_stage[stage] = r;
        }
}

/* Before a stage number sizes arrays, it must be smaller than the number of actions: otherwise seven digits
 * in a file of ten bytes would allocate gigabytes. */
static ErrorCode settle(Schedule *s, Error *err) {
    Extent e = measure(s);
    if (e.forwards == 0) return error_set(err, ERR_DATA, "no forward (0F0) in it");
    if (e.stage >= e.cells)
        return error_set(err, ERR_DATA,
                         "stage %d in a file of %lld actions: stages are 0, 1, ..., each with its forwards",
                         e.stage, (long long)e.cells);
    schedule_place(s, e.stage + 1);
    s->microbatches = e.microbatch + 1;
    place_stages(s);
    return schedule_check(s, err);
}

/* The last component of the path, escaped for terminals. */
static void set_name(Schedule *s, const char *where) {
    const char *slash = strrchr(where, '/'), *name = slash ? slash + 1 : where;
    error_escape(s->name, sizeof s->name, name, strlen(name));
}

/* On failure there is nothing to free. */
ErrorCode schedule_parse_csv(Schedule *s, const char *where, const char *text, size_t length, Error *err) {
    *s = (Schedule){0};
    if (length == 0)
        return error_set(err, ERR_DATA, "%s: is empty; a schedule has a line for each rank", where);
    if (length > MAX_BYTES)
        return error_set(err, ERR_DATA, "%s: %zu bytes; at most %zu", where, length, MAX_BYTES);
    Lines lines = lines_of(text, length);
    schedule_start(s, "", (int)lines_count(lines));
    set_name(s, where);
    Reader r = {.where = where, .err = err, .s = s};
    ErrorCode code = read_lines(&r, lines);
    if (code == OK && (code = settle(s, err)) != OK) error_context(err, "%s", where);
    if (code != OK) schedule_free(s);
    return code;
}

/* The path serves as `where`. */
ErrorCode schedule_read_csv(Schedule *s, const char *path, Error *err) {
    char *text;
    size_t length;
    *s = (Schedule){0};
    TRY(file_read(path, MAX_BYTES, &text, &length, err));
    ErrorCode code = schedule_parse_csv(s, path, text, length, err);
    free(text);
    return code;
}

/* Returns the index of the second cell. A cell with `overlap` always has a successor: read_composite sets
 * both, and so do schedules that pair cells. */
static int write_composite(const Order *o, int first, Text *out) {
    text_puts(out, "(");
    schedule_write_cell(&o->cells[first], out);
    text_puts(out, ";");
    schedule_write_cell(&o->cells[first + 1], out);
    text_puts(out, COMPOSITE_END);
    return first + 1;
}

void schedule_write_csv(const Schedule *s, Text *out) {
    for (int r = 0; r < s->ranks; r++) {
        const Order *o = &s->orders[r];
        for (int i = 0; i < o->count; i++) {
            if (i > 0) text_puts(out, ",");
            if (o->cells[i].overlap)
                i = write_composite(o, i, out);
            else
                schedule_write_cell(&o->cells[i], out);
        }
        text_puts(out, "\n");
    }
}

/* Writes and reads the chain. A line is made without its h, hashed, and completed, so that a reader hashes
 * the very bytes of the file and never writes a line again to compare. */
#include "observe/receipts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/lines.h"

#define TAIL ", \"h\": \""
enum { TAIL_BYTES = sizeof TAIL - 1 + 64 + 2, LIMIT = 1 << 30 }; /* TAIL, digits, "} */

static void chain(const char before[RECEIPT_HEX], const char *line, size_t length, char out[RECEIPT_HEX]) {
    uint8_t digest[32];
    Sha256 *h = sha256_start();
    sha256_add(h, before, 64);
    sha256_add(h, line, length);
    sha256_finish(h, digest);
    sha256_hex(digest, out);
}

static void start_of_chain(char h[RECEIPT_HEX]) {
    memset(h, '0', 64);
    h[64] = 0;
}

/* ---- writing ---- */

static void put(JsonWriter *w, const char *key, const char *value) {
    if (value) json_put_string(w, key, value);
}

/* Without h. */
static void write_line(const Receipt *r, Text *out) {
    JsonWriter w;
    json_start(&w, out, 0);
    json_begin_object(&w);
    json_put_string(&w, "kind", r->begin ? "begin" : "step");
    json_put_int(&w, "step", r->step);
    json_put_int(&w, "first", r->first);
    json_put_int(&w, "samples", r->samples);
    if (r->begin) json_put_string(&w, "hash", "sha256");
    if (r->begin) json_put_int(&w, "ranks", r->ranks);
    for (int i = 0; r->begin && i < RECEIPT_FACTS && r->facts[i].name; i++)
        json_put_string(&w, r->facts[i].name, r->facts[i].value);
    put(&w, "batch", r->batch);
    put(&w, "loss", r->loss);
    put(&w, "grad_norm", r->grad_norm);
    put(&w, "weights", r->weights);
    put(&w, "parameters", r->parameters);
    put(&w, "names", r->names);
    json_end_object(&w);
    out->data[--out->length] = 0; /* the brace: h follows */
}

ErrorCode receipts_add(ReceiptLog *log, Receipt *r, Error *err) {
    Text line = {0};
    write_line(r, &line);
    chain(log->h, line.data, line.length, r->h);
    text_printf(&line, TAIL "%s\"}\n", r->h);
    ErrorCode code = file_add_line(log->fd, log->path, line.data, line.length, err);
    if (code == OK) memcpy(log->h, r->h, sizeof log->h);
    text_free(&line);
    return code;
}

/* Another run, or a checkpoint that was copied here without the file, would begin a chain that looks good. */
static ErrorCode find_head(const Receipts *there, const char *head, Error *err) {
    if (!*head || receipts_have(there, head)) return OK;
    return error_set(err, ERR_DATA,
                     "%s does not have the receipt %.12s... that the checkpoint states: it was changed, cut "
                     "or lost; put it back, or go on without receipts (run.receipts=false)",
                     there->path, head);
}

/* Cuts a torn last line off. */
static ErrorCode take_up(ReceiptLog *log, const char *run_dir, const char *head, Error *err) {
    Receipts there;
    Error problem = {.message = ""};
    ErrorCode code = receipts_read(&there, run_dir, &problem);
    if (code == OK || code == ERR_NOINPUT)
        code = find_head(&there, head, err);
    else
        code = error_set(err, problem.code, "%s", problem.message);
    if (code == OK && there.count > 0) memcpy(log->h, there.items[there.count - 1].h, sizeof log->h);
    if (code == OK && there.torn && truncate(log->path, (off_t)there.length) != 0)
        code = error_errno(err, ERR_IO, "%s: cannot cut off its torn last line", log->path);
    receipts_free(&there);
    return code;
}

ErrorCode receipts_open(ReceiptLog *log, const char *run_dir, const char *head, Error *err) {
    *log = (ReceiptLog){.fd = -1, .path = path_join(run_dir, RECEIPTS_FILE)};
    start_of_chain(log->h);
    ErrorCode code = take_up(log, run_dir, head, err);
    if (code == OK) code = file_open_lines(log->path, &log->fd, err);
    if (code != OK) receipts_close(log);
    return code;
}

ErrorCode receipts_sync(ReceiptLog *log, Error *err) { return file_sync(log->fd, log->path, err); }

void receipts_close(ReceiptLog *log) {
    if (log->fd >= 0) close(log->fd);
    free(log->path);
    *log = (ReceiptLog){.fd = -1};
}

/* ---- one line ---- */

static ErrorCode read_texts(const cJSON *line, const char *where, Receipt *r, Error *err) {
    TRY(json_get_string(line, where, "weights", true, &r->weights, err));
    TRY(json_get_string(line, where, "parameters", false, &r->parameters, err));
    TRY(json_get_string(line, where, "names", false, &r->names, err));
    TRY(json_get_string(line, where, "batch", !r->begin, &r->batch, err));
    TRY(json_get_string(line, where, "loss", !r->begin, &r->loss, err));
    return json_get_string(line, where, "grad_norm", !r->begin, &r->grad_norm, err);
}

static ErrorCode read_line(const cJSON *line, const char *where, Receipt *r, Error *err) {
    const char *kind;
    int64_t most = INT64_C(1) << 53;
    TRY(json_get_string(line, where, "kind", true, &kind, err));
    r->begin = strcmp(kind, "begin") == 0;
    TRY(json_get_int(line, where, "step", true, 0, most, &r->step, err));
    TRY(json_get_int(line, where, "first", true, 0, most, &r->first, err));
    TRY(json_get_int(line, where, "samples", true, 0, most, &r->samples, err));
    TRY(json_get_int(line, where, "ranks", r->begin, 1, most, &r->ranks, err));
    return read_texts(line, where, r, err);
}

/* The value lives as long as the line. */
static const char *member(const cJSON *line, const char *name) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(line, name);
    return cJSON_IsString(value) ? value->valuestring : "";
}

/* ---- the file ---- */

static ErrorCode bad(const Receipts *r, const char *what, Error *err) {
    return error_set(err, ERR_DATA, "%s:%zu: %s", r->path, r->count + 1, what);
}

/* The steps that an attempt makes again count no longer. */
static void go_back(Receipts *r, int64_t step) {
    while (r->valid_count > 0 && r->items[r->valid[r->valid_count - 1]].step > step) r->valid_count--;
}

/* Against the line before it that counts. */
static ErrorCode check_order(Receipts *r, const Receipt *now, Error *err) {
    if (r->count == 0 && !now->begin) return bad(r, "the first line is not that of a beginning", err);
    if (now->begin) go_back(r, now->step);
    const Receipt *last = r->valid_count ? &r->items[r->valid[r->valid_count - 1]] : NULL;
    if (now->begin && last && last->step == now->step && strcmp(last->weights, now->weights) != 0)
        return bad(r, "the attempt did not begin with the weights that the step before it had", err);
    if (now->begin) return OK;
    if (!last || now->step <= last->step) return bad(r, "its step does not follow the one before", err);
    if (now->first != last->first + last->samples)
        return bad(r, "its samples do not follow those of the line before", err);
    return OK;
}

static ErrorCode check_chain(Receipts *r, const char *line, size_t length, char h[RECEIPT_HEX], Error *err) {
    const char *tail = line + length - TAIL_BYTES;
    char expected[RECEIPT_HEX];
    if (length <= TAIL_BYTES || strncmp(tail, TAIL, sizeof TAIL - 1) != 0)
        return bad(r, "this is no receipt, which ends with its hash", err);
    chain(h, line, length - TAIL_BYTES, expected);
    if (strncmp(tail + sizeof TAIL - 1, expected, 64) != 0)
        return bad(r, "the chain is broken: this line, or one before it, was changed, moved or removed", err);
    memcpy(h, expected, RECEIPT_HEX);
    return OK;
}

static ErrorCode add_line(Receipts *r, const char *line, size_t length, char h[RECEIPT_HEX], Error *err) {
    cJSON *object = NULL;
    TRY(check_chain(r, line, length, h, err));
    TRY(json_parse_line(r->path, r->count + 1, line, length, &object, err));
    r->items = mem_grow(r->items, (r->count + 1) * sizeof *r->items);
    r->lines = mem_grow(r->lines, (r->count + 1) * sizeof *r->lines);
    r->valid = mem_grow(r->valid, (r->count + 1) * sizeof *r->valid);
    Receipt *now = &r->items[r->count];
    *now = (Receipt){.step = 0};
    r->lines[r->count] = object;
    memcpy(now->h, h, RECEIPT_HEX);
    ErrorCode code = read_line(object, r->path, now, err);
    if (code == OK) code = check_order(r, now, err);
    if (code != OK) {
        cJSON_Delete(object);
        return code;
    }
    r->attempts += now->begin;
    r->valid[r->valid_count++] = r->count++;
    return OK;
}

ErrorCode receipts_read(Receipts *r, const char *run_dir, Error *err) {
    char *text = NULL, h[RECEIPT_HEX];
    size_t length = 0;
    *r = (Receipts){.path = path_join(run_dir, RECEIPTS_FILE)};
    start_of_chain(h);
    if (!file_exists(r->path))
        return error_set(err, ERR_NOINPUT,
                         "%s: there is no such file: receipts are written with run.receipts: true", r->path);
    ErrorCode code = file_read_own(r->path, LIMIT, &text, &length, err);
    Lines lines = lines_of(text, code == OK ? length : 0);
    for (Line line; code == OK && lines_next(&lines, &line);) {
        r->torn = !line.whole;
        if (r->torn) break;
        code = add_line(r, line.text, line.length, h, err);
        r->length = (size_t)(lines.at - text);
    }
    free(text);
    return code;
}

void receipts_free(Receipts *r) {
    for (size_t i = 0; i < r->count; i++) cJSON_Delete(r->lines[i]);
    free(r->path);
    free(r->items);
    free(r->lines);
    free(r->valid);
    *r = (Receipts){0};
}

bool receipts_have(const Receipts *r, const char *h) {
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->items[i].h, h) == 0) return true;
    return false;
}

const Receipt *receipts_of_step(const Receipts *r, int64_t step) {
    for (size_t i = r->valid_count; i-- > 0;) {
        const Receipt *item = &r->items[r->valid[i]];
        if (item->step == step && !item->begin) return item;
    }
    return NULL;
}

const Receipt *receipts_begin_of(const Receipts *r, int64_t step) {
    for (size_t i = r->valid_count; i-- > 0;) {
        const Receipt *item = &r->items[r->valid[i]];
        if (item->begin && item->step < step) return item;
    }
    return NULL;
}

/* begin is an item of Receipts; facts are looked up in its line. */
const char *receipt_fact(const Receipts *r, const Receipt *begin, const char *name) {
    return member(r->lines[begin - r->items], name);
}

/* ---- comparing ---- */

/* Names and digits of the first parameter that differs, and how many do. */
static void name_parameter(const Receipt *run, const Receipt *again, const char *names, Text *out) {
    const char *a = run->parameters, *b = again->parameters;
    if (!a || !b || !names || strlen(a) != strlen(b)) return;
    int count = 0, length = 0, differ = 0;
    const char *name = names, *first = NULL, *at = names;
    for (size_t i = 0; i + 8 <= strlen(a); i += 8, count++) {
        size_t end = strcspn(at, ",");
        if (strncmp(a + i, b + i, 8) != 0 && differ++ == 0) first = a + i, name = at, length = (int)end;
        at += end + (at[end] == ',');
    }
    if (first)
        text_printf(out, ": %d of %d parameters, the first %.*s (%.8s..., here %.8s...)", differ, count,
                    length, name, first, b + (first - a));
}

void receipt_compare(const Receipt *run, const Receipt *again, const char *names, Text *out) {
    if (strcmp(run->batch, again->batch) != 0) text_puts(out, "its samples differ; ");
    if (strcmp(run->loss, again->loss) != 0)
        text_printf(out, "its loss differs (bits %s, here %s); ", run->loss, again->loss);
    if (strcmp(run->grad_norm, again->grad_norm) != 0)
        text_printf(out, "its gradient norm differs (bits %s, here %s); ", run->grad_norm, again->grad_norm);
    if (strcmp(run->weights, again->weights) != 0) {
        text_puts(out, "its weights differ");
        name_parameter(run, again, names, out);
    }
    if (out->length > 1 && out->data[out->length - 2] == ';') out->data[out->length -= 2] = 0;
}

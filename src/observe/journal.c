/* The journal of a run: one JSON line an event, appended; what happened stays, over all restarts.
 *
 *  J1. A line is written by one write call, so that a kill leaves whole lines and at most one torn at the
 *      end.
 *  J2. Events that someone will look for after a crash are synced at once; a validation's or a spike's are
 *      not worth the wait.
 *  J3. Readers pass over lines they cannot read: a journal is for people, and half of one is better than
 *      none. */
#include "observe/journal.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"

/* `sync`: on the disk before the run goes on (J2). */
typedef struct EventKind {
    const char *name;
    bool sync;
} EventKind;

/* By name in the file, never by number: kinds may be added in between. */
static const EventKind kinds[JOURNAL_EVENTS] = {
    [JOURNAL_READ] = {"read", true},
    [JOURNAL_STARTED] = {"started", true},
    [JOURNAL_RESUMED] = {"resumed", true},
    [JOURNAL_RESTARTED] = {"restarted", true},
    [JOURNAL_CHANGED] = {"changed", true},
    [JOURNAL_CHECKPOINT] = {"checkpoint", true},
    [JOURNAL_VALIDATION] = {"validation", false},
    [JOURNAL_BEST] = {"best", true},
    [JOURNAL_EVALUATION] = {"evaluation", false},
    [JOURNAL_NONFINITE] = {"nonfinite", true},
    [JOURNAL_SPIKE] = {"spike", false},
    [JOURNAL_STOPPED] = {"stopped", true},
    [JOURNAL_DIVERGED] = {"diverged", true},
    [JOURNAL_FAILED] = {"failed", true},
    [JOURNAL_MEMORY] = {"memory", true},
    [JOURNAL_TRACED] = {"traced", false},
    [JOURNAL_COMMAND] = {"command", false},
    [JOURNAL_FINISHED] = {"finished", true},
};

const char *journal_event_name(JournalEvent event) { return kinds[event].name; }

/* A last line that a crash has torn is ended first (file_open_lines), so that it does not swallow the next
 * one. */
ErrorCode journal_open(Journal *j, const char *run_dir, Error *err) {
    j->path = path_join(run_dir, JOURNAL_FILE);
    ErrorCode code = file_open_lines(j->path, &j->fd, err);
    if (code != OK) journal_close(j);
    return code;
}

/* A detail is the text of an error or a path: bytes of somebody else, hence as bytes (json_bytes), which
 * are made UTF-8. */
static void begin_entry(JsonWriter *w, Text *out, JournalEvent event, int64_t step, const char *detail) {
    char time[21];
    json_start(w, out, 0);
    json_begin_object(w);
    json_put_string(w, "time", clock_iso8601(clock_wall(), time));
    json_put_string(w, "event", kinds[event].name);
    json_put_int(w, "step", step);
    if (detail) { json_put_bytes(w, "detail", detail, strlen(detail)); }
}

static void write_entry(Text *out, JournalEvent event, int64_t step, const char *detail,
                        const JournalFact *facts) {
    JsonWriter w;
    begin_entry(&w, out, event, step, detail);
    for (const JournalFact *f = facts; f && f->name; f++) { json_put_double(&w, f->name, f->value); }
    json_end_object(&w);
    text_add(out, "\n", 1);
}

/* Frees the line. */
static ErrorCode add_line(Journal *j, JournalEvent event, Text *line, Error *err) {
    ErrorCode code = file_add_line(j->fd, j->path, line->data, line->length, err);
    text_free(line);
    TRY(code);
    return kinds[event].sync ? file_sync(j->fd, j->path, err) : OK;
}

/* Allocates: events are rare, and none is written inside a step. */
ErrorCode journal_add(Journal *j, JournalEvent event, int64_t step, const char *detail,
                      const JournalFact *facts, Error *err) {
    Text line = {0};
    write_entry(&line, event, step, detail, facts);
    return add_line(j, event, &line, err);
}

static void write_file(JsonWriter *w, const JournalFile *f) {
    json_begin_object(w);
    json_put_string(w, "kind", f->kind);
    json_put_bytes(w, "path", f->path, strlen(f->path));
    json_put_int(w, "files", f->files);
    if (f->sha256[0]) {
        json_put_int(w, "bytes", f->bytes);
        json_put_string(w, f->sampled ? "sample" : "sha256", f->sha256);
    }
    json_end_object(w);
}

/* For people: "config run.yaml, source parts (12 files)". The first ones stand for a long list. */
static void describe_files(const JournalFile *files, size_t count, Text *out) {
    enum { MOST = 12 };
    char number[32];
    for (size_t i = 0; i < count && i < MOST; i++) {
        text_printf(out, "%s%s %s", i ? ", " : "", files[i].kind, files[i].path);
        if (files[i].files > 1) text_printf(out, " (%s files)", text_count(files[i].files, number));
    }
    if (count > MOST) text_printf(out, " and %zu more", count - MOST);
}

ErrorCode journal_add_files(Journal *j, int64_t step, const JournalFile *files, size_t count, Error *err) {
    Text line = {0}, detail = {0};
    JsonWriter w;
    describe_files(files, count, &detail);
    begin_entry(&w, &line, JOURNAL_READ, step, detail.data);
    text_free(&detail);
    json_key(&w, "files");
    json_begin_array(&w);
    for (size_t i = 0; i < count; i++) write_file(&w, &files[i]);
    json_end_array(&w);
    json_end_object(&w);
    text_add(&line, "\n", 1);
    return add_line(j, JOURNAL_READ, &line, err);
}

void journal_close(Journal *j) {
    if (j->fd >= 0) close(j->fd);
    free(j->path);
    *j = (Journal){.fd = -1};
}

/* ---- reading ---- */

/* "" where the line has no such member, so that readers need not ask for NULL. The caller frees it. */
static char *copy_string(const cJSON *object, const char *key) {
    const char *value = "";
    if (json_get_string(object, JOURNAL_FILE, key, false, &value, NULL) != OK) value = "";
    return mem_strdup(value);
}

/* All numbers of the object but its step, in the order of the line; ends with one without a name. By being
 * numbers, not by a list of names: a fact that a later version adds is shown by this one. */
static JournalFact *copy_facts(const cJSON *object) {
    int size = cJSON_GetArraySize(object), count = 0;
    JournalFact *facts = mem_alloc_array((size_t)size + 1, sizeof *facts);
    const cJSON *member;
    cJSON_ArrayForEach(member, object) {
        if (!cJSON_IsNumber(member) || strcmp(member->string, "step") == 0) continue;
        facts[count++] = (JournalFact){mem_strdup(member->string), member->valuedouble};
    }
    return facts;
}

/* A line of a later version with members that are not known here is a good line. An entry has an event at
 * least; *e is not touched when it is none. Its strings and facts are the table's. */
static bool read_entry(JournalEntry *e, const char *line, size_t length) {
    cJSON *root = NULL;
    int64_t step = 0;
    if (json_parse(JOURNAL_FILE, line, length, &root, NULL) != OK) return false;
    bool good = cJSON_IsObject(root) && cJSON_IsString(cJSON_GetObjectItemCaseSensitive(root, "event")) &&
                json_get_int(root, JOURNAL_FILE, "step", false, 0, 1LL << 53, &step, NULL) == OK;
    if (good) {
        *e = (JournalEntry){copy_string(root, "time"), copy_string(root, "event"),
                            copy_string(root, "detail"), step, copy_facts(root)};
    }
    cJSON_Delete(root);
    return good;
}

/* One more than there are newlines: the last line may have none. */
static size_t count_lines(const char *data, size_t length) {
    size_t lines = 1;
    for (size_t i = 0; i < length; i++) lines += data[i] == '\n';
    return lines;
}

/* Room for as many entries as lines is taken at once: lines that are none leave some of it unused. */
void journal_table_parse(JournalTable *t, const char *at, size_t length) {
    const char *end = length ? at + length : at;
    *t = (JournalTable){.entries = mem_alloc_array(count_lines(at, length), sizeof *t->entries)};
    while (at != end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t line = (size_t)((newline ? newline : end) - at);
        if (read_entry(&t->entries[t->count], at, line)) t->count++;
        at = newline ? newline + 1 : end;
    }
}

/* Everything is copied, so the map goes at once. The table may be freed after a failure too. */
ErrorCode journal_table_read(JournalTable *t, const char *path, Error *err) {
    *t = (JournalTable){0};
    FileMap map;
    TRY(file_map(&map, path, err));
    journal_table_parse(t, (const char *)map.data, map.length);
    file_unmap(&map);
    return OK;
}

void journal_table_free(JournalTable *t) {
    for (size_t i = 0; i < t->count; i++) {
        JournalEntry *e = &t->entries[i];
        for (JournalFact *f = e->facts; f->name; f++) free((char *)(uintptr_t)f->name);
        free(e->facts);
        free(e->time);
        free(e->event);
        free(e->detail);
    }
    free(t->entries);
    *t = (JournalTable){0};
}

/* The newest: a run that went on elsewhere has other facts. */
double journal_table_fact(const JournalTable *t, const char *name) {
    for (size_t i = t->count; i-- > 0;) {
        for (const JournalFact *f = t->entries[i].facts; f->name; f++) {
            if (strcmp(f->name, name) == 0) return f->value;
        }
    }
    return (double)NAN;
}

/* The journal of a run: one JSON line per event, append-only, over all restarts.
 *
 *  J1. A line is written by one write call, so a kill tears at most the last one.
 *  J2. Events that someone will look for after a crash are synced at once; validations and spikes are not
 *      worth the delay.
 *  J3. Readers skip lines they cannot parse: a partial journal is better than none. */
#include "observe/journal.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/lines.h"

/* `sync`: on disk before the run continues (J2). */
typedef struct EventKind {
    const char *name;
    bool sync;
} EventKind;

/* Stored by name, not by number: kinds may be inserted. */
static const EventKind kinds[JOURNAL_EVENTS] = {
    [JOURNAL_READ] = {"read", true},
    [JOURNAL_STARTED] = {"started", true},
    [JOURNAL_RESUMED] = {"resumed", true},
    [JOURNAL_RESTARTED] = {"restarted", true},
    [JOURNAL_RESIZED] = {"resized", true},
    [JOURNAL_RECOVERED] = {"recovered", true},
    [JOURNAL_CHANGED] = {"changed", true},
    [JOURNAL_CHECKPOINT] = {"checkpoint", true},
    [JOURNAL_VALIDATION] = {"validation", false},
    [JOURNAL_BEST] = {"best", true},
    [JOURNAL_EVALUATION] = {"evaluation", false},
    [JOURNAL_NONFINITE] = {"nonfinite", true},
    [JOURNAL_SPIKE] = {"spike", false},
    [JOURNAL_STOPPED] = {"stopped", true},
    [JOURNAL_DIVERGED] = {"diverged", true},
    [JOURNAL_STRAGGLER] = {"straggler", false},
    [JOURNAL_CORRECTED] = {"corrected", true},
    [JOURNAL_FAILED] = {"failed", true},
    [JOURNAL_MEMORY] = {"memory", true},
    [JOURNAL_TRACED] = {"traced", false},
    [JOURNAL_COMMAND] = {"command", false},
    [JOURNAL_FINISHED] = {"finished", true},
};

const char *journal_event_name(JournalEvent event) { return kinds[event].name; }

/* Ends a last line that a crash has torn (file_open_lines), so that it does not corrupt the next one. */
ErrorCode journal_open(Journal *j, const char *run_dir, Error *err) {
    j->path = path_join(run_dir, JOURNAL_FILE);
    ErrorCode code = file_open_lines(j->path, &j->fd, err);
    if (code != OK) journal_close(j);
    return code;
}

/* A detail is the text of an error or a path: untrusted bytes, which json_bytes turns into UTF-8. */
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

/* Allocates memory: events are rare, and none is written inside a step. */
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

/* For people: "config run.yaml, source parts (12 files)". Long lists are cut after the first entries. */
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

/* "" if the line has no such member, so that readers need not check for NULL. The caller frees it. */
static char *copy_string(const cJSON *object, const char *key) {
    const char *value = "";
    if (json_get_string(object, JOURNAL_FILE, key, false, &value, NULL) != OK) value = "";
    return mem_strdup(value);
}

/* All numbers of the object except its step, in the order of the line; ends with a fact without a name.
 * Selected by type, not by a list of names, so that facts of later versions are shown too. */
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

/* A line of a later version with unknown members is valid. An entry needs at least an event; *e is unchanged
 * if the line is none. The table owns its strings and facts. */
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

/* Allocates one entry per line at once; lines that are not entries leave some of them unused. */
void journal_table_parse(JournalTable *t, const char *at, size_t length) {
    Lines lines = lines_of(at, length);
    Line line;
    *t = (JournalTable){.entries = mem_alloc_array(lines_count(lines) + 1, sizeof *t->entries)};
    while (lines_next(&lines, &line))
        if (read_entry(&t->entries[t->count], line.text, line.length)) t->count++;
}

/* Everything is copied, so the map is released at once. The table may be freed after a failure too. */
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

/* The newest: a run that continued on another machine has other facts. */
double journal_table_fact(const JournalTable *t, const char *name) {
    for (size_t i = t->count; i-- > 0;) {
        for (const JournalFact *f = t->entries[i].facts; f->name; f++) {
            if (strcmp(f->name, name) == 0) return f->value;
        }
    }
    return (double)NAN;
}

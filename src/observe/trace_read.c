/* Reads a trace back. The counts in the file (ranks, stages, steps) may not exceed the number of events,
 * which is checked before anything is allocated by them.
 *
 * Only measured slices are read; planned ones, waits and arrows follow from them. A trace may have been
 * edited or made by another program, so everything that Timing guarantees (forecast/timing.h) is checked:
 * steps ascend, each rank has actions in each step, and actions of a rank are in order of time and inside
 * their step.
 *
 * Three passes, each of which bounds the next:
 *
 *     otherData       ranks, pipeline, stages, steps        no more than there are events
 *     traceEvents     measured slices, read and counted     by rank and step, which are known now
 *     hand_out        each rank's actions of each step      memory by those counts, order checked */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "observe/trace.h"

/* Some hundred thousand actions; a larger file is not a trace. */
#define TRACE_LIMIT ((size_t)64 << 20)
/* Four months; the bound keeps everything computed from times finite. */
#define LONGEST_STEP 1e7 /* seconds */
#define SHORTEST_STEP 1e-6

typedef struct Reader {
    const char *where;
    Timing *t;
    Error *err;
    int64_t events;
    int *counts; /* [steps, ranks] */
} Reader;

/* An action with its step and rank, until all are counted. */
typedef struct ReadAction {
    int step, rank;
    TimedAction action;
} ReadAction;

/* At least 1, and no more than there are events. */
static ErrorCode read_count(Reader *r, const cJSON *facts, const char *key, int *out) {
    int64_t value = 0;
    TRY(json_get_int(facts, r->where, key, true, 1, r->events < INT32_MAX ? r->events : INT32_MAX, &value,
                     r->err));
    *out = (int)value;
    return OK;
}

/* Steps ascend; find_step's search relies on it. */
static ErrorCode read_steps(Reader *r, const cJSON *facts) {
    const cJSON *steps = cJSON_GetObjectItemCaseSensitive(facts, "steps"), *item;
    int64_t last = -1;
    if (!cJSON_IsArray(steps) || (int64_t)cJSON_GetArraySize(steps) * r->t->ranks > r->events)
        return error_set(r->err, ERR_DATA,
                         "%s: otherData.steps: expected a list of steps that all ranks have events of",
                         r->where);
    cJSON_ArrayForEach(item, steps) {
        int64_t step = 0;
        double began = 0;
        TRY(json_get_int(item, r->where, "step", true, last + 1, (int64_t)1 << 52, &step, r->err));
        TRY(json_get_double(item, r->where, "began", true, &began, r->err));
        timing_add(r->t, step, began);
        last = step;
    }
    return OK;
}

/* Ranks, pipeline and stages bound everything that follows. */
static ErrorCode read_facts(Reader *r, const cJSON *root) {
    const cJSON *facts = cJSON_GetObjectItemCaseSensitive(root, "otherData");
    int ranks, pipeline, stages;
    if (!cJSON_IsObject(facts))
        return error_set(r->err, ERR_DATA, "%s: no otherData: not a trace that weft wrote", r->where);
    TRY(read_count(r, facts, "ranks", &ranks));
    TRY(read_count(r, facts, "pipeline", &pipeline));
    TRY(read_count(r, facts, "stages", &stages));
    if (ranks % pipeline != 0)
        return error_set(r->err, ERR_DATA, "%s: %d ranks are no pipelines of %d", r->where, ranks, pipeline);
    timing_start(r->t, ranks, pipeline, stages);
    return read_steps(r, facts);
}

static int compare_steps(const void *key, const void *element) {
    int64_t a = *(const int64_t *)key, b = ((const TimedStep *)element)->step;
    return (a > b) - (a < b);
}

/* An event of a step that is not in the file's list is an error: its times would have no origin. */
static ErrorCode find_step(Reader *r, const cJSON *args, int *out) {
    int64_t step = 0;
    TRY(json_get_int(args, r->where, "step", true, 0, (int64_t)1 << 52, &step, r->err));
    const TimedStep *found =
        r->t->count ? bsearch(&step, r->t->steps, (size_t)r->t->count, sizeof *found, compare_steps) : NULL;
    if (!found)
        return error_set(r->err, ERR_DATA, "%s: an event of step %lld, which is not in otherData.steps",
                         r->where, (long long)step);
    *out = (int)(found - r->t->steps);
    return OK;
}

/* Translates the action names of version 0.1. */
static const char *new_name(const char *name) {
    static const char *const starts[] = {"GATHER_X", "SUM_X",       "SWAP_X",     "GATHER_KV",
                                         "SUM_KV",   "SUM_COPIES",  "ROWS_X",     "COUNT_X",
                                         "RECORDS",  "SUM_WEIGHTS", "SUM_LATENTS"};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strcmp(name, starts[i]) == 0) return action_name(ACT_COLLECTIVE);
    static const struct {
        const char *was;
        ActionKind kind;
    } renamed[] = {
        {"BWD_IN", ACT_DGRAD}, {"BWD_W", ACT_WGRAD}, {"AGAIN", ACT_RECOMPUTE}, {"LEAVES", ACT_SUM_PARTIALS}};
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (strcmp(name, renamed[i].was) == 0) return action_name(renamed[i].kind);
    if (strcmp(name, "VISIT_X") == 0) return action_name(ACT_DISPATCH);
    if (strcmp(name, "COLLECT") == 0) return action_name(ACT_MATRIX_GATHER);
    if (strcmp(name, "RETURN") == 0) return action_name(ACT_MATRIX_SCATTER);
    return strcmp(name, "CROSSED") == 0 ? action_name(ACT_WAIT) : name;
}

/* By name, as in the file: numbers of actions may change between versions. */
static ErrorCode read_kind(Reader *r, const cJSON *args, ActionKind *out) {
    const char *name = NULL;
    char shown[80];
    TRY(json_get_string(args, r->where, "action", true, &name, r->err));
    for (int k = 0; k < ACT_KINDS; k++) {
        if (strcmp(action_name((ActionKind)k), new_name(name)) != 0) continue;
        *out = (ActionKind)k;
        return OK;
    }
    return error_set(r->err, ERR_DATA, "%s: no action is called \"%s\"", r->where,
                     error_escape(shown, sizeof shown, name, strlen(name)));
}

/* dur and waited are lengths; only ts includes the beginning of the step. */
static ErrorCode read_times(Reader *r, const cJSON *event, const cJSON *args, double began, TimedAction *a) {
    double ts = 0, length = 0, waited = 0;
    TRY(json_get_double(event, r->where, "ts", true, &ts, r->err));
    TRY(json_get_double(event, r->where, "dur", true, &length, r->err));
    TRY(json_get_double(args, r->where, "waited", true, &waited, r->err));
    /* Times in the file are relative to the trace, here to the step. They were rounded separately, hence a
     * tolerance of one microsecond. */
    a->start = ts / 1e6 - began;
    if (length < 0 || waited < 0 || !(a->start > -1e-6) || !(a->start + length / 1e6 < LONGEST_STEP))
        return error_set(r->err, ERR_DATA, "%s: an action outside its step", r->where);
    a->end = a->start + length / 1e6;
    a->waited = waited / 1e6;
    return OK;
}

/* Counted as it is read: hand_out allocates by these counts. */
static ErrorCode read_action(Reader *r, const cJSON *event, ReadAction *out) {
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(event, "args");
    int64_t rank = 0, unit = -1, microbatch = -1, stage = -1;
    TimedAction *a = &out->action;
    if (!cJSON_IsObject(args))
        return error_set(r->err, ERR_DATA, "%s: a measured event without args", r->where);
    TRY(find_step(r, args, &out->step));
    TRY(read_kind(r, args, &a->action.kind));
    /* A pass has unit, microbatch and stage; the norm and the update have none. */
    bool pass = action_is_pass(a->action.kind);
    TRY(json_get_int(event, r->where, "pid", true, 0, r->t->ranks - 1, &rank, r->err));
    TRY(json_get_int(args, r->where, "unit", pass, 0, r->events, &unit, r->err));
    TRY(json_get_int(args, r->where, "microbatch", pass, 0, r->events, &microbatch, r->err));
    TRY(json_get_int(args, r->where, "stage", pass, 0, r->t->stages - 1, &stage, r->err));
    TRY(read_times(r, event, args, r->t->steps[out->step].began, a));
    out->rank = (int)rank;
    a->action.unit = (int)unit, a->action.microbatch = (int)microbatch, a->stage = (int)stage;
    r->counts[out->step * r->t->ranks + out->rank]++;
    return OK;
}

/* Events of other categories, and of other programs that merged theirs into the file, are skipped. */
static bool is_measured(const cJSON *event) {
    const cJSON *category = cJSON_GetObjectItemCaseSensitive(event, "cat");
    return cJSON_IsString(category) && strcmp(category->valuestring, "measured") == 0;
}

/* Gives each rank of each step its actions, in the order of the file, which must be the order of time:
 * otherwise waits could be negative. */
static ErrorCode hand_out(Reader *r, const ReadAction *all, size_t count) {
    Timing *t = r->t;
    for (int i = 0; i < t->count * t->ranks; i++) {
        if (r->counts[i] == 0)
            return error_set(r->err, ERR_DATA, "%s: nothing of rank %d in step %lld", r->where, i % t->ranks,
                             (long long)t->steps[i / t->ranks].step);
        t->steps[i / t->ranks].ranks[i % t->ranks].actions =
            mem_alloc_array((size_t)r->counts[i], sizeof(TimedAction));
    }
    for (size_t i = 0; i < count; i++) {
        TimedRank *rank = &t->steps[all[i].step].ranks[all[i].rank];
        if (rank->count > 0 && all[i].action.start < rank->actions[rank->count - 1].start)
            return error_set(r->err, ERR_DATA, "%s: the actions of rank %d are not in the order of time",
                             r->where, all[i].rank);
        rank->actions[rank->count++] = all[i].action;
    }
    for (int i = 0; i < t->count * t->ranks; i++) {
        /* timing_set derives the step's own values from them. */
        TimedRank *rank = &t->steps[i / t->ranks].ranks[i % t->ranks];
        timing_set(&t->steps[i / t->ranks], i % t->ranks, rank->actions, rank->count);
    }
    for (int i = 0; i < t->count; i++)
        if (t->steps[i].seconds < SHORTEST_STEP)
            return error_set(r->err, ERR_DATA, "%s: step %lld took no time", r->where,
                             (long long)t->steps[i].step);
    return OK;
}

/* Two passes: first all events are read and counted, then each rank gets memory for exactly its own. After a
 * failure the caller frees t. */
static ErrorCode read_events(Reader *r, const cJSON *events) {
    ReadAction *all = mem_alloc_array((size_t)r->events + 1, sizeof *all);
    size_t count = 0;
    const cJSON *event;
    ErrorCode code = OK;
    r->counts = mem_alloc_array((size_t)r->t->count * (size_t)r->t->ranks + 1, sizeof *r->counts);
    cJSON_ArrayForEach(event, events) {
        if (!is_measured(event)) continue;
        code = read_action(r, event, &all[count++]);
        if (code != OK) break;
    }
    if (code == OK) code = hand_out(r, all, count);
    free(all);
    free(r->counts);
    return code;
}

/* t may be freed after a failure too. */
static ErrorCode read_root(Timing *t, const char *where, const cJSON *root, Error *err) {
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(root, "traceEvents");
    Reader r = {.where = where, .t = t, .err = err};
    *t = (Timing){0};
    if (!cJSON_IsArray(events))
        return error_set(err, ERR_DATA, "%s: no traceEvents: not a trace that weft wrote", where);
    r.events = cJSON_GetArraySize(events);
    TRY(read_facts(&r, root));
    return read_events(&r, events);
}

ErrorCode trace_parse(Timing *t, const char *where, const char *text, size_t length, Error *err) {
    cJSON *root = NULL;
    *t = (Timing){0};
    TRY(json_parse(where, text, length, &root, err));
    ErrorCode code = read_root(t, where, root, err);
    cJSON_Delete(root);
    return code;
}

ErrorCode trace_read(Timing *t, const char *path, Error *err) {
    char *text;
    size_t length;
    *t = (Timing){0};
    TRY(file_read_own(path, TRACE_LIMIT, &text, &length, err));
    ErrorCode code = trace_parse(t, path, text, length, err);
    free(text);
    return code;
}

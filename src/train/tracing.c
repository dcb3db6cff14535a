/* Traced steps: each rank keeps the times of its actions. When the last traced step is done, rank 0 has
 * gathered all of them, predicts the steps from the mean costs (forecast/timing.h) and writes trace.json.
 *
 * The engine allocates memory for the times of a step at the start; gathered times stay on rank 0 until the
 * report. Clocks of different machines differ by more than a step's waits, so the times of each rank then
 * count from its own start of the step.
 *
 *     a rank sends:   double began | TimedAction of each action of its program, in order */
#include "train/tracing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "observe/trace.h"

/* Does nothing more without metrics.trace. */
void tracing_open(Tracing *t, const Config *c, const Layout *l, Comm *comm) {
    *t = (Tracing){.comm = comm};
    if (!config_traces(c, &t->first, &t->last)) return;
    timing_start(&t->timing, l->mesh.world, mesh_size(&l->mesh, MESH_PIPELINE), l->stages.count);
}

bool tracing_wants(const Tracing *t, int64_t step) { return step >= t->first && step <= t->last; }

/* Reported while the run continues: who waits for a trace need not wait for its end. */
bool tracing_due(const Tracing *t) { return t->gathered > 0 && t->gathered == t->last; }

/* What a rank sends: when its step began, by its clock, then its actions. These are bytes of this build: all
 * ranks run the same one (agree.c). */
static char *pack(const StepTimes *times, size_t *bytes) {
    const Program *p = times->program;
    size_t count = (size_t)p->count;
    *bytes = sizeof(double) + count * sizeof(TimedAction);
    char *packed = mem_alloc(*bytes);
    memcpy(packed, &times->began, sizeof(double));
    for (size_t i = 0; i < count; i++) {
        Action a = p->actions[i];
        bool has_stage = a.unit >= 0 && a.unit < p->units;
        TimedAction timed = {.action = a,
                             .stage = has_stage ? stages_of_unit(&p->partition->stages, a.unit) : -1,
                             .start = times->actions[i].start,
                             .end = times->actions[i].end,
                             .waited = times->actions[i].waited};
        memcpy(packed + sizeof(double) + i * sizeof timed, &timed, sizeof timed);
    }
    return packed;
}

/* Shifts a rank's times to the clock of the step. */
static void unpack(TimedStep *s, int rank, const char *packed, size_t bytes, double late) {
    size_t count = (bytes - sizeof(double)) / sizeof(TimedAction);
    TimedAction *actions = mem_alloc_array(count + 1, sizeof *actions);
    memcpy(actions, packed + sizeof(double), count * sizeof *actions);
    for (size_t i = 0; i < count; i++) actions[i].start += late, actions[i].end += late;
    timing_set(s, rank, actions, (int)count);
}

/* On rank 0, which alone has the gathered times. */
static void add_step(Tracing *t, int64_t step, const char *all, const size_t *lengths) {
    int ranks = comm_size(t->comm);
    /* Ranks of one machine share its monotonic clock, so their times can be compared. */
    bool one_clock = comm_local_size(t->comm) == ranks;
    double *began = mem_alloc_array((size_t)ranks, sizeof *began), first;
    const char *at = all;
    for (int r = 0; r < ranks; at += lengths[r++]) memcpy(&began[r], at, sizeof(double));
    first = began[0];
    for (int r = 0; r < ranks && one_clock; r++) first = fmin(first, began[r]);
    /* The first traced step is the origin of the file's times. */
    if (t->timing.count == 0) t->origin = first;
    TimedStep *s = timing_add(&t->timing, step, first - t->origin);
    at = all;
    for (int r = 0; r < ranks; at += lengths[r++])
        unpack(s, r, at, lengths[r], one_clock ? began[r] - first : 0);
    free(began);
}

/* Called by all ranks between steps, so gathering is not part of the times. */
static ErrorCode gather(Tracing *t, const StepTimes *times, int64_t step, Error *err) {
    size_t bytes, *lengths = mem_alloc_array((size_t)comm_size(t->comm), sizeof *lengths);
    char *mine = pack(times, &bytes), *all = NULL;
    ErrorCode code = comm_gather(t->comm, mine, bytes, &all, lengths, err);
    if (code == OK && all) add_step(t, step, all, lengths);
    free(all);
    free(mine);
    free(lengths);
    t->gathered = step;
    return code;
}

ErrorCode tracing_step(Tracing *t, Engine *e, int64_t step, Error *err) {
    int64_t before = t->late;
    bool late = engine_is_timed_late(e);
    t->late = late && tracing_wants(t, step) ? step : 0;
    if (before > 0) TRY(gather(t, engine_timed(e, false), before, err));
    return !late && tracing_wants(t, step) ? gather(t, engine_times(e), step, err) : OK;
}

ErrorCode tracing_rest(Tracing *t, Engine *e, Error *err) {
    int64_t last = t->late;
    t->late = 0;
    return last > 0 ? gather(t, engine_timed(e, true), last, err) : OK;
}

static ErrorCode write_file(const Tracing *t, const char *run_dir, Prediction *p, Error *err) {
    TRY(timing_predict(p, &t->timing, err));
    char *path = path_join(run_dir, TRACE_FILE);
    ErrorCode code = trace_write(path, &t->timing, p, err);
    free(path);
    return code;
}

/* Reports prediction and measurement together, in the log and in the journal. */
static ErrorCode report_step(const Tracing *t, int index, const Prediction *p, Journal *journal, Error *err) {
    int64_t step = t->timing.steps[index].step;
    StepFigures f = timing_figures(&t->timing, index);
    Text line = {0};
    timing_sentence(p, &f, &line);
    log_info("step %lld: %s", (long long)step, line.data);
    const JournalFact facts[] = {{"seconds", f.seconds},
                                 {"predicted_seconds", p->seconds},
                                 {"bubble", f.bubble},
                                 {"predicted_bubble", p->bubble},
                                 {NULL, 0}};
    ErrorCode code = journal_add(journal, JOURNAL_TRACED, step, line.data, facts, err);
    text_free(&line);
    return code;
}

/* A trace that cannot be made or written is only a warning: the run has lost nothing. */
ErrorCode tracing_report(Tracing *t, const char *run_dir, Journal *journal, Error *err) {
    Error failure = {.message = ""};
    Prediction p = {0};
    ErrorCode code = OK;
    t->gathered = 0;
    if (t->timing.count == 0) return OK;
    if (write_file(t, run_dir, &p, &failure) == OK)
        for (int i = 0; i < t->timing.count && code == OK; i++) code = report_step(t, i, &p, journal, err);
    else
        log_warn("no trace: %s", failure.message);
    prediction_free(&p);
    timing_free(&t->timing);
    return code;
}

void tracing_close(Tracing *t) { timing_free(&t->timing); }

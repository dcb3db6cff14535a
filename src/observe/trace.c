/* Writes a trace. Slices of a track are nested or disjoint: times are rounded to whole nanoseconds one by
 * one, which keeps their order, and a slice's length is the difference of its rounded ends.
 *
 * The file is in the Trace Event Format (JSON), which Perfetto and chrome://tracing open. A rank is a
 * "process" of two tracks, planned and measured:
 *
 *     "M"        names of ranks and tracks, and their order
 *     "X"        a slice: cat planned, measured, or wait (inside a measured one)
 *     "s", "f"   an arrow from a send to the pass that takes the message
 *     otherData  what trace_read needs to restore a Timing
 *
 * Times are microseconds since the trace began; `ts` of a slice is the start of its step plus the time within
 * the step. */
#include "observe/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"

enum { TRACK_PLANNED = 1, TRACK_MEASURED };

#define SHORTEST_WAIT 1e-6 /* seconds; shorter ones get no slice */

typedef struct Trace {
    const Timing *t;
    const Prediction *p;
    JsonWriter w;
    int64_t flows;
} Trace;

/* Rounding keeps the order of times: a <= b implies round(a) <= round(b), so nested slices stay nested. */
static double nanoseconds(double seconds) { return round(seconds * 1e9); }

/* The members that all events have; the caller ends the object. One line per event, so that a trace can be
 * read and compared as text. */
static void begin_event(Trace *tr, const char *phase, int rank, int track, const char *name) {
    text_puts(tr->w.out, "\n");
    json_begin_object(&tr->w);
    json_put_string(&tr->w, "ph", phase);
    json_put_int(&tr->w, "pid", rank);
    json_put_int(&tr->w, "tid", track);
    json_put_string(&tr->w, "name", name);
}

/* The format's unit is microseconds; the decimals are nanoseconds. */
static void put_times(Trace *tr, double start, double end) {
    json_put_double(&tr->w, "ts", nanoseconds(start) / 1e3);
    json_put_double(&tr->w, "dur", (nanoseconds(end) - nanoseconds(start)) / 1e3);
}

/* ---- names of ranks and tracks ---- */

/* Metadata of the format: a name for a process or a thread. */
static void name_row(Trace *tr, const char *what, int rank, int track, const char *name) {
    begin_event(tr, "M", rank, track, what);
    json_key(&tr->w, "args");
    json_begin_object(&tr->w);
    json_put_string(&tr->w, "name", name);
    json_end_object(&tr->w);
    json_end_object(&tr->w);
}

/* Otherwise the viewer chooses an order, such as by name: "rank 10" before "rank 2". */
static void order_row(Trace *tr, int rank) {
    begin_event(tr, "M", rank, 0, "process_sort_index");
    json_key(&tr->w, "args");
    json_begin_object(&tr->w);
    json_put_int(&tr->w, "sort_index", rank);
    json_end_object(&tr->w);
    json_end_object(&tr->w);
}

/* Processes are ordered by rank, not by the time of their first event. */
static void name_rank(Trace *tr, int rank) {
    char name[64];
    int pipelines = timing_pipelines(tr->t);
    snprintf(name, sizeof name, "rank %d: pipeline %d, place %d", rank, rank % pipelines, rank / pipelines);
    name_row(tr, "process_name", rank, 0, name);
    order_row(tr, rank);
    name_row(tr, "thread_name", rank, TRACK_PLANNED, "planned");
    name_row(tr, "thread_name", rank, TRACK_MEASURED, "measured");
}

/* ---- planned ---- */

/* "3F7": stage, kind of pass, microbatch. The simulator uses milliseconds. A row of the plan is a pipeline
 * rank; its global rank follows from the mesh, in which the pipeline is the outermost axis. */
static void write_planned_span(Trace *tr, const TimedStep *step, int pipeline, const Span *s) {
    static const char letters[SPAN_UPDATE + 1] = "FBIW";
    char name[48] = "optimizer";
    if (s->kind < SPAN_UPDATE)
        snprintf(name, sizeof name, "%d%c%d", s->stage, letters[s->kind], s->microbatch);
    begin_event(tr, "X", s->rank * timing_pipelines(tr->t) + pipeline, TRACK_PLANNED, name);
    json_put_string(&tr->w, "cat", "planned");
    put_times(tr, step->began + s->start / 1e3, step->began + s->end / 1e3);
    json_key(&tr->w, "args");
    json_begin_object(&tr->w);
    json_put_int(&tr->w, "step", step->step);
    if (s->stage >= 0) json_put_int(&tr->w, "stage", s->stage);
    if (s->microbatch >= 0) json_put_int(&tr->w, "microbatch", s->microbatch);
    json_end_object(&tr->w);
    json_end_object(&tr->w);
}

/* Every traced step shows the same plan, from the start of the step. */
static void write_planned(Trace *tr, const TimedStep *step) {
    for (int p = 0; p < tr->p->pipelines; p++)
        for (int i = 0; i < tr->p->planned[p].count; i++) {
            const Span *s = &tr->p->planned[p].spans[i];
            if (s->kind <= SPAN_UPDATE && s->end > s->start) write_planned_span(tr, step, p, s);
        }
}

/* ---- measured ---- */

/* Distinguishes the start and end of a collective from others of its unit: " TP_ALL_GATHER at part 5". */
static void describe_place(Action a, char *out, size_t size) {
    Text name = {0};
    collective_name(a, &name);
    snprintf(out, size, " %s at part %d", name.data, a.ops.first);
    text_free(&name);
}

/* A slice per action: what, which unit, which microbatch. `waited` is drawn separately, inside it
 * (write_wait). */
static void write_action(Trace *tr, const TimedStep *step, int rank, const TimedAction *a) {
    char name[96], unit[16] = "", microbatch[16] = "", place[48] = "";
    if (a->action.unit >= 0) snprintf(unit, sizeof unit, " %d", a->action.unit);
    if (a->action.microbatch >= 0) snprintf(microbatch, sizeof microbatch, " m%d", a->action.microbatch);
    if (action_exchanges(a->action.kind)) describe_place(a->action, place, sizeof place);
    snprintf(name, sizeof name, "%s%s%s%s", action_name(a->action.kind), unit, microbatch, place);
    begin_event(tr, "X", rank, TRACK_MEASURED, name);
    json_put_string(&tr->w, "cat", "measured");
    put_times(tr, step->began + a->start, step->began + a->end);
    json_key(&tr->w, "args");
    json_begin_object(&tr->w);
    json_put_int(&tr->w, "step", step->step);
    json_put_string(&tr->w, "action", action_name(a->action.kind));
    if (a->action.unit >= 0) json_put_int(&tr->w, "unit", a->action.unit);
    if (a->action.microbatch >= 0) json_put_int(&tr->w, "microbatch", a->action.microbatch);
    if (a->stage >= 0) json_put_int(&tr->w, "stage", a->stage);
    json_put_double(&tr->w, "waited", nanoseconds(a->waited) / 1e3);
    json_end_object(&tr->w);
    json_end_object(&tr->w);
}

/* Passes wait before they compute; the norm's exchange is at its end. Clipped to the action, since the
 * measured wait may be slightly longer than the action around it. */
static void write_wait(Trace *tr, const TimedStep *step, int rank, const TimedAction *a) {
    if (a->waited < SHORTEST_WAIT) return;
    bool last = a->action.kind == ACT_NORM;
    double start = step->began + a->start, end = step->began + a->end;
    begin_event(tr, "X", rank, TRACK_MEASURED, "wait");
    json_put_string(&tr->w, "cat", "wait");
    put_times(tr, last ? fmax(start, end - a->waited) : start, last ? end : fmin(end, start + a->waited));
    json_end_object(&tr->w);
}

/* Rank by rank, each in the order of its program. */
static void write_measured(Trace *tr, const TimedStep *step) {
    for (int rank = 0; rank < tr->t->ranks; rank++)
        for (int i = 0; i < step->ranks[rank].count; i++) {
            const TimedAction *a = &step->ranks[rank].actions[i];
            write_action(tr, step, rank, a);
            write_wait(tr, step, rank, a);
        }
}

/* ---- arrows ---- */

/* A pass, identified by what is sent to it. */
typedef struct ReceivingPass {
    bool forward;
    int unit, microbatch, rank;
    double time; /* when its message had arrived */
} ReceivingPass;

/* By pass, not by time: bsearch looks for the pass that receives a message. */
static int compare_passes(const void *a, const void *b) {
    const ReceivingPass *x = a, *y = b;
    if (x->forward != y->forward) return x->forward ? -1 : 1;
    if (x->unit != y->unit) return x->unit < y->unit ? -1 : 1;
    return (x->microbatch > y->microbatch) - (x->microbatch < y->microbatch);
}

/* A wgrad waits for no message. */
static bool takes_messages(ActionKind kind) {
    return kind == ACT_FWD || kind == ACT_BWD || kind == ACT_DGRAD;
}

/* Passes of one pipeline in order; the caller frees them. A pipeline consists of the ranks `rank`, rank +
 * pipelines, and so on: pp is the outermost axis of the mesh. */
static ReceivingPass *find_passes(const Timing *t, const TimedStep *step, int pipeline, size_t *count) {
    size_t most = 0, n = 0;
    for (int rank = pipeline; rank < t->ranks; rank += timing_pipelines(t))
        most += (size_t)step->ranks[rank].count;
    ReceivingPass *passes = mem_alloc_array(most + 1, sizeof *passes);
    for (int rank = pipeline; rank < t->ranks; rank += timing_pipelines(t))
        for (int i = 0; i < step->ranks[rank].count; i++) {
            const TimedAction *a = &step->ranks[rank].actions[i];
            if (!takes_messages(a->action.kind)) continue;
            double time = fmin(a->end, a->start + a->waited);
            passes[n++] =
                (ReceivingPass){a->action.kind == ACT_FWD, a->action.unit, a->action.microbatch, rank, time};
        }
    qsort(passes, n, sizeof *passes, compare_passes);
    *count = n;
    return passes;
}

/* Both ends carry one id, by which the format joins them. Ids count over the whole file: otherwise arrows of
 * different steps would be joined. */
static void write_arrow_end(Trace *tr, const char *phase, int rank, bool forward, double time) {
    begin_event(tr, phase, rank, TRACK_MEASURED, forward ? "activations" : "gradients");
    json_put_string(&tr->w, "cat", "message");
    json_put_int(&tr->w, "id", tr->flows);
    json_put_double(&tr->w, "ts", nanoseconds(time) / 1e3);
    if (*phase == 'f') json_put_string(&tr->w, "bp", "e"); /* the enclosing slice, not the next one */
    json_end_object(&tr->w);
}

static void write_arrows_of(Trace *tr, const TimedStep *step, int rank, const ReceivingPass *passes,
                            size_t count) {
    for (int i = 0; i < step->ranks[rank].count; i++) {
        const TimedAction *a = &step->ranks[rank].actions[i];
        bool forward = a->action.kind == ACT_SEND_F;
        if (!forward && a->action.kind != ACT_SEND_B) continue;
        /* Activations go to the next unit, gradients to the previous one. */
        ReceivingPass key = {.forward = forward,
                             .unit = a->action.unit + (forward ? 1 : -1),
                             .microbatch = a->action.microbatch};
        const ReceivingPass *to = bsearch(&key, passes, count, sizeof *passes, compare_passes);
        /* A message whose pass was not recorded (in a truncated trace) gets no arrow. */
        if (!to) continue;
        tr->flows++;
        write_arrow_end(tr, "s", rank, forward, step->began + a->start);
        /* An arrow never points backwards: clocks of ranks differ by some microseconds. */
        write_arrow_end(tr, "f", to->rank, forward, step->began + fmax(to->time, a->start));
    }
}

/* Messages never leave their pipeline, so only its passes are searched. */
static void write_arrows(Trace *tr, const TimedStep *step) {
    for (int p = 0; p < timing_pipelines(tr->t); p++) {
        size_t count;
        ReceivingPass *passes = find_passes(tr->t, step, p, &count);
        for (int rank = p; rank < tr->t->ranks; rank += timing_pipelines(tr->t))
            write_arrows_of(tr, step, rank, passes, count);
        free(passes);
    }
}

/* ---- the file ---- */

/* Figures of the measured step; the prediction is the same for all. */
static void write_step_facts(Trace *tr, int step) {
    StepFigures f = timing_figures(tr->t, step);
    json_begin_object(&tr->w);
    json_put_int(&tr->w, "step", tr->t->steps[step].step);
    json_put_double(&tr->w, "began", tr->t->steps[step].began);
    json_put_double(&tr->w, "seconds", f.seconds);
    json_put_double(&tr->w, "bubble", f.bubble);
    json_end_object(&tr->w);
}

static void write_facts(Trace *tr) {
    JsonWriter *w = &tr->w;
    json_begin_object(w);
    json_put_string(w, "weft", WEFT_VERSION);
    json_put_int(w, "ranks", tr->t->ranks);
    json_put_int(w, "pipeline", tr->t->pipeline);
    json_put_int(w, "stages", tr->t->stages);
    json_put_double(w, "predicted_seconds", tr->p->seconds);
    json_put_double(w, "predicted_bubble", tr->p->bubble);
    json_put_double(w, "latency", tr->p->latency);
    json_key(w, "steps");
    json_begin_array(w);
    for (int i = 0; i < tr->t->count; i++) write_step_facts(tr, i);
    json_end_array(w);
    json_end_object(w);
}

/* Names first, then step by step: viewers accept events in any order, and this one is readable. */
void trace_format(const Timing *t, const Prediction *p, Text *out) {
    Trace tr = {.t = t, .p = p};
    json_start(&tr.w, out, 0);
    json_begin_object(&tr.w);
    json_put_string(&tr.w, "displayTimeUnit", "ms");
    json_key(&tr.w, "otherData");
    write_facts(&tr);
    json_key(&tr.w, "traceEvents");
    json_begin_array(&tr.w);
    for (int rank = 0; rank < t->ranks; rank++) name_rank(&tr, rank);
    for (int i = 0; i < t->count; i++) {
        write_planned(&tr, &t->steps[i]);
        write_measured(&tr, &t->steps[i]);
        write_arrows(&tr, &t->steps[i]);
    }
    json_end_array(&tr.w);
    json_end_object(&tr.w);
    text_puts(out, "\n");
}

/* Complete or not at all. */
ErrorCode trace_write(const char *path, const Timing *t, const Prediction *p, Error *err) {
    Text out = {0};
    trace_format(t, p, &out);
    ErrorCode code = file_write_atomic(path, out.data, out.length, err);
    text_free(&out);
    return code;
}

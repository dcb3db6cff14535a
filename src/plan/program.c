#include "plan/program.h"

#include <stdlib.h>
#include <string.h>

static void emit(Program *p, ActionKind kind, int unit, int microbatch) {
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 64;
        p->actions = mem_grow(p->actions, (size_t)p->capacity * sizeof *p->actions);
    }
    p->actions[p->count++] = (Action){kind, unit, microbatch};
}

static void emit_backward(Program *p, int m) {
    if (!p->split_backward) {
        for (int u = p->units - 1; u >= 0; u--) emit(p, ACT_BWD, u, m);
        return;
    }
    for (int u = p->units - 1; u >= 0; u--) emit(p, ACT_BWD_IN, u, m);
    for (int u = p->units - 1; u >= 0; u--) emit(p, ACT_BWD_W, u, m);
}

void program_lower(Program *p, ProgramSpec spec) {
    *p = (Program){
        .units = spec.units, .microbatches = spec.microbatches, .tied = spec.tied, .split_backward = spec.split_backward};
    for (int m = 0; m < p->microbatches; m++) {
        emit(p, ACT_LOAD, -1, m);
        for (int u = 0; u < p->units; u++) emit(p, ACT_FWD, u, m);
        emit_backward(p, m);
    }
    if (p->tied) emit(p, ACT_TIE, -1, -1);
    emit(p, ACT_NORM, -1, -1);
    for (int u = 0; u < p->units; u++) emit(p, ACT_UPDATE, u, -1);
}

void program_lower_evaluation(Program *p, int units) {
    *p = (Program){.units = units, .microbatches = 1};
    emit(p, ACT_LOAD, -1, 0);
    for (int u = 0; u < units; u++) emit(p, ACT_FWD, u, 0);
}

void program_free(Program *p) {
    free(p->actions);
    *p = (Program){0};
}

const char *action_name(ActionKind kind) {
    static const char *const names[ACT_KINDS] = {"LOAD", "FWD", "BWD", "BWD_IN", "BWD_W", "TIE", "NORM", "UPDATE"};
    return names[kind];
}

/* Marks of what has been done, per (unit, microbatch). */
enum { DONE_FORWARD = 1, DONE_INPUT = 2, DONE_WEIGHT = 4 };

typedef struct Check {
    const Program *p;
    unsigned char *done;   /* [units, microbatches] */
    int *last_weight;      /* [units] microbatch of the last weight half */
    unsigned char *loaded; /* [microbatches] */
    int phase;             /* 0 microbatches, 1 tied, 2 norm, 3 update */
    int updated;
} Check;

static unsigned char *mark(Check *c, int u, int m) { return &c->done[u * c->p->microbatches + m]; }

static const char *check_forward(Check *c, int u, int m) {
    if (*mark(c, u, m) & DONE_FORWARD) return "runs twice";
    if (u == 0 ? !c->loaded[m] : !(*mark(c, u - 1, m) & DONE_FORWARD)) return "comes before its input";
    *mark(c, u, m) |= DONE_FORWARD;
    return NULL;
}

static const char *check_input(Check *c, int u, int m) {
    if (*mark(c, u, m) & DONE_INPUT) return "runs twice";
    bool ready = u == c->p->units - 1 ? *mark(c, u, m) & DONE_FORWARD : *mark(c, u + 1, m) & DONE_INPUT;
    if (!ready) return "comes before the gradient of its output";
    *mark(c, u, m) |= DONE_INPUT;
    return NULL;
}

static const char *check_weight(Check *c, int u, int m) {
    if (*mark(c, u, m) & DONE_WEIGHT) return "runs twice";
    if (!(*mark(c, u, m) & DONE_INPUT)) return "comes before its input half";
    if (m != c->last_weight[u] + 1) return "adds to weight gradients out of order";
    *mark(c, u, m) |= DONE_WEIGHT;
    c->last_weight[u] = m;
    return NULL;
}

static const char *check_phase(Check *c, int phase) {
    if (c->phase == 0)
        for (int i = 0; i < c->p->units * c->p->microbatches; i++)
            if (c->done[i] != (DONE_FORWARD | DONE_INPUT | DONE_WEIGHT)) return "comes before all gradients are complete";
    int expected = c->phase == 0 && !c->p->tied ? 2 : c->phase + 1;
    if (phase != expected && !(phase == 3 && c->phase == 3)) return "comes out of order";
    c->phase = phase;
    return NULL;
}

static const char *check_action(Check *c, Action a) {
    bool wants_unit = a.kind != ACT_LOAD && a.kind != ACT_TIE && a.kind != ACT_NORM;
    bool wants_microbatch = a.kind <= ACT_BWD_W;
    if (wants_unit != (a.unit >= 0 && a.unit < c->p->units)) return "names no unit";
    if (wants_microbatch != (a.microbatch >= 0 && a.microbatch < c->p->microbatches)) return "names no microbatch";
    if (wants_microbatch && c->phase > 0) return "comes after the gradients were used";
    const char *wrong;
    switch (a.kind) {
    case ACT_LOAD:
        if (c->loaded[a.microbatch]++) return "runs twice";
        return NULL;
    case ACT_FWD: return check_forward(c, a.unit, a.microbatch);
    case ACT_BWD: return (wrong = check_input(c, a.unit, a.microbatch)) ? wrong : check_weight(c, a.unit, a.microbatch);
    case ACT_BWD_IN: return check_input(c, a.unit, a.microbatch);
    case ACT_BWD_W: return check_weight(c, a.unit, a.microbatch);
    case ACT_TIE: return check_phase(c, 1);
    case ACT_NORM: return check_phase(c, 2);
    default:
        if (a.unit != c->updated++) return "comes out of order";
        return check_phase(c, 3);
    }
}

ErrorCode program_check(const Program *p, Error *err) {
    Check c = {.p = p};
    c.done = mem_alloc_array((size_t)p->units * (size_t)p->microbatches, 1);
    c.loaded = mem_alloc_array((size_t)p->microbatches, 1);
    c.last_weight = mem_alloc_array((size_t)p->units, sizeof *c.last_weight);
    for (int u = 0; u < p->units; u++) c.last_weight[u] = -1;
    ErrorCode code = OK;
    for (int i = 0; i < p->count && code == OK; i++) {
        Action a = p->actions[i];
        const char *wrong = check_action(&c, a);
        if (wrong)
            code = error_set(err, ERR_INTERNAL, "program action %d (%s unit %d microbatch %d) %s", i, action_name(a.kind),
                             a.unit, a.microbatch, wrong);
    }
    if (code == OK && c.updated != p->units)
        code = error_set(err, ERR_INTERNAL, "program updates %d of %d units", c.updated, p->units);
    free(c.done);
    free(c.loaded);
    free(c.last_weight);
    return code;
}

static void print_action(const Program *p, int first, int last, Text *out) {
    Action a = p->actions[first];
    text_printf(out, "%-7s", action_name(a.kind));
    if (a.unit >= 0 && first == last) text_printf(out, " u%d", a.unit);
    if (a.unit >= 0 && first != last) text_printf(out, " u%d..%d", a.unit, p->actions[last].unit);
    if (a.microbatch >= 0) text_printf(out, " m%d", a.microbatch);
    text_puts(out, "\n");
}

/* Whether action i continues a run of one kind over units that step by one, up or down. */
static bool continues(const Program *p, int first, int i) {
    Action a = p->actions[first], b = p->actions[i];
    if (a.kind != b.kind || a.microbatch != b.microbatch || a.unit < 0) return false;
    int step = p->actions[first + 1].unit - a.unit;
    return (step == 1 || step == -1) && b.unit - p->actions[i - 1].unit == step;
}

void program_print(const Program *p, bool whole, Text *out) {
    for (int i = 0; i < p->count;) {
        int last = i;
        while (!whole && last + 1 < p->count && continues(p, i, last + 1)) last++;
        print_action(p, i, last, out);
        i = last + 1;
    }
}

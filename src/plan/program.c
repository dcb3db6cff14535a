/* What can be said of any program: whether it keeps its invariants, what it sends, and how it reads. Making
 * one is lower.c's.
 *
 * The check knows nothing of how a program was made. It walks the actions once and keeps marks of what has
 * been done to each (unit, microbatch):
 *
 *     FWD        needs LOAD, and FWD of the unit below or RECV_F         --> DONE_FORWARD
 *     BWD_IN     needs DONE_FORWARD, and that of the unit above or RECV_B --> DONE_INPUT
 *     BWD_W      needs as many parts of the input half                   --> DONE_WEIGHT
 *     SEND_x     needs what it sends                                     --> SENT_x
 *     reductions need DONE_WEIGHT of all that they sum                   --> SCATTERED, SUMMED, REDUCED
 *
 * and at the norm everything must have all its marks. A program that would hang, use what is not there, or
 * leave a sum out is thus refused before memory is taken; a schedule that somebody wrote by hand comes
 * through here like any other. */
#include "plan/program.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "plan/makers.h"

void program_free(Program *p) {
    free(p->actions);
    *p = (Program){0};
}

bool action_is_pass(ActionKind kind) {
    return kind == ACT_FWD || kind == ACT_BWD || kind == ACT_BWD_IN || kind == ACT_BWD_W;
}

bool action_is_crossing(ActionKind kind) {
    return kind == ACT_GATHER_X || kind == ACT_SUM_X || kind == ACT_RECORDS || kind == ACT_CROSSED ||
           kind == ACT_VISIT_X || kind == ACT_SUM_COPIES || kind == ACT_ROWS_X || kind == ACT_SUM_WEIGHTS ||
           kind == ACT_SUM_LATENTS || action_crosses_contexts(kind);
}

bool action_crosses_contexts(ActionKind kind) {
    return kind == ACT_SWAP_X || kind == ACT_GATHER_KV || kind == ACT_SUM_KV || kind == ACT_COUNT_X;
}

CrossingKind crossing_of(Action a) {
    static const CrossingKind kinds[ACT_KINDS] = {
        [ACT_GATHER_X] = CROSS_GATHER,     [ACT_SUM_X] = CROSS_SUM,
        [ACT_SWAP_X] = CROSS_SWAP,         [ACT_GATHER_KV] = CROSS_KEYS,
        [ACT_SUM_KV] = CROSS_KEY_SUM,      [ACT_SUM_COPIES] = CROSS_COPY_SUM,
        [ACT_ROWS_X] = CROSS_ROWS,         [ACT_COUNT_X] = CROSS_COUNTS,
        [ACT_RECORDS] = CROSS_RECORDS,     [ACT_SUM_WEIGHTS] = CROSS_WEIGHTS,
        [ACT_SUM_LATENTS] = CROSS_LATENTS, [ACT_VISIT_X] = CROSS_VISIT};
    return kinds[a.kind == ACT_CROSSED ? a.start : a.kind];
}

Half pass_half(ActionKind pass) {
    return pass == ACT_BWD_IN ? HALF_INPUT : pass == ACT_BWD_W ? HALF_WEIGHT : HALF_BOTH;
}

Half action_half(Action a) { return a.kind == ACT_BWD && a.half ? a.half : pass_half(a.kind); }

/* Backward passes take the parts in reverse: their first action has the last part. A weight half that comes
 * late is neither the first nor the last. */
bool program_begins_unit(const Program *p, Action a) {
    Parts all = unit_parts(p->model, a.unit);
    if (a.kind == ACT_BWD && a.half == HALF_WEIGHT) return false;
    return a.kind == ACT_FWD ? a.parts.first == all.first : a.parts.end == all.end;
}

bool program_ends_unit(const Program *p, Action a) {
    Parts all = unit_parts(p->model, a.unit);
    bool rest = a.slice > 0 && a.slice < 2 * p->chunks; /* of the chunks */
    return a.kind == ACT_FWD ? a.parts.end == all.end && !rest : a.parts.first == all.first;
}

bool program_cuts(const Program *p, int unit) {
    Parts all = unit_parts(p->model, unit);
    for (int part = all.first + 1; part <= all.end; part++)
        if (p->crosses(p->partition, unit, part)) return true;
    return false;
}

bool program_visits(const Program *p, int unit, int part) {
    if (!p->training && unit_part_trains(p->model, unit, part)) return false;
    return p->partition->experts > 1 && unit_part_by_experts(p->model, unit, part);
}

int program_past_visits(const Program *p, int unit, int part) {
    while (program_visits(p, unit, part)) part++;
    return part;
}

bool program_slices(const Program *p, int unit, int part) {
    if (unit != p->units - 1 || p->partition->tensors == 1) return false;
    if (!p->training && unit_part_trains(p->model, unit, part)) return false;
    return unit_part_fused(p->model, unit, part) || unit_part_logits(p->model, unit, part);
}

int program_chunk(const Program *p, const Model *m, Action a) {
    return (a.slice - 1) / 2 / (p->chunks / model_chunks(m));
}

bool program_adds_leaves(const Program *p, int unit) {
    if (unit >= p->units || partition_whole(p->partition, unit, FLAT_VECTORS) == 0) return false;
    return p->partition->tensors > 1 || (p->partition->leaves > 1 && !p->exact);
}

bool program_reads_adapters(const Program *p, Action a) {
    return a.kind == ACT_BWD_W && p->model->adapter_rank > 0 && a.unit > 0 && a.unit < p->units - 1;
}

/* In fast numerics a reduction of a microbatch moves what its leaves come to. */
bool program_adds_leaves_once(const Program *p) { return p->sync == SYNC_STEP; }

/* Heads for tokens both ways in each pass, but for the weight half, which finds its operands by tokens. */
static bool swaps_in(const Program *p, ActionKind pass, int unit, int part) {
    if (p->partition->contexts.ranks == 1 || pass == ACT_BWD_W) return false;
    return pass != ACT_AGAIN || unit_part_again(p->model, unit, part - 1, p->recompute);
}

/* Keys of all are scratch: gathered once for a forward pass, and once for the way back, where attention is
 * made again or where its gradients are. */
static unsigned keys_in(const Program *p, ActionKind pass, int unit, int part) {
    bool again = unit_part_again(p->model, unit, part, p->recompute);
    unsigned keys = 1u << CROSS_KEYS, sum = 1u << CROSS_KEY_SUM;
    if (pass == ACT_BWD_W) return 0;
    if (pass == ACT_FWD) return keys;
    if (pass == ACT_AGAIN) return again ? keys : 0;
    return again ? sum : keys | sum;
}

static bool goes_back(ActionKind pass) { return pass == ACT_BWD || pass == ACT_BWD_IN; }

/* What ranks with copies of heads of keys make of their gradients is summed where attention has made it. */
static unsigned copies_in(const Program *p, ActionKind pass) {
    return p->partition->copies > 1 && goes_back(pass) ? 1u << CROSS_COPY_SUM : 0;
}

/* Sums of rows stay as what they are of does. On the way back there are others. */
static bool rows_in(const Program *p, ActionKind pass, int unit, int part) {
    if (p->partition->tensors == 1 || pass == ACT_BWD_W) return false;
    return pass != ACT_AGAIN || unit_part_again(p->model, unit, part - 1, p->recompute);
}

/* What routers chose is known with the forward pass of training, and asked for on the way back. */
static bool counts_in(const Program *p, ActionKind pass, int unit, int part) {
    return p->training && pass == ACT_FWD && p->partition->contexts.ranks > 1 &&
           axes_counts(p->model, unit, part);
}

/* Rows visit again for what they bring back: what is made away from home is made again there. */
static bool is_made_anew(const Program *p, int unit, int part) {
    int end = program_past_visits(p, unit, part);
    return unit_part_again(p->model, unit, end > part ? end - 1 : part, p->recompute);
}

/* Whether a pass makes again any of the parts that read what is gathered at a place. */
static bool reads_again(const Program *p, int unit, int place) {
    for (int part = place; part < unit_parts(p->model, unit).end; part++)
        if (unit_part_gathered(p->model, unit, part) == place && is_made_anew(p, unit, part)) return true;
    return false;
}

/* Whether rows visit other ranks from what is gathered at a place: both halves of their backward pass are run
 * with the input half. */
static bool visits_read(const Program *p, int unit, int place) {
    for (int part = place; part < unit_parts(p->model, unit).end; part++)
        if (unit_part_gathered(p->model, unit, part) == place && program_visits(p, unit, part)) return true;
    return false;
}

/* Behind a router: what it chose goes over cp; on the way back gradients of weights, of which each rank that
 * shares the experts has terms, over tp. */
static unsigned routed_in(const Program *p, ActionKind pass, int unit, int part) {
    if (counts_in(p, pass, unit, part)) return 1u << CROSS_COUNTS;
    return goes_back(pass) && p->partition->tensors > 1 ? 1u << CROSS_WEIGHTS : 0;
}

/* The table says where and over which axes; what is needed depends on the pass. A forward pass gathers what a
 * product reads and sums what one makes; on the way back the gradient of the latter is gathered and that of
 * the former summed, unless own tokens' is made by itself, and for the weight half what was read is gathered
 * once more. Making again stops where what it makes has to. The head's forward pass makes both gradients of
 * its product (Part.fused), or that of what it reads (Part.logits). */
unsigned program_crossing(const Program *p, ActionKind pass, int unit, int part) {
    enum { NOTHING = 0, GATHER = 1u << CROSS_GATHER, SUM = 1u << CROSS_SUM, SWAP = 1u << CROSS_SWAP };
    const ModelConfig *c = p->model;
    if (!p->crosses(p->partition, unit, part)) return NOTHING;
    /* No evaluation runs it. */
    if (!p->training && (unit_part_trains(c, unit, part) || unit_part_trains(c, unit, part - 1)))
        return NOTHING;
    bool attends = unit_part_attends(c, unit, part), keys = p->partition->contexts.keys;
    if (attends && (keys || p->partition->copies > 1))
        return copies_in(p, pass) | (keys ? keys_in(p, pass, unit, part) : NOTHING);
    if (!keys && p->partition->contexts.ranks > 1 && axes_swaps(c, unit, part))
        return swaps_in(p, pass, unit, part) ? SWAP : NOTHING;
    if (axes_norms_rows(c, unit, part)) return rows_in(p, pass, unit, part) ? 1u << CROSS_ROWS : NOTHING;
    if (unit_part_routes(c, unit, part - 1)) return routed_in(p, pass, unit, part);
    if (p->partition->tensors == 1 || !(axes_crossing(c, unit, part) & MESH_TENSOR)) return NOTHING;
    if (unit_part_latents(c, unit, part - 1)) return goes_back(pass) ? 1u << CROSS_LATENTS : NOTHING;
    bool reads = unit_part_reads_all(c, unit, part), fused = reads && unit_part_fused(c, unit, part),
         logits = reads && unit_part_logits(c, unit, part);
    bool again = reads ? reads_again(p, unit, part) : unit_part_again(c, unit, part - 1, p->recompute);
    if (pass == ACT_FWD) return !reads ? SUM : (fused || logits) && p->training ? GATHER | SUM : GATHER;
    if (pass == ACT_AGAIN) return !again ? NOTHING : reads ? GATHER : SUM;
    if (fused || (unit_part_embeds(c, unit, part - 1) && pass == ACT_BWD_IN)) return NOTHING;
    if (!reads)
        return pass == ACT_BWD_W && program_visits(p, unit, unit_part_on_result(c, unit, part)) ? NOTHING
                                                                                                : GATHER;
    bool sums = pass_half(pass) & HALF_INPUT && !unit_part_whole(c, unit, part) && !logits;
    bool wants = pass_half(pass) & HALF_WEIGHT || visits_read(p, unit, part);
    return (sums ? SUM : 0) | (wants ? GATHER : 0);
}

/* ---- what crosses, by the rows of layers ---- */

static uint32_t dispatched_ops(const Program *p, const UnitCollective *rows, int count) {
    uint32_t ops = 0;
    for (int i = 0; i < count; i++)
        if (rows[i].row->kind == COLL_DISPATCH && p->partition->experts > 1) ops |= collective_ops(&rows[i]);
    return ops;
}

/* Of an op that is dispatched, only what its last one brings back is made again here. */
static bool is_recomputed(const Program *p, int unit, uint32_t ops, uint32_t dispatched) {
    if (ops & dispatched) ops = (ops & ~dispatched) | 1u << (31 - __builtin_clz(dispatched));
    for (int part = 0; ops >> part; part++)
        if (ops >> part & 1 && unit_part_again(p->model, unit, part, p->recompute)) return true;
    return false;
}

/* The ops of a row that use it in a pass; none: the pass is without it. Both halves of an op that is
 * dispatched are run with dgrad. */
static uint32_t ops_in_pass(const Program *p, ActionKind pass, int unit, const UnitCollective *c,
                            uint32_t dispatched) {
    const Collective *row = c->row;
    uint32_t ops = collective_ops(c), by = row->behind ? 1u << (31 - __builtin_clz(ops)) : ops;
    bool again = row->passes & IN_RECOMPUTE && is_recomputed(p, unit, by, dispatched);
    bool dgrad = row->passes & IN_DGRAD && !again;
    if (pass == ACT_FWD) return row->passes & IN_FORWARD ? ops : 0;
    if (pass == ACT_AGAIN) return again ? ops : 0;
    if (pass == ACT_BWD) return dgrad || row->passes & IN_WGRAD ? ops : 0;
    if (pass == ACT_BWD_IN) return dgrad ? ops : row->passes & IN_WGRAD ? ops & dispatched : 0;
    return row->passes & IN_WGRAD ? ops & ~dispatched : 0;
}

uint32_t program_collective(const Program *p, ActionKind pass, int unit, int row) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int count = unit_collectives(p->model, unit, rows);
    const UnitCollective *c = &rows[row];
    if (mesh_size(&p->partition->mesh, c->row->over) == 1) return 0;
    if (!collective_applies(p->model, p->partition->contexts, c->row)) return 0;
    if (!p->training &&
        (c->row->trains || unit_part_trains(p->model, unit, __builtin_ctz(collective_ops(c)))))
        return 0;
    return ops_in_pass(p, pass, unit, c, dispatched_ops(p, rows, count));
}

/* Whether gradients of a microbatch need memory of their own: to be rounded to fixed point, or to be reduced
 * before the next one comes. */
bool program_has_slots(const Program *p) { return p->exact || p->sync != SYNC_STEP; }

/* The head makes its matrix' gradient together with its logits, in the forward pass, unless that is deferred.
 * Where the embedding is that matrix, the gradient has memory of its own, unit number `units`: the
 * embedding's own comes much later, and from another place of the pipeline. Of a module it comes beside those
 * of the unit itself. */
int program_gradient_unit(const Program *p, Action a, Flat flat) {
    bool head = a.unit == p->units - 1, whole = a.kind == ACT_BWD;
    bool weight = whole || a.kind == ACT_BWD_W;
    bool early = flat_of_vectors(flat) || (flat_of_experts(flat) && p->partition->experts > 1);
    if (early) return whole || a.kind == ACT_BWD_IN ? a.unit : -1;
    if (head && !p->defer_head) weight = a.kind == ACT_FWD;
    if (!weight) return -1;
    return head && p->model->tie_word_embeddings ? p->units : a.unit;
}

bool program_gradient(const Program *p, Action a, int i, PassGradient *out) {
    bool flat = i < GRADIENT_FLATS, module = p->model->further_module && a.unit == p->units - 1;
    out->flat = flat ? (Flat)i : FLAT_MATRICES;
    out->unit = flat || module ? program_gradient_unit(p, a, out->flat) : -1;
    if (!flat && out->unit >= 0) out->unit = p->units;
    return out->unit >= 0;
}

const char *action_name(ActionKind kind) {
    static const char *const names[ACT_KINDS] = {
        "LOAD",        "GATHER",    "RELEASE", "RECV_F",     "FWD",    "SEND_F",         "RECV_B",
        "BWD",         "BWD_IN",    "BWD_W",   "SEND_B",     "AGAIN",  "GATHER_X",       "SUM_X",
        "SWAP_X",      "GATHER_KV", "SUM_KV",  "SUM_COPIES", "ROWS_X", "COUNT_X",        "SUM_WEIGHTS",
        "SUM_LATENTS", "VISIT_X",   "RECORDS", "CROSSED",    "LEAVES", "REDUCE_SCATTER", "ALL_REDUCE",
        "REDUCED",     "TIE",       "NORM",    "COLLECT",    "RETURN", "UPDATE"};
    return names[kind];
}

/* ---- Checking ---- */

/* Marks of what has been done, per (unit, microbatch). */
enum {
    DONE_FORWARD = 1,
    DONE_INPUT = 2,
    DONE_WEIGHT = 4,
    DONE_ALL = 7,
    GOT_INPUT = 8,
    GOT_GRADIENT = 16,
    SENT_OUTPUT = 32,
    SENT_GRADIENT = 64
};

enum { SCATTERED = 1, SUMMED = 2, REDUCED = 4, LEFT = 8 /* its leaves are added up */ };
typedef enum Way { WAY_FORWARD, WAY_INPUT, WAY_WEIGHT, WAYS } Way; /* in which parts are run */

/* Of a (unit, microbatch): places where something has started to cross, and has crossed, a bit each. */
typedef struct Crossed {
    uint32_t started[WAYS + 1][CROSSINGS], places[WAYS + 1][CROSSINGS]; /* the last row: of AGAIN */
    uint32_t again;                                                     /* parts that have been made again */
    int slice;               /* of the head: the last that has run; records count as half a one */
    bool called_up, records; /* of the chunk whose logits have been made: started, there */
} Crossed;

/* What ranks of tp exchange goes to tensors that all units share (model/layers/layer.h: Shared), one thing at
 * a time: what was gathered stays until it has been read, terms until they are summed. */
typedef struct GatheredFor {
    int part;     /* that reads it */
    unsigned due; /* halves of it that have still to, or DUE_FORWARD; 0: none */
} GatheredFor;
enum { DUE_FORWARD = 4 };

/* What the model says of the parts of a unit that runs here, and the table of what crosses at their places:
 * asked once, and looked up for every microbatch. */
typedef struct Anatomy {
    Parts all;
    bool cuts;
    uint32_t reads_all, makes_terms, routes, whole, fused, logits, slices, products, visits, again,
        anew; /* parts, a bit each */
    int gathered[UNIT_PARTS + 1], on_result[UNIT_PARTS + 1];
    unsigned crossing[ACT_AGAIN + 1][UNIT_PARTS + 1]; /* [passes and AGAIN, places] */
} Anatomy;

typedef struct Check {
    const Program *p;
    Anatomy *anatomy;            /* [units] */
    unsigned char *done;         /* [units, microbatches] */
    uint32_t *parts[WAYS];       /* [units, microbatches] parts that have run, a bit each */
    Crossed *crossed;            /* [units, microbatches] */
    GatheredFor gathered_for[2]; /* the layer's input, the gradient of its result: Shared.whole, dwhole */
    int crossing;                /* have started, and have not been waited for; */
    bool summing;                /* ... among them a sum */
    unsigned char *reduced;      /* [units + 1, microbatches + 1] of the microbatches, and of the step */
    int *last_weight;            /* [units] microbatch of the last weight half */
    unsigned char *loaded;       /* [microbatches] */
    bool *gathered;              /* [units] */
    int phase;                   /* 0 microbatches, 1 tied, 2 norm, 3 update */
    int updated;                 /* last unit updated */
    ActionKind made;             /* of the one behind it: COLLECT, RETURN; ACT_NORM: neither */
} Check;

static void set_part(Anatomy *n, const Program *p, int unit, int part) {
    const ModelConfig *m = p->model;
    uint32_t bit = 1u << part;
    n->reads_all |= unit_part_reads_all(m, unit, part) ? bit : 0;
    n->makes_terms |= unit_part_makes_terms(m, unit, part) ? bit : 0;
    n->routes |= unit_part_routes(m, unit, part) ? bit : 0;
    n->whole |= unit_part_whole(m, unit, part) ? bit : 0;
    n->fused |= unit_part_fused(m, unit, part) ? bit : 0;
    n->logits |= unit_part_logits(m, unit, part) ? bit : 0;
    n->slices |= program_slices(p, unit, part) ? bit : 0;
    n->products |= unit_part_product(m, unit, part) ? bit : 0;
    n->visits |= program_visits(p, unit, part) ? bit : 0;
    n->again |= unit_part_again(m, unit, part, p->recompute) ? bit : 0;
    n->anew |= is_made_anew(p, unit, part) ? bit : 0;
}

static void set_place(Anatomy *n, const Program *p, int unit, int place) {
    static const ActionKind passes[] = {ACT_FWD, ACT_BWD, ACT_BWD_IN, ACT_BWD_W, ACT_AGAIN};
    n->gathered[place] = unit_part_gathered(p->model, unit, place);
    n->on_result[place] = unit_part_on_result(p->model, unit, place);
    for (int i = 0; i < 5; i++) n->crossing[passes[i]][place] = program_crossing(p, passes[i], unit, place);
}

static void set_anatomy(Anatomy *n, const Program *p, int unit) {
    *n = (Anatomy){.all = unit_parts(p->model, unit), .cuts = program_cuts(p, unit)};
    CHECK(n->all.end <= UNIT_PARTS);
    for (int part = 0; part < n->all.end; part++) set_part(n, p, unit, part);
    for (int place = 0; place <= n->all.end; place++) set_place(n, p, unit, place);
}

static const Anatomy *anatomy(const Check *c, Action a) { return &c->anatomy[a.unit]; }
static bool has(uint32_t parts, int part) { return parts >> part & 1; }

/* Marks are kept for units of other ranks too, and stay empty: indexing is simple, and they are bytes. */
static unsigned char *mark(Check *c, int u, int m) { return &c->done[u * c->p->microbatches + m]; }

static uint32_t *parts_done(Check *c, Way way, Action a) {
    return &c->parts[way][a.unit * c->p->microbatches + a.microbatch];
}

/* first <= i < end, a bit each. */
static uint32_t bits(int first, int end) { return (uint32_t)((UINT64_C(1) << end) - (UINT64_C(1) << first)); }
static uint32_t bits_of(Parts parts) { return bits(parts.first, parts.end); }

static Crossed *crossed(Check *c, Action a) {
    return &c->crossed[a.unit * c->p->microbatches + a.microbatch];
}

/* Rows of Crossed.places that a pass marks, or asks for: one that runs whole does what both halves need. */
static int first_row(ActionKind pass) {
    return pass == ACT_FWD     ? WAY_FORWARD
           : pass == ACT_AGAIN ? WAYS
           : pass == ACT_BWD_W ? WAY_WEIGHT
                               : WAY_INPUT;
}

/* What crosses at this place has crossed. */
static bool has_crossed(Check *c, ActionKind pass, Action a, int part, CrossingKind kind) {
    if (!(anatomy(c, a)->crossing[pass][part] & 1u << kind)) return true;
    return crossed(c, a)->places[first_row(pass)][kind] >> part & 1;
}

/* What is summed on the way back alone, and read below it. */
enum { SUMS_BACK = 1u << CROSS_COPY_SUM | 1u << CROSS_WEIGHTS | 1u << CROSS_LATENTS };

/* What the parts of a run read that is gathered is there. */
static bool inputs_crossed(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    for (int part = a.parts.first; part < a.parts.end; part++) {
        int place = n->gathered[part];
        if (a.kind == ACT_BWD_W && has(n->visits, part)) continue; /* it has nothing to do */
        if (place >= 0 && !has_crossed(c, a.kind, a, place, CROSS_GATHER)) return false;
    }
    return true;
}

/* Before a run of parts: forward, what lies at its beginning; backward, what was above it, and for the weight
 * half what its first part reads. */
static const char *check_crossed(Check *c, Action a) {
    static const char missing[] = "comes before what crosses between its parts";
    const Anatomy *n = anatomy(c, a);
    int first = a.parts.first, end = a.parts.end;
    for (int part = first; part < end; part++) {
        unsigned there = n->crossing[ACT_FWD][part];
        if (a.kind != ACT_FWD) there &= ~(1u << CROSS_COUNTS); /* of this pass alone */
        there |= n->crossing[a.kind][part] & SUMS_BACK;
        if (part > first && there) return "runs past a place where something crosses";
        /* The weight half has nothing to do there. */
        if (a.kind != ACT_BWD_W && has(n->visits, part) != (a.pass == a.kind))
            return "runs experts that are elsewhere, or visits what is here";
    }
    if (!has_crossed(c, a.kind, a, a.kind == ACT_FWD || a.kind == ACT_AGAIN ? first : end, CROSS_SWAP))
        return missing;
    if (!has_crossed(c, a.kind, a, first, CROSS_KEYS)) return missing;
    if (!has_crossed(c, a.kind, a, a.kind == ACT_FWD || a.kind == ACT_AGAIN ? first : end, CROSS_ROWS))
        return missing;
    if (a.kind == ACT_FWD || a.kind == ACT_AGAIN)
        return inputs_crossed(c, a) &&
                       (has(n->reads_all, first) || has_crossed(c, a.kind, a, first, CROSS_SUM))
                   ? NULL
                   : missing;
    if (!has_crossed(c, a.kind, a, end, CROSS_KEY_SUM) || !has_crossed(c, a.kind, a, end, CROSS_COPY_SUM) ||
        !has_crossed(c, a.kind, a, end, CROSS_WEIGHTS) || !has_crossed(c, a.kind, a, end, CROSS_LATENTS))
        return missing;
    for (int part = first; part < end; part++)
        if (has(n->routes, part) && !has_crossed(c, ACT_FWD, a, part + 1, CROSS_COUNTS)) return missing;
    /* What it reads was made again. */
    if (!has_crossed(c, ACT_AGAIN, a, first, CROSS_SWAP) ||
        !has_crossed(c, ACT_AGAIN, a, first, CROSS_KEYS) || !has_crossed(c, ACT_AGAIN, a, end, CROSS_ROWS))
        return missing;
    bool visits = has(n->visits, first);
    if (visits && a.kind == ACT_BWD_W) return NULL; /* it has nothing to do */
    while (has(n->visits, end)) end++;
    bool above = has_crossed(c, a.kind, a, end, has(n->reads_all, end) ? CROSS_SUM : CROSS_GATHER);
    bool wants = action_half(a) & HALF_WEIGHT || visits;
    return above && (!wants || inputs_crossed(c, a)) ? NULL : missing;
}

/* Where what is gathered at a place goes: the layer's input, or the gradient of its result. */
static GatheredFor *gathered_for(Check *c, Action a, int place) {
    return &c->gathered_for[has(anatomy(c, a)->reads_all, place) ? 0 : 1];
}

/* Of those that read what is gathered at a place, where it is made again of those that are; on the way back
 * it is the first, that part itself. */
static int last_reader(const Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    int last = a.parts.first;
    for (int part = last; part < n->all.end; part++)
        if (n->gathered[part] == a.parts.first && (a.pass != ACT_AGAIN || has(n->anew, part))) last = part;
    return last;
}

/* What is gathered at a place is for the part behind it, and others that read it, or for both halves of the
 * one below, and others; where it goes nothing may lie that is still to be read. */
static bool hold(Check *c, Action a) {
    int place = a.parts.first;
    bool reads = has(anatomy(c, a)->reads_all, place), ahead = a.pass == ACT_FWD || a.pass == ACT_AGAIN,
         visits = reads && a.pass == ACT_BWD_IN;
    GatheredFor *to = gathered_for(c, a, place);
    bool free = to->due == 0;
    *to = (GatheredFor){reads && (ahead || visits) ? last_reader(c, a)
                        : reads                    ? place
                        : ahead                    ? place - 1
                                                   : anatomy(c, a)->on_result[place],
                        ahead    ? DUE_FORWARD
                        : visits ? HALF_INPUT
                        : reads  ? HALF_WEIGHT
                                 : (unsigned)pass_half(a.pass)};
    if (a.unit == 0) to->due = HALF_WEIGHT; /* the embedding has no other */
    return free;
}

/* An action has read what was gathered for its parts. The head reads it chunk by chunk, to the last. */
static void let_go(Check *c, Action a) {
    unsigned done = a.kind == ACT_FWD || a.kind == ACT_AGAIN ? DUE_FORWARD : (unsigned)action_half(a);
    for (int i = 0; i < 2; i++) {
        GatheredFor *g = &c->gathered_for[i];
        if (a.parts.first <= g->part && g->part < a.parts.end) g->due &= ~done;
    }
}

/* Whether a run of parts makes terms of a sum over tp: not while others are on their way. */
static bool makes_terms(const Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    bool forward = a.kind == ACT_FWD || a.kind == ACT_AGAIN, input = !forward && action_half(a) & HALF_INPUT;
    if (c->p->partition->tensors == 1) return false;
    for (int i = a.parts.first; i < a.parts.end; i++) {
        bool fused = has(n->fused | n->logits, i),
             reads = n->gathered[i] >= 0 && !has(n->routes | n->whole, i);
        if (forward && (fused || has(n->makes_terms, i))) return true;
        if (input && reads && !fused) return true;
    }
    return false;
}

/* What crosses at a place in a pass has been made. What is gathered anew for the weight half, or to make
 * parts again, is there from the forward pass on, or made again by others. */
static bool is_made(Check *c, Action a) {
    Parts all = anatomy(c, a)->all;
    int place = a.parts.first;
    CrossingKind kind = crossing_of(a);
    bool copies = kind == CROSS_COPY_SUM,
         sum = kind == CROSS_SUM || kind == CROSS_KEY_SUM || kind == CROSS_WEIGHTS || kind == CROSS_LATENTS ||
               copies,
         reads = kind == CROSS_KEYS || has(anatomy(c, a)->reads_all, place);
    if (copies && !has_crossed(c, a.pass, a, place, CROSS_KEY_SUM)) return false;
    if (kind == CROSS_ROWS && a.pass == ACT_AGAIN) return crossed(c, a)->again >> (place - 1) & 1;
    uint32_t done = *parts_done(c, a.pass == ACT_FWD ? WAY_FORWARD : WAY_INPUT, a), needed = 0;
    if (a.pass == ACT_FWD)
        needed = bits(all.first, place + (sum && reads));
    else if (a.pass == ACT_BWD_W)
        needed = bits_of(all);
    else if (a.pass != ACT_AGAIN)
        needed = sum ? bits(place, all.end) : reads ? 0 : bits(place, all.end);
    return (done & needed) == needed;
}

/* Records of a chunk, between its logits and its loss. */
static const char *check_records(Check *c, Action a) {
    Crossed *x = crossed(c, a);
    bool here = has(anatomy(c, a)->slices, a.parts.first) && x->slice % 2 == 1 && a.slice == x->slice,
         ends = a.kind == ACT_CROSSED;
    if (!here || x->records || x->called_up != ends) return "comes where no records are";
    *(ends ? &x->records : &x->called_up) = true;
    return NULL;
}

/* Something crosses once, where and when the table says: it is started, and then waited for. */
static const char *check_crossing(Check *c, Action a) {
    CrossingKind kind = crossing_of(a);
    bool ends = a.kind == ACT_CROSSED;
    c->crossing += ends ? -1 : 1;
    if (kind == CROSS_RECORDS) return check_records(c, a);
    int part = a.parts.first;
    uint32_t bit = 1u << part, *started = &crossed(c, a)->started[first_row(a.pass)][kind],
             *there = &crossed(c, a)->places[first_row(a.pass)][kind];
    if (!(anatomy(c, a)->crossing[a.pass][part] & 1u << kind)) return "comes where nothing crosses";
    if (*(ends ? there : started) & bit) return "happens twice";
    if (ends && !(*started & bit)) return "waits for what has not been started";
    *(ends ? there : started) |= bit;
    if (kind == CROSS_SUM) c->summing = !ends;
    if (ends) return NULL;
    if (!is_made(c, a)) return "comes before what it sends";
    return kind == CROSS_GATHER && !hold(c, a) ? "goes where something has still to be read" : NULL;
}

/* The head by chunks: logits, records, loss; then the next chunk. */
static const char *run_slice(Check *c, Action a) {
    Crossed *x = crossed(c, a);
    bool sliced = a.kind == ACT_FWD && has(anatomy(c, a)->slices, a.parts.first);
    if (sliced != (a.slice > 0)) return sliced ? "takes all chunks at once" : "has chunks where none are";
    if (!sliced) return NULL;
    if (a.slice != x->slice + 1 || (a.slice % 2 == 0 && !x->records)) return "takes chunks out of order";
    x->slice = a.slice < 2 * c->p->chunks ? a.slice : 0, x->records = x->called_up = false;
    return NULL;
}

/* Parts without a weight half have none that could come late. */
static uint32_t weightless(const Check *c, Action a) {
    return a.unit > 0 ? bits_of(a.parts) & ~anatomy(c, a)->products : 0;
}

/* The parts of an action follow those that ran before it, in the order of its way; weight halves of a pass
 * that has both may come late. The last of them completes the unit. */
static const char *run_parts(Check *c, Way way, Action a, unsigned flag) {
    Parts all = anatomy(c, a)->all;
    uint32_t *done = parts_done(c, way, a), own, before;
    if (a.parts.first == a.parts.end) return "names no parts of its unit";
    own = bits_of(a.parts);
    before = way == WAY_FORWARD ? bits(all.first, a.parts.first) : bits(a.parts.end, all.end);
    if (way == WAY_WEIGHT && a.kind == ACT_BWD) before = *done & ~own;
    if (*done != before) return "runs twice, or skips parts";
    const char *wrong = run_slice(c, a);
    if (!wrong) wrong = check_crossed(c, a);
    if (!wrong && c->summing && makes_terms(c, a)) wrong = "makes terms while others are on their way";
    if (wrong || (a.slice > 0 && a.slice < 2 * c->p->chunks)) return wrong;
    *done |= own;
    let_go(c, a);
    if (*done == bits_of(all)) *mark(c, a.unit, a.microbatch) |= (unsigned char)flag;
    return NULL;
}

static bool runs(const Check *c, int u) {
    return u >= 0 && u < c->p->units && partition_runs(c->p->partition, u);
}

/* With one shard everything is whole from the start. A tied head reads two units. */
static const char *check_gathered(const Check *c, int u) {
    if (c->p->partition->shards == 1) return NULL;
    if (!c->gathered[u]) return "comes before its parameters are gathered";
    if (u == c->p->units - 1 && c->p->partition->tied && !c->gathered[0])
        return "comes before the embedding is gathered";
    return NULL;
}

/* The microbatch must be loaded on every rank, not only where the embedding is: positions and targets are
 * read by all. */
static const char *check_forward(Check *c, Action a) {
    int u = a.unit, m = a.microbatch;
    bool ready = u == 0           ? c->loaded[m]
                 : runs(c, u - 1) ? *mark(c, u - 1, m) & DONE_FORWARD
                                  : *mark(c, u, m) & GOT_INPUT;
    if (!ready || !c->loaded[m]) return "comes before its input";
    const char *wrong = run_parts(c, WAY_FORWARD, a, DONE_FORWARD);
    return wrong ? wrong : check_gathered(c, u);
}

/* All that the policy drops of a unit, before its backward pass reads any of it; the sum at a block's end
 * does not. What is made away from home is made again there, but for what comes back of it. */
static bool is_made_again(Check *c, Action a) {
    const Anatomy *n = anatomy(c, a);
    int last = n->all.end - 1;
    uint32_t needed = n->again & ~(n->visits & n->visits >> 1);
    if (a.parts.first == last && !has(n->products | n->logits, last)) return true;
    return (needed & ~crossed(c, a)->again) == 0 || !n->cuts;
}

/* The head has no unit above, and the embedding and it have nothing that must be gathered again for this
 * half. */
static const char *check_input(Check *c, Action a) {
    int u = a.unit, m = a.microbatch;
    bool ready = *mark(c, u, m) & DONE_FORWARD;
    if (ready && u < c->p->units - 1)
        ready = runs(c, u + 1) ? *mark(c, u + 1, m) & DONE_INPUT : *mark(c, u, m) & GOT_GRADIENT;
    if (!ready) return "comes before the gradient of its output";
    if (!is_made_again(c, a)) return "comes before what it reads is made again";
    const char *wrong = run_parts(c, WAY_INPUT, a, DONE_INPUT);
    if (wrong) return wrong;
    return u > 0 && u < c->p->units - 1 ? check_gathered(c, u) : NULL;
}

/* Parts are made again when the forward pass is done, and read what is there then. */
static const char *check_again(Check *c, Action a) {
    if (!(*mark(c, a.unit, a.microbatch) & DONE_FORWARD)) return "comes before its forward pass";
    const char *wrong = check_crossed(c, a);
    if (!wrong && c->summing && makes_terms(c, a)) wrong = "makes terms while others are on their way";
    let_go(c, a);
    crossed(c, a)->again |= bits_of(a.parts);
    return wrong ? wrong : check_gathered(c, a.unit);
}

/* Part by part it may not overtake the input half, whose operands it reads. */
static const char *check_weight(Check *c, Action a) {
    const char *wrong = run_parts(c, WAY_WEIGHT, a, DONE_WEIGHT);
    if (wrong) return wrong;
    bool early = *parts_done(c, WAY_WEIGHT, a) & ~*parts_done(c, WAY_INPUT, a);
    if (early) return "comes before its input half";
    return program_reads_adapters(c->p, a) ? check_gathered(c, a.unit) : NULL;
}

/* A pass that adds to gradients of weights: its order is what makes the bits, the first microbatch sets,
 * later ones add (invariant 3). */
static const char *check_order(Check *c, Action a) {
    if (!program_begins_unit(c->p, a)) return NULL;
    if (c->p->ordered && a.microbatch != c->last_weight[a.unit] + 1)
        return "adds to weight gradients out of order";
    c->last_weight[a.unit] = a.microbatch;
    return NULL;
}

/* Both halves, or one of them: the weight half of a part that has one may come late, but when the last action
 * of the unit is done everything is. */
static const char *check_backward(Check *c, Action a) {
    Half half = action_half(a);
    const char *wrong = check_order(c, a);
    if (!wrong && half & HALF_INPUT) wrong = check_input(c, a);
    if (!wrong && half & HALF_WEIGHT) wrong = check_weight(c, a);
    if (wrong) return wrong;
    if (half == HALF_INPUT) *parts_done(c, WAY_WEIGHT, a) |= weightless(c, a);
    bool ends = half & HALF_INPUT && program_ends_unit(c->p, a);
    return ends && !(*mark(c, a.unit, a.microbatch) & DONE_WEIGHT) ? "comes before what is late" : NULL;
}

/* Runs its parts as the pass would that it belongs to. */
static const char *check_visit(Check *c, Action a) {
    a.kind = a.pass;
    if (a.pass == ACT_FWD) return check_forward(c, a);
    if (a.pass == ACT_AGAIN) return check_again(c, a);
    if (a.pass == ACT_BWD_IN) return check_input(c, a);
    if (a.pass != ACT_BWD) return "belongs to no pass";
    return check_backward(c, a);
}

/* A transfer happens once, between two ranks, and what is sent is there. */
static const char *check_transfer(Check *c, Action a) {
    bool forward_side = a.kind == ACT_SEND_F || a.kind == ACT_RECV_B;
    int other = forward_side ? a.unit + 1 : a.unit - 1;
    if (other < 0 || other >= c->p->units || runs(c, other)) return "has no other rank to talk to";
    unsigned char flag = a.kind == ACT_SEND_F   ? SENT_OUTPUT
                         : a.kind == ACT_SEND_B ? SENT_GRADIENT
                         : a.kind == ACT_RECV_F ? GOT_INPUT
                                                : GOT_GRADIENT;
    unsigned char *m = mark(c, a.unit, a.microbatch);
    if (*m & flag) return "happens twice";
    if (a.kind == ACT_SEND_F && !(*m & DONE_FORWARD)) return "comes before what it sends";
    if (a.kind == ACT_SEND_B && !(*m & DONE_INPUT)) return "comes before what it sends";
    *m |= flag;
    return NULL;
}

/* Parameters are gathered, used and dropped, in turn; with one shard there is nothing to gather. */
static const char *check_gather(Check *c, Action a) {
    if (c->p->partition->shards == 1) return "gathers what is whole";
    if (c->gathered[a.unit] == (a.kind == ACT_GATHER))
        return a.kind == ACT_GATHER ? "is gathered already" : "is not gathered";
    c->gathered[a.unit] = a.kind == ACT_GATHER;
    return NULL;
}

static unsigned char *reduction(Check *c, int u, int m) {
    return &c->reduced[u * (c->p->microbatches + 1) + (m < 0 ? c->p->microbatches : m)];
}

static bool weights_done(Check *c, int u, int m) {
    int first = m < 0 ? 0 : m, last = m < 0 ? c->p->microbatches - 1 : m;
    for (int i = first; i <= last; i++)
        if (!(*mark(c, u, i) & DONE_WEIGHT)) return false;
    return true;
}

/* Before anything else is done to the gradient, when the pass is done that makes it. */
static const char *check_leaves(Check *c, Action a) {
    int first = a.microbatch < 0 ? 0 : a.microbatch,
        last = a.microbatch < 0 ? c->p->microbatches - 1 : a.microbatch;
    if (!program_adds_leaves(c->p, a.unit)) return "adds leaves where there are none";
    for (int m = first; m <= last; m++)
        if (!(*mark(c, a.unit, m) & DONE_INPUT)) return "comes before the gradient is complete";
    unsigned char *m = reduction(c, a.unit, a.microbatch);
    if (*m) return "happens twice, or too late";
    *m |= LEFT;
    return NULL;
}

/* A gradient of a step counts as microbatch -1: reductions either name each microbatch, or none. */
static const char *check_reduction(Check *c, Action a) {
    int u = a.unit < c->p->units ? a.unit : c->p->units - 1;
    if (!weights_done(c, u, a.microbatch)) return "comes before the gradient is complete";
    unsigned char *m = reduction(c, a.unit, a.microbatch);
    bool leaves = program_adds_leaves(c->p, a.unit) && (a.microbatch >= 0) != program_adds_leaves_once(c->p);
    if (leaves && !(*m & LEFT)) return "comes before its leaves are added up";
    unsigned char flag = a.kind == ACT_REDUCE_SCATTER ? SCATTERED
                         : a.kind == ACT_ALL_REDUCE   ? SUMMED
                                                      : REDUCED;
    if (*m & flag) return "happens twice";
    if (*m & REDUCED) return "comes after the sums were used";
    *m |= flag;
    return NULL;
}

/* Every gradient that this rank makes has crossed each axis once: a step or a microbatch, as the sync says,
 * no more and no less. Twice would double a gradient, which no loss shows; AdamW would hide even that. */
static bool reductions_complete(Check *c) {
    const Partition *p = c->p->partition;
    for (int u = 0; u <= c->p->units; u++) {
        if (!partition_makes_gradient(p, u)) continue;
        int scattered = 0, summed = 0, left = 0, m = c->p->microbatches;
        for (int i = 0; i <= m; i++) {
            left += (*reduction(c, u, i < m ? i : -1) & LEFT) ? 1 : 0;
            scattered += (*reduction(c, u, i < m ? i : -1) & SCATTERED) ? 1 : 0;
            summed += (*reduction(c, u, i < m ? i : -1) & SUMMED) ? 1 : 0;
        }
        int per_step = c->p->sync == SYNC_STEP ? 1 : m;
        if (left != (program_adds_leaves(c->p, u) ? (program_adds_leaves_once(c->p) ? 1 : m) : 0))
            return false;
        if (scattered != (p->shards > 1 ? per_step : 0)) return false;
        if (summed != (p->replicas > 1 ? (c->p->sync == SYNC_MICROBATCH ? m : 1) : 0)) return false;
    }
    return true;
}

/* An axis over which gradients of some kind of parameter are a sum, and no kind of action here makes it: the
 * bug that shows in no loss. Over pp, TIE sums; over tp, LEAVES. */
static bool sums_are_left(const Partition *p) {
    AxisSet left = 0;
    for (int kind = 0; kind < KINDS; kind++) left |= axes_any((ParamKind)kind, DOES_SUM);
    return mesh_size(&p->mesh, left & ~(AxisSet)(MESH_SHARDS | MESH_REPLICAS | MESH_PIPELINE | MESH_TENSOR)) >
           1;
}

/* What lies behind the last part of a unit's pass has crossed too: the embedding's output, the head's
 * gradient. */
static bool ends_crossed(Check *c, int u, int m) {
    Action a = {.unit = u, .microbatch = m};
    bool ok = true;
    for (int part = 0; part <= c->anatomy[u].all.end; part++)
        ok = ok && has_crossed(c, ACT_FWD, a, part, CROSS_SUM);
    return ok;
}

/* Every unit that runs here, with every microbatch, has all its marks, and what others wait for has been
 * sent. */
static bool passes_complete(Check *c) {
    for (int u = 0; u < c->p->units; u++)
        for (int m = 0; runs(c, u) && m < c->p->microbatches; m++) {
            unsigned char done = *mark(c, u, m);
            if ((done & DONE_ALL) != DONE_ALL || !ends_crossed(c, u, m)) return false;
            if (u > 0 && !runs(c, u - 1) && !(done & SENT_GRADIENT)) return false;
            if (u + 1 < c->p->units && !runs(c, u + 1) && !(done & SENT_OUTPUT)) return false;
        }
    return true;
}

/* Passes, then TIE where there is a tied weight at either end, then NORM, then UPDATEs: each phase begins
 * when the one before is complete. An update before the norm of all could not be clipped, nor taken back. */
static const char *check_phase(Check *c, int phase) {
    if (c->phase == 0 && !passes_complete(c)) return "comes before all gradients are complete";
    if (c->crossing != 0) return "comes while something crosses";
    if (c->phase == 0 && !reductions_complete(c)) return "comes before all gradients are reduced";
    if (sums_are_left(c->p->partition)) return "comes though gradients are not summed over all axes";
    const Partition *p = c->p->partition;
    bool tie = p->tied && (runs(c, 0) || runs(c, c->p->units - 1));
    int expected = c->phase == 0 && !tie ? 2 : c->phase + 1;
    if (phase != expected && !(phase == 3 && c->phase == 3)) return "comes out of order";
    c->phase = phase;
    return NULL;
}

/* Every unit that is held, in ascending order, each once: a tied copy too, which makes the same update. */
static const char *check_update(Check *c, int u) {
    for (c->updated++; c->updated < u; c->updated++)
        if (partition_holds(c->p->partition, c->updated)) return "comes out of order";
    if (c->updated != u || !partition_holds(c->p->partition, u)) return "updates what is not held";
    if (makers_have(c->p->partition, u) != (c->made == ACT_RETURN)) return "comes before its boxes are back";
    c->made = ACT_NORM;
    return check_phase(c, 3);
}

/* Boxes of the unit that is updated next go to their makers, and come back. */
static const char *check_boxes(Check *c, Action a) {
    int next = c->updated + 1;
    while (next < c->p->units && !partition_holds(c->p->partition, next)) next++;
    if (a.unit != next || !makers_have(c->p->partition, a.unit)) return "moves boxes that nobody waits for";
    if (c->made != (a.kind == ACT_COLLECT ? ACT_NORM : ACT_COLLECT)) return "comes out of order";
    c->made = a.kind;
    return check_phase(c, 3);
}

/* Whatever is wrong with the numbers of an action is found here, so that what follows may index by them. */
static const char *check_names(const Check *c, Action a) {
    bool passes = action_is_pass(a.kind) || action_is_crossing(a.kind) || a.kind == ACT_AGAIN;
    bool transfers =
        a.kind == ACT_RECV_F || a.kind == ACT_SEND_F || a.kind == ACT_RECV_B || a.kind == ACT_SEND_B;
    bool reduces = a.kind == ACT_REDUCE_SCATTER || a.kind == ACT_ALL_REDUCE || a.kind == ACT_REDUCED ||
                   a.kind == ACT_LEAVES;
    bool none = a.kind == ACT_LOAD || a.kind == ACT_TIE || a.kind == ACT_NORM;
    int limit = c->p->units + (reduces ? 1 : 0);
    if (none ? a.unit >= 0 : a.unit < 0 || a.unit >= limit) return "names no unit";
    if ((passes || transfers) && !runs(c, a.unit)) return "names a unit of another rank";
    if (passes && (a.parts.first < 0 || a.parts.first > a.parts.end || a.parts.end > anatomy(c, a)->all.end))
        return "names no parts of its unit";
    if (action_is_crossing(a.kind) && !action_is_pass(a.pass) && a.pass != ACT_AGAIN)
        return "belongs to no pass";
    if (passes || transfers || a.kind == ACT_LOAD) {
        if (a.microbatch < 0 || a.microbatch >= c->p->microbatches) return "names no microbatch";
        if (c->phase > 0) return "comes after the gradients were used";
    }
    return NULL;
}

/* Each kind has its rule; what it says completes the sentence "program action 7 (FWD ...) ...". */
static const char *check_action(Check *c, Action a) {
    const char *wrong = check_names(c, a);
    if (wrong) return wrong;
    switch (a.kind) {
    case ACT_LOAD: return c->loaded[a.microbatch]++ ? "runs twice" : NULL;
    case ACT_GATHER:
    case ACT_RELEASE: return check_gather(c, a);
    case ACT_FWD: return check_forward(c, a);
    case ACT_BWD: return check_backward(c, a);
    case ACT_BWD_IN: return check_input(c, a);
    case ACT_BWD_W: return (wrong = check_weight(c, a)) ? wrong : check_order(c, a);
    case ACT_AGAIN: return check_again(c, a);
    case ACT_GATHER_X:
    case ACT_SUM_X:
    case ACT_SWAP_X:
    case ACT_GATHER_KV:
    case ACT_SUM_KV:
    case ACT_SUM_COPIES:
    case ACT_ROWS_X:
    case ACT_COUNT_X:
    case ACT_SUM_WEIGHTS:
    case ACT_SUM_LATENTS:
    case ACT_RECORDS:
    case ACT_CROSSED: return check_crossing(c, a);
    case ACT_VISIT_X: return check_visit(c, a);
    case ACT_LEAVES: return check_leaves(c, a);
    case ACT_REDUCE_SCATTER:
    case ACT_ALL_REDUCE:
    case ACT_REDUCED: return check_reduction(c, a);
    case ACT_TIE: return check_phase(c, 1);
    case ACT_NORM: return check_phase(c, 2);
    case ACT_COLLECT:
    case ACT_RETURN: return check_boxes(c, a);
    case ACT_UPDATE: return check_update(c, a.unit);
    case ACT_RECV_F:
    case ACT_SEND_F:
    case ACT_RECV_B:
    case ACT_SEND_B: return check_transfer(c, a);
    case ACT_KINDS: break;
    }
    return "is none";
}

/* A wrong program is a bug of this program, whatever the configuration: ERR_INTERNAL, with the action that
 * shows it. */
static ErrorCode check_all(Check *c, Error *err) {
    const Program *p = c->p;
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        const char *wrong = check_action(c, a);
        if (wrong)
            return error_set(err, ERR_INTERNAL, "program action %d (%s unit %d microbatch %d) %s", i,
                             action_name(a.kind), a.unit, a.microbatch, wrong);
    }
    for (c->updated++; c->updated < p->units; c->updated++)
        if (partition_holds(p->partition, c->updated))
            return error_set(err, ERR_INTERNAL, "program does not update unit %d of %d", c->updated,
                             p->units);
    return OK;
}

ErrorCode program_check(const Program *p, Error *err) {
    Check c = {.p = p, .updated = -1, .made = ACT_NORM};
    size_t units = (size_t)p->units, microbatches = (size_t)p->microbatches;
    c.anatomy = mem_alloc_array(units, sizeof *c.anatomy);
    c.done = mem_alloc_array(units * microbatches, 1);
    for (int w = 0; w < WAYS; w++) c.parts[w] = mem_alloc_array(units * microbatches, sizeof *c.parts[w]);
    c.crossed = mem_alloc_array(units * microbatches, sizeof *c.crossed);
    c.reduced = mem_alloc_array((units + 1) * (microbatches + 1), 1);
    c.loaded = mem_alloc_array(microbatches, 1);
    c.last_weight = mem_alloc_array(units, sizeof *c.last_weight);
    c.gathered = mem_alloc_array(units, sizeof *c.gathered);
    for (int u = 0; u < p->units; u++) c.last_weight[u] = -1;
    for (int u = 0; u < p->units; u++)
        if (runs(&c, u)) set_anatomy(&c.anatomy[u], p, u);
    ErrorCode code = check_all(&c, err);
    free(c.anatomy);
    free(c.done);
    for (int w = 0; w < WAYS; w++) free(c.parts[w]);
    free(c.crossed);
    free(c.reduced);
    free(c.loaded);
    free(c.last_weight);
    free(c.gathered);
    return code;
}

/* ---- Counting ---- */

/* Where the sums of microbatches are added up before they cross the replicas, that crossing is a sum of its
 * own: its tree has the replicas alone as leaves. */
int program_inner_ranks(const Program *p, const Share *s) { return p->sync == SYNC_REPLICA ? 1 : s->shards; }

static uint64_t all_reduce_bytes(const Program *p, const Share *s) {
    const Partition *part = p->partition;
    return (uint64_t)comm_sum_outer_traffic(program_inner_ranks(p, s), part->replicas, part->replica,
                                            p->exact ? COMM_I64 : COMM_F32, s->count);
}

uint64_t program_flat_bytes(const Program *p, const Model *m, Action a, Flat flat) {
    const Share *s = &p->partition->share[a.unit][flat];
    size_t gradient = p->exact ? sizeof(int64_t) : sizeof(float);
    if (a.kind == ACT_GATHER)
        return (uint64_t)comm_gather_traffic(s->parts, s->shards, s->shard) *
               dtype_bytes(flat_dtype(flat, m->compute));
    if (flat >= GRADIENT_FLATS) return 0;
    if (a.kind == ACT_REDUCE_SCATTER)
        return (uint64_t)comm_scatter_traffic(s->parts, s->shards, s->shard) * gradient;
    return a.kind == ACT_ALL_REDUCE ? all_reduce_bytes(p, s) : 0;
}

static uint64_t collective_bytes(const Program *p, const Model *m, Action a) {
    uint64_t sum = 0;
    for (int f = 0; f < FLATS; f++) sum += program_flat_bytes(p, m, a, (Flat)f);
    return sum;
}

/* Of a token: gathered as they are, summed in fp32. */
static size_t key_bytes(const Model *m, ActionKind kind) {
    return kind == ACT_GATHER_KV ? unit_key_bytes(m)
                                 : (size_t)model_dim(&m->config, DIM_KEY_VALUE) * sizeof(float);
}

/* Of rows that go evenly to all, those for other ranks' experts, and as many that come back; a forward pass
 * tells first how many there are. */
static uint64_t visit_bytes(const Program *p, const Model *m, Action a) {
    uint64_t others = (uint64_t)p->partition->experts - 1;
    bool back = a.pass == ACT_BWD || a.pass == ACT_BWD_IN;
    uint64_t rows = (uint64_t)model_choices(m) * others / (others + 1),
             runs = a.pass == ACT_FWD ? others * (uint64_t)model_dim(&m->config, DIM_RUNS) : 0;
    return rows * unit_visit_bytes(m, a.unit, a.parts.first, back ? VISIT_BACKWARD : VISIT_FORWARD) +
           runs * (uint64_t)model_spans(m) * sizeof(int32_t);
}

/* Of each stretch of this rank's tokens. */
static uint64_t copies_bytes(const Program *p, const Model *m) {
    int64_t count = model_stretch(m) * model_dim(&m->config, DIM_KEY_VALUE),
            bytes = comm_sum_outer_traffic(1, p->partition->copies, p->partition->copy, COMM_F32, count);
    return (uint64_t)(model_stretches(m) * bytes);
}

/* Everybody has equally many tokens, and so the same part of what is gathered or summed. */
uint64_t program_crossing_bytes(const Program *p, const Model *m, Action a) {
    uint64_t others = (uint64_t)p->partition->tensors - 1;
    int64_t own = model_own_tokens(m) * m->config.hidden_size;
    if (a.kind == ACT_VISIT_X) return visit_bytes(p, m, a);
    if (a.kind == ACT_SWAP_X)
        return ((uint64_t)p->partition->contexts.ranks - 1) *
               (unit_swap_bytes(m, a.unit, a.parts.first) +
                unit_swap_sum_bytes(m, a.unit, a.parts.first, a.pass == ACT_BWD || a.pass == ACT_BWD_IN));
    if (a.kind == ACT_GATHER_KV || a.kind == ACT_SUM_KV)
        return ((uint64_t)p->partition->contexts.ranks - 1) * (uint64_t)m->tokens * key_bytes(m, a.kind);
    if (a.kind == ACT_SUM_COPIES) return copies_bytes(p, m);
    if (a.kind == ACT_COUNT_X)
        return (uint64_t)comm_sum_outer_traffic(1, p->partition->contexts.ranks, p->partition->contexts.place,
                                                COMM_I64, model_counts(m));
    if (a.kind == ACT_ROWS_X) return others * (uint64_t)model_row_sums(m) * ROW_SUMS_BYTES;
    if (a.kind == ACT_SUM_WEIGHTS || a.kind == ACT_SUM_LATENTS)
        return (uint64_t)comm_sum_outer_traffic(1, p->partition->tensors, p->partition->tensor, COMM_F32,
                                                a.kind == ACT_SUM_WEIGHTS ? model_choices(m)
                                                                          : model_latents(m));
    if (a.kind == ACT_GATHER_X) return others * boundary_bytes(m);
    int64_t inner = a.kind == ACT_SUM_X ? unit_inner_width(m, a.unit, a.parts.first) : 0;
    if (a.kind == ACT_SUM_X) return others * (uint64_t)(own + model_own_tokens(m) * inner) * sizeof(float);
    int64_t rows = model_chunk_rows(m, program_chunk(p, m, a));
    return others * (uint64_t)(model_own_leaves(m) * rows) * sizeof(LossRecord);
}

bool program_next_sum(const Program *p, int unit, int *next, VectorRun *run) {
    const ParamTable *t = p->partition->table;
    int i = *next > t->unit_first[unit] ? *next : t->unit_first[unit], end = t->unit_first[unit + 1];
    AxisSet tensor = MESH_TENSOR;
    *run = (VectorRun){.count = 0};
    for (; i < end && t->params[i].flat == FLAT_VECTORS; i++) {
        const Param *param = &t->params[i];
        bool sum = axes_any(axes_kind(p->partition->whole, param), DOES_SUM) & tensor;
        if (!sum && run->count > 0) break;
        if (!sum) continue;
        if (run->count == 0) run->first = (int64_t)param->place;
        run->count = (int64_t)param->place + param->count - run->first;
    }
    *next = i;
    return run->count > 0;
}

static uint64_t leaves_bytes(const Program *p, int unit) {
    uint64_t sum = 0;
    const Partition *part = p->partition;
    VectorRun run;
    for (int next = 0; part->tensors > 1 && program_next_sum(p, unit, &next, &run);)
        sum += (uint64_t)comm_sum_outer_traffic(1, part->tensors, part->tensor,
                                                p->exact ? COMM_I64 : COMM_F32, run.count);
    return sum;
}

int program_record_rounds(int ranks) {
    int rounds = 0;
    while (2 << rounds <= ranks) rounds++;
    return rounds + (1 << rounds < ranks);
}

/* Read off the list, like everything else that is told of a step: what is not an action is not sent. */
ProgramTraffic program_traffic(const Program *p, const Model *m) {
    const Partition *part = p->partition;
    bool exchanges = partition_runs(part, 0) != partition_runs(part, p->units - 1);
    ProgramTraffic t = {.parameters = 0};
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        if (a.kind == ACT_GATHER) t.parameters += collective_bytes(p, m, a);
        if (a.kind == ACT_REDUCE_SCATTER) t.gradients += collective_bytes(p, m, a);
        if (a.kind == ACT_ALL_REDUCE) t.replicas += collective_bytes(p, m, a);
        if (a.kind == ACT_SEND_F || a.kind == ACT_SEND_B) t.pipeline += COMM_HEADER + boundary_bytes(m);
        if (action_is_crossing(a.kind) && a.kind != ACT_CROSSED)
            *(a.kind == ACT_VISIT_X             ? &t.experts
              : action_crosses_contexts(a.kind) ? &t.context
                                                : &t.tensor) += program_crossing_bytes(p, m, a);
        if (a.kind == ACT_LEAVES) t.tensor += leaves_bytes(p, a.unit);
        if (a.kind == ACT_COLLECT) t.tensor += makers_traffic(part, a.unit, ROOM_OWN);
        if (a.kind == ACT_RETURN) t.tensor += makers_traffic(part, a.unit, ROOM_MADE);
        if (a.kind == ACT_TIE && exchanges && part->share[0][FLAT_MATRICES].count > 0)
            t.pipeline += COMM_HEADER + (size_t)part->share[0][FLAT_MATRICES].count * sizeof(float);
    }
    return t;
}

/* ---- Printing ---- */

/* What crosses: a tensor of the stream before the part that reads it, or what the part before has made. */
static void print_crossing(const Program *p, Action a, Text *out) {
    int part = a.parts.first;
    ActionKind kind = a.kind == ACT_CROSSED ? a.start : a.kind;
    bool keys = kind == ACT_GATHER_KV || kind == ACT_SUM_KV || kind == ACT_SUM_COPIES;
    bool reads = keys || unit_part_reads_all(p->model, a.unit, part),
         back = a.pass == ACT_BWD || a.pass == ACT_BWD_IN;
    const char *name = unit_part_name(p->model, a.unit, reads ? part : part - 1);
    if (a.kind == ACT_CROSSED) text_printf(out, " %s", action_name(kind));
    if (kind == ACT_RECORDS)
        text_printf(out, " chunk %d", (a.slice - 1) / 2);
    else if (kind == ACT_COUNT_X)
        text_printf(out, " how often %s took which expert", name);
    else if (kind == ACT_ROWS_X)
        text_printf(out, back ? " sums that the gradient of %s needs" : " sums that %s needs",
                    unit_part_name(p->model, a.unit, part));
    else if (kind == ACT_SUM_WEIGHTS)
        text_printf(out, " gradient of the weights that %s gives", name);
    else if (kind == ACT_SUM_LATENTS)
        text_puts(out, " gradient of latents and of the common key");
    else if (kind == ACT_SWAP_X)
        text_printf(out, back ? " gradient of what %s makes" : " what %s makes", name);
    else if (keys)
        text_printf(out, " %skeys and values that %s reads", kind == ACT_GATHER_KV ? "" : "gradient of ",
                    name);
    else if (kind == ACT_SUM_X)
        text_printf(out, reads ? " gradient of what %s reads" : " what %s makes", name);
    else
        text_printf(out,
                    !reads && (back || a.pass == ACT_BWD_W) ? " gradient of what %s makes" : " what %s reads",
                    name);
}

static void print_action(const Program *p, int first, int last, Text *out) {
    Action a = p->actions[first];
    text_printf(out, "%-14s", action_name(a.kind));
    if (a.unit == p->units)
        text_puts(out, " tied head");
    else if (a.unit >= 0 && first == last)
        text_printf(out, " u%d", a.unit);
    else if (a.unit >= 0)
        text_printf(out, " u%d..%d", a.unit, p->actions[last].unit);
    if (a.microbatch >= 0 && a.kind != ACT_GATHER && a.kind != ACT_RELEASE)
        text_printf(out, " m%d", a.microbatch);
    bool parts = action_is_pass(a.kind) || a.kind == ACT_AGAIN || a.kind == ACT_VISIT_X;
    bool whole = !parts || (program_begins_unit(p, a) && program_ends_unit(p, a));
    if (a.kind == ACT_VISIT_X)
        text_printf(out, " %s", action_name(a.pass));
    else if (action_is_crossing(a.kind))
        print_crossing(p, a, out);
    for (int i = a.parts.first; !whole && i < a.parts.end; i++)
        text_printf(out, "%s %s", i > a.parts.first ? "," : "", unit_part_name(p->model, a.unit, i));
    if (a.kind == ACT_BWD && a.half && a.half != HALF_BOTH)
        text_puts(out, a.half == HALF_INPUT ? ": input half" : ": weight half");
    if (a.slice > 0 && parts)
        text_printf(out, ", chunk %d: %s", (a.slice - 1) / 2, a.slice % 2 ? "logits" : "loss");
    text_puts(out, "\n");
}

/* Whether action i continues a run of one kind over units that step by one, up or down: as passes, updates
 * and releases do, so that a page shows a step of a hundred units. */
static bool continues(const Program *p, int first, int i) {
    Action a = p->actions[first], b = p->actions[i];
    if (a.kind != b.kind || a.microbatch != b.microbatch || a.unit < 0 || b.unit == p->units) return false;
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

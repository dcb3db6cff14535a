/* Every rank walks the same list: parameters, their arrays (weights, then each state), sources, targets. It
 * receives where it holds the target, sends where it holds the source, and copies where it holds both. */
#include "engine/redistribute.h"

#include <stdlib.h>

#include "device/ops/memory.h"

enum { ARRAYS = 1 + PARAM_STATES };

/* Elements of one array that one source sends to one target. */
typedef struct Piece {
    ShardHolder *from, *to;
    int param, array;
    size_t bytes;
    char *host; /* [bytes] packed, run after run */
    CommRequest request;
} Piece;

struct Redistribution {
    Comm *comm;
    Device *device;
    int source_count, target_count;
    ShardHolder *sources, *targets;
    int count, capacity; /* of pieces under way */
    Piece *pieces;
};

Redistribution *redistribute_open(Comm *comm, Device *d, int sources, int targets) {
    Redistribution *r = mem_alloc(sizeof *r);
    *r = (Redistribution){.comm = comm, .device = d, .source_count = sources, .target_count = targets};
    r->sources = mem_alloc_array((size_t)sources, sizeof *r->sources);
    r->targets = mem_alloc_array((size_t)targets, sizeof *r->targets);
    return r;
}

static void drop_pieces(Redistribution *r) {
    for (int i = 0; i < r->count; i++) free(r->pieces[i].host);
    r->count = 0;
}

void redistribute_close(Redistribution *r) {
    if (!r) return;
    drop_pieces(r);
    for (int i = 0; i < r->source_count; i++) rank_plan_free(&r->sources[i].plan);
    for (int i = 0; i < r->target_count; i++) rank_plan_free(&r->targets[i].plan);
    free(r->sources);
    free(r->targets);
    free(r->pieces);
    free(r);
}

ShardHolder *redistribute_source(Redistribution *r, int i) { return &r->sources[i]; }
ShardHolder *redistribute_target(Redistribution *r, int i) { return &r->targets[i]; }

/* ---- what two shards have in common ---- */

/* Runs of elements that both segments have, in the order of the unsharded parameter, in which runs ascend. */
typedef struct Overlap {
    ParamSegment from, to;
    int64_t from_at, to_at; /* next element of each */
} Overlap;

static ParamSegment segment_of(const ShardHolder *end, int param) {
    return partition_segment(&end->plan.partition, &end->plan.model.table.params[param]);
}

static Overlap overlap_of(const Piece *p) {
    return (Overlap){.from = segment_of(p->from, p->param), .to = segment_of(p->to, p->param)};
}

/* The next run: its first element in either segment, and its length; false: there is none. */
static bool overlap_next(Overlap *o, int64_t *from, int64_t *to, int64_t *count) {
    while (o->from_at < o->from.count && o->to_at < o->to.count) {
        SegmentRun a = segment_run(&o->from, o->from_at), b = segment_run(&o->to, o->to_at);
        int64_t first = a.element > b.element ? a.element : b.element, a_end = a.element + a.count,
                b_end = b.element + b.count, end = a_end < b_end ? a_end : b_end;
        *from = o->from_at + first - a.element, *to = o->to_at + first - b.element, *count = end - first;
        o->from_at += a_end <= b_end ? a.count : first < end ? end - a.element : 0;
        o->to_at += b_end <= a_end ? b.count : first < end ? end - b.element : 0;
        if (first < end) return true;
    }
    return false;
}

static size_t width_of(const Piece *p) {
    return p->array == 0 ? sizeof(float) : param_state_width(&p->from->plan.groups, p->param, p->array - 1);
}

static int64_t common_elements(const Piece *p) {
    int64_t from, to, count, sum = 0;
    for (Overlap o = overlap_of(p); overlap_next(&o, &from, &to, &count);) sum += count;
    return sum;
}

/* The array in the memory of an end. */
static char *array_of(const ShardHolder *end, const Piece *p) {
    const RankPlan *plan = &end->plan;
    if (p->array == 0) return (char *)(end->state.master + segment_of(end, p->param).at);
    return end->state.states + plan->memory.states[p->param * PARAM_STATES + p->array - 1];
}

/* ---- one parameter ---- */

static void pack(Redistribution *r, const Piece *p) {
    const char *memory = array_of(p->from, p);
    char *host = p->host;
    int64_t from, to, count;
    size_t width = width_of(p);
    for (Overlap o = overlap_of(p); overlap_next(&o, &from, &to, &count);) {
        device_fetch(r->device, host, memory + (size_t)from * width, (size_t)count * width);
        host += (size_t)count * width;
    }
}

static void unpack(Redistribution *r, const Piece *p) {
    char *memory = array_of(p->to, p);
    const char *host = p->host;
    int64_t from, to, count;
    size_t width = width_of(p);
    for (Overlap o = overlap_of(p); overlap_next(&o, &from, &to, &count);) {
        OP(r->device, upload, memory + (size_t)to * width, host, (size_t)count * width);
        host += (size_t)count * width;
    }
}

static bool is_here(const Redistribution *r, const ShardHolder *end) { return end->at == comm_rank(r->comm); }

/* Between two ranks there are at most four pieces of an array. */
static uint64_t key_of(const Piece *p) {
    return comm_key(3, p->array, 4 * (int64_t)p->param + 2 * p->from->copy + p->to->copy);
}

static ErrorCode start(Redistribution *r, Piece *p, Error *err) {
    bool sends = is_here(r, p->from), receives = is_here(r, p->to);
    p->host = mem_alloc(p->bytes);
    if (sends) pack(r, p);
    if (sends && receives) return OK;
    return sends ? comm_send(r->comm, p->to->at, key_of(p), p->host, p->bytes, &p->request, err)
                 : comm_recv(r->comm, p->from->at, key_of(p), p->host, p->bytes, &p->request, err);
}

static void add_piece(Redistribution *r, Piece p) {
    if (r->count == r->capacity) {
        r->capacity = 2 * r->capacity + 16;
        r->pieces = mem_grow(r->pieces, (size_t)r->capacity * sizeof *r->pieces);
    }
    r->pieces[r->count++] = p;
}

static void find_pieces(Redistribution *r, int param, int array) {
    for (int s = 0; s < r->source_count; s++)
        for (int t = 0; t < r->target_count; t++) {
            Piece p = {.from = &r->sources[s], .to = &r->targets[t], .param = param, .array = array};
            const RankPlan *from = &p.from->plan;
            if (!is_here(r, p.from) && !is_here(r, p.to)) continue;
            if (!partition_counts(&from->partition, &from->model.table.params[param])) continue;
            p.bytes = (size_t)common_elements(&p) * width_of(&p);
            if (p.bytes > 0) add_piece(r, p);
        }
}

static ErrorCode move(Redistribution *r, int param, int array, Error *err) {
    find_pieces(r, param, array);
    for (int i = 0; i < r->count; i++) TRY(start(r, &r->pieces[i], err));
    for (int i = 0; i < r->count; i++) {
        TRY(comm_wait(r->comm, r->pieces[i].request, err));
        if (is_here(r, r->pieces[i].to)) unpack(r, &r->pieces[i]);
    }
    drop_pieces(r);
    return OK;
}

ErrorCode redistribute_run(Redistribution *r, Error *err) {
    const RankPlan *any = &r->sources[0].plan;
    for (int i = 0; i < any->model.table.count; i++)
        for (int a = 0; a <= param_states(&any->groups, i); a++) TRY(move(r, i, a, err));
    return OK;
}

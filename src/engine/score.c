/* Packs requests into batches in order; a request that does not fit begins the next batch:
 *
 *     batch   | request 0 | request 1 | request 2 |  free  |      positions restart, first_key is the
 *             0           a           b           c        T      segment's first token
 *
 * A token of the batch predicts the next one of its request; those that are scored have it as their target.
 * Every request is in one batch, so the ranks of one data-parallel index score it. The ranks of tp and cp all
 * get the same records, and only the first of them counts; the others add zeros, and sums of a number and
 * zeros are exact in any order. So a score is added up token by token, as on one rank. */
#include "engine/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/losses.h"
#include "engine/execution.h"

/* Scores per record of comm_combine. */
enum { CHUNK = 512 };
typedef struct ScoreChunk {
    TaskScore items[CHUNK];
} ScoreChunk;

/* Requests first .. end - 1 go into one batch. */
typedef struct Span {
    size_t first, end;
} Span;

/* A batch, and the memory to make it. */
typedef struct Packer {
    const Model *model;
    const Task *task;
    Batch batch;
    LossRecord *partials; /* [segments, ranks of cp, model_records] out of engine_score */
    LossRecord *records;  /* [T] */
    int32_t *memory;
} Packer;

static void packer_open(Packer *p, const Model *m, const Task *t) {
    int64_t tokens = model_all_tokens(m);
    *p = (Packer){.model = m, .task = t};
    p->partials =
        mem_alloc_array((size_t)(model_segments(m) * m->cp.ranks * model_records(m)), sizeof *p->partials);
    p->records = mem_alloc_array((size_t)tokens, sizeof *p->records);
    p->memory = mem_alloc_array(4 * (size_t)tokens, sizeof *p->memory);
    p->batch =
        (Batch){tokens, p->memory, p->memory + tokens, p->memory + 2 * tokens, p->memory + 3 * tokens, 0};
}

static void packer_close(Packer *p) {
    free(p->partials);
    free(p->records);
    free(p->memory);
}

/* Makes tokens [from, to) segments without targets. */
static void clear(Batch *b, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        b->inputs[i] = 0;
        b->targets[i] = -1;
        b->positions[i] = 0;
        b->first_key[i] = (int32_t)i;
    }
}

/* The last token of a request is only predicted; the model does not read it. */
static void put_request(Packer *p, const TaskRequest *r, int64_t at) {
    const int32_t *ids = p->task->tokens.ids + r->at;
    Batch *b = &p->batch;
    for (int32_t i = 0; i + 1 < r->count; i++) {
        b->inputs[at + i] = ids[i];
        b->targets[at + i] = i + 1 >= r->first ? ids[i + 1] : -1;
        b->positions[at + i] = i;
        b->first_key[at + i] = (int32_t)at;
    }
    b->valid += r->count - r->first;
}

static Span next_span(const Packer *p, size_t first) {
    const Task *t = p->task;
    Span s = {first, first};
    for (int64_t at = 0; s.end < t->requests; s.end++) {
        at += t->request[s.end].count - 1;
        if (at > p->batch.tokens) break;
    }
    return s;
}

/* An empty span makes a batch without targets. */
static void pack(Packer *p, Span s) {
    int64_t at = 0;
    p->batch.valid = 0;
    for (size_t i = s.first; i < s.end; i++) {
        put_request(p, &p->task->request[i], at);
        at += p->task->request[i].count - 1;
    }
    clear(&p->batch, at, p->batch.tokens);
}

/* Merges the splits of each row, for one chunk of logits of a segment and rank of cp, and stores the result
 * at the token's index in the batch. */
static void merge_chunk(Packer *p, int segment, int cp_rank, int chunk) {
    const Model *m = p->model;
    int64_t first = model_chunk_first(m, chunk), rows = model_chunk_rows(m, chunk),
            split_size = model_vocabulary_splits(m, NULL).split_size;
    const LossRecord *of =
        p->partials + (segment * m->cp.ranks + cp_rank) * model_records(m) + first * m->tp.splits;
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = segment * m->tokens + model_token(m, cp_rank, first + r), target = p->batch.targets[at];
        if (target >= 0)
            p->records[at] =
                loss_record_of_splits(of + r, rows, m->tp.splits, split_size > 0 ? target / split_size : 0);
    }
}

static void merge(Packer *p) {
    for (int segment = 0; segment < model_segments(p->model); segment++)
        for (int cp_rank = 0; cp_rank < p->model->cp.ranks; cp_rank++)
            for (int i = 0; i < model_chunks(p->model); i++) merge_chunk(p, segment, cp_rank, i);
}

/* Adds a row's log-likelihood, in double: target - log sum exp. */
static void take(TaskScore *s, const LossRecord *r) {
    double value = (double)r->target - (double)r->max - log(r->sum);
    s->nonfinite += !isfinite(value);
    s->sum += isfinite(value) ? value : 0;
    s->missed += !(r->target >= r->max);
}

static void read_scores(Packer *p, Span s, TaskScore *scores) {
    int64_t at = 0;
    merge(p);
    for (size_t i = s.first; i < s.end; i++) {
        const TaskRequest *r = &p->task->request[i];
        for (int32_t k = r->first; k < r->count; k++) take(&scores[i], &p->records[at + k - 1]);
        at += r->count - 1;
    }
}

/* Batches go to the data-parallel ranks in turn. All ranks run the same number, since none can be absent when
 * shards are gathered. */
static void run(Engine *e, Packer *p, TaskScore *scores) {
    const Mesh *mesh = &e->plan->partition.mesh;
    int ranks = mesh_dp_degree(mesh), own = mesh_dp_rank(mesh, e->plan->rank);
    bool speaks = p->model->tp.rank == 0 && p->model->cp.rank == 0;
    for (size_t next = 0; next < p->task->requests;) {
        Span mine = {0, 0};
        for (int r = 0; r < ranks; r++) {
            Span s = next_span(p, next);
            if (r == own) mine = s;
            next = s.end;
        }
        pack(p, mine);
        if (engine_score(e, &p->batch, p->partials) && speaks) read_scores(p, mine, scores);
    }
}

static void combine(void *into, const void *from) {
    ScoreChunk *a = into;
    const ScoreChunk *b = from;
    for (int i = 0; i < CHUNK; i++) {
        a->items[i].sum += b->items[i].sum;
        a->items[i].missed += b->items[i].missed;
        a->items[i].nonfinite += b->items[i].nonfinite;
    }
}

static ErrorCode share(Engine *e, TaskScore *scores, size_t count, Error *err) {
    ScoreChunk chunk;
    for (size_t at = 0; at < count; at += CHUNK) {
        size_t n = count - at < CHUNK ? count - at : CHUNK;
        memset(&chunk, 0, sizeof chunk);
        memcpy(chunk.items, scores + at, n * sizeof *scores);
        TRY(comm_combine(e->comm, &chunk, sizeof chunk, combine, err));
        memcpy(scores + at, chunk.items, n * sizeof *scores);
    }
    return OK;
}

ErrorCode score_task(Engine *e, const Task *t, TaskScore *scores, Error *err) {
    Packer p;
    memset(scores, 0, t->requests * sizeof *scores);
    packer_open(&p, engine_model(e), t);
    run(e, &p, scores);
    packer_close(&p);
    return share(e, scores, t->requests, err);
}

/* Silent errors: a microbatch of a step is computed again by another rank and compared in bits
 * (check.replay_every).
 *
 *     replay_begin   each rank makes the gradients of a microbatch of another data-parallel rank
 *     engine_step    compares hashes before the update (engine/replay.c)       equal: nothing else happens
 *     replay_judge   unequal: owner and replayer compute it once more, with three ranks or more a third too;
 *                    rank 0 decides which of them was wrong, and the step is made again
 *
 * Equal bits need no threshold. A rank computes for the next one that has the same place in pp, tp and cp, so
 * each microbatch is computed by ranks that have nothing in common but weights and data. Where there is no
 * other (one data-parallel rank; with mesh.ep, one replica; kernels that differ), a rank computes its own
 * microbatch again, which finds errors that come and go. */
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/log.h"
#include "base/rng.h"
#include "train/run.h"

/* A rank that is wrong whenever it makes the step, and right whenever it makes a microbatch again, would
 * otherwise keep the run in this step. */
enum { MOST_MADE = 4 };

typedef enum PrintKind {
    PRINT_OWN,
    PRINT_OTHER,
    PRINT_OWN_AGAIN,
    PRINT_OTHER_AGAIN,
    PRINT_THIRD,
    PRINTS
} PrintKind;

static uint64_t *prints_of(const Trainer *t, PrintKind kind) {
    return t->replays.prints + (size_t)kind * engine_prints(t->engine);
}

/* ---- who computes for whom ---- */

/* Ranks that compute the same passes on other data. Experts have the rows of all ranks of ep, so with ep only
 * whole replicas do. */
static AxisSet siblings(const Trainer *t) {
    return engine_plan(t->engine)->partition.experts > 1 ? MESH_REPLICAS : MESH_DATA;
}

/* The rank whose microbatch a rank computes, so many ranks further. */
static int owner_of(const Trainer *t, int rank, int further) {
    const Mesh *mesh = &t->layout.mesh;
    int count = mesh_size(mesh, siblings(t)), at = mesh_group_rank(mesh, siblings(t), rank);
    return mesh_member(mesh, siblings(t), rank, (at + further) % count);
}

static bool kernels_differ(const Trainer *t) { return strstr(t->facts.kernels, " on ") != NULL; }

/* How many different ranks may compute one microbatch. */
static int computers(const Trainer *t) {
    return kernels_differ(t) ? 1 : mesh_size(&t->layout.mesh, siblings(t));
}

ErrorCode replay_open(Trainer *t, Error *err) {
    int world = comm_size(t->comm), further = computers(t) > 1;
    if (t->c->check.replay_every == 0) return OK;
    if (!engine_plan(t->engine)->program.first_alone)
        return error_set(err, ERR_CONFIG,
                         "check.replay_every: the schedule does not make the gradients of the first "
                         "microbatch first, so they cannot be compared alone; set "
                         "train.gradient_sync: microbatch");
    t->replays.owners = mem_alloc_array((size_t)world, sizeof *t->replays.owners);
    for (int r = 0; r < world; r++) t->replays.owners[r] = owner_of(t, r, further);
    t->replays.prints = mem_alloc_array(PRINTS * engine_prints(t->engine), sizeof *t->replays.prints);
    if (kernels_differ(t) && t->is_rank0)
        log_warn("check.replay_every: kernels of the ranks differ, so each rank computes its own microbatch "
                 "again; errors that come each time are not found");
    return OK;
}

void replay_close(Trainer *t) {
    free(t->replays.owners);
    free(t->replays.prints);
    t->replays.owners = NULL;
    t->replays.prints = NULL;
}

/* ---- computing again ---- */

/* Gradients that are added to the sums of the step can be told apart in the first microbatch only. */
static int choose_microbatch(const Trainer *t) {
    uint64_t count = (uint64_t)t->read_ahead.now->microbatches, step = (uint64_t)t->state.step;
    if (!program_has_slots(&engine_plan(t->engine)->program)) return 0;
    return (int)(rng_u64(rng_key((uint64_t)t->c->data.seed, "replay"), step) % count);
}

/* Reads the microbatch again, also if it is this rank's own: then errors of the first reading differ too. */
static ErrorCode compute(Trainer *t, int further, PrintKind kind, Error *err) {
    const ReadAheadStep *now = t->read_ahead.now;
    const Mesh *mesh = &t->layout.mesh;
    int64_t row = t->read_ahead.sequences, own = now->microbatches * row,
            ahead = mesh_dp_rank(mesh, owner_of(t, comm_rank(t->comm), further)) - t->read_ahead.dp_rank;
    LoaderLayout layout = {.first = (uint64_t)(now->first + ahead * own + t->replays.step.microbatch * row),
                           .sequences = row,
                           .microbatches = 1,
                           .microbatch_stride = row,
                           .step_stride = row};
    Loader *loader;
    Batch batch;
    double waited;
    ErrorCode code = loader_open(&loader, t->data, &layout, 1, err);
    if (code == OK) code = loader_next(loader, &batch, &waited, err);
    code = comm_agree(t->comm, code, err);
    if (code == OK)
        engine_replay(t->engine, &batch, now->batches, (int)now->microbatches, prints_of(t, kind));
    if (code == OK && kind == PRINT_OWN_AGAIN)
        t->replays.reread = read_ahead_restore(&t->read_ahead, t->replays.step.microbatch, &batch);
    loader_close(loader);
    return code;
}

static void begin_own(Trainer *t) {
    memset(prints_of(t, PRINT_OWN), 0, engine_prints(t->engine) * sizeof(uint64_t));
}

/* A fault that cannot be found is announced, so that nobody takes it for one that was overlooked. */
static void announce_miss(const Trainer *t, const StepOptions *options) {
    int compared = t->replays.step.microbatch;
    bool in_microbatch = options->poison == POISON_ACTIVATION || options->poison == POISON_GRADIENT ||
                         options->poison == POISON_TOKENS;
    if (!in_microbatch || options->poison_microbatch == compared) return;
    log_warn("step %lld: check.replay_every compares microbatch %d, and the injected fault is in microbatch "
             "%d: it is not found",
             (long long)t->state.step + 1, compared, options->poison_microbatch);
}

ErrorCode replay_begin(Trainer *t, StepOptions *options, Error *err) {
    ReplayCheck *r = &t->replays;
    r->step = (StepReplay){.microbatch = choose_microbatch(t),
                           .owners = r->owners,
                           .other = prints_of(t, PRINT_OTHER),
                           .own = prints_of(t, PRINT_OWN)};
    announce_miss(t, options);
    TRY(compute(t, computers(t) > 1, PRINT_OTHER, err));
    begin_own(t);
    r->made += comm_size(t->comm);
    options->replay = &r->step;
    return OK;
}

void replay_report(const Trainer *t) {
    const ReplayCheck *r = &t->replays;
    if (r->made > 0 && t->is_rank0)
        log_info("%lld microbatches were computed again (check.replay_every); %lld steps were made again",
                 (long long)r->made, (long long)r->differed);
}

/* ---- the verdict ---- */

typedef struct Verdict {
    int64_t again; /* make the step again */
    char message[600];
} Verdict;

/* What a rank reports; hashes [PRINTS, engine_prints] follow. */
typedef struct Witness {
    char host[HOST_NAME_BYTES];
    uint64_t reread; /* its tokens were others when it read them again */
} Witness;

/* What all ranks have made of their microbatches; rank 0's. */
typedef struct Evidence {
    const Trainer *t;
    const char *all; /* each rank's Witness */
} Evidence;

static size_t witness_bytes(const Trainer *t) {
    return sizeof(Witness) + PRINTS * engine_prints(t->engine) * sizeof(uint64_t);
}

static const Witness *witness(const Evidence *v, int rank) {
    return (const Witness *)(const void *)(v->all + (size_t)rank * witness_bytes(v->t));
}

static const char *host_of(const Evidence *v, int rank) { return witness(v, rank)->host; }

static const uint64_t *print_of(const Evidence *v, int rank, PrintKind kind) {
    return (const uint64_t *)(const void *)(witness(v, rank) + 1) +
           (size_t)kind * engine_prints(v->t->engine);
}

/* Of two ranks' hashes the first that differs; -1: all are equal. */
static int64_t difference(const Evidence *v, const uint64_t *a, const uint64_t *b) {
    for (size_t i = 0; i < engine_prints(v->t->engine); i++)
        if (a[i] != b[i]) return (int64_t)i;
    return -1;
}

/* The rank that computed its owner's microbatch too, as the third. */
static int third_of(const Evidence *v, int owner) {
    for (int r = 0; r < comm_size(v->t->comm); r++)
        if (owner_of(v->t, r, 2) == owner) return r;
    return owner;
}

/* The first time and again, of the owner (a) and of the rank that computed it too (b). Returns the rank that
 * was wrong, -1: nobody can tell. *once: it was right the second time. */
static int judge_pair(const Evidence *v, int owner, int other, bool *once) {
    const uint64_t *a = print_of(v, owner, PRINT_OWN), *a2 = print_of(v, owner, PRINT_OWN_AGAIN),
                   *b = print_of(v, other, PRINT_OTHER), *b2 = print_of(v, other, PRINT_OTHER_AGAIN);
    *once = true;
    if (difference(v, a2, b) < 0) return owner;
    if (difference(v, b2, a) < 0) return other;
    *once = false;
    if (owner == other || difference(v, a, a2) >= 0) return owner;
    if (difference(v, b, b2) >= 0) return other;
    if (computers(v->t) < 3) return -1;
    const uint64_t *c = print_of(v, third_of(v, owner), PRINT_THIRD);
    return difference(v, c, b) < 0 ? owner : difference(v, c, a) < 0 ? other : -1;
}

/* Ranks that work on one microbatch together (pp, tp, cp) spread an error among themselves, so several may be
 * wrong at once. */
static void judge(const Evidence *v, Verdict *out) {
    enum { NAMED = 8 };
    const Trainer *t = v->t;
    Text who = {0};
    int found = 0;
    int64_t what = -1;
    out->again = true;
    for (int r = 0; r < comm_size(t->comm); r++) {
        int owner = t->replays.owners[r];
        bool once;
        int64_t first = difference(v, print_of(v, owner, PRINT_OWN), print_of(v, r, PRINT_OTHER));
        if (first < 0) continue;
        int wrong = judge_pair(v, owner, r, &once);
        if (what < 0) what = first;
        out->again = out->again && once;
        if (found++ >= NAMED) continue;
        text_puts(&who, found > 1 ? "; " : "");
        if (wrong >= 0)
            text_printf(&who, "rank %d on host %s was wrong%s%s", wrong, host_of(v, wrong),
                        once ? "" : " each time",
                        witness(v, wrong)->reread ? ", whose tokens had changed in memory of the host" : "");
        else
            text_printf(&who, "rank %d on host %s or rank %d on host %s is wrong each time", owner,
                        host_of(v, owner), r, host_of(v, r));
    }
    snprintf(out->message, sizeof out->message,
             "step %lld: microbatch %d was computed again and differs in bits, first in %s%s: %s",
             (long long)t->state.step + 1, t->replays.step.microbatch,
             what + 1 < (int64_t)engine_prints(t->engine) ? "the gradient of " : "",
             engine_print_name(t->engine, (size_t)what), who.data);
    text_free(&who);
}

static ErrorCode gather(Trainer *t, Verdict *verdict, Error *err) {
    Witness *mine = mem_alloc(witness_bytes(t));
    char *all = NULL;
    host_name(mine->host, sizeof mine->host);
    mine->reread = t->replays.reread;
    memcpy(mine + 1, t->replays.prints, witness_bytes(t) - sizeof *mine);
    ErrorCode code = comm_concatenate(t->comm, mine, witness_bytes(t), &all, NULL, err);
    if (code == OK && all) judge(&(Evidence){t, all}, verdict);
    free(mine);
    free(all);
    return code == OK ? comm_broadcast(t->comm, verdict, sizeof *verdict, 0, err) : code;
}

static ErrorCode end_run(const Trainer *t, const Verdict *verdict, const char *why, Error *err) {
    error_set(err, ERR_REPLICAS, "%s%s. Leave this machine out, and go on from the last checkpoint",
              verdict->message, why);
    err->reported = !t->is_rank0;
    return ERR_REPLICAS;
}

/* Weights are those of before the step, which made no update. */
ErrorCode replay_judge(Trainer *t, int made, Error *err) {
    Verdict verdict = {.message = ""};
    TRY(compute(t, 0, PRINT_OWN_AGAIN, err));
    TRY(compute(t, computers(t) > 1, PRINT_OTHER_AGAIN, err));
    if (computers(t) > 2) TRY(compute(t, 2, PRINT_THIRD, err));
    TRY(gather(t, &verdict, err));
    if (!verdict.again) return end_run(t, &verdict, "", err);
    if (made >= MOST_MADE) return end_run(t, &verdict, ", as each time that the step was made", err);
    t->replays.differed++;
    if (t->is_rank0) log_warn("%s; the step is made again", verdict.message);
    memcpy(prints_of(t, PRINT_OTHER), prints_of(t, PRINT_OTHER_AGAIN),
           engine_prints(t->engine) * sizeof(uint64_t));
    begin_own(t);
    return record_event(t, JOURNAL_CORRECTED, t->state.step + 1, verdict.message, NULL, err);
}

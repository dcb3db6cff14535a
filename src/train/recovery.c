/* Goes on in the same process, and in the same step, when ranks have died (recovery.mode: in_place).
 *
 *     loop returns an error, comm_is_broken
 *       |  close      everything that belongs to the mesh; the weights stay (engine_take_state)
 *       |  repair     comm_repair: the ranks that live
 *       |  facts      to which step can all of them go back? has anybody half an update?
 *       |  choose     a mesh with fewer replicas, or a smaller one from partner copies (partner.c); ranks
 *       |             without a place in it leave, and repair comes again
 *       |  begin      run_begin_again: plan, engine with these weights, saver, records
 *     loop
 *
 * It is a restart inside the process: what a start does from a checkpoint, it does from memory, by the same
 * functions. With replicas weights need not be sent: a rank keeps its coordinates but for dp_replicate, and
 * so its shards.
 *
 * V1. A step is made by all living ranks or by none (comm_commit, at the end of NORM). V2. A recovery goes
 * back to the start of the earliest step that some rank had not finished with everything after it: records,
 * validation, saves. If that step was made, its result is taken from memory, and only the rest is done again.
 * V3. Ranks are at most one step apart, since each commit needs all of them: two starts of steps are kept.
 * V4. Records from that step on are cut off and written again, as when a run is resumed. */
#include "train/recovery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/repair.h"
#include "observe/console.h"
#include "train/run.h"

/* ---- the mesh ---- */

/* Coordinates but for dp_replicate, as one number. */
static int shard_of(const Mesh *mesh, int rank) {
    return mesh_group_rank(mesh, (MESH_SETS - 1) & ~MESH_REPLICAS, rank);
}

/* Taking the first that fits never excludes a choice: what follows it also follows a later one. */
bool recovery_choose(const Mesh *first, const int *alive, int count, int replicas, int *chosen) {
    Mesh now = mesh_of_replicas(first, replicas);
    int at = 0;
    for (int rank = 0; rank < now.world; rank++, at++) {
        while (at < count && shard_of(first, alive[at]) != shard_of(&now, rank)) at++;
        if (at == count) return false;
        chosen[rank] = at;
    }
    return true;
}

/* Whether the microbatches of a step can be divided among so many replicas. */
static bool fits(const Config *c, const Mesh *now) {
    Layout l;
    Config as = *c;
    Error ignored = {.message = ""};
    as.mesh.dp_replicate = mesh_size(now, MESH_REPLICAS);
    as.pipeline.microbatches = 0;
    bool laid = layout_build(&l, &as, now->world, &ignored) == OK;
    layout_free(&l);
    return laid;
}

/* Returns the replicas of the largest mesh there is, or 0. */
static int choose(const Trainer *t, int *chosen) {
    const Recovery *r = &t->recovery;
    for (int replicas = mesh_size(&r->mesh, MESH_REPLICAS); replicas > 0; replicas--) {
        Mesh now = mesh_of_replicas(&r->mesh, replicas);
        if (now.world <= comm_size(t->comm) &&
            recovery_choose(&r->mesh, r->numbers, comm_size(t->comm), replicas, chosen) && fits(t->c, &now))
            return replicas;
    }
    return 0;
}

/* ---- while nothing happens ---- */

ErrorCode recovery_open(Trainer *t, Error *err) {
    Error why = {.message = ""};
    Recovery *r = &t->recovery;
    if (t->c->recovery.mode != RECOVERY_IN_PLACE || t->replay) return OK;
    r->possible = comm_allow_repair(t->comm, &why) == OK;
    if (!r->possible && t->is_rank0)
        log_warn(
            "recovery.mode in_place is not possible here, so a rank that dies ends the run, which goes on "
            "from its last checkpoint when it is started again: %s",
            why.message);
    if (!r->possible) return why.code == ERR_UNAVAILABLE ? OK : (*err = why).code;
    TRY(mesh_build(&r->mesh, &t->c->mesh, comm_size(t->comm), err));
    r->numbers = mem_alloc_array((size_t)comm_size(t->comm), sizeof *r->numbers);
    r->names = mem_alloc_array((size_t)comm_size(t->comm), sizeof *r->names);
    for (int p = 0; p < comm_size(t->comm); p++) r->numbers[p] = r->names[p] = p;
    return OK;
}

void recovery_close(Trainer *t) {
    free(t->recovery.numbers);
    free(t->recovery.names);
    redistribute_close(t->recovery.moving);
    layout_free(&t->recovery.layout);
    engine_free_state(t->recovery.state);
}

static Progress progress_of(const Trainer *t) {
    return (Progress){t->state, t->window, t->goodput, t->stragglers, t->bad_in_row, t->unbalanced};
}

static void go_back(Trainer *t, const Progress *to) {
    t->state = to->state;
    t->window = to->window;
    t->goodput = to->goodput;
    t->stragglers = to->stragglers;
    t->bad_in_row = to->bad_in_row;
    t->unbalanced = to->unbalanced;
}

void recovery_mark(Trainer *t) {
    Recovery *r = &t->recovery;
    if (!r->possible) return;
    if (r->before[0].state.step != t->state.step) r->before[1] = r->before[0];
    r->before[0] = progress_of(t);
    r->marked = clock_seconds();
}

void recovery_keep(Trainer *t, const StepResult *result, double seconds) {
    t->recovery.made = (MadeStep){t->state.step + 1, *result, seconds};
}

const MadeStep *recovery_made(const Trainer *t) {
    const MadeStep *made = &t->recovery.made;
    return made->step > 0 && made->step == t->state.step + 1 ? made : NULL;
}

bool recovery_can(Trainer *t) {
    return t->recovery.possible && !t->recovery.refused && comm_is_broken(t->comm);
}

/* ---- when ranks have died ---- */

/* What one rank knows, and then all of those that are left. */
typedef struct Facts {
    int64_t started;         /* steps before the one that it has not finished: the least */
    int64_t made, most_made; /* steps that it has made: the least, the most */
    int64_t torn, saving;    /* ranks with half an update; with a save under way */
    CommHung hung;           /* what one of them has found about ranks that hung */
} Facts;

static void combine(void *into, const void *from) {
    Facts *a = into;
    const Facts *b = from;
    a->started = b->started < a->started ? b->started : a->started;
    a->made = b->made < a->made ? b->made : a->made;
    a->most_made = b->most_made > a->most_made ? b->most_made : a->most_made;
    a->torn += b->torn;
    a->saving += b->saving;
    if (a->hung.seconds == 0) a->hung = b->hung;
}

/* A rank may have died after the commit of a step and before it wrote its own line about it, although all
 * others have; and so may the rank that writes the records of all (writer_died). */
static bool writes_of_each_rank(const Config *c) { return c->data.audit || c->metrics.all_ranks; }

static Facts facts_of(const Trainer *t, const CommHung *hung) {
    const Recovery *r = &t->recovery;
    Facts own = {.hung = *hung, .started = r->before[0].state.step, .torn = r->torn, .saving = r->owes_save};
    bool may_lack = writes_of_each_rank(t->c) || r->writer_died;
    if (may_lack && r->made.step == own.started && own.started > 0) own.started--;
    own.made = own.most_made = r->made.step > own.started ? r->made.step : own.started;
    return own;
}

/* A save that is under way is given up: others may have died in it. */
static void stop_saver(Trainer *t) {
    CheckpointWriter *w = t->saver.writer;
    t->recovery.owes_save |= w && !checkpoint_writer_idle(w);
    saver_close(&t->saver, NULL);
}

/* All that belongs to the mesh, but for the weights. Called after a repair, since operations under way may
 * write to memory of the engine. */
static void close_mesh(Trainer *t) {
    Recovery *r = &t->recovery;
    run_close_records(t);
    comm_set_device(t->comm, NULL);
    if (t->engine) {
        r->torn |= engine_is_torn(t->engine);
        /* During a recovery an engine has taken the weights already, and left r->state empty. */
        engine_free_state(r->state);
        r->state = engine_take_state(t->engine);
        engine_close(t->engine);
        t->engine = NULL;
        layout_free(&r->layout);
        r->layout = t->layout;
        t->layout = (Layout){.sequences = 0};
    }
    rank_plan_free(&t->rank);
    layout_free(&t->layout);
}

static void list_rank(Text *list, int name) { text_printf(list, "%s%d", list->length ? ", " : "", name); }

/* The ranks that go in one recovery, and what it has cost so far. It lives through deaths during the
 * recovery, which begin it again. */
typedef struct Gone {
    Text died, left;        /* ranks in words; left: for want of a place in the mesh */
    int ranks;              /* that t->peak_flops is of */
    int replicas;           /* of the mesh that goes on */
    double noticed;         /* clock */
    double repaired, begun; /* seconds, in all attempts: until the ranks of the new mesh are known; from then
                                until the run can go on */
    double into_step;       /* seconds from the start of the step under way until the death was noticed */
    CommHung found;         /* by this rank, about ranks that hung; the others do not know it yet */
    Text hung;              /* by all ranks, in all attempts: "; rank 1 hung ..." */
    double hung_seconds;
} Gone;

enum { LEAVES = -1 /* in place of a rank's number */ };

/* Takes over the numbers of the ranks that are still here. */
static void take_repair(Recovery *r, const CommRepair *now, Gone *gone) {
    for (int old = 0, p = 0; old < now->size + now->lost; old++) {
        int number = r->numbers[old];
        if (p < now->size && now->old_ranks[p] == old)
            r->numbers[p++] = number;
        else if (number != LEAVES)
            list_rank(&gone->died, r->names[number]);
    }
}

/* NULL: all can go on from the same step. */
static const char *find_problem(const Facts *f) {
    if (f->torn) return "the update of the step was not complete";
    if (f->made != f->most_made || f->made > f->started + 1) return "ranks have come to different steps";
    return NULL;
}

/* What this rank has found goes to all with the facts. A recovery that begins again may bring more. */
static void find_hung(Trainer *t, Gone *gone) {
    CommHung more = comm_take_hung(t->comm);
    if (more.seconds > 0) gone->found = more;
}

/* The same on all ranks. */
static void take_hung(Gone *gone, const CommHung *found) {
    gone->found.seconds = 0;
    if (found->seconds == 0) return;
    gone->hung_seconds += found->seconds;
    text_printf(&gone->hung, "; %s", found->text);
}

static const char *hung_in_words(const Gone *gone) { return gone->hung.length ? gone->hung.data : ""; }

/* The same on all ranks, of which one prints it, and records that the run has failed. */
static ErrorCode refuse(Trainer *t, const Facts *f, const Gone *gone, const char *why, Error *err) {
    t->recovery.refused = true;
    t->is_rank0 = comm_rank(t->comm) == 0;
    if (t->is_rank0) journal_open(&t->journal, t->c->run.dir, NULL);
    error_set(
        err, ERR_PEER,
        "rank %s died in step %lld, and the others cannot go on without it: %s%s; the run goes on from its "
        "last checkpoint when it is started again",
        gone->died.length ? gone->died.data : "?", (long long)f->started + 1, why, hung_in_words(gone));
    err->reported = comm_rank(t->comm) != 0;
    return ERR_PEER;
}

/* A rank that the mesh has no place for. It reports nothing to the launcher: only those that end the run
 * do. */
static _Noreturn void leave(void) {
    fflush(NULL);
    _exit(0);
}

/* chosen: [size] indices of the ranks that stay. The others leave. */
static void take_places(Trainer *t, const int *chosen, int size, Gone *gone) {
    Recovery *r = &t->recovery;
    for (int p = 0, place = 0; p < comm_size(t->comm); p++) {
        if (place < size && chosen[place] == p) {
            place++;
            continue;
        }
        if (p == comm_rank(t->comm)) leave();
        list_rank(&gone->left, r->names[r->numbers[p]]);
        r->numbers[p] = LEAVES;
    }
}

/* Ranks of the mesh with fewer replicas leave or stay. */
static ErrorCode drop_replicas(Trainer *t, const Facts *f, bool *whole, Gone *gone, Error *err) {
    int *chosen = mem_alloc_array((size_t)comm_size(t->comm), sizeof *chosen);
    gone->replicas = choose(t, chosen);
    int size = mesh_of_replicas(&t->recovery.mesh, gone->replicas).world;
    *whole = size == comm_size(t->comm);
    if (gone->replicas > 0) take_places(t, chosen, size, gone);
    free(chosen);
    if (gone->replicas > 0) return OK;
    return refuse(t, f, gone, "they make no whole replica, or a step cannot be divided among those there are",
                  err);
}

/* With partner copies: unless it was done already, and those without a place in the new mesh have left. */
static ErrorCode make_smaller_mesh(Trainer *t, const Facts *f, bool *whole, Gone *gone, Error *err) {
    Recovery *r = &t->recovery;
    MeshOptions next;
    gone->replicas = 1;
    *whole = comm_size(t->comm) == r->mesh.world;
    if (*whole) return OK;
    const char *problem = partner_find_mesh(t, &next);
    if (problem) return refuse(t, f, gone, problem, err);
    TRY(partner_restore(t, &next, err));
    int *chosen = mem_alloc_array((size_t)comm_size(t->comm), sizeof *chosen);
    for (int p = 0; p < r->mesh.world; p++) chosen[p] = p;
    *whole = comm_size(t->comm) == r->mesh.world;
    take_places(t, chosen, r->mesh.world, gone);
    free(chosen);
    return OK;
}

/* Finds the facts and the mesh of those that are left. *whole: no rank has left for want of a place;
 * otherwise the repair comes again, which waits until they are gone. Nobody acts on the facts before all
 * have them: the next repair would interrupt the others. */
static ErrorCode choose_ranks(Trainer *t, Facts *f, bool *whole, Gone *gone, Error *err) {
    find_hung(t, gone);
    *f = facts_of(t, &gone->found);
    TRY(comm_combine(t->comm, f, sizeof *f, combine, err));
    TRY(comm_commit(t->comm, err));
    take_hung(gone, &f->hung);
    const char *problem = find_problem(f);
    if (problem) return refuse(t, f, gone, problem, err);
    return (t->c->recovery.partner_copy ? make_smaller_mesh : drop_replicas)(t, f, whole, gone, err);
}

static ErrorCode settle_ranks(Trainer *t, Facts *f, Gone *gone, Error *err) {
    bool whole = false;
    while (!whole) {
        CommRepair now;
        TRY(comm_repair(t->comm, &now, err));
        redistribute_close(t->recovery.moving);
        t->recovery.moving = NULL;
        take_repair(&t->recovery, &now, gone);
        t->recovery.writer_died |= comm_rank(t->comm) == 0 && !t->is_rank0;
        close_mesh(t);
        ErrorCode code = choose_ranks(t, f, &whole, gone, err);
        if (code != OK && !recovery_can(t)) return code;
        whole &= code == OK;
    }
    return OK;
}

static ErrorCode change_degree(OptionSet *set, const char *key, int64_t now, int64_t degree, Error *err) {
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)degree);
    return now == degree ? OK : options_derive(set, key, number, "the ranks that are left", err);
}

/* In another mesh the step's samples are shared differently. */
static ErrorCode change_mesh(const Recovery *r, OptionSet *set, const Config *c, int replicas, Error *err) {
    const MeshOptions was = c->mesh;
    TRY(change_degree(set, "mesh.dp_replicate", was.dp_replicate, replicas, err));
    if (c->recovery.partner_copy) {
        MeshOptions now = mesh_degrees(&r->mesh);
        TRY(change_degree(set, "mesh.pp", was.pp, now.pp, err));
        TRY(change_degree(set, "mesh.dp_shard", was.dp_shard, now.dp_shard, err));
        TRY(change_degree(set, "mesh.cp", was.cp, now.cp, err));
        TRY(change_degree(set, "mesh.tp", was.tp, now.tp, err));
        TRY(change_degree(set, "mesh.ep", was.ep, now.ep, err));
        /* 0 is as over tp, whatever becomes of that; 1 stays. */
        TRY(change_degree(set, "mesh.etp", was.etp, was.etp > 1 ? 0 : was.etp, err));
    }
    return change_degree(set, "pipeline.microbatches", c->pipeline.microbatches, 0, err);
}

static void go_back_to(Trainer *t, int64_t step) {
    const Recovery *r = &t->recovery;
    const Progress *to = &r->before[r->before[0].state.step == step ? 0 : 1];
    CHECK(to->state.step == step);
    go_back(t, to);
}

/* What is left of a mesh: of replicas, or of all axes. */
static void name_mesh(const Trainer *t, const Gone *gone, char *out, size_t size) {
    const MeshOptions m = mesh_degrees(&t->layout.mesh);
    if (t->c->recovery.partner_copy)
        snprintf(out, size, "mesh.pp %lld, dp_shard %lld, cp %lld, tp %lld, ep %lld", (long long)m.pp,
                 (long long)m.dp_shard, (long long)m.cp, (long long)m.tp, (long long)m.ep);
    else
        snprintf(out, size, "dp_replicate %d", gone->replicas);
}

static ErrorCode record_recovery(Trainer *t, const Gone *gone, Error *err) {
    char detail[800], left[160] = "", mesh[80];
    double seconds = clock_seconds() - gone->noticed;
    if (gone->left.length)
        snprintf(left, sizeof left, "; rank %.100s left, which %s", gone->left.data,
                 t->c->recovery.partner_copy ? "has no place in this mesh" : "no replica needs");
    name_mesh(t, gone, mesh, sizeof mesh);
    snprintf(detail, sizeof detail, "rank %.100s died %s step %lld; %d ranks go on with %s%s%s",
             gone->died.length ? gone->died.data : "?", recovery_made(t) ? "after the update of" : "in",
             (long long)t->state.step + 1, comm_size(t->comm), mesh, left, hung_in_words(gone));
    if (t->is_rank0) log_warn("%s; recovered in %.3f s", detail, seconds);
    const JournalFact facts[] = {{"ranks", comm_size(t->comm)},
                                 {"dp_replicate", gone->replicas},
                                 {"seconds", seconds},
                                 {"into_step_seconds", gone->into_step},
                                 {"repair_seconds", gone->repaired},
                                 {"begin_seconds", gone->begun},
                                 {gone->hung_seconds > 0 ? "hung_seconds" : NULL, gone->hung_seconds},
                                 {NULL, 0}};
    return record_event(t, JOURNAL_RECOVERED, t->state.step, detail, facts, err);
}

static ErrorCode settle(Trainer *t, Facts *f, Gone *gone, Error *err) {
    double from = clock_seconds();
    console_clear();
    activity_engine(t->activity, NULL);
    stop_saver(t);
    ErrorCode code = settle_ranks(t, f, gone, err);
    gone->repaired += clock_seconds() - from;
    return code;
}

static ErrorCode begin(Trainer *t, OptionSet *set, const Facts *f, Gone *gone, Error *err) {
    double from = clock_seconds();
    t->recovery.count++;
    t->recovery.owes_save = f->saving > 0;
    go_back_to(t, f->started);
    TRY(change_mesh(&t->recovery, set, t->c, gone->replicas, err));
    ErrorCode code = run_begin_again(t, set, err);
    gone->begun += clock_seconds() - from;
    return code;
}

static ErrorCode recover(Trainer *t, OptionSet *set, Gone *gone, Error *err) {
    Recovery *r = &t->recovery;
    Facts f;
    TRY(settle(t, &f, gone, err));
    TRY(begin(t, set, &f, gone, err));
    engine_free_state(r->state);
    r->state = NULL;
    r->writer_died = false;
    t->peak_flops *= (double)comm_size(t->comm) / gone->ranks;
    gone->ranks = comm_size(t->comm);
    metrics_window_pause(&t->window, clock_seconds() - gone->noticed);
    return record_recovery(t, gone, err);
}

/* A death during a recovery begins it again. All who died are named, and all of the time is counted. */
ErrorCode recovery_run(Trainer *t, OptionSet *set, Error *err) {
    Gone gone = {.ranks = comm_size(t->comm), .noticed = clock_seconds()};
    gone.into_step = gone.noticed - t->recovery.marked;
    ErrorCode code = recover(t, set, &gone, err);
    while (code != OK && recovery_can(t)) code = recover(t, set, &gone, err);
    text_free(&gone.died);
    text_free(&gone.left);
    text_free(&gone.hung);
    return code;
}

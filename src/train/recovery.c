/* Goes on in the same process, and in the same step, when ranks have died (recovery.mode: in_place).
 *
 *     loop returns an error, comm_is_broken
 *       |  close      everything that belongs to the mesh; the weights stay (engine_take_state)
 *       |  repair     comm_repair: the ranks that live
 *       |  facts      to which step can all of them go back? has anybody half an update?
 *       |  choose     the same mesh with spares in the place of the dead, one with fewer replicas, or a
 *       |             smaller one from partner copies; ranks without a place in it become spares, or leave,
 *       |             and repair comes again
 *       |  move       spares get shards from replicas or copies (shards.c)
 *       |  begin      run_begin_again: plan, engine with these weights, saver, records
 *     loop
 *
 * It is a restart inside the process: what a start does from a checkpoint, it does from memory, by the same
 * functions. With replicas weights are sent to spares alone: a rank keeps its coordinates but for
 * dp_replicate, and so its shards.
 *
 * V1. A step is made by all living ranks or by none (comm_commit, at the end of NORM). V2. A recovery goes
 * back to the start of the earliest step that some rank had not finished with everything after it: records,
 * validation, saves. If that step was made, its result is taken from memory, and only the rest is done again.
 * V3. Ranks are at most one step apart, since each commit needs all of them: two starts of steps are kept.
 * V4. Records from that step on are cut off and written again, as when a run is resumed.
 *
 * A spare (recovery.spares) begins the run as the others do, but has no engine. Then it is set aside
 * (comm_set_aside): it takes part in the commit of each step, which shows it that others died, and in each
 * recovery, where it has no facts, and learns what it needs to be one of the others (Lesson). */
#include "train/recovery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/repair.h"
#include "comm/tell.h"
#include "observe/console.h"
#include "train/run.h"

/* ---- the mesh ---- */

int recovery_shard_of(const Mesh *mesh, int rank) {
    return mesh_group_rank(mesh, (MESH_SETS - 1) & ~MESH_REPLICAS, rank);
}

/* Without spares. Taking the first that fits never excludes a choice: what follows it also follows a later
 * one. */
static bool choose_in_order(const Mesh *first, const Mesh *now, const int *numbers, int count, int *chosen) {
    int at = 0;
    for (int rank = 0; rank < now->world; rank++, at++) {
        int shard = recovery_shard_of(now, rank);
        while (at < count && numbers[at] >= 0 && recovery_shard_of(first, numbers[at]) != shard) at++;
        if (at == count || numbers[at] < 0) return false;
        chosen[rank] = at;
    }
    return true;
}

/* The rank of `first` with the same coordinates. */
static int same_rank(const Mesh *first, const Mesh *now, int rank) {
    int at[AXES];
    mesh_coordinates(now, rank, at);
    return mesh_rank(first, at);
}

/* Index of one that is not taken yet: of a spare, or of one that holds the shard; -1: there is none. */
static int find_free(const Mesh *first, const int *numbers, const bool *taken, int count, int shard) {
    for (int i = 0; i < count; i++) {
        bool spare = numbers[i] < 0;
        if (taken[i] || spare != (shard < 0)) continue;
        if (spare || recovery_shard_of(first, numbers[i]) == shard) return i;
    }
    return -1;
}

/* Those that stay where they are, then those that hold the shard, then spares. taken: [count], false. */
static bool choose_with_spares(const Mesh *first, const Mesh *now, const int *numbers, int count, bool *taken,
                               int *chosen) {
    bool *const nobody = mem_alloc_array((size_t)count, sizeof *nobody), held = true;
    for (int rank = 0; rank < now->world; rank++) {
        int number = same_rank(first, now, rank);
        chosen[rank] = -1;
        for (int i = 0; i < count; i++)
            if (numbers[i] == number) taken[chosen[rank] = i] = true;
        held &= find_free(first, numbers, nobody, count, recovery_shard_of(first, number)) >= 0;
    }
    free(nobody);
    for (int rank = 0; rank < now->world && held; rank++) {
        int *at = &chosen[rank];
        if (*at < 0) *at = find_free(first, numbers, taken, count, recovery_shard_of(now, rank));
        if (*at < 0) *at = find_free(first, numbers, taken, count, RECOVERY_SPARE);
        held = *at >= 0;
        if (held) taken[*at] = true;
    }
    return held;
}

bool recovery_choose(const Mesh *first, const int *numbers, int count, int replicas, int *chosen) {
    Mesh now = mesh_of_replicas(first, replicas);
    if (choose_in_order(first, &now, numbers, count, chosen)) return true;
    if (count == 0 || numbers[count - 1] != RECOVERY_SPARE) return false;
    bool *taken = mem_alloc_array((size_t)count, sizeof *taken);
    bool found = choose_with_spares(first, &now, numbers, count, taken, chosen);
    free(taken);
    return found;
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
    int most = mesh_size(&r->mesh, MESH_REPLICAS), least = recovery_may_change_mesh(t) ? 1 : most;
    for (int replicas = most; replicas >= least; replicas--) {
        Mesh now = mesh_of_replicas(&r->mesh, replicas);
        if (now.world <= comm_size(t->comm) &&
            recovery_choose(&r->mesh, r->numbers, comm_size(t->comm), replicas, chosen) && fits(t->c, &now))
            return replicas;
    }
    return 0;
}

/* ---- while nothing happens ---- */

/* spares: recovery.spares. */
static ErrorCode check_spares(const Trainer *t, int spares, const char *why, Error *err) {
    int ranks = comm_size(t->comm);
    if (spares == 0) return OK;
    if (!t->recovery.possible || !comm_can_set_aside(t->comm))
        return error_set(
            err, ERR_CONFIG,
            "recovery.spares: spares wait only where ranks are joined by sockets: set "
            "comm.transport=sockets with -n, use weft launch --tolerant, or set recovery.spares=0%s%s",
            *why ? "; here " : "", why);
    if (ranks > spares) return OK;
    return error_set(err, ERR_CONFIG,
                     "recovery.spares is %d, and all ranks together are %d: start as many more as the mesh "
                     "needs",
                     spares, ranks);
}

ErrorCode recovery_open(Trainer *t, Error *err) {
    Error why = {.message = ""};
    Recovery *r = &t->recovery;
    int spares = (int)t->c->recovery.spares, all = comm_size(t->comm);
    if (t->c->recovery.mode != RECOVERY_IN_PLACE || t->replay) return OK;
    r->possible = comm_allow_repair(t->comm, &why) == OK;
    TOGETHER(t, check_spares(t, spares, why.message, err));
    if (!r->possible && t->is_rank0)
        log_warn(
            "recovery.mode in_place is not possible here, so a rank that dies ends the run, which goes on "
            "from its last checkpoint when it is started again: %s",
            why.message);
    if (!r->possible) return why.code == ERR_UNAVAILABLE ? OK : (*err = why).code;
    r->spares = spares;
    TRY(mesh_build(&r->mesh, &t->c->mesh, all - spares, err));
    r->numbers = mem_alloc_array((size_t)all, sizeof *r->numbers);
    r->names = mem_alloc_array((size_t)all, sizeof *r->names);
    for (int p = 0; p < all; p++) {
        r->names[p] = p;
        r->numbers[p] = p < all - spares ? p : RECOVERY_SPARE;
    }
    return OK;
}

ErrorCode recovery_begin(Trainer *t, Error *err) {
    int all = comm_size(t->comm);
    if (t->recovery.spares == 0) return OK;
    int *order = mem_alloc_array((size_t)all, sizeof *order);
    for (int p = 0; p < all; p++) order[p] = p;
    ErrorCode code = comm_set_aside(t->comm, order, all - t->recovery.spares, err);
    free(order);
    return code;
}

void recovery_close(Trainer *t) {
    free(t->recovery.numbers);
    free(t->recovery.names);
    redistribute_close(t->recovery.moving);
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
    t->stopping = t->noticed = false; /* the step that brought the request brings it again */
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

/* The ranks that go in one recovery, and what it has cost so far. It lives through deaths during the
 * recovery, which begin it again. */
typedef struct Gone {
    Text died, left;        /* ranks in words; left: for want of a place in the mesh */
    Text joined;            /* by all ranks, in all attempts: "; rank 4, a spare, is rank 2 now" */
    int ranks;              /* that t->peak_flops is of */
    double noticed;         /* clock */
    double repaired, begun; /* seconds, in all attempts: until the ranks of the new mesh are known; from then
                                until the run can go on */
    double into_step;       /* seconds from the start of the step under way until the death was noticed */
    CommHung found;         /* by this rank, about ranks that hung; the others do not know it yet */
    Text hung;              /* by all ranks, in all attempts: "; rank 1 hung ..." */
    double hung_seconds;
} Gone;

static bool is_spare(const Trainer *t, int rank) { return t->recovery.numbers[rank] == RECOVERY_SPARE; }

/* What one rank knows, and then all of those that are left. */
typedef struct Facts {
    int64_t started;         /* steps before the one that it has not finished: the least */
    int64_t made, most_made; /* steps that it has made: the least, the most */
    int64_t torn, saving;    /* ranks with half an update; with a save under way */
    double into_step;        /* Gone.into_step: the most */
    CommHung hung;           /* what one of them has found about ranks that hung */
} Facts;

enum { NO_STEP = -1 /* of a spare */ };

static void combine(void *into, const void *from) {
    Facts *a = into;
    const Facts *b = from;
    a->started = b->started < a->started ? b->started : a->started;
    a->made = b->made < a->made ? b->made : a->made;
    a->most_made = b->most_made > a->most_made ? b->most_made : a->most_made;
    a->torn += b->torn;
    a->saving += b->saving;
    a->into_step = b->into_step > a->into_step ? b->into_step : a->into_step;
    if (a->hung.seconds == 0) a->hung = b->hung;
}

/* A rank may have died after the commit of a step and before it wrote its own line about it, although all
 * others have; and so may the rank that writes the records of all (writer_died). */
static bool writes_of_each_rank(const Config *c) { return c->data.audit || c->metrics.all_ranks; }

static Facts facts_of(const Trainer *t, const Gone *gone) {
    const Recovery *r = &t->recovery;
    Facts own = {.hung = gone->found,
                 .started = r->before[0].state.step,
                 .torn = r->torn,
                 .saving = r->owes_save,
                 .into_step = gone->into_step};
    if (is_spare(t, comm_rank(t->comm)))
        return (Facts){.hung = gone->found, .started = INT64_MAX, .made = INT64_MAX, .most_made = NO_STEP};
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
    }
    if (r->state) r->updates = engine_state_updates(r->state);
    rank_plan_free(&t->rank);
    layout_free(&t->layout);
}

static void list_rank(Text *list, int name) { text_printf(list, "%s%d", list->length ? ", " : "", name); }

enum { LEAVES = RECOVERY_SPARE - 1 /* in place of a rank's number */ };

/* Takes over the numbers of the ranks that are still here. */
static void take_repair(Recovery *r, const CommRepair *now, Gone *gone) {
    for (int old = 0, p = 0; old < now->size + now->lost; old++) {
        int number = r->numbers[old], name = r->names[old];
        if (p < now->size && now->old_ranks[p] == old) {
            r->numbers[p] = number;
            r->names[p++] = name;
        } else if (number != LEAVES) {
            list_rank(&gone->died, name);
            if (number == RECOVERY_SPARE) text_puts(&gone->died, " (a spare)");
        }
    }
}

/* NULL: all can go on from the same step. */
static const char *find_problem(const Facts *f) {
    if (f->most_made == NO_STEP) return "only spares are left, which hold no weights";
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
    char where[40] = "";
    t->recovery.refused = true;
    t->is_rank0 = comm_rank(t->comm) == 0;
    if (t->is_rank0) journal_open(&t->journal, t->c->run.dir, NULL);
    if (f->most_made != NO_STEP) snprintf(where, sizeof where, " in step %lld", (long long)f->started + 1);
    error_set(err, ERR_PEER,
              "rank %s died%s, and the others cannot go on without it: %s%s; the run goes on from its last "
              "checkpoint when it is started again",
              gone->died.length ? gone->died.data : "?", where, why, hung_in_words(gone));
    err->reported = comm_rank(t->comm) != 0;
    return ERR_PEER;
}

/* A rank that the mesh has no place for. It reports nothing to the launcher: only those that end the run
 * do. */
static _Noreturn void leave(void) {
    tell_left();
    fflush(NULL);
    _exit(0);
}

/* Who goes on, and as what. */
typedef struct Choice {
    MeshOptions mesh;
    int world;  /* its ranks */
    int *seats; /* [world] who is to be that rank */
    bool moves; /* some of them lack its shards */
} Choice;

static const char *choose_replicas(Trainer *t, Choice *c) {
    int replicas = choose(t, c->seats);
    Mesh now = mesh_of_replicas(&t->recovery.mesh, replicas);
    c->mesh = mesh_degrees(&now);
    c->world = now.world;
    for (int i = 0; i < c->world; i++) c->moves |= is_spare(t, c->seats[i]);
    if (replicas > 0) return NULL;
    return recovery_may_change_mesh(t)
               ? "they make no whole replica, or a step cannot be divided among those there are"
               : RECOVERY_NO_SPARE;
}

/* In the same mesh each that lives keeps its place, and spares take the others; in a smaller one all are made
 * anew, and the first ranks take the places. */
static const char *choose_from_copies(Trainer *t, Choice *c) {
    const Recovery *r = &t->recovery;
    int count = comm_size(t->comm);
    const char *problem = shards_find_mesh(t, &c->mesh);
    if (problem) return problem;
    c->world = (int)(c->mesh.pp * c->mesh.dp_shard * c->mesh.cp * c->mesh.tp);
    c->moves = c->world != r->mesh.world;
    bool same = !c->moves;
    for (int i = 0; i < c->world; i++) c->seats[i] = same ? -1 : i;
    for (int p = 0; same && p < count; p++)
        if (!is_spare(t, p)) c->seats[r->numbers[p]] = p;
    for (int i = 0, p = 0; i < c->world; i++) {
        if (c->seats[i] >= 0) continue;
        while (!is_spare(t, p)) p++;
        c->seats[i] = p++;
        c->moves = true;
    }
    return NULL;
}

static void list_new_rank(Gone *gone, int name, int place) {
    text_printf(&gone->joined, "; rank %d, a spare, is rank %d now", name, place);
}

/* order: those with a place in the mesh first. Spares are renumbered so, others keep their order. */
static void take_numbers(Recovery *r, const Choice *c, const int *order, int count, Gone *gone) {
    int *names = mem_alloc_array((size_t)count, sizeof *names),
        *numbers = mem_alloc_array((size_t)count, sizeof *numbers);
    for (int p = 0; p < count; p++) {
        int at = order[p], now = r->spares ? p : at, before = r->numbers[at];
        names[now] = r->names[at];
        numbers[now] = p < c->world ? p : r->spares ? RECOVERY_SPARE : LEAVES;
        if (p < c->world && before == RECOVERY_SPARE) list_new_rank(gone, r->names[at], p);
        if (p >= c->world && before != RECOVERY_SPARE) list_rank(&gone->left, r->names[at]);
    }
    memcpy(r->names, names, (size_t)count * sizeof *names);
    memcpy(r->numbers, numbers, (size_t)count * sizeof *numbers);
    free(names);
    free(numbers);
}

static ErrorCode take_mesh(Recovery *r, const Choice *c, Error *err) {
    Mesh now;
    TRY(mesh_build(&now, &c->mesh, c->world, err));
    r->mesh_changed |= memcmp(now.degree, r->mesh.degree, sizeof now.degree) != 0;
    r->mesh = now;
    return OK;
}

/* Those without a place leave, where there are no spares: the others keep their order, and repair once
 * more. */
static ErrorCode take_places(Trainer *t, const Choice *c, bool *whole, Gone *gone, Error *err) {
    Recovery *r = &t->recovery;
    int count = comm_size(t->comm), at = 0, own = comm_rank(t->comm);
    int *order = mem_alloc_array((size_t)count, sizeof *order);
    bool *taken = mem_alloc_array((size_t)count, sizeof *taken);
    for (; at < c->world; at++) taken[order[at] = c->seats[at]] = true;
    bool has_place = taken[own];
    for (int p = 0; p < count; p++)
        if (!taken[p]) order[at++] = p;
    if (!has_place && r->spares == 0) leave();
    take_numbers(r, c, order, count, gone);
    ErrorCode code = take_mesh(r, c, err);
    *whole = r->spares > 0 || count == c->world;
    if (r->spares > 0 && code == OK) code = comm_set_aside(t->comm, order, c->world, err);
    if (!has_place) {
        engine_free_state(r->state);
        r->state = NULL;
    }
    free(order);
    free(taken);
    return code;
}

/* What a spare must know before it can be one of the others. */
typedef struct Lesson {
    Progress before[2];
    MadeStep made;
    RunFacts facts;
    double flops_per_token, peak_flops;
    int64_t updates;
} Lesson;

static void teach(const Trainer *t, Lesson *l) {
    const Recovery *r = &t->recovery;
    *l = (Lesson){.before = {r->before[0], r->before[1]},
                  .made = r->made,
                  .facts = t->facts,
                  .flops_per_token = t->flops_per_token,
                  .peak_flops = t->peak_flops,
                  .updates = r->updates};
}

static void learn(Trainer *t, const Lesson *l) {
    Recovery *r = &t->recovery;
    memcpy(r->before, l->before, sizeof r->before);
    r->made = l->made;
    t->facts = l->facts;
    t->flops_per_token = l->flops_per_token;
    t->peak_flops = l->peak_flops;
    r->updates = l->updates;
}

/* The first that holds shards tells the spares, if there are any: these are the last. */
static ErrorCode tell_spares(Trainer *t, Error *err) {
    int count = comm_size(t->comm);
    if (!is_spare(t, count - 1) || is_spare(t, 0)) return OK;
    Lesson *l = mem_alloc(sizeof *l);
    teach(t, l);
    ErrorCode code = comm_broadcast(t->comm, l, sizeof *l, 0, err);
    if (code == OK && is_spare(t, comm_rank(t->comm))) learn(t, l);
    free(l);
    return code;
}

static ErrorCode seat_ranks(Trainer *t, const Facts *f, bool *whole, Gone *gone, Error *err) {
    bool copies = t->c->recovery.partner_copy;
    Choice c = {.seats = mem_alloc_array((size_t)t->recovery.mesh.world, sizeof *c.seats)};
    const char *problem = (copies ? choose_from_copies : choose_replicas)(t, &c);
    ErrorCode code = problem ? refuse(t, f, gone, problem, err) : OK;
    if (code == OK && c.moves) code = shards_move(t, &c.mesh, c.seats, err);
    if (code == OK) code = take_places(t, &c, whole, gone, err);
    free(c.seats);
    return code;
}

/* Finds the facts and the mesh of those that are left. *whole: no rank has left for want of a place;
 * otherwise the repair comes again, which waits until they are gone. Nobody acts on the facts before all
 * have them: the next repair would interrupt the others. */
static ErrorCode choose_ranks(Trainer *t, Facts *f, bool *whole, Gone *gone, Error *err) {
    find_hung(t, gone);
    *f = facts_of(t, gone);
    TRY(comm_combine(t->comm, f, sizeof *f, combine, err));
    TRY(tell_spares(t, err));
    TRY(comm_commit(t->comm, err));
    gone->into_step = f->into_step;
    take_hung(gone, &f->hung);
    const char *problem = find_problem(f);
    return problem ? refuse(t, f, gone, problem, err) : seat_ranks(t, f, whole, gone, err);
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
static ErrorCode change_mesh(const Recovery *r, OptionSet *set, const Config *c, Error *err) {
    const MeshOptions was = c->mesh, now = mesh_degrees(&r->mesh);
    TRY(change_degree(set, "mesh.dp_replicate", was.dp_replicate, now.dp_replicate, err));
    if (c->recovery.partner_copy) {
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
static void name_mesh(const Trainer *t, char *out, size_t size) {
    const MeshOptions m = mesh_degrees(&t->layout.mesh);
    if (t->c->recovery.partner_copy)
        snprintf(out, size, "mesh.pp %lld, dp_shard %lld, cp %lld, tp %lld, ep %lld", (long long)m.pp,
                 (long long)m.dp_shard, (long long)m.cp, (long long)m.tp, (long long)m.ep);
    else
        snprintf(out, size, "dp_replicate %lld", (long long)m.dp_replicate);
}

/* "in step 7", "after the update of step 7", "after step 20" of 20 */
static void name_moment(const Trainer *t, char *out, size_t size) {
    long long step = t->state.step;
    bool ends = step >= t->c->train.steps;
    snprintf(out, size, "%s step %lld",
             recovery_made(t) ? "after the update of"
             : ends           ? "after"
                              : "in",
             step + !ends);
}

static ErrorCode record_recovery(Trainer *t, const Gone *gone, Error *err) {
    char detail[1200], left[160] = "", mesh[80], moment[64];
    double seconds = clock_seconds() - gone->noticed;
    if (gone->left.length)
        snprintf(left, sizeof left, "; rank %.100s %s, which %s", gone->left.data,
                 t->recovery.spares ? "waits as a spare" : "left",
                 t->c->recovery.partner_copy ? "has no place in this mesh" : "no replica needs");
    name_mesh(t, mesh, sizeof mesh);
    name_moment(t, moment, sizeof moment);
    snprintf(detail, sizeof detail, "rank %.100s died %s; %d ranks go on with %s%.300s%s%s",
             gone->died.length ? gone->died.data : "?", moment, comm_size(t->comm), mesh,
             gone->joined.length ? gone->joined.data : "", left, hung_in_words(gone));
    if (t->is_rank0) log_warn("%s; recovered in %.3f s", detail, seconds);
    JournalFact facts[9] = {{"ranks", comm_size(t->comm)},
                            {"dp_replicate", mesh_size(&t->layout.mesh, MESH_REPLICAS)},
                            {"seconds", seconds},
                            {"into_step_seconds", gone->into_step},
                            {"repair_seconds", gone->repaired},
                            {"begin_seconds", gone->begun}};
    int count = 6;
    if (t->recovery.spares > 0) facts[count++] = (JournalFact){"spares", comm_count_aside(t->comm)};
    if (gone->hung_seconds > 0) facts[count++] = (JournalFact){"hung_seconds", gone->hung_seconds};
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
    if (t->recovery.mesh_changed) TRY(change_mesh(&t->recovery, set, t->c, err));
    t->recovery.mesh_changed = false;
    ErrorCode code = comm_is_aside(t->comm) ? OK : run_begin_again(t, set, err);
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
    if (comm_is_aside(t->comm)) return OK;
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
    text_free(&gone.joined);
    text_free(&gone.hung);
    return code;
}

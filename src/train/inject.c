/* Parses the text of --inject: faults with their keys, or a seed from which faults are drawn. Then injects
 * them: a rank kills itself, stops, sleeps, or corrupts a bit or a gradient.
 *
 * I1. A fault is a function of the text, the rank, the step and the attempt, so all ranks know all faults
 * without a message. I2. Random faults are drawn from the seed alone, so a run that failed can be made to
 * fail again.
 *
 * Examples:
 *
 *     kill:rank=1,step=7                       one fault
 *     slow:rank=2,phase=saving,ms=500          in a phase instead of a step
 *     random:seed=3,count=5,kinds=kill|stop    so many faults, in ascending steps
 *
 * Clauses are separated by blanks or semicolons. After a fault that ends an attempt (kill, stop) comes the
 * next attempt, so each random fault belongs to the attempt that the faults before it lead to. */
#include "train/inject.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "device/ops/memory.h"

/* The list is searched once per step; no soak test has this many steps. */
enum { MOST_FAULTS = 10000 };
#define BETWEEN "; \t\n"

typedef struct KindFacts {
    const char *name;
    bool ends; /* the attempt in which it happens */
} KindFacts;

static const KindFacts kinds[FAULT_KINDS] = {
    [FAULT_KILL] = {"kill", true},        [FAULT_STOP] = {"stop", true},  [FAULT_NAN] = {"nan", false},
    [FAULT_BITFLIP] = {"bitflip", false}, [FAULT_SLOW] = {"slow", false},
};

/* As --inject spells it, so that a fault in the log can be requested again. */
const char *fault_name(FaultKind kind) { return kinds[kind].name; }

/* Keys of a clause. */
typedef enum Key {
    KEY_RANK,
    KEY_STEP,
    KEY_ATTEMPT,
    KEY_PHASE,
    KEY_SEED,
    KEY_MS,
    KEY_COUNT,
    KEY_KINDS,
    KEY_MICROBATCH,
    KEY_WHAT,
    KEY_ACTION,
    KEY_POOL,
    KEY_TIMES,
    KEYS
} Key;
static const char *const key_names[KEYS] = {"rank",   "step",  "attempt", "phase",      "seed",
                                            "ms",     "count", "kinds",   "microbatch", "what",
                                            "action", "pool",  "times"};

/* One clause of the text: "kind:key=value,...". */
typedef struct Clause {
    const char *text; /* up to `length`, for messages and kinds */
    size_t length;
    int kind; /* FaultKind, or FAULT_KINDS for "random" */
    bool given[KEYS];
    int64_t values[KEYS];
    unsigned chosen; /* bit set of the kinds of a random clause */
} Clause;

/* Shows the clause as it was written, escaped. */
static ErrorCode refuse(const Clause *p, Error *err, const char *why) {
    char shown[120];
    return error_set(err, ERR_USAGE, "--inject: \"%s\": %s",
                     error_escape(shown, sizeof shown, p->text, p->length), why);
}

/* Compares with part of the text, which is not terminated by NUL. */
static bool same(const char *name, const char *text, size_t length) {
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

/* Returns -1 if there is none. */
static int find_kind(const char *text, size_t length) {
    for (int k = 0; k < FAULT_KINDS; k++)
        if (same(kinds[k].name, text, length)) return k;
    return -1;
}

/* "kill|stop" */
static ErrorCode read_kinds(Clause *p, const char *text, size_t length, Error *err) {
    for (const char *end = text + length;;) {
        const char *bar = memchr(text, '|', (size_t)(end - text));
        int kind = find_kind(text, (size_t)((bar ? bar : end) - text));
        if (kind < 0) return refuse(p, err, "kinds are kill, stop, nan, bitflip, slow, parted by |");
        p->chosen |= 1U << kind;
        if (!bar) return OK;
        text = bar + 1;
    }
}

/* Phases that can have faults: faults are parsed only after MPI start, and steps are addressed by number. */
static bool has_faults(Phase phase) { return phase != PHASE_START && phase != PHASE_STEPS; }

static ErrorCode read_phase(Clause *p, const char *text, size_t length, Error *err) {
    char why[256] = "phases are";
    for (int i = 0; i < PHASES; i++) {
        if (!has_faults((Phase)i)) continue;
        size_t used = strlen(why);
        snprintf(why + used, sizeof why - used, " %s", phase_name((Phase)i));
        p->values[KEY_PHASE] = i;
        if (same(phase_name((Phase)i), text, length)) return OK;
    }
    return refuse(p, err, why);
}

/* What a fault corrupts, as key `what` spells it, and where in a step that happens. */
typedef struct PlaceFacts {
    const char *name;
    StepPoison poison; /* POISON_NONE: not within the engine's step */
} PlaceFacts;

static const PlaceFacts places[FAULT_PLACES] = {
    [FAULT_IN_GRADIENTS] = {"gradients", POISON_GRADIENT},
    [FAULT_IN_ACTIVATIONS] = {"activations", POISON_ACTIVATION},
    [FAULT_IN_MESSAGES] = {"messages", POISON_MESSAGE},
    [FAULT_IN_TOKENS] = {"tokens", POISON_TOKENS},
    [FAULT_IN_WEIGHTS] = {"weights", POISON_NONE},
    [FAULT_IN_MOMENTS] = {"moments", POISON_NONE},
    [FAULT_IN_STAGING] = {"staging", POISON_NONE},
    [FAULT_IN_POOL] = {NULL, POISON_MEMORY}, /* by key `pool` */
};

static const char *const pools[POOL_COUNT] = {
    [POOL_PARAMETERS] = "parameters",
    [POOL_COPY] = "copy",
    [POOL_GATHERED] = "gathered",
    [POOL_GRADIENTS] = "gradients",
    [POOL_SLOTS] = "slots",
    [POOL_OPTIMIZER] = "optimizer",
    [POOL_CONSTANTS] = "constants",
    [POOL_STATISTICS] = "statistics",
    [POOL_ACTIVATIONS] = "activations",
    [POOL_WORKSPACE] = "workspace",
    [POOL_COMMUNICATION] = "communication",
    [POOL_PARTNER] = "partner",
};

/* A NaN can be where the engine makes something; a bit flips anywhere. */
static ErrorCode read_what(Clause *p, const char *text, size_t length, Error *err) {
    int count = p->kind == FAULT_NAN ? FAULT_IN_MESSAGES : FAULT_IN_POOL;
    for (int i = 0; i < count; i++) {
        p->values[KEY_WHAT] = i;
        if (same(places[i].name, text, length)) return OK;
    }
    return refuse(p, err,
                  p->kind == FAULT_NAN ? "what=gradients or what=activations is possible"
                                       : "what is one of gradients, activations, messages, tokens, weights, "
                                         "moments, staging");
}

static ErrorCode read_pool(Clause *p, const char *text, size_t length, Error *err) {
    char why[256] = "pool is one of";
    for (int i = 0; i < POOL_COUNT; i++) {
        size_t used = strlen(why);
        snprintf(why + used, sizeof why - used, " %s", pools[i]);
        p->values[KEY_POOL] = i;
        if (same(pools[i], text, length)) return OK;
    }
    return refuse(p, err, why);
}

static ErrorCode read_action(Clause *p, const char *text, size_t length, Error *err) {
    for (int i = 0; i < ACT_KINDS; i++) {
        p->values[KEY_ACTION] = i;
        if (same(action_name((ActionKind)i), text, length)) return OK;
    }
    return refuse(p, err, "there is no such action: weft plan --program lists them, as FWD, NORM, UPDATE");
}

/* At most sixteen digits, so nothing overflows. */
static ErrorCode read_number(Clause *p, Key key, const char *text, size_t length, Error *err) {
    int64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || i > 15) return refuse(p, err, "values are whole numbers");
        value = 10 * value + (text[i] - '0');
    }
    if (length == 0) return refuse(p, err, "a value is missing");
    p->values[key] = value;
    return OK;
}

/* Whether this kind of fault reads the key. Others are refused: with an ignored key the fault would never
 * come. */
static bool belongs(const Clause *p, Key key) {
    bool random = p->kind == FAULT_KINDS;
    switch (key) {
    case KEY_RANK:
    case KEY_STEP:
    case KEY_ATTEMPT: return !random;
    case KEY_PHASE: return p->kind == FAULT_KILL || p->kind == FAULT_STOP || p->kind == FAULT_SLOW;
    case KEY_ACTION: return p->kind == FAULT_KILL || p->kind == FAULT_STOP;
    case KEY_SEED: return random || p->kind == FAULT_BITFLIP || p->kind == FAULT_NAN;
    case KEY_MICROBATCH:
    case KEY_WHAT: return p->kind == FAULT_NAN || p->kind == FAULT_BITFLIP;
    case KEY_TIMES:
    case KEY_POOL: return p->kind == FAULT_BITFLIP;
    case KEY_MS: return random || p->kind == FAULT_SLOW;
    case KEY_COUNT:
    case KEY_KINDS: return random;
    case KEYS: break;
    }
    return false;
}

/* "key=value" */
static ErrorCode read_pair(Clause *p, const char *text, size_t length, Error *err) {
    const char *equals = memchr(text, '=', length);
    size_t name = equals ? (size_t)(equals - text) : length;
    int key = 0;
    while (key < KEYS && !same(key_names[key], text, name)) key++;
    if (!equals || key == KEYS)
        return refuse(p, err,
                      "expected kind:key=value,... with the keys rank, step, attempt, phase, seed, ms, "
                      "microbatch, what, action, pool, times, or count, kinds");
    if (!belongs(p, (Key)key)) return refuse(p, err, "a key that this kind of fault does not have");
    if (p->given[key]) return refuse(p, err, "a key is given twice");
    p->given[key] = true;
    size_t rest = length - name - 1;
    if (key == KEY_KINDS) return read_kinds(p, equals + 1, rest, err);
    if (key == KEY_PHASE) return read_phase(p, equals + 1, rest, err);
    if (key == KEY_WHAT) return read_what(p, equals + 1, rest, err);
    if (key == KEY_ACTION) return read_action(p, equals + 1, rest, err);
    if (key == KEY_POOL) return read_pool(p, equals + 1, rest, err);
    return read_number(p, (Key)key, equals + 1, rest, err);
}

/* Defaults: a second, one fault, gradients (of a bit: weights), rank 0, attempt 0, microbatch 0. */
static ErrorCode read_clause(Clause *p, const char *text, size_t length, Error *err) {
    *p = (Clause){.text = text,
                  .length = length,
                  .values = {[KEY_MS] = 1000, [KEY_COUNT] = 1, [KEY_ACTION] = ACT_KINDS, [KEY_TIMES] = 1}};
    const char *colon = memchr(text, ':', length), *end = text + length;
    size_t name = colon ? (size_t)(colon - text) : length;
    p->kind = same("random", text, name) ? FAULT_KINDS : find_kind(text, name);
    if (p->kind == FAULT_BITFLIP) p->values[KEY_WHAT] = FAULT_IN_WEIGHTS;
    if (p->kind < 0)
        return refuse(p, err, "faults are kill, stop, nan, bitflip, slow, random, as in kill:rank=1,step=7");
    for (const char *at = colon ? colon + 1 : end; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        TRY(read_pair(p, at, (size_t)((comma ? comma : end) - at), err));
        at = comma ? comma + 1 : end;
    }
    return OK;
}

/* Checked against the run: with a fault that no rank or step can have, a test would pass without testing
 * anything. */
static ErrorCode add_fault(Inject *in, const Clause *p, int ranks, int64_t steps, Error *err) {
    char why[120];
    const int64_t *v = p->values;
    bool in_phase = p->given[KEY_PHASE], in_step = p->given[KEY_STEP];
    if (!in_step && !in_phase) return refuse(p, err, "step=N is missing");
    if (in_phase && p->given[KEY_ACTION]) return refuse(p, err, "actions are in steps, not in a phase");
    if (p->given[KEY_POOL] && (p->given[KEY_WHAT] || p->given[KEY_MICROBATCH]))
        return refuse(p, err,
                      "pool names memory at any moment of a step, so what and microbatch do not go with it");
    snprintf(why, sizeof why, "the run has ranks 0 to %d and steps 1 to %" PRId64, ranks - 1, steps);
    if (v[KEY_RANK] >= ranks || (in_step && v[KEY_STEP] < 1) || v[KEY_STEP] > steps)
        return refuse(p, err, why);
    if (v[KEY_ATTEMPT] > INT32_MAX) return refuse(p, err, "there is no such attempt");
    if (v[KEY_TIMES] < 1 || v[KEY_TIMES] > 100) return refuse(p, err, "times is 1 to 100");
    if (v[KEY_MICROBATCH] > INT32_MAX) return refuse(p, err, "there is no such microbatch");
    in->faults[in->count++] = (Fault){.kind = (FaultKind)p->kind,
                                      .rank = (int)v[KEY_RANK],
                                      .attempt = (int)v[KEY_ATTEMPT],
                                      .phase = in_phase ? (Phase)v[KEY_PHASE] : PHASE_STEPS,
                                      .step = v[KEY_STEP],
                                      .ms = v[KEY_MS],
                                      .action = (ActionKind)v[KEY_ACTION],
                                      .place = p->given[KEY_POOL] ? FAULT_IN_POOL : (FaultPlace)v[KEY_WHAT],
                                      .pool = (EnginePool)v[KEY_POOL],
                                      .microbatch = (int)v[KEY_MICROBATCH],
                                      .times = (int)v[KEY_TIMES],
                                      .seed = (uint64_t)v[KEY_SEED]};
    return OK;
}

/* ---- random faults ---- */

/* Attempts are counted along ascending steps. */
static int by_step(const void *a, const void *b) {
    const Fault *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

/* Kind number `index` of those chosen. */
static FaultKind choose(unsigned chosen, uint64_t index) {
    int kind = 0;
    for (;; kind++)
        if (chosen >> kind & 1 && index-- == 0) return (FaultKind)kind;
}

/* Each iteration clears the lowest bit that is set. */
static int count_bits(unsigned set) {
    int count = 0;
    for (; set; set &= set - 1) count++;
    return count;
}

/* Steps are the first `count` of a permutation, so that no step has two faults while there are unused
 * steps. */
static void draw_faults(Fault *faults, const Clause *p, int64_t count, int ranks, int64_t steps) {
    uint64_t key = rng_key((uint64_t)p->values[KEY_SEED], "inject");
    unsigned chosen = p->chosen ? p->chosen : (1U << FAULT_KINDS) - 1;
    for (int64_t i = 0; i < count; i++) {
        uint64_t draw = 3 * (uint64_t)i;
        faults[i] =
            (Fault){.kind = choose(chosen, rng_u64(key, draw) % (uint64_t)count_bits(chosen)),
                    .rank = (int)(rng_u64(key, draw + 1) % (uint64_t)ranks),
                    .step = 1 + (int64_t)rng_permute(key, (uint64_t)steps, (uint64_t)i % (uint64_t)steps),
                    .phase = PHASE_STEPS,
                    .action = ACT_KINDS,
                    .ms = p->values[KEY_MS],
                    .seed = rng_u64(key, draw + 2)};
    }
    for (int64_t i = 0; i < count; i++)
        faults[i].place = faults[i].kind == FAULT_BITFLIP ? FAULT_IN_WEIGHTS : FAULT_IN_GRADIENTS;
    qsort(faults, (size_t)count, sizeof *faults, by_step);
    int attempt = 0;
    for (int64_t i = 0; i < count; i++) {
        faults[i].attempt = attempt;
        attempt += kinds[faults[i].kind].ends;
    }
}

/* May move `faults`, so nothing keeps a pointer into it while the text is parsed. */
static ErrorCode add_clause(Inject *in, const char *text, size_t length, int ranks, int64_t steps,
                            Error *err) {
    Clause p;
    TRY(read_clause(&p, text, length, err));
    int64_t count = p.kind == FAULT_KINDS ? p.values[KEY_COUNT] : 1;
    if (count > MOST_FAULTS - (int64_t)in->count) return refuse(&p, err, "at most 10000 faults are possible");
    /* One more than needed, because an empty list would have no address. */
    in->faults = mem_grow(in->faults, (in->count + (size_t)count + 1) * sizeof *in->faults);
    if (p.kind < FAULT_KINDS) return add_fault(in, &p, ranks, steps, err);
    draw_faults(in->faults + in->count, &p, count, ranks, steps);
    in->count += (size_t)count;
    return OK;
}

/* NULL means no faults. A text without a fault is an error, since whoever gives it expects one. What was
 * parsed before an error stays, for inject_free. */
ErrorCode inject_parse(Inject *in, const char *text, int ranks, int64_t steps, Error *err) {
    *in = (Inject){0};
    CHECK(ranks >= 1 && steps >= 1);
    if (text && !text[strspn(text, BETWEEN)])
        return error_set(err, ERR_USAGE,
                         "--inject names no fault: expected kind:key=value,... as in kill:rank=1,step=7");
    for (const char *at = text ? text : ""; *(at += strspn(at, BETWEEN));) {
        size_t length = strcspn(at, BETWEEN);
        TRY(add_clause(in, at, length, ranks, steps, err));
        at += length;
    }
    return OK;
}

void inject_free(Inject *in) {
    free(in->faults);
    *in = (Inject){0};
}

/* ---- in the run ---- */

const Fault *inject_at(const Inject *in, int rank, int64_t step, int attempt, const Fault *last) {
    for (size_t i = last ? (size_t)(last - in->faults) + 1 : 0; i < in->count; i++) {
        const Fault *f = &in->faults[i];
        if (f->phase == PHASE_STEPS && f->rank == rank && f->step == step && f->attempt == attempt) return f;
    }
    return NULL;
}

const Fault *inject_in(const Inject *in, const FaultPoint *point, const Fault *last) {
    for (size_t i = last ? (size_t)(last - in->faults) + 1 : 0; i < in->count; i++) {
        const Fault *f = &in->faults[i];
        /* Without a step: when the phase is first entered. */
        bool now = f->step ? f->step == point->step : point->first;
        if (has_faults(f->phase) && f->phase == point->phase && f->rank == point->rank &&
            f->attempt == point->attempt && now)
            return f;
    }
    return NULL;
}

/* Kill and stop are real signals, as the system or a batch scheduler would send them: no code of weft runs
 * afterwards. A sleep that a signal interrupts continues. */
static void inject_process_fault(const Fault *f) {
    struct timespec left = {.tv_sec = f->ms / 1000, .tv_nsec = f->ms % 1000 * 1000000};
    if (f->kind == FAULT_KILL) raise(SIGKILL);
    if (f->kind == FAULT_STOP) raise(SIGSTOP);
    while (f->kind == FAULT_SLOW && nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

/* Depends on the fault's seed and step only: the same bit in each repetition. */
uint64_t inject_index(const Fault *f, uint64_t bits) {
    return rng_u64(rng_key(f->seed, "inject.place"), (uint64_t)f->step) % bits;
}

/* ---- what faults do ---- */

/* Arrays of a parameter's segment that outlive a step: its master weights, or the states of its optimizer. */
static int arrays_of(const Engine *e, FaultPlace place, int param) {
    return place == FAULT_IN_WEIGHTS ? 1 : param_states(&engine_plan(e)->groups, param);
}

static char *memory_of(const Engine *e, FaultPlace place, int param, int array, size_t *bytes) {
    const RankPlan *plan = engine_plan(e);
    ParamSegment segment = partition_segment(&plan->partition, &engine_model(e)->table.params[param]);
    bool weights = place == FAULT_IN_WEIGHTS;
    *bytes =
        (size_t)segment.count * (weights ? sizeof(float) : param_state_width(&plan->groups, param, array));
    if (*bytes == 0) return NULL;
    return weights ? (char *)engine_master(e, segment) : engine_optimizer_state(e, param, array);
}

/* Bits of it that this rank owns. */
static uint64_t bits_of(const Engine *e, FaultPlace place) {
    uint64_t all = 0;
    for (int i = 0; i < engine_model(e)->table.count; i++)
        for (int k = 0; k < arrays_of(e, place, i); k++) {
            size_t bytes;
            memory_of(e, place, i, k, &bytes);
            all += 8 * bytes;
        }
    return all;
}

/* Goes through the device, as every access to tensor memory does. The compute copy is refreshed; otherwise
 * passes would not see the flip. */
static void flip_bit(Engine *e, char *byte, unsigned bit) {
    unsigned char bits;
    device_fetch(engine_device(e), &bits, byte, sizeof bits);
    bits = (unsigned char)(bits ^ 1U << bit);
    OP(engine_device(e), upload, byte, &bits, sizeof bits);
    engine_refresh(e);
}

static void flip_in(Engine *e, FaultPlace place, int param, int array, uint64_t bit, char *where,
                    size_t size) {
    const Param *p = &engine_model(e)->table.params[param];
    ParamSegment segment = partition_segment(&engine_plan(e)->partition, p);
    size_t bytes;
    char *memory = memory_of(e, place, param, array, &bytes);
    uint64_t width = 8 * bytes / (uint64_t)segment.count;
    flip_bit(e, memory + bit / 8, (unsigned)(bit % 8));
    snprintf(where, size, "bit %d of element %lld of %s%s", (int)(bit % width),
             (long long)segment_run(&segment, (int64_t)(bit / width)).element,
             place == FAULT_IN_MOMENTS ? "the moments of " : "", p->name);
}

/* Searches the table for the parameter with that bit. */
void inject_bitflip(Engine *e, FaultPlace place, uint64_t index, char *where, size_t size) {
    uint64_t all = bits_of(e, place), left = all > 0 ? index % all : 0;
    for (int i = 0; all > 0 && i < engine_model(e)->table.count; i++)
        for (int k = 0; k < arrays_of(e, place, i); k++) {
            size_t bytes;
            memory_of(e, place, i, k, &bytes);
            if (left < 8 * bytes) {
                flip_in(e, place, i, k, left, where, size);
                return;
            }
            left -= 8 * bytes;
        }
    snprintf(where, size, "in nothing: this rank has none");
}

/* Memory flips at any moment of the step: before an action that the seed selects. */
static void poison_memory(const Fault *f, const Engine *e, StepOptions *options, char *where, size_t size) {
    int actions = engine_plan(e)->program.count;
    options->poison_pool = f->pool;
    options->poison_action =
        (int)(rng_u64(rng_key(f->seed, "inject.moment"), (uint64_t)f->step) % (uint64_t)actions);
    if (engine_pool_bytes(e, f->pool) > 0)
        snprintf(where, size, "in memory of %s, before action %d", pools[f->pool], options->poison_action);
    else
        snprintf(where, size, "in nothing: this rank has no memory of %s", pools[f->pool]);
}

/* The engine corrupts what it makes inside the step, where a broken kernel would. */
static void poison(const Fault *f, const Engine *e, StepOptions *options, char *where, size_t size) {
    options->poison = places[f->place].poison, options->poison_microbatch = f->microbatch;
    options->poison_flips = f->kind == FAULT_BITFLIP, options->poison_times = f->times;
    options->poison_index = inject_index(f, UINT64_MAX);
    if (f->place == FAULT_IN_POOL)
        poison_memory(f, e, options, where, size);
    else
        snprintf(where, size, "in %s of microbatch %d", places[f->place].name, f->microbatch);
}

static void corrupt(const Fault *f, Engine *e, StepOptions *options, char *where, size_t size) {
    if (places[f->place].poison != POISON_NONE)
        poison(f, e, options, where, size);
    else if (f->place == FAULT_IN_STAGING)
        snprintf(where, size, "%s",
                 engine_plan(e)->memory.staging > 0 ? "in the copy that the next checkpoint is written from"
                                                    : "in nothing: this rank copies nothing for checkpoints");
    else
        inject_bitflip(e, f->place, inject_index(f, UINT64_MAX), where, size);
}

/* Called by the engine before each action. */
static void strike(const void *fault, ActionKind action) {
    const Fault *f = fault;
    if (f->action == action) inject_process_fault(f);
}

/* Logs first: a rank that kills itself prints nothing afterwards. */
static void inject_one(const Fault *f, Engine *e, StepOptions *options) {
    char where[160] = "";
    if (f->kind == FAULT_BITFLIP || f->kind == FAULT_NAN) corrupt(f, e, options, where, sizeof where);
    if (f->action < ACT_KINDS) {
        options->before_action = strike, options->fault = f;
        snprintf(where, sizeof where, "at %s", action_name(f->action));
    }
    log_warn("injected on rank %d, before step %lld: %s%s%s", f->rank, (long long)f->step,
             fault_name(f->kind), where[0] ? ", " : "", where);
    if (f->action == ACT_KINDS) inject_process_fault(f);
}

/* In the order of the text. */
void inject_faults(const Inject *in, int rank, Engine *e, int64_t step, int attempt, StepOptions *options) {
    for (const Fault *f = NULL; (f = inject_at(in, rank, step, attempt, f));) inject_one(f, e, options);
}

void inject_phase_faults(const Inject *in, const FaultPoint *point) {
    for (const Fault *f = NULL; (f = inject_in(in, point, f));) {
        log_warn("injected on rank %d, in %s: %s", f->rank, phase_name(f->phase), fault_name(f->kind));
        inject_process_fault(f);
    }
}

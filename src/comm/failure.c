/* Makes the failure of one rank the failure of all, and finds ranks that hang.
 *
 *  1. A rank that fails tells the others (a control message). Rank 0 selects who prints: the first failed
 *     rank that it hears of, or itself if it fails before it has heard of any. (If rank 0 is known to be
 *     dead, the lowest rank that is not does.) That rank prints, then ends the job; the others that failed
 *     stay silent until they are ended. So one rank prints, however many fail, and however late messages
 *     are. Only if rank 0 does not answer for ANSWER_MS, the lowest of those that know of each other prints.
 *     The control message also ends the wait of a waiting rank. A rank whose communicator breaks listens for
 *     CAUSE_MS whether another one knows why, before it fails by itself.
 *
 *  2. The watchdog is a thread on every rank, from before MPI is initialised until after it is finalised.
 *     States of its own rank:
 *
 *        WORKS ---- comm_wait ----> WAITS ---- limit, nothing came ----> ASKS ---- verdict ----> the end
 *         |  ^ <-- what it waited for -|  ^ <--- another rank works -------|
 *         |  |
 *         |  |<-- the call returned --|
 *         |------ comm_blocked ----> BLOCKED ---- limit ----> the end
 *         |------ comm_waits_in ---> as WAITS, but the watchdog's thread receives control messages
 *
 *    WORKS    computes, reads, saves; long work beats (log.h progress_beat), which shows that it progresses.
 *    WAITS    in comm_wait: messages move, control messages are received, and it can name what it waits for.
 *    ASKS     the watchdog's thread asks all ranks (CONTROL_STALL) and listens (ask). Each answers with its
 *             state: CONTROL_WAITS; CONTROL_WORKS, if there was a beat within the limit, or a message within
 *             half of it; CONTROL_BUSY, if there was none. A rank that is stopped, or whose machine is gone,
 *             does not answer. If others work and make progress, the asker waits again, however long that
 *             takes. Otherwise the lowest of those that asked prints each answer, and who is to blame; where
 *             the others can go on without that rank (comm_end_hung), it is killed in place of all (hung.c).
 *    BLOCKED  for at least 30 s (the configured limit may be less than starting takes) in one of the few MPI
 *             calls that return only when all ranks have made them (initialising, creating groups,
 *             finalising). Nothing can be asked over MPI then, so the ranks of this machine are looked up
 *             among its processes (local_ranks.c).
 *
 *    A rank that was asleep itself (stopped, or its machine) did not wait during that time: its watchdog's
 *    thread was asleep too. After waking it answers no questions: the others are to find that it hung.
 *
 *  3. The thread does not wait for the main mutex unless it asks: the main thread may be stuck in MPI with
 *     it.
 *
 * Elsewhere called: heartbeat, flight recorder, NCCL timeout, straggler or hang detection. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/internal.h"
#include "comm/launch.h"

/* ANSWER_MS and LINGER_MS only keep ranks from waiting forever for one that will not print. In all other
 * cases its control message, or its end of the job, comes first. listening() determines how long answers to a
 * question are awaited, within the bounds below. */
enum {
    ANSWER_MS = 30000,
    CAUSE_MS = 2000,   /* a rank that aborts communicators breaks those of others, and soon tells them */
    LINGER_MS = 30000, /* for the printing rank to finish, however busy the machines are */
    LEAST_LISTEN_MS = 1000,
    MOST_LISTEN_MS = 10000,
    LEAST_BLOCKED_S = 30, /* starting MPI takes seconds if many ranks share a core */
    LONGEST_TICK = 250000000 /* ns */,
    MOST_NAMED = 8
};

/* A single write, so that lines of several ranks do not mix. */
void watchdog_print(const char *line) {
    char text[CONTROL_TEXT + 512];
    int length = snprintf(text, sizeof text - 1, "%s", line);
    if (length > (int)sizeof text - 2) length = (int)sizeof text - 2;
    text[length] = '\n';
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)length + 1);
    (void)ignored;
}

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* ---- control messages ---- */

void control_listen(Comm *c) {
    Transfer t = {.receives = true, .peer = TRANSPORT_ANY, .bytes = sizeof c->control_message};
    c->control_event = transfer_post(c, t, c->control, 0, &c->control_message);
}

static void answer_stall(Comm *c, int peer);

/* Keeps a rank's answer while this one asks. The last answer counts: a rank that worked may wait by now. */
static void keep_answer(Comm *c, const ControlMessage *n) {
    c->heard[n->rank] = (ControlKind)n->kind;
    free(c->lines[n->rank]);
    c->lines[n->rank] = *n->message ? mem_strdup(n->message) : NULL;
}

/* Sends to one rank, or to all others (peer -1). The sends are never waited for, so their memory is never
 * freed: small messages leave at once, and most processes that send one end soon. */
void control_send(Comm *c, ControlKind kind, int peer, ErrorCode code, const char *message) {
    ControlMessage *n = mem_alloc(sizeof *n);
    *n = (ControlMessage){.kind = kind, .rank = c->rank, .code = code};
    snprintf(n->message, sizeof n->message, "%s", message);
    for (int p = 0; p < c->size; p++) {
        if (p == c->rank || (peer >= 0 && p != peer)) continue;
        transfer_post(c, (Transfer){.peer = p, .bytes = sizeof *n}, c->control, 0, n);
    }
}

static bool is_gone(const Comm *c, int rank) {
    const TransportKind *kind = c->transport->kind;
    return kind->is_gone && kind->is_gone(c->transport, c->order[rank]);
}

/* Whether this rank selects who prints: rank 0 does, or the lowest one that is not known to be dead. */
static bool selects(const Comm *c) {
    for (int p = 0; p < c->rank; p++)
        if (!is_gone(c, p)) return false;
    return true;
}

static void hear_failure(Comm *c, const ControlMessage *n) {
    /* Used if rank 0 does not select who prints (has_word). */
    if (n->rank < c->lowest_failed) c->lowest_failed = n->rank;
    if (c->failure.code == OK) {
        comm_keep_failure(c, (ErrorCode)n->code, "rank %d failed: %s", n->rank, n->message);
        c->failure.reported = true;
    }
    if (!selects(c) || c->speaker >= 0) return;
    c->speaker = n->rank;
    control_send(c, CONTROL_SPEAK, n->rank, OK, "");
}

/* Called by whoever polls the transport; the lock is held. Posts the next receive at the end, so that there
 * always is one. */
void control_arrived(Comm *c) {
    const ControlMessage *n = &c->control_message;
    if (n->kind == CONTROL_FAILURE)
        hear_failure(c, n);
    else if (n->kind == CONTROL_SPEAK)
        c->speaker = c->rank;
    else if (n->kind == CONTROL_HUNG)
        hung_told(c, n->code, n->message);
    else if (c->asking)
        keep_answer(c, n);
    else if (n->kind == CONTROL_STALL)
        answer_stall(c, n->rank);
    control_listen(c);
}

/* Takes the mutex if that is possible soon: a thread may be stuck in MPI. pthread_mutex_timedlock uses
 * CLOCK_REALTIME. */
static bool lock_soon(Comm *c) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    return pthread_mutex_timedlock(&c->mutex, &until) == 0;
}

/* Returns true if a message had come. */
static bool take_control(Comm *c) { return c->listening && transfer_test(c, c->control_event); }

/* Only control messages still matter; c->failure is set, so operations do not advance. */
static void listen(Comm *c, long ms) {
    for (long long until = comm_nanoseconds() + ms * 1000000LL; comm_nanoseconds() < until;)
        if (!take_control(c)) pause_ms(1);
}

/* ---- ending the job ---- */

static _Noreturn void end_all(Comm *c, bool locked, ErrorCode code) {
    launched_report_end((int)code);
    if (locked) c->transport->kind->abort(c->transport, (int)code);
    _exit((int)code);
}

/* A rank that does not print lets the other one finish, within limits, and answers it in the meantime. */
static _Noreturn void end_silently(Comm *c, bool locked, ErrorCode code) {
    locked ? listen(c, LINGER_MS) : pause_ms(LINGER_MS);
    end_all(c, locked, code);
}

/* This rank selects who prints. One that it has heard of before it became the lowest still waits for an
 * answer. */
static void take_word(Comm *c) {
    c->speaker = c->lowest_failed < c->size ? c->lowest_failed : c->rank;
    if (c->speaker != c->rank) control_send(c, CONTROL_SPEAK, c->speaker, OK, "");
}

/* Whether this rank, which has reported its failure, is to print it. The mutex is held. */
static bool has_word(Comm *c) {
    if (!c->listening) return true;
    for (long long until = comm_nanoseconds() + ANSWER_MS * 1000000LL;
         c->speaker < 0 && comm_nanoseconds() < until;) {
        if (selects(c)) take_word(c);
        if (c->speaker < 0 && !take_control(c)) pause_ms(1);
    }
    return c->speaker == c->rank || (c->speaker < 0 && c->rank < c->lowest_failed);
}

/* Leaves out the prefix if the message has it already: an agreed failure names its rank. */
static void print_failure(const char *prefix, const Error *err) {
    char line[CONTROL_TEXT + 800], end[600];
    bool named = strncmp(err->message, prefix, strlen(prefix)) == 0;
    log_status("%s", "");
    snprintf(line, sizeof line, "weft: %s%s (%s)", named ? "" : prefix, err->message,
             error_end(end, sizeof end, err->code));
    watchdog_print(line);
}

/* For failures that all ranks have agreed on: err->reported is unset on one of them. They cannot agree when
 * one has died. */
void comm_report(Comm *c, Error *err) {
    if (!c || !c->joined || err->code == OK || err->reported) return;
    if (c->broken) comm_fail(c, err);
    print_failure("", err);
    err->reported = true;
}

void comm_fail(Comm *c, const Error *failure) {
    if (!c || !c->joined) return;
    Error err = *failure;
    if (err.code == OK) err.code = ERR_INTERNAL;
    bool locked = lock_soon(c);
    if (locked && !err.reported) {
        /* Has another rank failed before? */
        Error own = err;
        /* So that control messages are handled as if nothing had happened here. */
        c->failure.code = OK;
        listen(c, 5);
        for (int ms = 0; c->hearsay && c->lowest_failed == c->size && ms < CAUSE_MS; ms += 5) listen(c, 5);
        if (c->lowest_failed < c->size) err.reported = true;
        c->failure = own;
    }
    if (err.reported) end_silently(c, locked, err.code);
    if (locked && c->listening) {
        control_send(c, CONTROL_FAILURE, -1, err.code, err.message);
        if (!has_word(c)) end_silently(c, locked, err.code);
    }
    char prefix[32];
    snprintf(prefix, sizeof prefix, "rank %d: ", c->rank);
    print_failure(prefix, &err);
    pause_ms(50);
    end_all(c, locked, err.code);
}

/* ---- the state of this rank ---- */

static long long limit_of(const Comm *c) { return atomic_load(&c->limit); }
static double limit_seconds(const Comm *c) { return (double)limit_of(c) / 1e9; }

/* Without a limit the thread still answers others, whose limit may be known before this rank's. A tenth of
 * the limit, so that a hang is found at most a tenth late. */
static long long tick_of(const Comm *c) {
    long long tenth = limit_of(c) / 10;
    return tenth > 0 && tenth < LONGEST_TICK ? tenth : LONGEST_TICK;
}

/* Nanoseconds for which an asking rank listens for answers. A rank whose thread was not awake for half a
 * limit and a tick does not answer any more (has_slept), so any answer comes within 0.6 of the limit plus the
 * time of a message; nothing could come in the rest. At least a second: only tests have shorter limits. */
static long long listening(const Comm *c) {
    long long ms = limit_of(c) / 1000000 * 2 / 3;
    if (ms < LEAST_LISTEN_MS) ms = LEAST_LISTEN_MS;
    if (ms > MOST_LISTEN_MS) ms = MOST_LISTEN_MS;
    return ms * 1000000;
}

/* True after half a limit without a look: a thread that sleeps for one tick looks in time on any machine that
 * is awake. */
static bool has_slept(const Comm *c, long long now) {
    long long looked = atomic_load(&c->looked_at);
    return looked && limit_of(c) && now - looked > limit_of(c) / 2 + tick_of(c);
}

/* Since when the program waits: for communication, or for its device, which with communicators waits for
 * other ranks' devices; 0: it does not wait. */
static long long waits_since(const Comm *c) {
    long long since = atomic_load(&c->waits_since);
    Device *d = atomic_load(&c->communicator_device);
    return since || !d ? since : atomic_load(&d->waits_since);
}

/* Nanoseconds for which the program has been waiting while nothing has come; 0: it does not wait. */
static long long waits_for(const Comm *c, long long now) {
    long long from = waits_since(c);
    if (from == 0) return 0;
    const long long later[] = {atomic_load(&c->moved_at), atomic_load(&c->awake_since)};
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (later[i] > from) from = later[i];
    return now > from ? now - from : 0;
}

/* The same, awake. */
static long long waited(const Comm *c) {
    long long now = comm_nanoseconds();
    return has_slept(c, now) ? 0 : waits_for(c, now);
}

/* The same, but not counting before another rank asked, which finds out for both, or before it learned that
 * others work. */
static long long stalled(const Comm *c) {
    long long waits = waited(c), excused = comm_nanoseconds() - atomic_load(&c->excused_at);
    return excused < waits ? excused : waits;
}

static bool is_at_work(const Comm *c) {
    long long beat = atomic_load(&c->beat_at);
    return beat && comm_nanoseconds() - beat <= limit_of(c);
}

static void describe_action(const Comm *c, char *out, size_t size) {
    *out = 0;
    if (c->watch.describe) c->watch.describe(c->watch.context, out, size);
}

/* Also while it asks, when the thread does not look. */
double watchdog_waited(const Comm *c) { return (double)waits_for(c, comm_nanoseconds()) / 1e9; }

void watchdog_describe(const Comm *c, char *out, size_t size) {
    char what[192] = "a communication", doing[256];
    const char *all = atomic_load(&c->blocked_in);
    if (!all) all = atomic_load(&c->waits_in);
    if (all)
        snprintf(what, sizeof what, "all ranks (%s)", all);
    else if (c->waiting_for && !op_ended(c, c->waiting_for))
        op_describe(c, &c->ops[(uint32_t)c->waiting_for - 1], what, sizeof what);
    describe_action(c, doing, sizeof doing);
    snprintf(out, size, "%s%s%s", what, *doing ? ", in " : "", doing);
}

/* Describes what this rank waits for, in one line; "" if it does not wait, or only briefly. The mutex is
 * held, unless the rank is blocked in MPI. */
static void describe_wait(Comm *c, char *out, size_t size) {
    char what[512];
    long long since = waited(c);
    *out = 0;
    if (since <= limit_of(c) / 2) return;
    watchdog_describe(c, what, sizeof what);
    snprintf(out, size, "weft: rank %d: nothing has come for %.1f s while waiting for %s", c->rank,
             (double)since / 1e9, what);
}

/* Neutral wording: a rank that computes for long is not at fault yet. */
static void describe_busy(Comm *c, char *out, size_t size) {
    char doing[256];
    describe_action(c, doing, sizeof doing);
    snprintf(out, size, "weft: rank %d: is busy, and waits for no rank%s%s", c->rank, *doing ? ", in " : "",
             doing);
}

/* A waiting rank lets the asking one find out for both. It would ask by itself only a limit after that one
 * has heard all answers. */
static void answer_stall(Comm *c, int peer) {
    char line[CONTROL_TEXT] = "";
    ControlKind kind = CONTROL_WAITS;
    long long now = comm_nanoseconds(), awake = atomic_load(&c->awake_since);
    if (has_slept(c, now) || (awake && now - awake < limit_of(c) / 2)) return;
    if (waits_since(c)) {
        describe_wait(c, line, sizeof line);
        /* Something has just arrived: what the others wait for may follow. */
        if (!*line) kind = CONTROL_WORKS;
        atomic_store(&c->excused_at, now + listening(c));
    } else if (is_at_work(c)) {
        kind = CONTROL_WORKS;
    } else {
        kind = CONTROL_BUSY;
        describe_busy(c, line, sizeof line);
    }
    control_send(c, kind, peer, OK, line);
}

/* ---- the verdict ---- */

/* Counts over all ranks, including this one, which has stored its own answer. */
static int count_heard(const Comm *c, ControlKind kind) {
    int count = 0;
    for (int p = 0; p < c->size; p++) count += c->heard[p] == kind;
    return count;
}

/* "ranks 1, 3"; at most MOST_NAMED of them, since there may be thousands. */
static void list_ranks(const Comm *c, ControlKind kind, Text *out) {
    int count = count_heard(c, kind), named = 0;
    text_printf(out, "rank%s ", count == 1 ? "" : "s");
    for (int p = 0; p < c->size && named < MOST_NAMED; p++)
        if (c->heard[p] == kind) text_printf(out, "%s%d", named++ ? ", " : "", p);
    if (count > named) text_printf(out, " and %d more", count - named);
}

#define AGAIN "with --restarts N a run goes on from its last checkpoint"

/* In this order: ranks that do not answer; ranks that answer that they are busy; otherwise nobody. Then the
 * ranks wait for each other: in a library that does not say for which, because of a bug, or because a message
 * was lost. */
static void blame(Comm *c, Error *err) {
    Text ranks = {0};
    char doing[256];
    const char *waits_in = atomic_load(&c->waits_in);
    int mute = count_heard(c, CONTROL_NONE), busy = count_heard(c, CONTROL_BUSY);
    list_ranks(c, mute ? CONTROL_NONE : CONTROL_BUSY, &ranks);
    describe_action(c, doing, sizeof doing);
    if (mute)
        error_set(err, ERR_PEER, "%s answer%s nobody: %s, or the machine does%s%s; " AGAIN, ranks.data,
                  mute == 1 ? "s" : "", mute == 1 ? "it hangs" : "they hang",
                  *doing ? "; this was found in " : "", doing);
    else if (busy)
        error_set(
            err, ERR_PEER,
            "the others have waited for %s for more than comm.watchdog_s = %g s: see what it does, raise the "
            "limit if that may take so long; " AGAIN,
            ranks.data, limit_seconds(c));
    else if (waits_in)
        error_set(
            err, ERR_PEER,
            "all ranks answer, and each has been %s for more than comm.watchdog_s = %g s: one hangs there, "
            "or does not reach the others; " AGAIN,
            waits_in, limit_seconds(c));
    else
        error_set(err, ERR_PEER,
                  "all ranks answer, and each waits for another for more than comm.watchdog_s = %g s; " AGAIN,
                  limit_seconds(c));
    text_free(&ranks);
}

/* Prints the answers of all ranks first, so that the last line is the verdict. */
static void report_verdict(Comm *c) {
    Error err;
    for (int p = 0; p < c->size; p++)
        if (c->lines[p]) watchdog_print(c->lines[p]);
    blame(c, &err);
    print_failure("", &err);
}

static bool is_lowest_asking(const Comm *c) {
    for (int p = 0; p < c->rank; p++)
        if (c->heard[p] == CONTROL_STALL) return false;
    return true;
}

/* Called before each question, so that answers belong to that question. */
static void forget_answers(Comm *c) {
    for (int p = 0; p < c->size; p++) {
        free(c->lines[p]);
        c->lines[p] = NULL;
        c->heard[p] = CONTROL_NONE;
    }
}

/* Listens until all have answered, or communication breaks. Messages that came while this thread was kept
 * from running count: it takes them once more after the deadline. */
static void hear_answers(Comm *c) {
    long long until = comm_nanoseconds() + listening(c);
    bool late = false;
    while (count_heard(c, CONTROL_NONE) && !late && c->failure.code == OK) {
        late = comm_nanoseconds() >= until;
        while (take_control(c)) continue;
        pause_ms(1);
    }
}

/* The mutex is held, so only control messages are handled in the meantime. */
static void ask(Comm *c) {
    ControlMessage own = {.kind = CONTROL_STALL, .rank = c->rank};
    describe_wait(c, own.message, sizeof own.message);
    c->asking = true;
    forget_answers(c);
    keep_answer(c, &own);
    control_send(c, CONTROL_STALL, -1, ERR_PEER, own.message);
    hear_answers(c);
    bool excused =
        count_heard(c, CONTROL_WORKS) && !count_heard(c, CONTROL_NONE) && !count_heard(c, CONTROL_BUSY);
    if (c->failure.code == OK && !excused && !(is_lowest_asking(c) ? hung_condemn(c) : c->ends_hung)) {
        /* Others that asked leave the verdict to the lowest, which ends them. If that one decides otherwise,
         * they print it after all. */
        if (!is_lowest_asking(c)) pause_ms(LINGER_MS);
        report_verdict(c);
        pause_ms(50);
        end_all(c, true, ERR_PEER);
    }
    forget_answers(c);
    c->asking = false;
    atomic_store(&c->excused_at, comm_nanoseconds());
}

/* ---- blocked in MPI ---- */

static void list_stopped(const LocalRank *ranks, int count, Text *out) {
    for (int i = 0; i < count; i++)
        if (ranks[i].state == 'T')
            text_printf(out, "%srank %d (process %d)", out->length ? ", " : "", ranks[i].rank,
                        (int)ranks[i].process);
}

/* On this machine; if there are several machines, one rank of each prints. */
static bool is_lowest_awake(const Comm *c, const LocalRank *ranks, int count) {
    for (int i = 0; i < count; i++)
        if (ranks[i].state != 'T' && ranks[i].rank < c->rank) return false;
    return true;
}

/* Each rank prints what it waits for; then one rank of each machine prints who is to blame. */
static _Noreturn void end_blocked(Comm *c) {
    char line[CONTROL_TEXT];
    Text stopped = {0};
    Error err;
    LocalRank *ranks;
    int count = local_ranks_find(c->rank_variable, &ranks);
    describe_wait(c, line, sizeof line);
    watchdog_print(line);
    if (!is_lowest_awake(c, ranks, count)) end_silently(c, false, ERR_PEER);
    pause_ms(300); /* so that the lines of the others come first */
    list_stopped(ranks, count, &stopped);
    if (stopped.length)
        error_set(&err, ERR_PEER, "%s: stopped, and answers nobody; " AGAIN, stopped.data);
    else
        error_set(
            &err, ERR_PEER,
            "no rank of this machine is stopped: ranks that did not report above what they wait for hang, "
            "here or on another machine; " AGAIN);
    print_failure("", &err);
    pause_ms(50);
    end_all(c, false, ERR_PEER);
}

void comm_blocked(Comm *c, const char *call) {
    atomic_store(&c->blocked_in, call);
    atomic_store(&c->waits_since, call ? comm_nanoseconds() : 0);
}

void comm_waits_in(Comm *c, const char *what) {
    atomic_store(&c->waits_in, what);
    atomic_store(&c->waits_since, what ? comm_nanoseconds() : 0);
}

/* ---- the watchdog's thread ---- */

/* Beats are counted per process; the rank's own watchdog keeps their times. */
static void count_beats(Comm *c, long long now) {
    uint64_t beats = progress_beats();
    if (beats != c->beats) atomic_store(&c->beat_at, now);
    c->beats = beats;
}

/* A program that waits for its device polls nothing. If others have failed, what it waits for does not come;
 * otherwise everything that arrives shows progress. */
static void look_at_communicators(Comm *c) {
    const Device *d = atomic_load(&c->communicator_device);
    if (!d || !atomic_load(&d->waits_since) || pthread_mutex_trylock(&c->mutex) != 0) return;
    transfer_progress(c, c->device);
    pthread_mutex_unlock(&c->mutex);
}

/* Compares the time of the previous look first: a thread that was asleep is late. */
static void look(Comm *c) {
    long long now = comm_nanoseconds();
    if (has_slept(c, now)) atomic_store(&c->awake_since, now);
    atomic_store(&c->looked_at, now);
    count_beats(c, now);
    look_at_communicators(c);
    hung_end_own(c);
    bool asks = limit_of(c) > 0 && stalled(c) > limit_of(c);
    if (atomic_load(&c->blocked_in)) {
        if (asks && hung_find_stopped(c))
            atomic_store(&c->excused_at, now);
        else if (asks && stalled(c) > LEAST_BLOCKED_S * 1000000000LL)
            end_blocked(c);
        return;
    }
    if (!asks && atomic_load(&c->waits_since) && !atomic_load(&c->waits_in))
        return; /* the program receives control messages itself */
    if (asks && !lock_soon(c)) {
        atomic_store(&c->blocked_in, "a call that does not return");
        end_blocked(c);
    }
    if (!asks && pthread_mutex_trylock(&c->mutex) != 0) return;
    /* The thread that held the mutex may have answered another rank's question; then this rank must not ask
     * as well. Ranks that ask answer with nothing but their own question, and would be taken for mute. */
    asks = asks && stalled(c) > limit_of(c);
    if (c->failure.code == OK) asks ? ask(c) : (void)take_control(c);
    pthread_mutex_unlock(&c->mutex);
}

/* Woken by watchdog_stop, otherwise by the tick. The watch mutex is not held during a look, so that stopping
 * does not wait for the answers to a question longer than necessary. */
static void *watchdog_main(void *argument) {
    Comm *c = argument;
    pthread_mutex_lock(&c->watch_mutex);
    while (!c->watch_ending) {
        pthread_mutex_unlock(&c->watch_mutex);
        look(c);
        pthread_mutex_lock(&c->watch_mutex);
        long long at = comm_nanoseconds() + tick_of(c);
        if (c->watch_ending) break;
        pthread_cond_timedwait(&c->watch_wake, &c->watch_mutex,
                               &(struct timespec){at / 1000000000, at % 1000000000});
    }
    pthread_mutex_unlock(&c->watch_mutex);
    return NULL;
}

/* Starts with this rank's own limit, until watchdog_agree has the common one. */
ErrorCode watchdog_start(Comm *c, Error *err) {
    atomic_store(&c->limit, (long long)(c->watch.seconds * 1e9));
    int code = pthread_create(&c->watchdog, NULL, watchdog_main, c);
    if (code != 0)
        return error_set(err, ERR_MEMORY, "cannot start the watchdog's thread: %s", strerror(code));
    c->has_watchdog = true;
    return OK;
}

static void take_longer(void *into, const void *from) {
    double *a = into;
    const double *b = from;
    if (*b > *a) *a = *b;
}

ErrorCode watchdog_agree(Comm *c, Error *err) {
    double seconds = c->watch.seconds;
    TRY(comm_combine(c, &seconds, sizeof seconds, take_longer, err));
    atomic_store(&c->limit, (long long)(seconds * 1e9));
    return OK;
}

/* Called after the transport is closed, because closing may hang too. */
void watchdog_stop(Comm *c) {
    if (!c->has_watchdog) return;
    pthread_mutex_lock(&c->watch_mutex);
    c->watch_ending = true;
    pthread_cond_signal(&c->watch_wake);
    pthread_mutex_unlock(&c->watch_mutex);
    pthread_join(c->watchdog, NULL);
    c->has_watchdog = false;
}

/* The failure of one rank is the failure of all.
 *
 * A rank that fails tells the others (a notice) and listens for a moment. Who hears, on failing, that another
 * failed before, or of a lower rank that fails at the same time, keeps silent; the one that is left prints,
 * then ends the job. A rank that only waits learns from the notice that its wait is over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/internal.h"

enum {
    LISTEN_MS = 300,
    LINGER_MS = 4000,
    STALL_LISTEN_MS = 1000,
    LONGEST_TICK = 250000000 /* ns */,
    MOST_NAMED = 8
};

/* One write, so that lines of several ranks do not mix. */
void comm_print_line(const char *line) {
    char text[NOTICE_TEXT + 512];
    int length = snprintf(text, sizeof text - 1, "%s", line);
    if (length > (int)sizeof text - 2) length = (int)sizeof text - 2;
    text[length] = '\n';
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)length + 1);
    (void)ignored;
}

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* ---- notices ---- */

void notice_listen(Comm *c) {
    Transfer t = {.receives = true, .peer = LINK_ANY, .bytes = sizeof c->notice};
    c->notice_event = transfer_post(c, t, c->control, 0, &c->notice);
}

static void tell_stall(Comm *c);
static void answer_stall(Comm *c, int peer);

void notice_arrived(Comm *c) {
    const Notice *n = &c->notice;
    if (n->kind != NOTICE_FAILURE) {
        c->heard[n->rank] = (NoticeKind)n->kind;
        if (n->kind == NOTICE_STALL) tell_stall(c);
        if (n->kind == NOTICE_STALL && !c->asking) answer_stall(c, n->rank);
    } else {
        if (n->rank < c->lowest_notice) c->lowest_notice = n->rank;
        if (c->failure.code == OK) {
            comm_keep_failure(c, (ErrorCode)n->code, "rank %d failed: %s", n->rank, n->message);
            c->failure.told = true;
        }
    }
    notice_listen(c);
}

/* To one rank, or to all the others (peer -1). The sends are never waited for: small ones leave at once, and
 * this process ends soon. */
static void send_notice(Comm *c, NoticeKind kind, int peer, const Error *err) {
    Notice *n = mem_alloc(sizeof *n);
    *n = (Notice){.kind = kind, .rank = c->rank, .code = err->code};
    snprintf(n->message, sizeof n->message, "%s", err->message);
    for (int p = 0; p < c->size; p++) {
        if (p == c->rank || (peer >= 0 && p != peer)) continue;
        transfer_post(c, (Transfer){.peer = p, .bytes = sizeof *n}, c->control, 0, n);
    }
}

/* Takes the mutex if it can be had soon: a thread may be stuck in MPI. */
static bool lock_soon(Comm *c) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    return pthread_mutex_timedlock(&c->mutex, &until) == 0;
}

/* True when one had come. */
static bool take_notice(Comm *c) { return transfer_test(c, c->notice_event); }

/* Only notices still matter; c->failure is set, so that operations rest. */
static void listen(Comm *c, long ms) {
    for (long long until = comm_nanoseconds() + ms * 1000000LL; comm_nanoseconds() < until;)
        if (!take_notice(c)) pause_ms(1);
}

/* ---- ends ---- */

static _Noreturn void end_all(Comm *c, bool locked, ErrorCode code) {
    if (locked) c->link->kind->abort(c->link, (int)code);
    _exit((int)code);
}

/* Whoever does not print lets the other one finish, within limits. */
static _Noreturn void end_silently(Comm *c, bool locked, ErrorCode code) {
    pause_ms(LINGER_MS);
    end_all(c, locked, code);
}

static void print_failure(const char *prefix, const Error *err) {
    char line[NOTICE_TEXT + 800], end[600];
    bool named = strncmp(err->message, prefix, strlen(prefix)) == 0;
    log_status("%s", "");
    snprintf(line, sizeof line, "weft: %s%s (%s)", named ? "" : prefix, err->message,
             error_end(end, sizeof end, err->code));
    comm_print_line(line);
}

void comm_report(Comm *c, Error *err) {
    if (!c || !c->joined || err->code == OK || err->told) return;
    print_failure("", err);
    err->told = true;
}

void comm_fail(Comm *c, const Error *failure) {
    if (!c || !c->joined) return;
    Error err = *failure;
    if (err.code == OK) err.code = ERR_INTERNAL;
    bool locked = lock_soon(c);
    if (locked && !err.told) {
        /* Has another one failed before? */
        Error own = err;
        c->failure.code = OK;
        listen(c, 5);
        if (c->lowest_notice < c->size) err.told = true;
        c->failure = own;
    }
    if (err.told) end_silently(c, locked, err.code);
    if (locked) {
        send_notice(c, NOTICE_FAILURE, -1, &err);
        listen(c, LISTEN_MS);
    }
    if (c->lowest_notice < c->rank) end_silently(c, locked, err.code);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "rank %d: ", c->rank);
    print_failure(prefix, &err);
    pause_ms(50);
    end_all(c, locked, err.code);
}

/* ---- watchdog ----
 *
 * A rank that has waited for too long asks the others (NOTICE_STALL). Who lives answers: that it waits too,
 * or that it is busy with something else, which its watchdog's thread says where the program does not come to
 * it. The lowest of those who asked then says who is to blame: who did not answer, else who is busy.
 *
 * A rank that was itself asleep (stopped, or its machine) has not waited meanwhile: its watchdog's thread did
 * not look either.
 *
 * The thread does not wait for the main mutex unless it is about to end everything: the program may be stuck
 * in MPI with it. */

static long long limit_of(const Comm *c) { return (long long)(c->watchdog_s * 1e9); }

static long long tick_of(const Comm *c) {
    return limit_of(c) / 10 < LONGEST_TICK ? limit_of(c) / 10 : LONGEST_TICK;
}

static bool has_slept(const Comm *c, long long now) {
    long long looked = atomic_load(&c->looked_at);
    return looked && now - looked > limit_of(c) / 2 + tick_of(c);
}

/* Nanoseconds for which the program has been waiting, awake, and nothing has come; 0: it does not wait. */
static long long stalled(const Comm *c) {
    long long now = comm_nanoseconds(), from = atomic_load(&c->waits_since);
    if (from == 0 || has_slept(c, now)) return 0;
    const long long later[] = {atomic_load(&c->moved_at), atomic_load(&c->awake_since)};
    for (int i = 0; i < 2; i++)
        if (later[i] > from) from = later[i];
    return now - from;
}

static void describe_action(Comm *c, char *out, size_t size) {
    *out = 0;
    if (c->describe) c->describe(c->describe_context, out, size);
}

/* What this rank waits for, in one line; false when it does not wait. The mutex is held, unless the program
 * is stuck in MPI. */
static bool describe_wait(Comm *c, bool locked, char *out, size_t size) {
    char what[192] = "a communication", doing[256];
    long long since = stalled(c);
    if (since == 0) return false;
    uint32_t place = (uint32_t)c->waiting_for;
    if (locked && place && !op_ended(c, c->waiting_for))
        op_describe(c, &c->ops[place - 1], what, sizeof what);
    describe_action(c, doing, sizeof doing);
    snprintf(out, size, "weft: rank %d: nothing has come for %.1f s while waiting for %s%s%s", c->rank,
             (double)since / 1e9, what, *doing ? ", in " : "", doing);
    return true;
}

/* Who has waited for a moment only has nothing to say. */
static void tell_stall(Comm *c) {
    char line[NOTICE_TEXT];
    if (c->stall_told || stalled(c) <= limit_of(c) / 2) return;
    c->stall_told = describe_wait(c, true, line, sizeof line);
    if (c->stall_told) comm_print_line(line);
}

static void tell_busy(Comm *c) {
    char line[NOTICE_TEXT], doing[256];
    if (c->stall_told) return;
    describe_action(c, doing, sizeof doing);
    snprintf(line, sizeof line, "weft: rank %d: is busy, and waits for no rank%s%s", c->rank,
             *doing ? ", in " : "", doing);
    c->stall_told = true;
    comm_print_line(line);
}

/* Who has been asleep a moment ago is the one to blame, whatever it does now. */
static void answer_stall(Comm *c, int peer) {
    bool waits = atomic_load(&c->waits_since) != 0;
    long long now = comm_nanoseconds(), awake = atomic_load(&c->awake_since);
    if (has_slept(c, now) || (awake && now - awake < limit_of(c) / 2)) return;
    send_notice(c, waits ? NOTICE_WAITS : NOTICE_BUSY, peer, &(Error){.code = OK});
    if (!waits) tell_busy(c);
}

/* "ranks 1, 3": those of whom `kind` was heard. Returns how many. */
static int list_ranks(const Comm *c, NoticeKind kind, Text *out) {
    int count = 0, last = -1;
    for (int p = 0; p < c->size; p++)
        if (c->heard[p] == kind) count++, last = p;
    text_printf(out, "rank%s ", count == 1 ? "" : "s");
    for (int p = 0, named = 0; p <= last && named < MOST_NAMED; p++)
        if (c->heard[p] == kind) text_printf(out, "%s%d", named++ ? ", " : "", p);
    if (count > MOST_NAMED) text_printf(out, " and %d more", count - MOST_NAMED);
    return count;
}

static void tell_verdict(Comm *c) {
    static const char again[] = "with --restarts N a run goes on from its last checkpoint";
    Text silent = {0}, busy = {0};
    Error err;
    int mute = list_ranks(c, NOTICE_NONE, &silent), working = list_ranks(c, NOTICE_BUSY, &busy);
    if (mute > 0)
        error_set(&err, ERR_PEER, "%s answer%s nobody: %s, or the machine does; %s", silent.data,
                  mute == 1 ? "s" : "", mute == 1 ? "it hangs" : "they hang", again);
    else if (working > 0)
        error_set(&err, ERR_PEER,
                  "the others have waited for %s for more than comm.watchdog_s = %g s: see what it does, "
                  "raise the limit if "
                  "that may take so long; %s",
                  busy.data, c->watchdog_s, again);
    else
        error_set(&err, ERR_PEER,
                  "all ranks answer, and each waits for another for more than comm.watchdog_s = %g s; %s",
                  c->watchdog_s, again);
    print_failure("", &err);
    text_free(&silent);
    text_free(&busy);
}

static bool is_lowest_asking(const Comm *c) {
    for (int p = 0; p < c->rank; p++)
        if (c->heard[p] == NOTICE_STALL) return false;
    return true;
}

static _Noreturn void end_stalled(Comm *c, bool locked) {
    char line[NOTICE_TEXT];
    if (!locked) {
        if (describe_wait(c, false, line, sizeof line)) comm_print_line(line);
        end_silently(c, false, ERR_PEER);
    }
    tell_stall(c);
    c->asking = true;
    c->heard[c->rank] = NOTICE_STALL;
    send_notice(c, NOTICE_STALL, -1, &(Error){.code = ERR_PEER});
    listen(c, STALL_LISTEN_MS);
    if (!is_lowest_asking(c)) end_silently(c, true, ERR_PEER);
    tell_verdict(c);
    pause_ms(50);
    end_all(c, true, ERR_PEER);
}

/* The time of the look before is compared first: a thread that was asleep looks late. */
static void look(Comm *c) {
    long long now = comm_nanoseconds();
    if (has_slept(c, now)) atomic_store(&c->awake_since, now);
    atomic_store(&c->looked_at, now);
    if (stalled(c) > limit_of(c)) end_stalled(c, lock_soon(c));
    if (atomic_load(&c->waits_since) || pthread_mutex_trylock(&c->mutex) != 0) return;
    if (c->failure.code == OK) take_notice(c);
    pthread_mutex_unlock(&c->mutex);
}

static void *watchdog_main(void *argument) {
    Comm *c = argument;
    pthread_mutex_lock(&c->watch_mutex);
    while (!c->watch_ending) {
        look(c);
        long long at = comm_nanoseconds() + tick_of(c);
        pthread_cond_timedwait(&c->watch_wake, &c->watch_mutex,
                               &(struct timespec){at / 1000000000, at % 1000000000});
    }
    pthread_mutex_unlock(&c->watch_mutex);
    return NULL;
}

ErrorCode comm_watchdog_start(Comm *c, double seconds,
                              void (*describe)(void *context, char *out, size_t size), void *context,
                              Error *err) {
    if (!c->joined || seconds <= 0 || c->has_watchdog) return OK;
    c->watchdog_s = seconds;
    c->describe = describe;
    c->describe_context = context;
    int code = pthread_create(&c->watchdog, NULL, watchdog_main, c);
    if (code != 0)
        return error_set(err, ERR_MEMORY, "cannot start the watchdog's thread: %s", strerror(code));
    c->has_watchdog = true;
    return OK;
}

void watchdog_stop(Comm *c) {
    if (!c->has_watchdog) return;
    pthread_mutex_lock(&c->watch_mutex);
    c->watch_ending = true;
    pthread_cond_signal(&c->watch_wake);
    pthread_mutex_unlock(&c->watch_mutex);
    pthread_join(c->watchdog, NULL);
    c->has_watchdog = false;
}

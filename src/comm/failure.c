/* The failure of one rank is the failure of all.
 *
 * A rank that fails tells the others (a notice) and listens for a moment. Who hears, on failing, that another failed before, or
 * of a lower rank that fails at the same time, keeps silent; the one that is left prints, then ends the job. A rank that only
 * waits learns from the notice that its wait is over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/internal.h"

enum { LISTEN_MS = 300, LINGER_MS = 4000, STALL_LISTEN_MS = 1000 };

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
    MPI_Request request;
    if (MPI_Irecv(&c->notice, sizeof c->notice, MPI_BYTE, MPI_ANY_SOURCE, 0, c->control, &request) == MPI_SUCCESS)
        transfer_add(c, request, (Transfer){.receives = true});
}

static void tell_stall(Comm *c);

void notice_arrived(Comm *c) {
    const Notice *n = &c->notice;
    if (n->kind == NOTICE_STALL) {
        tell_stall(c);
    } else {
        if (n->rank < c->lowest_notice) c->lowest_notice = n->rank;
        if (c->failure.code == OK) {
            comm_keep_failure(c, (ErrorCode)n->code, "rank %d failed: %s", n->rank, n->message);
            c->failure.told = true;
        }
    }
    notice_listen(c);
}

/* The sends are never waited for: small ones leave at once, and this process ends soon. */
static void send_notices(Comm *c, NoticeKind kind, const Error *err) {
    Notice *n = mem_alloc(sizeof *n);
    *n = (Notice){.kind = kind, .rank = c->rank, .code = err->code};
    snprintf(n->message, sizeof n->message, "%s", err->message);
    for (int p = 0; p < c->size; p++) {
        MPI_Request request;
        if (p != c->rank && MPI_Isend(n, sizeof *n, MPI_BYTE, p, 0, c->control, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
}

/* Takes the mutex if it can be had soon: a thread may be stuck in MPI. */
static bool lock_soon(Comm *c) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    return pthread_mutex_timedlock(&c->mutex, &until) == 0;
}

/* Only notices still matter; c->failure is set, so that operations rest. */
static void listen(Comm *c, long ms) {
    for (long long until = comm_nanoseconds() + ms * 1000000LL; comm_nanoseconds() < until; pause_ms(1)) {
        int count = 0, at = 0;
        for (at = 0; at < c->open && c->transfers[at].op; at++) {}
        if (at == c->open) continue;
        MPI_Test(&c->requests[at], &count, MPI_STATUS_IGNORE);
        if (!count) continue;
        c->requests[at] = c->requests[c->open - 1];
        c->transfers[at] = c->transfers[--c->open];
        notice_arrived(c);
    }
}

/* ---- ends ---- */

static _Noreturn void end_all(Comm *c, bool locked, ErrorCode code) {
    (void)c;
    if (locked) MPI_Abort(MPI_COMM_WORLD, (int)code);
    _exit((int)code);
}

/* Whoever does not print lets the other one finish, within limits. */
static _Noreturn void end_silently(Comm *c, bool locked, ErrorCode code) {
    pause_ms(LINGER_MS);
    end_all(c, locked, code);
}

static void print_failure(const char *prefix, const Error *err) {
    char line[NOTICE_TEXT + 256];
    bool named = strncmp(err->message, prefix, strlen(prefix)) == 0;
    log_status("%s", "");
    snprintf(line, sizeof line, "weft: %s%s (%s, exit status %d)", named ? "" : prefix, err->message, error_name(err->code),
             (int)err->code);
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
        send_notices(c, NOTICE_FAILURE, &err);
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
 * Its thread takes the main mutex only when it is about to end everything: the program may be stuck in MPI with it. */

/* What this rank waits for, in one line; false when it does not wait. The mutex is held, unless the program is stuck in MPI. */
static bool describe_wait(Comm *c, bool locked, char *out, size_t size) {
    char what[192] = "a communication", doing[256] = "";
    long long stalled = comm_stalled(c);
    if (stalled == 0) return false;
    uint32_t place = (uint32_t)c->waiting_for;
    if (locked && place && !op_ended(c, c->waiting_for)) op_describe(c, &c->ops[place - 1], what, sizeof what);
    if (c->describe) c->describe(c->describe_context, doing, sizeof doing);
    snprintf(out, size, "weft: rank %d: nothing has come for %.1f s while waiting for %s%s%s", c->rank, (double)stalled / 1e9,
             what, *doing ? ", in " : "", doing);
    return true;
}

/* Who has waited for a moment only has nothing to say. */
static void tell_stall(Comm *c) {
    char line[NOTICE_TEXT];
    if (c->stall_told || (double)comm_stalled(c) <= c->watchdog_s * 0.5e9) return;
    c->stall_told = describe_wait(c, true, line, sizeof line);
    if (c->stall_told) comm_print_line(line);
}

static _Noreturn void end_stalled(Comm *c, bool locked) {
    Error err;
    char line[NOTICE_TEXT];
    error_set(&err, ERR_PEER, "nothing has come for comm.watchdog_s = %g s", c->watchdog_s);
    if (locked) {
        tell_stall(c);
        send_notices(c, NOTICE_STALL, &err);
        listen(c, STALL_LISTEN_MS);
    } else {
        if (describe_wait(c, false, line, sizeof line)) comm_print_line(line);
        pause_ms(STALL_LISTEN_MS);
    }
    end_all(c, locked, ERR_PEER);
}

static void *watchdog_main(void *argument) {
    Comm *c = argument;
    long long limit = (long long)(c->watchdog_s * 1e9);
    long long tick = limit / 10 < 1000000000 ? limit / 10 : 1000000000;
    pthread_mutex_lock(&c->watch_mutex);
    while (!c->watch_ending) {
        long long at = comm_nanoseconds() + tick;
        pthread_cond_timedwait(&c->watch_wake, &c->watch_mutex, &(struct timespec){at / 1000000000, at % 1000000000});
        if (comm_stalled(c) > limit) end_stalled(c, lock_soon(c));
    }
    pthread_mutex_unlock(&c->watch_mutex);
    return NULL;
}

ErrorCode comm_watchdog_start(Comm *c, double seconds, void (*describe)(void *context, char *out, size_t size), void *context,
                              Error *err) {
    if (!c->joined || seconds <= 0 || c->has_watchdog) return OK;
    c->watchdog_s = seconds;
    c->describe = describe;
    c->describe_context = context;
    int code = pthread_create(&c->watchdog, NULL, watchdog_main, c);
    if (code != 0) return error_set(err, ERR_MEMORY, "cannot start the watchdog's thread: %s", strerror(code));
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

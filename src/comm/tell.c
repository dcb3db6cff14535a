#include "comm/tell.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "comm/launch.h"

enum { END_S = 30 /* seconds in which the launcher ends this process */ };

static int words = -1;
static bool tolerant, keeps /* until tell_begun */, begun;

/* By path: launchers and wrappers close descriptors that they do not know. Only this process speaks for
 * the rank, not what it starts. */
static void open_words(void) {
    const char *path = getenv(TELL_PATH);
    if (!path) return;
    words = open(path, O_WRONLY | O_CLOEXEC);
    tolerant = getenv(TELL_TOLERANT) != NULL;
    unsetenv(TELL_PATH);
    unsetenv(TELL_TOLERANT);
}

/* Shorter than PIPE_BUF: it does not mix with those of other ranks. */
static bool tell(RankWordKind kind, int code, int lost, const char *text) {
    RankWord word = {.kind = kind,
                     .rank = launched_env_find().rank,
                     .code = code,
                     .lost = lost,
                     .process = rank_process_own()};
    snprintf(word.text, sizeof word.text, "%s", text);
    return words >= 0 && write(words, &word, sizeof word) == sizeof word;
}

static void wait_for_end(void) { nanosleep(&(struct timespec){END_S, 0}, NULL); }

void tell_until_begun(void) { keeps = true; }

void tell_starts(void) {
    open_words();
    begun = false;
    tell(RANK_STARTS, OK, -1, "");
}

void tell_begun(void) {
    if (!begun) tell(RANK_BEGUN, OK, -1, "");
    begun = true;
}

void tell_met(void) {
    if (!keeps) tell_begun();
}

void tell_left(void) { tell(RANK_LEFT, OK, -1, ""); }

void tell_failed(const Error *err) {
    if (tell(RANK_FAILED, (int)err->code, -1, err->message)) wait_for_end();
}

void tell_lost(int rank, const char *why) {
    if (begun && tolerant) return;
    if (tell(RANK_LOST, ERR_PEER, rank, why)) wait_for_end();
}

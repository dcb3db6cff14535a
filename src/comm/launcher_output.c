/* Lines arrive in pieces and may never end. What could still become one of mpirun's lines is held back;
 * everything else passes at once, so that the live status line of rank 0 is drawn as it is made.
 *
 * mpirun's messages come in blocks between two lines of dashes, or as single lines that begin with "[", "mpi"
 * or "Abort(". A line that begins otherwise is a rank's, and passes byte by byte. If mpirun's wording
 * changes, its messages pass. Of a rank's lines, only those that look like one of these could be lost.
 *
 *     ---------------------------------------------    40 dashes or more: a block begins
 *     mpirun noticed that process rank 1 ... exited on signal 9 (Killed).
 *     ---------------------------------------------    it ends, and is judged as a whole */
#include "comm/launcher_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A line of dashes of mpirun has about seventy. A block that exceeds BLOCK_MAX was never closed, and is not
 * mpirun's. */
enum { DASHES = 40, BLOCK_MAX = 16384 };

/* If stderr is closed, messages are dropped and nothing else changes. */
static void pass(Text *t) {
    for (size_t at = 0; at < t->length;) {
        ssize_t written = write(STDERR_FILENO, t->data + at, t->length - at);
        if (written <= 0) break;
        at += (size_t)written;
    }
    text_clear(t);
}

static bool is_dashes(const Text *line) {
    return line->length >= DASHES && strspn(line->data, "-") == line->length - 1 &&
           line->data[line->length - 1] == '\n';
}

/* Matches "[host:123] 2 more processes have sent help message ..." and similar lines about messages that were
 * dropped; also what the MPI library prints in a rank that reads from one that has already ended ("Read -1,
 * expected 11008, errno = 3"), or that ends the job (MPICH: "Abort(65) on node 2 (rank 2 in comm 0):
 * ..."). */
static bool is_echo(const char *line) {
    static const char *const words[] = {"sent help message", "orte_base_help_aggregate", "show_help.c",
                                        "] Read -1, expected ", "[warn] Epoll "};
    if (strncmp(line, "mpi", 3) == 0) return strstr(line, ": Forwarding signal ") != NULL;
    if (strncmp(line, "Abort(", 6) == 0) return strstr(line, ") on node ") != NULL;
    for (size_t i = 0; line[0] == '[' && i < sizeof words / sizeof *words; i++)
        if (strstr(line, words[i])) return true;
    return false;
}

/* Blocks that repeat at length what weft reports in one line with rank and signal (launch.c). */
static const char *const repeated[] = {"MPI_ABORT was invoked on rank", "Primary job  terminated normally",
                                       "exited with non-zero status", "exited on signal",
                                       "calling \"abort\". This may have caused other processes"};

/* Only the first: ranks that mpirun then kills itself are not the cause. */
static void note_signal(LauncherOutput *c, const char *joined) {
    const char *at = strstr(joined, "process rank "), *by = strstr(joined, "exited on signal ");
    if (!at || !by || c->killed_by) return;
    if (sscanf(at, "process rank %d", &c->killed_rank) != 1 ||
        sscanf(by, "exited on signal %d", &c->killed_by) != 1)
        c->killed_by = 0;
}

/* Whether the block, once joined to one line, says so: Open MPI 5 wraps its sentences. */
static bool is_repeated(const char *joined) {
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++)
        if (strstr(joined, repeated[i])) return true;
    return false;
}

static void judge_block(LauncherOutput *c) {
    char *joined = mem_strdup(c->block.data);
    for (char *at = joined; (at = strchr(at, '\n'));) *at = ' ';
    note_signal(c, joined);
    if (is_repeated(joined)) text_clear(&c->block);
    free(joined);
    pass(&c->block);
}

static void end_line(LauncherOutput *c) {
    bool dashes = is_dashes(&c->line);
    if (c->block.length || dashes) {
        bool closes = c->block.length && dashes;
        text_add(&c->block, c->line.data, c->line.length);
        text_clear(&c->line);
        if (closes || c->block.length > BLOCK_MAX) judge_block(c);
    } else if (is_echo(c->line.data)) {
        text_clear(&c->line);
    } else {
        pass(&c->line);
    }
}

void launcher_output_add(LauncherOutput *c, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (!bytes[i]) continue; /* Open MPI 5 adds zero bytes to what it passes on when it ends ranks */
        text_add(&c->line, bytes + i, 1);
        if (bytes[i] != '\n') continue;
        if (c->passing) {
            pass(&c->line);
        } else {
            end_line(c);
        }
        c->passing = false;
    }
    /* The beginning of a line that cannot be mpirun's. */
    if (!c->line.length || c->block.length) return;
    if (c->passing || !strchr("-[mA", c->line.data[0])) {
        pass(&c->line);
        c->passing = true;
    }
}

/* At the end of the output, a block that mpirun did not close is judged as it is. */
void launcher_output_flush(LauncherOutput *c) {
    if (c->block.length) {
        text_add(&c->block, c->line.data ? c->line.data : "", c->line.length);
        text_clear(&c->line);
        judge_block(c);
    }
    if (c->line.length) {
        pass(&c->line);
        c->passing = true;
    }
}

void launcher_output_free(LauncherOutput *c) {
    text_free(&c->line);
    text_free(&c->block);
}

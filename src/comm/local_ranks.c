/* Finds the other ranks of this machine by their processes: those with the same parent (the launcher, or its
 * local daemon) that have a rank in their environment. For use when MPI cannot be asked. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/internal.h"

enum { ENVIRONMENT_MAX = 1 << 20 };

/* "PID (name) STATE PARENT ...": the name may contain blanks and parentheses, so searches for the last
 * one. */
static bool read_state(long process, char *state, long *parent) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", process);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[length] = 0;
    const char *after = strrchr(text, ')');
    return after && sscanf(after, ") %c %ld", state, parent) == 2;
}

/* Returns the rank that the launcher set in `variable`, or -1. A process of another user cannot be read, and
 * is not one of these ranks. /proc/PID/environ has NAME=VALUE entries, each ended by NUL. */
static int read_rank(long process, const char *variable) {
    char path[64], *text = mem_alloc(ENVIRONMENT_MAX);
    int rank = -1;
    snprintf(path, sizeof path, "/proc/%ld/environ", process);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(text, 1, ENVIRONMENT_MAX - 1, file) : 0;
    if (file) fclose(file);
    size_t name = strlen(variable);
    for (size_t at = 0; at < length && rank < 0; at += strlen(text + at) + 1)
        if (strncmp(text + at, variable, name) == 0 && text[at + name] == '=')
            rank = atoi(text + at + name + 1);
    free(text);
    return rank;
}

static int by_rank(const void *a, const void *b) {
    return ((const LocalRank *)a)->rank - ((const LocalRank *)b)->rank;
}

/* A wrapper between launcher and program (a shell, numactl that does not exec) hides its rank: then fewer are
 * found, but no wrong ones. Returns how many; *out is in the order of ranks and includes this process. The
 * caller frees it. */
int local_ranks_find(const char *variable, LocalRank **out) {
    DIR *all = opendir("/proc");
    int count = 0;
    *out = NULL;
    for (struct dirent *entry; all && (entry = readdir(all));) {
        char *end, state;
        long process = strtol(entry->d_name, &end, 10), parent;
        if (*end || process <= 0 || !read_state(process, &state, &parent) || parent != getppid()) continue;
        int rank = read_rank(process, variable);
        if (rank < 0) continue;
        *out = mem_grow(*out, (size_t)(count + 1) * sizeof **out);
        (*out)[count++] = (LocalRank){rank, (pid_t)process, state};
    }
    if (all) closedir(all);
    if (count) qsort(*out, (size_t)count, sizeof **out, by_rank);
    return count;
}

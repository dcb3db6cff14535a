/* Finds the other ranks of this machine by their processes: those with the same parent (the launcher, or its
 * local daemon) that have a rank in their environment. For use when MPI cannot be asked. Where ranks may be
 * killed (hung.c), they have told each other their processes instead; transports tell each other their places
 * (transport.h). */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/host.h"
#include "comm/internal.h"

enum { ENVIRONMENT_MAX = 1 << 20 };

typedef struct ProcessStat {
    char state;
    long parent;
    long long start; /* in clock ticks since the machine started */
} ProcessStat;

/* "PID (name) STATE PARENT ...": the name may contain blanks and parentheses, so searches for the last one.
 * The start is field 22. */
static bool read_stat(long process, ProcessStat *out) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", process);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[length] = 0;
    const char *after = strrchr(text, ')');
    return after && sscanf(after,
                           ") %c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                           "%lld",
                           &out->state, &out->parent, &out->start) == 3;
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
        char *end;
        ProcessStat stat;
        long process = strtol(entry->d_name, &end, 10);
        if (*end || process <= 0 || !read_stat(process, &stat) || stat.parent != getppid()) continue;
        int rank = read_rank(process, variable);
        if (rank < 0) continue;
        *out = mem_grow(*out, (size_t)(count + 1) * sizeof **out);
        (*out)[count++] = (LocalRank){rank, (pid_t)process, stat.state};
    }
    if (all) closedir(all);
    if (count) qsort(*out, (size_t)count, sizeof **out, by_rank);
    return count;
}

/* Numbers of processes mean the same for all that have the machine and the PID namespace (of a container) in
 * common. */
RankProcess rank_process_own(void) {
    struct {
        char host[HOST_NAME_BYTES];
        uint64_t processes;
    } machine;
    struct stat namespace;
    ProcessStat own;
    if (!host_name(machine.host, sizeof machine.host) || stat("/proc/self/ns/pid", &namespace) != 0 ||
        !read_stat(getpid(), &own))
        return (RankProcess){0};
    machine.processes = namespace.st_ino;
    return (RankProcess){hash64(&machine, sizeof machine), getpid(), own.start};
}

/* The start tells a process from a later one with the same number. */
char rank_process_state(const RankProcess *p) {
    ProcessStat now;
    return p->process && read_stat((long)p->process, &now) && now.start == p->start ? now.state : 0;
}

bool rank_process_kill(const RankProcess *p) {
    return rank_process_state(p) && kill((pid_t)p->process, SIGKILL) == 0;
}

void transport_own_cores(cpu_set_t *out) {
    CPU_ZERO(out);
    if (sched_getaffinity(0, sizeof *out, out) != 0) CPU_ZERO(out);
}

int transport_machine_ranks(const uint64_t *hosts, int size) {
    int ranks = 0;
    while (ranks < size && hosts[ranks] == hosts[0]) ranks++;
    if (ranks == size || size % ranks != 0) return 0;
    for (int p = 0; p < size; p++) {
        int first = p / ranks * ranks;
        if (hosts[p] != hosts[first]) return 0;
        for (int q = 0; q < first && p == first; q += ranks)
            if (hosts[q] == hosts[p]) return 0;
    }
    return ranks;
}

void transport_find_local(CommTransport *t, const TransportPlace *places) {
    cpu_set_t all;
    free(t->hosts);
    t->hosts = mem_alloc_array((size_t)t->size, sizeof *t->hosts);
    CPU_ZERO(&all);
    t->local_rank = t->local_size = 0;
    for (int p = 0; p < t->size; p++) {
        t->hosts[p] = places[p].host;
        if (places[p].host != places[t->rank].host) continue;
        t->local_rank += p < t->rank;
        t->local_size++;
        CPU_OR(&all, &all, &places[p].cores);
    }
    t->local_cores = CPU_COUNT(&all);
}

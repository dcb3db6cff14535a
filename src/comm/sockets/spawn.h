/* Starts ranks that meet over sockets, as an mpirun does. */
#ifndef WEFT_COMM_SOCKETS_SPAWN_H
#define WEFT_COMM_SOCKETS_SPAWN_H

#include <stdbool.h>

#include "base/error.h"

typedef struct SpawnTerms {
    int ranks;        /* on this machine */
    int first, of;    /* the number of the first of them, and how many ranks there are on all machines */
    const char *meet; /* HOST:PORT, or NULL: a name of this machine */
    bool tolerant;    /* the others go on when a rank dies */
} SpawnTerms;

/* Runs `words`, ended by NULL, once for each rank and waits for their end. Ranks that are left 5 s after one
 * has ended with another status than 0, or at once after one was killed, are killed, unless `tolerant`.
 *
 * SIGTERM, SIGHUP and SIGUSR1 reach every rank as SIGUSR1 (save and stop), SIGUSR2 as it is; SIGQUIT kills
 * all ranks. A terminal sends SIGINT to the ranks, too. One that reaches this process alone is passed on: the
 * first as SIGUSR1, the second as SIGUSR2; the third kills all. If this process dies they are killed.
 *
 * A rank that dies before it has begun (comm/tell.h) ends all, also with `tolerant`. If it was killed,
 * `tolerant` is set and all ranks are on this machine, they start again, once.
 *
 * Returns as a code the first exit status other than 0, or 128 + N for a rank killed by signal N; with
 * `tolerant` OK if any rank has ended with 0 that had not left the run before. Where launch_ranks has
 * started this process (comm/launch.h), prints the status of each rank in the form of hydra_read_end. */
ErrorCode sockets_spawn(const SpawnTerms *terms, char *const *words, Error *err);

#endif

/* Going on without ranks that died.
 *
 *     comm_allow_repair(c, &err);                        once, after comm_open, on all ranks
 *     ...
 *     if (comm_wait(c, request, &err) != OK) {
 *         if (!comm_is_broken(c)) comm_fail(c, &err);    a failure of another kind: it ends all ranks
 *         // unwind: nothing that was under way has ended, or will end
 *         CommRepair now;
 *         TRY(comm_repair(c, &now, &err));
 *         TRY(comm_set_mesh(c, &mesh_of_those_left, &err));
 *     }
 *
 * What a caller sees
 *  1. A rank dies. On every other rank the next call of comm.h that needs it, or that moves any message,
 *     returns ERR_PEER: either it failed by itself, or another rank has begun a repair. comm_is_broken then
 *     is true. Not all ranks get the error in the same operation: one may have finished the operation in
 *     which another learned of the death.
 *  2. Each unwinds, in its own time, and calls comm_repair. The call waits for all that live. A rank that may
 *     call it at any time, without an error of its own, interrupts the others.
 *  3. comm_repair returns the same `size`, `old_ranks` and `epoch` on all ranks. If more ranks die meanwhile,
 *     it begins again by itself; a death that comes later is the next failure.
 *
 * Afterwards the Comm is as after comm_open: there is no mesh, no operation is under way, and all requests
 * from before count as ended. Memory that was passed to an operation is the caller's again, with undefined
 * contents; what was sent may have arrived or not. Ranks are renumbered, in the old order. Traffic counters
 * continue.
 *
 * What it needs: a transport that can do it. Sockets can. MPI can where the library has ULFM and was started
 * with it: `mpirun --with-ft ulfm` of Open MPI 5.0.10 or newer. Elsewhere comm_allow_repair returns
 * ERR_UNAVAILABLE, and everything is as without it: a dead rank ends all ranks.
 *
 * Limits
 *  - Over MPI a rank must die by a signal, or leave without a status (exit status 0): over shared memory Open
 *    MPI does not notice a rank that ends with another status. comm_fail still ends all ranks.
 *  - A rank that hangs is found by the watchdog. It ends all ranks, or kills that rank (comm_end_hung).
 *  - Over MPI a death in the milliseconds in which a repair makes its new communicator may crash the other
 *    ranks inside Open MPI 5.0.11. The run then ends, and restarts from its checkpoint.
 *  - Over MPI a machine that is lost ends the run: Open MPI's launcher does not survive it. Over sockets only
 *    the larger part of a divided job goes on (sockets/agreement.c).
 *  - Communicators of GPUs (comm_open_communicators) are not repaired.
 *  - After a repair comm_close does not end MPI, whose end would wait for the dead.
 *  - A repair keeps a few kilobytes, of the communicators from before. */
#ifndef WEFT_COMM_REPAIR_H
#define WEFT_COMM_REPAIR_H

#include "comm/comm.h"

typedef struct CommRepair {
    int epoch; /* repairs so far: 1 after the first */
    int size;  /* ranks that are left */
    int lost;  /* ranks that died since the last repair */
    /* [size] the number that each rank had before, ascending; valid until the next repair */
    const int *old_ranks;
} CommRepair;

/* All ranks call it before comm_set_mesh. All get the same result: ERR_UNAVAILABLE, with the reason, on every
 * rank if it is not possible on one. */
ErrorCode comm_allow_repair(Comm *c, Error *err);

/* Whether the failure of c, if there is one, is that of a message, which comm_repair can heal. */
bool comm_is_broken(Comm *c);

/* All ranks, at the point from which their work must not be done again: OK on all living ranks, or on none,
 * although some may have died. It fails if one of the living is in comm_repair, or if a rank died before it
 * called this. OK also where repairs are not allowed, without a message. */
ErrorCode comm_commit(Comm *c, Error *err);

/* All living ranks call it, after comm_allow_repair has returned OK. Fails with ERR_PEER when ranks keep
 * dying, or with another code if this rank has failed by itself. Over sockets this and comm_commit end the
 * process if its part of a divided job must not go on (sockets/agreement.c). */
ErrorCode comm_repair(Comm *c, CommRepair *out, Error *err);

/* ---- ranks set aside: spares ----
 *
 *     comm_set_aside(c, order, size, &err);     all ranks, after comm_open or comm_repair
 *     if (comm_is_aside(c)) comm_stand_by(c, &err);          until ranks die; then comm_repair
 *
 * A rank set aside takes part in agreements and repairs, and in nothing else: comm_size is without it. The
 * next repair gives a Comm of all that live, those set aside behind the others. */

/* Where repairs are allowed: whether the transport can do it. Sockets can. */
bool comm_can_set_aside(const Comm *c);

/* All ranks, with the same arguments, when nothing is under way and there is no mesh; right after a
 * comm_commit, so that none of them has given up before. order: a permutation of all ranks. order[i] becomes
 * rank i; those from `size` on are set aside. They are renumbered so even if it fails, with ERR_PEER. */
ErrorCode comm_set_aside(Comm *c, const int *order /* [ranks] */, int size, Error *err);
bool comm_is_aside(const Comm *c);
int comm_count_aside(const Comm *c);
/* Of a rank set aside: waits until another rank dies or begins a repair, then fails with ERR_PEER. */
ErrorCode comm_stand_by(Comm *c, Error *err);
/* All ranks but those set aside, before comm_close: the processes of the latter end with this status. */
void comm_dismiss(Comm *c, ErrorCode code);

/* Ranks of this machine from number `first` on, after comm_allow_repair. */
int comm_local_from(const Comm *c, int first);

/* ---- ranks that hang ---- */

/* From now on a rank that hangs is killed where the watchdog would have ended all ranks because of it, and
 * the others find that it died. Not collective. Until then, and where that rank cannot be killed (all ranks
 * of its machine hang, or its process does not end), the watchdog ends all ranks. */
void comm_end_hung(Comm *c, bool on);

/* What was found about ranks that hung, in one sentence, for the records of the run. On the rank that found
 * it; others have seconds 0. */
typedef struct CommHung {
    double seconds; /* for which that rank had waited */
    char text[400];
} CommHung;
CommHung comm_take_hung(Comm *c); /* since the last call */

#endif

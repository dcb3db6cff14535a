/* ULFM (User-Level Failure Mitigation), the part of MPI with which ranks go on without those that died. Its
 * functions are looked up in the library in use: a weft that was built with Open MPI 4.1 finds them under
 * 5.0. */
#ifndef WEFT_COMM_MPI_ULFM_H
#define WEFT_COMM_MPI_ULFM_H

#include <mpi.h>
#include <stddef.h>

typedef struct Ulfm {
    /* Ends pending operations of all members, which need not call it. Later ones fail. */
    int (*revoke)(MPI_Comm);
    /* *out: the members that live, in their order. Works on a revoked communicator. */
    int (*shrink)(MPI_Comm, MPI_Comm *out);
    /* *flag &= that of all living members. Works on a revoked communicator. All get the same result, an error
     * if a member has died whose death is not acknowledged; *flag is valid all the same. */
    int (*agree)(MPI_Comm, int *flag);
    /* Receives from any rank continue although members have died. */
    int (*acknowledge)(MPI_Comm);
} Ulfm;

/* NULL if the library does not have them. Whether they work is another question (ulfm_problem). */
const Ulfm *ulfm_find(void);

/* Why ranks cannot go on without others, in words; "" if they can. To be called after MPI_Init. */
void ulfm_problem(char *out, size_t size);

#endif

/* What a rank tells the weft launch that has started it (sockets/spawn.c), so that one line says why a start
 * has failed, and so that ranks are started again where nothing is lost. No-op for ranks that something else
 * has started.
 *
 *     tell_until_begun   from here until tell_begun nothing is lost when a rank is: all may start again. A
 *                        program that does not call it has begun when its ranks have met
 *     tell_starts        by the transport: the ranks are about to meet
 *     tell_met           by the transport: they have
 *     tell_begun         from here on the others go on without a rank that is lost (weft launch
 *                        --tolerant) */
#ifndef WEFT_COMM_TELL_H
#define WEFT_COMM_TELL_H

#include "base/error.h"
#include "comm/process.h"

void tell_until_begun(void);
void tell_starts(void);
void tell_met(void);
void tell_begun(void);
/* This rank ends well, but the run goes on without it. */
void tell_left(void);

/* These two end this process, and all ranks of its launcher, which prints the message once. They return only
 * where that cannot be. */
void tell_failed(const Error *err);
/* Another rank is gone. If the others may go on without it, this returns at once. */
void tell_lost(int rank, const char *why);

/* ---- for weft launch ---- */

/* Environment variables of a rank: a path to write words to; whether the others go on when a rank dies. */
#define TELL_PATH "WEFT_RANK_WORDS"
#define TELL_TOLERANT "WEFT_RANK_TOLERANT"

typedef enum RankWordKind { RANK_STARTS, RANK_BEGUN, RANK_LEFT, RANK_FAILED, RANK_LOST } RankWordKind;
typedef struct RankWord {
    int32_t kind, rank; /* rank: who says it */
    int32_t code, lost; /* code: of FAILED and LOST; lost: the rank that is */
    RankProcess process;
    char text[1024];
} RankWord;

#endif

/* Processes of ranks, for others of their machine (local_ranks.c). */
#ifndef WEFT_COMM_PROCESS_H
#define WEFT_COMM_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct RankProcess {
    uint64_t machine;       /* 0: not known */
    int64_t process, start; /* start: when it was started */
} RankProcess;

RankProcess rank_process_own(void);                  /* all zero: not known */
char rank_process_state(const RankProcess *process); /* as in /proc; 0: it is gone */
bool rank_process_kill(const RankProcess *process);  /* false: it is gone, or is another user's */

#endif

/* weft doctor --burn: tests a machine before a run trusts it. Results are compared in bits, so there are no
 * thresholds.
 *
 *     each core alone      all kernels once, on one pinned thread        burn_cores.c
 *     all cores at once    the same, again and again
 *     threads              the same on all cores as one device
 *     memory               patterns over a share of the free memory      burn_memory.c
 *     a file               written, read back                            burn_file.c
 *
 * The cores' work runs in child processes, one for each core: a core that crashes is named as well. They
 * write to shared memory. */
#ifndef WEFT_CLI_BURN_H
#define WEFT_CLI_BURN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

typedef enum BurnKernel {
    BURN_PRODUCTS_F32,
    BURN_PRODUCTS_BF16,
    BURN_STEPS_F32, /* of training: attention, norms, activations, losses, updates */
    BURN_STEPS_BF16,
    BURN_KERNELS
} BurnKernel;

/* How often a kernel had this result. */
typedef struct BurnResult {
    uint64_t hash;
    int64_t count;
} BurnResult;

/* More different results than this are counted with the last. */
enum { BURN_RESULTS = 4 };

/* Where memory did not hold what was written. */
typedef struct BurnMemory {
    uint64_t bytes;             /* tested */
    uint64_t moved;             /* written and read, all passes */
    int64_t passes, bad;        /* bad: words of 8 bytes */
    uint64_t first, last;       /* bad: offsets of words */
    uint64_t address, physical; /* of the first; physical 0: the kernel does not tell */
    uint64_t wrote, read;       /* the first */
} BurnMemory;

/* A child process: a core, or all of them. */
typedef struct BurnWorker {
    int core;    /* its number in the system; -1: all */
    int threads; /* of the device */
    char kernels[32];
    BurnResult results[BURN_KERNELS][BURN_RESULTS];
    int64_t rounds; /* of all kernels */
    double seconds;
    BurnMemory memory;
    char problem[300]; /* why it has no results; "" */
} BurnWorker;

/* --inject bitflip:core=N, bitflip:memory=OFFSET, bitflip:file=OFFSET; all -1: none. */
typedef struct BurnFault {
    int64_t core, memory, file;
} BurnFault;

typedef struct Burn {
    double seconds;        /* about, in all */
    double share;          /* of the free memory */
    const char *directory; /* of the file */
    BurnFault fault;
    int cores;
    BurnWorker *workers; /* [cores + 1] in memory that the children share; the last has all cores */
} Burn;

/* Runs all parts; prints a line for each, and one for each difference. ERR_DIFFERENT: there were some. */
ErrorCode burn_run(Burn *b, Error *err);

/* ---- in a child ---- */

/* At least one round, and until then (clock_seconds). */
void burn_cores(BurnWorker *w, double until, bool fault);
/* `fault`: offset whose word is to flip once, or -1. */
void burn_memory(BurnWorker *w, uint64_t bytes, double until, int64_t fault);

/* ---- results ---- */

const char *burn_kernel_name(int kernel);
/* Adds a line for each core whose results are not those of most. Returns the number of lines. */
int burn_judge(const Burn *b, Text *out);
/* The same for memory. */
int burn_judge_memory(const Burn *b, Text *out);

/* Writes a file in the directory, reads it back, and removes it. Adds a line if it differs. */
ErrorCode burn_file(const Burn *b, double seconds, Text *out, int *differ, Error *err);

#endif

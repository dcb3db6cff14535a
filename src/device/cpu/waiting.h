/* How OpenMP's threads wait for each other when other programs use the same cores. */
#ifndef WEFT_DEVICE_CPU_WAITING_H
#define WEFT_DEVICE_CPU_WAITING_H

#include <stdbool.h>

/* Starts the watch over teams of `threads` threads, once in a process. Does nothing for one thread, and
 * nothing where the environment already says how threads wait. */
void waiting_watch(int threads);

/* True where the user has said it: OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME is set. */
bool waiting_is_set(void);

/* True where more threads of the whole machine want to run than it has cores, now and as the average of the
 * last minute: that average alone would also count what ran before this process. */
bool machine_is_loaded(double *load, int *cores);

/* The decision by itself, for tests. A sample is the share of a period for which the main thread was ready
 * to run and had no core. */
typedef struct Crowd {
    bool busy;
    double patience; /* seconds of quiet before threads may spin again; 0: none so far */
    double quiet;    /* seconds of quiet up to now */
    double calm;     /* seconds since threads may spin again */
} Crowd;
void crowd_sample(Crowd *c, double share, double seconds);

/* Keeps so many threads of OpenMP asleep until done(arg) is true; it is called again and again, and takes its
 * own time. Meanwhile the threads of other teams hardly spin. Then the threads end. */
void crowd_keep(int threads, bool (*done)(void *arg), void *arg);

#endif

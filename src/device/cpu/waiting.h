/* How OpenMP's threads wait for each other when other programs use the same cores. */
#ifndef WEFT_DEVICE_CPU_WAITING_H
#define WEFT_DEVICE_CPU_WAITING_H

#include <stdbool.h>

/* Starts the watch over teams of `threads` threads, once per process. Does nothing for one thread, nor if the
 * environment already sets how threads wait. */
void waiting_watch(int threads);

/* True if the user has set it: OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME. */
bool waiting_is_set(void);

/* True if more threads of the whole machine want to run than it has cores, both now and averaged over the
 * last minute: the average alone would also count what ran before this process. */
bool machine_is_loaded(double *load, int *cores);

/* The decision alone, for tests. A sample is the fraction of a period in which the main thread was ready to
 * run and had no core. */
typedef struct Crowd {
    bool busy;
    double patience; /* seconds of quiet before threads may spin again; 0: none so far */
    double quiet;    /* seconds of quiet up to now */
    double calm;     /* seconds since threads may spin again */
} Crowd;
void crowd_sample(Crowd *c, double share, double seconds);

/* Keeps `threads` OpenMP threads asleep until done(arg) returns true; it is called repeatedly and paces
 * itself. Meanwhile the threads of other teams hardly spin. Then the threads end. */
void crowd_keep(int threads, bool (*done)(void *arg), void *arg);

#endif

/* Interface between the files of the simulated runtime. */
#ifndef WEFT_TESTS_CUDA_SIM_SIM_H
#define WEFT_TESTS_CUDA_SIM_SIM_H

#include <stdint.h>

#include <functional>

#include "cuda_runtime.h"

/* The n-th pseudo-random number of the seed WEFT_SIM_SEED. */
uint64_t sim_draw(uint64_t n);
/* Runs all blocks of a grid, one after another. */
void sim_run_grid(dim3 grid, dim3 block, size_t dynamic_bytes, const std::function<void()> &thread,
                  SimArguments arguments);

/* The position of the running thread, and what orders it against other threads of its grid. */
struct SimPosition {
    uint64_t block;            /* of the grid */
    unsigned barriers;         /* barriers that its block has passed */
    unsigned thread, meetings; /* index in its block; meetings that its warp has passed in this block */
};
SimPosition sim_position(void);
enum { SIM_THREADS_MAX = 1024 };
/* The index of the running thread in its block. */
int sim_number(void);
/* Reports why and where, and ends the process. */
[[noreturn]] void sim_broken(const char *why);
/* matrices.cpp: called when the thread ends. Its products must have been waited for. */
void sim_end_products(void);
/* Checks that products may read what all threads had copied by the last barrier. */
void sim_check_shown(void);
/* Whether only one thread, or the simulation itself, uses the address; always true while no kernel runs. */
bool sim_private(const void *address);
/* Takes memory of the thread's GPU, as a library would: the amount that WEFT_SIM_TAKES gives for `what`. */
void sim_take(const char *what);
/* Whether a GPU can access the address: its own memory, and pinned host memory. */
bool sim_reaches(const void *address);
/* The same for a block, which also has its shared memory. */
bool sim_block_reaches(const void *address);

/* races.cpp: forgets accesses to memory that is reused; ends a grid, which orders everything it did before
 * everything that follows. */
void races_forget(const void *memory, size_t bytes);
void races_end(void);

/* Ends the process if the stream has not the highest priority. Streams of messages need it. */
void sim_need_priority(cudaStream_t s);

/* Queues work that is tried until it returns true: it waits for another process. */
void sim_queue_until(cudaStream_t s, std::function<bool()> work);

#endif

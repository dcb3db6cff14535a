/* Between the files of the simulated runtime. */
#ifndef WEFT_TESTS_CUDA_SIM_SIM_H
#define WEFT_TESTS_CUDA_SIM_SIM_H

#include <stdint.h>

#include <functional>

#include "cuda_runtime.h"

/* The n-th number drawn from WEFT_SIM_SEED. */
uint64_t sim_draw(uint64_t n);
/* Runs all blocks of a grid, one after another. */
void sim_run_grid(dim3 grid, dim3 block, size_t dynamic_bytes, const std::function<void()> &thread,
                  SimArguments arguments);

/* Where the thread that runs stands: what orders it against others of its grid. */
struct SimPlace {
    uint64_t block;            /* of the grid */
    unsigned barriers;         /* that its block has passed */
    unsigned thread, meetings; /* of its block; that its warp has passed in this block */
};
SimPlace sim_place(void);
enum { SIM_THREADS_MAX = 1024 };
/* Of the thread that runs, in its block. */
int sim_number(void);
/* Says why, and where, and ends the process. */
[[noreturn]] void sim_broken(const char *why);
/* matrices.cpp: the thread ends, and its products have been waited for. */
void sim_end_products(void);
/* Products may read what all threads' copies had written at the last barrier. */
void sim_check_shown(void);
/* Memory of one thread, or of the simulation itself; all of it while no thread of a kernel runs. */
bool sim_private(const void *address);
/* Memory of the thread's GPU that a library takes: as WEFT_SIM_TAKES says of `what`. */
void sim_take(const char *what);
/* Whether a GPU would reach it: its own memory, and pinned memory of the host. */
bool sim_reaches(const void *address);
/* Or a block, in its shared memory. */
bool sim_block_reaches(const void *address);

/* races.cpp: memory that is taken anew; the end of a grid, which orders all that it did before all that
 * follows. */
void races_forget(const void *memory, size_t bytes);
void races_end(void);

/* Queues work that is tried until it says that it is done: what it waits for is another process. */
void sim_queue_until(cudaStream_t s, std::function<bool()> work);

#endif

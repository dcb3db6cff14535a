/* Between the two files of the simulated runtime. */
#ifndef WEFT_TESTS_CUDA_SIM_SIM_H
#define WEFT_TESTS_CUDA_SIM_SIM_H

#include <stdint.h>

#include <functional>

#include "cuda_runtime.h"

/* The n-th number drawn from WEFT_SIM_SEED. */
uint64_t sim_draw(uint64_t n);
/* Runs all blocks of a grid, one after another. */
void sim_run_grid(dim3 grid, dim3 block, size_t dynamic_bytes, const std::function<void()> &thread);

/* Queues work that is tried until it says that it is done: what it waits for is another process. */
void sim_queue_until(cudaStream_t s, std::function<bool()> work);

#endif

/* Grids on a CPU: the threads of a block are fibers that take turns.
 *
 *     ready --(its turn)--> runs --(barrier)--> waits for its warp, or for its block --(all there)--> ready
 *                             \--(ends)--> done
 *
 * A warp runs until none of its lanes can go on. The first warp and lane are drawn from the seed. When
 * all threads that are not done wait for their block, they go on together. If some are done while others
 * wait there, or if lanes of a warp wait for different things, nobody can go on: that is reported, and
 * the process ends.
 *
 * Stacks are kept from block to block; shared memory is not. The number of times a thread has met the others
 * of its block and of its warp is counted: its accesses in between race with those of others (races.cpp). */
#include "cuda_runtime.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef SIM_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#define FROM_FIBER(fake, bottom, size) __sanitizer_finish_switch_fiber((fake), (bottom), (size))
#define TO_FIBER(fake, bottom, size) __sanitizer_start_switch_fiber((fake), (bottom), (size))
#else
#define FROM_FIBER(fake, bottom, size) ((void)(fake), (void)(bottom), (void)(size))
#define TO_FIBER(fake, bottom, size) ((void)(fake), (void)(bottom), (void)(size))
#endif

SimThread *sim_thread;
dim3 sim_block_index, sim_block, sim_grid;

namespace {

#ifdef SIM_ADDRESS_SANITIZER
enum { STACK = 256 << 10 };
#else
enum { STACK = 64 << 10 };
#endif
enum { LANES = 32, THREADS_MAX = SIM_THREADS_MAX };
enum State : uint8_t { READY, AT_WARP, AT_BLOCK, DONE };

struct Fiber {
    SimThread thread;
    void *at;   /* saved stack pointer */
    void *fake; /* the address sanitizer's fake stack */
    std::vector<SimCopy> copies;
};

struct Warp {
    int first, count, waiting; /* waiting: at the warp's barrier */
    const char *meets_for;
    unsigned meetings;       /* in this block */
    SimLane lanes[2][LANES]; /* used alternately */
};

struct Shared {
    const void *key;
    void *memory;
    size_t bytes;
};

char *stacks; /* of all fibers, contiguous */
Fiber fibers[THREADS_MAX];
State states[THREADS_MAX];    /* of fibers */
bool holds_back[THREADS_MAX]; /* has copies that have been waited for, but not made visible to products */
Warp warps[THREADS_MAX / LANES];
int current, count;
const Warp *running; /* in a pass over its lanes: */
int first_lane, turn;
uint64_t block_number; /* index of the block in its grid */
unsigned barriers;     /* barriers that the block has passed */
void *scheduler, *scheduler_fake;
const void *scheduler_bottom;
size_t scheduler_size;
bool from_scheduler;
const std::function<void()> *body;
SimBytes arguments;        /* of the running kernel */
thread_local bool in_grid; /* the caller is a thread of a kernel, not the host */
std::vector<Shared> shared;
Shared dynamic; /* dynamic shared memory, without a key */
int either;     /* result of __syncthreads_or */
bool unshown;   /* some thread had unshown copies at the last barrier */
uint64_t draws;

bool lies_in(SimBytes memory, const char *p, size_t bytes) {
    const char *begin = (const char *)memory.first;
    return begin && p >= begin && p + bytes <= begin + memory.count;
}

/* ---- switching ---- */

#if !defined(__x86_64__)
#error "cuda_sim switches stacks on x86-64 alone"
#endif

/* Saves the callee-saved registers and the stack pointer in *from, and continues where `to` was saved. */
extern "C" void sim_switch(void **from, void *to);
__asm__(".text\n"
        ".type sim_switch, @function\n"
        ".globl sim_switch\n"
        ".hidden sim_switch\n"
        "sim_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size sim_switch, .-sim_switch\n");

char *stack_of(int i) { return stacks + (size_t)i * STACK; }

/* The next lane that can go on in this pass over its warp, or -1. */
int next_lane(void) {
    while (++turn < running->count) {
        int lane = first_lane + turn;
        lane = running->first + (lane < running->count ? lane : lane - running->count);
        if (states[lane] == READY) return lane;
    }
    return -1;
}

void arrive(void *fake) {
    const void *bottom = NULL;
    size_t size = 0;
    FROM_FIBER(fake, &bottom, &size);
    if (from_scheduler) scheduler_bottom = bottom, scheduler_size = size;
    from_scheduler = false;
}

/* Switches from what saves its stack pointer in *from to a fiber. */
void run_fiber(int i, void **from, void **fake) {
    current = i;
    sim_thread = &fibers[i].thread;
    TO_FIBER(fake, stack_of(i), STACK);
    sim_switch(from, fibers[i].at);
}

/* To the next lane, or else to the scheduler. */
void leave(State state) {
    Fiber *f = &fibers[current];
    void **fake = state == DONE ? NULL : &f->fake;
    states[current] = state;
    int next = next_lane();
    if (next >= 0) {
        run_fiber(next, &f->at, fake);
    } else {
        TO_FIBER(fake, scheduler_bottom, scheduler_size);
        sim_switch(&f->at, scheduler);
    }
    arrive(f->fake);
}

[[noreturn]] void fiber_main(void) {
    arrive(NULL);
    (*body)();
    if (!fibers[current].copies.empty()) sim_broken("it ends before its copies have been waited for");
    sim_end_products();
    leave(DONE);
    abort();
}

/* Stacks begin at different cache lines, or all threads of a block would share one set of the cache. */
char *end_of_stack(int i) { return stack_of(i) + STACK - i % 64 * 17 * 64; }

/* Six registers and a return address, fiber_main's. After a call the stack is 8 bytes short of
 * a multiple of 16. */
void start_fiber(int i) {
    Fiber *f = &fibers[i];
    void **top = (void **)end_of_stack(i) - 1;
    *--top = (void *)fiber_main;
    top -= 6;
    f->at = top;
    states[i] = READY;
    holds_back[i] = false;
    unsigned x = (unsigned)i % sim_block.x;
    f->thread.index = dim3(x, (unsigned)i / sim_block.x);
}

/* ---- turns ---- */

uint64_t draw(void) { return sim_draw(draws++); }

/* One pass over the lanes of a warp: each that can go on passes its turn to the next. False if none can. */
bool run_lanes(void) {
    turn = -1;
    int lane = next_lane();
    if (lane < 0) return false;
    from_scheduler = true;
    run_fiber(lane, &scheduler, &scheduler_fake);
    FROM_FIBER(scheduler_fake, NULL, NULL);
    return true;
}

void run_warp(Warp *w) {
    first_lane = (int)(draw() % (uint64_t)w->count);
    running = w;
    while (run_lanes()) {
        if (w->waiting < w->count) continue;
        w->waiting = 0;
        w->meetings++;
        memset(&states[w->first], READY, (size_t)w->count);
    }
}

/* Called when no thread can go on. Returns false if all are done. */
bool release_block(void) {
    int done = 0, waiting = 0;
    for (int i = 0; i < count; i++) done += states[i] == DONE, waiting += states[i] == AT_BLOCK;
    if (done == count) return false;
    if (waiting < count) sim_broken("some threads wait at a barrier that others do not reach");
    memset(states, READY, (size_t)count);
    unshown = memchr(holds_back, true, (size_t)count) != NULL;
    barriers++;
    return true;
}

void free_shared(void) {
    for (Shared &s : shared) free(s.memory);
    shared.clear();
    free(dynamic.memory);
    dynamic = {};
}

/* Aligned to 1,024 bytes, as panels require. */
void *poisoned(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 1024, bytes)) sim_broken("no memory");
    memset(memory, 0xff, bytes);
    races_forget(memory, bytes);
    return memory;
}

void run_block(size_t dynamic_bytes) {
    int warp_count = (count + LANES - 1) / LANES;
    if (dynamic_bytes) dynamic = {NULL, poisoned(dynamic_bytes), dynamic_bytes};
    barriers = 0;
    unshown = false;
    for (int i = 0; i < count; i++) start_fiber(i);
    for (int w = 0; w < warp_count; w++) {
        warps[w].first = w * LANES;
        warps[w].count = count - w * LANES < LANES ? count - w * LANES : LANES;
        warps[w].waiting = 0;
        warps[w].meetings = 0;
    }
    do {
        int begin = (int)(draw() % (uint64_t)warp_count);
        for (int w = 0; w < warp_count; w++) run_warp(&warps[(begin + w) % warp_count]);
    } while (release_block());
    free_shared();
}

void take_stacks(void) {
    void *memory = mmap(NULL, (size_t)THREADS_MAX * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) sim_broken("no memory for stacks");
    madvise(memory, (size_t)THREADS_MAX * STACK, MADV_HUGEPAGE);
    stacks = (char *)memory;
}

} // namespace

void sim_run_grid(dim3 grid, dim3 block, size_t dynamic_bytes, const std::function<void()> &thread,
                  SimArguments of_thread) {
    if (!stacks) take_stacks();
    sim_grid = grid;
    sim_block = block;
    count = (int)(block.x * block.y);
    body = &thread;
    arguments = of_thread(thread);
    block_number = 0;
    in_grid = true;
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++, block_number++) {
            sim_block_index = dim3(x, y);
            run_block(dynamic_bytes);
        }
    in_grid = false;
    races_end();
}

SimPosition sim_position(void) {
    return {block_number, barriers, (unsigned)current, warps[current / LANES].meetings};
}

bool sim_private(const void *address) {
    const char *at = (const char *)address, *lanes = (const char *)warps;
    return !in_grid || (at >= stacks && at < stacks + (size_t)THREADS_MAX * STACK) ||
           (at >= lanes && at < lanes + sizeof warps) || lies_in({body, sizeof *body}, at, 1) ||
           lies_in(arguments, at, 1);
}

bool sim_block_reaches(const void *address) {
    const char *at = (const char *)address;
    for (const Shared &s : shared)
        if (lies_in({s.memory, s.bytes}, at, 1)) return true;
    return lies_in({dynamic.memory, dynamic.bytes}, at, 1) || sim_reaches(address);
}

void sim_broken(const char *why) {
    fprintf(stderr, "cuda_sim: block (%u, %u), thread (%u, %u): %s\n", blockIdx.x, blockIdx.y, threadIdx.x,
            threadIdx.y, why);
    abort();
}

int sim_number(void) { return current; }

void sim_check_shown(void) {
    if (unshown) sim_broken("a product that may read copies which were not shown to it");
}

/* ---- what kernels call ---- */

void sim_copies_shown(void) { holds_back[current] = false; }

void __syncthreads(void) { leave(AT_BLOCK); }

/* `either` is written before the barrier, read after it, and cleared between two more. */
int __syncthreads_or(int condition) {
    if (condition) either = 1;
    __syncthreads();
    int result = either;
    __syncthreads();
    either = 0;
    __syncthreads();
    return result;
}

SimLane *sim_lanes(void) {
    Warp *w = &warps[current / LANES];
    return w->lanes[w->meetings & 1];
}
int sim_lane(void) { return current % LANES; }

void sim_meet_warp(const char *what) {
    Warp *w = &warps[current / LANES];
    if (w->waiting++ == 0) w->meets_for = what;
    if (w->meets_for != what && strcmp(w->meets_for, what) != 0)
        sim_broken("lanes of its warp meet for different things");
    leave(AT_WARP);
}

void *sim_shared(const void *key, size_t bytes) {
    for (const Shared &s : shared)
        if (s.key == key) return s.memory;
    shared.push_back({key, poisoned(bytes), bytes});
    return shared.back().memory;
}

char *sim_dynamic_shared(void) { return (char *)dynamic.memory; }

void sim_misaligned(void) { sim_broken("an access that does not begin at a multiple of its size"); }

void sim_check_shared(const void *p, size_t bytes) {
    if (lies_in({dynamic.memory, dynamic.bytes}, (const char *)p, bytes)) return;
    for (const Shared &s : shared)
        if (lies_in({s.memory, s.bytes}, (const char *)p, bytes)) return;
    sim_broken("an access outside of shared memory");
}

void sim_begin_copy(SimCopy c) { fibers[current].copies.push_back(c); }

/* Copies are returned in the order in which they began. */
bool sim_next_copy(SimCopy *c) {
    std::vector<SimCopy> &copies = fibers[current].copies;
    if (copies.empty()) return false;
    *c = copies.front();
    copies.erase(copies.begin());
    holds_back[current] = true;
    return true;
}

/* Grids on a CPU: the threads of a block are fibers that take turns.
 *
 *     ready --(its turn)--> runs --(barrier)--> waits for its warp, or for its block --(all there)--> ready
 *                             \--(ends)--> done
 *
 * A warp runs until none of its lanes can go on; warps and lanes begin at places drawn from the seed. When
 * all that are not done wait for their block they go on together; when some are done and others wait there,
 * or lanes of one warp wait for different things, nobody can go on: that is said, and the process ends.
 *
 * Stacks are kept from block to block; shared memory is not.
 *
 * The thread sanitizer (SIM_THREAD_SANITIZER) sees each thread of a grid as a fiber of its own: what this
 * file and the runtime do is not instrumented, switching makes no order, and threads are ordered by what
 * orders them on a GPU alone: a launch and its end, a barrier of their block, a meeting of their warp. So it
 * finds races inside a block and between blocks. Its fibers are dear: SLOTS of them serve all blocks in turn,
 * so that of neighbouring blocks no two threads have the same. Shared memory lives until the grid has ended.
 */
#include "cuda_runtime.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
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

#ifdef SIM_THREAD_SANITIZER
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
}
enum { NO_SYNC = 1, RACES = 1, SLOTS = 2048 };
#define AS_FIBER(fiber) __tsan_switch_to_fiber((fiber), NO_SYNC)
#define NEW_FIBER() __tsan_create_fiber(0)
#define THIS_FIBER() __tsan_get_current_fiber()
#define ACQUIRE(cell) __tsan_acquire(cell)
#define RELEASE(cell) __tsan_release(cell)
#else
enum { RACES = 0, SLOTS = 1024 };
#define AS_FIBER(fiber) ((void)(fiber))
#define NEW_FIBER() NULL
#define THIS_FIBER() NULL
#define ACQUIRE(cell) ((void)(cell))
#define RELEASE(cell) ((void)(cell))
#endif

SimThread *sim_thread;
dim3 sim_block_index, sim_block, sim_grid;

namespace {

enum { LANES = 32, THREADS_MAX = 1024, STACK = 256 << 10 };
enum State { READY, AT_WARP, AT_BLOCK, DONE };

/* What threads run on. */
struct Slot {
    void *stack;
    void *as; /* the thread sanitizer's fiber */
};

struct Fiber {
    SimThread thread;
    State state;
    Slot *slot;
    void *at;     /* saved stack pointer */
    void *fake;   /* the address sanitizer's */
    int barriers; /* passed or waited at */
};

/* Addresses that stand for what orders threads; two in turn, since one thread may be at the next meeting when
 * another has not left this one. */
struct Cells {
    char start, block[2], warp[THREADS_MAX / LANES][2];
};

struct Warp {
    int first, count, waiting; /* waiting: at the warp's barrier */
    int turn;                  /* of the two sets of lanes below */
    SimLane lanes[2][LANES];
};

struct Shared {
    const void *key;
    void *memory;
};

Slot slots[SLOTS];
Fiber fibers[THREADS_MAX];
Warp warps[THREADS_MAX / LANES];
int current, count;
void *scheduler, *scheduler_fake, *scheduler_as;
const void *scheduler_bottom;
size_t scheduler_size;
const std::function<void()> *body;
std::vector<Shared> shared;
std::vector<void *> kept; /* of blocks that have ended */
Cells *cells;             /* of this block */
char grid_end;            /* likewise, of a grid */
char *dynamic;
int either; /* of __syncthreads_or */
uint64_t draws;

[[noreturn]] void broken(const char *why) {
    fprintf(stderr, "cuda_sim: block (%u, %u), thread (%u, %u): %s\n", blockIdx.x, blockIdx.y, threadIdx.x,
            threadIdx.y, why);
    abort();
}

/* ---- switching ---- */

#if !defined(__x86_64__)
#error "cuda_sim switches stacks on x86-64 alone"
#endif

/* Saves what a call must keep, leaves its stack in *from and goes on where `to` was left. */
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

void to_scheduler(State state) {
    Fiber *f = &fibers[current];
    f->state = state;
    TO_FIBER(state == DONE ? NULL : &f->fake, scheduler_bottom, scheduler_size);
    AS_FIBER(scheduler_as);
    sim_switch(&f->at, scheduler);
    FROM_FIBER(f->fake, &scheduler_bottom, &scheduler_size);
}

void run_fiber(int i) {
    Fiber *f = &fibers[i];
    current = i;
    sim_thread = &f->thread;
    TO_FIBER(&scheduler_fake, f->slot->stack, STACK);
    AS_FIBER(f->slot->as);
    sim_switch(&scheduler, f->at);
    FROM_FIBER(scheduler_fake, NULL, NULL);
}

[[noreturn]] void fiber_main(void) {
    FROM_FIBER(NULL, &scheduler_bottom, &scheduler_size);
    ACQUIRE(&cells->start);
    (*body)();
    RELEASE(&grid_end);
    to_scheduler(DONE);
    abort();
}

/* Stacks begin at different lines of a cache, or all threads of a block would share one of its sets. */
char *end_of_stack(const Slot *slot) { return (char *)slot->stack + STACK - (slot - slots) % 64 * 17 * 64; }

/* Six registers and the address to return to, which is fiber_main's; behind a call the stack is 8 short of a
 * multiple of 16. */
void start_fiber(int i, Slot *slot) {
    Fiber *f = &fibers[i];
    if (!slot->stack) {
        slot->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        slot->as = NEW_FIBER();
    }
    if (slot->stack == MAP_FAILED) broken("no memory for a stack");
    f->slot = slot;
    f->barriers = 0;
    void **top = (void **)end_of_stack(slot) - 1;
    *--top = (void *)fiber_main;
    top -= 6;
    f->at = top;
    f->state = READY;
    unsigned x = (unsigned)i % sim_block.x;
    f->thread.index = dim3(x, (unsigned)i / sim_block.x);
}

/* ---- turns ---- */

uint64_t draw(void) { return sim_draw(draws++); }

void run_warp(Warp *w) {
    int begin = (int)(draw() % (uint64_t)w->count);
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < w->count; i++) {
            int at = w->first + (begin + i) % w->count;
            if (fibers[at].state != READY) continue;
            run_fiber(at);
            moved = true;
        }
        if (w->waiting == 0 || w->waiting < w->count) continue;
        w->waiting = 0;
        w->turn ^= 1;
        for (int i = 0; i < w->count; i++) fibers[w->first + i].state = READY;
        moved = true;
    }
}

/* After a round in which nobody could go on. */
bool release_block(void) {
    int done = 0, waiting = 0;
    for (int i = 0; i < count; i++) done += fibers[i].state == DONE, waiting += fibers[i].state == AT_BLOCK;
    if (done == count) return false;
    if (waiting < count) broken("some threads wait at a barrier that others do not reach");
    for (int i = 0; i < count; i++) fibers[i].state = READY;
    return true;
}

void keep_shared(void) {
    for (Shared &s : shared) kept.push_back(s.memory);
    shared.clear();
    if (dynamic) kept.push_back(dynamic);
    dynamic = NULL;
    kept.push_back(cells);
}

void free_kept(void) {
    for (void *memory : kept) free(memory);
    kept.clear();
}

void *poisoned(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) broken("no memory");
    memset(memory, 0xff, bytes);
    return memory;
}

/* number: of the block in its grid. */
void run_block(size_t dynamic_bytes, uint64_t number) {
    int warp_count = (count + LANES - 1) / LANES;
    if (dynamic_bytes) dynamic = (char *)poisoned(dynamic_bytes);
    cells = (Cells *)poisoned(sizeof *cells);
    for (int i = 0; i < count; i++)
        start_fiber(i, &slots[RACES ? (number * (uint64_t)count + (uint64_t)i) % SLOTS : (uint64_t)i]);
    RELEASE(&cells->start);
    for (int w = 0; w < warp_count; w++) {
        warps[w].first = w * LANES;
        warps[w].count = count - w * LANES < LANES ? count - w * LANES : LANES;
        warps[w].waiting = warps[w].turn = 0;
    }
    do {
        int begin = (int)(draw() % (uint64_t)warp_count);
        for (int w = 0; w < warp_count; w++) run_warp(&warps[(begin + w) % warp_count]);
    } while (release_block());
    keep_shared();
}

} // namespace

void sim_run_grid(dim3 grid, dim3 block, size_t dynamic_bytes, const std::function<void()> &thread) {
    sim_grid = grid;
    sim_block = block;
    count = (int)(block.x * block.y);
    body = &thread;
    scheduler_as = THIS_FIBER();
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++) {
            sim_block_index = dim3(x, y);
            run_block(dynamic_bytes, (uint64_t)y * grid.x + x);
            if (!RACES) free_kept();
        }
    ACQUIRE(&grid_end);
    free_kept();
}

/* ---- what kernels call ---- */

void __syncthreads(void) {
    int turn = fibers[current].barriers++ & 1;
    RELEASE(&cells->block[turn]);
    to_scheduler(AT_BLOCK);
    ACQUIRE(&cells->block[turn]);
}

/* Written before the barrier, read after it, and cleared between two more. */
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
    return w->lanes[w->turn];
}
int sim_lane(void) { return current % LANES; }

void sim_meet_warp(void) {
    Warp *w = &warps[current / LANES];
    char *cell = &cells->warp[current / LANES][w->turn];
    w->waiting++;
    RELEASE(cell);
    to_scheduler(AT_WARP);
    ACQUIRE(cell);
}

/* Taken by the scheduler, who is ordered before the block and nothing else: not by the thread that happens to
 * come first. */
static void *take_shared(const void *key, size_t bytes) {
    AS_FIBER(scheduler_as);
    shared.push_back({key, poisoned(bytes)});
    RELEASE(&cells->start);
    AS_FIBER(fibers[current].slot->as);
    return shared.back().memory;
}

void *sim_shared(const void *key, size_t bytes) {
    void *memory = NULL;
    for (const Shared &s : shared)
        if (s.key == key) memory = s.memory;
    if (!memory) memory = take_shared(key, bytes);
    ACQUIRE(&cells->start);
    return memory;
}

char *sim_dynamic_shared(void) { return dynamic; }

/* Streams, events and memory of the simulated runtime; cuda_runtime_api.h describes their behaviour.
 *
 *     call --> queue of its stream --(something waits: cudaEventSynchronize, ...)--> runs
 *
 * The stream that runs next is drawn from the seed, among those whose next work does not wait for an event.
 * An event stands for a number of works of one stream, and is reached when that many have run. An event with
 * a time is itself a work, which takes no time. */
#include "cuda_runtime.h"
#include "device/cuda/plugin/nvml.h"
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Work {
    std::function<bool()> run; /* empty: only waits; returns false to be tried again */
    cudaStream_t after;        /* waits for its work `number`; NULL: for nothing */
    uint64_t number;
    cudaEvent_t stamped = NULL; /* not NULL: nothing to run, only the time to be noted */
};

} // namespace

struct CUstream_st {
    int gpu, priority;
    std::deque<Work> works;
    uint64_t queued, run;
};
struct CUevent_st {
    int gpu;
    cudaStream_t stream; /* NULL: never recorded */
    uint64_t number;
    bool timed;
    uint64_t at; /* microseconds, when it has been reached */
};

namespace {

enum {
    SHARED_USUAL = 48 << 10,
    SHARED_MOST = 227 << 10 /* of sm_90 */,
    THREADS_MOST = 1024,
    GRID_X = 0x7fffffff,
    GRID_Y = 65535
};
constexpr uint64_t MEBI = (uint64_t)1 << 20;

std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;
std::vector<cudaStream_t> streams;
std::map<void *, size_t> device_memory, pinned;
std::map<void *, int> device_of;
std::map<const void *, size_t> allowed; /* dynamic shared memory of kernels */
thread_local int current = -1;          /* the thread's GPU; -1: it has chosen none */
uint64_t draws, launches, microseconds;
thread_local cudaError_t last_error;
cudaError_t sticky;

uint64_t environment(const char *name) {
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : 0;
}

/* ---- how much of the GPUs' memory is taken ---- */

/* The number of `name` in WEFT_SIM_TAKES ("name=number,..."), else `usual`. */
uint64_t takes(const char *name, uint64_t usual) {
    const char *list = getenv("WEFT_SIM_TAKES");
    std::string key = std::string(",") + name + "=", all = std::string(",") + (list ? list : "");
    size_t at = all.find(key);
    return at == std::string::npos ? usual : strtoull(all.c_str() + at + key.size(), NULL, 10);
}
uint64_t memory_of_gpu(void) {
    static const uint64_t bytes = takes("total", 8192) * MEBI, others = takes("others", 0) * MEBI;
    return bytes > others ? bytes - others : 0;
}

/* Bytes taken of a GPU: by all processes that share WEFT_SIM_GPUS, or by this one. */
uint64_t *taken_of(int gpu) {
    enum { GPUS = 64 };
    static uint64_t *shared, own[GPUS];
    const char *path = getenv("WEFT_SIM_GPUS");
    if (path && !shared) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        void *p = fd < 0 || ftruncate(fd, sizeof own)
                      ? MAP_FAILED
                      : mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) abort();
        shared = (uint64_t *)p;
    }
    return (shared ? shared : own) + gpu;
}

bool spend(int gpu, uint64_t bytes) {
    uint64_t *all = taken_of(gpu);
    if (__atomic_add_fetch(all, bytes, __ATOMIC_SEQ_CST) <= memory_of_gpu()) return true;
    __atomic_sub_fetch(all, bytes, __ATOMIC_SEQ_CST);
    return false;
}

/* The real runtime takes GPU 0 for a thread that has chosen none, and creates a context there. */
void need_gpu(const char *call) {
    if (current >= 0) return;
    fprintf(stderr, "cuda_sim: %s: the thread has chosen no GPU\n", call);
    abort();
}

/* Most calls work from another GPU, too, but would create a context there. */
void need_gpu_of(int gpu, const char *call) {
    need_gpu(call);
    if (current == gpu) return;
    fprintf(stderr, "cuda_sim: %s: for GPU %d, by a thread that has chosen GPU %d\n", call, gpu, current);
    abort();
}

/* The first call that concerns a GPU's memory creates a context, which takes memory. */
void need_context(void) {
    static uint64_t made;
    need_gpu("memory");
    if (made >> current & 1) return;
    made |= (uint64_t)1 << current;
    spend(current, takes("context", 0) * MEBI);
}

uint64_t in_pieces(size_t bytes) {
    static const uint64_t piece = takes("piece", 2) * MEBI;
    return (bytes + piece - 1) / piece * piece;
}

enum : size_t { HUGE_PAGE = 2 << 20 };
/* The length of the mapping of `bytes`: whole pages, huge ones if it fills any. */
size_t pages(size_t bytes) {
    size_t page = bytes < HUGE_PAGE ? (size_t)sysconf(_SC_PAGESIZE) : HUGE_PAGE;
    return (bytes + page - 1) / page * page;
}

/* Device memory is accessible while work runs, not while the host does. Several threads may be
 * running work in turn. */
void open_memory(bool open) {
    static int running;
    running += open ? 1 : -1;
    if (running != (open ? 1 : 0)) return;
    for (auto &m : device_memory)
        mprotect(m.first, pages(m.second), open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

bool reached(const Work &w) { return !w.after || w.after->run >= w.number; }

/* Runs the first work that can go on, beginning with a random stream. Returns false if all of them wait for
 * other processes. */
bool run_one(void) {
    std::vector<cudaStream_t> ready;
    for (cudaStream_t s : streams)
        if (!s->works.empty() && reached(s->works.front())) ready.push_back(s);
    if (ready.empty()) {
        fprintf(stderr, "cuda_sim: streams wait for each other\n");
        abort();
    }
    size_t begin = sim_draw(draws++) % ready.size();
    for (size_t i = 0; i < ready.size(); i++) {
        cudaStream_t s = ready[(begin + i) % ready.size()];
        const Work &w = s->works.front();
        if (w.run && !w.run()) continue;
        if (w.run) microseconds++;
        if (w.stamped) w.stamped->at = microseconds;
        s->works.pop_front();
        s->run++;
        return true;
    }
    return false;
}

/* Lets other threads run, which may cancel what is waited for. */
void rest(void) {
    mutex.unlock();
    usleep(50);
    mutex.lock();
}

/* Later work in any queue is left alone, so that reading too early shows. */
cudaError_t run_until(cudaStream_t s, uint64_t number) {
    if (s->run < number) {
        open_memory(true);
        while (s->run < number)
            if (!run_one()) rest();
        open_memory(false);
    }
    return sticky;
}

void run_all(void) {
    for (cudaStream_t s : streams) run_until(s, s->queued);
}

cudaError_t fail(cudaError_t e) { return last_error = e; }

bool lies_in(const std::map<void *, size_t> &memory, const void *p) {
    auto next = memory.upper_bound((void *)p);
    if (next == memory.begin()) return false;
    --next;
    return (const char *)p < (const char *)next->first + next->second;
}
bool is_pinned(const void *p) { return lies_in(pinned, p); }

/* Whether a transfer's memory is of the kinds that `kind` claims. */
bool is_of_kind(const void *to, const void *from, cudaMemcpyKind kind) {
    static const bool strict = environment("WEFT_SIM_STRICT") != 0;
    bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
    if (strict) return lies_in(device_memory, to) == to_device && lies_in(device_memory, from) == from_device;
    return (!to_device || sim_reaches(to)) && (!from_device || sim_reaches(from));
}

} // namespace

void sim_take(const char *what) {
    Lock lock(mutex);
    need_gpu(what);
    spend(current, takes(what, 0) * MEBI);
}

/* The memory that a driver takes at the first launch, and an intended leak. */
static void take_at_launch(uint64_t number) {
    static const uint64_t leak = takes("leak", 0), gpu = takes("leaks_on", 0);
    if (number == 1) sim_take("kernels");
    if (number == leak && current == (int)gpu) spend(current, in_pieces(1));
}

bool sim_reaches(const void *address) {
    Lock lock(mutex);
    return lies_in(device_memory, address) || is_pinned(address);
}

/* A 64-bit finaliser of seed and number. */
uint64_t sim_draw(uint64_t n) {
    static const uint64_t seed = environment("WEFT_SIM_SEED");
    uint64_t x = (seed * 0x9e3779b97f4a7c15u + n + 1) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* As on Hopper. */
enum { LOWEST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };

void sim_need_priority(cudaStream_t s) {
    if (s->priority == HIGHEST_PRIORITY) return;
    fprintf(stderr, "cuda_sim: a communicator's stream has not the highest priority\n");
    abort();
}

void sim_queue_until(cudaStream_t s, std::function<bool()> work) {
    Lock lock(mutex);
    need_gpu_of(s->gpu, "work for a stream");
    s->works.push_back({std::move(work), NULL, 0});
    s->queued++;
}

void sim_queue(cudaStream_t s, std::function<void()> work) {
    sim_queue_until(s, [=] { return work(), true; });
}

void sim_launch(const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                std::function<void()> thread, SimArguments arguments) {
    Lock lock(mutex);
    static const uint64_t fault = environment("WEFT_SIM_FAULT");
    static const bool dry = environment("WEFT_SIM_DRY") != 0;
    size_t most = allowed.count(kernel) ? allowed[kernel] : (size_t)SHARED_USUAL;
    uint64_t number = ++launches;
    take_at_launch(number);
    if (grid.x == 0 || grid.x > GRID_X || grid.y == 0 || grid.y > GRID_Y || grid.z != 1 || block.z != 1 ||
        block.x * block.y == 0 || block.x * block.y > THREADS_MOST || shared > most) {
        fail(cudaErrorInvalidConfiguration);
        return;
    }
    if (dry) return;
    sim_queue(s, [=] {
        if (number == fault) sticky = last_error = cudaErrorLaunchFailure;
        sim_run_grid(grid, block, shared, thread, arguments);
    });
}

extern "C" {

/* The driver reads the environment once, at its first call. Its default is 8; here it is what a rank without
 * communicators needs, so that each test of communicators shows that weft has set more in time. */
static long queues(void) {
    static const long read =
        getenv("CUDA_DEVICE_MAX_CONNECTIONS") ? (long)environment("CUDA_DEVICE_MAX_CONNECTIONS") : 3;
    return read;
}

cudaError_t cudaDriverGetVersion(int *version) {
    return *version = 13000, queues() ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13000, cudaSuccess; }

/* WEFT_SIM_DEVICES: the number of GPUs, 1 by default. */
cudaError_t cudaGetDeviceCount(int *count) {
    *count = getenv("WEFT_SIM_DEVICES") ? (int)environment("WEFT_SIM_DEVICES") : 1;
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    *p = {};
    snprintf(p->name, sizeof p->name, "simulated GPU");
    p->totalGlobalMem = takes("total", 8192) * MEBI;
    p->sharedMemPerBlockOptin = SHARED_MOST;
    p->major = 9;
    p->uuid.bytes[0] = (char)(device + 1);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    int count;
    cudaError_t e = cudaGetDeviceCount(&count);
    Lock lock(mutex);
    if (e != cudaSuccess) return e;
    if (device >= count) return fail(cudaErrorInvalidValue);
    current = device;
    need_context();
    return cudaSuccess;
}

/* GPUs 2i and 2i + 1 can access each other. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device / 2 == peer / 2;
    return device != peer ? cudaSuccess : fail(cudaErrorInvalidValue);
}

const char *cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    }
    return "unknown error";
}

cudaError_t cudaGetLastError(void) {
    Lock lock(mutex);
    cudaError_t e = last_error != cudaSuccess ? last_error : sticky;
    last_error = cudaSuccess;
    return e;
}

/* ---- memory ---- */

/* Appends allocations and frees, a line each, to the file WEFT_SIM_MEMORY. */
static void note_memory(const char *what, size_t bytes, char sign) {
    const char *path = getenv("WEFT_SIM_MEMORY");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "%s %c%zu\n", what, sign, bytes);
    fclose(f);
}

/* In huge pages, where the kernel has them: open_memory changes the protection of every page twice per wait,
 * which took two thirds of a run's time in pages of 4 KiB. */
static void *map_device_memory(size_t bytes) {
    size_t length = pages(bytes);
    char *base = (char *)mmap(NULL, length + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NULL;
    char *p = base + (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE, *end = p + length;
    if (p > base) munmap(base, (size_t)(p - base));
    munmap(end, (size_t)(base + length + HUGE_PAGE - end));
    madvise(p, length, MADV_HUGEPAGE);
    return mprotect(p, length, PROT_READ | PROT_WRITE) == 0 ? p : NULL;
}

/* Memory is not zeroed, as on a GPU. */
cudaError_t cudaMalloc(void **memory, size_t bytes) {
    Lock lock(mutex);
    need_context();
    if (!spend(current, in_pieces(bytes))) return fail(cudaErrorMemoryAllocation);
    void *p = map_device_memory(bytes);
    if (!p) return fail(cudaErrorMemoryAllocation);
    memset(p, 0xff, bytes);
    mprotect(p, pages(bytes), PROT_NONE);
    device_memory[p] = bytes;
    device_of[p] = current;
    note_memory("device", bytes, '+');
    *memory = p;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
    Lock lock(mutex);
    run_all();
    auto found = device_memory.find(memory);
    if (found == device_memory.end()) return fail(cudaErrorInvalidValue);
    need_gpu_of(device_of[memory], "cudaFree");
    __atomic_sub_fetch(taken_of(device_of[memory]), in_pieces(found->second), __ATOMIC_SEQ_CST);
    note_memory("device", found->second, '-');
    munmap(memory, pages(found->second));
    device_memory.erase(found);
    device_of.erase(memory);
    return sticky;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags) {
    Lock lock(mutex);
    need_gpu("cudaHostAlloc");
    (void)flags;
    *memory = malloc(bytes);
    if (!*memory) return fail(cudaErrorMemoryAllocation);
    pinned[*memory] = bytes;
    note_memory("host", bytes, '+');
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory) {
    Lock lock(mutex);
    need_gpu("cudaFreeHost");
    run_all();
    if (!pinned.erase(memory)) return fail(cudaErrorInvalidValue);
    free(memory);
    return sticky;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    Lock lock(mutex);
    need_context();
    *total = takes("total", 8192) * MEBI;
    *available = memory_of_gpu() - __atomic_load_n(taken_of(current), __ATOMIC_SEQ_CST);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t s) {
    if (!sim_reaches(memory)) return fail(cudaErrorInvalidValue);
    sim_queue(s, [=] { memset(memory, value, bytes); });
    return cudaSuccess;
}

static cudaError_t from_device(void *to, const void *from, size_t bytes, cudaStream_t s) {
    if (is_pinned(to)) memset(to, 0xff, bytes);
    sim_queue(s, [=] { memcpy(to, from, bytes); });
    return is_pinned(to) ? cudaSuccess : run_until(s, s->queued);
}

static cudaError_t to_device(void *to, const void *from, size_t bytes, cudaStream_t s) {
    if (is_pinned(from)) {
        sim_queue(s, [=] { memcpy(to, from, bytes); });
    } else {
        std::vector<char> held((const char *)from, (const char *)from + bytes);
        sim_queue(s, [=] { memcpy(to, held.data(), bytes); });
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
    Lock lock(mutex);
    if (!is_of_kind(to, from, kind)) return fail(cudaErrorInvalidValue);
    if (kind == cudaMemcpyDeviceToHost) return from_device(to, from, bytes, s);
    if (kind == cudaMemcpyHostToDevice) return to_device(to, from, bytes, s);
    sim_queue(s, [=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t s) {
    Lock lock(mutex);
    bool fits = width <= to_pitch && width <= from_pitch && kind == cudaMemcpyDeviceToDevice;
    if (!fits || !is_of_kind(to, from, kind)) return fail(cudaErrorInvalidValue);
    sim_queue(s, [=] {
        for (size_t i = 0; i < height; i++)
            memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    });
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = LOWEST_PRIORITY;
    *highest = HIGHEST_PRIORITY;
    return cudaSuccess;
}

/* Streams that are more than the GPU's queues would wait for each other's kernels. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    Lock lock(mutex);
    need_gpu("cudaStreamCreateWithPriority");
    (void)flags;
    if (priority > LOWEST_PRIORITY || priority < HIGHEST_PRIORITY) return fail(cudaErrorInvalidValue);
    streams.push_back(*s = new CUstream_st{current, priority, {}, 0, 0});
    long of_gpu =
        std::count_if(streams.begin(), streams.end(), [](cudaStream_t t) { return t->gpu == current; });
    if (of_gpu > queues()) {
        fprintf(stderr, "cuda_sim: %ld streams, and CUDA_DEVICE_MAX_CONNECTIONS was %ld\n", of_gpu, queues());
        abort();
    }
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    Lock lock(mutex);
    need_gpu_of(s->gpu, "cudaStreamDestroy");
    run_until(s, s->queued);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s) streams.erase(streams.begin() + (long)i);
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    Lock lock(mutex);
    need_gpu_of(s->gpu, "cudaStreamSynchronize");
    return run_until(s, s->queued);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    Lock lock(mutex);
    need_gpu_of(s->gpu, "cudaStreamWaitEvent");
    (void)flags;
    if (!e->stream) return cudaSuccess;
    s->works.push_back({nullptr, e->stream, e->number});
    s->queued++;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    need_gpu("cudaEventCreateWithFlags");
    *e = new CUevent_st{current, NULL, 0, (flags & cudaEventDisableTiming) == 0, 0};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    need_gpu_of(e->gpu, "cudaEventDestroy");
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    Lock lock(mutex);
    need_gpu_of(e->gpu, "cudaEventRecord");
    if (s->gpu != e->gpu) return fail(cudaErrorInvalidResourceHandle);
    if (e->timed) {
        s->works.push_back({nullptr, NULL, 0, e});
        s->queued++;
    }
    e->stream = s, e->number = s->queued;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    Lock lock(mutex);
    need_gpu_of(e->gpu, "cudaEventSynchronize");
    return e->stream ? run_until(e->stream, e->number) : sticky;
}

static bool has_passed(cudaEvent_t e) { return !e->stream || e->stream->run >= e->number; }

/* A GPU makes progress by itself; here it does when somebody queries. "Not ready" is an error that the next
 * call of cudaGetLastError returns, as with the real runtime. */
cudaError_t cudaEventQuery(cudaEvent_t e) {
    enum { STEPS = 64 };
    Lock lock(mutex);
    need_gpu_of(e->gpu, "cudaEventQuery");
    if (sticky != cudaSuccess || !e->stream) return sticky;
    open_memory(true);
    for (int i = 0; i < STEPS && !has_passed(e) && run_one(); i++) {}
    open_memory(false);
    return sticky != cudaSuccess ? sticky : has_passed(e) ? cudaSuccess : fail(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    Lock lock(mutex);
    need_gpu_of(from->gpu, "cudaEventElapsedTime");
    if (!from->timed || !to->timed || !from->stream || !to->stream)
        return fail(cudaErrorInvalidResourceHandle);
    if (!has_passed(from) || !has_passed(to)) return fail(cudaErrorNotReady);
    *milliseconds = (float)(to->at - from->at) / 1000;
    return sticky;
}

/* ---- NVML ---- */

static int start_nvml(void) { return takes("blind", 0) ? 12 /* NVML_ERROR_LIBRARY_NOT_FOUND */ : NVML_OK; }
static int end_nvml(void) { return NVML_OK; }
static int find_gpu(const char *name, NvmlDevice *device) {
    unsigned byte = 0;
    if (sscanf(name, "GPU-%2x000000-0000-0000-0000-000000000000", &byte) != 1)
        return 6; /* NVML_ERROR_NOT_FOUND */
    *device = (NvmlDevice)(uintptr_t)byte;
    return NVML_OK;
}
static int tell_memory(NvmlDevice device, NvmlMemory *m) {
    Lock lock(mutex);
    m->total = takes("total", 8192) * MEBI;
    m->available = memory_of_gpu() - __atomic_load_n(taken_of((int)(uintptr_t)device - 1), __ATOMIC_SEQ_CST);
    m->used = m->total - m->available;
    return NVML_OK;
}
const Nvml nvml_linked = {start_nvml, end_nvml, find_gpu, tell_memory};

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute name, int value) {
    Lock lock(mutex);
    need_gpu("cudaFuncSetAttribute");
    (void)name;
    if (value > SHARED_MOST) return fail(cudaErrorInvalidValue);
    allowed[kernel] = (size_t)value;
    return cudaSuccess;
}
}

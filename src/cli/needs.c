/* Before any rank allocates memory, each reports what it needs and how much it sees free. Rank 0 adds up the
 * ranks of each machine and checks the machine with the least to spare. train/gpu_memory.c does this for
 * GPUs; it knows which ranks share one.
 *
 * Only tensor memory is counted: weights, passes, the cache of keys and values. Program, libraries, tokenizer
 * and text add tens of megabytes. */
#include "cli/needs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "train/gpu_memory.h"

typedef struct Needs {
    char machine[HOST_NAME_BYTES];
    int ranks;
    uint64_t weights, passes, available; /* available: 0: unknown */
} Needs;

static uint64_t all_of(const Needs *n) { return n->weights + n->passes; }
static bool fits(const Needs *n) { return n->available == 0 || all_of(n) <= n->available; }

static Needs needs_of(const Device *d, const RankPlan *plan, size_t more) {
    const MemoryPlan *memory = rank_memory(plan);
    Needs n = {.ranks = 1, .available = d->runtime.available(d)};
    n.weights = memory->parameters + memory->copy;
    n.passes = memory_plan_pools(memory) - n.weights + more;
    host_name(n.machine, sizeof n.machine);
    return n;
}

/* Adds each machine's other ranks to its first one. Returns the number of machines. */
static int put_together(Needs *all, int ranks) {
    int machines = 0;
    for (int r = 0; r < ranks; r++) {
        int k = 0;
        while (k < machines && strcmp(all[k].machine, all[r].machine) != 0) k++;
        if (k == machines) {
            all[machines++] = all[r];
            continue;
        }
        all[k].ranks++;
        all[k].weights += all[r].weights, all[k].passes += all[r].passes;
        if (all[r].available < all[k].available) all[k].available = all[r].available;
    }
    return machines;
}

static const Needs *tightest(const Needs *all, int machines) {
    const Needs *worst = all;
    for (int k = 1; k < machines; k++)
        if (all_of(&all[k]) + worst->available > all_of(worst) + all[k].available) worst = &all[k];
    return worst;
}

static void describe(const Needs *n, int machines, Dtype compute, Text *out) {
    char all[32], weights[32], passes[32], available[32];
    text_puts(out, "memory: ");
    if (machines > 1)
        text_printf(out, "%d rank%s on %s take%s", n->ranks, n->ranks > 1 ? "s" : "", n->machine,
                    n->ranks > 1 ? "" : "s");
    else if (n->ranks > 1)
        text_printf(out, "%d ranks on this machine take", n->ranks);
    else
        text_puts(out, "this process takes");
    text_printf(out, " %s: weights in %s %s, passes %s", text_bytes((double)all_of(n), all),
                compute == DTYPE_BF16 ? "bf16" : "fp32", text_bytes((double)n->weights, weights),
                text_bytes((double)n->passes, passes));
    if (n->available)
        text_printf(out, "; %s%s are free", fits(n) ? "" : "only ",
                    text_bytes((double)n->available, available));
}

typedef struct Verdict {
    char problem[600];
} Verdict;

static void judge(const Needs *n, int machines, const RankPlan *plan, const NeedsSpec *spec, Verdict *v) {
    bool rounded = plan->spec.compute == DTYPE_BF16;
    Text out = {0};
    describe(n, machines, plan->spec.compute, &out);
    if (!fits(n))
        snprintf(v->problem, sizeof v->problem, "%s: end other programs, or ask for less (%s%s)", out.data,
                 spec->flags, rounded ? "" : ", --compute bf16");
    else if (!spec->quiet)
        log_info("%s", out.data);
    text_free(&out);
}

static ErrorCode check_machines(Comm *comm, Device *d, const RankPlan *plan, const NeedsSpec *spec,
                                Error *err) {
    Needs own = needs_of(d, plan, spec->more);
    Verdict v = {.problem = ""};
    int ranks = comm_size(comm);
    char *all = NULL;
    ErrorCode code = comm_concatenate(comm, &own, sizeof own, &all, NULL, err);
    if (all) {
        int machines = put_together((Needs *)(void *)all, ranks);
        judge(tightest((Needs *)(void *)all, machines), machines, plan, spec, &v);
    }
    free(all);
    TRY(code);
    TRY(comm_broadcast(comm, &v, sizeof v, 0, err));
    if (!*v.problem) return OK;
    error_set(err, ERR_MEMORY, "%s", v.problem);
    if (err) err->reported = comm_rank(comm) != 0;
    return ERR_MEMORY;
}

/* Of a GPU: this rank's own needs. */
static ErrorCode check_gpus(Comm *comm, Device *d, const RankPlan *plan, const NeedsSpec *spec, Error *err) {
    const MemoryPlan *memory = rank_memory(plan);
    GpuMemoryUse gpu;
    Needs own = needs_of(d, plan, spec->more);
    Text out = {0};
    gpu_memory_open(&gpu, comm, d);
    TRY(gpu_memory_check(&gpu, memory_plan_pools(memory) + spec->more,
                         memory_plan_taken(memory) + pool_taken(spec->more, d->granularity), err));
    describe(&own, 1, plan->spec.compute, &out);
    if (!spec->quiet && comm_rank(comm) == 0) log_info("%s", out.data);
    text_free(&out);
    return OK;
}

ErrorCode needs_check(Comm *comm, Device *d, const RankPlan *plan, const NeedsSpec *spec, Error *err) {
    return (d->separate_memory ? check_gpus : check_machines)(comm, d, plan, spec, err);
}

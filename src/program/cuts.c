/* The smallest largest share is found by bisection: with a larger limit every cut can only move up, so what
 * is enough stays enough. Owners are found by taking the largest share first (Graham 1969: at most a third
 * worse than the best, far less where there are many units). */
#include "program/cuts.h"

#include <stdlib.h>

#include "base/memory.h"

enum { LINE = 16 }; /* elements: one cache line of fp32 */

static int64_t round_up(int64_t n) { return (n + LINE - 1) / LINE * LINE; }

typedef struct Cutting {
    int64_t elements;
    const WholeRun *whole_runs;
    int whole_run_count;
} Cutting;

/* The last place at or before `at` that may be cut; *next: the first whole run that ends behind it. Places
 * are asked for in ascending order. */
static int64_t allowed(const Cutting *c, int64_t at, int *next) {
    while (*next < c->whole_run_count && c->whole_runs[*next].end <= at) ++*next;
    bool inside = *next < c->whole_run_count && c->whole_runs[*next].first < at;
    return inside ? c->whole_runs[*next].first : at;
}

/* Cuts shares of at most `limit`; false when that is too little. shares NULL: only asks. */
static bool fill(const Cutting *c, int64_t limit, int count, CommRange *shards) {
    int64_t at = 0;
    int next = 0;
    for (int i = 0; i < count; i++) {
        int64_t end = c->elements - at <= limit ? c->elements : allowed(c, at + limit, &next);
        if (shards) shards[i] = (CommRange){at, end - at};
        at = end;
    }
    return at == c->elements;
}

/* The limit lies between the average, which would do if everything could be cut anywhere, and the whole.
 * Limits are whole cache lines, so that shares begin at them where no whole run says otherwise. */
void cut_evenly(int64_t elements, const WholeRun *whole_runs, int whole_run_count, int count,
                CommRange *shards) {
    Cutting c = {elements, whole_runs, whole_run_count};
    int64_t low = round_up((elements + count - 1) / count), high = low > elements ? low : round_up(elements);
    while (low < high) {
        int64_t middle = (low + high) / 2 / LINE * LINE; /* at least low, below high: both are whole lines */
        if (fill(&c, middle, count, NULL))
            high = middle;
        else
            low = middle + LINE;
    }
    CHECK(fill(&c, low, count, shards));
}

/* ---- owners ---- */

typedef struct Ranked {
    int64_t size;
    int index;
} Ranked;

/* Ascending by size; of equal ones the first comes first. */
static int by_size(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Only the order changes: sizes are what cut_evenly found. */
void cut_assign(CommRange *shards, int count, const int64_t *load) {
    size_t n = (size_t)count;
    Ranked *size = mem_alloc_array(n, sizeof *size), *owner = mem_alloc_array(n, sizeof *owner);
    CommRange *cut = mem_alloc_array(n, sizeof *cut);
    for (int i = 0; i < count; i++) {
        cut[i] = shards[i];
        size[i] = (Ranked){-shards[i].count, i}; /* the largest first */
        owner[i] = (Ranked){load[i], i};
    }
    qsort(size, n, sizeof *size, by_size);
    qsort(owner, n, sizeof *owner, by_size);
    for (int i = 0; i < count; i++) shards[owner[i].index] = cut[size[i].index];
    free(size);
    free(owner);
    free(cut);
}

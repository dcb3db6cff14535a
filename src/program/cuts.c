/* The smallest possible maximum is found by bisection: a larger limit can only move every cut up, so a limit
 * above one that suffices suffices too. Shards are assigned largest first (Graham 1969: at most a third worse
 * than the best, far less with many units). */
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

/* The last position at or before `at` where a cut is allowed; *next is the first whole run that ends after
 * it. Calls must come in ascending order. */
static int64_t allowed(const Cutting *c, int64_t at, int *next) {
    while (*next < c->whole_run_count && c->whole_runs[*next].end <= at) ++*next;
    bool inside = *next < c->whole_run_count && c->whole_runs[*next].first < at;
    return inside ? c->whole_runs[*next].first : at;
}

/* Cuts shards of at most `limit` elements; false if that is too little. shards NULL: only checks. */
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

/* The limit lies between the average, which suffices if cuts are allowed anywhere, and all elements. Limits
 * are full cache lines, so shards begin at cache lines unless a whole run prevents it. */
void cut_evenly(int64_t elements, const WholeRun *whole_runs, int whole_run_count, int count,
                CommRange *shards) {
    Cutting c = {elements, whole_runs, whole_run_count};
    int64_t low = round_up((elements + count - 1) / count), high = low > elements ? low : round_up(elements);
    while (low < high) {
        int64_t middle = (low + high) / 2 / LINE * LINE; /* >= low and < high, which are full lines */
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

/* Ascending by size; ties by index. */
static int by_size(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Changes only the order; the sizes stay. */
void cut_assign(CommRange *shards, int count, const int64_t *load) {
    size_t n = (size_t)count;
    Ranked *size = mem_alloc_array(n, sizeof *size), *owner = mem_alloc_array(n, sizeof *owner);
    CommRange *cut = mem_alloc_array(n, sizeof *cut);
    for (int i = 0; i < count; i++) {
        cut[i] = shards[i];
        size[i] = (Ranked){-shards[i].count, i}; /* largest first */
        owner[i] = (Ranked){load[i], i};
    }
    qsort(size, n, sizeof *size, by_size);
    qsort(owner, n, sizeof *owner, by_size);
    for (int i = 0; i < count; i++) shards[owner[i].index] = cut[size[i].index];
    free(size);
    free(owner);
    free(cut);
}

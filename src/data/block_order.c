/* The order of samples by blocks.
 *
 *  G1. A group's caches are read one after the other: `done` of them are complete, and the next one may be
 *      growing. Its windows count once the token behind them is there, so that they stay as they are when it
 *      grows; its last window counts when it is complete.
 *  G2. Everything that grows is guarded by the mutex. A window is read under it too: the arrays of a
 *      cache move when it grows, and a row costs microseconds.
 *
 *     caches of a group   | c 0  complete | c 1  complete | c 2  growing ...|  c 3, not looked for yet
 *     windows             0               first           first     known
 *     blocks              |    0    |    1    |    2    | 3: not ready  */
#include "data/block_order.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"

/* A cache in its group. */
typedef struct Part {
    BlockCache at;
    TokenCache *cache;
    uint64_t first;           /* windows of the group before it */
    uint64_t first_in_source; /* windows of its source before it */
    uint64_t windows;         /* known */
} Part;

typedef struct Group {
    size_t *order; /* [count] indices of parts */
    size_t count, done;
    uint64_t known; /* windows */
    uint64_t order_key, block_key, epoch_key;
} Group;

typedef struct SourceParts {
    size_t parts, done;
    BlockSource complete; /* sums over the complete parts */
    BlockSource there;    /* with the growing one */
} SourceParts;

struct BlockOrder {
    BlockOrderSpec spec;
    Part *parts;
    size_t part_count;
    Group *groups;
    size_t group_count;
    SourceParts *sources;
    ErrorCode code;
    Error error;
    pthread_mutex_t lock;
};

static uint64_t key_of(uint64_t seed, const char *what, size_t group) {
    char name[48];
    snprintf(name, sizeof name, "data.stream.%s.%zu", what, group);
    return rng_key(seed, name);
}

/* Parts [first, first + count) in an order drawn from the seed. */
static void open_group(BlockOrder *o, size_t g, size_t first, size_t count) {
    Group *group = &o->groups[g];
    group->count = count;
    group->order = mem_alloc_array(count, sizeof *group->order);
    group->order_key = key_of(o->spec.seed, "caches", g);
    group->block_key = key_of(o->spec.seed, "blocks", g);
    group->epoch_key = key_of(o->spec.seed, "epochs", g);
    for (size_t i = 0; i < count; i++)
        group->order[i] = first + (size_t)rng_permute(group->order_key, count, i);
}

static void open_groups(BlockOrder *o) {
    o->group_count = o->spec.mixed ? o->spec.sources : 1;
    o->groups = mem_alloc_array(o->group_count, sizeof *o->groups);
    if (!o->spec.mixed) open_group(o, 0, 0, o->part_count);
    for (size_t s = 0, first = 0; o->spec.mixed && s < o->spec.sources; first += o->sources[s++].parts)
        open_group(o, s, first, o->sources[s].parts);
}

BlockOrder *block_order_open(const BlockOrderSpec *spec, BlockCache *caches, size_t count) {
    BlockOrder *o = mem_alloc(sizeof *o);
    *o = (BlockOrder){.spec = *spec, .part_count = count};
    pthread_mutex_init(&o->lock, NULL);
    o->parts = mem_alloc_array(count, sizeof *o->parts);
    o->sources = mem_alloc_array(spec->sources, sizeof *o->sources);
    for (size_t i = 0; i < count; i++) {
        o->parts[i].at = caches[i];
        o->sources[caches[i].source].parts++;
    }
    open_groups(o);
    return o;
}

void block_order_close(BlockOrder *o) {
    if (!o) return;
    for (size_t i = 0; i < o->part_count; i++) {
        token_cache_close(o->parts[i].cache);
        free(o->parts[i].at.dir);
    }
    for (size_t g = 0; g < o->group_count; g++) free(o->groups[g].order);
    pthread_mutex_destroy(&o->lock);
    free(o->parts);
    free(o->groups);
    free(o->sources);
    free(o);
}

void block_order_name(BlockOrder *o, size_t cache, char *dir, const uint8_t key[32]) {
    pthread_mutex_lock(&o->lock);
    o->parts[cache].at.dir = dir;
    memcpy(o->parts[cache].at.key, key, 32);
    pthread_mutex_unlock(&o->lock);
}

size_t block_order_groups(const BlockOrder *o) { return o->group_count; }

size_t block_order_caches(const BlockOrder *o, size_t group, const size_t **order) {
    *order = o->groups[group].order;
    return o->groups[group].count;
}

/* ---- growing ---- */

static TokenStream stream_of(const Part *p) {
    TokenStream s;
    stream_whole(&s, p->cache);
    return s;
}

/* G1 */
static uint64_t windows_of(const BlockOrder *o, const Part *p) {
    uint64_t tokens = token_cache_tokens(p->cache);
    TokenStream s = stream_of(p);
    if (token_cache_complete(p->cache)) return stream_windows(&s, o->spec.context);
    return tokens > 0 ? (tokens - 1) / (uint64_t)o->spec.context : 0;
}

static BlockSource with_part(BlockSource sum, const Part *p) {
    TokenFigures figures = token_cache_figures(p->cache);
    sum.windows += p->windows;
    sum.tokens += token_cache_tokens(p->cache);
    sum.documents += token_cache_documents(p->cache);
    sum.text_bytes += token_cache_text_bytes(p->cache);
    token_figures_add(&sum.figures, &figures);
    return sum;
}

static ErrorCode open_more(BlockOrder *o, Part *p, Error *err) {
    if (!p->cache) return token_cache_open(&p->cache, p->at.dir, p->at.key, o->spec.vocabulary, err);
    return token_cache_grow(p->cache, p->at.dir, p->at.key, err);
}

/* Looks for more of the part that is growing. *complete: it has ended. */
static ErrorCode grow_part(BlockOrder *o, Group *g, Part *p, bool *complete, Error *err) {
    SourceParts *s = &o->sources[p->at.source];
    if (!p->cache) {
        p->first = g->known;
        p->first_in_source = s->complete.windows;
    }
    uint64_t tokens = p->cache ? token_cache_tokens(p->cache) : 0;
    *complete = false;
    if (!p->at.dir) return OK;
    TRY(open_more(o, p, err));
    *complete = token_cache_complete(p->cache);
    if (!*complete && token_cache_tokens(p->cache) == tokens) return OK;
    p->windows = windows_of(o, p);
    g->known = p->first + p->windows;
    s->there = with_part(s->complete, p);
    if (*complete) {
        g->done++;
        s->there.complete = ++s->done == s->parts;
        s->complete = s->there;
    }
    return o->spec.check ? o->spec.check(o->spec.check_context, p->at.source, &s->there, err) : OK;
}

static ErrorCode grow_group(BlockOrder *o, Group *g, Error *err) {
    bool complete = true;
    while (complete && g->done < g->count) TRY(grow_part(o, g, &o->parts[g->order[g->done]], &complete, err));
    if (g->done == g->count && g->known == 0) return error_set(err, ERR_DATA, "there is no text to train on");
    return OK;
}

/* An error is kept: what could not be opened once is not skipped the next time. */
static ErrorCode grow(BlockOrder *o, Group *g, Error *err) {
    if (o->code == OK) o->code = grow_group(o, g, &o->error);
    if (o->code != OK && err) *err = o->error;
    return o->code;
}

ErrorCode block_order_grow(BlockOrder *o, Error *err) {
    ErrorCode code = OK;
    pthread_mutex_lock(&o->lock);
    for (size_t g = 0; code == OK && g < o->group_count; g++) code = grow(o, &o->groups[g], err);
    pthread_mutex_unlock(&o->lock);
    return code;
}

BlockSource block_order_source(BlockOrder *o, size_t source) {
    pthread_mutex_lock(&o->lock);
    BlockSource there = o->sources[source].there;
    pthread_mutex_unlock(&o->lock);
    return there;
}

/* ---- samples ---- */

/* Window of the group, and its epoch; false: not known yet. */
static bool find(const BlockOrder *o, const Group *g, uint64_t index, uint64_t *epoch, uint64_t *window) {
    bool complete = g->done == g->count;
    uint64_t size = o->spec.block, block = index / size, first = block * size;
    *epoch = 0;
    if (complete && index >= g->known) {
        *epoch = index / g->known;
        *window = rng_permute(rng_u64(g->epoch_key, *epoch), g->known, index % g->known);
        return true;
    }
    if (g->known - first < size || g->known < first) {
        if (!complete) return false;
        size = g->known - first;
    }
    *window = first + rng_permute(rng_u64(g->block_key, block), size, index - first);
    return true;
}

/* The part that holds a window of the group: the last one that begins at or before it and has windows. */
static const Part *part_of(const BlockOrder *o, const Group *g, uint64_t window) {
    size_t low = 0, high = g->done < g->count ? g->done + 1 : g->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        const Part *p = &o->parts[g->order[middle]];
        if (p->cache && p->first <= window)
            low = middle;
        else
            high = middle;
    }
    return &o->parts[g->order[low]];
}

ErrorCode block_order_ready(BlockOrder *o, size_t group, uint64_t index, bool *ready, Error *err) {
    uint64_t epoch, window;
    Group *g = &o->groups[group];
    ErrorCode code = OK;
    pthread_mutex_lock(&o->lock);
    *ready = g->known > 0 && find(o, g, index, &epoch, &window);
    if (!*ready) code = grow(o, g, err);
    if (!*ready && code == OK) *ready = g->known > 0 && find(o, g, index, &epoch, &window);
    pthread_mutex_unlock(&o->lock);
    return code;
}

Sample block_order_at(BlockOrder *o, size_t group, uint64_t index) {
    Sample s = {0};
    Group *g = &o->groups[group];
    pthread_mutex_lock(&o->lock);
    CHECK(g->known > 0 && find(o, g, index, &s.epoch, &s.window));
    const Part *p = part_of(o, g, s.window);
    s.source = p->at.source;
    s.window = p->first_in_source + (s.window - p->first);
    pthread_mutex_unlock(&o->lock);
    return s;
}

ErrorCode block_order_sample(BlockOrder *o, size_t group, uint64_t index, const SampleRow *row,
                             int64_t *valid, Error *err) {
    uint64_t epoch, window;
    Group *g = &o->groups[group];
    pthread_mutex_lock(&o->lock);
    CHECK(g->known > 0 && find(o, g, index, &epoch, &window));
    const Part *p = part_of(o, g, window);
    TokenStream s = stream_of(p);
    ErrorCode code =
        stream_window(&s, o->spec.context, window - p->first, o->spec.document_mask, row, valid, err);
    pthread_mutex_unlock(&o->lock);
    return code;
}

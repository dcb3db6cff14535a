/* Each rank walks what it owns, run by run of consecutive elements, and writes items:
 *
 *     block      parameter | first leaf | leaves | digest                        whole leaves, hashed here
 *     fragment   parameter | first element | elements | values, padded to 8      part of a leaf
 *
 *     run of elements     ......|........|........|........|...
 *                           ^      one or more blocks        ^ fragments
 *
 * Rank 0 gathers them, sorts them by element, makes leaves of fragments, and joins the blocks of each
 * parameter. Elements that no rank or two ranks count are an internal error, as for a checkpoint. */
#include "engine/weights_root.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/execution.h"

enum { LEAF = 1024, LEAVES = 256 }; /* elements of a leaf; leaves that are fetched to the host at a time */

typedef struct ItemHead {
    uint32_t param, fragment;
    int64_t first, count; /* leaves of a block, elements of a fragment */
} ItemHead;

typedef struct Walk {
    const Engine *engine;
    Sha256 *hash;
    float *buffer;    /* [LEAVES * LEAF] */
    uint8_t *digests; /* [LEAVES] */
    Text items;
} Walk;

/* ---- leaves of a parameter ---- */

typedef struct Leaves {
    int64_t elements, length, count;
} Leaves;

static bool has_cut_rows(const Param *p) {
    TpStyle style = param_tp_style(p->row);
    return p->cols > 0 && style != REPLICATED && (style == ROW_PARALLEL) != p->transposed;
}

/* Depends on the unsharded model and on the invariance, but not on the mesh. */
static Leaves leaves_of(const Engine *e, const Param *p) {
    const RankPlan *plan = e->plan;
    Param whole = param_unsharded(&plan->spec.model, p);
    int64_t splits = plan->partition.splits > 1 ? plan->partition.splits : 1, length = LEAF;
    while (has_cut_rows(p) && splits > 1 && length > 1 && whole.cols / splits % length != 0) length /= 2;
    return (Leaves){whole.count, length, (whole.count + length - 1) / length};
}

/* ---- on each rank ---- */

static void add_item(Walk *w, ItemHead head, const void *data, size_t bytes) {
    static const char padding[8];
    text_add(&w->items, (const char *)&head, sizeof head);
    text_add(&w->items, data, bytes);
    text_add(&w->items, padding, (8 - bytes % 8) % 8);
}

static void add_fragment(Walk *w, uint32_t param, int64_t first, int64_t count, const float *at) {
    if (count <= 0) return;
    device_fetch(w->engine->device, w->buffer, at, (size_t)count * sizeof *at);
    add_item(w, (ItemHead){param, 1, first, count}, w->buffer, (size_t)count * sizeof *at);
}

/* Leaves of full length, or, as the last, a shorter one. */
static void hash_leaves(Walk *w, const Leaves *l, int64_t elements) {
    for (int64_t i = 0; i * l->length < elements; i++) {
        int64_t left = elements - i * l->length, count = left < l->length ? left : l->length;
        merkle_leaf(w->hash, w->buffer + i * l->length, (size_t)count * sizeof(float),
                    w->digests + i * MERKLE_BYTES);
    }
}

/* at: the first element of the block. */
static void add_block(Walk *w, uint32_t param, const Leaves *l, TreeBlock block, const float *at) {
    MerkleStack stack = {.count = 0};
    int64_t first = block.first * l->length, end = first + block.size * l->length;
    if (end > l->elements) end = l->elements;
    for (int64_t from = first; from < end; from += LEAVES * l->length) {
        int64_t count = end - from < LEAVES * l->length ? end - from : LEAVES * l->length;
        device_fetch(w->engine->device, w->buffer, at + (from - first), (size_t)count * sizeof *at);
        hash_leaves(w, l, count);
        for (int64_t i = 0; i * l->length < count; i++)
            merkle_push(&stack, w->hash, w->digests + i * MERKLE_BYTES);
    }
    uint8_t digest[MERKLE_BYTES];
    merkle_fold(&stack, w->hash, digest);
    add_item(w, (ItemHead){param, 0, block.first, block.size}, digest, sizeof digest);
}

/* at: the first element of the run. */
static void add_run(Walk *w, uint32_t param, const Leaves *l, SegmentRun run, const float *at) {
    int64_t end = run.element + run.count, first = (run.element + l->length - 1) / l->length,
            last = end == l->elements ? l->count : end / l->length, begin = first * l->length;
    TreeBlock blocks[TREE_BLOCKS];
    if (begin > end) begin = end; /* the run is inside of one leaf */
    add_fragment(w, param, run.element, begin - run.element, at);
    if (last <= first) {
        add_fragment(w, param, begin, end - begin, at + (begin - run.element));
        return;
    }
    int count = tree_blocks((int)l->count, (TreeBlock){(int)first, (int)(last - first)}, blocks);
    for (int i = 0; i < count; i++)
        add_block(w, param, l, blocks[i], at + (blocks[i].first * l->length - run.element));
    int64_t rest = last * l->length;
    add_fragment(w, param, rest, end - rest, at + (rest - run.element));
}

static void add_parameter(Walk *w, int param) {
    const Engine *e = w->engine;
    const Param *p = &e->model.table.params[param];
    ParamSegment segment = partition_segment(&e->plan->partition, p);
    SegmentRun run;
    if (segment.count == 0 || !partition_counts(&e->plan->partition, p)) return;
    Leaves l = leaves_of(e, p);
    for (int64_t at = 0; at < segment.count; at += run.count) {
        run = segment_run(&segment, at);
        add_run(w, (uint32_t)param, &l, run, engine_master(e, segment) + at);
    }
}

/* ---- on rank 0 ---- */

/* An item of any rank; `data` points into what was gathered. */
typedef struct Item {
    ItemHead head;
    int64_t element; /* its first */
    const char *data;
} Item;

typedef struct Items {
    Item *items;
    size_t count;
} Items;

static int by_element(const void *a, const void *b) {
    const Item *x = a, *y = b;
    if (x->head.param != y->head.param) return x->head.param < y->head.param ? -1 : 1;
    return (x->element > y->element) - (x->element < y->element);
}

static size_t data_bytes(const ItemHead *h) {
    return h->fragment ? ((size_t)h->count * sizeof(float) + 7) / 8 * 8 : MERKLE_BYTES;
}

static Items find_items(const Engine *e, const char *all, size_t bytes) {
    Items found = {0};
    size_t capacity = 0;
    for (size_t at = 0; at < bytes;) {
        Item item = {.data = all + at + sizeof item.head};
        memcpy(&item.head, all + at, sizeof item.head);
        at += sizeof item.head + data_bytes(&item.head);
        const Param *p = &e->model.table.params[item.head.param];
        item.element = item.head.fragment ? item.head.first : item.head.first * leaves_of(e, p).length;
        if (found.count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            found.items = mem_grow(found.items, capacity * sizeof *found.items);
        }
        found.items[found.count++] = item;
    }
    if (found.count) qsort(found.items, found.count, sizeof *found.items, by_element);
    return found;
}

/* The leaf of the fragments from items[0] on; returns how many these are. `buffer` holds a leaf. */
static size_t join_fragments(const Item *items, size_t count, const Leaves *l, float *buffer, Sha256 *hash,
                             MerkleBlock *out) {
    int64_t leaf = items[0].element / l->length, elements = 0;
    size_t used = 0;
    for (; used < count && items[used].head.fragment && items[used].element / l->length == leaf; used++) {
        int64_t offset = items[used].element - leaf * l->length;
        if (offset != elements || offset + items[used].head.count > l->length) break;
        memcpy(buffer + offset, items[used].data, (size_t)items[used].head.count * sizeof *buffer);
        elements += items[used].head.count;
    }
    bool whole = elements == l->length || leaf * l->length + elements == l->elements;
    out->block = (TreeBlock){whole ? (int)leaf : -1, 1};
    merkle_leaf(hash, buffer, (size_t)elements * sizeof *buffer, out->digest);
    return used ? used : 1;
}

static void hash_string(Sha256 *h, const char *s) {
    sha256_add_u64(h, strlen(s));
    sha256_add(h, s, strlen(s));
}

static void name_root(const Engine *e, const Param *p, const Leaves *l, Sha256 *h, ParameterRoot *out) {
    int64_t shape[PARAM_RANK];
    int rank = param_shape(&e->plan->spec.model, p, shape);
    out->name = p->name;
    sha256_add(h, "\2", 1);
    hash_string(h, p->name);
    sha256_add_u64(h, (uint64_t)l->length);
    sha256_add_u64(h, (uint64_t)rank);
    for (int i = 0; i < rank; i++) sha256_add_u64(h, (uint64_t)shape[i]);
    sha256_add(h, out->digest, MERKLE_BYTES);
    sha256_next(h, out->digest);
}

/* From the items of one parameter. */
static ErrorCode join_parameter(Walk *w, const Param *p, const Item *items, size_t count, ParameterRoot *out,
                                Error *err) {
    Leaves l = leaves_of(w->engine, p);
    MerkleBlock *blocks = mem_alloc_array(count + 1, sizeof *blocks);
    size_t block_count = 0;
    for (size_t i = 0; i < count;) {
        MerkleBlock *b = &blocks[block_count++];
        if (items[i].head.fragment) {
            i += join_fragments(items + i, count - i, &l, w->buffer, w->hash, b);
            continue;
        }
        b->block = (TreeBlock){(int)items[i].head.first, (int)items[i].head.count};
        memcpy(b->digest, items[i++].data, MERKLE_BYTES);
    }
    int bad = merkle_join(blocks, block_count, (int)l.count, w->hash, out->digest);
    free(blocks);
    if (bad >= 0)
        return error_set(err, ERR_INTERNAL,
                         "%s: the ranks do not count each of its %" PRId64
                         " elements once: see those from %" PRId64 " on",
                         p->name, l.elements, bad * l.length);
    name_root(w->engine, p, &l, w->hash, out);
    return OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const ParameterRoot *)a)->name, ((const ParameterRoot *)b)->name);
}

static ErrorCode join_all(Walk *w, const Items *found, WeightsRoot *out, Error *err) {
    const ParamTable *t = &w->engine->model.table;
    MerkleStack stack = {.count = 0};
    size_t from = 0;
    out->parameters = mem_alloc_array((size_t)t->count, sizeof *out->parameters);
    out->count = t->count;
    for (int i = 0; i < t->count; i++) {
        size_t count = 0;
        while (from + count < found->count && found->items[from + count].head.param == (uint32_t)i) count++;
        TRY(join_parameter(w, &t->params[i], found->items + from, count, &out->parameters[i], err));
        from += count;
    }
    qsort(out->parameters, (size_t)t->count, sizeof *out->parameters, by_name);
    for (int i = 0; i < t->count; i++) merkle_push(&stack, w->hash, out->parameters[i].digest);
    merkle_fold(&stack, w->hash, out->digest);
    return OK;
}

static ErrorCode gather(Walk *w, Comm *comm, WeightsRoot *out, Error *err) {
    size_t bytes;
    char *all;
    ErrorCode code = comm_concatenate(comm, w->items.data, w->items.length, &all, &bytes, err);
    if (code == OK && comm_rank(comm) == 0) {
        Items found = find_items(w->engine, all, bytes);
        code = join_all(w, &found, out, err);
        free(found.items);
    }
    free(all);
    return code;
}

ErrorCode weights_root(const Engine *e, Comm *comm, WeightsRoot *out, Error *err) {
    Walk w = {.engine = e, .hash = sha256_start()};
    uint8_t unused[MERKLE_BYTES];
    *out = (WeightsRoot){.count = 0};
    w.buffer = mem_alloc_array((size_t)LEAVES * LEAF, sizeof *w.buffer);
    w.digests = mem_alloc_array(LEAVES, MERKLE_BYTES);
    for (int i = 0; i < e->model.table.count; i++) add_parameter(&w, i);
    ErrorCode code = gather(&w, comm, out, err);
    sha256_finish(w.hash, unused);
    text_free(&w.items);
    free(w.buffer);
    free(w.digests);
    return code;
}

void weights_root_free(WeightsRoot *r) {
    free(r->parameters);
    *r = (WeightsRoot){.count = 0};
}

/* TorchTitan's rule and names are arithmetic. split_auto is a search: it adds one stage after the other, and
 * for each number of blocks assigned so far it keeps the candidates that no other candidate beats in every
 * figure.
 *
 * The best split has the smallest largest stage, since a pipeline is as slow as its slowest rank, and among
 * those the smallest sum of squares, which spreads the rest evenly. Where memory is limited, only splits that
 * fit are considered.
 *
 * Units are numbered as everywhere (0 is the embedding, blocks + 1 the head), but inside the search blocks
 * are numbered from 0. The first stage has the embedding and the last one the head; each stage between them
 * has at least one block. */
#include "plan/split.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void split_start(Split *s, int blocks, int stages) {
    *s = (Split){
        .blocks = blocks, .stages = stages, .first = mem_alloc_array((size_t)stages + 1, sizeof *s->first)};
    s->first[stages] = blocks + 2;
}

void split_free(Split *s) {
    free(s->first);
    *s = (Split){0};
}

/* ---- TorchTitan's rule ---- */

/* The rule counts embedding and head as layers and gives every stage equally many. An end that counts for
 * more than a stage has would take blocks from the stage that it does not have. */
static ErrorCode check_uniform(int blocks, int stages, SplitWeights w, Error *err) {
    int effective = blocks + w.input_weight + w.output_weight;
    int heaviest = w.input_weight > w.output_weight ? w.input_weight : w.output_weight;
    if (stages < 1) return error_set(err, ERR_CONFIG, "%d pipeline stages: expected 1 or more", stages);
    if (stages > effective)
        return error_set(
            err, ERR_CONFIG,
            "%d stages for %d layers (%d, and %d for the embedding, %d for the head): at most %d stages fit",
            stages, effective, blocks, w.input_weight, w.output_weight,
            heaviest > 1 ? effective / heaviest : effective);
    if (stages > 1 && heaviest > effective / stages)
        return error_set(err, ERR_CONFIG,
                         "%d stages have %d layers each, which the %s, counted as %d, exceeds: at most %d "
                         "stages fit, or a weight of %d",
                         stages, effective / stages, heaviest == w.input_weight ? "embedding" : "head",
                         heaviest, effective / heaviest, effective / stages);
    return OK;
}

/* The first `extra` stages have one layer more. The embedding and the head count as layers of the first and
 * the last stage. */
ErrorCode split_uniform(Split *s, int blocks, int stages, SplitWeights w, Error *err) {
    CHECK(blocks >= 1 && w.input_weight >= 0 && w.output_weight >= 0);
    *s = (Split){0};
    TRY(check_uniform(blocks, stages, w, err));
    split_start(s, blocks, stages);
    int effective = blocks + w.input_weight + w.output_weight, base = effective / stages,
        extra = effective % stages;
    for (int stage = 1; stage < stages; stage++) {
        /* Layers of the stages before, including the embedding's. */
        int before = stage * base + (stage < extra ? stage : extra);
        s->first[stage] = 1 + before - w.input_weight;
    }
    return OK;
}

/* ---- how many stages ---- */

static bool stages_fit(int stages, int ranks, StagesPerRank a) {
    return stages % ranks == 0 && stages / ranks >= a.least && (a.most == 0 || stages / ranks <= a.most);
}

static void describe_allowed(StagesPerRank a, char out[64]) {
    if (a.most == 0)
        snprintf(out, 64, "%d or more stages a rank", a.least);
    else if (a.least == a.most)
        snprintf(out, 64, "%d stage%s a rank", a.least, a.least == 1 ? "" : "s");
    else
        snprintf(out, 64, "%d to %d stages a rank", a.least, a.most);
}

/* The error names the nearest number that is allowed. */
ErrorCode split_check_stages(int stages, int ranks, StagesPerRank allowed, Error *err) {
    CHECK(ranks >= 1 && allowed.least >= 1);
    if (stages_fit(stages, ranks, allowed)) return OK;
    char text[64];
    int each = (stages + ranks / 2) / ranks; /* the nearest number a rank */
    if (each < allowed.least) each = allowed.least;
    if (allowed.most && each > allowed.most) each = allowed.most;
    describe_allowed(allowed, text);
    return error_set(err, ERR_CONFIG,
                     "%d stages on %d pipeline ranks: this schedule takes %s; %d stages would fit", stages,
                     ranks, text, each * ranks);
}

/* Counts as TorchTitan does: layers plus embedding and head, divided and rounded up. */
ErrorCode split_layers_per_stage(int *stages, int blocks, SplitWeights w, int per_stage, int ranks,
                                 StagesPerRank allowed, Error *err) {
    int effective = blocks + w.input_weight + w.output_weight;
    if (per_stage < 1)
        return error_set(err, ERR_CONFIG, "%d layers per stage: expected 1 or more", per_stage);
    *stages = (effective + per_stage - 1) / per_stage;
    if (split_check_stages(*stages, ranks, allowed, err) == OK) return OK;
    Text fitting = {0};
    int last = 0;
    for (int k = 1; k <= effective && fitting.length < 200; k++) {
        int n = (effective + k - 1) / k;
        if (n == last || !stages_fit(n, ranks, allowed)) continue;
        text_printf(&fitting, "%s%d (%d stages)", fitting.length ? ", " : "", k, n);
        last = n;
    }
    error_context(err, "%d layers per stage, of %d (%d, and %d for the embedding, %d for the head)",
                  per_stage, effective, blocks, w.input_weight, w.output_weight);
    char message[sizeof err->message];
    if (err) {
        memcpy(message, err->message, sizeof message);
        error_set(err, ERR_CONFIG, "%s; layers per stage that fit: %s", message,
                  fitting.length ? fitting.data : "none");
    }
    text_free(&fitting);
    return ERR_CONFIG;
}

/* ---- points ---- */

/* "norm" and "lm_head" are one unit. A "model." prefix, common elsewhere, is accepted. */
static bool parse_point(const char *name, int blocks, int *unit) {
    if (strncmp(name, "model.", 6) == 0) name += 6;
    *unit = blocks + 1;
    if (strcmp(name, "norm") == 0 || strcmp(name, "lm_head") == 0) return true;
    if (strncmp(name, "layers.", 7) != 0) return false;
    const char *digits = name + 7;
    size_t length = strspn(digits, "0123456789");
    if (length < 1 || length > 6 || digits[length]) return false;
    *unit = atoi(digits) + 1;
    return *unit <= blocks;
}

ErrorCode split_points(Split *s, int blocks, const char *const *names, int count, Error *err) {
    CHECK(blocks >= 1 && count >= 0);
    split_start(s, blocks, count + 1);
    for (int i = 0; i < count; i++) {
        char shown[80];
        error_escape(shown, sizeof shown, names[i], strlen(names[i]));
        int *at = &s->first[i + 1], before = s->first[i];
        bool known = parse_point(names[i], blocks, at);
        if (!known)
            error_set(err, ERR_CONFIG,
                      "no stage can start at \"%s\": expected \"layers.0\" to \"layers.%d\", \"norm\" or "
                      "\"lm_head\"",
                      shown, blocks - 1);
        else if (*at <= before)
            error_set(err, ERR_CONFIG,
                      "\"%s\" after \"%s\": stages start at ascending names, each with a unit of its own "
                      "(norm and lm_head are one)",
                      shown, names[i - 1]);
        if (!known || *at <= before) {
            split_free(s);
            return ERR_CONFIG;
        }
    }
    return OK;
}

/* ---- costs ---- */

/* Dynamic programming over (stages so far, blocks so far). A label is a way to get there that may still be
 * part of the best split: its largest stage, its sum of squares, and the bytes used on ranks that will get
 * another stage. A label is dropped if another one is at least as good in all of these: whatever follows, the
 * other ends no worse.
 *
 * With a limit of memory and several stages on a rank, a label would have to hold the bytes of many ranks at
 * once. Where all blocks are alike, as in most models, only the number of blocks of a stage matters, not
 * which ones. Then the stages of one rank are taken one after the other, and a label holds the bytes of one
 * rank only. */

/* Limit of labels for one (stage, block) when memory is limited: comparing more takes too long. Without a
 * limit of memory, the square of the number of blocks bounds them. */
enum { MAX_LABELS = 600 };

typedef struct Label {
    double largest, squares;
    int blocks, previous; /* of the last stage; index of the label that this one extends */
} Label;

typedef struct Front {
    int count;
    Label *labels;
    double *used; /* [count][ranks] */
} Front;

typedef struct Search {
    const SplitModel *m;
    int blocks, stages, ranks;
    const int *rank_of_stage;          /* NULL: rank = stage */
    int *order;                        /* [stages] in the order in which they are taken */
    int *last;                         /* [ranks] position in that order of a rank's last stage */
    double limit;                      /* bytes; 0: none */
    double *cost, *fixed, *activation; /* [blocks + 1] prefix sums over blocks */
    Front *fronts;                     /* [stages + 1][blocks + 1] */
    double *trial;                     /* [ranks] */
} Search;

static int rank_of(const Search *q, int stage) { return q->rank_of_stage ? q->rank_of_stage[stage] : stage; }
static Front *front_at(const Search *q, int taken, int blocks) {
    return &q->fronts[taken * (q->blocks + 1) + blocks];
}

/* Sums taken in another order differ in their last bits; that does not make one better. */
static bool no_larger(double a, double b) { return a <= b * (1 + 1e-12); }

/* All three parts count alike: over a step each rank does each of them for every microbatch. */
static double cost_of(StageCost c) { return c.forward + c.input + c.weight; }

/* Least number of blocks of a stage: the first and the last one have another unit already. */
static int least_blocks(const Search *q, int stage) { return stage > 0 && stage < q->stages - 1; }

/* Cost of a stage with the blocks first <= b < end, numbered from 0, including the embedding or the head
 * where the stage has it. stage_bytes does the same for bytes. */
static double stage_cost(const Search *q, int stage, int first, int end) {
    double cost = q->cost[end] - q->cost[first];
    if (stage == 0) cost += cost_of(q->m->costs[0]);
    if (stage == q->stages - 1) cost += cost_of(q->m->costs[q->blocks + 1]);
    return cost;
}

/* Bytes of a unit on a rank that keeps its activations for `live` microbatches. */
static double unit_bytes(const SplitModel *m, int unit, int live) {
    double bytes = m->fixed_bytes ? m->fixed_bytes[unit] : 0;
    return m->activation_bytes ? bytes + live * m->activation_bytes[unit] : bytes;
}

static double stage_bytes(const Search *q, int stage, int first, int end) {
    int live = q->m->live ? q->m->live[stage] : 1;
    double bytes = q->fixed[end] - q->fixed[first] + live * (q->activation[end] - q->activation[first]);
    if (stage == 0) bytes += unit_bytes(q->m, 0, live);
    if (stage == q->stages - 1) bytes += unit_bytes(q->m, q->blocks + 1, live);
    return bytes;
}

/* Compares bits: alike blocks get their figures by one formula from equal numbers. */
static bool blocks_alike(const SplitModel *m) {
    for (int u = 2; u <= m->blocks; u++)
        if (cost_of(m->costs[u]) != cost_of(m->costs[1]) || unit_bytes(m, u, 0) != unit_bytes(m, 1, 0) ||
            unit_bytes(m, u, 1) != unit_bytes(m, 1, 1))
            return false;
    return true;
}

/* By rank where that is allowed, else in ascending order. */
static void take_order(Search *q, bool by_rank) {
    int taken = 0;
    for (int r = 0; r < (by_rank ? q->ranks : 1); r++)
        for (int s = 0; s < q->stages; s++)
            if (!by_rank || rank_of(q, s) == r) q->order[taken++] = s;
    for (int i = 0; i < q->stages; i++) q->last[rank_of(q, q->order[i])] = i;
}

/* With prefix sums over blocks, the cost of any run of blocks is a difference. */
static void search_start(Search *q, const SplitModel *m, int stages, const int *rank_of_stage, double limit) {
    *q = (Search){
        .m = m, .blocks = m->blocks, .stages = stages, .rank_of_stage = rank_of_stage, .limit = limit};
    for (int s = 0; s < stages; s++)
        if (rank_of(q, s) >= q->ranks) q->ranks = rank_of(q, s) + 1;
    size_t n = (size_t)q->blocks + 1, ranks = (size_t)q->ranks;
    q->order = mem_alloc_array((size_t)stages, sizeof *q->order);
    q->last = mem_alloc_array(ranks, sizeof *q->last);
    q->trial = mem_alloc_array(ranks, sizeof *q->trial);
    q->cost = mem_alloc_array(n, sizeof *q->cost);
    q->fixed = mem_alloc_array(n, sizeof *q->fixed);
    q->activation = mem_alloc_array(n, sizeof *q->activation);
    q->fronts = mem_alloc_array((size_t)(stages + 1) * n, sizeof *q->fronts);
    take_order(q, limit > 0 && blocks_alike(m));
    for (int b = 0; b < q->blocks; b++) {
        q->cost[b + 1] = q->cost[b] + cost_of(m->costs[b + 1]);
        q->fixed[b + 1] = q->fixed[b] + unit_bytes(m, b + 1, 0);
        q->activation[b + 1] = q->activation[b] + (m->activation_bytes ? m->activation_bytes[b + 1] : 0);
    }
}

static void search_free(Search *q) {
    for (int i = 0; i < (q->stages + 1) * (q->blocks + 1); i++) {
        free(q->fronts[i].labels);
        free(q->fronts[i].used);
    }
    free(q->fronts);
    free(q->order);
    free(q->last);
    free(q->trial);
    free(q->cost);
    free(q->fixed);
    free(q->activation);
}

/* Whether label a makes b superfluous: whatever is added to both, a ends no worse. */
static bool covers(const Search *q, const Label *a, const double *used_a, const Label *b,
                   const double *used_b) {
    if (!no_larger(a->largest, b->largest) || !no_larger(a->squares, b->squares)) return false;
    for (int r = 0; r < q->ranks; r++)
        if (!no_larger(used_a[r], used_b[r])) return false;
    return true;
}

/* Adds a label with the memory use in q->trial, unless an existing label covers it, and removes those that it
 * covers. False: there are too many labels. */
static bool front_add(const Search *q, Front *f, Label added) {
    size_t ranks = (size_t)q->ranks;
    for (int i = 0; i < f->count; i++)
        if (covers(q, &f->labels[i], f->used + (size_t)i * ranks, &added, q->trial)) return true;
    int kept = 0;
    for (int i = 0; i < f->count; i++) {
        if (covers(q, &added, q->trial, &f->labels[i], f->used + (size_t)i * ranks)) continue;
        f->labels[kept] = f->labels[i];
        memmove(f->used + (size_t)kept * ranks, f->used + (size_t)i * ranks, ranks * sizeof *f->used);
        kept++;
    }
    if (q->limit > 0 && kept >= MAX_LABELS) return false;
    f->labels = mem_grow(f->labels, (size_t)(kept + 1) * sizeof *f->labels);
    f->used = mem_grow(f->used, (size_t)(kept + 1) * ranks * sizeof *f->used);
    f->labels[kept] = added;
    memcpy(f->used + (size_t)kept * ranks, q->trial, ranks * sizeof *f->used);
    f->count = kept + 1;
    return true;
}

/* Extends label `index` of (taken, first) by every size of the next stage that leaves `reserved` blocks for
 * the stages after it. False: there are too many labels. */
static bool extend(Search *q, int taken, int first, int index, int reserved) {
    const Front *from = front_at(q, taken, first);
    Label label = from->labels[index];
    int stage = q->order[taken], rank = rank_of(q, stage);
    int lowest = taken == q->stages - 1 ? q->blocks : first + least_blocks(q, stage);
    for (int end = lowest; end <= q->blocks - reserved; end++) {
        memcpy(q->trial, from->used + (size_t)index * (size_t)q->ranks, (size_t)q->ranks * sizeof *q->trial);
        if (q->limit > 0) {
            q->trial[rank] += stage_bytes(q, stage, first, end);
            if (!no_larger(q->trial[rank], q->limit)) break;
            if (q->last[rank] == taken) q->trial[rank] = 0; /* settled: no later stage is on this rank */
        }
        double cost = stage_cost(q, stage, first, end);
        Label next = {cost > label.largest ? cost : label.largest, label.squares + cost * cost, end - first,
                      index};
        if (!front_add(q, front_at(q, taken + 1, end), next)) return false;
    }
    return true;
}

/* `reserved` blocks are kept for the remaining stages, so that none of them ends up empty. */
static bool search_run(Search *q) {
    int reserved = 0;
    for (int s = 0; s < q->stages; s++) reserved += least_blocks(q, s);
    memset(q->trial, 0, (size_t)q->ranks * sizeof *q->trial);
    front_add(q, front_at(q, 0, 0), (Label){0, 0, 0, -1});
    for (int taken = 0; taken < q->stages; taken++) {
        int least = least_blocks(q, q->order[taken]);
        reserved -= least;
        for (int first = 0; first + least + reserved <= q->blocks; first++)
            for (int i = 0; i < front_at(q, taken, first)->count; i++)
                if (!extend(q, taken, first, i, reserved)) return false;
    }
    return true;
}

/* Writes the best complete split into s; false when there is none. It walks back from the end through the
 * labels that each label extends. Stages may have been taken in another order, so block counts are filled in
 * first and turned into first units afterwards. */
static bool search_best(const Search *q, Split *s) {
    const Front *f = front_at(q, q->stages, q->blocks);
    if (f->count == 0) return false;
    int best = 0;
    for (int i = 1; i < f->count; i++) {
        const Label *a = &f->labels[i], *b = &f->labels[best];
        bool as_large = no_larger(a->largest, b->largest),
             smaller = as_large && !no_larger(b->largest, a->largest);
        if (smaller || (as_large && a->squares < b->squares)) best = i;
    }
    for (int taken = q->stages, at = q->blocks; taken > 0; taken--) {
        const Label *label = &front_at(q, taken, at)->labels[best];
        s->first[q->order[taken - 1]] = label->blocks; /* a count, for now */
        at -= label->blocks;
        best = label->previous;
    }
    for (int stage = 0, first = 0; stage < s->stages; stage++) {
        int blocks = s->first[stage];
        s->first[stage] = first;
        first += blocks + (stage == 0);
    }
    return true;
}

typedef enum Found { FOUND, FOUND_NONE, FOUND_TOO_MANY } Found;

/* The best split within `limit` bytes a rank. With limit 0 there is no limit, and the search always finds
 * one. */
static Found find(Split *s, const SplitModel *m, const int *rank_of_stage, double limit) {
    Search q;
    search_start(&q, m, s->stages, rank_of_stage, limit);
    Found found = !search_run(&q) ? FOUND_TOO_MANY : search_best(&q, s) ? FOUND : FOUND_NONE;
    search_free(&q);
    return found;
}

/* The best split within the limit of memory. Called only when the best split of all does not fit. */
static ErrorCode find_limited(Split *s, const SplitModel *m, const int *rank_of_stage, Error *err) {
    char limit[32];
    Found found = find(s, m, rank_of_stage, m->rank_bytes);
    if (found == FOUND) return OK;
    if (found == FOUND_NONE)
        return error_set(err, ERR_CONFIG, "no split of %d units into %d stages keeps to %s a rank",
                         m->blocks + 2, s->stages, text_bytes(m->rank_bytes, limit));
    return error_set(err, ERR_CONFIG,
                     "%d stages of unlike blocks within the memory limit: too many splits to weigh; name the "
                     "first unit of each stage instead",
                     s->stages);
}

double split_fullest_rank(const Split *s, const SplitModel *m, const int *rank_of_stage) {
    double *bytes = mem_alloc_array((size_t)s->stages, sizeof *bytes), most = 0;
    for (int stage = 0; stage < s->stages; stage++) {
        double *rank = &bytes[rank_of_stage ? rank_of_stage[stage] : stage];
        for (int u = s->first[stage]; u < s->first[stage + 1]; u++)
            *rank += unit_bytes(m, u, m->live ? m->live[stage] : 1);
        most = fmax(most, *rank);
    }
    free(bytes);
    return most;
}

/* The limit is considered only when the best split of all exceeds it: a search with memory takes far
 * longer. */
ErrorCode split_auto(Split *s, const SplitModel *m, int stages, const int *rank_of_stage, Error *err) {
    *s = (Split){0};
    if (stages < 1 || stages > m->blocks + 2)
        return error_set(err, ERR_CONFIG,
                         "%d stages for %d units (embedding, %d layers, head): 1 to %d stages fit", stages,
                         m->blocks + 2, m->blocks, m->blocks + 2);
    split_start(s, m->blocks, stages);
    CHECK(find(s, m, rank_of_stage, 0) == FOUND);
    bool fits = !m->fixed_bytes || m->rank_bytes <= 0 ||
                no_larger(split_fullest_rank(s, m, rank_of_stage), m->rank_bytes);
    ErrorCode code = fits ? OK : find_limited(s, m, rank_of_stage, err);
    if (code != OK) split_free(s);
    return code;
}

/* ---- figures ---- */

void split_stage_costs(const Split *s, const StageCost *units, StageCost *stages) {
    for (int stage = 0; stage < s->stages; stage++) {
        StageCost sum = {0, 0, 0};
        for (int u = s->first[stage]; u < s->first[stage + 1]; u++) {
            sum.forward += units[u].forward;
            sum.input += units[u].input;
            sum.weight += units[u].weight;
        }
        stages[stage] = sum;
    }
}

void split_describe_units(int blocks, int first, int end, Text *out) {
    const char *comma = "";
    int low = first < 1 ? 1 : first, high = end > blocks + 1 ? blocks + 1 : end; /* blocks low <= u < high */
    if (first == 0) {
        text_puts(out, "embedding");
        comma = ", ";
    }
    if (high - low == 1) text_printf(out, "%slayer %d", comma, low - 1);
    if (high - low > 1) text_printf(out, "%slayers %d-%d", comma, low - 1, high - 2);
    if (high > low) comma = ", ";
    if (end == blocks + 2) text_printf(out, "%snorm and head", comma);
}

void split_print(const Split *s, const StageCost *units, const int *rank_of_stage, Text *out) {
    StageCost *costs = mem_alloc_array((size_t)s->stages, sizeof *costs);
    double largest = 0, all = 0;
    split_stage_costs(s, units, costs);
    for (int i = 0; i < s->stages; i++) {
        double cost = costs[i].forward + costs[i].input + costs[i].weight;
        largest = fmax(largest, cost);
        all += cost;
    }
    text_printf(out, "stage  rank  of largest  units\n");
    for (int i = 0; i < s->stages; i++) {
        double cost = costs[i].forward + costs[i].input + costs[i].weight;
        text_printf(out, "%5d  %4d  %9.1f %%  ", i, rank_of_stage ? rank_of_stage[i] : i,
                    largest > 0 ? 100 * cost / largest : 0);
        split_describe_units(s->blocks, s->first[i], s->first[i + 1], out);
        text_puts(out, "\n");
    }
    text_printf(out, "balance %.1f %%: the average stage as a share of the largest\n",
                largest > 0 ? 100 * all / (largest * s->stages) : 100.0);
    free(costs);
}

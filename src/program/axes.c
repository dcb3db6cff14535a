/* The table, and the arithmetic of splitting a dimension. Nothing here needs to know the ranks: an index on
 * an axis is enough.
 *
 * Elsewhere called: DTensor placements (Shard, Replicate, Partial); tensor, vocabulary and expert
 * parallelism. */
#include "program/axes.h"

#include <string.h>

#include "base/text.h"
#include "model/families/family.h"

/* ---- the table ---- */

enum { CUT_SUM = DOES_CUT | DOES_SUM, COPY_SUM = DOES_COPY | DOES_SUM };

/* A row for each kind, a column for each axis. All kinds do the same on dp_replicate, and on the part of
 * dp_shard and cp without ep; the part with ep is one column. */
#define ROW(pp, ep, tp, kv)                                                                        \
    {                                                                                              \
        [AXIS_PP] = pp, [AXIS_DP_REPLICATE] = COPY_SUM, [AXIS_DP_SHARD] = CUT_SUM, [AXIS_EP] = ep, \
        [AXIS_CP] = CUT_SUM, [AXIS_EP_CP] = ep, [AXIS_TP] = tp, [AXIS_KV] = kv                     \
    }
static const int table[KINDS][AXES] = {
    [KIND_REPLICATED] = ROW(DOES_CUT, CUT_SUM, COPY_SUM, COPY_SUM),
    [KIND_COLUMN_PARALLEL] = ROW(DOES_CUT, CUT_SUM, DOES_CUT, DOES_CUT),
    [KIND_ROW_PARALLEL] = ROW(DOES_CUT, CUT_SUM, DOES_CUT, DOES_CUT),
    [KIND_KEYS] = ROW(DOES_CUT, CUT_SUM, DOES_CUT, DOES_COPY),
    [KIND_EXPERTS] = ROW(DOES_CUT, DOES_CUT, DOES_CUT, DOES_CUT),
    [KIND_ROUTER] = ROW(DOES_CUT, CUT_SUM, DOES_COPY, DOES_COPY),
    [KIND_TIED] = ROW(COPY_SUM, CUT_SUM, DOES_CUT, DOES_CUT),
};
#undef ROW

/* A tied embedding is a kind of its own, since both ends of a pipeline hold it, and so are learned positions,
 * which go with that unit. The matrix and bias of a router and the projections that make latents see all
 * tokens on each rank; so do biases that are added to the output of experts. */
ParamKind axes_kind(const ModelConfig *c, const Param *p) {
    static const ParamKind kind[] = {[REPLICATED] = KIND_REPLICATED,
                                     [COLUMN_PARALLEL] = KIND_COLUMN_PARALLEL,
                                     [ROW_PARALLEL] = KIND_ROW_PARALLEL};
    bool tied = p->unit == 0 && p->cols > 0 && model_embeds_last(c);
    if (param_is_of_experts(p->row)) return KIND_EXPERTS;
    if (param_sees_all(p->row)) return KIND_ROUTER;
    if (param_tp_style(p->row) == COLUMN_PARALLEL && p->row->rows == DIM_KEY) return KIND_KEYS;
    return tied ? KIND_TIED : kind[param_tp_style(p->row)];
}

AxisSet axes_any(ParamKind kind, int does) {
    AxisSet set = 0;
    for (int axis = 0; axis < AXES; axis++)
        if (table[kind][axis] & does) set |= 1u << axis;
    return set;
}

/* ---- splitting ---- */

/* How tp may split a dimension. */
typedef struct Rule {
    Dim dim;
    const char *name; /* in config.json, of the number that is split */
    size_t field;     /* of ModelConfig: where a rank has its local number; 0: in none */
    bool heads;       /* split in heads, else in single elements */
    bool copies;      /* may be fewer than ranks: then several ranks hold each */
    bool uneven;      /* the last ranges may be shorter, but not empty */
} Rule;
#define FIELD(member) .name = #member, .field = offsetof(ModelConfig, member)

static const Rule rules[] = {{DIM_QUERY, FIELD(num_attention_heads), .heads = true},
                             {DIM_HEADS, .name = "num_attention_heads"},
                             {DIM_KEY, FIELD(num_key_value_heads), .heads = true, .copies = true},
                             {DIM_LATENT_UP, .name = "num_attention_heads", .heads = true},
                             {DIM_VALUES, .name = "num_attention_heads", .heads = true},
                             {DIM_INTER, FIELD(intermediate_size)},
                             {DIM_EXPERT, FIELD(moe_intermediate_size)},
                             {DIM_EXPERT_GATE_UP, .name = "moe_intermediate_size"},
                             {DIM_SHARED, .name = "moe_intermediate_size"},
                             {DIM_VOCAB, FIELD(vocab_size), .uneven = true},
                             {DIM_POSITIONS, FIELD(max_position_embeddings), .uneven = true}};
#undef FIELD
enum { RULES = sizeof rules / sizeof *rules };

/* Dimensions without a rule are never split. */
static const Rule *rule_of(Dim dim) {
    for (int i = 0; i < RULES; i++)
        if (rules[i].dim == dim) return &rules[i];
    return NULL;
}

static bool has_learned_positions(const ModelConfig *c) { return model_family(c)->arch.learned_positions; }

/* Interleaved gates and ups stay in pairs. For heads made of latents the grain is a head's part of keys
 * (without rotation) and values, or of values. */
static int64_t grain(const ModelConfig *c, const Rule *r) {
    if (r->dim == DIM_EXPERT_GATE_UP) return 2;
    if (r->dim == DIM_LATENT_UP) return c->qk_nope_head_dim + c->v_head_dim;
    if (r->dim == DIM_VALUES) return c->v_head_dim;
    return r->heads ? c->head_dim : 1;
}
static int64_t grains(const ModelConfig *c, const Rule *r) {
    int64_t all = model_dim(c, r->dim);
    return all > 0 ? all / grain(c, r) : 0;
}

static int64_t round_up_quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

int axes_copies(const ModelConfig *c, int ranks) {
    int heads = (int)c->num_key_value_heads;
    return heads > 0 && ranks % heads == 0 ? ranks / heads : 1;
}

void axes_lay_copies(const ModelConfig *c, Mesh *mesh) {
    mesh_lay_copies(mesh, axes_copies(c, mesh_size(mesh, MESH_TENSOR)));
}

/* Rounds up, which has no effect where ranges are equal. Unequal ranges consist of full splits, so that each
 * split is on one rank. Replicas are neighbours: with 2 heads on 8 ranks, ranks 0 to 3 have the first, and
 * the queries that attend to it (head q reads key head q G / H). */
static ShardRange shard_range(const ModelConfig *c, Dim dim, TpGroup s) {
    const Rule *r = rule_of(dim);
    CHECK(r != NULL && s.rank >= 0 && s.rank < s.size && s.splits % s.size == 0);
    int64_t all = grains(c, r), size = grain(c, r), each = round_up_quotient(all, s.size);
    if (r->uneven) each = round_up_quotient(all, s.splits) * (s.splits / s.size);
    int copies = r->copies ? axes_copies(c, s.size) : 1;
    int64_t first = s.rank / copies * each, left = all - first;
    return (ShardRange){.first = first * size, .count = (left < each ? left : each) * size};
}

bool axes_splits_evenly(const ModelConfig *c, int ranks, int splits) {
    for (int i = 0; i < RULES; i++) {
        if (!rules[i].uneven || (rules[i].dim == DIM_POSITIONS && !has_learned_positions(c))) continue;
        TpGroup first = {.size = ranks, .rank = 0, .splits = splits}, last = first;
        last.rank = ranks - 1;
        if (shard_range(c, rules[i].dim, first).count != shard_range(c, rules[i].dim, last).count)
            return false;
    }
    return true;
}

/* One range for each matrix that is fused into the dimension. */
static void shard_ranges(const ModelConfig *c, Dim dim, TpGroup s, ShardRange ranges[PARAM_MATRICES]) {
    Dim outputs[PARAM_MATRICES];
    int count = param_outputs(c, dim, outputs);
    int64_t before = 0;
    for (int k = 0; k < count; k++) {
        ShardRange d = shard_range(c, outputs[k], s);
        ranges[k] = (ShardRange){before + d.first, d.count};
        before += model_dim(c, outputs[k]);
    }
}

/* Fused experts with uncut rows are one matrix with that many more rows. */
static LocalShard join_fused(LocalShard b) {
    if (b.rows[0].count < b.every) return b;
    b.rows[0] = (ShardRange){b.fused.first * b.every, b.fused.count * b.every};
    b.fused = (ShardRange){0, 1};
    return b;
}

/* A matrix that is stored transposed has its outputs as columns. */
LocalShard axes_local_shard(const ModelConfig *c, const Param *p, TpGroup s, ShardRange experts) {
    int64_t outputs = model_dim(c, p->row->rows), inputs = p->cols ? model_dim(c, p->row->cols) : 1,
            rows = p->transposed ? inputs : outputs, columns = p->transposed ? outputs : inputs;
    LocalShard b = {
        .rows = {{0, rows}}, .columns = {{0, columns}}, .stride = columns, .fused = {0, 1}, .every = rows};
    ParamKind kind = axes_kind(c, p);
    if (p->row->fused) b.fused.count = c->num_experts;
    if (p->row->fused && kind == KIND_EXPERTS) b.fused = (ShardRange){experts.first, experts.count};
    bool whole = c->whole_experts && kind == KIND_EXPERTS;
    if (s.size == 1 || whole || !(table[kind][AXIS_TP] & DOES_CUT)) return join_fused(b);
    bool by_inputs = param_tp_style(p->row) == ROW_PARALLEL;
    shard_ranges(c, by_inputs ? p->row->cols : p->row->rows, s,
                 by_inputs != p->transposed ? b.columns : b.rows);
    return p->row->fused ? join_fused(b) : b;
}

static int64_t all_of(const ShardRange ranges[PARAM_MATRICES]) {
    int64_t sum = 0;
    for (int i = 0; i < PARAM_MATRICES; i++) sum += ranges[i].count;
    return sum;
}

int64_t shard_rows(const LocalShard *b) { return b->fused.count * all_of(b->rows); }
int64_t shard_columns(const LocalShard *b) { return all_of(b->columns); }

/* The axes on which a parameter is replicated. */
static AxisSet copied(const ModelConfig *c, const Param *p) { return axes_any(axes_kind(c, p), DOES_COPY); }

int axes_replica_group(const ModelConfig *c, const Param *p, const Mesh *mesh, int rank) {
    return mesh_group_rank(mesh, (AxisSet)(MESH_SETS - 1) & ~copied(c, p), rank);
}

bool axes_first(const ModelConfig *c, const Param *p, const Mesh *mesh, int rank) {
    return mesh_group_rank(mesh, copied(c, p) & ~(AxisSet)MESH_PIPELINE, rank) == 0;
}

/* The first rank has the largest range of the vocabulary. */
static int64_t vocab_capacity(const ModelConfig *c, TpGroup s) {
    s.rank = 0;
    return shard_range(c, DIM_VOCAB, s).count;
}

/* Experts keep their width, in which the size of shared experts is given; these are cut. */
static void keep_experts(const ModelConfig *c, TpGroup s, ModelConfig *local) {
    local->moe_intermediate_size = model_dim(c, DIM_EXPERT);
    if (c->n_shared_experts > 0) local->shared_width = shard_range(c, DIM_SHARED, s).count;
}

/* hidden_size is unchanged: between split products, ranks of tp hold full rows of the stream. */
ModelConfig axes_local(const ModelConfig *c, TpGroup s) {
    ModelConfig local = *c;
    for (int i = 0; i < RULES && s.size > 1; i++) {
        const Rule *r = &rules[i];
        int64_t number = 0;
        memcpy(&number, (const char *)c + r->field, sizeof number);
        if (r->field == 0 || number == 0 || (r->dim == DIM_POSITIONS && !has_learned_positions(c))) continue;
        number = shard_range(c, r->dim, s).count / (r->heads ? c->head_dim : 1);
        memcpy((char *)&local + r->field, &number, sizeof number);
    }
    if (c->mtp_module && s.size > 1) local.vocab_capacity = vocab_capacity(c, s);
    if (c->whole_experts && s.size > 1) keep_experts(c, s, &local);
    return local;
}

/* ---- what fits ---- */

/* KV heads cannot be replicated where q, k and v are fused, since queries have no replicas. */
static bool may_copy(const ModelConfig *c, const Rule *r) {
    return r->copies && !model_family(c)->arch.fused_qkv;
}

/* Unequal ranges are rounded up, so the last rank is the first to be left without any. Where several ranks
 * hold a head, its part of the dgrad of q, k and v is split among them by the elements of the head. */
static bool fits(const ModelConfig *c, const Rule *r, int64_t ranks) {
    int64_t all = grains(c, r);
    if (r->dim == DIM_POSITIONS && !has_learned_positions(c)) return true;
    if (r->dim == DIM_EXPERT && c->moe_intermediate_size == 0) return true;
    if (c->whole_experts && (r->dim == DIM_EXPERT || r->dim == DIM_EXPERT_GATE_UP)) return true;
    if (model_dim(c, r->dim) == 0) return true;
    if (r->uneven) return (ranks - 1) * round_up_quotient(all, ranks) < all;
    return all % ranks == 0 || (may_copy(c, r) && ranks % all == 0 && c->head_dim % (ranks / all) == 0);
}

/* The first rule that so many ranks violate; NULL: none. */
static const Rule *broken(const ModelConfig *c, int64_t ranks) {
    for (int i = 0; i < RULES; i++)
        if (!fits(c, &rules[i], ranks)) return &rules[i];
    return NULL;
}

/* "1, 2 or 4": all degrees that fit. There are no more than the number of heads has divisors. */
static void put_fitting(const ModelConfig *c, Text *out) {
    int64_t last = 0;
    for (int64_t n = 1; n <= c->num_attention_heads; n++)
        if (!broken(c, n)) last = n;
    for (int64_t n = 1; n <= last; n++)
        if (!broken(c, n)) text_printf(out, "%s%lld", n == 1 ? "" : n == last ? " or " : ", ", (long long)n);
}

static const char *uncut(const ModelConfig *c) { return model_is_recurrent(c) ? "has recurrences" : NULL; }

/* The reason that follows the name; nothing where the number simply does not divide. */
static void put_reason(const ModelConfig *c, const Rule *r, int64_t ranks, Text *out) {
    int64_t all = grains(c, r);
    if (r->uneven) text_puts(out, ", for a rank would have none of them");
    if (may_copy(c, r) && ranks % all == 0)
        text_printf(out, ", for %lld ranks would share a head, whose head_dim %lld they do not divide",
                    (long long)(ranks / all), (long long)c->head_dim);
}

ErrorCode axes_check(const ModelConfig *c, int ranks, Error *err) {
    const Rule *r = broken(c, ranks);
    const char *why = uncut(c);
    if (ranks > 1 && why)
        return error_set(err, ERR_CONFIG, "mesh.tp %d: the family %s %s, which weft does not cut yet: use 1",
                         ranks, model_family(c)->model_type, why);
    Text fitting = {0}, reason = {0};
    if (!r) return OK;
    put_fitting(c, &fitting);
    put_reason(c, r, ranks, &reason);
    error_set(err, ERR_CONFIG, "mesh.tp %d does not fit %s %lld%s: %s would", ranks, r->name,
              (long long)grains(c, r), reason.length ? reason.data : "", fitting.data);
    text_free(&fitting);
    text_free(&reason);
    return ERR_CONFIG;
}

/* ---- experts ---- */

ErrorCode axes_check_whole_experts(const ModelConfig *c, TpGroup s, CpGroup cp, Error *err) {
    int exact_chunks = cp.exact_chunks > 0 ? cp.exact_chunks / cp.ranks : 1;
    if (!c->whole_experts) return OK;
    if (model_family(c)->arch.expert_bias)
        return error_set(err, ERR_CONFIG,
                         "mesh.etp 1: the family %s has biases of experts, whose gradients are of the tokens "
                         "of all ranks of mesh.tp: leave out mesh.etp and numerics.etp_invariant_up_to",
                         model_family(c)->model_type);
    if (exact_chunks % s.size == 0 || s.size % exact_chunks == 0) return OK;
    return error_set(
        err, ERR_CONFIG,
        "mesh.etp 1: the tokens of a rank of mesh.tp %d are not whole exact chunks, nor parts of "
        "one (numerics.cp_invariant_up_to %d on %d ranks of mesh.cp): change one of the two so "
        "that it divides the other, or leave out mesh.etp",
        s.size, cp.exact_chunks, cp.ranks);
}

ErrorCode axes_check_experts(const ModelConfig *c, int ranks, Error *err) {
    Text that = {0};
    int64_t last = 1;
    if (ranks == 1 || (c->num_experts > 0 && c->num_experts % ranks == 0 && ranks <= SPLITS_MAX)) return OK;
    if (c->num_experts == 0)
        return error_set(err, ERR_CONFIG, "mesh.ep %d: the family %s has no experts: use 1", ranks,
                         model_family(c)->model_type);
    while (c->num_experts % (2 * last) == 0 && 2 * last <= SPLITS_MAX) last *= 2;
    for (int64_t n = 1; n <= last; n *= 2)
        text_printf(&that, "%s%lld", n == 1 ? "" : n == last ? " or " : ", ", (long long)n);
    error_set(err, ERR_CONFIG, "mesh.ep %d does not divide num_experts %lld: %s would", ranks,
              (long long)c->num_experts, that.data);
    text_free(&that);
    return ERR_CONFIG;
}

/* ---- split-K ---- */

/* Whether ranks that share `splits` in equal runs have blocks of the canonical tree (base/tree.h). One rank
 * has all of it. */
static bool agrees(int ranks, int splits) {
    int each = splits / ranks;
    return ranks == 1 || (splits % ranks == 0 && (each & (each - 1)) == 0);
}

/* "1, 2 or 4": the valid numbers up to `most`. */
static void put_numbers(int most, bool (*will_do)(int n, int of), int of, Text *out) {
    int last = 1;
    for (int n = 1; n <= most; n++)
        if (will_do(n, of)) last = n;
    for (int n = 1; n <= last; n++)
        if (will_do(n, of)) text_printf(out, "%s%d", n == 1 ? "" : n == last ? " or " : ", ", n);
}

static ErrorCode refuse_degree(int ranks, int splits, Error *err) {
    Text that = {0};
    put_numbers(splits, agrees, splits, &that);
    error_set(
        err, ERR_CONFIG,
        "mesh.tp %d cannot have the bits of numerics.tp_invariant_up_to %d, the degree that a run begins "
        "with unless another is asked for: %s would",
        ranks, splits, that.data);
    text_free(&that);
    return ERR_CONFIG;
}

ErrorCode axes_check_splits(const ModelConfig *c, int ranks, int splits, int64_t tokens, Error *err) {
    if (splits > SPLITS_MAX)
        return error_set(err, ERR_CONFIG, "numerics.tp_invariant_up_to is %d: at most %d", splits,
                         SPLITS_MAX);
    if (!agrees(ranks, splits)) return refuse_degree(ranks, splits, err);
    ErrorCode code = axes_check(c, splits, err);
    if (code != OK)
        return splits == ranks
                   ? code
                   : error_context(err, "numerics.tp_invariant_up_to %d cuts sums as that degree does",
                                   splits);
    if (tokens % splits != 0)
        return error_set(err, ERR_CONFIG,
                         "%s %d does not divide the %lld tokens of a microbatch: change train.microbatch or "
                         "train.context",
                         splits == ranks ? "mesh.tp" : "numerics.tp_invariant_up_to", splits,
                         (long long)tokens);
    return OK;
}

/* ---- splitting tokens ---- */

static bool divides(int n, int of) { return of % n == 0; }

static ErrorCode refuse_cp(int ranks, const char *by, const char *what, int of, bool keys, Error *err) {
    Text that = {0};
    put_numbers(of, divides, of, &that);
    error_set(err, ERR_CONFIG, "mesh.cp %d%s does not divide %s %d: %s would%s", ranks, by, what, of,
              that.data, keys ? ", or mesh.cp_comm: all_gather" : "");
    text_free(&that);
    return ERR_CONFIG;
}

bool axes_splits_heads(const ModelConfig *c, TpGroup s, int ranks) {
    int64_t heads = c->num_key_value_heads / s.size;
    return heads > 0 && heads % ranks == 0;
}

bool axes_splits_exact_chunks(int ranks, int exact_chunks) {
    return ranks == 1 || exact_chunks == 0 ||
           (exact_chunks % (2 * ranks) == 0 && agrees(ranks, exact_chunks));
}

static bool splits_exact_chunks(int n, int of) { return axes_splits_exact_chunks(n, of); }

static ErrorCode refuse_exact_chunks(int ranks, int exact_chunks, bool heads, Error *err) {
    Text that = {0};
    put_numbers(exact_chunks, splits_exact_chunks, exact_chunks, &that);
    error_set(
        err, ERR_CONFIG,
        "mesh.cp %d by all_gather cannot have the bits of numerics.cp_invariant_up_to %d, of which a rank "
        "takes 2, 4, 8, ...: mesh.cp %s would%s",
        ranks, exact_chunks, that.data,
        heads && exact_chunks % ranks == 0 ? ", or mesh.cp_comm: all_to_all" : "");
    text_free(&that);
    return ERR_CONFIG;
}

bool axes_splits_keys(const ModelConfig *c, TpGroup s) {
    return s.splits <= c->num_key_value_heads || s.splits == s.size;
}

static ErrorCode refuse_keys(const ModelConfig *c, TpGroup s, int ranks, Error *err) {
    return error_set(
        err, ERR_CONFIG,
        "mesh.cp %d by all_gather: numerics.tp_invariant_up_to %d, more than num_key_value_heads %lld, needs "
        "as many ranks along tp with it, and there are %d: set mesh.tp to %d%s",
        ranks, s.splits, (long long)c->num_key_value_heads, s.size, s.splits,
        axes_splits_heads(c, s, ranks) ? ", or mesh.cp_comm: all_to_all" : "");
}

/* exact_chunks == ranks is the default and not a request; the all-gather of KV would use twice as many. */
static ErrorCode refuse_heads(const ModelConfig *c, TpGroup s, CpGroup cp, Error *err) {
    int heads = (int)(c->num_key_value_heads / s.size);
    bool keys = axes_splits_keys(c, s) &&
                (cp.exact_chunks == cp.ranks || axes_splits_exact_chunks(cp.ranks, cp.exact_chunks));
    return refuse_cp(cp.ranks, " by all_to_all",
                     s.size > 1 ? "the key and value heads that mesh.tp leaves a rank,"
                                : "num_key_value_heads",
                     heads > 0 ? heads : 1, keys, err);
}

/* Fixed-point sums of gradients do not depend on the order, so any number of ranks that divides the exact
 * chunks is possible. */
static ErrorCode check_exact_chunks(CpGroup cp, bool heads, Error *err) {
    int ranks = cp.ranks, exact_chunks = cp.exact_chunks;
    if (cp.keys && !axes_splits_exact_chunks(ranks, exact_chunks))
        return refuse_exact_chunks(ranks, exact_chunks, heads, err);
    if (exact_chunks > 0 && exact_chunks % ranks != 0)
        return refuse_cp(ranks, "", "numerics.cp_invariant_up_to", exact_chunks, false, err);
    return OK;
}

bool axes_splits_tokens(const ModelConfig *c) { return !model_is_recurrent(c); }

ErrorCode axes_check_cp(const ModelConfig *c, TpGroup s, CpGroup cp, int64_t tokens, Error *err) {
    int ranks = cp.ranks, exact_chunks = cp.exact_chunks, cp_chunks = cp.keys ? 2 * ranks : ranks,
        pieces = (exact_chunks > cp_chunks ? exact_chunks : cp_chunks) * s.splits;
    if (!axes_splits_tokens(c) && (ranks > 1 || exact_chunks > 1))
        return error_set(
            err, ERR_CONFIG,
            "%s %d: the family %s has recurrences, which go through a sequence on one rank: use 1",
            ranks > 1 ? "mesh.cp" : "numerics.cp_invariant_up_to", ranks > 1 ? ranks : exact_chunks,
            model_family(c)->model_type);
    if (ranks > 1 && !cp.keys && !axes_splits_heads(c, s, ranks)) return refuse_heads(c, s, cp, err);
    if (cp.keys && !axes_splits_keys(c, s)) return refuse_keys(c, s, ranks, err);
    TRY(check_exact_chunks(cp, axes_splits_heads(c, s, ranks), err));
    if (tokens % pieces == 0) return OK;
    return error_set(
        err, ERR_CONFIG,
        "%s %d%s does not divide the %lld tokens of a microbatch%s%s: change train.microbatch or "
        "train.context, to a multiple of %d",
        exact_chunks > cp_chunks ? "numerics.cp_invariant_up_to" : "mesh.cp",
        exact_chunks > cp_chunks ? exact_chunks : ranks,
        exact_chunks <= cp_chunks && cp.keys ? " by all_gather" : "", (long long)tokens,
        exact_chunks <= cp_chunks && cp.keys ? " into two parts a rank" : "",
        s.splits > 1 ? ", each equal for tp" : "", pieces);
}

/* What a model has that one pass must see in full; NULL: nothing. */
static const char *needs_whole_microbatch(const ModelConfig *c) {
    if (!axes_splits_tokens(c)) return "has recurrences, whose states go through a sequence in one pass";
    if (c->mtp_depth > 0) return "predicts several tokens (train.mtp_depth), which may be in another segment";
    if (model_balance(c) > 0) return "has a balance loss (output_router_logits), which is of whole sequences";
    return NULL;
}

/* The gradients of a KV head are added over the segments before they could be added over ranks or splits that
 * share the head. */
static bool shares_key_heads(const ModelConfig *c, TpGroup s) {
    return (s.splits > s.size ? s.splits : s.size) > c->num_key_value_heads;
}

static ErrorCode check_segment_tokens(TpGroup s, CpGroup cp, int segments, int64_t tokens, Error *err) {
    if (cp.exact_chunks > 0 && cp.exact_chunks % segments != 0)
        return error_set(err, ERR_CONFIG,
                         "pipeline.segments %d does not divide numerics.cp_invariant_up_to %d, whose exact "
                         "chunks a segment has whole: set one to a multiple of the other",
                         segments, cp.exact_chunks);
    if (cp.exact_chunks & (cp.exact_chunks - 1))
        return error_set(err, ERR_CONFIG,
                         "pipeline.segments %d: numerics.cp_invariant_up_to is %d: expected a power of two",
                         segments, cp.exact_chunks);
    if (tokens % ((int64_t)segments * s.splits) == 0) return OK;
    return error_set(err, ERR_CONFIG,
                     "pipeline.segments %d%s does not divide the %lld tokens of a microbatch: change "
                     "train.context to a multiple of %d",
                     segments, s.splits > 1 ? ", each equal for tp," : "", (long long)tokens,
                     segments * s.splits);
}

ErrorCode axes_check_segments(const ModelConfig *c, TpGroup s, CpGroup cp, int segments, int64_t tokens,
                              Error *err) {
    const char *why = needs_whole_microbatch(c);
    if (segments == 1) return OK;
    if (why)
        return error_set(err, ERR_CONFIG,
                         "pipeline.segments %d: the model (%s) %s: set pipeline.segments to 1", segments,
                         model_family(c)->model_type, why);
    if (cp.ranks > 1)
        return error_set(
            err, ERR_CONFIG,
            "pipeline.segments %d with mesh.cp %d: ranks of cp would cut each segment again, which "
            "is not possible yet: set one of them to 1",
            segments, cp.ranks);
    if (shares_key_heads(c, s))
        return error_set(err, ERR_CONFIG,
                         "pipeline.segments %d: %s %d is more than num_key_value_heads %lld, so splits share "
                         "key and value heads: set it to %lld or less, or pipeline.segments to 1",
                         segments,
                         s.size > c->num_key_value_heads ? "mesh.tp" : "numerics.tp_invariant_up_to",
                         s.size > c->num_key_value_heads ? s.size : s.splits,
                         (long long)c->num_key_value_heads, (long long)c->num_key_value_heads);
    return check_segment_tokens(s, cp, segments, tokens, err);
}

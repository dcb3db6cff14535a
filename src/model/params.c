/* Builds the parameter table by walking the rows of each unit once for each flat; see params.h for the
 * invariants. A family may have other names than the rows, and may store matrices transposed. Both are
 * resolved here, so readers of the table need to know neither. */
#include "model/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/families/family.h"

#define GROUP_ALIGN 16 /* elements: one cache line of fp32 */

static size_t align_up(size_t n) { return (n + GROUP_ALIGN - 1) / GROUP_ALIGN * GROUP_ALIGN; }

/* Which parameters are frozen and which have adapters. The lists are indexed by the previous table (NULL:
 * there is none); a NULL list keeps what the previous table has. */
typedef struct Treatment {
    const ParamTable *table;
    const bool *frozen, *adapted;
} Treatment;

static bool is_frozen(const Treatment *f, int unit, const ParamRow *row, int expert) {
    const Param *p = f->table ? param_of_expert(f->table, unit, row, expert) : NULL;
    if (row->fixed) return true;
    return p && (f->frozen ? f->frozen[p - f->table->params] : p->frozen);
}

static bool is_present(const Treatment *f, int unit, const ModelConfig *c, const ParamRow *row) {
    const ParamRow *known = f->adapted ? row->adapts : row;
    if (!row->adapts) return param_present(c, row);
    const Param *p = f->table ? param_of(f->table, unit, known) : NULL;
    return p && (!f->adapted || f->adapted[p - f->table->params]);
}

/* For a row without experts: its only parameter. */
static bool all_frozen(const Treatment *f, int unit, const ModelConfig *c, const ParamRow *row) {
    for (int e = 0; e < param_copies(c, row); e++)
        if (!is_frozen(f, unit, row, e)) return false;
    return true;
}

/* A group is one matrix for products, or all rows of experts. */
static bool joins(const ParamRow *const *rows, int i) {
    return i > 0 && (rows[i]->continues || (rows[i]->expert && rows[i - 1]->expert));
}

/* Whether the whole group of rows[i] is frozen. */
static bool group_is_frozen(const Treatment *f, int unit, const ModelConfig *c, const ParamRow *const *rows,
                            int count, int i) {
    while (joins(rows, i)) i--;
    for (int first = i; i < count && (i == first || joins(rows, i)); i++)
        if (is_present(f, unit, c, rows[i]) && !all_frozen(f, unit, c, rows[i])) return false;
    return true;
}

/* A row without columns is a norm's weight or a bias, which passes read in fp32, and too small for its size
 * to matter. Replicated matrices lie with these. Other rows go by whether they are trained. */
static Flat flat_of(const Treatment *f, int unit, const ModelConfig *c, const ParamRow *const *rows,
                    int count, int i) {
    bool experts = param_is_of_experts(rows[i]);
    if (rows[i]->cols == DIM_NONE && experts) return FLAT_EXPERT_VECTORS;
    if (rows[i]->cols == DIM_NONE || param_is_replicated(c, rows[i])) return FLAT_VECTORS;
    bool frozen = group_is_frozen(f, unit, c, rows, count, i);
    if (experts) return frozen ? FLAT_FROZEN_EXPERTS : FLAT_EXPERTS;
    return frozen ? FLAT_FROZEN : FLAT_MATRICES;
}

int param_outputs(const ModelConfig *c, Dim width, Dim out[PARAM_MATRICES]) {
    out[0] = width;
    if (width == DIM_QKV) {
        out[0] = DIM_QUERY, out[1] = out[2] = DIM_KEY;
        return 3;
    }
    _Static_assert((int)MTP_DEPTH_MAX <= (int)PARAM_MATRICES, "a matrix each");
    if (width == DIM_MTP_HEADS) {
        for (int k = 0; k < c->mtp_depth; k++) out[k] = DIM_VOCAB;
        return (int)c->mtp_depth;
    }
    bool alternate = model_family(c)->arch.activation == ACT_CLAMPED;
    if (width == DIM_EXPERT_GATE_UP && !alternate) {
        out[0] = out[1] = DIM_EXPERT;
        return 2;
    }
    if (width == DIM_SHARED_GATE_UP) {
        out[0] = out[1] = DIM_SHARED;
        return 2;
    }
    if (width != DIM_GATE_UP || model_family(c)->arch.no_gate) return 1;
    out[0] = out[1] = DIM_INTER;
    return 2;
}

/* The matrices lie one below the other, or side by side in transposed weights. */
static void find_matrices(Param *p, const ModelConfig *c) {
    Dim outputs[PARAM_MATRICES];
    int64_t at = 0;
    if (p->cols == 0) return;
    p->matrix_count = param_outputs(c, p->row->rows, outputs);
    for (int k = 0; k < p->matrix_count; k++) {
        int64_t n = model_dim(c, outputs[k]);
        p->matrices[k] = p->transposed ? (ParamMatrix){at, p->rows / p->fused, n, p->cols}
                                       : (ParamMatrix){at * p->cols, n, p->cols, p->cols};
        at += n;
    }
}

/* Sets what depends on the sizes of the model. */
static void measure(Param *p, const ModelConfig *c) {
    const ParamRow *row = p->row;
    p->rows = p->fused * model_dim(c, p->transposed ? row->cols : row->rows);
    p->cols = model_dim(c, p->transposed ? row->rows : row->cols);
    p->count = p->cols ? p->rows * p->cols : p->rows;
    find_matrices(p, c);
}

Param param_unsharded(const ModelConfig *c, const Param *p) {
    Param whole = *p;
    measure(&whole, c);
    return whole;
}

/* In names of experts, `*` becomes the expert's index. */
static void set_name(Param *p, const Family *f, const char *name) {
    char prefix[32] = "", number[16];
    const char *star = p->row->expert ? strchr(name, '*') : NULL;
    if (p->layer >= 0)
        snprintf(prefix, sizeof prefix, "%s%d.", f->blocks ? f->blocks : "model.layers.", p->layer);
    snprintf(number, sizeof number, "%d", p->expert);
    snprintf(p->name, sizeof p->name, "%s%.*s%s%s", prefix, star ? (int)(star - name) : (int)strlen(name),
             name, star ? number : "", star ? star + 1 : "");
}

/* "...q_proj.weight" becomes "...q_proj.lora_A.weight", whatever the family's name of the matrix. */
static void name_adapter(Param *p) {
    size_t stem = strlen(p->name) - strlen(".weight");
    snprintf(p->name + stem, sizeof p->name - stem, ".lora_%c.weight",
             p->row->rows == DIM_ADAPTER ? 'A' : 'B');
}

static int64_t capacity_of(const Param *p, const ModelConfig *c) {
    return p->row->rows == DIM_VOCAB && c->vocab_capacity > 0 ? c->vocab_capacity * p->cols : p->count;
}

/* Appends a parameter to its flat: without a gap where it continues a group, so that the group is one matrix
 * for products, else at the next cache line. `elements` never counts padding. A transposed parameter has as
 * many elements as the row, so its offset does not change. */
static void add_param(ParamTable *t, const ParamRow *row, int unit, int expert, Flat flat, bool frozen,
                      const ModelConfig *c) {
    Param *p = &t->params[t->count++];
    size_t *size = &t->flats[unit][flat];
    bool in_block = !row->outside;
    const Family *f = model_family(c);
    const char *name = family_parameter_name(f, row->adapts ? row->adapts : row);
    /* Only linear layers are transposed: every family stores the embedding by rows, and adapters are as in
     * PEFT. */
    bool transposed =
        row->cols != DIM_NONE && (row->fused || (in_block && f->arch.transposed && !row->adapts));
    int64_t fused = param_fused_experts(c, row), first = model_first_expert(c);
    bool remote = row->expert && (expert < first || expert >= first + model_local_experts(c));
    if (!row->continues) *size = align_up(*size);
    *p = (Param){.row = row,
                 .unit = unit,
                 .layer = in_block ? unit - 1 : -1,
                 .expert = expert,
                 .remote = remote,
                 .fused = fused,
                 .transposed = transposed,
                 .frozen = frozen,
                 .flat = flat,
                 .offset = remote ? 0 : *size};
    set_name(p, f, name);
    if (row->adapts) name_adapter(p);
    measure(p, c);
    p->capacity = capacity_of(p, c);
    t->elements += p->count;
    if (!remote) *size += (size_t)p->capacity;
}

/* Adds the rows first <= i < end that belong to this flat, for one expert. */
static void add_rows(ParamTable *t, int unit, Flat flat, const ModelConfig *c, const Treatment *f,
                     const ParamRow *const *rows, const Flat *flats, int first, int end, int expert) {
    for (int i = first; i < end; i++)
        if (is_present(f, unit, c, rows[i]) && flats[i] == flat)
            add_param(t, rows[i], unit, expert, flat, is_frozen(f, unit, rows[i], expert), c);
}

/* Adds flat after flat, so that each is one run of the buffer (invariant 1), in the order of the rows. Rows
 * of experts are walked once for each expert (invariant 4). */
static void build_unit(ParamTable *t, int unit, const ModelConfig *c, const Treatment *f) {
    const ParamRow *rows[UNIT_ROWS];
    Flat flats[UNIT_ROWS];
    int count = param_rows(c, unit, rows);
    for (int i = 0; i < count; i++) flats[i] = flat_of(f, unit, c, rows, count, i);
    t->unit_first[unit] = t->count;
    for (int flat = 0; flat < FLATS; flat++) {
        for (int first = 0, end; first < count; first = end) {
            end = first + 1;
            while (rows[first]->expert && end < count && rows[end]->expert) end++;
            for (int e = 0; e < param_copies(c, rows[first]); e++)
                add_rows(t, unit, (Flat)flat, c, f, rows, flats, first, end, e);
        }
        t->flats[unit][flat] = align_up(t->flats[unit][flat]);
    }
}

/* The most parameters that any unit may have. */
static size_t most_params(const ModelConfig *c) {
    const ParamRow *rows[UNIT_ROWS];
    size_t most = UNIT_ROWS;
    for (int u = 0; u < c->num_hidden_layers + 2; u++) {
        size_t sum = 0;
        for (int i = 0, count = param_rows(c, u, rows); i < count; i++)
            sum += (size_t)param_copies(c, rows[i]);
        if (sum > most) most = sum;
    }
    return most;
}

/* Fails only with ERR_CONFIG, before anything is allocated. The amount of memory depends on the number of
 * layers, so that is checked here whether or not the shape was. Each unit gets space for as many parameters
 * as the largest may have. */
static ErrorCode build(ParamTable *t, const ModelConfig *c, const Treatment *f, Error *err) {
    if (c->num_hidden_layers > MODEL_MAX_COUNT)
        return error_set(err, ERR_CONFIG, "num_hidden_layers is %lld: at most %d",
                         (long long)c->num_hidden_layers, MODEL_MAX_COUNT);
    size_t units = (size_t)c->num_hidden_layers + 2;
    *t = (ParamTable){.units = (int)units};
    t->params = mem_alloc_array(units * most_params(c), sizeof *t->params);
    t->flats = mem_alloc_array(units, sizeof *t->flats);
    t->unit_first = mem_alloc_array(units + 1, sizeof *t->unit_first);
    for (int u = 0; u < t->units; u++) build_unit(t, u, c, f);
    t->unit_first[units] = t->count;
    return OK;
}

ErrorCode param_table_build(ParamTable *t, const ModelConfig *c, Error *err) {
    return build(t, c, &(Treatment){.table = NULL}, err);
}

static ErrorCode rebuild(ParamTable *t, const ModelConfig *c, const bool *frozen, const bool *adapted,
                         Error *err) {
    ParamTable before = *t;
    TRY(build(t, c, &(Treatment){&before, frozen, adapted}, err));
    param_table_free(&before);
    return OK;
}

ErrorCode param_table_freeze(ParamTable *t, const ModelConfig *c, const bool *frozen, Error *err) {
    return rebuild(t, c, frozen, NULL, err);
}

ErrorCode param_table_adapt(ParamTable *t, const ModelConfig *c, const bool *adapted, Error *err) {
    CHECK(c->adapter_rank > 0);
    return rebuild(t, c, NULL, adapted, err);
}

/* A zeroed table that was never built is fine. */
void param_table_free(ParamTable *t) {
    free(t->params);
    free(t->flats);
    free(t->unit_first);
    *t = (ParamTable){0};
}

int param_matrices(const Param *p) { return p->matrix_count * (int)p->fused; }

ParamMatrix param_matrix(const Param *p, int k) {
    ParamMatrix m = p->matrices[k % p->matrix_count];
    m.first += k / p->matrix_count * (p->count / p->fused);
    return m;
}

int param_shape(const ModelConfig *c, const Param *p, int64_t shape[PARAM_RANK]) {
    int rank = 0;
    if (p->row->fused) shape[rank++] = param_fused_experts(c, p->row);
    shape[rank++] = model_dim(c, p->transposed ? p->row->cols : p->row->rows);
    if (p->cols) shape[rank++] = model_dim(c, p->transposed ? p->row->rows : p->row->cols);
    return rank;
}

size_t param_unit_size(const ParamTable *t, int unit) {
    size_t sum = 0;
    for (int f = 0; f < FLATS; f++) sum += t->flats[unit][f];
    return sum;
}

/* A linear search: no step looks up names. */
const Param *param_find(const ParamTable *t, const char *name) {
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->params[i].name, name) == 0) return &t->params[i];
    return NULL;
}

/* Compares the addresses of rows: there is one row for each kind, and a unit has few. */
const Param *param_of(const ParamTable *t, int unit, const ParamRow *row) {
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++)
        if (t->params[i].row == row) return &t->params[i];
    return NULL;
}

/* The same parameter of the next expert; NULL after the last. It is a few entries further on (invariant
 * 4). */
static const Param *next_expert(const ParamTable *t, const Param *p) {
    const Param *end = &t->params[t->unit_first[p->unit + 1]];
    for (const Param *next = p + 1; p->row->expert && next < end; next++)
        if (next->row == p->row) return next;
    return NULL;
}

const Param *param_of_expert(const ParamTable *t, int unit, const ParamRow *row, int expert) {
    const Param *first = param_of(t, unit, row), *next = first ? next_expert(t, first) : NULL;
    if (!next || expert == 0) return expert == 0 ? first : NULL;
    const Param *p = first + expert * (next - first);
    return p < &t->params[t->unit_first[unit + 1]] && p->row == row && p->expert == expert ? p : NULL;
}

int64_t param_expert_step(const ParamTable *t, const Param *first) {
    if (first->row->fused) return first->count / first->fused;
    const Param *next = next_expert(t, first);
    return next && !next->remote ? (int64_t)(next->offset - first->offset) : 0;
}

const Param *param_adapter(const ParamTable *t, const Param *matrix, AdapterPart which) {
    for (int i = t->unit_first[matrix->unit]; i < t->unit_first[matrix->unit + 1]; i++) {
        const ParamRow *row = t->params[i].row;
        if (row->adapts == matrix->row && (row->rows == DIM_ADAPTER) == (which == ADAPTER_A))
            return &t->params[i];
    }
    return NULL;
}

TpStyle param_tp_style(const ParamRow *row) {
    if (!row->adapts) return row->tp;
    /* the side along which A, or B, may be sharded */
    TpStyle side = row->rows == DIM_ADAPTER ? ROW_PARALLEL : COLUMN_PARALLEL;
    return row->adapts->tp == side ? side : REPLICATED;
}

bool param_is_replicated(const ModelConfig *c, const ParamRow *row) {
    if (row->replicated) return c->mtp_replicated;
    return row->adapts && !row->adapts->latent && c->adapter_replicated && param_tp_style(row) == REPLICATED;
}

bool param_sees_all(const ParamRow *row) {
    const ParamRow *of = row->adapts;
    if (!of) return row->router || row->latent;
    return of->latent || (of->of_latents && param_tp_style(row) == REPLICATED);
}

bool param_can_adapt(const ModelConfig *c, int unit, const ParamRow *row) {
    const ParamRow *rows[UNIT_ROWS];
    int count = param_rows(c, unit, rows);
    for (int i = 0; i < count; i++)
        if (rows[i]->adapts == row) return true;
    return false;
}

bool param_table_is_adapted(const ParamTable *t) {
    for (int i = 0; i < t->count; i++)
        if (t->params[i].row->adapts) return true;
    return false;
}

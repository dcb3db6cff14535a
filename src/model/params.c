/* The parameter table is made by walking the rows of each unit once for each flat; see params.h for the
 * invariants. A family may call a parameter otherwise than its row does, and store matrices transposed: both
 * are settled here, so that who reads the table needs to know neither. */
#include "model/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/families/family.h"

#define GROUP_ALIGN 16 /* elements: one cache line of fp32 */

static size_t align_up(size_t n) { return (n + GROUP_ALIGN - 1) / GROUP_ALIGN * GROUP_ALIGN; }

/* What is frozen, by the table that was there before; none where `table` is NULL. */
typedef struct Freezing {
    const ParamTable *table;
    const bool *frozen;
} Freezing;

static bool is_frozen(const Freezing *f, int unit, const ParamRow *row) {
    const Param *p = f->table ? param_of(f->table, unit, row) : NULL;
    return p && f->frozen[p - f->table->params];
}

/* Whether all of the group that rows[i] is in are frozen: a group is one matrix for the products. */
static bool group_is_frozen(const Freezing *f, int unit, const ModelConfig *c, const ParamRow *const *rows,
                            int count, int i) {
    while (rows[i]->continues) i--;
    for (int first = i; i < count && (i == first || rows[i]->continues); i++)
        if (param_present(c, rows[i]) && !is_frozen(f, unit, rows[i])) return false;
    return true;
}

/* By shape: what has no columns is a norm's weight or a bias, which passes read in fp32, and which are too
 * few for their size to matter; and by whether it is trained. */
static Flat flat_of(const Freezing *f, int unit, const ModelConfig *c, const ParamRow *const *rows, int count,
                    int i) {
    if (rows[i]->cols == DIM_NONE) return FLAT_VECTORS;
    return group_is_frozen(f, unit, c, rows, count, i) ? FLAT_FROZEN : FLAT_MATRICES;
}

/* Outputs of the matrices that a row's parameter is made of; returns how many. */
static int matrix_outputs(const ModelConfig *c, Dim rows, Dim out[PARAM_MATRICES]) {
    out[0] = rows;
    if (rows == DIM_QKV) {
        out[0] = DIM_QUERY, out[1] = out[2] = DIM_KEY;
        return 3;
    }
    if (rows != DIM_GATE_UP || model_family(c)->arch.no_gate) return 1;
    out[0] = out[1] = DIM_INTER;
    return 2;
}

/* One below the other, or side by side where inputs are rows. */
static void find_matrices(Param *p, const ModelConfig *c) {
    Dim outputs[PARAM_MATRICES];
    int64_t at = 0;
    if (p->cols == 0) return;
    p->matrix_count = matrix_outputs(c, p->row->rows, outputs);
    for (int k = 0; k < p->matrix_count; k++) {
        int64_t n = model_dim(c, outputs[k]);
        p->matrices[k] = p->transposed ? (ParamMatrix){at, p->rows, n, p->cols}
                                       : (ParamMatrix){at * p->cols, n, p->cols, p->cols};
        at += n;
    }
}

/* Behind the parameter before it in its flat: without a gap where it continues a group, so that the group
 * is one matrix for the products, else at the next cache line. `elements` counts parameters and never the
 * padding. A transposed parameter has as many elements as the row says, so its place is that of any other. */
static void add_param(ParamTable *t, const ParamRow *row, int unit, Flat flat, bool frozen,
                      const ModelConfig *c) {
    Param *p = &t->params[t->count++];
    size_t *size = &t->flats[unit][flat];
    bool in_block = unit > 0 && unit < t->units - 1;
    const Family *f = model_family(c);
    const char *name = family_parameter_name(f, row);
    /* Only linear layers are transposed: an embedding is read by rows in every family. */
    bool transposed = in_block && f->arch.transposed && row->cols != DIM_NONE;
    if (!row->continues) *size = align_up(*size);
    *p = (Param){.row = row,
                 .unit = unit,
                 .layer = in_block ? unit - 1 : -1,
                 .rows = model_dim(c, transposed ? row->cols : row->rows),
                 .cols = model_dim(c, transposed ? row->rows : row->cols),
                 .transposed = transposed,
                 .count = param_elements(c, row),
                 .frozen = frozen,
                 .flat = flat,
                 .place = *size};
    if (in_block)
        snprintf(p->name, sizeof p->name, "%s%d.%s", f->blocks ? f->blocks : "model.layers.", p->layer, name);
    else
        snprintf(p->name, sizeof p->name, "%s", name);
    find_matrices(p, c);
    *size += (size_t)p->count;
    t->elements += p->count;
}

/* Flat after flat, so that each is one run of the buffer (invariant 1), in the order of the rows. */
static void build_unit(ParamTable *t, int unit, const ModelConfig *c, const Freezing *f) {
    const ParamRow *rows[UNIT_ROWS];
    int count = param_rows(c, unit, rows);
    t->unit_first[unit] = t->count;
    for (int flat = 0; flat < FLATS; flat++) {
        for (int i = 0; i < count; i++)
            if (param_present(c, rows[i]) && flat_of(f, unit, c, rows, count, i) == (Flat)flat)
                add_param(t, rows[i], unit, (Flat)flat, is_frozen(f, unit, rows[i]), c);
        t->flats[unit][flat] = align_up(t->flats[unit][flat]);
    }
}

/* Fails only by ERR_CONFIG, before anything is allocated: memory is taken by the number of layers, so it
 * is looked at here whether or not the shape was checked. Each unit gets room for UNIT_ROWS parameters,
 * more than any has, which is some KiB and spares a walk to count them. */
static ErrorCode build(ParamTable *t, const ModelConfig *c, const Freezing *f, Error *err) {
    if (c->num_hidden_layers > MODEL_MAX_COUNT)
        return error_set(err, ERR_CONFIG, "num_hidden_layers is %lld: at most %d",
                         (long long)c->num_hidden_layers, MODEL_MAX_COUNT);
    size_t units = (size_t)c->num_hidden_layers + 2;
    *t = (ParamTable){.units = (int)units};
    t->params = mem_alloc_array(units * UNIT_ROWS, sizeof *t->params);
    t->flats = mem_alloc_array(units, sizeof *t->flats);
    t->unit_first = mem_alloc_array(units + 1, sizeof *t->unit_first);
    for (int u = 0; u < t->units; u++) build_unit(t, u, c, f);
    t->unit_first[units] = t->count;
    return OK;
}

ErrorCode param_table_build(ParamTable *t, const ModelConfig *c, Error *err) {
    return build(t, c, &(Freezing){.table = NULL}, err);
}

ErrorCode param_table_freeze(ParamTable *t, const ModelConfig *c, const bool *frozen, Error *err) {
    ParamTable before = *t;
    TRY(build(t, c, &(Freezing){&before, frozen}, err));
    param_table_free(&before);
    return OK;
}

/* A table of zeros, which was never built, may be given too. */
void param_table_free(ParamTable *t) {
    free(t->params);
    free(t->flats);
    free(t->unit_first);
    *t = (ParamTable){0};
}

size_t param_unit_size(const ParamTable *t, int unit) {
    size_t sum = 0;
    for (int f = 0; f < FLATS; f++) sum += t->flats[unit][f];
    return sum;
}

/* By a walk: nobody asks by name within a step. */
const Param *param_find(const ParamTable *t, const char *name) {
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->params[i].name, name) == 0) return &t->params[i];
    return NULL;
}

/* By the address of its row: there is one row for each kind, and a unit has few. */
const Param *param_of(const ParamTable *t, int unit, const ParamRow *row) {
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++)
        if (t->params[i].row == row) return &t->params[i];
    return NULL;
}

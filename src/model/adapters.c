/* Chooses the matrices that get adapters by their names in the table without adapters, and then rebuilds the
 * table. Names are the same on every rank, so the choice is too. */
#include "model/adapters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pattern.h"
#include "base/text.h"

static bool can_have_one(const Param *p, const ModelConfig *c) {
    return p->cols > 0 && param_can_adapt(c, p->unit, p->row);
}

/* A product of matrices of rank r has at most rank r. With r as high as the matrix's own, an adapter would
 * save nothing. */
static ErrorCode check_rank(const Param *p, const ModelConfig *whole, int64_t rank, Error *err) {
    int64_t shape[PARAM_RANK];
    param_shape(whole, p, shape);
    if (rank < shape[0] && rank < shape[1]) return OK;
    return error_set(err, ERR_CONFIG, "lora.rank is %lld, but %s is [%lld, %lld]: expected less than both",
                     (long long)rank, p->name, (long long)shape[0], (long long)shape[1]);
}

static ErrorCode choose_by_pattern(const ParamTable *t, const ModelConfig *whole, const AdapterSpec *spec,
                                   bool *adapted, Error *err) {
    Pattern *pattern;
    char shown[80];
    ErrorCode code = OK;
    int count = 0;
    const Param *last = NULL; /* every block has a matrix that can have one */
    TRY(pattern_compile(&pattern, "lora.match", spec->match, err));
    for (int i = 0; i < t->count && code == OK; i++) {
        if (!can_have_one(&t->params[i], whole)) continue;
        last = &t->params[i];
        code = pattern_find(pattern, last->name, &adapted[i], err);
        count += adapted[i];
        if (code == OK && adapted[i]) code = check_rank(&t->params[i], whole, spec->rank, err);
    }
    pattern_free(pattern);
    if (code != OK || count > 0) return code;
    return error_set(err, ERR_CONFIG,
                     "lora.match: no matrix of a block has \"%s\" in its name; the last one is %s",
                     error_escape(shown, sizeof shown, spec->match, strlen(spec->match)), last->name);
}

static ErrorCode choose_by_name(const ParamTable *t, const ModelConfig *c, const AdapterSpec *spec,
                                bool *adapted, Error *err) {
    char shown[160];
    for (int i = 0; i < spec->count; i++) {
        const Param *p = param_find(t, spec->names[i]);
        if (!p || !can_have_one(p, c))
            return error_set(err, ERR_DATA, "\"%s\" is no matrix of a block of this %s",
                             error_escape(shown, sizeof shown, spec->names[i], strlen(spec->names[i])),
                             p ? "model that can have an adapter" : "model");
        adapted[p - t->params] = true;
    }
    return OK;
}

double adapters_scale(int64_t rank, double alpha, bool stabilised) {
    return alpha / (stabilised ? sqrt((double)rank) : (double)rank);
}

ErrorCode adapters_put(ParamTable *t, ModelConfig *c, const ModelConfig *whole, const AdapterSpec *spec,
                       Error *err) {
    if (spec->rank == 0) return OK;
    bool *adapted = mem_alloc_array((size_t)t->count, sizeof *adapted);
    ErrorCode code = spec->match ? choose_by_pattern(t, whole, spec, adapted, err)
                                 : choose_by_name(t, c, spec, adapted, err);
    if (code == OK) {
        c->adapter_rank = spec->rank, c->adapter_scale = spec->scale,
        c->adapter_replicated = spec->replicated;
        code = param_table_adapt(t, c, adapted, err);
    }
    free(adapted);
    return code;
}

/* On one rank, the side of A or B that is r is full; the other may be sharded. */
int64_t adapters_count(const ParamTable *t, const ModelConfig *whole) {
    int64_t sum = 0;
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        if (!p->row->adapts) continue;
        sum += p->row->rows == DIM_ADAPTER ? p->rows * model_dim(whole, p->row->cols)
                                           : p->cols * model_dim(whole, p->row->rows);
    }
    return sum;
}

double adapters_flops_per_token(const ModelConfig *c, const ParamTable *t, int64_t context) {
    double all = model_flops_per_token(c, context), adapters = (double)adapters_count(t, c);
    if (!param_table_is_adapted(t)) return all;
    return all - 2 * (double)model_active_count_without_embedding(c) + 6 * adapters;
}

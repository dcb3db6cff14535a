/* Plans of ranks on meshes that no rank can run on yet: with cp by keys (plan/crossings.h), beside tp too.
 *
 * Two things are true of such a rank, and each is a plan that can be made:
 *
 *     what it holds     a rank of the model that tp leaves it (axes_local), on the mesh without tp:
 *                       parameters, gradients, states, what is gathered of them, and the bytes of these
 *     what it computes  the whole model on a (t p)-th of the tokens: tensors between products are cut by
 *                       tokens, those inside them by columns, and either way a t-th is left
 *
 * The memory of passes is taken from the second, all else from the first, and what crosses in between has the
 * room that crossings.h says. Its program has no crossings: it is not one that could run. */
#ifndef WEFT_PLAN_FORESEE_H
#define WEFT_PLAN_FORESEE_H

#include "plan/crossings.h"
#include "plan/rank.h"

CrossingSpec foresee_crossings(const RankSpec *spec, const Mesh *mesh);
/* Whether no rank can run on the mesh yet. */
bool foresee_needed(const RankSpec *spec, const Mesh *mesh);
/* The fullest rank of a pipeline place of any mesh: rank_plan_fullest where it can run. Free it also after a
 * failure. ERR_CONFIG when the model does not fit the mesh. */
ErrorCode foresee_fullest(RankPlan *p, const RankSpec *spec, const Layout *l, int place, const Device *d,
                          Error *err);

#endif

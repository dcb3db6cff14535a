#include "forecast/published.h"

/* Longer contexts are in a group of their own: attention's kernels decide about them. */
enum { SHORT_CONTEXT = 8192 };

typedef enum Group { DENSE, LONG_CONTEXT, ACROSS_MACHINES, EXPERTS } Group;
static const Published groups[] = {
    [DENSE] = {"dense models on one machine", 32, 0.83, 1.22},
    [LONG_CONTEXT] = {"dense models with a long context", 23, 1.00, 1.38},
    [ACROSS_MACHINES] = {"dense models across machines", 46, 0.84, 1.22},
    [EXPERTS] = {"models with experts", 11, 0.43, 1.51},
};

const Published *published_like(const Config *c, int world, int ranks_of_machine) {
    if (model_is_recurrent(&c->model.shape)) return NULL;
    if (c->model.shape.num_experts > 0) return &groups[EXPERTS];
    if (c->train.context > SHORT_CONTEXT) return &groups[LONG_CONTEXT];
    return &groups[world > ranks_of_machine ? ACROSS_MACHINES : DENSE];
}

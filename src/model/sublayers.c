/* What units are made of: the layers of each, the steps that they come to, and the parameters that they
 * bring. */
#include "model/families/family.h"
#include "model/internal.h"

/* The norms before the two sublayers of a block. */
static const ParamRow norms[UNIT_SUBLAYERS] = {
    {"input_layernorm.weight", DIM_HIDDEN, .init = ROLE_ONES},
    {"post_attention_layernorm.weight", DIM_HIDDEN, .init = ROLE_ONES},
};

int unit_sublayers(const ModelConfig *c, int unit, Sublayer out[UNIT_SUBLAYERS]) {
    bool embedding = unit == 0, head = unit == c->num_hidden_layers + 1;
    if (embedding || head) {
        out[0] = (Sublayer){NULL, embedding ? &layer_embedding : &layer_head};
        return 1;
    }
    const Family *f = model_family(c);
    out[0] = (Sublayer){&norms[0], f->mixer};
    out[1] = (Sublayer){&norms[1], f->mlp};
    return 2;
}

int param_rows(const ModelConfig *c, int unit, const ParamRow *rows[UNIT_ROWS]) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int count = unit_sublayers(c, unit, sublayers), n = 0;
    for (int s = 0; s < count; s++)
        if (sublayers[s].norm) rows[n++] = sublayers[s].norm;
    for (int s = 0; s < count; s++)
        for (int i = 0; i < sublayers[s].layer->param_count; i++) {
            CHECK(n < UNIT_ROWS);
            rows[n++] = &sublayers[s].layer->params[i];
        }
    return n;
}

Lifetime stream_lifetime(int index) { return index == 0 ? LIFE_INPUT : LIFE_SAVED; }

bool lifetime_stays(Lifetime life, Recompute recompute) {
    switch (life) {
    case LIFE_INPUT: return true;
    case LIFE_SAVED: return recompute != RECOMPUTE_FULL;
    case LIFE_CHEAP: return recompute == RECOMPUTE_NONE;
    case LIFE_SCRATCH: return false;
    }
    return false;
}

/* The parts of the sublayer's layer. Its result is the next sublayer's stream, or on its way to the unit's
 * output: the next unit's input, which nothing makes again. */
static int layer_steps(const Layer *layer, int sublayer, bool ends, Step *steps) {
    for (int i = 0; i < layer->part_count; i++) {
        const Part *part = &layer->parts[i];
        bool last = i == layer->part_count - 1;
        Lifetime result = ends ? LIFE_INPUT : stream_lifetime(sublayer + 1);
        steps[i] = (Step){STEP_LAYER, sublayer, part, last, last ? result : part->makes};
    }
    return layer->part_count;
}

int unit_steps(const ModelConfig *c, int unit, Step steps[UNIT_PARTS]) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    int count = unit_sublayers(c, unit, sublayers), n = 0;
    for (int s = 0; s < count; s++) {
        CHECK(n + sublayers[s].layer->part_count + 2 <= UNIT_PARTS);
        if (sublayers[s].norm) steps[n++] = (Step){.kind = STEP_NORM, .sublayer = s, .makes = LIFE_CHEAP};
        n += layer_steps(sublayers[s].layer, s, s == count - 1, &steps[n]);
    }
    if (sublayers[count - 1].norm)
        steps[n++] = (Step){.kind = STEP_ADD, .sublayer = count - 1, .makes = LIFE_INPUT};
    return n;
}

Parts unit_parts(const ModelConfig *c, int unit) {
    Step steps[UNIT_PARTS];
    return (Parts){0, unit_steps(c, unit, steps)};
}

const Product *unit_part_product(const ModelConfig *c, int unit, int part) {
    Step steps[UNIT_PARTS];
    CHECK(part >= 0 && part < unit_steps(c, unit, steps));
    return steps[part].kind == STEP_LAYER ? steps[part].part->product : NULL;
}

const char *unit_part_name(const ModelConfig *c, int unit, int part) {
    Step steps[UNIT_PARTS];
    CHECK(part >= 0 && part < unit_steps(c, unit, steps));
    switch (steps[part].kind) {
    case STEP_NORM: return "norm";
    case STEP_LAYER: return steps[part].part->name;
    case STEP_ADD: return "sum";
    }
    return "";
}

#include "plan/rank.h"

static void part(RankPlan *p) {
    const RankSpec *s = &p->spec;
    Mesh single = {.degree = {1, 1, 1, 1, 1}, .world = 1};
    Stages one = {0};
    if (!s->stages) stages_single(&one, p->model.table.units);
    partition_build(&p->partition, &p->model.table, s->model.tie_word_embeddings,
                    s->mesh.world ? &s->mesh : &single, s->rank, s->stages ? s->stages : &one);
    stages_free(&one);
}

static ErrorCode plan_training(RankPlan *p, size_t scratch, Error *err) {
    const RankSpec *s = &p->spec;
    ProgramSpec spec = {.partition = &p->partition,
                        .schedule = s->schedule,
                        .microbatches = s->microbatches,
                        .split_backward = s->split_backward,
                        .exact = s->exact,
                        .sync = s->sync,
                        .reshard = s->reshard};
    program_lower(&p->program, &spec);
    TRY(program_check(&p->program, err));
    memory_plan(&p->memory, &(MemorySpec){&p->program, &p->model, s->positions, scratch, true});
    p->memory.staging = (size_t)s->staged * (size_t)partition_counted(&p->partition) * sizeof(float);
    /* Evaluation runs in the memory of training. */
    for (int a = 0; a < ARENAS; a++)
        if (p->evaluation_memory.arena[a] > p->memory.arena[a])
            p->memory.arena[a] = p->evaluation_memory.arena[a];
    return OK;
}

ErrorCode rank_plan(RankPlan *p, const RankSpec *spec, const Device *d, Error *err) {
    *p = (RankPlan){.spec = *spec};
    TRY(model_build(&p->model, &spec->model, spec->compute, spec->recompute, spec->tokens, spec->loss_rows,
                    err));
    part(p);
    DeviceNeeds needs = model_device_needs(&p->model);
    size_t scratch = d->ops.scratch_bytes(d, &needs);
    program_lower_evaluation(&p->evaluation, &p->partition);
    memory_plan(&p->evaluation_memory,
                &(MemorySpec){&p->evaluation, &p->model, spec->positions, scratch, false});
    return spec->inference ? OK : plan_training(p, scratch, err);
}

void rank_plan_free(RankPlan *p) {
    memory_plan_free(&p->memory);
    memory_plan_free(&p->evaluation_memory);
    program_free(&p->program);
    program_free(&p->evaluation);
    partition_free(&p->partition);
    model_free(&p->model);
    *p = (RankPlan){0};
}

const MemoryPlan *rank_memory(const RankPlan *p) {
    return p->spec.inference ? &p->evaluation_memory : &p->memory;
}

ProgramTraffic rank_traffic(const RankPlan *p) {
    return program_traffic(&p->program, dtype_bytes(p->model.compute), boundary_bytes(&p->model));
}

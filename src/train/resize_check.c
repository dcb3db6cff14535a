/* Whether a run can go on with another number of ranks, before anything stops.
 *
 * The run's RUN/config.yaml stands for the checkpoint that it would save: the resolved configuration of the
 * same attempt. What only data or ranks can tell (fingerprints, kernels, the build) stays unknown, and is
 * compared when the next attempt resumes. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/find.h"
#include "forecast/forecast.h"
#include "plan/fit.h"
#include "train/changes.h"
#include "train/resize.h"
#include "train/setup.h"

/* The order of sums of a configuration on that many ranks. */
static ErrorCode find_sums(const Config *c, int ranks, RunFacts *facts, Error *err) {
    Layout l;
    TRY(layout_build(&l, c, ranks, err));
    setup_sums(c, &l, facts->sums, sizeof facts->sums);
    layout_free(&l);
    return OK;
}

/* In the order of a run (begin.c). */
static ErrorCode settle(Config *c, OptionSet *set, const SavedRun *now, int ranks, Error *err) {
    bool biased = now->config.train.router_bias_speed > 0;
    TRY(setup_shape_alone(c, set, err));
    TRY(setup_keep_compute(c, set, &now->config, err));
    TRY(setup_keep_balance(c, set, now, biased, err));
    return setup_settle(c, set, ranks, now, fit_limit(c), err);
}

static ErrorCode compare(const SavedRun *now, const Config *c, const OptionSet *set, int ranks, Text *changes,
                         Error *err) {
    RunFacts then = {.data = ""};
    Text idle = {0};
    TRY(find_sums(c, ranks, &then, err));
    ErrorCode code = changes_check(now, c, set, &then, changes, &idle, err);
    text_free(&idle);
    return code;
}

/* All ranks are on this machine. What its GPUs have is found when they start. */
static ErrorCode check_memory(const Forecast *f, bool gpu, Error *err) {
    char needs[32], has[32];
    double all = 0, machine = (double)memory_use().machine;
    for (int i = 0; i < f->pipe_ranks; i++) all += f->ranks[i].count * (double)forecast_memory(f, i);
    if (gpu || all <= machine) return OK;
    return error_set(err, ERR_MEMORY, "the plan of %d ranks takes %s, and this machine has %s",
                     f->layout.mesh.world, text_bytes(all, needs), text_bytes(machine, has));
}

static ErrorCode check_plan(const Config *c, int ranks, Error *err) {
    Device d;
    Forecast f;
    const char *kind = device_kind(c->run.device);
    device_describe(&d, kind, "", (int)c->run.threads);
    TRY(forecast_build(&f, c, &d, ranks, (ForecastSpeed){0}, err));
    ErrorCode code = check_memory(&f, strcmp(kind, "cuda") == 0, err);
    forecast_free(&f);
    return code;
}

static ErrorCode check(Config *c, OptionSet *set, SavedRun *now, int from, int ranks, Text *changes,
                       Error *err) {
    Mesh mesh;
    TRY(mesh_build(&mesh, &c->mesh, ranks, err));
    TRY(find_sums(&now->config, from, &now->facts, err));
    TRY(settle(c, set, now, ranks, err));
    TRY(compare(now, c, set, ranks, changes, err));
    return check_plan(c, ranks, err);
}

ErrorCode resize_check(Config *c, OptionSet *set, int from, int ranks, Text *changes, Error *err) {
    SavedRun *now = mem_alloc_array(1, sizeof *now);
    ErrorCode code =
        config_load_either(&now->config, &now->set, c->run.dir, 0, NULL, checkpoint_find_shape, err);
    if (code == OK) code = check(c, set, now, from, ranks, changes, err);
    options_free(&now->set);
    free(now);
    return code;
}

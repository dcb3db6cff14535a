#include "train/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"

static const char WAITING[] = "OMP_WAIT_POLICY";

static bool too_many_threads(const Config *c, int ranks) {
    return ranks > 1 && c->run.threads > 1 && c->run.threads * ranks > device_cpu_cores();
}

void setup_before_ranks(const Config *c, int ranks) {
    if (too_many_threads(c, ranks)) setenv(WAITING, "passive", 0);
}

ErrorCode setup_device(const Config *c, const Comm *comm, Device *d, Error *err) {
    int local = comm ? comm_local_size(comm) : 1, cores = device_cpu_cores(),
        each = cores > local ? cores / local : 1;
    if (too_many_threads(c, local) && !getenv(WAITING) && comm_rank(comm) == 0)
        log_warn("%d ranks of %lld threads on %d cores take each other's time: set run.threads=%d, or "
                 "%s=passive in the environment",
                 local, (long long)c->run.threads, cores, each, WAITING);
    return device_open_cpu(d, device_kind(c->run.device), c->run.threads > 0 ? (int)c->run.threads : each,
                           err);
}

static ErrorCode complete_shape(Config *c, OptionSet *set, Error *err) {
    ModelConfig whole = c->model.shape;
    TRY(model_config_complete(&whole, "model", err));
    return options_derive_part(set, &c->model.shape, &whole, sizeof whole, true,
                               "derived from other keys of model", err);
}

ErrorCode setup_shape(Config *c, OptionSet *set, const Tokenizer *t, Error *err) {
    ModelConfig *m = &c->model.shape;
    int64_t size = tokenizer_vocab_size(t);
    char entries[24];
    snprintf(entries, sizeof entries, "%lld", (long long)size);
    if (m->vocab_size == 0)
        TRY(options_derive(set, "model.vocab_size", entries, "derived from data.tokenizer", err));
    if (m->vocab_size < size)
        return error_set(
            err, ERR_CONFIG,
            "model.vocab_size is %lld but tokenizer %s has %lld entries: set it to 0 or to at least that",
            (long long)m->vocab_size, c->data.tokenizer, (long long)size);
    m->bos_token_id = tokenizer_bos(t);
    m->eos_token_id = tokenizer_eos(t);
    return complete_shape(c, set, err);
}

ErrorCode setup_shape_alone(Config *c, OptionSet *set, Error *err) {
    if (c->model.shape.vocab_size > 0) return model_config_complete(&c->model.shape, "model", err);
    Tokenizer *tokenizer;
    TRY(tokenizer_open(&tokenizer, c->data.tokenizer, err));
    ErrorCode code = setup_shape(c, set, tokenizer, err);
    tokenizer_free(tokenizer);
    return code;
}

StepOptions setup_step(const Config *c, int64_t step) {
    const OptimizerOptions *o = &c->optimizer;
    int64_t total = c->schedule.total_steps > 0 ? c->schedule.total_steps : c->train.steps;
    return (StepOptions){.lr_factor = learning_rate_factor(&c->schedule, total, step),
                         .clip = o->clip,
                         .clip_norm = o->clip_norm};
}

ErrorCode setup_communication(const Config *c, Comm *comm, const Mesh *mesh, Device *d, Error *err) {
    int asked = c->comm.progress_thread;
    bool core_left = device_cpu_cores() > comm_local_size(comm) * d->threads;
    TRY(comm_set_mesh(comm, mesh, err));
    comm_set_device(comm, d);
    bool wanted = asked == PROGRESS_TRUE || (asked == PROGRESS_AUTO && core_left);
    return wanted ? comm_start_progress(comm, err) : OK;
}

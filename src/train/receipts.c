/* Receipts of a run (run.receipts): what a line of observe/receipts.h is made of.
 *
 *     each step       every rank that counts its batches hashes each of its samples
 *     logged steps    samples since the line before are gathered and hashed in the order of their numbers;
 *                     the root of the weights is computed (engine/weights_root.h); rank 0 writes the line
 *
 * Nothing in a line but the number of ranks depends on the mesh where the run does not. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/weights_root.h"
#include "train/run.h"

enum { MOST_PARAMETERS = 4096 }; /* whose roots are in a line */

/* ---- samples ---- */

static void add_sample(ReceiptState *r, uint64_t k, const Batch *b, int64_t at, int64_t context) {
    if (r->count == r->capacity) {
        r->capacity = r->capacity ? 2 * r->capacity : 256;
        r->samples = mem_grow(r->samples, r->capacity * sizeof *r->samples);
    }
    Sha256 *h = sha256_start();
    sha256_add(h, b->inputs + at, (size_t)context * sizeof *b->inputs);
    sha256_add(h, b->targets + at, (size_t)context * sizeof *b->targets);
    r->samples[r->count].k = k;
    sha256_finish(h, r->samples[r->count++].digest);
}

void receipt_add_samples(Trainer *t) {
    const ReadAheadStep *s = t->read_ahead.now;
    int64_t rows = t->read_ahead.sequences, context = t->c->train.context;
    if (!t->c->run.receipts || !partition_counts_batches(&t->rank.partition)) return;
    for (int64_t m = 0; m < s->microbatches; m++)
        for (int64_t row = 0; row < rows; row++)
            add_sample(&t->receipts, (uint64_t)(s->first + m * rows + row), &s->batches[m], row * context,
                       context);
}

static int by_number(const void *a, const void *b) {
    const SamplePrint *x = a, *y = b;
    return (x->k > y->k) - (x->k < y->k);
}

/* On rank 0, in hex. */
static ErrorCode hash_samples(Trainer *t, char out[RECEIPT_HEX], Error *err) {
    ReceiptState *r = &t->receipts;
    char *all;
    size_t bytes;
    ErrorCode code = comm_concatenate(t->comm, r->samples, r->count * sizeof *r->samples, &all, &bytes, err);
    if (code == OK && t->is_rank0) {
        if (bytes) qsort(all, bytes / sizeof *r->samples, sizeof *r->samples, by_number);
        sha256_of(all, bytes, out);
    }
    r->count = 0;
    free(all);
    return code;
}

/* ---- weights ---- */

typedef struct WeightsText {
    char root[RECEIPT_HEX];
    Text parameters, names;
} WeightsText;

static void describe(const WeightsRoot *root, WeightsText *out) {
    sha256_hex(root->digest, out->root);
    for (int i = 0; i < root->count && root->count <= MOST_PARAMETERS; i++) {
        char digits[9];
        hex_of(root->parameters[i].digest, 4, digits);
        text_puts(&out->parameters, digits);
        text_printf(&out->names, "%s%s", i ? "," : "", root->parameters[i].name);
    }
}

static void free_text(WeightsText *w) {
    text_free(&w->parameters);
    text_free(&w->names);
}

/* On rank 0; empty elsewhere. */
static ErrorCode hash_weights(Trainer *t, WeightsText *out, Error *err) {
    WeightsRoot root;
    *out = (WeightsText){.root = ""};
    ErrorCode code = weights_root(t->engine, t->comm, &root, err);
    if (code == OK && t->is_rank0) describe(&root, out);
    weights_root_free(&root);
    return code;
}

/* ---- lines ---- */

/* One NaN is as good as another. */
static void write_bits(double value, char out[17]) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    snprintf(out, 17, "%016" PRIx64, isnan(value) ? UINT64_C(0x7ff8000000000000) : bits);
}

/* Checkpoints state the last line, so that a file that was cut is noticed. */
static ErrorCode add_line(Trainer *t, Receipt *line, Error *err) {
    TRY(receipts_add(&t->receipts.log, line, err));
    memcpy(t->facts.receipt, line->h, sizeof t->facts.receipt);
    return OK;
}

/* Whether another value of the key gives other bits; how work is divided is a fact (sums). */
static bool changes_bits(const Option *o) {
    switch (o->effect) {
    case EFFECT_BITS:
    case EFFECT_CURVE:
    case EFFECT_RUN:
    case EFFECT_START: return true;
    case EFFECT_UNKNOWN:
    case EFFECT_NOTHING:
    case EFFECT_SUMS:
    case EFFECT_CONTENT:
    case EFFECT_MEASURES: return false;
    }
    return false;
}

static ErrorCode write_begin(Trainer *t, const OptionSet *set, const WeightsText *w, Error *err) {
    char config[65];
    const RunFacts *f = &t->facts;
    options_digest(set, changes_bits, config);
    Receipt line = {.begin = true,
                    .step = t->state.step,
                    .first = t->state.samples,
                    .weights = w->root,
                    .parameters = w->parameters.length ? w->parameters.data : NULL,
                    .names = w->names.length ? w->names.data : NULL,
                    .ranks = comm_size(t->comm),
                    .facts = {{"config", config},
                              {"data", saved_contents(f)},
                              {"tokenizer", f->tokenizer},
                              {"mixture", f->mixture},
                              {"base", f->base},
                              {"sums", f->sums},
                              {"kernels", f->kernels},
                              {"build", f->build}}};
    TRY(receipts_open(&t->receipts.log, t->c->run.dir, t->replay ? "" : t->receipts.head, err));
    TRY(add_line(t, &line, err));
    return receipts_sync(&t->receipts.log, err);
}

ErrorCode receipt_begin(Trainer *t, const OptionSet *set, Error *err) {
    WeightsText w;
    if (!t->c->run.receipts) return OK;
    TRY(hash_weights(t, &w, err));
    ErrorCode code = comm_agree(t->comm, t->is_rank0 ? write_begin(t, set, &w, err) : OK, err);
    free_text(&w);
    return code;
}

static ErrorCode write_step(Trainer *t, const StepMetrics *m, const WeightsText *w, const char *batch,
                            Error *err) {
    char loss[17], norm[17];
    write_bits(m->loss, loss);
    write_bits(m->grad_norm, norm);
    Receipt line = {.step = m->step,
                    .first = t->receipts.first,
                    .samples = t->state.samples - t->receipts.first,
                    .batch = batch,
                    .loss = loss,
                    .grad_norm = norm,
                    .weights = w->root,
                    .parameters = w->parameters.length ? w->parameters.data : NULL};
    return add_line(t, &line, err);
}

/* A replay writes lines of the steps that the run has lines of. */
static bool is_due(const Trainer *t, const StepMetrics *m) {
    const Replay *r = t->replay;
    if (!r) return run_logs_step(t, m) || run_saves_now(t);
    for (size_t i = 0; i < r->count; i++)
        if (r->steps[i] == m->step) return true;
    return false;
}

ErrorCode receipt_step(Trainer *t, const StepMetrics *m, Error *err) {
    WeightsText w;
    char batch[RECEIPT_HEX] = "";
    if (!t->c->run.receipts || !is_due(t, m)) return OK;
    double start = clock_seconds();
    TRY(hash_samples(t, batch, err));
    TRY(hash_weights(t, &w, err));
    ErrorCode code = t->is_rank0 ? write_step(t, m, &w, batch, err) : OK;
    t->receipts.first = t->state.samples;
    t->receipts.seconds += clock_seconds() - start;
    free_text(&w);
    return code;
}

ErrorCode receipt_sync(Trainer *t, Error *err) {
    return t->c->run.receipts && t->is_rank0 ? receipts_sync(&t->receipts.log, err) : OK;
}

void receipt_report(const Trainer *t) {
    if (t->c->run.receipts && t->is_rank0)
        log_info("receipts took %.3f s; the head of their chain is %s", t->receipts.seconds,
                 t->receipts.log.h);
}

void receipt_close(Trainer *t) {
    if (t->is_rank0) receipts_close(&t->receipts.log);
    free(t->receipts.samples);
    t->receipts.samples = NULL;
}

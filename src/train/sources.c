#include "train/sources.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static size_t sums_bytes(size_t count) { return sizeof(SourceSums) + count * sizeof(SourceSum); }

static void begin(Sources *s) {
    memset(s->sums, 0, sums_bytes(s->count));
    s->sums->count = (int64_t)s->count;
}

void sources_open(Sources *s, const RankPlan *p, const Dataset *d, const Layout *l) {
    *s = (Sources){.count = (size_t)p->spec.sources, .data = d};
    if (s->count == 0) return;
    s->counts = partition_counts_batches(&p->partition);
    s->rows = mem_alloc_array((size_t)(l->microbatches * l->sequences), sizeof *s->rows);
    s->sums = mem_alloc(sums_bytes(s->count));
    begin(s);
}

void sources_close(Sources *s) {
    free(s->rows);
    free(s->sums);
    *s = (Sources){0};
}

const int32_t *sources_rows(Sources *s, const ReadAheadStep *step, int64_t sequences) {
    if (s->count == 0) return NULL;
    for (int64_t i = 0; i < step->microbatches * sequences; i++)
        s->rows[i] = (int32_t)dataset_locate(s->data, (uint64_t)(step->first + i)).source;
    return s->rows;
}

static int64_t valid_in(const Batch *b, int64_t row, int64_t sequences) {
    int64_t context = b->tokens / sequences, valid = 0;
    for (int64_t t = row * context; t < (row + 1) * context; t++) valid += b->targets[t] >= 0;
    return valid;
}

/* The ranks of a pipeline see the same batches: the first one counts their targets, the last one has the
 * losses. */
void sources_add(Sources *s, const ReadAheadStep *step, int64_t sequences, const Engine *e) {
    const LossSum *found = s->count > 0 ? engine_source_losses(e) : NULL;
    for (size_t i = 0; i < s->count; i++) {
        LossSum *to = &s->sums->of[i].loss;
        exact_merge(&to->sum, &found[i].sum);
        exact_normalise(&to->sum);
        to->nonfinite += found[i].nonfinite;
    }
    for (int64_t i = 0; s->count > 0 && s->counts && i < step->microbatches * sequences; i++) {
        SourceSum *to = &s->sums->of[s->rows[i]];
        to->targets += valid_in(&step->batches[i / sequences], i % sequences, sequences);
        to->samples++;
    }
}

static void combine(void *into, const void *from) {
    SourceSums *a = into;
    const SourceSums *b = from;
    for (int64_t i = 0; i < b->count; i++) {
        exact_merge(&a->of[i].loss.sum, &b->of[i].loss.sum);
        exact_normalise(&a->of[i].loss.sum);
        a->of[i].loss.nonfinite += b->of[i].loss.nonfinite;
        a->of[i].targets += b->of[i].targets;
        a->of[i].samples += b->of[i].samples;
    }
}

/* Keeps the end of a path, which is more specific than its beginning. Cuts before a whole UTF-8 character. */
static void cut_name(const char *name, size_t size, char *out) {
    size_t length = strlen(name);
    const char *from = length < size ? name : name + length - (size - 4);
    while (from > name && ((unsigned char)*from & 0xc0) == 0x80) from++;
    snprintf(out, size, "%s%s", from > name ? "..." : "", from);
}

/* The name identifies a source's figures. If another source would have the same, its index is appended. */
static void put_name(const Dataset *d, size_t source, char out[METRICS_NAME]) {
    char other[METRICS_NAME], suffix[24];
    size_t same = 0;
    cut_name(dataset_source_name(d, source), METRICS_NAME, out);
    for (size_t i = 0; i < dataset_sources(d); i++) {
        cut_name(dataset_source_name(d, i), sizeof other, other);
        same += strcmp(other, out) == 0;
    }
    if (same < 2) return;
    int length = snprintf(suffix, sizeof suffix, "#%zu", source);
    cut_name(dataset_source_name(d, source), METRICS_NAME - (size_t)length, out);
    strcat(out, suffix);
}

ErrorCode sources_take(Sources *s, Comm *comm, int64_t step, int64_t samples, SourceMetrics *out,
                       Error *err) {
    double *epochs = mem_alloc_array(s->count, sizeof *epochs), wall = clock_wall();
    ErrorCode code = comm_combine(comm, s->sums, sums_bytes(s->count), combine, err);
    dataset_epochs(s->data, (uint64_t)samples, epochs);
    for (size_t i = 0; code == OK && i < s->count; i++) {
        const SourceSum *sum = &s->sums->of[i];
        bool known = sum->targets > 0 && sum->loss.nonfinite == 0;
        out[i] =
            (SourceMetrics){.step = step,
                            .wall = wall,
                            .loss = known ? exact_value(&sum->loss.sum) / (double)sum->targets : (double)NAN,
                            .targets = sum->targets,
                            .tokens = sum->samples * dataset_context(s->data),
                            .epoch = epochs[i]};
        put_name(s->data, i, out[i].name);
    }
    free(epochs);
    begin(s);
    return code;
}

/* A table lists the metrics and whether higher is better. The name of each is composed and compared with the
 * configured one, so there is one spelling. */
#include "train/best.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

typedef struct Figure {
    const char *name;
    size_t offset; /* of a double, in ValidationMetrics or TaskMetrics */
    bool more;     /* higher is better */
} Figure;

#define OF_VALIDATION(name) \
    { #name, offsetof(ValidationMetrics, name), false }
#define OF_TASK(name, more) \
    { #name, offsetof(TaskMetrics, figures.name), more }
static const Figure validation_figures[] = {OF_VALIDATION(loss), OF_VALIDATION(perplexity),
                                            OF_VALIDATION(bits_per_byte)};
static const Figure task_figures_of[] = {
    OF_TASK(acc, true),           OF_TASK(acc_norm, true),         OF_TASK(gold_bits_per_byte, false),
    OF_TASK(perplexity, false),   OF_TASK(word_perplexity, false), OF_TASK(byte_perplexity, false),
    OF_TASK(bits_per_byte, false)};
enum {
    VALIDATION_FIGURES = sizeof validation_figures / sizeof *validation_figures,
    TASK_FIGURES = sizeof task_figures_of / sizeof *task_figures_of
};

/* "section/name/figure", or "section/figure" if the name is empty. */
static bool is_called(const char *asked, const char *section, const char *name, const char *figure) {
    char own[BEST_FIGURE];
    snprintf(own, sizeof own, "%s/%s%s%s", section, name, *name ? "/" : "", figure);
    return strcmp(own, asked) == 0;
}

static const Figure *find(const char *asked, const char *section, const char *name, const Figure *figures,
                          int count) {
    for (int i = 0; i < count; i++)
        if (is_called(asked, section, name, figures[i].name)) return &figures[i];
    return NULL;
}

/* Looks only at the part after the last slash. Metrics of tasks are listed with their direction; all others
 * are better when lower. */
static bool higher_is_better(const char *asked) {
    const char *figure = strrchr(asked, '/');
    for (int i = 0; figure && i < TASK_FIGURES; i++)
        if (strcmp(figure + 1, task_figures_of[i].name) == 0) return task_figures_of[i].more;
    return false;
}

/* ---- what will be measured ---- */

static bool in_sets(const char *asked, const Dataset *d) {
    bool found = dataset_validation_samples(d) > 0 &&
                 find(asked, "validation", "", validation_figures, VALIDATION_FIGURES);
    for (size_t i = 0; i < dataset_validation_sets(d); i++)
        found |= find(asked, "validation", dataset_validation_set(d, i).name, validation_figures,
                      VALIDATION_FIGURES) != NULL;
    return found;
}

/* Lists the loss of each set and the main metric of each task: enough to see how names are formed. */
static void write_known(const Dataset *d, const Tasks *t, Text *out) {
    if (dataset_validation_samples(d) > 0) text_puts(out, "validation/loss");
    for (size_t i = 0; i < dataset_validation_sets(d); i++) {
        const char *name = dataset_validation_set(d, i).name;
        if (*name) text_printf(out, ", validation/%s/loss", name);
    }
    for (size_t i = 0; i < t->count; i++) {
        const TaskFormat *f = t->items[i]->format;
        const char *figure = f->normalised ? "acc_norm" : f->kind == TASK_TEXT ? "bits_per_byte" : "acc";
        text_printf(out, "%stask/%s/%s", out->length ? ", " : "", t->items[i]->name, figure);
    }
}

/* Not every task has every metric. One that it has is finite even for empty scores. */
static bool in_task(const char *asked, const Task *t) {
    const Figure *f = find(asked, "task", t->name, task_figures_of, TASK_FIGURES);
    TaskMetrics m;
    double value;
    if (!f) return false;
    TaskScore *slots = mem_alloc_array(t->slots, sizeof *slots);
    task_figures(t, slots, &m.figures);
    free(slots);
    memcpy(&value, (const char *)&m + f->offset, sizeof value);
    return isfinite(value);
}

ErrorCode best_open(Best *b, const char *figure, const Dataset *d, const Tasks *t, Error *err) {
    Text known = {0};
    char shown[BEST_FIGURE];
    *b = (Best){.figure = figure, .step = -1};
    bool found = !*figure || in_sets(figure, d);
    for (size_t i = 0; i < t->count; i++) found |= in_task(figure, t->items[i]);
    if (found && strlen(figure) < BEST_FIGURE) return OK;
    write_known(d, t, &known);
    error_escape(shown, sizeof shown, figure, strlen(figure));
    /* best_check has refused a run that measures nothing. */
    error_set(err, ERR_CONFIG, "checkpoint.keep_best: \"%s\" is not measured: expected one of %s", shown,
              known.data ? known.data : "none");
    text_free(&known);
    return ERR_CONFIG;
}

static bool is_figure(const char *name, const Figure *figures, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(figures[i].name, name) == 0) return true;
    return false;
}

ErrorCode best_check(const Config *c, Error *err) {
    const char *asked = c->checkpoint.keep_best, *figure = strrchr(asked, '/');
    bool task = strncmp(asked, "task/", 5) == 0, set = strncmp(asked, "validation/", 11) == 0;
    bool measured = task ? c->evaluation.tasks.count > 0
                         : c->data.validation_sources.count > 0 || c->data.validation_fraction > 0;
    bool known = task ? is_figure(figure + 1, task_figures_of, TASK_FIGURES)
                      : set && is_figure(figure + 1, validation_figures, VALIDATION_FIGURES);
    char shown[BEST_FIGURE];
    if (!*asked || (known && measured)) return OK;
    return error_set(
        err, ERR_CONFIG,
        "checkpoint.keep_best: \"%s\" is not measured: expected validation/loss, perplexity or "
        "bits_per_byte, with data.validation or data.validation_fraction, or a figure of a task, such as "
        "task/NAME/acc, with evaluation.tasks",
        error_escape(shown, sizeof shown, asked, strlen(asked)));
}

/* ---- what was measured ---- */

static void take(Best *b, const Figure *f, const void *record, int64_t step) {
    if (!f) return;
    memcpy(&b->value, (const char *)record + f->offset, sizeof b->value);
    b->step = step;
}

/* Only what is measured at a checkpoint's step counts, so the two intervals must meet. */
void best_remark(const Best *b, const Config *c) {
    bool task = strncmp(b->figure, "task/", 5) == 0;
    long long every = task ? c->evaluation.every : c->validation.every, saves = c->checkpoint.every;
    const char *key = task ? "evaluation.every" : "validation.every";
    if (!*b->figure) return;
    if (saves > 0 && (every == 0 || saves % every != 0))
        log_warn(
            "checkpoint.keep_best: checkpoints are saved every %lld steps, and %s is %lld: only those at "
            "whose step it is measured can be the best",
            saves, key, every);
}

void best_validation(Best *b, const ValidationMetrics *v) {
    take(b, find(b->figure, "validation", v->name, validation_figures, VALIDATION_FIGURES), v, v->step);
}

void best_task(Best *b, const TaskMetrics *m) {
    take(b, find(b->figure, "task", m->name, task_figures_of, TASK_FIGURES), m, m->step);
}

bool best_take(const Best *b, int64_t step, BestCheckpoint *best) {
    if (!*b->figure || b->step != step || !isfinite(b->value)) return false;
    bool better = higher_is_better(b->figure) ? b->value > best->value : b->value < best->value;
    if (best->step > 0 && !better) return false;
    best->step = step;
    best->value = b->value;
    return true;
}

/* A tiny trainer and its checkpoints: one number fills all weights and moments, so that a checkpoint shows
 * whether it is entirely from one save, and from which. */
#ifndef WEFT_TESTS_SAVED_NUMBERS_H
#define WEFT_TESTS_SAVED_NUMBERS_H

#include "support/files.h"

#include "checkpoint/checkpoint.h"

#define COUNT 4
#define ELEMENTS 24

/* Four weights, two moments each, filled by a number. */
typedef struct Trainer {
    TensorDesc model_tensors[COUNT], moment_tensors[2 * COUNT];
    char names[3 * COUNT][32];
    float values[3 * COUNT][ELEMENTS];
    char state[64];
} Trainer;

typedef struct FirstTensor {
    Trainer *trainer;
    int first;
} FirstTensor;

static ErrorCode fetch(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    const FirstTensor *p = ctx;
    (void)err;
    memcpy(host, (char *)p->trainer->values[p->first + index] + offset, bytes);
    return OK;
}

static ErrorCode store(void *ctx, int index, size_t offset, size_t bytes, const void *host, Error *err) {
    const FirstTensor *p = ctx;
    (void)err;
    memcpy((char *)p->trainer->values[p->first + index] + offset, host, bytes);
    return OK;
}

static void fill_values(Trainer *t, int number) {
    for (int i = 0; i < 3 * COUNT; i++)
        for (int k = 0; k < ELEMENTS; k++)
            t->values[i][k] = (float)number + 0.01f * (float)(i * ELEMENTS + k);
    snprintf(t->state, sizeof t->state, "{\"number\": %d}\n", number);
}

static void fill(Trainer *t, int number) {
    *t = (Trainer){0};
    for (int i = 0; i < 3 * COUNT; i++) {
        static const char *const kinds[] = {"w", "m.w", "v.w"};
        snprintf(t->names[i], sizeof t->names[i], "%s%d", kinds[i / COUNT], i % COUNT);
        TensorDesc d = {t->names[i], SAFE_F32, SAFE_F32, 2, {4, 6}};
        if (i < COUNT)
            t->model_tensors[i] = d;
        else
            t->moment_tensors[i - COUNT] = d;
    }
    fill_values(t, number);
}

typedef struct Lists {
    FirstTensor lists[2];
    TensorList model, optimizer;
} Lists;

static void make_lists(Lists *l, Trainer *t) {
    l->lists[0] = (FirstTensor){t, 0};
    l->lists[1] = (FirstTensor){t, COUNT};
    l->model = (TensorList){COUNT, t->model_tensors, &l->lists[0], fetch, store, 0, NULL};
    l->optimizer = (TensorList){2 * COUNT, t->moment_tensors, &l->lists[1], fetch, store, 0, NULL};
}

static const CheckpointFile saved_files[] = {{"config.json", "{}\n", 3},
                                             {"tokenizer.json", "{\"version\": \"1.0\"}\n", 19}};

static CheckpointSave save_of(const Lists *l, const Trainer *t, int64_t step) {
    return (CheckpointSave){.step = step,
                            .model = &l->model,
                            .optimizer = &l->optimizer,
                            .state = t->state,
                            .files = saved_files,
                            .file_count = 2};
}

static ErrorCode save_number(const FileOps *ops, const char *dir, int64_t step, int number, Error *err) {
    Trainer t;
    Lists l;
    fill(&t, number);
    make_lists(&l, &t);
    CheckpointSave save = save_of(&l, &t, step);
    return checkpoint_save(ops, dir, &save, NULL, err);
}

static inline void must_save(const char *dir, int64_t step, int number) {
    Error err = {.message = ""};
    if (save_number(NULL, dir, step, number, &err) != OK) fail_msg("%s", err.message);
}

static void check_values(const Checkpoint *c, int number) {
    Trainer expect, t;
    Lists l;
    Error err = {.message = ""};
    fill(&expect, number);
    fill(&t, -1);
    make_lists(&l, &t);
    if (modelfiles_load(&c->model, &l.model, &err) != OK) fail_msg("%s", err.message);
    if (modelfiles_load(&c->optimizer, &l.optimizer, &err) != OK) fail_msg("%s", err.message);
    assert_memory_equal(t.values, expect.values, sizeof t.values);
    assert_string_equal(c->state, expect.state);
}

/* The number in the newest good checkpoint; -1 if there is none. All of the checkpoint must be from that
 * number. */
static int number_in(const char *dir, int64_t *step) {
    Checkpoint c;
    Error err;
    int number = -1;
    if (checkpoint_open(&c, dir, true, &err) != OK) return -1;
    assert_int_equal(sscanf(c.state, "{\"number\": %d}", &number), 1);
    check_values(&c, number);
    if (step) *step = c.step;
    checkpoint_close(&c);
    return number;
}

#endif

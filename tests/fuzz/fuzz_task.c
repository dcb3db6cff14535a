/* Fuzzes a file of documents, whose first byte selects the task: requests stay within the tokens and the
 * context, each choice has one, and metrics of whatever was accepted are numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/task.h"
#include "fuzz.h"

/* A context exists once for each of up to 16 choices, as text and as tokens of four bytes; lists double. */
enum { PER_BYTE = 1024, FIXED = FUZZ_TEXT_READER, CONTEXT = 48 };

static void check_requests(const Task *t) {
    size_t at = 0, slot = 0;
    for (size_t i = 0; i < t->requests; i++) {
        const TaskRequest *r = &t->request[i];
        REQUIRE(r->at == at && r->first >= 1 && r->first < r->count && r->count <= CONTEXT + 1);
        REQUIRE(r->slot < t->slots && r->slot >= slot);
        at += (size_t)r->count;
        slot = r->slot;
    }
    REQUIRE(at == t->tokens.count);
    for (size_t i = 0; i < t->documents; i++) {
        const TaskDocument *d = &t->document[i];
        REQUIRE(d->gold >= 0 && d->gold < d->count && d->first + (size_t)d->count <= t->slots);
    }
}

/* Zeros are the scores of a model that is certain of everything. */
static void check_figures(const Task *t) {
    TaskScore *scores = calloc(t->requests + 1, sizeof *scores), *slots = calloc(t->slots + 1, sizeof *slots);
    TaskFigures f;
    task_slots(t, scores, slots);
    task_figures(t, slots, &f);
    REQUIRE(f.documents == (int64_t)t->documents && f.nonfinite == 0);
    REQUIRE(t->format->kind == TASK_TEXT || (f.acc >= 0 && f.acc <= 1));
    free(scores);
    free(slots);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tokenizer *tokenizer;
    Error err = {0};
    Task *t;
    int formats = 0;
    if (!tokenizer) REQUIRE(tokenizer_open(&tokenizer, "bytes", &err) == OK);
    if (size == 0) return 0;
    while (task_formats[formats].name) formats++;
    const char *path = fuzz_file("documents.jsonl", data + 1, size - 1);
    TaskSource source = {.path = (char *)(uintptr_t)path,
                         .task = (char *)(uintptr_t)task_formats[data[0] % formats].name};
    fuzz_memory_start();
    bool good = fuzz_ok(task_open(&t, &source, NULL, tokenizer, CONTEXT, data[0] & 128, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    if (!good) return 0;
    check_requests(t);
    check_figures(t);
    task_close(t);
    return 0;
}

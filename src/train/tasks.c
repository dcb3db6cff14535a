/* Every rank reads every file and makes the same requests: the files are small, and sending requests around
 * would move more data. The requests are compared before any is evaluated, since ranks that take turns at
 * different lists would wait for each other forever. */
#include "train/tasks.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/name.h"
#include "engine/score.h"
#include "observe/metrics.h"
#include "train/agree.h"

/* The name identifies the task's metrics: in records, tags and keys. */
static ErrorCode check_name(const TaskSource *sources, size_t own, const char *name, Error *err) {
    char shown[METRICS_NAME + 16];
    if (!*name || !name_is_plain(name, METRICS_NAME))
        return error_set(
            err, ERR_CONFIG,
            "evaluation.tasks: %s: the name \"%s\": expected 1 to %d letters, digits and ._-; give it "
            "one with name:",
            sources[own].path, error_escape(shown, sizeof shown, name, strlen(name)), METRICS_NAME - 1);
    for (size_t i = 0; i < own; i++) {
        char *other = task_name(&sources[i]);
        bool same = strcmp(other, name) == 0;
        free(other);
        if (same)
            return error_set(
                err, ERR_CONFIG,
                "evaluation.tasks: two tasks are called %s: give one another name with name:", name);
    }
    return OK;
}

ErrorCode tasks_check(const EvaluationOptions *o, Error *err) {
    const TaskSource *sources = (const TaskSource *)(const void *)o->tasks.items;
    ErrorCode code = OK;
    for (size_t i = 0; code == OK && i < o->tasks.count; i++) {
        char *name = task_name(&sources[i]);
        code = task_check(&sources[i], err);
        if (code == OK) code = check_name(sources, i, name, err);
        free(name);
    }
    return code;
}

ErrorCode tasks_open(Tasks *t, const Config *c, const Tokenizer *tokenizer, int64_t context, Error *err) {
    const EvaluationOptions *o = &c->evaluation;
    const TaskSource *sources = (const TaskSource *)(const void *)o->tasks.items;
    InputCache cache = {c->data.cache_dir, data_remote_limit(&c->data)};
    *t = (Tasks){.items = mem_alloc_array(o->tasks.count + 1, sizeof *t->items)};
    TRY(tasks_check(o, err));
    for (size_t i = 0; i < o->tasks.count; i++) {
        TRY(task_open(&t->items[i], &sources[i], &cache, tokenizer, context, o->add_bos, err));
        t->count++;
    }
    return OK;
}

void tasks_close(Tasks *t) {
    for (size_t i = 0; i < t->count; i++) task_close(t->items[i]);
    free(t->items);
    *t = (Tasks){0};
}

ErrorCode tasks_measure(Engine *e, const Task *t, TaskScore *slots, TaskFigures *out, Error *err) {
    TaskScore *scores = mem_alloc_array(t->requests, sizeof *scores), *own = slots;
    if (!own) own = mem_alloc_array(t->slots, sizeof *own);
    ErrorCode code = score_task(e, t, scores, err);
    if (code == OK) {
        task_slots(t, scores, own);
        task_figures(t, own, out);
    }
    if (!slots) free(own);
    free(scores);
    return code;
}

/* Files are compared by name, whatever their order; the file of a task may have a different path on each
 * rank. */
ErrorCode tasks_agree(const Tasks *t, Comm *comm, Error *err) {
    static const char advice[] = "give all ranks the same files of tasks";
    Text files = {0}, order = {0};
    for (size_t i = 0; i < t->count; i++) {
        text_printf(&files, "%s the task %s\n", t->items[i]->print, t->items[i]->name);
        text_printf(&order, "%s%s", i ? ", " : "", t->items[i]->name);
    }
    ErrorCode code = agree_on_files(comm, &files, advice, err);
    if (code == OK)
        code = agree_on_file(comm, "the order of tasks", order.length ? order.data : "", advice, err);
    text_free(&files);
    text_free(&order);
    return code;
}

void tasks_warn(const Tasks *t) {
    char invalid[32], all[32];
    for (size_t i = 0; i < t->count; i++) {
        const Task *task = t->items[i];
        if (task->invalid_bytes > 0)
            log_warn("task %s: %s of %s bytes are not UTF-8; they were taken as they are", task->name,
                     text_count((int64_t)task->invalid_bytes, invalid),
                     text_count((int64_t)task->text_bytes, all));
        if (task->form)
            log_warn("task %s: its text is %s: extract its text first if only that is meant", task->name,
                     task->form->name);
    }
}

void tasks_describe(const Tasks *t, int64_t context, Text *out) {
    for (size_t i = 0; i < t->count; i++) {
        const Task *task = t->items[i];
        char documents[32], requests[32], truncated[32];
        text_printf(out, "task %s (%s): %s document%s, %s request%s", task->name, task->format->name,
                    text_count((int64_t)task->documents, documents), task->documents == 1 ? "" : "s",
                    text_count((int64_t)task->requests, requests), task->requests == 1 ? "" : "s");
        if (task->truncated)
            text_printf(out, ", %s of them cut at the left to the context of %lld tokens",
                        text_count(task->truncated, truncated), (long long)context);
        text_puts(out, "\n");
    }
}

#include "train/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find.h"
#include "checkpoint/manifest.h"
#include "checkpoint/modelfiles.h"
#include "data/chat.h"
#include "data/fingerprint.h"
#include "tokenizer/tokenizer_config.h"

typedef struct Inputs {
    JournalFile *files;
    size_t count, capacity;
} Inputs;

static JournalFile *add(Inputs *in, const char *kind, const char *path) {
    if (in->count == in->capacity) {
        in->capacity = in->capacity * 2 + 16;
        in->files = mem_grow(in->files, in->capacity * sizeof *in->files);
    }
    JournalFile *f = &in->files[in->count++];
    *f = (JournalFile){.kind = kind, .path = mem_strdup(path), .files = 1};
    return f;
}

static void inputs_free(Inputs *in) {
    for (size_t i = 0; i < in->count; i++) free((char *)(uintptr_t)in->files[i].path);
    free(in->files);
}

/* A file that is not regular, or no longer exists, is listed without a digest: the run already has its
 * contents. */
static void add_file(Inputs *in, const char *kind, const char *path) {
    Fingerprint print = {0};
    JournalFile *f = add(in, kind, path);
    if (fingerprint_file(path, &print, NULL) != OK) return;
    f->bytes = print.stamp.size;
    memcpy(f->sha256, print.sha256, sizeof f->sha256);
}

/* For optional files. Frees the path, which may be NULL. */
static void add_if_there(Inputs *in, const char *kind, char *path) {
    if (path && file_exists(path)) add_file(in, kind, path);
    free(path);
}

static void add_sources(Inputs *in, const Dataset *d) {
    for (size_t i = 0; i < dataset_inputs(d); i++) {
        DatasetInput source = dataset_input(d, i);
        JournalFile *f = add(in, source.trains ? "source" : "validation", source.path);
        f->files = (int64_t)source.files;
        f->bytes = source.bytes;
        memcpy(f->sha256, source.sha256, sizeof f->sha256);
    }
}

static void add_tokenizer(Inputs *in, const char *spec) {
    if (strcmp(spec, "bytes") == 0) return;
    char *path = file_is_dir(spec) ? path_join(spec, "tokenizer.json") : mem_strdup(spec);
    add_if_there(in, "tokenizer", path);
    add_if_there(in, "tokenizer", tokenizer_config_path(spec));
}

/* If the template is in tokenizer_config.json, that file is listed already. */
static void add_template(Inputs *in, const DataConfig *c) {
    ChatOptions options = data_chat_options(c);
    Text text = {0};
    char *where = NULL;
    if (!data_has_conversations(c)) return;
    if (chat_read_template(&options, &text, &where, NULL) == OK) add_if_there(in, "chat_template", where);
    text_free(&text);
}

static void add_tasks(Inputs *in, const ObjectList *tasks) {
    const TaskSource *t = (const TaskSource *)(const void *)tasks->items;
    for (size_t i = 0; i < tasks->count; i++) {
        add_file(in, "task", t[i].path);
        if (t[i].examples && t[i].examples[0]) add_file(in, "examples", t[i].examples);
    }
}

static void add_weights(Inputs *in, const char *dir, const char *sample) {
    ModelFiles files;
    if (!sample[0] || modelfiles_open(&files, dir, NULL) != OK) return;
    JournalFile *f = add(in, "weights", dir);
    f->files = (int64_t)files.file_count;
    for (size_t i = 0; i < files.count; i++)
        f->bytes += (int64_t)(files.tensors[i].tensor->end - files.tensors[i].tensor->begin);
    memcpy(f->sha256, sample, sizeof f->sha256);
    f->sampled = true;
    modelfiles_close(&files);
}

/* A resumed run may do without the directory of model.init. */
static void add_init(Inputs *in, const InputsFrom *from) {
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json"};
    char *dir = NULL;
    const char *init = model_options_init(&from->c->model);
    if (!init[0] || checkpoint_find_shape(init, from->c->data.cache_dir, &dir, NULL) != OK) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        add_if_there(in, "model.init", path_join(dir, names[i]));
    add_weights(in, dir, from->init);
    free(dir);
}

/* Lists the manifest, which has the checksums of all files. */
static void add_checkpoint(Inputs *in, const InputsFrom *from) {
    char name[64], *dir = checkpoint_directory(from->c->run.dir);
    snprintf(name, sizeof name, "step-%08lld/" MANIFEST_FILE, (long long)from->step);
    if (from->step > 0) add_if_there(in, "checkpoint", path_join(dir, name));
    free(dir);
}

ErrorCode inputs_record(const InputsFrom *from, Journal *j, Error *err) {
    const Config *c = from->c;
    Inputs in = {0};
    add_file(&in, "config", from->config);
    if (c->model.config[0]) add_file(&in, "model.config", c->model.config);
    add_sources(&in, from->data);
    add_tokenizer(&in, c->data.tokenizer);
    add_template(&in, &c->data);
    add_tasks(&in, &c->evaluation.tasks);
    add_init(&in, from);
    add_checkpoint(&in, from);
    ErrorCode code = journal_add_files(j, from->step, in.files, in.count, err);
    inputs_free(&in);
    return code;
}

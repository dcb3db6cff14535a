/* Makes a model directory from others. Tensors are streamed in chunks, never loaded as a whole, so a model of
 * any size is exported in a few MiB of memory.
 *
 *  E1. The directory gets its name only when it is complete and on disk; until then it has a temporary name
 *      next to it.
 *  E2. All sources have the same tensors with the same shapes, which is checked before anything is written.
 *
 *     sources --> describe: one list of tensors --> DIR.PID.partial, filled and synced --> rename --> DIR
 *                 fetch, a chunk at a time: each source's chunk, their mean, fp32 --> the file's dtype */
#include "checkpoint/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/find.h"
#include "checkpoint/modelfiles.h"
#include "model/config.h"

#define EXACT "master." /* prefix of exact weights in the optimizer's file */

typedef struct Source {
    ModelFiles model, exact; /* exact: empty if there is no optimizer's file */
} Source;

/* The adapter's update of a matrix in its stored orientation, s left right, for the tensor that is being
 * written. */
typedef struct Factors {
    int segment;  /* index of this tensor; -1: none yet */
    bool adapted; /* it has an adapter */
    int64_t cols; /* of the matrix */
    float *left;  /* [rows, r] */
    float *right; /* [r, cols] */
} Factors;

typedef struct Export {
    const AdapterDir *adapter; /* merged into the only source; NULL: none */
    Factors factors;
    Source *sources; /* [count] */
    size_t count;
    TensorDesc *tensors; /* as in the first source */
    TensorList list;
} Export;

/* ---- reading ---- */

/* The average is already exact. */
static ErrorCode open_average(Source *s, const char *dir, Error *err) {
    char *path = path_join(dir, CHECKPOINT_AVERAGE);
    ErrorCode code =
        file_exists(path)
            ? modelfiles_open(&s->model, path, err)
            : error_set(err, ERR_NOINPUT,
                        "%s: holds no moving average (%s): a run keeps one where optimizer.ema is "
                        "more than 0",
                        dir, CHECKPOINT_AVERAGE);
    free(path);
    return code;
}

/* Only a checkpoint has an optimizer's file, which holds weights only if the model file is rounded. For the
 * base of an adapter the model file is used, since its run started from that. */
static ErrorCode open_source(Source *s, const char *dir, bool average, bool base, Error *err) {
    if (adapter_is(dir))
        return error_set(err, ERR_DATA,
                         "%s is an adapter, not a model: weft merge makes one of it and its base", dir);
    if (!base) checkpoint_warn_balance(dir);
    if (average) return open_average(s, dir, err);
    char *path = path_join(dir, CHECKPOINT_OPTIMIZER);
    ErrorCode code = modelfiles_open(&s->model, dir, err);
    if (code == OK && !base && file_exists(path)) code = modelfiles_open(&s->exact, path, err);
    free(path);
    return code;
}

/* ---- adapters ---- */

/* One factor of an adapter, fp32, [rows, cols] or transposed; the caller frees it. `matrix` is its name in
 * the base. */
static ErrorCode read_part_of(const AdapterDir *a, const char *matrix, char which, bool transpose,
                              float **out, Error *err) {
    Text name = {0};
    size_t stem = strlen(matrix) - strlen(".weight");
    text_printf(&name, "%s.%.*s.lora_%c.weight", ADAPTER_PREFIX, (int)stem, matrix, which);
    const ModelTensor *t = modelfiles_find(&a->files, name.data);
    text_free(&name);
    CHECK(t != NULL); /* adapter_open has checked this */
    size_t rows = (size_t)t->tensor->shape[0], cols = (size_t)t->tensor->shape[1], n = rows * cols;
    size_t bytes = n * (size_t)safe_type_bits(t->tensor->type) / 8;
    void *raw = mem_alloc(bytes + 1);
    float *values = mem_alloc_array(n, sizeof *values);
    ErrorCode code = modelfiles_read(&a->files, t, 0, raw, bytes, err);
    if (code == OK) convert_to_f32(t->tensor->type, raw, values, n);
    free(raw);
    *out = values;
    if (!transpose || code != OK) return code;
    *out = mem_alloc_array(n, sizeof *values);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) (*out)[j * rows + i] = values[i * cols + j];
    free(values);
    return OK;
}

/* Prefix that GPT-2's files omit from their names (modelvalues.c). */
static const char inner[] = "transformer.";
enum { INNER = sizeof inner - 1 };

/* The adapter's name of a file's tensor; NULL if it is not adapted. */
static const char *adapted_name(const AdapterDir *a, const char *tensor) {
    for (int i = 0; i < a->count; i++) {
        const char *name = a->names[i];
        if (strcmp(name, tensor) == 0) return name;
        if (strncmp(name, inner, INNER) == 0 && strcmp(name + INNER, tensor) == 0) return name;
    }
    return NULL;
}

static void drop_factors(Factors *f) {
    free(f->left);
    free(f->right);
    *f = (Factors){.segment = -1};
}

/* For the tensor that is being written: one at a time. */
static ErrorCode take_factors(Export *e, int segment, Error *err) {
    const AdapterDir *a = e->adapter;
    Factors *f = &e->factors;
    const char *matrix = adapted_name(a, e->tensors[segment].name);
    if (f->segment == segment) return OK;
    drop_factors(f);
    f->cols = e->tensors[segment].shape[1];
    f->adapted = matrix != NULL;
    if (matrix) {
        TRY(read_part_of(a, matrix, a->transposed ? 'A' : 'B', a->transposed, &f->left, err));
        TRY(read_part_of(a, matrix, a->transposed ? 'B' : 'A', a->transposed, &f->right, err));
    }
    f->segment = segment;
    return OK;
}

/* Row by row: `sum` holds elements first .. first+count-1 of the matrix. */
static void add_factors(const Export *e, size_t first, size_t count, double *sum) {
    const Factors *f = &e->factors;
    size_t cols = (size_t)f->cols, rank = (size_t)e->adapter->config.rank;
    double scale = adapter_scale(&e->adapter->config);
    for (size_t at = 0; at < count;) {
        size_t row = (first + at) / cols, column = (first + at) % cols;
        size_t n = cols - column < count - at ? cols - column : count - at;
        for (size_t k = 0; k < rank; k++) {
            double factor = scale * (double)f->left[row * rank + k];
            const float *right = f->right + k * cols + column;
            for (size_t j = 0; j < n; j++) sum[at + j] += factor * (double)right[j];
        }
        at += n;
    }
}

/* ---- values ---- */

/* A tensor that is named like exact weights but has another shape is ignored. */
static bool same_shape(const SafeTensor *t, const TensorDesc *d) {
    if (t->rank != d->rank || !convert_is_float(t->type)) return false;
    for (int i = 0; i < d->rank; i++)
        if (t->shape[i] != (uint64_t)d->shape[i]) return false;
    return true;
}

/* The exact weights of a tensor, if they exist. */
static const ModelFiles *find_tensor(const Source *s, const TensorDesc *d, const ModelTensor **out) {
    char name[512];
    int length = snprintf(name, sizeof name, EXACT "%s", d->name);
    *out = length < (int)sizeof name && s->exact.count ? modelfiles_find(&s->exact, name) : NULL;
    if (*out && same_shape((*out)->tensor, d)) return &s->exact;
    *out = modelfiles_find(&s->model, d->name);
    return &s->model;
}

/* A chunk of a tensor of one source, as fp32; `raw` is large enough for it in any type. */
static ErrorCode read_part(const Source *s, const TensorDesc *d, size_t first, size_t count, void *raw,
                           float *out, Error *err) {
    const ModelTensor *t;
    const ModelFiles *files = find_tensor(s, d, &t);
    size_t each = (size_t)safe_type_bits(t->tensor->type) / 8;
    TRY(modelfiles_read(files, t, first * each, raw, count * each, err));
    convert_to_f32(t->tensor->type, raw, out, count);
    return OK;
}

/* The sum is in double, so that the mean of many sources is effectively rounded only when it becomes fp32.
 * The writer asks for a bounded number of elements at a time (safetensors_write.c), which bounds the memory
 * of an export. */
static ErrorCode fetch(void *ctx, int segment, size_t offset, size_t bytes, void *host, Error *err) {
    Export *e = ctx;
    size_t count = bytes / sizeof(float), first = offset / sizeof(float);
    float *part = mem_alloc_array(count + 1, sizeof *part), *raw = mem_alloc_array(count + 1, sizeof *raw);
    double *sum = mem_alloc_array(count + 1, sizeof *sum);
    ErrorCode code = OK;
    for (size_t s = 0; code == OK && s < e->count; s++) {
        code = read_part(&e->sources[s], &e->tensors[segment], first, count, raw, part, err);
        for (size_t i = 0; code == OK && i < count; i++) sum[i] += (double)part[i];
    }
    if (code == OK && e->adapter) code = take_factors(e, segment, err);
    if (code == OK && e->factors.adapted) add_factors(e, first, count, sum);
    for (size_t i = 0; i < count; i++) part[i] = (float)(sum[i] / (double)e->count);
    memcpy(host, part, count * sizeof *part);
    free(part);
    free(raw);
    free(sum);
    return code;
}

/* The first source owns the names. All sources are checked against its list, including the first one (E2). */
static ErrorCode describe(Export *e, SafeType stored, Error *err) {
    const ModelFiles *m = &e->sources[0].model;
    e->tensors = mem_alloc_array(m->count + 1, sizeof *e->tensors);
    for (size_t i = 0; i < m->count; i++) {
        const SafeTensor *t = m->tensors[i].tensor;
        char name[160];
        error_escape(name, sizeof name, t->name, strlen(t->name));
        if (t->rank > TENSOR_MAX_RANK || !convert_is_float(t->type))
            return error_set(err, ERR_DATA,
                             "%s: %s is %s of %d dimensions; weights are F32, BF16 or F16, of at most %d",
                             m->where, name, safe_type_name(t->type), t->rank, TENSOR_MAX_RANK);
        e->tensors[i] =
            (TensorDesc){.name = m->tensors[i].name, .memory = SAFE_F32, .stored = stored, .rank = t->rank};
        for (int k = 0; k < t->rank; k++) e->tensors[i].shape[k] = (int64_t)t->shape[k];
    }
    e->list = (TensorList){.count = (int)m->count, .tensors = e->tensors, .ctx = e, .fetch = fetch};
    for (size_t s = 0; s < e->count; s++) TRY(modelfiles_check(&e->sources[s].model, &e->list, err));
    return OK;
}

/* ---- writing ---- */

/* One process writes everything, so no blobs are needed: the checksums are discarded. */
static ErrorCode write_weights(const Export *e, const char *dir, uint64_t *bytes, Error *err) {
    ModelLayout layout;
    uint64_t *sums = mem_alloc_array((size_t)e->list.count + 1, sizeof *sums);
    modellayout_make(&layout, &e->list, "model", SHARD_BYTES);
    ErrorCode code = modelfiles_create(&file_ops_system, dir, &layout, err);
    if (code == OK) code = modelfiles_write(&file_ops_system, dir, &layout, sums, err);
    *bytes = 0;
    for (int i = 0; i < layout.file_count; i++) *bytes += layout.files[i].bytes;
    modellayout_free(&layout);
    free(sums);
    return code;
}

/* The file is on disk when it returns. */
static ErrorCode put(const char *dir, const char *name, const void *data, size_t length, Error *err) {
    char *path = path_join(dir, name);
    ErrorCode code = fileops_put(&file_ops_system, path, data, length, err);
    free(path);
    return code;
}

/* The source's config.json with another dtype. */
static ErrorCode write_config(const char *source, SafeType stored, const char *dir, Error *err) {
    ModelConfig config;
    Text text = {0};
    char *path = path_join(source, "config.json");
    ErrorCode code = model_config_read(&config, path, err);
    free(path);
    TRY(code);
    model_config_write(&config, stored == SAFE_BF16 ? "bfloat16" : "float32", &text);
    code = put(dir, "config.json", text.data, text.length, err);
    text_free(&text);
    return code;
}

/* Copies the files that accompany the weights; the adapter's take precedence over its base's. */
static ErrorCode copy_companions(const Export *e, const char *source, const char *dir, Error *err) {
    static const char *const names[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "chat_template.jinja"};
    ErrorCode code = OK;
    for (size_t i = 0; code == OK && i < sizeof names / sizeof *names; i++) {
        char *path = path_join(e->adapter ? e->adapter->dir : source, names[i]), *data = NULL;
        size_t length;
        if (!file_exists(path)) {
            free(path);
            path = path_join(source, names[i]);
        }
        if (file_exists(path)) {
            code = file_read_own(path, (size_t)1 << 30, &data, &length, err);
            if (code == OK) code = put(dir, names[i], data, length, err);
            free(data);
        }
        free(path);
    }
    return code;
}

/* The directory is synced last, when all names are in it. */
static ErrorCode fill(const Export *e, const char *source, SafeType stored, const char *dir, uint64_t *bytes,
                      Error *err) {
    TRY(write_config(source, stored, dir, err));
    TRY(copy_companions(e, source, dir, err));
    TRY(write_weights(e, dir, bytes, err));
    return file_sync_dir(dir, err);
}

/* The new name is a change of the parent directory: without this sync a power cut could undo it. */
static ErrorCode sync_parent(const char *path, Error *err) {
    const char *slash = strrchr(path, '/');
    char *parent = mem_strdup(slash ? path : ".");
    if (slash) parent[slash == path ? 1 : slash - path] = '\0';
    ErrorCode code = file_sync_dir(parent, err);
    free(parent);
    return code;
}

/* E1. The process id separates two concurrent exports to one name; the second rename fails, since a directory
 *     with files in it is not replaced. */
static ErrorCode write_directory(const Export *e, const char *source, SafeType stored, const char *dir,
                                 uint64_t *bytes, Error *err) {
    Text partial = {0};
    text_printf(&partial, "%s.%ld.partial", dir, (long)getpid());
    ErrorCode code = file_make_own_dir(partial.data, err);
    if (code == OK) {
        code = fill(e, source, stored, partial.data, bytes, err);
        if (code == OK && rename(partial.data, dir) != 0)
            code = error_errno(err, ERR_CANTCREATE, "%s: cannot be given its name", dir);
        if (code == OK)
            code = sync_parent(dir, err);
        else
            file_remove_tree(partial.data, NULL);
    }
    text_free(&partial);
    return code;
}

/* An existing name is refused before anything is read. Sources that were not opened are empty, and closing
 * them is a no-op. */
static ErrorCode export_from(const char *const *sources, size_t count, bool average,
                             const AdapterDir *adapter, SafeType stored, const char *dir, uint64_t *bytes,
                             Error *err) {
    Export e = {.adapter = adapter,
                .factors = {.segment = -1},
                .sources = mem_alloc_array(count, sizeof *e.sources),
                .count = count};
    ErrorCode code = OK;
    if (file_exists(dir))
        code = error_set(err, ERR_CANTCREATE, "%s: is there already; name a directory that is not", dir);
    for (size_t s = 0; code == OK && s < count; s++)
        code = open_source(&e.sources[s], sources[s], average, adapter != NULL, err);
    if (code == OK) code = describe(&e, stored, err);
    if (code == OK) code = write_directory(&e, sources[0], stored, dir, bytes, err);
    for (size_t s = 0; s < count; s++) {
        modelfiles_close(&e.sources[s].model);
        modelfiles_close(&e.sources[s].exact);
    }
    drop_factors(&e.factors);
    free(e.tensors);
    free(e.sources);
    return code;
}

ErrorCode export_model(const char *const *sources, size_t count, bool average, SafeType stored,
                       const char *dir, uint64_t *bytes, Error *err) {
    return export_from(sources, count, average, NULL, stored, dir, bytes, err);
}

ErrorCode export_merged(const AdapterDir *adapter, SafeType stored, const char *dir, uint64_t *bytes,
                        Error *err) {
    const char *base = adapter->base;
    return export_from(&base, 1, false, adapter, stored, dir, bytes, err);
}

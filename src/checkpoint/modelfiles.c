/* Opens a model directory; the header file has the rules for the index.
 *
 *     DIR/model.safetensors             one file: all its tensors
 *     DIR/model.safetensors.index.json  shards: the tensors that the index lists, each in the shard it names
 *     DIR/adapter_model.safetensors     of an adapter: there are no others
 *     FILE.safetensors                  one file, by its own name (the optimizer's; `weft inspect`)
 *
 * If both of the first two exist, the single file is used, as in transformers. */
#include "checkpoint/modelfiles.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

#define INDEX_LIMIT ((size_t)SAFE_MAX_HEADER)
/* Each is an open descriptor; the largest models have some two hundred. */
#define MAX_SHARDS 10000

/* Names come from files and go to terminals, so they are escaped. */
static char *shown(char out[128], const char *name) { return error_escape(out, 128, name, strlen(name)); }

/* No slash, so that it cannot leave the directory, and no leading dot, so that it is neither ".." nor a name
 * of the commit protocol. */
bool modelfiles_name_is_safe(const char *name) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t length = strlen(name);
    return length > 0 && length <= 255 && name[0] != '.' && strspn(name, allowed) == length;
}

/* A name with another ending is no shard, whatever the index says. */
static bool is_shard_name(const char *name) {
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name);
    return modelfiles_name_is_safe(name) && length > sizeof suffix - 1 &&
           strcmp(name + length - (sizeof suffix - 1), suffix) == 0;
}

/* f may be closed after a failure, too. */
static ErrorCode open_shard(SafeFile *f, const char *dir, const char *name, Error *err) {
    int fd;
    uint64_t size;
    *f = (SafeFile){.fd = -1};
    TRY(fileops_open_in(dir, name, &fd, &size, err));
    char *path = path_join(dir, name);
    ErrorCode code = safe_open_fd(f, path, fd, size, err);
    free(path);
    return code;
}

/* One entry of the index. */
typedef struct Listed {
    const char *name, *file;
} Listed;

/* By name within a file, so that the order does not depend on how qsort treats equals. */
static int by_file(const void *a, const void *b) {
    const Listed *x = a, *y = b;
    int order = strcmp(x->file, y->file);
    return order != 0 ? order : strcmp(x->name, y->name);
}

static int by_tensor_name(const void *a, const void *b) {
    return strcmp(((const ModelTensor *)a)->name, ((const ModelTensor *)b)->name);
}

/* Sorted by shard, so that each shard is opened once and its tensors are contiguous in the list. */
static ErrorCode collect(const cJSON *map, const char *where, Listed *listed, Error *err) {
    const cJSON *item;
    char name[128], file[128];
    size_t n = 0;
    cJSON_ArrayForEach(item, map) {
        shown(name, item->string);
        if (!cJSON_IsString(item))
            return error_set(err, ERR_DATA, "%s: weight_map of \"%s\" is not a string", where, name);
        if (!is_shard_name(item->valuestring))
            return error_set(
                err, ERR_DATA,
                "%s: weight_map of \"%s\" is \"%s\", expected the plain name of a .safetensors file "
                "next to the index",
                where, name, shown(file, item->valuestring));
        listed[n++] = (Listed){item->string, item->valuestring};
    }
    qsort(listed, n, sizeof *listed, by_file);
    return OK;
}

/* Opens the shard that listed[0] names and adds the tensors of listed[0 .. n-1], all of that shard. Its
 * tensors are looked up by name, since the index determines what is read. */
static ErrorCode add_shard(ModelFiles *m, const char *dir, const Listed *listed, size_t n, Error *err) {
    char name[128];
    if (m->file_count == MAX_SHARDS)
        return error_set(err, ERR_DATA, "%s: more than %d shards", m->where, MAX_SHARDS);
    SafeFile *f = &m->files[m->file_count];
    TRY(open_shard(f, dir, listed[0].file, err));
    /* Counted as soon as it is open, so that modelfiles_close closes it after any later failure. */
    m->file_count++;
    for (size_t i = 0; i < n; i++) {
        const SafeTensor *t = safe_find(f, listed[i].name);
        if (t == NULL)
            return error_set(err, ERR_DATA,
                             "%s: the index places tensor \"%s\" in %s, which does not have it", m->where,
                             shown(name, listed[i].name), listed[i].file);
        m->tensors[m->count++] = (ModelTensor){t->name, t, m->file_count - 1};
    }
    m->unlisted += f->count - n;
    return OK;
}

/* A tensor in two shards would be read differently by different programs. Only tensors that a shard has but
 * the index does not assign to it can be duplicates, so if there are none, nothing needs to be searched. */
static ErrorCode check_once(const ModelFiles *m, Error *err) {
    char name[128];
    for (int f = 0; f < m->file_count && m->unlisted > 0; f++)
        for (size_t i = 0; i < m->files[f].count; i++) {
            const ModelTensor *listed = modelfiles_find(m, m->files[f].tensors[i].name);
            if (listed != NULL && listed->file != f)
                return error_set(err, ERR_DATA, "%s: tensor \"%s\" is in two shards", m->where,
                                 shown(name, m->files[f].tensors[i].name));
        }
    return OK;
}

/* Only a warning: many programs write total_size and few write it right, and nothing here depends on it. */
static void check_total(const ModelFiles *m, const cJSON *root) {
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(root, "metadata");
    const cJSON *total = cJSON_GetObjectItemCaseSensitive(metadata, "total_size");
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->count; i++) bytes += m->tensors[i].tensor->end - m->tensors[i].tensor->begin;
    if (cJSON_IsNumber(total) && (total->valuedouble < (double)bytes || total->valuedouble > (double)bytes))
        log_warn("%s: the index says %.0f bytes of tensors, there are %.0f", m->where, total->valuedouble,
                 (double)bytes);
    if (m->unlisted > 0)
        log_warn("%s: %.0f tensors are in a shard but not in the index; they are not read", m->where,
                 (double)m->unlisted);
}

/* `listed` is sorted by file; each run of equal names is one shard. */
static ErrorCode open_listed(ModelFiles *m, const char *dir, const Listed *listed, size_t count, Error *err) {
    size_t shards = 0;
    for (size_t i = 0; i < count; i++) shards += i == 0 || strcmp(listed[i].file, listed[i - 1].file) != 0;
    m->files = mem_alloc_array(shards, sizeof *m->files);
    m->tensors = mem_alloc_array(count, sizeof *m->tensors);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && strcmp(listed[end].file, listed[first].file) == 0;) end++;
        TRY(add_shard(m, dir, listed + first, end - first, err));
    }
    qsort(m->tensors, m->count, sizeof *m->tensors, by_tensor_name);
    return check_once(m, err);
}

/* The index is a map from tensor to file. base/json.h refuses duplicate keys, so a tensor occurs once.
 * `listed` points into the tree of the index, which must exist until the shards are open. */
static ErrorCode open_index(ModelFiles *m, const char *dir, const char *where, const cJSON *root,
                            Error *err) {
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    if (!cJSON_IsObject(map) || map->child == NULL)
        return error_set(err, ERR_DATA, "%s: weight_map is missing, empty or not an object", where);
    size_t count = (size_t)cJSON_GetArraySize(map);
    Listed *listed = mem_alloc_array(count, sizeof *listed);
    ErrorCode code = collect(map, where, listed, err);
    if (code == OK) code = open_listed(m, dir, listed, count, err);
    free(listed);
    if (code == OK) check_total(m, root);
    return code;
}

/* Frees the text and the tree of the index: the shards own all names and offsets that are kept. */
static ErrorCode read_index(ModelFiles *m, const char *dir, Error *err) {
    cJSON *root = NULL;
    char *text = NULL;
    size_t length = 0;
    TRY(fileops_read_in(dir, MODEL_INDEX, INDEX_LIMIT, &text, &length, err));
    char *where = path_join(m->where, MODEL_INDEX);
    ErrorCode code = json_parse(where, text, length, &root, err);
    if (code == OK) code = open_index(m, dir, where, root, err);
    cJSON_Delete(root);
    free(text);
    free(where);
    return code;
}

/* All tensors of files[0], in order of names, as safe_open has sorted them. */
static void take_all(ModelFiles *m) {
    m->file_count = 1;
    m->count = m->files[0].count;
    m->tensors = mem_alloc_array(m->count, sizeof *m->tensors);
    for (size_t i = 0; i < m->count; i++)
        m->tensors[i] = (ModelTensor){m->files[0].tensors[i].name, &m->files[0].tensors[i], 0};
}

/* A link counts as existing, so that the error names it, instead of "found neither". */
static bool has_file(const char *dir, const char *name) {
    char *path = path_join(dir, name);
    bool there = faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    free(path);
    return there;
}

/* A path that is neither directory nor file fails in safe_open, with its name. */
static ErrorCode open_any(ModelFiles *m, const char *path, Error *err) {
    bool indexed = !has_file(path, MODEL_FILE) && has_file(path, MODEL_INDEX);
    const char *name = has_file(path, MODEL_FILE) ? MODEL_FILE : ADAPTER_FILE;
    if (file_is_dir(path) && indexed) return read_index(m, path, err);
    if (file_is_dir(path) && !has_file(path, name))
        return error_set(err, ERR_NOINPUT, "%s: expected %s or %s in this directory, found neither", m->where,
                         MODEL_FILE, MODEL_INDEX);
    m->files = mem_alloc(sizeof *m->files);
    m->files[0].fd = -1;
    TRY(file_is_dir(path) ? open_shard(&m->files[0], path, name, err) : safe_open(&m->files[0], path, err));
    take_all(m);
    return OK;
}

static bool begins(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

/* Prefixes of transformers' models of images and text: the text model, the vision tower, and the projector of
 * images into the text model. Tensors with other names stay, and are later refused as unknown. */
static ErrorCode keep_text(ModelFiles *m, Error *err) {
    static const char text[] = "language_model.", images[] = "vision_model.",
                      join[] = "multi_modal_projector.";
    size_t kept = 0;
    char name[128];
    if (!modelfiles_find(m, "language_model.model.embed_tokens.weight")) return OK;
    for (size_t i = 0; i < m->count; i++) {
        ModelTensor t = m->tensors[i];
        if (begins(t.name, images) || begins(t.name, join)) continue;
        if (begins(t.name, text)) t.name += sizeof text - 1;
        m->tensors[kept++] = t;
    }
    m->count = kept;
    qsort(m->tensors, m->count, sizeof *m->tensors, by_tensor_name);
    for (size_t i = 1; i < m->count; i++)
        if (strcmp(m->tensors[i - 1].name, m->tensors[i].name) == 0)
            return error_set(err, ERR_DATA, "%s: tensor \"%s\" is there twice, also as that of \"%s\"",
                             m->where, shown(name, m->tensors[i].name), text);
    return OK;
}

/* m is empty after a failure, and closing it again is a no-op. */
ErrorCode modelfiles_open(ModelFiles *m, const char *path, Error *err) {
    char where[512];
    *m = (ModelFiles){.where = mem_strdup(error_escape(where, sizeof where, path, strlen(path)))};
    ErrorCode code = open_any(m, path, err);
    if (code == OK) code = keep_text(m, err);
    if (code != OK) modelfiles_close(m);
    return code;
}

/* Also after a partial open: only open shards are counted. */
void modelfiles_close(ModelFiles *m) {
    for (int i = 0; i < m->file_count; i++) safe_close(&m->files[i]);
    free(m->files);
    free(m->tensors);
    free(m->where);
    *m = (ModelFiles){0};
}

/* By bisection: tensors are sorted by name over all shards. */
const ModelTensor *modelfiles_find(const ModelFiles *m, const char *name) {
    for (size_t low = 0, high = m->count; low < high;) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, m->tensors[middle].name);
        if (order == 0) return &m->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* The caller stays within the tensor; safe_read checks it. */
ErrorCode modelfiles_read(const ModelFiles *m, const ModelTensor *t, uint64_t offset, void *host,
                          size_t bytes, Error *err) {
    return safe_read(&m->files[t->file], t->tensor, offset, host, bytes, err);
}

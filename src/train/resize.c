#include "train/resize.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launch.h"

#define ENV_LEAD "WEFT_LAUNCHER"

/* A command line is at most 2 MiB; as JSON it is a little longer. */
enum { FILE_LIMIT = 16 << 20 };

/* ---- lists of words in JSON ---- */

static void free_list(StringList *list) {
    for (size_t i = 0; i < list->count; i++) free(list->items[i]);
    free(list->items);
    *list = (StringList){0};
}

static void put_list(JsonWriter *w, const char *key, const StringList *list) {
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < list->count; i++) json_string(w, list->items[i]);
    json_end_array(w);
}

static ErrorCode get_list(const cJSON *object, const char *where, const char *key, StringList *out,
                          Error *err) {
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(object, key), *item;
    if (!cJSON_IsArray(array)) return error_set(err, ERR_DATA, "%s: \"%s\" is not a list", where, key);
    out->items = mem_alloc_array((size_t)cJSON_GetArraySize(array) + 1, sizeof *out->items);
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsString(item))
            return error_set(err, ERR_DATA, "%s: \"%s\" has an item that is no text", where, key);
        out->items[out->count++] = mem_strdup(item->valuestring);
    }
    return OK;
}

static ErrorCode write_object(const char *run_dir, const char *name, const Text *text, Error *err) {
    char *path = path_join(run_dir, name);
    ErrorCode code = file_write_atomic(path, text->data, text->length, err);
    free(path);
    return code;
}

static void remove_file(const char *run_dir, const char *name) {
    char *path = path_join(run_dir, name);
    if (unlink(path) != 0 && errno != ENOENT) log_warn("%s: cannot remove it", path);
    free(path);
}

/* ERR_NOINPUT: there is no such file. */
static ErrorCode read_object(const char *run_dir, const char *name, cJSON **root, Error *err) {
    char *path = path_join(run_dir, name), *data = NULL;
    size_t length;
    ErrorCode code = OK;
    if (!file_exists(path))
        code = error_set(err, ERR_NOINPUT, "%s: there is no such file", path);
    else
        code = file_read_own(path, FILE_LIMIT, &data, &length, err);
    if (code == OK) code = json_parse(path, data, length, root, err);
    free(data);
    free(path);
    return code;
}

/* ---- the request ---- */

ErrorCode resize_request(const char *run_dir, const Resize *r, Error *err) {
    Text out = {0};
    JsonWriter w;
    json_start(&w, &out, 0);
    json_begin_object(&w);
    json_put_int(&w, "from", r->from);
    json_put_int(&w, "ranks", r->ranks);
    put_list(&w, "keys", &r->keys);
    json_end_object(&w);
    ErrorCode code = write_object(run_dir, RESIZE_FILE, &out, err);
    text_free(&out);
    return code;
}

bool resize_requested(const char *run_dir) { return file_holds(run_dir, RESIZE_FILE); }

void resize_drop(const char *run_dir) { remove_file(run_dir, RESIZE_FILE); }

static ErrorCode parse_request(Resize *r, const cJSON *root, Error *err) {
    TRY(json_get_int(root, RESIZE_FILE, "from", true, 1, INT32_MAX, &r->from, err));
    TRY(json_get_int(root, RESIZE_FILE, "ranks", true, 1, INT32_MAX, &r->ranks, err));
    return get_list(root, RESIZE_FILE, "keys", &r->keys, err);
}

bool resize_take(Resize *r, const char *run_dir) {
    cJSON *root = NULL;
    Error err = {.message = ""};
    *r = (Resize){0};
    if (!resize_requested(run_dir)) return false;
    ErrorCode code = read_object(run_dir, RESIZE_FILE, &root, &err);
    if (code == OK) code = parse_request(r, root, &err);
    cJSON_Delete(root);
    if (code != OK) log_warn("the request for another number of ranks is passed over: %s", err.message);
    resize_drop(run_dir);
    if (code != OK) resize_free(r);
    return code == OK;
}

void resize_free(Resize *r) { free_list(&r->keys); }

const char *resize_describe(const Resize *r, char *out, size_t size) {
    int at = snprintf(out, size, "from %lld rank%s to %lld", (long long)r->from, r->from == 1 ? "" : "s",
                      (long long)r->ranks);
    for (size_t i = 0; i < r->keys.count && at > 0 && (size_t)at < size; i++)
        at += snprintf(out + at, size - (size_t)at, "%s %s", i ? "," : ", with", r->keys.items[i]);
    return out;
}

/* run.overwrite applied when the run began. */
char **resize_words(char *const *words, const Resize *r) {
    static const char ranks[] = "--ranks=";
    size_t given = 0, count = 0, flags = 0;
    char number[32];
    while (words[given]) given++;
    while (flags < given && strcmp(words[flags], "--") != 0) flags++;
    char **all = mem_alloc_array(given + r->keys.count + 4, sizeof *all);
    snprintf(number, sizeof number, "%s%lld", ranks, (long long)r->ranks);
    for (size_t i = 0; i < given; i++) {
        if (i < flags && strncmp(words[i], ranks, strlen(ranks)) == 0) continue;
        if (i == flags) all[count++] = mem_strdup(number);
        all[count++] = mem_strdup(words[i]);
    }
    for (size_t i = 0; i < r->keys.count; i++) all[count++] = mem_strdup(r->keys.items[i]);
    all[count++] = mem_strdup("run.overwrite=false");
    all[count] = NULL;
    return all;
}

void resize_free_words(char **words) {
    for (char **w = words; w && *w; w++) free(*w);
    free(words);
}

/* ---- how a run was started ---- */

static int64_t lead_of_environment(void) {
    const char *text = getenv(ENV_LEAD);
    return text ? strtoll(text, NULL, 10) : 0;
}

/* A rank has the variable from the launcher. Of a process that is no rank it counts only if its parent set
 * it: another program may have inherited it. */
bool launch_lead(void) {
    char number[24];
    if (launched_env_mark()) return false;
    if (lead_of_environment() == (int64_t)getppid()) return false;
    snprintf(number, sizeof number, "%lld", (long long)getpid());
    setenv(ENV_LEAD, number, 1);
    return true;
}

/* From /proc, so that nobody has to pass it down. */
static ErrorCode own_words(StringList *words, Error *err) {
    char *data;
    size_t length, count = 0;
    TRY(file_read("/proc/self/cmdline", FILE_LIMIT, &data, &length, err));
    for (size_t i = 0; i < length; i++) count += data[i] == 0;
    words->items = mem_alloc_array(count + 1, sizeof *words->items);
    for (size_t at = 0; words->count < count; at += strlen(data + at) + 1)
        words->items[words->count++] = mem_strdup(data + at);
    free(data);
    return OK;
}

static void put_record(const StringList *words, const char *directory, int ranks, Text *out) {
    JsonWriter w;
    char host[HOST_NAME_BYTES];
    host_name(host, sizeof host);
    json_start(&w, out, 0);
    json_begin_object(&w);
    json_put_int(&w, "process", lead_of_environment());
    json_put_int(&w, "rank0", (int64_t)getpid());
    json_put_int(&w, "ranks", ranks);
    json_put_string(&w, "host", host);
    json_put_string(&w, "directory", directory);
    put_list(&w, "words", words);
    json_end_object(&w);
}

ErrorCode launch_write(const char *run_dir, int ranks, Error *err) {
    StringList words = {0};
    Text out = {0};
    char *directory = getcwd(NULL, 0);
    ErrorCode code = own_words(&words, err);
    if (code == OK) {
        put_record(&words, directory ? directory : "", ranks, &out);
        code = write_object(run_dir, LAUNCH_FILE, &out, err);
    }
    text_free(&out);
    free(directory);
    free_list(&words);
    return code;
}

void launch_remove(const char *run_dir) { remove_file(run_dir, LAUNCH_FILE); }

static ErrorCode parse_record(LaunchRecord *l, const cJSON *root, Error *err) {
    const char *host, *directory;
    TRY(json_get_int(root, LAUNCH_FILE, "process", true, 0, INT32_MAX, &l->process, err));
    TRY(json_get_int(root, LAUNCH_FILE, "rank0", true, 1, INT32_MAX, &l->rank0, err));
    TRY(json_get_int(root, LAUNCH_FILE, "ranks", true, 1, INT32_MAX, &l->ranks, err));
    TRY(json_get_string(root, LAUNCH_FILE, "host", true, &host, err));
    TRY(json_get_string(root, LAUNCH_FILE, "directory", true, &directory, err));
    l->host = mem_strdup(host);
    l->directory = mem_strdup(directory);
    return get_list(root, LAUNCH_FILE, "words", &l->words, err);
}

ErrorCode launch_read(LaunchRecord *l, const char *run_dir, Error *err) {
    cJSON *root = NULL;
    *l = (LaunchRecord){0};
    TRY(read_object(run_dir, LAUNCH_FILE, &root, err));
    ErrorCode code = parse_record(l, root, err);
    if (code != OK) error_context(err, "%s", run_dir);
    cJSON_Delete(root);
    return code;
}

void launch_free(LaunchRecord *l) {
    free(l->host);
    free(l->directory);
    free_list(&l->words);
    *l = (LaunchRecord){0};
}

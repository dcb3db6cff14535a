#include "data/input_files.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/text.h"

static void add(InputFiles *f, const char *name, const char *path, bool fetched) {
    f->items = mem_grow(f->items, (f->count + 1) * sizeof *f->items);
    f->items[f->count++] = (InputFile){mem_strdup(name), mem_strdup(path), fetched};
}

static ErrorCode fetch(InputFiles *f, const char *url, const InputCache *cache, Error *err) {
    RemoteFile *files;
    size_t count;
    if (!f->remote) TRY(remote_open(&f->remote, cache->dir, cache->limit, err));
    TRY(remote_take(f->remote, url, &files, &count, err));
    for (size_t i = 0; i < count; i++) add(f, files[i].name, files[i].path, true);
    remote_free(files, count);
    return OK;
}

ErrorCode input_files_open(InputFiles *f, const char *const *wanted, size_t count, const InputCache *cache,
                           Error *err) {
    *f = (InputFiles){0};
    for (size_t i = 0; i < count; i++) {
        if (file_is_url(wanted[i]))
            TRY(fetch(f, wanted[i], cache, err));
        else
            add(f, wanted[i], wanted[i], false);
    }
    return OK;
}

ErrorCode input_files_name(const char *wanted, const InputCache *cache, Text *paths, Error *err) {
    Remote *remote;
    RemoteFile *files;
    size_t count;
    if (!file_is_url(wanted)) return OK;
    TRY(remote_open(&remote, cache->dir, cache->limit, err));
    ErrorCode code = remote_find(remote, wanted, &files, &count, err);
    for (size_t i = 0; code == OK && i < count; i++) text_printf(paths, "%s\n", files[i].path);
    if (code == OK) remote_free(files, count);
    remote_close(remote);
    return code;
}

void input_files_close(InputFiles *f) {
    for (size_t i = 0; i < f->count; i++) {
        free(f->items[i].name);
        free(f->items[i].path);
    }
    free(f->items);
    remote_close(f->remote);
    *f = (InputFiles){0};
}

ErrorCode input_file_failed(const InputFile *file, ErrorCode code, Error *err) {
    return code != OK && file->fetched ? error_context(err, "%s", file->name) : code;
}

/* From URLs to files. Names of an object store are found by listing the longest prefix that all patterns
 * share; those of a web server have to be given. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/url.h"
#include "remote/braces.h"
#include "remote/internal.h"
#include "remote/location.h"
#include "remote/s3_listing.h"

/* Files that are being collected. */
typedef struct Found {
    RemoteFile *files;
    size_t count, capacity;
} Found;

static RemoteFile *add(Found *f) {
    if (f->count == f->capacity) {
        f->capacity = 2 * f->capacity + 16;
        f->files = mem_grow(f->files, f->capacity * sizeof *f->files);
    }
    RemoteFile *file = &f->files[f->count++];
    *file = (RemoteFile){0};
    return file;
}

void remote_free(RemoteFile *files, size_t count) {
    for (size_t i = 0; files && i < count; i++) {
        free(files[i].name);
        free(files[i].url);
        free(files[i].bucket);
        free(files[i].key);
        free(files[i].path);
    }
    free(files);
}

/* Everything that follows from the URL. */
static void identify(const Remote *r, RemoteFile *file) {
    Text identity = {0}, base = {0};
    const char *endpoint = r->access.endpoint ? r->access.endpoint : "";
    text_printf(&identity, "%s\n%s", file->url ? file->url : file->name, file->url ? "" : endpoint);
    store_name(identity.data, file->entry);
    store_copy_name(file->name, &base);
    file->path = store_path(r->store, file->entry, base.data);
    text_free(&identity);
    text_free(&base);
}

/* ---- web servers ---- */

/* Bytes that are not allowed in a URL are encoded; what is encoded already stays. */
static void add_url(const Remote *r, Found *f, const char *url) {
    RemoteFile *file = add(f);
    Text shown = {0}, encoded = {0};
    url_show(url, &shown);
    percent_encode(url, strlen(url), "!$%&'()*+,/:;=?@[]", &encoded);
    file->name = shown.data;
    file->url = encoded.data;
    identify(r, file);
}

/* ---- object stores ---- */

typedef struct Wanted {
    const Location *at;
    char *bucket;
    char **keys; /* patterns; sorted */
    size_t count;
    bool *found; /* [count] */
    bool globs;  /* any has *, ? or [ */
} Wanted;

static void add_object(const Remote *r, Found *f, const char *bucket, const char *key) {
    RemoteFile *file = add(f);
    Text name = {0};
    text_printf(&name, "s3://%s/%s", bucket, key);
    file->name = name.data;
    file->bucket = mem_strdup(bucket);
    file->key = mem_strdup(key);
    identify(r, file);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_wanted(Wanted *w, const char *key) {
    bool any = false;
    char *const *same = bsearch(&key, w->keys, w->count, sizeof *w->keys, by_text);
    if (same) any = w->found[same - w->keys] = true;
    for (size_t i = 0; w->globs && i < w->count; i++)
        if (fnmatch(w->keys[i], key, FNM_PATHNAME) == 0) any = w->found[i] = true;
    return any;
}

/* What all keys begin with, before any pattern. */
static size_t shared_prefix(const Wanted *w) {
    size_t length = strcspn(w->keys[0], "*?[");
    for (size_t i = 1; i < w->count; i++) {
        size_t same = 0;
        while (same < length && w->keys[i][same] == w->keys[0][same]) same++;
        length = same;
    }
    return length;
}

/* Parameters in the order of their names, which signing needs. Deeper directories are left out unless a
 * pattern reaches into them. */
static void add_query(const Wanted *w, const char *next, Text *out) {
    size_t prefix = shared_prefix(w);
    bool deep = false;
    for (size_t i = 0; i < w->count; i++) deep |= strchr(w->keys[i] + prefix, '/') != NULL;
    if (next) {
        text_puts(out, "continuation-token=");
        percent_encode(next, strlen(next), "", out);
        text_puts(out, "&");
    }
    text_printf(out, "%sencoding-type=url&list-type=2&max-keys=1000&prefix=", deep ? "" : "delimiter=%2F&");
    percent_encode(w->keys[0], prefix, "", out);
}

static void take_object(const Remote *r, Found *f, Wanted *w, const S3Object *object) {
    if (!is_wanted(w, object->key)) return;
    add_object(r, f, w->bucket, object->key);
    RemoteFile *file = &f->files[f->count - 1];
    file->size = object->size;
    if (strlen(object->etag) < sizeof file->etag) strcpy(file->etag, object->etag);
}

static ErrorCode read_page(const Remote *r, Found *f, Wanted *w, const HttpReply *reply, char **next,
                           Error *err) {
    S3Listing listing = {0};
    ErrorCode code = s3_listing_read(&listing, reply->body.data, reply->body.length, err);
    for (size_t i = 0; code == OK && i < listing.count; i++) take_object(r, f, w, &listing.objects[i]);
    if (code == OK && listing.next && *next && strcmp(listing.next, *next) == 0)
        code = error_set(err, ERR_DATA, "the store names the same page of its listing again and again");
    free(*next);
    *next = listing.next;
    listing.next = NULL;
    s3_listing_free(&listing);
    return code == OK ? OK : error_context(err, "s3://%s", w->bucket);
}

/* *denied: listing is not permitted, which may be so where reading is. */
static ErrorCode list(Remote *r, Found *f, Wanted *w, bool *denied, Error *err) {
    char *next = NULL;
    ErrorCode code = OK;
    *denied = false;
    do {
        HttpRequest q = {.method = "GET", .advice = "try again later"};
        HttpReply reply = {0};
        Text query = {0}, name = {0};
        add_query(w, next, &query);
        text_printf(&name, "s3://%s (listing)", w->bucket);
        code = s3_send(r, w->bucket, "", query.data, false, &q, &reply, err);
        *denied = code == OK && reply.status == 403 && !w->globs;
        if (code == OK && !*denied && (reply.status != 200 || *reply.failure))
            code = http_refuse(name.data, &q, &reply, err);
        else if (code == OK && !*denied)
            code = read_page(r, f, w, &reply, &next, err);
        http_reply_free(&reply);
        text_free(&query);
        text_free(&name);
    } while (code == OK && next && !*denied);
    free(next);
    return code;
}

static ErrorCode check_found(const Wanted *w, Error *err) {
    for (size_t i = 0; i < w->count; i++)
        if (!w->found[i])
            return error_set(err, ERR_NOINPUT, "s3://%s/%s: %s", w->bucket, w->keys[i],
                             strpbrk(w->keys[i], "*?[")
                                 ? "no object matches this pattern"
                                 : "no such object; check bucket, key and AWS_ENDPOINT_URL");
    return OK;
}

static ErrorCode probe_all(Remote *r, Found *f, Error *err) {
    for (size_t i = 0; i < f->count; i++) TRY(remote_probe(r, &f->files[i], err));
    return OK;
}

/* One object is asked for directly. */
static ErrorCode find_objects(Remote *r, Found *f, Wanted *w, Error *err) {
    bool denied = w->count == 1 && !w->globs;
    if (!denied) TRY(list(r, f, w, &denied, err));
    if (!denied) return check_found(w, err);
    for (size_t i = 0; i < w->count; i++) add_object(r, f, w->bucket, w->keys[i]);
    return probe_all(r, f, err);
}

static ErrorCode find_s3(Remote *r, Found *f, char **urls, size_t count, Error *err) {
    Location first, l;
    TRY(location_read(&first, urls[0], err));
    Wanted w = {.bucket = strndup(first.authority, first.authority_length),
                .keys = mem_alloc_array(count, sizeof *w.keys),
                .found = mem_alloc_array(count, sizeof *w.found)};
    ErrorCode code = OK;
    for (size_t i = 0; code == OK && i < count; i++) {
        code = location_read(&l, urls[i], err);
        if (code != OK) break;
        if (l.authority_length != first.authority_length ||
            memcmp(l.authority, first.authority, l.authority_length) != 0)
            code =
                error_set(err, ERR_CONFIG, "%s: braces stand in the bucket: use a source for each", urls[i]);
        w.keys[w.count++] = (char *)(uintptr_t)l.path;
        w.globs |= strpbrk(l.path, "*?[") != NULL;
    }
    if (code == OK) qsort(w.keys, w.count, sizeof *w.keys, by_text);
    if (code == OK) code = find_objects(r, f, &w, err);
    free(w.bucket);
    free(w.keys);
    free(w.found);
    return code;
}

/* ---- both ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const RemoteFile *)a)->name, ((const RemoteFile *)b)->name);
}

/* Recalls the hash of a copy that is of this version. */
ErrorCode remote_hold(Remote *r, RemoteFile *file, Error *err) {
    StoredAbout about;
    TRY(store_hold(r->store, file->entry, err));
    bool known = store_about(r->store, file->entry, &about), same = known && remote_is_version(&about, file);
    if (same) memcpy(file->sha256, about.sha256, sizeof file->sha256);
    file->changed = known && !same;
    store_about_free(&about);
    return OK;
}

static ErrorCode find(Remote *r, Found *f, char **urls, size_t count, Error *err) {
    Location l;
    TRY(location_read(&l, urls[0], err));
    for (size_t i = 0; !l.s3 && i < count; i++) add_url(r, f, urls[i]);
    TRY(l.s3 ? find_s3(r, f, urls, count, err) : probe_all(r, f, err));
    qsort(f->files, f->count, sizeof *f->files, by_name);
    for (size_t i = 0; i < f->count; i++) TRY(remote_hold(r, &f->files[i], err));
    return OK;
}

ErrorCode remote_read_url(Remote *r, const char *url, Text *out, Error *err) {
    Location l;
    Found f = {0};
    TRY(location_read(&l, url, err));
    char *bucket = strndup(l.authority, l.authority_length);
    if (l.s3)
        add_object(r, &f, bucket, l.path);
    else
        add_url(r, &f, url);
    ErrorCode code = remote_read_file(r, f.files, out, err);
    remote_free(f.files, f.count);
    free(bucket);
    return code;
}

ErrorCode remote_find(Remote *r, const char *url, RemoteFile **files, size_t *count, Error *err) {
    Found f = {0};
    char **urls;
    size_t expanded;
    TRY(location_check(url, err));
    TRY(braces_expand(url, &urls, &expanded, err));
    ErrorCode code = find(r, &f, urls, expanded, err);
    file_glob_free(urls, expanded);
    if (code != OK) remote_free(f.files, f.count);
    *files = code == OK ? f.files : NULL;
    *count = code == OK ? f.count : 0;
    return code;
}

/* `name` with its end replaced, in front of a query, which begins with `stop`. False: it has another end. */
static bool replace_end(const char *name, const char *stop, const char *end, const char *other, Text *out) {
    size_t length = strcspn(name, stop), cut = strlen(end);
    if (!text_ends(name, length, end)) return false;
    text_add(out, name, length - cut);
    text_puts(out, other);
    text_puts(out, name + length);
    return true;
}

ErrorCode remote_find_beside(Remote *r, const RemoteFile *file, const char *end, const char *other,
                             RemoteFile **beside, Error *err) {
    Found f = {0};
    Text name = {0};
    *beside = NULL;
    if (replace_end(file->url ? file->url : file->key, file->url ? "?" : "", end, other, &name)) {
        if (file->url)
            add_url(r, &f, name.data);
        else
            add_object(r, &f, file->bucket, name.data);
    }
    text_free(&name);
    if (f.count == 0) return OK;
    ErrorCode code = remote_probe(r, f.files, err);
    bool missing = code == ERR_NOINPUT;
    if (code == OK) code = remote_hold(r, f.files, err);
    if (code == OK)
        *beside = f.files;
    else
        remote_free(f.files, f.count);
    return missing ? OK : code;
}

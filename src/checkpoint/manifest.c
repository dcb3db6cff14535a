/* The manifest's own checksum is its last line, in a fixed form. It is compared as text after hashing
 * everything before it, so every byte of the file is covered.
 *
 * The file, as manifest_write formats it and json_parse reads it:
 *
 *     { "format": "weft-checkpoint", "version": 2, "step": 200, "time": "2026-01-31T12:34:56Z",
 *       "resumable": true,
 *       "files": [ {"name": "config.json", "bytes": 651, "checksum": "..."},
 *                  {"name": "model.safetensors", "bytes": 22020448, "header": "...",
 *                   "tensors": {"lm_head.weight": "...",
 *                               "model.norm.weight": [{"bytes": 512, "checksum": "..."}, ...]}} ],
 *       "checksum": "..." }
 *
 * Checksums are XXH3, 64 bits, as 16 hexadecimal digits: they detect errors of disks and networks, not
 * manipulation. */
#include "checkpoint/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/adapter.h"
#include "checkpoint/checkpoint.h"
#include "formats/stored_file.h"

#define FORMAT "weft-checkpoint"
#define VERSION 2 /* 1: without segments */
/* Read size for checking: some milliseconds of a disk. */
#define BUFFER ((size_t)4 << 20)
/* The last line: ` "checksum": "0123456789abcdef"` and the closing brace. */
#define SEAL_FORMAT "  \"checksum\": \"%016" PRIx64 "\"\n}\n"
#define SEAL_LENGTH ((size_t)35)

/* The result is valid until the next file is added. */
static ManifestFile *add_file(Manifest *m, const char *name, uint64_t bytes, uint64_t sum) {
    m->files = mem_grow(m->files, (m->file_count + 1) * sizeof *m->files);
    m->files[m->file_count] = (ManifestFile){.name = mem_strdup(name), .bytes = bytes, .sum = sum};
    return &m->files[m->file_count++];
}

void manifest_add_file(Manifest *m, const char *name, uint64_t bytes, uint64_t sum) {
    add_file(m, name, bytes, sum);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const ManifestTensor *)a)->name, ((const ManifestTensor *)b)->name);
}

/* Sorted by name, like the tensors of safetensors.c: check_tensors walks both in parallel. */
void manifest_add_safetensors(Manifest *m, const char *name, uint64_t bytes, uint64_t header,
                              ManifestTensor *tensors, size_t count) {
    ManifestFile *f = add_file(m, name, bytes, header);
    f->is_safetensors = true;
    f->count = count;
    f->tensors = tensors;
    if (count > 0) qsort(tensors, count, sizeof *tensors, by_name);
}

static void file_free(ManifestFile *f) {
    for (size_t i = 0; i < f->count; i++) {
        free(f->tensors[i].name);
        free(f->tensors[i].segments);
    }
    free(f->tensors);
    free(f->name);
}

void manifest_free(Manifest *m) {
    for (size_t i = 0; i < m->file_count; i++) file_free(&m->files[i]);
    free(m->files);
    *m = (Manifest){0};
}

/* Excluding the manifest itself. */
uint64_t manifest_bytes(const Manifest *m) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->file_count; i++) bytes += m->files[i].bytes;
    return bytes;
}

/* As text: many readers store JSON's numbers as doubles, which cannot represent 64 bits. */
static void write_sum(JsonWriter *w, const char *key, uint64_t sum) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, sum);
    json_key(w, key);
    json_string(w, hex);
}

/* A checksum, or a list of segments. */
static void write_tensor(JsonWriter *w, const ManifestTensor *t) {
    if (t->count == 1 && t->segments[0].bytes == MANIFEST_WHOLE) {
        write_sum(w, t->name, t->segments[0].sum);
        return;
    }
    json_key(w, t->name);
    json_begin_array(w);
    for (size_t i = 0; i < t->count; i++) {
        json_begin_object(w);
        json_key(w, "bytes");
        json_int(w, (int64_t)t->segments[i].bytes);
        write_sum(w, "checksum", t->segments[i].sum);
        json_end_object(w);
    }
    json_end_array(w);
}

/* "header" is the checksum of the first 8 + N bytes of a safetensors file; the tensors' checksums cover its
 * data. */
static void write_file(JsonWriter *w, const ManifestFile *f) {
    json_begin_object(w);
    json_key(w, "name");
    json_string(w, f->name);
    json_key(w, "bytes");
    json_int(w, (int64_t)f->bytes);
    write_sum(w, f->is_safetensors ? "header" : "checksum", f->sum);
    if (f->is_safetensors) {
        json_key(w, "tensors");
        json_begin_object(w);
        for (size_t i = 0; i < f->count; i++) write_tensor(w, &f->tensors[i]);
        json_end_object(w);
    }
    json_end_object(w);
}

/* Indented by two, for people and diff. */
void manifest_write(const Manifest *m, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_key(&w, "format");
    json_string(&w, FORMAT);
    json_key(&w, "version");
    json_int(&w, VERSION);
    json_key(&w, "step");
    json_int(&w, m->step);
    json_key(&w, "time");
    json_string(&w, m->time);
    json_key(&w, "resumable");
    json_bool(&w, m->resumable);
    json_key(&w, "files");
    json_begin_array(&w);
    for (size_t i = 0; i < m->file_count; i++) write_file(&w, &m->files[i]);
    json_end_array(&w);
    /* The seal is not written by the JSON writer: it covers every byte before it, so it must be last, in a
     * form that does not depend on the writer's indentation. */
    text_puts(out, ",\n");
    text_printf(out, SEAL_FORMAT, hash64(out->data, out->length));
}

/* Checked before the text is parsed: nothing unverified is interpreted. */
static ErrorCode check_seal(const char *where, const char *text, size_t length, uint64_t *sum, Error *err) {
    char seal[64];
    if (length <= SEAL_LENGTH) return error_set(err, ERR_DATA, "%s: not a manifest: too short", where);
    /* The seal is computed again from the content and compared with the last bytes as text, without parsing
     * them. */
    size_t body = length - SEAL_LENGTH;
    *sum = hash64(text, body);
    int n = snprintf(seal, sizeof seal, SEAL_FORMAT, *sum);
    CHECK(n == (int)SEAL_LENGTH);
    if (memcmp(text + body, seal, SEAL_LENGTH) == 0) return OK;
    return error_set(err, ERR_DATA, "%s: damaged: its checksum does not match its content", where);
}

/* Lower case and all 16 digits: a checksum has one spelling. */
static ErrorCode parse_sum(const cJSON *item, const char *where, uint64_t *sum, Error *err) {
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    if (!hex_is(text, 16))
        return error_set(err, ERR_DATA, "%s: a checksum is not 16 hexadecimal digits", where);
    *sum = strtoull(text, NULL, 16);
    return OK;
}

/* At least one byte: an empty segment could be repeated without end. 2^52 bytes are beyond any file, and
 * exact in JSON's doubles. */
static ErrorCode parse_segment(ManifestSegment *p, const cJSON *item, const char *where, Error *err) {
    int64_t bytes = 0;
    if (!cJSON_IsObject(item))
        return error_set(err, ERR_DATA, "%s: a segment of a tensor is not an object", where);
    TRY(json_get_int(item, where, "bytes", true, 1, INT64_C(1) << 52, &bytes, err));
    p->bytes = (uint64_t)bytes;
    return parse_sum(cJSON_GetObjectItemCaseSensitive(item, "checksum"), where, &p->sum, err);
}

/* A single checksum covers the whole tensor; version 1 had only that. */
static ErrorCode parse_tensor(ManifestTensor *t, const cJSON *item, const char *where, Error *err) {
    const cJSON *segment;
    bool whole = !cJSON_IsArray(item);
    t->segments = mem_alloc_array(whole ? 1 : (size_t)cJSON_GetArraySize(item), sizeof *t->segments);
    if (whole) {
        t->count = 1;
        t->segments[0].bytes = MANIFEST_WHOLE;
        return parse_sum(item, where, &t->segments[0].sum, err);
    }
    cJSON_ArrayForEach(segment, item) TRY(parse_segment(&t->segments[t->count++], segment, where, err));
    return OK;
}

/* Sorted here whatever the order in the file, since check_tensors relies on it. */
static ErrorCode parse_tensors(ManifestFile *f, const cJSON *tensors, const char *where, Error *err) {
    const cJSON *item;
    f->is_safetensors = true;
    if (!cJSON_IsObject(tensors)) return error_set(err, ERR_DATA, "%s: tensors is not an object", where);
    f->tensors = mem_alloc_array((size_t)cJSON_GetArraySize(tensors), sizeof *f->tensors);
    cJSON_ArrayForEach(item, tensors) {
        ManifestTensor *t = &f->tensors[f->count++];
        t->name = mem_strdup(item->string);
        TRY(parse_tensor(t, item, where, err));
    }
    if (f->count > 0) qsort(f->tensors, f->count, sizeof *f->tensors, by_name);
    return OK;
}

/* "header" if there are tensors, "checksum" if the file is checked as a whole. */
static ErrorCode parse_file(Manifest *m, const cJSON *item, const char *where, Error *err) {
    const char *name = NULL;
    int64_t bytes = 0;
    TRY(json_get_string(item, where, "name", true, &name, err));
    TRY(json_get_int(item, where, "bytes", true, 0, (int64_t)1 << 52, &bytes, err));
    /* The manifest is untrusted like any file: a name with a slash would lead out of the directory. */
    if (!modelfiles_name_is_safe(name))
        return error_set(err, ERR_DATA, "%s: a file name is not a plain one", where);
    const cJSON *tensors = cJSON_GetObjectItemCaseSensitive(item, "tensors");
    /* Added first, so that manifest_free frees it whatever fails afterwards. */
    ManifestFile *f = add_file(m, name, (uint64_t)bytes, 0);
    TRY(parse_sum(cJSON_GetObjectItemCaseSensitive(item, tensors ? "header" : "checksum"), where, &f->sum,
                  err));
    return tensors ? parse_tensors(f, tensors, where, err) : OK;
}

/* The version is checked before everything that depends on it: nothing else of a newer manifest is judged. */
static ErrorCode parse(Manifest *m, const cJSON *root, const char *where, Error *err) {
    const char *format = "", *time = "";
    int64_t version = 0;
    const cJSON *item;
    TRY(json_get_string(root, where, "format", true, &format, err));
    TRY(json_get_int(root, where, "version", true, 0, INT32_MAX, &version, err));
    if (strcmp(format, FORMAT) != 0)
        return error_set(err, ERR_DATA, "%s: not a manifest of a weft checkpoint", where);
    if (version < 1 || version > VERSION)
        return error_set(err, ERR_DATA,
                         "%s: version %" PRId64 ", this weft reads 1 to %d: use the weft that wrote it",
                         where, version, VERSION);
    TRY(json_get_int(root, where, "step", true, 0, INT64_C(1) << 52, &m->step, err));
    TRY(json_get_string(root, where, "time", true, &time, err));
    TRY(json_get_bool(root, where, "resumable", true, &m->resumable, err));
    if (strlen(time) >= sizeof m->time || strspn(time, "0123456789-:TZ") != strlen(time))
        return error_set(err, ERR_DATA, "%s: time is not of the form 2026-01-31T12:34:56Z", where);
    /* `weft checkpoint list` prints it, hence the check of its characters. */
    memcpy(m->time, time, strlen(time) + 1);
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(root, "files");
    if (!cJSON_IsArray(files)) return error_set(err, ERR_DATA, "%s: files is not a list", where);
    cJSON_ArrayForEach(item, files) TRY(parse_file(m, item, where, err));
    return OK;
}

/* *m is empty after a failure. */
ErrorCode manifest_parse(Manifest *m, const char *where, const char *text, size_t length, Error *err) {
    cJSON *root = NULL;
    *m = (Manifest){0};
    ErrorCode code = check_seal(where, text, length, &m->seal, err);
    if (code == OK) code = json_parse(where, text, length, &root, err);
    if (code == OK) code = parse(m, root, where, err);
    if (code != OK) manifest_free(m);
    cJSON_Delete(root);
    return code;
}

ErrorCode manifest_read(Manifest *m, const char *dir, Error *err) {
    char *text, *where, shown[512];
    size_t length;
    *m = (Manifest){0};
    TRY(fileops_read_in(dir, MANIFEST_FILE, MANIFEST_LIMIT, &text, &length, err));
    where = path_join(error_escape(shown, sizeof shown, dir, strlen(dir)), MANIFEST_FILE);
    ErrorCode code = manifest_parse(m, where, text, length, err);
    free(text);
    free(where);
    return code;
}

/* The length is compared before anything is read: the cheap part of the check, and for CHECK_MANIFEST all of
 * it. */
static ErrorCode open_listed(const ManifestFile *f, const char *dir, int *fd, Error *err) {
    uint64_t size = 0;
    TRY(fileops_open_in(dir, f->name, fd, &size, err));
    if (size == f->bytes) return OK;
    close(*fd);
    return error_set(err, ERR_DATA, "%s/%s: %" PRIu64 " bytes, the manifest says %" PRIu64, dir, f->name,
                     size, f->bytes);
}

/* Linear: a checkpoint has a handful of files, or some hundred shards. */
static bool lists(const Manifest *m, const char *name) {
    for (size_t i = 0; i < m->file_count; i++)
        if (strcmp(m->files[i].name, name) == 0) return true;
    return false;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Two entries of one name could have different checksums, and the file might match only one of them. */
static ErrorCode check_once(const Manifest *m, const char *dir, Error *err) {
    const char **names = mem_alloc_array(m->file_count + 1, sizeof *names);
    ErrorCode code = OK;
    for (size_t i = 0; i < m->file_count; i++) names[i] = m->files[i].name;
    qsort(names, m->file_count, sizeof *names, by_text);
    for (size_t i = 1; i < m->file_count && code == OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            code = error_set(err, ERR_DATA, "%s/%s: lists %s twice", dir, MANIFEST_FILE, names[i]);
    free(names);
    return code;
}

/* A dangling link counts as existing: code that reads the directory would fail on it. */
static bool is_there(const char *dir, const char *name) {
    struct stat info;
    char *path = path_join(dir, name);
    bool there = lstat(path, &info) == 0;
    free(path);
    return there;
}

/* check_shards checks the shards, which the index names. */
ErrorCode manifest_check_complete(const Manifest *m, const char *dir, Error *err) {
    /* `resuming`: required in a checkpoint that can be resumed. The others must be listed if they exist: a
     * file that weft reads without a checksum could have been replaced by anybody. */
    static const struct {
        const char *name;
        bool resuming;
    } read_by_weft[] = {{MODEL_FILE, false},         {MODEL_INDEX, false},     {"config.json", false},
                        {"tokenizer.json", false},   {CHECKPOINT_STATE, true}, {CHECKPOINT_OPTIMIZER, true},
                        {CHECKPOINT_AVERAGE, false}, {ADAPTER_FILE, false},    {ADAPTER_CONFIG, false}};
    TRY(check_once(m, dir, err));
    if (!lists(m, MODEL_FILE) && !lists(m, MODEL_INDEX) && !lists(m, ADAPTER_FILE))
        return error_set(err, ERR_DATA, "%s/%s: lists no weights: neither %s nor %s", dir, MANIFEST_FILE,
                         MODEL_FILE, MODEL_INDEX);
    for (size_t i = 0; i < sizeof read_by_weft / sizeof *read_by_weft; i++) {
        const char *name = read_by_weft[i].name;
        bool needed = m->resumable && read_by_weft[i].resuming;
        if (lists(m, name) || (!needed && !is_there(dir, name))) continue;
        return error_set(err, ERR_DATA,
                         needed ? "%s/%s: does not list %s, though it says that it can be resumed"
                                : "%s/%s: does not list %s, which is there",
                         dir, MANIFEST_FILE, name);
    }
    return OK;
}

/* Opened, not only looked up: a link or a pipe of that name is no file of a checkpoint. */
ErrorCode manifest_check_sizes(const Manifest *m, const char *dir, Error *err) {
    for (size_t i = 0; i < m->file_count; i++) {
        int fd;
        TRY(open_listed(&m->files[i], dir, &fd, err));
        close(fd);
    }
    return OK;
}

/* Checksum of `bytes` bytes at `offset`. In blocks, so that a tensor of any size needs BUFFER bytes. */
static ErrorCode sum_range(int fd, const char *where, uint64_t offset, uint64_t bytes, char *buffer,
                           uint64_t *sum, Error *err) {
    XXH3_state_t *hash = XXH3_createState();
    ErrorCode code = OK;
    CHECK(hash != NULL);
    XXH3_64bits_reset(hash);
    while (bytes > 0 && code == OK) {
        size_t n = bytes < BUFFER ? (size_t)bytes : BUFFER;
        code = stored_read_at(fd, where, offset, buffer, n, err);
        if (code == OK) XXH3_64bits_update(hash, buffer, n);
        offset += n;
        bytes -= n;
    }
    *sum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return code;
}

/* The error names file and tensor, so that the user can tell whether one shard or the disk is damaged. */
static ErrorCode check_range(int fd, const char *where, const char *part, uint64_t offset, uint64_t bytes,
                             uint64_t expect, char *buffer, Error *err) {
    uint64_t sum = 0;
    char shown[128];
    TRY(sum_range(fd, where, offset, bytes, buffer, &sum, err));
    if (sum == expect) return OK;
    return error_set(err, ERR_DATA, "%s: %s is damaged: checksum %016" PRIx64 ", expected %016" PRIx64, where,
                     error_escape(shown, sizeof shown, part, strlen(part)), sum, expect);
}

/* The ranges of the files to check, in order. A range belongs to the rank's part in which it begins. */
typedef struct Checking {
    char *buffer;
    int rank, ranks;
    uint64_t bytes_per_rank;
    uint64_t start; /* bytes of the files before this one */
} Checking;

/* All bytes are divided equally, not files: one shard may be most of a checkpoint. The last part takes the
 * remainder. */
static bool is_mine(const Checking *c, uint64_t offset) {
    uint64_t part = (c->start + offset) / c->bytes_per_rank, last = (uint64_t)c->ranks - 1;
    return (part < last ? part : last) == (uint64_t)c->rank;
}

/* The segments must end where the tensor ends; one that extends beyond it ends the loop before it is read. */
static ErrorCode check_tensor(const Checking *c, const ManifestTensor *listed, const SafeFile *s,
                              const SafeTensor *t, Error *err) {
    uint64_t at = s->data_start + t->begin, end = s->data_start + t->end;
    for (size_t i = 0; i < listed->count; i++) {
        const ManifestSegment *p = &listed->segments[i];
        uint64_t bytes = p->bytes == MANIFEST_WHOLE ? end - at : p->bytes;
        if (bytes > end - at) break;
        if (is_mine(c, at)) TRY(check_range(s->fd, s->where, t->name, at, bytes, p->sum, c->buffer, err));
        at += bytes;
    }
    if (at == end && listed->count > 0) return OK;
    char shown[128];
    return error_set(err, ERR_DATA, "%s: %s: the segments in the manifest do not make up the tensor",
                     s->where, error_escape(shown, sizeof shown, t->name, strlen(t->name)));
}

/* The file must have exactly the listed tensors: one that was added by hand is damage. */
static ErrorCode check_tensors(const Checking *c, const ManifestFile *f, const SafeFile *s, Error *err) {
    if (s->count != f->count)
        return error_set(err, ERR_DATA, "%s: %zu tensors, the manifest lists %zu", s->where, s->count,
                         f->count);
    for (size_t i = 0; i < s->count; i++) {
        /* Both are in order of names, without duplicates. */
        if (strcmp(s->tensors[i].name, f->tensors[i].name) != 0)
            return error_set(err, ERR_DATA, "%s: its tensors are not those of the manifest", s->where);
        TRY(check_tensor(c, &f->tensors[i], s, &s->tensors[i], err));
    }
    return OK;
}

/* Takes ownership of fd. Every rank checks the header, which locates the tensors. */
static ErrorCode check_safetensors(const Checking *c, const ManifestFile *f, const char *where, int fd,
                                   Error *err) {
    SafeFile s;
    unsigned char field[8];
    uint64_t header = 0;
    ErrorCode code = f->bytes < 8 ? error_set(err, ERR_DATA, "%s: too short", where)
                                  : stored_read_at(fd, where, 0, field, 8, err);
    /* The length of the header. The header's checksum covers it, but computing that checksum
     * needs it. */
    if (code == OK) header = little_endian(field, sizeof field);
    if (code == OK && header > f->bytes - 8)
        code = error_set(err, ERR_DATA, "%s: header is damaged: its size", where);
    if (code == OK) code = check_range(fd, where, "header", 0, header + 8, f->sum, c->buffer, err);
    if (code != OK) {
        close(fd);
        return code;
    }
    /* Only a header with the right checksum is parsed, as strictly as any. */
    TRY(safe_open_fd(&s, where, fd, f->bytes, err));
    code = check_tensors(c, f, &s, err);
    safe_close(&s);
    return code;
}

/* `where` is for messages; the file was opened inside the directory. */
static ErrorCode check_file(const Checking *c, const ManifestFile *f, const char *dir, Error *err) {
    int fd;
    TRY(open_listed(f, dir, &fd, err));
    char *where = path_join(dir, f->name);
    ErrorCode code = OK;
    if (f->is_safetensors) {
        code = check_safetensors(c, f, where, fd, err);
    } else {
        if (is_mine(c, 0)) code = check_range(fd, where, "content", 0, f->bytes, f->sum, c->buffer, err);
        close(fd);
    }
    free(where);
    return code;
}

/* Weights are read from the files that the index names: each of them must have been checked. */
static ErrorCode check_shards(const Manifest *m, const char *dir, Error *err) {
    ModelFiles files;
    ErrorCode code = OK;
    if (!lists(m, MODEL_INDEX)) return OK;
    TRY(modelfiles_open(&files, dir, err));
    for (int i = 0; i < files.file_count && code == OK; i++) {
        const char *name = strrchr(files.files[i].where, '/') + 1;
        if (!lists(m, name))
            code = error_set(err, ERR_DATA, "%s/%s: does not list %s, which the index names", dir,
                             MANIFEST_FILE, name);
    }
    modelfiles_close(&files);
    return code;
}

/* Rank `rank` of `ranks` reads its part of the bytes. One buffer for all files. */
ErrorCode manifest_check_contents(const Manifest *m, const char *dir, int rank, int ranks, Error *err) {
    CHECK(rank >= 0 && rank < ranks);
    /* Plus one, so that a part is never empty and the parts cover everything. */
    Checking c = {mem_alloc(BUFFER), rank, ranks, manifest_bytes(m) / (uint64_t)ranks + 1, 0};
    ErrorCode code = OK;
    for (size_t i = 0; i < m->file_count && code == OK; i++) {
        code = check_file(&c, &m->files[i], dir, err);
        c.start += m->files[i].bytes;
    }
    free(c.buffer);
    /* Every rank checks this: it reads an index, not the weights. */
    return code == OK ? check_shards(m, dir, err) : code;
}

ErrorCode manifest_check_file(const Manifest *m, size_t file, const char *dir, Error *err) {
    Checking c = {mem_alloc(BUFFER), 0, 1, UINT64_MAX, 0};
    ErrorCode code = check_file(&c, &m->files[file], dir, err);
    free(c.buffer);
    return code;
}

/* Reading safetensors.
 *
 * Order of the checks, each relying on the previous ones: the size field against the file; the text as strict
 * JSON (json_parse: grammar, UTF-8, duplicates, nesting); numbers as they are written (cJSON would turn 2.0,
 * 2e0 and -0 into plain numbers); each entry alone (type, shape, size); all entries together (offsets cover
 * the data exactly once).
 *
 * All sizes in a file are untrusted. Each is bounded before it is multiplied, and each product is checked
 * before it is used. Memory is allocated for a header, never for sizes that a header claims.
 *
 *     0            8                8 + N                                    end of the file
 *     | N, 8 bytes | N bytes of JSON | data of tensors, no byte left over    |
 *       little-endian
 *
 *     {"__metadata__": {"format": "pt"},
 *      "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * data_offsets count from the end of the JSON. */
#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/json.h"
#include "formats/stored_file.h"

/* Integers up to here are exact in the doubles of cJSON; no offset of a real file comes near. */
#define MAX_WHOLE 9007199254740992.0

/* In the order of the format's own list, by descending alignment: writers sort by it. */
static const struct {
    const char *name;
    int bits;
} types[SAFE_TYPES] = {
    [SAFE_I64] = {"I64", 64},
    [SAFE_U64] = {"U64", 64},
    [SAFE_F64] = {"F64", 64},
    [SAFE_C64] = {"C64", 64},
    [SAFE_I32] = {"I32", 32},
    [SAFE_U32] = {"U32", 32},
    [SAFE_F32] = {"F32", 32},
    [SAFE_I16] = {"I16", 16},
    [SAFE_U16] = {"U16", 16},
    [SAFE_F16] = {"F16", 16},
    [SAFE_BF16] = {"BF16", 16},
    [SAFE_BOOL] = {"BOOL", 8},
    [SAFE_U8] = {"U8", 8},
    [SAFE_I8] = {"I8", 8},
    [SAFE_F8_E5M2] = {"F8_E5M2", 8},
    [SAFE_F8_E4M3] = {"F8_E4M3", 8},
    [SAFE_F8_E8M0] = {"F8_E8M0", 8},
    [SAFE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [SAFE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [SAFE_F6_E2M3] = {"F6_E2M3", 6},
    [SAFE_F6_E3M2] = {"F6_E3M2", 6},
    [SAFE_F4] = {"F4", 4},
};

const char *safe_type_name(SafeType type) { return types[type].name; }
int safe_type_bits(SafeType type) { return types[type].bits; }

/* An error about one tensor. Its name comes from the file, so it is escaped. */
static ErrorCode bad(const SafeFile *f, const char *name, const char *what, Error *err) {
    char shown[128];
    return error_set(err, ERR_DATA, "%s: tensor \"%s\": %s", f->where,
                     error_escape(shown, sizeof shown, name, strlen(name)), what);
}

/* Outside strings every number must consist of digits alone: no sign, fraction or exponent. The text is
 * well-formed JSON. */
static ErrorCode check_plain_numbers(const SafeFile *f, const char *text, size_t length, Error *err) {
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (in_string)
            continue;
        else if (c == '-' || c == '.' || ((c == 'e' || c == 'E') && text[i - 1] >= '0' && text[i - 1] <= '9'))
            return error_set(
                err, ERR_DATA,
                "%s: header byte %zu: expected a whole number without sign, fraction or exponent", f->where,
                i);
    }
    return OK;
}

/* Not negative and at most 2^53; check_plain_numbers has ensured that it is an integer. */
static bool read_whole(const cJSON *item, uint64_t *out) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0 && item->valuedouble <= MAX_WHOLE)) return false;
    *out = (uint64_t)item->valuedouble;
    return true;
}

/* An unknown type is an error, and the tensor is not skipped, since its size could not be checked. */
static ErrorCode read_type(const SafeFile *f, SafeTensor *t, const cJSON *item, Error *err) {
    if (!cJSON_IsString(item)) return bad(f, t->name, "dtype is missing or not a string", err);
    for (int i = 0; i < SAFE_TYPES; i++) {
        t->type = (SafeType)i;
        if (strcmp(item->valuestring, types[i].name) == 0) return OK;
    }
    return bad(f, t->name, "unknown dtype", err);
}

/* A scalar has no dimensions and one element. A dimension of 0 is allowed; the dimensions after it cannot
 * overflow the product then. */
static ErrorCode read_shape(const SafeFile *f, SafeTensor *t, const cJSON *item, Error *err) {
    const cJSON *dim;
    if (!cJSON_IsArray(item)) return bad(f, t->name, "shape is missing or not a list", err);
    t->elements = 1;
    cJSON_ArrayForEach(dim, item) {
        if (t->rank == SAFE_MAX_RANK) return bad(f, t->name, "more than 16 dimensions", err);
        uint64_t *size = &t->shape[t->rank++];
        if (!read_whole(dim, size))
            return bad(f, t->name, "a dimension is not a whole number from 0 to 2^53", err);
        if (__builtin_mul_overflow(t->elements, *size, &t->elements))
            return bad(f, t->name, "the product of the dimensions overflows 64 bits", err);
    }
    return OK;
}

/* Checked against the file's size: nothing beyond its end is ever read. */
static ErrorCode read_offsets(const SafeFile *f, SafeTensor *t, const cJSON *item, Error *err) {
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2)
        return bad(f, t->name, "data_offsets is missing or not a list of two", err);
    if (!read_whole(item->child, &t->begin) || !read_whole(item->child->next, &t->end))
        return bad(f, t->name, "an offset is not a whole number from 0 to 2^53", err);
    if (t->end < t->begin) return bad(f, t->name, "its data ends before it begins", err);
    if (t->end > f->data_bytes) return bad(f, t->name, "its data reaches beyond the end of the file", err);
    return OK;
}

/* Types below a byte (F4, F6) count in bits, so sizes are in bits until they are known to be whole bytes. */
static ErrorCode check_extent(const SafeFile *f, const SafeTensor *t, Error *err) {
    uint64_t bits;
    if (__builtin_mul_overflow(t->elements, (uint64_t)types[t->type].bits, &bits))
        return bad(f, t->name, "its size in bits overflows 64 bits", err);
    if (bits % 8 != 0) return bad(f, t->name, "its size is not a whole number of bytes", err);
    if (t->end - t->begin != bits / 8)
        return bad(f, t->name, "its data_offsets do not match its shape and dtype", err);
    return OK;
}

/* Unknown fields are counted and ignored, like in the reference reader: later versions of the format may add
 * some. */
static ErrorCode read_entry(SafeFile *f, SafeTensor *t, const cJSON *entry, Error *err) {
    const cJSON *field, *type = NULL, *shape = NULL, *offsets = NULL;
    t->name = mem_strdup(entry->string);
    if (!cJSON_IsObject(entry)) return bad(f, t->name, "its entry is not an object", err);
    cJSON_ArrayForEach(field, entry) {
        if (strcmp(field->string, "dtype") == 0)
            type = field;
        else if (strcmp(field->string, "shape") == 0)
            shape = field;
        else if (strcmp(field->string, "data_offsets") == 0)
            offsets = field;
        else
            f->unknown_fields++;
    }
    TRY(read_type(f, t, type, err));
    TRY(read_shape(f, t, shape, err));
    TRY(read_offsets(f, t, offsets, err));
    return check_extent(f, t, err);
}

/* Kept for callers; weft itself reads nothing from it. */
static ErrorCode read_metadata(SafeFile *f, const cJSON *object, Error *err) {
    const cJSON *item;
    if (!cJSON_IsObject(object))
        return error_set(err, ERR_DATA, "%s: __metadata__ is not an object", f->where);
    f->metadata = mem_alloc_array((size_t)cJSON_GetArraySize(object), 2 * sizeof *f->metadata);
    cJSON_ArrayForEach(item, object) {
        if (!cJSON_IsString(item))
            return error_set(err, ERR_DATA, "%s: __metadata__ holds a value not a string", f->where);
        f->metadata[2 * f->metadata_count] = mem_strdup(item->string);
        f->metadata[2 * f->metadata_count++ + 1] = mem_strdup(item->valuestring);
    }
    return OK;
}

/* __metadata__ is the only name that is not a tensor. */
static ErrorCode read_entries(SafeFile *f, const cJSON *root, Error *err) {
    const cJSON *entry;
    if (!cJSON_IsObject(root))
        return error_set(err, ERR_DATA, "%s: the header is not a JSON object", f->where);
    f->tensors = mem_alloc_array((size_t)cJSON_GetArraySize(root), sizeof *f->tensors);
    cJSON_ArrayForEach(entry, root) {
        if (strcmp(entry->string, "__metadata__") == 0)
            TRY(read_metadata(f, entry, err));
        else
            TRY(read_entry(f, &f->tensors[f->count++], entry, err));
    }
    return OK;
}

/* By end among those that begin at the same byte, so that empty tensors come before a non-empty one there. */
static int by_offset(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

/* Each byte of the data belongs to exactly one tensor. Empty tensors may be where another begins. So, sorted
 * by offset:
 *
 *     0 .. a | a .. b | b .. b (empty) | b .. c |        each begins where the previous one ends, the
 *                                                        last ends where the file does */
static ErrorCode check_coverage(SafeFile *f, Error *err) {
    uint64_t covered = 0;
    /* Sorted first by offset, for the check, then permanently by name, for safe_find. */
    if (f->count > 0) qsort(f->tensors, f->count, sizeof *f->tensors, by_offset);
    for (size_t i = 0; i < f->count; i++) {
        const SafeTensor *t = &f->tensors[i];
        if (t->begin > covered) return bad(f, t->name, "there is a hole in the data before it", err);
        if (t->begin < covered) return bad(f, t->name, "its data overlaps that of another", err);
        covered = t->end;
    }
    if (covered != f->data_bytes)
        return error_set(err, ERR_DATA,
                         "%s: the tensors cover %" PRIu64 " bytes of data, the file holds %" PRIu64, f->where,
                         covered, f->data_bytes);
    if (f->count > 0) qsort(f->tensors, f->count, sizeof *f->tensors, by_name);
    return OK;
}

/* The brace first: json_parse would allow blanks and a byte order mark before it, which the format does
 * not. */
static ErrorCode parse_header(SafeFile *f, const char *header, size_t length, Error *err) {
    cJSON *root = NULL;
    if (length == 0 || header[0] != '{')
        return error_set(err, ERR_DATA, "%s: not a safetensors file: the header does not start with a brace",
                         f->where);
    TRY(json_parse(f->where, header, length, &root, err));
    ErrorCode code = check_plain_numbers(f, header, length, err);
    if (code == OK) code = read_entries(f, root, err);
    cJSON_Delete(root);
    return code == OK ? check_coverage(f, err) : code;
}

/* Escaped once, here, since it is part of every message about this file. */
static char *shown_path(const char *path) {
    char shown[512];
    return mem_strdup(error_escape(shown, sizeof shown, path, strlen(path)));
}

/* `data_bytes` follow the header. *f is closed after a failure. */
static ErrorCode parse_in_memory(SafeFile *f, const char *where, const char *header, size_t length,
                                 uint64_t data_bytes, Error *err) {
    *f = (SafeFile){
        .where = shown_path(where), .fd = -1, .data_start = 8 + (uint64_t)length, .data_bytes = data_bytes};
    ErrorCode code = parse_header(f, header, length, err);
    if (code != OK) safe_close(f);
    return code;
}

/* Eight bytes of text, read as a length, give some 10^18, beyond any file. */
static bool is_text(const uint8_t bytes[8]) {
    for (int i = 0; i < 8; i++) {
        bool printable =
            bytes[i] >= ' ' && bytes[i] != 0x7f && bytes[i] <= 0xf4; /* UTF-8 has no bytes above */
        if (!printable && !memchr("\t\n\r", bytes[i], 3)) return false;
    }
    return true;
}

/* N, checked against the file. A wrong kind of file is by far the most likely mistake (a Git LFS pointer, an
 * HTML page, an index), and the error names it. */
static ErrorCode read_header_size(int fd, const char *where, uint64_t file_bytes, size_t *size, Error *err) {
    uint8_t field[8];
    char shown[512];
    error_escape(shown, sizeof shown, where, strlen(where));
    if (file_bytes < 8)
        return error_set(err, ERR_DATA, "%s: not a safetensors file: %" PRIu64 " bytes, expected 8 or more",
                         shown, file_bytes);
    TRY(stored_read_at(fd, where, 0, field, 8, err));
    uint64_t n = little_endian(field, 8);
    if (n > SAFE_MAX_HEADER && is_text(field))
        return error_set(err, ERR_DATA,
                         "%s: not a safetensors file: it begins like %s, expected the length of a header",
                         shown, field[0] == '{' ? "JSON" : "text");
    if (n > SAFE_MAX_HEADER)
        return error_set(err, ERR_DATA,
                         "%s: the header says it is %" PRIu64 " bytes long, expected at most %u", shown, n,
                         SAFE_MAX_HEADER);
    if (n > file_bytes - 8)
        return error_set(err, ERR_DATA,
                         "%s: the header says it is %" PRIu64 " bytes long, the file has %" PRIu64
                         " after the first 8: truncated?",
                         shown, n, file_bytes - 8);
    *size = (size_t)n;
    return OK;
}

/* Only the header is read, at most SAFE_MAX_HEADER bytes; data is read on request. */
static ErrorCode open_fd(SafeFile *f, const char *where, int fd, uint64_t file_bytes, Error *err) {
    size_t size;
    TRY(read_header_size(fd, where, file_bytes, &size, err));
    char *header = mem_alloc(size);
    ErrorCode code = stored_read_at(fd, where, 8, header, size, err);
    if (code == OK) code = parse_in_memory(f, where, header, size, file_bytes - 8 - size, err);
    free(header);
    return code;
}

/* Takes ownership of fd, also on failure. */
ErrorCode safe_open_fd(SafeFile *f, const char *where, int fd, uint64_t file_bytes, Error *err) {
    *f = (SafeFile){.fd = -1};
    ErrorCode code = open_fd(f, where, fd, file_bytes, err);
    if (code == OK)
        f->fd = fd;
    else
        close(fd);
    return code;
}

/* O_NONBLOCK, so that a pipe of that name is refused instead of blocking. */
ErrorCode safe_open(SafeFile *f, const char *path, Error *err) {
    struct stat info;
    char shown[512];
    error_escape(shown, sizeof shown, path, strlen(path));
    *f = (SafeFile){.fd = -1};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_errno(err, ERR_NOINPUT, "%s: cannot open", shown);
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        return safe_open_fd(f, path, fd, (uint64_t)info.st_size, err);
    close(fd);
    return error_set(err, ERR_NOINPUT, "%s: expected a regular file", shown);
}

/* May be called any number of times. */
void safe_close(SafeFile *f) {
    for (size_t i = 0; i < f->count; i++) free(f->tensors[i].name);
    for (size_t i = 0; i < 2 * f->metadata_count; i++) free(f->metadata[i]);
    free(f->tensors);
    free(f->metadata);
    free(f->where);
    if (f->fd >= 0) close(f->fd);
    *f = (SafeFile){.fd = -1};
}

/* By bisection: check_coverage has sorted the tensors by name. */
const SafeTensor *safe_find(const SafeFile *f, const char *name) {
    if (f->count == 0) return NULL;
    for (size_t low = 0, high = f->count; low < high;) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, f->tensors[middle].name);
        if (order == 0) return &f->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

ErrorCode safe_read(const SafeFile *f, const SafeTensor *t, uint64_t offset, void *host, size_t bytes,
                    Error *err) {
    /* A read beyond a tensor would silently return its neighbour. */
    CHECK(offset <= t->end - t->begin && bytes <= t->end - t->begin - offset);
    return stored_read_at(f->fd, f->where, f->data_start + t->begin + offset, host, bytes, err);
}

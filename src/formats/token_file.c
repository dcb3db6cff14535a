/* Reads a file of ids in blocks of a fixed place and size, so that parts of documents do not depend on where
 * reading began. A block has the id behind it, too: it tells whether a document ends with the block. */
#include "formats/token_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/text.h"
#include "formats/stored_file.h"
#include "formats/token_index.h"

#ifdef WEFT_SMALL_BUFFERS /* for fuzzing (CMakeLists.txt) */
enum { BLOCK_IDS = 1 << 8 };
#else
enum { BLOCK_IDS = 1 << 16 };
#endif
enum { LLMC_HEADER = 1024, MOST_NPY_HEADER = 64 << 10 };

static const char *const type_names[] = {TOKEN_TYPES(CHOICE_NAME)};

struct TokenFile {
    StoredFile file;
    TokenIndex *index; /* NULL: an id tells the documents */
    TokenType type;
    unsigned width;       /* bytes of an id */
    uint64_t data, total; /* where ids begin; their number */
    int32_t end;
    uint64_t vocabulary;
    bool starts; /* the id between documents stands in front */
    uint64_t next;
    uint64_t block;      /* first id of the block that is in `ids` */
    size_t count, known; /* ids of the block; with the one behind it */
    char *raw;
    int32_t *ids; /* [BLOCK_IDS + 1] */
};

/* ---- headers ---- */

static void set_type(TokenFile *f, TokenType type) {
    f->type = type;
    f->width = type == TOKEN_UINT16 ? 2 : 4;
}

/* The ids fill the file: what follows them would be lost in silence. */
static ErrorCode check_length(const TokenFile *f, Error *err) {
    uint64_t bytes = f->file.size - f->data;
    if (bytes % f->width == 0 && bytes / f->width == f->total) return OK;
    return error_set(err, ERR_DATA,
                     "%s: its header states %" PRIu64 " ids of %u bytes, but %" PRIu64
                     " bytes follow it; fetch the file again",
                     f->file.path, f->total, f->width, bytes);
}

/* A Python dict literal with three keys in any order. */
typedef struct Npy {
    const char *at, *end, *wrong;
    char type[8];
    bool fortran, has_type, has_order, has_shape;
    uint64_t total;
    int dimensions;
} Npy;

static bool npy_takes(Npy *n, const char *word) {
    size_t length = strlen(word);
    while (n->at < n->end && (*n->at == ' ' || *n->at == '\n')) n->at++;
    if ((size_t)(n->end - n->at) < length || memcmp(n->at, word, length) != 0) return false;
    n->at += length;
    return true;
}

static void npy_fails(Npy *n, const char *wrong) {
    if (!n->wrong) n->wrong = wrong;
}

static void npy_descr(Npy *n) {
    size_t i = 0;
    bool quoted = npy_takes(n, "'");
    while (quoted && n->at < n->end && *n->at != '\'' && i + 1 < sizeof n->type) n->type[i++] = *n->at++;
    if (!quoted || !npy_takes(n, "'")) npy_fails(n, "its type is not a plain one");
    n->has_type = true;
}

static void npy_order(Npy *n) {
    n->fortran = npy_takes(n, "True");
    if (!n->fortran && !npy_takes(n, "False")) npy_fails(n, "its order is neither True nor False");
    n->has_order = true;
}

static void npy_size(Npy *n) {
    uint64_t value = 0;
    bool any = false, fits = true;
    (void)npy_takes(n, "");
    for (; n->at < n->end && *n->at >= '0' && *n->at <= '9'; n->at++, any = true)
        fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, (uint64_t)(*n->at - '0'), &value);
    if (!any) npy_fails(n, "its shape is not one of numbers");
    if (!fits || __builtin_mul_overflow(n->total, value, &n->total)) npy_fails(n, "its shape is too large");
    n->dimensions++;
}

static void npy_shape(Npy *n) {
    n->total = 1;
    n->has_shape = true;
    if (!npy_takes(n, "(")) npy_fails(n, "its shape is not a tuple");
    do {
        if (n->wrong || npy_takes(n, ")")) return;
        npy_size(n);
    } while (npy_takes(n, ","));
    if (!npy_takes(n, ")")) npy_fails(n, "its shape does not end");
}

static void npy_parse(Npy *n) {
    if (!npy_takes(n, "{")) npy_fails(n, "its header is not a dictionary");
    while (!n->wrong && !npy_takes(n, "}")) {
        if (npy_takes(n, "'descr':"))
            npy_descr(n);
        else if (npy_takes(n, "'fortran_order':"))
            npy_order(n);
        else if (npy_takes(n, "'shape':"))
            npy_shape(n);
        else
            npy_fails(n, "its header has an unknown key");
        (void)npy_takes(n, ",");
    }
    (void)npy_takes(n, "");
    if (n->at != n->end || !n->has_type || !n->has_order || !n->has_shape)
        npy_fails(n, "its header is incomplete");
    if (n->fortran && n->dimensions > 1) npy_fails(n, "it is in the order of Fortran");
}

static ErrorCode npy_type(TokenFile *f, const Npy *n, Error *err) {
    static const struct {
        const char *name;
        TokenType type;
    } types[] = {{"<u2", TOKEN_UINT16}, {"<u4", TOKEN_UINT32}, {"<i4", TOKEN_INT32}};
    char shown[40];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(n->type, types[i].name) == 0) {
            set_type(f, types[i].type);
            return OK;
        }
    error_escape(shown, sizeof shown, n->type, strlen(n->type));
    return error_set(err, ERR_DATA, "%s: a NumPy array of %s: expected ids as uint16, uint32 or int32%s",
                     f->file.path, shown, n->type[0] == '>' ? ", of the lower byte first" : "");
}

static ErrorCode read_npy(TokenFile *f, Error *err) {
    unsigned char head[12];
    if (f->file.size < sizeof head)
        return error_set(err, ERR_DATA, "%s: truncated NumPy array; fetch the file again", f->file.path);
    TRY(stored_read(&f->file, 0, head, sizeof head, err));
    bool wide = head[6] > 1;
    uint64_t length = little_endian(head + 8, wide ? 4 : 2), begin = wide ? 12 : 10;
    if (head[6] < 1 || head[6] > 3 || length > MOST_NPY_HEADER || length > f->file.size - begin)
        return error_set(err, ERR_DATA,
                         "%s: damaged NumPy array: version %d, a header of %" PRIu64
                         " bytes; fetch the file again",
                         f->file.path, head[6], length);
    char *text = mem_alloc((size_t)length + 1);
    ErrorCode code = stored_read(&f->file, begin, text, (size_t)length, err);
    Npy n = {.at = text, .end = text + length};
    if (code == OK) npy_parse(&n);
    if (code == OK && n.wrong)
        code =
            error_set(err, ERR_DATA, "%s: a NumPy array that weft does not read: %s", f->file.path, n.wrong);
    if (code == OK) code = npy_type(f, &n, err);
    f->data = begin + length;
    f->total = n.total;
    free(text);
    return code != OK ? code : check_length(f, err);
}

/* By magic number and version: 16 bits (GPT-2) or 32 (Llama 3). */
static ErrorCode read_llmc(TokenFile *f, uint64_t magic, Error *err) {
    unsigned char head[12];
    if (f->file.size < LLMC_HEADER)
        return error_set(err, ERR_DATA, "%s: truncated token file of llm.c; fetch the file again",
                         f->file.path);
    TRY(stored_read(&f->file, 0, head, sizeof head, err));
    uint64_t version = little_endian(head + 4, 4);
    if (magic == 20240522)
        return error_set(err, ERR_DATA, "%s: an evaluation file of llm.c, not ids to train on", f->file.path);
    uint64_t known = magic == 20240520 ? 1 : 7;
    if (version != known)
        return error_set(err, ERR_DATA,
                         "%s: a token file of llm.c of version %" PRIu64 ": expected version %" PRIu64
                         "; write it again with llm.c's present scripts",
                         f->file.path, version, known);
    set_type(f, magic == 20240520 ? TOKEN_UINT16 : TOKEN_UINT32);
    f->data = LLMC_HEADER;
    f->total = little_endian(head + 8, 4);
    return check_length(f, err);
}

/* All printable: as ids of 16 bits, each would have two such bytes. */
static bool is_text(const FileEnds *e) {
    enum { ENOUGH = 64 };
    for (size_t i = 0; i < e->head_length; i++)
        if (file_is_control(e->head[i]) || e->head[i] > 126) return false;
    return e->head_length >= ENOUGH;
}

/* Any bytes could be ids, so those of a known format would be trained on in silence. */
static ErrorCode check_foreign(const TokenFile *f, Error *err) {
    FileEnds ends;
    TRY(stored_ends(&f->file, &ends, err));
    const FileFormat *format = file_format_of(&ends);
    if (format && format->kind == KIND_STAND_IN)
        return error_set(err, ERR_DATA, "%s: this is %s: %s", f->file.path, format->name, format->advice);
    if (format && file_format_is_certain(format, &ends))
        return error_set(
            err, ERR_DATA, "%s: this is %s, not ids: leave format: tokens out%s", f->file.path, format->name,
            format->kind == KIND_ZSTD || format->kind == KIND_GZIP ? ", or decompress it if ids are in it"
                                                                   : "");
    if (!is_text(&ends)) return OK;
    return error_set(err, ERR_DATA, "%s: this is text, not ids: leave format: tokens out", f->file.path);
}

static ErrorCode read_plain(TokenFile *f, TokenType type, Error *err) {
    TRY(check_foreign(f, err));
    if (type == TOKEN_TYPE_AUTO)
        return error_set(err, ERR_DATA,
                         "%s: no header gives the type of its ids: give the source dtype: uint16, uint32 or "
                         "int32 (of Megatron, put the .idx next to it)",
                         f->file.path);
    set_type(f, type);
    f->total = f->file.size / f->width;
    if (f->file.size % f->width == 0) return OK;
    return error_set(err, ERR_DATA,
                     "%s: %" PRIu64 " bytes are not a multiple of %u, the bytes of an id: set dtype to the "
                     "type of the ids, or fetch the file again",
                     f->file.path, f->file.size, f->width);
}

static ErrorCode read_indexed(TokenFile *f, const char *index, Error *err) {
    TRY(token_index_open(&f->index, index, f->file.size, err));
    set_type(f, token_index_type(f->index));
    f->total = f->file.size / f->width;
    f->end = -1;
    return OK;
}

static ErrorCode read_header(TokenFile *f, TokenType type, bool *llmc, Error *err) {
    unsigned char head[8] = {0};
    TRY(stored_read(&f->file, 0, head, f->file.size < sizeof head ? (size_t)f->file.size : sizeof head, err));
    uint64_t magic = little_endian(head, 4);
    *llmc = magic == 20240520 || magic == 20240801 || magic == 20240522;
    if (memcmp(head, "MMIDIDX\0", 8) == 0)
        return error_set(err, ERR_DATA, "%s: an index of Megatron, not ids: name the .bin next to it",
                         f->file.path);
    if (memcmp(head, "\x93NUMPY", 6) == 0)
        TRY(read_npy(f, err));
    else
        TRY(*llmc ? read_llmc(f, magic, err) : read_plain(f, type, err));
    if (type == TOKEN_TYPE_AUTO || type == f->type) return OK;
    return error_set(err, ERR_DATA, "%s: its header states %s, but the source has dtype: %s: leave dtype out",
                     f->file.path, type_names[f->type], type_names[type]);
}

/* ---- ids ---- */

static int32_t id_at(const TokenFile *f, size_t i) {
    uint64_t id = little_endian(f->raw + i * f->width, f->width);
    return id > INT32_MAX ? -1 : (int32_t)id;
}

/* A vocabulary of 32 bits is rarely read as one of 16, or the other way round, without a trace. */
static const char *guess(const TokenFile *f, uint64_t id) {
    if (f->width == 4 && id > UINT16_MAX && id % 65536 < f->vocabulary && id / 65536 < f->vocabulary)
        return "; it looks like uint16: give the source dtype: uint16";
    return "; it was made by another tokenizer than data.tokenizer";
}

static ErrorCode check_ids(const TokenFile *f, Error *err) {
    uint32_t most = 0;
    for (size_t i = 0; i < f->known; i++) most = (uint32_t)f->ids[i] > most ? (uint32_t)f->ids[i] : most;
    if (most < f->vocabulary) return OK;
    size_t i = 0;
    while ((uint32_t)f->ids[i] < f->vocabulary) i++;
    uint64_t id = little_endian(f->raw + i * f->width, f->width), token = f->block + i;
    return error_set(err, ERR_DATA,
                     "%s: token %" PRIu64 " (byte %" PRIu64 "): id %" PRIu64
                     " is outside of the vocabulary of %" PRIu64 "%s",
                     f->file.path, token, f->data + token * f->width, id, f->vocabulary, guess(f, id));
}

/* Ids of 32 bits below 65,536 that are read as 16 bits. */
static ErrorCode check_width(const TokenFile *f, Error *err) {
    size_t zeros = 0, pairs = f->count / 2;
    for (size_t i = 0; i < pairs; i++) zeros += f->ids[2 * i + 1] == 0;
    if (f->width != 2 || f->block > 0 || pairs < 32 || zeros < pairs - pairs / 50) return OK;
    return error_set(
        err, ERR_DATA,
        "%s: every second id is 0, as in a file of uint32 read as uint16: give the source dtype: uint32",
        f->file.path);
}

/* The block of id `next`. */
static ErrorCode read_block(TokenFile *f, Error *err) {
    f->block = f->next / BLOCK_IDS * BLOCK_IDS;
    uint64_t left = f->total - f->block;
    f->count = left < BLOCK_IDS ? (size_t)left : BLOCK_IDS;
    f->known = left > f->count ? f->count + 1 : f->count;
    TRY(stored_read(&f->file, f->data + f->block * f->width, f->raw, f->known * f->width, err));
    for (size_t i = 0; i < f->known; i++) f->ids[i] = id_at(f, i);
    TRY(check_ids(f, err));
    return check_width(f, err);
}

/* ids[at, ...) up to the end of its document or of the block. */
static size_t indexed_length(const TokenFile *f, size_t at, bool *ends) {
    uint64_t left = token_index_end(f->index, f->next) - f->next;
    *ends = left <= f->count - at;
    return *ends ? (size_t)left : f->count - at;
}

static size_t piece_length(const TokenFile *f, size_t at, bool *ends) {
    if (f->index) return indexed_length(f, at, ends);
    size_t i = f->starts ? at + 1 : at;
    while (f->end >= 0 && i < f->count && f->ids[i] != f->end) i++;
    bool found = f->end >= 0 && i < f->count;
    if (f->end < 0) i = f->count;
    bool last = f->known == f->count, next_starts = f->starts && !last && f->ids[f->count] == f->end;
    *ends = found || last || next_starts;
    return (found && !f->starts ? i + 1 : i) - at;
}

ErrorCode token_file_next(TokenFile *f, TokenPiece *piece, bool *more, Error *err) {
    *more = f->next < f->total;
    if (!*more) return OK;
    if (f->count == 0 || f->next - f->block >= f->count) TRY(read_block(f, err));
    size_t at = (size_t)(f->next - f->block);
    *piece = (TokenPiece){.ids = f->ids + at, .first = f->next};
    piece->count = piece_length(f, at, &piece->ends);
    f->next += piece->count;
    return OK;
}

ErrorCode token_file_skip_to(TokenFile *f, uint64_t token, Error *err) {
    if (token > f->total)
        return error_set(err, ERR_DATA, "%s: shorter than token %" PRIu64 ", where reading was to go on",
                         f->file.path, token);
    f->next = token;
    return OK;
}

uint64_t token_file_stored_position(const TokenFile *f) { return f->data + f->next * f->width; }

/* ---- opening ---- */

static ErrorCode read_id(const TokenFile *f, uint64_t token, int32_t *id, Error *err) {
    unsigned char bytes[4];
    TRY(stored_read(&f->file, f->data + token * f->width, bytes, f->width, err));
    uint64_t value = little_endian(bytes, f->width);
    *id = value > INT32_MAX ? -1 : (int32_t)value;
    return OK;
}

static ErrorCode find_boundary(TokenFile *f, TokenBoundary boundary, bool llmc, Error *err) {
    int32_t first = -1, last = -1;
    f->starts = boundary == BOUNDARY_START || (boundary == BOUNDARY_AUTO && llmc);
    if (boundary != BOUNDARY_AUTO || llmc || f->end < 0 || f->total < 2) return OK;
    TRY(read_id(f, 0, &first, err));
    TRY(read_id(f, f->total - 1, &last, err));
    f->starts = first == f->end && last != f->end;
    return OK;
}

/* A wrong id between documents would make one document of a file in silence. */
static ErrorCode check_ends(TokenFile *f, Error *err) {
    enum { LOOK = 256 }; /* blocks: 16 M ids */
    if (f->end < 0 || f->total == 0) return OK;
    for (f->next = 0; f->next < f->total && f->next < (uint64_t)LOOK * BLOCK_IDS; f->next += f->count) {
        TRY(read_block(f, err));
        for (size_t i = 0; i < f->count; i++)
            if (f->ids[i] == f->end) {
                f->next = 0;
                f->count = 0;
                return OK;
            }
    }
    return error_set(err, ERR_DATA,
                     "%s: id %d, which stands between documents, is not among its first %" PRIu64
                     " ids: name another with `end` in the source, or end: none where a file is one document",
                     f->file.path, f->end, f->next);
}

static ErrorCode prepare(TokenFile *f, const TokenFileOptions *o, Error *err) {
    bool llmc = false;
    f->end = o->end;
    f->vocabulary = o->vocabulary;
    TRY(o->index ? read_indexed(f, o->index, err) : read_header(f, o->type, &llmc, err));
    f->raw = mem_alloc((BLOCK_IDS + 1) * (size_t)f->width);
    f->ids = mem_alloc_array(BLOCK_IDS + 1, sizeof *f->ids);
    TRY(find_boundary(f, o->boundary, llmc, err));
    return check_ends(f, err);
}

ErrorCode token_file_open(TokenFile **out, const char *path, const TokenFileOptions *o, Error *err) {
    StoredFile file;
    *out = NULL;
    TRY(stored_open(&file, path, err));
    TokenFile *f = mem_alloc(sizeof *f);
    f->file = file;
    ErrorCode code = prepare(f, o, err);
    if (code != OK)
        token_file_close(f);
    else
        *out = f;
    return code;
}

TokenType token_file_type(const TokenFile *f) { return f->type; }

void token_file_close(TokenFile *f) {
    if (!f) return;
    token_index_close(f->index);
    stored_close(&f->file);
    free(f->raw);
    free(f->ids);
    free(f);
}

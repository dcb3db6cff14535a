/* Passes over the values of model files: loading, digest, figures. Each reads chunk by chunk through one
 * small buffer.
 *
 *     modelfiles_load      the segments that a rank holds, converted where dtypes differ
 *     modelfiles_digest    every value: the same for the same model, however it is stored
 *     modelfiles_sample    first, middle and last bytes of each tensor: distinguishes files quickly
 *     modelfiles_figures   norm, largest value and number of non-finite values of one tensor
 *
 * The digest covers names, shapes and values as fp32, in order of names. So it depends neither on how a model
 * is divided into shards, nor on the dtype if the values are the same: fp32 and bf16 files of bf16 weights
 * have one digest. `weft inspect` prints it, and tests compare runs by it.
 *
 * Elsewhere called: reshard on resume, resharding of distributed checkpoints (DCP): modelfiles_load reads the
 * segments that this rank has on the mesh of today (train/tensors.c: tensors_add; program/partition.c:
 * segment_run), whatever mesh wrote the files. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "checkpoint/convert.h"
#include "checkpoint/modelfiles.h"
#include "checkpoint/packed.h"
#include "model/params.h"

#define CHUNK ((uint64_t)1 << 20) /* elements */

/* Fixed sizes, so that a model of any size is read with the same few megabytes. */
typedef struct Buffers {
    char *raw;    /* CHUNK elements of up to 8 bytes */
    float *wide;  /* CHUNK */
    void *narrow; /* CHUNK */
} Buffers;

/* Sixteen MiB, for any model. */
static Buffers buffers_make(void) {
    return (Buffers){mem_alloc(CHUNK * 8), mem_alloc(CHUNK * 4), mem_alloc(CHUNK * 4)};
}

static void buffers_free(Buffers *b) {
    free(b->raw);
    free(b->wide);
    free(b->narrow);
}

/* GPT-2's published files are those of the model without its head, whose names lack this prefix. */
static const char inner[] = "transformer.";
enum { INNER = sizeof inner - 1 };

static const char head_name[] = "lm_head.weight";
static const char mtp_name[] = "lm_heads.weight";

/* By its name, or by its name without the prefix. */
static const ModelTensor *find_tensor(const ModelFiles *m, const char *name) {
    const ModelTensor *t = modelfiles_find(m, name);
    return t == NULL && strncmp(name, inner, INNER) == 0 ? modelfiles_find(m, name + INNER) : t;
}

/* A wrong shape most often means a config.json of another size; the message shows both shapes. */
static ErrorCode check_match(const ModelFiles *m, const TensorDesc *want, const SafeTensor *t, Error *err) {
    /* Integers must have the same type; floats may be converted to each other, and F64 may be rounded
     * down. */
    bool same = t->rank == want->rank;
    for (int i = 0; i < want->rank && same; i++) same = t->shape[i] == (uint64_t)want->shape[i];
    if (!same) {
        Text found = {0}, expected = {0};
        for (int i = 0; i < t->rank; i++)
            text_printf(&found, "%s%llu", i ? ", " : "", (unsigned long long)t->shape[i]);
        for (int i = 0; i < want->rank; i++)
            text_printf(&expected, "%s%lld", i ? ", " : "", (long long)want->shape[i]);
        error_set(err, ERR_DATA,
                  "%s: tensor %s has shape [%s], expected [%s]: config.json and the weights do not match",
                  m->where, want->name, found.length ? found.data : "", expected.length ? expected.data : "");
        text_free(&found);
        text_free(&expected);
        return ERR_DATA;
    }
    if (t->type == want->memory ||
        (convert_is_float(want->memory) && (convert_is_float(t->type) || t->type == SAFE_F64)))
        return OK;
    return error_set(err, ERR_DATA, "%s: tensor %s has dtype %s, which cannot become %s", m->where,
                     want->name, safe_type_name(t->type), safe_type_name(want->memory));
}

/* The check has two directions: all wanted tensors exist (here), and no others do (check_nothing_else). */
static ErrorCode check_tensors(const ModelFiles *m, const TensorList *list, Error *err) {
    for (int i = 0; i < list->count; i++) {
        const TensorDesc *want = &list->tensors[i];
        const ModelTensor *t = find_tensor(m, want->name);
        Packed packed = packed_find(m, want->name);
        bool there = packed.blocks || packed.scales;
        if (!t && !there) return error_set(err, ERR_DATA, "%s: tensor %s is missing", m->where, want->name);
        if (t && there)
            return error_set(err, ERR_DATA, "%s: tensor %s is there twice, as it is and packed", m->where,
                             want->name);
        TRY(t ? check_match(m, want, t->tensor, err) : packed_check(m, want, packed, err));
    }
    return OK;
}

/* For a tensor that does not exist by its name, but in packed form. */
static ErrorCode load_packed(const ModelFiles *m, const TensorList *list, int segment, Buffers *b,
                             Error *err) {
    TensorSegment p = tensor_segment(list, segment);
    const TensorDesc *want = &list->tensors[p.tensor];
    uint64_t first = (uint64_t)p.first, count = (uint64_t)p.count,
             out = (uint64_t)safe_type_bits(want->memory) / 8;
    PackedReader r = {0};
    ErrorCode code = OK;
    for (uint64_t done = 0, n; done < count && code == OK; done += n) {
        n = count - done < CHUNK ? count - done : CHUNK;
        code = packed_read(&r, m, want, packed_find(m, want->name), first + done, n, b->wide, err);
        if (code != OK) break;
        convert_from_f32(want->memory, b->wide, b->narrow, n);
        code = list->store(list->ctx, segment, done * out, n * out, b->narrow, err);
    }
    packed_close(&r);
    return code;
}

/* The tensor exists and matches (modelfiles_check). Values that need no conversion are copied, so that a
 * resumed run has exactly the saved bits. */
static ErrorCode load_segment(const ModelFiles *m, const TensorList *list, int segment, Buffers *b,
                              Error *err) {
    TensorSegment p = tensor_segment(list, segment);
    const TensorDesc *want = &list->tensors[p.tensor];
    const ModelTensor *t = find_tensor(m, want->name);
    if (t == NULL) return load_packed(m, list, segment, b, err);
    SafeType type = t->tensor->type;
    uint64_t in = (uint64_t)safe_type_bits(type) / 8, out = (uint64_t)safe_type_bits(want->memory) / 8;
    uint64_t first = (uint64_t)p.first, count = (uint64_t)p.count;
    for (uint64_t done = 0, n; done < count; done += n) {
        n = count - done < CHUNK ? count - done : CHUNK;
        const void *data = b->raw;
        TRY(modelfiles_read(m, t, (first + done) * in, b->raw, n * in, err));
        if (type != want->memory) {
            convert_to_f32(type, b->raw, b->wide, n);
            convert_from_f32(want->memory, b->wide, b->narrow, n);
            data = b->narrow;
        }
        TRY(list->store(list->ctx, segment, done * out, n * out, data, err));
    }
    return OK;
}

/* Tensors that files of a family repeat without changing the model: the head of a tied model, which is the
 * embedding; frequencies of the rotary embedding, which follow from config.json; GPT-2's masks; and MTP
 * heads, which only a run with train.mtp_depth uses. If the model has such parameters, or an untied head,
 * they are in the list and never get here. */
static bool is_harmless(const char *name) {
    static const char *const ends[] = {"rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};
    size_t length = strlen(name);
    if (strcmp(name, head_name) == 0 || strcmp(name, mtp_name) == 0) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t end = strlen(ends[i]);
        if (length >= end && strcmp(name + length - end, ends[i]) == 0) return true;
    }
    return false;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* By its name, with or without the prefix that files may omit; a part of a packed tensor by the name of the
 * whole. */
static bool is_wanted(const char **names, int count, const char *name) {
    char whole[128], *stem = packed_stem(name);
    snprintf(whole, sizeof whole, "%s%s", inner, name);
    const char *tries[] = {name, whole, stem ? stem : name};
    bool found = false;
    for (int i = 0; i < 3 && !found; i++)
        found = bsearch(&tries[i], names, (size_t)count, sizeof *names, compare_names) != NULL;
    free(stem);
    return found;
}

/* Tensors of an MTP module (model/layers/mtp.c), whose block is the one with eh_proj. If the model has no
 * module, all of its tensors are ignored; otherwise only the copies of embedding and head in published
 * files. */
static bool is_of_mtp(const ModelFiles *m, const char **names, int count, const char *name) {
    static const char *const copies[] = {"embed_tokens.weight", "shared_head.head.weight"};
    char joins[64];
    const char *key = joins;
    int layer, end = 0;
    if (sscanf(name, "model.layers.%6d.%n", &layer, &end) != 1 || end == 0) return false;
    snprintf(joins, sizeof joins, "%.*seh_proj.weight", end, name);
    if (modelfiles_find(m, joins) == NULL) return false;
    if (bsearch(&key, names, (size_t)count, sizeof *names, compare_names) == NULL) return true;
    return strcmp(name + end, copies[0]) == 0 || strcmp(name + end, copies[1]) == 0;
}

/* A tensor that is not in the list belongs to a model that computes something else. */
static ErrorCode check_nothing_else(const ModelFiles *m, const TensorList *list, Error *err) {
    const char **names = mem_alloc_array((size_t)list->count, sizeof *names);
    const char *unknown = NULL;
    char shown[128];
    for (int i = 0; i < list->count; i++) names[i] = list->tensors[i].name;
    qsort(names, (size_t)list->count, sizeof *names, compare_names);
    for (size_t i = 0; i < m->count && unknown == NULL; i++) {
        const char *name = m->tensors[i].name;
        bool known = is_wanted(names, list->count, name) || is_harmless(name) ||
                     is_of_mtp(m, names, list->count, name);
        if (!known) unknown = name;
    }
    free(names);
    if (unknown == NULL) return OK;
    return error_set(
        err, ERR_DATA,
        "%s: tensor \"%s\" does not belong here: config.json describes another model, or the run "
        "has another optimizer",
        m->where, error_escape(shown, sizeof shown, unknown, strlen(unknown)));
}

ErrorCode modelfiles_check(const ModelFiles *m, const TensorList *list, Error *err) {
    TRY(check_nothing_else(m, list, err));
    return check_tensors(m, list, err);
}

/* As fp32, since any float of the file can be converted to it: only names and shapes matter; and only
 * parameters that files can store. */
static ErrorCode check_table(const ModelFiles *m, const ModelConfig *c, const ParamTable *table, Error *err) {
    TensorDesc *tensors = mem_alloc_array((size_t)table->count, sizeof *tensors);
    int count = 0;
    for (int i = 0; i < table->count; i++) {
        const Param *p = &table->params[i];
        TensorDesc *d = &tensors[count];
        if (p->row->with_states) continue;
        *d = (TensorDesc){.name = p->name, .memory = SAFE_F32, .stored = SAFE_F32};
        d->rank = param_shape(c, p, d->shape);
        count++;
    }
    ErrorCode code = modelfiles_check(m, &(TensorList){.count = count, .tensors = tensors}, err);
    free(tensors);
    return code;
}

/* config.json could ask for a table of a million layers, which would take memory; the number of tensors
 * bounds it first. */
ErrorCode modelfiles_check_shape(const char *dir, const ModelConfig *c, Error *err) {
    ModelFiles m;
    ParamTable table;
    TRY(modelfiles_open(&m, dir, err));
    /* The table's length is proportional to the number of layers, and every block has its own tensors. */
    ErrorCode code = OK;
    if ((uint64_t)c->num_hidden_layers > m.count)
        code = error_set(err, ERR_DATA,
                         "%s: config.json says %" PRId64 " layers, the files hold %zu tensors in all",
                         m.where, c->num_hidden_layers, m.count);
    if (code == OK) code = param_table_build(&table, c, err);
    if (code == OK) {
        code = check_table(&m, c, &table, err);
        param_table_free(&table);
    }
    modelfiles_close(&m);
    return code;
}

/* Chunk `done` of a tensor as fp32. */
static ErrorCode read_wide(const ModelFiles *m, const ModelTensor *t, uint64_t done, uint64_t n, void *raw,
                           float *to, Error *err) {
    uint64_t bytes = (uint64_t)safe_type_bits(t->tensor->type) / 8;
    TRY(modelfiles_read(m, t, done * bytes, raw, n * bytes, err));
    convert_to_f32(t->tensor->type, raw, to, n);
    return OK;
}

static ErrorCode compare_values(const ModelFiles *m, const ModelTensor *head, const ModelTensor *embedding,
                                Buffers *b, bool *same, Error *err) {
    uint64_t count = embedding->tensor->elements;
    *same = head->tensor->rank == 2 && head->tensor->elements == count;
    for (uint64_t done = 0, n; done < count && *same; done += n) {
        n = count - done < CHUNK ? count - done : CHUNK;
        TRY(read_wide(m, head, done, n, b->raw, b->wide, err));
        TRY(read_wide(m, embedding, done, n, b->raw, b->narrow, err));
        *same = memcmp(b->wide, b->narrow, n * sizeof(float)) == 0;
    }
    return OK;
}

/* If a tied model's files have a head whose values differ from the embedding, ignoring it would lose it
 * silently. */
static ErrorCode check_tied_head(const ModelFiles *m, const TensorList *list, Buffers *b, Error *err) {
    static const char *const embeddings[] = {"model.embed_tokens.weight", "transformer.wte.weight"};
    const ModelTensor *head = modelfiles_find(m, head_name), *embedding = NULL;
    bool same = true;
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->tensors[i].name, head_name) == 0) return OK;
    for (size_t i = 0; i < sizeof embeddings / sizeof *embeddings && !embedding; i++)
        embedding = find_tensor(m, embeddings[i]);
    if (!head || !embedding || !convert_is_float(head->tensor->type)) return OK;
    TRY(compare_values(m, head, embedding, b, &same, err));
    if (same) return OK;
    return error_set(err, ERR_DATA,
                     "%s: %s has other values than %s, though config.json says that they are one: "
                     "tie_word_embeddings should be false",
                     m->where, head_name, embedding->name);
}

/* Everything is checked before the first segment is stored: no rank ends up with half a model. */
ErrorCode modelfiles_load(const ModelFiles *m, const TensorList *list, Error *err) {
    TRY(modelfiles_check(m, list, err));
    Buffers b = buffers_make();
    ErrorCode code = check_tied_head(m, list, &b, err);
    for (int i = 0; i < tensor_segments(list) && code == OK; i++) code = load_segment(m, list, i, &b, err);
    buffers_free(&b);
    return code;
}

/* Hashes the length first, so that two different lists of names never yield the same bytes. */
static void digest_string(Sha256 *h, const char *s) {
    sha256_add_u64(h, strlen(s));
    sha256_add(h, s, strlen(s));
}

/* Only for numbers of elements that take an integral number of bytes. */
static uint64_t bytes_of(SafeType type, uint64_t elements) {
    return elements * (uint64_t)safe_type_bits(type) / 8;
}

/* Values that are not floats are hashed as stored. */
static ErrorCode digest_values(Sha256 *h, const ModelFiles *m, const ModelTensor *t, Buffers *b, Error *err) {
    SafeType type = t->tensor->type;
    for (uint64_t done = 0, n; done < t->tensor->elements; done += n) {
        n = t->tensor->elements - done < CHUNK ? t->tensor->elements - done : CHUNK;
        TRY(modelfiles_read(m, t, bytes_of(type, done), b->raw, bytes_of(type, n), err));
        if (!convert_is_float(type)) {
            sha256_add(h, b->raw, bytes_of(type, n));
            continue;
        }
        convert_to_f32(type, b->raw, b->wide, n);
        sha256_add(h, b->wide, n * 4);
    }
    return OK;
}

static ErrorCode digest_tensor(Sha256 *h, const ModelFiles *m, const ModelTensor *t, Buffers *b, Error *err) {
    digest_string(h, t->name);
    digest_string(h, convert_is_float(t->tensor->type) ? "float" : safe_type_name(t->tensor->type));
    sha256_add_u64(h, (uint64_t)t->tensor->rank);
    for (int i = 0; i < t->tensor->rank; i++) sha256_add_u64(h, t->tensor->shape[i]);
    return digest_values(h, m, t, b, err);
}

/* Tensors are already in order of names (modelfiles_open). */
ErrorCode modelfiles_digest(const ModelFiles *m, char out[65], Error *err) {
    Buffers b = buffers_make();
    Sha256 *h = sha256_start();
    uint8_t digest[32];
    ErrorCode code = OK;
    sha256_add_u64(h, m->count);
    for (size_t i = 0; i < m->count && code == OK; i++) code = digest_tensor(h, m, &m->tensors[i], &b, err);
    sha256_finish(h, digest);
    sha256_hex(digest, out);
    buffers_free(&b);
    return code;
}

/* A small tensor is taken whole. Bytes are not converted: the same values in another dtype give another
 * sample, which is right for checking that ranks have read the same files. */
static ErrorCode sample_tensor(Sha256 *h, const ModelFiles *m, const ModelTensor *t, Error *err) {
    uint64_t bytes = t->tensor->end - t->tensor->begin,
             apart = bytes > SAMPLE_BYTES ? (bytes - SAMPLE_BYTES) / 2 : 0;
    bool whole = bytes <= 3 * (uint64_t)SAMPLE_BYTES;
    char block[3 * SAMPLE_BYTES];
    digest_string(h, t->name);
    digest_string(h, safe_type_name(t->tensor->type));
    sha256_add_u64(h, (uint64_t)t->tensor->rank);
    for (int i = 0; i < t->tensor->rank; i++) sha256_add_u64(h, t->tensor->shape[i]);
    for (uint64_t i = 0; i < (whole ? 1 : 3); i++) {
        size_t n = whole ? (size_t)bytes : SAMPLE_BYTES;
        TRY(modelfiles_read(m, t, i * apart, block, n, err));
        sha256_add(h, block, n);
    }
    return OK;
}

ErrorCode modelfiles_sample(const ModelFiles *m, char out[65], Error *err) {
    Sha256 *h = sha256_start();
    uint8_t digest[32];
    ErrorCode code = OK;
    for (size_t i = 0; i < m->count && code == OK; i++) code = sample_tensor(h, m, &m->tensors[i], err);
    sha256_finish(h, digest);
    sha256_hex(digest, out);
    return code;
}

/* Non-finite values are counted and skipped; otherwise they would dominate the norm. */
static void add_figures(TensorFigures *f, double *squares, double value) {
    double size = fabs(value);
    if (!isfinite(value)) {
        f->nonfinite++;
        return;
    }
    *squares += size * size;
    if (size > f->max) f->max = size;
}

/* Norm and largest value in double; types below a byte, and integers, have none. */
ErrorCode modelfiles_figures(const ModelFiles *m, const ModelTensor *t, TensorFigures *out, Error *err) {
    SafeType type = t->tensor->type;
    double squares = 0.0;
    *out = (TensorFigures){.known = convert_is_float(type) || type == SAFE_F64};
    if (!out->known) return OK;
    Buffers b = buffers_make();
    ErrorCode code = OK;
    for (uint64_t done = 0, n; done < t->tensor->elements && code == OK; done += n) {
        n = t->tensor->elements - done < CHUNK ? t->tensor->elements - done : CHUNK;
        code = modelfiles_read(m, t, bytes_of(type, done), b.raw, bytes_of(type, n), err);
        if (code != OK) break;
        if (type != SAFE_F64) convert_to_f32(type, b.raw, b.wide, n);
        for (uint64_t i = 0; i < n; i++) {
            double value = (double)b.wide[i];
            if (type == SAFE_F64) memcpy(&value, b.raw + 8 * i, 8);
            add_figures(out, &squares, value);
        }
    }
    out->norm = sqrt(squares);
    buffers_free(&b);
    return code;
}

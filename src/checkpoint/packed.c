/* A group of 32 values runs along the inputs of one output, while elements of a stack are contiguous along
 * its outputs. Therefore a whole expert, some MiB, is read and then accessed value by value. */
#include "checkpoint/packed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { GROUP = 32, GROUP_BYTES = GROUP / 2, BIAS = 127 };

static const char blocks_end[] = "_blocks", scales_end[] = "_scales";
enum { END = sizeof blocks_end - 1 };

static const ModelTensor *find_part(const ModelFiles *m, const char *name, const char *end) {
    Text whole = {0};
    text_printf(&whole, "%s%s", name, end);
    const ModelTensor *t = modelfiles_find(m, whole.data);
    text_free(&whole);
    return t;
}

Packed packed_find(const ModelFiles *m, const char *name) {
    return (Packed){find_part(m, name, blocks_end), find_part(m, name, scales_end)};
}

char *packed_stem(const char *name) {
    size_t length = strlen(name);
    if (length <= END) return NULL;
    const char *end = name + length - END;
    if (strcmp(end, blocks_end) != 0 && strcmp(end, scales_end) != 0) return NULL;
    char *stem = mem_strdup(name);
    stem[length - END] = '\0';
    return stem;
}

static bool has_shape(const ModelTensor *t, const TensorDesc *want, int rank) {
    const SafeTensor *s = t->tensor;
    return s->type == SAFE_U8 && s->rank == rank && s->shape[0] == (uint64_t)want->shape[0] &&
           s->shape[1] == (uint64_t)want->shape[2] && want->shape[1] % GROUP == 0 &&
           s->shape[2] == (uint64_t)want->shape[1] / GROUP && (rank == 3 || s->shape[3] == GROUP_BYTES);
}

ErrorCode packed_check(const ModelFiles *m, const TensorDesc *want, Packed p, Error *err) {
    if (!p.blocks || !p.scales)
        return error_set(err, ERR_DATA, "%s: tensor %s%s is missing", m->where, want->name,
                         p.blocks ? scales_end : blocks_end);
    if (want->rank == 3 && has_shape(p.blocks, want, 4) && has_shape(p.scales, want, 3)) return OK;
    return error_set(
        err, ERR_DATA,
        "%s: %s%s and %s%s are not what a stack of this shape is in MXFP4 (U8 [experts, outputs, "
        "inputs / 32, 16] and [experts, outputs, inputs / 32]): config.json and the weights do not "
        "match",
        m->where, want->name, blocks_end, want->name, scales_end);
}

/* At most one expert is cached; the shapes have been checked. */
static ErrorCode read_expert(PackedReader *r, const ModelFiles *m, const TensorDesc *want, Packed p,
                             uint64_t expert, Error *err) {
    size_t groups = (size_t)want->shape[2] * (size_t)want->shape[1] / GROUP;
    if (r->expert == expert + 1) return OK;
    if (!r->blocks) r->blocks = mem_alloc(groups * GROUP_BYTES), r->scales = mem_alloc(groups);
    r->expert = 0;
    TRY(modelfiles_read(m, p.blocks, expert * groups * GROUP_BYTES, r->blocks, groups * GROUP_BYTES, err));
    TRY(modelfiles_read(m, p.scales, expert * groups, r->scales, groups, err));
    r->expert = expert + 1;
    return OK;
}

/* Sign, two bits of exponent, one of mantissa. A scale of 255 makes its whole group NaN (OCP Microscaling
 * Formats 1.0, 5.4.1). */
static float value_of(const PackedReader *r, size_t group, size_t at) {
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    uint8_t pair = r->blocks[group * GROUP_BYTES + at / 2];
    if (r->scales[group] == UINT8_MAX) return NAN;
    return ldexpf(values[at % 2 ? pair >> 4 : pair & 15], r->scales[group] - BIAS);
}

ErrorCode packed_read(PackedReader *r, const ModelFiles *m, const TensorDesc *want, Packed p, uint64_t first,
                      uint64_t count, float *out, Error *err) {
    size_t inputs = (size_t)want->shape[1], outputs = (size_t)want->shape[2], all = inputs * outputs;
    for (uint64_t at = first; at < first + count; at++) {
        size_t within = (size_t)(at % all), input = within / outputs, output = within % outputs;
        TRY(read_expert(r, m, want, p, at / all, err));
        *out++ = value_of(r, output * (inputs / GROUP) + input / GROUP, input % GROUP);
    }
    return OK;
}

void packed_close(PackedReader *r) {
    free(r->blocks);
    free(r->scales);
    *r = (PackedReader){0};
}

/* Experts in MXFP4: every value, for segments that start anywhere; missing tensors and wrong shapes are
 * refused. */
#include "support/files.h"

#include <math.h>

#include "checkpoint/modelfiles.h"

enum { EXPERTS = 2, INPUTS = 64, OUTPUTS = 3, GROUPS = INPUTS / 32, ALL = EXPERTS * INPUTS * OUTPUTS };
enum { BLOCKS = ALL / 2, SCALES = EXPERTS * OUTPUTS * GROUPS };

static uint8_t byte_of(int i) { return (uint8_t)(i * 37 + 11); }
static uint8_t scale_of(int i) { return (uint8_t)(120 + i % 14); }

/* Expert, output, input: the order in the file. */
static float expected(int expert, int output, int input) {
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    int at = (expert * OUTPUTS + output) * INPUTS + input, half = byte_of(at / 2);
    int bits = at % 2 ? half >> 4 : half & 15;
    double size = values[bits & 7] * pow(2, scale_of(at / 32) - 127);
    return (float)(bits & 8 ? -size : size);
}

static const char *write_files(const char *header) {
    Text file = {0};
    uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++) text_add(&file, &(char){(char)(uint8_t)(length >> (8 * i))}, 1);
    text_add(&file, header, length);
    for (int i = 0; i < BLOCKS; i++) text_add(&file, &(char){(char)byte_of(i)}, 1);
    for (int i = 0; i < SCALES; i++) text_add(&file, &(char){(char)scale_of(i)}, 1);
    const char *path = files_write("packed.safetensors", file.data, file.length);
    text_free(&file);
    return path;
}

static float got[ALL];
static const TensorSegment segments[] = {{0, 0, 5}, {0, 5, 190}, {0, 195, ALL - 195}};

static ErrorCode store(void *ctx, int segment, size_t offset, size_t bytes, const void *host, Error *err) {
    (void)ctx, (void)err;
    memcpy((char *)(got + segments[segment].first) + offset, host, bytes);
    return OK;
}

static ErrorCode load(const char *header, Error *err) {
    ModelFiles m;
    TensorDesc stack = {"gate", SAFE_F32, SAFE_F32, 3, {EXPERTS, INPUTS, OUTPUTS}};
    TensorList list = {
        .count = 1, .tensors = &stack, .store = store, .segment_count = 3, .segments = segments};
    assert_int_equal(modelfiles_open(&m, write_files(header), err), OK);
    ErrorCode code = modelfiles_load(&m, &list, err);
    modelfiles_close(&m);
    return code;
}

#define TENSOR(name, shape, first, end) \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":[" first "," end "]}"

static void every_value_is_read(void **state) {
    (void)state;
    Error err = {.message = ""};
    if (load("{" TENSOR("gate_blocks", "[2,3,2,16]", "0", "192") "," TENSOR("gate_scales", "[2,3,2]", "192",
                                                                            "204") "}",
             &err) != OK)
        fail_msg("%s", err.message);
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < INPUTS; i++)
            for (int o = 0; o < OUTPUTS; o++)
                assert_true(got[(e * INPUTS + i) * OUTPUTS + o] == expected(e, o, i));
}

static void refuse(const char *header, const char *named) {
    Error err = {.message = ""};
    assert_int_equal(load(header, &err), ERR_DATA);
    if (!strstr(err.message, named)) fail_msg("\"%s\" does not name %s", err.message, named);
}

static void what_is_no_stack_is_refused(void **state) {
    (void)state;
    refuse("{" TENSOR("gate_blocks", "[2,3,2,16]", "0", "192") "," TENSOR("other", "[12]", "192", "204") "}",
           "other");
    refuse("{" TENSOR("gate_blocks", "[204]", "0", "204") "}", "gate_scales is missing");
    refuse("{" TENSOR("gate_blocks", "[3,2,2,16]", "0", "192") "," TENSOR("gate_scales", "[3,2,2]", "192",
                                                                          "204") "}",
           "MXFP4");
    refuse("{" TENSOR("gate_blocks", "[2,3,2,16]", "0", "192") "," TENSOR("gate_scales", "[2,6]", "192",
                                                                          "204") "}",
           "MXFP4");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_value_is_read),
                                       cmocka_unit_test(what_is_no_stack_is_refused)};
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

/* safetensors: refused and accepted files; conversions; writing; shards and their index. */
#include "support/files.h"

#include <limits.h>
#include <math.h>

#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/convert.h"
#include "checkpoint/modelfiles.h"

/* A file with this header and `data_bytes` zero bytes of data. */
static const char *put_safetensors(const char *name, const char *header, size_t header_bytes,
                                   size_t data_bytes) {
    Text file = {0};
    char zero[64] = {0};
    for (int i = 0; i < 8; i++)
        text_add(&file, &(char){(char)(uint8_t)((uint64_t)header_bytes >> (8 * i))}, 1);
    text_add(&file, header, header_bytes);
    for (size_t left = data_bytes; left > 0;) {
        size_t n = left < sizeof zero ? left : sizeof zero;
        text_add(&file, zero, n);
        left -= n;
    }
    const char *path = files_write(name, file.data, file.length);
    text_free(&file);
    return path;
}

static ErrorCode open_header(SafeFile *f, const char *header, size_t header_bytes, size_t data_bytes,
                             Error *err) {
    return safe_open(f, put_safetensors("t.safetensors", header, header_bytes, data_bytes), err);
}

static void refuse_bytes(const char *header, size_t header_bytes, size_t data_bytes, const char *named) {
    SafeFile f;
    Error err = {.message = ""};
    ErrorCode code = open_header(&f, header, header_bytes, data_bytes, &err);
    if (code == OK) fail_msg("accepted: %s with %zu bytes of data", header, data_bytes);
    assert_int_equal(code, ERR_DATA);
    if (strstr(err.message, named) == NULL)
        fail_msg("%s: \"%s\" does not name \"%s\"", header, err.message, named);
}

static void refuse(const char *header, size_t data_bytes, const char *named) {
    refuse_bytes(header, strlen(header), data_bytes, named);
}

static void accept(SafeFile *f, const char *header, size_t data_bytes) {
    Error err = {.message = ""};
    if (open_header(f, header, strlen(header), data_bytes, &err) != OK)
        fail_msg("%s: %s", header, err.message);
}

static void accept_and_close(const char *header, size_t data_bytes) {
    SafeFile f;
    accept(&f, header, data_bytes);
    safe_close(&f);
}

static void refuse_file(const void *data, size_t length, const char *named) {
    SafeFile f;
    Error err = {.message = ""};
    assert_int_equal(safe_open(&f, files_write("t.safetensors", data, length), &err), ERR_DATA);
    if (strstr(err.message, named) == NULL) fail_msg("\"%s\" does not name \"%s\"", err.message, named);
}

static void size_fields_are_checked(void **state) {
    (void)state;
    char bytes[16];
    for (size_t n = 0; n < 8; n++) refuse_file("\2\0\0\0\0\0\0", n, "expected 8 or more");
    memset(bytes, 0xff, sizeof bytes);
    refuse_file(bytes, 8, "at most 100000000");
    bytes[0] = (char)0xf8;
    refuse_file(bytes, 16, "at most 100000000");
    refuse_file("\1\xe1\xf5\5\0\0\0\0{}", 10, "at most 100000000"); /* 100,000,001 */
    refuse_file("\0\xe1\xf5\5\0\0\0\0{}", 10, "truncated");
    refuse_file("\3\0\0\0\0\0\0\0{}", 10, "truncated");
    refuse_file("\0\0\0\0\0\0\0\0", 8, "brace");
}

static void headers_must_be_strict_json(void **state) {
    (void)state;
    static const char *const bad[] = {"{",
                                      "{}x",
                                      "{}{}",
                                      "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},}",
                                      "{/*c*/}",
                                      "{'a':1}",
                                      "{\"a\n\":1}",
                                      "{\"\\ud800\":1}",
                                      "{\"a\":NaN}",
                                      "{\"a\":+1}",
                                      "{\"a\":02}",
                                      "{\"a\":1e999}",
                                      "{\"\xff\":1}",
                                      "{\"\xc0\x80\":1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuse(bad[i], 4, "t.safetensors");
    refuse("\xef\xbb\xbf{}", 0, "brace");
    refuse(" {}", 0, "brace");
    refuse("[]", 0, "brace");
    refuse("\"a\"", 0, "brace");
    refuse("null", 0, "brace");
    refuse_bytes("{}\0", 3, 0, "t.safetensors");
    Text deep = {0};
    text_puts(&deep, "{\"a\":");
    for (int i = 0; i < 200; i++) text_puts(&deep, "[");
    refuse(deep.data, 0, "nested");
    text_free(&deep);
}

#define F32_2 "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"

static void entries_must_have_their_types(void **state) {
    (void)state;
    refuse("{\"a\":null}", 0, "object");
    refuse("{\"a\":[\"F32\",[2],[0,8]]}", 8, "object");
    refuse("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype");
    refuse("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "shape");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets");
    refuse("{\"a\":{\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype");
    refuse("{\"a\":{\"dtype\":\"C128\",\"shape\":[],\"data_offsets\":[0,16]}}", 16, "dtype");
    refuse("{\"a\":{\"dtype\":\"F8_E4M3FN\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype");
    refuse("{\"a\":{\"dtype\":6,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype");
    refuse("{\"a\":{\"dtype\":{\"F32\":null},\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":null,\"data_offsets\":[0,8]}}", 8, "shape");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "shape");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, "dimension");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,8]}}", 8,
           "dimension");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", 8, "data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, "data_offsets");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,null]}}", 8, "offset");
}

static void numbers_must_be_plain(void **state) {
    (void)state;
    static const char *const bad[] = {"-2", "2.0", "2e0", "2E0", "-0", "0.2e1"};
    char header[128];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[0,8]}}",
                 bad[i]);
        refuse(header, 8, "whole number");
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,%s]}}",
                 bad[i]);
        refuse(header, 2, "whole number");
    }
    /* Inside a name these characters are ordinary. */
    accept_and_close("{\"-0.5e1 \\\" -\":{" F32_2 "}}", 8);
}

static void duplicates_are_refused(void **state) {
    (void)state;
    refuse("{\"a\":{" F32_2 "},\"a\":{" F32_2 "}}", 8, "duplicate");
    refuse("{\"t\":{" F32_2 "},\"\\u0074\":{" F32_2 "}}", 8, "duplicate");
    refuse("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
           "duplicate");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate");
    refuse("{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"}}", 0, "duplicate");
}

static void metadata_holds_strings(void **state) {
    (void)state;
    refuse("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__");
    refuse("{\"__metadata__\":{\"a\":{}}}", 0, "__metadata__");
    refuse("{\"__metadata__\":{\"a\":[]}}", 0, "__metadata__");
    refuse("{\"__metadata__\":\"a\"}", 0, "__metadata__");
    refuse("{\"__metadata__\":[]}", 0, "__metadata__");
    refuse("{\"__metadata__\":null}", 0, "__metadata__");
    SafeFile f;
    accept(&f, "{\"__metadata__\":{\"format\":\"pt\"}}", 0);
    assert_int_equal(f.metadata_count, 1);
    assert_string_equal(f.metadata[0], "format");
    assert_string_equal(f.metadata[1], "pt");
    safe_close(&f);
}

#define TWO(a, b) "{\"a\":{\"dtype\":\"U8\",\"shape\":" a "},\"b\":{\"dtype\":\"U8\",\"shape\":" b "}}"

static void offsets_must_cover_the_data_once(void **state) {
    (void)state;
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,0]}}", 4, "ends before");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", 8, "hole");
    refuse(TWO("[2],\"data_offsets\":[0,2]", "[2],\"data_offsets\":[4,6]"), 6, "hole");
    refuse(TWO("[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[2,6]"), 6, "overlaps");
    refuse(TWO("[4],\"data_offsets\":[0,4]", "[4],\"data_offsets\":[0,4]"), 4, "overlaps");
    refuse(TWO("[4],\"data_offsets\":[0,4]", "[0],\"data_offsets\":[2,2]"), 4, "overlaps");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3, "beyond");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5, "cover");
    refuse("{}", 1, "cover");
    refuse("{\"a\":{" F32_2 "}}", 4, "beyond");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "do not match");
    refuse("{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "do not match");
    refuse("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "whole number of bytes");
    refuse("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
           "whole number of bytes");
}

static void products_must_not_overflow(void **state) {
    (void)state;
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0,
           "overflows");
    refuse("{\"a\":{\"dtype\":\"F64\",\"shape\":[4503599627370496,64],\"data_offsets\":[0,0]}}", 0,
           "overflows");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
           1, "16");
    accept_and_close("{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}",
                     0);
}

static void what_the_format_allows_is_accepted(void **state) {
    (void)state;
    SafeFile f;
    accept_and_close("{}", 0);
    accept_and_close("{}      ", 0);
    accept_and_close("{}\t\r\n", 0);
    accept_and_close("{\"\":{" F32_2 "}}", 8);
    accept_and_close("{\"../../etc/passwd\":{" F32_2 "}}", 8);
    accept_and_close("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4);
    accept_and_close("{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2);
    accept_and_close("{\"a\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8);
    accept_and_close(TWO("[0],\"data_offsets\":[0,0]", "[4],\"data_offsets\":[0,4]"), 4);
    accept_and_close(TWO("[4],\"data_offsets\":[2,6]", "[2],\"data_offsets\":[0,2]"), 6);
    accept(&f, "{\"a\":{\"more\":[1],\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}", 8);
    assert_int_equal(f.unknown_fields, 1);
    assert_int_equal(f.tensors[0].rank, 2);
    assert_int_equal(f.tensors[0].elements, 2);
    safe_close(&f);
}

static void names_are_escaped_in_errors(void **state) {
    (void)state;
    refuse("{\"\\u001b[31m\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "\\x1B[31m");
}

static void many_tensors_take_little_time(void **state) {
    (void)state;
    Text header = {0};
    SafeFile f;
    text_puts(&header, "{");
    for (int i = 0; i < 50000; i++)
        text_printf(&header, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                    i ? "," : "", 49999 - i, i, i + 1);
    text_puts(&header, "}");
    accept(&f, header.data, 50000);
    assert_int_equal(f.count, 50000);
    assert_int_equal(safe_find(&f, "31337")->begin, 49999 - 31337);
    assert_null(safe_find(&f, "50000"));
    safe_close(&f);
    text_free(&header);
}

static void missing_files_and_directories_are_errors(void **state) {
    (void)state;
    SafeFile f;
    Error err;
    assert_int_equal(safe_open(&f, "/nonexistent/x.safetensors", &err), ERR_NOINPUT);
    assert_int_equal(safe_open(&f, files_root, &err), ERR_NOINPUT);
    assert_int_equal(safe_open(&f, "/dev/null", &err), ERR_NOINPUT);
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static void conversions_are_exact_and_round_to_even(void **state) {
    (void)state;
    uint16_t all[2] = {0}, back;
    float wide;
    for (int type = SAFE_F16; type <= SAFE_BF16; type++)
        for (uint32_t i = 0; i < 65536; i++) {
            all[0] = (uint16_t)i;
            convert_to_f32((SafeType)type, all, &wide, 1);
            convert_from_f32((SafeType)type, &wide, &back, 1);
            if (isnan(wide)) continue;
            if (back != all[0]) fail_msg("%s %04x became %04x", safe_type_name((SafeType)type), i, back);
        }
    static const struct {
        uint32_t in;
        uint16_t bf16, f16;
    } cases[] = {{0x3f808000, 0x3f80, 0x3c04}, {0x3f818000, 0x3f82, 0x3c0c}, {0x3f808001, 0x3f81, 0x3c04},
                 {0x477fefff, 0x4780, 0x7bff}, {0x477ff000, 0x4780, 0x7c00}, {0x7f7fffff, 0x7f80, 0x7c00},
                 {0x33000000, 0x3300, 0x0000}, {0x33000001, 0x3300, 0x0001}, {0x387fe000, 0x3880, 0x0400},
                 {0xff800000, 0xff80, 0xfc00}, {0x80000000, 0x8000, 0x8000}, {0x33c00000, 0x33c0, 0x0002}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(&wide, &cases[i].in, 4);
        convert_from_f32(SAFE_BF16, &wide, &back, 1);
        assert_int_equal(back, cases[i].bf16);
        convert_from_f32(SAFE_F16, &wide, &back, 1);
        assert_int_equal(back, cases[i].f16);
    }
    uint32_t nan_bits = 0x7f800001;
    memcpy(&wide, &nan_bits, 4);
    convert_from_f32(SAFE_BF16, &wide, &back, 1);
    convert_to_f32(SAFE_BF16, &back, &wide, 1);
    assert_true(isnan(wide));
    double third = 1.0 / 3.0;
    convert_to_f32(SAFE_F64, &third, &wide, 1);
    assert_int_equal(bits_of(wide), bits_of((float)third));
}

/* A small model in host memory. */
#define MODEL_TENSORS 5

typedef struct Model {
    TensorDesc tensors[MODEL_TENSORS];
    float values[MODEL_TENSORS][64];
} Model;

static ErrorCode fetch(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    (void)err;
    memcpy(host, (char *)((Model *)ctx)->values[index] + offset, bytes);
    return OK;
}

static ErrorCode store(void *ctx, int index, size_t offset, size_t bytes, const void *host, Error *err) {
    (void)err;
    memcpy((char *)((Model *)ctx)->values[index] + offset, host, bytes);
    return OK;
}

static void make_model(Model *m, SafeType stored, bool filled) {
    static const char *const names[MODEL_TENSORS] = {
        "model.embed_tokens.weight", "model.layers.10.mlp.up_proj.weight",
        "model.layers.9.mlp.up_proj.weight", "model.norm.weight", "empty"};
    *m = (Model){0};
    for (int i = 0; i < MODEL_TENSORS; i++) {
        m->tensors[i] = (TensorDesc){names[i], SAFE_F32, stored, 2, {4 + i, i == 4 ? 0 : 7}};
        for (int k = 0; k < 64 && filled; k++) m->values[i][k] = (float)(k - 20) * 0.125f * (float)(i + 1);
    }
    m->tensors[3] = (TensorDesc){names[3], SAFE_F32, SAFE_F32, 1, {7}};
}

static TensorList list_of(Model *m) {
    return (TensorList){
        .count = MODEL_TENSORS, .tensors = m->tensors, .ctx = m, .fetch = fetch, .store = store};
}

static void write_model(const char *dir, Model *m, uint64_t shard_bytes, int expect_files) {
    TensorList list = list_of(m);
    ModelLayout layout;
    uint64_t sums[MODEL_TENSORS];
    Error err = {.message = ""};
    modellayout_make(&layout, &list, "model", shard_bytes);
    assert_int_equal(layout.file_count + (layout.index.length > 0), expect_files);
    if (modelfiles_create(&file_ops_system, dir, &layout, &err) != OK) fail_msg("%s", err.message);
    if (modelfiles_write(&file_ops_system, dir, &layout, sums, &err) != OK) fail_msg("%s", err.message);
    modellayout_free(&layout);
}

static void check_model(const char *dir, const Model *expect, char digest[65]) {
    ModelFiles files;
    Model back;
    make_model(&back, SAFE_F32, false);
    TensorList list = list_of(&back);
    Error err = {.message = ""};
    if (modelfiles_open(&files, dir, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(files.count, MODEL_TENSORS);
    if (modelfiles_load(&files, &list, &err) != OK) fail_msg("%s", err.message);
    for (int i = 0; i < MODEL_TENSORS; i++)
        assert_memory_equal(back.values[i], expect->values[i],
                            (size_t)tensor_elements(&expect->tensors[i]) * 4);
    assert_int_equal(modelfiles_digest(&files, digest, &err), OK);
    modelfiles_close(&files);
}

static void models_round_trip_whatever_the_shards(void **state) {
    (void)state;
    Model m;
    char whole[65], cut[65], narrow[65];
    const char *one = files_mkdir("one"), *many = files_mkdir("many"), *bf16 = files_mkdir("bf16");
    make_model(&m, SAFE_F32, true);
    write_model(one, &m, SHARD_BYTES, 1);
    write_model(many, &m, 150, 5); /* four shards and the index */
    check_model(one, &m, whole);
    check_model(many, &m, cut);
    assert_string_equal(whole, cut);
    /* The values were chosen to be exact in bf16. */
    make_model(&m, SAFE_BF16, true);
    write_model(bf16, &m, SHARD_BYTES, 1);
    check_model(bf16, &m, narrow);
    assert_string_equal(whole, narrow);
    m.values[1][3] += 1.0f;
    const char *changed = files_mkdir("changed");
    write_model(changed, &m, SHARD_BYTES, 1);
    check_model(changed, &m, cut);
    assert_string_not_equal(whole, cut);
}

static void files_are_laid_out_as_the_reference_writes_them(void **state) {
    (void)state;
    Model m;
    Error err;
    const char *dir = files_mkdir("layout");
    make_model(&m, SAFE_BF16, true);
    write_model(dir, &m, SHARD_BYTES, 1);
    SafeFile f;
    assert_int_equal(safe_open(&f, files_path("layout/" MODEL_FILE), &err), OK);
    assert_int_equal(f.data_start % 8, 0);
    /* The only fp32 tensor has the largest alignment and comes first; then names in order of bytes. */
    assert_int_equal(safe_find(&f, "model.norm.weight")->begin, 0);
    assert_int_equal(safe_find(&f, "empty")->begin, 28);
    assert_int_equal(safe_find(&f, "model.embed_tokens.weight")->begin, 28);
    assert_int_equal(safe_find(&f, "model.layers.10.mlp.up_proj.weight")->begin, 28 + 56);
    assert_int_equal(safe_find(&f, "model.layers.9.mlp.up_proj.weight")->begin, 28 + 56 + 70);
    safe_close(&f);
}

static void loading_names_what_does_not_fit(void **state) {
    (void)state;
    Model m;
    ModelFiles files;
    Error err = {.message = ""};
    const char *dir = files_mkdir("fit");
    make_model(&m, SAFE_F32, true);
    write_model(dir, &m, SHARD_BYTES, 1);
    assert_int_equal(modelfiles_open(&files, dir, &err), OK);
    TensorList list = list_of(&m);
    m.tensors[2].shape[0]++;
    assert_int_equal(modelfiles_load(&files, &list, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "[6, 7], expected [7, 7]"));
    m.tensors[2].shape[0]--;
    m.tensors[2].name = "model.other";
    assert_int_equal(modelfiles_load(&files, &list, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "model.layers.9.mlp.up_proj.weight"));
    list.count = 2;
    assert_int_equal(modelfiles_load(&files, &list, &err), ERR_DATA);
    modelfiles_close(&files);
}

/* Some writers store a tied head in addition to the embedding. */
static ErrorCode load_tied(const char *name, float difference, Error *err) {
    Model m;
    ModelFiles files;
    const char *dir = files_mkdir(name);
    make_model(&m, SAFE_F32, true);
    m.tensors[4] = (TensorDesc){"lm_head.weight", SAFE_F32, SAFE_F32, 2, {4, 7}};
    memcpy(m.values[4], m.values[0], sizeof m.values[0]);
    m.values[4][27] += difference;
    write_model(dir, &m, SHARD_BYTES, 1);
    assert_int_equal(modelfiles_open(&files, dir, err), OK);
    TensorList list = list_of(&m);
    list.count = 4; /* the embedding is the head */
    ErrorCode code = modelfiles_load(&files, &list, err);
    modelfiles_close(&files);
    return code;
}

static void a_tied_head_is_the_embedding(void **state) {
    (void)state;
    Error err = {.message = ""};
    assert_int_equal(load_tied("tied", 0, &err), OK);
    assert_int_equal(load_tied("untied", 1, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "lm_head.weight has other values than model.embed_tokens.weight"));
}

static void refuse_index(const char *index, const char *named) {
    ModelFiles files;
    Error err = {.message = ""};
    files_text("index/" MODEL_INDEX, index);
    if (modelfiles_open(&files, files_path("index"), &err) == OK) fail_msg("accepted: %s", index);
    if (strstr(err.message, named) == NULL)
        fail_msg("%s: \"%s\" does not name \"%s\"", index, err.message, named);
}

static const char *put_shard(const char *name, const char *header) {
    return put_safetensors(name, header, strlen(header), 8);
}

static void the_index_cannot_lead_anywhere_else(void **state) {
    (void)state;
    files_mkdir("index/d.safetensors");
    put_shard("index/a.safetensors", "{\"a\":{" F32_2 "}}");
    put_shard("index/ab.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                                      "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}");
    assert_int_equal(symlink("a.safetensors", files_path("index/link.safetensors")), 0);
    static const char *const bad[] = {"../a.safetensors",
                                      "/etc/passwd",
                                      "/tmp/a.safetensors",
                                      "x/a.safetensors",
                                      ".a.safetensors",
                                      "",
                                      "a.bin",
                                      ".safetensors",
                                      "a\\u001b.safetensors",
                                      "a b.safetensors",
                                      ".."};
    char index[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s\"}}", bad[i]);
        refuse_index(index, "plain name");
    }
    refuse_index("{\"weight_map\":{\"a\":\"link.safetensors\"}}", "link");
    refuse_index("{\"weight_map\":{\"a\":\"d.safetensors\"}}", "regular file");
    refuse_index("{\"weight_map\":{\"a\":\"missing.safetensors\"}}", "missing.safetensors");
    refuse_index("{\"weight_map\":{\"c\":\"a.safetensors\"}}", "does not have it");
    refuse_index("{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"ab.safetensors\"}}", "two shards");
    refuse_index("{\"weight_map\":{\"a\":\"a.safetensors\",\"a\":\"a.safetensors\"}}", "duplicate");
    refuse_index("{\"weight_map\":{\"a\":7}}", "string");
    refuse_index("{\"weight_map\":{}}", "empty");
    refuse_index("{\"weight_map\":[]}", "weight_map");
    refuse_index("{}", "weight_map");
    refuse_index("[]", "weight_map");
    refuse_index("{", "index.json");
}

static void an_index_reads_what_it_lists(void **state) {
    (void)state;
    ModelFiles files;
    Error err = {.message = ""};
    static const char index[] =
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"a-00001-of-00002.safetensors\"}}";
    const char *dir = files_mkdir("good");
    put_shard("good/a-00001-of-00002.safetensors", "{\"a\":{" F32_2 "}}");
    files_text("good/" MODEL_INDEX, index);
    if (modelfiles_open(&files, dir, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(files.count, 1);
    assert_non_null(modelfiles_find(&files, "a"));
    assert_null(modelfiles_find(&files, "b"));
    modelfiles_close(&files);
}

#define NOTHING "\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]"
#define IMAGES                                                                                              \
    "{\"language_model.model.embed_tokens.weight\":{" F32_2 "},\"language_model.lm_head.weight\":{" NOTHING \
    "},\"lm_tail\":{" NOTHING "},\"vision_model.a\":{" NOTHING "},\"multi_modal_projector.b\":{" NOTHING "}"

/* Of a model of images and text, the text model is listed under its own names, in their order; other tensors
 * stay. */
static void a_text_among_images_goes_by_its_own_names(void **state) {
    (void)state;
    static const char *const names[] = {"lm_head.weight", "lm_tail", "model.embed_tokens.weight"};
    ModelFiles files;
    Error err = {.message = ""};
    if (modelfiles_open(&files, put_shard("images.safetensors", IMAGES "}"), &err) != OK)
        fail_msg("%s", err.message);
    assert_int_equal(files.count, 3);
    for (int i = 0; i < 3; i++) assert_string_equal(files.tensors[i].name, names[i]);
    assert_int_equal(modelfiles_find(&files, names[2])->tensor->elements, 2);
    modelfiles_close(&files);
    const char *twice = put_shard("twice.safetensors", IMAGES ",\"lm_head.weight\":{" NOTHING "}}");
    assert_int_equal(modelfiles_open(&files, twice, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "\"lm_head.weight\" is there twice"));
}

static void figures_are_of_the_values(void **state) {
    (void)state;
    Model m;
    ModelFiles files;
    TensorFigures figures;
    Error err = {.message = ""};
    const char *dir = files_mkdir("figures");
    make_model(&m, SAFE_F32, false);
    m.values[3][1] = 3.0f;
    m.values[3][2] = -4.0f;
    m.values[3][5] = INFINITY;
    write_model(dir, &m, SHARD_BYTES, 1);
    assert_int_equal(modelfiles_open(&files, dir, &err), OK);
    assert_int_equal(modelfiles_figures(&files, modelfiles_find(&files, "model.norm.weight"), &figures, &err),
                     OK);
    assert_true(figures.known && fabs(figures.norm - 5.0) < 1e-12 && fabs(figures.max - 4.0) < 1e-12);
    assert_int_equal(figures.nonfinite, 1);
    modelfiles_close(&files);
}

/* The definition of the digest, computed step by step: its value must not change between versions. */
static void the_digest_is_as_defined(void **state) {
    (void)state;
    char digest[65], expected[65];
    ModelFiles files;
    Error err = {.message = ""};
    const char *path =
        put_shard("digest.safetensors", "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[4,8]},"
                                        "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}");
    if (modelfiles_open(&files, path, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(modelfiles_digest(&files, digest, &err), OK);
    modelfiles_close(&files);
    Sha256 *h = sha256_start();
    uint8_t raw[32];
    static const float zero[2];
    sha256_add_u64(h, 2);
    sha256_add_u64(h, 1), sha256_add(h, "a", 1), sha256_add_u64(h, 5), sha256_add(h, "float", 5);
    sha256_add_u64(h, 0), sha256_add(h, zero, 4);
    sha256_add_u64(h, 1), sha256_add(h, "b", 1), sha256_add_u64(h, 5), sha256_add(h, "float", 5);
    sha256_add_u64(h, 2), sha256_add_u64(h, 2), sha256_add_u64(h, 1), sha256_add(h, zero, 8);
    sha256_finish(h, raw);
    sha256_hex(raw, expected);
    assert_string_equal(digest, expected);
}

static void the_golden_files_are_well_formed(void **state) {
    (void)state;
    ModelFiles files;
    Error err = {.message = ""};
    if (modelfiles_open(&files, WEFT_SOURCE_DIR "/tests/golden/tied-odd", &err) != OK)
        fail_msg("%s", err.message);
    assert_non_null(modelfiles_find(&files, "model.embed_tokens.weight"));
    assert_null(modelfiles_find(&files, "lm_head.weight"));
    modelfiles_close(&files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_fields_are_checked),
        cmocka_unit_test(headers_must_be_strict_json),
        cmocka_unit_test(entries_must_have_their_types),
        cmocka_unit_test(numbers_must_be_plain),
        cmocka_unit_test(duplicates_are_refused),
        cmocka_unit_test(metadata_holds_strings),
        cmocka_unit_test(offsets_must_cover_the_data_once),
        cmocka_unit_test(products_must_not_overflow),
        cmocka_unit_test(what_the_format_allows_is_accepted),
        cmocka_unit_test(names_are_escaped_in_errors),
        cmocka_unit_test(many_tensors_take_little_time),
        cmocka_unit_test(missing_files_and_directories_are_errors),
        cmocka_unit_test(conversions_are_exact_and_round_to_even),
        cmocka_unit_test(models_round_trip_whatever_the_shards),
        cmocka_unit_test(files_are_laid_out_as_the_reference_writes_them),
        cmocka_unit_test(loading_names_what_does_not_fit),
        cmocka_unit_test(a_tied_head_is_the_embedding),
        cmocka_unit_test(a_text_among_images_goes_by_its_own_names),
        cmocka_unit_test(the_index_cannot_lead_anywhere_else),
        cmocka_unit_test(an_index_reads_what_it_lists),
        cmocka_unit_test(figures_are_of_the_values),
        cmocka_unit_test(the_digest_is_as_defined),
        cmocka_unit_test(the_golden_files_are_well_formed),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

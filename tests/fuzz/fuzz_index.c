/* Fuzzes model.safetensors.index.json next to two good files, a bad one, a link to a good one outside, and a
 * directory. Whatever the index contains, only these files are read, and each tensor comes from the file that
 * the index names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/modelfiles.h"
#include "fuzz.h"

/* Opening the files costs what their headers cost, whatever the index; each mention of one costs a
 * SafeFile. */
enum { PER_BYTE = 128, FIXED = 1 << 18 };

static void put_shard(const char *name, const char *header, size_t data_bytes) {
    static const char zeros[64];
    Text file = {0};
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++) text_add(&file, &(char){(char)(uint8_t)((uint64_t)length >> (8 * i))}, 1);
    text_puts(&file, header);
    text_add(&file, zeros, data_bytes);
    fuzz_file(name, file.data, file.length);
    text_free(&file);
}

static const char *model_directory(void) {
    static char *model;
    if (model) return model;
    model = path_join(fuzz_directory(), "model");
    char *link = path_join(model, "link.safetensors"), *inner = path_join(model, "directory.safetensors");
    REQUIRE(mkdir(model, 0700) == 0 && mkdir(inner, 0700) == 0);
    put_shard("model/a.safetensors",
              "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"both\":{\"dtype\":\"U8\","
              "\"shape\":[1],"
              "\"data_offsets\":[8,9]}}",
              9);
    put_shard("model/b.safetensors",
              "{\"v\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},\"both\":{\"dtype\":\"U8\","
              "\"shape\":[1],"
              "\"data_offsets\":[8,9]}}",
              9);
    put_shard("outside.safetensors", "{\"o\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    fuzz_file("model/bad.safetensors", "\xff\xff\xff\xff", 4);
    REQUIRE(symlink("../outside.safetensors", link) == 0);
    free(link);
    free(inner);
    return model;
}

/* The file that the index names for a tensor. */
static const char *listed(const cJSON *root, const char *tensor) {
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    const char *file = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(map, tensor));
    return file ? file : "";
}

static void check_model(const ModelFiles *m, const uint8_t *data, size_t size, Error *err) {
    cJSON *root;
    char digest[65];
    REQUIRE(json_parse("index", (const char *)data, size, &root, err) == OK);
    REQUIRE(m->count >= 1 && m->count <= 3 && m->file_count <= 2 && !modelfiles_find(m, "o"));
    for (size_t i = 0; i < m->count; i++) {
        const ModelTensor *t = &m->tensors[i];
        const char *where = m->files[t->file].where, *file = listed(root, t->name);
        size_t length = strlen(where), suffix = strlen(file);
        REQUIRE(suffix > 0 && length > suffix && where[length - suffix - 1] == '/' &&
                strcmp(where + length - suffix, file) == 0);
        REQUIRE(modelfiles_find(m, t->name) == t);
    }
    REQUIRE(modelfiles_digest(m, digest, err) == OK && strlen(digest) == 64);
    cJSON_Delete(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    ModelFiles m;
    const char *model = model_directory();
    fuzz_file("model/" MODEL_INDEX, data, size);
    fuzz_memory_start();
    bool good = fuzz_ok(modelfiles_open(&m, model, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    if (good) {
        check_model(&m, data, size, &err);
        modelfiles_close(&m);
    }
    return 0;
}

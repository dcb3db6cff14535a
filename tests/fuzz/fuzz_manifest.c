/* Fuzzes manifest.json of a checkpoint whose other files are fixed. The mutator corrects its checksum. An
 * accepted one is written so that it reads back, names only files inside the directory, and contains no
 * terminal control characters. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "fuzz.h"

/* Checking contents needs a buffer of 4 MiB. */
enum { PER_BYTE = 160, FIXED = 5 << 20 };

static const char *checkpoint_directory(void) {
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    static char *path;
    if (path) return path;
    Text file = {0};
    path = path_join(fuzz_directory(), "step-00000005");
    REQUIRE(mkdir(path, 0700) == 0);
    text_add(&file, &(char){(char)(sizeof header - 1)}, 1);
    text_add(&file, "\0\0\0\0\0\0\0", 7);
    text_puts(&file, header);
    text_add(&file, "\0\0\x80\x3f\0\0\0\x40", 8);
    fuzz_file("step-00000005/model.safetensors", file.data, file.length);
    fuzz_file("step-00000005/state.json", "{}", 2);
    text_free(&file);
    return path;
}

static void check_manifest(const Manifest *m, const char *directory) {
    Error err = {0};
    Manifest again;
    Text first = {0}, second = {0};
    REQUIRE(strlen(m->time) < sizeof m->time && strspn(m->time, "0123456789-:TZ") == strlen(m->time));
    for (size_t i = 0; i < m->file_count; i++) REQUIRE(modelfiles_name_is_safe(m->files[i].name));
    manifest_write(m, &first);
    fuzz_file("step-00000005/" MANIFEST_FILE, first.data, first.length);
    if (manifest_read(&again, directory, &err) != OK)
        fuzz_fail(__FILE__, __LINE__, "what was written reads back", err.message);
    manifest_write(&again, &second);
    REQUIRE(first.length == second.length && memcmp(first.data, second.data, first.length) == 0);
    manifest_free(&again);
    text_free(&first);
    text_free(&second);
}

static void check_checkpoint(const char *directory) {
    Error err = {0};
    Checkpoint c;
    CheckpointSet set;
    bool verified = fuzz_ok(checkpoint_verify(directory, &err), &err);
    if (fuzz_ok(checkpoint_open(&c, directory, false, &err), &err)) {
        REQUIRE(verified && c.model.count == 1);
        checkpoint_close(&c);
    }
    REQUIRE(checkpoint_list(&set, fuzz_directory(), CHECK_CONTENTS, &err) == OK && set.count == 1);
    REQUIRE(!set.items[0].good || verified);
    checkpoint_set_free(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    Manifest m;
    const char *directory = checkpoint_directory();
    fuzz_file("step-00000005/" MANIFEST_FILE, data, size);
    fuzz_memory_start();
    bool good = fuzz_ok(manifest_read(&m, directory, &err), &err);
    if (good) good = fuzz_ok(manifest_check_contents(&m, directory, 0, 1, &err), &err) || m.file_count > 0;
    fuzz_memory_check(size, PER_BYTE, FIXED);
    check_checkpoint(directory);
    if (good) check_manifest(&m, directory);
    manifest_free(&m);
    return 0;
}

#ifdef WEFT_FUZZ

/* The last line of a manifest, as manifest.c writes it. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    enum { SEAL = 35 };
    char seal[64];
    if (seed % 16 == 0 || size <= SEAL || max_size <= SEAL) return LLVMFuzzerMutate(data, size, max_size);
    size_t body = LLVMFuzzerMutate(data, size - SEAL, max_size - SEAL);
    snprintf(seal, sizeof seal, "  \"checksum\": \"%016" PRIx64 "\"\n}\n", hash64(data, body));
    memcpy(data + body, seal, SEAL);
    return body + SEAL;
}

#endif

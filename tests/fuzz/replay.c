/* Runs a fuzz target on the given files and the files of the given directories. Options of libFuzzer are
 * ignored. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "fuzz.h"

#define LIMIT ((size_t)64 << 20)

static size_t runs;

static void replay_file(const char *path) {
    Error err = {0};
    char *data;
    size_t size;
    if (file_read(path, LIMIT, &data, &size, &err) != OK)
        fuzz_fail(__FILE__, __LINE__, "a corpus file can be read", err.message);
    /* A block of exactly this size, so that a sanitizer detects reads past the end. */
    char *exact = malloc(size ? size : 1);
    REQUIRE(exact);
    memcpy(exact, data, size);
    free(data);
    fprintf(stderr, "%s: ", path);
    LLVMFuzzerTestOneInput((const uint8_t *)exact, size);
    const char *message = fuzz_take_message();
    fprintf(stderr, "%s\n", *message ? message : "accepted");
    free(exact);
    runs++;
}

static void replay_directory(const char *path) {
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) fuzz_fail(__FILE__, __LINE__, "a corpus directory can be read", path);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.') {
            char *file = path_join(path, entries[i]->d_name);
            replay_file(file);
            free(file);
        }
        free(entries[i]);
    }
    free(entries);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') continue;
        if (file_is_dir(argv[i]))
            replay_directory(argv[i]);
        else
            replay_file(argv[i]);
    }
    REQUIRE(runs > 0);
    fprintf(stderr, "%zu inputs replayed\n", runs);
    return 0;
}

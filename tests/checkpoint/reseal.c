/* reseal CHECKPOINT FILE: gives the manifest the size and checksum of a small file of the checkpoint that a
 * test changed, such as state.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/manifest.h"

enum { LIMIT = 1 << 20 };

static ErrorCode reseal(const char *dir, const char *name, Error *err) {
    Manifest m = {0};
    char *path = path_join(dir, name), *manifest = path_join(dir, MANIFEST_FILE), *data = NULL;
    size_t length;
    Text text = {0};
    ErrorCode code = manifest_read(&m, dir, err);
    if (code == OK) code = file_read(path, LIMIT, &data, &length, err);
    for (size_t i = 0; code == OK && i < m.file_count; i++)
        if (strcmp(m.files[i].name, name) == 0)
            m.files[i].bytes = length, m.files[i].sum = hash64(data, length);
    if (code == OK) manifest_write(&m, &text);
    if (code == OK) code = file_write_atomic(manifest, text.data, text.length, err);
    manifest_free(&m);
    text_free(&text);
    free(data);
    free(manifest);
    free(path);
    return code;
}

int main(int count, char **words) {
    Error err = {0};
    if (count == 3 && reseal(words[1], words[2], &err) == OK) return 0;
    fprintf(stderr, "reseal: %s\n", count == 3 ? err.message : "expected CHECKPOINT FILE");
    return 1;
}

/* Fuzzes a run's configuration in YAML, and each line of it as an override on a command line. An accepted one
 * is written as YAML that reads back to the same, with the same digest. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/yaml.h"
#include "fuzz.h"
#include "config/config.h"

/* A node takes about 80 bytes and may come from one byte ("[a,a"), in arrays that double; libyaml has its
 * own. */
enum { PER_BYTE = 512, FIXED = 1 << 18, MOST_OVERRIDES = 2 };

static void start(Config *c, OptionSet *set) {
    Error err = {0};
    memset(c, 0, sizeof *c);
    REQUIRE(config_set_open(set, c, &err) == OK);
}

static bool apply(OptionSet *set, const char *data, size_t size) {
    Error err = {0};
    YamlNode *root = NULL;
    if (!fuzz_ok(yaml_tree_parse("fuzz.yaml", data, size, &root, &err), &err)) return false;
    bool good = fuzz_ok(options_apply_yaml(set, "fuzz.yaml", root, &err), &err);
    yaml_tree_free(root);
    return good;
}

/* `text` on top of the defaults has this digest. */
static void check_text(const Text *text, const char *digest, Text *rewritten) {
    Config c;
    OptionSet set;
    char after[65];
    start(&c, &set);
    if (!apply(&set, text->data, text->length))
        fuzz_fail(__FILE__, __LINE__, "what was written reads back", text->data);
    options_digest(&set, NULL, after);
    if (strcmp(digest, after) != 0) fuzz_fail(__FILE__, __LINE__, "it reads back to the same", text->data);
    options_write_yaml(&set, rewritten, false);
    options_free(&set);
}

static void check_round_trip(const OptionSet *set, bool with_sources) {
    char digest[65];
    Text plain = {0}, sourced = {0}, again = {0};
    options_digest(set, NULL, digest);
    options_write_yaml(set, &plain, false);
    options_write_yaml(set, &sourced, true);
    check_text(with_sources ? &sourced : &plain, digest, &again);
    if (strcmp(plain.data, again.data) != 0)
        fuzz_fail(__FILE__, __LINE__, "it is written as before", plain.data);
    text_free(&plain);
    text_free(&sourced);
    text_free(&again);
}

/* Returns the number of accepted lines. */
static int check_overrides(OptionSet *set, const char *data, size_t size) {
    char line[512];
    int left = MOST_OVERRIDES, taken = 0;
    for (size_t at = 0, end; at < size && left > 0; at = end + 1, left--) {
        for (end = at; end < size && data[end] != '\n';) end++;
        size_t length = end - at < sizeof line ? end - at : sizeof line - 1;
        memcpy(line, data + at, length);
        line[length] = 0;
        Error err = {0};
        taken += fuzz_ok(options_apply_override(set, line, &err), &err);
    }
    return taken;
}

/* Only for a model that is in no file: a run would go on to examine the machine. */
static void check_geometry(const Config *c) {
    Error err = {0};
    int64_t sequences = 0, microbatches = 0;
    if (fuzz_ok(config_geometry(c, 1, &sequences, &microbatches, &err), &err))
        REQUIRE(sequences > 0 && microbatches > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Config c;
    OptionSet set;
    fuzz_directory();
    start(&c, &set);
    fuzz_memory_start();
    bool good = apply(&set, (const char *)data, size);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    if (good) check_geometry(&c);
    int taken = check_overrides(&set, (const char *)data, size);
    if (taken) check_geometry(&c);
    /* If everything was refused, little can have changed, so a rare check suffices. */
    if (good || taken || size % 16 == 0) check_round_trip(&set, size % 2);
    options_free(&set);
    return 0;
}

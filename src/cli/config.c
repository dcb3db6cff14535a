/* weft config: the resolved configuration, with the origin of each value.
 *
 * Shapes are taken from model.config and model.init, as in a run. Values that depend on a tokenizer or a mesh
 * are not resolved here, and shown as 0 or auto. */
#include <stdio.h>

#include "cli/cli.h"
#include "checkpoint/find.h"
#include "config/config.h"

static const Flag flags[] = {
    {"--plain", 0, NULL, "without the sources: a configuration that reads back the same"},
    {NULL, 0, NULL, NULL}};

/* Prints what a run would use: defaults, file and command line, and what follows from them. To standard
 * output, so that `weft config --plain my.yaml a.b=c > new.yaml` makes a configuration. Prints nothing for an
 * invalid one. */
static ErrorCode run_config(const Arguments *args, Error *err) {
    Config c;
    OptionSet set;
    Text out = {0};
    const char *path = args->operand_count ? args->operands[0] : NULL;
    int overrides = args->operand_count ? args->operand_count - 1 : 0;
    ErrorCode code =
        config_load_either(&c, &set, path, overrides, args->operands + 1, checkpoint_find_shape, err);
    if (code == OK) {
        options_write_yaml(&set, &out, !arguments_has(args, "--plain"));
        fwrite(out.data, 1, out.length, stdout);
    }
    text_free(&out);
    options_free(&set);
    return code;
}

const Verb verb_config = {
    .name = "config",
    .summary = "the resolved configuration, with the source of each value",
    .synopsis = "[CONFIG.yaml | RUN [section.key=value ...]]",
    .details = "Each line shows where its value came from: default, file:line, or command line. Without a "
               "file: all defaults. Of a run directory: its config.yaml; keys that weft called by "
               "another name then have the names of today.\n\n"
               "Examples:\n"
               "  weft config configs/demo.yaml optimizer.lr=1e-3\n"
               "  weft config --plain runs/old >my.yaml",
    .flags = flags,
    .options = config_options,
    .min_operands = 0,
    .max_operands = -1,
    .run = run_config,
};

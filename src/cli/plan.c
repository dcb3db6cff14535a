/* weft plan: what a run would do, without starting it. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "train/save.h"
#include "train/setup.h"

static const Flag flags[] = {{"--program", 'p', NULL, "list the actions of one step; runs over consecutive units are folded"},
                             {"--whole", 0, NULL, "with --program: one line an action"},
                             {NULL, 0, NULL, NULL}};

static ErrorCode shape_of(Config *c, Error *err) {
    if (c->model.shape.vocab_size > 0) return model_config_complete(&c->model.shape, "model", err);
    Tokenizer *tokenizer;
    TRY(tokenizer_open(&tokenizer, c->data.tokenizer, err));
    ErrorCode code = setup_shape(c, tokenizer, err);
    tokenizer_free(tokenizer);
    return code;
}

static ErrorCode describe(const Arguments *args, const Config *c, Device *d, Error *err) {
    Engine e;
    EngineSpec spec;
    Text out = {0};
    TRY(setup_spec(c, d, &spec, err));
    ErrorCode code = engine_plan(&e, d, &spec, err);
    if (code == OK) {
        e.memory.staging = saver_bytes(c, &e.model.table);
        setup_describe(c, &e, &out);
        if (arguments_has(args, "--program")) {
            text_printf(&out, "program %d actions\n", e.program.count);
            program_print(&e.program, arguments_has(args, "--whole"), &out);
        }
        fwrite(out.data, 1, out.length, stdout);
    }
    text_free(&out);
    engine_free(&e);
    return code;
}

static ErrorCode run(const Arguments *args, Error *err) {
    Config c;
    OptionSet set;
    Device d;
    ErrorCode code = config_load(&c, &set, args->operands[0], args->operand_count - 1, args->operands + 1, err);
    if (code == OK) code = shape_of(&c, err);
    if (code == OK) code = setup_device(&c, &d, err);
    if (code == OK) {
        code = describe(args, &c, &d, err);
        device_close(&d);
    }
    options_free(&set);
    return code;
}

const Verb verb_plan = {
    .name = "plan",
    .summary = "what a run would do: model, step, memory, program; starts nothing",
    .synopsis = "CONFIG.yaml [section.key=value ...]",
    .details = "Memory is read off the program of a step: what is printed here is what a run takes before its first step.\n\n"
               "Examples:\n"
               "  weft plan configs/demo.yaml\n"
               "  weft plan configs/llama3-8b.yaml train.context=4096 --program",
    .flags = flags,
    .options = config_options,
    .min_operands = 1,
    .max_operands = -1,
    .run = run,
};

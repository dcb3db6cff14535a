/* The option tables of all directories, joined. A key is one row (base/option_rows.h), which parsing, help,
 * the resolved configuration, the comparison between ranks and resuming all use. Constraints of one key
 * (bounds, choices, the effect of a change) are in its row; only constraints across keys are code
 * (config.c). */
#include <pthread.h>

#include "config/config.h"

const OptionSection config_sections[] = {
    {"train", NULL, "training"},
    {"optimizer", NULL, "optim"},
    {"lr_schedule", "schedule", "lr_scheduler scheduler"},
    {"mesh", NULL, "parallelism parallel distributed"},
    {"metrics", NULL, "logging"},
    {"data", NULL, "dataloader"},
    {"validation", NULL, "validator"},
    {NULL, NULL, NULL},
};

/* Each with the offset in Config of the struct that its rows describe. Help and the written configuration
 * have their sections in this order. */
static const struct {
    const Option *rows;
    size_t at;
} tables[] = {
    {run_options, 0},
    {model_options, offsetof(Config, model)},
    {lora_options, offsetof(Config, lora)},
    {data_options, offsetof(Config, data)},
    {tokenizer_options, offsetof(Config, data.tokenizer_keys)},
    {train_options, 0},
    {mesh_options, offsetof(Config, mesh)},
    {cp_options, 0},
    {comm_options, offsetof(Config, comm)},
    {pipeline_options, offsetof(Config, pipeline)},
    {optimizer_options, offsetof(Config, optimizer)},
    {lr_schedule_options, offsetof(Config, lr_schedule)},
    {evaluation_options, 0},
    {checkpoint_options, 0},
    {metrics_options, 0},
    {check_options, 0},
};

static Option joined[256];

static void join(void) {
    size_t count = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const Option *row = tables[i].rows; row->key; row++) {
            CHECK(count + 1 < sizeof joined / sizeof *joined); /* the last one ends the table */
            joined[count] = *row;
            joined[count++].offset += tables[i].at;
        }
}

const Option *config_options(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, join);
    return joined;
}

/* Prints logits of a model, computed by the decoder with its cache, for tests that compare them with other
 * programs.
 *
 *     logits DIR < IDS            feeds token by token: a line of vocab_size numbers for each token
 *     logits --prefill DIR < IDS  feeds all tokens in chunks: the line of the last one
 *
 * DIR is a directory as for `weft generate`, also of an adapter. IDS are numbers separated by white space.
 * Computes in fp32 and prints nine digits, which distinguish all floats. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/adapter.h"
#include "checkpoint/find.h"
#include "tokenizer/tokenizer.h"
#include "model/decode.h"
#include "train/state.h"

enum { CHUNK = 16 }; /* small, so that short texts take several passes */

static ErrorCode read_ids(TokenList *list, const ModelConfig *c, Error *err) {
    int64_t id;
    int found;
    while ((found = scanf("%18" SCNd64, &id)) == 1) { /* 18 digits always fit */
        if (id < 0 || id >= c->vocab_size)
            return error_set(err, ERR_DATA, "id %" PRId64 " is not in the vocabulary of %" PRId64, id,
                             c->vocab_size);
        if ((int64_t)list->count == c->max_position_embeddings)
            return error_set(err, ERR_DATA, "more ids than the %zu positions of the model", list->count);
        token_list_reserve(list, 1);
        list->ids[list->count++] = (int32_t)id;
    }
    if (found != EOF || ferror(stdin))
        return error_set(err, ERR_DATA, "stdin: expected an id after the first %zu", list->count);
    return list->count > 0 ? OK : error_set(err, ERR_DATA, "stdin: no ids");
}

static ErrorCode open_engine(Engine **e, RankPlan *plan, Device *d, Comm **alone, const char *where,
                             Error *err) {
    RankSpec spec = {.compute = DTYPE_F32,
                     .recompute = RECOMPUTE_FULL,
                     .tokens = CHUNK,
                     .positions = CHUNK,
                     .inference = true};
    char *dir;
    AdapterDir adapter = {.count = 0};
    TRY(checkpoint_find_weights(where, &dir, err));
    ErrorCode code = adapter_is(dir) ? adapter_open(&adapter, dir, NULL, err) : OK;
    const char *base = adapter.dir ? adapter.base : dir;
    char *path = path_join(code == OK ? base : dir, "config.json");
    if (code == OK) code = model_config_read(&spec.model, path, err);
    spec.adapters = adapter_spec(&adapter);
    if (code == OK) code = device_open_cpu(d, NULL, 0, err);
    Layout layout = {0};
    if (code == OK) code = layout_single(&layout, &spec.model, 1, false, err);
    if (code == OK) code = rank_plan(plan, &spec, &layout, 0, d, err);
    layout_free(&layout);
    if (code == OK) code = comm_open_transport(alone, NULL, err);
    if (code == OK) code = engine_open(e, plan, d, *alone, err);
    if (code == OK) code = state_load_weights(*e, base, err);
    if (code == OK && adapter.dir) code = state_load_adapter(*e, dir, err);
    adapter_close(&adapter);
    free(path);
    free(dir);
    return code;
}

static void print_line(const float *logits, int64_t vocab) {
    for (int64_t i = 0; i < vocab; i++) printf("%.9g%c", (double)logits[i], i + 1 < vocab ? ' ' : '\n');
}

static ErrorCode print_logits(Engine *e, const TokenList *list, bool prefill, Error *err) {
    Decoder g;
    int64_t vocab = engine_model(e)->config.vocab_size, count = (int64_t)list->count;
    TRY(decoder_open(&g, engine_model(e), engine_weights(e), engine_device(e), count, CHUNK, err));
    float *logits = mem_alloc_array((size_t)vocab, sizeof *logits);
    for (int64_t done = 0, step = prefill ? count : 1; done < count; done += step) {
        decoder_feed(&g, list->ids + done, step, logits);
        print_line(logits, vocab);
    }
    free(logits);
    decoder_close(&g);
    return fflush(stdout) == 0 ? OK : error_errno(err, ERR_IO, "writing to stdout");
}

int main(int argc, char **argv) {
    Error err = {0};
    Device device = {0};
    RankPlan plan = {0};
    Comm *alone = NULL;
    Engine *engine = NULL;
    TokenList list = {0};
    bool prefill = argc == 3 && strcmp(argv[1], "--prefill") == 0;
    if (argc != 2 && !prefill) {
        fprintf(stderr, "usage: logits [--prefill] DIR < IDS\n");
        return 2;
    }
    ErrorCode code = open_engine(&engine, &plan, &device, &alone, argv[argc - 1], &err);
    if (code == OK) code = read_ids(&list, &plan.model.config, &err);
    if (code == OK) code = print_logits(engine, &list, prefill, &err);
    if (code != OK) fprintf(stderr, "logits: %s\n", err.message);
    token_list_free(&list);
    engine_close(engine);
    comm_close(alone);
    rank_plan_free(&plan);
    device_close(&device);
    return code != OK;
}

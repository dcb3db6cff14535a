/* Collects what a checkpoint of a run holds: state.json, the files that transformers reads, tensors. Advances
 * the save under way by a word in each step's record (checkpoint/async.h).
 *
 *     saver_begin     waits for the previous save, writes state.json, passes lists and files to the writer
 *     saver_copied    before the update: everything is staged, and weights may change from here on
 *     saver_flags     the writer's word goes out with the record of a step ...
 *     saver_advance   ... and comes back combined; once per save it gathers the blobs on rank 0
 *     saver_wait      the same outside of steps, until the save is done
 *     saver_report    what the save cost */
#include "train/save.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/adapter.h"
#include "checkpoint/find.h"
#include "data/dataset.h"
#include "tokenizer/tokenizer_config.h"

/* tokenizer.json, byte for byte as it came, since one that was parsed and written again would have another
 * fingerprint. The tokenizer can only write files, so one is written and read back. */
static ErrorCode tokenizer_text(const Config *c, const Tokenizer *t, Text *out, Error *err) {
    char *path = path_join(c->run.dir, "tokenizer.json");
    ErrorCode code = tokenizer_save(t, path, err);
    if (code == OK) code = file_read_text(path, (size_t)1 << 30, out, err);
    free(path);
    return code;
}

/* Keeps a pointer to the text, which must not move or be freed while a save is under way. */
static void add_file(Saver *s, const char *name, const Text *text) {
    s->files[s->file_count++] = (CheckpointFile){name, text->data, text->length};
}

/* Adds the chat template by which the run's conversations were rendered; for a run on plain text, the
 * tokenizer's if it has one. Whoever trains the model further finds it where transformers does. */
static ErrorCode add_template(Saver *s, Error *err) {
    ChatOptions options = data_chat_options(&s->c->data);
    char *where;
    ErrorCode code = chat_read_template(&options, &s->chat_template, &where, err);
    free(where);
    if (code == ERR_NOINPUT && !data_has_conversations(&s->c->data)) return OK;
    if (code == OK && s->chat_template.length > 0) add_file(s, "chat_template.jinja", &s->chat_template);
    return code;
}

/* The base is named by its absolute path, since the adapter may be opened from another working directory. */
static ErrorCode make_adapter_config(Saver *s, Error *err) {
    const LoraOptions *lora = &s->c->lora;
    AdapterConfig config = {.rank = lora->rank, .alpha = lora->alpha, .rslora = lora->rslora};
    char *dir;
    TRY(checkpoint_find_model(model_options_init(&s->c->model), &dir, err));
    config.base = realpath(dir, NULL);
    if (!config.base) config.base = mem_strdup(dir);
    adapter_config_write(&config, &engine_model(s->engine)->table, &s->config);
    add_file(s, ADAPTER_CONFIG, &s->config);
    free(config.base);
    free(dir);
    return OK;
}

/* The token that ends assistant turns in the run's conversations, which other programs must know to stop
 * there. -1: there is none, or the user has set the ends. */
static ErrorCode find_answer_end(const Saver *s, const Tokenizer *t, int64_t *id, Error *err) {
    ChatOptions options = data_chat_options(&s->c->data);
    Chat *chat;
    *id = -1;
    if (!data_has_conversations(&s->c->data) || s->c->data.tokenizer_keys.eos.count > 0) return OK;
    TRY(chat_open(&chat, &options, t, err));
    *id = chat_end_token(chat);
    chat_close(chat);
    return OK;
}

static TokenChanges token_changes(const Config *c, int64_t answer_end) {
    const TokenizerKeys *keys = &c->data.tokenizer_keys;
    return (TokenChanges){.bos = keys->bos[0] != 0,
                          .eos = keys->eos.count > 0,
                          .pad = keys->pad[0] != 0,
                          .answer_end = answer_end};
}

/* The directory whose tokenizer settings are kept, to be freed; NULL: none. */
static char *find_base(const Config *c) {
    char *dir = NULL;
    Error ignored = {.message = ""};
    const char *init = model_options_init(&c->model);
    if (!c->model.keeps_tokens || checkpoint_find_shape(init, c->data.cache_dir, &dir, &ignored) != OK)
        return NULL;
    return dir;
}

/* An adapter has no config.json, and has generation_config.json only if an end was added: a merge copies
 * it. */
static ErrorCode make_model_config(Saver *s, const Tokenizer *t, const char *base, Error *err) {
    ModelConfig m = s->c->model.shape;
    int64_t answer_end;
    TRY(find_answer_end(s, t, &answer_end, err));
    TokenChanges changes = token_changes(s->c, answer_end);
    bool added = model_add_end(&m, answer_end), adapter = s->c->lora.rank > 0;
    if (added) log_info("answers end by token %lld, which becomes an eos_token_id", (long long)answer_end);
    TRY(checkpoint_generation_config(&m, base, &changes, &s->generation, err));
    if (!adapter) {
        model_config_write(&m, s->c->checkpoint.dtype == STORE_BF16 ? "bfloat16" : "float32", &s->config);
        add_file(s, "config.json", &s->config);
    }
    if (!adapter || added) add_file(s, "generation_config.json", &s->generation);
    return OK;
}

/* Returns NULL if there is none. */
static char *token_name(const Tokenizer *t, int32_t id) {
    size_t length;
    const char *bytes = tokenizer_token_bytes(t, id, &length);
    Text text = {0};
    if (bytes) text_add(&text, bytes, length);
    return text.data;
}

/* That of the tokenizer, or else of the base: one may have a tokenizer_config.json and the other not. */
static char *find_tokenizer_config(const Config *c, const char *base) {
    char *path = tokenizer_config_path(c->data.tokenizer);
    if (path || !base) return path;
    path = path_join(base, "tokenizer_config.json");
    if (file_exists(path)) return path;
    free(path);
    return NULL;
}

static ErrorCode make_tokenizer_config(Saver *s, const Tokenizer *t, const char *base, Error *err) {
    char *from = find_tokenizer_config(s->c, base), *bos = token_name(t, tokenizer_bos(t)),
         *eos = token_name(t, tokenizer_eos(t)), *pad = token_name(t, tokenizer_pad(t));
    TokenChanges changes = token_changes(s->c, -1);
    ErrorCode code = checkpoint_tokenizer_config(from, &(TokenNames){bos, eos, pad}, &changes,
                                                 s->c->model.shape.max_position_embeddings, base != NULL,
                                                 &s->tokenizer_config, err);
    free(from);
    free(bos);
    free(eos);
    free(pad);
    return code;
}

/* The files that transformers reads alongside the weights. Made once: they do not change during a run. */
static ErrorCode make_companions(Saver *s, const Tokenizer *t, Error *err) {
    char *base = find_base(s->c);
    ErrorCode code = make_model_config(s, t, base, err);
    if (code == OK) code = make_tokenizer_config(s, t, base, err);
    free(base);
    TRY(code);
    if (s->c->lora.rank > 0) TRY(make_adapter_config(s, err));
    TRY(tokenizer_text(s->c, t, &s->tokenizer, err));
    add_file(s, "tokenizer.json", &s->tokenizer);
    add_file(s, "tokenizer_config.json", &s->tokenizer_config);
    return add_template(s, err);
}

static const TensorList *list_of(const Tensors *t) { return t ? &t->list : NULL; }

/* Makes the companion files now, so that errors are found when a run starts, not at its first save. `in_use`
 * is the step that the run resumes from, which is never pruned (-1: none). */
ErrorCode saver_open(Saver *s, const Config *c, const OptionSet *set, const RunFacts *facts, Engine *e,
                     Comm *comm, const Tokenizer *t, int64_t in_use, Error *err) {
    bool rounded = c->checkpoint.dtype == STORE_BF16;
    *s = (Saver){.c = c, .set = set, .facts = facts, .engine = e, .comm = comm};
    s->model = tensors_of_model(e, TENSORS_TO_SAVE, rounded ? SAFE_BF16 : SAFE_F32);
    s->optimizer = tensors_of_optimizer(e, NULL, rounded);
    s->average = tensors_of_average(e, TENSORS_TO_SAVE);
    s->kept = tensors_of_kept(e);
    /* Only rank 0 writes small files (checkpoint.c, invariant 2). */
    if (comm_rank(comm) == 0) TRY(make_companions(s, t, err));
    char *dir = checkpoint_directory(c->run.dir);
    bool direct = !config_saves_async(c);
    WriterSetup setup = {
        .dir = dir,
        .keep = {.last = c->checkpoint.keep, .every = c->checkpoint.keep_every},
        .in_use = in_use,
        .device = engine_device(e)->separate_memory ? engine_device(e) : NULL,
        .threads = engine_device(e)->threads,
        .rank = comm_rank(comm),
        .ranks = comm_size(comm),
        .direct = direct,
        .staging_bytes =
            direct ? 0 : checkpoint_staging_bytes(&s->model->list, &s->optimizer->list, list_of(s->average))};
    CHECK(setup.staging_bytes == engine_plan(e)->memory.staging); /* as planned */
    ErrorCode code = checkpoint_writer_start(&s->writer, &setup, err);
    free(dir);
    return code;
}

/* ---- the save under way, with many ranks ---- */

/* The writer's words travel in the step's record, one byte in each of its two sets of bits
 * (RECORD_WRITER). */
void saver_flags(Saver *s, uint64_t *any, uint64_t *all) {
    WriterWord word = checkpoint_writer_word(s->writer);
    *any |= (uint64_t)word.any * RECORD_WRITER;
    *all |= (uint64_t)word.all * RECORD_WRITER;
}

/* Rank 0 gathers what all ranks wrote, and commits. The blobs point into the gathered data; the writer copies
 * them. */
static ErrorCode hand_over(Saver *s, Error *err) {
    CheckpointBlob mine = checkpoint_writer_blob(s->writer);
    size_t ranks = (size_t)comm_size(s->comm), at = 0;
    size_t *lengths = mem_alloc_array(ranks, sizeof *lengths);
    CheckpointBlob *blobs = mem_alloc_array(ranks, sizeof *blobs);
    char *all = NULL;
    ErrorCode code = comm_gather(s->comm, mine.data, mine.length, &all, lengths, err);
    for (size_t r = 0; all && r < ranks; at += lengths[r++])
        blobs[r] = (CheckpointBlob){all + at, lengths[r]};
    if (code == OK) checkpoint_writer_commit(s->writer, all ? blobs : NULL);
    free(all);
    free(blobs);
    free(lengths);
    return code;
}

/* The inverse of saver_flags: extracts the words from the record. */
ErrorCode saver_advance(Saver *s, uint64_t any, uint64_t all, Error *err) {
    WriterWord word = {.any = (unsigned)(any / RECORD_WRITER) & 255,
                       .all = (unsigned)(all / RECORD_WRITER) & 255};
    return checkpoint_writer_advance(s->writer, word) ? hand_over(s, err) : OK;
}

/* A bit of `any` is set if one rank sets it, a bit of `all` only if every rank does. */
static void combine_words(void *into, const void *from) {
    uint64_t *a = into;
    const uint64_t *b = from;
    a[0] |= b[0], a[1] &= b[1];
}

/* With several ranks the words are combined here, outside of steps; with one there is nothing to combine. */
ErrorCode saver_wait(Saver *s, Error *err) {
    while (comm_size(s->comm) > 1 && !checkpoint_writer_idle(s->writer)) {
        uint64_t words[2] = {0, 0};
        checkpoint_writer_settle(s->writer);
        saver_flags(s, &words[0], &words[1]);
        TRY(comm_combine(s->comm, words, sizeof words, combine_words, err));
        TRY(saver_advance(s, words[0], words[1], err));
    }
    return checkpoint_writer_wait(s->writer, err);
}

/* Without a copy training waits for the whole save, which counts as stall. */
static ErrorCode wait_if_direct(Saver *s, Error *err) {
    double start = clock_seconds();
    if (config_saves_async(s->c)) return OK;
    ErrorCode code = saver_wait(s, err);
    s->waited += clock_seconds() - start;
    return code;
}

/* All ranks call it at the same step. Returns once the writer has the job; nothing need be on the disk
 * yet. */
ErrorCode saver_begin(Saver *s, const RunState *state, bool weights_only, Error *err) {
    Text text = {0};
    double start = clock_seconds();
    TRY(saver_wait(s, err));
    /* The report of the previous save would be overwritten by this one's. */
    s->has_earlier = s->has_earlier || saver_report(s, &s->earlier);
    s->waited = clock_seconds() - start;
    saved_write(state, engine_updates(s->engine), s->set, s->facts, &text);
    CheckpointSave save = {.step = state->step,
                           .model = &s->model->list,
                           .adapter = s->c->lora.rank > 0,
                           .average = list_of(s->average),
                           .files = s->files,
                           .file_count = s->file_count,
                           .best = state->best.step};
    /* Without optimizer and state, a checkpoint is a model directory. Its readers are warned if it holds more
     * (kept). */
    save.optimizer = list_of(weights_only ? s->kept : s->optimizer);
    if (!weights_only) save.state = text.data;
    ErrorCode code = checkpoint_writer_begin(s->writer, &save, err);
    text_free(&text);
    return code == OK ? wait_if_direct(s, err) : code;
}

void saver_flip(Saver *s, uint64_t index) { checkpoint_writer_flip(s->writer, index); }

/* Returns at once if nothing is being copied, so each step may call it. */
void saver_copied(Saver *s) { checkpoint_writer_copied(s->writer); }

/* The earlier save's report comes first: there may be two. */
bool saver_report(Saver *s, SaveReport *out) {
    if (s->has_earlier) {
        *out = s->earlier;
        s->has_earlier = false;
        return true;
    }
    if (!checkpoint_writer_report(s->writer, out)) return false;
    out->waited += s->waited;
    return true;
}

/* With one rank, waits for the save under way; with several, the caller has called saver_wait if it wanted
 * that. */
ErrorCode saver_close(Saver *s, Error *err) {
    ErrorCode code = checkpoint_writer_stop(s->writer, err);
    tensors_free(s->model);
    tensors_free(s->optimizer);
    tensors_free(s->average);
    tensors_free(s->kept);
    text_free(&s->config);
    text_free(&s->generation);
    text_free(&s->tokenizer);
    text_free(&s->tokenizer_config);
    text_free(&s->chat_template);
    *s = (Saver){0};
    return code;
}

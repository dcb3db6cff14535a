/* Reads a task in one pass over its file: a document, its question, the tokens of each pair, and which of
 * them are scored.
 *
 *     document 0          document 1             TaskDocument  first slot, index of the right choice
 *     slot 0   slot 1     slot 2   slot 3 ...    TaskLength    what its sum may be divided by
 *     request  request    request  request ...   TaskRequest   tokens; of a long text several in one slot
 *
 * Sums over requests, slots and documents are taken in the order of the file, whichever rank scored them. */
#include "data/task.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/url.h"
#include "data/corpus.h"

/* Questions with their answers, the first `shots` of which precede each question. */
typedef struct Examples {
    int64_t shots;
    bool own; /* they are the task's own documents, and none is its own example */
    size_t count, capacity;
    Text *items;
} Examples;

/* State of converting a task to requests. */
typedef struct TaskBuilder {
    Task *task;
    const InputCache *cache;
    const Tokenizer *tokenizer;
    int64_t context;
    int32_t prefix, bos; /* prefix: replaces an empty context, -1: not possible; bos: -1: not added */
    TokenList left, whole;
    Examples examples;
    Text before, example;              /* description and examples; the current document as others' example */
    size_t documents, slots, requests; /* capacities */
} TaskBuilder;

/* ---- growing ---- */

/* Makes space for one more item, by doubling. */
static void *grow(void *items, size_t count, size_t *capacity, size_t each) {
    size_t bytes;
    if (count < *capacity) return items;
    *capacity = *capacity ? 2 * *capacity : 64;
    CHECK(size_multiply(*capacity, each, &bytes));
    return mem_grow(items, bytes);
}

static TaskLength length_of(const Text *text) {
    TaskLength l = {.bytes = (int64_t)text->length};
    for (size_t i = 0; i < text->length; i++) l.characters += ((unsigned char)text->data[i] & 0xc0) != 0x80;
    l.words = (int64_t)task_words(text->data ? text->data : "", text->length);
    return l;
}

static size_t add_slot(TaskBuilder *m, const Text *text) {
    Task *t = m->task;
    t->length = grow(t->length, t->slots, &m->slots, sizeof *t->length);
    t->length[t->slots] = length_of(text);
    return t->slots++;
}

static void add_document(TaskBuilder *m, const TaskQuestion *q) {
    Task *t = m->task;
    t->document = grow(t->document, t->documents, &m->documents, sizeof *t->document);
    t->document[t->documents++] = (TaskDocument){t->slots, q->count, q->gold};
}

/* Adds ids[0, count), scored from `first` on. If there are too many, ids are dropped at the left. */
static ErrorCode add_request(TaskBuilder *m, const char *where, const int32_t *ids, size_t count,
                             size_t first, size_t slot, Error *err) {
    Task *t = m->task;
    size_t most = (size_t)m->context + 1, drop = count > most ? count - most : 0;
    if (first == count)
        return error_set(err, ERR_DATA, "%s: nothing to score: an answer has no tokens", where);
    if (first < drop + 1)
        return error_set(err, ERR_DATA, "%s: an answer of %zu tokens does not fit the context of %" PRId64,
                         where, count - first, m->context);
    t->request = grow(t->request, t->requests, &m->requests, sizeof *t->request);
    t->request[t->requests++] =
        (TaskRequest){t->tokens.count, (int32_t)(count - drop), (int32_t)(first - drop), slot};
    t->truncated += drop > 0;
    token_list_reserve(&t->tokens, count - drop);
    memcpy(t->tokens.ids + t->tokens.count, ids + drop, (count - drop) * sizeof *ids);
    t->tokens.count += count - drop;
    return OK;
}

/* ---- tokens ---- */

static void put(TokenList *list, int32_t id) {
    token_list_reserve(list, 1);
    list->ids[list->count++] = id;
}

/* Begins a context: with the BOS if requested. An empty context always gets a token. */
static ErrorCode begin(const TaskBuilder *m, const char *where, bool empty, TokenList *list, Error *err) {
    list->count = 0;
    if (!empty && m->bos >= 0) put(list, m->bos);
    if (!empty) return OK;
    if (m->prefix < 0)
        return error_set(
            err, ERR_DATA,
            "%s: nothing stands before what is to be scored, and the tokenizer has neither BOS nor "
            "EOS to begin with",
            where);
    put(list, m->prefix);
    return OK;
}

/* The continuation's tokens are those that the whole has in addition to the context's, so a pair whose border
 * is inside a token is scored as in the harness. The context keeps its own tokens, even if the whole begins
 * with others. */
static ErrorCode add_pair(TaskBuilder *m, const char *where, const Text *context, const Text *continuation,
                          size_t slot, Error *err) {
    Text whole = {0};
    text_add(&whole, m->before.data, m->before.length);
    text_add(&whole, context->data, context->length);
    size_t kept = whole.length - task_trailing_space(whole.data, whole.length);
    text_add(&whole, continuation->data, continuation->length);
    ErrorCode code = begin(m, where, kept == 0, &m->left, err);
    if (code == OK) code = begin(m, where, kept == 0, &m->whole, err);
    if (code == OK) code = tokenizer_encode(m->tokenizer, whole.data, kept, &m->left, err);
    if (code == OK) code = tokenizer_encode(m->tokenizer, whole.data, whole.length, &m->whole, err);
    text_free(&whole);
    TRY(code);
    size_t first = m->left.count;
    if (m->whole.count > first) {
        token_list_reserve(&m->left, m->whole.count - first);
        memcpy(m->left.ids + first, m->whole.ids + first, (m->whole.count - first) * sizeof *m->left.ids);
        m->left.count = m->whole.count;
    }
    return add_request(m, where, m->left.ids, m->left.count, first, slot, err);
}

/* Windows in which each token is scored once. The last one extends back as far as the context allows. */
static ErrorCode add_text(TaskBuilder *m, const char *where, const Text *text, size_t slot, Error *err) {
    size_t most = (size_t)m->context;
    TRY(begin(m, where, true, &m->whole, err));
    TRY(tokenizer_encode(m->tokenizer, text->data ? text->data : "", text->length, &m->whole, err));
    for (size_t scored = 1; scored < m->whole.count;) {
        size_t end = m->whole.count - scored > most ? scored + most : m->whole.count;
        size_t from = end > most + 1 ? end - most - 1 : 0;
        TRY(add_request(m, where, m->whole.ids + from, end - from, scored - from, slot, err));
        scored = end;
    }
    return OK;
}

/* ---- examples ---- */

static void add_example(TaskBuilder *m, const TaskQuestion *q) {
    Examples *e = &m->examples;
    e->items = grow(e->items, e->count, &e->capacity, sizeof *e->items);
    e->items[e->count] = (Text){0};
    task_example(m->task->format, q, &e->items[e->count++]);
}

static bool is_same(const Text *a, const Text *b) {
    return a->length == b->length && memcmp(a->data, b->data, a->length) == 0;
}

/* The description, then the first examples, except those that equal the question. */
static ErrorCode put_before(TaskBuilder *m, const char *where, const TaskQuestion *q, Error *err) {
    const Examples *e = &m->examples;
    int64_t put = 0;
    text_clear(&m->before);
    text_clear(&m->example);
    text_add(&m->before, q->description.data, q->description.length);
    if (e->shots > 0) task_example(m->task->format, q, &m->example);
    for (size_t i = 0; i < e->count && put < e->shots; i++) {
        if (e->own && is_same(&e->items[i], &m->example)) continue;
        text_add(&m->before, e->items[i].data, e->items[i].length);
        text_puts(&m->before, "\n\n");
        put++;
    }
    if (put == e->shots) return OK;
    return error_set(err, ERR_DATA,
                     "%s: num_fewshot is %" PRId64 ", but there are only %" PRId64 " examples for it", where,
                     e->shots, put);
}

/* ---- questions ---- */

static ErrorCode add_question(TaskBuilder *m, const char *where, const TaskQuestion *q, Error *err) {
    TRY(put_before(m, where, q, err));
    add_document(m, q);
    for (int i = 0; i < q->count; i++) {
        bool text = m->task->format->kind == TASK_TEXT;
        size_t slot = add_slot(m, text ? &q->continuations[i] : &q->choices[i]);
        if (text)
            TRY(add_text(m, where, &q->continuations[i], slot, err));
        else
            TRY(add_pair(m, where, &q->contexts[i], &q->continuations[i], slot, err));
    }
    return OK;
}

/* ---- documents ---- */

enum { FREE_CONTENT = 64 << 20, MOST_EXPANSION = 200 };

/* A task is held in memory, at several times its size. No text compresses this well, so a small file cannot
 * exhaust memory. */
static ErrorCode check_expansion(const CorpusReader *reader, const CorpusFile *file, uint64_t stored,
                                 Error *err) {
    uint64_t content = corpus_text_bytes(reader);
    if (content <= FREE_CONTENT || content / MOST_EXPANSION <= stored) return OK;
    return error_set(err, ERR_DATA,
                     "%s: %" PRIu64
                     " bytes hold more than %d MiB, which is over %d times as much and no text that "
                     "was compressed; if it is meant, decompress it first",
                     file->path, stored, FREE_CONTENT >> 20, MOST_EXPANSION);
}

/* A text file is one document of TASK_TEXT. */
static ErrorCode plain_text(CorpusReader *reader, const CorpusFile *file, uint64_t stored,
                            const CorpusChunk *first, TaskQuestion *q, Error *err) {
    CorpusChunk chunk = *first;
    bool more = true;
    Text *text = &q->continuations[0];
    text_clear(text);
    for (;;) {
        text_add(text, chunk.bytes, chunk.length);
        if (chunk.ends) break;
        TRY(corpus_next(reader, &chunk, &more, err));
        TRY(check_expansion(reader, file, stored, err));
        if (!more) break;
    }
    q->count = 1;
    return OK;
}

static ErrorCode json_document(const TaskFormat *f, const char *where, const CorpusChunk *chunk,
                               TaskQuestion *q, Error *err) {
    cJSON *root;
    TRY(json_parse(where, chunk->bytes, chunk->length, &root, err));
    ErrorCode code = task_question(f, where, root, q, err);
    cJSON_Delete(root);
    return code;
}

/* Reads documents as questions or as examples; `most` 0: all. */
static ErrorCode read_documents(TaskBuilder *m, CorpusReader *reader, const CorpusFile *file, bool examples,
                                int64_t most, TaskQuestion *q, Error *err) {
    bool more, json = corpus_format(file) == FORMAT_JSONL;
    uint64_t stored;
    int64_t count = 0;
    TRY(file_size(file->path, &stored, err));
    for (; most == 0 || count < most; count++) {
        CorpusChunk chunk;
        char where[512];
        TRY(corpus_next(reader, &chunk, &more, err));
        if (!more) break;
        TRY(check_expansion(reader, file, stored, err));
        snprintf(where, sizeof where, "%.480s:%" PRIu64, file->path, chunk.line);
        if (json)
            TRY(json_document(m->task->format, where, &chunk, q, err));
        else
            TRY(plain_text(reader, file, stored, &chunk, q, err));
        if (examples)
            add_example(m, q);
        else
            TRY(add_question(m, where, q, err));
    }
    return count > 0 ? OK : error_set(err, ERR_DATA, "%s: no documents", file->path);
}

static ErrorCode read_copy(TaskBuilder *m, const char *path, bool examples, int64_t most, Error *err) {
    CorpusFile file = {.path = path, .format = FORMAT_AUTO, .split = SPLIT_FILE};
    TaskQuestion q = {0};
    CorpusReader *reader;
    /* Only TASK_TEXT accepts plain text. */
    if (m->task->format->kind != TASK_TEXT) file.format = FORMAT_JSONL;
    TRY(corpus_open(&reader, &file, NULL, err));
    ErrorCode code = read_documents(m, reader, &file, examples, most, &q, err);
    m->task->text_bytes += corpus_text_bytes(reader);
    m->task->invalid_bytes += corpus_invalid_bytes(reader);
    m->task->form = corpus_doubtful_form(reader);
    corpus_close(reader);
    task_question_free(&q);
    return code;
}

static ErrorCode read_file(TaskBuilder *m, const char *path, bool examples, int64_t most, Error *err) {
    InputFiles inputs;
    ErrorCode code = input_files_open(&inputs, &path, 1, m->cache, err);
    const InputFile *file = inputs.items;
    if (code == OK && inputs.count > 1)
        code = error_set(err, ERR_CONFIG, "%s: the first of %zu files of this URL: a task is one file",
                         file->name, inputs.count);
    else if (code == OK)
        code = input_file_failed(file, read_copy(m, file->path, examples, most, err), err);
    input_files_close(&inputs);
    return code;
}

/* Reads examples from another file only as far as needed; of the task's own file all, since any may be left
 * out. */
static ErrorCode read_task(TaskBuilder *m, const TaskSource *source, Error *err) {
    Examples *e = &m->examples;
    bool other = source->examples && *source->examples;
    *e = (Examples){.shots = source->num_fewshot, .own = !other};
    if (e->shots > 0)
        TRY(read_file(m, other ? source->examples : source->path, true, other ? e->shots : 0, err));
    return read_file(m, source->path, false, source->limit, err);
}

static void free_builder(TaskBuilder *m) {
    token_list_free(&m->left);
    token_list_free(&m->whole);
    text_free(&m->before);
    text_free(&m->example);
    for (size_t i = 0; i < m->examples.count; i++) text_free(&m->examples.items[i]);
    free(m->examples.items);
}

/* ---- opening ---- */

/* The file's name without directories, up to its first dot. */
static char *stem_of(const char *path) {
    Text shown = {0};
    url_show(path, &shown);
    const char *slash = strrchr(shown.data, '/'), *name = slash ? slash + 1 : shown.data;
    char *stem = mem_strdup(name);
    stem[strcspn(stem, ".")] = '\0';
    text_free(&shown);
    return stem;
}

static ErrorCode find_format(const TaskSource *source, const char *stem, const TaskFormat **out, Error *err) {
    bool given = source->task && *source->task && strcmp(source->task, "auto") != 0;
    Text known = {0};
    char shown[80];
    const char *asked = given ? source->task : stem;
    *out = task_format_find(asked);
    if (*out && (!given || strcmp((*out)->name, asked) == 0)) return OK;
    task_format_names(&known);
    error_set(err, ERR_CONFIG, "%s: %s\"%s\" is no task: expected one of %s", source->path,
              given ? "" : "its name says that it is of ",
              error_escape(shown, sizeof shown, asked, strlen(asked)), known.data);
    text_free(&known);
    return ERR_CONFIG;
}

static ErrorCode check_source(const TaskSource *source, const TaskFormat **format, Error *err) {
    char *stem = stem_of(source->path);
    ErrorCode code = find_format(source, stem, format, err);
    free(stem);
    TRY(code);
    if (source->examples && *source->examples && source->num_fewshot == 0)
        return error_set(err, ERR_CONFIG, "%s: examples goes with num_fewshot: set how many of %s",
                         source->path, source->examples);
    if (source->num_fewshot > 0 && (*format)->kind == TASK_TEXT)
        return error_set(err, ERR_CONFIG,
                         "%s: num_fewshot: a text is scored from its beginning, without examples",
                         source->path);
    return OK;
}

ErrorCode task_check(const TaskSource *source, Error *err) {
    const TaskFormat *format;
    return check_source(source, &format, err);
}

char *task_name(const TaskSource *source) {
    return source->name && *source->name ? mem_strdup(source->name) : stem_of(source->path);
}

/* Hashes tokens and borders only: file names and white space in JSON do not matter. */
static void take_print(Task *t) {
    uint8_t digest[32];
    Sha256 *h = sha256_start();
    sha256_add_u64(h, t->documents);
    for (size_t i = 0; i < t->documents; i++) sha256_add_u64(h, (uint64_t)t->document[i].gold);
    for (size_t i = 0; i < t->requests; i++) {
        const TaskRequest *r = &t->request[i];
        sha256_add_u64(h, (uint64_t)r->count << 32 | (uint32_t)r->first);
        sha256_add_u64(h, r->slot);
    }
    sha256_add(h, t->tokens.ids, t->tokens.count * sizeof *t->tokens.ids);
    sha256_finish(h, digest);
    sha256_hex(digest, t->print);
}

ErrorCode task_open(Task **task, const TaskSource *source, const InputCache *cache,
                    const Tokenizer *tokenizer, int64_t context, bool add_bos, Error *err) {
    const TaskFormat *format = NULL;
    ErrorCode code = check_source(source, &format, err);
    Task *t = *task = mem_alloc(sizeof *t);
    *t = (Task){.format = format, .name = task_name(source)};
    int32_t bos = tokenizer_bos(tokenizer), eos = tokenizer_eos(tokenizer);
    TaskBuilder m = {.task = t,
                     .cache = cache,
                     .tokenizer = tokenizer,
                     .context = context,
                     .prefix = bos >= 0 ? bos : eos,
                     .bos = add_bos ? bos : -1};
    if (code == OK) code = read_task(&m, source, err);
    free_builder(&m);
    if (code == OK) {
        take_print(t);
        return OK;
    }
    task_close(t);
    *task = NULL;
    return code;
}

void task_close(Task *t) {
    if (!t) return;
    token_list_free(&t->tokens);
    free(t->document);
    free(t->length);
    free(t->request);
    free(t->name);
    free(t);
}

/* ---- metrics ---- */

static void add_score(TaskScore *into, const TaskScore *from) {
    into->sum += from->sum;
    into->missed += from->missed;
    into->nonfinite += from->nonfinite;
}

/* Mean, and its standard error. */
typedef struct Mean {
    double sum, squares;
    int64_t count;
} Mean;

static void take(Mean *m, double value) {
    m->sum += value;
    m->squares += value * value;
    m->count++;
}

static double mean_of(const Mean *m) { return m->count ? m->sum / (double)m->count : (double)NAN; }

static double stderr_of(const Mean *m) {
    double n = (double)m->count, mean = mean_of(m);
    return m->count > 1 ? sqrt(fmax(0, m->squares / n - mean * mean) / (n - 1)) : (double)NAN;
}

/* Index of the largest; the first of equals. */
static int likeliest(const TaskScore *scores, const TaskLength *lengths, int count, bool normalised) {
    int best = 0;
    double most = -HUGE_VAL;
    for (int i = 0; i < count; i++) {
        double value = scores[i].sum / (normalised ? fmax(1, (double)lengths[i].characters) : 1);
        if (value > most) most = value, best = i;
    }
    return best;
}

typedef struct Tally {
    Mean acc, acc_norm, gold, word;
    double sum; /* of all log-likelihoods */
    int64_t bytes, words;
} Tally;

static void take_document(const Task *t, const TaskDocument *d, const TaskScore *scores, Tally *tally) {
    const TaskScore *own = scores + d->first;
    const TaskLength *lengths = t->length + d->first;
    bool chooses = t->format->kind == TASK_CHOICE || t->format->kind == TASK_BLANK;
    take(&tally->word, own[0].sum);
    tally->sum += own[0].sum;
    tally->bytes += lengths[0].bytes;
    tally->words += lengths[0].words;
    take(&tally->acc, chooses ? likeliest(own, lengths, d->count, false) == d->gold : own[0].missed == 0);
    take(&tally->acc_norm, likeliest(own, lengths, d->count, true) == d->gold);
    take(&tally->gold, -own[d->gold].sum / log(2) / fmax(1, (double)lengths[d->gold].bytes));
}

/* Metrics that the kind of task does not have stay NaN. */
static void fill_figures(const Task *t, const Tally *y, TaskFigures *out) {
    TaskKind kind = t->format->kind;
    if (kind != TASK_TEXT) out->acc = mean_of(&y->acc), out->acc_stderr = stderr_of(&y->acc);
    if (kind == TASK_CHOICE) out->gold_bits_per_byte = mean_of(&y->gold);
    if (t->format->normalised)
        out->acc_norm = mean_of(&y->acc_norm), out->acc_norm_stderr = stderr_of(&y->acc_norm);
    if (kind == TASK_WORD) {
        out->perplexity = exp(-mean_of(&y->word));
        out->perplexity_stderr = out->perplexity * stderr_of(&y->word);
    }
    if (kind != TASK_TEXT) return;
    out->word_perplexity = exp(-y->sum / (double)y->words);
    out->byte_perplexity = exp(-y->sum / (double)y->bytes);
    out->bits_per_byte = -y->sum / log(2) / (double)y->bytes;
}

void task_slots(const Task *t, const TaskScore *scores, TaskScore *slots) {
    memset(slots, 0, t->slots * sizeof *slots);
    for (size_t i = 0; i < t->requests; i++) add_score(&slots[t->request[i].slot], &scores[i]);
}

void task_figures(const Task *t, const TaskScore *slots, TaskFigures *out) {
    const double none = (double)NAN;
    Tally tally = {.sum = 0};
    *out = (TaskFigures){.documents = (int64_t)t->documents,
                         .truncated = t->truncated,
                         .acc = none,
                         .acc_stderr = none,
                         .acc_norm = none,
                         .acc_norm_stderr = none,
                         .gold_bits_per_byte = none,
                         .perplexity = none,
                         .perplexity_stderr = none,
                         .word_perplexity = none,
                         .byte_perplexity = none,
                         .bits_per_byte = none};
    for (size_t i = 0; i < t->slots; i++) out->nonfinite += slots[i].nonfinite;
    for (size_t i = 0; i < t->documents; i++) take_document(t, &t->document[i], slots, &tally);
    if (out->nonfinite == 0) fill_figures(t, &tally, out);
}

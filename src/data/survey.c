#include "data/survey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "data/chat_form.h"
#include "formats/decoder.h"
#include "formats/parquet.h"
#include "formats/parquet_codec.h"
#include "formats/stored_file.h"
#include "formats/token_index.h"

enum { CLASS_BITS = 12, CLASS_HALF = 1 << (CLASS_BITS - 1), CLASSES = (64 - CLASS_BITS + 2) * CLASS_HALF };
enum { SAMPLE_BYTES = 1000, SAMPLE_IDS = 100, QUIET_BYTES = 64 << 20 };

/* The reading of one file. */
typedef struct Reading {
    Survey *s;
    const CorpusFile *file;
    const SurveyOptions *o;
    CorpusReader *reader;
    bool whole;         /* documents are encoded whole (tokenizer_whole_documents) */
    Text decoded, held; /* of a line; of a document that is not complete */
    TokenList ids;
    /* the present document */
    Hash128 *hash;
    Text sample;
    uint64_t bytes, tokens;
} Reading;

/* ---- figures ---- */

static size_t class_of(uint64_t length) {
    int bits = length ? 64 - __builtin_clzll(length) : 0, shift = bits > CLASS_BITS ? bits - CLASS_BITS : 0;
    return (size_t)shift * CLASS_HALF + (size_t)(length >> shift);
}

/* The middle of the class. */
static double class_length(size_t c) {
    if (c < 2 * CLASS_HALF) return (double)c;
    size_t shift = c / CLASS_HALF - 1, top = c - shift * CLASS_HALF;
    return ((double)top + 0.5) * (double)(UINT64_C(1) << shift) - 0.5;
}

static void count_length(SurveyFigures *f, uint64_t length) {
    if (!f->lengths) f->lengths = mem_alloc_array(CLASSES, sizeof *f->lengths);
    f->lengths[class_of(length)]++;
    f->least = f->measured == 0 || length < f->least ? length : f->least;
    f->most = length > f->most ? length : f->most;
    f->measured++;
    f->bytes += length;
}

double survey_median(const SurveyFigures *f) {
    uint64_t below = 0, middle = (f->measured + 1) / 2;
    size_t c = 0;
    if (!f->lengths) return 0;
    while (c + 1 < CLASSES && (below += f->lengths[c]) < middle) c++;
    double median = class_length(c), least = (double)f->least, most = (double)f->most;
    return median < least ? least : median > most ? most : median;
}

static void add_lengths(SurveyFigures *sum, const SurveyFigures *more) {
    if (!more->lengths) return;
    if (!sum->lengths) sum->lengths = mem_alloc_array(CLASSES, sizeof *sum->lengths);
    for (size_t c = 0; c < CLASSES; c++) sum->lengths[c] += more->lengths[c];
    sum->least = sum->measured == 0 || more->least < sum->least ? more->least : sum->least;
    sum->most = more->most > sum->most ? more->most : sum->most;
}

void survey_add(SurveyFigures *sum, const SurveyFigures *more) {
    add_lengths(sum, more);
    sum->stored += more->stored;
    sum->documents += more->documents;
    sum->measured += more->measured;
    sum->bytes += more->bytes;
    sum->checked += more->checked;
    sum->invalid += more->invalid;
    sum->duplicates += more->duplicates;
    sum->duplicate_bytes += more->duplicate_bytes;
    sum->null_rows += more->null_rows;
    sum->bad_lines += more->bad_lines;
    sum->left_out += more->left_out;
    sum->tokens += more->tokens;
    sum->encoded += more->encoded;
    sum->timed += more->timed;
    sum->seconds += more->seconds;
    sum->all += more->all;
}

/* ---- documents ---- */

static void keep_sample(Reading *r, const char *bytes, size_t length) {
    if (r->s->sample_count == r->o->samples || r->sample.length >= SAMPLE_BYTES) return;
    size_t room = SAMPLE_BYTES - r->sample.length;
    text_add(&r->sample, bytes, length < room ? length : room);
}

static void begin_document(Reading *r) {
    hash128_begin(r->hash);
    r->bytes = r->tokens = 0;
    text_clear(&r->sample);
    text_clear(&r->held);
}

/* What the source leaves out is counted and no document. */
static void end_document(Reading *r, bool measured) {
    SurveyFigures *f = &r->s->figures;
    DocumentDigest digest;
    bool left_out = corpus_is_short(r->file, r->bytes) || corpus_is_long(r->file, r->bytes);
    hash128_finish(r->hash, digest.bytes);
    f->left_out += left_out;
    if (left_out) return;
    f->documents += !r->s->undivided;
    f->tokens += r->tokens;
    if (r->tokens) f->encoded += r->bytes;
    if (measured) count_length(f, r->bytes);
    if (!r->s->undivided && !seen_add(r->o->seen, &digest)) {
        f->duplicates++;
        f->duplicate_bytes += r->bytes;
    }
    if (r->s->sample_count == r->o->samples) return;
    r->s->samples[r->s->sample_count++] = r->sample;
    r->sample = (Text){0};
}

static ErrorCode encode(Reading *r, const char *bytes, size_t length, bool begins, Error *err) {
    double start = clock_seconds();
    r->ids.count = 0;
    TRY(tokenizer_encode_part(r->o->tokenizer, bytes, length, begins, &r->ids, err));
    r->tokens += r->ids.count;
    r->s->figures.seconds += clock_seconds() - start;
    r->s->figures.timed += length;
    return OK;
}

static ErrorCode tokenize(Reading *r, const char *bytes, size_t length, const CorpusChunk *at, Error *err) {
    if (r->whole && !(at->starts && at->ends)) {
        text_add(&r->held, bytes, length);
        return at->ends ? encode(r, r->held.data, r->held.length, true, err) : OK;
    }
    return encode(r, bytes, length, at->starts, err);
}

/* A part of a document's text; `at` is the chunk that it comes from. */
static ErrorCode add_text(Reading *r, const char *bytes, size_t length, const CorpusChunk *at, Error *err) {
    if (at->starts) begin_document(r);
    r->bytes += length;
    hash128_add(r->hash, bytes, length);
    keep_sample(r, bytes, length);
    if (r->o->tokenizer) TRY(tokenize(r, bytes, length, at, err));
    if (!at->ends) return OK;
    if (r->o->tokenizer) r->tokens += (uint64_t)((r->o->bos >= 0) + (r->o->eos >= 0));
    end_document(r, true);
    return OK;
}

static void sample_ids(Reading *r, const int32_t *ids, size_t count) {
    size_t most = count < SAMPLE_IDS ? count : SAMPLE_IDS;
    if (r->s->sample_count == r->o->samples || r->sample.length >= SAMPLE_BYTES) return;
    if (r->o->tokenizer) {
        (void)tokenizer_decode(r->o->tokenizer, ids, most, &r->sample, NULL);
        return;
    }
    for (size_t i = 0; i < most; i++) text_printf(&r->sample, "%s%d", r->sample.length ? " " : "", ids[i]);
}

/* Only the tokenizer knows which text the ids stand for. */
static ErrorCode add_ids(Reading *r, const CorpusChunk *chunk) {
    const int32_t *ids = (const int32_t *)(const void *)chunk->bytes;
    size_t count = chunk->length / sizeof *ids;
    if (chunk->starts) begin_document(r);
    hash128_add(r->hash, ids, chunk->length);
    sample_ids(r, ids, count);
    r->tokens += count;
    for (size_t i = 0; r->o->tokenizer && i < count; i++)
        r->bytes += tokenizer_text_bytes(r->o->tokenizer, ids[i]);
    if (chunk->ends) end_document(r, r->o->tokenizer != NULL);
    return OK;
}

/* ---- conversations ---- */

/* The texts of the messages, each with its role in front, which does not count. */
static uint64_t put_messages(const Conversation *v, Text *out) {
    uint64_t bytes = 0;
    for (const cJSON *m = v->messages->child; m; m = m->next) {
        cJSON *content = cJSON_GetObjectItemCaseSensitive(m, "content");
        char *other = content && !cJSON_IsString(content) ? cJSON_PrintUnformatted(content) : NULL;
        const char *text = other ? other : content ? content->valuestring : "";
        text_printf(out, "%s%s: ", out->length ? "\n" : "", chat_role(m));
        text_puts(out, text);
        bytes += strlen(text);
        cJSON_free(other);
    }
    return bytes;
}

static const char *messages_key(const CorpusFile *file) {
    return file->key && file->key[0] ? file->key : "messages";
}

/* Messages as text, and the form in which the line has them. */
static ErrorCode read_conversation(const CorpusFile *file, const CorpusChunk *chunk, Text *out,
                                   uint64_t *bytes, ChatForm *form, Error *err) {
    char where[440];
    const JsonPlace place = {file->path, (size_t)chunk->line, corpus_has_rows(file)};
    cJSON *root = NULL;
    snprintf(where, sizeof where, "%.400s:%llu", file->path, (unsigned long long)chunk->line);
    Conversation v = {.where = where};
    TRY(json_parse_literals(place, chunk->bytes, chunk->length, &root, err));
    ErrorCode code = chat_form_read(&v, file->chat_form, root, messages_key(file), err);
    text_clear(out);
    if (code == OK) *bytes = put_messages(&v, out);
    *form = v.form;
    cJSON_Delete(v.messages);
    cJSON_Delete(root);
    return code;
}

/* As training renders and encodes it. */
static ErrorCode encode_conversation(Reading *r, const CorpusChunk *chunk, uint64_t *bytes, Error *err) {
    const ChatLine line = {r->file->path, chunk->line, r->file->chat_form, r->file->key,
                           corpus_has_rows(r->file)};
    DocumentEnds ends = {0};
    double start = clock_seconds();
    r->ids.count = 0;
    *bytes = 0;
    ErrorCode code =
        chat_encode_line(r->o->chat, &line, chunk->bytes, chunk->length, &r->ids, &ends, bytes, err);
    r->s->figures.seconds += clock_seconds() - start;
    r->s->figures.timed += *bytes;
    free(ends.ends);
    return code;
}

static ErrorCode add_conversation(Reading *r, const CorpusChunk *chunk, Error *err) {
    uint64_t bytes = 0;
    ChatForm form;
    TRY(read_conversation(r->file, chunk, &r->decoded, &bytes, &form, err));
    if (r->o->chat) TRY(encode_conversation(r, chunk, &bytes, err));
    begin_document(r);
    r->s->forms[form]++;
    hash128_add(r->hash, r->decoded.data, r->decoded.length);
    keep_sample(r, r->decoded.data, r->decoded.length);
    r->bytes = bytes;
    r->tokens = r->o->chat ? r->ids.count : 0;
    end_document(r, true);
    return OK;
}

/* An empty text is no document. */
static ErrorCode add_line(Reading *r, const CorpusChunk *chunk, Error *err) {
    if (r->s->format == FORMAT_CHAT) return add_conversation(r, chunk, err);
    TRY(corpus_decode_json(r->file, chunk, &r->decoded, err));
    return r->decoded.length ? add_text(r, r->decoded.data, r->decoded.length, chunk, err) : OK;
}

/* ---- reading ---- */

/* A broken line is counted: the caller decides what it means. */
static ErrorCode add_chunk(Reading *r, const CorpusChunk *chunk, Error *err) {
    Error why = {0};
    if (r->s->format == FORMAT_TOKENS) return add_ids(r, chunk);
    if (!corpus_has_lines(r->s->format)) return add_text(r, chunk->bytes, chunk->length, chunk, err);
    ErrorCode code = add_line(r, chunk, &why);
    if (code == ERR_DATA && r->s->figures.bad_lines++ == 0) r->s->bad = why;
    if (code != OK && code != ERR_DATA) *err = why;
    return code == ERR_DATA ? OK : code;
}

static ErrorCode read_all(Reading *r, Error *err) {
    const Survey *s = r->s;
    Progress *progress = s->figures.stored > QUIET_BYTES
                             ? progress_start("reading", (double)s->figures.stored / 1e6, "MB")
                             : NULL;
    bool more = true;
    ErrorCode code = OK;
    while (code == OK && more && !(r->o->limit && s->figures.documents >= r->o->limit)) {
        CorpusChunk chunk;
        code = corpus_next(r->reader, &chunk, &more, err);
        if (code == OK && more) code = add_chunk(r, &chunk, err);
        if (progress) progress_set(progress, (double)corpus_stored_position(r->reader) / 1e6);
    }
    progress_finish(progress);
    r->s->cut = more;
    return code;
}

static void take_figures(Reading *r) {
    SurveyFigures *f = &r->s->figures;
    double given = corpus_stored_given(r->reader);
    r->s->array = corpus_is_array(r->reader);
    r->s->form = corpus_form(r->reader);
    f->checked = corpus_text_bytes(r->reader);
    f->invalid = corpus_invalid_bytes(r->reader);
    f->null_rows = corpus_null_rows(r->reader);
    f->all = r->s->cut && given > 0 ? f->seconds * (double)f->stored / given : f->seconds;
}

static ErrorCode read_file(Survey *s, const CorpusFile *file, const SurveyOptions *o, Error *err) {
    Reading r = {.s = s, .file = file, .o = o};
    r.whole = o->tokenizer && tokenizer_whole_documents(o->tokenizer);
    s->samples = mem_alloc_array(o->samples + 1, sizeof *s->samples);
    TRY(corpus_open(&r.reader, file, NULL, err));
    r.hash = hash128_open();
    ErrorCode code = read_all(&r, err);
    take_figures(&r);
    hash128_close(r.hash);
    corpus_close(r.reader);
    text_free(&r.decoded);
    text_free(&r.held);
    text_free(&r.sample);
    token_list_free(&r.ids);
    return code;
}

/* ---- recognition ---- */

static void need_key(Survey *s, const char *key, const char *value) {
    text_printf(&s->source, "%s%s: %s", s->source.length ? ", " : "", key, value);
}

static const ParquetLeaf *find_leaf(const ParquetLeaves *l, const char *path) {
    for (size_t i = 0; i < l->count; i++)
        if (l->items[i].text && l->items[i].lists == 0 && (!path || strcmp(l->items[i].path, path) == 0))
            return &l->items[i];
    return NULL;
}

/* The column `text`, else conversations, else the first column of text. */
static void guess_column(Survey *s, CorpusFile *file, bool named) {
    const ParquetLeaf *first = find_leaf(&s->columns, NULL);
    if (find_leaf(&s->columns, "text") || (!first && !corpus_has_chat_columns(&s->columns))) return;
    if (named && corpus_has_chat_columns(&s->columns)) {
        file->format = FORMAT_CHAT;
        file->key = "messages";
        need_key(s, "format", "chat");
        return;
    }
    if (!first) return;
    file->key = first->path;
    file->column = true;
    need_key(s, "column", first->path);
}

static ErrorCode guess_parquet(Survey *s, CorpusFile *file, bool named, Error *err) {
    TRY(parquet_leaves(&s->columns, file->path, err));
    file->format = FORMAT_PARQUET;
    if (!named) need_key(s, "format", "parquet");
    guess_column(s, file, named);
    return OK;
}

/* By the first line: it has no text under the key, and is a conversation, perhaps one that is refused. */
static ErrorCode guess_lines(Survey *s, CorpusFile *file, Error *err) {
    CorpusReader *reader;
    CorpusChunk chunk;
    bool more;
    uint64_t bytes;
    ChatForm form = CHAT_AUTO;
    Text text = {0};
    TRY(corpus_open(&reader, file, NULL, err));
    ErrorCode code = corpus_next(reader, &chunk, &more, err);
    if (code == OK && more && corpus_decode_json(file, &chunk, &text, NULL) != OK) {
        CorpusFile chat = *file;
        chat.key = NULL;
        if (read_conversation(&chat, &chunk, &text, &bytes, &form, NULL) == OK || form != CHAT_AUTO) {
            file->format = FORMAT_CHAT;
            file->key = "messages";
            s->recognised = "by the members of its first line";
            need_key(s, "format", "chat");
        }
    }
    corpus_close(reader);
    text_free(&text);
    return code;
}

static bool is_default_key(const CorpusFile *file) {
    return !file->key || !file->key[0] || strcmp(file->key, "text") == 0;
}

/* JSON lines and arrays in spite of the name, which training refuses unless the source says so. */
static ErrorCode guess_text(Survey *s, CorpusFile *file, Error *err) {
    CorpusFile text = *file;
    CorpusReader *reader;
    text.format = FORMAT_TEXT;
    TRY(corpus_open(&reader, &text, NULL, err));
    const TextForm *form = corpus_form(reader);
    corpus_close(reader);
    if (!form || !form->refused) return OK;
    s->recognised = "by its content";
    file->format = FORMAT_JSONL;
    if (is_default_key(file)) TRY(guess_lines(s, file, err));
    if (file->format == FORMAT_JSONL) need_key(s, "format", "jsonl");
    return OK;
}

static ErrorCode guess(Survey *s, CorpusFile *file, FileKind kind, Error *err) {
    SourceFormat named = corpus_format(file);
    if (named == FORMAT_JSONL) return is_default_key(file) ? guess_lines(s, file, err) : OK;
    if (named == FORMAT_PARQUET && is_default_key(file)) return guess_parquet(s, file, true, err);
    if (named == FORMAT_PARQUET) return OK;
    if (kind == KIND_PARQUET || kind == KIND_TOKENS || file->tokens.index)
        s->recognised = file->tokens.index ? "by the index next to it" : "by its content";
    if (kind == KIND_PARQUET) return guess_parquet(s, file, false, err);
    if (kind != KIND_TOKENS && !file->tokens.index) return guess_text(s, file, err);
    file->format = FORMAT_TOKENS;
    need_key(s, "format", "tokens");
    return OK;
}

static ErrorCode recognise(Survey *s, CorpusFile *file, const SurveyOptions *o, Error *err) {
    StoredFile stored;
    FileEnds ends;
    TRY(stored_open(&stored, file->path, err));
    s->figures.stored = stored.size;
    ErrorCode code = stored_ends(&stored, &ends, err);
    const FileFormat *format = code == OK ? file_format_of(&ends) : NULL;
    stored_close(&stored); /* its path is that of the ends */
    if (code != OK) return code;
    const Decoder *decoder = format ? decoder_of(format->kind) : NULL;
    if (decoder) s->compression = decoder->name;
    s->recognised = "as its source says";
    if (file->format != FORMAT_AUTO) return OK;
    s->recognised = corpus_format(file) == FORMAT_TEXT ? "no other format by its name" : "by its name";
    return o->guess ? guess(s, file, format ? format->kind : KIND_NOT_TEXT, err) : OK;
}

/* ---- containers ---- */

/* The column that is read; of conversations the first that could be. */
static ErrorCode describe_parquet(Survey *s, const CorpusFile *file, Error *err) {
    const char *column = s->format == FORMAT_CHAT ? NULL : file->key && file->key[0] ? file->key : "text";
    if (!s->columns.items) TRY(parquet_leaves(&s->columns, file->path, err));
    for (size_t i = 0; !column && i < s->columns.count; i++)
        if (s->columns.items[i].text && s->columns.items[i].lists < 2) column = s->columns.items[i].path;
    if (!column) return OK;
    Parquet *p;
    TRY(parquet_open_slots(&p, file->path, column, err));
    const ParquetColumn *c = parquet_column(p);
    s->groups = c->group_count;
    s->row_count = c->rows;
    if (c->group_count) s->codec = parquet_codec_name(c->groups[0].codec);
    parquet_close(p);
    return OK;
}

static ErrorCode describe_tokens(Survey *s, const CorpusFile *file, Error *err) {
    TokenFile *f;
    TRY(token_file_open(&f, file->path, &file->tokens, err));
    s->type = token_file_type(f);
    token_file_close(f);
    return OK;
}

ErrorCode survey_file(Survey *s, CorpusFile *file, const SurveyOptions *o, Error *err) {
    *s = (Survey){0};
    TRY(recognise(s, file, o, err));
    s->format = corpus_format(file);
    s->rows = corpus_has_rows(file);
    if (s->rows) TRY(describe_parquet(s, file, err));
    s->undivided = s->format == FORMAT_TOKENS && !o->tokenizer && !file->tokens.index && file->tokens.end < 0;
    if (s->format == FORMAT_TOKENS) TRY(describe_tokens(s, file, err));
    if (s->format == FORMAT_CHAT ? file->column : s->rows || s->format == FORMAT_JSONL)
        text_puts(&s->key, file->key && file->key[0] ? file->key : "text");
    return read_file(s, file, o, err);
}

void survey_free(Survey *s) {
    for (size_t i = 0; i < s->sample_count; i++) text_free(&s->samples[i]);
    free(s->samples);
    free(s->figures.lengths);
    parquet_leaves_free(&s->columns);
    text_free(&s->key);
    text_free(&s->source);
}

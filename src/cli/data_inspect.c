/* weft data inspect: what is in files of data, before they are trained on.
 *
 * data/survey.c reads a file. This file turns operands into files: a path, a pattern, a directory and a URL
 * stand for their files, whose format may be recognised by their content; a configuration for its sources,
 * which are read as it says. Each file is reported as soon as it is read; one that training would refuse is
 * reported with that refusal, and the others are read all the same. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/url.h"
#include "checkpoint/fetch.h"
#include "checkpoint/find.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "config/config.h"
#include "data/dataset.h"
#include "data/source_files.h"
#include "data/survey.h"
#include "device/device.h"
#include "formats/token_index.h"
#include "remote/remote.h"

typedef struct Inspection {
    const Arguments *args;
    SurveyOptions options;
    SeenSet seen;
    DataSource flags; /* format and keys that the command line gives for paths */
    Tokenizer *named; /* of --tokenizer */
    Chat *chat;       /* its template, if it has one */
    SurveyFigures total;
    size_t files, refused;
    bool bad_lines_pass; /* of the present configuration */
    uint64_t bad_lines;  /* that training would not pass over */
    ErrorCode first;     /* refusal */
    int threads;
    JsonWriter json;
    Text out;
} Inspection;

/* ---- what a file is ---- */

static const char *format_name(const Survey *s) {
    if (s->format == FORMAT_CHAT) return s->rows ? "conversations in Parquet" : "conversations";
    if (s->format == FORMAT_JSONL) return s->array ? "JSON array" : "JSON lines";
    return s->format == FORMAT_PARQUET ? "Parquet" : s->format == FORMAT_TOKENS ? "token ids" : "text";
}

/* As the configuration calls it. */
static const char *format_word(SourceFormat format) {
    static const char *const names[] = {SOURCE_FORMATS(CHOICE_NAME)};
    return names[format];
}

static const char *type_word(TokenType type) {
    static const char *const names[] = {TOKEN_TYPES(CHOICE_NAME)};
    return names[type];
}

static const char *form_word(size_t form) {
    static const char *const names[] = {CHAT_FORMS(CHOICE_NAME)};
    return names[form];
}

static double part(uint64_t some, uint64_t all) { return all ? (double)some / (double)all : 0; }

/* ---- for people ---- */

enum { MOST_COLUMNS = 20 };

static const char *count_of(uint64_t n, char out[32]) { return text_count((int64_t)n, out); }

/* "12 of 100 bytes (12%)" */
static void put_share(Text *out, const char *name, uint64_t some, uint64_t all, const char *unit) {
    char count[32], whole[32];
    text_printf(out, "  %-12s%s", name, count_of(some, count));
    if (some) text_printf(out, " of %s%s (%.3g%%)", count_of(all, whole), unit, 100 * part(some, all));
    text_puts(out, "\n");
}

static void put_forms(const Survey *s, Text *out) {
    const char *between = ": ";
    char count[32];
    for (size_t i = 0; i < SURVEY_FORMS; i++) {
        if (!s->forms[i]) continue;
        text_printf(out, "%s%s %s", between, count_of(s->forms[i], count), form_word(i));
        between = ", ";
    }
}

static void put_format(const Survey *s, Text *out) {
    text_printf(out, "  format      %s", format_name(s));
    if (s->format == FORMAT_CHAT) put_forms(s, out);
    if (s->format == FORMAT_TOKENS) text_printf(out, ", %s", type_word(s->type));
    text_printf(out, " (%s)", s->recognised);
    if (s->key.length) text_printf(out, ", text in '%s'", s->key.data);
    text_puts(out, "\n");
    if (s->source.length) text_printf(out, "  train with  {path: ..., %s}\n", s->source.data);
    if (s->compression) text_printf(out, "  compressed  %s\n", s->compression);
    if (s->form) text_printf(out, "  looks like  %s: %s\n", s->form->name, s->form->advice);
}

static void put_columns(const Survey *s, Text *out) {
    char rows[32];
    if (!s->rows) return;
    text_puts(out, "  columns     ");
    for (size_t i = 0; i < s->columns.count && i < MOST_COLUMNS; i++)
        text_printf(out, "%s%s: %s%s", i ? ", " : "", s->columns.items[i].path, s->columns.items[i].type,
                    s->columns.items[i].lists ? " in a list" : "");
    if (s->columns.count > MOST_COLUMNS) text_printf(out, " and %zu more", s->columns.count - MOST_COLUMNS);
    text_printf(out, "\n  row groups  %zu of %s rows in all%s%s\n", s->groups, count_of(s->row_count, rows),
                s->codec ? ", " : "", s->codec ? s->codec : "");
}

static void put_text(const SurveyFigures *f, Text *out) {
    char bytes[32], least[32], median[32], mean[32], most[32];
    if (f->measured == 0) return;
    if (f->measured == 1) {
        text_printf(out, "  text        %s\n", text_bytes((double)f->bytes, bytes));
        return;
    }
    text_printf(
        out, "  text        %s; bytes a document: %s at least, %s median, %s on average, %s at most\n",
        text_bytes((double)f->bytes, bytes), count_of(f->least, least),
        text_count((int64_t)survey_median(f), median),
        text_count((int64_t)((double)f->bytes / (double)f->measured + 0.5), mean), count_of(f->most, most));
}

static void put_quality(const SurveyFigures *f, Text *out) {
    put_share(out, "duplicates", f->duplicates, f->documents, "");
    if (f->checked) put_share(out, "not UTF-8", f->invalid, f->checked, " bytes");
    if (f->null_rows) put_share(out, "null rows", f->null_rows, f->null_rows + f->documents, "");
    if (f->left_out)
        put_share(out, "left out", f->left_out, f->left_out + f->documents, ", by min_bytes, max_bytes");
}

static void put_tokens(const Inspection *n, const SurveyFigures *f, Text *out) {
    char tokens[32], took[16];
    if (f->tokens == 0) return;
    text_printf(out, "  tokens      %s", count_of(f->tokens, tokens));
    if (f->encoded) text_printf(out, ", %.2f bytes a token", (double)f->encoded / (double)f->tokens);
    if (f->seconds > 0)
        text_printf(out, "; %.3g MB/s a thread: tokenizing takes about %s on %d",
                    (double)f->timed / 1e6 / f->seconds, clock_duration(f->all / n->threads, took),
                    n->threads);
    text_puts(out, "\n");
}

/* To the end of the line of a terminal. */
static void put_sample(const Text *t, size_t width, Text *out) {
    char one[TEXT_SHOWN];
    for (size_t at = 0, columns = 0; at < t->length;) {
        at += text_shown(t->data + at, t->length - at, one);
        columns += one[0] & 0x80 ? 1 : strlen(one);
        if (columns > width) break;
        text_puts(out, one);
    }
    text_puts(out, "\n");
}

static void put_samples(const Survey *s, Text *out) {
    for (size_t i = 0; i < s->sample_count; i++) {
        text_printf(out, "  %-12s", i ? "" : "samples");
        put_sample(&s->samples[i], (size_t)terminal_style(0).width - 14, out);
    }
}

static void put_file(const Inspection *n, const Survey *s, Text *out) {
    char bytes[32], documents[32], bad[32];
    const SurveyFigures *f = &s->figures;
    put_format(s, out);
    put_columns(s, out);
    text_printf(out, "  on disk     %s\n", text_bytes((double)f->stored, bytes));
    if (s->undivided)
        text_puts(out, "  documents   not known without --tokenizer: its end of text ends them\n");
    else
        text_printf(out, "  documents   %s%s\n", count_of(f->documents, documents),
                    s->cut ? " read, as --limit says; figures are of these" : "");
    put_text(f, out);
    if (!s->undivided) put_quality(f, out);
    put_tokens(n, f, out);
    if (n->options.tokenizer && !n->options.chat && s->format == FORMAT_CHAT)
        text_puts(out, "  tokens      not known: the tokenizer has no chat template\n");
    if (f->bad_lines)
        text_printf(out, "  bad lines   %s; the first: %s\n", count_of(f->bad_lines, bad), s->bad.message);
    put_samples(s, out);
}

static void put_totals(const Inspection *n, Text *out) {
    char bytes[32], documents[32];
    const SurveyFigures *f = &n->total;
    text_printf(out, "total of %zu files%s\n  on disk     %s\n  documents   %s\n", n->files - n->refused,
                n->refused ? ", without those refused" : "", text_bytes((double)f->stored, bytes),
                count_of(f->documents, documents));
    put_text(f, out);
    put_quality(f, out);
    put_tokens(n, f, out);
}

/* ---- for programs ---- */

static void put_int(JsonWriter *w, const char *key, uint64_t value) { json_put_int(w, key, (int64_t)value); }

static void json_lengths(JsonWriter *w, const SurveyFigures *f) {
    put_int(w, "text_bytes", f->bytes);
    if (f->measured == 0) return;
    json_key(w, "document_bytes");
    json_begin_object(w);
    put_int(w, "min", f->least);
    json_put_double(w, "median", survey_median(f));
    json_put_double(w, "mean", (double)f->bytes / (double)f->measured);
    put_int(w, "max", f->most);
    json_end_object(w);
}

static void json_figures(const Inspection *n, JsonWriter *w, const SurveyFigures *f) {
    put_int(w, "stored_bytes", f->stored);
    put_int(w, "documents", f->documents);
    json_lengths(w, f);
    put_int(w, "invalid_bytes", f->invalid);
    json_put_double(w, "invalid_share", part(f->invalid, f->checked));
    put_int(w, "duplicates", f->duplicates);
    json_put_double(w, "duplicate_share", part(f->duplicates, f->documents));
    put_int(w, "duplicate_bytes", f->duplicate_bytes);
    put_int(w, "null_rows", f->null_rows);
    put_int(w, "bad_lines", f->bad_lines);
    put_int(w, "left_out", f->left_out);
    if (f->tokens == 0) return;
    put_int(w, "tokens", f->tokens);
    if (f->encoded) json_put_double(w, "bytes_per_token", (double)f->encoded / (double)f->tokens);
    if (f->seconds <= 0) return;
    json_put_double(w, "bytes_per_second_per_thread", (double)f->timed / f->seconds);
    json_put_double(w, "tokenize_hours", f->all / 3600 / n->threads);
}

static void json_container(JsonWriter *w, const Survey *s) {
    put_int(w, "row_groups", s->groups);
    put_int(w, "rows", s->row_count);
    if (s->codec) json_put_string(w, "codec", s->codec);
    json_key(w, "columns");
    json_begin_array(w);
    for (size_t i = 0; i < s->columns.count; i++) {
        const ParquetLeaf *leaf = &s->columns.items[i];
        json_begin_object(w);
        json_put_bytes(w, "name", leaf->path, strlen(leaf->path));
        json_put_string(w, "type", leaf->type);
        json_put_bool(w, "list", leaf->lists > 0);
        json_end_object(w);
    }
    json_end_array(w);
}

static void json_forms(JsonWriter *w, const Survey *s) {
    json_key(w, "forms");
    json_begin_object(w);
    for (size_t i = 0; i < SURVEY_FORMS; i++)
        if (s->forms[i]) put_int(w, form_word(i), s->forms[i]);
    json_end_object(w);
}

static void json_file(const Inspection *n, JsonWriter *w, const Survey *s) {
    json_put_string(w, "format", format_word(s->format));
    json_put_string(w, "recognised", s->recognised);
    if (s->source.length) json_put_bytes(w, "source_keys", s->source.data, s->source.length);
    if (s->key.length) json_put_bytes(w, "key", s->key.data, s->key.length);
    if (s->format == FORMAT_JSONL) json_put_bool(w, "array", s->array);
    if (s->format == FORMAT_CHAT) json_forms(w, s);
    if (s->format == FORMAT_TOKENS) json_put_string(w, "dtype", type_word(s->type));
    if (s->rows) json_container(w, s);
    if (s->form) json_put_string(w, "text_form", s->form->name);
    json_put_string(w, "compression", s->compression ? s->compression : "none");
    json_put_bool(w, "whole", !s->cut);
    json_figures(n, w, &s->figures);
    if (s->figures.bad_lines) json_put_string(w, "first_bad_line", s->bad.message);
    json_key(w, "samples");
    json_begin_array(w);
    for (size_t i = 0; i < s->sample_count; i++) json_bytes(w, s->samples[i].data, s->samples[i].length);
    json_end_array(w);
}

/* ---- files ---- */

static bool wants_json(const Inspection *n) { return arguments_has(n->args, "--json"); }

static void report_refusal(Inspection *n, const char *name, const Error *why) {
    if (n->refused++ == 0) n->first = why->code;
    if (wants_json(n)) {
        json_begin_object(&n->json);
        json_put_bytes(&n->json, "path", name, strlen(name));
        json_put_string(&n->json, "refused", why->message);
        json_end_object(&n->json);
    } else {
        terminal_printf("%s\n  refused     %s\n", name, why->message);
    }
}

static void report(Inspection *n, const char *name, const Survey *s) {
    survey_add(&n->total, &s->figures);
    n->bad_lines += n->bad_lines_pass ? 0 : s->figures.bad_lines;
    if (wants_json(n)) {
        json_begin_object(&n->json);
        json_put_bytes(&n->json, "path", name, strlen(name));
        json_file(n, &n->json, s);
        json_end_object(&n->json);
        return;
    }
    Text out = {0};
    put_file(n, s, &out);
    terminal_printf("%s\n%s", name, out.data);
    fflush(stdout);
    text_free(&out);
}

/* A file that cannot be read ends nothing but itself. `index`: of Megatron, or NULL. */
static void inspect_file(Inspection *n, const DataSource *spec, const char *name, char *path, char *index) {
    Survey s = {0};
    Error why = {0};
    CorpusFile *file = NULL;
    ErrorCode code = source_check(spec, &path, &index, 1, n->options.tokenizer, &why);
    n->files++;
    if (code == OK) {
        file = source_files(spec, &path, 1, n->options.tokenizer);
        file->tokens.index = index;
        code = survey_file(&s, file, &n->options, &why);
    }
    if (code == OK)
        report(n, name, &s);
    else
        report_refusal(n, name, &why);
    survey_free(&s);
    free(file);
}

/* An index tells the format like a name, unless the source has one. */
static bool may_have_index(const Inspection *n, const DataSource *spec) {
    return (n->options.guess && spec->format == FORMAT_AUTO) || source_may_have_index(spec);
}

static void inspect_files(Inspection *n, const DataSource *spec, char *const *paths, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char *index = may_have_index(n, spec) ? token_index_path(paths[i]) : NULL;
        inspect_file(n, spec, paths[i], paths[i], index);
        free(index);
    }
}

/* ---- operands ---- */

typedef struct Paths {
    char **items;
    size_t count;
} Paths;

static void add_path(Paths *p, char *path) {
    p->items = mem_grow(p->items, (p->count + 1) * sizeof *p->items);
    p->items[p->count++] = path;
}

/* The index of Megatron belongs to the file next to it. */
static bool is_index_of_file(const char *path) {
    size_t length = strlen(path);
    if (length < 4 || strcmp(path + length - 4, ".idx") != 0) return false;
    char *data = mem_strdup(path);
    memcpy(data + length - 4, ".bin", 4);
    bool found = file_exists(data);
    free(data);
    return found;
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* The files of a directory and of those in it, in the order of their names; not hidden ones, as in patterns,
 * and not through links to directories, which may lead in circles. */
static ErrorCode list_directory(const char *dir, Paths *out, Error *err) {
    struct dirent **entries;
    int count = scandir(dir, &entries, NULL, by_bytes);
    if (count < 0) return error_errno(err, ERR_NOINPUT, "%s: cannot list the directory", dir);
    ErrorCode code = OK;
    for (int i = 0; i < count; i++) {
        char *path = path_join(dir, entries[i]->d_name);
        struct stat st;
        bool hidden = entries[i]->d_name[0] == '.', known = lstat(path, &st) == 0;
        if (code == OK && !hidden && known && S_ISDIR(st.st_mode))
            code = list_directory(path, out, err);
        else if (code == OK && !hidden && known && !file_is_dir(path) && !is_index_of_file(path))
            add_path(out, mem_strdup(path));
        free(path);
        free(entries[i]);
    }
    free(entries);
    return code;
}

/* Copies of remote files stay until they have been read. */
static ErrorCode inspect_remote(Inspection *n, const DataSource *spec, const DataConfig *c, Error *err) {
    Remote *remote = NULL;
    RemoteFile *files = NULL;
    size_t count = 0;
    const char *dir = c ? c->cache_dir : FETCH_CACHE;
    ErrorCode code = remote_open(&remote, dir, c ? data_remote_limit(c) : 0, err);
    if (code == OK) code = remote_take(remote, spec->path, &files, &count, err);
    char **indices = mem_alloc_array(count + 1, sizeof *indices);
    if (code == OK && may_have_index(n, spec))
        code = source_fetch_indices(remote, files, count, indices, err);
    for (size_t i = 0; i < count; i++) {
        if (code == OK) inspect_file(n, spec, files[i].name, files[i].path, indices[i]);
        free(indices[i]);
    }
    free(indices);
    remote_free(files, count);
    remote_close(remote);
    return code;
}

/* c NULL: a path of the command line, which may be a directory. */
static ErrorCode inspect_source(Inspection *n, const DataSource *spec, const DataConfig *c, Error *err) {
    Paths paths = {0};
    ErrorCode code;
    if (file_is_url(spec->path)) return inspect_remote(n, spec, c, err);
    if (!c && file_is_dir(spec->path))
        code = list_directory(spec->path, &paths, err);
    else
        code = file_glob(spec->path, &paths.items, &paths.count, err);
    if (code == OK && paths.count == 0)
        code = error_set(err, ERR_NOINPUT, "%s: there are no files in this directory", spec->path);
    if (code == OK) inspect_files(n, spec, paths.items, paths.count);
    file_glob_free(paths.items, paths.count);
    return code;
}

/* What cannot be found is reported like a file that cannot be read. */
static void inspect_spec(Inspection *n, const DataSource *spec, const DataConfig *c) {
    Error why = {0};
    Text name = {0};
    if (inspect_source(n, spec, c, &why) != OK) {
        n->files++;
        url_show(spec->path, &name);
        report_refusal(n, name.data, &why);
        text_free(&name);
    }
}

static void inspect_list(Inspection *n, const ObjectList *list, const DataConfig *c) {
    const DataSource *specs = (const DataSource *)(const void *)list->items;
    for (size_t i = 0; i < list->count; i++) inspect_spec(n, &specs[i], c);
}

static void set_ends(SurveyOptions *o, bool add_bos, bool add_eos) {
    o->bos = o->eos = -1;
    if (o->tokenizer) tokenizer_document_ends(o->tokenizer, add_bos, add_eos, &o->bos, &o->eos);
}

static ErrorCode inspect_data(Inspection *n, const DataConfig *c, Error *err) {
    Tokenizer *own = NULL;
    Chat *chat = NULL;
    ChatOptions options = data_chat_options(c);
    const char *named = arguments_flag(n->args, "--tokenizer");
    if (named) options.tokenizer = named;
    if (!named) TRY(tokenizer_open_as(&own, c->tokenizer, &c->tokenizer_keys, err));
    n->options.tokenizer = named ? n->named : own;
    n->options.guess = false;
    n->bad_lines_pass = c->bad_lines == BAD_LINES_SKIP;
    set_ends(&n->options, c->add_bos, c->add_eos);
    ErrorCode code = data_has_conversations(c) ? chat_open(&chat, &options, n->options.tokenizer, err) : OK;
    n->options.chat = chat;
    if (code == OK) {
        inspect_list(n, &c->sources, c);
        inspect_list(n, &c->validation_sources, c);
    }
    chat_close(chat);
    tokenizer_free(own);
    return code;
}

static ErrorCode inspect_config(Inspection *n, const char *path, Error *err) {
    Config c;
    OptionSet set;
    ErrorCode code = config_load(&c, &set, path, 0, NULL, checkpoint_find_shape, err);
    if (code == OK) code = inspect_data(n, &c.data, err);
    options_free(&set);
    return code;
}

static ErrorCode inspect_operand(Inspection *n, const char *operand, Error *err) {
    if ((text_ends(operand, strlen(operand), ".yaml") || text_ends(operand, strlen(operand), ".yml")) &&
        file_exists(operand))
        return inspect_config(n, operand, err);
    DataSource spec = n->flags;
    spec.path = (char *)(uintptr_t)operand;
    n->options.tokenizer = n->named;
    n->options.chat = n->chat;
    n->options.guess = true;
    n->bad_lines_pass = false;
    set_ends(&n->options, true, true);
    inspect_spec(n, &spec, NULL);
    return OK;
}

/* ---- the command line ---- */

static ErrorCode read_choice(const Arguments *args, const char *flag, const char *const *words, size_t count,
                             int *out, Error *err) {
    Text all = {0};
    const char *word = arguments_flag(args, flag);
    for (size_t i = 0; word && i < count; i++) {
        if (strcmp(word, words[i]) == 0) {
            *out = (int)i;
            text_free(&all);
            return OK;
        }
        text_printf(&all, "%s%s", i ? ", " : "", words[i]);
    }
    if (word) error_set(err, ERR_USAGE, "%s is \"%s\": expected one of %s", flag, word, all.data);
    text_free(&all);
    return word ? ERR_USAGE : OK;
}

static ErrorCode read_flags(Inspection *n, Error *err) {
    static const char *const formats[] = {SOURCE_FORMATS(CHOICE_NAME)};
    static const char *const splits[] = {SOURCE_SPLITS(CHOICE_NAME)};
    static const char *const encodings[] = {TEXT_ENCODINGS(CHOICE_NAME)};
    static const char *const types[] = {TOKEN_TYPES(CHOICE_NAME)};
    DataSource *f = &n->flags;
    int64_t samples = 3, limit = 0;
    TRY(read_choice(n->args, "--format", formats, sizeof formats / sizeof *formats, &f->format, err));
    TRY(read_choice(n->args, "--split", splits, sizeof splits / sizeof *splits, &f->split, err));
    TRY(read_choice(n->args, "--encoding", encodings, sizeof encodings / sizeof *encodings, &f->encoding,
                    err));
    TRY(read_choice(n->args, "--dtype", types, sizeof types / sizeof *types, &f->dtype, err));
    TRY(arguments_int(n->args, "--samples", 0, 1000, &samples, err));
    TRY(arguments_int(n->args, "--limit", 1, INT64_MAX, &limit, err));
    if (f->dtype != TOKEN_TYPE_AUTO && f->format == FORMAT_AUTO) f->format = FORMAT_TOKENS;
    f->key = (char *)(uintptr_t)arguments_flag(n->args, "--key");
    f->column = (char *)(uintptr_t)arguments_flag(n->args, "--column");
    n->options = (SurveyOptions){.limit = (uint64_t)limit, .samples = (size_t)samples, .seen = &n->seen};
    return OK;
}

/* A tokenizer without a chat template leaves conversations without tokens. */
static ErrorCode open_tokenizer(Inspection *n, Error *err) {
    const char *spec = arguments_flag(n->args, "--tokenizer");
    if (!spec) return OK;
    TRY(tokenizer_open(&n->named, spec, err));
    ChatOptions options = {.tokenizer = spec};
    if (chat_open(&n->chat, &options, n->named, NULL) != OK) n->chat = NULL;
    return OK;
}

static ErrorCode finish(Inspection *n, Error *err) {
    if (wants_json(n)) {
        json_end_array(&n->json);
        json_key(&n->json, "total");
        json_begin_object(&n->json);
        put_int(&n->json, "files", n->files);
        put_int(&n->json, "refused", n->refused);
        json_figures(n, &n->json, &n->total);
        json_end_object(&n->json);
        json_end_object(&n->json);
        text_puts(&n->out, "\n");
    } else if (n->files - n->refused > 1) {
        put_totals(n, &n->out);
    }
    if (n->out.length) TRY(terminal_print(&n->out, err));
    if (n->refused)
        return error_set(err, n->first, "%zu of %zu files were refused, as listed", n->refused, n->files);
    if (n->bad_lines)
        return error_set(err, ERR_DATA,
                         "%llu lines cannot be read, as listed: training ends at the first, unless "
                         "data.bad_lines is skip",
                         (unsigned long long)n->bad_lines);
    return OK;
}

static ErrorCode inspect_all(Inspection *n, Error *err) {
    TRY(read_flags(n, err));
    TRY(open_tokenizer(n, err));
    if (wants_json(n)) {
        json_start(&n->json, &n->out, 2);
        json_begin_object(&n->json);
        json_key(&n->json, "files");
        json_begin_array(&n->json);
    }
    for (int i = 0; i < n->args->operand_count; i++) TRY(inspect_operand(n, n->args->operands[i], err));
    return finish(n, err);
}

static ErrorCode run_data_inspect(const Arguments *args, Error *err) {
    Inspection n = {.args = args, .threads = device_cpu_cores()};
    ErrorCode code = inspect_all(&n, err);
    chat_close(n.chat);
    tokenizer_free(n.named);
    seen_free(&n.seen);
    free(n.total.lengths);
    text_free(&n.out);
    return code;
}

static const Flag flags[] = {
    {"--tokenizer", 't', "SPEC", "count tokens: bytes, a tokenizer.json or a rank file; default: the YAML's"},
    {"--samples", 0, "N", "show the beginnings of the first N documents of each file; default 3"},
    {"--limit", 0, "N", "read only the first N documents of each file"},
    {"--format", 0, "FORMAT", "of paths, if it is not recognised: text, jsonl, chat, parquet or tokens"},
    {"--key", 'k', "NAME", "JSON: the member that holds the text, or the messages"},
    {"--column", 0, "NAME", "Parquet: the column that holds the text, or the messages"},
    {"--split", 0, "HOW", "text: a document is a file (default), paragraphs or lines"},
    {"--encoding", 0, "NAME", "text and JSON: utf-8 (default), latin-1, windows-1252, utf-16 or bytes"},
    {"--dtype", 0, "TYPE", "ids without a header: uint16, uint32 or int32"},
    {"--json", 0, NULL, "print one JSON object"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_data_inspect = {
    .name = "data inspect",
    .summary = "show what is in files of data, as training would read them",
    .synopsis = "PATH... [--tokenizer SPEC] [--limit N] [--json]",
    .details =
        "A path is a file, a pattern, a directory, an https:// or s3:// URL (fetched into .weft-cache), or a "
        "configuration (.yaml), whose sources are read as it says. Of each file: format and how it was "
        "recognised, columns and row groups of Parquet, type of token ids, form of conversations, "
        "compression, bytes on disk, documents and their lengths, bytes that are not UTF-8, exact duplicates "
        "in all files so far, rows without text, and with a tokenizer tokens, bytes a token and how long "
        "tokenizing takes on this machine. `train with` names the keys that a source needs besides its "
        "path.\n\n"
        "A file that training would refuse is listed with the reason, the others are read all the same, and "
        "the exit status is that of the first refusal. Memory does not depend on the size of files, apart "
        "from 32 to 64 bytes a document to find duplicates (a hash of 16 bytes in a table).\n\n"
        "Examples:\n"
        "  weft data inspect corpus/ --tokenizer tokenizer.json\n"
        "  weft data inspect 'web/*.jsonl.zst' --limit 1000 --samples 10\n"
        "  weft data inspect my.yaml --json",
    .flags = flags,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_data_inspect,
};

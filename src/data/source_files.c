#include "data/source_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "formats/token_index.h"

static bool is_given(const char *word) { return word && word[0]; }

/* The default name stands for itself in cache keys: naming "text" explicitly must not tokenize again. */
static const char *key_or_default(const DataSource *s) {
    if (is_given(s->column)) return s->column;
    if (is_given(s->key)) return s->key;
    return s->format == FORMAT_CHAT ? "messages" : "text";
}

/* A column states that files are Parquet, whatever their names. */
static SourceFormat format_of(const DataSource *s) {
    return s->format == FORMAT_AUTO && is_given(s->column) ? FORMAT_PARQUET : (SourceFormat)s->format;
}

/* The id between documents; -1 for none, -2 for a word that is no id. */
static int32_t end_of(const DataSource *s, const Tokenizer *t) {
    char *rest;
    int32_t vocabulary = t ? tokenizer_vocab_size(t) : INT32_MAX;
    if (!is_given(s->end)) return t ? tokenizer_eos(t) : -1;
    if (strcmp(s->end, "none") == 0) return -1;
    errno = 0;
    long id = strtol(s->end, &rest, 10);
    return *rest || errno || id < 0 || id >= vocabulary ? -2 : (int32_t)id;
}

static ErrorCode check_end(const DataSource *s, const Tokenizer *t, Error *err) {
    int32_t end = end_of(s, t);
    if (end == -2)
        return error_set(
            err, ERR_CONFIG,
            "%s: end is '%s': expected an id below the vocabulary of data.tokenizer (%d), or none", s->path,
            s->end, tokenizer_vocab_size(t));
    if (end >= 0 || is_given(s->end)) return OK;
    return error_set(
        err, ERR_CONFIG,
        "%s: data.tokenizer has no token that ends a text: name the id between documents as `end`, "
        "or end: none where a file is one document",
        s->path);
}

static ErrorCode check_key(const char *path, const char *key, bool given, bool fits, const char *belongs,
                           Error *err) {
    if (!given || fits) return OK;
    return error_set(err, ERR_CONFIG, "%s: the key %s belongs to %s; this file is read as another format",
                     path, key, belongs);
}

static ErrorCode check_file(const DataSource *s, const char *path, Error *err) {
    CorpusFile file = {.path = path, .format = format_of(s), .column = is_given(s->column)};
    SourceFormat format = corpus_format(&file);
    bool parquet = corpus_has_rows(&file), tokens = format == FORMAT_TOKENS;
    TRY(check_key(path, "key", is_given(s->key), !parquet && !tokens, "JSON lines", err));
    TRY(check_key(path, "column", is_given(s->column), parquet, "Parquet", err));
    TRY(check_key(path, "encoding", recoder_needed((TextEncoding)s->encoding), !parquet && !tokens,
                  "text and JSON", err));
    TRY(check_key(path, "chat_format", s->chat_format != CHAT_AUTO, format == FORMAT_CHAT, "format: chat",
                  err));
    TRY(check_key(path, "dtype", s->dtype != TOKEN_TYPE_AUTO, tokens, "token files", err));
    TRY(check_key(path, "end", is_given(s->end), tokens, "token files", err));
    return check_key(path, "boundary", s->boundary != BOUNDARY_AUTO, tokens, "token files", err);
}

ErrorCode source_check_lengths(const DataSource *s, Error *err) {
    if (s->max_bytes == 0 || s->min_bytes <= s->max_bytes) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: min_bytes is %lld and max_bytes %lld, so no document would be left", s->path,
                     (long long)s->min_bytes, (long long)s->max_bytes);
}

ErrorCode source_check(const DataSource *s, char *const *paths, char *const *indices, size_t count,
                       const Tokenizer *t, Error *err) {
    bool needs_end = false;
    for (size_t i = 0; i < count; i++) {
        TRY(check_file(s, paths[i], err));
        needs_end |= s->format == FORMAT_TOKENS && !indices[i];
    }
    return needs_end && t ? check_end(s, t, err) : OK;
}

bool source_may_have_index(const DataSource *s) {
    return s->format == FORMAT_TOKENS && s->dtype == TOKEN_TYPE_AUTO && !is_given(s->end) &&
           s->boundary == BOUNDARY_AUTO;
}

char *source_index(const DataSource *s, const char *path) {
    return source_may_have_index(s) ? token_index_path(path) : NULL;
}

static ErrorCode fetch_index(Remote *remote, const RemoteFile *file, char **index, Error *err) {
    const size_t first = 0;
    RemoteFile *beside;
    TRY(remote_find_beside(remote, file, ".bin", ".idx", &beside, err));
    if (!beside) return OK;
    ErrorCode code = remote_fetch(remote, beside->name, beside, &first, 1, err);
    if (code == OK && token_index_is(beside->path)) *index = mem_strdup(beside->path);
    remote_free(beside, 1);
    return code;
}

ErrorCode source_fetch_indices(Remote *remote, const RemoteFile *files, size_t count, char **indices,
                               Error *err) {
    for (size_t i = 0; i < count && (i == 0 || indices[0]); i++)
        TRY(fetch_index(remote, &files[i], &indices[i], err));
    return OK;
}

CorpusFile *source_files(const DataSource *s, char *const *paths, size_t count, const Tokenizer *t) {
    CorpusFile *files = mem_alloc_array(count, sizeof *files);
    TokenFileOptions tokens = {(TokenType)s->dtype, (TokenBoundary)s->boundary, end_of(s, t),
                               t ? (uint64_t)tokenizer_vocab_size(t) : UINT64_C(1) << 31, NULL};
    for (size_t i = 0; i < count; i++)
        files[i] = (CorpusFile){.path = paths[i],
                                .format = format_of(s),
                                .split = (SourceSplit)s->split,
                                .key = key_or_default(s),
                                .encoding = (TextEncoding)s->encoding,
                                .chat_form = (ChatForm)s->chat_format,
                                .column = is_given(s->column),
                                .min_bytes = (uint64_t)s->min_bytes,
                                .max_bytes = (uint64_t)s->max_bytes,
                                .tokens = tokens};
    return files;
}

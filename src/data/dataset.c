/* The data of a run: each source is tokenized into caches, part of it is held out for validation, and the
 * sampler draws windows of all sources in one order.
 *
 *  D1. A cache's key hashes everything that decides its ids: tokenizer, BOS and EOS, format, splitting, chat
 *      template and loss mask, and the content (not the names) of its files. So a cache is never stale, and a
 *      renamed file is not tokenized again.
 *  D2. Sample k is a function of (fingerprint, seed, mixture, context, k): a dataset has no mutable state.
 *      With data.order: stream its training caches may grow, which only makes more samples ready.
 *  D3. Training sources come first in `sources`, then validation-only ones.
 *  D4. A late source is identified by the versions of its files, since their hashes are not known yet. Its
 *      caches are named by content, as all are, once their files have come. Whether a source is late depends
 *      on the configuration and the server, not on what has been fetched before.
 *
 *   data.sources     -> files -> hashes -> keys -> caches -> stream for training   --> sampler: sample k
 *                                                      \--> held out by fraction --+   (by hash: own caches)
 *   data.validation  -> files -> hashes -> keys -> caches -> stream of all of it   --+--> validation, k */
#include "data/dataset.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/name.h"
#include "base/url.h"
#include "data/arrivals.h"
#include "data/cache_use.h"
#include "data/growing.h"
#include "data/packing.h"
#include "data/source_files.h"
#include "data/token_build.h"
#include "data/token_units.h"
#include "remote/remote.h"

/* What samples of a source are drawn from: windows of a stream, or packed rows of conversations. */
typedef struct Samples {
    TokenStream stream;
    Packing packing; /* of conversations */
} Samples;

/* An entry of the configuration: a path or a pattern of paths. All its files are one sequence of tokens, in
 * one cache or several, and have one weight in the mixture. */
typedef struct Source {
    char *name; /* path or pattern, as configured */
    char *set;  /* name of its validation set; "": none */
    double weight;
    int64_t min_bytes, max_bytes; /* of its documents */
    size_t files;
    char **paths;              /* [files] */
    RemoteFile *remote;        /* [files] whose copies these are; NULL: they are the source's own */
    Fingerprint *prints;       /* [files] owned by the dataset */
    char **indices;            /* [files] Megatron's, NULL for files without one */
    Fingerprint *index_prints; /* [files] */
    bool late;                 /* files are fetched while the run trains: D4 */
    char (*versions)[65];      /* [files] of a late source, as it was found */
    uint8_t key[32];
    TokenCache *cache;
    TokenCache *held; /* documents held out by their hashes; NULL: none are, and all are in `cache` */
    bool chat;
    bool any_form; /* its text may be markup, JSON, ... (formats/text_form.h) without a word */
    Samples train, validation;
} Source;

typedef struct Late Late;

struct Dataset {
    char *cache_dir;
    Remote *remote; /* NULL unless a source is remote and being opened, or grows */
    CacheUse *use;  /* of its caches */
    int64_t context;
    int32_t vocabulary; /* size of the tokenizer */
    bool document_mask;
    double validation_fraction;
    size_t count; /* training sources come first, then validation-only ones up to `total` */
    size_t total;
    Source *sources;
    Fingerprint *prints; /* of the files of all sources */
    char template[65];   /* SHA-256 of how conversations are rendered; "": there are none */
    Sampler *sampler;
    Growing *growing; /* training data of data.order: stream; else NULL */
    Late *late;       /* of late sources; NULL: there are none */
    double bad_lines_limit;
    /* Validation windows are ordered set by set: `held` sources with validation windows, in that order, and
     * the number of windows before each. */
    size_t held, set_count;
    size_t *order;              /* [total] */
    uint64_t *first_validation; /* [total + 1] */
    ValidationSet *sets;        /* [total] */
};

/* How documents become ids; the same for all sources of a run. */
typedef struct Recipe {
    const DataConfig *config;
    const Tokenizer *tokenizer;
    Chat *chat; /* NULL without conversations */
    int32_t bos, eos;
    int threads;
    CacheUse *use;  /* the dataset's */
    Remote *remote; /* likewise */
    bool grows;     /* training data is tokenized later */
} Recipe;

/* A token cache of a growing source. */
typedef struct LateUnit {
    Source *source;
    size_t first, count; /* files */
    bool late;           /* they have to come */
    size_t turn;         /* among the late ones, in the order of building */
} LateUnit;

/* Files that are fetched while the run trains. */
struct Late {
    Dataset *d;
    Recipe recipe;
    LateUnit *units; /* [count] of all growing sources, in the order of growing_add */
    size_t count;
    Arrivals *arrivals;
    pthread_mutex_t lock; /* of the prints of late sources, and: */
    char contents[65];    /* dataset_contents */
};

/* The name by which a file is listed, compared and reported. */
static const char *file_name(const Source *s, size_t k) {
    return s->remote ? s->remote[k].name : s->paths[k];
}

static bool has_format(const ObjectList *sources, SourceFormat format) {
    const DataSource *items = (const DataSource *)(const void *)sources->items;
    for (size_t i = 0; i < sources->count; i++)
        if (items[i].format == (int)format) return true;
    return false;
}

bool data_has_conversations(const DataConfig *c) {
    return has_format(&c->sources, FORMAT_CHAT) || has_format(&c->validation_sources, FORMAT_CHAT);
}

ChatOptions data_chat_options(const DataConfig *c) {
    return (ChatOptions){.tokenizer = c->tokenizer,
                         .template = c->chat_template,
                         .date = c->chat_date,
                         .loss_on = (ChatLossOn)c->chat_loss_on};
}

/* Tokenizers with one token for both BOS and EOS (GPT-2) get it once, between documents. */
static ErrorCode make_recipe(Recipe *r, const DataConfig *c, const Tokenizer *t, int threads, Error *err) {
    *r = (Recipe){.config = c, .tokenizer = t, .threads = threads};
    tokenizer_document_ends(t, c->add_bos, c->add_eos, &r->bos, &r->eos);
    if (!data_has_conversations(c)) return OK;
    ChatOptions options = data_chat_options(c);
    return chat_open(&r->chat, &options, t, err);
}

/* The length comes first, otherwise "ab", "c" and "a", "bc" would have the same hash. */
static void add_string(Sha256 *h, const char *s) {
    sha256_add_u64(h, strlen(s));
    sha256_add(h, s, strlen(s));
}

static void hash_template(const Chat *chat, char out[65]) {
    uint8_t digest[32];
    Sha256 *h = sha256_start();
    chat_hash(chat, h);
    sha256_finish(h, digest);
    sha256_hex(digest, out);
}

static void hash_tokens(Sha256 *h, const TokenFileOptions *o) {
    sha256_add_u64(h, (uint64_t)o->type);
    sha256_add_u64(h, (uint64_t)o->boundary);
    sha256_add_u64(h, (uint64_t)(int64_t)o->end);
}

static void hash_conversations(Sha256 *h, const Recipe *r, const CorpusFile *file) {
    chat_hash(r->chat, h);
    if (file->chat_form != CHAT_AUTO) {
        add_string(h, "form");
        sha256_add_u64(h, (uint64_t)file->chat_form);
    }
}

/* Earlier versions knew fewer forms of conversations, and skipped lines that are read now. */
static const char *skipped_lines(SourceFormat format) {
    return format == FORMAT_CHAT ? "bad lines are skipped, of all forms" : "bad lines are skipped";
}

/* Hashes everything that decides the ids of a source, unambiguously. */
static void make_key(const Recipe *r, const CorpusFile *files, const Fingerprint *prints, size_t count,
                     bool skip_bad, uint8_t key[32]) {
    char tokenizer[65];
    tokenizer_fingerprint(r->tokenizer, tokenizer);
    Sha256 *h = sha256_start();
    add_string(h, TOKEN_MAGIC);
    sha256_add_u64(h, TOKEN_VERSION);
    add_string(h, tokenizer);
    sha256_add_u64(h, (uint64_t)(int64_t)r->bos);
    sha256_add_u64(h, (uint64_t)(int64_t)r->eos);
    sha256_add_u64(h, count);
    for (size_t i = 0; i < count; i++) {
        SourceFormat format = corpus_format(&files[i]);
        sha256_add_u64(h, (uint64_t)format - FORMAT_TEXT);
        if (format == FORMAT_TEXT)
            sha256_add_u64(h, (uint64_t)files[i].split);
        else if (format == FORMAT_TOKENS)
            hash_tokens(h, &files[i].tokens);
        else
            add_string(h, files[i].key);
        if (format == FORMAT_CHAT) hash_conversations(h, r, &files[i]);
        if (corpus_has_lines(format) && skip_bad) add_string(h, skipped_lines(format));
        if (files[i].min_bytes || files[i].max_bytes) {
            add_string(h, "lengths");
            sha256_add_u64(h, files[i].min_bytes);
            sha256_add_u64(h, files[i].max_bytes);
        }
        if (files[i].holdout.part != PART_ALL) {
            add_string(h, files[i].holdout.part == PART_HELD ? "held out" : "not held out");
            sha256_add_u64(h, files[i].holdout.below);
        }
        if (recoder_needed(files[i].encoding)) {
            add_string(h, "encoding");
            sha256_add_u64(h, (uint64_t)files[i].encoding);
        }
        add_string(h, prints[i].sha256);
        if (files[i].index) add_string(h, files[i].index->sha256);
    }
    if (r->config->dedup == DEDUP_EXACT) add_string(h, "no duplicates");
    sha256_finish(h, key);
}

/* Of a cache. Earlier versions ignored the weights of messages, so caches of conversations have other names
 * than theirs. The key of the data stays, so that their runs go on. */
static void make_cache_key(const Recipe *r, const CorpusFile *files, const Fingerprint *prints, size_t count,
                           bool skip_bad, uint8_t key[32]) {
    bool chat = false;
    make_key(r, files, prints, count, skip_bad, key);
    for (size_t i = 0; i < count; i++) chat |= corpus_format(&files[i]) == FORMAT_CHAT;
    if (!chat) return;
    Sha256 *h = sha256_start();
    sha256_add(h, key, 32);
    add_string(h, "weights of messages");
    sha256_finish(h, key);
}

/* Half of the key's digits: 128 bits still distinguish any two sources, and the name stays readable in a
 * listing. Each shard's header holds the whole key, which is compared. */
static const char *cache_name(const uint8_t key[32], char out[65]) {
    sha256_hex(key, out);
    out[32] = 0;
    return out;
}

static char *cache_path(const char *cache_dir, const uint8_t key[32]) {
    char name[65];
    return path_join(cache_dir, cache_name(key, name));
}

static bool skips_bad(const Recipe *r) { return r->config->bad_lines == BAD_LINES_SKIP; }

/* The caches of a source, while they are being opened and built. */
typedef struct Caches {
    size_t count;
    TokenUnit *units;    /* [count] */
    TokenCache **opened; /* [count] */
    uint64_t vocabulary;
} Caches;

static bool are_known(const Fingerprint *prints, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!prints[i].sha256[0]) return false;
    return true;
}

static uint64_t unit_least(const Recipe *r, const Fingerprint *prints, size_t count) {
    /* What is a duplicate depends on all files in front of it. */
    if (r->config->dedup == DEDUP_EXACT) return UINT64_MAX;
    return r->config->unit_bytes ? r->config->unit_bytes : token_unit_least(prints, count);
}

static void cut_units(const Recipe *r, const Source *s, const CorpusFile *files, Caches *c) {
    c->units = mem_alloc_array(s->files, sizeof *c->units);
    c->opened = mem_alloc_array(s->files, sizeof(TokenCache *));
    uint64_t least = unit_least(r, s->prints, s->files);
    for (size_t first = 0; first < s->files; first += c->units[c->count++].count) {
        TokenUnit *u = &c->units[c->count];
        u->first = first;
        u->count = token_unit_files(s->prints, first, s->files, least);
        if (!are_known(s->prints + first, u->count)) continue;
        make_cache_key(r, files + first, s->prints + first, u->count, skips_bad(r), u->key);
        u->dir = cache_path(r->config->cache_dir, u->key);
    }
}

static void free_units(Caches *c) {
    for (size_t i = 0; i < c->count; i++) {
        free((char *)(uintptr_t)c->units[i].dir);
        token_cache_close(c->opened[i]);
    }
    free(c->units);
    free(c->opened);
}

/* *out is NULL if the cache is not complete. The cache is held before it is looked for (data/cache_use.h). */
static ErrorCode open_complete(const Recipe *r, const uint8_t key[32], uint64_t vocabulary, TokenCache **out,
                               Error *err) {
    char name[65];
    cache_use_hold(r->use, cache_name(key, name));
    char *dir = path_join(r->config->cache_dir, name);
    ErrorCode code = token_cache_open(out, dir, key, vocabulary, err);
    if (code == OK && token_cache_complete(*out)) {
        token_cache_touch(dir);
    } else {
        token_cache_close(*out);
        *out = NULL;
    }
    free(dir);
    return code;
}

/* With bad_lines: skip, a cache that was built without skipping had no bad lines and can be used too. */
static ErrorCode open_unit(const Recipe *r, const Source *s, const CorpusFile *files, const Caches *c,
                           size_t i, Error *err) {
    const TokenUnit *u = &c->units[i];
    uint8_t clean[32];
    make_cache_key(r, files + u->first, s->prints + u->first, u->count, false, clean);
    TRY(open_complete(r, clean, c->vocabulary, &c->opened[i], err));
    return c->opened[i] ? OK : open_complete(r, u->key, c->vocabulary, &c->opened[i], err);
}

/* *missing: number of incomplete caches. */
static ErrorCode open_units(const Recipe *r, const Source *s, const CorpusFile *files, Caches *c,
                            size_t *missing, Error *err) {
    *missing = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (!c->opened[i]) TRY(open_unit(r, s, files, c, i, err));
        *missing += c->opened[i] == NULL;
    }
    return OK;
}

static ErrorCode refuse_bytes(const Source *s, size_t k, Error *err) {
    return error_set(err, ERR_DATA,
                     "%s: the server sends other bytes than before under the same ETag or date; remove %s, "
                     "and all of the file is taken as new",
                     file_name(s, k), s->paths[k]);
}

/* Fetches the files that are to be tokenized. Their hashes were known, so that until now the copies were not
 * needed. */
static ErrorCode fetch_files(const Recipe *r, const Source *s, const size_t *which, size_t count,
                             Error *err) {
    const char **paths = mem_alloc_array(count, sizeof *paths);
    Fingerprint *prints = mem_alloc_array(count, sizeof *prints);
    for (size_t i = 0; i < count; i++) paths[i] = s->paths[which[i]];
    ErrorCode code = remote_fetch(r->remote, s->name, s->remote, which, count, err);
    if (code == OK) code = fingerprint_files(r->config->cache_dir, paths, count, prints, err);
    for (size_t i = 0; code == OK && i < count; i++) {
        if (strcmp(prints[i].sha256, s->prints[which[i]].sha256) != 0) code = refuse_bytes(s, which[i], err);
        s->prints[which[i]] = prints[i];
    }
    free(prints);
    free(paths);
    return code;
}

static ErrorCode fetch_units(const Recipe *r, const Source *s, const TokenUnit *units, size_t count,
                             Error *err) {
    size_t *which = mem_alloc_array(s->files, sizeof *which), files = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < units[i].count; k++) which[files++] = units[i].first + k;
    ErrorCode code = fetch_files(r, s, which, files, err);
    free(which);
    return code;
}

static ErrorCode build_units(const Recipe *r, const Source *s, const CorpusFile *files, const Caches *c,
                             Error *err) {
    TokenUnit *missing = mem_alloc_array(c->count, sizeof *missing);
    TokenBuild build = {.label = s->name,
                        .files = files,
                        .prints = s->prints,
                        .units = missing,
                        .tokenizer = r->tokenizer,
                        .chat = s->chat ? r->chat : NULL,
                        .bos = r->bos,
                        .eos = r->eos,
                        .threads = r->threads,
                        .skip_bad = skips_bad(r),
                        .bad_limit = r->config->bad_lines_limit,
                        .dedup = r->config->dedup == DEDUP_EXACT};
    for (size_t i = 0; i < c->count; i++)
        if (!c->opened[i]) missing[build.unit_count++] = c->units[i];
    ErrorCode code = s->remote ? fetch_units(r, s, missing, build.unit_count, err) : OK;
    if (code == OK) code = token_build(&build, err);
    free(missing);
    return code;
}

static ErrorCode open_parts(const Recipe *r, const Source *s, const CorpusFile *files, Caches *c,
                            TokenCache **cache, Error *err) {
    size_t missing;
    TRY(open_units(r, s, files, c, &missing, err));
    if (missing > 0) TRY(build_units(r, s, files, c, err));
    if (missing > 0) TRY(open_units(r, s, files, c, &missing, err));
    if (missing > 0)
        return error_set(err, ERR_DATA, "%s: parts vanished while they were being read; run again",
                         r->config->cache_dir);
    *cache = token_cache_join(c->opened, c->count);
    memset(c->opened, 0, c->count * sizeof(TokenCache *));
    return OK;
}

/* Opens a part's caches, and builds the missing ones. A single cache for all files, as earlier versions
 * built, is tried first. Its key identifies the part's data, however its files are distributed over
 * caches. */
static ErrorCode open_cache(const Recipe *r, const Source *s, const CorpusFile *files, uint8_t key[32],
                            TokenCache **cache, Error *err) {
    Caches c = {.vocabulary = (uint64_t)tokenizer_vocab_size(r->tokenizer) * (s->chat ? 2 : 1)};
    make_key(r, files, s->prints, s->files, skips_bad(r), key);
    cut_units(r, s, files, &c);
    ErrorCode code = OK;
    bool in_parts = s->chat || r->config->order == ORDER_STREAM;
    if (c.count > 1 && !in_parts) code = open_complete(r, key, c.vocabulary, cache, err);
    if (code == OK && !*cache) code = open_parts(r, s, files, &c, cache, err);
    free_units(&c);
    return code;
}

/* Checks the whole source, whichever of its caches this start has built: a fraction must not depend on the
 * order of lines. */
static ErrorCode check_bad_lines(const Source *s, const TokenFigures *f, double limit, const char *cache_dir,
                                 Error *err) {
    char bad[32], lines[32];
    if ((double)f->bad_lines <= (limit < 1 ? limit * (double)f->lines : limit)) return OK;
    return error_set(err, ERR_DATA,
                     "%s: %s of %s lines are broken, more than data.bad_lines_limit (%g) allows; "
                     "%s/*/part-*.bad.jsonl lists them",
                     s->name, text_count((int64_t)f->bad_lines, bad), text_count((int64_t)f->lines, lines),
                     limit, cache_dir);
}

/* [s->files]; the caller frees it. */
static CorpusFile *corpus_files(const Recipe *r, const DataSource *spec, const Source *s) {
    CorpusFile *files = source_files(spec, s->paths, s->files, r->tokenizer);
    for (size_t i = 0; i < s->files; i++)
        if (s->indices[i]) {
            files[i].tokens.index = s->indices[i];
            files[i].index = &s->index_prints[i];
        }
    return files;
}

/* Then there is no data.validation (check_config): all sources have both parts. */
static bool draws_documents(const DataConfig *c) {
    return c->holdout_by == HOLDOUT_HASH && c->validation_fraction > 0;
}

static void choose_part(const Recipe *r, const Source *s, CorpusFile *files, DocumentPart part) {
    if (!draws_documents(r->config)) return;
    for (size_t i = 0; i < s->files; i++) files[i].holdout = holdout_of(part, r->config->validation_fraction);
}

static ErrorCode open_files(const Recipe *r, const DataSource *spec, Source *s, Error *err) {
    uint8_t held_key[32];
    CorpusFile *files = corpus_files(r, spec, s);
    choose_part(r, s, files, PART_TRAINING);
    ErrorCode code = open_cache(r, s, files, s->key, &s->cache, err);
    choose_part(r, s, files, PART_HELD);
    if (code == OK && draws_documents(r->config)) code = open_cache(r, s, files, held_key, &s->held, err);
    if (code == OK) {
        TokenFigures f = token_cache_figures(s->cache);
        code = check_bad_lines(s, &f, r->config->bad_lines_limit, r->config->cache_dir, err);
    }
    free(files);
    /* Readers know only the copy. */
    return code != OK && s->remote ? error_context(err, "%s", s->name) : code;
}

static ErrorCode list_remote(Dataset *d, const DataConfig *c, const char *url, Source *s, Error *err) {
    const char *dir = c->remote_dir ? c->remote_dir : c->cache_dir;
    if (!d->remote) TRY(remote_open(&d->remote, dir, data_remote_limit(c), err));
    TRY(remote_find(d->remote, url, &s->remote, &s->files, err));
    s->paths = mem_alloc_array(s->files, sizeof *s->paths);
    for (size_t i = 0; i < s->files; i++) s->paths[i] = mem_strdup(s->remote[i].path);
    return OK;
}

/* A pattern stands for its files in sorted order, as one source. */
static ErrorCode list_files(Dataset *d, const DataConfig *c, const DataSource *spec, Source *s,
                            const Tokenizer *t, Error *err) {
    Text name = {0};
    url_show(spec->path, &name);
    s->name = name.data;
    s->set = mem_strdup(spec->name ? spec->name : "");
    s->weight = spec->weight;
    s->min_bytes = spec->min_bytes;
    s->max_bytes = spec->max_bytes;
    s->chat = spec->format == FORMAT_CHAT;
    s->any_form = !corpus_doubts_form((SourceFormat)spec->format, (TextEncoding)spec->encoding);
    if (file_is_url(spec->path))
        TRY(list_remote(d, c, spec->path, s, err));
    else
        TRY(file_glob(spec->path, &s->paths, &s->files, err));
    s->indices = mem_alloc_array(s->files, sizeof *s->indices);
    s->index_prints = mem_alloc_array(s->files, sizeof *s->index_prints);
    if (s->remote && source_may_have_index(spec))
        TRY(source_fetch_indices(d->remote, s->remote, s->files, s->indices, err));
    for (size_t i = 0; !s->remote && i < s->files; i++) s->indices[i] = source_index(spec, s->paths[i]);
    return source_check(spec, s->paths, s->indices, s->files, t, err);
}

/* The hash of a remote file whose version is known: it need not be fetched unless it has to be tokenized. */
static bool recall_print(Source *s, size_t k) {
    const RemoteFile *file = s->remote ? &s->remote[k] : NULL;
    if (!file || !file->sha256[0]) return false;
    s->prints[k] = (Fingerprint){.stamp.size = (int64_t)file->size};
    memcpy(s->prints[k].sha256, file->sha256, sizeof file->sha256);
    return true;
}

static ErrorCode fetch_unknown(Dataset *d, Source *s, Error *err) {
    size_t *which = mem_alloc_array(s->files, sizeof *which), count = 0;
    for (size_t k = 0; k < s->files; k++)
        if (!recall_print(s, k)) which[count++] = k;
    ErrorCode code = remote_fetch(d->remote, s->name, s->remote, which, count, err);
    free(which);
    return code;
}

static ErrorCode remember_prints(Dataset *d, Source *s, Error *err) {
    for (size_t k = 0; k < s->files; k++)
        TRY(remote_remember(d->remote, &s->remote[k], s->prints[k].sha256, err));
    return OK;
}

static bool have_versions(const Source *s) {
    for (size_t k = 0; k < s->files; k++)
        if (!remote_has_version(&s->remote[k])) return false;
    return true;
}

/* Sets prints without hashes. D4: must not depend on hashes that are known. */
static bool can_be_late(const Recipe *r, Source *s) {
    for (size_t k = 0; k < s->files; k++)
        s->prints[k] = (Fingerprint){.stamp.size = (int64_t)s->remote[k].size};
    bool versions = have_versions(s);
    bool sizes = token_units_by_size(s->prints, s->files, unit_least(r, s->prints, s->files));
    if (!versions)
        log_info("%s: its server names no versions of files (a strong ETag, Last-Modified), so all are "
                 "fetched before the first step",
                 s->name);
    else if (!sizes)
        log_info("%s: its files are small, and their contents decide which share a token cache, so all are "
                 "fetched before the first step",
                 s->name);
    return versions && sizes;
}

/* Copies are held again when it is their turn. */
static void make_late(Dataset *d, Source *s) {
    s->late = true;
    if (!d->late) {
        d->late = mem_alloc(sizeof *d->late);
        *d->late = (Late){.d = d, .contents = DATA_UNKNOWN};
        pthread_mutex_init(&d->late->lock, NULL);
    }
    s->versions = mem_alloc_array(s->files, sizeof *s->versions);
    for (size_t k = 0; k < s->files; k++) {
        recall_print(s, k);
        remote_version(&s->remote[k], s->versions[k]);
        remote_release(d->remote, &s->remote[k]);
    }
}

/* Whether a file is in several places; two threads would fetch it into one. */
static bool occurs_twice(const Dataset *d) {
    size_t count = 0, files = 0;
    for (size_t i = 0; i < d->total; i++) files += d->sources[i].remote ? d->sources[i].files : 0;
    char(*entries)[33] = mem_alloc_array(files, sizeof *entries);
    for (size_t i = 0; i < d->total; i++)
        for (size_t k = 0; d->sources[i].remote && k < d->sources[i].files; k++)
            memcpy(entries[count++], d->sources[i].remote[k].entry, sizeof *entries);
    if (count) qsort(entries, count, sizeof *entries, (int (*)(const void *, const void *))strcmp);
    bool twice = false;
    for (size_t i = 1; i < count; i++) twice |= strcmp(entries[i - 1], entries[i]) == 0;
    free(entries);
    return twice;
}

static void find_late(Dataset *d, const Recipe *r) {
    if (r->config->order != ORDER_STREAM || !r->grows || occurs_twice(d)) return;
    for (size_t i = 0; i < d->count; i++)
        if (d->sources[i].remote && can_be_late(r, &d->sources[i])) make_late(d, &d->sources[i]);
}

/* Hashes all files whose hashes are not known. */
static ErrorCode print_unknown(Dataset *d, const char *cache_dir, size_t count, Error *err) {
    const char **paths = mem_alloc_array(count, sizeof *paths);
    Fingerprint **targets = mem_alloc_array(count, sizeof *targets);
    Fingerprint *prints = mem_alloc_array(count, sizeof *prints);
    size_t unknown = 0;
    for (size_t i = 0; i < d->total; i++)
        for (size_t k = 0; k < d->sources[i].files; k++) {
            if (d->sources[i].late || d->sources[i].prints[k].sha256[0]) continue;
            targets[unknown] = &d->sources[i].prints[k];
            paths[unknown++] = d->sources[i].paths[k];
        }
    ErrorCode code = fingerprint_files(cache_dir, paths, unknown, prints, err);
    for (size_t i = 0; code == OK && i < unknown; i++) *targets[i] = prints[i];
    free(paths);
    free(targets);
    free(prints);
    return code;
}

/* Hashes contents before caches are looked for, since the hash is part of their names. Hashes of unchanged
 * files are cached (data/fingerprint.h). The files of all sources are hashed first, so that a missing one is
 * found before anything is tokenized. */
static ErrorCode print_files(Dataset *d, const Recipe *r, Error *err) {
    const char *cache_dir = r->config->cache_dir;
    size_t count = 0;
    for (size_t i = 0; i < d->total; i++) count += d->sources[i].files;
    Fingerprint *prints = d->prints = mem_alloc_array(count, sizeof *prints);
    for (size_t i = 0; i < d->total; prints += d->sources[i++].files) d->sources[i].prints = prints;
    find_late(d, r);
    for (size_t i = 0; i < d->total; i++)
        if (d->sources[i].remote && !d->sources[i].late) TRY(fetch_unknown(d, &d->sources[i], err));
    TRY(print_unknown(d, cache_dir, count, err));
    for (size_t i = 0; i < d->total; i++)
        if (d->sources[i].remote && !d->sources[i].late) TRY(remember_prints(d, &d->sources[i], err));
    return OK;
}

/* Indices decide where documents end. */
static ErrorCode print_indices(Dataset *d, const char *cache_dir, Error *err) {
    for (size_t i = 0; i < d->total; i++)
        for (size_t k = 0; k < d->sources[i].files; k++) {
            const char *index = d->sources[i].indices[k];
            if (index) TRY(fingerprint_files(cache_dir, &index, 1, &d->sources[i].index_prints[k], err));
        }
    return OK;
}

/* If any set has a name, all must: a set without one could not be distinguished from the figures of all sets
 * together. */
static ErrorCode check_names(const DataConfig *c, Error *err) {
    bool held = c->validation_fraction > 0;
    const ObjectList *list = held ? &c->sources : &c->validation_sources;
    const DataSource *sources = (const DataSource *)(const void *)list->items;
    size_t named = 0;
    for (size_t i = 0; i < list->count; i++) {
        const char *name = sources[i].name ? sources[i].name : "";
        char shown[VALIDATION_NAME + 16];
        named += *name != '\0';
        if (!name_is_plain(name, VALIDATION_NAME))
            return error_set(
                err, ERR_CONFIG, "%s: the name \"%s\": expected fewer than %d letters, digits and ._-",
                sources[i].path, error_escape(shown, sizeof shown, name, strlen(name)), VALIDATION_NAME);
    }
    if (named == 0 || named == list->count) return OK;
    return error_set(err, ERR_CONFIG,
                     "%zu of %zu sources of %s have a name: give one to each, or to none to take them as one "
                     "validation set",
                     named, list->count, held ? "data.sources" : "data.validation");
}

static ErrorCode check_sources(const ObjectList *list, Error *err) {
    const DataSource *sources = (const DataSource *)(const void *)list->items;
    for (size_t i = 0; i < list->count; i++) {
        if (!sources[i].path || !sources[i].path[0])
            return error_set(err, ERR_CONFIG, "a data source has no path");
        TRY(source_check_lengths(&sources[i], err));
    }
    return OK;
}

static ErrorCode check_weights(const ObjectList *list, Error *err) {
    const DataSource *sources = (const DataSource *)(const void *)list->items;
    size_t weighted = 0;
    for (size_t i = 0; i < list->count; i++) weighted += sources[i].weight != 0;
    if (weighted == 0 || weighted == list->count) return OK;
    return error_set(
        err, ERR_CONFIG,
        "%zu of %zu data sources have a weight: give one to each, or to none to take them as one corpus",
        weighted, list->count);
}

/* Rules that concern more than one key. */
ErrorCode dataset_check(const DataConfig *c, int64_t context, Error *err) {
    if (context < 1 || context > 1 << 30)
        return error_set(err, ERR_CONFIG, "context of %" PRId64 " tokens: from 1 to 2^30", context);
    if (!c->cache_dir || !c->cache_dir[0])
        return error_set(err, ERR_CONFIG, "data.cache_dir is empty: name a directory");
    if (!(c->validation_fraction >= 0 && c->validation_fraction <= 0.9))
        return error_set(err, ERR_CONFIG, "data.validation_fraction is %g: expected 0 to 0.9",
                         c->validation_fraction);
    if (c->validation_fraction > 0 && c->validation_sources.count > 0)
        return error_set(err, ERR_CONFIG,
                         "data.validation and data.validation_fraction are both set: choose one");
    if (c->holdout_by == HOLDOUT_HASH && c->validation_fraction == 0)
        return error_set(
            err, ERR_CONFIG,
            "data.holdout_by: hash draws documents from the sources, and "
            "data.validation_fraction is 0: set it to the share to hold out, or remove holdout_by");
    if (data_order_conflict(c))
        return error_set(err, ERR_CONFIG, "data.order: stream does not go with %s", data_order_conflict(c));
    if (data_has_conversations(c)) TRY(chat_check_date(c->chat_date, err));
    TRY(check_names(c, err));
    TRY(check_sources(&c->sources, err));
    TRY(check_sources(&c->validation_sources, err));
    return check_weights(&c->sources, err);
}

static ErrorCode check_config(const DataConfig *c, int64_t context, Error *err) {
    if (c->sources.count == 0)
        return error_set(err, ERR_CONFIG,
                         "data.sources is empty: name at least one file, as in data.sources=[my.txt]");
    return dataset_check(c, context, err);
}

static uint64_t samples_count(const Samples *s, const Source *of, int64_t context) {
    return of->chat ? s->packing.rows : stream_windows(&s->stream, context);
}

/* Adds the sources of one name one after the other, so that a set is one range of windows. */
static void add_set(Dataset *d, size_t first) {
    ValidationSet *set = &d->sets[d->set_count++];
    set->name = d->sources[first].set;
    set->first = d->first_validation[d->held];
    for (size_t i = first; i < d->total; i++) {
        const Source *s = &d->sources[i];
        uint64_t windows = samples_count(&s->validation, s, d->context);
        if (windows == 0 || strcmp(s->set, set->name) != 0) continue;
        d->order[d->held] = i;
        d->first_validation[d->held + 1] = d->first_validation[d->held] + windows;
        d->held++;
        set->samples += windows;
    }
}

static void make_sets(Dataset *d) {
    for (size_t i = 0; i < d->total; i++) {
        const Source *s = &d->sources[i];
        bool known = samples_count(&s->validation, s, d->context) == 0;
        for (size_t k = 0; k < d->set_count; k++) known |= strcmp(d->sets[k].name, s->set) == 0;
        if (!known) add_set(d, i);
    }
}

/* Assigns the source's tokens to training and validation. */
static void divide(Dataset *d, Source *s, bool trains) {
    TokenStream *train = &s->train.stream, *validation = &s->validation.stream;
    stream_whole(train, s->cache);
    *validation = (TokenStream){.cache = s->cache};
    if (!trains) {
        *validation = *train;
        *train = (TokenStream){.cache = s->cache};
    } else if (s->held) {
        stream_whole(validation, s->held);
    } else if (d->validation_fraction > 0) {
        stream_split(train, validation, s->cache, d->validation_fraction, s->chat);
    }
}

static ErrorCode pack(const Dataset *d, Samples *samples, Error *err) {
    return packing_build(&samples->packing, &samples->stream, d->context, d->vocabulary, err);
}

/* Warns about what packing conversations into rows has dropped. */
static void warn_of_packing(const Dataset *d, const Source *s, const Packing *p, const char *purpose) {
    char cut[32], lost[32], dropped[32];
    if (p->cut + p->dropped == 0) return;
    text_count((int64_t)p->cut, cut);
    text_count((int64_t)p->cut_tokens, lost);
    text_count((int64_t)p->dropped, dropped);
    log_warn("%s, for %s: %s of %" PRIu64 " conversations were longer than a context of %" PRId64
             " and lost their ends, %s tokens; %s were left out, since nothing to train on remained",
             s->name, purpose, cut, p->documents + p->dropped, d->context, lost, dropped);
}

static void report_left_out(const Source *s, uint64_t documents, const char *one, const char *more) {
    char some[32];
    if (documents == 1) log_info("%s: 1 document was left out, since it %s", s->name, one);
    if (documents > 1)
        log_info("%s: %s documents were left out, since they %s", s->name,
                 text_count((int64_t)documents, some), more);
}

/* What concerns documents is counted in the part that they belong to; all else is the same in both. */
static TokenFigures figures_of(const Source *s) {
    TokenFigures f = token_cache_figures(s->cache);
    TokenFigures held = s->held ? token_cache_figures(s->held) : (TokenFigures){0};
    f.duplicates += held.duplicates;
    f.short_documents += held.short_documents;
    f.long_documents += held.long_documents;
    return f;
}

static uint64_t bytes_of(const Source *s) {
    return token_cache_text_bytes(s->cache) + (s->held ? token_cache_text_bytes(s->held) : 0);
}

static uint64_t held_documents(const Source *s) { return s->held ? token_cache_documents(s->held) : 0; }

/* What is known of a source. */
static BlockSource there_of(const Dataset *d, const Source *s) {
    if (!s->cache) return block_order_source(growing_order(d->growing), (size_t)(s - d->sources));
    return (BlockSource){.complete = true,
                         .tokens = token_cache_tokens(s->cache),
                         .documents = token_cache_documents(s->cache),
                         .text_bytes = bytes_of(s),
                         .figures = figures_of(s)};
}

/* A cache was perhaps made for a source that states its format. */
static ErrorCode refuse_forms(const Source *s, const TokenFigures *f, Error *err) {
    for (size_t i = 0; i < TEXT_FORMS && !s->any_form; i++) {
        const TextForm *form = f->forms[i] ? text_form_at(i) : NULL;
        if (form && form->refused) return text_form_refuse(form, s->name, err);
    }
    return OK;
}

/* Text, but perhaps not the text that is meant. */
static void warn_of_forms(const Source *s, const TokenFigures *f) {
    char some[32], all[32];
    for (size_t i = 0; i < TEXT_FORMS && !s->any_form; i++) {
        const TextForm *form = f->forms[i] ? text_form_at(i) : NULL;
        if (form)
            log_warn("%s: %s of %s file%s %s %s: %s", s->name, text_count((int64_t)f->forms[i], some),
                     text_count((int64_t)s->files, all), s->files == 1 ? "" : "s",
                     f->forms[i] == 1 ? "is" : "are", form->name, form->advice);
    }
}

static void warn_of_figures(const Dataset *d, const Source *s) {
    char some[32], all[32];
    BlockSource there = there_of(d, s);
    TokenFigures f = there.figures;
    warn_of_forms(s, &f);
    if (f.invalid_bytes > 0)
        log_warn("%s: %s of %s bytes are not UTF-8; they were taken as they are", s->name,
                 text_count((int64_t)f.invalid_bytes, some), text_count((int64_t)there.text_bytes, all));
    if (f.null_rows > 0)
        log_warn("%s: rows without text (null): %s; they were skipped", s->name,
                 text_count((int64_t)f.null_rows, some));
    report_left_out(s, f.duplicates, "had been there before (data.dedup)",
                    "had been there before (data.dedup)");
    report_left_out(s, f.short_documents, "has less text than min_bytes", "have less text than min_bytes");
    report_left_out(s, f.long_documents, "has more text than max_bytes", "have more text than max_bytes");
    if (f.bad_lines > 0)
        log_warn("%s: %s of %s lines are broken and were skipped; %s/*/part-*.bad.jsonl lists them", s->name,
                 text_count((int64_t)f.bad_lines, some), text_count((int64_t)f.lines, all), d->cache_dir);
}

static void warn_of_source(const Dataset *d, size_t i) {
    const Source *s = &d->sources[i];
    bool again = false; /* the same text occurs before, for validation or as another source */
    for (size_t k = 0; k < i; k++) again |= memcmp(d->sources[k].key, s->key, sizeof s->key) == 0;
    if (!again) warn_of_figures(d, s);
    warn_of_packing(d, s, &s->train.packing, "training");
    warn_of_packing(d, s, &s->validation.packing, "validation");
}

void dataset_warn(const Dataset *d) {
    for (size_t i = 0; i < d->total; i++) warn_of_source(d, i);
}

static bool is_empty(const Source *s) {
    for (size_t k = 0; k < s->files; k++)
        if (s->prints[k].stamp.size > 0) return false;
    return true;
}

static void add_left_out(Text *out, uint64_t documents, const char *why, int64_t bytes) {
    char some[32];
    if (documents > 0)
        text_printf(out, "%s %s %s %s: %" PRId64, out->length ? "," : ":",
                    text_count((int64_t)documents, some), documents == 1 ? "has" : "have", why, bytes);
}

/* A source without a document: why there is none. */
static ErrorCode refuse_none(const Source *s, const TokenFigures *f, Error *err) {
    Text left = {0};
    if (is_empty(s))
        return error_set(err, ERR_DATA, "%s: %s empty: name files with contents in data.sources", s->name,
                         s->files > 1 ? "all of its files are" : "it is");
    if (held_documents(s) > 0)
        return error_set(err, ERR_DATA,
                         "%s: no document is left for training: all %" PRIu64
                         " are held out; a source needs more of them, or a smaller data.validation_fraction",
                         s->name, held_documents(s));
    add_left_out(&left, f->short_documents, "less text than min_bytes", s->min_bytes);
    add_left_out(&left, f->long_documents, "more text than max_bytes", s->max_bytes);
    error_set(err, ERR_DATA, "%s: no document is left%s", s->name,
              left.length ? left.data : ": it holds no text");
    text_free(&left);
    return ERR_DATA;
}

static ErrorCode assign_source(Dataset *d, size_t i, Error *err) {
    Source *s = &d->sources[i];
    bool trains = i < d->count;
    if (!s->cache) return OK;
    TokenFigures f = figures_of(s);
    TRY(refuse_forms(s, &f, err));
    divide(d, s, trains);
    if (s->chat) TRY(pack(d, &s->train, err));
    if (s->chat) TRY(pack(d, &s->validation, err));
    const Samples *needed = trains ? &s->train : &s->validation;
    if (samples_count(needed, s, d->context) > 0) return OK;
    if (token_cache_tokens(s->cache) == 0) return refuse_none(s, &f, err);
    warn_of_packing(d, s, &needed->packing, trains ? "training" : "validation");
    return error_set(err, ERR_DATA,
                     "%s: %" PRIu64 " token%s%s: at least 2 are needed to predict one from the other%s",
                     s->name, needed->stream.tokens, needed->stream.tokens == 1 ? "" : "s",
                     d->validation_fraction > 0 ? " for training" : "",
                     s->chat ? ", in one conversation; raise train.context if it cuts off answers" : "");
}

static ErrorCode assign_streams(Dataset *d, Error *err) {
    for (size_t i = 0; i < d->total; i++) TRY(assign_source(d, i, err));
    make_sets(d);
    if (d->validation_fraction > 0 && dataset_validation_samples(d) == 0)
        return error_set(err, ERR_CONFIG,
                         "data.validation_fraction of %g keeps no text out of %" PRIu64
                         " tokens: make it larger",
                         d->validation_fraction, dataset_tokens(d));
    return OK;
}

static double mean_length(const TokenCache *c) {
    return (double)token_cache_tokens(c) / fmax(1, (double)token_cache_documents(c));
}

/* Weights in tokens from the configured ones; false when no source has a weight (check_weights). */
static bool weigh(const Dataset *d, int kind, double *shares) {
    bool mixed = false;
    for (size_t i = 0; i < d->count; i++) {
        const Source *s = &d->sources[i];
        mixed |= s->weight != 0;
        shares[i] = s->weight * (kind == WEIGHTS_DOCUMENTS ? mean_length(s->cache) : 1);
    }
    return mixed;
}

/* Without weights all sources are one corpus, and each window is equally likely. With weights they are a
 * mixture. */
static ErrorCode open_sampler(Dataset *d, const DataConfig *c, Error *err) {
    double *shares = mem_alloc_array(d->count, sizeof *shares);
    uint64_t *windows = mem_alloc_array(d->count, sizeof *windows);
    /* By blocks, the sampler only mixes sources, whose windows it need not know. */
    for (size_t i = 0; i < d->count; i++) windows[i] = d->growing ? 1 : dataset_source_windows(d, i);
    bool mixed = weigh(d, c->weights, shares);
    ErrorCode code =
        sampler_open(&d->sampler, (uint64_t)c->seed, windows, mixed ? shares : NULL, d->count, err);
    free(shares);
    free(windows);
    return code;
}

static const DataSource *source_of(const Dataset *d, const DataConfig *c, size_t i) {
    const ObjectList *list = i < d->count ? &c->sources : &c->validation_sources;
    return (const DataSource *)(const void *)list->items + (i < d->count ? i : i - d->count);
}

static ErrorCode find_files(Dataset *d, const Recipe *r, Error *err) {
    const DataConfig *c = r->config;
    for (size_t i = 0; i < d->total; i++)
        TRY(list_files(d, c, source_of(d, c, i), &d->sources[i], r->tokenizer, err));
    TRY(print_files(d, r, err));
    return print_indices(d, c->cache_dir, err);
}

/* What has come of a source that grows may be too bad, or nothing. */
static ErrorCode check_growing(void *dataset, size_t i, const BlockSource *there, Error *err) {
    const Dataset *d = dataset;
    const Source *s = &d->sources[i];
    bool counts = d->bad_lines_limit >= 1 || d->bad_lines_limit <= 0;
    TRY(refuse_forms(s, &there->figures, err));
    if (there->complete || counts)
        TRY(check_bad_lines(s, &there->figures, d->bad_lines_limit, d->cache_dir, err));
    if (!there->complete || there->windows > 0) return OK;
    if (there->tokens == 0) return refuse_none(s, &there->figures, err);
    return error_set(err, ERR_DATA, "%s: no document of it has two tokens, to predict one from the other",
                     s->name);
}

/* A cache that was removed, with its copy, is fetched again here: its thread only reads. */
static ErrorCode fetch_growing(const Recipe *r, const Source *s, const Caches *c, Error *err) {
    TokenUnit *missing = mem_alloc_array(c->count, sizeof *missing);
    size_t count = 0;
    ErrorCode code = OK;
    for (size_t i = 0; code == OK && i < c->count; i++) {
        TokenCache *there = NULL;
        code = open_complete(r, c->units[i].key, c->vocabulary, &there, err);
        if (!there) missing[count++] = c->units[i];
        token_cache_close(there);
    }
    if (code == OK) code = fetch_units(r, s, missing, count, err);
    free(missing);
    return code;
}

/* D4 */
static void make_source_key(const Recipe *r, const CorpusFile *files, Source *s) {
    Fingerprint *prints = mem_alloc_array(s->files, sizeof *prints);
    for (size_t k = 0; k < s->files; k++) {
        prints[k] = s->prints[k];
        if (s->late) memcpy(prints[k].sha256, s->versions[k], sizeof prints[k].sha256);
    }
    make_key(r, files, prints, s->files, skips_bad(r), s->key);
    free(prints);
}

/* The cache of some files, or one that an earlier start has built without skipping lines. It is held before
 * it is looked for. */
static ErrorCode name_unit(const Recipe *r, const CorpusFile *files, const Fingerprint *prints, TokenUnit *u,
                           Error *err) {
    char name[65];
    uint8_t clean[32];
    TokenCache *there = NULL;
    make_cache_key(r, files, prints, u->count, skips_bad(r), u->key);
    make_cache_key(r, files, prints, u->count, false, clean);
    cache_use_hold(r->use, cache_name(u->key, name));
    if (memcmp(clean, u->key, sizeof clean) != 0)
        TRY(open_complete(r, clean, (uint64_t)tokenizer_vocab_size(r->tokenizer), &there, err));
    if (there) memcpy(u->key, clean, sizeof clean);
    token_cache_close(there);
    free((char *)(uintptr_t)u->dir);
    u->dir = cache_path(r->config->cache_dir, u->key);
    return OK;
}

static void add_units(Late *l, Source *s, const TokenUnit *units, size_t count) {
    l->units = mem_grow(l->units, (l->count + count) * sizeof *l->units);
    for (size_t i = 0; i < count; i++)
        l->units[l->count++] =
            (LateUnit){.source = s, .first = units[i].first, .count = units[i].count, .late = units[i].late};
}

static ErrorCode find_out_if_late(const Recipe *r, TokenUnit *u, uint64_t vocabulary, Error *err) {
    TokenCache *there = NULL;
    if (u->dir) TRY(open_complete(r, u->key, vocabulary, &there, err));
    u->late = there == NULL;
    token_cache_close(there);
    return OK;
}

static ErrorCode grow_source(Dataset *d, const Recipe *r, const DataSource *spec, Source *s, Error *err) {
    ErrorCode code = OK;
    CorpusFile *files = corpus_files(r, spec, s);
    Caches c = {.vocabulary = (uint64_t)tokenizer_vocab_size(r->tokenizer)};
    make_source_key(r, files, s);
    cut_units(r, s, files, &c);
    for (size_t i = 0; code == OK && i < c.count; i++) {
        TokenUnit *u = &c.units[i];
        if (u->dir) code = name_unit(r, files + u->first, s->prints + u->first, u, err);
        if (code == OK && s->late) code = find_out_if_late(r, u, c.vocabulary, err);
    }
    if (code == OK && s->remote && r->grows && !s->late) code = fetch_growing(r, s, &c, err);
    if (code == OK && d->late) add_units(d->late, s, c.units, c.count);
    if (code == OK) growing_add(d->growing, files, s->prints, s->files, c.units, c.count);
    free_units(&c);
    free(files);
    return code;
}

/* Label of the progress of all sources together. */
static const char *growing_label(const Dataset *d) {
    return d->count == 1 ? d->sources[0].name : "data.sources";
}

/* ---- files that are fetched while the run trains ---- */

/* Expects the files of late units, or only of those with files that nobody has hashed. */
static void expect_files(Late *l, bool unknown) {
    const size_t *queue;
    size_t count = growing_queue(l->d->growing, &queue), turns = 0;
    arrivals_close(l->arrivals);
    l->arrivals = arrivals_open(l->d->remote, growing_label(l->d), growing_beats(l->d->growing));
    for (size_t i = 0; i < count; i++) {
        LateUnit *u = &l->units[queue[i]];
        if (!u->late || (unknown && are_known(u->source->prints + u->first, u->count))) continue;
        u->turn = turns++;
        arrivals_add(l->arrivals, u->source->remote + u->first, u->count);
    }
}

static void hash_keys(const Dataset *d, uint8_t (*keys)[32], char out[65]) {
    uint64_t fraction;
    uint8_t digest[32];
    memcpy(&fraction, &d->validation_fraction, sizeof fraction);
    Sha256 *h = sha256_start();
    add_string(h, "weft dataset");
    sha256_add_u64(h, d->count);
    for (size_t i = 0; i < d->count; i++) sha256_add(h, keys[i], sizeof keys[i]);
    sha256_add_u64(h, fraction);
    sha256_finish(h, digest);
    sha256_hex(digest, out);
}

/* What the fingerprint would be if all had been fetched first. With the lock. */
static void note_contents(Late *l) {
    Dataset *d = l->d;
    for (size_t i = 0; i < d->count; i++)
        if (!are_known(d->sources[i].prints, d->sources[i].files)) return;
    uint8_t(*keys)[32] = mem_alloc_array(d->count, sizeof *keys);
    for (size_t i = 0; i < d->count; i++) {
        Source *s = &d->sources[i];
        CorpusFile *files = corpus_files(&l->recipe, source_of(d, l->recipe.config, i), s);
        make_key(&l->recipe, files, s->prints, s->files, skips_bad(&l->recipe), keys[i]);
        free(files);
    }
    hash_keys(d, keys, l->contents);
    free(keys);
}

static void begin_late(Late *l, const Recipe *r) {
    l->recipe = *r;
    expect_files(l, false);
    note_contents(l);
}

static ErrorCode refuse_version(const Source *s, size_t k, Error *err) {
    return error_set(err, ERR_DATA,
                     "%s: it changed on the server after the run began, and a run reads one version of a "
                     "file: put it back and run again, or start over with run.overwrite=true",
                     file_name(s, k));
}

/* Compares file k with what is known of it, and stores its hash. */
static ErrorCode take_print(Late *l, const Source *s, size_t k, const Fingerprint *print, Error *err) {
    char version[65];
    remote_version(&s->remote[k], version);
    if (strcmp(version, s->versions[k]) != 0) return refuse_version(s, k, err);
    if (s->remote[k].sha256[0] && strcmp(s->remote[k].sha256, print->sha256) != 0)
        return refuse_bytes(s, k, err);
    TRY(remote_remember(l->d->remote, &s->remote[k], print->sha256, err));
    pthread_mutex_lock(&l->lock);
    s->prints[k] = *print;
    pthread_mutex_unlock(&l->lock);
    return OK;
}

/* Waits for the files of a unit and hashes them. */
static ErrorCode await_files(Late *l, const LateUnit *u, Fingerprint *prints, bool *here, Error *err) {
    TRY(arrivals_await(l->arrivals, u->turn, here, err));
    if (!*here) return OK;
    const Source *s = u->source;
    const char **paths = mem_alloc_array(u->count, sizeof *paths);
    for (size_t k = 0; k < u->count; k++) paths[k] = s->paths[u->first + k];
    ErrorCode code = fingerprint_files(l->recipe.config->cache_dir, paths, u->count, prints, err);
    for (size_t k = 0; code == OK && k < u->count; k++)
        code = take_print(l, s, u->first + k, &prints[k], err);
    free(paths);
    pthread_mutex_lock(&l->lock);
    if (code == OK) note_contents(l);
    pthread_mutex_unlock(&l->lock);
    return code;
}

/* For growing.c. Files and prints are those of the unit. */
static ErrorCode await_unit(void *late, size_t unit, const CorpusFile *files, Fingerprint *prints,
                            TokenUnit *u, bool *here, Error *err) {
    Late *l = late;
    TRY(await_files(l, &l->units[unit], prints, here, err));
    return !*here || u->dir ? OK : name_unit(&l->recipe, files, prints, u, err);
}

static void release_unit(void *late, size_t unit) {
    Late *l = late;
    arrivals_release(l->arrivals, l->units[unit].turn);
}

static ErrorCode read_unknown(Late *l, const LateUnit *u, Error *err) {
    bool here;
    Fingerprint *prints = mem_alloc_array(u->count, sizeof *prints);
    ErrorCode code = await_files(l, u, prints, &here, err);
    arrivals_release(l->arrivals, u->turn);
    free(prints);
    return code;
}

ErrorCode dataset_know_contents(Dataset *d, Error *err) {
    const size_t *queue;
    ErrorCode code = OK;
    if (!d->late) return OK;
    expect_files(d->late, true);
    size_t count = growing_queue(d->growing, &queue);
    for (size_t i = 0; code == OK && i < count; i++) {
        const LateUnit *u = &d->late->units[queue[i]];
        if (!are_known(u->source->prints + u->first, u->count)) code = read_unknown(d->late, u, err);
    }
    expect_files(d->late, false);
    return code;
}

void dataset_contents(const Dataset *d, char out[65]) {
    *out = '\0';
    if (!d->late) return;
    pthread_mutex_lock(&d->late->lock);
    memcpy(out, d->late->contents, sizeof d->late->contents);
    pthread_mutex_unlock(&d->late->lock);
}

void dataset_changed(const Dataset *d, Text *names) {
    for (size_t i = 0; i < d->count; i++)
        for (size_t k = 0; d->sources[i].late && k < d->sources[i].files; k++)
            if (d->sources[i].remote[k].changed)
                text_printf(names, "%s%s", names->length ? ", " : "", file_name(&d->sources[i], k));
}

static void late_close(Late *l) {
    if (!l) return;
    arrivals_close(l->arrivals);
    pthread_mutex_destroy(&l->lock);
    free(l->units);
    free(l);
}

static void begin_growing(Dataset *d, const Recipe *r) {
    const DataConfig *c = r->config;
    uint64_t context = (uint64_t)d->context, block = (uint64_t)c->stream_block / context;
    uint32_t *slots = mem_alloc_array(d->count, sizeof *slots);
    bool mixed = dataset_is_mixture(d);
    for (size_t i = 0; i < d->count; i++) slots[i] = sampler_slots(d->sampler, i);
    GrowingSpec spec = {.build = {.label = growing_label(d),
                                  .tokenizer = r->tokenizer,
                                  .bos = r->bos,
                                  .eos = r->eos,
                                  .threads = r->threads,
                                  .skip_bad = skips_bad(r),
                                  .bad_limit = HUGE_VAL, /* of each source: check_growing */
                                  .dedup = c->dedup == DEDUP_EXACT},
                        .order = {.seed = (uint64_t)c->seed,
                                  .vocabulary = (uint64_t)tokenizer_vocab_size(r->tokenizer),
                                  .context = d->context,
                                  .block = block > 0 ? block : 1,
                                  .document_mask = d->document_mask,
                                  .sources = d->count,
                                  .mixed = mixed,
                                  .check = check_growing,
                                  .check_context = d},
                        .slots = mixed ? slots : NULL};
    if (d->late) spec.arrivals = (GrowingArrivals){await_unit, release_unit, d->late};
    growing_begin(d->growing, &spec);
    if (d->late) begin_late(d->late, r);
    free(slots);
}

/* Opens the sources one after the other, since tokenizing each uses all threads. */
static ErrorCode open_sources(Dataset *d, const DataConfig *c, const Recipe *r, Error *err) {
    if (c->order == ORDER_STREAM) d->growing = growing_open();
    for (size_t i = 0; i < d->total; i++) {
        bool streams = d->growing && i < d->count;
        if (streams) TRY(grow_source(d, r, source_of(d, c, i), &d->sources[i], err));
        if (!streams || !r->grows) TRY(open_files(r, source_of(d, c, i), &d->sources[i], err));
    }
    return OK;
}

static ErrorCode fill(Dataset *d, const DataConfig *c, Recipe *r, Error *err) {
    TRY(find_files(d, r, err));
    r->use = d->use = cache_use_open(c->cache_dir);
    r->remote = d->remote;
    TRY(open_sources(d, c, r, err));
    /* Samples are drawn from tokens: copies may go unless they are still to be tokenized. */
    if (!d->growing || !r->grows) {
        remote_close(d->remote);
        d->remote = NULL;
    }
    TRY(assign_streams(d, err));
    TRY(open_sampler(d, c, err));
    if (!d->growing) return OK;
    begin_growing(d, r);
    return block_order_grow(growing_order(d->growing), err);
}

static Dataset *new_dataset(const DataConfig *config, const Tokenizer *tokenizer, int64_t context) {
    Dataset *d = mem_alloc(sizeof *d);
    d->cache_dir = mem_strdup(config->cache_dir);
    d->context = context;
    d->vocabulary = tokenizer_vocab_size(tokenizer);
    d->document_mask = config->document_mask;
    d->validation_fraction = config->validation_fraction;
    d->bad_lines_limit = config->bad_lines_limit;
    d->count = config->sources.count;
    d->total = d->count + config->validation_sources.count;
    d->sources = mem_alloc_array(d->total, sizeof *d->sources);
    d->order = mem_alloc_array(d->total, sizeof *d->order);
    d->first_validation = mem_alloc_array(d->total + 1, sizeof *d->first_validation);
    d->sets = mem_alloc_array(d->total, sizeof *d->sets);
    return d;
}

static ErrorCode open_dataset(Dataset **dataset, const DataConfig *config, const Tokenizer *tokenizer,
                              int64_t context, int threads, bool grows, Error *err) {
    *dataset = NULL;
    TRY(check_config(config, context, err));
    Dataset *d = new_dataset(config, tokenizer, context);
    Recipe recipe;
    ErrorCode code = make_recipe(&recipe, config, tokenizer, threads, err);
    recipe.grows = grows;
    if (recipe.chat) hash_template(recipe.chat, d->template);
    if (code == OK) code = fill(d, config, &recipe, err);
    chat_close(recipe.chat);
    if (code != OK)
        dataset_close(d);
    else
        *dataset = d;
    return code;
}

/* May tokenize for hours. *dataset is NULL after a failure. */
ErrorCode dataset_open(Dataset **dataset, const DataConfig *config, const Tokenizer *tokenizer,
                       int64_t context, int threads, Error *err) {
    return open_dataset(dataset, config, tokenizer, context, threads, false, err);
}

ErrorCode dataset_open_growing(Dataset **dataset, const DataConfig *config, const Tokenizer *tokenizer,
                               int64_t context, int threads, Error *err) {
    return open_dataset(dataset, config, tokenizer, context, threads, true, err);
}

static void add_name(const uint8_t key[32], Text *names) {
    char name[65];
    text_printf(names, "%s\n", cache_name(key, name));
}

/* Names all caches that open_cache would look for. */
static void name_part(const Recipe *r, const Source *s, const CorpusFile *files, Text *names) {
    uint8_t key[32];
    Caches c = {0};
    make_key(r, files, s->prints, s->files, skips_bad(r), key);
    add_name(key, names);
    cut_units(r, s, files, &c);
    for (size_t i = 0; i < c.count; i++) {
        const TokenUnit *u = &c.units[i];
        if (!u->dir) continue;
        add_name(u->key, names);
        make_cache_key(r, files + u->first, s->prints + u->first, u->count, false, key);
        add_name(key, names);
    }
    free_units(&c);
}

/* Copies are in directories of their names. */
static void name_copies(const Source *s, Text *names) {
    for (size_t i = 0; s->remote && i < s->files; i++)
        text_printf(names, "%s\n%s\n", s->paths[i], s->indices[i] ? s->indices[i] : "");
}

static void name_caches(const Recipe *r, const DataSource *spec, const Source *s, Text *names) {
    name_copies(s, names);
    CorpusFile *files = corpus_files(r, spec, s);
    choose_part(r, s, files, PART_TRAINING);
    name_part(r, s, files, names);
    choose_part(r, s, files, PART_HELD);
    if (draws_documents(r->config)) name_part(r, s, files, names);
    free(files);
}

ErrorCode dataset_name_caches(const DataConfig *config, const Tokenizer *tokenizer, int64_t context,
                              Text *names, Error *err) {
    TRY(check_config(config, context, err));
    Dataset *d = new_dataset(config, tokenizer, context);
    Recipe recipe;
    ErrorCode code = make_recipe(&recipe, config, tokenizer, 0, err);
    recipe.grows = true; /* what has not been fetched has no cache */
    if (code == OK) code = find_files(d, &recipe, err);
    for (size_t i = 0; code == OK && i < d->total; i++)
        name_caches(&recipe, source_of(d, config, i), &d->sources[i], names);
    chat_close(recipe.chat);
    dataset_close(d);
    return code;
}

/* Also for a dataset whose opening failed: missing members are NULL. */
void dataset_close(Dataset *d) {
    if (!d) return;
    if (d->late) arrivals_stop(d->late->arrivals);
    growing_close(d->growing); /* its thread uses the rest */
    late_close(d->late);
    for (size_t i = 0; i < d->total; i++) {
        packing_free(&d->sources[i].train.packing);
        packing_free(&d->sources[i].validation.packing);
        token_cache_close(d->sources[i].cache);
        token_cache_close(d->sources[i].held);
        if (d->sources[i].indices) file_glob_free(d->sources[i].indices, d->sources[i].files);
        free(d->sources[i].index_prints);
        file_glob_free(d->sources[i].paths, d->sources[i].files);
        remote_free(d->sources[i].remote, d->sources[i].files);
        free(d->sources[i].name);
        free(d->sources[i].set);
        free(d->sources[i].versions);
    }
    sampler_close(d->sampler);
    remote_close(d->remote);
    cache_use_close(d->use);
    free(d->cache_dir);
    free(d->prints);
    free(d->sources);
    free(d->order);
    free(d->first_validation);
    free(d->sets);
    free(d);
}

/* Hashes only the data. Seed, weights and context are options of the run, which are compared by themselves.
 * Validation sources do not change the curve and are left out. */
void dataset_fingerprint(const Dataset *d, char out[65]) {
    uint8_t(*keys)[32] = mem_alloc_array(d->count, sizeof *keys);
    for (size_t i = 0; i < d->count; i++) memcpy(keys[i], d->sources[i].key, sizeof keys[i]);
    hash_keys(d, keys, out);
    free(keys);
}

static void list_file(const char *print, bool trains, const char *path, Text *out) {
    text_printf(out, "%s the %sfile ", print, trains ? "" : "validation ");
    text_add_shown(out, path, strlen(path), 0);
    text_puts(out, "\n");
}

void dataset_list(const Dataset *d, Text *out) {
    for (size_t i = 0; i < d->total; i++) {
        const Source *s = &d->sources[i];
        for (size_t k = 0; k < s->files; k++) {
            list_file(s->late ? s->versions[k] : s->prints[k].sha256, i < d->count, file_name(s, k), out);
            if (s->indices[k]) list_file(s->index_prints[k].sha256, i < d->count, s->indices[k], out);
        }
    }
    if (*d->template) text_printf(out, "%s the chat template\n", d->template);
}

size_t dataset_inputs(const Dataset *d) { return d->total; }

static void hash_file(Sha256 *h, const Fingerprint *print, const char *path) {
    sha256_add(h, print->sha256, 64);
    sha256_add(h, "  ", 2);
    sha256_add(h, path, strlen(path));
    sha256_add(h, "\n", 1);
}

static void hash_list(const Source *s, char out[65]) {
    uint8_t digest[32];
    Sha256 *h = sha256_start();
    for (size_t i = 0; i < s->files; i++) {
        hash_file(h, &s->prints[i], file_name(s, i));
        if (s->indices[i]) hash_file(h, &s->index_prints[i], s->indices[i]);
    }
    sha256_finish(h, digest);
    sha256_hex(digest, out);
}

DatasetInput dataset_input(const Dataset *d, size_t i) {
    const Source *s = &d->sources[i];
    DatasetInput in = {.path = s->name, .trains = i < d->count, .files = s->files};
    if (d->late) pthread_mutex_lock(&d->late->lock);
    for (size_t k = 0; k < s->files; k++) in.bytes += s->prints[k].stamp.size + s->index_prints[k].stamp.size;
    if (s->files == 1 && !s->indices[0])
        memcpy(in.sha256, s->prints[0].sha256, sizeof in.sha256);
    else if (are_known(s->prints, s->files))
        hash_list(s, in.sha256);
    if (d->late) pthread_mutex_unlock(&d->late->lock);
    return in;
}

const TokenCache *dataset_cache(const Dataset *d, size_t i) { return d->sources[i].cache; }
const TokenCache *dataset_held_cache(const Dataset *d, size_t i) { return d->sources[i].held; }

int64_t dataset_context(const Dataset *d) { return d->context; }

/* Training tokens, without held-out ones. */
uint64_t dataset_tokens(const Dataset *d) {
    uint64_t sum = 0;
    for (size_t i = 0; i < d->count; i++) {
        const Source *s = &d->sources[i];
        sum += s->cache ? s->train.stream.tokens : there_of(d, s).complete ? there_of(d, s).tokens : 0;
    }
    return sum;
}

/* Over all sources: what was held out of training sources, and all of the validation sources. */
uint64_t dataset_validation_tokens(const Dataset *d) {
    uint64_t sum = 0;
    for (size_t i = 0; i < d->total; i++) sum += d->sources[i].validation.stream.tokens;
    return sum;
}

/* A file of a source, for finding files with equal content. */
typedef struct Content {
    const char *sha256, *path;
    bool trains; /* of a training source */
} Content;

/* Equal files are in the order of the configuration, where training files come first (D3). */
static int by_content(const void *a, const void *b) {
    const Content *x = a, *y = b;
    int order = strcmp(x->sha256, y->sha256);
    return order != 0 ? order : (int)y->trains - (int)x->trains;
}

static Content *contents(const Dataset *d, size_t *count) {
    *count = 0;
    for (size_t i = 0; i < d->total; i++) *count += d->sources[i].files;
    Content *all = mem_alloc_array(*count, sizeof *all), *next = all;
    for (size_t i = 0; i < d->total; i++)
        for (size_t k = 0; k < d->sources[i].files; k++)
            if (d->sources[i].prints[k].sha256[0])
                *next++ =
                    (Content){d->sources[i].prints[k].sha256, file_name(&d->sources[i], k), i < d->count};
    *count = (size_t)(next - all);
    if (*count) qsort(all, *count, sizeof *all, by_content);
    return all;
}

DatasetRepeats dataset_repeats(const Dataset *d) {
    DatasetRepeats r = {0};
    size_t count;
    Content *all = contents(d, &count);
    for (size_t i = 1; i < count; i++) {
        const Content *a = &all[i - 1], *b = &all[i];
        if (strcmp(a->sha256, b->sha256) != 0 || !a->trains) continue;
        DatasetRepeat *kind = b->trains ? &r.trained_twice : &r.validated_on;
        if (kind->files++ == 0) *kind = (DatasetRepeat){1, a->path, b->path};
    }
    free(all);
    return r;
}

uint64_t dataset_source_windows(const Dataset *d, size_t source) {
    if (d->growing) return 0;
    return samples_count(&d->sources[source].train, &d->sources[source], d->context);
}

/* Slots per cycle instead of weights: two spellings of the weights with equal slots are the same mixture, and
 * must not differ in the recorded state. */
void dataset_mixture(const Dataset *d, char out[DATASET_MIXTURE]) {
    size_t at = 0;
    if (!dataset_is_mixture(d)) strcpy(out, "0");
    for (size_t s = 0; dataset_is_mixture(d) && s < d->count; s++)
        at += (size_t)snprintf(out + at, DATASET_MIXTURE - at, "%s%u", s ? "," : "",
                               sampler_slots(d->sampler, s));
}

bool dataset_is_mixture(const Dataset *d) { return sampler_cycle(d->sampler) > 1; }

/* Samples of an epoch of a source; 0: not known yet. */
static uint64_t source_samples(const Dataset *d, size_t i) {
    if (!d->growing) return dataset_source_windows(d, i);
    BlockSource there = block_order_source(growing_order(d->growing), i);
    return there.complete ? there.windows : 0;
}

/* Each window of each source once. In a mixture, sources finish an epoch at different times. */
uint64_t dataset_samples_per_epoch(const Dataset *d) {
    uint64_t sum = 0;
    for (size_t i = 0; i < d->count; i++) {
        if (source_samples(d, i) == 0) return 0;
        sum += source_samples(d, i);
    }
    return sum;
}

static double epochs_of(uint64_t samples, uint64_t epoch) {
    return epoch > 0 ? (double)samples / (double)epoch : (double)NAN;
}

/* The last of the running sums, which are kept for searching. */
uint64_t dataset_validation_samples(const Dataset *d) { return d->first_validation[d->held]; }
size_t dataset_validation_sets(const Dataset *d) { return d->set_count; }
ValidationSet dataset_validation_set(const Dataset *d, size_t set) { return d->sets[set]; }
size_t dataset_sources(const Dataset *d) { return d->count; }
const char *dataset_source_name(const Dataset *d, size_t source) { return d->sources[source].name; }
void dataset_epochs(const Dataset *d, uint64_t k, double *out) {
    uint64_t *counts = mem_alloc_array(d->count, sizeof *counts);
    bool mixed = dataset_is_mixture(d);
    if (mixed) sampler_count(d->sampler, k, counts);
    for (size_t i = 0; i < d->count; i++)
        out[i] =
            mixed ? epochs_of(counts[i], source_samples(d, i)) : epochs_of(k, dataset_samples_per_epoch(d));
    free(counts);
}

/* The thread that tokenizes knows only the copy of a remote file: names its URL. */
static ErrorCode name_remote(const Dataset *d, ErrorCode code, Error *err) {
    for (size_t i = 0; code != OK && err && i < d->count; i++)
        for (size_t k = 0; d->sources[i].remote && k < d->sources[i].files; k++)
            if (strncmp(err->message, d->sources[i].paths[k], strlen(d->sources[i].paths[k])) == 0)
                return error_context(err, "%s", file_name(&d->sources[i], k));
    return code;
}

/* Whether a training sample of data.order: stream is there. */
static ErrorCode ask_growing(const Dataset *d, size_t group, uint64_t index, bool *ready, Error *err) {
    return name_remote(d, growing_ready(d->growing, group, index, ready, err), err);
}

ErrorCode dataset_ready(const Dataset *d, uint64_t k, bool *ready, Error *err) {
    size_t group;
    uint64_t index;
    *ready = true;
    if (!d->growing) return OK;
    sampler_place(d->sampler, k, &group, &index);
    return ask_growing(d, group, index, ready, err);
}

Sample dataset_locate(const Dataset *d, uint64_t k) {
    size_t group;
    uint64_t index;
    if (!d->growing) return sampler_at(d->sampler, k);
    sampler_place(d->sampler, k, &group, &index);
    return block_order_at(growing_order(d->growing), group, index);
}

static void describe_packing(const Dataset *d, const Packing *p, Text *out) {
    char rows[32];
    double positions = (double)p->rows * (double)d->context;
    text_printf(out, ", packed into %s row%s, %.1f%% full", text_count((int64_t)p->rows, rows),
                p->rows == 1 ? "" : "s", positions > 0 ? 100.0 * (double)p->positions / positions : 0);
}

static void describe_growing(const Dataset *d, size_t i, double epochs, Text *out) {
    const Source *s = &d->sources[i];
    BlockSource there = there_of(d, s);
    char tokens[32];
    uint32_t cycle = sampler_cycle(d->sampler);
    text_printf(out, "  %s: %zu file%s, %s tokens %s", s->name, s->files, s->files == 1 ? "" : "s",
                text_count((int64_t)there.tokens, tokens),
                there.complete ? "for training"
                : s->late      ? "so far; the rest is fetched and tokenized while the run trains"
                               : "so far; the rest is tokenized while the run trains");
    if (cycle > 1) text_printf(out, ", %.2f%% of samples", 100.0 * sampler_slots(d->sampler, i) / cycle);
    if (epochs > 0) text_printf(out, ", read %.3g times", epochs);
    text_puts(out, "\n");
}

/* Bytes per token over the whole cache: it shows a tokenizer that does not fit the text. */
static void describe_source(const Dataset *d, size_t i, double epochs, Text *out) {
    const Source *s = &d->sources[i];
    if (!s->cache) {
        describe_growing(d, i, epochs, out);
        return;
    }
    char documents[32], tokens[32], held[32];
    uint64_t count = token_cache_documents(s->cache) + held_documents(s);
    text_count((int64_t)count, documents);
    text_count((int64_t)s->train.stream.tokens, tokens);
    text_count((int64_t)s->validation.stream.tokens, held);
    double all = (double)(token_cache_tokens(s->cache) + (s->held ? token_cache_tokens(s->held) : 0));
    text_printf(
        out, "  %s: %zu file%s, %s document%s, %.2f bytes a token, %s tokens for training, %s for validation",
        s->name, s->files, s->files == 1 ? "" : "s", documents, count == 1 ? "" : "s",
        (double)bytes_of(s) / all, tokens, held);
    if (s->held)
        text_printf(out, " (%s document%s)", text_count((int64_t)held_documents(s), documents),
                    held_documents(s) == 1 ? "" : "s");
    uint32_t cycle = sampler_cycle(d->sampler);
    if (i < d->count && cycle > 1)
        text_printf(out, ", %.2f%% of samples", 100.0 * sampler_slots(d->sampler, i) / cycle);
    if (epochs > 0) text_printf(out, ", read %.3g times", epochs);
    if (s->chat) describe_packing(d, i < d->count ? &s->train.packing : &s->validation.packing, out);
    if (*s->set && s->validation.stream.tokens > 0) text_printf(out, " (%s)", s->set);
    text_puts(out, "\n");
}

void dataset_describe(const Dataset *d, uint64_t samples, Text *out) {
    double *epochs = mem_alloc_array(d->total, sizeof *epochs);
    if (samples > 0) dataset_epochs(d, samples, epochs);
    for (size_t i = 0; i < d->total; i++) describe_source(d, i, epochs[i], out);
    free(epochs);
}

static ErrorCode sample_of(const Dataset *d, const Source *s, const Samples *from, uint64_t window,
                           const SampleRow *row, int64_t *valid, Error *err) {
    if (s->chat)
        return packing_row(&from->packing, &from->stream, d->context, d->vocabulary, window, row, valid, err);
    return stream_window(&from->stream, d->context, window, d->document_mask, row, valid, err);
}

/* Rows past the last sample are empty, so that ranks with unequal numbers of validation samples still run the
 * same passes. A linear search suffices: sources are few, and making the row costs far more. */
static ErrorCode validation_sample(const Dataset *d, uint64_t k, const SampleRow *row, int64_t *valid,
                                   Error *err) {
    if (k >= dataset_validation_samples(d)) {
        stream_empty_row(d->context, row);
        return OK;
    }
    size_t i = 0;
    while (d->first_validation[i + 1] <= k) i++;
    const Source *s = &d->sources[d->order[i]];
    return sample_of(d, s, &s->validation, k - d->first_validation[i], row, valid, err);
}

/* Of data.order: stream. */
static ErrorCode growing_sample(const Dataset *d, uint64_t k, const SampleRow *row, int64_t *valid,
                                Error *err) {
    size_t group;
    uint64_t index;
    bool ready;
    sampler_place(d->sampler, k, &group, &index);
    for (;;) {
        TRY(ask_growing(d, group, index, &ready, err));
        if (ready) return block_order_sample(growing_order(d->growing), group, index, row, valid, err);
        nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
    }
}

/* Any k at any time, from any thread: each rank and restart asks for its own samples only. */
ErrorCode dataset_sample(const Dataset *d, bool validation, uint64_t k, const SampleRow *row, int64_t *valid,
                         Error *err) {
    if (validation) return validation_sample(d, k, row, valid, err);
    if (d->growing) return growing_sample(d, k, row, valid, err);
    Sample s = sampler_at(d->sampler, k);
    const Source *source = &d->sources[s.source];
    return sample_of(d, source, &source->train, s.window, row, valid, err);
}

/* Reads every block of every cache, which takes minutes for a large one. Training verifies blocks on first
 * use instead. */
ErrorCode dataset_verify(const Dataset *d, Error *err) {
    for (size_t i = 0; i < d->total; i++) {
        if (d->sources[i].cache) TRY(token_cache_verify(d->sources[i].cache, err));
        if (d->sources[i].held) TRY(token_cache_verify(d->sources[i].held, err));
    }
    return OK;
}

/* Tokenizing a source into its caches: one thread reads and writes, all others tokenize.
 *
 * The reader hands out text in jobs of about a megabyte, and the writer takes them back in the order of the
 * text, so shards have the same bytes for any number of threads. One thread both reads and writes, because
 * both are cheap and sequential. The loop in `pump` reads ahead while there are free slots, then waits for
 * the oldest job.
 *
 * A shard is committed about every 128 MiB of text. It records the position where the next one starts, so an
 * interrupted build loses only the unfinished shard. Shards end at job borders, and jobs depend on the
 * content alone.
 *
 * Consecutive caches overlap: the first jobs of one are read while the last jobs of the previous one are
 * tokenized.
 *
 *  B1. Slots cycle: empty -> ready (reader) -> done (a worker) -> empty (writer), in the order of job
 *      numbers: written <= taken <= read <= written + slots.
 *  B2. One thread at a time owns a slot: `state` changes under the lock, the contents are accessed without
 *      it.
 *  B3. A reading or tokenizing error is stored in its job and reported when the writer reaches it. So the
 *      first error in the order of the text is reported, whatever the threads' timing.
 *  B4. A cache is locked from before its first job is read until its last shard is written. A process never
 *      waits for a lock while it holds another: two sources may have the same caches in another order.
 *  B5. What is dropped is told by whole documents, so jobs end with one. Lengths and the part that a document
 *      belongs to are judged by the workers; whether it was there before by the writer, in the order of the
 *      text. */
#include "data/token_build.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "data/seen_set.h"
#include "data/token_shard.h"
#include "device/device.h"

#define JOB_BYTES (1u << 20)
#define LARGE_JOB (16 * JOB_BYTES)
#define SHARD_BYTES (128u << 20)
#define SHARD_DOCUMENTS (4u << 20) /* bounds the memory for document ends */
/* Shards that somebody waits for: the first ones are ready soon, later ones are an eighth of what is
 * there, so that few are needed. */
#define AWAITED_BYTES (8u << 20)
enum { AWAITED_SHARE = 8 };
enum { LISTED_LINES = 1000, MOST_LISTED_BYTES = 4 << 20 };

/* A chunk within a job's text; `line` is for messages. */
typedef struct Record {
    size_t offset, length;
    uint64_t line;
    bool starts, ends;
} Record;

/* For telling whether it was there before. */
typedef struct Document {
    DocumentDigest digest;
    uint64_t text_bytes;
} Document;

typedef struct Job {
    enum { JOB_EMPTY, JOB_READY, JOB_DONE } state;
    Text raw;
    Record *records;
    size_t record_count, record_capacity;
    size_t bytes; /* of text, as read */
    size_t unit, file;
    size_t next_file; /* index of the file after this job */
    CorpusPosition next;
    bool final;    /* the last job of the unit */
    double stored; /* stored bytes of the files that this build has read up to here */
    TokenList ids;
    DocumentEnds ends;   /* from ids[0] */
    Document *documents; /* of each end, if duplicates are left out */
    size_t document_capacity;
    uint64_t text_bytes, invalid_bytes, null_rows;
    const TextForm *form;         /* of the file that begins with this job */
    uint64_t lines, bad_lines;    /* of JSON */
    uint64_t too_short, too_long; /* documents that were left out */
    Text bad;                     /* the skipped ones, one JSON line each */
    ErrorCode code;
    Error error;
} Job;

/* A cache that is being built. */
typedef struct UnitState {
    int lock; /* -1: not held */
    TokenHeader previous;
    bool any_previous;
    SeenSet seen; /* its documents so far */
} UnitState;

typedef struct Builder {
    const TokenBuild *b;
    uint64_t vocabulary;
    Job *jobs;
    size_t slots;
    uint64_t read, taken, written; /* job numbers */
    size_t ahead;                  /* bytes of text that were read but not written */
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t ready, done;
    pthread_t *threads;
    int thread_count;
    /* reader */
    CorpusReader *reader;
    size_t unit, file;
    bool entered; /* the unit is locked, and `file` is one of its files */
    CorpusPosition from;
    uint64_t invalid;     /* bytes of this file so far that are not UTF-8 */
    uint64_t nulls;       /* rows of this file so far that are null */
    double stored_before; /* stored bytes of the files before this one */
    double skipped;       /* of these, in files that were built before */
    bool all_read;
    /* writer */
    UnitState *units; /* [unit_count] */
    ShardWriter *shard;
    Text bad;           /* of this shard */
    uint64_t bad_lines; /* of this build */
    size_t shard_first_file;
    Progress *progress;
} Builder;

/* ---- caches ---- */

/* Writes a note for people who look into the cache directory. */
static ErrorCode write_about(const TokenBuild *b, const TokenUnit *u, Error *err) {
    char print[65];
    tokenizer_fingerprint(b->tokenizer, print);
    Text text = {0};
    JsonWriter w;
    json_start(&w, &text, 2);
    json_begin_object(&w);
    json_put_string(&w, "tokenizer", print);
    json_key(&w, "files");
    json_begin_array(&w);
    for (size_t i = 0; i < u->count; i++) json_string(&w, b->files[u->first + i].path);
    json_end_array(&w);
    json_end_object(&w);
    text_puts(&text, "\n");
    char *path = path_join(u->dir, TOKEN_ABOUT_FILE);
    ErrorCode code = file_write_atomic(path, text.data, text.length, err);
    free(path);
    text_free(&text);
    return code;
}

static bool is_stopped(const TokenBuild *b) { return b->stop && atomic_load(b->stop); }

/* A build that can be stopped asks for the lock again and again. */
static int lock_kind(const TokenBuild *b) { return b->stop ? LOCK_EX | LOCK_NB : LOCK_EX; }

static ErrorCode wait_for_lock(const char *path, Error *err) {
    if (errno != EINTR && errno != EWOULDBLOCK) return error_errno(err, ERR_IO, "%s: cannot lock", path);
    progress_beat(); /* the kernel ends the lock of a process that died: there is one that works */
    nanosleep(&(struct timespec){0, 50 * 1000 * 1000}, NULL);
    return OK;
}

/* The lock is on a file of the directory and ends with the process, however it ends. *fd stays -1 if another
 * process has it and this one may not wait. */
static ErrorCode lock_directory(const TokenBuild *b, const char *dir, bool wait, int *fd, Error *err) {
    char *path = path_join(dir, "lock");
    ErrorCode code = file_open_own(path, O_RDWR | O_CREAT, fd, err);
    bool held = code == OK && flock(*fd, LOCK_EX | LOCK_NB) == 0;
    if (code == OK && !held && wait) {
        log_info("%s: waiting for another process that tokenizes it", b->label);
        while (code == OK && !is_stopped(b) && !(held = flock(*fd, lock_kind(b)) == 0))
            code = wait_for_lock(path, err);
    }
    if (!held && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    free(path);
    return code;
}

/* Removes leftovers of killed builds. */
static ErrorCode sweep(const char *dir, Error *err) {
    static const char *const written_whole[] = {TOKEN_ABOUT_FILE, "part-*.bad.jsonl"};
    TRY(file_remove_temporaries(dir, written_whole, 2, err));
    return file_remove_matching(dir, "part-[0-9]*.tok.tmp", err);
}

static void unlock(UnitState *u) {
    if (u->lock >= 0) close(u->lock);
    u->lock = -1;
}

/* Skips files that were completed by an earlier build, or by another process while this one waited. */
static void skip_files(Builder *s, size_t count) {
    for (size_t i = 0; i < count; i++) s->skipped += (double)s->b->prints[s->file + i].stamp.size;
    for (size_t i = 0; i < count; i++) s->stored_before += (double)s->b->prints[s->file + i].stamp.size;
    s->file += count;
}

/* The digests of documents that an interrupted build has written, from their ids. */
static ErrorCode remember_shards(SeenSet *seen, const TokenCache *cache, Error *err) {
    TokenList ids = {0}, starts = {0};
    ErrorCode code = OK;
    uint64_t tokens = token_cache_tokens(cache);
    for (uint64_t begin = 0, end; code == OK && begin < tokens; begin = end) {
        end = token_cache_document_end(cache, begin + 1);
        token_list_reserve(&ids, end - begin);
        token_list_reserve(&starts, end - begin);
        code = token_cache_read(cache, begin, end - begin, ids.ids, starts.ids, err);
        DocumentDigest d = document_digest(ids.ids, code == OK ? end - begin : 0);
        seen_add(seen, &d);
    }
    token_list_free(&ids);
    token_list_free(&starts);
    return code;
}

/* Resumes after the existing shards. *complete: nothing is left to do. */
static ErrorCode resume(Builder *s, const TokenUnit *u, UnitState *state, bool *complete, Error *err) {
    TokenCache *cache;
    TRY(token_cache_open(&cache, u->dir, u->key, s->vocabulary, err));
    const TokenHeader *last = token_cache_last_shard(cache);
    *complete = token_cache_complete(cache);
    state->any_previous = last != NULL;
    if (last) state->previous = *last;
    ErrorCode code = s->b->dedup && !*complete ? remember_shards(&state->seen, cache, err) : OK;
    token_cache_close(cache);
    if (code != OK || !state->any_previous || *complete) return code;
    const TokenHeader *h = &state->previous;
    if (h->next_file >= u->count)
        return error_set(err, ERR_DATA,
                         "%s: its last part points behind the end of the source; delete the directory",
                         u->dir);
    skip_files(s, (size_t)h->next_file);
    s->from = (CorpusPosition){h->next_offset, h->next_line, h->next_in_document != 0};
    log_info("%s: going on with part %" PRIu64 " of an earlier tokenization", s->b->label, h->shard + 1);
    return OK;
}

/* Leftovers are removed under the lock, since only then do they belong to nobody. Existing shards are read
 * again, since another process may have built them while this one waited. */
static ErrorCode open_unit(Builder *s, const TokenUnit *u, UnitState *state, bool *complete, Error *err) {
    TRY(sweep(u->dir, err));
    TRY(write_about(s->b, u, err));
    s->file = u->first;
    s->from = (CorpusPosition){0};
    return resume(s, u, state, complete, err);
}

static void leave_unit(Builder *s) {
    s->unit++;
    s->entered = false;
    s->from = (CorpusPosition){0};
}

/* Enters the next unit with work to do, if none is entered. *busy: another process has it, and this one must
 * finish the units that it holds before it can wait (B4). */
static ErrorCode find_unit(Builder *s, bool *busy, Error *err) {
    *busy = is_stopped(s->b);
    while (!*busy && !s->entered && s->unit < s->b->unit_count) {
        const TokenUnit *u = &s->b->units[s->unit];
        UnitState *state = &s->units[s->unit];
        bool complete = false, alone = s->written == s->read;
        TRY(file_make_own_dir(u->dir, err));
        TRY(lock_directory(s->b, u->dir, alone, &state->lock, err));
        *busy = state->lock < 0;
        if (*busy) return OK;
        TRY(open_unit(s, u, state, &complete, err));
        s->entered = !complete;
        if (!complete) return OK;
        skip_files(s, u->count);
        leave_unit(s);
        unlock(state);
    }
    s->all_read = s->unit == s->b->unit_count;
    return OK;
}

/* ---- reading ---- */

/* `joined`: a chunk that continues the document of the last record becomes part of it. */
static void add_record(Job *job, const CorpusChunk *chunk, bool joined) {
    if (joined && !chunk->starts && job->record_count > 0) {
        Record *last = &job->records[job->record_count - 1];
        last->length += chunk->length;
        last->ends = chunk->ends;
        text_add(&job->raw, chunk->bytes, chunk->length);
        return;
    }
    if (job->record_count == job->record_capacity) {
        job->record_capacity = 2 * job->record_capacity + 64;
        job->records = mem_grow(job->records, job->record_capacity * sizeof *job->records);
    }
    job->records[job->record_count++] =
        (Record){job->raw.length, chunk->length, chunk->line, chunk->starts, chunk->ends};
    text_add(&job->raw, chunk->bytes, chunk->length);
}

/* A job ends with its file, so that a shard can record "the next file from its beginning", and a message
 * concerns one file. */
static void next_file(Builder *s, Job *job) {
    const TokenUnit *u = &s->b->units[s->unit];
    s->stored_before += (double)s->b->prints[s->file].stamp.size;
    corpus_close(s->reader);
    s->reader = NULL;
    s->file++;
    s->from = (CorpusPosition){0};
    job->final = s->file == u->first + u->count;
}

/* B5 */
static bool whole_documents(const TokenBuild *b, const CorpusFile *file) {
    bool chosen = b->dedup || file->min_bytes || file->max_bytes || file->holdout.part != PART_ALL;
    return chosen || tokenizer_whole_documents(b->tokenizer);
}

static ErrorCode open_file(Builder *s, Job *job, Error *err) {
    s->invalid = s->nulls = 0;
    TRY(corpus_open(&s->reader, &s->b->files[s->file], &s->from, err));
    job->form = corpus_form(s->reader);
    return OK;
}

/* Fills a job from the current file, at most up to its end. Where documents must be whole, a job ends at the
 * end of one, so that a document is in one record however long it is. */
static ErrorCode read_job(Builder *s, Job *job, Error *err) {
    job->unit = s->unit;
    job->file = s->file;
    job->form = NULL;
    if (!s->reader) TRY(open_file(s, job, err));
    bool more = true, whole = whole_documents(s->b, &s->b->files[s->file]), inside = false;
    while (more && (job->raw.length < JOB_BYTES || (whole && inside))) {
        CorpusChunk chunk;
        TRY(corpus_next(s->reader, &chunk, &more, err));
        if (more) add_record(job, &chunk, whole);
        inside = more && !chunk.ends;
    }
    job->stored = s->stored_before - s->skipped + (double)corpus_stored_position(s->reader);
    job->invalid_bytes = corpus_invalid_bytes(s->reader) - s->invalid;
    s->invalid += job->invalid_bytes;
    job->null_rows = corpus_null_rows(s->reader) - s->nulls;
    s->nulls += job->null_rows;
    if (more)
        s->from = corpus_position(s->reader);
    else
        next_file(s, job);
    job->next_file = s->file;
    job->next = s->from;
    job->bytes = job->raw.length;
    s->ahead += job->bytes;
    if (job->bytes > LARGE_JOB && s->reader) corpus_shrink(s->reader);
    if (job->final) leave_unit(s);
    return OK;
}

/* The memory of a job is reused: after the first cycle nothing is allocated any more. A job with a very long
 * line is freed; otherwise each slot might keep so much. */
static void reset_job(Job *job) {
    if (job->bytes > LARGE_JOB) {
        text_free(&job->raw);
        token_list_free(&job->ids);
    }
    text_clear(&job->raw);
    job->bytes = 0;
    job->record_count = job->ends.count = 0;
    job->ids.count = 0;
    job->text_bytes = job->lines = job->bad_lines = job->too_short = job->too_long = 0;
    text_clear(&job->bad);
    job->final = false;
    job->code = OK;
}

/* Reads into every empty slot, unless very long lines are in progress, each of which takes several times its
 * bytes. */
static void read_ahead(Builder *s) {
    while (!s->all_read && s->read - s->written < s->slots && s->ahead <= LARGE_JOB * s->slots) {
        Job *job = &s->jobs[s->read % s->slots];
        bool busy;
        reset_job(job);
        job->code = find_unit(s, &busy, &job->error);
        if (job->code == OK && (busy || s->all_read)) return;
        if (job->code == OK) job->code = read_job(s, job, &job->error);
        if (job->code != OK) s->all_read = true;
        pthread_mutex_lock(&s->lock);
        job->state = JOB_READY;
        s->read++;
        pthread_cond_signal(&s->ready);
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- tokenizing ---- */

static void add_id(TokenList *list, int32_t id) {
    token_list_reserve(list, 1);
    list->ids[list->count++] = id;
}

/* A very long line is the last of its job: once it is parsed, its text is no longer needed. */
static void release_line(Job *job, const Record *record) {
    bool last = record == &job->records[job->record_count - 1];
    if (last && job->bytes > LARGE_JOB) text_free(&job->raw);
}

/* A line may contain several documents, whose ends chat_encode_parsed adds (data/chat.h). */
static ErrorCode encode_conversation(const TokenBuild *b, Job *job, const Record *record, Error *err) {
    const CorpusFile *file = &b->files[job->file];
    const ChatLine line = {file->path, record->line, file->chat_form, file->key, corpus_has_rows(file)};
    cJSON *parsed;
    TRY(chat_parse_line(&line, job->raw.data + record->offset, record->length, &parsed, err));
    release_line(job, record);
    return chat_encode_parsed(b->chat, &line, parsed, &job->ids, &job->ends, &job->text_bytes, err);
}

/* Control tokens at the ends of a document differ between the writers of token files, and between the
 * documents of a file and its last. */
static bool part_has_ids(const TokenBuild *b, Holdout holdout, const int32_t *ids, size_t count) {
    while (count > 0 && tokenizer_text_bytes(b->tokenizer, ids[count - 1]) == 0) count--;
    while (count > 0 && tokenizer_text_bytes(b->tokenizer, ids[0]) == 0) ids++, count--;
    return holdout_has_ids(holdout, ids, count);
}

/* Ids that are there already, checked by their reader. BOS and EOS are among them, or they are not wanted.
 * The text is what the ids stand for, so that its bytes are known. */
static ErrorCode copy_ids(const TokenBuild *b, Job *job, const Record *record) {
    size_t count = record->length / sizeof(int32_t), first = job->ids.count;
    token_list_reserve(&job->ids, count);
    memcpy(job->ids.ids + first, job->raw.data + record->offset, record->length);
    if (!part_has_ids(b, b->files[job->file].holdout, job->ids.ids + first, count)) return OK;
    job->ids.count += count;
    for (size_t i = first; i < job->ids.count; i++)
        job->text_bytes += tokenizer_text_bytes(b->tokenizer, job->ids.ids[i]);
    if (record->ends) document_ends_add(&job->ends, job->ids.count);
    return OK;
}

/* BOS and EOS go to the ends of documents, not of chunks. An empty line of JSON is not a document and gets
 * neither. */
static ErrorCode encode_record(const TokenBuild *b, Job *job, const Record *record, Text *decoded,
                               Error *err) {
    const CorpusFile *file = &b->files[job->file];
    const char *text = job->raw.data + record->offset;
    size_t length = record->length;
    if (corpus_format(file) == FORMAT_CHAT) return encode_conversation(b, job, record, err);
    if (corpus_format(file) == FORMAT_TOKENS) return copy_ids(b, job, record);
    if (corpus_format(file) == FORMAT_JSONL) {
        CorpusChunk chunk = {text, length, record->line, true, true};
        TRY(corpus_decode_json(file, &chunk, decoded, err));
        release_line(job, record);
        if (decoded->length == 0) return OK;
        text = decoded->data;
        length = decoded->length;
    }
    if (!holdout_has_text(file->holdout, text, length)) return OK;
    if (record->starts && b->bos >= 0) add_id(&job->ids, b->bos);
    if (tokenizer_encode_part(b->tokenizer, text, length, record->starts, &job->ids, err) != OK)
        return error_context(err, "%s:%" PRIu64, file->path, record->line);
    if (record->ends && b->eos >= 0) add_id(&job->ids, b->eos);
    if (record->ends) document_ends_add(&job->ends, job->ids.count);
    job->text_bytes += length;
    return OK;
}

/* A reader of the cache checks ids again, since it trusts no file. Here the tokenizer is not trusted, so that
 * its mistake is found before it costs a cache of terabytes. */
static ErrorCode check_ids(const Builder *s, const Job *job, Error *err) {
    for (size_t i = 0; i < job->ids.count; i++)
        if (job->ids.ids[i] < 0 || (uint64_t)job->ids.ids[i] >= s->vocabulary)
            return error_set(err, ERR_DATA,
                             "%s: the tokenizer gave id %d, outside its vocabulary of %" PRIu64,
                             s->b->files[job->file].path, job->ids.ids[i], s->vocabulary);
    return OK;
}

static void list_bad_line(const TokenBuild *b, Job *job, const Record *record, const Error *why) {
    JsonWriter w;
    if (job->bad_lines++ == 0) job->error = *why;
    if (job->bad_lines > LISTED_LINES) return;
    json_start(&w, &job->bad, 0);
    json_begin_object(&w);
    json_put_string(&w, "file", b->files[job->file].path);
    json_put_int(&w, "line", (int64_t)record->line);
    json_put_string(&w, "why", why->message);
    json_end_object(&w);
    text_puts(&job->bad, "\n");
}

/* What a job has so far, to which it can return. */
typedef struct Mark {
    size_t ids, ends;
    uint64_t bytes;
} Mark;

static Mark mark_job(const Job *job) { return (Mark){job->ids.count, job->ends.count, job->text_bytes}; }

static void rewind_job(Job *job, Mark mark) {
    job->ids.count = mark.ids;
    job->ends.count = mark.ends;
    job->text_bytes = mark.bytes;
}

/* A line that was parsed already is none (release_line). */
static bool is_broken_json(const TokenBuild *b, const Job *job, const Record *record) {
    const CorpusFile *file = &b->files[job->file];
    const char *line = job->raw.data ? job->raw.data + record->offset : "";
    const JsonPlace place = {.where = "", .line = 1};
    cJSON *root = NULL;
    ErrorCode code = OK;
    if (job->raw.length > 0)
        code = corpus_format(file) == FORMAT_CHAT
                   ? json_parse_literals(place, line, record->length, &root, NULL)
                   : json_parse_line("", 1, line, record->length, &root, NULL);
    cJSON_Delete(root);
    return code != OK;
}

/* A line of JSON without a text rather needs another key in its source. */
static void advise_to_skip(const TokenBuild *b, const Job *job, const Record *record, Error *why) {
    const Error plain = *why;
    if (is_broken_json(b, job, record))
        error_set(why, plain.code, "%s; data.bad_lines: skip leaves broken lines out", plain.message);
}

/* A skipped line leaves nothing of what was tokenized from it. */
static ErrorCode encode_line(const TokenBuild *b, Job *job, const Record *record, Text *decoded, Error *err) {
    const Mark before = mark_job(job);
    Error why = {0};
    job->lines++;
    ErrorCode code = encode_record(b, job, record, decoded, &why);
    if (code == ERR_DATA && b->skip_bad) {
        rewind_job(job, before);
        list_bad_line(b, job, record, &why);
        return OK;
    }
    if (code == ERR_DATA) advise_to_skip(b, job, record, &why);
    if (code != OK) *err = why;
    return code;
}

/* Digests of the documents since `before`. The bytes of text of a record belong to its first document. */
static void note_documents(Job *job, Mark before) {
    if (job->ends.count > job->document_capacity) {
        job->document_capacity = job->ends.capacity;
        job->documents = mem_grow(job->documents, job->document_capacity * sizeof *job->documents);
    }
    for (size_t i = before.ends; i < job->ends.count; i++) {
        uint64_t begin = i ? job->ends.ends[i - 1] : 0;
        job->documents[i].digest = document_digest(job->ids.ids + begin, job->ends.ends[i] - begin);
        job->documents[i].text_bytes = i == before.ends ? job->text_bytes - before.bytes : 0;
    }
}

/* A line without text is no document, and is not counted. */
static void drop_by_length(const CorpusFile *file, Job *job, Mark before) {
    uint64_t bytes = job->text_bytes - before.bytes;
    bool too_short = corpus_is_short(file, bytes), too_long = corpus_is_long(file, bytes);
    if (job->ends.count == before.ends || !(too_short || too_long)) return;
    rewind_job(job, before);
    job->too_short += too_short;
    job->too_long += too_long;
}

/* Which part a conversation belongs to is known by its ids: they are the same however its line is written. */
static void drop_by_part(const CorpusFile *file, Job *job, Mark before) {
    bool is_chat = corpus_format(file) == FORMAT_CHAT && job->ids.count > before.ids;
    if (is_chat && !holdout_has_ids(file->holdout, job->ids.ids + before.ids, job->ids.count - before.ids))
        rewind_job(job, before);
}

/* `decoded` is the thread's scratch for the text of JSON lines. */
static ErrorCode encode_job(const Builder *s, Job *job, Text *decoded, Error *err) {
    const CorpusFile *file = &s->b->files[job->file];
    bool lines = job->record_count > 0 && corpus_has_lines(corpus_format(file));
    for (size_t i = 0; i < job->record_count; i++) {
        const Mark before = mark_job(job);
        TRY((lines ? encode_line : encode_record)(s->b, job, &job->records[i], decoded, err));
        drop_by_part(file, job, before);
        drop_by_length(file, job, before);
        if (s->b->dedup) note_documents(job, before);
    }
    if (decoded->capacity > LARGE_JOB) text_free(decoded);
    return check_ids(s, job, err);
}

/* What was read before a failure comes first, and so does its own failure (B3). */
static void finish_job(const Builder *s, Job *job, Text *decoded) {
    Error first = {0};
    const Error reading = job->error;
    ErrorCode code = encode_job(s, job, decoded, &first);
    if (job->code != OK) job->error = reading; /* a skipped line may have been noted there */
    if (code != OK) job->error = first;
    if (code != OK) job->code = code;
}

static void *work(void *argument) {
    Builder *s = argument;
    Text decoded = {0};
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->stop && s->taken == s->read) pthread_cond_wait(&s->ready, &s->lock);
        if (s->stop) break;
        Job *job = &s->jobs[s->taken++ % s->slots];
        pthread_mutex_unlock(&s->lock);
        finish_job(s, job, &decoded);
        pthread_mutex_lock(&s->lock);
        job->state = JOB_DONE;
        pthread_cond_signal(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    text_free(&decoded);
    return NULL;
}

/* ---- writing ---- */

/* The list is written before the shard, so that an existing shard has its list. */
static ErrorCode write_bad_lines(Builder *s, const Job *job, Error *err) {
    char name[64];
    if (s->bad.length == 0) return OK;
    snprintf(name, sizeof name, "part-%05" PRIu64 ".bad.jsonl", shard_header(s->shard)->shard);
    char *path = path_join(s->b->units[job->unit].dir, name);
    ErrorCode code = file_write_atomic(path, s->bad.data, s->bad.length, err);
    free(path);
    text_clear(&s->bad);
    return code;
}

static ErrorCode check_unchanged(const Builder *s, size_t i, Error *err) {
    const CorpusFile *file = &s->b->files[i];
    if (file->index) TRY(fingerprint_check(file->tokens.index, file->index, err));
    return fingerprint_check(file->path, &s->b->prints[i], err);
}

static ErrorCode commit_shard(Builder *s, const Job *job, Error *err) {
    UnitState *unit = &s->units[job->unit];
    /* If a file has changed since it was hashed, its tokens must not enter a cache keyed by that hash. */
    size_t last_file = job->file;
    for (size_t i = s->shard_first_file; i <= last_file; i++) TRY(check_unchanged(s, i, err));
    TRY(write_bad_lines(s, job, err));
    TokenHeader *h = shard_header(s->shard);
    h->last = job->final;
    h->next_file = job->next_file - s->b->units[job->unit].first;
    h->next_offset = job->next.offset;
    h->next_line = job->next.line;
    h->next_in_document = job->next.in_document;
    unit->previous = *h;
    unit->any_previous = true;
    ShardWriter *shard = s->shard;
    s->shard = NULL;
    TRY(shard_commit(shard, err));
    if (!job->final) return OK;
    unlock(unit);
    seen_free(&unit->seen);
    return OK;
}

/* An exceeded count ends the build. A fraction is checked when the whole source is complete (data/dataset.c),
 * since bad lines may be clustered. */
static ErrorCode count_lines(Builder *s, const Job *job, Error *err) {
    TokenFigures *figures = shard_figures(s->shard);
    figures->lines += job->lines;
    figures->bad_lines += job->bad_lines;
    s->bad_lines += job->bad_lines;
    if (s->bad.length < MOST_LISTED_BYTES) text_add(&s->bad, job->bad.data, job->bad.length);
    bool is_fraction = s->b->bad_limit > 0 && s->b->bad_limit < 1;
    if (job->bad_lines == 0 || is_fraction || (double)s->bad_lines <= s->b->bad_limit) return OK;
    return error_set(err, ERR_DATA,
                     "%s; %" PRIu64 " lines so far are broken, more than data.bad_lines_limit (%g) allows",
                     job->error.message, s->bad_lines, s->b->bad_limit);
}

/* Keeps the documents that are there for the first time. */
static void drop_duplicates(Builder *s, Job *job) {
    size_t kept = 0;
    uint64_t begin = 0, at = 0;
    for (size_t i = 0; i < job->ends.count; i++) {
        const Document *d = &job->documents[i];
        uint64_t end = job->ends.ends[i], count = end - begin;
        bool is_new = count > 0 && seen_add(&s->units[job->unit].seen, &d->digest);
        if (is_new) memmove(job->ids.ids + at, job->ids.ids + begin, count * sizeof *job->ids.ids);
        if (is_new) job->ends.ends[kept++] = at += count;
        if (!is_new && count > 0) {
            job->text_bytes -= d->text_bytes;
            shard_figures(s->shard)->duplicates++;
        }
        begin = end;
    }
    job->ends.count = kept;
    job->ids.count = at;
}

/* Bytes of text in a shard. */
static uint64_t shard_limit(const TokenBuild *b, const Job *job) {
    double share = job->stored / AWAITED_SHARE;
    if (b->part_bytes) return b->part_bytes;
    if (!b->is_awaited || share >= SHARD_BYTES) return SHARD_BYTES;
    return share > AWAITED_BYTES ? (uint64_t)share : AWAITED_BYTES;
}

/* A shard is opened when its first job is ready, so that a source that fails at once leaves no empty
 * shard. */
static ErrorCode write_job(Builder *s, Job *job, Error *err) {
    if (job->code != OK) {
        if (err) *err = job->error;
        return job->code;
    }
    if (!s->shard) {
        s->shard_first_file = job->file;
        const TokenUnit *unit = &s->b->units[job->unit];
        const UnitState *state = &s->units[job->unit];
        TRY(shard_open(&s->shard, unit->dir, unit->key, s->vocabulary,
                       state->any_previous ? &state->previous : NULL, err));
    }
    if (s->b->dedup) drop_duplicates(s, job);
    TRY(shard_add(s->shard, job->ids.ids, job->ids.count, job->ends.ends, job->ends.count, job->text_bytes,
                  err));
    shard_figures(s->shard)->invalid_bytes += job->invalid_bytes;
    shard_figures(s->shard)->null_rows += job->null_rows;
    if (job->form) shard_figures(s->shard)->forms[text_form_index(job->form)]++;
    shard_figures(s->shard)->short_documents += job->too_short;
    shard_figures(s->shard)->long_documents += job->too_long;
    TRY(count_lines(s, job, err));
    progress_set(s->progress, s->b->done + job->stored / 1e6);
    const TokenHeader *h = shard_header(s->shard);
    if (job->final || h->text_bytes >= shard_limit(s->b, job) || h->documents >= SHARD_DOCUMENTS)
        TRY(commit_shard(s, job, err));
    return OK;
}

/* Jobs finish in any order. Waits for the oldest; the others stay in their slots. */
static Job *wait_for_job(Builder *s) {
    Job *job = &s->jobs[s->written % s->slots];
    pthread_mutex_lock(&s->lock);
    while (job->state != JOB_DONE) pthread_cond_wait(&s->done, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return job;
}

static ErrorCode pump(Builder *s, Error *err) {
    while (!is_stopped(s->b)) {
        read_ahead(s);
        if (s->written == s->read && s->all_read) return OK;
        if (s->written == s->read) continue;
        Job *job = wait_for_job(s);
        TRY(write_job(s, job, err));
        job->state = JOB_EMPTY;
        s->ahead -= job->bytes;
        s->written++;
    }
    return OK;
}

/* ---- all together ---- */

/* Two slots per thread plus one keep all threads busy while the writer finishes a shard. Fewer threads than
 * requested are accepted, but at least one is needed. */
static ErrorCode start_workers(Builder *s, Error *err) {
    int wanted = s->b->threads > 0 ? s->b->threads : device_cpu_cores();
    s->slots = 2 * (size_t)wanted + 1;
    s->jobs = mem_alloc_array(s->slots, sizeof *s->jobs);
    s->threads = mem_alloc_array((size_t)wanted, sizeof *s->threads);
    for (; s->thread_count < wanted; s->thread_count++) {
        int code = pthread_create(&s->threads[s->thread_count], NULL, work, s);
        if (code != 0 && s->thread_count == 0) {
            errno = code;
            return error_errno(err, ERR_UNAVAILABLE, "cannot start a thread");
        }
        if (code != 0) break;
    }
    return OK;
}

/* Also after a failure: workers may be in the middle of jobs that will not be written, and an open shard is
 * abandoned. */
static void finish(Builder *s) {
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->ready);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->thread_count; i++) pthread_join(s->threads[i], NULL);
    for (size_t i = 0; i < s->slots; i++) {
        text_free(&s->jobs[i].raw);
        text_free(&s->jobs[i].bad);
        free(s->jobs[i].records);
        free(s->jobs[i].ends.ends);
        free(s->jobs[i].documents);
        token_list_free(&s->jobs[i].ids);
    }
    free(s->jobs);
    free(s->threads);
    corpus_close(s->reader);
    shard_abandon(s->shard);
    text_free(&s->bad);
    for (size_t i = 0; i < s->b->unit_count; i++) {
        unlock(&s->units[i]);
        seen_free(&s->units[i].seen);
    }
    free(s->units);
    if (!s->b->progress) progress_finish(s->progress);
}

/* Stored bytes of all files to be read. */
static double stored_bytes(const TokenBuild *b) {
    double total = 0;
    for (size_t i = 0; i < b->unit_count; i++)
        for (size_t k = 0; k < b->units[i].count; k++)
            total += (double)b->prints[b->units[i].first + k].stamp.size;
    return total;
}

ErrorCode token_build(const TokenBuild *b, Error *err) {
    Builder s = {.b = b, .vocabulary = (uint64_t)tokenizer_vocab_size(b->tokenizer) * (b->chat ? 2 : 1)};
    s.units = mem_alloc_array(b->unit_count + 1, sizeof *s.units);
    for (size_t i = 0; i < b->unit_count; i++) s.units[i].lock = -1;
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.ready, NULL);
    pthread_cond_init(&s.done, NULL);
    s.progress = b->progress ? b->progress : progress_start(b->label, stored_bytes(b) / 1e6, "MB");
    ErrorCode code = start_workers(&s, err);
    if (code == OK) code = pump(&s, err);
    finish(&s);
    pthread_cond_destroy(&s.done);
    pthread_cond_destroy(&s.ready);
    pthread_mutex_destroy(&s.lock);
    return code;
}

/* Threads take turns reading the source: under a lock each copies the next block of text into its own memory,
 * then counts it into its own table. The tables are added up at the end. A long document is cut where that
 * changes no pre-token.
 *
 *   source --lock--> block of thread 0 --> table 0 --+
 *                    block of thread 1 --> table 1 --+--> words
 *                    block of thread 2 --> table 2 --+
 *
 * The assignment of blocks to threads is random, and so is the order of the words. Counts are not, and
 * training depends on counts alone (tokenizer_train.c). */
#include "tokenizer/word_count.h"

#include <omp.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/text.h"
#include "tokenizer/utf8.h"

/* Large enough that threads rarely wait for the lock, small enough that the last blocks keep all threads
 * busy. */
#define BLOCK_BYTES ((size_t)1 << 20)

/* Shared by all threads, but accessed only in the critical section weft_word_feed, which makes `err` safe. */
typedef struct Feed {
    DocumentSource source;
    void *context;
    const char *text; /* rest of the current document */
    size_t left;
    bool ended;
    ErrorCode code; /* first failure of any thread */
    Error *err;
    Progress *progress;
} Feed;

/* Searches for a cut from the end of growing windows, so that text without one (a huge line) costs at most
 * twice its length. */
static size_t block_size(const char *text, size_t left) {
    for (size_t window = BLOCK_BYTES; window < left; window *= 2) {
        size_t cut = split_cut(text, window);
        if (cut) return cut;
    }
    return left;
}

/* Copies the next block to `out`; false at the end or after a failure. Called under the lock. */
static bool feed_next(Feed *f, Text *out) {
    text_clear(out);
    while (f->code == OK && !f->ended && f->left == 0) {
        f->code = f->source(f->context, &f->text, &f->left, f->err);
        if (f->code == OK && !f->text) f->ended = true;
        if (f->code != OK || f->ended) f->left = 0;
    }
    if (f->left == 0 || f->code != OK) return false;
    size_t size = block_size(f->text, f->left);
    text_add(out, f->text, size);
    f->text += size;
    f->left -= size;
    if (f->progress) progress_add(f->progress, (double)size / 1e6);
    return true;
}

/* State of one thread. The splitter is constant and shared; `state` is not. */
typedef struct Counter {
    WordTable words;
    Splitter *splitter;
    SplitState *state;
} Counter;

/* Lengths of words are 32 bits in the table. */
static ErrorCode count_pre_token(Counter *c, const char *text, size_t length, Error *err) {
    if (length > UINT32_MAX)
        return error_set(err, ERR_DATA, "a piece of text of %zu bytes without any break", length);
    size_t at = word_table_find(&c->words, text, length);
    c->words.words[at].count++;
    return OK;
}

/* Bytes that are not UTF-8 are pre-tokens by themselves, exactly as in encoding: what is learned must match
 * what will be encoded. */
static ErrorCode count_block(Counter *c, const char *text, size_t length, Error *err) {
    for (size_t from = 0; from < length;) {
        size_t valid = utf8_valid_run(text + from, length - from);
        for (size_t at = 0, end; at < valid; at = end) {
            TRY(split_next(c->splitter, c->state, text + from, valid, at, &end, err));
            TRY(count_pre_token(c, text + from + at, end - at, err));
        }
        from += valid;
        size_t invalid = utf8_invalid_run(text + from, length - from);
        if (invalid) TRY(count_pre_token(c, text + from, invalid, err));
        from += invalid;
    }
    return OK;
}

/* The first failure ends all threads, each when it next asks for text. */
static void count_until_end(Counter *c, Feed *feed) {
    Text block = {0};
    for (bool more = true; more;) {
#pragma omp critical(weft_word_feed)
        more = feed_next(feed, &block);
        Error err;
        ErrorCode code = more ? count_block(c, block.data, block.length, &err) : OK;
        if (code == OK) continue;
#pragma omp critical(weft_word_feed)
        if (feed->code == OK) feed->code = error_set(feed->err, err.code, "%s", err.message);
    }
    text_free(&block);
}

/* After a failure `words` holds what was counted until then; the caller frees it in any case. */
ErrorCode count_words(WordTable *words, Pattern pattern, int threads, DocumentSource source, void *context,
                      Progress *progress, Error *err) {
    Splitter *splitter;
    const Splits splits = splits_of(pattern);
    TRY(splitter_create(&splitter, &splits, err));
    Feed feed = {.source = source, .context = context, .err = err, .progress = progress};
    Counter *counters = mem_alloc_array((size_t)threads, sizeof *counters);
#pragma omp parallel num_threads(threads)
    {
        Counter *c = &counters[omp_get_thread_num()];
        *c = (Counter){.splitter = splitter, .state = split_state_create(splitter)};
        count_until_end(c, &feed);
        split_state_free(c->state);
    }
    for (int i = 0; i < threads; i++) {
        word_table_absorb(words, &counters[i].words);
        word_table_free(&counters[i].words);
    }
    free(counters);
    splitter_free(splitter);
    return feed.code;
}

/* Learns merges: byte-pair encoding as trained by Sennrich et al. (2016), on words counted once.
 *
 * The most frequent adjacent pair becomes a token, repeatedly. On equal counts the pair with the smaller ids
 * wins, as in the trainer of `tokenizers`, so that both learn the same merges. Working on the text would read
 * it once per merge. With distinct words and their counts, a merge touches only words that contain the pair,
 * and all counts are updated by differences:
 *
 *  1. `pairs` holds the exact count of every adjacent pair over all words, and a list of words that is a
 *     superset of those where the pair occurs. A merge changes only the neighbourhoods of its occurrences.
 *  2. The heap holds an entry for each pair with a count, whose stored count is never below the true one:
 *     when a count falls, the entry stays and is updated once it reaches the top. When a count rises, an
 *     entry is added.
 *  3. A merged pair has count 0 for good: tokens grow, so no later merge can put it together again.
 *
 * A word that occurred 5 times, and the merge of (o, w):
 *
 *   l o w e r    counts   (l, o) -5   (w, e) -5   (o, w) -> 0
 *   l ow  e r             (l, ow) +5  (ow, e) +5  both new in the heap or raised there */
#include "tokenizer/tokenizer_train.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_count.h"

typedef struct Pair {
    int32_t left, right;
    int64_t count;
    uint32_t *words; /* where it may occur */
    uint32_t word_count, word_capacity;
} Pair;

typedef struct Candidate {
    int64_t count;
    int32_t left, right;
    size_t pair;
} Candidate;

typedef struct Learner {
    WordTable tokens; /* token id = index here */
    MergeRule *rules;
    size_t rule_count, rule_capacity;

    int32_t *symbols; /* all words, one after the other; word w has lengths[w] symbols from starts[w] on */
    size_t *starts;
    uint32_t *lengths;
    int64_t *counts;
    uint32_t words;

    Pair *pairs;
    size_t pair_count, pair_capacity;
    size_t *slots; /* hash of pairs: index + 1, 0 is free; mask + 1 slots */
    size_t mask;
    Candidate *heap;
    size_t heap_count, heap_capacity;
    size_t *risen; /* pairs whose count rose during the current merge */
    size_t risen_count, risen_capacity;
} Learner;

/* Makes space for one more element of a growing array. */
static void *grow_for_one(void *array, size_t count, size_t *capacity, size_t each) {
    if (count < *capacity) return array;
    *capacity = *capacity ? *capacity * 2 : 256;
    return mem_grow(array, *capacity * each);
}

/* --- heap --- */

/* Higher count first, then the smaller pair. */
static bool before(const Candidate *a, const Candidate *b) {
    if (a->count != b->count) return a->count > b->count;
    if (a->left != b->left) return a->left < b->left;
    return a->right < b->right;
}

/* An entry has the count at this time, which may become too high, but never too low (2). */
static void heap_push(Learner *l, size_t pair) {
    const Pair *p = &l->pairs[pair];
    Candidate c = {p->count, p->left, p->right, pair};
    l->heap = grow_for_one(l->heap, l->heap_count, &l->heap_capacity, sizeof *l->heap);
    size_t at = l->heap_count++;
    for (size_t parent; at > 0 && before(&c, &l->heap[parent = (at - 1) / 2]); at = parent)
        l->heap[at] = l->heap[parent];
    l->heap[at] = c;
}

/* The heap is not empty. */
static Candidate heap_pop(Learner *l) {
    Candidate top = l->heap[0], last = l->heap[--l->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < l->heap_count; at = child) {
        if (child + 1 < l->heap_count && before(&l->heap[child + 1], &l->heap[child])) child++;
        if (!before(&l->heap[child], &last)) break;
        l->heap[at] = l->heap[child];
    }
    l->heap[at] = last;
    return top;
}

/* --- pairs --- */

/* Fibonacci hashing, as in tokenizer/bpe.c. */
static size_t pair_hash(int32_t left, int32_t right) {
    uint64_t key = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15U;
    return (size_t)(key ^ key >> 32);
}

/* Pairs are never removed, so the new table is built from `pairs` alone. */
static void grow_pair_slots(Learner *l) {
    size_t slots = l->slots ? (l->mask + 1) * 2 : 4096;
    free(l->slots);
    l->slots = mem_alloc_array(slots, sizeof *l->slots);
    l->mask = slots - 1;
    for (size_t i = 0; i < l->pair_count; i++) {
        size_t slot = pair_hash(l->pairs[i].left, l->pairs[i].right) & l->mask;
        while (l->slots[slot]) slot = (slot + 1) & l->mask;
        l->slots[slot] = i + 1;
    }
}

/* Index of the pair; a new one gets count 0. `pairs` may move. */
static size_t find_pair(Learner *l, int32_t left, int32_t right) {
    if (!l->slots || l->pair_count * 2 > l->mask) grow_pair_slots(l);
    size_t slot = pair_hash(left, right) & l->mask;
    for (; l->slots[slot]; slot = (slot + 1) & l->mask) {
        const Pair *p = &l->pairs[l->slots[slot] - 1];
        if (p->left == left && p->right == right) return l->slots[slot] - 1;
    }
    l->pairs = grow_for_one(l->pairs, l->pair_count, &l->pair_capacity, sizeof *l->pairs);
    l->pairs[l->pair_count] = (Pair){.left = left, .right = right};
    l->slots[slot] = ++l->pair_count;
    return l->pair_count - 1;
}

/* Words are processed in ascending order, so comparing with the last one prevents duplicates within one
 * merge. A word may be listed twice over several merges; then the pair no longer occurs in it the second
 * time. */
static void count_up(Learner *l, int32_t left, int32_t right, uint32_t word) {
    size_t number = find_pair(l, left, right);
    Pair *p = &l->pairs[number];
    p->count += l->counts[word];
    if (p->word_count == 0 || p->words[p->word_count - 1] != word) {
        size_t capacity = p->word_capacity;
        if (p->word_count == capacity) {
            capacity = capacity ? capacity * 2 : 4;
            p->words = mem_grow(p->words, capacity * sizeof *p->words);
            p->word_capacity = (uint32_t)capacity;
        }
        p->words[p->word_count++] = word;
    }
    if (l->risen_count > 0 && l->risen[l->risen_count - 1] == number) return;
    l->risen = grow_for_one(l->risen, l->risen_count, &l->risen_capacity, sizeof *l->risen);
    l->risen[l->risen_count++] = number;
}

/* The pair's entry in the heap is corrected when it reaches the top. */
static void count_down(Learner *l, int32_t left, int32_t right, uint32_t word) {
    l->pairs[find_pair(l, left, right)].count -= l->counts[word];
}

static int by_number(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* In the order of pairs, not in that in which they rose: the heap must not depend on the order of words. */
static void push_risen(Learner *l) {
    if (l->risen_count > 1) qsort(l->risen, l->risen_count, sizeof *l->risen, by_number);
    for (size_t i = 0; i < l->risen_count; i++) {
        bool again = i > 0 && l->risen[i] == l->risen[i - 1];
        if (!again && l->pairs[l->risen[i]].count > 0) heap_push(l, l->risen[i]);
    }
    l->risen_count = 0;
}

/* --- merging --- */

/* Replaces the pair everywhere in a word, from left to right, and updates the counts of the adjacent pairs.
 * In a run like o w o w the second occurrence reverses what the first one counted: (ow, o) rises, then falls
 * again in favour of (ow, ow). */
static void merge_in_word(Learner *l, uint32_t word, int32_t left, int32_t right, int32_t result) {
    int32_t *s = l->symbols + l->starts[word];
    uint32_t n = l->lengths[word], kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (s[i] != left || i + 1 == n || s[i + 1] != right) {
            s[kept++] = s[i];
            continue;
        }
        if (kept > 0) {
            count_down(l, s[kept - 1], left, word);
            count_up(l, s[kept - 1], result, word);
        }
        if (i + 2 < n) {
            count_down(l, right, s[i + 2], word);
            count_up(l, result, s[i + 2], word);
        }
        s[kept++] = result;
        i++;
    }
    l->lengths[word] = kept;
}

/* The token of the joined bytes. Another pair may have made it before. */
static int32_t join_tokens(Learner *l, int32_t left, int32_t right, Text *scratch) {
    Word a = l->tokens.words[left], b = l->tokens.words[right];
    text_clear(scratch);
    text_add(scratch, a.bytes, a.length);
    text_add(scratch, b.bytes, b.length);
    return (int32_t)word_table_find(&l->tokens, scratch->data, scratch->length);
}

/* The pair's words are freed, since its count stays 0 (3). `pairs` may move during the loop, so the pair's
 * members are copied first. */
static void merge_pair(Learner *l, size_t number, Text *scratch) {
    Pair p = l->pairs[number];
    int32_t result = join_tokens(l, p.left, p.right, scratch);
    l->rules = grow_for_one(l->rules, l->rule_count, &l->rule_capacity, sizeof *l->rules);
    l->rules[l->rule_count] = (MergeRule){p.left, p.right, result, (uint32_t)l->rule_count};
    l->rule_count++;
    for (uint32_t i = 0; i < p.word_count; i++) merge_in_word(l, p.words[i], p.left, p.right, result);
    free(p.words);
    l->pairs[number] = (Pair){.left = p.left, .right = p.right};
    push_risen(l);
}

/* Merges until there are `limit` tokens or no more pairs. */
static void learn(Learner *l, size_t limit, Progress *progress) {
    Text scratch = {0};
    for (size_t i = 0; i < l->pair_count; i++) heap_push(l, i);
    while (l->tokens.count < limit && l->heap_count > 0) {
        Candidate top = heap_pop(l);
        int64_t count = l->pairs[top.pair].count;
        if (count <= 0) continue;
        if (count != top.count) {
            heap_push(l, top.pair);
            continue;
        }
        merge_pair(l, top.pair, &scratch);
        if (progress) progress_set(progress, (double)l->rule_count);
    }
    text_free(&scratch);
}

/* --- before and after --- */

/* Bytes get ids in the order of the byte alphabet, as in `tokenizers` with initial_alphabet; ties between
 * pairs depend on it. */
static ErrorCode learner_init(Learner *l, const WordTable *words, Error *err) {
    *l = (Learner){0};
    if (words->count > UINT32_MAX)
        return error_set(err, ERR_DATA, "the text has more than 2^32 different words");
    size_t total = 0;
    int32_t ids[256];
    for (int k = 0; k < 256; k++) {
        uint8_t byte = byte_level_nth(k);
        ids[byte] = (int32_t)word_table_find(&l->tokens, &(char){(char)byte}, 1);
    }
    for (size_t w = 0; w < words->count; w++) total += words->words[w].length;
    l->words = (uint32_t)words->count;
    l->symbols = mem_alloc_array(total + 1, sizeof *l->symbols);
    l->starts = mem_alloc_array(words->count + 1, sizeof *l->starts);
    l->lengths = mem_alloc_array(words->count + 1, sizeof *l->lengths);
    l->counts = mem_alloc_array(words->count + 1, sizeof *l->counts);
    for (uint32_t w = 0; w < l->words; w++) {
        const Word *word = &words->words[w];
        int32_t *s = l->symbols + l->starts[w];
        l->lengths[w] = word->length;
        l->counts[w] = word->count;
        l->starts[w + 1] = l->starts[w] + word->length;
        for (uint32_t i = 0; i < word->length; i++) s[i] = ids[(uint8_t)word->bytes[i]];
        for (uint32_t i = 0; i + 1 < word->length; i++) count_up(l, s[i], s[i + 1], w);
        l->risen_count = 0; /* every pair enters the heap when learning starts */
    }
    return OK;
}

static void learner_free(Learner *l) {
    for (size_t i = 0; i < l->pair_count; i++) free(l->pairs[i].words);
    word_table_free(&l->tokens);
    free(l->rules);
    free(l->symbols);
    free(l->starts);
    free(l->lengths);
    free(l->counts);
    free(l->pairs);
    free(l->slots);
    free(l->heap);
    free(l->risen);
}

/* Writes the result as tokenizer.json and reads it back to make the tokenizer, which also checks the file. */
static ErrorCode make_tokenizer(Tokenizer **out, const Learner *l, const TokenizerTrainOptions *o,
                                Pattern pattern, Error *err) {
    static const char where[] = "trained tokenizer";
    size_t bytes = 0;
    for (size_t i = 0; i < l->tokens.count; i++) bytes += l->tokens.words[i].length;
    for (size_t i = 0; i < o->special_count; i++) bytes += strlen(o->specials[i]);
    Tokenizer t = {.splits = splits_of(pattern), .bpe = {.rules = l->rules, .count = l->rule_count}};
    Vocabulary *v = &t.vocabulary;
    ErrorCode code = vocabulary_init(v, where, l->tokens.count + o->special_count, bytes, err);
    for (size_t i = 0; i < l->tokens.count && code == OK; i++) {
        code = vocabulary_set(v, where, (int64_t)i, l->tokens.words[i].bytes, l->tokens.words[i].length,
                              TOKEN_TEXT, err);
    }
    for (size_t i = 0; i < o->special_count && code == OK; i++) {
        code = vocabulary_set(v, where, v->count, o->specials[i], strlen(o->specials[i]), TOKEN_SPECIAL, err);
    }
    Text json = {0};
    if (code == OK) hf_tokenizer_write(&t, &json);
    if (code == OK) code = tokenizer_parse(out, where, json.data, json.length, err);
    text_free(&json);
    vocabulary_free(v);
    return code;
}

/* A special token of one character would have the spelling of a byte. */
static ErrorCode check_special(const TokenizerTrainOptions *o, size_t i, Error *err) {
    const char *name = o->specials[i];
    char shown[80];
    if (!*name || utf8_valid_run(name, strlen(name)) != strlen(name))
        return error_set(err, ERR_USAGE, "special token %zu is empty or not valid UTF-8", i + 1);
    if (!name[1] && *name > ' ')
        return error_set(err, ERR_USAGE,
                         "special token %zu is \"%s\", which is in every vocabulary: take a longer text",
                         i + 1, name);
    for (size_t j = 0; j < i; j++)
        if (strcmp(name, o->specials[j]) == 0)
            return error_set(err, ERR_USAGE, "special tokens %zu and %zu are both \"%s\": name each once",
                             j + 1, i + 1, error_escape(shown, sizeof shown, name, strlen(name)));
    return OK;
}

/* Checked before any text is read, since counting may take an hour. */
static ErrorCode check_options(const TokenizerTrainOptions *o, Pattern *pattern, Error *err) {
    *pattern = o->pattern ? pattern_by_name(o->pattern) : PATTERN_LLAMA3;
    if (*pattern == PATTERN_COUNT) {
        Text names = {0};
        pattern_list(&names);
        error_set(err, ERR_USAGE, "unknown pattern \"%s\"; there are %s", o->pattern, names.data);
        text_free(&names);
        return ERR_USAGE;
    }
    if (o->vocab_size > VOCABULARY_MAX || o->vocab_size < 0 ||
        (size_t)o->vocab_size < 256 + o->special_count) {
        return error_set(
            err, ERR_USAGE,
            "a vocabulary of %d entries: 256 bytes and %zu special tokens are the least, %d the most",
            o->vocab_size, o->special_count, VOCABULARY_MAX);
    }
    for (size_t i = 0; i < o->special_count; i++) TRY(check_special(o, i, err));
    return OK;
}

/* Counting uses all threads and takes most of the time. Learning uses one thread, since each merge depends on
 * the previous one. */
ErrorCode tokenizer_train(Tokenizer **t, const TokenizerTrainOptions *o, DocumentSource source, void *context,
                          Error *err) {
    *t = NULL;
    Pattern pattern = PATTERN_NONE;
    TRY(check_options(o, &pattern, err));
    int threads = o->threads > 0 ? o->threads : omp_get_max_threads();
    WordTable words = {0};
    Learner learner = {0};
    Progress *progress =
        o->quiet ? NULL : progress_start("counting words", (double)o->total_bytes / 1e6, "MB");
    ErrorCode code = count_words(&words, pattern, threads, source, context, progress, err);
    progress_finish(progress);
    if (code == OK) code = learner_init(&learner, &words, err);
    word_table_free(&words);
    if (code == OK) {
        size_t limit = (size_t)o->vocab_size - o->special_count;
        progress = o->quiet ? NULL : progress_start("learning merges", (double)(limit - 256), "merges");
        learn(&learner, limit, progress);
        progress_finish(progress);
        if (learner.tokens.count < limit) {
            log_warn("the text has no more pairs: the vocabulary has %zu entries, not %d",
                     learner.tokens.count + o->special_count, o->vocab_size);
        }
        code = make_tokenizer(t, &learner, o, pattern, err);
    }
    learner_free(&learner);
    return code;
}

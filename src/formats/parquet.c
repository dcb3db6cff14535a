/* The pages of a column, one after the other.
 *
 *     row group:  [dictionary page] data page, data page, ...     (a column chunk)
 *     page:       header | levels (which slots begin a row, and which are null) | values
 *
 *  P1. `at` is the offset in the file of the first byte behind the present page; it only moves forward, and
 *      stays within the chunk of the present group.
 *  P2. group_left counts the slots of the group that are in no page so far, page_left those of the page that
 *      were not given. A slot is a value or a null: of a row, or of an element of a row's list.
 *  P3. No memory is taken for a size that the file states before the file's own bytes make it possible. */
#include "formats/parquet.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#define ZLIB_CONST
#include <zlib.h>

#include "base/bytes.h"
#include "base/text.h"
#include "formats/parquet_codec.h"
#include "formats/parquet_meta.h"
#include "formats/parquet_values.h"
#include "formats/stored_file.h"

enum {
    MAGIC_BYTES = 4,
    TAIL_BYTES = 8, /* length of the metadata, and the magic number again */
    MOST_FOOTER = 256 << 20,
    FIRST_HEADER = 1 << 10, /* of a page; it may have statistics, and is read again with more bytes */
    MOST_HEADER = 16 << 20,
    MOST_PAGE = 1 << 30,
    READ_AHEAD = 256 << 10,
};
/* A group of rows that stands for more is refused. Text does not compress so well. */
#define MOST_TEXT (UINT64_C(4) << 30)
#define MOST_EXPANSION 10000

struct Parquet {
    StoredFile file;
    char *column;
    ParquetColumn found;
    size_t group; /* the present one; group_count behind the last */
    bool entered;
    uint64_t at, row, group_left, page_left, nulls;
    uint64_t text;  /* bytes given of this group */
    uint64_t first; /* row from which on rows are given */
    /* stored bytes [raw_at, raw_at + raw_length) of the file */
    char *raw;
    uint64_t raw_at;
    size_t raw_length, raw_capacity;
    char *page, *dictionary_page;
    size_t page_capacity, dictionary_capacity;
    ParquetDictionary dictionary;
    bool has_dictionary, has_data; /* pages of this group so far */
    /* the present page */
    Hybrid levels, repetitions;
    ParquetValues values;
};

static ErrorCode damaged(const Parquet *p, const char *why, Error *err) {
    return error_set(err, ERR_DATA,
                     "%s: damaged Parquet data of column '%s' near byte %" PRIu64 ", row %" PRIu64
                     ": %s; fetch the file again",
                     p->file.path, p->column, p->at, p->row + 1, why);
}

/* ---- the file ---- */

static const ParquetGroup *present_group(const Parquet *p) { return &p->found.groups[p->group]; }

static void reserve(char **buffer, size_t *capacity, size_t count) {
    if (count <= *capacity) return;
    free(*buffer);
    *buffer = mem_alloc(count);
    *capacity = count;
}

/* Makes bytes [at, at + count) of the chunk contiguous in memory, and reads ahead. */
static ErrorCode need(Parquet *p, size_t count, const char **bytes, Error *err) {
    uint64_t left = present_group(p)->end - p->at;
    if (p->at < p->raw_at || p->at > p->raw_at + p->raw_length) {
        p->raw_at = p->at;
        p->raw_length = 0;
    }
    size_t have = p->raw_length - (size_t)(p->at - p->raw_at),
           wanted = count > READ_AHEAD ? count : READ_AHEAD;
    if (count > have) {
        if (wanted > left) wanted = (size_t)left;
        if (wanted > p->raw_capacity) p->raw = mem_grow(p->raw, p->raw_capacity = wanted);
        memmove(p->raw, p->raw + (p->at - p->raw_at), have);
        p->raw_at = p->at;
        p->raw_length = have;
        TRY(stored_read(&p->file, p->at + have, p->raw + have, wanted - have, err));
        p->raw_length = wanted;
    }
    *bytes = p->raw + (p->at - p->raw_at);
    return OK;
}

/* Names are often wrong: a pointer of Git LFS is called .parquet as the file is. */
static ErrorCode refuse_other(const StoredFile *f, Error *err) {
    FileEnds ends;
    TRY(stored_ends(f, &ends, err));
    const FileFormat *format = file_format_of(&ends);
    if (f->size == 0) return error_set(err, ERR_DATA, "%s: it is empty, and no Parquet file", f->path);
    if (format && (format->kind == KIND_GZIP || format->kind == KIND_ZSTD))
        return error_set(err, ERR_DATA,
                         "%s: this is %s, not a Parquet file: decompress it; if it is text, give the source "
                         "format: text or jsonl",
                         f->path, format->name);
    if (format)
        return error_set(err, ERR_DATA, "%s: this is %s, not a Parquet file: %s", f->path, format->name,
                         format->advice);
    return error_set(err, ERR_DATA,
                     "%s: not a Parquet file: expected \"PAR1\" at its beginning; if it is text, give the "
                     "source format: text or jsonl",
                     f->path);
}

static ErrorCode refuse_ends(const StoredFile *f, const char *head, const char *tail, Error *err) {
    if (memcmp(head, "PAR1", MAGIC_BYTES) != 0 && memcmp(head, "PARE", MAGIC_BYTES) != 0)
        return refuse_other(f, err);
    if (memcmp(tail, "PARE", MAGIC_BYTES) == 0)
        return error_set(err, ERR_DATA, "%s: a Parquet file with encrypted metadata; decrypt it", f->path);
    return error_set(err, ERR_DATA, "%s: a Parquet file without its end; fetch it again", f->path);
}

/* Where the metadata begins, which the last eight bytes of the file tell. */
static ErrorCode find_footer(const StoredFile *f, uint64_t *at, size_t *length, Error *err) {
    char head[MAGIC_BYTES] = "", tail[TAIL_BYTES] = "";
    if (f->size >= MAGIC_BYTES) TRY(stored_read(f, 0, head, MAGIC_BYTES, err));
    if (f->size >= MAGIC_BYTES + TAIL_BYTES) TRY(stored_read(f, f->size - TAIL_BYTES, tail, TAIL_BYTES, err));
    if (memcmp(head, "PAR1", MAGIC_BYTES) != 0 || memcmp(tail + 4, "PAR1", MAGIC_BYTES) != 0)
        return refuse_ends(f, head, tail + 4, err);
    *length = (size_t)little_endian(tail, 4);
    if (*length > MOST_FOOTER || *length > f->size - MAGIC_BYTES - TAIL_BYTES)
        return error_set(err, ERR_DATA,
                         "%s: damaged Parquet metadata: %zu bytes of it do not fit into the file", f->path,
                         *length);
    *at = f->size - TAIL_BYTES - *length;
    return OK;
}

/* *footer: the metadata, of *length bytes from byte *at of the file on; the caller frees it. */
static ErrorCode read_footer(const StoredFile *f, char **footer, size_t *length, uint64_t *at, Error *err) {
    *footer = NULL;
    TRY(find_footer(f, at, length, err));
    *footer = mem_alloc(*length + 1);
    return stored_read(f, *at, *footer, *length, err);
}

static ErrorCode find_column(Parquet *p, bool in_list, Error *err) {
    uint64_t at = 0;
    size_t length = 0;
    char *footer;
    ErrorCode code = read_footer(&p->file, &footer, &length, &at, err);
    if (code == OK)
        code = parquet_find_column(&p->found, p->file.path, p->column, in_list, footer, length, at, err);
    free(footer);
    return code;
}

static ErrorCode open_column(Parquet **out, const char *path, const char *column, bool in_list, Error *err) {
    StoredFile file;
    *out = NULL;
    TRY(stored_open(&file, path, err));
    Parquet *p = mem_alloc(sizeof *p);
    p->file = file;
    p->column = mem_strdup(column);
    p->at = MAGIC_BYTES;
    ErrorCode code = find_column(p, in_list, err);
    if (code != OK)
        parquet_close(p);
    else
        *out = p;
    return code;
}

ErrorCode parquet_open(Parquet **out, const char *path, const char *column, Error *err) {
    return open_column(out, path, column, false, err);
}

ErrorCode parquet_open_slots(Parquet **out, const char *path, const char *column, Error *err) {
    return open_column(out, path, column, true, err);
}

ErrorCode parquet_leaves(ParquetLeaves *leaves, const char *path, Error *err) {
    StoredFile file;
    uint64_t at = 0;
    size_t length = 0;
    char *footer = NULL;
    *leaves = (ParquetLeaves){0};
    TRY(stored_open(&file, path, err));
    ErrorCode code = read_footer(&file, &footer, &length, &at, err);
    if (code == OK) code = parquet_find_leaves(leaves, path, footer, length, err);
    free(footer);
    stored_close(&file);
    return code;
}

void parquet_close(Parquet *p) {
    if (!p) return;
    parquet_column_free(&p->found);
    dictionary_free(&p->dictionary);
    values_free(&p->values);
    stored_close(&p->file);
    free(p->raw);
    free(p->page);
    free(p->dictionary_page);
    free(p->column);
    free(p);
}

const ParquetColumn *parquet_column(const Parquet *p) { return &p->found; }
bool parquet_is_text(const Parquet *p) { return p->found.text; }
uint64_t parquet_nulls(const Parquet *p) { return p->nulls; }
uint64_t parquet_stored_position(const Parquet *p) { return p->at; }

/* ---- pages ---- */

/* With more bytes again if the header ends behind those that were given to it. */
static ErrorCode read_header(Parquet *p, ParquetPage *page, Error *err) {
    uint64_t left = present_group(p)->end - p->at;
    for (size_t window = FIRST_HEADER;; window *= 8) {
        const char *bytes;
        size_t count = window < left ? window : (size_t)left;
        TRY(need(p, count, &bytes, err));
        Thrift t = {(const uint8_t *)bytes, (const uint8_t *)bytes + count, NULL, false, 0};
        *page = parquet_page_header(&t);
        if (t.wrong && t.cut && count < left && window < MOST_HEADER) continue;
        if (t.wrong) return damaged(p, t.wrong, err);
        p->at += (uint64_t)(t.at - (const uint8_t *)bytes);
        break;
    }
    if ((uint64_t)page->stored > present_group(p)->end - p->at)
        return damaged(p, "a page reaches beyond the pages of its row group", err);
    if (page->size > MOST_PAGE) return damaged(p, "a page has more than 1 GiB", err);
    return OK;
}

static ErrorCode check_crc(const Parquet *p, const ParquetPage *page, const char *stored, Error *err) {
    if (!page->has_crc) return OK;
    uint32_t crc = (uint32_t)crc32(0, (const Bytef *)stored, (uInt)page->stored);
    return crc == (uint32_t)page->crc ? OK : damaged(p, "a page's checksum does not match", err);
}

/* The page decompressed into *buffer, which is at least a byte. Levels of version 2 stand in front and are
 * never compressed. */
static ErrorCode unpack(Parquet *p, const ParquetPage *page, char **buffer, size_t *capacity, Error *err) {
    const char *stored;
    size_t size = (size_t)page->size, in = (size_t)page->stored, levels = 0;
    int codec = page->compressed ? present_group(p)->codec : PARQUET_UNCOMPRESSED;
    if (page->kind == PARQUET_DATA_PAGE_V2) {
        if (page->definition_bytes < 0 || page->repetition_bytes < 0)
            return damaged(p, "a page's header is incomplete", err);
        levels = (size_t)page->definition_bytes + (size_t)page->repetition_bytes;
        if (levels > size || levels > in) return damaged(p, "a page's levels are longer than the page", err);
    }
    if (size - levels > parquet_codec_most(codec, in - levels))
        return damaged(p, "a page states more bytes than it can decompress to", err);
    TRY(need(p, in, &stored, err));
    TRY(check_crc(p, page, stored, err));
    reserve(buffer, capacity, size + 1);
    memcpy(*buffer, stored, levels);
    const char *wrong =
        parquet_decompress(codec, stored + levels, in - levels, *buffer + levels, size - levels);
    return wrong ? damaged(p, wrong, err) : OK;
}

static ErrorCode open_dictionary(Parquet *p, const ParquetPage *page, Error *err) {
    if (p->has_dictionary || p->has_data)
        return damaged(p, "a dictionary is not the first page of its row group", err);
    if (page->encoding != PARQUET_PLAIN && page->encoding != PARQUET_PLAIN_DICTIONARY)
        return damaged(p, "a dictionary has an unknown encoding", err);
    TRY(unpack(p, page, &p->dictionary_page, &p->dictionary_capacity, err));
    const char *wrong =
        dictionary_start(&p->dictionary, p->dictionary_page, (size_t)page->size, (uint64_t)page->values);
    p->has_dictionary = true;
    return wrong ? damaged(p, wrong, err) : OK;
}

static unsigned bits_of(int most) {
    unsigned bits = 0;
    while (most >> bits) bits++;
    return bits;
}

/* Levels of version 1 have their length in front. */
static const char *find_levels(const Parquet *p, size_t size, int encoding, size_t *at, size_t *length) {
    if (encoding != PARQUET_RLE) return "its levels have an encoding of old (BIT_PACKED)";
    *at += *length;
    if (size - *at < 4) return "its levels are missing";
    *length = (size_t)little_endian(p->page + *at, 4);
    *at += 4;
    return *length <= size - *at ? NULL : "its levels are longer than the page";
}

static Hybrid levels_at(const Parquet *p, size_t at, size_t length, int most) {
    const uint8_t *levels = (const uint8_t *)p->page + at;
    return hybrid_start(levels, levels + length, bits_of(most));
}

/* *begin: of the values. Those of version 2 have their lengths in the header. */
static const char *start_levels(Parquet *p, const ParquetPage *page, size_t *begin) {
    size_t at = 0, length = 0, size = (size_t)page->size;
    bool v2 = page->kind == PARQUET_DATA_PAGE_V2;
    const char *wrong = NULL;
    if (v2) length = (size_t)page->repetition_bytes;
    if (!v2 && p->found.repeated) wrong = find_levels(p, size, page->repetition_encoding, &at, &length);
    if (wrong) return wrong;
    if (p->found.repeated) p->repetitions = levels_at(p, at, length, 1);
    if (v2) {
        at += length;
        length = (size_t)page->definition_bytes;
    } else if (p->found.optional > 0) {
        wrong = find_levels(p, size, page->level_encoding, &at, &length);
    }
    if (wrong) return wrong;
    p->levels = levels_at(p, at, length, p->found.optional);
    *begin = at + length;
    return NULL;
}

/* The number of values that are there is counted from the levels before the first is read. */
static const char *start_page(Parquet *p, const ParquetPage *page) {
    size_t begin = 0;
    uint64_t present = (uint64_t)page->values;
    const char *wrong = start_levels(p, page, &begin);
    if (!wrong && p->found.optional > 0)
        wrong = hybrid_count(p->levels, (uint64_t)page->values, (uint32_t)p->found.optional, &present);
    if (!wrong && page->kind == PARQUET_DATA_PAGE_V2 &&
        (uint64_t)page->values - present != (uint64_t)page->nulls)
        wrong = "it has another number of nulls than its header states";
    if (wrong) return wrong;
    return values_start(&p->values, page->encoding, p->page + begin, (size_t)page->size - begin, present,
                        p->has_dictionary ? &p->dictionary : NULL);
}

static ErrorCode open_data(Parquet *p, const ParquetPage *page, Error *err) {
    uint64_t slots = (uint64_t)page->values;
    if (slots > p->group_left) return damaged(p, "its pages have more rows than their row group", err);
    p->group_left -= slots;
    p->has_data = true;
    if (!p->found.repeated && p->row + slots <= p->first) {
        p->row += slots; /* all of it is skipped */
        return OK;
    }
    TRY(unpack(p, page, &p->page, &p->page_capacity, err));
    const char *wrong = start_page(p, page);
    if (wrong) return damaged(p, wrong, err);
    p->page_left = slots;
    return OK;
}

static ErrorCode next_page(Parquet *p, Error *err) {
    ParquetPage page;
    TRY(read_header(p, &page, err));
    if (page.kind == PARQUET_DICTIONARY_PAGE) TRY(open_dictionary(p, &page, err));
    if (page.kind == PARQUET_DATA_PAGE || page.kind == PARQUET_DATA_PAGE_V2) TRY(open_data(p, &page, err));
    p->at += (uint64_t)page.stored;
    return OK;
}

static void enter_group(Parquet *p) {
    const ParquetGroup *g = present_group(p);
    p->entered = true;
    p->at = g->begin;
    p->row = g->first_row;
    p->group_left = g->slots;
    p->text = 0;
    p->has_dictionary = p->has_data = false;
}

/* A page with rows to give; *more is false at the end of the file. The pages of a group must end with its
 * rows: those of a page whose count is damaged would be lost otherwise. */
static ErrorCode find_page(Parquet *p, bool *more, Error *err) {
    while (p->page_left == 0 && p->group < p->found.group_count) {
        if (!p->entered) enter_group(p);
        if (p->at < present_group(p)->end) {
            TRY(next_page(p, err));
        } else if (p->group_left > 0) {
            return damaged(p, "its pages have fewer rows than their row group", err);
        } else if (p->row != present_group(p)->first_row + present_group(p)->rows) {
            return damaged(p, "its lists are of another number of rows than their row group", err);
        } else {
            p->group++;
            p->entered = false;
        }
    }
    *more = p->page_left > 0;
    return OK;
}

/* ---- rows ---- */

static void advance(Parquet *p, uint64_t rows) {
    p->page_left -= rows;
    p->row += rows;
}

/* Passes over the nulls in front of the next value of the page. */
static const char *pass_nulls(Parquet *p) {
    while (p->found.optional > 0 && p->page_left > 0) {
        uint32_t level;
        uint64_t times;
        const char *wrong = hybrid_peek(&p->levels, &level, &times);
        if (wrong) return wrong;
        bool null = level < (uint32_t)p->found.optional;
        if (times > p->page_left || !null) times = null ? p->page_left : 1;
        hybrid_take(&p->levels, times);
        if (!null) break;
        if (p->row + times > p->first) p->nulls += p->row < p->first ? p->row + times - p->first : times;
        advance(p, times);
    }
    return NULL;
}

static const char *next_value(Parquet *p, ParquetString *string, bool *found) {
    const char *wrong = pass_nulls(p);
    *found = p->page_left > 0;
    if (!wrong && *found) {
        wrong = values_next(&p->values, &string->bytes, &string->length);
        string->row = p->row;
    }
    if (wrong) return wrong;
    if (*found) advance(p, 1);
    return p->page_left == 0 ? values_end(&p->values) : NULL;
}

/* A dictionary of one string, named a million times, is a legal file of 2.5 kB for a terabyte of text. */
static ErrorCode check_expansion(Parquet *p, size_t length, Error *err) {
    const ParquetGroup *g = present_group(p);
    p->text += length;
    if (p->text <= MOST_TEXT || p->text / MOST_EXPANSION <= g->end - g->begin) return OK;
    return error_set(
        err, ERR_DATA,
        "%s: column '%s', row %" PRIu64 ": %" PRIu64
        " bytes of the file hold more than 4 GiB of text, over %d times as much and no text that "
        "was compressed",
        p->file.path, p->column, p->row, g->end - g->begin, MOST_EXPANSION);
}

ErrorCode parquet_next(Parquet *p, ParquetString *string, bool *more, Error *err) {
    for (bool found = false; !found || string->row < p->first;) {
        TRY(find_page(p, more, err));
        if (!*more) return OK;
        const char *wrong = next_value(p, string, &found);
        if (wrong) return damaged(p, wrong, err);
        if (found) TRY(check_expansion(p, string->length, err));
    }
    return OK;
}

/* ---- slots ---- */

static const char *take_level(Hybrid *levels, uint32_t *level) {
    uint64_t times;
    const char *wrong = hybrid_peek(levels, level, &times);
    if (!wrong) hybrid_take(levels, 1);
    return wrong;
}

/* A row begins with repetition level 0. */
static const char *count_row(Parquet *p, uint32_t repetition) {
    const ParquetGroup *g = present_group(p);
    if (repetition > 0) return p->row == g->first_row ? "a list goes on in front of its first row" : NULL;
    if (p->row == g->first_row + g->rows) return "its pages have more rows than their row group";
    p->row++;
    return NULL;
}

static const char *take_slot(Parquet *p, ParquetSlot *slot) {
    uint32_t repetition = 0, level = (uint32_t)p->found.optional;
    const char *wrong = p->found.repeated ? take_level(&p->repetitions, &repetition) : NULL;
    if (!wrong && level > 0) wrong = take_level(&p->levels, &level);
    if (!wrong) wrong = count_row(p, repetition);
    if (wrong) return wrong;
    *slot = (ParquetSlot){.row = p->row - 1, .begins = repetition == 0, .level = (int)level};
    slot->present = slot->level == p->found.optional;
    if (slot->present) wrong = values_next(&p->values, &slot->bytes, &slot->length);
    p->page_left--;
    return !wrong && p->page_left == 0 ? values_end(&p->values) : wrong;
}

ErrorCode parquet_next_slot(Parquet *p, ParquetSlot *slot, bool *more, Error *err) {
    do {
        TRY(find_page(p, more, err));
        if (!*more) return OK;
        const char *wrong = take_slot(p, slot);
        if (wrong) return damaged(p, wrong, err);
        TRY(check_expansion(p, slot->length, err));
    } while (slot->row < p->first);
    return OK;
}

/* How many zeros the levels go on with, at most `most`. What is wrong is found when they are taken. */
static uint64_t zeros(Hybrid *levels, uint64_t most) {
    uint32_t level;
    uint64_t times;
    if (hybrid_peek(levels, &level, &times) != NULL || level > 0) return 0;
    return times < most ? times : most;
}

/* The last slot of a page is left, since the page's end is checked with it. */
uint64_t parquet_null_rows(Parquet *p) {
    const ParquetGroup *g = present_group(p);
    if (p->found.optional == 0 || p->page_left < 2) return 0;
    uint64_t rows = g->first_row + g->rows - p->row, most = p->page_left - 1;
    most = zeros(&p->levels, most < rows ? most : rows);
    return most > 0 && p->found.repeated ? zeros(&p->repetitions, most) : most;
}

void parquet_pass_null_rows(Parquet *p, uint64_t rows) {
    hybrid_take(&p->levels, rows);
    if (p->found.repeated) hybrid_take(&p->repetitions, rows);
    advance(p, rows);
}

ErrorCode parquet_skip_to(Parquet *p, uint64_t row, Error *err) {
    const ParquetColumn *c = &p->found;
    if (row > c->rows)
        return error_set(err, ERR_DATA, "%s: shorter than row %" PRIu64 ", where reading was to go on",
                         p->file.path, row);
    while (p->group < c->group_count && row >= c->groups[p->group].first_row + c->groups[p->group].rows)
        p->group++;
    p->first = row;
    return OK;
}

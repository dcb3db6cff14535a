/* Reads documents from files: plain text, cut into chunks and documents, or one document per line of JSON, or
 * per row of a Parquet file.
 *
 * A text file may be larger than memory, and a document as large as its file. So text is returned in chunks,
 * each determined from a window of the file. Where a window ends is an accident of reading (a short read,
 * another buffer size, resuming after an interruption) that must not affect tokens: hence C3, and hence the
 * rules below look at a bounded range of content and ask for more if it is not enough.
 *
 *  C1. buffer[begin, end) holds content bytes not returned yet; `position` is the position of buffer[begin].
 *  C2. A reader opened at corpus_position() returns exactly the chunks that this reader would have returned
 *      next.
 *  C3. The ends of chunks depend on the content after `position` alone, never on how reads happened to fall.
 *  C4. Between two elements of an array, the position is behind the first of them, in front of the comma or
 *      bracket that ends it.
 *  C5. A Parquet file has `rows` or `objects`, a token file `tokens`, instead of `input` and the buffer. */
#include "data/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "data/chat_form.h"
#include "formats/file_format.h"
#include "formats/input.h"
#include "formats/parquet.h"
#include "formats/parquet_rows.h"
#include "formats/text_check.h"
#include "formats/text_form.h"

/* Large enough that the system call costs nothing compared with tokenizing, and small compared with the
 * caches of a machine that tokenizes on all its cores. */
#ifdef WEFT_SMALL_BUFFERS /* for fuzzing (CMakeLists.txt) */
enum { READ_BYTES = 1 << 10 };
#else
enum { READ_BYTES = 1 << 20 };
#endif

struct CorpusReader {
    const CorpusFile *file;
    SourceFormat format;
    Parquet *rows;
    ParquetRows *objects; /* rows with conversations */
    TokenFile *tokens;
    Input *input;
    char *buffer;
    size_t begin, end, capacity;
    bool at_end;                /* of the input */
    bool array;                 /* the file is one array of JSON, whose elements are given like lines */
    bool first_element, closed; /* its first element is next; its last bracket was read */
    CorpusPosition position;
    TextCheck check;      /* of the returned chunks */
    const TextForm *form; /* of text: what it begins as, NULL for nothing else */
};

/* Bytes of the name without the suffix of a compression. Whether a file is compressed is decided by its
 * content (formats/input.h). */
static size_t plain_length(const char *path) {
    static const char *const suffixes[] = {".zst", ".gz", ".bgz"};
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (text_ends(path, length, suffixes[i])) return length - strlen(suffixes[i]);
    return length;
}

bool corpus_named_compressed(const char *path) { return plain_length(path) < strlen(path); }

SourceFormat corpus_format(const CorpusFile *file) {
    if (file->format != FORMAT_AUTO) return file->format;
    size_t length = plain_length(file->path);
    bool json = text_ends(file->path, length, ".jsonl") || text_ends(file->path, length, ".ndjson") ||
                text_ends(file->path, length, ".json");
    if (text_ends(file->path, length, ".parquet")) return FORMAT_PARQUET;
    return json ? FORMAT_JSONL : FORMAT_TEXT;
}

bool corpus_is_short(const CorpusFile *file, uint64_t bytes) { return bytes < file->min_bytes; }
bool corpus_is_long(const CorpusFile *file, uint64_t bytes) {
    return file->max_bytes > 0 && bytes > file->max_bytes;
}

bool corpus_has_rows(const CorpusFile *file) {
    SourceFormat format = corpus_format(file);
    bool named = text_ends(file->path, strlen(file->path), ".parquet");
    return format == FORMAT_PARQUET || (format == FORMAT_CHAT && (named || file->column));
}

bool corpus_has_lines(SourceFormat format) { return format == FORMAT_JSONL || format == FORMAT_CHAT; }

static void forget_handed_out(CorpusReader *r) {
    if (r->begin == 0) return;
    memmove(r->buffer, r->buffer + r->begin, r->end - r->begin);
    r->end -= r->begin;
    r->begin = 0;
}

void corpus_shrink(CorpusReader *r) {
    if (!r->input) return;
    forget_handed_out(r);
    r->capacity = r->end + READ_BYTES;
    r->buffer = mem_grow(r->buffer, r->capacity);
}

/* Reads more bytes after buffer[begin, end). */
static ErrorCode fill(CorpusReader *r, Error *err) {
    forget_handed_out(r);
    if (r->capacity - r->end < READ_BYTES / 2) {
        r->capacity += r->capacity / 4 + READ_BYTES; /* in small steps, since a line may be 256 MiB */
        r->buffer = mem_grow(r->buffer, r->capacity);
    }
    size_t got;
    TRY(input_read(r->input, r->buffer + r->end, r->capacity - r->end, &got, err));
    r->end += got;
    r->at_end = got == 0;
    return OK;
}

/* Editors on Windows write a byte order mark. It belongs to no document, so it is skipped at the start of a
 * file, but counts in positions. */
static ErrorCode skip_byte_order_mark(CorpusReader *r, Error *err) {
    while (r->end - r->begin < 3 && !r->at_end) TRY(fill(r, err));
    if (r->end - r->begin >= 3 && memcmp(r->buffer + r->begin, "\xef\xbb\xbf", 3) == 0) {
        r->begin += 3;
        r->position.offset = 3;
    }
    return OK;
}

static bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Length of the white space that the buffer begins with. Reads on until it ends. */
static ErrorCode space_length(CorpusReader *r, size_t *length, Error *err) {
    for (*length = 0;; ++*length) {
        while (*length == r->end - r->begin && !r->at_end) TRY(fill(r, err));
        if (*length == r->end - r->begin || !is_json_space(r->buffer[r->begin + *length])) return OK;
    }
}

/* A line of JSON is an object, so a file that begins with a bracket is an array. */
static ErrorCode recognise_array(CorpusReader *r, Error *err) {
    size_t space;
    if (!corpus_has_lines(r->format)) return OK;
    TRY(space_length(r, &space, err));
    r->array = r->first_element = space < r->end - r->begin && r->buffer[r->begin + space] == '[';
    return OK;
}

bool corpus_doubts_form(SourceFormat format, TextEncoding encoding) {
    return format == FORMAT_AUTO && encoding != ENCODING_BYTES;
}

static bool doubts_form(const CorpusFile *file) { return corpus_doubts_form(file->format, file->encoding); }

static ErrorCode recognise_form(CorpusReader *r, Error *err) {
    TextHead head = {.path = r->file->path};
    if (r->format != FORMAT_TEXT) return OK;
    for (;;) {
        head.text = r->buffer + r->begin;
        head.length = r->end - r->begin;
        head.whole = r->at_end;
        if (r->at_end || !text_form_needs_more(&head)) break;
        TRY(fill(r, err));
    }
    r->form = text_form_of(&head);
    bool refused = r->form && r->form->refused && doubts_form(r->file);
    return refused ? text_form_refuse(r->form, r->file->path, err) : OK;
}

static ErrorCode open_beginning(CorpusReader *r, Error *err) {
    TRY(input_open(&r->input, r->file->path, r->file->encoding, err));
    TRY(skip_byte_order_mark(r, err));
    TRY(recognise_form(r, err));
    return recognise_array(r, err);
}

/* Only the beginning of a file shows whether it is an array. */
static ErrorCode open_middle(CorpusReader *r, const CorpusPosition *from, Error *err) {
    if (corpus_has_lines(r->format)) TRY(open_beginning(r, err));
    input_close(r->input);
    r->input = NULL;
    r->begin = r->end = 0;
    r->at_end = r->first_element = false;
    r->position = *from;
    TRY(input_open(&r->input, r->file->path, r->file->encoding, err));
    return input_skip_to(r->input, from->offset, err);
}

static ErrorCode open_input(CorpusReader *r, const CorpusPosition *from, Error *err) {
    r->buffer = mem_alloc(READ_BYTES);
    r->capacity = READ_BYTES;
    return from ? open_middle(r, from, err) : open_beginning(r, err);
}

static const char *key_of(const CorpusFile *file) { return file->key && file->key[0] ? file->key : "text"; }

bool corpus_has_chat_columns(const ParquetLeaves *leaves) {
    bool prompt = false, completion = false, list = false;
    for (size_t i = 0; i < leaves->count; i++) {
        const ParquetLeaf *leaf = &leaves->items[i];
        size_t top = strcspn(leaf->path, ".");
        for (size_t c = 0; c < CHAT_LISTS; c++)
            list |= top == strlen(chat_columns[c]) && strncmp(leaf->path, chat_columns[c], top) == 0;
        bool text = leaf->text && leaf->lists == 0;
        prompt |= text && strcmp(leaf->path, "prompt") == 0;
        completion |= text && strcmp(leaf->path, "completion") == 0;
    }
    return list || (prompt && completion);
}

/* `code` and `err`, from opening the column, unless the file has conversations in place of the text. */
static ErrorCode refuse_column(const CorpusFile *file, ErrorCode code, Error *err) {
    ParquetLeaves leaves;
    bool chat = code == ERR_DATA && !file->column && parquet_leaves(&leaves, file->path, NULL) == OK;
    if (!chat) return code;
    chat = corpus_has_chat_columns(&leaves);
    parquet_leaves_free(&leaves);
    if (!chat) return code;
    return error_set(err, ERR_DATA,
                     "%s: no column '%s', but conversations: give the source format: chat, or name a column "
                     "of text with `column`",
                     file->path, key_of(file));
}

/* A string may have a NUL if the file declares it as text. */
static ErrorCode open_rows(CorpusReader *r, const CorpusPosition *from, Error *err) {
    ErrorCode code = parquet_open(&r->rows, r->file->path, key_of(r->file), err);
    if (code != OK) return refuse_column(r->file, code, err);
    r->check.nul_is_text = parquet_is_text(r->rows);
    return from ? parquet_skip_to(r->rows, from->offset, err) : OK;
}

/* As a line is refused whose members say so (data/chat_form.h). Such columns are not read if the source names
 * another, or the form. */
static ErrorCode check_preferences(const CorpusFile *file, Error *err) {
    ParquetLeaves leaves;
    if (file->column || file->chat_form != CHAT_AUTO) return OK;
    ErrorCode code = parquet_leaves(&leaves, file->path, err);
    for (size_t i = 0; code == OK && i < leaves.count; i++) {
        char name[16]; /* of the column at the top; longer ones are others */
        const ParquetLeaf *leaf = &leaves.items[i];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(leaf->path, "."), leaf->path);
        if (chat_marks_preference(name, strcmp(leaf->type, "BOOLEAN") == 0))
            code = chat_refuse_preference(file->path, name, CHAT_AUTO, err);
    }
    parquet_leaves_free(&leaves);
    return code;
}

/* The column of the source, or those that conversations have. */
static ErrorCode open_objects(CorpusReader *r, const CorpusPosition *from, Error *err) {
    ParquetField fields[CHAT_COLUMNS] = {{key_of(r->file), true}};
    size_t count = 1;
    TRY(check_preferences(r->file, err));
    for (; !r->file->column && count < CHAT_COLUMNS; count++)
        fields[count] = (ParquetField){chat_columns[count], count < CHAT_LISTS};
    TRY(parquet_rows_open(&r->objects, r->file->path, fields, count, err));
    return from ? parquet_rows_skip_to(r->objects, from->offset, err) : OK;
}

static ErrorCode open_tokens(CorpusReader *r, const CorpusPosition *from, Error *err) {
    TRY(token_file_open(&r->tokens, r->file->path, &r->file->tokens, err));
    return from ? token_file_skip_to(r->tokens, from->offset, err) : OK;
}

static ErrorCode open_format(CorpusReader *r, const CorpusPosition *from, Error *err) {
    if (corpus_has_rows(r->file)) return (r->format == FORMAT_CHAT ? open_objects : open_rows)(r, from, err);
    return r->format == FORMAT_TOKENS ? open_tokens(r, from, err) : open_input(r, from, err);
}

ErrorCode corpus_open(CorpusReader **reader, const CorpusFile *file, const CorpusPosition *from, Error *err) {
    *reader = NULL;
    CorpusReader *r = mem_alloc(sizeof *r);
    r->file = file;
    r->format = corpus_format(file);
    if (from && from->offset == 0) from = NULL;
    if (from) r->position = *from;
    r->check.begin = r->position.offset;
    r->check.recoded = recoder_needed(file->encoding);
    ErrorCode code = open_format(r, from, err);
    if (code != OK) {
        corpus_close(r);
        return code;
    }
    *reader = r;
    return OK;
}

void corpus_close(CorpusReader *r) {
    if (!r) return;
    parquet_close(r->rows);
    parquet_rows_close(r->objects);
    token_file_close(r->tokens);
    input_close(r->input);
    free(r->buffer);
    free(r);
}

/* Position of the first byte that was not returned. Bytes that were read ahead do not count, so a build that
 * resumes there misses nothing. */
CorpusPosition corpus_position(const CorpusReader *r) { return r->position; }
uint64_t corpus_stored_position(const CorpusReader *r) {
    if (r->tokens) return token_file_stored_position(r->tokens);
    if (r->objects) return parquet_rows_stored_position(r->objects);
    return r->rows ? parquet_stored_position(r->rows) : input_stored_position(r->input);
}
double corpus_stored_given(const CorpusReader *r) {
    double stored = (double)corpus_stored_position(r), given = (double)r->position.offset;
    double ahead = r->input ? (double)(r->end - r->begin) : 0;
    return ahead > 0 ? stored * given / (given + ahead) : stored;
}

bool corpus_is_array(const CorpusReader *r) { return r->array; }
const TextForm *corpus_form(const CorpusReader *r) { return r->form; }
const TextForm *corpus_doubtful_form(const CorpusReader *r) { return doubts_form(r->file) ? r->form : NULL; }
uint64_t corpus_text_bytes(const CorpusReader *r) { return r->check.bytes; }
uint64_t corpus_invalid_bytes(const CorpusReader *r) { return r->check.invalid; }

uint64_t corpus_null_rows(const CorpusReader *r) {
    if (r->objects) return parquet_rows_nulls(r->objects);
    return r->rows ? parquet_nulls(r->rows) : 0;
}

void corpus_report(const CorpusReader *r) {
    char path[400], some[32], all[32];
    error_escape(path, sizeof path, r->file->path, strlen(r->file->path));
    if (r->check.invalid > 0)
        log_warn("%s: %s of %s bytes are not UTF-8; they were taken as they are", path,
                 text_count((int64_t)r->check.invalid, some), text_count((int64_t)r->check.bytes, all));
    if (corpus_null_rows(r) > 0)
        log_warn("%s: rows without text (null): %s; they were skipped", path,
                 text_count((int64_t)corpus_null_rows(r), some));
}

static bool is_continuation(char byte) { return ((unsigned char)byte & 0xc0) == 0x80; }

/* Whether text[0, n) begins with Unicode white space, in UTF-8. */
static bool is_space(const char *text, size_t n) {
    const unsigned char *b = (const unsigned char *)text;
    if (b[0] < 0x80) return b[0] == ' ' || (b[0] >= '\t' && b[0] <= '\r') || (b[0] >= 0x1c && b[0] <= 0x1f);
    if (n >= 2 && b[0] == 0xc2) return b[1] == 0x85 || b[1] == 0xa0;
    if (n < 3) return false;
    if (b[0] == 0xe1) return b[1] == 0x9a && b[2] == 0x80;
    if (b[0] == 0xe2 && b[1] == 0x80)
        return (b[2] >= 0x80 && b[2] <= 0x8a) || b[2] == 0xa8 || b[2] == 0xa9 || b[2] == 0xaf;
    if (b[0] == 0xe2) return b[1] == 0x81 && b[2] == 0x9f;
    return b[0] == 0xe3 && b[1] == 0x80 && b[2] == 0x80;
}

/* ASCII only: a line of other white space is text, as it is for tools that clean corpora. */
static bool is_blank(const char *line, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (line[i] != ' ' && (line[i] < '\t' || line[i] > '\r')) return false;
    return true;
}

/* Whether the newline at text[at] is between two characters that are not white space, and both are complete
 * within text[0, n). Not if a slash follows it: the patterns of tekken and o200k take newlines and slashes
 * after punctuation into the same pre-token. */
static bool stands_alone(const char *text, size_t n, size_t at) {
    size_t before = at;
    do {
        if (before == 0) return false;
        before--;
    } while (is_continuation(text[before]) && at - before < 4);
    return text[at + 1] != '/' && !is_space(text + before, at - before) &&
           !is_space(text + at + 1, n - at - 1);
}

/* First safe cut of text[0, n) at or after `least`; 0 if there is none. Three bytes after the newline must be
 * known. */
static size_t safe_cut(const char *text, size_t n, size_t least) {
    for (size_t at = least > 0 ? least - 1 : 0; at + 4 <= n;) {
        const char *newline = memchr(text + at, '\n', n - 3 - at);
        if (!newline) return 0;
        at = (size_t)(newline - text);
        if (stands_alone(text, n, at)) return at + 1;
        at++;
    }
    return 0;
}

/* A cut for text without a safe one: between characters, and not after a newline (so that what follows is
 * still on the same line). */
static size_t forced_cut(const char *text, size_t limit) {
    size_t cut = limit;
    while (cut > limit - 4 && is_continuation(text[cut])) cut--;
    while (cut > 1 && text[cut - 1] == '\n') cut--;
    return cut;
}

/* Length of the document that text[0, n) begins with, if its end is known; else 0. */
static size_t document_length(const CorpusReader *r, const char *text, size_t n) {
    bool content = false, blank_before = false;
    for (size_t at = 0; at < n;) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t next = newline ? (size_t)(newline - text) + 1 : n;
        /* The rest of a line that was cut counts as text, whatever it contains. */
        bool rest = at == 0 && r->position.in_document;
        if (rest || !is_blank(text + at, next - at)) {
            if (content && (r->file->split == SPLIT_LINES || blank_before)) return at;
            content = true;
            blank_before = false;
        } else {
            blank_before = true;
        }
        at = next;
    }
    return 0;
}

/* Decides the next chunk from the buffer: returns its length, or 0 if more bytes are needed. *ends: whether a
 * document ends there. */
static size_t text_chunk(const CorpusReader *r, bool *ends) {
    const char *text = r->buffer + r->begin;
    size_t n = r->end - r->begin;
    bool split = r->file->split != SPLIT_FILE;
    *ends = true;
    size_t known = n < CORPUS_CHUNK_LIMIT ? n : CORPUS_CHUNK_LIMIT;
    size_t cut = split ? document_length(r, text, known) : 0;
    if (cut) return cut;
    /* The document does not end within the known bytes. With `split` it is cut only at the limit, so that the
     * search for its end never depends on how much was read. */
    bool full = n > CORPUS_CHUNK_LIMIT;
    *ends = false;
    if (!split || full) cut = safe_cut(text, known, CORPUS_CHUNK_BYTES);
    if (cut && cut < n) return cut;
    if (full) return forced_cut(text, CORPUS_CHUNK_LIMIT);
    if (!r->at_end) return 0;
    *ends = true;
    return n;
}

/* Counts lines for messages, which costs one memchr pass over the returned bytes. Chunks end between
 * characters, so each can be checked by itself. */
static void advance(CorpusReader *r, size_t length, bool in_document) {
    if (r->file->encoding != ENCODING_BYTES) text_check_add(&r->check, r->buffer + r->begin, length);
    const char *at = r->buffer + r->begin, *stop = at + length;
    while ((at = memchr(at, '\n', (size_t)(stop - at))) != NULL) {
        r->position.line++;
        if (++at == stop) break;
    }
    r->begin += length;
    r->position.offset += length;
    r->position.in_document = in_document;
}

/* Reads until a chunk can be decided. The loop ends: each iteration adds bytes, the file ends, and at
 * CORPUS_CHUNK_LIMIT a cut is forced. */
static ErrorCode next_text(CorpusReader *r, CorpusChunk *chunk, bool *more, Error *err) {
    size_t length;
    bool ends;
    while ((length = text_chunk(r, &ends)) == 0 && !r->at_end) TRY(fill(r, err));
    *more = length > 0;
    if (!*more) return OK;
    *chunk =
        (CorpusChunk){r->buffer + r->begin, length, r->position.line + 1, !r->position.in_document, ends};
    advance(r, length, !ends);
    return OK;
}

/* Length of the line at the front of the buffer, with its newline. Reads until the line is complete. */
static ErrorCode line_length(CorpusReader *r, size_t *length, Error *err) {
    for (size_t seen = 0;;) {
        const char *text = r->buffer + r->begin;
        size_t n = r->end - r->begin;
        const char *newline = n > seen ? memchr(text + seen, '\n', n - seen) : NULL;
        *length = newline ? (size_t)(newline - text) + 1 : n;
        if (*length > CORPUS_LINE_LIMIT)
            return error_set(err, ERR_DATA,
                             "%s:%llu: the line is longer than %u MiB: split it, or, if the file is not JSON "
                             "lines, set format in the source",
                             r->file->path, (unsigned long long)r->position.line + 1,
                             CORPUS_LINE_LIMIT >> 20);
        if (newline || r->at_end) return OK;
        seen = n;
        TRY(fill(r, err));
    }
}

/* Returns a line raw. Whoever tokenizes it parses its JSON, on another thread: parsing costs as much as
 * tokenizing, and there is only one reader. */
static ErrorCode next_line(CorpusReader *r, CorpusChunk *chunk, bool *more, Error *err) {
    size_t length;
    do {
        TRY(line_length(r, &length, err));
        *more = length > 0;
        if (!*more) return OK;
        *chunk = (CorpusChunk){r->buffer + r->begin, length, r->position.line + 1, true, true};
        advance(r, length, false);
    } while (is_blank(chunk->bytes, length));
    return OK;
}

/* ---- arrays of JSON ---- */

static ErrorCode refuse_array(const CorpusReader *r, const char *expected, Error *err) {
    char found[20] = "the end of the file", shown[8];
    if (r->begin < r->end)
        snprintf(found, sizeof found, "'%s'", error_escape(shown, sizeof shown, r->buffer + r->begin, 1));
    return error_set(err, ERR_DATA, "%s:%llu: expected %s, found %s", r->file->path,
                     (unsigned long long)r->position.line + 1, expected, found);
}

/* Passes over white space; *c is what follows, -1 at the end of the file. */
static ErrorCode pass_space(CorpusReader *r, int *c, Error *err) {
    size_t space;
    TRY(space_length(r, &space, err));
    advance(r, space, false);
    *c = r->begin < r->end ? (unsigned char)r->buffer[r->begin] : -1;
    return OK;
}

/* State of looking for the end of an element. */
typedef struct Nesting {
    size_t depth;
    uint64_t lists; /* bit d: level d + 1 is a list; deeper than 64 an element is refused anyway */
    bool in_string, escaped;
} Nesting;

static void open_level(Nesting *n, bool list) {
    const uint64_t bit = n->depth < 64 ? UINT64_C(1) << n->depth : 0;
    n->lists = list ? n->lists | bit : n->lists & ~bit;
    n->depth++;
}

/* A bracket closes the last level of its kind, with all that is open in it, so that a broken element ends
 * where it would end unbroken. Where there is none, it closes nothing. */
static void close_level(Nesting *n, bool list) {
    size_t level = n->depth;
    while (level > 0 && level <= 64 && (n->lists >> (level - 1) & 1) != list) level--;
    if (level > 0) n->depth = level - 1;
}

/* Whether the element ends in front of `c`. Grammar is left to whoever parses the element. */
static bool ends_element(Nesting *n, char c) {
    if (n->in_string) {
        n->in_string = n->escaped || c != '"';
        n->escaped = !n->escaped && c == '\\';
        return false;
    }
    if (n->depth == 0 && (c == ',' || c == ']')) return true;
    if (c == '{' || c == '[') open_level(n, c == '[');
    if (c == '}' || c == ']') close_level(n, c == ']');
    n->in_string = c == '"';
    return false;
}

/* The grammar of what is left tells where a bracket or a quote is missing, unless the file was cut there. */
static ErrorCode refuse_end(const CorpusReader *r, Error *err) {
    static const char where[] = "the file ends in or behind this element, before the end of its array";
    unsigned long long line = (unsigned long long)r->position.line + 1;
    cJSON *root;
    Error why = {0};
    ErrorCode code = json_parse_line("", line, r->buffer + r->begin, r->end - r->begin, &root, &why);
    cJSON_Delete(root);
    if (code == OK)
        return error_set(err, ERR_DATA, "%s:%llu: %s; fetch the file again", r->file->path, line, where);
    return error_set(err, ERR_DATA,
                     "%s:%llu: %s (%s); mend the element, or fetch the file again if it was cut",
                     r->file->path, line, where, why.message);
}

/* Length of the element at the front of the buffer. Reads until it is complete. */
static ErrorCode element_length(CorpusReader *r, size_t *length, Error *err) {
    Nesting n = {0};
    for (*length = 0;; ++*length) {
        while (*length == r->end - r->begin && !r->at_end) TRY(fill(r, err));
        if (*length > CORPUS_LINE_LIMIT)
            return error_set(
                err, ERR_DATA, "%s:%llu: an element of the array is longer than %u MiB: split it",
                r->file->path, (unsigned long long)r->position.line + 1, CORPUS_LINE_LIMIT >> 20);
        if (*length == r->end - r->begin) return refuse_end(r, err);
        if (ends_element(&n, r->buffer[r->begin + *length])) return OK;
    }
}

static ErrorCode close_array(CorpusReader *r, Error *err) {
    int c;
    advance(r, 1, false);
    r->closed = true;
    TRY(pass_space(r, &c, err));
    return c < 0 ? OK : refuse_array(r, "nothing behind the array", err);
}

/* Moves to the next element; *more is false if there is none (C4). */
static ErrorCode find_element(CorpusReader *r, bool *more, Error *err) {
    int c;
    bool first = r->first_element;
    *more = false;
    TRY(pass_space(r, &c, err));
    if (!first && c == ']') return close_array(r, err);
    if (c != (first ? '[' : ',')) return refuse_array(r, first ? "'['" : "',' or ']'", err);
    advance(r, 1, false);
    r->first_element = false;
    TRY(pass_space(r, &c, err));
    if (first && c == ']') return close_array(r, err);
    *more = c >= 0 && c != ',' && c != ']';
    return *more ? OK : refuse_array(r, "an element of the array", err);
}

static ErrorCode next_element(CorpusReader *r, CorpusChunk *chunk, bool *more, Error *err) {
    size_t length;
    *more = false;
    if (!r->closed) TRY(find_element(r, more, err));
    if (!*more) return OK;
    TRY(element_length(r, &length, err));
    *chunk = (CorpusChunk){r->buffer + r->begin, length, r->position.line + 1, true, true};
    advance(r, length, false);
    return OK;
}

/* ---- rows and ids ---- */

static ErrorCode check_row(CorpusReader *r, const ParquetString *s, Error *err) {
    if (r->file->encoding != ENCODING_UTF8) return OK;
    text_check_add(&r->check, s->bytes, s->length);
    if (r->check.nuls == 0) return OK;
    return error_set(err, ERR_DATA, "%s: column '%s', row %llu: not text: it has a NUL; " FILE_ANY_BYTES,
                     r->file->path, key_of(r->file), (unsigned long long)s->row + 1);
}

/* An empty text is no document, as in JSON lines. */
static ErrorCode next_row(CorpusReader *r, CorpusChunk *chunk, bool *more, Error *err) {
    ParquetString s;
    do {
        TRY(parquet_next(r->rows, &s, more, err));
        if (!*more) return OK;
    } while (s.length == 0);
    TRY(check_row(r, &s, err));
    *chunk = (CorpusChunk){s.bytes, s.length, s.row + 1, true, true};
    r->position = (CorpusPosition){s.row + 1, s.row + 1, false};
    return OK;
}

static ErrorCode next_object(CorpusReader *r, CorpusChunk *chunk, bool *more, Error *err) {
    ParquetRow row;
    TRY(parquet_rows_next(r->objects, &row, more, err));
    if (!*more) return OK;
    *chunk = (CorpusChunk){row.object, row.length, row.row + 1, true, true};
    r->position = (CorpusPosition){row.row + 1, row.row + 1, false};
    return OK;
}

static ErrorCode next_ids(CorpusReader *r, CorpusChunk *chunk, bool *more, Error *err) {
    TokenPiece piece;
    TRY(token_file_next(r->tokens, &piece, more, err));
    if (!*more) return OK;
    *chunk = (CorpusChunk){(const char *)piece.ids, piece.count * sizeof *piece.ids, piece.first + 1,
                           !r->position.in_document, piece.ends};
    uint64_t next = piece.first + piece.count;
    r->position = (CorpusPosition){next, next, !piece.ends};
    return OK;
}

static ErrorCode next_chunk(CorpusReader *r, CorpusChunk *chunk, bool *more, Error *err) {
    if (r->rows) return next_row(r, chunk, more, err);
    if (r->objects) return next_object(r, chunk, more, err);
    if (r->tokens) return next_ids(r, chunk, more, err);
    if (r->array) return next_element(r, chunk, more, err);
    return r->format == FORMAT_TEXT ? next_text(r, chunk, more, err) : next_line(r, chunk, more, err);
}

ErrorCode corpus_next(CorpusReader *r, CorpusChunk *chunk, bool *more, Error *err) {
    TRY(next_chunk(r, chunk, more, err));
    /* The rest of a file that was partly read before may be too short to judge. */
    bool end = !*more && r->check.begin == 0;
    return text_check_judge(&r->check, r->file->path, end, err);
}

/* The most common mistake with JSON lines is another name for the text, so the error lists what there is. */
static ErrorCode missing_key(const char *where, const char *key, cJSON *object, Error *err) {
    char names[JSON_NAMES];
    Conversation v = {.where = where};
    json_names(object, names);
    bool chat = chat_form_read(&v, CHAT_AUTO, object, "messages", NULL) == OK;
    cJSON_Delete(v.messages);
    return error_set(err, ERR_DATA, "%s: no key '%s' in this line; it has: %s; %s", where, key,
                     names[0] ? names : "no members",
                     chat ? "this is a conversation: give the source format: chat"
                          : "name the text's key with `key` in the source");
}

/* Of a value that is not as expected. */
static const char *type_name(const cJSON *value) {
    if (cJSON_IsObject(value)) return "an object";
    if (cJSON_IsArray(value)) return "a list";
    if (cJSON_IsString(value)) return "a string";
    return cJSON_IsNull(value) ? "null" : cJSON_IsNumber(value) ? "a number" : "true or false";
}

/* A line that ends right after its bracket: an object on several lines, as editors and jq write it. */
static bool is_only_bracket(const CorpusChunk *chunk) {
    size_t end = chunk->length;
    while (end > 0 && strchr(" \t\r\n", chunk->bytes[end - 1])) end--;
    return end > 0 && chunk->bytes[end - 1] == '{' && end <= 8;
}

static ErrorCode parse_line(const CorpusFile *file, const CorpusChunk *chunk, const char *where, cJSON **root,
                            Error *err) {
    ErrorCode code = json_parse_line(file->path, chunk->line, chunk->bytes, chunk->length, root, err);
    if (code != ERR_DATA || !is_only_bracket(chunk)) return code;
    return error_set(err, ERR_DATA,
                     "%s: the line ends inside of its object: write one object per line (jq -c), or an array "
                     "of objects",
                     where);
}

/* An empty text is not an error: real corpora have such lines, and they make no document. A value that is not
 * a string is an error, since it would otherwise be skipped silently, line after line. */
ErrorCode corpus_decode_json(const CorpusFile *file, const CorpusChunk *chunk, Text *out, Error *err) {
    const char *key = key_of(file);
    char path[400], where[512], shown[128];
    error_escape(path, sizeof path, file->path, strlen(file->path));
    snprintf(where, sizeof where, "%s:%llu", path, (unsigned long long)chunk->line);
    error_escape(shown, sizeof shown, key, strlen(key));
    cJSON *root = NULL;
    TRY(parse_line(file, chunk, where, &root, err));
    cJSON *value = cJSON_GetObjectItemCaseSensitive(root, key);
    ErrorCode code = OK;
    text_clear(out);
    if (!cJSON_IsObject(root))
        code = error_set(err, ERR_DATA, "%s: expected a JSON object with key '%s', found %s", where, shown,
                         type_name(root));
    else if (!value)
        code = missing_key(where, shown, root, err);
    else if (!cJSON_IsString(value))
        code = error_set(err, ERR_DATA, "%s: the value of '%s' is not a string but %s%s", where, shown,
                         type_name(value),
                         cJSON_IsNull(value) ? "; data.bad_lines: skip leaves such lines out" : "");
    else
        json_line_string(chunk->bytes, chunk->length, root, value, out);
    cJSON_Delete(root);
    return code;
}

/* The table of forms, in the order in which they are tried: the first match wins. Forms without a magic
 * number are judged by several lines or records, so that prose does not pass for them. */
#include "formats/text_form.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

enum {
    LOOK = 64 << 10,      /* bytes that are looked at */
    LONG_LINE = 16 << 20, /* the same where the first line is JSON: its end must be seen */
    LEAST_RECORDS = 4,    /* of a table or of encoded lines */
    MOST_RECORDS = 64,
    ENCODED_LINE = 32 /* the shortest line of encoded bytes */
};

typedef struct Span {
    const char *at, *end;
} Span;

static Span span_of(const TextHead *h) { return (Span){h->text, h->text + h->length}; }

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void skip_space(Span *s) {
    while (s->at < s->end && is_space(*s->at)) s->at++;
}

static bool takes(Span *s, char c) {
    skip_space(s);
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

/* In any case of letters. */
static bool begins(const Span *s, const char *words) {
    size_t length = strlen(words);
    return (size_t)(s->end - s->at) >= length && strncasecmp(s->at, words, length) == 0;
}

/* The next line that is not blank; false if there is none. *complete: its end was seen. */
static bool next_line(Span *s, const TextHead *h, Span *line, bool *complete) {
    skip_space(s);
    if (s->at == s->end) return false;
    const char *newline = memchr(s->at, '\n', (size_t)(s->end - s->at));
    *line = (Span){s->at, newline ? newline : s->end};
    *complete = newline || h->whole;
    s->at = newline ? newline + 1 : s->end;
    while (line->end > line->at && is_space(line->end[-1])) line->end--;
    return true;
}

/* ---- JSON ---- */

static bool takes_string(Span *s) {
    if (!takes(s, '"')) return false;
    for (; s->at < s->end && *s->at != '"'; s->at++) s->at += *s->at == '\\' && s->at + 1 < s->end;
    return takes(s, '"');
}

/* A bracket, a name and a colon: no prose begins like this. */
static bool begins_object(Span s) { return takes(&s, '{') && takes_string(&s) && takes(&s, ':'); }

/* The first line is an object, and the next begins as one. An object on several lines, or a lone one, may be
 * a text: a configuration. */
static bool is_json_lines(const TextHead *h) {
    Span rest = span_of(h), line, next;
    bool complete, any;
    cJSON *root = NULL;
    if (!next_line(&rest, h, &line, &complete) || !complete || !begins_object(line)) return false;
    if (!next_line(&rest, h, &next, &any) || !begins_object(next)) return false;
    ErrorCode code = json_parse_line("", 1, line.at, (size_t)(line.end - line.at), &root, NULL);
    cJSON_Delete(root);
    return code == OK;
}

static bool is_json_array(const TextHead *h) {
    Span s = span_of(h);
    return takes(&s, '[') && begins_object(s);
}

static bool is_json(const TextHead *h) {
    Span s = span_of(h);
    if (begins_object(s)) return true;
    return takes(&s, '[') && takes_string(&s) && (takes(&s, ',') || takes(&s, ']'));
}

/* ---- markup ---- */

/* Passes over a declaration of XML and comments. */
static void skip_prolog(Span *s) {
    for (skip_space(s); begins(s, "<?xml") || begins(s, "<!--"); skip_space(s)) {
        const char *close = begins(s, "<!--") ? "-->" : "?>";
        const char *end = memmem(s->at, (size_t)(s->end - s->at), close, strlen(close));
        s->at = end ? end + strlen(close) : s->end;
    }
}

static bool is_html(const TextHead *h) {
    Span s = span_of(h);
    skip_prolog(&s);
    return begins(&s, "<!doctype html") || begins(&s, "<html") || begins(&s, "<head>") || begins(&s, "<body");
}

static bool is_xml(const TextHead *h) {
    static const char *const roots[] = {"<?xml", "<!doctype ",  "<mediawiki", "<svg",
                                        "<rss",  "<feed xmlns", "<tei"};
    Span s = span_of(h);
    skip_space(&s);
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++)
        if (begins(&s, roots[i])) return true;
    return false;
}

/* ---- tables ---- */

/* What a record of a table has. loose: as in prose and indented lines, a field begins with a space, or the
 * first or the last is empty. */
typedef struct Record {
    size_t fields;
    bool names; /* all fields are short names, as in a header */
    bool loose;
} Record;

static bool is_name(Span f) {
    if (f.end - f.at >= 2 && *f.at == '"') f = (Span){f.at + 1, f.end - 1};
    if (f.at == f.end || f.end - f.at > 40 || !(isalpha((unsigned char)*f.at) || *f.at == '_')) return false;
    for (const char *c = f.at; c < f.end; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_ .-", *c)) return false;
    return !is_space(f.end[-1]);
}

/* A field may be in quotes, which are doubled within, and then have separators and ends of lines. */
static const char *field_end(const Span *s, char separator) {
    bool quoted = s->at < s->end && *s->at == '"', inside = quoted;
    for (const char *c = s->at + quoted; c < s->end; c++) {
        if (quoted && *c == '"') inside = !inside;
        if (!inside && (*c == separator || *c == '\n')) return c;
    }
    return s->end;
}

/* False at the end of the text, or where the record may be cut there. */
static bool next_record(Span *s, const TextHead *h, char separator, Record *r) {
    *r = (Record){.names = true};
    if (s->at == s->end) return false;
    for (bool more = true; more; r->fields++) {
        Span f = {s->at, field_end(s, separator)};
        if (f.end == s->end && !h->whole) return false;
        more = f.end < s->end && *f.end == separator;
        s->at = f.end < s->end ? f.end + 1 : s->end;
        if (f.end > f.at && f.end[-1] == '\r') f.end--;
        r->names &= is_name(f);
        r->loose |= f.at < f.end ? is_space(*f.at) : !more || r->fields == 0;
    }
    return true;
}

/* Records of the same number of fields. Two records suffice if the first is a header. Else commas need three
 * fields, since lines of verse may have one comma each. */
static bool is_separated(const TextHead *h, char separator) {
    Span s = span_of(h);
    Record first, next;
    size_t count = 1;
    bool loose;
    if (!next_record(&s, h, separator, &first) || first.fields < 2) return false;
    for (loose = first.loose; count < MOST_RECORDS && next_record(&s, h, separator, &next); count++) {
        if (next.fields != first.fields) return false;
        loose |= next.loose;
    }
    if (first.names && count >= 2) return true;
    return count >= LEAST_RECORDS && !loose && (separator == '\t' || first.fields >= 3);
}

static bool is_named(const TextHead *h, const char *end) {
    size_t length = strlen(h->path), n = strlen(end);
    return length > n && strcasecmp(h->path + length - n, end) == 0;
}

static bool is_table(const TextHead *h) {
    return is_named(h, ".csv") || is_named(h, ".tsv") || is_separated(h, ',') || is_separated(h, '\t') ||
           is_separated(h, ';');
}

/* ---- encoded bytes ---- */

/* Which kinds of characters base64 and hexadecimal digits have. */
typedef struct Letters {
    bool digit, upper, lower, other, beyond_f;
} Letters;

static bool add_letters(Letters *l, Span line) {
    for (const char *c = line.at; c < line.end; c++) {
        unsigned char b = (unsigned char)*c;
        if (!isalnum(b) && !strchr("+/-_=", b)) return false;
        l->digit |= isdigit(b) != 0;
        l->upper |= isupper(b) != 0;
        l->lower |= islower(b) != 0;
        l->other |= !isalnum(b);
        l->beyond_f |= isalpha(b) && !isxdigit(b);
    }
    return true;
}

/* Long lines without spaces, of both cases and digits, or of hexadecimal digits: a whole number of groups of
 * four. The last may be shorter. */
static bool is_encoded(const TextHead *h) {
    Span s = span_of(h), line, next;
    Letters l = {0};
    size_t count = 0, bytes = 0;
    bool complete, more = next_line(&s, h, &line, &complete);
    for (; more && count < MOST_RECORDS && (complete || count == 0); count++, line = next) {
        if (!complete) line.end -= (line.end - line.at) % 4;
        size_t length = (size_t)(line.end - line.at);
        more = next_line(&s, h, &next, &complete);
        if (length % 4 != 0 || (length < ENCODED_LINE && (more || count == 0))) return false;
        if (!add_letters(&l, line)) return false;
        bytes += length;
    }
    bool base64 = l.digit && l.upper && l.lower && l.beyond_f;
    bool hex = l.digit && (l.upper || l.lower) && !l.beyond_f && !l.other;
    return (count >= LEAST_RECORDS || bytes >= LEAST_RECORDS * ENCODED_LINE) && (base64 || hex);
}

#define AS_TEXT "if that is what you want, state it: format: text"
#define AS_LINES \
    "give the source format: jsonl, or name the file .jsonl; format: text if all of the JSON is the text"

/* Token caches count files by a row's index: new rows go to the end. */
static const TextForm forms[] = {
    {"JSON lines", AS_LINES, true, is_json_lines},
    {"an array of JSON", AS_LINES, true, is_json_array},
    {"HTML", "its markup is trained on; extract its text first, or, " AS_TEXT, false, is_html},
    {"XML", "its markup is trained on; extract its text first, or, " AS_TEXT, false, is_xml},
    {"JSON", "write texts as JSON lines (.jsonl), or, " AS_TEXT, false, is_json},
    {"a table (CSV, TSV)", "write its text as JSON lines (.jsonl), or, " AS_TEXT, false, is_table},
    {"encoded bytes (base64, hexadecimal)", "decode it first, or, " AS_TEXT, false, is_encoded},
};
_Static_assert(sizeof forms / sizeof *forms <= TEXT_FORMS, "token caches count files of each form");

/* The first line of JSON is needed to its end, and the beginning of the next. */
bool text_form_needs_more(const TextHead *h) {
    Span rest = span_of(h), line;
    bool complete = false;
    if (h->length < LOOK) return true;
    if (h->length >= LONG_LINE || !begins_object(rest)) return false;
    return !next_line(&rest, h, &line, &complete) || !complete || rest.end - rest.at < LOOK;
}

const TextForm *text_form_of(const TextHead *head) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (forms[i].is(head)) return &forms[i];
    return NULL;
}

size_t text_form_index(const TextForm *form) { return (size_t)(form - forms); }

const TextForm *text_form_at(size_t index) {
    return index < sizeof forms / sizeof *forms ? &forms[index] : NULL;
}

ErrorCode text_form_refuse(const TextForm *form, const char *path, Error *err) {
    char shown[400];
    error_escape(shown, sizeof shown, path, strlen(path));
    return error_set(err, ERR_DATA, "%s: this is %s, in a file that is read as plain text: %s", shown,
                     form->name, form->advice);
}

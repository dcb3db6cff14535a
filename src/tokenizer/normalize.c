/* Normalizers: Unicode forms and lower case by utf8proc, the rest implemented here.
 *
 *  N1. Steps run in the order of the file, as `tokenizers` runs them; nothing is reordered or fused, since
 *      NFKC before Replace is not Replace before NFKC.
 *  N2. A step without effect copies nothing. Most text of most languages is already in form C, and a scan of
 *      its bytes shows it.
 *  N3. The version of utf8proc's tables is part of a tokenizer's fingerprint: other tables may give other
 *      ids. `tokenizers` has its own tables, of another Unicode version: characters assigned between the two
 *      versions normalize in one and stay unchanged in the other (docs/use/tokenizer-files.md).
 *
 *   step           what it does                             no effect if (N2)
 *   NFC .. NFKD    the form, by utf8proc_map                no byte is 0xCC or above (NFC), or 0x80
 *   Lowercase      each character by itself                 all is ASCII without capitals
 *   Strip          white space off the left, right or both  there is none
 *   Replace        all occurrences of a string by another   there are none
 *   Prepend        a string before a text that begins       the text is empty, or continues another */
#include "tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/utf8.h"

#ifdef WEFT_UTF8PROC
#include <utf8proc.h>
#endif

/* The names in tokenizer.json, which are also used in errors and fingerprints. */
static const char *const names[NORMALIZE_KINDS] = {
    [NORMALIZE_NFC] = "NFC",
    [NORMALIZE_NFD] = "NFD",
    [NORMALIZE_NFKC] = "NFKC",
    [NORMALIZE_NFKD] = "NFKD",
    [NORMALIZE_LOWERCASE] = "Lowercase",
    [NORMALIZE_STRIP] = "Strip",
    [NORMALIZE_REPLACE] = "Replace",
    [NORMALIZE_PREPEND] = "Prepend",
};

const char *normalize_name(NormalizeKind kind) { return names[kind]; }

/* NORMALIZE_KINDS for an unknown name; the reader of the file refuses it. */
NormalizeKind normalize_by_name(const char *name) {
    NormalizeKind kind = 0;
    while (kind < NORMALIZE_KINDS && strcmp(names[kind], name) != 0) kind++;
    return kind;
}

/* Relies on the order of the enumeration: forms and Lowercase first, steps implemented here after them. */
bool normalize_needs_unicode(NormalizeKind kind) { return kind <= NORMALIZE_LOWERCASE; }

/* If the file was refused while a step was being read, its strings may be NULL. */
void normalizer_free(Normalizer *n) {
    for (int i = 0; i < n->count; i++) {
        free(n->steps[i].from);
        free(n->steps[i].to);
    }
    *n = (Normalizer){0};
}

static uint32_t ascii_case(uint32_t code, char to) {
    if (to == 'l') return code >= 'A' && code <= 'Z' ? code - 'A' + 'a' : code;
    return code >= 'a' && code <= 'z' ? code - 'a' + 'A' : code;
}

#ifdef WEFT_UTF8PROC

bool unicode_available(void) { return true; }

/* Characters of Unicode's SpecialCasing.txt that map to several or depend on context. */
static bool is_special_case(uint32_t code, char to) {
    if (to == 'l') return code == 0x130 || code == 0x3a3;
    return code == 0xdf || code == 0x149 || code == 0x1f0 || code == 0x390 || code == 0x3b0 ||
           code == 0x587 || (code >= 0x1e96 && code <= 0x1e9a) || (code >= 0x1f50 && code <= 0x1fff) ||
           (code >= 0xfb00 && code <= 0xfb17);
}

uint32_t unicode_case(uint32_t code, char to) {
    if (code < 0x80) return ascii_case(code, to);
    if (is_special_case(code, to)) return 0;
    utf8proc_int32_t c = (utf8proc_int32_t)code;
    return (uint32_t)(to == 'l'   ? utf8proc_tolower(c)
                      : to == 'u' ? utf8proc_toupper(c)
                                  : utf8proc_totitle(c));
}

const char *unicode_forms_version(void) { return utf8proc_unicode_version(); }

/* In addition to the categories: letters in circles and squares, symbols that count as alphabetic. */
bool unicode_is_word(uint32_t code) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC ||
           code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
           (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
           (code >= 0x1F170 && code <= 0x1F189);
}

bool unicode_is_printable(uint32_t code) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return code == ' ' || (c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS);
}

/* Whether no byte is `limit` or above. Every character below U+0300 (whose first byte is 0xCC) is in form C,
 * and none joins the previous one. For the other forms and for lower case, only ASCII is certain to be
 * unchanged. */
static bool all_below(const char *text, size_t length, unsigned char limit) {
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] >= limit) return false;
    }
    return true;
}

/* utf8proc allocates its result, which is copied and freed here. The text is valid UTF-8 by now, so a failure
 * is out of memory or a bug, never the user's text. */
static ErrorCode unicode_form(int options, const char *text, size_t length, Text *out, Error *err) {
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, &made,
                                      (utf8proc_option_t)(UTF8PROC_STABLE | options));
    if (n >= 0) text_add(out, (const char *)made, (size_t)n);
    free(made);
    if (n >= 0) return OK;
    return error_set(err, ERR_INTERNAL, "normalizing %zu bytes of text failed: %s", length,
                     utf8proc_errmsg(n));
}

/* Character by character, without context, as `tokenizers` does: no final sigma. U+0130 is the only character
 * whose lower case is two: i and U+0307. */
static void lower_case(const char *text, size_t length, Text *out) {
    for (size_t i = 0, bytes; i < length; i += bytes) {
        uint32_t code = 0;
        utf8proc_uint8_t lower[4];
        bytes = text_utf8(text + i, length - i, &code);
        CHECK(bytes > 0);
        if (code == 0x130) {
            text_puts(out, "i\xCC\x87");
        } else {
            utf8proc_ssize_t n = utf8proc_encode_char(utf8proc_tolower((utf8proc_int32_t)code), lower);
            text_add(out, (const char *)lower, (size_t)n);
        }
    }
}

/* As in Python: the first letter in title case, all others in lower case. */
void unicode_capitalize(const char *text, size_t length, Text *out) {
    uint32_t code = 0;
    utf8proc_uint8_t large[4];
    size_t first = text_utf8(text, length, &code);
    if (first == 0) return;
    text_add(out, (const char *)large,
             (size_t)utf8proc_encode_char(utf8proc_totitle((utf8proc_int32_t)code), large));
    lower_case(text + first, length - first, out);
}

/* For ASCII only, where Lowercase changes nothing but capitals. */
static bool has_capitals(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (text[i] >= 'A' && text[i] <= 'Z') return true;
    }
    return false;
}

/* *changed may be true although the text is the same; that costs a copy but changes no result. */
static ErrorCode run_unicode(NormalizeKind kind, const char *text, size_t length, Text *out, bool *changed,
                             Error *err) {
    static const int options[] = {
        [NORMALIZE_NFC] = UTF8PROC_COMPOSE,
        [NORMALIZE_NFD] = UTF8PROC_DECOMPOSE,
        [NORMALIZE_NFKC] = UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NORMALIZE_NFKD] = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    bool plain = all_below(text, length, kind == NORMALIZE_NFC ? 0xCC : 0x80);
    *changed = !plain || (kind == NORMALIZE_LOWERCASE && has_capitals(text, length));
    if (!*changed) return OK;
    if (kind != NORMALIZE_LOWERCASE) return unicode_form(options[kind], text, length, out, err);
    lower_case(text, length, out);
    return OK;
}

#else

/* Without libutf8proc. Readers check unicode_available first and refuse by name what needs it, so no open
 * tokenizer reaches unicode_is_word and run_unicode. */
bool unicode_available(void) { return false; }

uint32_t unicode_case(uint32_t code, char to) { return code < 0x80 ? ascii_case(code, to) : 0; }

const char *unicode_forms_version(void) { return ""; }

bool unicode_is_word(uint32_t code) {
    (void)code;
    return false;
}

bool unicode_is_printable(uint32_t code) { return (code >= 0x20 && code < 0x7f) || code >= 0xa0; }

/* ASCII only. */
void unicode_capitalize(const char *text, size_t length, Text *out) {
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (i == 0 && c >= 'a' && c <= 'z') c = (char)(c - 'a' + 'A');
        if (i > 0 && c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
        text_add(out, &c, 1);
    }
}

static ErrorCode run_unicode(NormalizeKind kind, const char *text, size_t length, Text *out, bool *changed,
                             Error *err) {
    (void)text, (void)length, (void)out, (void)changed;
    return error_set(err, ERR_UNAVAILABLE, "this build lacks libutf8proc, which %s needs", names[kind]);
}

#endif

/* Searches the tail in what the head has left, otherwise text of white space alone would be counted twice. */
static void strip(const NormalizeStep *s, const char *text, size_t length, Text *out, bool *changed) {
    size_t head = s->left ? utf8_leading_space(text, length) : 0;
    size_t tail = s->right ? utf8_trailing_space(text + head, length - head) : 0;
    *changed = head + tail > 0;
    if (*changed) text_add(out, text + head, length - head - tail);
}

/* Replaces from the left, without overlaps. */
static void replace(const NormalizeStep *s, const char *text, size_t length, Text *out, bool *changed) {
    size_t size = strlen(s->from), from = 0;
    for (const char *hit; (hit = memmem(text + from, length - from, s->from, size)); *changed = true) {
        text_add(out, text + from, (size_t)(hit - text) - from);
        text_puts(out, s->to);
        from = (size_t)(hit - text) + size;
    }
    if (*changed) text_add(out, text + from, length - from);
}

/* `begins` false: the text continues other text of its document, which only Prepend uses. *changed: the
 * result is in `out`; otherwise it is the text itself. */
static ErrorCode run_step(const NormalizeStep *s, const char *text, size_t length, bool begins, Text *out,
                          bool *changed, Error *err) {
    *changed = false;
    if (normalize_needs_unicode(s->kind)) return run_unicode(s->kind, text, length, out, changed, err);
    if (s->kind == NORMALIZE_STRIP) {
        strip(s, text, length, out, changed);
    } else if (s->kind == NORMALIZE_REPLACE) {
        replace(s, text, length, out, changed);
    } else if (begins && length > 0) {
        text_puts(out, s->to);
        text_add(out, text, length);
        *changed = true;
    }
    return OK;
}

/* Each step reads the previous result, in `out` or in the text itself, and writes into a new text, which then
 * replaces `out`. */
ErrorCode normalizer_run(const Normalizer *n, const char *text, size_t length, bool begins, Text *out,
                         bool *changed, Error *err) {
    Text next = {0};
    ErrorCode code = OK;
    *changed = false;
    text_clear(out);
    for (int i = 0; i < n->count && code == OK; i++) {
        bool did = false;
        text_clear(&next);
        code = run_step(&n->steps[i], *changed ? out->data : text, *changed ? out->length : length, begins,
                        &next, &did, err);
        if (code != OK || !did) continue;
        Text kept = *out;
        *out = next;
        next = kept;
        *changed = true;
    }
    text_free(&next);
    return code;
}

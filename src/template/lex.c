/* The lexer: text, tags, and the tokens in tags.
 *
 * White space around tags is Jinja's with trim_blocks and lstrip_blocks, as transformers sets them:
 *
 *     {%- ...     removes all white space before the tag       ... -%}    removes all white space after it
 *     {% ... #    removes blanks from the start of the line    ... %} #}  removes a newline right after it
 *     {{ ...      removes nothing                              ... }}     removes nothing
 *     {%+ ...     removes nothing                              ... +%}    removes nothing
 *
 *  X1. l->at is after everything that was returned; l->line is the line of l->at.
 *  X2. A tag ends only where no bracket is open in it: {{ {'a': {}} }} is one tag. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/internal.h"

ErrorCode lexer_fail(const Lexer *l, int line, const char *format, ...) {
    char message[600];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return error_set(l->err, ERR_DATA, "%s:%d: %s", l->where, line, message);
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool stands(const Lexer *l, const char *what) {
    size_t n = strlen(what);
    return l->length - l->at >= n && memcmp(l->text + l->at, what, n) == 0;
}

static void advance(Lexer *l, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) l->line += l->text[l->at++] == '\n';
}

static void skip_space(Lexer *l) {
    while (l->at < l->length && is_space(l->text[l->at])) advance(l, 1);
}

/* ---- between tags ---- */

/* Skips white space after a tag: all of it after '-', else a newline if `trims`. */
static void end_of_tag(Lexer *l, char sign, bool trims) {
    if (sign == '-')
        skip_space(l);
    else if (sign != '+' && trims && stands(l, "\n"))
        advance(l, 1);
    l->line_starts = l->at > 0 && l->text[l->at - 1] == '\n';
}

/* Length of what remains of text[0, n) before a tag. */
static size_t text_before(const Lexer *l, const char *text, size_t n, char sign, bool print) {
    if (sign == '-') {
        while (n > 0 && is_space(text[n - 1])) n--;
        return n;
    }
    if (sign == '+' || print) return n;
    size_t line = n;
    while (line > 0 && text[line - 1] != '\n') line--;
    if (line == 0 && !l->line_starts) return n;
    for (size_t i = line; i < n; i++)
        if (!is_space(text[i])) return n;
    return line;
}

/* The kind of tag that begins at text[at]: '{', '%' or '#'; 0: none. */
static char tag_at(const Lexer *l, size_t at) {
    if (l->text[at] != '{' || at + 1 >= l->length) return 0;
    char c = l->text[at + 1];
    return c == '{' || c == '%' || c == '#' ? c : 0;
}

static ErrorCode skip_comment(Lexer *l) {
    int line = l->line;
    while (l->at < l->length && !stands(l, "#}")) advance(l, 1);
    if (l->at == l->length) return lexer_fail(l, line, "a comment that begins here does not end");
    char sign = l->text[l->at - 1];
    advance(l, 2);
    end_of_tag(l, sign, true);
    return OK;
}

/* The text up to the next tag; *tag: its kind, 0 at the end. */
static Value take_text(Lexer *l, char *tag) {
    size_t from = l->at, to = from;
    while (to < l->length && !tag_at(l, to)) to++;
    *tag = to < l->length ? tag_at(l, to) : 0;
    char sign = to + 2 < l->length ? l->text[to + 2] : 0;
    size_t kept = *tag ? text_before(l, l->text + from, to - from, sign, *tag == '{') : to - from;
    advance(l, to - from);
    return value_string(l->text + from, kept);
}

/* A sign that does not control white space belongs to the expression: in {{ -1 }} a space precedes it. */
static ErrorCode enter_tag(Lexer *l, char tag) {
    advance(l, 2);
    if (l->at < l->length && (l->text[l->at] == '-' || (tag != '{' && l->text[l->at] == '+'))) advance(l, 1);
    if (tag == '#') return skip_comment(l);
    l->print = tag == '{';
    l->depth = 0;
    return lexer_next(l);
}

/* Empty text is skipped, so the next tag is returned at once. */
ErrorCode lexer_piece(Lexer *l, PieceKind *kind, Value *text) {
    while (l->at < l->length) {
        char tag;
        *text = take_text(l, &tag);
        *kind = PIECE_TEXT;
        if (text->size > 0) {
            /* The white space before the tag was removed from this text, so only the tag remains. */
            l->line_starts = false;
            return OK;
        }
        if (tag == 0) break;
        TRY(enter_tag(l, tag));
        *kind = tag == '{' ? PIECE_PRINT : PIECE_BLOCK;
        if (tag != '#') return OK;
    }
    *kind = PIECE_END;
    return OK;
}

/* ---- within a tag ---- */

/* \xHH, \uHHHH, \UHHHHHHHH: a character by its code. Surrogates are refused, since they are not
 * characters. */
static ErrorCode read_code(Lexer *l, const char **at, const char *end, int digits, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < digits; i++) {
        char c = *at < end ? *(*at)++ : 0;
        int value = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (value < 0) return lexer_fail(l, l->token.line, "an escape of %d digits is cut short", digits);
        *code = *code << 4 | (uint32_t)value;
    }
    if (*code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000))
        return lexer_fail(l, l->token.line, "U+%X is no character", *code);
    return OK;
}

/* Python's escapes. An unknown one stays unchanged, including its backslash. */
static ErrorCode read_escape(Lexer *l, const char **at, const char *end, Text *out) {
    static const char letters[] = "ntrabfv\\'\"", bytes[] = "\n\t\r\a\b\f\v\\'\"";
    char c = *(*at)++;
    const char *plain = c ? strchr(letters, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (plain) {
        text_add(out, &bytes[plain - letters], 1);
    } else if (c == '\n') {
        /* a continued line */
    } else if (digits) {
        TRY(read_code(l, at, end, digits, &code));
        text_put_character(out, code);
    } else if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < end && **at >= '0' && **at <= '7'; i++)
            code = code * 8 + (uint32_t)(*(*at)++ - '0');
        text_put_character(out, code);
    } else {
        text_puts(out, "\\");
        text_add(out, &c, 1);
    }
    return OK;
}

static ErrorCode read_string(Lexer *l) {
    char quote = l->text[l->at];
    size_t end = l->at + 1;
    while (end < l->length && l->text[end] != quote) end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->length) return lexer_fail(l, l->line, "a string that begins here does not end");
    const char *at = l->text + l->at + 1, *stop = l->text + end;
    Text out = {0};
    ErrorCode code = OK;
    while (at < stop && code == OK) {
        if (*at == '\\')
            at++, code = read_escape(l, &at, stop, &out);
        else
            text_add(&out, at++, 1);
    }
    l->token.kind = TAG_STRING;
    l->token.literal = value_copy(l->arena, out.data, out.length);
    l->token.length = end + 1 - l->at;
    text_free(&out);
    return code;
}

static size_t skip_digits(const Lexer *l, size_t at) {
    while (at < l->length && is_digit(l->text[at])) at++;
    return at;
}

/* Digits, and with a fraction or an exponent a float. */
static ErrorCode read_number(Lexer *l) {
    size_t whole = skip_digits(l, l->at), end = whole;
    if (end + 1 < l->length && l->text[end] == '.' && is_digit(l->text[end + 1]))
        end = skip_digits(l, end + 1);
    if (end < l->length && (l->text[end] == 'e' || l->text[end] == 'E')) {
        bool sign = end + 1 < l->length && (l->text[end + 1] == '+' || l->text[end + 1] == '-');
        size_t from = end + 1 + sign, to = skip_digits(l, from);
        if (to > from) end = to;
    }
    if (end < l->length && is_letter(l->text[end]))
        return lexer_fail(l, l->line, "a number that goes on with a letter");
    const char *digits = value_copy(l->arena, l->text + l->at, end - l->at).bytes;
    l->token.kind = end > whole ? TAG_FLOAT : TAG_INT;
    l->token.length = end - l->at;
    l->token.literal = end > whole ? (Value){.kind = VALUE_FLOAT, .number = strtod(digits, NULL)}
                                   : value_whole(l->arena, digits);
    return OK;
}

static ErrorCode read_sign(Lexer *l) {
    static const char *const twos[] = {"==", "!=", "<=", ">=", "//", "**"};
    char c = l->text[l->at];
    l->token.kind = TAG_SIGN;
    l->token.length = 1;
    for (size_t i = 0; i < sizeof twos / sizeof *twos; i++)
        if (stands(l, twos[i])) l->token.length = 2;
    if (c && strchr("([{", c)) l->depth++;
    if (c && strchr(")]}", c)) l->depth--;
    if (c && strchr("+-*/%~<>=.,:|()[]{}!", c)) return OK;
    char shown[16];
    return lexer_fail(l, l->line, "'%s' is no part of an expression",
                      error_escape(shown, sizeof shown, &c, 1));
}

/* Whether the tag ends here. */
static bool read_end(Lexer *l) {
    if (l->depth > 0) return false;
    char c = l->at < l->length ? l->text[l->at] : 0;
    bool sign = c == '-' || (c == '+' && !l->print);
    if (sign) l->at++;
    bool ends = stands(l, l->print ? "}}" : "%}");
    if (sign) l->at--;
    if (!ends) return false;
    l->token = (TagToken){.kind = TAG_END, .line = l->line, .text = "the end of the tag", .length = 18};
    advance(l, sign ? 3 : 2);
    end_of_tag(l, sign ? c : 0, !l->print);
    return true;
}

ErrorCode lexer_next(Lexer *l) {
    skip_space(l);
    if (read_end(l)) return OK;
    l->token = (TagToken){.line = l->line, .text = l->text + l->at};
    if (l->at >= l->length) return lexer_fail(l, l->line, "the template ends within a tag");
    char c = l->text[l->at];
    if (c == '"' || c == '\'') {
        TRY(read_string(l));
    } else if (is_digit(c)) {
        TRY(read_number(l));
    } else if (is_letter(c)) {
        l->token.kind = TAG_NAME;
        while (l->at + l->token.length < l->length &&
               (is_letter(c = l->text[l->at + l->token.length]) || is_digit(c)))
            l->token.length++;
    } else {
        TRY(read_sign(l));
    }
    advance(l, l->token.length);
    return OK;
}

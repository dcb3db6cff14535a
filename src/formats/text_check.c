/* Counts invalid bytes as text is read. data/corpus.c judges the counts, for corpora, tasks and tokenizer
 * training alike. */
#include "formats/text_check.h"

#include <string.h>

#include "formats/file_format.h"
#include "tokenizer/utf8.h"

/* Limits for the fraction of bytes that are not UTF-8, and of control characters. */
enum { ENOUGH_BYTES = 4 << 20, ONE_IN = 100 };

static void count_nuls(TextCheck *c, const char *bytes, size_t length) {
    const char *at = bytes, *end = bytes + length;
    while (at < end && (at = memchr(at, 0, (size_t)(end - at))) != NULL) {
        uint64_t place = c->begin + c->bytes + (uint64_t)(at++ - bytes);
        if (c->nuls++ == 0) c->first_nul = place;
        c->nuls_at[place % 4]++;
    }
}

/* In blocks whose count fits a byte: the loop over each becomes vector instructions. */
static uint64_t count_controls(const char *bytes, size_t length) {
    uint64_t count = 0;
    for (size_t at = 0; at < length;) {
        size_t stop = length - at < UINT8_MAX ? length : at + UINT8_MAX;
        uint8_t some = 0;
        for (; at < stop; at++) some = (uint8_t)(some + file_is_control((unsigned char)bytes[at]));
        count += some;
    }
    return count;
}

static uint64_t count_invalid(const char *bytes, size_t length) {
    uint64_t invalid = 0;
    for (size_t at = 0; at < length;) {
        at += utf8_valid_run(bytes + at, length - at);
        size_t run = utf8_invalid_run(bytes + at, length - at);
        invalid += run;
        at += run;
    }
    return invalid;
}

void text_check_add(TextCheck *c, const char *bytes, size_t length) {
    if (!c->nul_is_text) count_nuls(c, bytes, length);
    if (!c->nul_is_text) c->controls += count_controls(bytes, length);
    c->invalid += count_invalid(bytes, length);
    c->bytes += length;
}

/* Whether nearly every byte at such positions is zero. */
static bool are_zero(const TextCheck *c, size_t first, size_t count) {
    bool all = true;
    for (size_t i = first; i < first + count; i++) all &= 10 * c->nuls_at[i] > 9 * (c->bytes / 4);
    return all;
}

/* Numbers of two or four bytes have zeros in their upper bytes. In UTF-16 the upper byte is nearly always
 * zero in European text, in UTF-32 three of four. */
static const char *guess(const TextCheck *c) {
    uint64_t even = c->nuls_at[0] + c->nuls_at[2], odd = c->nuls_at[1] + c->nuls_at[3], half = c->bytes / 2;
    if (c->nuls == c->bytes) return ", and so is all that was read: fetch it again";
    if (are_zero(c, 1, 3)) return "; it looks like UTF-32: convert it with: iconv -f UTF-32LE -t UTF-8";
    if (are_zero(c, 0, 3)) return "; it looks like UTF-32: convert it with: iconv -f UTF-32BE -t UTF-8";
    if (are_zero(c, 2, 2))
        return "; it looks like numbers of 4 bytes: token ids? Give the source format: tokens and dtype: "
               "uint32 or int32";
    if (10 * odd > 6 * half && 10 * even <= odd)
        return "; it looks like UTF-16: give the source encoding: utf-16";
    if (10 * even > 6 * half && 10 * odd <= even)
        return "; it looks like UTF-16: convert it with: iconv -f UTF-16BE -t UTF-8";
    if (odd > 5 * even && 50 * odd > c->bytes)
        return "; it looks like numbers of 2 bytes: token ids? Give the source format: tokens and dtype: "
               "uint16";
    return "";
}

ErrorCode text_check_judge(const TextCheck *c, const char *path, bool end, Error *err) {
    char shown[400];
    error_escape(shown, sizeof shown, path, strlen(path));
    if (c->nuls > 0)
        return error_set(err, ERR_DATA, "%s: not text: byte %llu %sis NUL%s; " FILE_ANY_BYTES, shown,
                         (unsigned long long)c->first_nul + 1, c->recoded ? "of its text as UTF-8 " : "",
                         c->recoded ? "" : guess(c));
    if (!end && c->bytes < ENOUGH_BYTES) return OK;
    if (c->controls > c->bytes / ONE_IN)
        return error_set(err, ERR_DATA,
                         "%s: not text: %llu of %llu bytes are control characters; extract its text first, "
                         "or, " FILE_ANY_BYTES,
                         shown, (unsigned long long)c->controls, (unsigned long long)c->bytes);
    if (c->invalid <= c->bytes / ONE_IN) return OK;
    return error_set(
        err, ERR_DATA,
        "%s: not UTF-8: %llu of %llu bytes are in no character: give the source its encoding "
        "(windows-1252 for western files of Windows, latin-1), convert it with iconv, or, " FILE_ANY_BYTES,
        shown, (unsigned long long)c->invalid, (unsigned long long)c->bytes);
}

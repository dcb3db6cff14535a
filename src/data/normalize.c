/* Unicode normalization form C, by utf8proc, where the build has it. The version of its tables is part of
 * a tokenizer's fingerprint: other tables may give other ids. */
#include "data/normalize.h"

#ifdef WEFT_UTF8PROC

#include <stdlib.h>
#include <utf8proc.h>

bool nfc_available(void) { return true; }

const char *nfc_unicode_version(void) { return utf8proc_unicode_version(); }

/* Every character below U+0300 is in form C, and none of them joins the one before it; U+0300 starts with the
 * byte 0xCC. */
static bool surely_composed(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] >= 0xCC) return false;
    }
    return true;
}

ErrorCode nfc_normalize(const char *text, size_t length, char **out, size_t *out_length, Error *err) {
    *out = NULL;
    if (surely_composed(text, length)) return OK;
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, &composed,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0) {
        free(composed);
        return error_set(err, ERR_INTERNAL, "normalizing %zu bytes of text failed: %s", length,
                         utf8proc_errmsg(n));
    }
    *out = (char *)composed;
    *out_length = (size_t)n;
    return OK;
}

#else

bool nfc_available(void) { return false; }

const char *nfc_unicode_version(void) { return ""; }

ErrorCode nfc_normalize(const char *text, size_t length, char **out, size_t *out_length, Error *err) {
    (void)text, (void)length, (void)out, (void)out_length;
    return error_set(err, ERR_UNAVAILABLE, "this build lacks libutf8proc, which the NFC normalizer needs");
}

#endif

/* A thin wrapper of PCRE2: compiled once, matched against every name. */
#include "base/pattern.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/text.h"

struct Pattern {
    const char *key, *text;
    pcre2_code *code;
    pcre2_match_data *data;
};

ErrorCode pattern_compile(Pattern **out, const char *key, const char *text, Error *err) {
    int problem;
    size_t at;
    PCRE2_UCHAR why[128];
    char shown[80];
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &problem, &at, NULL);
    if (!code) {
        pcre2_get_error_message(problem, why, sizeof why);
        return error_set(err, ERR_CONFIG, "%s: \"%s\" is no regular expression: %s, at character %zu", key,
                         error_escape(shown, sizeof shown, text, strlen(text)), (const char *)why, at + 1);
    }
    *out = mem_alloc(sizeof **out);
    **out = (Pattern){key, text, code, pcre2_match_data_create_from_pattern(code, NULL)};
    CHECK((*out)->data != NULL);
    return OK;
}

void pattern_free(Pattern *p) {
    if (!p) return;
    pcre2_match_data_free(p->data);
    pcre2_code_free(p->code);
    free(p);
}

ErrorCode pattern_find(const Pattern *p, const char *name, bool *found, Error *err) {
    char shown[80];
    int result = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, p->data, NULL);
    *found = result >= 0;
    if (result >= PCRE2_ERROR_NOMATCH) return OK;
    return error_set(err, ERR_CONFIG, "%s: \"%s\" takes too long to match", p->key,
                     error_escape(shown, sizeof shown, p->text, strlen(p->text)));
}

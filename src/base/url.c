#include "base/url.h"

#include <string.h>
#include <strings.h>

bool url_is(const char *path) { return strstr(path, "://") != NULL; }

static bool is_s3(const char *url) { return strncasecmp(url, "s3://", 5) == 0; }

static bool names_secret(const char *name, size_t length) {
    static const char *const words[] = {"sig",  "token", "key", "cred", "secret",
                                        "pass", "pwd",   "jwt", "auth", "accessid"};
    for (size_t at = 0; at < length; at++)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (length - at >= strlen(words[i]) && strncasecmp(name + at, words[i], strlen(words[i])) == 0)
                return true;
    return false;
}

bool url_has_secret(const char *url) {
    const char *query = strchr(url, '?');
    bool key = is_s3(url);
    for (const char *p = query ? query + 1 : ""; *p;) {
        size_t length = strcspn(p, "&"), name = strcspn(p, "=&");
        bool parameter = !key || (p[name] == '=' && !memchr(p, '/', name));
        if (parameter && names_secret(p, name)) return true;
        p += length + (p[length] == '&');
    }
    return false;
}

void url_show(const char *url, Text *out) {
    const char *from = strstr(url, "://");
    if (!from) {
        text_puts(out, url);
        return;
    }
    from += 3;
    text_add(out, url, (size_t)(from - url));
    bool whole = is_s3(url) && !url_has_secret(url);
    size_t authority = strcspn(from, is_s3(url) ? "/" : "/?#");
    size_t length = whole ? strlen(from) : strcspn(from, "?#");
    /* The last @: a password may have others. */
    for (size_t i = authority; i > 0; i--)
        if (from[i - 1] == '@') {
            from += i;
            length -= i;
            break;
        }
    text_add(out, from, length);
}

#include "base/url.h"

#include <string.h>

bool url_is(const char *path) { return strstr(path, "://") != NULL; }

void url_show(const char *url, Text *out) {
    const char *from = strstr(url, "://");
    if (!from || strncmp(url, "s3://", 5) == 0) {
        text_puts(out, url);
        return;
    }
    from += 3;
    text_add(out, url, (size_t)(from - url));
    size_t authority = strcspn(from, "/?#"), length = strcspn(from, "?#");
    /* The last @: a password may have others. */
    for (size_t i = authority; i > 0; i--)
        if (from[i - 1] == '@') {
            from += i;
            length -= i;
            break;
        }
    text_add(out, from, length);
}

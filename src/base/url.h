/* URLs in messages. */
#ifndef WEFT_BASE_URL_H
#define WEFT_BASE_URL_H

#include <stdbool.h>

#include "base/text.h"

bool url_is(const char *path); /* "scheme://" */
/* Whether its query has a parameter that is named as secrets are. In the key of an s3:// URL, ? is a pattern,
 * so the name must end in = and have no slash. */
bool url_has_secret(const char *url);
/* Appends the URL as it may be printed: without user:password@, query and fragment, which may hold secrets. A
 * path that is no URL is appended unchanged. In s3:// URLs, ? and # belong to the key, unless
 * url_has_secret. */
void url_show(const char *url, Text *out);

#endif

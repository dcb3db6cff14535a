/* URLs in messages. */
#ifndef WEFT_BASE_URL_H
#define WEFT_BASE_URL_H

#include <stdbool.h>

#include "base/text.h"

bool url_is(const char *path); /* "scheme://" */
/* Appends the URL as it may be printed: without user:password@, query and fragment, which may hold secrets. A
 * path that is no URL is appended unchanged. In s3:// URLs these characters belong to the key. */
void url_show(const char *url, Text *out);

#endif

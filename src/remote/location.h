/* Addresses of remote files: https://host/path and s3://bucket/key, and http:// on loopback addresses. */
#ifndef WEFT_REMOTE_LOCATION_H
#define WEFT_REMOTE_LOCATION_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/text.h"

/* Points into the URL that it was read from. */
typedef struct Location {
    bool s3;
    const char *authority; /* host and port, or a bucket */
    size_t authority_length;
    const char *path; /* with its slash and query, or a key */
} Location;

/* ERR_CONFIG for anything else, and for a URL that holds a secret: a run keeps its configuration. */
ErrorCode location_read(Location *l, const char *url, Error *err);
/* The same for one that may have braces; also checks these. */
ErrorCode location_check(const char *url, Error *err);
/* s3://BUCKET/PREFIX, without patterns. */
ErrorCode location_check_prefix(Location *l, const char *url, Error *err);
/* s3://BUCKET/PREFIX or https://HOST/PATH, without patterns; slashes at the end are passed over. */
ErrorCode location_check_directory(const char *url, Error *err);
/* Whether the host of any URL is a loopback address. */
bool location_is_loopback(const char *url);

/* Percent-encodes everything but letters, digits, -._~ and the bytes in `also`. */
void percent_encode(const char *bytes, size_t length, const char *also, Text *out);
/* Decodes in place; *length is updated. false for a % without two hexadecimal digits and for a NUL. */
bool percent_decode(char *bytes, size_t *length, bool plus_is_space);

#endif

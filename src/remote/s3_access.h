/* How the object store is reached: endpoint, region and credentials, from the environment and ~/.aws alone.
 *
 * The secrets live in this struct and in libcurl's memory; nothing prints or stores them. */
#ifndef WEFT_REMOTE_S3_ACCESS_H
#define WEFT_REMOTE_S3_ACCESS_H

#include <stddef.h>

#include "base/error.h"
#include "base/text.h"

typedef struct S3Access {
    char *key_id; /* NULL: requests are not signed, as for public buckets */
    char *secret;
    char *session_token; /* NULL: none */
    char *region;
    char *endpoint; /* "https://host", NULL: Amazon's */
} S3Access;

/* ERR_CONFIG for half of a pair, a profile that is not there, kinds of credentials that weft cannot use, and
 * endpoints that are no https:// URL. */
ErrorCode s3_access_open(S3Access *a, Error *err);
void s3_access_close(S3Access *a);
/* The URL of an object, or of the bucket itself for an empty key; `query` is appended as it is. */
void s3_url(const S3Access *a, const char *bucket, const char *key, const char *query, Text *out);

#endif

/* Answers of an object store in XML: pages of ListObjectsV2, and errors. Read by expat, without DTDs and
 * within limits. */
#ifndef WEFT_REMOTE_S3_LISTING_H
#define WEFT_REMOTE_S3_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

typedef struct S3Object {
    char *key;
    char *etag; /* with its quotes, as in the header; "": none */
    uint64_t size;
} S3Object;

typedef struct S3Listing {
    S3Object *objects;
    size_t count, capacity;
    char *next; /* token of the next page; NULL: this is the last */
} S3Listing;

/* Appends the objects of a page; keys are decoded (encoding-type=url). The listing is valid, and to be freed,
 * also after a failure. */
ErrorCode s3_listing_read(S3Listing *listing, const char *xml, size_t length, Error *err);
void s3_listing_free(S3Listing *listing);

/* Appends the text of the first element at this path, as in "/Error/Code"; false if there is none. */
bool s3_element_read(const char *xml, size_t length, const char *path, Text *out);
/* Code and message of an answer that is an error; empty ones for any other text. */
typedef struct S3Problem {
    char code[64], message[256];
} S3Problem;
S3Problem s3_problem_read(const char *xml, size_t length);

#endif

/* A page of an object store's listing, or its error. Keys are texts, sizes numbers; the same page read again
 * adds the same objects. */
#include <string.h>

#include "base/text.h"
#include "fuzz.h"
#include "remote/s3_listing.h"

/* An object costs its struct and two short texts, expat its buffers. */
enum { PER_BYTE = 24, FIXED = 1 << 18 };

static void check_objects(const S3Listing *l, size_t from) {
    for (size_t i = from; i < l->count; i++) {
        const S3Object *o = &l->objects[i];
        REQUIRE(o->key && *o->key && strlen(o->key) <= 8192);
        REQUIRE(o->etag && strlen(o->etag) <= 8192);
        REQUIRE(o->size < 1000000000000000000u);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    S3Listing l = {0};
    Error err = {0};
    fuzz_memory_start();
    bool good = fuzz_ok(s3_listing_read(&l, (const char *)data, size, &err), &err);
    check_objects(&l, 0);
    size_t once = l.count;
    Error again = {0};
    REQUIRE(fuzz_ok(s3_listing_read(&l, (const char *)data, size, &again), &again) == good);
    REQUIRE(l.count == 2 * once);
    for (size_t i = 0; i < once; i++) REQUIRE(strcmp(l.objects[i].key, l.objects[once + i].key) == 0);
    S3Problem p = s3_problem_read((const char *)data, size);
    REQUIRE(strlen(p.code) < sizeof p.code && strlen(p.message) < sizeof p.message);
    for (const char *c = p.message; *c; c++) REQUIRE((unsigned char)*c >= 0x20);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    s3_listing_free(&l);
    return 0;
}

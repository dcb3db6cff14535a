/*  L1. Elements are known by their place: ListBucketResult/Contents/Key and so on. Unknown ones are skipped.
 *  L2. Text of one element is at most MOST_TEXT; a page has at most MOST_OBJECTS, nests at most MOST_DEPTH.
 *  L3. A DTD, which could define entities, ends the reading. */
#include "remote/s3_listing.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "remote/location.h"

#ifdef WEFT_CURL
#include <expat.h>

enum { MOST_TEXT = 8192, MOST_OBJECTS = 10000, MOST_DEPTH = 8, MOST_PATH = 128 };

/* One document while it is read. */
typedef struct Reader {
    XML_Parser parser;
    S3Listing *listing; /* NULL: one element is wanted */
    const char *wanted; /* its path */
    Text *found;        /* its text */
    bool taken;
    char path[MOST_PATH]; /* "/ListBucketResult/Contents/Key" */
    int depth;
    Text text; /* of this element */
    S3Object object;
    bool has_size, truncated, root;
    size_t count;
    const char *wrong;
} Reader;

static void fail(Reader *r, const char *why) {
    if (!r->wrong) r->wrong = why;
    XML_StopParser(r->parser, XML_FALSE);
}

static char *take(Text *text) {
    char *taken = mem_strdup(text->data ? text->data : "");
    text_clear(text);
    return taken;
}

static void clear_object(Reader *r) {
    free(r->object.key);
    free(r->object.etag);
    r->object = (S3Object){0};
    r->has_size = false;
}

static void XMLCALL on_start(void *ctx, const XML_Char *name, const XML_Char **attributes) {
    Reader *r = ctx;
    size_t at = strlen(r->path), length = strlen(name);
    (void)attributes;
    if (r->wrong) return; /* expat may call once more after it was stopped */
    if (++r->depth > MOST_DEPTH || at + length + 2 > sizeof r->path) {
        fail(r, "elements nest too deeply");
        return;
    }
    r->path[at] = '/';
    memcpy(r->path + at + 1, name, length + 1);
    r->root |= strcmp(r->path, "/ListBucketResult") == 0;
    if (strcmp(r->path, "/ListBucketResult/Contents") == 0) clear_object(r);
    text_clear(&r->text);
}

static void XMLCALL on_text(void *ctx, const XML_Char *bytes, int length) {
    Reader *r = ctx;
    if (r->wrong) return;
    if (r->text.length + (size_t)length > MOST_TEXT)
        fail(r, "an element is too long");
    else
        text_add(&r->text, bytes, (size_t)length);
}

static void take_key(Reader *r) {
    free(r->object.key);
    size_t length = r->text.length;
    if (length == 0 || !percent_decode(r->text.data, &length, true)) {
        r->object.key = NULL;
        fail(r, "a key is empty or badly encoded");
        return;
    }
    r->text.data[length] = '\0';
    r->object.key = take(&r->text);
}

static void take_size(Reader *r) {
    const char *text = r->text.data ? r->text.data : "";
    size_t digits = strspn(text, "0123456789");
    r->has_size = digits > 0 && digits <= 18 && text[digits] == '\0' && digits == r->text.length;
    if (r->has_size)
        r->object.size = strtoull(text, NULL, 10);
    else
        fail(r, "a size is no number");
}

static void add_object(Reader *r) {
    S3Listing *l = r->listing;
    if (!r->object.key || !r->has_size) {
        fail(r, "an object has no key or no size");
        return;
    }
    if (r->count++ == MOST_OBJECTS) {
        fail(r, "too many objects in one page");
        return;
    }
    if (l->count == l->capacity) {
        l->capacity = 2 * l->capacity + 16;
        l->objects = mem_grow(l->objects, l->capacity * sizeof *l->objects);
    }
    if (!r->object.etag) r->object.etag = mem_strdup("");
    l->objects[l->count++] = r->object;
    r->object = (S3Object){0};
}

static bool is_at(const Reader *r, const char *path) { return strcmp(r->path, path) == 0; }

static void end_of_listing(Reader *r) {
    if (is_at(r, "/ListBucketResult/Contents")) add_object(r);
    if (is_at(r, "/ListBucketResult/Contents/Key")) take_key(r);
    if (is_at(r, "/ListBucketResult/Contents/Size")) take_size(r);
    if (is_at(r, "/ListBucketResult/Contents/ETag")) {
        free(r->object.etag);
        r->object.etag = take(&r->text);
    }
    if (is_at(r, "/ListBucketResult/IsTruncated"))
        r->truncated = r->text.length == 4 && memcmp(r->text.data, "true", 4) == 0;
    if (is_at(r, "/ListBucketResult/NextContinuationToken")) {
        free(r->listing->next);
        r->listing->next = take(&r->text);
    }
}

static void take_element(Reader *r) {
    if (r->taken || !is_at(r, r->wanted)) return;
    text_add(r->found, r->text.data ? r->text.data : "", r->text.length);
    r->taken = true;
}

static void XMLCALL on_end(void *ctx, const XML_Char *name) {
    Reader *r = ctx;
    (void)name;
    if (r->wrong) return;
    if (r->listing) end_of_listing(r);
    if (r->wanted) take_element(r);
    *strrchr(r->path, '/') = '\0';
    r->depth--;
    text_clear(&r->text);
}

static void XMLCALL on_dtd(void *ctx, const XML_Char *name, const XML_Char *system, const XML_Char *public,
                           int internal) {
    (void)name, (void)system, (void)public, (void)internal;
    fail(ctx, "it has a DTD");
}

/* Returns what is wrong, or NULL. */
static const char *read_xml(Reader *r, const char *xml, size_t length) {
    r->parser = XML_ParserCreate("UTF-8");
    if (!r->parser) return "no memory for a parser of XML";
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, on_start, on_end);
    XML_SetCharacterDataHandler(r->parser, on_text);
    XML_SetStartDoctypeDeclHandler(r->parser, on_dtd);
    bool good = length <= INT32_MAX &&
                XML_Parse(r->parser, length ? xml : "", (int)length, XML_TRUE) == XML_STATUS_OK;
    if (!good && !r->wrong) r->wrong = XML_ErrorString(XML_GetErrorCode(r->parser));
    XML_ParserFree(r->parser);
    text_free(&r->text);
    clear_object(r);
    return r->wrong;
}

ErrorCode s3_listing_read(S3Listing *listing, const char *xml, size_t length, Error *err) {
    Reader r = {.listing = listing};
    free(listing->next);
    listing->next = NULL;
    const char *wrong = read_xml(&r, xml, length);
    if (!wrong && !r.root) wrong = "expected ListBucketResult";
    if (!wrong && r.truncated && !listing->next) wrong = "more pages, but no token for the next";
    if (!wrong && !r.truncated) {
        free(listing->next);
        listing->next = NULL;
    }
    return wrong ? error_set(err, ERR_DATA, "not a listing of an object store: %s", wrong) : OK;
}

bool s3_element_read(const char *xml, size_t length, const char *path, Text *out) {
    Reader r = {.wanted = path, .found = out};
    read_xml(&r, xml, length);
    return r.taken;
}

#else

ErrorCode s3_listing_read(S3Listing *listing, const char *xml, size_t length, Error *err) {
    (void)listing, (void)xml, (void)length;
    return error_set(err, ERR_UNAVAILABLE, "this weft was built without expat");
}

bool s3_element_read(const char *xml, size_t length, const char *path, Text *out) {
    (void)xml, (void)length, (void)path, (void)out;
    return false;
}

#endif

static void read_shown(const char *xml, size_t length, const char *path, char *out, size_t size) {
    Text text = {0};
    s3_element_read(xml, length, path, &text);
    error_escape(out, size, text.data ? text.data : "", text.length);
    text_free(&text);
}

S3Problem s3_problem_read(const char *xml, size_t length) {
    S3Problem p;
    read_shown(xml, length, "/Error/Code", p.code, sizeof p.code);
    read_shown(xml, length, "/Error/Message", p.message, sizeof p.message);
    return p;
}

void s3_listing_free(S3Listing *l) {
    for (size_t i = 0; i < l->count; i++) {
        free(l->objects[i].key);
        free(l->objects[i].etag);
    }
    free(l->objects);
    free(l->next);
    *l = (S3Listing){0};
}

/* What a URL may be is decided here alone: sources, endpoints and redirects are all read by location_read. */
#include "remote/location.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/url.h"
#include "remote/braces.h"

enum { MOST_URL = 4096, MOST_HOST = 255, MOST_PORT = 65535 };

/* `format` has one %s, the URL as it may be printed. */
#define refuse(url, err, ...) refuse_url(url, err, error_set(err, ERR_CONFIG, __VA_ARGS__))
static ErrorCode refuse_url(const char *url, Error *err, ErrorCode code) {
    Text shown = {0};
    url_show(url, &shown);
    code = error_context(err, "%.300s", shown.data ? shown.data : "");
    text_free(&shown);
    return code;
}

static bool has_scheme(const char *url, const char *scheme) {
    return strncasecmp(url, scheme, strlen(scheme)) == 0;
}

static ErrorCode refuse_scheme(const char *url, Error *err) {
    if (has_scheme(url, "gs://"))
        return refuse(url, err,
                      "for Google Cloud Storage give s3://, AWS_ENDPOINT_URL=https://storage.googleapis.com "
                      "and an HMAC key");
    if (has_scheme(url, "hf://"))
        return refuse(url, err,
                      "for files of the Hugging Face Hub give "
                      "https://huggingface.co/datasets/NAME/resolve/main/FILE");
    if (has_scheme(url, "file://")) return refuse(url, err, "for a local file give its path");
    return refuse(url, err, "unknown kind of URL: expected https:// or s3://");
}

bool location_is_loopback(const char *url) {
    const char *authority = strstr(url, "://") + 3;
    size_t length = strcspn(authority, "/?#");
    char host[MOST_HOST + 1];
    struct in_addr address;
    if (length > 4 && strncmp(authority, "[::1]", 5) == 0) return length == 5 || authority[5] == ':';
    const char *colon = memchr(authority, ':', length);
    if (colon) length = (size_t)(colon - authority);
    if (length > MOST_HOST) return false;
    memcpy(host, authority, length);
    host[length] = '\0';
    if (strcasecmp(host, "localhost") == 0) return true;
    return inet_pton(AF_INET, host, &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

static bool is_host(const char *s, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr(".-:[]_", s[i])) return false;
    return length > 0 && length <= MOST_HOST;
}

static bool is_bucket(const char *s, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr(".-_", s[i])) return false;
    return length >= 3 && length <= MOST_HOST;
}

/* Of "host:port" and "[address]:port"; an empty one, or none, is fine. */
static bool has_valid_port(const char *authority, size_t length) {
    const char *end = authority + length, *colon = memrchr(authority, ':', length);
    const char *bracket = memrchr(authority, ']', length);
    unsigned port = 1;
    if (!colon || (bracket && colon < bracket)) return true;
    for (const char *p = colon + 1; p < end && port <= MOST_PORT; p++) {
        if (!isdigit((unsigned char)*p)) return false;
        port = (p == colon + 1 ? 0 : 10 * port) + (unsigned)(*p - '0');
    }
    return port > 0 && port <= MOST_PORT;
}

static ErrorCode refuse_secret(const char *url, Error *err) {
    return refuse(url, err,
                  "its query holds a key, token or signature, which the run directory would keep with the "
                  "configuration: use s3:// with credentials from the environment, or download the file");
}

static ErrorCode check_http(const Location *l, const char *url, Error *err) {
    size_t path = strcspn(l->path, "?");
    if (!is_host(l->authority, l->authority_length)) return refuse(url, err, "no valid host");
    if (!has_valid_port(l->authority, l->authority_length))
        return refuse(url, err, "no valid port: expected 1 to %d", MOST_PORT);
    if (has_scheme(url, "http://") && !location_is_loopback(url))
        return refuse(url, err,
                      "http:// is read only from this machine (localhost, 127.0.0.1): use https://");
    if (strchr(l->path, '#')) return refuse(url, err, "a fragment (#) has no meaning here; write %%23");
    if (url_has_secret(url)) return refuse_secret(url, err);
    if (path == 0 || l->path[path - 1] == '/') return refuse(url, err, "the URL names no file");
    return OK;
}

static ErrorCode check_s3(const Location *l, const char *url, Error *err) {
    if (!is_bucket(l->authority, l->authority_length))
        return refuse(url, err,
                      "no valid bucket: expected s3://BUCKET/KEY with 3 or more letters, digits, - or .");
    if (!*l->path) return refuse(url, err, "no key after the bucket: expected s3://BUCKET/KEY");
    if (url_has_secret(url)) return refuse_secret(url, err);
    return OK;
}

static ErrorCode check_characters(const char *url, Error *err) {
    if (strlen(url) > MOST_URL) return refuse(url, err, "longer than %d bytes", MOST_URL);
    for (const char *p = url; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) return refuse(url, err, "a control character in a URL");
    return OK;
}

ErrorCode location_read(Location *l, const char *url, Error *err) {
    TRY(check_characters(url, err));
    l->s3 = has_scheme(url, "s3://");
    if (!l->s3 && !has_scheme(url, "https://") && !has_scheme(url, "http://")) return refuse_scheme(url, err);
    l->authority = strstr(url, "://") + 3;
    l->authority_length = strcspn(l->authority, l->s3 ? "/" : "/?#");
    l->path = l->authority + l->authority_length;
    if (memchr(l->authority, '@', l->authority_length))
        return refuse(
            url, err,
            "a name or password in a URL is refused, since the run directory would keep it with the "
            "configuration: credentials of s3:// come from the environment");
    if (l->s3 && *l->path == '/') l->path++;
    return l->s3 ? check_s3(l, url, err) : check_http(l, url, err);
}

ErrorCode location_check(const char *url, Error *err) {
    Location l;
    char **urls;
    size_t count;
    TRY(check_characters(url, err));
    ErrorCode code = braces_expand(url, &urls, &count, err);
    if (code != OK) return refuse_url(url, err, code);
    code = location_read(&l, urls[0], err);
    if (code == OK && !l.s3 && strpbrk(l.path, "*["))
        code = refuse(url, err,
                      "https:// has no listing for a pattern: name the files, as in part-{00..99}.parquet");
    file_glob_free(urls, count);
    return code;
}

ErrorCode location_check_prefix(Location *l, const char *url, Error *err) {
    TRY(check_characters(url, err));
    if (!has_scheme(url, "s3://")) return refuse(url, err, "expected s3://BUCKET/PREFIX");
    TRY(location_read(l, url, err));
    if (!strpbrk(l->path, "*?[]{}")) return OK;
    return refuse(url, err, "expected s3://BUCKET/PREFIX, without a pattern");
}

static ErrorCode check_directory(const char *url, Error *err) {
    Location l;
    if (has_scheme(url, "s3://")) return location_check_prefix(&l, url, err);
    TRY(location_read(&l, url, err));
    if (!strpbrk(l.path, "*?[]{}")) return OK;
    return refuse(url, err, "expected https://HOST/PATH, without a pattern or a query");
}

ErrorCode location_check_directory(const char *url, Error *err) {
    char *bare = mem_strdup(url);
    for (size_t i = strlen(bare); i > 0 && bare[i - 1] == '/'; i--) bare[i - 1] = '\0';
    ErrorCode code = check_directory(bare, err);
    free(bare);
    return code;
}

void percent_encode(const char *bytes, size_t length, const char *also, Text *out) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c < 0x80 && c > 0 && (isalnum(c) || strchr("-._~", c) || strchr(also, c)))
            text_add(out, &bytes[i], 1);
        else
            text_printf(out, "%%%02X", c);
    }
}

static int digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool percent_decode(char *bytes, size_t *length, bool plus_is_space) {
    size_t to = 0;
    for (size_t at = 0; at < *length; at++, to++) {
        char c = bytes[at];
        if (c == '+' && plus_is_space) c = ' ';
        if (c == '%') {
            int high = *length - at > 2 ? digit(bytes[at + 1]) : -1;
            int low = high >= 0 ? digit(bytes[at + 2]) : -1;
            if (low < 0) return false;
            c = (char)(high * 16 + low);
            at += 2;
        }
        if (c == '\0') return false;
        bytes[to] = c;
    }
    *length = to;
    return true;
}

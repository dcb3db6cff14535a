#include "remote/s3_access.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "remote/location.h"

#define MOST_PROFILES ((size_t)1 << 20)

/* The members of a profile that are looked at; the first value wins, so that credentials precede the
 * configuration. */
typedef struct Profile {
    char *name;
    bool found;
    char *key_id, *secret, *session_token, *region, *endpoint;
    char *other; /* a way to get credentials that is not supported */
} Profile;

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void take(char **to, const char *value) {
    if (!*to && value && *value) *to = mem_strdup(value);
}

static void forget(char **secret) {
    if (*secret) explicit_bzero(*secret, strlen(*secret));
    free(*secret);
    *secret = NULL;
}

/* ---- ~/.aws ---- */

static void take_member(Profile *p, const char *name, const char *value) {
    const struct {
        const char *name;
        char **to;
    } known[] = {{"aws_access_key_id", &p->key_id},
                 {"aws_secret_access_key", &p->secret},
                 {"aws_session_token", &p->session_token},
                 {"region", &p->region},
                 {"endpoint_url", &p->endpoint}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(name, known[i].name) == 0) take(known[i].to, value);
    if (strncmp(name, "sso_", 4) == 0 || strcmp(name, "role_arn") == 0 ||
        strcmp(name, "credential_process") == 0 || strcmp(name, "web_identity_token_file") == 0)
        take(&p->other, name);
}

static char *trim(char *text) {
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r", text[length - 1])) text[--length] = '\0';
    return text;
}

/* "[name]", in the configuration "[profile name]"; cuts the line. */
static bool is_section(char *line, const char *name) {
    char *end = strchr(line, ']');
    if (end) *end = '\0';
    char *found = trim(line + 1);
    if (strncmp(found, "profile ", 8) == 0) found = trim(found + 8);
    return end && strcmp(found, name) == 0;
}

static void read_line(Profile *p, char *line, bool *inside) {
    bool nested = *line == ' ' || *line == '\t'; /* the settings of one service */
    line = trim(line);
    char *equals = strchr(line, '=');
    if (!*line || *line == '#' || *line == ';') return;
    if (*line == '[') {
        *inside = is_section(line, p->name);
        p->found |= *inside;
    } else if (*inside && equals && !nested) {
        *equals = '\0';
        take_member(p, trim(line), trim(equals + 1));
    }
}

static ErrorCode read_profiles(Profile *p, const char *variable, const char *name, Error *err) {
    const char *given = environment(variable), *home = environment("HOME");
    Text path = {0};
    char *text = NULL;
    size_t length = 0;
    text_printf(&path, given ? "%s" : "%s/.aws/%s", given ? given : home ? home : "", name);
    ErrorCode code = OK;
    if (given || file_exists(path.data)) code = file_read(path.data, MOST_PROFILES, &text, &length, err);
    bool inside = false;
    char *rest = text;
    for (char *line; code == OK && (line = strsep(&rest, "\n"));) read_line(p, line, &inside);
    if (text) explicit_bzero(text, length);
    free(text);
    text_free(&path);
    return code;
}

static void profile_free(Profile *p) {
    forget(&p->secret);
    forget(&p->session_token);
    free(p->name);
    free(p->key_id);
    free(p->region);
    free(p->endpoint);
    free(p->other);
}

static ErrorCode read_profile(Profile *p, Error *err) {
    const char *asked = environment("AWS_PROFILE");
    *p = (Profile){.name = mem_strdup(asked ? asked : "default")};
    TRY(read_profiles(p, "AWS_SHARED_CREDENTIALS_FILE", "credentials", err));
    TRY(read_profiles(p, "AWS_CONFIG_FILE", "config", err));
    if (asked && !p->found)
        return error_set(err, ERR_CONFIG,
                         "AWS_PROFILE is %s, which neither ~/.aws/credentials nor ~/.aws/config has", asked);
    return OK;
}

/* ---- all together ---- */

/* Keys are taken as a pair from one place: an id of the environment with the secret of a file would be
 * refused by the store with no hint why. */
static ErrorCode take_keys(S3Access *a, const Profile *p, Error *err) {
    const char *id = environment("AWS_ACCESS_KEY_ID"), *secret = environment("AWS_SECRET_ACCESS_KEY");
    bool named = id || secret;
    if (!named) {
        id = p->key_id;
        secret = p->secret;
    }
    if (!id != !secret)
        return error_set(err, ERR_CONFIG, "%s has only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                         named ? "the environment" : "the profile in ~/.aws");
    if (!id && p->other)
        return error_set(err, ERR_CONFIG,
                         "profile %s in ~/.aws gets its credentials by %s, which weft cannot do: export "
                         "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
                         p->name, p->other);
    if (!id) return OK;
    take(&a->key_id, id);
    take(&a->secret, secret);
    take(&a->session_token, named ? environment("AWS_SESSION_TOKEN") : p->session_token);
    return OK;
}

static void take_region(S3Access *a, const Profile *p) {
    take(&a->region, environment("AWS_REGION"));
    take(&a->region, environment("AWS_DEFAULT_REGION"));
    take(&a->region, p->region);
    take(&a->region, "us-east-1");
}

static ErrorCode take_endpoint(S3Access *a, const Profile *p, Error *err) {
    Location l;
    take(&a->endpoint, environment("AWS_ENDPOINT_URL_S3"));
    take(&a->endpoint, environment("AWS_ENDPOINT_URL"));
    take(&a->endpoint, p->endpoint);
    if (!a->endpoint) return OK;
    size_t length = strlen(a->endpoint);
    while (length > 0 && a->endpoint[length - 1] == '/') a->endpoint[--length] = '\0';
    /* location_read wants a file. */
    Text probe = {0};
    text_printf(&probe, "%s/x", a->endpoint);
    ErrorCode code = location_read(&l, probe.data, err);
    if (code == OK && l.s3) code = error_set(err, ERR_CONFIG, "%s: expected https://", a->endpoint);
    text_free(&probe);
    return code == OK ? OK : error_context(err, "AWS_ENDPOINT_URL");
}

ErrorCode s3_access_open(S3Access *a, Error *err) {
    Profile p;
    *a = (S3Access){0};
    ErrorCode code = read_profile(&p, err);
    if (code == OK) code = take_keys(a, &p, err);
    if (code == OK) take_region(a, &p);
    if (code == OK) code = take_endpoint(a, &p, err);
    profile_free(&p);
    if (code != OK) s3_access_close(a);
    return code;
}

void s3_access_close(S3Access *a) {
    forget(&a->secret);
    forget(&a->session_token);
    free(a->key_id);
    free(a->region);
    free(a->endpoint);
    *a = (S3Access){0};
}

/* Buckets whose names have dots fit no certificate of *.s3.amazonaws.com. */
void s3_url(const S3Access *a, const char *bucket, const char *key, const char *query, Text *out) {
    if (a->endpoint)
        text_printf(out, "%s/%s/", a->endpoint, bucket);
    else if (strchr(bucket, '.'))
        text_printf(out, "https://s3.%s.amazonaws.com/%s/", a->region, bucket);
    else
        text_printf(out, "https://%s.s3.%s.amazonaws.com/", bucket, a->region);
    percent_encode(key, strlen(key), "/", out);
    if (query && *query) text_printf(out, "?%s", query);
}

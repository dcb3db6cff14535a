/* Remote files without a network: URLs and what is refused of them, braces, listings, credentials. */
#include "support/files.h"

#include "base/url.h"
#include "remote/braces.h"
#include "remote/location.h"
#include "remote/s3_access.h"
#include "remote/s3_listing.h"

/* ---- URLs ---- */

static void test_urls(void **state) {
    static const char *const good[] = {
        "https://host/a.txt",
        "https://host:8443/a/b.jsonl.zst?download=true",
        "https://host/part-{00..99}.parquet",
        "https://host/with space and \xc3\xa9.txt",
        "http://127.0.0.1:8000/a.txt",
        "http://localhost/a.txt",
        "http://[::1]:80/a.txt",
        "s3://bucket/corpus/*.jsonl",
        "s3://my.bucket-1/a?b#c@d",
        "s3://bucket/year=202?/tokens=3/part-?-key.parquet",
        "https://host:/a",
        "https://host:65535/a",
        "S3://bucket/{a,b}/[0-9].txt",
    };
    static const char *const bad[][2] = {
        {"ftp://host/a", "ftp://host/a: unknown kind of URL: expected https:// or s3://"},
        {"http://example.org/a", "http:// is read only from this machine"},
        {"http://127.0.0.1.example.org/a", "http:// is read only from this machine"},
        {"http://localhost.example.org/a", "http:// is read only from this machine"},
        {"https://name:hunter2@host/a", "https://host/a: a name or password in a URL is refused"},
        {"https://name@ho@st/a", "https://st/a: a name or password in a URL is refused"},
        {"https://host/a?X-Amz-Signature=hunter2",
         "https://host/a: its query holds a key, token or signature"},
        {"https://host/a?b=c&sig=hunter2", "its query holds a key, token or signature"},
        {"https://host/a?ACCESS_TOKEN=hunter2", "its query holds a key, token or signature"},
        {"https://host/a?pwd=hunter2", "its query holds a key, token or signature"},
        {"https://host/a?user=x&passwd=hunter2", "its query holds a key, token or signature"},
        {"https://host:99999/a", "no valid port: expected 1 to 65535"},
        {"https://host:0/a", "no valid port"},
        {"https://host:8o/a", "no valid port"},
        {"https://[::1]:65536/a", "no valid port"},
        {"s3://name:hunter2@bucket/a", "s3://bucket/a: a name or password in a URL is refused"},
        {"s3://bucket/a?X-Amz-Signature=hunter2", "s3://bucket/a: its query holds a key"},
        {"https://host/", "the URL names no file"},
        {"https://host", "the URL names no file"},
        {"https:///a", "no valid host"},
        {"https://host/a#b", "a fragment (#)"},
        {"https://host/*.txt", "https:// has no listing for a pattern"},
        {"https://host/a\nb", "a control character"},
        {"gs://bucket/a", "AWS_ENDPOINT_URL=https://storage.googleapis.com"},
        {"hf://datasets/a", "https://huggingface.co/datasets/NAME/resolve/main/FILE"},
        {"file:///a", "for a local file give its path"},
        {"s3://b/a", "no valid bucket"},
        {"s3://bu*ket/a", "no valid bucket"},
        {"s3://bucket", "no key after the bucket"},
        {"s3://bucket/", "no key after the bucket"},
        {"s3://bucket/{a", "braces do not match"},
        {"s3://bucket/{a{b,c}}", "braces do not match"},
        {"s3://bucket/{a}", "{a}: expected {00..99} or {a,b}"},
        {"s3://bucket/{1..1000000}", "more than 100000 files"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Error err = {0};
        if (location_check(good[i], &err) != OK) fail_msg("%s: %s", good[i], err.message);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Error err = {0};
        assert_int_equal(location_check(bad[i][0], &err), ERR_CONFIG);
        if (!strstr(err.message, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.message);
        assert_null(strstr(err.message, "hunter2"));
    }
}

/* checkpoint.mirror */
static void test_prefixes(void **state) {
    static const char *const bad[][2] = {
        {"/tmp/x", "/tmp/x: expected s3://BUCKET/PREFIX"},
        {"https://name:hunter2@host/a", "https://host/a: expected s3://BUCKET/PREFIX"},
        {"s3://name:hunter2@bucket/a", "s3://bucket/a: a name or password in a URL is refused"},
        {"s3://bucket/a?X-Amz-Signature=hunter2", "s3://bucket/a: its query holds a key"},
        {"s3://bucket/a*", "expected s3://BUCKET/PREFIX, without a pattern"},
        {"s3://bucket", "no key after the bucket"},
    };
    Location l;
    Error err = {0};
    (void)state;
    assert_int_equal(location_check_prefix(&l, "s3://bucket/runs/one/", &err), OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(location_check_prefix(&l, bad[i][0], &err), ERR_CONFIG);
        if (!strstr(err.message, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.message);
        assert_null(strstr(err.message, "hunter2"));
        assert_null(strstr(err.message, "or https://"));
    }
}

/* A mirrored run, or one of its steps. */
static void test_directories(void **state) {
    static const char *const bad[][2] = {
        {"https://host/a?b=c", "https://host/a: expected https://HOST/PATH, without a pattern or a query"},
        {"https://host/step-{1,2}", "without a pattern or a query"},
        {"https://host", "the URL names no file"},
        {"http://host/a", "use https://"},
        {"https://name:hunter2@host/a", "a name or password in a URL is refused"},
        {"s3://bucket/a*", "expected s3://BUCKET/PREFIX, without a pattern"},
    };
    Error err = {0};
    (void)state;
    assert_int_equal(location_check_directory("s3://bucket/runs/one", &err), OK);
    assert_int_equal(location_check_directory("https://host:8443/runs/one/", &err), OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(location_check_directory(bad[i][0], &err), ERR_CONFIG);
        if (!strstr(err.message, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.message);
        assert_null(strstr(err.message, "hunter2"));
    }
}

static void test_shown(void **state) {
    static const char *const cases[][2] = {
        {"https://name:hunt@r2@host/a?sig=hunter2#x", "https://host/a"},
        {"https://host?hunter2/@a", "https://host"},
        {"https://host/a@b", "https://host/a@b"},
        {"s3://bucket/a?b", "s3://bucket/a?b"},
        {"s3://name:hunter2@bucket/a@b", "s3://bucket/a@b"},
        {"S3://bucket/a?b&token=hunter2", "S3://bucket/a"},
        {"a/b?c", "a/b?c"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text shown = {0};
        url_show(cases[i][0], &shown);
        assert_string_equal(shown.data, cases[i][1]);
        text_free(&shown);
    }
}

static void test_braces(void **state) {
    static const char *const cases[][2] = {
        {"a", "a"},
        {"x{00..03}", "x00 x01 x02 x03"},
        {"{9..11}", "9 10 11"},
        {"{2..0}", "2 1 0"},
        {"{8..010}", "008 009 010"},
        {"{a,,b}c", "ac c bc"},
        {"{a,b}/{1..2}", "a/1 a/2 b/1 b/2"},
        {"{1..2,x}", "1..2 x"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text all = {0};
        char **texts;
        size_t count;
        Error err = {0};
        if (braces_expand(cases[i][0], &texts, &count, &err) != OK) fail_msg("%s", err.message);
        for (size_t k = 0; k < count; k++) text_printf(&all, "%s%s", k ? " " : "", texts[k]);
        assert_string_equal(all.data, cases[i][1]);
        file_glob_free(texts, count);
        text_free(&all);
    }
}

static void test_percent(void **state) {
    char text[] = "a%2Fb+c%c3%A9", bad[] = "a%2", zero[] = "%00";
    size_t length = strlen(text), three = 3;
    Text out = {0};
    (void)state;
    assert_true(percent_decode(text, &length, true));
    assert_int_equal(length, 7);
    assert_memory_equal(text, "a/b c\xc3\xa9", 7);
    assert_false(percent_decode(bad, &three, true));
    assert_false(percent_decode(zero, &three, true));
    percent_encode("dump=2024/a b~c+(\xc3\xa9)", 20, "/", &out);
    assert_string_equal(out.data, "dump%3D2024/a%20b~c%2B%28%C3%A9%29");
    text_free(&out);
}

/* ---- listings ---- */

#define LIST(text) "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\">" text "</ListBucketResult>"

static void test_listing(void **state) {
    static const char page[] =
        LIST("<Prefix/><Contents><Key>a/b%2Bc+d.txt</Key><ETag>&quot;0f&quot;</ETag><Size>12</Size>"
             "<Owner><ID>x</ID></Owner></Contents><CommonPrefixes><Prefix>a/e/</Prefix></CommonPrefixes>"
             "<Contents><Size>0</Size><Key>z</Key></Contents>"
             "<NextContinuationToken>1+/=</NextContinuationToken><IsTruncated>true</IsTruncated>");
    S3Listing l = {0};
    Error err = {0};
    (void)state;
    if (s3_listing_read(&l, page, strlen(page), &err) == ERR_UNAVAILABLE) skip();
    assert_int_equal(err.code, OK);
    assert_int_equal(l.count, 2);
    assert_string_equal(l.objects[0].key, "a/b+c d.txt");
    assert_string_equal(l.objects[0].etag, "\"0f\"");
    assert_int_equal(l.objects[0].size, 12);
    assert_string_equal(l.objects[1].key, "z");
    assert_string_equal(l.next, "1+/=");
    /* The last page is appended. */
    const char *last =
        LIST("<Contents><Key>zz</Key><Size>1</Size></Contents><IsTruncated>false</IsTruncated>");
    assert_int_equal(s3_listing_read(&l, last, strlen(last), &err), OK);
    assert_int_equal(l.count, 3);
    assert_null(l.next);
    s3_listing_free(&l);
}

static void test_listing_refusals(void **state) {
    static const char *const cases[][2] = {
        {"", "no element found"},
        {"<html></html>", "expected ListBucketResult"},
        {"<ListBucketResult>", "no element found"},
        {LIST("<Contents><Key>a</Key></Contents>"), "no key or no size"},
        {LIST("<Contents><Size>1</Size></Contents>"), "no key or no size"},
        {LIST("<Contents><Key>a</Key><Size>-1</Size></Contents>"), "a size is no number"},
        {LIST("<Contents><Key>a</Key><Size>1e3</Size></Contents>"), "a size is no number"},
        {LIST("<Contents><Key>a</Key><Size>1234567890123456789</Size></Contents>"), "a size is no number"},
        {LIST("<Contents><Key>a%zz</Key><Size>1</Size></Contents>"), "badly encoded"},
        {LIST("<Contents><Key></Key><Size>1</Size></Contents>"), "badly encoded"},
        {LIST("<IsTruncated>true</IsTruncated>"), "no token for the next"},
        {LIST("<a><b><c><d><e><f><g><h/></g></f></e></d></c></b></a>"), "nest too deeply"},
        {"<!DOCTYPE x [<!ENTITY a \"aaaa\">]><ListBucketResult/>", "a DTD"},
        {"<!DOCTYPE x SYSTEM \"file:///etc/passwd\"><ListBucketResult/>", "a DTD"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        S3Listing l = {0};
        Error err = {0};
        ErrorCode code = s3_listing_read(&l, cases[i][0], strlen(cases[i][0]), &err);
        if (code == ERR_UNAVAILABLE) skip();
        assert_int_equal(code, ERR_DATA);
        if (!strstr(err.message, cases[i][1])) fail_msg("%s: %s", cases[i][0], err.message);
        s3_listing_free(&l);
    }
    Text large = {0};
    S3Listing l = {0};
    Error err = {0};
    text_puts(&large, "<ListBucketResult><Contents><Key>");
    for (int i = 0; i < 9000; i++) text_puts(&large, "k");
    text_puts(&large, "</Key></Contents></ListBucketResult>");
    assert_int_equal(s3_listing_read(&l, large.data, large.length, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "an element is too long"));
    text_free(&large);
    s3_listing_free(&l);
}

static void test_problem(void **state) {
    static const char text[] = "<Error><Code>NoSuchKey</Code><Message>It is\x09gone</Message></Error>";
    S3Problem p = s3_problem_read(text, strlen(text));
    (void)state;
    if (!*p.code) skip();
    assert_string_equal(p.code, "NoSuchKey");
    assert_string_equal(p.message, "It is\\x09gone");
    p = s3_problem_read("<html>", 6);
    assert_string_equal(p.code, "");
    p = s3_problem_read(NULL, 0);
    assert_string_equal(p.message, "");
}

/* ---- credentials ---- */

static void forget_environment(void) {
    static const char *const names[] = {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",       "AWS_SESSION_TOKEN", "AWS_REGION",
        "AWS_PROFILE",       "AWS_DEFAULT_REGION",          "AWS_ENDPOINT_URL",  "AWS_ENDPOINT_URL_S3",
        "AWS_CONFIG_FILE",   "AWS_SHARED_CREDENTIALS_FILE",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    setenv("HOME", files_root, 1);
}

static void refused(const char *part) {
    S3Access a;
    Error err = {0};
    assert_int_equal(s3_access_open(&a, &err), ERR_CONFIG);
    if (!strstr(err.message, part)) fail_msg("no \"%s\" in: %s", part, err.message);
    assert_null(strstr(err.message, "hunter2"));
    assert_null(a.secret);
}

static void test_access(void **state) {
    S3Access a;
    Error err = {0};
    Text url = {0};
    (void)state;
    forget_environment();
    assert_int_equal(s3_access_open(&a, &err), OK);
    assert_null(a.key_id);
    assert_string_equal(a.region, "us-east-1");
    s3_url(&a, "bucket", "a b/=", "list-type=2", &url);
    text_puts(&url, " ");
    s3_url(&a, "my.bucket", "a", NULL, &url);
    assert_string_equal(url.data, "https://bucket.s3.us-east-1.amazonaws.com/a%20b/%3D?list-type=2 "
                                  "https://s3.us-east-1.amazonaws.com/my.bucket/a");
    s3_access_close(&a);
    text_clear(&url);

    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    refused("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SECRET_ACCESS_KEY", "hunter2", 1);
    setenv("AWS_SESSION_TOKEN", "hunter2", 1);
    setenv("AWS_DEFAULT_REGION", "eu-west-1", 1);
    setenv("AWS_ENDPOINT_URL", "https://store.example:9000/", 1);
    assert_int_equal(s3_access_open(&a, &err), OK);
    assert_string_equal(a.session_token, "hunter2");
    assert_string_equal(a.region, "eu-west-1");
    s3_url(&a, "bucket", "", "uploads=", &url);
    assert_string_equal(url.data, "https://store.example:9000/bucket/?uploads=");
    s3_access_close(&a);
    text_free(&url);
    setenv("AWS_ENDPOINT_URL_S3", "http://store.example", 1);
    refused("AWS_ENDPOINT_URL: http://store.example/x: http:// is read only from this machine");
    setenv("AWS_ENDPOINT_URL_S3", "https://name:hunter2@store.example", 1);
    refused("a name or password in a URL is refused");
}

static void test_profiles(void **state) {
    S3Access a;
    Error err = {0};
    (void)state;
    forget_environment();
    assert_int_equal(access(files_mkdir(".aws"), X_OK), 0);
    files_text(".aws/credentials",
               "# comment\n[default]\naws_access_key_id = first\n"
               "aws_secret_access_key=hunter21 \r\n\n[ other ]\nAWS_ACCESS_KEY_ID=second\n"
               "aws_secret_access_key = hunter2=2/+\naws_session_token = hunter23\n"
               "[half]\naws_access_key_id = third\n[role]\nrole_arn = arn:x\n");
    files_text(".aws/config", "[default]\nregion = eu-north-1\n[profile other]\ns3 =\n  region = nested\n"
                              "endpoint_url = https://r2.example\n");
    assert_int_equal(s3_access_open(&a, &err), OK);
    assert_string_equal(a.key_id, "first");
    assert_string_equal(a.secret, "hunter21");
    assert_string_equal(a.region, "eu-north-1");
    assert_null(a.session_token);
    s3_access_close(&a);
    setenv("AWS_PROFILE", "other", 1);
    assert_int_equal(s3_access_open(&a, &err), OK);
    assert_string_equal(a.key_id, "second");
    assert_string_equal(a.secret, "hunter2=2/+");
    assert_string_equal(a.session_token, "hunter23");
    assert_string_equal(a.region, "us-east-1");
    assert_string_equal(a.endpoint, "https://r2.example");
    s3_access_close(&a);
    setenv("AWS_PROFILE", "half", 1);
    refused("the profile in ~/.aws has only one");
    setenv("AWS_PROFILE", "role", 1);
    refused("gets its credentials by role_arn, which weft cannot do");
    setenv("AWS_PROFILE", "none", 1);
    refused("AWS_PROFILE is none, which neither ~/.aws/credentials nor ~/.aws/config has");
    /* A pair comes from one place. */
    setenv("AWS_PROFILE", "other", 1);
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hunter24", 1);
    assert_int_equal(s3_access_open(&a, &err), OK);
    assert_string_equal(a.secret, "hunter24");
    assert_null(a.session_token);
    s3_access_close(&a);
    setenv("AWS_SHARED_CREDENTIALS_FILE", files_path("nothing"), 1);
    assert_int_not_equal(s3_access_open(&a, &err), OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_directories), cmocka_unit_test(test_shown),
        cmocka_unit_test(test_braces),      cmocka_unit_test(test_percent),
        cmocka_unit_test(test_listing),     cmocka_unit_test(test_listing_refusals),
        cmocka_unit_test(test_problem),     cmocka_unit_test(test_access),
        cmocka_unit_test(test_profiles),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

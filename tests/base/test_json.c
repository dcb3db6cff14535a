/* JSON: what is refused and where, typed members, writing, damaged input. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/damage.h"

static void assert_refused(const char *data, size_t length, const char *message) {
    cJSON *root = NULL;
    Error err = {0};
    assert_int_equal(json_parse("x.json", data, length, &root, &err), ERR_DATA);
    assert_null(root);
    assert_string_equal(err.message, message);
}

static void test_refusals(void **state) {
    static const char *const cases[][2] = {
        {"", "x.json:1:1: expected a value, found the end"},
        {"{\"a\": 1} x", "x.json:1:10: expected the end, found 'x'"},
        {"[1,\n 2,\n]", "x.json:3:1: expected a value, found ']'"},
        {"{\"a\":1,}", "x.json:1:8: expected a key in double quotes, found '}'"},
        {"{\"a\":1,\n \"a\":2}", "x.json:2:2: duplicate key"},
        {"{\"a\":1,\"b\":{\"c\":[{\"d\":1,\"\\u0064\":2}]}}", "x.json:1:25: duplicate key"},
        {"{\"\xc3\xa9\":1, \"\\u00e9\":2}", "x.json:1:9: duplicate key"},
        {"{a:1}", "x.json:1:2: expected a key in double quotes, found 'a'"},
        {"[1 2]", "x.json:1:4: expected ',' or ']', found '2'"},
        {"{\"a\" 1}", "x.json:1:6: expected ':' after the key, found '1'"},
        {"[01]", "x.json:1:2: a number must not start with 0"},
        {"[-]", "x.json:1:3: expected a digit, found ']'"},
        {"[1.]", "x.json:1:4: expected a digit after the point, found ']'"},
        {"[1e]", "x.json:1:4: expected a digit in the exponent, found ']'"},
        {"[.5]", "x.json:1:2: expected a value, found '.'"},
        {"[+1]", "x.json:1:2: expected a value, found '+'"},
        {"[1e999]", "x.json:1:2: this number is out of range"},
        {"[NaN]", "x.json:1:2: expected a value, found 'N'"},
        {"[-Infinity]", "x.json:1:3: expected a digit, found 'I'"},
        {"[nul]", "x.json:1:2: expected a value, found 'n'"},
        {"[\"abc]", "x.json:1:2: this string does not end"},
        {"[\"a\nb\"]", "x.json:1:4: a control byte in a string must be escaped"},
        {"[\"\\x41\"]", "x.json:1:3: bad escape in a string"},
        {"[\"\\u12g4\"]", "x.json:1:3: bad escape in a string"},
        {"[\"\\u0000\"]", "x.json:1:3: a string must not hold \\u0000"},
        {"[\"\\ud800\"]", "x.json:1:3: lone high surrogate in a string"},
        {"[\"\\ud800\\u0041\"]", "x.json:1:3: lone high surrogate in a string"},
        {"[\"\\udc00\"]", "x.json:1:3: lone low surrogate in a string"},
        {"[\"\xc3\"]", "x.json:1:3: invalid UTF-8 in a string"},
        {"[\"\xed\xa0\x80\"]", "x.json:1:3: invalid UTF-8 in a string"},
        {"[\"\xc0\x80\"]", "x.json:1:3: invalid UTF-8 in a string"},
        {"[\"\xc3\xa9\", \x1b]", "x.json:1:7: expected a value, found '\\x1B'"},
        {"// no\n1", "x.json:1:1: expected a value, found '/'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    assert_refused("1\0", 2, "x.json:1:2: expected the end, found '\\x00'");
}

static void test_depth(void **state) {
    char deep[131];
    cJSON *root;
    Error err;
    (void)state;
    memset(deep, '[', 65);
    memset(deep + 65, ']', 65);
    assert_refused(deep, 130, "x.json:1:65: nested more than 64 deep");
    assert_int_equal(json_parse("x", deep + 1, 128, &root, &err), OK);
    cJSON_Delete(root);
}

static void test_long_numbers(void **state) {
    char number[80];
    cJSON *root;
    Error err;
    (void)state;
    memset(number, '1', sizeof number);
    assert_refused(number, 64, "x.json:1:1: this number has too many digits");
    assert_int_equal(json_parse("x", number, 63, &root, &err), OK);
    assert_true(fabs(root->valuedouble / 1.1111111111111111e62 - 1) < 1e-15);
    cJSON_Delete(root);
}

static void test_accepts_json(void **state) {
    static const char text[] =
        "\xef\xbb\xbf {\"s\": \"\\ud83d\\ude00 \\\"\\\\\\/\\b\\f\\n\\r\\t\", \"n\": -0.5e+1, \"e\": {}, "
        "\"a\": [ ], \"t\": true, \"f\": false, \"z\": null}\r\n";
    cJSON *root;
    Error err;
    const char *s = NULL;
    double n = 0;
    bool t = false, f = true;
    (void)state;
    assert_int_equal(json_parse("x", text, sizeof text - 1, &root, &err), OK);
    assert_int_equal(json_get_string(root, "x", "s", true, &s, &err), OK);
    assert_string_equal(s, "\xf0\x9f\x98\x80 \"\\/\b\f\n\r\t");
    assert_int_equal(json_get_double(root, "x", "n", true, &n, &err), OK);
    assert_true(n == -5);
    assert_int_equal(json_get_bool(root, "x", "t", true, &t, &err), OK);
    assert_int_equal(json_get_bool(root, "x", "f", true, &f, &err), OK);
    assert_true(t && !f);
    cJSON_Delete(root);
}

static void test_members(void **state) {
    static const char text[] = "{\"i\": 12, \"h\": 1.5, \"big\": 9007199254740993, \"safe\": "
                               "9007199254740991, \"s\": \"x\", \"z\": null}";
    cJSON *root;
    Error err;
    int64_t i = 7;
    const char *s = "kept";
    (void)state;
    assert_int_equal(json_parse("x", text, sizeof text - 1, &root, &err), OK);
    assert_int_equal(json_get_int(root, "x", "i", true, 0, 12, &i, &err), OK);
    assert_int_equal(i, 12);
    assert_int_equal(json_get_int(root, "c.json", "i", true, 0, 11, &i, &err), ERR_DATA);
    assert_string_equal(err.message, "c.json: \"i\": expected a whole number between 0 and 11, found 12");
    assert_int_equal(json_get_int(root, "x", "h", true, 0, 11, &i, &err), ERR_DATA);
    assert_int_equal(json_get_int(root, "x", "big", true, 0, INT64_MAX, &i, &err), ERR_DATA);
    assert_int_equal(json_get_int(root, "x", "safe", true, 0, INT64_MAX, &i, &err), OK);
    assert_true(i == 9007199254740991);
    assert_int_equal(json_get_int(root, "x", "s", true, 0, 1, &i, &err), ERR_DATA);
    assert_string_equal(err.message, "x: \"s\": expected a whole number, found a string");
    assert_int_equal(json_get_string(root, "x", "none", true, &s, &err), ERR_DATA);
    assert_string_equal(err.message, "x: key \"none\" is missing");
    assert_int_equal(json_get_string(root, "x", "z", true, &s, &err), ERR_DATA);
    assert_int_equal(json_get_string(root, "x", "none", false, &s, &err), OK);
    assert_int_equal(json_get_string(root, "x", "z", false, &s, &err), OK);
    assert_string_equal(s, "kept");
    assert_int_equal(json_get_string(cJSON_GetObjectItem(root, "i"), "x", "z", false, &s, &err), ERR_DATA);
    assert_int_equal(json_get_string(NULL, "x", "z", false, &s, &err), ERR_DATA);
    cJSON_Delete(root);
}

static void test_writer(void **state) {
    Text t = {0};
    JsonWriter w;
    (void)state;
    json_start(&w, &t, 0);
    json_begin_object(&w);
    json_key(&w, "a\"\x01");
    json_begin_array(&w);
    json_int(&w, INT64_MIN);
    json_double(&w, 0.1);
    json_double(&w, (double)NAN);
    json_null(&w);
    json_begin_array(&w);
    json_end_array(&w);
    json_end_array(&w);
    json_key(&w, "b");
    json_bytes(&w, "\0\xff\n\xc3\xa9", 5);
    json_key(&w, "c");
    json_begin_object(&w);
    json_key(&w, "d");
    json_bool(&w, true);
    json_end_object(&w);
    json_end_object(&w);
    assert_string_equal(t.data, "{\"a\\\"\\u0001\": [-9223372036854775808, 0.1, null, null, []], "
                                "\"b\": \"\\u0000\xef\xbf\xbd\\n\xc3\xa9\", \"c\": {\"d\": true}}");
    text_clear(&t);
    json_start(&w, &t, 2);
    json_begin_object(&w);
    json_key(&w, "a");
    json_begin_array(&w);
    json_int(&w, 1);
    json_int(&w, 2);
    json_end_array(&w);
    json_key(&w, "e");
    json_begin_object(&w);
    json_end_object(&w);
    json_end_object(&w);
    assert_string_equal(t.data, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"e\": {}\n}");
    text_free(&t);
}

static void test_doubles_survive(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = rng_u64(1, i);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        Text t = {0};
        JsonWriter w;
        cJSON *root;
        Error err;
        json_start(&w, &t, 0);
        json_double(&w, value);
        assert_int_equal(json_parse("x", t.data, t.length, &root, &err), OK);
        assert_memory_equal(&root->valuedouble, &value, sizeof value);
        cJSON_Delete(root);
        text_free(&t);
    }
}

/* Any input gives a result without a crash; accepted input has a tree. */
static void test_damaged_input(void **state) {
    static const char seed[] = "{\"a\": [1, -2.5e3, \"x\\u00e9\\ud83d\\ude00\"], \"b\": {\"c\": null, \"d\": "
                               "true}, \"e\": \"\xc3\xa9\"}";
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        size_t length;
        char *data = damaged(seed, sizeof seed - 1, "[]{}:,\"\\-+.eE0u ", i, &length);
        cJSON *root;
        Error err = {0};
        ErrorCode code = json_parse("x", data, length, &root, &err);
        assert_true(code == OK ? root != NULL : code == ERR_DATA && root == NULL && err.message[0]);
        cJSON_Delete(root);
        free(data);
    }
}

/* A line of a file: its line number in errors, and NULs in values. */
static void test_lines(void **state) {
    static const char line[] =
        "{\"a\": {\"text\": \"\\u0000\"}, \"t\": "
        "\"\\u0000x\\\\u0000\\ud83d\\ude00\\u0000\\u0000\\\"\\n\\u0000\", \"b\": \"c\"}";
    static const char wanted[] = "\0x\\u0000\xf0\x9f\x98\x80\0\0\"\n\0";
    cJSON *root = NULL;
    Text got = {0};
    Error err = {0};
    (void)state;
    assert_int_equal(json_parse_line("x", 3, line, sizeof line - 1, &root, &err), OK);
    json_line_string(line, sizeof line - 1, root, cJSON_GetObjectItem(root, "t"), &got);
    assert_int_equal(got.length, sizeof wanted - 1);
    assert_memory_equal(got.data, wanted, sizeof wanted - 1);
    json_line_string(line, sizeof line - 1, root, cJSON_GetObjectItem(root, "b"), &got);
    assert_string_equal(got.data, "c");
    text_free(&got);
    cJSON_Delete(root);
    assert_int_equal(json_parse_line("x", 3, "{\"\\u0000\": 1}", 13, &root, &err), ERR_DATA);
    assert_string_equal(err.message, "x:3:3: a string must not hold \\u0000");
}

/* Literals stay with their numbers, in document order, however long. */
static void test_literals(void **state) {
    static const char line[] =
        "{\"a\": [1e5, {\"b\": -0}, 100.0], \"c\": 1e999, \"d\": "
        "1234567890123456789012345678901234567890123456789012345678901234567890, \"e\": \"7\"}";
    const JsonPlace x = {.where = "x", .line = 1};
    cJSON *root = NULL;
    Error err = {0};
    (void)state;
    assert_int_equal(json_parse_literals(x, line, sizeof line - 1, &root, &err), OK);
    const cJSON *a = cJSON_GetObjectItem(root, "a");
    assert_string_equal(a->child->valuestring, "1e5");
    assert_true(a->child->valuedouble == 1e5);
    assert_string_equal(a->child->next->child->valuestring, "-0");
    assert_string_equal(a->child->next->next->valuestring, "100.0");
    assert_string_equal(cJSON_GetObjectItem(root, "c")->valuestring, "1e999");
    assert_int_equal(strlen(cJSON_GetObjectItem(root, "d")->valuestring), 70);
    cJSON_Delete(root);
    char *digits = mem_alloc(5000);
    memset(digits, '1', 4999);
    assert_int_equal(json_parse_literals(x, digits, 4999, &root, &err), ERR_DATA);
    assert_string_equal(err.message, "x:1:1: this number has too many digits");
    free(digits);
}

/* A line of a file, a row of a table, a text without a name. */
static void test_places(void **state) {
    static const struct {
        JsonPlace place;
        const char *text, *message;
    } bad[] = {{{"x", 7, false}, "{\"a\": {},\n\"b\": x}", "x:8:6: expected a value, found 'x'"},
               {{"", 1, false}, "[x", "1:2: expected a value, found 'x'"},
               {{"x", 7, true},
                "{\"a\": {\"c\": 1}, \"b\": [1,\n x]}",
                "x:7: in column \"b\": 2:2: expected a value, found 'x'"},
               {{"x", 7, true},
                "{\"a\": 1, 2}",
                "x:7: in column \"a\": 1:4: expected a key in double quotes, found '2'"}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cJSON *root;
        Error err = {0};
        assert_int_equal(json_parse_literals(bad[i].place, bad[i].text, strlen(bad[i].text), &root, &err),
                         ERR_DATA);
        assert_string_equal(err.message, bad[i].message);
    }
}

/* JSON is printed too: C1 and bidirectional marks are escaped, letters are not. */
static void test_unprintable(void **state) {
    JsonWriter w;
    Text out = {0};
    (void)state;
    json_start(&w, &out, 0);
    json_string(&w, "\xc2\x9b\xe2\x80\xae\x1b\x7f\xc3\xa9");
    assert_string_equal(out.data, "\"\\u009b\\u202e\\u001b\\u007f\xc3\xa9\"");
    text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),         cmocka_unit_test(test_literals),
        cmocka_unit_test(test_places),        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_depth),         cmocka_unit_test(test_long_numbers),
        cmocka_unit_test(test_accepts_json),  cmocka_unit_test(test_members),
        cmocka_unit_test(test_writer),        cmocka_unit_test(test_doubles_survive),
        cmocka_unit_test(test_damaged_input), cmocka_unit_test(test_unprintable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

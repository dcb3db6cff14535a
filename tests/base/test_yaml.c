/* YAML trees: structure and positions, everything that is refused, damaged input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "base/yaml.h"
#include "support/damage.h"

static YamlNode *parse(const char *text) {
    YamlNode *root;
    Error err = {0};
    if (yaml_tree_parse("x.yaml", text, strlen(text), &root, &err) != OK) fail_msg("%s", err.message);
    return root;
}

static void test_tree(void **state) {
    (void)state;
    YamlNode *root = parse("# comment\na:\n  b: no\n  c: [1, 'two', {d: \"x\\ty\"}]\ne:\n");
    assert_int_equal(root->kind, YAML_NODE_MAP);
    assert_int_equal(root->count, 2);
    const YamlNode *a = root->items[0];
    assert_string_equal(root->keys[0], "a");
    assert_int_equal(a->count, 2);
    assert_int_equal(a->key_lines[0], 3);
    assert_int_equal(a->key_columns[0], 3);
    assert_string_equal(a->items[0]->text, "no");
    assert_int_equal(a->items[0]->quoted, 0);
    assert_int_equal(a->items[0]->line, 3);
    assert_int_equal(a->items[0]->column, 6);
    const YamlNode *c = a->items[1];
    assert_int_equal(c->kind, YAML_NODE_LIST);
    assert_int_equal(c->count, 3);
    assert_string_equal(c->items[1]->text, "two");
    assert_true(c->items[1]->quoted);
    assert_string_equal(c->items[2]->items[0]->text, "x\ty");
    assert_int_equal(root->items[1]->kind, YAML_NODE_SCALAR);
    assert_string_equal(root->items[1]->text, "");
    yaml_tree_free(root);
}

static void test_empty_documents(void **state) {
    static const char *const texts[] = {"", "\n", "# only a comment\n", "---\n", "\xef\xbb\xbf"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        YamlNode *root = parse(texts[i]);
        assert_int_equal(root->kind, YAML_NODE_MAP);
        assert_int_equal(root->count, 0);
        yaml_tree_free(root);
    }
}

static void assert_refused(const char *text, size_t length, const char *message) {
    YamlNode *root;
    Error err = {0};
    assert_int_equal(yaml_tree_parse("x.yaml", text, length, &root, &err), ERR_CONFIG);
    assert_null(root);
    if (!strstr(err.message, message)) fail_msg("expected \"%s\" in \"%s\"", message, err.message);
}

static void test_refusals(void **state) {
    static const char *const cases[][2] = {
        {"a: &x 1\n", "x.yaml:1:4: anchors"},
        {"a: &x [1]\n", "x.yaml:1:4: anchors"},
        {"a: &x {b: 1}\n", "x.yaml:1:4: anchors"},
        {"a: 1\nb: *a\n", "x.yaml:2:4: aliases"},
        {"*a : 1\n", "x.yaml:1:1: aliases"},
        {"a: !!int 1\n", "x.yaml:1:4: tags"},
        {"a: !mine [1]\n", "x.yaml:1:4: tags"},
        {"a: !mine {b: 1}\n", "x.yaml:1:4: tags"},
        {"a: ! b\n", "x.yaml:1:4: tags"},
        {"a: 1\nb: 2\na: 3\n", "x.yaml:3:1: a: this key stands in line 1 already"},
        {"s:\n  a: 1\n  \"a\": 3\n", "x.yaml:3:3: a: this key stands in line 2 already"},
        {"a: 1\n---\nb: 2\n", "x.yaml:2:1: expected one document"},
        {"[a]: 1\n", "x.yaml:1:1: expected a plain key"},
        {"{a: 1}: 1\n", "x.yaml:1:1: expected a plain key"},
        {"a: [1, 2\n", "x.yaml:2:1: "},
        {"a: b: c\n", "x.yaml:1:5: "},
        {"a:\n\tb: 1\n", "x.yaml:2:1: "},
        {"a: \"\\0\"\n", "x.yaml:1:4: a scalar must not hold NUL"},
        {"a: \xff\n", "x.yaml: byte 3: "},
        {"a: \x1b\n", "x.yaml: byte 3: "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    assert_refused("a: \0b\n", 6, "x.yaml: byte 3: ");
}

static void test_depth(void **state) {
    char deep[67];
    YamlNode *root;
    Error err;
    (void)state;
    memset(deep, '[', 33);
    memset(deep + 33, ']', 33);
    assert_refused(deep, 66, "x.yaml:1:33: nested more than 32 deep");
    assert_int_equal(yaml_tree_parse("x", deep + 1, 64, &root, &err), OK);
    yaml_tree_free(root);
}

static void test_size(void **state) {
    size_t bytes = ((size_t)1 << 20) + 1;
    char *text = malloc(bytes);
    (void)state;
    assert_non_null(text);
    memset(text, '\n', bytes);
    assert_refused(text, bytes, "expected at most 1048576 bytes, found 1048577");
    free(text);
}

static void test_many_keys(void **state) {
    Text t = {0};
    (void)state;
    for (int i = 0; i < 20000; i++) text_printf(&t, "k%d: %d\n", i, i);
    YamlNode *root = parse(t.data);
    assert_int_equal(root->count, 20000);
    assert_string_equal(root->keys[19999], "k19999");
    yaml_tree_free(root);
    text_puts(&t, "k7: again\n");
    assert_refused(t.data, t.length, "x.yaml:20001:1: k7: this key stands in line 8 already");
    text_free(&t);
}

static void test_damaged_input(void **state) {
    static const char seed[] =
        "a: [1, {b: 'c', d: \"e\\u00e9\"}]\nf:\n  g: |\n    text\n  h: &i x\n  ? j\n  : !k l\n";
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        size_t length;
        char *data = damaged(seed, sizeof seed - 1, "[]{}:,&*!?|>'\"%@`#-\n\t ", i, &length);
        YamlNode *root;
        Error err = {0};
        ErrorCode code = yaml_tree_parse("x", data, length, &root, &err);
        assert_true(code == OK ? root != NULL : code == ERR_CONFIG && root == NULL && err.message[0]);
        yaml_tree_free(root);
        free(data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),          cmocka_unit_test(test_empty_documents),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_depth),
        cmocka_unit_test(test_size),          cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_damaged_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Options: types, errors with position and advice, sources, and the resolved configuration that reads
 * back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/options.h"
#include "base/rng.h"

typedef struct Part {
    char *path;
    double weight;
    int kind, unit;
    double factor;
} Part;

typedef struct Settings {
    bool fast;
    int64_t steps, free_number;
    double lr, norm;
    char *dir, *name;
    int mode;
    StringList words;
    ObjectList parts;
} Settings;

static const Option part_options[] = {
    {.key = "path",
     .type = OPT_STRING,
     .offset = offsetof(Part, path),
     .default_value = "",
     .help = "Where."},
    {.key = "weight",
     .type = OPT_DOUBLE,
     .offset = offsetof(Part, weight),
     .default_value = "1",
     .max = 100,
     .help = "Share."},
    {.key = "kind",
     .type = OPT_CHOICE,
     .offset = offsetof(Part, kind),
     .default_value = "text",
     .choices = "text|lines",
     .help = "What."},
    {.key = "factor",
     .type = OPT_DOUBLE,
     .offset = offsetof(Part, factor),
     .optional = true,
     .max = 9,
     .help = "Or none."},
    {.key = "unit",
     .type = OPT_CHOICE,
     .offset = offsetof(Part, unit),
     .optional = true,
     .choices = "m|km",
     .help = "Or none."},
    {.key = NULL},
};

/* The section "train" is opened twice on purpose. */
static const Option table[] = {
    {.key = "title",
     .type = OPT_STRING,
     .offset = offsetof(Settings, name),
     .default_value = "no",
     .help = "Title."},
    {.key = "train.steps",
     .type = OPT_INT,
     .offset = offsetof(Settings, steps),
     .default_value = "10",
     .min = 1,
     .max = 5000000,
     .help = "Optimizer steps.",
     .was = "train.rounds"},
    {.key = "train.fast",
     .type = OPT_BOOL,
     .offset = offsetof(Settings, fast),
     .default_value = "false",
     .help = "Go fast."},
    {.key = "optimizer.lr",
     .type = OPT_DOUBLE,
     .offset = offsetof(Settings, lr),
     .default_value = "3e-4",
     .min = 0,
     .max = 10,
     .help = "Peak learning rate, which is a sentence long enough to be wrapped on a narrow terminal."},
    {.key = "optimizer.norm",
     .type = OPT_DOUBLE,
     .offset = offsetof(Settings, norm),
     .default_value = "2",
     .min = 1,
     .max = HUGE_VAL,
     .help = "Which norm."},
    {.key = "train.mode",
     .type = OPT_CHOICE,
     .offset = offsetof(Settings, mode),
     .default_value = "none",
     .choices = "none|selective|full",
     .help = "Recompute.",
     .was = "speed.recompute",
     .choices_were = (const char *const[]){"half", "selective", "all", "full", NULL}},
    {.key = "run.dir",
     .type = OPT_STRING,
     .offset = offsetof(Settings, dir),
     .default_value = "runs",
     .help = "Directory."},
    {.key = "run.number",
     .type = OPT_INT,
     .offset = offsetof(Settings, free_number),
     .default_value = "0",
     .help = "Any number."},
    {.key = "data.words",
     .type = OPT_STRINGS,
     .offset = offsetof(Settings, words),
     .default_value = "[a, b]",
     .help = "Words."},
    {.key = "data.parts",
     .type = OPT_LIST,
     .offset = offsetof(Settings, parts),
     .default_value = "",
     .help = "Parts.",
     .item = part_options,
     .item_size = sizeof(Part)},
    {.key = NULL},
};

typedef struct Fixture {
    Settings s;
    OptionSet set;
    Error err;
} Fixture;

static void start(Fixture *f) {
    memset(f, 0, sizeof *f);
    if (options_init(&f->set, table, &f->s, &f->err) != OK) fail_msg("%s", f->err.message);
}

static ErrorCode apply(Fixture *f, const char *yaml) {
    YamlNode *root;
    ErrorCode code = yaml_tree_parse("demo.yaml", yaml, strlen(yaml), &root, &f->err);
    if (code != OK) return code;
    code = options_apply_yaml(&f->set, "demo.yaml", root, &f->err);
    yaml_tree_free(root);
    return code;
}

static void must_apply(Fixture *f, const char *yaml) {
    if (apply(f, yaml) != OK) fail_msg("%s", f->err.message);
}

static void must_override(Fixture *f, const char *assignment) {
    if (options_apply_override(&f->set, assignment, &f->err) != OK) fail_msg("%s", f->err.message);
}

static const Part *part(const Fixture *f, size_t i) {
    return (const Part *)(const void *)f->s.parts.items + i;
}

static void test_defaults(void **state) {
    Fixture f;
    (void)state;
    start(&f);
    assert_int_equal(f.s.steps, 10);
    assert_false(f.s.fast);
    assert_true(f.s.lr == 3e-4);
    assert_string_equal(f.s.name, "no");
    assert_int_equal(f.s.words.count, 2);
    assert_string_equal(f.s.words.items[1], "b");
    assert_int_equal(f.s.parts.count, 0);
    assert_false(options_is_set(&f.set, "train.steps"));
    options_free(&f.set);
    assert_null(f.s.name);
}

static void test_bad_default_is_internal(void **state) {
    static const Option bad[] = {
        {.key = "a", .type = OPT_STRING, .offset = offsetof(Settings, name), .default_value = "x"},
        {.key = "b", .type = OPT_INT, .offset = offsetof(Settings, steps), .default_value = "x"},
        {.key = NULL},
    };
    Settings s = {0};
    OptionSet set;
    Error err;
    (void)state;
    assert_int_equal(options_init(&set, bad, &s, &err), ERR_INTERNAL);
    assert_int_equal(err.code, ERR_INTERNAL);
    assert_null(s.name);
}

static void test_the_declared_type_decides(void **state) {
    Fixture f;
    (void)state;
    start(&f);
    must_apply(
        &f,
        "title: no\nrun:\n  dir: 0123\n  number: -1_000k\ntrain:\n  steps: 2M\n  fast: true\n  mode: full\n"
        "optimizer:\n  lr: 1e-3\n  norm: .inf\ndata:\n  words: [yes, '', 1.50]\n");
    assert_string_equal(f.s.name, "no");
    assert_string_equal(f.s.dir, "0123");
    assert_int_equal(f.s.free_number, -1000000);
    assert_int_equal(f.s.steps, 2000000);
    assert_true(f.s.fast);
    assert_int_equal(f.s.mode, 2);
    assert_true(f.s.lr == 1e-3);
    assert_true(isinf(f.s.norm));
    assert_int_equal(f.s.words.count, 3);
    assert_string_equal(f.s.words.items[0], "yes");
    assert_string_equal(f.s.words.items[1], "");
    assert_string_equal(f.s.words.items[2], "1.50");
    must_apply(&f, "data:\n  words:\nrun:\n  dir:\ntrain:\n");
    assert_int_equal(f.s.words.count, 0);
    assert_string_equal(f.s.dir, "");
    options_free(&f.set);
}

static void test_lists_of_maps(void **state) {
    Fixture f;
    (void)state;
    start(&f);
    must_apply(&f, "data:\n  parts:\n    - a.txt\n    - path: b.txt\n      weight: 2\n      kind: lines\n    "
                   "- {weight: 3}\n");
    assert_int_equal(f.s.parts.count, 3);
    assert_string_equal(part(&f, 0)->path, "a.txt");
    assert_true(part(&f, 0)->weight == 1);
    assert_string_equal(part(&f, 1)->path, "b.txt");
    assert_int_equal(part(&f, 1)->kind, 1);
    assert_string_equal(part(&f, 2)->path, "");
    assert_true(part(&f, 2)->weight == 3);
    must_override(&f, "data.parts=c.txt");
    assert_int_equal(f.s.parts.count, 1);
    assert_string_equal(part(&f, 0)->path, "c.txt");
    must_override(&f, "data.parts=[d.txt, {path: 'e f', weight: 2}]");
    assert_int_equal(f.s.parts.count, 2);
    assert_string_equal(part(&f, 1)->path, "e f");
    must_override(&f, "data.parts={path: g}");
    assert_int_equal(f.s.parts.count, 1);
    /* An optional value is unset until it is given, is written only then, and reads back. */
    assert_true(isnan(part(&f, 0)->factor) && part(&f, 0)->unit == -1);
    must_override(&f, "data.parts=[{path: g}, {path: h, factor: 2}, {path: i, unit: km}]");
    Text written = {0};
    options_write_value(&f.set, "data.parts", &written);
    assert_string_equal(written.data, "[{path: g, weight: 1, kind: text}, {path: h, weight: 1, kind: text, "
                                      "factor: 2}, {path: i, weight: 1, kind: text, unit: km}]");
    text_clear(&written);
    text_puts(&written, "data.parts=[{path: h, factor: 2}, {path: i, unit: km}]");
    must_override(&f, written.data);
    assert_true(part(&f, 0)->factor == 2 && part(&f, 0)->unit == -1);
    assert_true(isnan(part(&f, 1)->factor) && part(&f, 1)->unit == 1);
    text_free(&written);
    must_override(&f, "data.parts=");
    assert_int_equal(f.s.parts.count, 0);
    options_free(&f.set);
}

static void test_file_errors(void **state) {
    static const char *const cases[][2] = {
        {"train:\n  step: 1\n", "demo.yaml:2:3: train.step: unknown key; did you mean train.steps?"},
        {"trian:\n  steps: 1\n", "demo.yaml:1:1: trian: unknown key; did you mean train?"},
        {"lr: 1\n", "demo.yaml:1:1: lr: unknown key; did you mean optimizer.lr?"},
        {"train:\n  lr: 1\n", "demo.yaml:2:3: train.lr: unknown key; did you mean optimizer.lr?"},
        {"bananas: 1\n", "demo.yaml:1:1: bananas: unknown key; see --help for all keys"},
        {"\"a\\e[31m\": 1\n", "demo.yaml:1:1: a\\x1B[31m: unknown key; see --help for all keys"},
        {"optimizer:\n  lr: fast\n",
         "demo.yaml:2:7: optimizer.lr: expected a number between 0 and 10, found \"fast\""},
        {"optimizer:\n  lr: 11\n",
         "demo.yaml:2:7: optimizer.lr: expected a number between 0 and 10, found \"11\""},
        {"optimizer:\n  lr: nan\n",
         "demo.yaml:2:7: optimizer.lr: expected a number between 0 and 10, found \"nan\""},
        {"optimizer:\n  lr: 0x1\n",
         "demo.yaml:2:7: optimizer.lr: expected a number between 0 and 10, found \"0x1\""},
        {"optimizer:\n  lr: 1e999\n",
         "demo.yaml:2:7: optimizer.lr: expected a number between 0 and 10, found \"1e999\""},
        {"optimizer:\n  lr:\n",
         "demo.yaml:2:6: optimizer.lr: expected a number between 0 and 10, found nothing"},
        {"optimizer:\n  lr: '1'\n",
         "demo.yaml:2:7: optimizer.lr: expected a number between 0 and 10, found the quoted text \"1\""},
        {"optimizer:\n  norm: 0.5\n",
         "demo.yaml:2:9: optimizer.norm: expected a number of at least 1, found \"0.5\""},
        {"optimizer:\n  lr: [1]\n",
         "demo.yaml:2:7: optimizer.lr: expected a number between 0 and 10, found a list"},
        {"train:\n  steps: 0\n",
         "demo.yaml:2:10: train.steps: expected a whole number between 1 and 5000000, found \"0\""},
        {"train:\n  steps: 1.5\n",
         "demo.yaml:2:10: train.steps: expected a whole number between 1 and 5000000, found \"1.5\""},
        {"train:\n  steps: 1__0\n",
         "demo.yaml:2:10: train.steps: expected a whole number between 1 and 5000000, found \"1__0\""},
        {"train:\n  steps: 1_\n",
         "demo.yaml:2:10: train.steps: expected a whole number between 1 and 5000000, found \"1_\""},
        {"train:\n  steps: 1kk\n",
         "demo.yaml:2:10: train.steps: expected a whole number between 1 and 5000000, found \"1kk\""},
        {"run:\n  number: 9223372036854775808\n",
         "demo.yaml:2:11: run.number: expected a whole number, found \"9223372036854775808\""},
        {"run:\n  number: 9223372036854775807k\n",
         "demo.yaml:2:11: run.number: expected a whole number, found \"9223372036854775807k\""},
        {"train:\n  fast: yes\n",
         "demo.yaml:2:9: train.fast: expected true or false, found \"yes\"; write true"},
        {"train:\n  fast: Off\n",
         "demo.yaml:2:9: train.fast: expected true or false, found \"Off\"; write false"},
        {"train:\n  fast: maybe\n", "demo.yaml:2:9: train.fast: expected true or false, found \"maybe\""},
        {"train:\n  mode: ful\n", "demo.yaml:2:9: train.mode: expected one of none, selective, full, found "
                                  "\"ful\"; did you mean full?"},
        {"train:\n  mode: banana\n",
         "demo.yaml:2:9: train.mode: expected one of none, selective, full, found \"banana\""},
        {"train: 5\n", "demo.yaml:1:8: train: expected a section with keys of its own, found \"5\""},
        {"train: [steps]\n", "demo.yaml:1:8: train: expected a section with keys of its own, found a list"},
        {"title: {a: b}\n", "demo.yaml:1:8: title: expected text, found a map"},
        {"train.steps: 5\n", "demo.yaml:1:1: train.steps: keys with dots are for the command line; write a "
                             "section with a key in it"},
        {"data:\n  words: {a: b}\n", "demo.yaml:2:10: data.words: expected a list of texts, found a map"},
        {"data:\n  words: [a, [b]]\n",
         "demo.yaml:2:14: data.words: expected a list of texts, found a list in it"},
        {"data:\n  parts: [{pat: x}]\n",
         "demo.yaml:2:12: data.parts[0].pat: unknown key; did you mean path?"},
        {"data:\n  parts: [a, {banana: x}]\n",
         "demo.yaml:2:15: data.parts[1].banana: unknown key; there are path, weight, kind, factor, unit"},
        {"data:\n  parts: [{weight: x}]\n",
         "demo.yaml:2:20: data.parts[0].weight: expected a number between 0 and 100, found \"x\""},
        {"- a\n", "demo.yaml:1:1: expected sections with keys, found a list"},
        {"hello\n", "demo.yaml:1:1: expected sections with keys, found \"hello\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        start(&f);
        assert_int_equal(apply(&f, cases[i][0]), ERR_CONFIG);
        assert_string_equal(f.err.message, cases[i][1]);
        options_free(&f.set);
    }
}

static void test_overrides(void **state) {
    static const char *const bad[][2] = {
        {"train.step=1", "command line: train.step: unknown key; did you mean train.steps?"},
        {"train.steps=x",
         "command line: train.steps: expected a whole number between 1 and 5000000, found \"x\""},
        {"train=x", "command line: train: this is a section; name one of its keys, as in train.key=value"},
        {"data.words=[a", "data.words: command line:2:1: "},
        {"train.steps", "command line: expected section.key=value, found \"train.steps\""},
        {"=1", "command line: expected section.key=value, found \"=1\""},
        {"title=\xff", "command line: expected UTF-8, found \"title=\\xFF\""},
    };
    Fixture f;
    (void)state;
    start(&f);
    must_override(&f, "title=a: b # [c] = {d");
    assert_string_equal(f.s.name, "a: b # [c] = {d");
    must_override(&f, "title='it''s'");
    assert_string_equal(f.s.name, "it's");
    must_override(&f, "title=\"");
    assert_string_equal(f.s.name, "\"");
    must_override(&f, "title=");
    assert_string_equal(f.s.name, "");
    must_override(&f, "train.steps=64k");
    assert_int_equal(f.s.steps, 64000);
    must_override(&f, "data.words=x y");
    assert_int_equal(f.s.words.count, 1);
    assert_string_equal(f.s.words.items[0], "x y");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_true(options_apply_override(&f.set, bad[i][0], &f.err) != OK);
        if (strncmp(f.err.message, bad[i][1], strlen(bad[i][1])) != 0) fail_msg("%s", f.err.message);
    }
    assert_int_equal(f.s.steps, 64000);
    options_free(&f.set);
}

/* Old names: a user's are errors with the new name, an older program's are accepted. */
static const OptionSection sections[] = {{"optimizer", "optim", NULL}, {NULL, NULL, NULL}};

static void start_renamed(Fixture *f) {
    start(f);
    f->set.sections = sections;
}

static void test_old_names_are_refused(void **state) {
    static const char *const files[][2] = {
        {"train:\n  rounds: 5\n", "demo.yaml:2:3: train.rounds: the key is called train.steps now"},
        {"train: {steps: 5, rounds: 5}\n", "demo.yaml:1:19: train.rounds: the key is called train.steps now"},
        {"speed:\n  recompute: all\n",
         "demo.yaml:2:3: speed.recompute: the key is called train.mode now, and its value all is full"},
        {"speed: {recompute: none}\n", "demo.yaml:1:9: speed.recompute: the key is called train.mode now"},
        {"optim:\n  lr: 1\n", "demo.yaml:2:3: optim.lr: the key is called optimizer.lr now"},
        {"optim:\n", "demo.yaml:1:1: optim: the section is called optimizer now"},
        {"speed: {other: 1}\n", "demo.yaml:1:1: speed: unknown key; see --help for all keys"},
    };
    static const char *const words[][2] = {
        {"train.rounds=5", "command line: train.rounds: the key is called train.steps now"},
        {"speed.recompute=half", "command line: speed.recompute: the key is called train.mode now, and its "
                                 "value half is selective"},
        {"optim.lr=1", "command line: optim.lr: the key is called optimizer.lr now"},
        {"optim=1", "command line: optim: the section is called optimizer now"},
    };
    Fixture f;
    (void)state;
    start_renamed(&f);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(apply(&f, files[i][0]), ERR_CONFIG);
        assert_string_equal(f.err.message, files[i][1]);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_int_equal(options_apply_override(&f.set, words[i][0], &f.err), ERR_CONFIG);
        assert_string_equal(f.err.message, words[i][1]);
    }
    assert_int_equal(options_check_key(&f.set, "list", "optim.norm", &f.err), ERR_CONFIG);
    assert_string_equal(f.err.message, "list: optim.norm: the key is called optimizer.norm now");
    options_free(&f.set);
}

static void test_old_names_that_were_written(void **state) {
    Fixture f;
    (void)state;
    start_renamed(&f);
    const char *text = "train:\n  rounds: 5\nspeed:\n  recompute: half\noptim:\n  lr: 1\n  norm: 3\n";
    assert_int_equal(options_apply_written(&f.set, "old", text, &f.err), OK);
    assert_int_equal(f.s.steps, 5);
    assert_int_equal(f.s.mode, 1);
    assert_true(f.s.lr == 1 && f.s.norm == 3);
    assert_true(options_is_set(&f.set, "train.mode"));
    assert_string_equal(f.set.sources[1].where, "old:2");
    assert_int_equal(f.set.unknown.length, 0);
    options_free(&f.set);
    /* Values are checked as under the new name, and the new name wins. */
    start_renamed(&f);
    assert_int_equal(options_apply_written(&f.set, "old", "train: {rounds: x}\n", &f.err), ERR_CONFIG);
    assert_string_equal(f.err.message,
                        "old:1:17: train.steps: expected a whole number between 1 and 5000000, found \"x\"");
    assert_int_equal(options_apply_written(&f.set, "old", "train: {steps: 7, rounds: 5}\n", &f.err), OK);
    assert_int_equal(f.s.steps, 7);
    options_free(&f.set);
    start_renamed(&f);
    assert_int_equal(options_apply_written(&f.set, "old", "train: {rounds: 5, steps: 7}\n", &f.err), OK);
    assert_int_equal(f.s.steps, 7);
    options_free(&f.set);
}

static void test_unknown_keys_that_were_written(void **state) {
    Fixture f;
    (void)state;
    start_renamed(&f);
    const char *text = "title: t\nnew: 1\nspeed:\n  more: {a: [1], \"b\\e\": \"\"}\ntrain:\n  steps: 5\n";
    assert_int_equal(options_apply_written(&f.set, "newer", text, &f.err), OK);
    assert_string_equal(f.s.name, "t");
    assert_int_equal(f.s.steps, 5);
    assert_string_equal(f.set.unknown.data, "new: 1, speed.more.a: [...], speed.more.b\\x1B: ");
    options_free(&f.set);
}

static void test_sources(void **state) {
    Fixture f;
    Text t = {0};
    (void)state;
    start(&f);
    must_apply(&f, "train:\n  fast: true\ndata:\n  parts: [a]\n");
    must_override(&f, "optimizer.lr=1");
    assert_true(options_is_set(&f.set, "train.fast"));
    assert_true(options_is_set(&f.set, "optimizer.lr"));
    assert_false(options_is_set(&f.set, "train.steps"));
    options_write_yaml(&f.set, &t, true);
    assert_string_equal(t.data, "title: \"no\"  # default\n"
                                "train:\n"
                                "  steps: 10  # default\n"
                                "  fast: true  # demo.yaml:2\n"
                                "  mode: none  # default\n"
                                "optimizer:\n"
                                "  lr: 1  # command line\n"
                                "  norm: 2  # default\n"
                                "run:\n"
                                "  dir: runs  # default\n"
                                "  number: 0  # default\n"
                                "data:\n"
                                "  words: [a, b]  # default\n"
                                "  parts:  # demo.yaml:4\n"
                                "    - {path: a, weight: 1, kind: text}\n");
    text_free(&t);
    options_free(&f.set);
}

static void replace(char **field, const char *bytes, size_t length) {
    free(*field);
    *field = mem_alloc(length + 1);
    memcpy(*field, bytes, length);
}

/* A string that YAML would misread if it were written without quotes. */
static void nasty(uint64_t draw, char **field) {
    static const char *const pieces[] = {"no",
                                         "~",
                                         "null",
                                         "1e3",
                                         ": ",
                                         " #",
                                         "- ",
                                         "'",
                                         "\"",
                                         "\\",
                                         "\n",
                                         "\r",
                                         "\t",
                                         "{",
                                         "]",
                                         ",",
                                         "&a",
                                         "*",
                                         "!",
                                         "%",
                                         "@",
                                         "`",
                                         " ",
                                         "\x01",
                                         "\x7f",
                                         "\xc2\x85",
                                         "\xc2\xa0",
                                         "\xe2\x80\xa8",
                                         "\xef\xbb\xbf",
                                         "\xef\xbf\xbf",
                                         "\xf0\x9f\x98\x80",
                                         "\xc3\xa9",
                                         "---",
                                         "...",
                                         "?",
                                         "|",
                                         ">",
                                         "=",
                                         "<<"};
    Text t = {0};
    for (uint64_t i = 0; i < draw % 6; i++)
        text_puts(&t, pieces[rng_u64(draw, i) % (sizeof pieces / sizeof *pieces)]);
    text_puts(&t, "");
    replace(field, t.data, t.length);
    text_free(&t);
}

static void test_resolved_reads_back(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 3000; round++) {
        Fixture f, g;
        Text text = {0};
        char first[65], second[65];
        start(&f);
        start(&g);
        must_apply(&f, "data:\n  parts: [a, b]\n");
        nasty(rng_u64(1, round), &f.s.name);
        nasty(rng_u64(2, round), &f.s.words.items[0]);
        nasty(rng_u64(3, round), &((Part *)(void *)f.s.parts.items)[1].path);
        f.s.lr = rng_uniform(4, round) * 10;
        f.s.norm = round % 2 ? (double)INFINITY : 1 + rng_uniform(5, round);
        f.s.free_number = (int64_t)rng_u64(6, round);
        f.s.fast = round % 3 == 0;
        f.s.mode = (int)(round % 3);
        options_write_yaml(&f.set, &text, round % 2);
        if (apply(&g, text.data) != OK) fail_msg("%s\n%s", g.err.message, text.data);
        assert_string_equal(g.s.name, f.s.name);
        assert_string_equal(g.s.words.items[0], f.s.words.items[0]);
        assert_int_equal(g.s.words.count, 2);
        assert_string_equal(part(&g, 1)->path, part(&f, 1)->path);
        assert_memory_equal(&g.s.lr, &f.s.lr, sizeof f.s.lr);
        assert_memory_equal(&g.s.norm, &f.s.norm, sizeof f.s.norm);
        assert_true(g.s.free_number == f.s.free_number);
        assert_int_equal(g.s.fast, f.s.fast);
        assert_int_equal(g.s.mode, f.s.mode);
        options_digest(&f.set, NULL, first);
        options_digest(&g.set, NULL, second);
        assert_string_equal(first, second);
        text_free(&text);
        options_free(&f.set);
        options_free(&g.set);
    }
}

static const Option item_with_path[] = {
    {.key = "path",
     .type = OPT_STRING,
     .offset = offsetof(Part, path),
     .default_value = "",
     .required = true},
    {.key = "weight", .type = OPT_DOUBLE, .offset = offsetof(Part, weight), .default_value = "1"},
    {.key = NULL}};
static const Option with_required[] = {{.key = "run.dir",
                                        .type = OPT_STRING,
                                        .offset = offsetof(Settings, dir),
                                        .default_value = "runs",
                                        .required = true},
                                       {.key = "data.parts",
                                        .type = OPT_LIST,
                                        .offset = offsetof(Settings, parts),
                                        .default_value = "",
                                        .item = item_with_path,
                                        .item_size = sizeof(Part)},
                                       {.key = NULL}};

/* Required texts are refused where they are read, not when they are used. */
static void test_required(void **state) {
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"run:\n  dir: \"\"\n", "demo.yaml:2:8: run.dir: expected text that is not empty"},
        {"run:\n  dir:\n", "demo.yaml:2:7: run.dir: expected text that is not empty, found nothing"},
        {"data:\n  parts: [a, {weight: 2}]\n", "demo.yaml:2:14: data.parts[1]: path is missing"},
        {"data:\n  parts: [\"\"]\n", "demo.yaml:2:11: data.parts[0]: expected text that is not empty"},
        {"data:\n  parts: [{path: \"\"}]\n",
         "demo.yaml:2:18: data.parts[0].path: expected text that is not empty"},
    };
    Fixture f = {0};
    (void)state;
    assert_int_equal(options_init(&f.set, with_required, &f.s, &f.err), OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(apply(&f, cases[i].yaml), ERR_CONFIG);
        if (!strstr(f.err.message, cases[i].message))
            fail_msg("no \"%s\" in: %s", cases[i].message, f.err.message);
    }
    assert_int_equal(options_apply_override(&f.set, "run.dir=", &f.err), ERR_CONFIG);
    assert_int_equal(options_apply_override(&f.set, "data.parts=[{weight: 1}]", &f.err), ERR_CONFIG);
    assert_string_equal(f.s.dir, "runs");
    assert_int_equal(f.s.parts.count, 0);
    must_apply(&f, "data:\n  parts: [{weight: 2, path: a}, b]\n");
    assert_int_equal(f.s.parts.count, 2);
    options_free(&f.set);
}

static bool keep_train(const Option *o) { return strncmp(o->key, "train.", 6) == 0; }

static void test_digest(void **state) {
    Fixture f, g;
    char a[65], b[65], c[65];
    (void)state;
    start(&f);
    start(&g);
    must_apply(&f, "train:\n  steps: 2k\n  fast: true\nrun:\n  dir: x\n");
    must_apply(&g, "run: {dir: 'x'}\ntrain: {fast: true, steps: 2_000}\n");
    options_digest(&f.set, NULL, a);
    options_digest(&g.set, NULL, b);
    assert_string_equal(a, b);
    must_override(&g, "run.dir=y");
    options_digest(&g.set, NULL, c);
    assert_string_not_equal(a, c);
    options_digest(&f.set, keep_train, a);
    options_digest(&g.set, keep_train, b);
    assert_string_equal(a, b);
    must_override(&g, "train.mode=full");
    options_digest(&g.set, keep_train, b);
    assert_string_not_equal(a, b);
    options_free(&f.set);
    options_free(&g.set);
}

static void test_help(void **state) {
    Text t = {0};
    (void)state;
    options_write_help(table, &t, 60);
    size_t keys = 0;
    for (const Option *o = table; o->key; o++) keys += strstr(t.data, o->key) != NULL;
    assert_int_equal(keys, sizeof table / sizeof *table - 1);
    assert_non_null(strstr(t.data, "train.mode=none|selective|full"));
    assert_non_null(strstr(t.data, "\noptimizer\n"));
    assert_non_null(strstr(t.data, "      weight=X"));
    for (const char *line = t.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        if (end - line > 60) fail_msg("too wide: %.*s", (int)(end - line), line);
        assert_true(end == line || end[-1] != ' ');
    }
    text_clear(&t);
    options_write_help(table, &t, 120);
    assert_non_null(strstr(t.data, "Optimizer steps. (1 to 5000000; default 10)\n"));
    assert_non_null(strstr(t.data, "Which norm. (at least 1; default 2)\n"));
    assert_null(strstr(strstr(t.data, "\ntrain\n") + 1, "\ntrain\n"));
    text_free(&t);
}

static void test_choice_names(void **state) {
    char name[64];
    const Option *mode = &table[5];
    (void)state;
    assert_string_equal(options_choice_name(mode, 0, name), "none");
    assert_string_equal(options_choice_name(mode, 2, name), "full");
    assert_string_equal(options_choice_name(mode, 3, name), "");
    assert_string_equal(options_choice_name(mode, -1, name), "");
}

/* Any file or argument is applied or refused with a reason, and existing values stay valid. */
static void test_damaged_input(void **state) {
    static const char seed[] =
        "title: x\ntrain:\n  steps: 5k\n  mode: full\noptimizer: {lr: 1e-3, norm: inf}\n"
        "data:\n  words: [a, b]\n  parts:\n    - {path: x, weight: 2}\n    - y\n";
    Fixture f;
    Text t = {0};
    (void)state;
    start(&f);
    for (uint64_t i = 0; i < 20000; i++) {
        char data[sizeof seed];
        memcpy(data, seed, sizeof seed);
        for (uint64_t k = 0; k <= rng_u64(3, i) % 3; k++) {
            uint64_t draw = rng_u64(4, 4 * i + k);
            data[draw % (sizeof seed - 1)] =
                draw >> 63 ? "[]{}:,.=-_'\"kM05\n "[draw / sizeof seed % 18] : (char)(1 + (draw >> 20) % 255);
        }
        f.err.message[0] = 0;
        ErrorCode code =
            i % 2 ? apply(&f, data) : options_apply_override(&f.set, data + rng_u64(5, i) % 60, &f.err);
        assert_true(code == OK || f.err.message[0]);
        text_clear(&t);
        options_write_yaml(&f.set, &t, true);
    }
    if (apply(&f, t.data) != OK) fail_msg("%s", f.err.message);
    text_free(&t);
    options_free(&f.set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_bad_default_is_internal),
        cmocka_unit_test(test_the_declared_type_decides),
        cmocka_unit_test(test_lists_of_maps),
        cmocka_unit_test(test_file_errors),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_old_names_are_refused),
        cmocka_unit_test(test_old_names_that_were_written),
        cmocka_unit_test(test_unknown_keys_that_were_written),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_resolved_reads_back),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_choice_names),
        cmocka_unit_test(test_damaged_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

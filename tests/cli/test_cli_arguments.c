/* The command line parser, and the texts made from verb tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "cli/cli.h"

static const Flag sample_flags[] = {
    {"--seed", 's', "N", "seed of the generator"},
    {"--temperature", 0, "T",
     "how far from the most likely token to stray, with a help text long enough to need a second line"},
    {"--json", 'j', NULL, "one JSON object"},
    {"--csv", 0, "[=FORM]", "one line a row"},
    {NULL, 0, NULL, NULL},
};

static const Verb sample = {
    .name = "sample",
    .summary = "a verb of the test",
    .synopsis = "FILE [MORE]",
    .details = "A paragraph that goes on for long enough\nto be filled again when it is shown in a narrow "
               "window of text.\n\n"
               "  kept   as it is\n",
    .flags = sample_flags,
    .min_operands = 1,
    .max_operands = 2,
};

typedef struct Parsed {
    Arguments args;
    Error err;
    ErrorCode code;
} Parsed;

#define PARSE(...)                                  \
    parse_words((const char *const[]){__VA_ARGS__}, \
                sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))
static Parsed parse_words(const char *const *words, size_t count) {
    Parsed p = {.err = {0}};
    p.code = arguments_parse(&p.args, &sample, (int)count, words, &p.err);
    return p;
}

static void expect_usage(Parsed p, const char *part) {
    assert_int_equal(p.code, ERR_USAGE);
    assert_int_equal(p.err.code, ERR_USAGE);
    if (!strstr(p.err.message, part)) fail_msg("no \"%s\" in: %s", part, p.err.message);
    arguments_free(&p.args);
}

static void test_flags_stand_anywhere(void **state) {
    (void)state;
    Parsed p = PARSE("a.txt", "--seed", "7", "b.txt", "--json");
    assert_int_equal(p.code, OK);
    assert_int_equal(p.args.operand_count, 2);
    assert_string_equal(p.args.operands[0], "a.txt");
    assert_string_equal(p.args.operands[1], "b.txt");
    assert_string_equal(arguments_flag(&p.args, "--seed"), "7");
    assert_true(arguments_has(&p.args, "--json"));
    assert_false(arguments_has(&p.args, "--temperature"));
    arguments_free(&p.args);
}

static void test_ways_to_give_a_value(void **state) {
    (void)state;
    const char *const ways[][2] = {{"--seed=12", "x"}, {"-s12", "x"}};
    for (size_t i = 0; i < 2; i++) {
        Parsed p = parse_words(ways[i], 2);
        assert_int_equal(p.code, OK);
        assert_string_equal(arguments_flag(&p.args, "--seed"), "12");
        arguments_free(&p.args);
    }
    Parsed p = PARSE("x", "-s", "1", "--seed", "-2", "--temperature=");
    assert_int_equal(p.code, OK);
    assert_string_equal(arguments_flag(&p.args, "--seed"),
                        "-2"); /* the last one wins; a value may begin with a hyphen */
    assert_string_equal(arguments_flag(&p.args, "--temperature"), "");
    arguments_free(&p.args);
}

static void test_a_value_that_may_be_left_out(void **state) {
    (void)state;
    Parsed p = PARSE("--csv", "x");
    assert_int_equal(p.code, OK);
    assert_int_equal(p.args.operand_count, 1); /* x is no value: an optional value must be in the same word */
    assert_string_equal(arguments_flag(&p.args, "--csv"), "");
    arguments_free(&p.args);
    p = PARSE("x", "--csv=wide");
    assert_string_equal(arguments_flag(&p.args, "--csv"), "wide");
    arguments_free(&p.args);
    Text help = {0};
    help_write_verb(&sample, &help, 100);
    assert_non_null(strstr(help.data, " --csv[=FORM] "));
    text_free(&help);
}

static void test_operands_that_look_like_flags(void **state) {
    (void)state;
    Parsed p = PARSE("-", "--", "--seed");
    assert_int_equal(p.code, OK);
    assert_int_equal(p.args.operand_count, 2);
    assert_string_equal(p.args.operands[0], "-");
    assert_string_equal(p.args.operands[1], "--seed");
    assert_null(arguments_flag(&p.args, "--seed"));
    arguments_free(&p.args);
}

static void test_bad_words_are_named(void **state) {
    (void)state;
    expect_usage(PARSE("x", "--sead", "1"), "did you mean \"--seed\"");
    expect_usage(PARSE("x", "--sead=1"), "\"--sead\"");
    expect_usage(PARSE("x", "--see", "1"), "--seed"); /* no abbreviations */
    expect_usage(PARSE("x", "--temp=1"), "--temperature");
    expect_usage(PARSE("x", "--nothing-like-it"), "weft sample --help");
    expect_usage(PARSE("x", "-z"), "\"-z\"");
    expect_usage(PARSE("x", "--seed"), "--seed N");
    expect_usage(PARSE("x", "--json=1"), "takes no value");
    expect_usage(PARSE("x", "--help=1"), "takes no value");
    expect_usage(PARSE("--json"), "FILE [MORE]");
    expect_usage(PARSE("a", "b", "c"), "\"c\" is one too many");
    expect_usage(PARSE("x", "--\x1b[31m"), "\\x1B");
}

static void test_help_needs_no_operands(void **state) {
    (void)state;
    Parsed p = PARSE("-h", "-q");
    assert_int_equal(p.code, OK);
    assert_true(p.args.help && p.args.quiet);
    arguments_free(&p.args);
}

static ErrorCode read_seed(const char *word, int64_t *out, Error *err) {
    const char *words[] = {"x", "--seed", word};
    Arguments args;
    assert_int_equal(arguments_parse(&args, &sample, 3, words, err), OK);
    ErrorCode code = arguments_int(&args, "--seed", -5, 4000000000, out, err);
    arguments_free(&args);
    return code;
}

static void test_whole_numbers(void **state) {
    (void)state;
    Error err = {0};
    int64_t value = 99;
    assert_int_equal(read_seed("4000000000", &value, &err), OK);
    assert_true(value == 4000000000);
    assert_int_equal(read_seed("-5", &value, &err), OK);
    assert_true(value == -5);
    static const char *const bad[] = {
        "", " 1", "1 ", "1.5", "1e3", "0x10", "-6", "4000000001", "99999999999999999999", "one"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read_seed(bad[i], &value, &err), ERR_USAGE);
        assert_non_null(strstr(err.message, "--seed"));
        assert_non_null(strstr(err.message, "-5 to 4000000000"));
    }
    assert_true(value == -5);
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *word;
        bool good;
        double value;
    } cases[] = {{"0.8", true, 0.8}, {"1e-3", true, 1e-3}, {"0", true, 0},    {"0,8", false, 0},
                 {"nan", false, 0},  {"inf", false, 0},    {"2.5", false, 0}, {"-0.1", false, 0},
                 {"1x", false, 0},   {"", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Parsed p = PARSE("x", "--temperature", cases[i].word);
        double value = 77;
        ErrorCode code = arguments_double(&p.args, "--temperature", 0, 2, &value, &p.err);
        assert_int_equal(code, cases[i].good ? OK : ERR_USAGE);
        assert_true(value == (cases[i].good ? cases[i].value : 77));
        arguments_free(&p.args);
    }
    Parsed p = PARSE("x");
    double value = 77;
    assert_int_equal(arguments_double(&p.args, "--temperature", 0, 2, &value, &p.err), OK);
    assert_true(value == 77); /* absent: the default stays */
    arguments_free(&p.args);
}

static void test_verbs_are_found(void **state) {
    (void)state;
    Error err = {0};
    for (const Verb *const *v = verbs; *v; v++) {
        char name[64], *rest = NULL;
        snprintf(name, sizeof name, "%s", (*v)->name);
        const char *words[2] = {strtok_r(name, " ", &rest), "x"};
        const char *second = strtok_r(NULL, " ", &rest);
        if (second) words[1] = second;
        const Verb *found = NULL;
        int used = 0;
        assert_int_equal(verb_find(&found, 2, words, &used, &err), OK);
        assert_ptr_equal(found, *v);
        assert_int_equal(used, second ? 2 : 1);
    }
}

static void test_unknown_verbs(void **state) {
    (void)state;
    Error err = {0};
    const Verb *found = NULL;
    int used = 0;
    assert_int_equal(verb_find(&found, 0, NULL, &used, &err), ERR_USAGE);
    assert_int_equal(verb_find(&found, 1, (const char *const[]){"docter"}, &used, &err), ERR_USAGE);
    assert_non_null(strstr(err.message, "\"doctor\""));
    assert_int_equal(verb_find(&found, 1, (const char *const[]){"entirely-else"}, &used, &err), ERR_USAGE);
    assert_null(strstr(err.message, "did you mean"));
    assert_int_equal(verb_find(&found, 1, (const char *const[]){""}, &used, &err), ERR_USAGE);
}

static void expect_lines_within(const char *text, size_t width) {
    for (; *text; text += strcspn(text, "\n") + 1) assert_true(strcspn(text, "\n") <= width);
}

static void test_help_is_wrapped(void **state) {
    (void)state;
    for (int width = 40; width <= 100; width += 20) {
        Text out = {0};
        help_write_verb(&sample, &out, width);
        expect_lines_within(out.data, (size_t)width);
        assert_non_null(strstr(out.data, "Usage: weft sample FILE [MORE]\n"));
        assert_non_null(strstr(out.data, "\n  kept   as it is\n"));
        assert_non_null(strstr(out.data, "-s, --seed N"));
        assert_non_null(strstr(out.data, "-h, --help"));
        text_free(&out);
    }
}

static void test_texts_name_every_verb_and_flag(void **state) {
    (void)state;
    Text overview = {0}, man = {0}, completion = {0};
    help_write_overview(&overview, 80);
    man_write(&man);
    completion_write_bash(&completion);
    for (const Verb *const *v = verbs; *v; v++) {
        char entry[80];
        snprintf(entry, sizeof entry, "\n  %s ", (*v)->name);
        assert_non_null(strstr(overview.data, entry));
        snprintf(entry, sizeof entry, "\n.SS weft %s", (*v)->name);
        assert_non_null(strstr(man.data, entry));
        for (const Flag *f = (*v)->flags; f && f->name; f++)
            assert_non_null(strstr(completion.data, f->name));
    }
    text_free(&overview);
    text_free(&man);
    text_free(&completion);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags_stand_anywhere),
        cmocka_unit_test(test_ways_to_give_a_value),
        cmocka_unit_test(test_a_value_that_may_be_left_out),
        cmocka_unit_test(test_operands_that_look_like_flags),
        cmocka_unit_test(test_bad_words_are_named),
        cmocka_unit_test(test_help_needs_no_operands),
        cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_verbs_are_found),
        cmocka_unit_test(test_unknown_verbs),
        cmocka_unit_test(test_help_is_wrapped),
        cmocka_unit_test(test_texts_name_every_verb_and_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

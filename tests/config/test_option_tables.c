/* All tables combined: each key once, each with a separate field inside the configuration. */
#include "support/files.h"

#include "config/config.h"

static size_t size_of(const Option *o) {
    const size_t sizes[] = {
        [OPT_BOOL] = sizeof(bool),      [OPT_INT] = sizeof(int64_t), [OPT_DOUBLE] = sizeof(double),
        [OPT_STRING] = sizeof(char *),  [OPT_CHOICE] = sizeof(int),  [OPT_STRINGS] = sizeof(StringList),
        [OPT_LIST] = sizeof(ObjectList)};
    return sizes[o->type];
}

static void fields_do_not_overlap(void **state) {
    int rows = 0;
    (void)state;
    for (const Option *o = config_options(); o->key; o++, rows++) {
        if (o->offset + size_of(o) > sizeof(Config)) fail_msg("%s lies outside", o->key);
        for (const Option *other = config_options(); other < o; other++) {
            if (strcmp(o->key, other->key) == 0) fail_msg("%s stands twice", o->key);
            if (o->offset < other->offset + size_of(other) && other->offset < o->offset + size_of(o))
                fail_msg("%s and %s have one field", o->key, other->key);
        }
    }
    assert_true(rows > 150);
}

/* Help of one key is also shown alone (weft help KEY), so it cannot continue the row above. */
static void help_stands_alone(void **state) {
    static const char *const starts[] = {"And ", "That ", "By how much", "Of these", "They ", "It "};
    (void)state;
    for (const Option *o = config_options(); o->key; o++) {
        size_t length = strlen(o->help);
        if (length < 10 || o->help[length - 1] != '.') fail_msg("%s: no sentence: %s", o->key, o->help);
        for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
            if (strncmp(o->help, starts[i], strlen(starts[i])) == 0) fail_msg("%s: %s", o->key, o->help);
        if (strstr(o->help, "see there")) fail_msg("%s: %s", o->key, o->help);
    }
}

/* Writes "model.conv_size=1": a value other than the default. */
static void other_value(const Option *o, Text *word) {
    text_printf(word, "%s=", o->key);
    if (o->type == OPT_BOOL)
        text_puts(word, strcmp(o->default_value, "true") == 0 ? "false" : "true");
    else if (o->type == OPT_INT)
        text_printf(word, "%d", atoi(o->default_value) + 1);
    else
        text_puts(word, "[hawk]");
}

/* Takes the default shape as that of existing weights, with one key that contradicts it. */
static bool is_refused(const Option *o, Error *err) {
    Config c = {0};
    OptionSet set;
    Text word = {0};
    other_value(o, &word);
    assert_int_equal(options_init(&set, config_options(), &c, err), OK);
    ModelConfig own = c.model.shape;
    own.tie_word_embeddings = own.attention_bias = own.mlp_bias = false;
    assert_int_equal(options_apply_override(&set, word.data, err), OK);
    assert_int_equal(model_options_read(&c.model, &set, err), OK);
    ErrorCode code = model_options_fit(&c.model, &set, &own, "base", err);
    options_free(&set);
    text_free(&word);
    return code != OK;
}

/* The keys that weights from model.init refuse follow from the table: those with the effect RUN. Exceptions:
 * a period alone is no pattern, and the head's tying may differ. */
static void keys_of_the_shape_are_refused(void **state) {
    int refused = 0;
    (void)state;
    for (const Option *o = model_options; o->key; o++) {
        Error err = {0};
        bool open = o->effect != EFFECT_RUN || o->type == OPT_CHOICE || strstr(o->key, "dense_period") ||
                    strstr(o->key, "dense_layers") || strstr(o->key, "tie_word");
        if (open) continue;
        if (!is_refused(o, &err)) fail_msg("%s may differ from the weights", o->key);
        if (!strstr(err.message, o->key)) fail_msg("%s: %s", o->key, err.message);
        refused++;
    }
    assert_true(refused > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fields_do_not_overlap),
                                       cmocka_unit_test(help_stands_alone),
                                       cmocka_unit_test(keys_of_the_shape_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

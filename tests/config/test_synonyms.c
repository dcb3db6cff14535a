/* Synonyms of keys: each refers to an existing key or section, and hides no key. */
#include "support/files.h"

#include "config/config.h"

static bool is_key(const char *name) {
    for (const Option *o = config_options(); o->key; o++)
        if (strcmp(o->key, name) == 0) return true;
    return false;
}

static bool is_section(const char *name) {
    size_t length = strlen(name);
    for (const Option *o = config_options(); o->key; o++)
        if (strncmp(o->key, name, length) == 0 && o->key[length] == '.') return true;
    return false;
}

static bool is_last_part(const char *name) {
    for (const Option *o = config_options(); o->key; o++)
        if (strcmp(strrchr(o->key, '.') + 1, name) == 0) return true;
    return false;
}

static void test_table(void **state) {
    (void)state;
    for (const OptionSynonym *s = config_synonyms; s->name; s++) {
        if (!is_key(s->key) && !is_section(s->key)) fail_msg("%s: there is no %s", s->name, s->key);
        if (is_key(s->name) || is_section(s->name) || is_last_part(s->name))
            fail_msg("%s is a name of ours", s->name);
        for (const OptionSynonym *t = config_synonyms; t < s; t++)
            if (strcmp(s->name, t->name) == 0) fail_msg("%s stands twice", s->name);
    }
}

static void test_look_up(void **state) {
    (void)state;
    assert_string_equal(options_synonym(config_synonyms, "learning_rate"), "optimizer.lr");
    assert_string_equal(options_synonym(config_synonyms, "trainer.learning_rate"), "optimizer.lr");
    assert_string_equal(options_synonym(config_synonyms, "validation.steps"), "validation.samples");
    assert_null(options_synonym(config_synonyms, "train.steps"));
    assert_null(options_synonym(NULL, "learning_rate"));
}

static bool is_choice(const char *key, const char *value) {
    char name[64];
    for (const Option *o = config_options(); o->key; o++)
        for (int i = 0; strcmp(o->key, key) == 0 && *options_choice_name(o, i, name); i++)
            if (strcmp(name, value) == 0) return true;
    return false;
}

/* An old name is free, stands once, and leads to a key or section; an old choice, to one of the key's. */
static void test_renames(void **state) {
    (void)state;
    for (const OptionRename *r = config_renames; r->old; r++) {
        if (is_key(r->old) || is_section(r->old)) fail_msg("%s is in use", r->old);
        if (!(strchr(r->old, '.') ? is_key(r->key) : is_section(r->key)))
            fail_msg("%s: there is no %s", r->old, r->key);
        for (const char *const *pair = r->values; pair && *pair; pair += 2) {
            if (is_choice(r->key, pair[0])) fail_msg("%s: %s is in use", r->key, pair[0]);
            if (!is_choice(r->key, pair[1])) fail_msg("%s has no choice %s", r->key, pair[1]);
        }
        for (const OptionRename *other = config_renames; other < r; other++)
            if (strcmp(r->old, other->old) == 0) fail_msg("%s stands twice", r->old);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_look_up),
                                       cmocka_unit_test(test_renames)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

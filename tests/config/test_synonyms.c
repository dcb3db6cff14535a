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

enum { MOST_NAMES = 1000 };
static char *names[MOST_NAMES];
static int name_count;

/* Other programs' names of a key or section: each stands once, and is none of ours. */
static void check_names(const char *elsewhere) {
    char *words = strdup(elsewhere ? elsewhere : ""), *rest = NULL;
    for (char *name = strtok_r(words, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        if (is_key(name) || is_section(name) || is_last_part(name)) fail_msg("%s is a name of ours", name);
        for (int i = 0; i < name_count; i++)
            if (strcmp(names[i], name) == 0) fail_msg("%s stands twice", name);
        assert_true(name_count < MOST_NAMES);
        names[name_count++] = strdup(name);
    }
    free(words);
}

static void test_table(void **state) {
    (void)state;
    for (const Option *o = config_options(); o->key; o++) check_names(o->elsewhere);
    for (const OptionSection *s = config_sections; s->name; s++) {
        if (!is_section(s->name)) fail_msg("there is no section %s", s->name);
        check_names(s->elsewhere);
    }
    assert_true(name_count > 300);
    while (name_count > 0) free(names[--name_count]);
}

static void test_look_up(void **state) {
    OptionSet set = {.table = config_options(), .sections = config_sections};
    (void)state;
    while (set.table[set.count].key) set.count++;
    assert_string_equal(options_synonym(&set, "learning_rate"), "optimizer.lr");
    assert_string_equal(options_synonym(&set, "trainer.learning_rate"), "optimizer.lr");
    assert_string_equal(options_synonym(&set, "validation.steps"), "validation.samples");
    assert_string_equal(options_synonym(&set, "flavor"), "model.config");
    assert_string_equal(options_synonym(&set, "scheduler"), "lr_schedule");
    assert_null(options_synonym(&set, "train.steps"));
    assert_null(options_synonym(&set, "learning"));
    assert_null(options_synonym(&set, "rate"));
    assert_null(options_synonym(&set, ""));
}

static bool is_choice(const char *key, const char *value) {
    char name[64];
    for (const Option *o = config_options(); o->key; o++)
        for (int i = 0; strcmp(o->key, key) == 0 && *options_choice_name(o, i, name); i++)
            if (strcmp(name, value) == 0) return true;
    return false;
}

/* An old name is free and stands once; an old choice leads to one of the key's. */
static void test_renames(void **state) {
    (void)state;
    for (const Option *o = config_options(); o->key; o++) {
        for (const char *const *pair = o->choices_were; pair && *pair; pair += 2) {
            if (is_choice(o->key, pair[0])) fail_msg("%s: %s is in use", o->key, pair[0]);
            if (!is_choice(o->key, pair[1])) fail_msg("%s has no choice %s", o->key, pair[1]);
        }
        if (!o->was) continue;
        if (is_key(o->was) || is_section(o->was)) fail_msg("%s is in use", o->was);
        for (const Option *other = config_options(); other < o; other++)
            if (other->was && strcmp(o->was, other->was) == 0) fail_msg("%s stands twice", o->was);
    }
    for (const OptionSection *s = config_sections; s->name; s++)
        if (s->was && is_section(s->was)) fail_msg("%s is in use", s->was);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_look_up),
                                       cmocka_unit_test(test_renames)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

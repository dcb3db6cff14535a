/* Fuzzes a command line: the words are the lines of the input, or separated by NULs. An accepted line keeps
 * every word: as an operand, or as a flag or its value. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "fuzz.h"

enum { MAX_WORDS = 64 };

/* Splits a copy of the input into words, in place. */
static int split(char *text, size_t size, const char **words) {
    int count = 0;
    for (size_t at = 0; at < size && count < MAX_WORDS;) {
        words[count++] = text + at;
        while (at < size && text[at] != '\n' && text[at]) at++;
        text[at++] = 0;
    }
    return count;
}

static void check_flags(const Arguments *args, const Verb *verb) {
    for (const Flag *flag = verb->flags; flag && flag->name; flag++) {
        Error err = {0};
        int64_t whole = 7;
        double real = 7;
        const char *value = arguments_flag(args, flag->name);
        REQUIRE(arguments_has(args, flag->name) == (value != NULL));
        if (!flag->argument) {
            REQUIRE(!value || !*value);
            continue;
        }
        if (fuzz_ok(arguments_int(args, flag->name, -5, 1000, &whole, &err), &err))
            REQUIRE(whole >= -5 && whole <= 1000);
        else
            REQUIRE(whole == 7);
        if (fuzz_ok(arguments_double(args, flag->name, -0.5, 1e9, &real, &err), &err))
            REQUIRE(real >= -0.5 && real <= 1e9);
        REQUIRE(value || (whole == 7 && real >= 7 && real <= 7));
    }
}

static void check_arguments(const Verb *verb, int count, const char *const *words) {
    Error err = {0};
    Arguments args;
    if (fuzz_ok(arguments_parse(&args, verb, count, words, &err), &err)) {
        REQUIRE(args.operand_count <= count);
        if (!args.help) {
            REQUIRE(args.operand_count >= verb->min_operands);
            REQUIRE(verb->max_operands < 0 || args.operand_count <= verb->max_operands);
        }
        for (int i = 0, from = 0; i < args.operand_count; i++) {
            while (from < count && words[from] != args.operands[i]) from++;
            REQUIRE(from++ < count); /* in their order */
        }
        check_flags(&args, verb);
    }
    arguments_free(&args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    const char *words[MAX_WORDS];
    const Verb *verb = NULL;
    int used = 0;
    char *text = mem_alloc(size + 1);
    fuzz_directory();
    memcpy(text, data, size);
    int count = split(text, size, words);
    if (fuzz_ok(verb_find(&verb, count, words, &used, &err), &err)) {
        REQUIRE(verb && used >= 1 && used <= count);
        check_arguments(verb, count - used, words + used);
    } else {
        REQUIRE(!verb);
        size_t verb_count = 0;
        while (verbs[verb_count]) verb_count++;
        check_arguments(verbs[size % verb_count], count, words);
    }
    free(text);
    return 0;
}

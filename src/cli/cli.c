/* The command line: words in, Arguments out.
 *
 * 1. The verb's table alone defines what is allowed; any other word is an error, never ignored.
 * 2. Nothing is copied: operands and values point into the words of main.
 * 3. No abbreviations: a flag that is added later must not change the meaning of existing scripts.
 *
 * The grammar, in which operands and flags come in any order after the verb:
 *
 *     weft VERB [MEMBER] word...          MEMBER: of verbs with two words, "tokenizer train"
 *     --name VALUE   --name=VALUE         a flag with a value
 *     -n VALUE       -nVALUE              the same by its letter
 *     --name         --name=VALUE         a flag whose value may be omitted ("[...]" in its table)
 *     --                                  all following words are operands
 *     -                                   an operand: standard input or output */
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* In the order of the fields in set_common. */
const Flag common_flags[] = {
    {"--help", 'h', NULL, "show this help and exit"},
    {"--quiet", 'q', NULL, "errors only"},
    {NULL, 0, NULL, NULL},
};

/* ---- names and suggestions ---- */

/* Distance between a name and the user's word, or FAR. A prefix is nearer than a misspelling; a far-fetched
 * suggestion would mislead. */
enum { FAR = 99 };
static int distance_to(const char *name, const char *found) {
    int length = (int)strlen(found), distance = text_distance(found, name);
    if (length > 3 && strncmp(found, name, (size_t)length) == 0) return 0;
    /* Two edits in a short word, one per three letters in a long one. */
    return distance <= (length < 6 ? 2 : length / 3) ? distance : FAR;
}

/* Number of leading words that make up the verb's name; 0 if they do not match. A name has one or two
 * words. */
static int words_matched(const char *name, int count, const char *const *words) {
    const char *space = strchr(name, ' ');
    if (!space) return count > 0 && strcmp(words[0], name) == 0 ? 1 : 0;
    size_t first = (size_t)(space - name);
    bool same = count > 1 && strlen(words[0]) == first && memcmp(words[0], name, first) == 0 &&
                strcmp(words[1], space + 1) == 0;
    return same ? 2 : 0;
}

/* The blank must match too: "tokenizer train" is not in a group "token". */
static bool in_group(const char *name, const char *group) {
    size_t length = strlen(group);
    return strncmp(name, group, length) == 0 && name[length] == ' ';
}

static bool is_group(const char *word) {
    for (const Verb *const *v = verbs; *v; v++)
        if (in_group((*v)->name, word)) return true;
    return false;
}

/* Compared with one word, or with two if the verb has two: "tokeniser train" is near "tokenizer train". */
static const char *nearest_verb(int count, const char *const *words) {
    char two[128] = "";
    if (count > 1 && strlen(words[0]) + strlen(words[1]) + 2 < sizeof two) {
        strcpy(two, words[0]);
        strcat(two, " ");
        strcat(two, words[1]);
    }
    const char *best = NULL;
    int best_distance = FAR;
    bool group = *two && is_group(words[0]);
    for (const Verb *const *v = verbs; *v; v++) {
        /* A user who names a group means one of its verbs, even if a single-word verb is nearer. */
        if (group && !in_group((*v)->name, words[0])) continue;
        const char *found = strchr((*v)->name, ' ') && *two ? two : words[0];
        int distance = distance_to((*v)->name, found);
        if (distance < best_distance) {
            best = (*v)->name;
            best_distance = distance;
        }
    }
    return best;
}

/* "train, encode, decode" for the group "tokenizer"; empty if there is no such group. */
static void list_group(const char *group, Text *out) {
    for (const Verb *const *v = verbs; *v; v++)
        if (in_group((*v)->name, group))
            text_printf(out, "%s%s", out->length ? ", " : "", (*v)->name + strlen(group) + 1);
}

/* A group alone ("weft tokenizer") is not unknown, only incomplete. */
static ErrorCode unknown_verb(int count, const char *const *words, Error *err) {
    char shown[80];
    error_escape(shown, sizeof shown, words[0], strlen(words[0]));
    Text members = {0};
    list_group(words[0], &members);
    const char *near = nearest_verb(count, words);
    if (members.length && (count < 2 || !near)) {
        error_set(err, ERR_USAGE, "\"%s\" needs one of: %s. See \"weft %s --help\"", shown, members.data,
                  shown);
    } else if (near) {
        error_set(err, ERR_USAGE, "unknown verb \"%s\"; did you mean \"%s\"? \"weft --help\" lists all",
                  shown, near);
    } else {
        error_set(err, ERR_USAGE, "unknown verb \"%s\"; \"weft --help\" lists all", shown);
    }
    text_free(&members);
    return ERR_USAGE;
}

/* The longest name wins, so that "tokenizer train" is not taken for a verb "tokenizer". */
ErrorCode verb_find(const Verb **verb, int count, const char *const *words, int *used, Error *err) {
    *verb = NULL;
    *used = 0;
    if (count < 1) return error_set(err, ERR_USAGE, "a verb is needed; \"weft --help\" lists all");
    for (const Verb *const *v = verbs; *v; v++) {
        int matched = words_matched((*v)->name, count, words);
        if (matched > *used) {
            *verb = *v;
            *used = matched;
        }
    }
    return *verb ? OK : unknown_verb(count, words, err);
}

/* ---- flags ---- */

/* Tables end with a flag without a name, and NULL is an empty table: verbs without flags need none. */
static int flag_count(const Flag *flags) {
    int count = 0;
    while (flags && flags[count].name) count++;
    return count;
}

/* Index of the flag spelled name[0..length) in a table, or -1. */
static int flag_index(const Flag *flags, const char *name, size_t length) {
    for (int i = 0; flags && flags[i].name; i++)
        if (strlen(flags[i].name) == length && memcmp(flags[i].name, name, length) == 0) return i;
    return -1;
}

/* Linear: the tables are short, and this runs once per word. */
static int letter_index(const Flag *flags, char letter) {
    for (int i = 0; flags && flags[i].name; i++)
        if (flags[i].letter == letter) return i;
    return -1;
}

/* Among the verb's own flags and the common ones. The first of equal distance wins, so the verb's own win. */
static const char *nearest_flag(const Verb *verb, const char *name) {
    const Flag *tables[2] = {verb->flags, common_flags};
    const char *best = NULL;
    int best_distance = FAR;
    for (int t = 0; t < 2; t++) {
        for (const Flag *f = tables[t]; f && f->name; f++) {
            int distance = distance_to(f->name, name);
            if (distance < best_distance) {
                best = f->name;
                best_distance = distance;
            }
        }
    }
    return best;
}

/* `word` is the user's word, up to `length`, which excludes "=value": suggestions are names. A name that does
 * not fit is cut, and is then far from every flag. */
static ErrorCode unknown_flag(const Verb *verb, const char *word, size_t length, Error *err) {
    char shown[80], name[80];
    error_escape(shown, sizeof shown, word, length);
    if (length >= sizeof name) length = sizeof name - 1;
    memcpy(name, word, length);
    name[length] = 0;
    const char *near = nearest_flag(verb, name);
    if (near)
        return error_set(err, ERR_USAGE, "%s: unknown flag \"%s\"; did you mean \"%s\"?", verb->name, shown,
                         near);
    return error_set(err, ERR_USAGE, "%s: unknown flag \"%s\"; see \"weft %s --help\"", verb->name, shown,
                     verb->name);
}

/* Sets a flag of every verb, after the verb's own table was searched. */
static void set_common(Arguments *args, int index) {
    bool *const fields[] = {&args->help, &args->quiet};
    *fields[index] = true;
}

/* Stores flag `index` of the verb. `attached` is the value in the same word ("--seed=1", "-s1"), or NULL;
 * then the next word is the value and *next advances. */
static ErrorCode set_flag(Arguments *args, int index, const char *attached, int count,
                          const char *const *words, int *next, Error *err) {
    const Flag *flag = &args->verb->flags[index];
    if (!flag->argument) {
        if (attached) return error_set(err, ERR_USAGE, "%s: %s takes no value", args->verb->name, flag->name);
        args->values[index] = "";
        return OK;
    }
    /* A value in brackets is optional, and can only be in the same word. */
    if (!attached && flag->argument[0] == '[') attached = "";
    if (!attached) {
        if (*next >= count)
            return error_set(err, ERR_USAGE, "%s: %s needs a value: %s %s", args->verb->name, flag->name,
                             flag->name, flag->argument);
        attached = words[(*next)++];
    }
    /* If given twice, the last one wins: a script may append its words to the user's. */
    args->values[index] = attached;
    return OK;
}

/* The verb's own table comes first: a verb may redefine a common letter. */
static ErrorCode parse_flag(Arguments *args, const char *word, int count, const char *const *words, int *next,
                            Error *err) {
    bool is_long = word[1] == '-';
    const char *equals = is_long ? strchr(word, '=') : NULL;
    const char *attached = is_long ? (equals ? equals + 1 : NULL) : (word[2] ? word + 2 : NULL);
    size_t length = is_long ? (equals ? (size_t)(equals - word) : strlen(word)) : 2;
    const Flag *own = args->verb->flags;
    int index = is_long ? flag_index(own, word, length) : letter_index(own, word[1]);
    if (index >= 0) return set_flag(args, index, attached, count, words, next, err);
    index = is_long ? flag_index(common_flags, word, length) : letter_index(common_flags, word[1]);
    if (index < 0) return unknown_flag(args->verb, word, is_long ? length : strlen(word), err);
    if (attached)
        return error_set(err, ERR_USAGE, "%s: %s takes no value", args->verb->name, common_flags[index].name);
    set_common(args, index);
    return OK;
}

/* Not checked with --help: a user who asks for the usage need not have it right. */
static ErrorCode check_operands(const Arguments *args, Error *err) {
    const Verb *verb = args->verb;
    if (args->operand_count < verb->min_operands)
        return error_set(err, ERR_USAGE, "%s: something is missing. Usage: weft %s %s", verb->name,
                         verb->name, verb->synopsis);
    if (verb->max_operands >= 0 && args->operand_count > verb->max_operands) {
        char shown[80];
        const char *extra = args->operands[verb->max_operands];
        error_escape(shown, sizeof shown, extra, strlen(extra));
        return error_set(err, ERR_USAGE, "%s: \"%s\" is one too many. Usage: weft %s %s", verb->name, shown,
                         verb->name, verb->synopsis);
    }
    return OK;
}

/* A lone "-" is an operand (standard input), and after "--" everything is. Free args also after a failure. */
ErrorCode arguments_parse(Arguments *args, const Verb *verb, int count, const char *const *words,
                          Error *err) {
    *args = (Arguments){.verb = verb};
    args->operands = mem_alloc_array((size_t)count + 1, sizeof *args->operands);
    args->values = mem_alloc_array((size_t)flag_count(verb->flags) + 1, sizeof *args->values);
    bool flags_over = false;
    for (int next = 0; next < count;) {
        const char *word = words[next++];
        if (flags_over || word[0] != '-' || !word[1]) {
            args->operands[args->operand_count++] = word;
            flags_over |= verb->words_after;
        } else if (strcmp(word, "--") == 0) {
            flags_over = true;
        } else {
            TRY(parse_flag(args, word, count, words, &next, err));
        }
    }
    return args->help ? OK : check_operands(args, err);
}

/* main owns the words. */
void arguments_free(Arguments *args) {
    free(args->operands);
    free(args->values);
    *args = (Arguments){0};
}

/* ---- values ---- */

/* NULL: not given; "": given without a value. The name must be in the verb's table, else it is a bug. */
const char *arguments_flag(const Arguments *args, const char *name) {
    int index = flag_index(args->verb->flags, name, strlen(name));
    CHECK(index >= 0);
    return args->values[index];
}

/* Also true if the value was omitted: "" is not NULL. */
bool arguments_has(const Arguments *args, const char *name) { return arguments_flag(args, name) != NULL; }

/* Names verb, flag, what was found and expected; the value is escaped, since a shell may have expanded it to
 * anything. */
static ErrorCode bad_value(const Arguments *args, const char *name, const char *value, const char *expected,
                           Error *err) {
    char shown[80];
    error_escape(shown, sizeof shown, value, strlen(value));
    return error_set(err, ERR_USAGE, "%s: %s is \"%s\"; expected %s", args->verb->name, name, shown,
                     expected);
}

/* strtoll alone would accept blanks before a number. *out is unchanged if the flag is absent, so that the
 * caller's default stays. */
ErrorCode arguments_int(const Arguments *args, const char *name, int64_t min, int64_t max, int64_t *out,
                        Error *err) {
    const char *value = arguments_flag(args, name);
    if (!value) return OK;
    char *end = NULL;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    bool whole = end != value && !*end && errno == 0 && !strchr(" \t\n", value[0]);
    if (!whole || number < min || number > max) {
        char expected[96];
        snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)min,
                 (long long)max);
        return bad_value(args, name, value, expected, err);
    }
    *out = number;
    return OK;
}

/* isfinite: strtod accepts "inf" and "nan", which make no sense for any flag. */
ErrorCode arguments_double(const Arguments *args, const char *name, double min, double max, double *out,
                           Error *err) {
    const char *value = arguments_flag(args, name);
    if (!value) return OK;
    char *end = NULL;
    double number = strtod(value, &end);
    bool read = end != value && !*end && isfinite(number) && !strchr(" \t\n", value[0]);
    if (!read || number < min || number > max) {
        char low[32], high[32], expected[96];
        snprintf(expected, sizeof expected, "a number from %s to %s", text_double(min, low),
                 text_double(max, high));
        return bad_value(args, name, value, expected, err);
    }
    *out = number;
    return OK;
}

/* ---- words for another process ---- */

/* value: NULL for a lone word, such as a switch. Every word is allocated, even a constant, so that
 * arguments_free_words can free all of them. */
static void add_word(char **words, int *count, const char *flag, const char *value) {
    Text word = {0};
    text_printf(&word, value ? "%s=%s" : "%s", flag, value ? value : "");
    words[(*count)++] = word.data;
}

char **arguments_words(const Arguments *args, const char *without, const char *last) {
    const Flag *flags = args->verb->flags;
    int count = 0, own = flag_count(flags);
    char **words = mem_alloc_array((size_t)(own + args->operand_count + 8), sizeof *words);
    add_word(words, &count, "weft", NULL);
    add_word(words, &count, args->verb->name, NULL);
    if (args->quiet) add_word(words, &count, "--quiet", NULL);
    for (int i = 0; i < own; i++)
        if (args->values[i] && strcmp(flags[i].name, without) != 0)
            add_word(words, &count, flags[i].name, flags[i].argument ? args->values[i] : NULL);
    add_word(words, &count, "--", NULL);
    for (int i = 0; i < args->operand_count; i++) add_word(words, &count, args->operands[i], NULL);
    if (last) add_word(words, &count, last, NULL);
    return words;
}

/* The array is zeroed, and thus ended by NULL. */
void arguments_free_words(char **words) {
    for (char **w = words; *w; w++) free(*w);
    free(words);
}

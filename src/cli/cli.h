/* The verbs of the command: one file and one constant Verb each, listed in cli/verbs.c. Parsing, --help, the
 * man page and the bash completion all derive from the tables here. Data goes to stdout, messages to
 * stderr. */
#ifndef WEFT_CLI_CLI_H
#define WEFT_CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"

typedef struct Flag {
    const char *name; /* "--seed" */
    char letter;      /* short form, or 0 */
    /* "N"; "[=FORM]" for an optional value, given in the same word; NULL for a switch */
    const char *argument;
    const char *help;
} Flag;

/* A parsed command line. Flags may stand anywhere; "--" ends them; "-" is an operand; "--flag=value" works.
 */
typedef struct Arguments {
    int operand_count;
    const char **operands;
    const struct Verb *verb;
    const char **values; /* parallel to verb->flags: NULL when absent; "" for a switch or no value */
    bool help, quiet;    /* flags of every verb */
} Arguments;

typedef struct Verb {
    const char *name;     /* "train"; two words for a verb of a group: "tokenizer train" */
    const char *summary;  /* one line, lower case, no full stop */
    const char *synopsis; /* "CONFIG.yaml [section.key=value ...]" */
    /* paragraphs for --help and the man page, separated by empty lines; lines that start with a space
     * (examples, tables) are kept as they are */
    const char *details;
    const Flag *flags;              /* ended by name == NULL; NULL for none. Every verb has --help. */
    const Option *(*options)(void); /* configuration table to document under --help, or NULL */
    int min_operands, max_operands; /* -1: any number */
    bool words_after; /* the first operand ends the flags: it is a program with words of its own */
    ErrorCode (*run)(const Arguments *args, Error *err);
} Verb;

extern const Verb *const verbs[]; /* ended by NULL; in the order of --help */

/* The verb named by the first words of a command line; *used is their number. An unknown name is ERR_USAGE,
 * which suggests the nearest one. */
ErrorCode verb_find(const Verb **verb, int count, const char *const *words, int *used, Error *err);

/* Parses the words after the verb. Operands and values point into `words`. With --help the number of operands
 * is not checked. Free with arguments_free, also after an error. */
ErrorCode arguments_parse(Arguments *args, const Verb *verb, int count, const char *const *words, Error *err);
void arguments_free(Arguments *args);

/* Value of a flag ("--seed"), or NULL when absent. The name must be in the verb's table. */
const char *arguments_flag(const Arguments *args, const char *name);
bool arguments_has(const Arguments *args, const char *name);
/* Numbers: keep *out when the flag is absent; a malformed or out-of-range value is ERR_USAGE naming the flag.
 */
ErrorCode arguments_int(const Arguments *args, const char *name, int64_t min, int64_t max, int64_t *out,
                        Error *err);
ErrorCode arguments_double(const Arguments *args, const char *name, double min, double max, double *out,
                           Error *err);

/* This command line for another process: without one flag, and with an additional last operand unless that is
 * NULL. Flags have the form --name=value and operands follow "--", so that no word can be mistaken for
 * another. Returns words ended by NULL; free with arguments_free_words. */
char **arguments_words(const Arguments *args, const char *without, const char *last);
void arguments_free_words(char **words);

extern const Flag common_flags[]; /* flags of every verb; ended by name == NULL */

extern const char program_summary[]; /* "weft - " and this: the first line of --help and of the man page */

/* Texts generated from the tables (cli/help.c, cli/man.c). They do not depend on the time or the machine. */
void help_write_overview(Text *out, int width);
void help_write_verb(const Verb *verb, Text *out, int width);
bool help_write_group(const char *group, Text *out,
                      int width);      /* false, and nothing written, if no verb begins with it */
void man_write(Text *out);             /* roff, man macros */
void completion_write_bash(Text *out); /* to be sourced by bash */

#endif

/* Verbs of the command: one file each, one constant Verb each, listed in cli/verbs.c. Parsing, --help, the man page and the
 * bash completion all come from the tables here. Data goes to stdout, messages to stderr. */
#ifndef WEFT_CLI_CLI_H
#define WEFT_CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"

typedef struct Flag {
    const char *name;     /* "--seed" */
    char letter;          /* short form, or 0 */
    const char *argument; /* "N", or NULL for a switch */
    const char *help;
} Flag;

/* A parsed command line. Flags may stand anywhere; "--" ends them; "-" is an operand; "--flag=value" works. */
typedef struct Arguments {
    int operand_count;
    const char **operands;
    const struct Verb *verb;
    const char **values; /* parallel to verb->flags: NULL when absent, "" for a given switch */
} Arguments;

typedef struct Verb {
    const char *name;      /* "train" */
    const char *summary;   /* one line, lower case, no full stop */
    const char *synopsis;  /* "CONFIG.yaml [section.key=value ...]" */
    const char *details;   /* paragraphs and examples for --help and the man page */
    const Flag *flags;     /* ended by name == NULL; NULL for none. --help is everyone's */
    const Option *options; /* configuration table to document under --help, or NULL */
    int min_operands, max_operands; /* -1: any number */
    ErrorCode (*run)(const Arguments *args, Error *err);
} Verb;

extern const Verb *const verbs[]; /* ended by NULL */

/* Value of a flag ("--seed"), or NULL when absent. The name must be in the verb's table. */
const char *arguments_flag(const Arguments *args, const char *name);
bool arguments_has(const Arguments *args, const char *name);
/* Numbers: keep *out when the flag is absent; a malformed or out-of-range value is ERR_USAGE naming the flag. */
ErrorCode arguments_int(const Arguments *args, const char *name, int64_t min, int64_t max, int64_t *out, Error *err);
ErrorCode arguments_double(const Arguments *args, const char *name, double min, double max, double *out, Error *err);

#endif

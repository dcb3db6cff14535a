/* Every verb, in the order of "weft --help". A new verb is a file and two lines here. */
#include "cli/cli.h"

extern const Verb verb_doctor;
extern const Verb verb_help;

const Verb *const verbs[] = {
    &verb_doctor,
    &verb_help,
    NULL,
};

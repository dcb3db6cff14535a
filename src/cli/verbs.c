/* Every verb, in the order of "weft --help". A new verb is a file and two lines here. */
#include "cli/cli.h"

extern const Verb verb_config;
extern const Verb verb_doctor;
extern const Verb verb_help;
extern const Verb verb_report;

const Verb *const verbs[] = {
    &verb_config,
    &verb_doctor,
    &verb_report,
    &verb_help,
    NULL,
};

/* A sweep: runs of one configuration over the cross product of the values of some keys. */
#ifndef WEFT_CLI_SWEEP_H
#define WEFT_CLI_SWEEP_H

#include "base/error.h"
#include "base/options.h"

enum { SWEEP_KEYS = 8, SWEEP_MEMBERS = 1000 }; /* at most */

typedef struct SweepKey {
    char *key;
    StringList values; /* as on the command line */
} SweepKey;

typedef struct Sweep {
    SweepKey keys[SWEEP_KEYS];
    size_t key_count;
    size_t members; /* product of the numbers of values; 1 without keys */
} Sweep;

/* "optimizer.lr=1e-3,2e-3; train.steps=100,200". Commas inside brackets or quotes do not separate values.
 * NULL or "" is one member without keys. ERR_USAGE for a syntax error; keys and values themselves are checked
 * by the option table. Free with sweep_free, also after an error. */
ErrorCode sweep_parse(Sweep *s, const char *text, Error *err);
void sweep_free(Sweep *s);

/* The value of key k in a member; the last key varies fastest. */
const char *sweep_value(const Sweep *s, size_t member, size_t k);
/* Appends a directory name, "optimizer.lr=1e-3,train.steps=100". Characters other than letters, digits and
 * ._+-=, become "_". */
void sweep_name(const Sweep *s, size_t member, Text *out);

#endif

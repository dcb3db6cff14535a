/* A sweep: runs of one configuration that differ in some keys, every value of each with every value of the
 * others. */
#ifndef WEFT_CLI_SWEEP_H
#define WEFT_CLI_SWEEP_H

#include "base/error.h"
#include "base/options.h"

enum { SWEEP_KEYS = 8, SWEEP_MEMBERS = 1000 }; /* at most */

typedef struct SweepKey {
    char *key;
    StringList values; /* as they stood on the command line */
} SweepKey;

typedef struct Sweep {
    SweepKey keys[SWEEP_KEYS];
    size_t key_count;
    size_t members; /* product of the numbers of values; 1 where there is no key */
} Sweep;

/* "optimizer.lr=1e-3,2e-3; train.steps=100,200". Commas inside brackets or quotes part nothing. NULL or "" is
 * one member without keys. ERR_USAGE says what cannot be read; whether keys and values are any is for the
 * option table. Free with sweep_free, also after an error. */
ErrorCode sweep_parse(Sweep *s, const char *text, Error *err);
void sweep_free(Sweep *s);

/* The value of key k in a member; the last key's changes fastest. */
const char *sweep_value(const Sweep *s, size_t member, size_t k);
/* "optimizer.lr=1e-3,train.steps=100": a name for a directory, in which what is no letter, digit or one of
 * ._+-=, has become "_". Appended to out. */
void sweep_name(const Sweep *s, size_t member, Text *out);

#endif

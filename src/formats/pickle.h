/* Recognises pickles of protocol 0 and 1, which have no magic number. Protocol 0 is ASCII. */
#ifndef WEFT_FORMATS_PICKLE_H
#define WEFT_FORMATS_PICKLE_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the beginning of a file is a list of opcodes, of which one stores an object in the memo:
 * pickle.dumps stores each string, list, tuple, dictionary and class. `whole`: the file ends there. */
bool pickle_begins(const unsigned char *bytes, size_t length, bool whole);

#endif

/* The machine's name, for messages between ranks and for file names. */
#ifndef WEFT_BASE_HOST_H
#define WEFT_BASE_HOST_H

#include <stdbool.h>
#include <stddef.h>

/* More than Linux's longest name, 64 bytes; a multiple of 8, so that words may follow it in a record. */
enum { HOST_NAME_BYTES = 72 };

/* The host's name, cut to what fits, then zeros to the end of out. False with an empty name if it is
 * unknown. */
bool host_name(char *out, size_t bytes);

#endif

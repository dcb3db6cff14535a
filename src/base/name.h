/* Names that people give to what they measure: part of tags, keys and file names. */
#ifndef WEFT_BASE_NAME_H
#define WEFT_BASE_NAME_H

#include <stdbool.h>
#include <stddef.h>

/* Letters, digits and ._- alone, and fewer than `most` of them. Empty is a name. */
bool name_is_plain(const char *name, size_t most);

#endif

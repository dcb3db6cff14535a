/* Names that users give to what they measure: used in tags, keys and file names. */
#ifndef WEFT_BASE_NAME_H
#define WEFT_BASE_NAME_H

#include <stdbool.h>
#include <stddef.h>

/* Only letters, digits and ._-, and fewer than `most` of them. An empty name is accepted. */
bool name_is_plain(const char *name, size_t most);

#endif

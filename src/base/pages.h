/* Large memory: mappings of whole pages that are touched at allocation. */
#ifndef WEFT_BASE_PAGES_H
#define WEFT_BASE_PAGES_H

#include <stddef.h>

/* Zeroed memory of `bytes`, with every page touched by `threads` threads; NULL, with errno, if there is not
 * enough memory. From one whole huge page on it uses huge pages, if the system has them. */
void *pages_take(size_t bytes, int threads);
/* `bytes` as passed to pages_take. */
void pages_give(void *memory, size_t bytes);
/* Length of the mapping: whole pages, at least one; 0 when that is more than can be addressed. */
size_t pages_length(size_t bytes);

#endif

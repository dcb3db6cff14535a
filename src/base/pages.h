/* Large memory: mappings of whole pages, made real when they are taken. */
#ifndef WEFT_BASE_PAGES_H
#define WEFT_BASE_PAGES_H

#include <stddef.h>

/* Zeroed memory of `bytes`, every page of it touched, by so many threads; NULL, with errno, when there is not
 * so much. On huge pages, from a whole one on, where the system lends them. */
void *pages_take(size_t bytes, int threads);
/* `bytes` as it was asked for. */
void pages_give(void *memory, size_t bytes);
/* Of the mapping: whole pages, one at least; 0 when that is more than can be addressed. */
size_t pages_length(size_t bytes);

#endif

/* Held-out documents, drawn by a hash of their text: whether a document is held out depends on nothing else,
 * so neither the order of files nor other documents matter, and equal documents are on the same side. What is
 * held out at one fraction is held out at every larger one.
 *
 * The hash is XXH3 of 128 bits, of the text without white space at its ends; its low 64 bits, divided by
 * 2^64, are below the fraction for a document that is held out. Of token files and conversations, which have
 * no one text, the ids are hashed, as little-endian int32. */
#ifndef WEFT_DATA_HOLDOUT_H
#define WEFT_DATA_HOLDOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which documents of a source a cache has. */
typedef enum DocumentPart {
    PART_ALL,
    PART_TRAINING, /* those that are not held out */
    PART_HELD
} DocumentPart;

/* Zero-initialised: all documents. */
typedef struct Holdout {
    DocumentPart part;
    uint64_t below; /* documents with smaller hashes are held out */
} Holdout;

Holdout holdout_of(DocumentPart part, double fraction /* 0 <= fraction < 1 */);
/* Whether the part has the document. */
bool holdout_has_text(Holdout h, const char *text, size_t length);
bool holdout_has_ids(Holdout h, const int32_t *ids, size_t count);

#endif

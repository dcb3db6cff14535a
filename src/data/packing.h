/* Rows of whole documents: what a source of conversations is cut into, where a text is cut into windows.
 *
 * A document of n tokens takes n - 1 places of a row: its last token is a target only. Documents are put by
 * best fit, the longest first, each into the row with the least room that is enough (Ding et al., "Fewer
 * truncations improve language modeling", 2024). One that is longer than a row is cut at its end, or left out
 * if nothing that is learned is in what would stay; both are counted.
 *
 * Each document sees itself alone, and its positions begin with 0; so do the places that stay empty, which
 * have no targets. Rows are a function of the stream and the context. */
#ifndef WEFT_DATA_PACKING_H
#define WEFT_DATA_PACKING_H

#include "data/stream.h"

typedef struct PackedDocument {
    uint64_t begin;  /* in the stream */
    uint32_t places; /* tokens that it has in the row, and one more as a target */
} PackedDocument;

typedef struct Packing {
    uint64_t rows, documents;
    uint64_t *first;          /* [rows + 1] documents before each row */
    PackedDocument *document; /* [documents] row after row */
    uint64_t places;          /* that are filled, of all rows */
    uint64_t cut, cut_tokens; /* documents that lost their end, and how much of all they lost */
    uint64_t dropped;         /* documents that were left out */
} Packing;

/* Ids of the stream are of a vocabulary of this size, and that much higher where they are learned
 * (data/chat.h). */
ErrorCode packing_build(Packing *p, const TokenStream *s, int64_t context, int32_t vocabulary, Error *err);
void packing_free(Packing *p);

/* Row `row` of the packing that was made of this stream; adds its number of targets to *valid. */
ErrorCode packing_row(const Packing *p, const TokenStream *s, int64_t context, int32_t vocabulary,
                      uint64_t row, const SampleRow *out, int64_t *valid, Error *err);

#endif

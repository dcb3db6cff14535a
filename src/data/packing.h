/* Packs whole documents into rows: how sources of conversations are cut, where text is cut into windows.
 *
 * A document of n tokens takes n - 1 positions of a row: its last token is a target only. Documents are
 * placed by best fit, longest first, each into the row with the least sufficient space (Ding et al., "Fewer
 * truncations improve language modeling", 2024). A document longer than a row is truncated at its end, or
 * dropped if the kept part contains nothing that is trained on; both are counted.
 *
 * Each document attends to itself alone, and its positions start at 0. Unused positions also start at 0 and
 * have no targets. Rows are a function of the stream and the context. */
#ifndef WEFT_DATA_PACKING_H
#define WEFT_DATA_PACKING_H

#include "data/stream.h"

typedef struct PackedDocument {
    uint64_t begin;     /* in the stream */
    uint32_t positions; /* positions in the row; one more token is a target only */
} PackedDocument;

typedef struct Packing {
    uint64_t rows, documents;
    uint64_t *first;          /* [rows + 1] documents before each row */
    PackedDocument *document; /* [documents] row after row */
    uint64_t positions;       /* filled positions of all rows */
    uint64_t cut, cut_tokens; /* truncated documents, and the tokens they lost */
    uint64_t dropped;         /* dropped documents */
} Packing;

/* `vocabulary` is the tokenizer's size; ids of the stream that are trained on are raised by it
 * (data/chat.h). */
ErrorCode packing_build(Packing *p, const TokenStream *s, int64_t context, int32_t vocabulary, Error *err);
void packing_free(Packing *p);

/* Row `row` of the packing of this stream; adds its number of targets to *valid. */
ErrorCode packing_row(const Packing *p, const TokenStream *s, int64_t context, int32_t vocabulary,
                      uint64_t row, const SampleRow *out, int64_t *valid, Error *err);

#endif

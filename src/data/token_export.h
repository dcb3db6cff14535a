/* Writes the ids of a token cache as files of other programs: NumPy's .npy, or Megatron's .bin and .idx.
 *
 *     NAME.npy             ids of all documents, uint16 or uint32; documents end with the EOS
 *     NAME.bin, NAME.idx   the same ids, uint16 or int32; the index has a sequence for each document
 *
 * Files get their names when they are complete and on disk; the index is the last. */
#ifndef WEFT_DATA_TOKEN_EXPORT_H
#define WEFT_DATA_TOKEN_EXPORT_H

#include <stdint.h>

#include "base/choices.h"
#include "base/error.h"
#include "data/token_cache.h"

#define TOKEN_EXPORTS(X) X(EXPORT_NPY, "npy") X(EXPORT_MEGATRON, "megatron")
typedef enum TokenExportFormat { TOKEN_EXPORTS(CHOICE_CONSTANT) } TokenExportFormat;

typedef struct TokenExport {
    TokenExportFormat format;
    const char *dir;     /* exists */
    uint64_t vocabulary; /* ids are below it */
    int32_t eos;         /* -1: none, and then there is no .npy */
} TokenExport;

/* ERR_CANTCREATE if a file of this name is there: nothing is overwritten. */
ErrorCode token_export_check(const TokenExport *e, const char *name, Error *err);
/* ERR_DATA if a .npy could not tell the documents apart. A failure leaves no file. */
ErrorCode token_export(const TokenExport *e, const char *name, const TokenCache *cache, Error *err);

#endif

/* How the files of a source of the configuration are read. */
#ifndef WEFT_DATA_SOURCE_FILES_H
#define WEFT_DATA_SOURCE_FILES_H

#include "data/corpus.h"
#include "remote/remote.h"

/* ERR_CONFIG if min_bytes and max_bytes leave no document. */
ErrorCode source_check_lengths(const DataSource *source, Error *err);
/* Without a tokenizer (t NULL), ids may have any value, and only `end` tells documents.
 *
 * ERR_CONFIG where a key of the source does not belong to the format of one of its files: it would be passed
 * over in silence. `indices`: of source_index. */
ErrorCode source_check(const DataSource *source, char *const *paths, char *const *indices, size_t count,
                       const Tokenizer *t, Error *err);
/* Path of Megatron's index of a file of the source, NULL if there is none; the caller frees it. A source that
 * states the type of ids or what stands between documents reads a .bin as ids alone. */
char *source_index(const DataSource *source, const char *path);
bool source_may_have_index(const DataSource *source);
/* The same of remote files, whose indices are fetched: indices[count], NULL where there is none. The files of
 * a source are alike, so that none is asked for if the first has none. */
ErrorCode source_fetch_indices(Remote *remote, const RemoteFile *files, size_t count, char **indices,
                               Error *err);
/* [count], of a source that was checked; the caller frees it. Paths and strings stay the source's. */
CorpusFile *source_files(const DataSource *source, char *const *paths, size_t count, const Tokenizer *t);

#endif

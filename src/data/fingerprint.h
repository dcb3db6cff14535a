/* A file's content, as the SHA-256 of its stored bytes.
 *
 * Hashing a corpus takes minutes, so results are cached in CACHE_DIR (data/fingerprint_records.h). A cached
 * value is used only while size, modification and change times (nanoseconds) and inode are unchanged, and
 * only if the file had not changed for two seconds when it was hashed: a change within one tick of the file
 * system's clock would be invisible. */
#ifndef WEFT_DATA_FINGERPRINT_H
#define WEFT_DATA_FINGERPRINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct FileStamp {
    int64_t size, mtime_seconds, mtime_nanoseconds, ctime_seconds, ctime_nanoseconds, inode;
} FileStamp;

typedef struct Fingerprint {
    FileStamp stamp; /* when it was hashed */
    char sha256[65];
} Fingerprint;

/* Fingerprints of `count` files into out[count], with a progress bar when there is much to read. Pass the
 * files of all sources in one call, since each call reads the records. */
ErrorCode fingerprint_files(const char *cache_dir, const char *const *paths, size_t count, Fingerprint *out,
                            Error *err);
/* The same for one file, which is always read and never looked up. */
ErrorCode fingerprint_file(const char *path, Fingerprint *print, Error *err);
/* ERR_DATA if the file has changed since `print` was taken. If only its inode has changed and the content is
 * found to be the same, the stamp is updated. */
ErrorCode fingerprint_check(const char *path, Fingerprint *print, Error *err);

#endif

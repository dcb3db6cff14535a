/* What a file holds, as a SHA-256 of its stored bytes.
 *
 * Hashing a corpus takes minutes, so results are remembered in CACHE_DIR (data/fingerprint_records.h). A
 * remembered value is used only while size, times of modification and of change (nanoseconds) and inode are
 * what they were, and only if the file had rested for two seconds when it was hashed: a change within one
 * tick of the file system's clock would not show. */
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

/* Fingerprints of `count` files into out[count]; a progress bar where there is much to read. Files of all
 * sources go into one call, since each reads the records. */
ErrorCode fingerprint_files(const char *cache_dir, const char *const *paths, size_t count, Fingerprint *out,
                            Error *err);
/* The same of one file, which is read whatever is remembered. */
ErrorCode fingerprint_file(const char *path, Fingerprint *print, Error *err);
/* ERR_DATA if the file is not what it was when `print` was taken. Of one whose inode alone has changed since,
 * the stamp is made new once the content is found to be the same. */
ErrorCode fingerprint_check(const char *path, Fingerprint *print, Error *err);

#endif

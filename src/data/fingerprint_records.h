/* Cache of file hashes: CACHE_DIR/fingerprints.jsonl, one line per file.
 *
 *    {"path": "...", "stamp": "SIZE MTIME CTIME INODE", "sha256": "64 hex digits"}
 *
 * Losing it is harmless: if it is missing, torn or out of date, files are hashed again; if it cannot be
 * written, a warning is logged. Any number of processes may use it at once. */
#ifndef WEFT_DATA_FINGERPRINT_RECORDS_H
#define WEFT_DATA_FINGERPRINT_RECORDS_H

#include <stdbool.h>

#include "data/fingerprint.h"

typedef struct FingerprintRecords FingerprintRecords;

/* Reads the existing records. Never fails. */
FingerprintRecords *records_open(const char *cache_dir);
/* True when this file was hashed in this state: print->stamp is given, print->sha256 is filled. */
bool records_recall(const FingerprintRecords *r, const char *path, Fingerprint *print);
/* Adds a record. It is written to disk later, at the latest by records_close. */
void records_add(FingerprintRecords *r, const char *path, const Fingerprint *print);
void records_close(FingerprintRecords *r);

#endif

/* What is remembered of files that were hashed: CACHE_DIR/fingerprints.jsonl, a line a file.
 *
 *   {"path": "...", "stamp": "SIZE MTIME CTIME INODE", "sha256": "64 hex digits"}
 *
 * It is a memory, not a truth: a file of records that is missing, torn or of other states of the files costs
 * hashing them again, and one that cannot be written is a warning. Any number of processes may use it at
 * once. */
#ifndef WEFT_DATA_FINGERPRINT_RECORDS_H
#define WEFT_DATA_FINGERPRINT_RECORDS_H

#include <stdbool.h>

#include "data/fingerprint.h"

typedef struct FingerprintRecords FingerprintRecords;

/* Reads what is there. Never fails. */
FingerprintRecords *records_open(const char *cache_dir);
/* True when this file was hashed in this state: print->stamp is given, print->sha256 is filled. */
bool records_recall(const FingerprintRecords *r, const char *path, Fingerprint *print);
/* On the disk some time later, at the latest when the records are closed. */
void records_add(FingerprintRecords *r, const char *path, const Fingerprint *print);
void records_close(FingerprintRecords *r);

#endif

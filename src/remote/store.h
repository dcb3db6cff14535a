/* Copies of remote files below CACHE_DIR/remote, one directory each, and who uses them.
 *
 *     remote/in-use                     lockable bytes, two for each entry
 *     remote/<32 digits>/.about.json    of which file and version the copy is
 *     remote/<32 digits>/.part          bytes from the beginning, while it is fetched
 *     remote/<32 digits>/NAME           the copy
 *
 *  S1. .about.json is written before the first byte of a version is: .part and NAME are never of another one.
 *  S2. NAME is whole: it gets its name when it has its size, and is synced before.
 *  S3. An entry is written to by whoever has entered it, one process of all.
 *  S4. The copy of an entry that a process holds is not removed. .about.json stays when the copy goes: the
 *      hash in it spares a second download of a file that has been tokenized. */
#ifndef WEFT_REMOTE_STORE_H
#define WEFT_REMOTE_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

typedef struct RemoteStore RemoteStore;

/* What is known of a version of a file. */
typedef struct StoredAbout {
    char *url;      /* as it may be printed */
    char *etag;     /* "": none */
    char *modified; /* Last-Modified, "": none */
    uint64_t size;
    char sha256[65]; /* of the whole file; "": not known yet */
    char *boot;      /* store_boot when it was written */
} StoredAbout;

/* limit: bytes that all copies may take; 0: any number. */
ErrorCode store_open(RemoteStore **store, const char *cache_dir, uint64_t limit, Error *err);
/* Releases all entries. NULL is fine. */
void store_close(RemoteStore *s);
/* Name of the entry of a file from what identifies it. */
void store_name(const char *identity, char out[33]);
/* Appends the name of a copy: the end of its URL's path, by which formats are recognized. */
void store_copy_name(const char *url, Text *out);
/* Path in an entry; the caller frees it. */
char *store_path(const RemoteStore *s, const char *entry, const char *name);

/* Makes the entry's directory, keeps its copy from being removed, and notes its use. */
ErrorCode store_hold(RemoteStore *s, const char *entry, Error *err);
/* Undoes one store_hold. */
void store_release(RemoteStore *s, const char *entry);
/* Waits for another process that fetches it. `url` is for the log. false: *stop was set meanwhile. */
bool store_enter(RemoteStore *s, const char *entry, const char *url, const atomic_bool *stop);
void store_leave(RemoteStore *s, const char *entry);

/* false: nothing is known, or what is there cannot be read. */
bool store_about(const RemoteStore *s, const char *entry, StoredAbout *about);
ErrorCode store_set_about(const RemoteStore *s, const char *entry, const StoredAbout *about, Error *err);
void store_about_free(StoredAbout *about);
/* Identifies this boot of this machine; "" if the system does not tell. */
char *store_boot(void);

/* A copy, whole or not. */
typedef struct StoredCopy {
    char entry[33];
    uint64_t bytes;
    struct timespec used;
} StoredCopy;
typedef struct StoredCopies {
    StoredCopy *items; /* [count] the least recently used first */
    size_t count, capacity;
    uint64_t bytes;
} StoredCopies;
/* The caller frees the items. */
ErrorCode store_list(const RemoteStore *s, StoredCopies *all, Error *err);
/* Calls `each` for the regular files of an entry. */
void store_walk(const RemoteStore *s, const char *entry, FileEntry *each, void *ctx);
/* Whether the file is what is known of an entry, or a leftover of writing that. */
bool store_is_about(const char *name);
/* *claimed: no other process holds the entry, and none can until store_disclaim. Not of one that this store
 * holds. */
ErrorCode store_claim(RemoteStore *s, const char *entry, bool *claimed, Error *err);
void store_disclaim(RemoteStore *s, const char *entry);

/* Removes copies, the least recently used first, until `bytes` more fit; an error if they do not fit. Not to
 * be called from several threads. */
ErrorCode store_make_room(RemoteStore *s, uint64_t bytes, Error *err);
/* Removes the copy or what there is of it. What is known of it stays. */
ErrorCode store_clear(const RemoteStore *s, const char *entry, Error *err);
uint64_t store_limit(const RemoteStore *s);

#endif

#include "formats/stored_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

/* O_NONBLOCK: opening a FIFO must not wait for a writer before it is refused. */
ErrorCode stored_open(StoredFile *file, const char *path, Error *err) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_refuse(path, err);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return file_refuse(path, err);
    }
    *file = (StoredFile){mem_strdup(path), fd, (uint64_t)st.st_size};
    return OK;
}

void stored_close(StoredFile *file) {
    close(file->fd);
    free(file->path);
}

ErrorCode stored_read_at(int fd, const char *path, uint64_t at, void *out, size_t count, Error *err) {
    char shown[512];
    for (size_t got = 0; got < count; progress_beat()) {
        ssize_t n;
        RETRY(n, pread(fd, (char *)out + got, count - got, (off_t)(at + got)));
        if (n > 0) {
            got += (size_t)n;
            continue;
        }
        error_escape(shown, sizeof shown, path, strlen(path));
        if (n < 0) return error_errno(err, ERR_IO, "%s: reading failed at byte %" PRIu64, shown, at + got);
        return error_set(err, ERR_DATA, "%s: the file ends at byte %" PRIu64 ", %zu bytes short", shown,
                         at + got, count - got);
    }
    return OK;
}

ErrorCode stored_read(const StoredFile *file, uint64_t at, void *out, size_t count, Error *err) {
    return stored_read_at(file->fd, file->path, at, out, count, err);
}

ErrorCode stored_ends(const StoredFile *file, FileEnds *ends, Error *err) {
    uint64_t size = file->size;
    *ends = (FileEnds){.path = file->path, .size = size};
    ends->head_length = size < sizeof ends->head ? (size_t)size : sizeof ends->head;
    ends->tail_length = size < sizeof ends->tail ? (size_t)size : sizeof ends->tail;
    TRY(stored_read(file, 0, ends->head, ends->head_length, err));
    return stored_read(file, size - ends->tail_length, ends->tail, ends->tail_length, err);
}

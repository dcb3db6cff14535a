#include "formats/stored_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
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

ErrorCode stored_read(const StoredFile *file, uint64_t at, void *out, size_t count, Error *err) {
    for (size_t got = 0; got < count;) {
        ssize_t n = pread(file->fd, (char *)out + got, count - got, (off_t)(at + got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return error_errno(err, ERR_IO, "%s: reading failed at byte %" PRIu64, file->path, at + got);
        if (n == 0)
            return error_set(err, ERR_DATA, "%s: truncated at byte %" PRIu64 " while it was read", file->path,
                             at + got);
        got += (size_t)n;
    }
    return OK;
}

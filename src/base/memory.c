/* The process's memory figures, from /proc and the container's files. */
#include "base/memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A small system file into a buffer of the caller's: these figures are read inside steps, where nothing is
 * allocated. */
static bool read_small(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t length = 0;
    ssize_t got;
    while (length + 1 < size && (got = read(fd, out + length, size - 1 - length)) > 0) length += (size_t)got;
    close(fd);
    out[length] = 0;
    return length > 0;
}

/* The number after `label` at the start of a line, times `unit`; 0 when absent. */
static uint64_t field(const char *text, const char *label, uint64_t unit) {
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, label, strlen(label)) == 0) return strtoull(line + strlen(label), NULL, 10) * unit;
    }
    return 0;
}

/* A container's limit and what it has in use (file cache that can go does not count), cgroup version 2 or 1.
 */
static void apply_container(MemoryUse *use) {
    static const char *const files[][3] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
         "/sys/fs/cgroup/memory/memory.stat"},
    };
    char text[8192];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (!read_small(files[i][0], text, sizeof text)) continue;
        uint64_t limit = strtoull(text, NULL, 10); /* "max" reads as 0 */
        if (limit == 0 || limit >= use->machine) return;
        uint64_t current = read_small(files[i][1], text, sizeof text) ? strtoull(text, NULL, 10) : 0;
        uint64_t cache = read_small(files[i][2], text, sizeof text) ? field(text, "inactive_file ", 1) : 0;
        uint64_t used = current > cache ? current - cache : 0, left = limit > used ? limit - used : 1;
        use->machine = limit;
        if (left < use->available) use->available = left;
        return;
    }
}

MemoryUse memory_use(void) {
    MemoryUse use = {0};
    char text[8192];
    if (read_small("/proc/self/status", text, sizeof text)) {
        use.resident = field(text, "VmRSS:", 1024);
        use.peak = field(text, "VmHWM:", 1024);
    }
    if (read_small("/proc/meminfo", text, sizeof text)) {
        use.machine = field(text, "MemTotal:", 1024);
        use.available = field(text, "MemAvailable:", 1024) + field(text, "SwapFree:", 1024);
    }
    apply_container(&use);
    return use;
}

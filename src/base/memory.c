/* The process's memory figures, from /proc and the container's files.
 *
 * Nothing here fails: a figure that cannot be read is 0, and callers leave it out. Training also works on
 * machines without /proc, or with a control group that hides its files. */
#include "base/memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a small system file into the caller's buffer: these figures are read inside steps, where nothing is
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

/* The number after `label` at the start of a line, times `unit`; 0 when absent. Only at the start of a line,
 * since "VmRSS:" could be part of another name. */
static uint64_t field(const char *text, const char *label, uint64_t unit) {
    for (const char *line = text; line; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, label, strlen(label)) == 0) return strtoull(line + strlen(label), NULL, 10) * unit;
    }
    return 0;
}

/* ---- control groups ----
 *
 * /proc/self/cgroup names the groups of the process: "0::/a/b" in version 2, "4:memory:/a/b" in version 1.
 * Each group above it limits it too. In a container that path may be the host's, which is not visible inside;
 * then the visible group is the container's, at the top. */

typedef struct GroupFiles {
    const char *line, *directory; /* in /proc/self/cgroup; below the mount point */
    const char *limit, *current;
} GroupFiles;

static const GroupFiles group_versions[] = {
    {"0::", "", "memory.max", "memory.current"},
    {"memory:", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
};

static uint64_t group_number(const char *top, const char *group, const char *name) {
    char path[4352], text[64];
    snprintf(path, sizeof path, "%s%s/%s", top, group, name);
    return read_small(path, text, sizeof text) ? strtoull(text, NULL, 10) : 0; /* "max" reads as 0 */
}

/* Applies one group's limit and usage; reclaimable file cache does not count. */
static void apply_group(MemoryUse *use, const GroupFiles *f, const char *top, const char *group) {
    /* Version 1 expresses "no limit" by a huge number, version 2 by "max": both are at least the machine's
     * memory. */
    uint64_t limit = group_number(top, group, f->limit);
    if (limit == 0 || limit >= use->physical) return;
    char path[4352], text[8192];
    snprintf(path, sizeof path, "%s%s/memory.stat", top, group);
    uint64_t cache = read_small(path, text, sizeof text) ? field(text, "inactive_file ", 1) : 0;
    uint64_t current = group_number(top, group, f->current);
    uint64_t used = current > cache ? current - cache : 0, left = limit > used ? limit - used : 1;
    if (limit < use->machine) use->machine = limit;
    if (left < use->available) use->available = left;
}

/* The path after `line` in the text of /proc/self/cgroup; "" if there is none. Truncated to fit. */
static void group_path(const char *text, const char *line, char *out, size_t size) {
    *out = 0;
    for (const char *at = strstr(text, line); at; at = strstr(at + 1, line)) {
        if (at != text && at[-1] != '\n' && at[-1] != ':') continue;
        at += strlen(line);
        snprintf(out, size, "%.*s", (int)strcspn(at, "\n"), at);
        break;
    }
    if (strcmp(out, "/") == 0) *out = 0;
}

static void apply_groups(MemoryUse *use, const char *proc, const char *control_groups) {
    char path[4096], text[8192] = "", top[256], group[4000];
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    read_small(path, text, sizeof text);
    for (size_t i = 0; i < sizeof group_versions / sizeof *group_versions; i++) {
        const GroupFiles *f = &group_versions[i];
        snprintf(top, sizeof top, "%s%s", control_groups, f->directory);
        group_path(text, f->line, group, sizeof group);
        /* The group, then each above it up to the top: the smallest of their limits applies. */
        for (;;) {
            apply_group(use, f, top, group);
            char *slash = strrchr(group, '/');
            if (!slash) break;
            *slash = 0;
        }
    }
}

MemoryUse memory_use_at(const char *proc, const char *control_groups) {
    MemoryUse use = {0};
    char path[4096], text[8192];
    snprintf(path, sizeof path, "%s/self/status", proc);
    if (read_small(path, text, sizeof text)) {
        use.resident = field(text, "VmRSS:", 1024);
        use.peak = field(text, "VmHWM:", 1024);
    }
    snprintf(path, sizeof path, "%s/meminfo", proc);
    if (read_small(path, text, sizeof text)) {
        use.machine = use.physical = field(text, "MemTotal:", 1024);
        use.available = field(text, "MemAvailable:", 1024) + field(text, "SwapFree:", 1024);
    }
    apply_groups(&use, proc, control_groups);
    return use;
}

MemoryUse memory_use(void) { return memory_use_at("/proc", "/sys/fs/cgroup"); }

#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

/* From the sanitizers' run time, if it is linked. */
extern int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                                     void (*on_free)(const volatile void *))
    __attribute__((weak));
extern size_t __sanitizer_get_allocated_size(const volatile void *) __attribute__((weak));

const char fuzz_nasty_text[] =
    "Plain text, it's 1234567 o'clock!\r\n\n  \t x\xc2\xa0y \xe2\x80\x83z\0NUL "
    "<|end_of_text|><|begin_of_text|></s> "
    "\xff\xfe\x80 \xc3 \xe2\x82 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\x80 e\xcc\x81\xcc\x81\xcc\x81 "
    "\xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7 "
    "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9 \xe4\xb8\xad\xe6\x96\x87 \xd8\xb9\xd8\xb1 DON'T we'LL "
    "\xc5\xbf's "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaa"
    "                                                    !!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!\n\n\n\n\n "
    "the end ";
const size_t fuzz_nasty_length = sizeof fuzz_nasty_text - 1;

_Noreturn void fuzz_fail(const char *file, int line, const char *what, const char *detail) {
    fprintf(stderr, "%s:%d: not so: %s%s%s\n", file, line, what, detail ? ": " : "", detail ? detail : "");
    abort();
}

static Error first;
static bool any;

const char *fuzz_take_message(void) {
    const char *message = any ? first.message : "";
    any = false;
    return message;
}

bool fuzz_checked(const char *file, int line, ErrorCode code, const Error *err) {
    if (code == OK) return true;
    size_t length = strnlen(err->message, sizeof err->message);
    if (length == 0) fuzz_fail(file, line, "an error has a message", NULL);
    if (length == sizeof err->message) fuzz_fail(file, line, "a message ends", NULL);
    if (err->code != code) fuzz_fail(file, line, "an error has the code that was returned", err->message);
    if (code == ERR_INTERNAL) fuzz_fail(file, line, "bad input is never called a bug of weft", err->message);
    for (size_t at = 0; at < length;) {
        uint32_t point = 0;
        size_t bytes = text_utf8(err->message + at, length - at, &point);
        if (bytes == 0 || point < 0x20 || (point >= 0x7f && point < 0xa0))
            fuzz_fail(file, line, "a message holds printable UTF-8 only", err->message);
        at += bytes;
    }
    if (!any) first = *err;
    any = true;
    return false;
}

static char directory[64];

static void remove_directory(void) { file_remove_tree(directory, NULL); }

const char *fuzz_directory(void) {
    if (*directory) return directory;
    const char *directories[] = {getenv("TMPDIR"), "/dev/shm", "/tmp"};
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        if (!directories[i] || snprintf(directory, sizeof directory, "%s/weft-fuzz-XXXXXX", directories[i]) >=
                                   (int)sizeof directory)
            continue;
        if (!mkdtemp(directory)) continue;
        atexit(remove_directory);
        log_set_level(LOG_QUIET);
        return directory;
    }
    fuzz_fail(__FILE__, __LINE__, "a temporary directory can be made", NULL);
}

const char *fuzz_file(const char *name, const void *data, size_t size) {
    static struct {
        const char *name;
        char *path;
    } known[16];
    size_t i = 0;
    while (known[i].name && strcmp(known[i].name, name) != 0) REQUIRE(++i < sizeof known / sizeof *known);
    if (!known[i].name) {
        known[i].name = name;
        known[i].path = path_join(fuzz_directory(), name);
    }
    int fd = open(known[i].path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    for (size_t at = 0; at < size;) {
        ssize_t n = write(fd, (const char *)data + at, size - at);
        REQUIRE(n > 0);
        at += (size_t)n;
    }
    close(fd);
    return known[i].path;
}

static size_t live, peak;
static bool counting;

static void on_malloc(const volatile void *block, size_t size) {
    (void)block;
    if (!counting) return;
    live += size;
    if (live > peak) peak = live;
}

/* Blocks from before the start may be freed; the count is then too low by their size, but never below
 * zero. */
static void on_free(const volatile void *block) {
    if (!counting || !block) return;
    size_t size = __sanitizer_get_allocated_size(block);
    live -= size < live ? size : live;
}

void fuzz_memory_start(void) {
    static bool installed;
    if (!installed && __sanitizer_install_malloc_and_free_hooks && __sanitizer_get_allocated_size)
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    installed = true;
    live = peak = 0;
    counting = true;
}

void fuzz_memory_check(size_t size, size_t per_byte, size_t fixed) {
    char text[96];
    counting = false;
    if (peak <= size * per_byte + fixed) return;
    snprintf(text, sizeof text, "%zu bytes for an input of %zu", peak, size);
    fuzz_fail(__FILE__, __LINE__, "memory is bounded by the input", text);
}

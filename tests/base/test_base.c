/* The foundations: errors, text, clocks, hashes, files, memory. */
#include "support/files.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/host.h"
#include "base/lines.h"
#include "base/memory.h"
#include "base/rng.h"

static ErrorCode fails(int depth, ErrorCode code, Error *err) {
    if (depth == 0) return error_set(err, code, "deep down");
    TRY(fails(depth - 1, code, err));
    return OK;
}

static size_t locations(const char *trail) {
    size_t count = *trail ? 1 : 0;
    for (const char *at = trail; (at = strstr(at, " < ")); at += 3) count++;
    return count;
}

/* The source location, and each TRY on the way up; a new failure starts over; what does not fit is marked. */
static void test_trail(void **state) {
    (void)state;
    Error err;
    char end[600];
    assert_int_equal(fails(2, ERR_DATA, &err), ERR_DATA);
    assert_string_equal(error_end(end, sizeof end, ERR_DATA), "bad data, exit status 65");
    assert_int_equal(fails(2, ERR_INTERNAL, &err), ERR_INTERNAL);
    assert_int_equal(locations(error_trail()), 3);
    assert_non_null(strstr(error_trail(), "test_base.c:"));
    assert_null(strchr(error_trail(), '*'));
    assert_non_null(strstr(error_end(end, sizeof end, ERR_INTERNAL), "exit status 70; trail: "));
    assert_int_equal(fails(1, ERR_INTERNAL, NULL), ERR_INTERNAL);
    assert_int_equal(locations(error_trail()), 2);
    fails(1000, ERR_INTERNAL, &err);
    size_t length = strlen(error_trail());
    assert_true(length < 500 && locations(error_trail()) > 5);
    assert_string_equal(error_trail() + length - 6, " < ...");
    assert_ptr_equal(strstr(error_trail(), "..."), error_trail() + length - 3);
}

static void test_errors(void **state) {
    Error err;
    (void)state;
    assert_int_equal(error_set(&err, ERR_DATA, "%s: %d", "x", 3), ERR_DATA);
    assert_string_equal(err.message, "x: 3");
    assert_int_equal(error_context(&err, "reading %s", "y"), ERR_DATA);
    assert_string_equal(err.message, "reading y: x: 3");
    errno = ENOENT;
    assert_int_equal(error_errno(&err, ERR_IO, "z"), ERR_IO);
    assert_string_equal(err.message, "z: No such file or directory");
    error_set(&err, ERR_DATA, "again: %s", err.message);
    assert_string_equal(err.message, "again: z: No such file or directory");
    assert_int_equal(error_set(NULL, ERR_DATA, "x"), ERR_DATA);
    assert_int_equal(error_errno(NULL, ERR_IO, "x"), ERR_IO);
    assert_string_equal(error_name(ERR_DATA), "bad data");
    assert_string_equal(error_name((ErrorCode)200), "unknown error");
    assert_string_equal(error_name((ErrorCode)137), "killed by a signal");
}

static void test_long_messages_are_cut_between_characters(void **state) {
    Error err;
    char text[2001];
    (void)state;
    for (size_t shift = 0; shift < 2; shift++) {
        memset(text, 'x', sizeof text);
        for (size_t i = shift; i + 1 < sizeof text - 1; i += 2) memcpy(text + i, "\xc3\xa9", 2);
        text[sizeof text - 1] = 0;
        error_set(&err, ERR_DATA, "%s", text);
        size_t length = strlen(err.message);
        assert_true(length < sizeof err.message && length > sizeof err.message - 6);
        assert_string_equal(err.message + length - 3, "...");
        for (size_t at = 0, bytes; at < length; at += bytes) {
            bytes = text_utf8(err.message + at, length - at, NULL);
            assert_true(bytes > 0);
        }
    }
}

static const char *escape(const char *text, size_t length, size_t size) {
    static char out[256];
    memset(out, '#', sizeof out);
    return error_escape(out, size, text, length);
}

/* Whatever an error is made of, it is one line that no terminal interprets; escaped text is not escaped
 * again. */
static void test_error_escapes(void **state) {
    Error err;
    (void)state;
    error_set(&err, ERR_DATA, "%s: bad", "a\x1b[31m\n\xe2\x80\xae");
    assert_string_equal(err.message, "a\\x1B[31m\\x0A\\xE2\\x80\\xAE: bad");
    error_context(&err, "%s", "b\x07");
    assert_string_equal(err.message, "b\\x07: a\\x1B[31m\\x0A\\xE2\\x80\\xAE: bad");
}

static void test_escape(void **state) {
    (void)state;
    assert_string_equal(escape("a\x1b[31m\xc3\xa9", 8, 100), "a\\x1B[31m\xc3\xa9");
    assert_string_equal(escape("a\0b\xff", 4, 100), "a\\x00b\\xFF");
    assert_string_equal(escape("\x7f\xc2\x9b", 3, 100), "\\x7F\\xC2\\x9B");
    assert_string_equal(escape("\xe2\x80\xae", 3, 100), "\\xE2\\x80\\xAE");
    assert_string_equal(escape("abcdef", 6, 7), "abcdef");
    assert_string_equal(escape("abcdef", 6, 6), "ab...");
    assert_string_equal(escape("ab\xc3\xa9\xc3\xa9", 6, 6), "ab...");
    assert_string_equal(escape("abcdef", 6, 4), "...");
    assert_string_equal(escape("abcdef", 6, 3), "");
    assert_string_equal(escape("abcdef", 6, 1), "");
    assert_string_equal(escape("", 0, 1), "");
    for (uint64_t i = 0; i < 20000; i++) {
        char text[32];
        size_t length = rng_u64(1, i) % sizeof text, size = 1 + rng_u64(2, i) % 64;
        for (size_t k = 0; k < length; k++) text[k] = (char)rng_u64(3, i * 32 + k);
        const char *out = escape(text, length, size);
        assert_true(memchr(out, 0, size) != NULL);
        assert_int_equal(out[size], '#');
        for (size_t at = 0, bytes; out[at]; at += bytes) {
            bytes = text_utf8(out + at, strlen(out) - at, NULL);
            assert_true(bytes > 0 && (unsigned char)out[at] >= 0x20 && out[at] != 0x7f);
        }
    }
}

static void test_text(void **state) {
    Text t = {0};
    (void)state;
    text_puts(&t, "");
    assert_string_equal(t.data, "");
    for (int i = 0; i < 1000; i++) text_printf(&t, "%d,", i);
    assert_int_equal(t.length, 3890);
    assert_int_equal(strlen(t.data), t.length);
    text_clear(&t);
    assert_string_equal(t.data, "");
    text_add(&t, "a\0b", 3);
    assert_int_equal(t.length, 3);
    text_free(&t);
    assert_null(t.data);
    size_t product = 7;
    assert_int_equal(size_multiply(SIZE_MAX / 2, 3, &product), 0);
    assert_int_equal(product, 7);
    assert_int_equal(size_multiply(6, 7, &product), 1);
    assert_int_equal(product, 42);
}

static void test_numbers_as_text(void **state) {
    char out[32];
    (void)state;
    assert_string_equal(text_double(0.1, out), "0.1");
    assert_string_equal(text_double(1.0 / 3, out), "0.3333333333333333");
    assert_string_equal(text_double(0.1 + 0.2, out), "0.30000000000000004");
    assert_string_equal(text_double(-0.0, out), "-0");
    assert_string_equal(text_double(5e-324, out), "5e-324");
    assert_string_equal(text_double(DBL_MAX, out), "1.7976931348623157e+308");
    assert_string_equal(text_double((double)NAN, out), "NaN");
    assert_string_equal(text_double(-(double)INFINITY, out), "-Infinity");
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = rng_u64(1, i);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (isnan(value)) continue;
        assert_true(strtod(text_double(value, out), NULL) == value);
    }
    assert_string_equal(text_count(0, out), "0");
    assert_string_equal(text_count(999, out), "999");
    assert_string_equal(text_count(-1000, out), "-1,000");
    assert_string_equal(text_count(12345678, out), "12,345,678");
    assert_string_equal(text_count(INT64_MIN, out), "-9,223,372,036,854,775,808");
    assert_string_equal(text_bytes(0, out), "0 B");
    assert_string_equal(text_bytes(1023, out), "1023 B");
    assert_string_equal(text_bytes(1536, out), "1.50 KiB");
    assert_string_equal(text_bytes(1048575, out), "1.00 MiB");
    assert_string_equal(text_bytes(1.5e30, out), "1301042606982.61 EiB");
}

static void test_utf8(void **state) {
    static const struct {
        const char *bytes;
        size_t length, expected;
        uint32_t code;
    } cases[] = {
        {"a", 1, 1, 'a'},
        {"", 0, 0, 0},
        {"\xc3\xa9", 2, 2, 0xe9},
        {"\xc3\xa9", 1, 0, 0},
        {"\xe2\x82\xac", 3, 3, 0x20ac},
        {"\xf0\x9f\x98\x80", 4, 4, 0x1f600},
        {"\xf4\x8f\xbf\xbf", 4, 4, 0x10ffff},
        {"\xf4\x90\x80\x80", 4, 0, 0},
        {"\xc0\x80", 2, 0, 0},
        {"\xc1\xbf", 2, 0, 0},
        {"\xe0\x80\x80", 3, 0, 0},
        {"\xf0\x80\x80\x80", 4, 0, 0},
        {"\xed\xa0\x80", 3, 0, 0},
        {"\xed\xbf\xbf", 3, 0, 0},
        {"\xee\x80\x80", 3, 3, 0xe000},
        {"\x80", 1, 0, 0},
        {"\xff", 1, 0, 0},
        {"\xc3"
         "a",
         2, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t code = 0;
        assert_int_equal(text_utf8(cases[i].bytes, cases[i].length, &code), cases[i].expected);
        assert_int_equal(code, cases[i].code);
    }
}

static void check_lines(const char *text, size_t length, const char *joined) {
    char out[64] = "";
    Lines lines = lines_of(text, length);
    size_t count = lines_count(lines), number = 0;
    for (Line line; lines_next(&lines, &line); assert_int_equal(line.number, ++number))
        snprintf(out + strlen(out), sizeof out - strlen(out), "%.*s%s", (int)line.length, line.text,
                 line.whole ? "|" : "?");
    assert_string_equal(out, joined);
    assert_int_equal(count, number);
}

static void test_lines(void **state) {
    (void)state;
    check_lines(NULL, 0, "");
    check_lines("a", 0, "");
    check_lines("\n", 1, "|");
    check_lines("a\n\nbc\n", 6, "a||bc|");
    check_lines("a\nbc", 4, "a|bc?");
    check_lines("a\nbcd", 3, "a|b?"); /* never reads behind the length */
}

static void test_distance(void **state) {
    char longest[150];
    (void)state;
    assert_int_equal(text_distance("", ""), 0);
    assert_int_equal(text_distance("abc", ""), 3);
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("steps", "step"), 1);
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(text_distance(longest, longest), 0);
    assert_int_equal(text_distance(longest, "a"), 99);
}

static void test_clock(void **state) {
    char out[32];
    (void)state;
    double before = clock_seconds();
    assert_true(clock_seconds() >= before);
    assert_true(clock_wall() > 1.6e9);
    assert_string_equal(clock_iso8601(0, out), "1970-01-01T00:00:00Z");
    assert_string_equal(clock_iso8601(1769862896.9, out), "2026-01-31T12:34:56Z");
    assert_string_equal(clock_iso8601(-1, out), "1969-12-31T23:59:59Z");
    assert_string_equal(clock_iso8601(1e300, out), "0000-00-00T00:00:00Z");
    assert_string_equal(clock_iso8601((double)NAN, out), "0000-00-00T00:00:00Z");
    assert_string_equal(clock_duration(0, out), "0.0s");
    assert_string_equal(clock_duration(12.34, out), "12.3s");
    assert_string_equal(clock_duration(59.97, out), "1m00s");
    assert_string_equal(clock_duration(185, out), "3m05s");
    assert_string_equal(clock_duration(3599.7, out), "1h00m");
    assert_string_equal(clock_duration(3720, out), "1h02m");
    assert_string_equal(clock_duration(200000, out), "2d07h");
    assert_string_equal(clock_duration(1e300, out), "forever");
    assert_string_equal(clock_duration(-1, out), "?");
    assert_string_equal(clock_duration((double)NAN, out), "?");
}

static void test_hashes(void **state) {
    static const unsigned char numbered[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const unsigned char zeros[32] = {0};
    uint8_t digest[32], again[32];
    char hex[65];
    (void)state;
    Sha256 *h = sha256_start();
    sha256_add(h, "a", 1);
    sha256_add(h, "bc", 2);
    sha256_finish(h, digest);
    sha256_hex(digest, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    h = sha256_start();
    sha256_add_u64(h, 0x0807060504030201u);
    sha256_finish(h, digest);
    h = sha256_start();
    sha256_add(h, numbered, 8);
    sha256_finish(h, again);
    assert_memory_equal(digest, again, 32);
    assert_true(crc32c("123456789", 9) == 0xe3069283);
    assert_true(crc32c(zeros, 32) == 0x8a9136aa);
    assert_true(crc32c("", 0) == 0);
    assert_true(hash64("", 0) == 0x2d06800538d394c2u);
    assert_true(hash64("a", 1) != hash64("b", 1));
}

static void test_write_and_read(void **state) {
    Error err = {0};
    const char *path = files_path("file");
    char *data;
    size_t length;
    uint64_t bytes;
    FileMap map;
    struct stat info;
    (void)state;
    mode_t mask = umask(022);
    assert_int_equal(file_write_atomic(path, "hello", 5, &err), OK);
    assert_int_equal(file_write_atomic(path, "hi\0x", 4, &err), OK);
    umask(mask);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
    assert_int_equal(file_read(path, 4, &data, &length, &err), OK);
    assert_int_equal(length, 4);
    assert_memory_equal(data, "hi\0x\0", 5);
    free(data);
    assert_int_equal(file_read(path, 3, &data, &length, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "file: expected at most 3 bytes, found 4"));
    assert_int_equal(file_size(path, &bytes, &err), OK);
    assert_int_equal(bytes, 4);
    assert_int_equal(file_map(&map, path, &err), OK);
    assert_memory_equal(map.data, "hi\0x", 4);
    file_unmap(&map);
    assert_null(map.data);
    assert_int_equal(file_write_atomic(path, "", 0, &err), OK);
    assert_int_equal(file_map(&map, path, &err), OK);
    assert_null(map.data);
    file_unmap(&map);
    assert_int_equal(file_read(path, 0, &data, &length, &err), OK);
    assert_int_equal(length, 0);
    free(data);
}

static void test_nothing_is_left_behind(void **state) {
    Error err;
    char **paths;
    const char *inside = files_mkdir("clean/file");
    size_t count;
    (void)state;
    assert_int_equal(file_write_atomic(inside, "x", 1, &err), ERR_CANTCREATE);
    assert_int_equal(file_glob(files_path("clean/*"), &paths, &count, &err), OK);
    assert_int_equal(count, 1);
    assert_string_equal(paths[0], inside);
    file_glob_free(paths, count);
}

static void test_bad_files(void **state) {
    Error err;
    const char *missing = files_path("missing/x"), *pipe_path = files_path("pipe");
    char *data;
    size_t length;
    uint64_t bytes;
    FileMap map;
    (void)state;
    assert_int_equal(file_read(missing, 10, &data, &length, &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, "No such file or directory"));
    assert_int_equal(file_map(&map, missing, &err), ERR_NOINPUT);
    assert_int_equal(file_size(missing, &bytes, &err), ERR_NOINPUT);
    assert_int_equal(file_read(files_root, 10, &data, &length, &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, "expected a regular file, found a directory"));
    assert_int_equal(file_write_atomic(missing, "x", 1, &err), ERR_CANTCREATE);
    assert_int_equal(file_write_atomic("/dev/null/x", "x", 1, &err), ERR_CANTCREATE);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(file_read(pipe_path, 10, &data, &length, &err), ERR_NOINPUT);
    assert_int_equal(file_read("/dev/zero", 10, &data, &length, &err), ERR_NOINPUT);
    assert_int_equal(file_read("/proc/self/status", 100000, &data, &length, &err), OK);
    assert_true(length > 100 && strlen(data) == length);
    free(data);
    assert_int_equal(file_read("/proc/self/status", 10, &data, &length, &err), ERR_DATA);
    unlink(pipe_path);
}

/* Behaviour of the disk while a file is synced. */
static bool interrupted_at_sync;
int fsync(int fd) {
    if (interrupted_at_sync) raise(SIGINT);
    return fdatasync(fd);
}

/* The interruption arrives after the file is complete, without a temporary file. */
static void test_interruption_leaves_no_temporary(void **state) {
    Error err;
    char **paths;
    const char *dir = files_mkdir("interrupted");
    char *path = path_join(dir, "file");
    size_t count;
    int status;
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        interrupted_at_sync = true;
        signal(SIGINT, SIG_DFL);
        file_write_atomic(path, "x", 1, &err);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    assert_int_equal(file_glob(files_path("interrupted/*"), &paths, &count, &err), OK);
    assert_int_equal(count, 1);
    assert_string_equal(paths[0], path);
    file_glob_free(paths, count);
    free(path);
}

static void test_whether_a_file_can_be_written(void **state) {
    Error err = {0};
    (void)state;
    assert_int_equal(file_check_write(files_path("free/no"), &err), ERR_CANTCREATE);
    assert_int_equal(file_check_write(files_mkdir("taken"), &err), ERR_CANTCREATE);
    assert_int_equal(file_check_write(files_path("free"), &err), OK);
    assert_false(file_exists(files_path("free")));
}

/* A write that fails half way leaves the old file and nothing else. */
static void test_full_disk(void **state) {
    const char *path = files_path("full");
    char *data;
    size_t length;
    Error err = {0};
    (void)state;
    assert_int_equal(file_write_atomic(path, "old", 3, &err), OK);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    char *large = mem_alloc(10000);
    ErrorCode code = file_write_atomic(path, large, 10000, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(code, ERR_IO);
    assert_non_null(strstr(err.message, "full: writing failed at byte 4096: File too large"));
    assert_int_equal(file_read(path, 100, &data, &length, &err), OK);
    assert_string_equal(data, "old");
    free(data);
    free(large);
}

static void test_directories(void **state) {
    Error err;
    const char *deep = files_path("a//b/c/"), *file = files_path("plain");
    (void)state;
    assert_int_equal(file_make_dirs(deep, &err), OK);
    assert_int_equal(file_make_dirs(deep, &err), OK);
    assert_true(file_is_dir(deep));
    assert_int_equal(file_make_dirs("/", &err), OK);
    assert_int_equal(file_write_atomic(file, "x", 1, &err), OK);
    assert_true(file_exists(file) && !file_is_dir(file));
    assert_int_equal(file_make_dirs(file, &err), ERR_CANTCREATE);
    assert_non_null(strstr(err.message, "a file of that name is in the way"));
    assert_int_equal(file_make_dirs(files_path("plain/x"), &err), ERR_CANTCREATE);
    assert_int_equal(file_make_dirs("", &err), ERR_CANTCREATE);
    assert_int_equal(file_sync_dir(files_root, &err), OK);
    assert_int_equal(file_sync_dir(file, &err), ERR_IO);
}

static void test_glob(void **state) {
    static const char *const names[] = {"g/b.txt", "g/B.txt", "g/a.txt", "g/[x].txt", "g/c.md"};
    Error err;
    char **paths;
    size_t count;
    (void)state;
    files_mkdir("g");
    for (size_t i = 0; i < 5; i++) assert_int_equal(file_write_atomic(files_path(names[i]), "", 0, &err), OK);
    assert_int_equal(file_glob(files_path("g/*.txt"), &paths, &count, &err), OK);
    assert_int_equal(count, 4);
    for (size_t i = 1; i < count; i++) assert_true(strcmp(paths[i - 1], paths[i]) < 0);
    assert_string_equal(strrchr(paths[0], '/'), "/B.txt");
    file_glob_free(paths, count);
    const char *literal = files_path("g/[x].txt");
    assert_int_equal(file_glob(literal, &paths, &count, &err), OK);
    assert_int_equal(count, 1);
    assert_string_equal(paths[0], literal);
    file_glob_free(paths, count);
    assert_int_equal(file_glob(files_path("g/*.none"), &paths, &count, &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, "g/*.none: nothing matches this pattern"));
    assert_int_equal(file_glob(files_path("g/none"), &paths, &count, &err), ERR_NOINPUT);
    assert_non_null(strstr(err.message, "g/none: no such file"));
}

static void test_paths(void **state) {
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"a", "/b", "/b"}, {"/", "b", "/b"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = path_join(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        free(path);
    }
    char *alone = path_join(NULL, "x");
    assert_string_equal(alone, "x");
    free(alone);
}

static void test_memory_use(void **state) {
    (void)state;
    MemoryUse before = memory_use();
    assert_true(before.resident > 0 && before.resident <= before.peak);
    assert_true(before.machine > (64 << 20) && before.available > 0);
    const size_t bytes = 16 << 20;
    char *memory = mem_alloc(bytes);
    memset(memory, 1, bytes);
    MemoryUse after = memory_use();
    assert_true(memory[bytes - 1] == 1 && after.resident >= before.resident + bytes - (1 << 20));
    free(memory);
}

static void put(const char *name, const char *text) {
    char *path = mem_strdup(files_path(name));
    for (char *slash = path + strlen(files_root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0755);
    }
    files_write(path, text, strlen(text));
    free(path);
}

/* A machine of 1000 MiB of which 800 are free, as limited by the control groups of the process. */
static void expect_use(uint64_t machine_mib, uint64_t available) {
    MemoryUse use = memory_use_at(files_path("proc"), files_path("groups"));
    assert_int_equal(use.resident, 5 << 10);
    assert_int_equal(use.peak, 9 << 10);
    assert_int_equal(use.physical, 1000 << 20);
    assert_int_equal(use.machine, machine_mib << 20);
    assert_int_equal(use.available, available);
}

static void test_memory_of_control_groups(void **state) {
    enum { MIB = 1 << 20 };
    (void)state;
    put("proc/self/status", "Name:\tx\nVmHWM:\t9 kB\nVmRSS:\t5 kB\n");
    put("proc/meminfo", "MemTotal: 1024000 kB\nMemAvailable: 800000 kB\nSwapFree: 19200 kB\n");
    expect_use(1000, 800 * MIB);
    /* Version 2: the group itself has no limit, the one above it has. */
    put("proc/self/cgroup", "4:cpu:/other\n0::/user/run\n");
    put("groups/user/run/memory.max", "max\n");
    expect_use(1000, 800 * MIB);
    put("groups/user/memory.max", "524288000\n"); /* 500 MiB */
    put("groups/user/memory.current", "314572800\n");
    expect_use(500, 200 * MIB);
    put("groups/user/memory.stat", "anon 1\ninactive_file 104857600\n");
    expect_use(500, 300 * MIB);
    /* The lowest limit counts; one beyond the machine's memory is none. */
    put("groups/user/run/memory.max", "209715200\n");
    put("groups/user/run/memory.current", "104857600\n");
    expect_use(200, 100 * MIB);
    put("groups/user/run/memory.max", "9223372036854771712\n");
    expect_use(500, 300 * MIB);
    /* In a container: the path is the host's, the visible group is at the top. */
    put("proc/self/cgroup", "0::/host/of/it\n");
    expect_use(1000, 800 * MIB);
    put("groups/memory.max", "104857600\n");
    expect_use(100, 100 * MIB);
    /* Version 1. */
    put("groups/memory.max", "max\n");
    put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n0::/\n");
    put("groups/memory/job/memory.limit_in_bytes", "419430400\n");
    put("groups/memory/job/memory.usage_in_bytes", "524288000\n");
    expect_use(400, 1); /* nothing is left, which must not be read as unknown */
    MemoryUse unknown = memory_use_at("/nowhere", "/nowhere");
    assert_true(unknown.machine == 0 && unknown.available == 0);
}

/* A name that does not fit is cut, not lost; the bytes behind it are 0, since ranks compare them. */
static void test_host_name(void **state) {
    (void)state;
    char whole[256], full[HOST_NAME_BYTES], cut[2] = {'x', 'x'};
    assert_int_equal(gethostname(whole, sizeof whole), 0);
    memset(full, 'x', sizeof full);
    assert_true(host_name(full, sizeof full));
    assert_string_equal(full, whole);
    for (size_t i = strlen(full); i < sizeof full; i++) assert_int_equal(full[i], 0);
    assert_true(host_name(cut, sizeof cut));
    assert_true(cut[0] == whole[0] && cut[1] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_trail),
        cmocka_unit_test(test_long_messages_are_cut_between_characters),
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_error_escapes),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_numbers_as_text),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_write_and_read),
        cmocka_unit_test(test_nothing_is_left_behind),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_interruption_leaves_no_temporary),
        cmocka_unit_test(test_whether_a_file_can_be_written),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_host_name),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_glob),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_memory_use),
        cmocka_unit_test(test_memory_of_control_groups),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}

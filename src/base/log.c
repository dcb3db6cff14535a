/* Messages on stderr, and the live status line.
 *
 * One mutex guards the level and the status line, and every message is one write: lines of several threads
 * never mix, and the status line is always the last thing on the terminal. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"

#define CLEAR_LINE "\r\033[K"

/* Guards everything below. No other lock of weft is taken while it is held, so any code may log, whatever it
 * holds. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* LOG_QUIET shows nothing, not even errors: the exit status reports them. */
static LogLevel threshold = LOG_INFO;
static Text status; /* what the status line shows; empty when there is none */

/* Messages above this level are not even formatted. */
void log_set_level(LogLevel level) {
    pthread_mutex_lock(&mutex);
    threshold = level;
    pthread_mutex_unlock(&mutex);
}

LogLevel log_level(void) {
    pthread_mutex_lock(&mutex);
    LogLevel level = threshold;
    pthread_mutex_unlock(&mutex);
    return level;
}

/* Columns of the terminal to which a launcher forwards messages (comm/launch.c); 0: none. The launcher has
 * the terminal, this process has a pipe. */
static int columns_behind(void) {
    const char *columns = getenv(LOG_TERMINAL);
    return columns ? atoi(columns) : 0;
}

/* Not cached: a test, or a launcher in between, may change what stderr is. */
bool log_is_terminal(void) {
    const char *term = getenv("TERM");
    return (isatty(STDERR_FILENO) || columns_behind() > 0) && term && *term && strcmp(term, "dumb") != 0;
}

/* NO_COLOR, not empty, is the convention of no-color.org. */
bool log_has_colour(void) {
    const char *no_colour = getenv("NO_COLOR");
    return log_is_terminal() && !(no_colour && *no_colour);
}

/* 80 is the usual assumption if nothing is known. */
int log_width(void) {
    struct winsize size;
    if (columns_behind() > 0) return columns_behind();
    if (!log_is_terminal() || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col;
}

/* A closed stderr must not stop the work, so failures to write are ignored. */
static void write_out(const Text *t) {
    for (size_t done = 0; done < t->length;) {
        ssize_t wrote = write(STDERR_FILENO, t->data + done, t->length - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return;
        done += (size_t)wrote;
    }
}

/* Measured first, then written: messages have no maximum length. Escaped, since names and paths in them are
 * untrusted bytes. keep: flags of text_add_shown. */
static void append(Text *t, int keep, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0) return;
    char *line = mem_alloc((size_t)length + 1);
    vsnprintf(line, (size_t)length + 1, format, args);
    text_add_shown(t, line, (size_t)length, keep);
    free(line);
}

/* One text and one write: clear the status line, the message, the status line again below it. */
static void print(LogLevel level, const char *label, const char *colour, int keep, const char *format,
                  va_list args) {
    pthread_mutex_lock(&mutex);
    if (level <= threshold) {
        Text out = {0};
        bool painted = *colour && log_has_colour();
        if (status.length) text_puts(&out, CLEAR_LINE);
        text_printf(&out, "%s%s%s", painted ? colour : "", label, painted ? "\033[0m" : "");
        append(&out, keep, format, args);
        text_puts(&out, "\n");
        if (status.length) text_add(&out, status.data, status.length);
        write_out(&out);
        text_free(&out);
    }
    pthread_mutex_unlock(&mutex);
}

#define DEFINE_LOG(name, level, label, colour, keep)     \
    void name(const char *format, ...) {                 \
        va_list args;                                    \
        va_start(args, format);                          \
        print(level, label, colour, keep, format, args); \
        va_end(args);                                    \
    }
/* The label is in words; colour is only an addition. */
DEFINE_LOG(log_error, LOG_ERROR, "error: ", "\033[1;31m", 0)
DEFINE_LOG(log_warn, LOG_WARN, "warning: ", "\033[1;33m", 0)
DEFINE_LOG(log_info, LOG_INFO, "", "", 0)
DEFINE_LOG(log_painted, LOG_INFO, "", "", TEXT_KEEP_COLOURS)
static void log_text(const char *format, ...) PRINTF_LIKE(1, 2);
DEFINE_LOG(log_text, LOG_INFO, "", "", TEXT_KEEP_LINES)

/* As one message, so that lines of other threads do not come between. */
void log_lines(const char *lines) {
    size_t length = lines ? strlen(lines) : 0;
    if (length > 0) log_text("%.*s", (int)(length - (lines[length - 1] == '\n')), lines);
}

/* Bytes of the longest prefix that takes at most `columns`; escape sequences take none. */
static size_t visible_prefix(const Text *t, int columns) {
    size_t at = 0;
    int used = 0;
    while (at < t->length) {
        if (t->data[at] == '\033') {
            while (at < t->length && !strchr("mK", t->data[at])) at++;
            if (at < t->length) at++;
            continue;
        }
        if (used == columns) break;
        size_t bytes = text_utf8(t->data + at, t->length - at, NULL);
        at += bytes ? bytes : 1;
        used++;
    }
    return at;
}

/* Leaves a clean line to the shell, however the process exits. */
static void remove_status_at_exit(void) { log_status("%s", ""); }

/* Only on a terminal: in a file each state would stay. An empty text removes the line. */
void log_status(const char *format, ...) {
    static bool registered;
    if (!log_is_terminal()) return;
    Text line = {0};
    va_list args;
    va_start(args, format);
    append(&line, TEXT_KEEP_COLOURS, format, args);
    va_end(args);
    /* If the line were as wide as the terminal, it would wrap, and its first half could not be cleared. One
     * column stays free, since some terminals wrap after the last. */
    size_t kept = visible_prefix(&line, log_width() - 1);
    pthread_mutex_lock(&mutex);
    bool was_shown = status.length > 0;
    text_clear(&status);
    if (threshold >= LOG_INFO && kept) {
        text_add(&status, line.data, kept);
        /* The cut may have removed the end of a colour sequence. */
        if (kept < line.length && log_has_colour()) text_puts(&status, "\033[0m");
    }
    if (status.length || was_shown) {
        Text out = {0};
        text_printf(&out, "%s%s", CLEAR_LINE, status.length ? status.data : "");
        write_out(&out);
        text_free(&out);
    }
    bool must_register = status.length && !registered;
    if (must_register) registered = true;
    pthread_mutex_unlock(&mutex);
    /* After the unlock: atexit takes a lock of the C library, which exit holds while it calls this file. */
    if (must_register) atexit(remove_status_at_exit);
    text_free(&line);
}

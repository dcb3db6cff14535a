/* Errors as values: see error.h.
 *
 * A message is formatted into a separate buffer before it is stored, so that an old message may be an
 * argument of the new one. Messages are cut between characters, never inside one, and a cut message ends in
 * "...". Every message is escaped when it is stored: a path or a name from a file cannot act on the terminal
 * that shows it, and an error is one line.
 *
 * The trail of locations belongs to a thread, not to an Error. It is kept for one failure at a time, the last
 * internal error, and a new one starts it over. So it costs nothing without failures, and an Error stays a
 * plain value that ranks can send to each other. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* Enough for some fifteen locations: a call chain of weft from a verb down to an op is shorter. Fixed, since
 * failing must not need memory. */
static _Thread_local char trail[480];

/* Sources are named from the root of the tree, whatever path the compiler was given. */
static const char *short_path(const char *file) {
    const char *inside = strstr(file, "src/");
    return inside ? inside : file;
}

static void add_location(const char *file, int line) {
    char location[128];
    size_t used = strlen(trail);
    int length = snprintf(location, sizeof location, "%s%s:%d", used ? " < " : "", short_path(file), line);
    if (length >= (int)sizeof location || used + (size_t)length + sizeof " < ..." > sizeof trail) {
        /* Full: "..." is appended once. */
        if (used >= 3 && strcmp(trail + used - 3, "...") != 0)
            memcpy(trail + used, " < ...", sizeof " < ...");
        return;
    }
    memcpy(trail + used, location, (size_t)length + 1);
}

const char *error_trail(void) { return trail; }

void error_passed(const char *file, int line) { add_location(file, line); }

/* Moves a cut back to a character boundary and marks it. Continuation bytes of UTF-8 are 10xxxxxx: a cut
 * before one would split a character. */
static void mark_cut(char *message, size_t size) {
    size_t end = size - 4;
    while (end > 0 && ((unsigned char)message[end] & 0xc0) == 0x80) end--;
    memcpy(message + end, "...", 4);
}

/* `args` may point into `err`, so it must not change before the message is formatted. */
static void store(Error *err, ErrorCode code, const char *format, va_list args) {
    char message[sizeof err->message];
    int length = vsnprintf(message, sizeof message, format, args);
    if (length < 0) snprintf(message, sizeof message, "(message could not be formatted)");
    if (length >= (int)sizeof message) mark_cut(message, sizeof message);
    err->code = code;
    err->reported = false;
    error_escape(err->message, sizeof err->message, message, strlen(message));
}

/* Only an internal error starts a trail; the message of any other error is enough for the user. */
ErrorCode error_set_at(Error *err, ErrorCode code, const char *file, int line, const char *format, ...) {
    if (code == ERR_INTERNAL) {
        trail[0] = '\0';
        add_location(file, line);
    }
    if (!err) return code;
    va_list args;
    va_start(args, format);
    store(err, code, format, args);
    va_end(args);
    return code;
}

ErrorCode error_errno(Error *err, ErrorCode code, const char *format, ...) {
    int number = errno;
    if (!err) return code;
    va_list args;
    va_start(args, format);
    store(err, code, format, args);
    va_end(args);
    char reason[256];
    const char *text = strerror_r(number, reason, sizeof reason);
    return error_set(err, code, "%s: %s", err->message, text);
}

/* The outermost context comes first. If both do not fit, the tail, which is the cause, is cut; contexts are
 * therefore kept short. */
ErrorCode error_context(Error *err, const char *format, ...) {
    if (!err) return ERR_INTERNAL;
    Error context;
    va_list args;
    va_start(args, format);
    store(&context, err->code, format, args);
    va_end(args);
    char message[sizeof err->message];
    int length = snprintf(message, sizeof message, "%s: %s", context.message, err->message);
    if (length >= (int)sizeof message) mark_cut(message, sizeof message);
    memcpy(err->message, message, sizeof message);
    return err->code;
}

/* Exit statuses follow sysexits.h where it defines one; README.md has the table. */
const char *error_name(ErrorCode code) {
    switch (code) {
    case OK: return "success";
    case ERR_DIFFERENT: return "differences found";
    case ERR_USAGE: return "wrong usage";
    case ERR_NUMERIC: return "numerical failure";
    case ERR_REPLICAS: return "replicas differ";
    case ERR_DATA: return "bad data";
    case ERR_NOINPUT: return "input missing";
    case ERR_UNAVAILABLE: return "not available here";
    case ERR_INTERNAL: return "internal error";
    case ERR_MEMORY: return "not enough memory";
    case ERR_CANTCREATE: return "cannot create output";
    case ERR_IO: return "input or output failed";
    case ERR_STOPPED: return "stopped on request";
    case ERR_PEER: return "another rank failed";
    case ERR_CONFIG: return "bad configuration";
    }
    return (int)code > 128 && (int)code <= 192 ? "killed by a signal"
                                               : "unknown error"; /* 128 + its number */
}

/* The text in brackets after every last line: the code in words, the status, and the trail of an internal
 * error. */
const char *error_end(char *out, unsigned long out_size, ErrorCode code) {
    bool ours = code == ERR_INTERNAL && trail[0];
    snprintf(out, out_size, "%s, exit status %d%s%s", error_name(code), (int)code, ours ? "; trail: " : "",
             ours ? trail : "");
    return out;
}

char *error_escape(char *out, unsigned long out_size, const char *text, unsigned long length) {
    if (out_size == 0) return out;
    const char *dots = out_size > 3 ? "..." : "";
    size_t used = 0, fits_with_dots = 0; /* the last length after which the dots still fit */
    for (size_t at = 0; at < length;) {
        char piece[TEXT_SHOWN];
        size_t bytes = text_shown(text + at, length - at, piece), piece_length = strlen(piece);
        if (used + piece_length >= out_size) {
            memcpy(out + fits_with_dots, dots, strlen(dots) + 1);
            return out;
        }
        memcpy(out + used, piece, piece_length);
        used += piece_length;
        at += bytes;
        /* Remember the last position where "..." and the NUL fit, so that the cut is between characters. */
        if (used + 3 < out_size) fits_with_dots = used;
    }
    out[used] = 0;
    return out;
}

/* Writes to stderr directly, since the log may be broken. */
void check_failed(const char *file, int line, const char *expression) {
    fprintf(stderr, "weft: internal error: %s:%d: expected %s\n", file, line, expression);
    abort();
}

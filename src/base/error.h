/* Errors are values.
 *
 * Every function that can fail returns an ErrorCode (OK is 0) and takes an Error as its last argument. The
 * Error receives a message: what failed, where, what was found and expected, and what to do. The code doubles
 * as the process's exit status (sysexits.h from 64 on), so that a script can tell bad data from a full disk.
 *
 *     ErrorCode thing_open(Thing *t, const char *path, Error *err);
 *
 * Callers pass failures up with TRY, and may prepend context with error_context. Bad input never aborts;
 * CHECK is for programmer errors only and stays in release builds.
 *
 * An internal error (ERR_INTERNAL) carries a trail of source locations: where it was set, then each TRY that
 * passed it up, innermost first. Other failures have none: their message tells the user what to change. */
#ifndef WEFT_BASE_ERROR_H
#define WEFT_BASE_ERROR_H

#include <stdbool.h>

typedef enum ErrorCode {
    OK = 0,
    ERR_DIFFERENT = 1,    /* the compared things differ, as for diff(1) */
    ERR_USAGE = 2,        /* wrong command line */
    ERR_NUMERIC = 17,     /* steps, logits or losses that are not finite */
    ERR_REPLICAS = 18,    /* replicas of weights or moments differ between ranks */
    ERR_DATA = 65,        /* malformed input file */
    ERR_NOINPUT = 66,     /* an input that does not exist or cannot be read */
    ERR_UNAVAILABLE = 69, /* this build or machine lacks a feature */
    ERR_INTERNAL = 70,    /* a bug in weft */
    ERR_MEMORY = 71,      /* the plan does not fit, or an allocation failed */
    ERR_CANTCREATE = 73,  /* an output that cannot be created */
    ERR_IO = 74,          /* reading or writing failed half way */
    ERR_STOPPED = 75,     /* stopped on request with everything saved: run again to continue */
    ERR_PEER = 76,        /* another rank of the run failed, or cannot be reached */
    ERR_CONFIG = 78       /* bad value, unknown key, contradiction in the configuration */
} ErrorCode;

typedef struct Error {
    ErrorCode code;
    char message[1024];
    bool reported; /* already printed by this process or another rank: do not print again */
} Error;

#if defined(__GNUC__)
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#else
#define PRINTF_LIKE(f, a)
#endif

/* Sets code and message; control bytes, invalid UTF-8 and bidirectional marks in the message are escaped
 * (\xNN). Returns code, so that one can write `return error_set(err, ERR_DATA, ...)`. err may be NULL. Clears
 * `reported`. */
#define error_set(err, code, ...) error_set_at(err, code, __FILE__, __LINE__, __VA_ARGS__)
ErrorCode error_set_at(Error *err, ErrorCode code, const char *file, int line, const char *format, ...)
    PRINTF_LIKE(5, 6);

/* Like error_set, with ": <strerror(errno)>" appended; errno is read first. */
ErrorCode error_errno(Error *err, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);

/* Prepends "context: " to the existing message; returns err->code. */
ErrorCode error_context(Error *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* Short name of a code ("bad data"), for the last line a user sees. */
const char *error_name(ErrorCode code);

/* The text in brackets after the message on that line: "bad data, exit status 65"; for an internal error also
 * its trail. Returns out. */
const char *error_end(char *out, unsigned long out_size, ErrorCode code);

/* Copies text with control bytes and invalid UTF-8 escaped (\xNN), cut with "..." to fit out_size. Meant for
 * names from files that must stay short: messages of errors and of the log are escaped anyway. Returns
 * out. */
char *error_escape(char *out, unsigned long out_size, const char *text, unsigned long length);

/* The trail of this thread's last ERR_INTERNAL: "src/program/program.c:229 < src/engine/engine.c:31". Empty
 * before the first; "..." replaces locations that do not fit. */
const char *error_trail(void);
void error_passed(const char *file, int line);

/* Passes a failure up. */
#define TRY(call)                                                        \
    do {                                                                 \
        ErrorCode try_code_ = (call);                                    \
        if (try_code_ == ERR_INTERNAL) error_passed(__FILE__, __LINE__); \
        if (try_code_ != OK) return try_code_;                           \
    } while (0)

/* Programmer errors: prints file, line and expression, then aborts. Never for data, files, options or peers.
 */
#define CHECK(condition) ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))
#ifdef __cplusplus /* GPU kernels are C++ */
[[noreturn]]
#else
_Noreturn
#endif
void check_failed(const char *file, int line, const char *expression);

#endif

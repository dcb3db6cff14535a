/* Messages for people, on stderr. Data goes to stdout and never through here.
 *
 * Colour is used only on a terminal, if NO_COLOR is unset and TERM is not "dumb". A live status line
 * (log_status) is redrawn at the bottom of a terminal; log lines print above it. Elsewhere status lines are
 * dropped, and the output consists of plain lines without escape bytes. */
#ifndef WEFT_BASE_LOG_H
#define WEFT_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Environment variable for a child process whose output is forwarded to a terminal: the number of its
 * columns. */
#define LOG_TERMINAL "WEFT_TERMINAL"

typedef enum LogLevel { LOG_QUIET, LOG_ERROR, LOG_WARN, LOG_INFO } LogLevel;

void log_set_level(LogLevel level);
LogLevel log_level(void);
bool log_is_terminal(void); /* stderr is a terminal that interprets escapes */
bool log_has_colour(void);
int log_width(void); /* columns of the terminal; 80 elsewhere */

void log_error(const char *format, ...) PRINTF_LIKE(1, 2);
void log_warn(const char *format, ...) PRINTF_LIKE(1, 2);
void log_info(const char *format, ...) PRINTF_LIKE(1, 2);
/* The same with colours in the message. The others escape these, like everything else that a terminal
 * interprets. */
void log_painted(const char *format, ...) PRINTF_LIKE(1, 2);
/* A table or a picture at the level of log_info: lines that end with their newlines. No-op for NULL or "". */
void log_lines(const char *lines);

/* Redraws the status line; an empty text removes it. No-op when stderr is not a terminal. Thread-safe, as are
 * all above. */
void log_status(const char *format, ...) PRINTF_LIKE(1, 2);

/* Progress of long work: a bar on a terminal (at most 10 redraws a second), elsewhere a plain line every 10
 * seconds. Start, advance from any thread, finish. */
typedef struct Progress Progress;
Progress *progress_start(const char *label, double total, const char *unit); /* unit e.g. "MB", "merges" */
void progress_set(Progress *p, double done);
void progress_add(Progress *p, double more);
void progress_finish(Progress *p); /* prints one closing line with the rate; frees; NULL is fine */

/* Counts a step of progress in long work; progress_set and progress_add count too, also for NULL. The total
 * over all threads lets a watchdog tell slow work from a hang. */
void progress_beat(void);
uint64_t progress_beats(void);
/* What the calling thread does from now on goes on beside the work of the run, and must not hide that the run
 * hangs: its beats are added to *count (NULL: to nothing) in place of the total. */
void progress_apart(atomic_ullong *count);

#endif

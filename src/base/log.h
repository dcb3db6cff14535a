/* Messages for people, on stderr. Data goes to stdout and never through here.
 *
 * Colour only on a terminal, without NO_COLOR, TERM not "dumb". A live status line (log_status) is redrawn at
 * the bottom of a terminal; log lines print above it. Elsewhere status lines are dropped: nothing but plain
 * lines, no escape bytes. */
#ifndef WEFT_BASE_LOG_H
#define WEFT_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Variable of the environment by which a process says that what it is told goes on to a terminal of so many
 * columns. */
#define LOG_TERMINAL "WEFT_TERMINAL"

typedef enum LogLevel { LOG_QUIET, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } LogLevel;

void log_set_level(LogLevel level);
LogLevel log_level(void);
bool log_is_terminal(void); /* stderr is a terminal that takes escapes */
bool log_has_colour(void);
int log_width(void); /* columns of the terminal; 80 elsewhere */

void log_error(const char *format, ...) PRINTF_LIKE(1, 2);
void log_warn(const char *format, ...) PRINTF_LIKE(1, 2);
void log_info(const char *format, ...) PRINTF_LIKE(1, 2);
void log_debug(const char *format, ...) PRINTF_LIKE(1, 2);
/* The same with colours in the message, which the others escape like all that a terminal acts on. */
void log_painted(const char *format, ...) PRINTF_LIKE(1, 2);
/* A table or a picture at the level of log_info: lines that end with their newlines. Nothing for NULL or "".
 */
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

/* Long work moved on; set and add say so too, NULL or not. How often it was said so far, by all threads: by
 * it others know work that takes long from work that hangs. */
void progress_beat(void);
uint64_t progress_beats(void);

#endif

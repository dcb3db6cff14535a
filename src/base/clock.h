#ifndef WEFT_BASE_CLOCK_H
#define WEFT_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

double clock_seconds(void); /* monotonic */
double clock_wall(void);    /* seconds since 1970 */
/* For pthread_cond_timedwait. */
struct timespec clock_after(int64_t milliseconds);
/* "2026-01-31T12:34:56Z" into out[21]; returns out. */
char *clock_iso8601(double wall, char out[21]);
/* "1h02m", "3m05s", "12.3s" into out[16]; returns out. */
char *clock_duration(double seconds, char out[16]);

#endif

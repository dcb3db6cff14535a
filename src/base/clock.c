/* Time: monotonic for durations, wall-clock for time stamps. */
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* As a double: 53 bits of seconds since 1970 resolve 0.3 microseconds. */
static double read_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Never set back, so differences are durations. Not comparable between machines. */
double clock_seconds(void) { return read_clock(CLOCK_MONOTONIC); }

/* For people and files. It may jump when the machine's clock is set. */
double clock_wall(void) { return read_clock(CLOCK_REALTIME); }

struct timespec clock_after(int64_t milliseconds) {
    enum { MS = 1000000, SECOND = 1000 * MS };
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    int64_t nanoseconds = t.tv_nsec + milliseconds * MS;
    return (struct timespec){t.tv_sec + nanoseconds / SECOND, nanoseconds % SECOND};
}

/* In UTC. The remainders change no date; they show the compiler that the fields fit. */
char *clock_iso8601(double wall, char out[21]) {
    /* Years 0 to 9999 keep the fixed width. */
    if (!(wall >= -62167219200.0 && wall < 253402300800.0)) return strcpy(out, "0000-00-00T00:00:00Z");
    time_t seconds = (time_t)floor(wall);
    struct tm t;
    gmtime_r(&seconds, &t);
    snprintf(out, 21, "%04u-%02u-%02uT%02u:%02u:%02uZ", (unsigned)(t.tm_year + 1900) % 10000,
             (unsigned)(t.tm_mon + 1) % 100, (unsigned)t.tm_mday % 100, (unsigned)t.tm_hour % 100,
             (unsigned)t.tm_min % 100, (unsigned)t.tm_sec % 100);
    return out;
}

/* At most two units, rounded to the smaller one. */
char *clock_duration(double seconds, char out[16]) {
    if (!(seconds >= 0)) return strcpy(out, "?");
    /* 59.95 would print as "60.0s". */
    if (seconds < 59.95) {
        snprintf(out, 16, "%.1fs", seconds);
        return out;
    }
    if (seconds > 9999.0 * 86400) return strcpy(out, "forever");
    unsigned whole = (unsigned)(seconds + 0.5);
    if (whole < 3600)
        snprintf(out, 16, "%um%02us", whole / 60 % 60, whole % 60);
    else if (whole < 86400)
        snprintf(out, 16, "%uh%02um", whole / 3600 % 24, whole / 60 % 60);
    else
        snprintf(out, 16, "%ud%02uh", whole / 86400 % 10000, whole / 3600 % 24);
    return out;
}

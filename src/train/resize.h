/* Another number of ranks for a run that is going on: `weft resize`.
 *
 *     weft resize               RUN/resize: the request, then RUN/stop: a request to save and stop (lock.h)
 *     rank 0                    saves after its step, and ends with ERR_STOPPED
 *     outermost weft train      takes the request (resize_take), and starts the next attempt (resize_words)
 *
 * The outermost process is the supervisor, the launcher without a supervisor, or a rank that is alone. It
 * names itself in the environment (launch_lead), and rank 0 writes it to RUN/launch.json with the command
 * line, so that `weft resize` can check the next attempt's configuration before anything stops. A request to
 * stop takes precedence over one to resize. */
#ifndef WEFT_TRAIN_RESIZE_H
#define WEFT_TRAIN_RESIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

#define RESIZE_FILE "resize"
#define LAUNCH_FILE "launch.json"

typedef struct Resize {
    int64_t from, ranks; /* numbers of ranks */
    StringList keys;     /* overrides, "mesh.tp=2" */
} Resize;

ErrorCode resize_request(const char *run_dir, const Resize *r, Error *err);
bool resize_requested(const char *run_dir);
void resize_drop(const char *run_dir);
/* Reads the request and removes it. Returns false if there is none, or none that can be read. */
bool resize_take(Resize *r, const char *run_dir);
void resize_free(Resize *r);
/* Writes "from 2 ranks to 3, with mesh.pp=3" to out; returns out. */
const char *resize_describe(const Resize *r, char *out, size_t size);
/* A command line as arguments_words makes it (flags before "--"), with the new number of ranks and the
 * overrides, which do not start over. Free with resize_free_words. */
char **resize_words(char *const *words, const Resize *r);
void resize_free_words(char **words);

/* Checks a configuration that was loaded for the next attempt, as a run on `ranks` ranks does before it
 * starts: mesh, step, changes since the run's RUN/config.yaml, plan, and memory of this machine. `from`:
 * ranks of the run. Adds to `changes` what would be reported on resuming. Settles in c and set what they
 * leave open. */
ErrorCode resize_check(Config *c, OptionSet *set, int from, int ranks, Text *changes, Error *err);

/* ---- RUN/launch.json: how a run was started ---- */

typedef struct LaunchRecord {
    int64_t process; /* the outermost; 0: another program started the ranks */
    int64_t rank0;   /* process id */
    int64_t ranks;
    char *host, *directory; /* of rank 0 */
    StringList words;       /* rank 0's command line */
} LaunchRecord;

/* Called by each `weft train` first. Returns whether this process is the outermost one. */
bool launch_lead(void);
/* Called by rank 0, once the run's config.yaml is written. */
ErrorCode launch_write(const char *run_dir, int ranks, Error *err);
void launch_remove(const char *run_dir);
/* ERR_NOINPUT: no such file. Free with launch_free, also after an error. */
ErrorCode launch_read(LaunchRecord *l, const char *run_dir, Error *err);
void launch_free(LaunchRecord *l);

#endif

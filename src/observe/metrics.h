/* Metrics of a run: the record of a logged step, the window it averages over, and the file that keeps it.
 *
 * RUN/metrics.jsonl holds one JSON object per line, with a `kind`: train for each logged step, validation for
 * each validation and set for each of its named sets, task for each task of an evaluation, probe for each
 * unit of a probed step, source for each of several data sources.
 *  1. Every number has the fewest digits that read back the same double; null means "not finite" or "not
 *     known".
 *  2. Only the last line can be incomplete: lines are written whole and flushed, and a torn tail is dropped
 *     on opening.
 *  3. Each step occurs once: a run that resumes at step s drops all later records, by an atomic replacement
 *     of the file. With metrics.all_ranks the other ranks keep files of the same form,
 *     RUN/metrics-00001.jsonl and so on. */
#ifndef WEFT_OBSERVE_METRICS_H
#define WEFT_OBSERVE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"
#include "data/task.h"

#define METRICS_FILE "metrics.jsonl"

/* One logged step. The fields from loss to epoch belong to that step; rates are averages since the last
 * logged step. */
typedef struct StepMetrics {
    int64_t step, total_steps; /* 1-based; total_steps: end of the run */
    double wall;               /* seconds since 1970, of the record */
    double loss, grad_norm;    /* grad_norm before clipping */
    double z_loss;             /* reported separately from loss; NaN without train.z_loss */
    double balance_loss;       /* load balancing of experts, likewise; NaN without output_router_logits */
    double loss_2, loss_3, loss_4, loss_5; /* of MTP heads, by tokens ahead; NaN without them */
    double expert_imbalance; /* tokens of an expert, largest / mean, in the worst layer; NaN: no experts */
    int64_t dead_experts;    /* over all layers, without a token in this step */
    double noise_scale;      /* in targets, over the last steps; NaN: not measured or not yet known */
    double clip_coefficient, lr;
    double loss_deviation, grad_norm_deviation; /* robust deviations, spike.h */
    bool skipped, spike;   /* update not applied (non-finite); loss or norm far from the recent ones */
    int64_t skipped_total; /* since the beginning of the run */
    int64_t step_tokens, total_tokens; /* tokens of this step; of the run, this step included */
    double epoch;                      /* passes over the data, fractional */
    double step_seconds, data_seconds; /* mean seconds per step; of these, waiting for data */
    double wait_seconds;               /* mean seconds per step that this rank waited for others */
    /* Bytes that this rank sent in this step, by axis of the mesh. Traffic of the group that spans dp_shard
     * and cp counts under dp_shard. */
    int64_t sent_pp, sent_dp_replicate, sent_dp_shard, sent_cp, sent_tp, sent_ep;
    double pause_seconds; /* validation and checkpoints since the last logged step; excluded from rates */
    double tokens_per_second, flops_per_second;
    double mfu;                           /* fraction of the peak; NaN when the peak is not known */
    double eta;                           /* seconds to the end, with expected pauses; NaN when not known */
    int64_t memory_resident, memory_peak; /* bytes */
    double memory_fraction;               /* peak / memory of the machine */
    int64_t device_memory;                /* bytes of separate device memory that this rank uses; 0: none */
    double device_fraction;               /* fraction of the device's memory; NaN when not known */
    double run_seconds; /* since the run was first started, over all restarts; NaN when not known */
    double goodput;     /* fraction of them in steps that count; observe/goodput.h */
} StepMetrics;

enum { METRICS_NAME = 64 };

typedef struct ValidationMetrics {
    int64_t step;            /* steps done when it was taken */
    char name[METRICS_NAME]; /* of one set; "": all sets together */
    double wall, loss, perplexity;
    double bits_per_byte; /* NaN when the bytes are not known */
    int64_t tokens;       /* valid targets */
    int64_t nonfinite;    /* of these, with a non-finite loss; loss is NaN if there are any */
    double seconds, tokens_per_second;
} ValidationMetrics;

typedef struct TaskMetrics {
    int64_t step;            /* steps done when it was taken */
    char name[METRICS_NAME]; /* of the task */
    double wall;
    TaskFigures figures;
    double seconds;
} TaskMetrics;

/* Loss of one of several data sources over the steps since its previous record. One is written with each
 * logged step and before each checkpoint, so that together they cover every step once. */
typedef struct SourceMetrics {
    int64_t step;            /* the last of these steps */
    char name[METRICS_NAME]; /* its path or pattern as configured, or the end of it */
    double wall, loss;       /* NaN when a token's is not finite or there is no token */
    int64_t targets, tokens; /* from this source in these steps */
    double epoch;            /* passes of the run over it */
} SourceMetrics;

/* The headline metric of a task: the first that it has of normalised accuracy, accuracy and bits per byte. */
typedef struct TaskFigure {
    const char *name; /* static; NULL: none, and value is NaN */
    double value;
    bool share; /* value is a fraction of documents: 0 to 1 */
} TaskFigure;
TaskFigure metrics_task_figure(const TaskMetrics *m);

/* The field of a record at an offset, an int64_t (`whole`) or a double, as a double. */
double metrics_number(const void *record, size_t offset, bool whole);

/* Magnitudes of a unit's tensors in one step, over all ranks; NaN where there is nothing to measure. */
typedef struct ProbeMetrics {
    int64_t step;
    char name[METRICS_NAME]; /* of a unit: "embedding", "layers.3", "head" */
    double wall;
    double output_rms, output_max;     /* of the unit's output */
    double gradient_rms, gradient_max; /* gradient of the loss with respect to the output */
    double weight_rms, weight_max;     /* after the update */
    double weight_gradient_rms, weight_gradient_max;
    int64_t nonfinite; /* NaN or infinite elements of all four tensors */
} ProbeMetrics;

/* Kinds of records. A set is a validation with a name. */
typedef enum MetricsKind {
    METRICS_STEP,       /* StepMetrics */
    METRICS_VALIDATION, /* ValidationMetrics */
    METRICS_SET,        /* the same, of one set */
    METRICS_TASK,       /* TaskMetrics */
    METRICS_PROBE,      /* ProbeMetrics */
    METRICS_SOURCE,     /* SourceMetrics */
    METRICS_KINDS
} MetricsKind;

/* Sums since the last logged step. Only training counts towards rates. Pauses are summed separately and enter
 * the ETA alone. */
typedef struct MetricsWindow {
    int64_t steps, tokens;
    double seconds, data_seconds, wait_seconds, pause_seconds;
    int64_t run_steps; /* since this process began, for the ETA */
    double run_seconds, run_pause_seconds;
    uint64_t device_taken, device_memory; /* bytes; 0 where tensors are in host memory */
} MetricsWindow;

/* Adds a step of `seconds`, including the time it waited for its batch and for other ranks. */
void metrics_window_step(MetricsWindow *w, int64_t tokens, double seconds, double data_seconds,
                         double wait_seconds);
void metrics_window_pause(MetricsWindow *w, double seconds);
/* Fills the rates, the ETA and the memory figures of m (m->step and m->total_steps must be set), then starts
 * a new window. peak_flops 0: MFU is NaN. */
void metrics_window_close(MetricsWindow *w, double flops_per_token, double peak_flops, StepMetrics *m);
/* The same without starting a new window: for a status line between logged steps. */
void metrics_window_peek(const MetricsWindow *w, double flops_per_token, double peak_flops, StepMetrics *m);

typedef struct MetricsLog {
    int fd;     /* meaningless without a path */
    char *path; /* NULL: not open */
    Text line;
} MetricsLog;

/* The files of all ranks. */
#define METRICS_PATTERN "metrics*.jsonl"
/* The file of a rank: "metrics.jsonl" of rank 0, "metrics-00003.jsonl" of rank 3. Returns out. */
char *metrics_file_name(int rank, char out[32]);

/* Opens RUN/name (METRICS_FILE, or another rank's file) to continue after step `resumed`: records of later
 * steps are dropped. 0 begins an empty file. */
ErrorCode metrics_log_open(MetricsLog *log, const char *run_dir, const char *name, int64_t resumed,
                           Error *err);
/* The same, but records of step 0, from before the first step, stay too. */
ErrorCode metrics_log_go_on(MetricsLog *log, const char *run_dir, const char *name, int64_t step, Error *err);
/* Writes a record, the struct of its kind. `line` is then the written text. */
ErrorCode metrics_log_add(MetricsLog *log, MetricsKind kind, const void *record, Error *err);
/* Syncs to disk. Call it before a checkpoint claims that the run reached this step. */
ErrorCode metrics_log_sync(MetricsLog *log, Error *err);
void metrics_log_close(MetricsLog *log);

/* All records of a file, in order. Lines that are not records (a torn tail) are skipped and counted. */
typedef struct MetricsTable {
    StepMetrics *steps;
    size_t step_count;
    ValidationMetrics *validations; /* of all sets together */
    size_t validation_count;
    ValidationMetrics *sets; /* of one set each */
    size_t set_count;
    TaskMetrics *tasks;
    size_t task_count;
    ProbeMetrics *probes;
    size_t probe_count;
    SourceMetrics *sources;
    size_t source_count;
    size_t bad_lines;
} MetricsTable;
ErrorCode metrics_table_read(MetricsTable *t, const char *path, Error *err);
void metrics_table_free(MetricsTable *t);
/* Seconds spent in steps: saves, validations and the time between restarts are excluded. NaN when no step has
 * a time. */
double metrics_training_seconds(const MetricsTable *t);

/* Finds missing records of steps up to `resumed`, of a run that logs every `log_freq` steps, or logged less
 * often earlier: their number, and the first gap, between steps `from` and `to`. */
typedef struct MetricsHole {
    int64_t records, from, to;
} MetricsHole;
MetricsHole metrics_hole(const MetricsTable *t, int64_t resumed, int64_t log_freq);

/* One line of a file, without its newline. metrics_parse returns false when it is not a record. */
typedef struct MetricsRecord {
    MetricsKind kind;
    union {
        StepMetrics step;
        ValidationMetrics validation; /* also for METRICS_SET */
        TaskMetrics task;
        ProbeMetrics probe;
        SourceMetrics source;
    };
} MetricsRecord;
bool metrics_parse(const char *line, size_t length, MetricsRecord *out);

/* A metric that differs between two runs. */
typedef struct MetricsDifference {
    int64_t step;
    const char *kind;   /* of the record: "train", "validation" */
    const char *figure; /* "loss" */
    double values[2];
} MetricsDifference;

/* Compares two runs bitwise, by the metrics that configuration and data alone decide: losses, norms, learning
 * rates, tokens, but not times, rates or memory. Steps with a record in only one run are ignored. */
typedef struct MetricsComparison {
    size_t steps, validations; /* equal records: all, or those before step `first` */
    bool differs;
    MetricsDifference first; /* where they differ first */
} MetricsComparison;
void metrics_compare(const MetricsTable *a, const MetricsTable *b, MetricsComparison *out);

#endif

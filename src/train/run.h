/* What the files of a run share (trainer.c, begin.c, records.c): its state, and what they call of each
 * other. */
#ifndef WEFT_TRAIN_RUN_H
#define WEFT_TRAIN_RUN_H

#include "base/log.h"
#include "engine/evaluate.h"
#include "engine/replicas.h"
#include "observe/audit.h"
#include "observe/journal.h"
#include "observe/listener.h"
#include "observe/metrics.h"
#include "observe/tensorboard.h"
#include "train/best.h"
#include "train/read_ahead.h"
#include "train/gpu_memory.h"
#include "train/inject.h"
#include "train/lock.h"
#include "train/phase.h"
#include "train/save.h"
#include "train/setup.h"
#include "train/sources.h"
#include "train/state.h"
#include "train/tasks.h"
#include "train/tracing.h"

/* Everything of a run, opened by run_begin and closed in trainer_run, whose closing calls take what was never
 * opened. Zero is "not there". */
typedef struct Trainer {
    Config *c;
    const char *file; /* that it was read from */
    Comm *comm;
    bool is_rank0;       /* rank 0: it has the lock, writes the records, and speaks */
    LogLevel asked;      /* of messages, by the command line */
    bool sees_directory; /* the run directory is rank 0's, for all that this rank can see */
    RunLock lock;        /* rank 0's */
    Device device;
    GpuMemoryUse gpu_memory; /* memory of GPUs */
    const Inject *inject;
    Activity *activity; /* the phase and step that the watchdog reads */
    bool entered[PHASES];

    /* what is trained, on what, and how it is laid out */
    Tokenizer *tokenizer;
    Dataset *data;
    Tasks tasks;
    Layout layout;
    RankPlan rank;
    RunFacts facts; /* what a resumed run must have as it was */
    char init[65];  /* the sample of weights that were read from model.init; "": none were */
    Engine *engine;
    ReadAhead read_ahead;
    Replicas replicas;
    double flops_per_token, peak_flops; /* peak: of all ranks together; 0: not known */

    /* where the run stands, and what it is saved by */
    ResumePoint found; /* what the run goes on from */
    Text changes;      /* what is other from here on than in that, in words */
    RunState state;
    Best best;
    Saver saver;
    bool interval_suggested;
    int64_t bad_in_row; /* steps that were skipped, up to now */
    int unbalanced;     /* steps in turn whose experts were */
    bool warned_experts;
    bool stopping; /* all ranks agreed to */

    /* what is written of it (records.c) */
    MetricsLog log;
    MetricsWindow window; /* since the last logged step */
    TensorBoard *board;
    Journal journal;
    Listener listener; /* rank 0's: metrics.command */
    AuditLog audit;
    Tracing tracing;
    Sources sources;
    int64_t reported_sources; /* the last step of which sources were recorded */
    UnitProbe *probe;         /* [units] of a step that is probed; NULL without metrics.probe */
} Trainer;

/* What each rank has done by itself, and all must have: a failure of one is returned by all, and said once.
 */
#define TOGETHER(t, call) TRY(comm_agree((t)->comm, (call), err))

/* 0 is never. */
static inline bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* ---- trainer.c ---- */

/* Before what the phase does, by all ranks: the watchdog learns of it, and faults on purpose hit. */
void run_enter(Trainer *t, Phase phase);

/* ---- begin.c ---- */

/* From the configuration to a run that can make its next step: device, directory, data, plan, memory, the
 * checkpoint to go on from, records. All ranks; what was opened before a failure is closed by trainer_run. */
ErrorCode run_begin(Trainer *t, OptionSet *set, Error *err);

/* ---- records.c ---- */

/* Files and programs that get records (sinks[] in records.c). */
ErrorCode sinks_open(Trainer *t, Error *err);
/* To the disk: before a checkpoint says that the run got so far. */
ErrorCode sinks_sync(Trainer *t, Error *err);
/* Of what was never opened, too. */
void sinks_close(Trainer *t);
/* The program of metrics.command alone, so that the journal tells of its end before that of the run. */
ErrorCode sinks_close_program(Trainer *t, Error *err);

/* An event, into the journal, by rank 0. */
ErrorCode record_event(Trainer *t, JournalEvent event, int64_t step, const char *detail,
                       const JournalFact *facts, Error *err);
/* What a step has found, and bytes that this rank sent in it; rates are filled in by record_step. */
StepMetrics record_of_step(const Trainer *t, const StepResult *r, double lr);
/* Of the step that has just ended, where it is to be logged. */
ErrorCode record_step(Trainer *t, StepMetrics *m, Error *err);
ErrorCode record_probe(Trainer *t, const StepOptions *options, Error *err);
ErrorCode record_sources(Trainer *t, Error *err);
/* Of each named set, `sets` in the order of the data, and of all together. */
ErrorCode record_validations(Trainer *t, const Evaluation *all, const Evaluation *sets, double seconds,
                             Error *err);
ErrorCode record_task(Trainer *t, const TaskMetrics *m, Error *err);
/* Saves that have ended since the last call: what they took, into the journal. */
ErrorCode record_saves(Trainer *t, Error *err);
/* What pools and kernels have taken of GPUs; what has less left than it should. */
ErrorCode record_gpu_memory(Trainer *t, Error *err);
ErrorCode record_lost_memory(Trainer *t, Error *err);
/* Planned and measured times of the traced steps. */
ErrorCode record_trace(Trainer *t, Error *err);

/* Other ranks than the first keep to warnings, but for the lines that metrics.log_ranks asks of them. */
void run_hush(const Trainer *t);
/* The curve in the terminal, and where the time went, at the end of a run. */
void run_show_curve(const Trainer *t);
void run_show_profile(Trainer *t);

#endif

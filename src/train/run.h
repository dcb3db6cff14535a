/* State of a run and functions that its files share (trainer.c, begin.c, records.c). */
#ifndef WEFT_TRAIN_RUN_H
#define WEFT_TRAIN_RUN_H

#include "base/log.h"
#include "checkpoint/mirror.h"
#include "engine/evaluate.h"
#include "engine/redistribute.h"
#include "engine/replicas.h"
#include "observe/audit.h"
#include "observe/goodput.h"
#include "observe/journal.h"
#include "observe/listener.h"
#include "observe/metrics.h"
#include "observe/receipts.h"
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
#include "train/trainer.h"

/* A sample that was trained on: its number, and the SHA-256 of its inputs and targets. */
typedef struct SamplePrint {
    uint64_t k;
    uint8_t digest[32];
} SamplePrint;

/* Receipts of a run (receipts.c). */
typedef struct ReceiptState {
    ReceiptLog log; /* rank 0's */
    char head[65];  /* the line that the checkpoint states from which the run resumes; "": none */
    int64_t first;  /* first sample behind the last line */
    size_t count, capacity;
    SamplePrint *samples; /* [count] of this rank since the last line */
    double seconds;       /* spent on lines */
} ReceiptState;

/* Microbatches that are computed again (replay_check.c). */
typedef struct ReplayCheck {
    StepReplay step;
    int *owners;      /* [ranks] */
    uint64_t *prints; /* [PRINTS, engine_prints] of this rank */
    /* By all ranks of this process's part of the run: microbatches computed again; steps made again since
     * one of them differed. */
    int64_t made, differed;
    bool reread; /* this rank's tokens were others when it read them again for the verdict */
} ReplayCheck;

/* Sums of this rank over a window of steps (stragglers.c). */
typedef struct StragglerWindow {
    int64_t steps;
    double seconds, waited, data; /* of steps; of these, waiting for ranks and for data */
} StragglerWindow;

/* Counts and windows that a step adds to. */
typedef struct Progress {
    RunState state;
    MetricsWindow window;
    Goodput goodput;
    StragglerWindow stragglers;
    int64_t bad_in_row;
    int unbalanced;
} Progress;

/* A step that all living ranks have made (comm_commit), until the next one. */
typedef struct MadeStep {
    int64_t step; /* 0: none */
    StepResult result;
    double seconds; /* that it took */
} MadeStep;

/* Going on without ranks that died (recovery.c). */
typedef struct Recovery {
    bool possible;          /* recovery.mode in_place, and comm_allow_repair has agreed */
    bool refused;           /* all ranks know that the run cannot go on without those that died */
    int count;              /* recoveries so far */
    int own;                /* number of this rank when the run began, which injected faults go by */
    int spares;             /* ranks beyond those of the mesh, when the run began */
    Mesh mesh;              /* of the ranks that hold shards */
    int *numbers;           /* [ranks, spares] of each one, its number in `mesh`, or RECOVERY_SPARE */
    int *names;             /* [ranks, spares] their numbers when the run began, for messages */
    bool mesh_changed;      /* the configuration does not have it yet */
    bool torn;              /* this rank has half an update */
    bool writer_died;       /* this rank, the lowest now, takes over from the rank that wrote the records */
    bool owes_save;         /* a save was given up */
    EngineState *state;     /* while there is no engine; NULL on spares */
    int64_t updates;        /* that the optimizer has made of it */
    Redistribution *moving; /* of one that failed: its memory may be written to until the next repair */
    Progress before[2];     /* at the start of the step under way, and of the one before */
    double marked;          /* clock at the start of the step under way */
    MadeStep made;
} Recovery;

/* Everything that a run opens: opened by run_begin, closed in trainer_run. The close functions accept what
 * was never opened, for which zero stands. */
typedef struct Trainer {
    Config *c;
    const char *file; /* the configuration's file */
    Comm *comm;
    bool is_rank0;       /* it holds the lock, writes the records, and prints */
    LogLevel asked;      /* level of messages asked for on the command line */
    bool sees_directory; /* this rank's run directory appears to be rank 0's */
    RunLock lock;        /* held by rank 0 */
    Device device;
    GpuMemoryUse gpu_memory;
    const Inject *inject;
    Recovery recovery;
    Activity *activity; /* the phase and step that the watchdog reads */
    bool entered[PHASES];

    /* model, data, and their layout */
    Tokenizer *tokenizer;
    Dataset *data;
    Tasks tasks;
    Layout layout;
    RankPlan rank;
    RunFacts facts; /* facts that a resumed run is compared by */
    char init[65];  /* sample of the weights that were read from model.init; "": none were */
    Engine *engine;
    ReadAhead read_ahead;
    Replicas replicas;
    ReplayCheck replays;
    double flops_per_token, peak_flops; /* peak: over all ranks; 0: not known */

    /* progress of the run, and how it is saved */
    ResumePoint found; /* checkpoint that the run resumes from */
    Text changes;      /* changes from then on, in words */
    RunState state;
    Best best;
    Saver saver;
    Mirror *mirror; /* rank 0, with checkpoint.mirror; else NULL */
    bool interval_suggested;
    int64_t bad_in_row; /* steps skipped in a row, up to now */
    int unbalanced;     /* steps in a row with unbalanced experts */
    bool warned_experts;
    bool stopping; /* all ranks have agreed to stop */
    bool noticed;  /* a machine of the run is to be taken away (run.notice_file) */

    /* records (records.c) */
    MetricsLog log;
    MetricsWindow window; /* since the last logged step */
    Goodput goodput;      /* rank 0's is recorded */
    StragglerWindow stragglers;
    TensorBoard *board;
    Journal journal;
    Listener listener; /* rank 0's: program of metrics.command */
    AuditLog audit;
    ReceiptState receipts;
    const Replay *replay; /* NULL: this is a run */
    Tracing tracing;
    Sources sources;
    int64_t reported_sources; /* last step whose sources were recorded */
    UnitProbe *probe;         /* [units] for a probed step; NULL without metrics.probe */
} Trainer;

/* For what each rank does by itself and all must have done: if one fails, all return its failure, and it is
 * printed once. */
#define TOGETHER(t, call) TRY(comm_agree((t)->comm, (call), err))

/* every 0: never. */
static inline bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* Whether the run is saved after the step that was just made. */
static inline bool run_saves_now(const Trainer *t) {
    return t->stopping || t->recovery.owes_save || t->state.step == t->c->train.steps ||
           due(t->c->checkpoint.every, t->state.step);
}

/* ---- replay_check.c: all ranks ---- */

ErrorCode replay_open(Trainer *t, Error *err);
void replay_close(Trainer *t);
/* Before a step: computes a microbatch again, and makes the step compare its own with it. */
ErrorCode replay_begin(Trainer *t, StepOptions *options, Error *err);
void replay_report(const Trainer *t); /* at the end */
/* After a step that made no update, since a comparison failed: finds the rank that was wrong. OK: make the
 * step again, which has been made `made` times. ERR_REPLICAS: a rank is wrong each time, or none can be
 * told. */
ErrorCode replay_judge(Trainer *t, int made, Error *err);

/* ---- stragglers.c: all ranks ---- */

/* Adds a step. At the end of a window, warns of a rank that the others have waited for. */
ErrorCode stragglers_step(Trainer *t, double seconds, double data, double waited, Error *err);

/* ---- receipts.c: all ranks; without run.receipts they do nothing ---- */

/* Writes the line of the beginning, from the weights that the engine has. */
ErrorCode receipt_begin(Trainer *t, const OptionSet *set, Error *err);
void receipt_add_samples(Trainer *t); /* of the step that was just made */
ErrorCode receipt_step(Trainer *t, const StepMetrics *m, Error *err);
ErrorCode receipt_sync(Trainer *t, Error *err);
void receipt_report(const Trainer *t); /* at the end: head and cost */
void receipt_close(Trainer *t);

/* ---- recovery.c: all ranks ---- */

/* Warns, once, if recovery.mode is in_place and this run cannot go on without ranks that die. */
ErrorCode recovery_open(Trainer *t, Error *err);
void recovery_close(Trainer *t);
/* To be called at the start of each step. A recovery returns to this point. */
void recovery_mark(Trainer *t);
/* Keeps the result of the step that was just made. After a recovery that goes back to its start,
 * recovery_made returns it. */
void recovery_keep(Trainer *t, const StepResult *r, double seconds);
const MadeStep *recovery_made(const Trainer *t); /* the step under way, if it is made already; or NULL */
/* Whether the failure that loop has returned can be recovered from. */
bool recovery_can(Trainer *t);
/* Goes on without the ranks that died: to the start of the step that not all had finished. ERR_PEER with
 * t->recovery.refused on all ranks if that is not possible. Ranks that the new mesh has no place for are
 * spares from then on, or end here. After another failure recovery_can says whether to call it again. */
ErrorCode recovery_run(Trainer *t, OptionSet *set, Error *err);

/* Other ranks than before sum gradients in another order: only exact sums do not show it. */
static inline bool recovery_may_change_mesh(const Trainer *t) {
    return t->c->numerics.mode == NUMERICS_EXACT;
}
#define RECOVERY_NO_SPARE "no spare is left, and with numerics.mode: fast another mesh would have other bits"
/* All ranks, when the configuration is settled, before there is an engine: the spares (recovery.spares) are
 * set aside. */
ErrorCode recovery_begin(Trainer *t, Error *err);

/* ---- shards.c: all ranks, spares too ---- */

/* Once the weights are there: gives each rank the copy that it holds. Nothing without partner copies. Not
 * spares. */
ErrorCode shards_fill_copies(Trainer *t, Error *err);
/* With partner copies, after ranks have died: which mesh the others can go on with. NULL: it is in *next;
 * else why there is none. The same on all ranks. */
const char *shards_find_mesh(const Trainer *t, MeshOptions *next);
/* Gives those that are to be the ranks of the next mesh what they lack of its shards. Either all living ranks
 * have theirs in t->recovery.state then, or none has changed anything. Ends with a commit. */
ErrorCode shards_move(Trainer *t, const MeshOptions *next, const int *seats /* [ranks of it] */, Error *err);

/* ---- trainer.c ---- */

/* Enters a phase, on all ranks, before its work begins: the watchdog learns of it, and injected faults
 * happen. */
void run_enter(Trainer *t, Phase phase);

/* ---- begin.c ---- */

/* Whether run.notice_file is there, on this machine. */
bool begin_has_notice(const Config *c);

/* From the configuration to a run that is ready for its next step: device, directory, data, plan, memory,
 * checkpoint to resume from, records. All ranks. trainer_run closes what was opened before a failure. */
ErrorCode run_begin(Trainer *t, OptionSet *set, Error *err);
/* Takes over the contents of the data once all remote files have come, for the next checkpoint. Refuses other
 * contents than those of the checkpoint that the run began with. */
ErrorCode run_note_contents(Trainer *t, Error *err);
/* run_begin after a recovery: from the plan on, for the ranks that are left, with the weights in
 * t->recovery.state. */
ErrorCode run_begin_again(Trainer *t, OptionSet *set, Error *err);
/* Closes what run_begin_again opens, except for the engine. */
void run_close_records(Trainer *t);

/* ---- records.c ---- */

/* Files and programs that receive records (sinks[] in records.c). */
ErrorCode sinks_open(Trainer *t, Error *err);
/* Writes records to the disk, before a checkpoint says that the run got so far. */
ErrorCode sinks_sync(Trainer *t, Error *err);
/* Accepts sinks that were never opened. */
void sinks_close(Trainer *t);
/* Closes only the program of metrics.command, so that the journal records its end before that of the run. */
ErrorCode sinks_close_program(Trainer *t, Error *err);

/* Adds an event to the journal, on rank 0. */
ErrorCode record_event(Trainer *t, JournalEvent event, int64_t step, const char *detail,
                       const JournalFact *facts, Error *err);
/* Metrics of a step, with the bytes that this rank sent in it; record_step fills in the rates. */
StepMetrics record_of_step(const Trainer *t, const StepResult *r, double lr);
/* Whether the record of a step is written; otherwise only the status line is updated. */
bool run_logs_step(const Trainer *t, const StepMetrics *m);
/* Records the step that has just ended, if it is to be logged. */
ErrorCode record_step(Trainer *t, StepMetrics *m, Error *err);
ErrorCode record_probe(Trainer *t, const StepOptions *options, Error *err);
ErrorCode record_sources(Trainer *t, Error *err);
/* Records the validation of each named set (`sets`, in the order of the data) and of all sets together. */
ErrorCode record_validations(Trainer *t, const Evaluation *all, const Evaluation *sets, double seconds,
                             Error *err);
ErrorCode record_task(Trainer *t, const TaskMetrics *m, Error *err);
/* Adds to the journal what it cost to save, for saves that have ended since the last call. */
ErrorCode record_saves(Trainer *t, Error *err);
/* Records the GPU memory that pools and kernels take; and GPUs with less free memory than expected. */
ErrorCode record_gpu_memory(Trainer *t, Error *err);
ErrorCode record_lost_memory(Trainer *t, Error *err);
/* Records planned and measured times of the traced steps. */
ErrorCode record_trace(Trainer *t, Error *err);

/* Ranks other than 0 print warnings only, except for the lines that metrics.log_ranks asks of them. */
void run_hush(const Trainer *t);
/* Print the loss curve, and the profile of where the time went, at the end of a run. */
void run_show_curve(const Trainer *t);
void run_show_profile(Trainer *t);

#endif

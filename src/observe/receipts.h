/* RUN/receipts.jsonl: a chain of hashes over configuration, data and weights (run.receipts).
 *
 *     {"kind": "begin", "step": 6, "samples": 192, "facts...": ..., "weights": root, "h": ...}
 *     {"kind": "step", "step": 10, "first": 192, "samples": 128, "batch": ..., "weights": ..., "h": ...}
 *
 *  R1. h of a line is the SHA-256 (hex) of the h of the line before (64 zeros for the first) followed by the
 *      text of this line up to, and without, `, "h": `.
 *  R2. The file is only appended to. An attempt begins with a line of its own; the steps before it in the
 *      file that it makes again (those after its step) count no longer.
 *  R3. A line is on disk before a checkpoint states its h. So a file that lacks the h of a checkpoint of its
 *      run was changed or cut. A line that a kill has torn, the last, is removed when the next attempt
 *      begins. */
#ifndef WEFT_OBSERVE_RECEIPTS_H
#define WEFT_OBSERVE_RECEIPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

#define RECEIPTS_FILE "receipts.jsonl"
enum { RECEIPT_HEX = 65, RECEIPT_FACTS = 8 };

/* What equal bits depend on, in words or as a digest. */
typedef struct ReceiptFact {
    const char *name, *value;
} ReceiptFact;

/* One line. Strings are owned by Receipts, or by the caller of receipts_add. */
typedef struct Receipt {
    bool begin;
    int64_t step;
    int64_t first, samples;       /* since the line before: first sample, number. begin: samples so far, 0 */
    const char *batch;            /* digest of these samples; begin: NULL */
    const char *loss, *grad_norm; /* bits of the doubles, in hex; begin: NULL */
    const char *weights;          /* root */
    const char *parameters;       /* first 8 digits of the root of each parameter, one after the other */
    const char *names;            /* begin: of the parameters, "a,b,c" */
    int64_t ranks;                /* begin */
    ReceiptFact facts[RECEIPT_FACTS]; /* begin: ended by name NULL */
    char h[RECEIPT_HEX];
} Receipt;

/* ---- writing: rank 0 ---- */

typedef struct ReceiptLog {
    int fd; /* -1 when closed */
    char *path;
    char h[RECEIPT_HEX]; /* of the last line */
} ReceiptLog;

/* Checks the chain of an existing file, and that it has the line `head` ("": any will do), which a checkpoint
 * states. */
ErrorCode receipts_open(ReceiptLog *log, const char *run_dir, const char *head, Error *err);
/* Adds a line, and sets r->h. */
ErrorCode receipts_add(ReceiptLog *log, Receipt *r, Error *err);
ErrorCode receipts_sync(ReceiptLog *log, Error *err);
void receipts_close(ReceiptLog *log);

/* ---- reading ---- */

struct cJSON;
typedef struct Receipts {
    char *path;
    size_t count, attempts;
    Receipt *items;
    struct cJSON **lines; /* [count] */
    bool torn;            /* the last line, which does not count */
    size_t length;        /* of the file without it */
    size_t *valid;        /* [valid_count] indices of lines that count at the end (R2), begins included */
    size_t valid_count;
} Receipts;

/* Reads the file and checks the chain, the order of steps and samples, and that each attempt began with the
 * weights of the step that it went on from. ERR_DATA names the first bad line; ERR_NOINPUT: no file. Free
 * with receipts_free, also after an error. */
ErrorCode receipts_read(Receipts *r, const char *run_dir, Error *err);
void receipts_free(Receipts *r);
/* Whether a line has this h. */
bool receipts_have(const Receipts *r, const char *h);
/* The line of a step that counts; NULL if it has none. */
const Receipt *receipts_of_step(const Receipts *r, int64_t step);
/* The beginning of the attempt that made a step. */
const Receipt *receipts_begin_of(const Receipts *r, int64_t step);
/* Value of a fact, "" if it has none. */
const char *receipt_fact(const Receipts *r, const Receipt *begin, const char *name);

/* Compares a step with its recomputation: nothing is appended if they are equal, otherwise what differs, the
 * first parameter by name. names: those of the run's begin. */
void receipt_compare(const Receipt *run, const Receipt *again, const char *names, Text *out);

#endif

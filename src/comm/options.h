/* What a configuration says of ranks and of messages between them. */
#ifndef WEFT_COMM_OPTIONS_H
#define WEFT_COMM_OPTIONS_H

#include "base/options.h"
#include "comm/mesh.h"

typedef enum ProgressThread { PROGRESS_AUTO, PROGRESS_TRUE, PROGRESS_FALSE } ProgressThread;
typedef struct CommOptions {
    int progress_thread; /* ProgressThread */
    double watchdog_s;   /* 0: none */
} CommOptions;

extern const Option mesh_options[], comm_options[];

#endif

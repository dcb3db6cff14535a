/* Options of the mesh and of communication. */
#ifndef WEFT_COMM_OPTIONS_H
#define WEFT_COMM_OPTIONS_H

#include "base/choices.h"
#include "base/options.h"
#include "comm/mesh.h"

#define PROGRESS_THREADS(X) X(PROGRESS_AUTO, "auto") X(PROGRESS_TRUE, "true") X(PROGRESS_FALSE, "false")
typedef enum ProgressThread { PROGRESS_THREADS(CHOICE_CONSTANT) } ProgressThread;
#define TRANSPORTS(X) X(TRANSPORT_MPI, "mpi") X(TRANSPORT_SOCKETS, "sockets")
typedef enum TransportChoice { TRANSPORTS(CHOICE_CONSTANT) } TransportChoice;
typedef struct CommOptions {
    int transport;       /* TransportChoice */
    int progress_thread; /* ProgressThread */
    bool two_levels;
    double watchdog_s; /* 0: none */
} CommOptions;

extern const Option mesh_options[], comm_options[];

#endif

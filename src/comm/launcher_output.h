/* Filter for mpirun's stderr. The ranks' messages pass. mpirun's own remarks, which stand between two lines
 * of dashes, are dropped where they only repeat what weft reports better. */
#ifndef WEFT_COMM_LAUNCHER_OUTPUT_H
#define WEFT_COMM_LAUNCHER_OUTPUT_H

#include <stdbool.h>

#include "base/text.h"

typedef struct LauncherOutput {
    Text line;  /* not complete yet; empty while it passes as it comes */
    Text block; /* a remark, from its first dashes */
    bool passing;
    /* first rank that mpirun saw killed by a signal, and the signal; killed_by 0: none */
    int killed_rank, killed_by;
} LauncherOutput;

/* Zero-initialise. Writes to stderr what may pass, as soon as that is known. */
void launcher_output_add(LauncherOutput *c, const char *bytes, size_t length);
/* Treats what is held back as complete. */
void launcher_output_flush(LauncherOutput *c);
void launcher_output_free(LauncherOutput *c);

#endif

/* What comes from mpirun's stderr: the ranks' messages, which pass, and its own remarks between two lines of
 * dashes, of which those go that only repeat what weft says better. */
#ifndef WEFT_COMM_LAUNCHER_OUTPUT_H
#define WEFT_COMM_LAUNCHER_OUTPUT_H

#include <stdbool.h>

#include "base/text.h"

typedef struct LauncherOutput {
    Text line;  /* not ended yet; empty while it passes as it comes */
    Text block; /* a remark, from its first dashes */
    bool passing;
    int killed_rank, killed_by; /* by a signal, as mpirun noticed first; killed_by 0: none */
} LauncherOutput;

/* Zero-initialise. Writes to stderr what may pass, as soon as it is clear that it may. */
void launcher_output_add(LauncherOutput *c, const char *bytes, size_t length);
/* What is held back is taken as ended. */
void launcher_output_flush(LauncherOutput *c);
void launcher_output_free(LauncherOutput *c);

#endif

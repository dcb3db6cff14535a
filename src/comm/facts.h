/* The MPI library in use, for --version and doctor: the one that weft was built with, or another version of
 * it that LD_LIBRARY_PATH selects. */
#ifndef WEFT_COMM_FACTS_H
#define WEFT_COMM_FACTS_H

#include <stdbool.h>
#include <stddef.h>

/* "Open MPI 4.1.4" into out; returns out. Works without joining anything. */
char *comm_library_name(char *out, size_t size);
/* The mpirun that belongs to that library: the one next to it, or else the one found when weft was built. */
const char *comm_launcher(void);
/* Whether it is Open MPI's; launcher.h has the differences between launchers. */
bool comm_is_open_mpi(void);
/* The first number of its version: 4 of "Open MPI 4.1.4"; 0: it has none. */
int comm_library_version(void);

#endif

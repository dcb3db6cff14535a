/* The MPI library that weft was built with, for --version and doctor. */
#ifndef WEFT_COMM_FACTS_H
#define WEFT_COMM_FACTS_H

#include <stdbool.h>
#include <stddef.h>

/* "Open MPI 4.1.4" into out; returns out. Works without joining anything. */
char *comm_library_name(char *out, size_t size);
/* The mpirun that belongs to that library. */
const char *comm_launcher(void);
/* Whether it is Open MPI's; launcher.h has the differences between launchers. */
bool comm_is_open_mpi(void);

#endif

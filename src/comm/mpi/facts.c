/* Information about the MPI library. */
#include "comm/facts.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

/* Shortens the library's description: "Open MPI v4.1.4, package: Debian OpenMPI, ident: ...", or several
 * lines, of which the first is "MPICH Version:\t4.0.2". */
char *comm_library_name(char *out, size_t size) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = 0;
    const char *version = strstr(text, " Version:\t");
    snprintf(out, size, "%.*s%s%s", version ? (int)(version - text) : length, text, version ? " " : "",
             version ? version + strlen(" Version:\t") : "");
    return out;
}

/* The mpirun that was found with the library when weft was built: another one starts processes that do not
 * find each other. */
const char *comm_launcher(void) { return WEFT_MPIRUN; }

bool comm_is_open_mpi(void) {
#ifdef OPEN_MPI
    return true;
#else
    return false;
#endif
}

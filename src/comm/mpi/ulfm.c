/* Looks ULFM up. The library has its functions, and they report success, even when failures are not
 * tolerated: only the attribute MPI_FT of Open MPI 5 says whether they are. */
#include "comm/mpi/ulfm.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "comm/facts.h"

/* Open MPI 5 has it behind the last attribute of version 4, whose headers may be older. */
enum { ATTRIBUTE_FT = MPI_WIN_MODEL + 1 };

/* Copies, since C has no conversion from an object's address to a function's. */
static bool find(const char *name, void *function) {
    void *found = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

const Ulfm *ulfm_find(void) {
    static Ulfm functions;
    bool all = find("MPIX_Comm_revoke", &functions.revoke) && find("MPIX_Comm_shrink", &functions.shrink) &&
               find("MPIX_Comm_agree", &functions.agree) &&
               find("MPIX_Comm_failure_ack", &functions.acknowledge);
    return all ? &functions : NULL;
}

/* MPICH 4 and 5 have functions of these names, too; repairs were not tried with them. */
static bool has_ulfm(void) { return comm_is_open_mpi() && comm_library_version() >= 5 && ulfm_find(); }

static bool is_tolerant(void) {
    int *on = NULL, found = 0;
    return MPI_Comm_get_attr(MPI_COMM_WORLD, ATTRIBUTE_FT, &on, &found) == MPI_SUCCESS && found && *on;
}

void ulfm_problem(char *out, size_t size) {
    char library[96];
    *out = 0;
    if (!has_ulfm())
        snprintf(out, size,
                 "%s has no ULFM: set comm.transport=sockets, or use Open MPI 5.0.10 or newer "
                 "(\"tools/setup.sh ulfm\" installs it)",
                 comm_library_name(library, sizeof library));
    else if (!is_tolerant())
        snprintf(out, size, "mpirun was started without fault tolerance: start it with \"--with-ft ulfm\"");
}

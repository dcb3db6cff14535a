/* Information about the MPI library. */
#include "comm/facts.h"

#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

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

/* The mpirun that was found with the library when weft was built. */
static const char *const built_with = WEFT_MPIRUN;

/* Path of bin/mpirun next to the directory of the library in use; false if there is none. */
static bool find_beside_library(char *out, size_t size) {
    Dl_info library;
    char path[PATH_MAX];
    void *in_library = dlsym(RTLD_DEFAULT, "MPI_Init");
    if (!in_library || !dladdr(in_library, &library) || !realpath(library.dli_fname, path)) return false;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');
        if (!slash) return false;
        *slash = 0;
    }
    return (size_t)snprintf(out, size, "%s/bin/mpirun", path) < size && file_exists(out);
}

/* The launcher of another library starts processes that do not find each other. LD_LIBRARY_PATH may select
 * another library than weft was built with, which then has its launcher next to it. */
const char *comm_launcher(void) {
    static char beside[PATH_MAX];
    if (*beside || find_beside_library(beside, sizeof beside)) return beside;
    *beside = 0;
    return built_with;
}

bool comm_is_open_mpi(void) {
#ifdef OPEN_MPI
    return true;
#else
    return false;
#endif
}

int comm_library_version(void) {
    char name[MPI_MAX_LIBRARY_VERSION_STRING];
    const char *number = strpbrk(comm_library_name(name, sizeof name), "0123456789");
    return number ? atoi(number) : 0;
}

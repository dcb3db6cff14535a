/* Name and runtime of the library that native bf16 products come from. Its threads matter: weft calls it from
 * inside parallel regions of OpenMP, where only a library that is built on OpenMP too keeps to one thread. */
#include "device/facts.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

static const char *runtime_name(unsigned runtime) {
    switch (runtime) {
    case DNNL_RUNTIME_OMP: return "OpenMP";
    case DNNL_RUNTIME_TBB: return "TBB";
    case DNNL_RUNTIME_THREADPOOL: return "thread pool";
    default: return "sequential";
    }
}

/* Of the library that is loaded, which may be another than the one whose header was compiled against. */
char *device_library_name(char out[64]) {
    const dnnl_version_t *v = dnnl_version();
    snprintf(out, 64, "oneDNN %d.%d.%d (%s)", v->major, v->minor, v->patch, runtime_name(v->cpu_runtime));
    return out;
}

/* Where it is false doctor advises another build of the library. */
bool device_library_has_openmp(void) { return dnnl_version()->cpu_runtime == DNNL_RUNTIME_OMP; }

/* Name and threading runtime of oneDNN, which computes native bf16 products. The runtime matters: weft calls
 * oneDNN from inside OpenMP parallel regions, where it stays on one thread only if it is built with OpenMP
 * too. */
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

/* Describes the library that is loaded, which may differ from the header that was compiled against. */
char *device_library_name(char out[64]) {
    const dnnl_version_t *v = dnnl_version();
    snprintf(out, 64, "oneDNN %d.%d.%d (%s)", v->major, v->minor, v->patch, runtime_name(v->cpu_runtime));
    return out;
}

/* If false, doctor advises another build of the library. */
bool device_library_has_openmp(void) { return dnnl_version()->cpu_runtime == DNNL_RUNTIME_OMP; }

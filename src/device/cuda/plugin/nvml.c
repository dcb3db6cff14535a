/* The free memory of a GPU before this process uses any of it. CUDA can report that only with a context,
 * which takes memory itself; NVML needs none. It is asked once, and is optional: the result is unknown if
 * NVML is missing or does not know the GPU by its UUID (such as a MIG instance). */
#include "device/cuda/plugin/nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

#include "device/cuda/plugin/library.h"

static const LibraryFunction functions[] = {
    {"nvmlInit_v2", offsetof(Nvml, Init)},
    {"nvmlShutdown", offsetof(Nvml, Shutdown)},
    {"nvmlDeviceGetHandleByUUID", offsetof(Nvml, DeviceGetHandleByUUID)},
    {"nvmlDeviceGetMemoryInfo", offsetof(Nvml, DeviceGetMemoryInfo)}};
enum { FUNCTIONS = sizeof functions / sizeof *functions };
_Static_assert(FUNCTIONS * sizeof(void *) == sizeof(Nvml), "a function is missing");

static bool open_library(Nvml *n) {
    if (&nvml_linked) {
        *n = nvml_linked;
        return true;
    }
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return library && !library_find(library, functions, FUNCTIONS, n);
}

/* "GPU-" and the hexadecimal digits in groups of 8, 4, 4, 4 and 12. */
static void name_of(const char uuid[16], char out[48]) {
    int at = snprintf(out, 48, "GPU");
    for (int i = 0; i < 16; i++)
        at += snprintf(out + at, 48 - (size_t)at, "%s%02x",
                       i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "", (unsigned char)uuid[i]);
}

uint64_t nvml_available(const char uuid[16]) {
    Nvml n;
    NvmlDevice device;
    NvmlMemory memory = {.available = 0};
    char name[48];
    if (!open_library(&n) || n.Init() != NVML_OK) return 0;
    name_of(uuid, name);
    bool known = n.DeviceGetHandleByUUID(name, &device) == NVML_OK &&
                 n.DeviceGetMemoryInfo(device, &memory) == NVML_OK;
    n.Shutdown();
    return known ? memory.available : 0;
}

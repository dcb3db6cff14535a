/* What the kernels were built with, for --version and doctor. */
#ifndef WEFT_DEVICE_FACTS_H
#define WEFT_DEVICE_FACTS_H

#include <stdbool.h>

/* "oneDNN 2.6.3 (OpenMP)" into out[64]; returns out. */
char *device_library_name(char out[64]);
/* False if oneDNN was built without OpenMP: its products would then run on their own thread pool, or on one
 * core. */
bool device_library_has_openmp(void);

#endif

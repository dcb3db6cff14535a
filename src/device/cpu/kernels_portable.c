/* The kernels for any processor. */
#define KERNELS kernels_portable
#include "device/cpu/kernels_all.h"

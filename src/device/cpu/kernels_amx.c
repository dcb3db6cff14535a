/* The kernels for AVX-512 with dot products of bf16, and AMX. */
#if defined(__x86_64__)
#define KERNELS kernels_amx
#include "device/cpu/kernels_all.h"
#else
typedef int kernels_amx_absent; /* other processors; a file must hold a declaration */
#endif

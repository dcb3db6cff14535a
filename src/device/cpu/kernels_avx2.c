/* The kernels for AVX2 with FMA. */
#if defined(__x86_64__)
#define KERNELS kernels_avx2
#include "device/cpu/kernels_all.h"
#else
typedef int kernels_avx2_absent; /* other processors; a file must hold a declaration */
#endif

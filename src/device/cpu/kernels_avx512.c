/* The kernels for AVX-512 (F, BW, DQ, VL). */
#if defined(__x86_64__)
#define KERNELS kernels_avx512
#include "device/cpu/kernels_all.h"
#else
typedef int kernels_avx512_absent; /* other processors; a file must hold a declaration */
#endif

/* The kernels for AVX-512 with dot products of bf16. */
#if defined(__x86_64__)
#define KERNELS kernels_avx512_bf16
#include "device/cpu/kernels_all.h"
#else
typedef int kernels_avx512_bf16_absent; /* other processors; a file must hold a declaration */
#endif

/* The last ops that were called on a GPU, in words: a fault shows when the host next waits for something, or
 * calls something, and the driver does not say whose it is. */
#ifndef WEFT_DEVICE_CUDA_CALLS_H
#define WEFT_DEVICE_CUDA_CALLS_H

#include "device/device.h"

/* Ops and runtime that the device has are from now on called through ones that remember. */
void calls_remember(Device *d);
/* The op that this thread is calling, with its shape: "add(n 512, c fp32)"; else its name. Until the thread's
 * next call. */
const char *calls_current(OpId op);
/* Those whose end no wait has shown. Until the next call. */
const char *calls_unfinished(void);

#endif

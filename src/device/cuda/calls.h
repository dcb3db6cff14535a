/* Keeps the last ops called on a GPU as text. A fault shows only when the host next waits or calls something,
 * and the driver does not say which op caused it. */
#ifndef WEFT_DEVICE_CUDA_CALLS_H
#define WEFT_DEVICE_CUDA_CALLS_H

#include "device/device.h"

/* Wraps the device's ops and runtime so that calls are remembered from now on. */
void calls_remember(Device *d);
/* The op that this thread is calling, with its shape: "add(n 512, c fp32)"; else its name. Valid until the
 * thread's next call. */
const char *calls_current(OpId op);
/* Ops that no wait has shown to have ended. Valid until the next call. */
const char *calls_unfinished(void);

#endif

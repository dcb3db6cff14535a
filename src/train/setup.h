/* From a configuration to the parts of a run: device, tokenizer, shape, engine. Shared by train, plan, eval and generate. */
#ifndef WEFT_TRAIN_SETUP_H
#define WEFT_TRAIN_SETUP_H

#include "data/tokenizer.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/schedule.h"

ErrorCode setup_device(const Config *c, Device *d, Error *err);
/* Shape of the model, completed by what the tokenizer says: vocabulary (when 0) and the ids of BOS and EOS. Refuses a
 * vocabulary that is smaller than the tokenizer's. */
ErrorCode setup_shape(Config *c, const Tokenizer *t, Error *err);
/* auto becomes bf16 where the device multiplies it natively, else fp32. */
Dtype setup_compute(const Config *c, const Device *d);
ErrorCode setup_spec(const Config *c, const Device *d, EngineSpec *spec, Error *err);
StepOptions setup_step(const Config *c, int64_t step); /* 0-based */
/* The run in words: model, step, memory by category. */
void setup_describe(const Config *c, const Engine *e, Text *out);

#endif

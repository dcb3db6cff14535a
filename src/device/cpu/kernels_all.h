/* Everything that is compiled once for each instruction set. KERNELS names the table. */
#include "device/cpu/kernels.h"

#include <float.h>
#include <math.h>
#include <sched.h>

#include "device/cpu/vector.h"

#include "device/cpu/elementwise.h"
#include "device/cpu/exact_sums.h"
#include "device/cpu/fixed.h"
#include "device/cpu/normals.h"
#include "device/cpu/optimizers.h"
#include "device/cpu/rows.h"
#include "device/cpu/scans.h"
#include "device/cpu/tile.h"

#include "device/cpu/pairs.h"

#include "device/cpu/amx.h"

#include "device/cpu/mamba.h"
#include "device/cpu/mamba_chunks.h"

#include "device/cpu/flash.h"
#include "device/cpu/product.h"

#include "device/cpu/product_amx.h"

const Kernels KERNELS = {.add = add,
                         .cast = cast,
                         .norm_forward = norm_forward,
                         .norm_backward = norm_backward,
                         .qk_norm_forward = qk_norm_forward,
                         .qk_norm_backward = qk_norm_backward,
                         .qk_norm_sums = qk_norm_sums,
                         .rope = rope,
                         .bias_forward = bias_forward,
                         .bias_backward = bias_backward,
                         .embed_backward = embed_backward,
                         .embed_row = embed_row,
                         .activation_forward = activation_forward,
                         .activation_backward = activation_backward,
                         .softcap = softcap,
                         .conv_forward = conv_forward,
                         .conv_backward = conv_backward,
                         .scan_forward = scan_forward,
                         .scan_gate = scan_gate,
                         .scan_backward = scan_backward,
                         .mamba_forward = mamba_forward,
                         .mamba_scores = mamba_scores,
                         .mamba_backward = mamba_backward,
                         .mamba_sum_C = mamba_sum_C,
                         .mamba_sum_B = mamba_sum_B,
                         .gated_norm_forward = gated_norm_forward,
                         .gated_norm_backward = gated_norm_backward,
                         .loss_record = loss_record,
                         .loss_gradient = loss_gradient,
                         .adamw = adamw,
                         .sgd = sgd,
                         .muon_momentum = muon_momentum,
                         .muon_normalise = muon_normalise,
                         .muon_blend = muon_blend,
                         .muon_apply = muon_apply,
                         .average = average,
                         .grad_stats = grad_stats,
                         .fixed_add = fixed_add,
                         .fixed_to_float = fixed_to_float,
                         .count_nonfinite = count_nonfinite,
                         .init_normal = init_normal,
#if VEC_AMX
                         .product_run = amx_product_run,
                         .bf16_pace = 8,
#else
                         .product_run = product_run,
                         .bf16_pace = 1,
#endif
                         .product_limit = product_limit,
                         .flash_forward = flash_forward,
                         .flash_delta = flash_delta,
                         .flash_backward = flash_backward,
                         .flash_decode = flash_decode};

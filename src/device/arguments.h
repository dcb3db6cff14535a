/* The arguments of each op, as data. From this list calls are queued on the host (deferred.c) and described
 * in text (cuda/calls.c). Ops with host memory and sum_parts are not in it, because more than their arguments
 * must be copied. */
#ifndef WEFT_DEVICE_ARGUMENTS_H
#define WEFT_DEVICE_ARGUMENTS_H

#include "device/device.h"

/* EACH(m, (a, b), (c, d), ...) is m(a, b) m(c, d) ..., for up to 13. */
#define EACH_1(m, p) m p
#define EACH_2(m, p, ...) m p EACH_1(m, __VA_ARGS__)
#define EACH_3(m, p, ...) m p EACH_2(m, __VA_ARGS__)
#define EACH_4(m, p, ...) m p EACH_3(m, __VA_ARGS__)
#define EACH_5(m, p, ...) m p EACH_4(m, __VA_ARGS__)
#define EACH_6(m, p, ...) m p EACH_5(m, __VA_ARGS__)
#define EACH_7(m, p, ...) m p EACH_6(m, __VA_ARGS__)
#define EACH_8(m, p, ...) m p EACH_7(m, __VA_ARGS__)
#define EACH_9(m, p, ...) m p EACH_8(m, __VA_ARGS__)
#define EACH_10(m, p, ...) m p EACH_9(m, __VA_ARGS__)
#define EACH_11(m, p, ...) m p EACH_10(m, __VA_ARGS__)
#define EACH_12(m, p, ...) m p EACH_11(m, __VA_ARGS__)
#define EACH_13(m, p, ...) m p EACH_12(m, __VA_ARGS__)
#define COUNT(...) COUNT_OF(__VA_ARGS__, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define COUNT_OF(a, b, c, d, e, f, g, h, i, j, k, l, m, n, ...) n
#define JOIN(a, b) JOIN_AGAIN(a, b)
#define JOIN_AGAIN(a, b) a##b
#define EACH(m, ...) JOIN(EACH_, COUNT(__VA_ARGS__))(m, __VA_ARGS__)

/* Struct slot_arguments, and the macros that make the parts of a call from a list. */
#define FIELD(type, name) type name;
#define PARAMETER(type, name) , type name
#define VALUE(type, name) name,
#define STORED(type, name) , a->name
#define NAMED(type, name) , name
#define ARGUMENTS_OF(slot, ...)       \
    typedef struct slot##_arguments { \
        EACH(FIELD, __VA_ARGS__)      \
    } slot##_arguments;

/* Slot, then type and name of each argument as in struct Ops: the compiler checks that wherever a slot is
 * filled from this list. */
/* clang-format off */
#define PLAIN_OPS(X)                                                                                        \
    X(gemm, (bool, trans_a), (bool, trans_b), (int64_t, m), (int64_t, n), (int64_t, k), (const void *, a),  \
      (const void *, b), (Dtype, ab_type), (void *, c), (Dtype, c_type), (int64_t, ldc),                    \
      (bool, accumulate), (KSplit, splits))                                                                 \
    X(embed_forward, (int64_t, tokens), (int64_t, hidden), (const int32_t *, ids), (const void *, table),   \
      (EmbedRows, rows), (float, scale), (bool, add), (void *, out), (Dtype, c))                            \
    X(embed_backward, (int64_t, tokens), (int64_t, hidden), (const int32_t *, ids), (const void *, dout),   \
      (EmbedRows, rows), (float, scale), (float *, dtable), (Dtype, c))                                     \
    X(norm_forward, (NormKind, kind), (int64_t, tokens), (int64_t, hidden), (float, eps),                   \
      (const void *, a), (const void *, b), (const float *, w), (const float *, bias), (void *, sum),       \
      (void *, y), (float *, rstd), (Dtype, c))                                                             \
    X(norm_backward, (NormKind, kind), (int64_t, tokens), (int64_t, hidden), (const void *, x),             \
      (const float *, w), (const float *, rstd), (const void *, dy), (void *, dx), (bool, add),             \
      (float *, dw), (int64_t, split_size), (Dtype, c))                                                           \
    X(qk_norm_forward, (AttentionShape, s), (QkRows, rows), (NormKind, kind), (float, eps),                 \
      (const void *, raw), (const float *, wq), (const float *, wk), (void *, out), (Dtype, c))             \
    X(qk_norm_backward, (AttentionShape, s), (QkRows, rows), (NormKind, kind), (float, eps),                \
      (const void *, raw), (const float *, wq), (const float *, wk), (void *, dqkv), (float *, dwq),        \
      (float *, dwk), (int, splits), (Dtype, c))                                                            \
    X(qk_norm_sums, (AttentionShape, s), (KSplit, splits), (NormKind, kind), (const void *, raw),           \
      (const float *, wq), (const float *, wk), (const void *, dqkv), (float *, sums), (Dtype, c))          \
    X(rope, (AttentionShape, s), (void *, qkv), (const int32_t *, positions), (const float *, cos_sin),     \
      (bool, inverse), (Dtype, c))                                                                          \
    X(queries_scale, (AttentionShape, s), (void *, qkv), (const int32_t *, positions),                      \
      (const float *, factors), (Dtype, c))                                                                 \
    X(bias_forward, (int64_t, tokens), (int64_t, n), (void *, y), (const float *, bias), (Dtype, c))        \
    X(bias_backward, (int64_t, tokens), (int64_t, n), (const void *, dy), (float *, db), (int64_t, split_size),   \
      (Dtype, c))                                                                                           \
    X(attention_forward, (AttentionShape, s), (AttentionRun, r), (const void *, q), (const void *, kv),     \
      (const int32_t *, first_key), (void *, out), (float *, lse), (Dtype, c))                              \
    X(attention_backward, (AttentionShape, s), (AttentionRun, r), (const void *, q), (const void *, kv),    \
      (const int32_t *, first_key), (const void *, out), (const float *, lse), (const void *, dout),        \
      (void *, dq), (void *, dkv), (Dtype, c))                                                              \
    X(attention_decode, (AttentionShape, s), (int64_t, start), (const void *, qkv),                         \
      (const void *, k_cache), (const void *, v_cache), (void *, out), (Dtype, c))                          \
    X(latent_forward, (LatentShape, s), (const void *, q), (const void *, own), (const void *, key),        \
      (const int32_t *, positions), (const float *, cos_sin), (void *, qkv), (Dtype, c))                    \
    X(latent_backward, (LatentShape, s), (const void *, dqkv), (const int32_t *, positions),                \
      (const float *, cos_sin), (void *, dq), (void *, down), (void *, dkey), (Dtype, c))                   \
    X(sinks_backward, (AttentionShape, s), (const void *, out), (const float *, lse), (const void *, dout), \
      (float *, dsinks), (Dtype, c))                                                                        \
    X(activation_forward, (Activation, f), (bool, gated), (int64_t, tokens), (int64_t, inter),              \
      (const void *, x), (void *, act), (Dtype, c))                                                         \
    X(activation_backward, (Activation, f), (bool, gated), (int64_t, tokens), (int64_t, inter),             \
      (const void *, x), (const void *, dact), (void *, dx), (void *, act), (Dtype, c))                     \
    X(scale, (int64_t, rows), (int64_t, n), (float, factor), (const void *, in), (int64_t, ldi),            \
      (void *, out), (Dtype, c))                                                                            \
    X(softcap, (int64_t, n), (float, cap), (void *, x), (Dtype, c))                                         \
    X(add, (int64_t, n), (const void *, a), (const void *, b), (void *, out), (Dtype, c))                   \
    X(conv_forward, (ConvShape, s), (const void *, x), (const float *, w), (const int32_t *, first_key),    \
      (float *, tail), (void *, y), (Dtype, c))                                                             \
    X(conv_backward, (ConvShape, s), (const void *, x), (const float *, w), (const int32_t *, first_key),   \
      (const void *, dy), (void *, dx), (float *, dw), (Dtype, c))                                          \
    X(scan_forward, (ScanShape, s), (ScanInputs, in), (const int32_t *, first_key), (float *, state),       \
      (float *, h), (Dtype, c))                                                                             \
    X(scan_gate, (ScanShape, s), (const void *, gate), (const float *, h), (void *, out), (Dtype, c))       \
    X(scan_backward, (ScanShape, s), (ScanInputs, in), (const int32_t *, first_key), (const float *, h),    \
      (const void *, dout), (ScanGradients, out), (Dtype, c))                                               \
    X(mamba_forward, (MambaShape, s), (MambaInputs, in), (const int32_t *, first_key), (float *, state),    \
      (float *, starts), (void *, y), (Dtype, c))                                                           \
    X(mamba_backward, (MambaShape, s), (MambaInputs, in), (const int32_t *, first_key),                     \
      (const float *, starts), (const void *, dy), (float *, carry), (float *, room),                       \
      (MambaGradients, out), (Dtype, c))                                                                    \
    X(gated_norm_forward, (GatedNorm, s), (const void *, x), (const void *, gate), (const float *, w),      \
      (void *, y), (Dtype, c))                                                                              \
    X(gated_norm_backward, (GatedNorm, s), (const void *, x), (const void *, gate), (const float *, w),     \
      (const void *, dy), (void *, dx), (void *, dgate), (float *, dw), (Dtype, c))                         \
    X(route, (RouteShape, s), (Routes, r), (int64_t *, counts))                                             \
    X(route_count, (RouteShape, s), (const int32_t *, chosen), (int64_t *, counts))                         \
    X(route_backward, (RouteShape, s), (Routes, r), (const int64_t *, counts), (const float *, dweights),   \
      (const float *, scale), (float *, balance), (void *, dlogits), (Dtype, c))                            \
    X(grouped_gemm, (ExpertRows, e), (bool, trans_b), (int64_t, n), (int64_t, k), (const void *, a),        \
      (const void *, b), (Dtype, ab_type), (void *, c), (Dtype, c_type), (KSplit, splits))                  \
    X(grouped_gemm_wgrad, (ExpertRows, e), (int64_t, m), (int64_t, n), (const void *, a),                  \
      (const void *, b), (Dtype, ab_type), (float *, c), (bool, accumulate), (bool, sliced))                \
    X(combine, (RouteShape, s), (Routes, r), (int64_t, hidden), (const void *, rows),               \
      (bool, weighed), (bool, add), (void *, y), (Dtype, c))                                                \
    X(combine_backward, (RouteShape, s), (Routes, r), (int64_t, inter), (int, splits), (void *, act),          \
      (void *, dact), (float *, dweights), (Dtype, c))                                                      \
    X(permute, (RouteShape, s), (Routes, r), (int64_t, hidden), (const void *, x), (void *, rows),   \
      (Dtype, c))                                                                                           \
    X(permute_dweights, (RouteShape, s), (Routes, r), (int64_t, n), (int, runs), (int, splits),              \
      (const void *, y), (const void *, dy), (float *, dweights), (Dtype, c))                               \
    X(experts_bias_forward, (ExpertRows, e), (int64_t, n), (void *, y), (const float *, bias), (Dtype, c))  \
    X(experts_bias_backward, (RouteShape, s), (Routes, r), (int64_t, n), (const void *, dy),                \
      (bool, weighed), (const float *, bias), (float *, dbias), (float *, dweights), (Dtype, c))            \
    X(loss_records, (int64_t, rows), (int64_t, vocab), (const void *, logits), (Dtype, logits_type),        \
      (const int32_t *, targets), (VocabSplit, splits), (LossRecord *, records))                           \
    X(cross_entropy, (int64_t, rows), (int64_t, vocab), (const void *, logits), (Dtype, logits_type),       \
      (const int32_t *, targets), (VocabSplit, splits), (const float *, scale), (float, cap), (float, z),  \
      (float *, loss), (float *, z_loss), (void *, dlogits), (Dtype, grad_type))                            \
    X(loss_sum, (int64_t, n), (const float *, losses), (LossSum *, into))                                   \
    X(adamw, (int64_t, n), (AdamW, a), (StateStore, s), (const OptimizerStep *, step), (float *, param),    \
      (const float *, grad), (void *, m), (void *, v), (uint16_t *, copy))                                  \
    X(sgd, (int64_t, n), (Sgd, o), (StateStore, s), (const OptimizerStep *, step), (float *, param),        \
      (const float *, grad), (void *, momentum), (uint16_t *, copy))                                        \
    X(muon_momentum, (MatrixShape, shape), (Muon, o), (StateStore, s), (const OptimizerStep *, step),      \
      (const float *, grad), (void *, momentum), (float *, x))                                              \
    X(muon_normalise, (int64_t, n), (const GradStats *, squares), (float, slack), (float *, x))                  \
    X(newton_schulz, (int64_t, m), (float, a), (float, b), (float, c), (const float *, gram),                \
      (float *, square))                                                                                    \
    X(muon_apply, (MatrixShape, shape), (Muon, o), (const OptimizerStep *, step), (const float *, x),     \
      (float *, param), (uint16_t *, copy))                                                                 \
    X(average, (int64_t, n), (const OptimizerStep *, step), (const float *, param), (float *, mean))        \
    X(grad_stats, (int64_t, n), (const float *, g), (double, p), (const double *, unit),                    \
      (GradStats *, out))                                                                                   \
    X(fixed_add, (int64_t, n), (const float *, g), (int64_t *, acc), (bool, set), (double, limit),          \
      (FixedRefusals *, refused))                                                                           \
    X(fixed_to_float, (int64_t, n), (const int64_t *, acc), (float *, out))                                 \
    X(cast, (int64_t, n), (const void *, in), (Dtype, in_type), (void *, out), (Dtype, out_type))           \
    X(zero, (void *, p), (size_t, bytes))                                                                   \
    X(init_normal, (int64_t, n), (uint64_t, key), (uint64_t, first), (double, mean), (double, std),         \
      (double, lo), (double, hi), (float *, out))                                                           \
    X(fill, (int64_t, n), (float, value), (float *, out))                                                   \
    X(copy, (void *, to), (const void *, from), (size_t, bytes))                                            \
    X(copy_rows, (int64_t, rows), (size_t, bytes), (void *, to), (size_t, to_stride), (const void *, from), \
      (size_t, from_stride))
/* clang-format on */

PLAIN_OPS(ARGUMENTS_OF)

#endif

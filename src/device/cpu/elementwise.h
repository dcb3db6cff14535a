/* Kernels that treat each element by itself: add, cast, bias, SwiGLU; and sums over rows of a kind as simple.
 * Part of kernels_all.h. */

INLINE void add_typed(int64_t n, const void *a, const void *b, void *out, Dtype c) {
    EACH_VECTOR(i, left, n) put(out, i, left, c, get(a, i, left, c) + get(b, i, left, c));
}
static void add(int64_t n, const void *a, const void *b, void *out, Dtype c) {
    BY_DTYPE(c, add_typed, n, a, b, out);
}

static void cast(int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type) {
    if (in_type == out_type)
        memcpy(out, in, (size_t)n * dtype_bytes(in_type));
    else if (in_type == DTYPE_F32)
        EACH_VECTOR(i, left, n) put(out, i, left, DTYPE_BF16, get(in, i, left, DTYPE_F32));
    else
        EACH_VECTOR(i, left, n) put(out, i, left, DTYPE_F32, get(in, i, left, DTYPE_BF16));
}

INLINE void bias_forward_typed(int64_t rows, int64_t n, void *y, const float *bias, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        void *row = tensor_to(y, r * n, c);
        EACH_VECTOR(i, left, n) put(row, i, left, c, get(row, i, left, c) + get(bias, i, left, DTYPE_F32));
    }
}
static void bias_forward(int64_t rows, int64_t n, void *y, const float *bias, Dtype c) {
    BY_DTYPE(c, bias_forward_typed, rows, n, y, bias);
}

INLINE void bias_backward_typed(int64_t rows, int64_t n, const void *dy, float *db, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *row = tensor_at(dy, r * n, c);
        EACH_VECTOR(i, left, n)
        put(db, i, left, DTYPE_F32, get(db, i, left, DTYPE_F32) + get(row, i, left, c));
    }
}
static void bias_backward(int64_t rows, int64_t n, const void *dy, float *db, Dtype c) {
    BY_DTYPE(c, bias_backward_typed, rows, n, dy, db);
}

INLINE void embed_backward_typed(int64_t tokens, int64_t hidden, int64_t first, int64_t count,
                                 const int32_t *ids, const void *dout, float *dtable, Dtype c) {
    for (int64_t t = 0; t < tokens; t++) {
        const void *from = tensor_at(dout, t * hidden + first, c);
        float *to = dtable + ids[t] * hidden + first;
        EACH_VECTOR(i, left, count)
        put(to, i, left, DTYPE_F32, get(to, i, left, DTYPE_F32) + get(from, i, left, c));
    }
}
static void embed_backward(int64_t tokens, int64_t hidden, int64_t first, int64_t count, const int32_t *ids,
                           const void *dout, float *dtable, Dtype c) {
    BY_DTYPE(c, embed_backward_typed, tokens, hidden, first, count, ids, dout, dtable);
}

INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + vec_exp(-x)); }

INLINE void swiglu_forward_typed(int64_t rows, int64_t inter, const void *gate_up, void *act, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *gate = tensor_at(gate_up, r * 2 * inter, c), *up = tensor_at(gate, inter, c);
        void *to = tensor_to(act, r * inter, c);
        EACH_VECTOR(i, left, inter) {
            Vec g = get(gate, i, left, c);
            put(to, i, left, c, g * sigmoid(g) * get(up, i, left, c));
        }
    }
}
static void swiglu_forward(int64_t rows, int64_t inter, const void *gate_up, void *act, Dtype c) {
    BY_DTYPE(c, swiglu_forward_typed, rows, inter, gate_up, act);
}

INLINE void swiglu_backward_typed(int64_t rows, int64_t inter, const void *gate_up, const void *dact,
                                  void *dgate_up, void *act, Dtype c) {
    for (int64_t r = 0; r < rows; r++) {
        const void *gate = tensor_at(gate_up, r * 2 * inter, c), *up = tensor_at(gate, inter, c);
        const void *from = tensor_at(dact, r * inter, c);
        void *dgate = tensor_to(dgate_up, r * 2 * inter, c), *dup = tensor_to(dgate, inter, c),
             *to = tensor_to(act, r * inter, c);
        EACH_VECTOR(i, left, inter) {
            Vec g = get(gate, i, left, c), u = get(up, i, left, c), grad = get(from, i, left, c);
            Vec s = sigmoid(g), silu = g * s;
            put(dgate, i, left, c, grad * u * (s + silu * (1.0f - s)));
            put(dup, i, left, c, grad * silu);
            put(to, i, left, c, silu * u);
        }
    }
}
static void swiglu_backward(int64_t rows, int64_t inter, const void *gate_up, const void *dact,
                            void *dgate_up, void *act, Dtype c) {
    BY_DTYPE(c, swiglu_backward_typed, rows, inter, gate_up, dact, dgate_up, act);
}

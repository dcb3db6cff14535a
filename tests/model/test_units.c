/* Checks against recorded values what runs and checkpoints rely on: bytes of activations, the offset of each
 * parameter in its unit's flat buffer, and its initial value. A difference here breaks plans or files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <inttypes.h>

#include "base/hash.h"
#include "base/text.h"
#include "model/unit.h"

static const struct Shape {
    ModelConfig config;
    int64_t tokens, loss_rows;
    uint64_t table; /* hash of names, shapes, offsets and initialisers */
} shapes[] = {
    {{.vocab_size = 61,
      .hidden_size = 20,
      .intermediate_size = 28,
      .num_hidden_layers = 2,
      .num_attention_heads = 4,
      .num_key_value_heads = 2,
      .head_dim = 6,
      .attention_bias = true,
      .mlp_bias = true},
     48,
     20,
     0xc212286440e78c28},
    {{.vocab_size = 33,
      .hidden_size = 12,
      .intermediate_size = 21,
      .num_hidden_layers = 3,
      .num_attention_heads = 3,
      .num_key_value_heads = 1,
      .head_dim = 6,
      .tie_word_embeddings = true},
     50,
     0,
     0x5696f8f8d3b88b7c},
    {{.vocab_size = 32000,
      .hidden_size = 768,
      .intermediate_size = 2048,
      .num_hidden_layers = 12,
      .num_attention_heads = 12,
      .num_key_value_heads = 12,
      .head_dim = 64},
     2048,
     0,
     0x386f6796ead3554b},
    {{.vocab_size = 128256,
      .hidden_size = 4096,
      .intermediate_size = 14336,
      .num_hidden_layers = 32,
      .num_attention_heads = 32,
      .num_key_value_heads = 8,
      .head_dim = 128},
     8192,
     0,
     0x2d4f40f38e5f01f7},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Bytes for one microbatch: a block's saved activations and wgrad stash, the head's saved activations, and
 * the memory that all units share. */
static const struct Bytes {
    int shape;
    Dtype compute;
    Recompute recompute;
    size_t saved, stash, head_saved, scratch;
} recorded[] = {
    {0, DTYPE_F32, RECOMPUTE_NONE, 41088, 33024, 7872, 8768},
    {0, DTYPE_F32, RECOMPUTE_SELECTIVE, 22656, 40704, 7872, 19200},
    {0, DTYPE_F32, RECOMPUTE_FULL, 3840, 45312, 7872, 33408},
    {0, DTYPE_BF16, RECOMPUTE_NONE, 21120, 16512, 4032, 9344},
    {0, DTYPE_BF16, RECOMPUTE_SELECTIVE, 11904, 20352, 4032, 9600},
    {0, DTYPE_BF16, RECOMPUTE_FULL, 1920, 22656, 4032, 17280},
    {1, DTYPE_F32, RECOMPUTE_NONE, 28992, 23552, 5120, 9088},
    {1, DTYPE_F32, RECOMPUTE_SELECTIVE, 15680, 28416, 5120, 14528},
    {1, DTYPE_F32, RECOMPUTE_FULL, 2432, 32064, 5120, 24128},
    {1, DTYPE_BF16, RECOMPUTE_NONE, 15104, 11776, 2688, 11200},
    {1, DTYPE_BF16, RECOMPUTE_SELECTIVE, 8448, 14208, 2688, 11200},
    {1, DTYPE_BF16, RECOMPUTE_FULL, 1216, 16064, 2688, 12672},
    {2, DTYPE_F32, RECOMPUTE_NONE, 84000768, 81788928, 12591104, 71827456},
    {2, DTYPE_F32, RECOMPUTE_SELECTIVE, 37863424, 94371840, 12591104, 71827456},
    {2, DTYPE_F32, RECOMPUTE_FULL, 6291456, 100663296, 12591104, 71827456},
    {2, DTYPE_BF16, RECOMPUTE_NONE, 42057728, 40894464, 6299648, 101449728},
    {2, DTYPE_BF16, RECOMPUTE_SELECTIVE, 18989056, 47185920, 6299648, 101449728},
    {2, DTYPE_BF16, RECOMPUTE_FULL, 3145728, 50331648, 6299648, 101449728},
    {3, DTYPE_F32, RECOMPUTE_NONE, 1813053440, 1879048192, 268468224, 268435456},
    {3, DTYPE_F32, RECOMPUTE_SELECTIVE, 605093888, 2147483648, 268468224, 1207959552},
    {3, DTYPE_F32, RECOMPUTE_FULL, 134217728, 2281701376, 268468224, 1544617984},
    {3, DTYPE_BF16, RECOMPUTE_NONE, 907083776, 939524096, 134250496, 165609472},
    {3, DTYPE_BF16, RECOMPUTE_SELECTIVE, 303104000, 1073741824, 134250496, 603979776},
    {3, DTYPE_BF16, RECOMPUTE_FULL, 67108864, 1140850688, 134250496, 772866048},
};

static Model build(int shape, Dtype compute, Recompute recompute) {
    Model m;
    Error err = {0};
    const struct Shape *s = &shapes[shape];
    if (model_build(&m, &s->config, compute, recompute, s->tokens, s->loss_rows, &err) != OK)
        fail_msg("%s", err.message);
    return m;
}

static void sizes_are_those_recorded(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        const struct Bytes *b = &recorded[i];
        Model m = build(b->shape, b->compute, b->recompute);
        int head = m.table.units - 1;
        for (int u = 1; u < head; u++) {
            assert_int_equal(unit_saved_bytes(&m, u), b->saved);
            assert_int_equal(unit_stash_bytes(&m, u), b->stash);
        }
        assert_int_equal(unit_saved_bytes(&m, 0) + unit_stash_bytes(&m, 0) + unit_stash_bytes(&m, head), 0);
        assert_int_equal(unit_saved_bytes(&m, head), b->head_saved);
        assert_int_equal(model_stash_bytes(&m), b->stash);
        assert_int_equal(model_scratch_bytes(&m), b->scratch);
        model_free(&m);
    }
}

/* One line per parameter: name, shape, offset, and its initial values by each initialiser. */
static void describe_table(const Model *m, Text *out) {
    for (int i = 0; i < m->table.count; i++) {
        const Param *p = &m->table.params[i];
        text_printf(out, "%s %d %" PRId64 " %" PRId64 " %zu", p->name, p->unit, p->rows, p->cols,
                    p->offset + (p->cols ? m->table.flats[p->unit][FLAT_VECTORS] : 0));
        for (int kind = INIT_NORMAL; kind <= INIT_LINGUA; kind++) {
            InitRule r = param_init_rule(p, &m->config, (InitKind)kind, 0.03);
            text_printf(out, " %.17g %.17g %.17g %.17g", r.value, r.std, r.lo, r.hi);
        }
        text_puts(out, "\n");
    }
    for (int u = 0; u < m->table.units; u++)
        text_printf(out, "%zu %zu\n", m->table.flats[u][FLAT_VECTORS], param_unit_size(&m->table, u));
}

static void tables_are_those_recorded(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES; s++) {
        Model m = build(s, DTYPE_F32, RECOMPUTE_NONE);
        Text text = {0};
        describe_table(&m, &text);
        if (hash64(text.data, text.length) != shapes[s].table)
            fail_msg("shape %d: 0x%" PRIx64 "\n%s", s, hash64(text.data, text.length), text.data);
        text_free(&text);
        model_free(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_are_those_recorded),
                                       cmocka_unit_test(tables_are_those_recorded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

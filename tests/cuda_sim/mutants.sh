#!/bin/bash
# Proves that the checks of GPU kernels that run without a GPU can fail: each mutant of the plugin's sources must fail a test. Most of the
# time goes into compiling.
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$0")/plugin.sh"

# passes_over PLUGIN WORD...: the test passes with this plugin. unchanged WORD...: with the plugin as it is; each test is run once.
passes_over() { WEFT_CUDA=$1 "${@:2}" >log 2>&1 || fail "${*:2} fails without a mutant: $(tail -5 log)"; }
declare -A passed
unchanged() { [ -n "${passed[$*]:-}" ] || { passed[$*]=1 && passes_over "$CUDA_SIM" "$@"; }; }
# mutant NAME FILE SED WORD...: with FILE changed by SED, the test WORD... must fail, which passes without the change.
mutant() {
    local name=$1
    mine || return 0
    build "${@:1:3}" || return
    shift 3
    unchanged "$@"
    ! WEFT_CUDA=$PWD/mutant.so "$@" >log 2>&1 || fail "$name is not found by $*"
}

# Compiling and linking a file here must not by itself make the test fail: with only a comment added, it passes.
for file in norms.cu attention_mma.cu backend.c; do
    build "a comment" $file '$s|$| /* the same */|' && passes_over "$PWD/mutant.so" $(op test_bias)
done
mutant "a barrier less in sums over tokens" columns.cuh@norms.cu '/void fold_rows/{n;d}' $(op test_bias)
mutant "a split of a row left out" norms.cu 's/i < l\.count; i\+\+/i + 1 < l.count; i++/' $(op test_qk_norm)
mutant "a barrier less in attention" attention.cu '/tile, a\.r\.keys, v\);/{n;d}' $(op test_attention)
mutant "a mask that forgets the window" attention.cu 's/ \&\& key >= lowest\[r\]//' $(op test_attention)
attention() { mutant "$1" attention_mma.cu "$2" $(op test_attention); }
rows() { mutant "$1" attention_rows.cuh@attention_mma.cu "$2" $(op test_attention); }
attention "a barrier less before a step" '0,/copies_wait\(\);/{/copies_wait\(\);/{n;d}}'
attention "a step that is not waited for" '0,/copies_wait\(\);/s/copies_wait\(\);//'
attention "a step fetched over the one before" 's/key \+ STEP - v\.start\) \/ STEP/key - v.start) \/ STEP/'
attention "a fragment that is not transposed" 's/load_matrices_transposed\(/load_matrices(/'
attention "halves of a right operand exchanged" 's/lane\(\) \/ 16 \* 8 \+ lane\(\) % 8\)(.*)lane\(\) \/ 8 % 2 \* 8/lane() \/ 8 % 2 * 8 + lane() % 8)\1lane() \/ 16 * 8/'
rows "halves of a left operand exchanged" 's/n % 2 \* 2 \+ r\]/n % 2 + 2 * r]/'
attention "a last key that is left out" 's/bool there = at \+ r < end/bool there = at + r + 1 < end/'
rows "a mask that forgets a query's own key" 's/column <= last\[r\]/column < last[r]/'
rows "steps taken for seen in front of a document" 's/return key >= v\.full \&\& /return /'
rows "a last step of queries that is left out" 's/(end = steps_that_see\(.*\));/\1 - 1;/'
rows "a scale that is forgotten in gradients" 's/dk\.scale\(a\.scale, a\.scale\);//'
rows "a sink that each lane of a row counts" 's/ \&\& lane_column\(\) == 0 \? 1/ ? 1/'
attention "rows that do not begin at multiples of 16 bytes" 's/PITCH = D \+ 8/PITCH = D + 4/'
says "an access that does not begin at a multiple of its size"
attention "a lane that does not come to a product" 's/(multiply_matrices\(sums\.of\[n\],.*;)/if (lane() < 31) \1/'
says "lanes of its warp meet for different things"
attention "copies that nobody waits for" 's/copies_wait\(\); \/\* where.*//'
says "it ends before its copies have been waited for"
# Tests one head size that wgmma handles (otherwise those come last): 64, or 128 where a second panel is needed.
group() { mutant "$1" attention_wgmma.cu "$2" env TEST_HEAD=${3:-64} $(op test_attention); }
panels() { mutant "$1" wgmma.cuh@attention_wgmma.cu "$2" env TEST_HEAD=${3:-64} $(op test_attention); }
group "a barrier less before a step of four warps" '/copies_shown\(\);/{n;d}'
group "copies that are not shown to products" 's/copies_shown\(\);//'
says "a product that may read copies which were not shown to it"
group "scores that are not waited for" 's/wait_for<1>\(s\)/wait_for<2>(s)/'
group "products that nobody waits for" 's/^    wait_for<0>\((o|dq)\);//'
says "it ends before its products have been waited for"
group "a product that was not begun" 's/group_begin\(\);//'
says "a product that no group_begin() is in front of"
group "keys fetched over those that are read" 's/k \+ step % 3/k + step % 2/'
group "values of another step" 's/v \+ \(step - 1\) % 2/v + step % 2/'
group "weights by rows in place of columns" 's/group_multiply<true>/group_multiply<false>/'
group "results that are not shrunk" 's/shrink_results\(o, shrink\);//'
panels "packs that are not swizzled" 's/\(i % 8 \^ r % 8\)/i % 8/'
panels "a second panel that is the first" 's/column \/ PANEL \* m\.rows \* PANEL \+ //' 128
mutant "a token's id looked for close by alone" embedding.cu 's/end -= STEP/end = 0/' $(op test_embed)
mutant "tokens of the next words left out" embedding.cu 's/m\.words &= m\.words - 1/m.words = 0/' $(op test_embed)
mutant "tokens fetched that are not added" embedding.cu 's/a < AHEAD; a\+\+\)$/a + 1 < AHEAD; a++)/' $(op test_embed)
mutant "a NaN that keeps its bits" optimizers.cu 's/return 0x7fc0;/return (uint16_t)(u >> 16 | 0x40);/' $(op test_state_ends)
mutant "a tail of one less" packs.cuh@elements.cu 's/if \(first \+ i < end\) give/if (first + i + 1 < end) give/' $(op test_elements)
mutant "a tail whose last element is not read" packs.cuh@elements.cu 's/if \(first \+ i < end\) take/if (first + i + 1 < end) take/' $(op test_elements)
mutant "a pack taken at once wherever it lies" packs.cuh@elements.cu 's/ \&\& \(uintptr_t\).*== 0;/;/' $(op test_odd_offsets)
says "an access that does not begin at a multiple of its size"
mutant "zeros behind a row that count" norms.cu 's/first \+ i < n \? get\(here, i\) - mean : 0/get(here, i) - mean/' $(op test_norm)
mutant "a tile of rows that is fetched for another" norms.cu 's/int64_t next = row \+ step/int64_t next = row/' $(op test_norm)
mutant "sums of rows that end with a tile" norms.cu 's/if \(top \+ step < end\) continue;//' $(op test_norm)
mutant "zeros behind a split that count" loss.cu 's/if \(at \+ i < n\) sum/sum/' $(op test_cross_entropy)
mutant "logits behind the end that count" loss.cu 's/put\(g\.pack\[k\], i, -INFINITY\)/put(g.pack[k], i, 0)/' $(op test_cross_entropy)
mutant "exponentials that are not kept" loss.cu 's/smem\[k \* BLOCK \+ \(int\)threadIdx\.x\] = here;//' $(op test_cross_entropy)
mutant "figures of what a window does not reach" gradients.cu 's/left = left \|\| .*/left = false;/' $(op test_stats)
mutant "shared memory that is not written" loss.cu 's/if \(threadIdx.x == 0\) made/if (threadIdx.x == BLOCK) made/' $(op test_cross_entropy)
mutant "an up that is not clamped below" elements.cu 's/u < -CLAMPED_LIMIT \? -CLAMPED_LIMIT : u/u/' $(op test_activation)
mutant "a gate and its up exchanged" elements.cu 's/clamped\(get\(pairs, 2 \* i\), get\(pairs, 2 \* i \+ 1\)\)/clamped(get(pairs, 2 * i + 1), get(pairs, 2 * i))/' $(op test_activation)
mutant "a slope where a gate is clamped" elements.cu 's/gate > CLAMPED_LIMIT \? 0 : //' $(op test_activation)
mutant "a row taken for one of the expert before" experts.cu 's/e\.first\[middle \+ 1\] > row/e.first[middle + 1] >= row/' $(op test_experts_rows)
mutant "an expert's last row left out" experts.cu 's/row < end \&\& column < n/row + 1 < end \&\& column < n/' $(op test_experts_rows)
mutant "weights left out of a bias's gradient" experts.cu 's/weighed \? weight_of_row\(s, r, row, e\) : 1/1/' $(op test_experts_rows)
mutant "experts chosen by sigmoids that are all 1" experts.cu 's/bool first = s\.sigmoid .*/bool first = s.sigmoid;/' $(op test_full_route)
mutant "a row permuted by the weight of another assignment" experts.cu 's/o\.r\.row\[at\.row\] \* hidden/at.row * hidden/' $(op test_experts_rows)
mutant "ups left out of the gradient of a weight" experts.cu 's/first < row \+ o\.runs \* n; first \+= n/first < row + n; first += n/' $(op test_experts_rows)
mutant "chunks from the first token of a sequence on" attention.cu 's/\(t - first_key\[t\]\) % chunk/t % chunk/' $(op test_attention)
mutant "gradients that know of no chunks" attention.cu 's/firsts_of\(d, OP_ATTENTION_BACKWARD, .*;/o->first_key;/' $(op test_attention)
mutant "a cache that is seen whole" attention.cuh@attention.cu 's/s\.chunk > 0 \? position - position % s\.chunk : //' $(op test_decode)
mutant "splits of a weight that are all the first" experts.cu 's/row \+ l \* split_size; first/row; first/' $(op test_experts_rows)
mutant "neighbours that are rotated by another pair's angle" elements.cu 's/int64_t pair = \(at\.column \+ i\) \/ 2;/int64_t pair = at.column \/ 2;/' $(op test_rope)
mutant "queries scaled by their index, not their position" elements.cu 's/factors\[positions\[at\.row\]\]/factors[at.row]/' $(op test_queries_scale)
mutant "weights that are not there, and are zero" norms.cu 's/put\(weights, i, 1\)/put(weights, i, 0)/' $(op test_qk_norm)
mutant "a convolution over the end of a document" scans.cu 's/larger\(first_key\[t\], reach\)/larger(0, reach)/' $(op test_conv)
mutant "a tail of a token less" scans.cu 's/k < s\.taps - 1; k\+\+\)/k + 1 < s.taps - 1; k++)/' $(op test_conv)
mutant "tokens of the next chunk that count twice" scans.cu 's/if \(counts\) sum/sum/' $(op test_conv)
mutant "a chunk that does not see the one before" scans.cu 's/u < 0 \? 0 : load/true ? 0 : load/' $(op test_conv)
mutant "a chunk whose last tokens are seen by none" scans.cu 's/t < end \+ TAPS - 1; t\+\+/t < end + TAPS - 1 \&\& t <= end; t++/' $(op test_conv)
mutant "a state that goes on into the next document" scans.cu 's/begins\[i\] \? 0 : now/now/' $(op test_scan)
mutant "a gradient that goes back into the document before" scans.cu 's/v\.begins \? 0 : g \*/g */' $(op test_scan)
mutant "a run that ends before its last document" scans.cuh@scans.cu 's/beginning\(first_key, tokens, next\)\}/next}/' $(op test_scan)
mutant "a last run that is not summed" scans.cu 's/run < runs; run\+\+/run + 1 < runs; run++/' $(op test_scan)
mutant "a state that is kept into the next document" mamba.cu 's/begins_at\(first_key, t\) \? 0 : expf/expf/' $(op test_mamba)
mutant "a scan chunk that does not save its states" mamba.cu 's/t % MAMBA_CHUNK == 0 \&\& t < s\.tokens/t % MAMBA_CHUNK == 1/' $(op test_mamba)
mutant "what a scan chunk hands on left out" mamba.cu 's/if \(!r\.last\) take_lanes/if (false) take_lanes/' $(op test_mamba)
mutant "a column that forgets what is handed on" mamba.cu 's/if \(!r\.last\) later/if (false) later/' $(op test_mamba)
mutant "rows behind the first that count alone" mamba.cu 's/more \? \*to \+ mine : mine/mine/' $(op test_mamba)
mutant "numbers behind a row of states that count" mamba.cu 's/lane\(\) \+ k \* WARP < n \? load\(p, lane\(\) \+ k \* WARP\) : 0/load(p, lane() + k * WARP < n ? lane() + k * WARP : 0)/' $(op test_mamba)
mutant "a gate's slope left out of a norm" mamba.cu 's/g\.x \* silu_slope\(g\.gate, g\.sigmoid\)/g.x * g.sigmoid/' $(op test_gated_norm)
mutant "another run's norm" mamba.cu 's/\(column \+ i\) \/ s\.run/column \/ s.run/' $(op test_gated_norm)
mutant "a rounding to zero" gradients.cu 's/__double2ll_rn\(/(long long)(/' $(op test_fixed)
mutant "infinities that are not counted" gradients.cu 's/fabsf\(get\(x, i\)\) < INFINITY/fabsf(get(x, i)) <= INFINITY/' $(op test_count_nonfinite)
mutant "an element behind the end of a split" split_k.cu 's/k < count/k <= count/' $(op test_gemm_op)
mutant "rows of a slice taken for rows of a matrix" optimizers.cu 's/begin = at\.row \* o\.shape\.row/begin = at.row * o.shape.cols/' $(op test_muon)
mutant "a transpose flipped" products.c 's/second = s->trans_a \?/second = s->trans_b ?/' $(op test_gemm_op)
mutant "an algorithm that failed, taken" products.c 's/if \(found\[i\]\.state .*continue;//' env WEFT_SIM_PRODUCTS=state $(op test_gemm_op)
mutant "a split-K algorithm that is not tried" products.c 's/!splits_k\(\&plan->algorithm\) \|\| //;s/if \(adds_all\(p, plan, w\)\) //' env WEFT_SIM_PRODUCTS=drops $(op test_gemm_op)
mutant "a trial whose result is not compared" products.c 's/right \&\& memcmp\(.*;/right;/' env WEFT_SIM_PRODUCTS=drops $(op test_gemm_op)
mutant "an event for the GPU of the thread's last call" backend.c '/^static Event mark/,/^}/s/choose_gpu/backend_of/' env TEST_KIND=cuda "$tests/test_queue"
mutant "a wait for an event less" backend.c 's/must\(d, "when a stream was to wait", .*/(void)b;/' env TEST_KIND=cuda "$tests/test_queue"
mutant "pinned memory used again too early" backend.c 's/must\(d, "in an upload", cudaEventSynchronize.*//' env TEST_KIND=cuda "$tests/test_queue"
mutant "an op whose end has no time" times.c 's/return cudaEventRecord\(p->ended, s\);/return cudaSuccess;/' env TEST_KIND=cuda "$tests/test_queue"
mutant "a stamp that goes on with the series before" times.c 's/\/ 1e3 : 0;/\/ 1e3 : t->at;/' env TEST_KIND=cuda "$tests/test_queue"
mutant "a grid that is not looked at" backend.c 's/if \(x > MOST_X \|\| y > MOST_Y\)/if (!d)/' env WEFT_SIM_DRY=1 $(op test_grids)
says "GPU 0 failed in add(n "
says "): invalid configuration argument" # the simulation refuses it, as a driver would

# The address sanitizer finds accesses outside tensors and shared memory. Here only the changed file is compiled with it (.ci/run's build
# with sanitizers has it everywhere). sanitized WORD...: runs a test with mutant.so.
sanitizer=$("$SIM_CXX" -print-file-name=libasan.so)
preload=$sanitizer
[ -z "$SIM_SANITIZE" ] || preload= # the program is already linked to it
sanitized() { LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 WEFT_CUDA=$PWD/mutant.so "$@" >log 2>&1; }
# outside NAME FILE SED TEST: with FILE changed by SED, the sanitizer must find an out-of-bounds access.
outside() {
    mine || return 0
    build "${@:1:3}" -fsanitize=address -g1 || return
    ! sanitized $(op "$4") || fail "$1 is not found by the address sanitizer in $4"
    has log "ERROR: AddressSanitizer: heap-buffer-overflow"
}
if [ -e "$sanitizer" ]; then
    build "a comment" elements.cu '$s|$| /* the same */|' -fsanitize=address -g1 && sanitized $(op test_elements) ||
        fail "the address sanitizer finds something in test_elements: $(grep -A5 ERROR log)"
    if [ -z "$SIM_SANITIZE" ] && build "a tail that is read too far" packs.cuh@elements.cu 's/first \+ i < end\) take/first + i <= end) take/'; then
        passes_over "$PWD/mutant.so" $(op test_elements) # only the sanitizer finds it
    fi
    outside "a tail that is read too far" packs.cuh@elements.cu 's/first \+ i < end\) take/first + i <= end) take/' test_elements
    outside "a pack that ends behind its tensor" packs.cuh@elements.cu 's/first \+ N <= end/first + N <= end + 1/' test_elements
    outside "shared memory of an element less" norms.cu 's/smem, COLUMN_SMEM<T>/smem, COLUMN_SMEM<T> - 1/' test_bias
else
    echo "the address sanitizer's library is not here: what it finds is not tried"
fi
conclude "every mutant${PART:+ of part $PART} is found"

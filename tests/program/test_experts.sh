#!/bin/bash
# ranks: 4
# Models with experts: one curve on every mesh, with any number of threads and after a restart; checkpoint files with a matrix per expert, for
# resuming, evaluating and generating; expert parallelism (mesh.ep), also from a checkpoint of a rank that had all experts; context parallelism
# (mesh.cp), alone and with ep; experts sharded over mesh.tp; the figures of expert balance; refusals.
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<END
model: {family: qwen3_moe, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 3, num_attention_heads: 4, head_dim: 8, num_experts: 6,
  num_experts_per_tok: 2, moe_intermediate_size: 20, dense_period: 3, dense_layers: 2, norm_topk_prob: true, output_router_logits: true,
  router_aux_loss_coef: 0.01}
data: {sources: [{path: text.txt, split: paragraphs}], validation: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 6, context: 32, microbatch: 2, tokens_per_step: 512, compute: fp32, recompute: selective}
numerics: {mode: exact}
validation: {every: 6, samples: 4}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 3}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END

exits 0 train run.yaml run.dir=one || cat err
curve one >one.curve
[ "$(wc -l <one.curve)" -eq 6 ] || fail "no curve"
grep -q '"balance_loss": 0\.0[0-9]*' one/metrics.jsonl || fail "no balance loss: $(head -1 one/metrics.jsonl)"
grep -q '"expert_imbalance": [1-3]\.[0-9]*' one/metrics.jsonl || fail "no figure of imbalance: $(head -1 one/metrics.jsonl)"
grep -q '"dead_experts": 0' one/metrics.jsonl || fail "dead experts: $(head -1 one/metrics.jsonl)"
has err 'experts: '

exits 0 train run.yaml run.dir=threads run.threads=2
exits 0 train run.yaml run.dir=resumed train.steps=3 lr_schedule.total_steps=6
mesh 2 resumed mesh.dp_shard=2 mesh.ep=2
mesh 2 shard mesh.dp_shard=2
mesh 2 replicate mesh.dp_replicate=2 train.gradient_sync=microbatch train.recompute=full
mesh 4 both mesh.dp_shard=2 mesh.pp=2 pipeline.schedule=zbv
mesh 2 experts mesh.dp_shard=2 mesh.ep=2 train.ep_buffer_factor=1 train.gradient_sync=microbatch
# Dispatch traffic is counted separately; dp_shard sends what was planned for it.
grep -q '"sent_ep": [1-9]' experts/metrics.jsonl || fail "no visits are counted: $(head -1 experts/metrics.jsonl)"
grep -q '"sent_ep": 0,' one/metrics.jsonl || fail "visits on one rank: $(head -1 one/metrics.jsonl)"
mesh 4 all mesh.pp=2 mesh.dp_shard=2 mesh.ep=2 pipeline.schedule=zbv train.recompute=full
for run in threads resumed shard replicate both experts all; do
    curve $run | cmp -s - one.curve || fail "$run has another curve"
    [ "$(digest $run)" = "$(digest one)" ] || fail "$run has other weights"
done
# With cp, sequences begin on one rank and end on another; their balance is over the tokens of both.
exits 0 train run.yaml run.dir=spans numerics.cp_invariant_up_to=4
curve spans >spans.curve
mesh 2 contexts mesh.cp=2 mesh.cp_comm=all_to_all numerics.cp_invariant_up_to=4
mesh 4 keys mesh.cp=2 mesh.dp_shard=2 mesh.cp_comm=all_gather mesh.ep=2 numerics.cp_invariant_up_to=4 train.recompute=full
mesh 4 crossed mesh.cp=2 mesh.pp=2 mesh.ep=2 pipeline.schedule=zbv numerics.cp_invariant_up_to=4 train.ep_buffer_factor=1
for run in contexts keys crossed; do
    curve $run | cmp -s - spans.curve || fail "$run has another curve"
    [ "$(digest $run)" = "$(digest spans)" ] || fail "$run has other weights"
    for figure in balance_loss expert_imbalance; do
        [ "$(grep -o "\"$figure\": [0-9.e-]*" $run/metrics.jsonl)" = "$(grep -o "\"$figure\": [0-9.e-]*" spans/metrics.jsonl)" ] ||
            fail "$run has another $figure"
    done
done
# Experts sharded over tp have the bits of one rank with as many splits, also after a stop at another degree, and in fast numerics.
exits 0 train run.yaml run.dir=leaves numerics.tp_invariant_up_to=4 || cat err
curve leaves >leaves.curve
exits 0 train run.yaml run.dir=tensors_stop numerics.tp_invariant_up_to=4 train.steps=3 lr_schedule.total_steps=6
mesh 2 tensors_stop mesh.tp=2 numerics.tp_invariant_up_to=4 train.recompute=full
mesh 4 tensors4 mesh.tp=4 train.recompute=none
mesh 4 tensors_pipeline mesh.tp=2 mesh.pp=2 pipeline.schedule=zbv numerics.tp_invariant_up_to=4
mesh 4 tensors_shard mesh.tp=2 mesh.dp_shard=2 train.gradient_sync=microbatch numerics.tp_invariant_up_to=4 train.split_backward=true
for run in tensors_stop tensors4 tensors_pipeline tensors_shard; do
    curve $run | cmp -s - leaves.curve || fail "$run has another curve"
    [ "$(digest $run)" = "$(digest leaves)" ] || fail "$run has other weights"
    for figure in balance_loss expert_imbalance dead_experts; do
        [ "$(grep -o "\"$figure\": [0-9.e-]*" $run/metrics.jsonl)" = "$(grep -o "\"$figure\": [0-9.e-]*" leaves/metrics.jsonl)" ] ||
            fail "$run has another $figure"
    done
done
exits 0 train run.yaml run.dir=fast numerics.mode=fast train.compute=bf16 numerics.tp_invariant_up_to=2 train.steps=3
mesh 2 fast2 mesh.tp=2 numerics.mode=fast train.compute=bf16 train.steps=3 train.recompute=full
[ "$(curve fast2)" = "$(curve fast)" ] && [ "$(digest fast2)" = "$(digest fast)" ] || fail "fast numerics have other bits over tp"
# ep with tp: each rank has a slice of some experts. Combine returns the rows of each split, also in several dispatch chunks, over dp_shard and
# over cp, and after a stop.
mesh 2 both_leaves mesh.dp_shard=2 mesh.ep=2 numerics.tp_invariant_up_to=4 train.ep_buffer_factor=1
mesh 4 both_tp mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 numerics.tp_invariant_up_to=4 train.recompute=full train.ep_buffer_factor=1
mesh 4 both_halves mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 numerics.tp_invariant_up_to=4 train.split_backward=true
mesh 4 both_none mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 numerics.tp_invariant_up_to=4 train.recompute=none train.gradient_sync=microbatch
exits 0 train run.yaml run.dir=both_stop numerics.tp_invariant_up_to=4 train.steps=3 lr_schedule.total_steps=6
mesh 4 both_stop mesh.tp=2 mesh.dp_shard=2 mesh.ep=2
for run in both_leaves both_tp both_halves both_none both_stop; do
    [ "$(curve $run)" = "$(curve leaves)" ] && [ "$(digest $run)" = "$(digest leaves)" ] || fail "$run differs"
done
exits 0 train run.yaml run.dir=both_spans numerics.tp_invariant_up_to=2 numerics.cp_invariant_up_to=4
mesh 4 both_cp mesh.tp=2 mesh.cp=2 mesh.ep=2 mesh.cp_comm=all_gather numerics.cp_invariant_up_to=4 train.split_backward=true train.recompute=full
[ "$(curve both_cp)" = "$(curve both_spans)" ] && [ "$(digest both_cp)" = "$(digest both_spans)" ] || fail "both_cp differs"
fast='mesh.dp_shard=2 numerics.mode=fast train.compute=bf16 train.steps=3'
mesh 2 both_fast $fast numerics.tp_invariant_up_to=2
mesh 4 both_fast4 $fast mesh.tp=2 mesh.ep=2 train.recompute=full
[ "$(curve both_fast4)" = "$(curve both_fast)" ] && [ "$(digest both_fast4)" = "$(digest both_fast)" ] || fail "ep with tp has other bits in bf16"
# Whole experts with tp (mesh.etp): each rank of tp dispatches its own tokens, over groups of ep that span tp. One rank has the same bits if it
# does not split sums over an expert's width either. Alone over tp, with dp_shard inside ep or beside it, in pipelines, over cp, in dispatch chunks.
whole='model.num_experts=8 numerics.tp_invariant_up_to=2 numerics.etp_invariant_up_to=1 numerics.cp_invariant_up_to=4 train.steps=3 checkpoint.every=3'
exits 0 train run.yaml run.dir=whole $whole lr_schedule.total_steps=6 || cat err
exits 0 train run.yaml run.dir=whole_stop $whole train.steps=2 checkpoint.every=2 lr_schedule.total_steps=6
mesh 2 whole_stop $whole lr_schedule.total_steps=6 mesh.tp=2 mesh.ep=2 mesh.etp=1
mesh 2 whole_tp $whole lr_schedule.total_steps=6 mesh.tp=2 mesh.ep=2 mesh.etp=1 train.recompute=full
mesh 4 whole_shard $whole lr_schedule.total_steps=6 mesh.tp=2 mesh.dp_shard=2 mesh.ep=4 mesh.etp=1 train.ep_buffer_factor=1 train.split_backward=true
mesh 4 whole_piped $whole lr_schedule.total_steps=6 mesh.tp=2 mesh.pp=2 mesh.ep=2 mesh.etp=1 pipeline.schedule=zbv
mesh 4 whole_cp $whole lr_schedule.total_steps=6 mesh.tp=2 mesh.cp=2 mesh.ep=4 mesh.etp=1 mesh.cp_comm=all_gather train.recompute=none
for run in whole_stop whole_tp whole_shard whole_piped whole_cp; do
    [ "$(curve $run)" = "$(curve whole)" ] && [ "$(digest $run)" = "$(digest whole)" ] || fail "$run differs from one rank with whole experts"
done
[ "$(digest whole)" != "$(digest leaves)" ] || fail "whole experts change nothing"
# A run that began with mesh.etp 1 keeps its bits on one rank; one that began otherwise cannot take it up.
mesh 2 whole_begun model.num_experts=8 mesh.tp=2 mesh.ep=2 mesh.etp=1 numerics.cp_invariant_up_to=4 train.steps=2 lr_schedule.total_steps=6 checkpoint.every=2
exits 0 train run.yaml run.dir=whole_begun model.num_experts=8 train.steps=3 lr_schedule.total_steps=6 checkpoint.every=3
[ "$(curve whole_begun)" = "$(curve whole)" ] && [ "$(digest whole_begun)" = "$(digest whole)" ] || fail "a run that began with mesh.etp 1 differs"
exits 78 train run.yaml run.dir=both_stop -n 2 mesh.tp=2 mesh.ep=2 mesh.etp=1 train.steps=8
has err 'mesh.etp 1 cannot have the bits of numerics.etp_invariant_up_to 4, of which each rank of mesh.tp has a part of an expert: set mesh.etp to 2'
exits 78 train run.yaml run.dir=whole_begun -n 2 model.num_experts=8 mesh.tp=2 train.steps=4
has err 'mesh.etp 2 cannot have the bits of numerics.etp_invariant_up_to 1, of which experts are whole on each rank: set mesh.etp to 1 and mesh.ep to a multiple of mesh.tp'
exits 78 plan run.yaml -n 4 mesh.tp=4 mesh.ep=4 mesh.etp=2
has err 'mesh.etp 2 with mesh.tp 4: experts are whole, or cut over all ranks of tp: 1 or 4 would do'
exits 78 plan run.yaml -n 4 mesh.tp=2 mesh.ep=1 mesh.etp=1
has err 'mesh.ep 1 with mesh.etp 1 is laid over all ranks of mesh.tp 2 and is no multiple of it: set mesh.ep to 2, or leave out mesh.etp'
exits 78 plan run.yaml -n 6 mesh.tp=2 mesh.ep=4 mesh.etp=1
has err 'mesh.ep 4 is laid over mesh.dp_shard 3, in groups of mesh.tp 2 ranks times a power of two that divides it: 2 would do'
exits 78 plan run.yaml numerics.tp_invariant_up_to=4 numerics.etp_invariant_up_to=2
has err 'numerics.etp_invariant_up_to 2 is neither 1'
exits 0 plan run.yaml -n 4 model.num_experts=8 mesh.tp=2 mesh.ep=4 mesh.etp=1
has out 'mesh    4 ranks: dp_shard 2 ep 4 tp 2 etp 1'
# A third of the bytes of ep, with 2 ranks of tp: half of the rows go out, in bf16, and half as many come back, in bf16 where fp32 sums of splits did.
sent_ep() { grep -o '"sent_ep": [0-9]*' "$1/metrics.jsonl" | head -1 | grep -o '[0-9]*$'; }
small='model.num_experts=8 train.compute=bf16 train.steps=1 mesh.tp=2 mesh.dp_shard=2'
mesh 4 cut_bytes $small mesh.ep=2
mesh 4 whole_bytes $small mesh.ep=2 mesh.etp=1
[ "$(sent_ep whole_bytes)" -lt $(($(sent_ep cut_bytes) / 2)) ] || fail "whole experts send $(sent_ep whole_bytes) bytes, cut ones $(sent_ep cut_bytes)"
# Products of all source ranks' rows, and gradients that they sum: in one dispatch chunk, and in several.
for compute in fp32 bf16; do
    apart="model.num_experts=8 mesh.dp_shard=4 numerics.mode=fast train.gradient_sync=microbatch train.compute=$compute train.steps=3"
    mesh 4 apart_$compute $apart
    mesh 4 joined_$compute $apart mesh.ep=4 train.ep_buffer_factor=4
    mesh 4 chunks_$compute $apart mesh.ep=4 train.ep_buffer_factor=1
    for run in joined_$compute chunks_$compute; do
        [ "$(curve $run)" = "$(curve apart_$compute)" ] && [ "$(digest $run)" = "$(digest apart_$compute)" ] || fail "$run has other bits than without ep"
    done
done
exits 0 train run.yaml run.dir=free model.output_router_logits=false
curve free | cmp -s - one.curve && fail "the balance loss changes nothing"
grep -q '"balance_loss": null' free/metrics.jsonl || fail "a balance loss without one: $(head -1 free/metrics.jsonl)"

exits 0 report one
has one/report.html 'Tokens per expert'

last=one/checkpoints/step-00000006
exits 0 inspect $last
has out 'experts     6 of width 20 in 2 layers, 2 a token'
has out 'model.layers.2.mlp.experts.5.down_proj.weight'
has out 'model.layers.1.mlp.gate_proj.weight'
grep -q '"mlp_only_layers": \[ *$' $last/config.json && grep -q '"num_experts": 6' $last/config.json || fail "config.json: $(cat $last/config.json)"
exits 0 generate one --prompt abc --tokens 4 --temperature 0
exits 0 train run.yaml run.dir=from model.init=$last train.steps=1
exits 0 plan run.yaml
has out '6 experts of width 20 in 2 of the blocks, 2 a token'
exits 0 models mixtral
has out '8 experts of 14336, 2 a token'

# Mixtral's tensor names, without a balance loss, in bf16.
exits 0 train run.yaml run.dir=mixtral model.family=mixtral model.dense_period=0 model.dense_layers=0 model.moe_intermediate_size=0 \
    model.head_dim=8 model.output_router_logits=false train.steps=2 train.compute=bf16 checkpoint.every=2
exits 0 inspect mixtral/checkpoints/step-00000002
has out 'model.layers.2.block_sparse_moe.experts.5.w2.weight'

# gpt-oss: one tensor per layer for all experts, biases, attention sinks; with Muon, the same on a mesh as on one rank.
gpt='model.family=gpt_oss model.head_dim=8 model.intermediate_size=20 model.moe_intermediate_size=0 model.dense_period=0 model.dense_layers=0
  model.sliding_window=9 model.router_aux_loss_coef=0.01 optimizer.kind=muon train.steps=3'
exits 0 train run.yaml run.dir=gpt $gpt || cat err
mesh 4 gpt4 $gpt mesh.dp_shard=2 mesh.pp=2
curve gpt >gpt.curve
curve gpt4 | cmp -s - gpt.curve && [ "$(digest gpt4)" = "$(digest gpt)" ] || fail "gpt_oss differs on a mesh"
# Its experts and their biases over ep, and sequences with attention sinks over cp.
mesh 4 gpt_ep $gpt mesh.dp_shard=2 mesh.ep=2 mesh.pp=2 pipeline.schedule=zbv train.ep_buffer_factor=1
curve gpt_ep | cmp -s - gpt.curve && [ "$(digest gpt_ep)" = "$(digest gpt)" ] || fail "gpt_oss differs over ep"
exits 0 train run.yaml run.dir=gpt_spans $gpt numerics.cp_invariant_up_to=4
mesh 2 gpt_heads $gpt numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.cp_comm=all_to_all train.recompute=full
mesh 4 gpt_keys $gpt numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.dp_shard=2 mesh.cp_comm=all_gather mesh.ep=2
for run in gpt_heads gpt_keys; do
    [ "$(curve $run)" = "$(curve gpt_spans)" ] && [ "$(digest $run)" = "$(digest gpt_spans)" ] || fail "gpt_oss differs in $run"
done
# Every expert sharded over tp, and sinks by heads: the bits of one rank with as many splits, also with cp, after a stop, and in fast numerics.
cut="$gpt optimizer.kind=adamw numerics.tp_invariant_up_to=4 numerics.cp_invariant_up_to=2 checkpoint.every=2"
exits 0 train run.yaml run.dir=gpt_leaves $cut || cat err
mesh 4 gpt_tp $cut mesh.tp=4 train.steps=2 lr_schedule.total_steps=3 train.recompute=full
mesh 2 gpt_tp $cut mesh.tp=2 train.split_backward=true
mesh 4 gpt_tp_cp $cut mesh.tp=2 mesh.cp=2 mesh.cp_comm=all_to_all train.recompute=full
mesh 4 gpt_tp_shard $cut mesh.tp=2 mesh.dp_shard=2 train.recompute=none train.gradient_sync=microbatch
for run in gpt_tp gpt_tp_cp gpt_tp_shard; do
    [ "$(curve $run)" = "$(curve gpt_leaves)" ] && [ "$(digest $run)" = "$(digest gpt_leaves)" ] || fail "gpt_oss differs in $run"
done
fast="$gpt optimizer.kind=adamw numerics.mode=fast train.compute=bf16 model.num_key_value_heads=1"
exits 0 train run.yaml run.dir=gpt_fast $fast numerics.tp_invariant_up_to=2
mesh 2 gpt_fast2 $fast mesh.tp=2 train.recompute=full
[ "$(curve gpt_fast2)" = "$(curve gpt_fast)" ] && [ "$(digest gpt_fast2)" = "$(digest gpt_fast)" ] || fail "gpt_oss has other bits over tp in bf16"
mesh 4 gpt_both $cut mesh.tp=2 mesh.dp_shard=2 mesh.ep=2
[ "$(curve gpt_both)" = "$(curve gpt_leaves)" ] && [ "$(digest gpt_both)" = "$(digest gpt_leaves)" ] || fail "gpt_oss differs over ep with tp"
exits 0 inspect gpt/checkpoints/step-00000003
grep -q 'model.layers.2.mlp.experts.gate_up_proj  *F32  *\[6, 32, 40\]' out || fail "no stack: $(grep experts out)"
has out 'model.layers.0.self_attn.sinks'
exits 0 train run.yaml run.dir=gpt_from $gpt model.init=gpt/checkpoints/step-00000003
exits 0 generate gpt --prompt abc --tokens 4 --temperature 0

exits 78 plan run.yaml -n 2 $gpt model.num_experts=8 mesh.tp=2 mesh.ep=2 mesh.etp=1
has err 'mesh.etp 1: the family gpt_oss has biases of experts'

# Llama 4: weighted expert inputs and a shared expert, attention chunks that do not end with any rank's tokens, layers with and without RoPE,
# one of them with an MLP. The same as on one rank over pp and dp_shard with Muon, over cp with both methods, over tp and ep, with separate
# dgrad and wgrad, in bf16, and after a stop.
llama4='model.family=llama4_text model.output_router_logits=false model.router_aux_loss_coef=0 model.norm_topk_prob=false model.sliding_window=9
  model.window_period=2 model.window_layers=1 model.no_rope_period=2 model.no_rope_layers=2 model.floor_scale=5 model.attn_scale=0.3
  model.num_key_value_heads=4 train.steps=3 data.document_mask=true'
exits 0 train run.yaml run.dir=llama4 $llama4 optimizer.kind=muon || cat err
mesh 4 llama4_mesh $llama4 optimizer.kind=muon mesh.dp_shard=2 mesh.pp=2 pipeline.schedule=zbv train.recompute=full
[ "$(curve llama4_mesh)" = "$(curve llama4)" ] && [ "$(digest llama4_mesh)" = "$(digest llama4)" ] || fail "llama4_text differs on a mesh"
exits 0 train run.yaml run.dir=llama4_spans $llama4 numerics.cp_invariant_up_to=4
mesh 2 llama4_heads $llama4 numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.cp_comm=all_to_all train.recompute=full
mesh 4 llama4_keys $llama4 numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.dp_shard=2 mesh.cp_comm=all_gather mesh.ep=2
for run in llama4_heads llama4_keys; do
    [ "$(curve $run)" = "$(curve llama4_spans)" ] && [ "$(digest $run)" = "$(digest llama4_spans)" ] || fail "llama4_text differs in $run"
done
cut="$llama4 numerics.tp_invariant_up_to=4 numerics.cp_invariant_up_to=2"
exits 0 train run.yaml run.dir=llama4_leaves $cut checkpoint.every=2 || cat err
mesh 4 llama4_tp $cut mesh.tp=4 train.steps=2 lr_schedule.total_steps=3 train.recompute=full checkpoint.every=2
mesh 2 llama4_tp $cut mesh.tp=2 train.split_backward=true checkpoint.every=2
mesh 4 llama4_tp_cp $cut mesh.tp=2 mesh.cp=2 mesh.cp_comm=all_to_all train.recompute=none
mesh 4 llama4_both $cut mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 train.split_backward=true train.ep_buffer_factor=1
for run in llama4_tp llama4_tp_cp llama4_both; do
    [ "$(curve $run)" = "$(curve llama4_leaves)" ] && [ "$(digest $run)" = "$(digest llama4_leaves)" ] || fail "llama4_text differs in $run"
done
fast="$llama4 numerics.mode=fast train.compute=bf16 numerics.tp_invariant_up_to=2"
exits 0 train run.yaml run.dir=llama4_fast $fast
mesh 2 llama4_fast2 $fast mesh.tp=2 train.recompute=full
[ "$(curve llama4_fast2)" = "$(curve llama4_fast)" ] && [ "$(digest llama4_fast2)" = "$(digest llama4_fast)" ] ||
    fail "llama4_text has other bits over tp in bf16"
exits 0 inspect llama4/checkpoints/step-00000003
grep -q 'model.layers.2.feed_forward.experts.gate_up_proj  *F32  *\[6, 32, 40\]' out || fail "no stack: $(grep experts out)"
has out 'model.layers.0.feed_forward.shared_expert.up_proj.weight' 'model.layers.1.feed_forward.down_proj.weight'
exits 0 train run.yaml run.dir=llama4_from $llama4 model.init=llama4/checkpoints/step-00000003
exits 0 generate llama4 --prompt abc --tokens 24 --temperature 0
exits 78 plan run.yaml model.attn_scale=0.1
has err 'the family qwen3_moe has no key for another attn_scale than its own'

exits 78 train run.yaml run.dir=no model.num_experts_per_tok=7
has err 'num_experts_per_tok is 7, expected a number from 1 to 6'
exits 78 train run.yaml run.dir=no model.family=llama model.head_dim=8
has err 'model.num_experts is 6, but models of the family llama have no experts'
exits 78 train run.yaml run.dir=no model.dense_layers=0
has err 'model.dense_period is 3, but model.dense_layers names no layer of it'
exits 78 plan run.yaml -n 2 mesh.tp=2 model.moe_intermediate_size=15
has err 'mesh.tp 2 does not fit moe_intermediate_size 15: 1 would'
for recompute in none selective full; do
    for schedule in 1f1b zbv; do
        exits 0 plan run.yaml -n 8 mesh.tp=2 mesh.ep=2 mesh.pp=2 pipeline.schedule=$schedule train.recompute=$recompute
    done
done
exits 0 plan run.yaml -n 2 mesh.tp=2 --program
has out 'TP_ALL_REDUCE_DROUTER u1 m0 gradient of what router makes'
exits 78 plan run.yaml -n 4 mesh.ep=4
has err 'mesh.ep 4 does not divide num_experts 6: 1 or 2 would'
exits 78 plan run.yaml -n 2 mesh.ep=2 mesh.dp_replicate=2
has err 'mesh.ep 2 is laid over mesh.dp_shard 1'
exits 78 plan run.yaml -n 6 mesh.ep=2 mesh.cp=3
has err 'mesh.ep 2 is laid over mesh.dp_shard 2 x mesh.cp 3, in groups of a power of two that divides mesh.cp, or is a multiple of it: 1 would do'
exits 78 train run.yaml -n 2 run.dir=no mesh.ep=2 metrics.noise_scale=true
has err 'metrics.noise_scale: with mesh.ep 2'
exits 0 plan run.yaml -n 4 mesh.ep=2
has out 'dispatch over ep: where tokens go evenly'
exits 0 plan run.yaml -n 4 mesh.ep=2 --program
has out 'EP_DISPATCH u1 m0 FWD gate and up of experts, down of experts'
has out 'EP_DISPATCH u1 m0 BWD gate and up of experts, down of experts'
exits 0 plan run.yaml -n 2 mesh.cp=2 mesh.ep=2 --program
has out 'CP_ALL_REDUCE_EXPERT_COUNTS u1 m0 what router makes'
has out 'WAIT           u1 m0 CP_ALL_REDUCE_EXPERT_COUNTS what router makes'

# DeepSeek: latent attention (MLA), grouped sigmoid routing with a bias, shared experts, a dense first layer; the same on meshes as on one rank.
deepseek='model.family=deepseek_v3 model.head_dim=0 model.dense_period=0 model.dense_layers=0 model.output_router_logits=false
  model.router_aux_loss_coef=0 model.q_lora_rank=24 model.kv_lora_rank=16 model.qk_nope_head_dim=6 model.qk_rope_head_dim=4 model.v_head_dim=8
  model.n_group=3 model.topk_group=2 model.first_k_dense_replace=1 train.steps=3 lr_schedule.total_steps=6 train.router_bias_speed=0.01'
exits 0 train run.yaml run.dir=latent $deepseek || cat err
curve latent >latent.curve
mesh 4 latent4 $deepseek mesh.dp_shard=2 mesh.pp=2 pipeline.schedule=zbv train.recompute=full
curve latent4 | cmp -s - latent.curve && [ "$(digest latent4)" = "$(digest latent)" ] || fail "deepseek_v3 differs on a mesh"
exits 0 train run.yaml run.dir=latent_spans $deepseek numerics.cp_invariant_up_to=4
mesh 4 latent_cp $deepseek numerics.cp_invariant_up_to=4 mesh.dp_shard=2 mesh.cp=2 mesh.cp_comm=all_gather mesh.ep=2
[ "$(digest latent_cp)" = "$(digest latent_spans)" ] && [ "$(curve latent_cp)" = "$(curve latent_spans)" ] || fail "deepseek_v3 differs with cp"
# Its heads and all of its experts over tp: the bits of one rank with as many splits, with or without a query latent, in both families, with cp,
# in pipelines, with separate dgrad and wgrad, and after a stop at another degree.
more='model.n_shared_experts=2 numerics.tp_invariant_up_to=4'
exits 0 train run.yaml run.dir=latent_splits $deepseek $more
exits 0 train run.yaml run.dir=latent_stop $deepseek $more train.steps=1 lr_schedule.total_steps=6 checkpoint.every=1
mesh 2 latent_stop $deepseek $more mesh.tp=2 train.recompute=full checkpoint.every=1
mesh 4 latent_tp4 $deepseek $more mesh.tp=4 train.recompute=none
mesh 4 latent_piped $deepseek $more mesh.tp=2 mesh.pp=2 pipeline.schedule=zbv
mesh 4 latent_halves $deepseek $more mesh.tp=2 mesh.dp_shard=2 train.gradient_sync=microbatch train.split_backward=true train.recompute=full
# With ep as well: routed experts are distributed, the shared ones stay on every rank.
mesh 4 latent_visits $deepseek $more mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 train.ep_buffer_factor=1
mesh 4 latent_both $deepseek $more mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 train.split_backward=true train.recompute=full
exits 0 train run.yaml run.dir=latent_whole $deepseek $more model.num_experts=12 numerics.etp_invariant_up_to=1
mesh 4 latent_whole4 $deepseek $more model.num_experts=12 numerics.etp_invariant_up_to=1 mesh.tp=2 mesh.dp_shard=2 mesh.ep=4 mesh.etp=1 \
    train.split_backward=true train.recompute=full
[ "$(curve latent_whole4)" = "$(curve latent_whole)" ] && [ "$(digest latent_whole4)" = "$(digest latent_whole)" ] ||
    fail "deepseek_v3 differs with whole experts"
for run in latent_stop latent_tp4 latent_piped latent_halves latent_visits latent_both; do
    [ "$(curve $run)" = "$(curve latent_splits)" ] && [ "$(digest $run)" = "$(digest latent_splits)" ] || fail "deepseek_v3 differs in $run"
done
# Muon needs full matrices: those of heads and experts are updated on an owner rank, the latent projections on every rank.
muon='optimizer.kind=muon optimizer.nesterov=true'
exits 0 train run.yaml run.dir=latent_muon $deepseek $more $muon
mesh 2 latent_muon2 $deepseek $more $muon mesh.tp=2
mesh 4 latent_muon4 $deepseek $more $muon mesh.tp=2 mesh.dp_shard=2
mesh 4 latent_muon_ep $deepseek $more $muon mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 train.split_backward=true
for run in latent_muon2 latent_muon4 latent_muon_ep; do
    [ "$(curve $run)" = "$(curve latent_muon)" ] && [ "$(digest $run)" = "$(digest latent_muon)" ] || fail "deepseek_v3 differs in $run"
done
two='model.family=deepseek_v2 model.norm_topk_prob=false train.router_bias_speed=0 numerics.tp_invariant_up_to=2 numerics.cp_invariant_up_to=4'
for words in model.q_lora_rank=0 "$two" "numerics.mode=fast train.compute=bf16 numerics.tp_invariant_up_to=2"; do
    ways=(mesh.cp_comm=all_gather mesh.cp_comm=all_to_all)
    [[ $words = *cp_invariant_up_to* ]] || ways=(train.split_backward=true)
    rm -rf latent_one
    exits 0 train run.yaml run.dir=latent_one $deepseek numerics.tp_invariant_up_to=2 $words
    for way in "${ways[@]}"; do
        mesh=(2 latent_two mesh.tp=2)
        [[ $words != *cp_invariant_up_to* ]] || mesh=(4 latent_two mesh.tp=2 mesh.cp=2 mesh.ep=2)
        rm -rf latent_two
        mesh "${mesh[@]}" $deepseek numerics.tp_invariant_up_to=2 $words "$way"
        [ "$(curve latent_two)" = "$(curve latent_one)" ] && [ "$(digest latent_two)" = "$(digest latent_one)" ] ||
            fail "latent attention differs over tp with $words $way"
    done
done
exits 0 plan run.yaml -n 2 $deepseek mesh.tp=2 --program
has out 'TP_ALL_REDUCE_DLATENT u1 m0 gradient of what norms of latents makes' \
    'WAIT           u1 m0 TP_ALL_REDUCE_DLATENT gradient of what norms of latents makes'
# Adapters of latent projections, heads and shared experts, or of some of these: in pipelines, after a stop at another degree, with ep as well,
# and without a query latent in bf16.
adapters="${deepseek/train.router_bias_speed=0.01/} $more lora.rank=3 model.init=latent_splits/checkpoints/step-00000003"
exits 0 train run.yaml run.dir=adapted $adapters
exits 0 train run.yaml run.dir=adapted_stop $adapters train.steps=1 lr_schedule.total_steps=6 checkpoint.every=1
mesh 2 adapted_stop $adapters mesh.tp=2 checkpoint.every=1
mesh 4 adapted_tp4 $adapters mesh.tp=4 train.recompute=full
mesh 4 adapted_piped $adapters mesh.tp=2 mesh.pp=2 pipeline.schedule=zbv
mesh 4 adapted_visits $adapters mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 train.split_backward=true
for run in adapted_stop adapted_tp4 adapted_piped adapted_visits; do
    [ "$(curve $run)" = "$(curve adapted)" ] && [ "$(digest $run)" = "$(digest adapted)" ] || fail "adapters differ over tp in $run"
done
exits 0 train run.yaml run.dir=plain_base $deepseek model.n_shared_experts=2 model.q_lora_rank=0 train.steps=1
for words in 'lora.match=kv_b|kv_a|shared_experts.down' 'train.compute=bf16 numerics.mode=fast model.init=plain_base/checkpoints/latest'; do
    rm -rf adapted_one adapted_two
    own=$adapters
    [[ $words = lora.match* ]] || own="$own model.q_lora_rank=0"
    exits 0 train run.yaml run.dir=adapted_one $own $words
    mesh 4 adapted_two $own $words mesh.tp=4
    [ "$(curve adapted_two)" = "$(curve adapted_one)" ] && [ "$(digest adapted_two)" = "$(digest adapted_one)" ] || fail "adapters differ over tp with $words"
done
# With MTP heads.
exits 0 train run.yaml run.dir=latent_heads $deepseek numerics.tp_invariant_up_to=2 train.mtp_depth=2
mesh 4 latent_heads2 $deepseek mesh.tp=2 mesh.pp=2 numerics.tp_invariant_up_to=2 train.mtp_depth=2
mesh 4 latent_heads3 $deepseek mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 numerics.tp_invariant_up_to=2 train.mtp_depth=2 train.split_backward=true
for run in latent_heads2 latent_heads3; do
    [ "$(curve $run)" = "$(curve latent_heads)" ] && [ "$(digest $run)" = "$(digest latent_heads)" ] || fail "MTP heads differ over tp in $run"
done
mesh 2 latent_ep $deepseek mesh.dp_shard=2 mesh.ep=2
curve latent_ep | cmp -s - latent.curve && [ "$(digest latent_ep)" = "$(digest latent)" ] || fail "deepseek_v3 differs with ep"
# With ep, routed experts run their wgrad together with dgrad. The shared experts' wgrad runs later and needs the gradient of the output.
exits 0 train run.yaml run.dir=latent_shared $deepseek model.n_shared_experts=2
mesh 2 latent_apart $deepseek model.n_shared_experts=2 mesh.dp_shard=2 mesh.ep=2 train.split_backward=true
[ "$(curve latent_apart)" = "$(curve latent_shared)" ] && [ "$(digest latent_apart)" = "$(digest latent_shared)" ] ||
    fail "deepseek_v3 differs with ep and separate dgrad and wgrad"
exits 0 inspect latent/checkpoints/step-00000003
has out 'model.layers.1.mlp.gate.e_score_correction_bias' 'model.layers.1.mlp.shared_experts.up_proj.weight' \
    'model.layers.0.self_attn.kv_a_proj_with_mqa.weight'
grep -q 'layers.1.mlp.gate.e_score_correction_bias  *F32  *\[6\]  *0\.0[1-7][0-9]*  *0\.0[123]' out || fail "the bias has not moved: $(grep correction out)"
exits 0 train run.yaml run.dir=latent_all $deepseek train.steps=6
mesh 2 latent $deepseek mesh.dp_shard=2 mesh.ep=2 train.steps=6
[ "$(digest latent)" = "$(digest latent_all)" ] || fail "deepseek_v3 goes on otherwise, with its bias"
# The bias balances experts: the mean imbalance of the last ten of thirty steps is 1.4 with it, 2.6 without.
unevenness() {
    exits 0 train run.yaml run.dir=even$1 $deepseek train.steps=30 lr_schedule.total_steps=30 validation.every=0 checkpoint.every=0 \
        train.router_bias_speed=$1
    grep -o '"expert_imbalance": [0-9.]*' even$1/metrics.jsonl | tail -10 | awk '{ sum += $2 } END { printf "%d", 100 * sum }'
}
[ "$(unevenness 0.001)" -lt "$(unevenness 0)" ] || fail "the bias evens nothing out"
exits 0 generate latent --prompt abc --tokens 4 --temperature 0
exits 0 train run.yaml run.dir=latent_from $deepseek model.init=latent/checkpoints/step-00000003 train.steps=1
# The MTP module is used only in training. It is the same on meshes as on one rank, over a stop, and through export to published names and back.
# With loss weight 0 it changes nothing else.
module="$deepseek train.mtp_depth=1 train.mtp_kind=module train.mtp_loss_weight=0.3"
exits 0 train run.yaml run.dir=module $module || cat err
exits 0 train run.yaml run.dir=module_halves $module train.microbatch=2 train.split_backward=true train.recompute=full
mesh 2 module_stop $module mesh.dp_shard=2 train.steps=2 checkpoint.every=2
mesh 2 module_stop $module mesh.dp_replicate=2 train.gradient_sync=microbatch checkpoint.every=2
mesh 4 module4 $module mesh.dp_shard=2 mesh.pp=2 train.recompute=full
mesh 2 module_zbv $module mesh.pp=2 pipeline.schedule=zbv
for run in module_halves module_stop module4 module_zbv; do
    [ "$(curve $run)" = "$(curve module)" ] && [ "$(digest $run)" = "$(digest module)" ] || fail "the module differs in $run"
done
curve module | cmp -s - latent.curve && fail "a module changes nothing"
[ "$(grep -c '"loss_2": [1-9]' module/metrics.jsonl)" -eq 3 ] || fail "losses of the module: $(tail -1 module/metrics.jsonl)"
exits 0 train run.yaml run.dir=weightless $module train.mtp_loss_weight=0 optimizer.weight_decay=0
exits 0 train run.yaml run.dir=without $deepseek optimizer.weight_decay=0
[ "$(curve weightless)" = "$(curve without)" ] || fail "a module without weight changes the curve"
exits 0 plan run.yaml $module
has out 'a module for the token behind the next'
last=module/checkpoints/step-00000003
exits 0 inspect $last
has out 'model.layers.3.eh_proj.weight' 'model.layers.3.mlp.experts.5.down_proj.weight' 'model.layers.3.shared_head.norm.weight'
grep -q '"num_nextn_predict_layers": 1' $last/config.json || fail "config.json says nothing of the module"
exits 0 generate module --prompt abc --tokens 4 --temperature 0
exits 0 train run.yaml run.dir=module_from $module model.init=$last train.steps=1
exits 0 train run.yaml run.dir=module_left $deepseek model.init=$last train.steps=1
has err 'num_nextn_predict_layers is 1'
exits 65 train run.yaml run.dir=module_wrong $module model.init=latent/checkpoints/step-00000003
has err 'model.layers.3.'
# Over cp with both methods, without and with a pipeline, with separate dgrad and wgrad, and in validation.
exits 0 train run.yaml run.dir=module_spans $module numerics.cp_invariant_up_to=4 || cat err
mesh 2 module_heads $module numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.cp_comm=all_to_all train.recompute=full
mesh 4 module_keys $module numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.dp_shard=2 mesh.cp_comm=all_gather train.recompute=none
mesh 4 module_piped $module numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.pp=2 pipeline.schedule=zbv
mesh 2 module_split $module numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.cp_comm=all_gather train.split_backward=true
for run in module_heads module_keys module_piped module_split; do
    [ "$(curve $run)" = "$(curve module_spans)" ] && [ "$(digest $run)" = "$(digest module_spans)" ] || fail "the module differs over cp in $run"
done
# Over tp, the bits of one rank with as many splits: in pipelines, with separate dgrad and wgrad, after a stop at another degree, with cp, with
# Muon, in bf16. The files are those of one rank, and a step sends what was planned.
leaves="$module numerics.tp_invariant_up_to=4"
exits 0 train run.yaml run.dir=module_leaves $leaves
mesh 4 module_tp $leaves mesh.tp=4 train.recompute=none
mesh 4 module_tp_piped $leaves mesh.tp=2 mesh.pp=2
mesh 4 module_tp_zbv $leaves mesh.tp=2 mesh.pp=2 pipeline.schedule=zbv train.recompute=full
mesh 4 module_tp_halves $leaves mesh.tp=2 mesh.dp_shard=2 train.gradient_sync=microbatch train.split_backward=true train.recompute=full
exits 0 train run.yaml run.dir=module_tp_stop $leaves train.steps=1 lr_schedule.total_steps=6 checkpoint.every=1
mesh 2 module_tp_stop $leaves mesh.tp=2 checkpoint.every=1
for run in module_tp module_tp_piped module_tp_zbv module_tp_halves module_tp_stop; do
    [ "$(curve $run)" = "$(curve module_leaves)" ] && [ "$(digest $run)" = "$(digest module_leaves)" ] || fail "the module differs over tp in $run"
done
cmp -s module_tp_zbv/checkpoints/step-00000003/model.safetensors module_leaves/checkpoints/step-00000003/model.safetensors ||
    fail "the module's model file differs over tp"
"$weft" plan module_tp/config.yaml -n 4 run.dir=none | awk '/^work and bytes/ { on = 1 } on && $1 ~ /^0/ && NF > 4 { print $(NF - 3), $(NF - 2); exit }' >planned
sed -n 's/.*"sent_tp": \([0-9]*\).*/\1/p' module_tp/metrics.jsonl | tail -1 | awk '{ printf "%.2f MiB\n", $1 / 1048576 }' | diff planned - ||
    fail "sent_tp is not what was planned: $(cat planned)"
for words in "optimizer.kind=muon optimizer.nesterov=true numerics.cp_invariant_up_to=4" "numerics.mode=fast train.compute=bf16 model.q_lora_rank=0"; do
    way=(2 module_two mesh.tp=2)
    [[ $words != *cp_invariant_up_to* ]] || way=(4 module_two mesh.tp=2 mesh.cp=2 mesh.cp_comm=all_gather)
    rm -rf module_one module_two
    exits 0 train run.yaml run.dir=module_one $leaves $words
    mesh "${way[@]}" $leaves $words
    [ "$(curve module_two)" = "$(curve module_one)" ] && [ "$(digest module_two)" = "$(digest module_one)" ] || fail "the module differs over tp with $words"
done
# Over ep, combined with each of the other axes, in one and in several dispatch chunks, and in validation.
mesh 2 module_ep $module mesh.dp_shard=2 mesh.ep=2 train.ep_buffer_factor=1 train.split_backward=true
mesh 4 module_ep_piped $module mesh.dp_shard=2 mesh.ep=2 mesh.pp=2 pipeline.schedule=zbv train.recompute=full
for run in module_ep module_ep_piped; do
    [ "$(curve $run)" = "$(curve module)" ] && [ "$(digest $run)" = "$(digest module)" ] || fail "the module differs over ep in $run"
done
mesh 4 module_ep_tp $leaves mesh.dp_shard=2 mesh.ep=2 mesh.tp=2 train.gradient_sync=microbatch
[ "$(curve module_ep_tp)" = "$(curve module_leaves)" ] && [ "$(digest module_ep_tp)" = "$(digest module_leaves)" ] || fail "the module differs over ep with tp"
mesh 4 module_ep_cp $module numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.dp_shard=2 mesh.ep=2 mesh.cp_comm=all_gather
[ "$(curve module_ep_cp)" = "$(curve module_spans)" ] && [ "$(digest module_ep_cp)" = "$(digest module_spans)" ] || fail "the module differs over ep and cp"
exits 78 plan run.yaml $module train.mtp_depth=2
has err 'a module is not in this version together with'
exits 78 plan run.yaml $deepseek train.mtp_kind=module
has err 'a module is one: set train.mtp_depth to 1'
exits 78 plan run.yaml train.mtp_depth=1 train.mtp_kind=module
has err 'another model.family than deepseek_v3'

exits 78 plan run.yaml model.family=llama model.num_experts=0 model.num_experts_per_tok=0 model.output_router_logits=false train.router_bias_speed=0.01
has err 'the family llama has no experts'
exits 78 plan run.yaml model.family=deepseek_v2 model.head_dim=0 model.output_router_logits=false model.router_aux_loss_coef=0 \
    model.num_key_value_heads=2 model.dense_period=0 model.dense_layers=0
has err 'num_key_value_heads is 2, expected num_attention_heads, 4'
# Keys that are not set have the family's defaults.
exits 78 plan run.yaml $deepseek model.n_group=4 model.topk_group=9
hasnt err 'by default of the family'
exits 78 plan run.yaml ${deepseek/model.n_group=3/}
has err 'n_group 8 does not divide num_experts 6 into' 'by default of the family deepseek_v3: model.n_group 8'

conclude

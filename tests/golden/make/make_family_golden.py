#!/usr/bin/env python3
"""Golden values of the model families: tiny models of transformers, trained for a few steps in float64.

    tests/golden/make/make_family_golden.py OUT [NAME ...]     writes OUT/NAME; all of them if no name is given

Needs torch and transformers; the files are in the repository (tests/golden), so the tests need neither. make_golden.py describes
the format of a directory, which `golden DIR` reads; config.json is the one that transformers writes.

Two things make the numbers those of float64 arithmetic. transformers uses torch.float32 by name in norms, softmax and tables of
angles: here that name means float64. And AdamW divides by the root of a gradient's mean square: where a gradient is zero except
for rounding (the key bias, which does not affect a softmax), its step is rounding too. So eps is larger than usual, 1e-6.
"""
import argparse
import json
import pathlib
import sys

import numpy
import torch

torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)

import transformers  # noqa: E402  (after the names above are changed)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_golden import to_fp32, write_tensors  # noqa: E402

STEPS, ROWS, CONTEXT = 3, 2, 16
OPTIMIZER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1, "clip": 1.0, "decay": "all"}
SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2,
         "num_key_value_heads": 1, "max_position_embeddings": 32, "bos_token_id": None, "eos_token_id": None,
         "pad_token_id": None}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 8}
MODELS = {
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "tie_word_embeddings": True,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}),
    "qwen3": ("Qwen3", {"head_dim": 12, "use_sliding_window": True, "sliding_window": 7,
                        "layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
    "mistral": ("Mistral", {"head_dim": 12, "sliding_window": 6}),
    "olmo2": ("Olmo2", {"num_hidden_layers": 2}),
    "olmo3": ("Olmo3", {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2,
                        "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}}),
    "gemma2": ("Gemma2", {"head_dim": 12, "query_pre_attn_scalar": 9, "sliding_window": 4, "attn_logit_softcapping": 1.5,
                          "final_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3", {"num_hidden_layers": 2, "head_dim": 12, "query_pre_attn_scalar": 9, "sliding_window": 4, "sliding_window_pattern": 2,
                          "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0},
                                              "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1], "mlp_bias": True}),
    "phi3": ("Phi3", {"sliding_window": 6, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.75}}),
    "gpt2": ("GPT2", {"n_embd": 16, "n_inner": 20, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 40,
                      "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 6, "num_hidden_layers": 2, "head_dim": 12}),
    "qwen3_moe": ("Qwen3Moe", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "head_dim": 12,
                               "mlp_only_layers": [1], "norm_topk_prob": True}),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 2}),
    "gpt_oss": ("GptOss", {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 12, "sliding_window": 5,
                           "intermediate_size": 12, "rope_parameters": {**YARN, "truncate": False}}),
    "deepseek_v2": ("DeepseekV2", {"num_key_value_heads": 2, "q_lora_rank": None, "kv_lora_rank": 10, "qk_nope_head_dim": 6,
                                   "qk_rope_head_dim": 4, "v_head_dim": 7, "n_routed_experts": 6, "num_experts_per_tok": 2,
                                   "moe_intermediate_size": 12, "n_shared_experts": 2, "first_k_dense_replace": 1,
                                   "routed_scaling_factor": 1.5, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}}),
    "llama4": ("Llama4", {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 12, "intermediate_size_mlp": 20,
                          "num_attention_heads": 3, "head_dim": 10, "moe_layers": [0, 1], "no_rope_layers": [1, 0, 1],
                          "attention_chunk_size": 5, "floor_scale": 3, "attn_scale": 0.7,
                          "rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
                                              "high_freq_factor": 1.0, "original_max_position_embeddings": 8}}),
}
# For these the routes are stored as well: rounding in bf16 may change an assignment.
EXPERTS = ("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v2", "llama4")
MARGIN = 1e-3  # of logits: closer choices could differ in float32
# In bf16 a tiny model may have a tensor whose gradient is mostly rounding: with these seeds none has.
SEEDS = {"olmo3": 3, "phi3": 5}


def classes_of(name):
    config = {"Gemma3": "Gemma3TextConfig", "Llama4": "Llama4TextConfig"}.get(name, name + "Config")
    model = {"GPT2": "GPT2LMHeadModel"}.get(name, name + "ForCausalLM")
    return getattr(transformers, config), getattr(transformers, model)


def make_model(name, options):
    """Makes a model with all weights random, norms and biases too, so that each one matters, rounded to float32 as in the files."""
    config_class, model_class = classes_of(name)
    sizes = {} if name == "GPT2" else SIZES
    eager = {"experts_implementation": "eager"} if name in ("Mixtral", "Qwen3Moe", "Olmoe", "GptOss", "DeepseekV2") else {}
    model = model_class(config_class(**{**sizes, **options}, attn_implementation="eager", **eager)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn(parameter.shape)
            else:
                parameter.copy_((1 if parameter.shape[0] == 40 else 0.2) * torch.randn(parameter.shape))
            parameter.copy_(torch.from_numpy(parameter.numpy().astype("float32").astype("float64")))
    return model


# transformers fuses the experts of a layer into one tensor, and uses the same names for Mixtral's; files have one tensor per expert.
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def published(tensors, model):
    kind, named = type(model).__name__, {}
    mixtral = kind == "MixtralForCausalLM"
    if kind in ("GptOssForCausalLM", "Llama4ForCausalLM"):  # their files have fused tensors too
        return tensors
    for name, value in tensors.items():
        if ".experts." not in name:
            named[name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if mixtral else name] = value
            continue
        prefix, kind = name.rsplit(".", 1)
        for expert, matrix in enumerate(value):
            parts = zip(("gate_proj", "up_proj"), numpy.split(matrix, 2)) if kind == "gate_up_proj" else [("down_proj", matrix)]
            for part, rows in parts:
                stem = prefix.replace(".mlp.", ".block_sparse_moe.") if mixtral else prefix
                named[f"{stem}.{expert}.{MIXTRAL[part] if mixtral else part}.weight"] = numpy.ascontiguousarray(rows)
    return named


def weights(model):
    tensors = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    return published(tensors, model)


ROUTERS = ("mlp.gate", "mlp.router", "block_sparse_moe.gate", "feed_forward.router")


def logits_of(router, states):
    return torch.nn.functional.linear(states.reshape(-1, states.shape[-1]), router.weight, getattr(router, "bias", None))


def closest_choice(model, tokens):
    """Returns the smallest distance, in logits, between the last chosen expert and the first that is not chosen."""
    k, closest = model.config.num_experts_per_tok, float("inf")
    scores = []
    hooks = [module.register_forward_hook(lambda m, i, o: scores.append(logits_of(m, i[0])))
             for name, module in model.named_modules() if name.endswith(ROUTERS)]
    with torch.no_grad():
        for batch in tokens:
            model(batch[:, :-1], use_cache=False)
    for hook in hooks:
        hook.remove()
    for logits in scores:
        top = logits.sort(dim=-1, descending=True).values
        closest = min(closest, (top[:, k - 1] - top[:, k]).min().item())
    return closest


def norm(gradients, p):
    flat = torch.cat([torch.from_numpy(g).flatten() for g in gradients.values()])
    return torch.linalg.vector_norm(flat, p).item()


def keep_routes(model, routes):
    """Records the experts of each token, ascending, for each layer with experts, in the order of the passes."""
    for name, module in model.named_modules():
        if name.endswith(ROUTERS):
            layer = routes.setdefault(f"model.layers.{name.split('.')[2]}.mlp.gate.routes", [])
            k = model.config.num_experts_per_tok
            module.register_forward_hook(lambda m, i, o, layer=layer: layer.append(
                logits_of(m, i[0]).topk(k, dim=-1).indices.sort(dim=-1).values.detach().numpy()))


def train(model, tokens):
    """Trains with the loss over all targets of a step; also returns the gradients of step 1 before clipping."""
    o, steps, first = OPTIMIZER, [], None
    optimizer = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                                  weight_decay=o["weight_decay"], foreach=False)
    for batch in tokens:
        optimizer.zero_grad()
        logits = model(batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
        loss.backward()
        gradients = published({name: parameter.grad.numpy().copy() for name, parameter in model.named_parameters()}, model)
        first = first or gradients
        size = norm(gradients, 2)
        clip = min(1.0, o["clip"] / (size + 1e-6))
        for parameter in model.parameters():
            parameter.grad *= clip
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm_l2": size, "grad_norm_l1": norm(gradients, 1),
                      "grad_norm_l3": norm(gradients, 3), "grad_norm_inf": norm(gradients, float("inf")),
                      "clip_coefficient": clip})
    return steps, first


def write(out, name, seed):
    family, options = MODELS[name]
    while True:
        torch.manual_seed(seed)
        model = make_model(family, options)
        tokens = torch.randint(0, 40, (STEPS, ROWS, CONTEXT + 1))
        if name not in EXPERTS or closest_choice(model, tokens) > MARGIN:
            break
        seed += 1
    directory = pathlib.Path(out) / name
    directory.mkdir(parents=True, exist_ok=True)
    before, routes = weights(model), {}
    if name in EXPERTS:
        keep_routes(model, routes)
    steps, gradients = train(model, tokens)
    config = model.config.to_dict()
    for key in ("_name_or_path", "dtype", "torch_dtype", "task_specific_params"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (directory / "expected.json").write_text(json.dumps({"optimizer": OPTIMIZER, "steps": steps}, indent=1) + "\n")
    write_tensors(directory / "model.safetensors", to_fp32(before))
    write_tensors(directory / "grads.safetensors", to_fp32(gradients))
    write_tensors(directory / "final.safetensors", to_fp32(weights(model)))
    write_tensors(directory / "batch.safetensors", {"tokens": tokens.numpy()})
    if routes:
        write_tensors(directory / "routes.safetensors", {key: numpy.stack(value) for key, value in routes.items()})
    print(f"{name}: {sum(value.size for value in before.values())} parameters, loss {steps[0]['loss']:.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name in args.names or MODELS:
        write(args.out, name, SEEDS.get(name, args.seed))


if __name__ == "__main__":
    main()

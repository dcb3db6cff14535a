#!/usr/bin/env python3
"""Golden values of DeepSeek-V3's multi-token prediction (MTP) module, trained for a few steps in float64.

    tests/golden/make/make_module_golden.py OUT                writes OUT/deepseek_v3_module

Like make_family_golden.py, with the same requirements and files. transformers has no MTP module. This script builds one from the block
and the norms of transformers' class, by the formulas of the DeepSeek-V3 report (section 2.2), and appends it after the model's last
layer, which gives its tensors their published names. expected.json has its weight and, for each step, its loss (`further_loss`).
"""
import json
import pathlib
import sys

import make_family_golden as family  # first: it makes float32 mean float64
import numpy
import torch
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

WEIGHT = 0.3
OPTIONS = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_key_value_heads": 2, "n_routed_experts": 6, "num_experts_per_tok": 2,
           "moe_intermediate_size": 12, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
           "routed_scaling_factor": 1.5, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
           "v_head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


def make_model():
    config = deepseek.DeepseekV3Config(**{**family.SIZES, **OPTIONS}, **EAGER)
    model = deepseek.DeepseekV3ForCausalLM(config).train()
    width, layers = config.hidden_size, config.num_hidden_layers
    module = deepseek.DeepseekV3DecoderLayer(config, layers)
    module.enorm, module.hnorm = (deepseek.DeepseekV3RMSNorm(width, config.rms_norm_eps) for _ in range(2))
    module.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
    module.shared_head = torch.nn.Module()
    module.shared_head.norm = deepseek.DeepseekV3RMSNorm(width, config.rms_norm_eps)
    model.model.layers.append(module)  # the model's forward pass uses only the first num_hidden_layers
    with torch.no_grad():
        for parameter in model.parameters():
            random = torch.randn(parameter.shape)
            parameter.copy_(1 + 0.2 * random if parameter.dim() == 1 else (0.5 if parameter.shape[0] == 40 else 0.2) * random)
            parameter.copy_(torch.from_numpy(parameter.numpy().astype("float32").astype("float64")))
    return model


def losses(model, batch):
    """Returns the loss of the model and that of its module, each over the model's targets."""
    inputs, targets = batch[:, :-1], batch[:, 1:]
    inner, states = model.model, []
    hook = inner.norm.register_forward_pre_hook(lambda m, i: states.append(i[0]))
    logits = model(inputs, use_cache=False).logits
    hook.remove()
    length = inputs.shape[1]
    module = inner.layers[model.config.num_hidden_layers]
    following = torch.cat([inputs[:, 1:], inputs[:, -1:]], 1)
    joined = module.eh_proj(torch.cat([module.enorm(inner.embed_tokens(following)), module.hnorm(states[0])], -1))
    positions = torch.arange(length)[None]
    mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
    out = module(joined, attention_mask=mask, position_ids=positions, position_embeddings=inner.rotary_emb(joined, positions))
    out = out[0] if isinstance(out, tuple) else out
    further = model.lm_head(module.shared_head.norm(out))[:, :-1]
    entropy = torch.nn.functional.cross_entropy
    first = entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    second = entropy(further.reshape(-1, further.shape[-1]), targets[:, 1:].reshape(-1), reduction="sum") / targets.numel()
    return first, second


def gradients_of(model):
    return family.published({name: p.grad.numpy().copy() for name, p in model.named_parameters()}, model)


def weights_of(model):
    """Router biases are not parameters in transformers: they do not change."""
    fixed = {name: value.numpy().copy() for name, value in model.named_buffers() if name.endswith("e_score_correction_bias")}
    return {**family.weights(model), **fixed}


def train(model, tokens):
    o, steps, first = family.OPTIMIZER, [], None
    optimizer = torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                                  weight_decay=o["weight_decay"], foreach=False)
    for batch in tokens:
        optimizer.zero_grad()
        loss, further = losses(model, batch)
        (loss + WEIGHT * further).backward()
        gradients = gradients_of(model)
        first = first or gradients
        size = family.norm(gradients, 2)
        clip = min(1.0, o["clip"] / (size + 1e-6))
        for parameter in model.parameters():
            parameter.grad *= clip
        optimizer.step()
        steps.append({"loss": loss.item(), "further_loss": further.item(), "grad_norm_l2": size,
                      "grad_norm_l1": family.norm(gradients, 1), "grad_norm_l3": family.norm(gradients, 3),
                      "grad_norm_inf": family.norm(gradients, float("inf")), "clip_coefficient": clip})
    return steps, first


def closest_choice(model, tokens):
    """Like family.closest_choice, including the module."""
    scores, k = [], model.config.num_experts_per_tok
    hooks = [m.register_forward_hook(lambda m, i, o: scores.append(family.logits_of(m, i[0])))
             for name, m in model.named_modules() if name.endswith(family.ROUTERS)]
    with torch.no_grad():
        for batch in tokens:
            losses(model, batch)
    for hook in hooks:
        hook.remove()
    tops = [logits.sort(dim=-1, descending=True).values for logits in scores]
    return min((top[:, k - 1] - top[:, k]).min().item() for top in tops)


def main():
    directory, seed = pathlib.Path(sys.argv[1]) / "deepseek_v3_module", 1
    while True:
        torch.manual_seed(seed)
        model = make_model()
        tokens = torch.randint(0, 40, (family.STEPS, family.ROWS, family.CONTEXT + 1))
        if closest_choice(model, tokens) > family.MARGIN:
            break
        seed += 1
    directory.mkdir(parents=True, exist_ok=True)
    before, routes = weights_of(model), {}
    family.keep_routes(model, routes)
    steps, gradients = train(model, tokens)
    config = model.config.to_dict()
    for key in ("_name_or_path", "dtype", "torch_dtype", "task_specific_params"):
        config.pop(key, None)
    config["architectures"], config["num_nextn_predict_layers"] = ["DeepseekV3ForCausalLM"], 1
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    expected = {"optimizer": family.OPTIMIZER, "further_weight": WEIGHT, "steps": steps}
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    family.write_tensors(directory / "model.safetensors", family.to_fp32(before))
    family.write_tensors(directory / "grads.safetensors", family.to_fp32(gradients))
    family.write_tensors(directory / "final.safetensors", family.to_fp32(weights_of(model)))
    family.write_tensors(directory / "batch.safetensors", {"tokens": tokens.numpy()})
    family.write_tensors(directory / "routes.safetensors", {key: numpy.stack(value) for key, value in routes.items()})
    print(f"seed {seed}: {sum(v.size for v in before.values())} parameters, losses {steps[0]['loss']:.6f} {steps[0]['further_loss']:.6f}")


if __name__ == "__main__":
    main()

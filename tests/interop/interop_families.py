#!/usr/bin/env python3
"""Checks that models of every family can be exchanged between weft and transformers in both directions.

    tests/interop/interop_families.py [--weft build/weft] [--logits build/logits] [--require] [FAMILY ...]

For each family that `weft models` lists: transformers makes a tiny model with random weights and saves it; weft computes its logits
at every position, token by token and prefilled, and they must equal those of transformers. Then weft trains it for ten steps. The
checkpoint must load in AutoModelForCausalLM with no tensor missing or left over and the same config.json fields, and give the same
logits. A family for which this script has no options is a failure, so that every new family is tested.
Exits with 77 (a skipped test) and a message if torch or transformers is missing; with --require that is a failure."""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

SKIPPED = 77
TOLERANCE = 1e-4  # absolute, of fp32 logits
CONTEXT, VOCAB, STEPS = 24, 264, 10
SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
TINY_GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": None,
             "eos_token_id": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0, 1.1, 1.2, 1.5], "long_factor": [1.5, 2.0, 3.0, 5.0]}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 8,
          "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "n_shared_experts": 1, "first_k_dense_replace": 1}
# transformers has none of these.
OURS = {"recurrent"}
# By model_type: the classes' name and the family's own options; each variant is one model.
FAMILIES = {
    "llama": ("Llama", [{}, {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "tie_word_embeddings": True},
                        {"rope_parameters": YARN},
                        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}},
                        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}}]),
    "qwen2": ("Qwen2", [{}, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2, "tie_word_embeddings": True}]),
    "qwen3": ("Qwen3", [{"head_dim": 12}, {"head_dim": 12, "attention_bias": True, "use_sliding_window": True, "sliding_window": 7,
                                           "layer_types": ["sliding_attention", "full_attention"] * 2}]),
    "mistral": ("Mistral", [{"sliding_window": 6, "head_dim": 12}, {"sliding_window": None}]),
    "olmo2": ("Olmo2", [{}, {"attention_bias": True, "tie_word_embeddings": True}]),
    "olmo3": ("Olmo3", [{"sliding_window": 5},
                        {"sliding_window": 5, "rope_parameters": {"full_attention": YARN, "sliding_attention": {
                            "rope_type": "default", "rope_theta": 1000.0}}}]),
    "gemma2": ("Gemma2", [{"head_dim": 12, "query_pre_attn_scalar": 9, "sliding_window": 5, "attn_logit_softcapping": 2.0,
                           "final_logit_softcapping": 3.0}]),
    "gemma3_text": ("Gemma3", [{"head_dim": 12, "query_pre_attn_scalar": 9, "sliding_window": 5},
                               {"head_dim": 12, "sliding_window": 5, "sliding_window_pattern": 2}]),
    "smollm3": ("SmolLM3", [{}, {"no_rope_layers": [0, 1, 1, 0], "use_sliding_window": True, "sliding_window": 5}]),
    "phi3": ("Phi3", [{"sliding_window": 6}, {"tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.75}},
                      {"rope_parameters": LONGROPE, "original_max_position_embeddings": 48}, # one limit above the length of the text, one below
                      {"rope_parameters": {**LONGROPE, "attention_factor": 1.3}, "original_max_position_embeddings": 16}]),
    "gpt2": ("GPT2", [{}, {"n_inner": 40, "tie_word_embeddings": False}]),
    "mixtral": ("Mixtral", [{"num_local_experts": 6, "num_experts_per_tok": 2}, {"sliding_window": 6, "head_dim": 12, "num_local_experts": 3}]),
    "qwen3_moe": ("Qwen3Moe", [{"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "head_dim": 12,
                                "mlp_only_layers": [1], "norm_topk_prob": True},
                               {"num_experts": 4, "num_experts_per_tok": 4, "decoder_sparse_step": 2, "attention_bias": True}]),
    "olmoe": ("Olmoe", [{"num_experts": 6, "num_experts_per_tok": 2}, {"num_experts": 5, "norm_topk_prob": True, "num_experts_per_tok": 1}]),
    "gpt_oss": ("GptOss", [{"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 12, "sliding_window": 5},
                           {"num_local_experts": 3, "num_experts_per_tok": 1, "head_dim": 8, "sliding_window": 64,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}]),
    "deepseek_v3": ("DeepseekV3", [{**LATENT, "n_group": 4, "topk_group": 2, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
                                   {**LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "v_head_dim": 12}]),
    "deepseek_v2": ("DeepseekV2", [{**LATENT, "q_lora_rank": None, "n_shared_experts": 2},
                                   {**LATENT, "n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5,
                                    "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}}]),
    "llama4_text": ("Llama4", [{"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size_mlp": 40, "head_dim": 12,
                                "interleave_moe_layer_step": 2, "attention_chunk_size": 5, "floor_scale": 4, "attn_scale": 0.7,
                                "rope_parameters": {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0,
                                                    "high_freq_factor": 1.0, "original_max_position_embeddings": 16}},
                               {"num_local_experts": 3, "intermediate_size_mlp": 40, "head_dim": 8, "no_rope_layers": [0, 1, 1, 1],
                                "attention_chunk_size": 64, "use_qk_norm": False, "attn_temperature_tuning": False, "attention_bias": True,
                                "rope_parameters": YARN},
                               {"num_local_experts": 4, "intermediate_size_mlp": 40, "attention_chunk_size": None, "tie_word_embeddings": True,
                                "rope_parameters": YARN}]),
}
SAME_FIELDS = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
               "head_dim", "sliding_window", "layer_types", "rope_parameters", "no_rope_layers", "tie_word_embeddings", "rms_norm_eps",
               "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "n_inner", "layer_norm_epsilon",
               "max_position_embeddings", "attention_bias", "mlp_bias", "num_experts", "num_local_experts", "num_experts_per_tok",
               "moe_intermediate_size", "norm_topk_prob", "router_aux_loss_coef", "output_router_logits", "q_lora_rank", "kv_lora_rank",
               "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts", "n_shared_experts", "first_k_dense_replace", "routed_scaling_factor",
               "intermediate_size_mlp", "moe_layers", "use_qk_norm", "attention_chunk_size", "attn_temperature_tuning"]
failures = []


def check(condition, what):
    print(("ok    " if condition else "FAIL  ") + what, flush=True)
    if not condition:
        failures.append(what)


def run(*command, data=None):
    done = subprocess.run([*map(str, command)], input=data, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def make(torch, transformers, name, options):
    config_class = getattr(transformers, {"Gemma3": "Gemma3TextConfig", "Llama4": "Llama4TextConfig"}.get(name, name + "Config"))
    model_class = getattr(transformers, {"GPT2": "GPT2LMHeadModel"}.get(name, name + "ForCausalLM"))
    torch.manual_seed(7)
    model = model_class(config_class(**{**(TINY_GPT2 if name == "GPT2" else SIZES), **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += (0.2 if parameter.dim() == 1 else 0.15) * torch.randn(parameter.shape)
    return model.eval()


def original_positions(config):
    rope = getattr(config, "rope_parameters", None) or {}
    return rope["original_max_position_embeddings"] if rope.get("rope_type") == "longrope" else 0


def check_logits(torch, logits, what, directory, model, ids):
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].double()
    data = " ".join(map(str, ids)).encode()
    for how, flags, rows in (("token by token", [], expected), ("prefilled", ["--prefill"], expected[-1:])):
        lines = run(logits, *flags, directory, data=data).splitlines()
        found = torch.tensor([[float(word) for word in line.split()] for line in lines], dtype=torch.float64)
        check(found.shape == rows.shape, f"{what}: {how}, {found.shape[0]} rows of {found.shape[1]} logits")
        # Token by token, longrope uses its short factors at first; a pass over all of a longer text uses only the long ones.
        short = original_positions(model.config) if len(ids) > original_positions(model.config) > 0 and len(rows) > 1 else 0
        difference = (found - rows)[short:].abs().max().item()
        check(difference <= TOLERANCE, f"{what}: logits {how} differ by {difference:.1e}")


def rope_of(value):
    """Removes defaults and the older name of the type: transformers keeps what the file contained."""
    defaults = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
    if not isinstance(value, dict):
        return value
    twice = {"type"} if value.get("type") == value.get("rope_type") else set()
    return {key: rope_of(inner) for key, inner in value.items()
            if inner is not None and defaults.get(key) != inner and key not in twice}


def fields(config):
    """Returns the fields that define the model. Some classes have no head_dim unless a file sets it."""
    values = {key: getattr(config, key, None) for key in SAME_FIELDS}
    values["rope_parameters"] = rope_of(values["rope_parameters"])
    if values["head_dim"] is None:
        values["head_dim"] = config.hidden_size // config.num_attention_heads
    if values["n_inner"] is None:
        values["n_inner"] = 4 * config.hidden_size
    return values


def check_whole(torch, transformers, args, work, model, ids):
    """Checks that weft reads the text model out of a model of images and text, the form in which Llama 4 is published."""
    start, images = work / "llama4-whole", {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
                                            "vision_output_dim": 16, "image_size": 28, "projector_input_dim": 16, "projector_output_dim": 16}
    whole = transformers.Llama4ForConditionalGeneration(transformers.Llama4Config(text_config=model.config.to_dict(), vision_config=images))
    whole.language_model.load_state_dict(model.state_dict())
    whole.save_pretrained(start)
    check_logits(torch, args.logits, "llama4", start, model, ids)
    digests = [run(args.weft, "inspect", "--digest", directory) for directory in (start, work / "llama4_text-0")]
    check(digests[0] == digests[1], "llama4: the digest is that of its text")
    run(args.weft, "train", work / "run.yaml", f"run.dir={work}/llama4-run", f"model.init={start}", "train.steps=1")


def check_model(torch, transformers, args, work, family, number):
    name, variants = FAMILIES[family]
    what, start, trained = f"{family} {number}", work / f"{family}-{number}", work / f"{family}-{number}-run"
    model = make(torch, transformers, name, variants[number])
    model.save_pretrained(start)
    ids = [random.Random(number).randrange(VOCAB) for _ in range(CONTEXT + 9)]
    check_logits(torch, args.logits, what, start, model, ids)
    if family == "llama4_text" and number == 0:
        check_whole(torch, transformers, args, work, model, ids)
    check(f"model       {family}," in run(args.weft, "inspect", "--header", start), f"{what}: weft inspect says the family")
    run(args.weft, "train", work / "run.yaml", f"run.dir={trained}", f"model.init={start}")
    checkpoint = trained / "checkpoints" / "latest"
    again, info = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True, dtype=torch.float32)
    clean = not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    check(clean and type(again) is type(model), f"{what}, trained: AutoModelForCausalLM loads it, nothing missing or left over")
    ours, theirs = fields(again.config), fields(model.config)
    check(ours == theirs, f"{what}, trained: the same config" + ("" if ours == theirs else f": {[k for k in ours if ours[k] != theirs[k]]}"))
    check_logits(torch, args.logits, f"{what}, trained", checkpoint, again.eval(), ids)
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    check(losses[-1] < losses[0], f"{what}: {STEPS} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")


def packages(require):
    try:
        import torch
        import transformers
    except ImportError as missing:
        if require:
            sys.exit(str(missing))
        print(f"skipped: {missing}", file=sys.stderr)
        sys.exit(SKIPPED)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--logits", help="default: next to weft")
    parser.add_argument("--require", action="store_true", help="a missing package is a failure")
    parser.add_argument("families", nargs="*")
    args = parser.parse_args()
    args.weft = pathlib.Path(args.weft).resolve()
    args.logits = args.logits or args.weft.with_name("logits")
    torch, transformers = packages(args.require)
    listed = [entry["model_type"] for entry in json.loads(run(args.weft, "models", "--json"))]
    check(set(listed) - OURS == set(FAMILIES), f"families of weft models: {', '.join(listed)}")
    with tempfile.TemporaryDirectory(prefix="weft-families-") as directory:
        work = pathlib.Path(directory)
        words = random.Random(3)
        (work / "text.txt").write_text(" ".join(words.choice("abc de fgh ijkl m nop".split()) for _ in range(3000)))
        (work / "run.yaml").write_text(
            f"data: {{sources: [{work}/text.txt], cache_dir: {work}/cache}}\n"
            f"train: {{steps: {STEPS}, context: {CONTEXT}, microbatch: 4, compute: fp32}}\n"
            "optimizer: {lr: 3e-3}\nlr_schedule: {warmup_steps: 1}\nmetrics: {log_freq: 1}\n")
        for family in args.families or FAMILIES:
            for number in range(len(FAMILIES[family][1])):
                check_model(torch, transformers, args, work, family, number)
    if failures:
        sys.exit(f"{len(failures)} checks failed")
    print("all checks passed")


if __name__ == "__main__":
    main()

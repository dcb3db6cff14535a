#!/usr/bin/env python3
"""Tries keys of config.json: for any file, weft computes what transformers computes, or refuses it.

    tests/interop/interop_config.py [--weft build/weft] [--logits build/logits] [--require] [--verbose] [--all] [--own] [--pairs N] [FAMILY ...]

For each family transformers saves tiny models. The script changes their config.json one key at a time: keys of the family's class (left out,
null, with another value, under their second names), for the first model also keys of any family, and N random pairs of changes of the RoPE
keys. Both programs open the result, and the script compares their logits. It is an error if weft accepts a file that transformers computes
differently. The script counts what weft refuses, with --all split by whether transformers refuses it too, and what only transformers
refuses. Exits with 77 (a skipped test) and a message if torch or transformers is missing; with --require that is a failure."""
import argparse
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from interop_families import FAMILIES, TINY_GPT2, make, packages

TOLERANCE = 1e-3  # of the logits' spread
LENGTH = 40
ORIGINAL = "original_max_position_embeddings"
ABSENT = "(absent)"  # this value means that the key is left out


def scaling(kind, **more):
    """Returns scaling objects of one kind, complete, and with members of other kinds."""
    plain = {"llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 16},
             "yarn": {"factor": 4.0, ORIGINAL: 16}, "linear": {"factor": 4.0}, "dynamic": {"factor": 4.0}, "default": {}}[kind]
    return {"rope_type": kind, **plain, **more}


def longrope(pairs, **more):
    return {"type": "longrope", "short_factor": [1.0 + 0.1 * i for i in range(pairs)], "long_factor": [1.5 + i for i in range(pairs)], **more}


def without(object, key):
    return {k: v for k, v in object.items() if k != key}


def rotations(pairs):
    """Returns what files may contain about RoPE, as changes of the root object."""
    objects = [scaling(kind) for kind in ("default", "linear", "dynamic", "llama3", "yarn")]
    objects += [{"type" if k == "rope_type" else k: v for k, v in object.items()} for object in objects]
    objects += [scaling(kind, **{key: value}) for kind in ("linear", "dynamic", "llama3", "yarn", "default")
                for key, value in (("mscale_all_dim", 0.7), ("mscale", 0.7), ("attention_factor", 0.5), ("truncate", False), ("beta_fast", 4),
                                   ("rope_theta", 50.0), ("partial_rotary_factor", 0.5), ("partial_rotary_factor", 1.0), ("factor", 1.0),
                                   ("factor", None), ("factor", 0.5))]
    objects += [scaling("yarn", mscale=0.7, mscale_all_dim=0.5), scaling("yarn", beta_slow=0), scaling("yarn", beta_fast=None),
                scaling("yarn", attention_factor=0.0), scaling("yarn", factor=1.0, attention_factor=0.5),
                scaling("yarn", high_freq_factor=2.0), without(scaling("yarn"), ORIGINAL), without(scaling("llama3"), ORIGINAL), {}]
    objects += [longrope(pairs, **more) for more in ({}, {ORIGINAL: 64}, {ORIGINAL: 16}, {ORIGINAL: 16, "attention_factor": 1.5},
                                                     {ORIGINAL: 16, "factor": 3.0}, {ORIGINAL: 64, "factor": 0.5})]
    objects += [longrope(pairs, type="su"), longrope(pairs, type="yarn"), longrope(pairs - 1)]
    changes = [{key: object} for object in objects for key in ("rope_scaling", "rope_parameters")]
    changes += [{"rope_parameters": {"full_attention": object, "sliding_attention": scaling("default", rope_theta=30.0)}} for object in objects]
    changes += [{"rope_parameters": {"full_attention": scaling("linear")}},
                {"rope_parameters": {"full_attention": scaling("default", rope_theta=30.0), "sliding_attention": scaling("linear", rope_theta=50.0)}},
                {"rope_parameters": {"sliding_attention": scaling("default", rope_theta=50.0)}}, {"rope_parameters": {"sliding_attention": {}}},
                {"rope_parameters": {"full_attention": scaling("yarn"), "sliding_attention": scaling("default"), "truncate": False}}]
    changes += [{ORIGINAL: value, "rope_scaling": object} for value in (8, 16, 32, None)
                for object in (scaling("yarn"), scaling("llama3"), without(scaling("yarn"), ORIGINAL), without(scaling("llama3"), ORIGINAL),
                               scaling("linear"), longrope(pairs), longrope(pairs, **{ORIGINAL: 16}), longrope(pairs, factor=2.0))]
    changes += [{"rope_scaling": one, "rope_parameters": other} for one, other in itertools.product(
        [scaling("linear"), scaling("yarn"), {}, scaling("default")],
        [scaling("linear"), scaling("yarn", truncate=False), scaling("linear", rope_theta=50.0), {}, scaling("default", rope_theta=50.0)])]
    changes += [{"rope_theta": theta} for theta in (50.0, 50, 1.0, 0, None)] + [{"rope_local_base_freq": 50.0}, {"partial_rotary_factor": 0.5}]
    return changes


PLAIN = [{key: value} for key, values in {
    "is_causal": [False, True, None], "use_bidirectional_attention": [True, False], "attn_logit_softcapping": [0.0, 0, 2.0, None],
    "final_logit_softcapping": [0.0, 2.0, None], "use_sliding_window": [True, False], "sliding_window": [3, None, 0, 1], "max_window_layers": [0, 1, 2, 28],
    "sliding_window_pattern": [1, 2, 3], "attention_chunk_size": [3, None], "query_pre_attn_scalar": [4, 9.0, 0], "attention_bias": [True],
    "mlp_bias": [True], "tie_word_embeddings": [True, False], "hidden_act": ["gelu", "silu", "swish", "gelu_pytorch_tanh", "relu"],
    "hidden_activation": ["gelu", "gelu_pytorch_tanh"], "activation_function": ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"],
    "rms_norm_eps": [1e-2, 0.0], "layer_norm_epsilon": [1e-2], "layer_norm_eps": [1e-2], "head_dim": [8, 4, 16, None], "num_key_value_heads": [1, 4, None],
    "num_attention_heads": [2, 8], "max_position_embeddings": [32, 128], "norm_topk_prob": [True, False], "num_experts_per_tok": [1, 2, 4],
    "decoder_sparse_step": [1, 2], "mlp_only_layers": [[0], [], [1, 2]], "interleave_moe_layer_step": [1, 2], "moe_layers": [[0, 2], []],
    "router_jitter_noise": [0.1, 0.0], "clip_qkv": [0.1, None], "output_router_logits": [True], "router_aux_loss_coef": [0.5], "n_group": [1, 2, 4, None],
    "topk_group": [1, 2, None], "topk_method": ["greedy", "group_limited_greedy", "noaux_tc"], "scoring_func": ["softmax", "sigmoid"],
    "routed_scaling_factor": [1.0, 2.5, None], "first_k_dense_replace": [0, 1, 2], "moe_layer_freq": [1, 2], "rope_interleave": [True, False],
    "n_shared_experts": [1, 2, None], "q_lora_rank": [None], "no_rope_layers": [[1, 0, 1, 0], [], None, [0, 0, 0, 0]], "no_rope_layer_interval": [1, 2],
    "use_qk_norm": [True, False], "attn_temperature_tuning": [True, False, 4], "floor_scale": [2, 0], "attn_scale": [0.0, 1.0],
    "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True], "reorder_and_upcast_attn": [True], "add_cross_attention": [True],
    "swiglu_limit": [5.0, 7.0], "swiglu_alpha": [1.0], "attention_dropout": [0.1], "resid_pdrop": [0.1], "embd_pdrop": [0.1], "n_inner": [None, 128],
    "pretraining_tp": [2], "use_cache": [False], "attention_multiplier": [2.0], "qk_layernorm": [True], "residual_multiplier": [2.0],
    "embedding_multiplier": [2.0], "logits_scaling": [2.0], "aux_loss_alpha": [0.5], "seq_aux": [True], "model_type": ["llama", "mistral", "qwen2"],
}.items() for value in values]
KINDS = ["full_attention", "sliding_attention", "chunked_attention"]
PLAIN += [{"layer_types": [a, b] * 2, **more} for a, b in itertools.product(KINDS, KINDS)
          for more in ({}, {"use_sliding_window": True, "sliding_window": 3}, {"use_sliding_window": False, "sliding_window": 3},
                       {"use_sliding_window": True, "sliding_window": None}, {"attention_chunk_size": 3})]


# Keys that identify the file or select what a class returns; no logit depends on them.
NOT_OF_THE_MODEL = {"_name_or_path", "architectures", "dtype", "id2label", "label2id", "model_type", "problem_type", "return_dict",
                    "transformers_version"}


def other_values(value):
    if isinstance(value, bool) or value is None:
        return [not value]
    if isinstance(value, (int, float)):
        return [value * 2, value / 2 if isinstance(value, float) else value + 1, 0]
    return []


def own_changes(saved, config):
    """Returns changes: each key of class or file left out, null, and with another value; each alias of the class, with the key and alone."""
    keys = [key for key in {**saved, **config.to_dict()} if key not in NOT_OF_THE_MODEL]
    values = {**config.to_dict(), **saved}
    changes = [{key: value} for key in keys for value in (ABSENT, None, *other_values(values[key])) if key in saved or value != ABSENT]
    changes += [{name: value, key: beside} for name, key in config.attribute_map.items() if key in saved
                for value in (saved[key], *other_values(saved[key])) for beside in (saved[key], ABSENT)]
    return [change for change in changes if change not in PLAIN]


def rotary_pairs(config):
    head = config.get("qk_rope_head_dim") or config.get("head_dim") or config.get("hidden_size", 8) // config.get("num_attention_heads", 1)
    return head // 2


def theirs(torch, transformers, directory, ids):
    """Returns the logits of transformers; None if it fails."""
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0, -1].double()
    except Exception:  # for any reason, it does not open the file
        return None


def ours(torch, logits, directory, ids):
    """Returns the logits of weft, or its message."""
    done = subprocess.run([logits, "--prefill", directory], input=" ".join(map(str, ids)).encode(), capture_output=True)
    if done.returncode != 0:
        return None, done.stderr.decode(errors="replace").strip()
    return torch.tensor([float(word) for word in done.stdout.split()], dtype=torch.float64), ""


class Walk:
    def __init__(self, torch, transformers, args):
        self.torch, self.transformers, self.args = torch, transformers, args
        self.counts = {"same": 0, "refused by weft": 0, "refused by transformers alone": 0, "refused by both": 0}
        self.wrong = []

    def compare(self, family, directory, config, change, ids):
        (directory / "config.json").write_text(json.dumps({k: v for k, v in {**config, **change}.items() if v != ABSENT}))
        found, message = ours(self.torch, self.args.logits, directory, ids)
        expected = theirs(self.torch, self.transformers, directory, ids) if found is not None or self.args.all else None
        if found is None:
            kind = "refused by weft" if expected is not None or not self.args.all else "refused by both"
        elif expected is None:
            kind = "refused by transformers alone"
        else:
            difference = ((found - expected).abs().max() / expected.std()).item()
            kind = "same" if difference <= TOLERANCE else f"differs by {difference:.2g} of the spread"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.args.verbose or kind.startswith("differs"):
            print(f"{family}: {json.dumps(change)}: {kind}{': ' if message else ''}{message[-160:]}", flush=True)
        if kind.startswith("differs"):
            self.wrong.append(change)

    def variant(self, directory, family, number):
        name, variants = FAMILIES[family]
        model = make(self.torch, self.transformers, name, variants[number])
        model.save_pretrained(directory)
        config = json.loads((directory / "config.json").read_text())
        plain = without(without(config, "rope_parameters"), "rope_scaling") # the base for changes of the RoPE keys
        draw = random.Random(family)
        ids = [draw.randrange(TINY_GPT2["vocab_size"]) for _ in range(LENGTH)]
        for change in own_changes(config, model.config):
            self.compare(family, directory, config, change, ids)
        if number > 0 or self.args.own:
            return
        turned = rotations(rotary_pairs(config)) if family != "gpt2" else []
        for change in PLAIN + turned:
            self.compare(family, directory, plain if change in turned else config, change, ids)
        for _ in range(self.args.pairs if turned else 0):
            self.compare(family, directory, plain, {**draw.choice(turned), **draw.choice(turned), **draw.choice(PLAIN)}, ids)

    def family(self, work, family):
        for number in range(len(FAMILIES[family][1])):
            self.variant(work / f"{family}-{number}", family, number)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--logits", help="default: next to weft")
    parser.add_argument("--require", action="store_true", help="a missing package is a failure")
    parser.add_argument("--verbose", action="store_true", help="a line for each change")
    parser.add_argument("--all", action="store_true", help="ask transformers too about what weft refuses, to count what both do")
    parser.add_argument("--own", action="store_true", help="only the keys that a family's class has")
    parser.add_argument("--pairs", type=int, default=20, metavar="N", help="random pairs of changes of each family (20)")
    parser.add_argument("families", nargs="*")
    args = parser.parse_args()
    args.logits = args.logits or pathlib.Path(args.weft).resolve().with_name("logits")
    torch, transformers = packages(args.require)
    walk = Walk(torch, transformers, args)
    with tempfile.TemporaryDirectory(prefix="weft-config-") as work:
        for family in args.families or FAMILIES:
            walk.family(pathlib.Path(work), family)
    print(", ".join(f"{kind}: {count}" for kind, count in walk.counts.items()))
    if walk.wrong:
        sys.exit(f"{len(walk.wrong)} changes are read as another model than transformers' own")


if __name__ == "__main__":
    main()

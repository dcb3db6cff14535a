#!/usr/bin/env python3
"""The PyTorch side of the comparison with weft: a plainly written Llama, trained for a few steps on random tokens.

Each step is 16,384 tokens (--step-tokens) in microbatches, then clipping and AdamW, as in weft's benchmark. Each measurement runs in a
separate process, so that it has its own peak memory. --best tries number formats, torch.compile and microbatches in turn and measures
the fastest. On a GPU (--device cuda) the peak includes the memory that PyTorch has reserved there, and a step ends when the GPU has finished.
Prints one JSON object on stdout.

    python bench/peer_torch.py --size 125M --context 1024 --dtype fp32 --microbatch 4
    python bench/peer_torch.py --size 125M --context 1024 --best
    python bench/peer_torch.py --device cuda --size 1B --context 4096 --step-tokens 65536 --dtype autocast --compile --microbatch 2
"""
import argparse
import json
import math
import resource
import subprocess
import sys
import time
import warnings

STEP_TOKENS = 16384

# hidden, layers, heads, KV heads, intermediate, vocabulary, tied embeddings: the same as in bench/workload.c.
SIZES = {
    "tiny": (64, 2, 4, 2, 96, 256, False),
    "15M": (384, 6, 6, 6, 1280, 4096, False),
    "50M": (512, 6, 8, 8, 1408, 32000, False),
    "125M": (768, 12, 12, 12, 2048, 32000, False),
    "125M-gqa": (768, 12, 12, 4, 2048, 32000, False),
    "1B": (2048, 16, 32, 8, 8192, 128256, True),
}


def build(torch, size, context):
    nn, F = torch.nn, torch.nn.functional
    hidden, layers, heads, kv_heads, inter, vocab, tied = SIZES[size]
    head_dim = hidden // heads

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x):
            return F.rms_norm(x, (hidden,), self.weight, 1e-5)

    def rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj = nn.Linear(hidden, heads * head_dim, bias=False)
            self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
            self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
            self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)

        def forward(self, x, cos, sin):
            batch, length, _ = x.shape
            q = self.q_proj(x).view(batch, length, heads, head_dim).transpose(1, 2)
            k = self.k_proj(x).view(batch, length, kv_heads, head_dim).transpose(1, 2)
            v = self.v_proj(x).view(batch, length, kv_heads, head_dim).transpose(1, 2)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if kv_heads != heads:
                k = k.repeat_interleave(heads // kv_heads, dim=1)
                v = v.repeat_interleave(heads // kv_heads, dim=1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).reshape(batch, length, heads * head_dim))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj = nn.Linear(hidden, inter, bias=False)
            self.up_proj = nn.Linear(hidden, inter, bias=False)
            self.down_proj = nn.Linear(inter, hidden, bias=False)

        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm = RMSNorm()
            self.self_attn = Attention()
            self.post_attention_layernorm = RMSNorm()
            self.mlp = MLP()

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(vocab, hidden)
            self.layers = nn.ModuleList(Block() for _ in range(layers))
            self.norm = RMSNorm()
            self.lm_head = nn.Linear(hidden, vocab, bias=False)
            if tied:
                self.lm_head.weight = self.embed_tokens.weight
            frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
            angles = torch.outer(torch.arange(context).float(), frequencies)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, targets):
            x = self.embed_tokens(ids)
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            logits = self.lm_head(self.norm(x))
            return F.cross_entropy(logits.float().view(-1, vocab), targets.view(-1))

    return Llama()


def flops_per_token(size, context):
    hidden, layers, heads, kv_heads, inter, vocab, _ = SIZES[size]
    qkv = hidden * (heads + 2 * kv_heads) * (hidden // heads)
    matrices = layers * (qkv + hidden * hidden + 3 * hidden * inter) + vocab * hidden
    norms = (2 * layers + 1) * hidden
    return 6 * (matrices + norms) + 6 * layers * hidden * context


class Trainer:
    """dtype: fp32; autocast (bf16 matrix products with fp32 weights); bf16 (bf16 weights, fp32 master copies)."""

    def __init__(self, torch, args):
        self.torch, self.args, self.device = torch, args, torch.device(args.device)
        torch.manual_seed(1)
        with self.device:
            self.model = build(torch, args.size, args.context)
        self.vocab = SIZES[args.size][5]
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if args.dtype == "bf16":
            self.masters = [p.detach().clone().float().requires_grad_() for p in self.model.parameters()]
            self.model.bfloat16()
        else:
            self.masters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.loss = torch.compile(self.model) if args.compile else self.model
        self.microbatches = max(1, args.step_tokens // (args.microbatch * args.context))

    def step(self, microbatches=None):
        torch, args = self.torch, self.args
        total = 0.0
        for _ in range(microbatches or self.microbatches):
            ids = torch.randint(self.vocab, (args.microbatch, args.context + 1), device=self.device)
            with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "autocast"):
                loss = self.loss(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) / self.microbatches
            loss.backward()
            total += loss.detach()
        if args.dtype == "bf16":
            for master, p in zip(self.masters, self.model.parameters()):
                master.grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        if args.dtype == "bf16":
            with torch.no_grad():
                for master, p in zip(self.masters, self.model.parameters()):
                    p.copy_(master)
        self.model.zero_grad(set_to_none=True)
        return float(total)

    def synchronize(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def device_bytes(self):
        return self.torch.cuda.max_memory_reserved() if self.device.type == "cuda" else 0


def measure(args):
    warnings.filterwarnings("ignore")
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("peer_torch: PyTorch has no GPU here")
    trainer = Trainer(torch, args)
    tokens = trainer.microbatches * args.microbatch * args.context
    for _ in range(args.warmup):
        loss = trainer.step(1)  # one microbatch: compiles, allocates, warms up
    trainer.synchronize()
    start = time.perf_counter()
    for _ in range(args.steps):
        loss = trainer.step()
    trainer.synchronize()
    seconds = (time.perf_counter() - start) / args.steps
    if not math.isfinite(loss):
        sys.exit("peer_torch: the loss is not finite")
    return {
        "size": args.size,
        "context": args.context,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "dtype": args.dtype,
        "compile": args.compile,
        "microbatch": args.microbatch,
        "parameters": trainer.parameters,
        "step_tokens": tokens,
        "step_seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "model_flops": tokens / seconds * flops_per_token(args.size, args.context),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_device_bytes": trainer.device_bytes(),
        "loss": loss,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def in_process(args, dtype, compiled, microbatch, step_tokens, steps):
    """Returns one measurement, made in a separate process; None if it fails, which counts as losing."""
    command = [sys.executable, __file__, "--size", args.size, "--context", str(args.context), "--dtype", dtype,
               "--microbatch", str(microbatch), "--step-tokens", str(step_tokens), "--steps", str(steps),
               "--threads", str(args.threads), "--device", args.device] + (["--compile"] if compiled else [])
    label = f"{dtype}{' compiled' if compiled else ''}, microbatch {microbatch}"
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        print(f"  {label}: longer than {args.timeout} s", file=sys.stderr)
        return None
    if done.returncode:
        print(f"  {label}: failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result = json.loads(done.stdout)
    print(f"  {label}: {result['tokens_per_second']:.0f} tokens/s", file=sys.stderr)
    return result


def best(args):
    """Tries one choice after another with short steps, then measures the winner with full steps."""
    least = 16384 if args.device == "cuda" else 4096  # tokens of a probe
    start = max(1, least // args.context)

    def probe(dtype, compiled, microbatch):
        return in_process(args, dtype, compiled, microbatch, max(least, microbatch * args.context), 1)

    def fastest(results):
        return max((r for r in results if r), key=lambda r: r["tokens_per_second"], default=None)

    top = fastest([probe(dtype, False, start) for dtype in ("fp32", "autocast", "bf16")])
    if not top:
        sys.exit("peer_torch: nothing could be measured")
    top = fastest([top, probe(top["dtype"], True, start)])
    sizes = [m for m in (1, 2, 4, 8, 16) if m != start and m * args.context <= args.step_tokens]
    top = fastest([top] + [probe(top["dtype"], top["compile"], m) for m in sizes])
    final = in_process(args, top["dtype"], top["compile"], top["microbatch"], args.step_tokens, args.steps)
    return final or top


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="125M")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--dtype", choices=("fp32", "autocast", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--microbatch", type=int, default=4, help="sequences")
    parser.add_argument("--step-tokens", type=int, default=STEP_TOKENS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: as PyTorch chooses")
    parser.add_argument("--timeout", type=int, default=900, help="of one measurement with --best, seconds")
    parser.add_argument("--best", action="store_true")
    args = parser.parse_args()
    result = best(args) if args.best else measure(args)
    print(f"PyTorch {result['size']} context {result['context']}: {result['tokens_per_second']:.0f} tokens/s, {result['dtype']}"
          f"{', compiled' if result['compile'] else ''}, microbatch {result['microbatch']},"
          f" {(result['peak_device_bytes'] or result['peak_rss_bytes']) / 2**30:.2f} GiB", file=sys.stderr)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

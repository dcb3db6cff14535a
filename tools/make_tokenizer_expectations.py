#!/usr/bin/env python3
"""Writes tests/support/tokenizer_expectations.h: a small tokenizer for each pattern, nasty texts, and the ids that the Hugging Face
`tokenizers` package gives them.

    python3 -m venv .venv && .venv/bin/pip install tokenizers
    .venv/bin/python tools/make_tokenizer_expectations.py > tests/support/tokenizer_expectations.h
"""
import json
import os
import sys

import tokenizers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tokenizer_texts import NASTY

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
PATTERNS = [("gpt2", None), ("llama3", LLAMA3), ("qwen2", LLAMA3.replace("{1,3}", ""))]
MERGES = 400


def train(pattern):
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern:
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), split])
    tokenizer.pre_tokenizer = split
    tokenizer.train_from_iterator(NASTY, trainers.BpeTrainer(vocab_size=256 + MERGES, show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def c_string(data):
    """Octal escapes always have three digits, so whatever follows cannot join them."""
    plain = set(range(0x20, 0x7F)) - {ord('"'), ord("\\"), ord("?")}
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in data) + '"'


def wrapped(items, width=118):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            yield line
            line = "   "
        line += " " + item + ","
    yield line


def print_pattern(name, pattern):
    tokenizer = train(pattern)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    assert tokenizer.get_vocab_size() == 256 + len(merges), "a merge whose result was there before"
    ids = [tokenizer.token_to_id(half) for pair in merges for half in pair]
    expected = [tokenizer.encode(text).ids for text in NASTY]
    print(f"\nstatic const int {name}_merges[] = {{ /* pairs of ids */")
    print("\n".join(wrapped(map(str, ids))))
    print(f"}};\n\nstatic const int {name}_ids[] = {{ /* each text: how many, then the ids */")
    for encoded in expected:
        print("\n".join(wrapped(map(str, [len(encoded), *encoded]))))
    print("};")


def main():
    print(f"/* Made by tools/make_tokenizer_expectations.py with `tokenizers` {tokenizers.__version__}; not to be edited. */\n// clang-format off")
    print("\nstatic const struct {\n    const char *bytes;\n    size_t length;\n} nasty_texts[] = {")
    for text in NASTY:
        data = text.encode()
        print(f"    {{{c_string(data)}, {len(data)}}},")
    print("};")
    for name, pattern in PATTERNS:
        print_pattern(name, pattern)


main()

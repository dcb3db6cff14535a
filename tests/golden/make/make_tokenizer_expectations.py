#!/usr/bin/env python3
"""Writes tests/support/tokenizer_expectations.h: a small tokenizer for each pattern, difficult texts, and the ids that the Hugging Face
`tokenizers` package gives them; and tests/tokenizer/tokenizer_families.json: the same for the forms of tokenizer_families.py.

    python3 -m venv .venv && .venv/bin/pip install tokenizers
    .venv/bin/python tests/golden/make/make_tokenizer_expectations.py
"""
import contextlib
import json
import os
import sys

import tokenizers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

TESTS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TESTS, "interop"))
import tokenizer_families as forms
from tokenizer_families import LLAMA3, QWEN2
from tokenizer_texts import NASTY

PATTERNS = [("gpt2", None), ("llama3", LLAMA3), ("qwen2", QWEN2)]
MERGES = 400
FAMILY_MERGES = 250


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
    """Octal escapes always have three digits, so that the next character cannot join them."""
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


def family_expectations(form, bases):
    """Returns the form's document without its vocabulary, and the ids of each text. If they decode to another text, also that text, or false
    if it holds a NUL, which weft's JSON refuses."""
    document = forms.document(form, bases[form["base"]])
    reference = Tokenizer.from_str(json.dumps(document))
    reference.encode_special_tokens = True
    cases = []
    for text in NASTY:
        ids = reference.encode(text, add_special_tokens=False).ids
        decoded = reference.decode(ids, skip_special_tokens=False)
        cases.append([ids] if decoded == text else [ids, "\0" not in decoded and decoded])
    document["model"] = {key: value for key, value in document["model"].items() if key not in ("vocab", "merges")}
    return {"base": form["base"], "document": document, "cases": cases}


def write_families(file):
    bases = forms.make_bases(NASTY, FAMILY_MERGES)
    families = {name: family_expectations(form, bases) for name, form in forms.FAMILIES.items()}
    file.write('{"made by": "tests/golden/make/make_tokenizer_expectations.py with tokenizers %s"' % tokenizers.__version__)
    for key, members in (("bases", bases), ("families", families)):
        lines = [json.dumps(name) + ":" + json.dumps(value, separators=(",", ":")) for name, value in members.items()]
        file.write(',\n"%s": {\n%s\n}' % (key, ",\n".join(lines)))
    file.write("}\n")


def write_header():
    print(f"/* Made by tests/golden/make/make_tokenizer_expectations.py with `tokenizers` {tokenizers.__version__}; not to be edited. */\n// clang-format off")
    print("\nstatic const struct {\n    const char *bytes;\n    size_t length;\n} nasty_texts[] = {")
    for text in NASTY:
        data = text.encode()
        print(f"    {{{c_string(data)}, {len(data)}}},")
    print("};")
    for name, pattern in PATTERNS:
        print_pattern(name, pattern)


with open(os.path.join(TESTS, "support", "tokenizer_expectations.h"), "w") as header, contextlib.redirect_stdout(header):
    write_header()
with open(os.path.join(TESTS, "tokenizer", "tokenizer_families.json"), "w") as families:
    write_families(families)

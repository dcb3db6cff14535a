#!/usr/bin/env python3
"""Compares weft's tokenizers with the Hugging Face `tokenizers` package, id by id.

    python3 -m venv .venv && .venv/bin/pip install tokenizers tiktoken
    .venv/bin/python tests/interop/tokenizer_interop.py build/weft [tokenizer.json ...]

Uses the King James Bible (bible-kjv), difficult text and random text. Compares, for each pattern, a tokenizer that weft trains with the
package's own trainer and encoder; the forms of tokenizer.json that model families publish (tokenizer_families.py), encoded and decoded;
each tokenizer.json given; and rank files with tiktoken, if that is installed.
Skipped, with a message and status 77, if `tokenizers` is missing.
"""
import base64
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import tokenizers
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError:
    print("skipped: the Python package `tokenizers` is not installed")
    sys.exit(77)
try:
    import tiktoken
except ImportError:
    tiktoken = None

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tokenizer_families as forms
from tokenizer_families import LLAMA3
from tokenizer_texts import NASTY

TRAINED = {"gpt2": None, "llama3": LLAMA3, "qwen2": forms.QWEN2, "qwen35": forms.QWEN35, "tekken": forms.TEKKEN, "o200k": forms.O200K}

failures = 0


def weft(*arguments, stdin=b""):
    return subprocess.run([WEFT, "tokenizer", *arguments], input=stdin, stdout=subprocess.PIPE, check=True).stdout


def report(name, equal, detail=""):
    global failures
    failures += not equal
    print(("ok    " if equal else "DIFFER"), name, detail, flush=True)


def kjv():
    try:
        return subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdout=subprocess.PIPE, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        print("note: no King James Bible (Debian: bible-kjv); random text takes its place")
        return random_text(7, 1_000_000)


def random_text(seed, length):
    """Draws unusual characters that are assigned in Python's and the regex engines' Unicode versions (before Unicode 14)."""
    pools = ["abcdefgABCDEFG'  ", "0123456789", " \t\r\n\u00a0\u0085\u2028\u3000\u200b\u180e", "'s'T'RE'\u017f",
             "\u00e9\u0142\u00df\u0130", "\u0301\u0323\u20dd", "\u4e2d\u6587\uac00\u0e01", "\U0001F600\u200d\ufe0f\U0001F1E9",
             "\u0663\u00bd\u00b2\u2167", ".,;!?<|>#$%^&*()"]
    rng = random.Random(seed)
    return "".join(rng.choice(rng.choice(pools)) for _ in range(length))


def compare(name, path, text, reference):
    words = path if isinstance(path, tuple) else (path,)
    ours = list(map(int, weft("encode", *words, stdin=text.encode()).split()))
    at = next((i for i, (a, b) in enumerate(zip(ours, reference)) if a != b), min(len(ours), len(reference)))
    equal = ours == reference
    report(name, equal, f"{len(ours)} ids" if equal else f"at token {at}: {ours[at:at + 8]} against {reference[at:at + 8]}")


def compare_decoding(name, path, reference, text):
    """Compares decoding. Invalid UTF-8 is left out: weft keeps such bytes, and the package replaces them."""
    ids = reference.encode(text, add_special_tokens=False).ids
    ours = weft("decode", path, stdin=" ".join(map(str, ids)).encode())
    theirs = reference.decode(ids, skip_special_tokens=False)
    report(f"{name}, decoded", ours.decode(errors="replace") == theirs)


def compare_all(name, path, encode, texts):
    for label, text in texts:
        compare(f"{name}, {label}", path, text, encode(text))


def package(path):
    reference = Tokenizer.from_file(path)
    reference.encode_special_tokens = True
    return reference


def package_encoder(path):
    reference = package(path)
    return lambda text: reference.encode(text, add_special_tokens=False).ids


def package_trainer(pattern, corpus, vocab):
    reference = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern:
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), split])
    reference.pre_tokenizer = split
    reference.decoder = decoders.ByteLevel()
    reference.train_from_iterator([corpus], trainers.BpeTrainer(vocab_size=vocab, show_progress=False,
                                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(reference.to_str())["model"]


def compare_training(directory, bible, texts):
    corpus = os.path.join(directory, "corpus.txt")
    with open(corpus, "w", newline="") as file:
        file.write(bible)
    for name, pattern in TRAINED.items():
        path = os.path.join(directory, name + ".json")
        weft("train", corpus, "--vocab", "4098", "--out", path, "--pattern", name, "--quiet")
        ours, theirs = json.load(open(path))["model"], package_trainer(pattern, bible, 4096)
        merges = [" ".join(pair) for pair in theirs["merges"]]
        same = next((i for i, (a, b) in enumerate(zip(ours["merges"], merges)) if a != b), len(merges))
        report(f"training {name}", ours["merges"] == merges and ours["vocab"] == theirs["vocab"], f"{same} merges agree")
        compare_all(name, path, package_encoder(path), texts)


def compare_variants(directory, path, texts):
    """Compares settings that trained files do not have: normalizer, added tokens that are not special, ignore_merges."""
    document = json.load(open(path))
    vocab = document["model"]["vocab"]
    for i, (content, normalized) in enumerate((("<think>", False), ("  ", True), ("\u00e9\u00e9", True), ("zqx", False), ("zqxzq", False))):
        document["added_tokens"].append({"id": len(vocab) + 2 + i, "content": content, "single_word": False, "lstrip": False,
                                         "rstrip": False, "normalized": normalized, "special": False})
    words = ["Ġ" + "".join(pair) for pair in zip("bcd", "xyz")]  # reachable only as whole pre-tokens
    for word in words:
        for token in document["added_tokens"]:
            token["id"] += 1
        vocab[word] = len(vocab)
    document["normalizer"] = {"type": "NFC"}
    document["model"]["ignore_merges"] = True
    out = os.path.join(directory, "variant.json")
    json.dump(document, open(out, "w"))
    more = "<think>a</think> bx cy dz zqxzq zqxzqx e\u0301e\u0301 \u00e9\u00e9    <|end_of_text|> \u212b A\u030a \u1100\u1161\u11a8"
    compare_all("variant", out, package_encoder(out), [*texts, ("added", more)])


def compare_families(directory, bible, texts):
    """Compares a part of each text without long runs, for which the package takes quadratic time."""
    bases = forms.make_bases([*NASTY, *bible[:300_000].split("\n")], 2000)
    texts = [(label, text[:500_000]) for label, text in texts if label != "long run"]
    for name, form in forms.FAMILIES.items():
        path = os.path.join(directory, "family.json")
        with open(path, "w") as file:
            json.dump(forms.document(form, bases[form["base"]]), file)
        compare_all(name, path, package_encoder(path), texts)
        for text in ("\n".join(NASTY), random_text(3, 20_000), bible[:20_000]):
            compare_decoding(name, path, package(path), text)


def compare_ranks(directory, path, texts):
    """Compares the vocabulary of a trained tokenizer, as a tiktoken rank file."""
    if tiktoken is None:
        print("note: the Python package `tiktoken` is not installed; rank files are not compared")
        return
    characters = {}
    moved = 0
    for byte in range(256):
        plain = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte
        characters[chr(byte if plain else 0x100 + moved)] = byte
        moved += not plain
    vocab = json.load(open(path))["model"]["vocab"]
    ranks = {bytes(characters[c] for c in token): i for i, token in enumerate(sorted(vocab, key=vocab.get))}
    out = os.path.join(directory, "ranks.tiktoken")
    with open(out, "wb") as file:
        for token, rank in ranks.items():
            file.write(base64.b64encode(token) + b" %d\n" % rank)
    reference = tiktoken.Encoding("ranks", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    compare_all("tiktoken", (out, "--pattern", "llama3"), lambda text: reference.encode(text, disallowed_special=()), texts)


def main():
    bible = kjv()
    texts = [("KJV", bible), ("nasty", "\n".join(NASTY)), ("nasty without newlines", "".join(NASTY)),
             ("random", random_text(1, 300_000)), ("long run", "a" * 100_000 + "\u0142" * 100_000 + " " * 100_000)]
    print(f"tokenizers {tokenizers.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        compare_training(directory, bible, texts)
        compare_variants(directory, os.path.join(directory, "qwen2.json"), texts)
        compare_families(directory, bible, texts)
        compare_ranks(directory, os.path.join(directory, "llama3.json"), texts)
        for path in sys.argv[2:]:
            compare_all(path, path, package_encoder(path), texts)
            compare_decoding(path, path, package(path), "\n".join(NASTY))
    print(f"{failures} differ")
    return failures > 0


if len(sys.argv) < 2:
    sys.exit(__doc__)
WEFT = sys.argv[1]
sys.exit(main())

"""Tokenizers in the forms that model families publish, with vocabularies trained on the spot; shared by tokenizer_interop.py and
make_tokenizer_expectations.py. A form is a tokenizer.json without vocabulary and merges, which come from one of three bases:

    bytes       byte-level, merges across anything, so that a pattern that splits elsewhere gives other ids
    characters  like SentencePiece, with byte fallback, merges across anything
    words       the same, but no merge across the beginning of a word or of a line, as SentencePiece trains it
"""
import json

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}|\p{{N}}{{1,3}}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# As in the published files: newlines and Chinese characters are not escaped.
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^RN\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[RN]*|\s*[RN]+"""
             r"|\s+(?!\S)|\s+").replace("RN", "\r\n")
CHINESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"

MARK = "\u2581"


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def byte_level(use_regex=False, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def pre(*steps):
    return sequence("pretokenizers", *steps)


def replace(string, content):
    return {"type": "Replace", "pattern": {"String": string}, "content": content}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


def added(content, special=False, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special,
            **flags}


def spaces_back(strip):
    steps = [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    return sequence("decoders", *steps, *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else []))


LLAMA2_NORMALIZER = sequence("normalizers", {"type": "Prepend", "prepend": MARK}, replace(" ", MARK))
THINK = [added("<think>"), added("</think>"), added("<|im_start|>", special=True)]


def family(base, pre_tokenizer, normalizer=None, decoder=None, added=(), **model):
    decoder = decoder or byte_level(True, True)
    return {"base": base, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder, "added": list(added),
            "model": model}


FAMILIES = {
    "gpt2": family("bytes", byte_level(True)),
    "gpt2 with a prefix": family("bytes", byte_level(True, True)),
    "llama3": family("bytes", pre(split(LLAMA3), byte_level()), ignore_merges=True),
    "qwen2": family("bytes", pre(split(QWEN2), byte_level()), {"type": "NFC"}, added=THINK),
    "qwen3.5": family("bytes", pre(split(QWEN35), byte_level()), {"type": "NFC"}, added=THINK),
    "olmo": family("bytes", byte_level(True), {"type": "NFC"}),
    "olmo2": family("bytes", pre(split(LLAMA3, "Removed", True), byte_level())),
    "smollm": family("bytes", pre({"type": "Digits", "individual_digits": True}, byte_level(True))),
    "digits together": family("bytes", pre({"type": "Digits", "individual_digits": False}, byte_level(True))),
    "tekken": family("bytes", pre(split(TEKKEN), byte_level()), ignore_merges=True),
    "gpt-oss": family("bytes", pre(split(O200K), byte_level())),
    "deepseek3": family("bytes", pre(split(r"\p{N}{1,3}"), split(CHINESE), split(DEEPSEEK3), byte_level()),
                        sequence("normalizers"), added=[added("<\uff5cUser\uff5c>"), added("<think>", normalized=True)]),
    "deepseek coder": family("bytes", pre(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(EAST_ASIAN),
                                          {"type": "Digits", "individual_digits": True}, byte_level()), sequence("normalizers")),
    "deepseek punctuation": family("bytes", pre(split("[\r\n]"), split(r"\s?\p{L}+"), split(PUNCTUATION), split(r"\s+$"),
                                                split(EAST_ASIAN), {"type": "Digits", "individual_digits": True}, byte_level())),
    "claude": family("bytes", byte_level(True), {"type": "NFKC"}),
    "forms": family("bytes", byte_level(True), sequence("normalizers", {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "NFC"})),
    "form D": family("bytes", byte_level(True), {"type": "NFD"}),
    "llama2": family("words", None, LLAMA2_NORMALIZER, spaces_back(True)),
    "llama2, merges across words": family("characters", None, LLAMA2_NORMALIZER, spaces_back(True)),
    "mistral": family("words", metaspace("first", False), None, spaces_back(True), added=[added("[INST]", special=True)]),
    "mistral, merges across words": family("characters", metaspace("first", False), None, spaces_back(True), ignore_merges=True),
    "phi3": family("words", None, LLAMA2_NORMALIZER, spaces_back(True),
                   added=[added("<|user|>", rstrip=True), added("<|end|>", rstrip=True), added("<|endoftext|>", special=True)]),
    "gemma": family("characters", {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                    replace(" ", MARK), spaces_back(False), added=[added("\n\n"), added(MARK * 2), added("<table>")]),
    "metaspace": family("words", metaspace("always", True), None, sequence("decoders", {"type": "ByteFallback"}, metaspace("always", True)),
                        ignore_merges=True),
    "metaspace without prefix": family("characters", metaspace("never", True), None, spaces_back(False)),
    "all normalizers": family("words", metaspace("always", True), sequence(
        "normalizers", {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "NFKC"}, {"type": "Lowercase"},
        replace("x", "y z")), spaces_back(True), added=[added("WE", normalized=True)]),
    "added": family("words", None, LLAMA2_NORMALIZER, spaces_back(True), added=[
        added("it", single_word=True), added("left", lstrip=True), added("both", lstrip=True, rstrip=True), added("norm", normalized=True),
        added("<|x|>", special=True), added("x|"), added("|>", rstrip=True), added(" y")]),
}


def bytes_base(texts, merges):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=256 + merges, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=16))
    return model_of(t)


def characters_base(texts, merges, words):
    """Without U+0000, which weft's JSON refuses in names; no published vocabulary has it."""
    texts = [text.replace("\0", "") for text in texts]
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    if words:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(MARK, "merged_with_next"),
                                                   pre_tokenizers.Split(Regex("\n+"), "isolated")])
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=len(first) + 90 + merges, show_progress=False, special_tokens=first,
                                                     limit_alphabet=90, max_token_length=16))
    return model_of(t)


def model_of(tokenizer):
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": model["merges"]}


def make_bases(texts, merges):
    """Trains the bases on text that does not spell special or byte tokens: `tokenizers` would learn merges to them, which weft drops."""
    texts = [text for text in texts if "<s>" not in text and "<0x" not in text and "<unk>" not in text]
    return {"bytes": bytes_base(texts, merges), "characters": characters_base(texts, merges, False),
            "words": characters_base(texts, merges, True)}


def document(form, base):
    """Returns the tokenizer.json of a form, as a dictionary."""
    characters = form["base"] != "bytes"
    tokens = [added(name, special=True) for name in ("<unk>", "<s>", "</s>")] if characters else []
    tokens += form["added"]
    vocab = base["vocab"]
    spare = len(vocab)
    listed = []
    for token in tokens:
        id = vocab.get(token["content"])
        if id is None:
            id, spare = spare, spare + 1
        listed.append({"id": id, **token})
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>" if characters else None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": characters, "byte_fallback": characters, "ignore_merges": False, **form["model"],
             **base}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, "normalizer": form["normalizer"],
            "pre_tokenizer": form["pre_tokenizer"], "post_processor": None, "decoder": form["decoder"], "model": model}

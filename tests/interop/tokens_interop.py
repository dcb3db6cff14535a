"""Exported token files as other programs read them: numpy.load, and Megatron's layout read with numpy as its IndexedDataset does. Usage:
tokens_interop.py WEFT. Ends with 77 where NumPy is missing."""
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

weft = sys.argv[1]
random.seed(3)
texts = ["".join(random.choice("abc dé\n中🙂") for _ in range(random.randrange(1, 200))) for _ in range(500)]
BOS, EOS = 256, 257  # of the tokenizer bytes
wanted = [[BOS, *text.encode(), EOS] for text in texts]


def run(folder, *words):
    ended = subprocess.run([weft, "tokenize", "run.yaml", *words], capture_output=True, text=True, cwd=folder)
    if ended.returncode:
        sys.exit(f"{words}: {ended.stderr}")


def read_megatron(prefix):
    """As megatron.core.datasets.indexed_dataset reads an index."""
    with open(prefix + ".idx", "rb") as f:
        if f.read(9) != b"MMIDIDX\0\0" or struct.unpack("<Q", f.read(8)) != (1,):
            sys.exit("no index of Megatron")
        dtype = {4: np.int32, 8: np.uint16}[struct.unpack("<B", f.read(1))[0]]
        sequences, documents = struct.unpack("<QQ", f.read(16))
        rest = f.read()
    lengths = np.frombuffer(rest, np.int32, sequences)
    pointers = np.frombuffer(rest, np.int64, sequences, lengths.nbytes)
    firsts = np.frombuffer(rest, np.int64, documents, lengths.nbytes + pointers.nbytes)
    if lengths.nbytes + pointers.nbytes + firsts.nbytes != len(rest) or list(firsts) != list(range(sequences + 1)):
        sys.exit("the index has other documents than sequences, or bytes behind them")
    data = np.fromfile(prefix + ".bin", np.uint8)
    return [np.frombuffer(data, dtype, n, p).tolist() for n, p in zip(lengths, pointers)]


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "run.yaml").write_text("data: {sources: [a.jsonl], tokenizer: bytes}\n")
    run(folder, "--export", "npy", "--out", "ids")
    ids = np.load(folder / "ids/train-0.npy")
    if ids.dtype != np.uint16 or ids.tolist() != [id for document in wanted for id in document]:
        sys.exit("train-0.npy has other ids")
    run(folder, "--export", "megatron", "--out", "ids")
    if read_megatron(str(folder / "ids/train-0")) != wanted:
        sys.exit("train-0.bin has other documents")
    print(f"{len(wanted)} documents, {len(ids)} tokens read by numpy {np.__version__}")

#!/usr/bin/env python3
"""Checks that weft eval --tasks gives the figures of EleutherAI's lm-evaluation-harness, document by document.

    tests/interop/interop_eval.py [--weft build/weft] [--require]

Generates 100 documents for each task, including odd ones: spaces before and after, brackets, newlines, letters beyond ASCII, texts longer
than the context. A tiny model that weft trained is evaluated by weft and, through transformers, by the harness, which runs its own task
files with these documents in place of its data sets. Compares the log-likelihood of every choice, acc, acc_norm, perplexities and the
standard errors of the accuracies; again with a BOS before each context, and with examples before each question.
Exits with 77 (a skipped test) and a message if lm_eval, torch or transformers is missing; with --require that is a failure."""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
DOCUMENTS, CONTEXT = 100, 96
# Few-shot examples need a longer context; some questions still lose tokens.
SHOTS, LONG_CONTEXT = 3, 256
# Sums over up to 96 tokens of fp32 log-softmaxes of logits that agree to some 1e-5.
SUM_TOLERANCE = 2e-3
# For two choices closer than this, either may win.
TIE = 1e-4
# weft's names, and the harness's.
TASKS = {"hellaswag": "hellaswag", "arc_easy": "arc_easy", "arc_challenge": "arc_challenge", "piqa": "piqa", "sciq": "sciq",
         "openbookqa": "openbookqa", "boolq": "boolq", "winogrande": "winogrande", "social_iqa": "social_iqa",
         "commonsense_qa": "commonsense_qa", "mmlu": "mmlu_anatomy", "lambada": "lambada_openai", "text": "wikitext"}
WORDS = ("the light and dark of day night sea land was made good very many seed tree fruit Über naïve straße 東京 привет "
         "x_y 3.14 don't “so” - [title] [a] ...").split()
failures = []


def check(condition, what):
    print(("ok    " if condition else "FAIL  ") + what, flush=True)
    if not condition:
        failures.append(what)


# ---- documents ----

def some(rng, least, most):
    words = [rng.choice(WORDS) for _ in range(rng.randint(least, most))]
    return "".join(word + rng.choice([" "] * 12 + ["  ", "\n", ", "]) for word in words).strip() or "word"


def odd(rng, text):
    """Adds spaces where data sets sometimes have them."""
    return rng.choice([text] * 8 + [" " + text, text + " ", text + "\u00a0", "\n" + text])


def lettered(rng, count):
    return {"text": [odd(rng, some(rng, 1, 4)) for _ in range(count)], "label": [chr(65 + i) for i in range(count)]}


def arc(rng):
    choices = lettered(rng, rng.choice([3, 4, 5]))
    if rng.random() < 0.3:
        choices["label"] = [str(i + 1) for i in range(len(choices["text"]))]
    return {"id": "x", "question": odd(rng, some(rng, 2, 12)), "choices": choices, "answerKey": rng.choice(choices["label"])}


def openbook(rng):
    choices = lettered(rng, 4)
    return {"id": "x", "question_stem": odd(rng, some(rng, 1, 9)), "choices": choices, "answerKey": rng.choice(choices["label"])}


def hellaswag(rng):
    return {"activity_label": some(rng, 1, 2), "ctx_a": odd(rng, some(rng, 2, 12)), "ctx_b": rng.choice(["", some(rng, 1, 3)]),
            "endings": [odd(rng, some(rng, 1, 7)) for _ in range(4)], "label": str(rng.randrange(4))}


def piqa(rng):
    return {"goal": odd(rng, some(rng, 1, 8)), "sol1": odd(rng, some(rng, 1, 9)), "sol2": odd(rng, some(rng, 1, 9)),
            "label": rng.randrange(2)}


def sciq(rng):
    return {"support": rng.choice(["", " ", odd(rng, some(rng, 3, 30))]), "question": some(rng, 3, 8),
            "distractor1": some(rng, 1, 2), "distractor2": some(rng, 1, 2), "distractor3": some(rng, 1, 2),
            "correct_answer": some(rng, 1, 2)}


def boolq(rng):
    return {"passage": odd(rng, some(rng, 3, 60)), "question": some(rng, 2, 6), "idx": 0, "label": rng.randrange(2)}


def winogrande(rng):
    plain = [word for word in WORDS if "_" not in word]
    before, after = ([rng.choice(plain) for _ in range(rng.randint(2, 7))] for _ in range(2))
    return {"sentence": " ".join(before) + rng.choice([" _ ", " _. ", " _'s "]) + " ".join(after) + rng.choice([".", ". ", ""]),
            "option1": rng.choice(plain), "option2": rng.choice(plain), "answer": rng.choice(["1", "2"])}


def social(rng):
    return {"context": some(rng, 2, 9), "question": some(rng, 2, 5), "answerA": some(rng, 1, 4), "answerB": some(rng, 1, 4),
            "answerC": some(rng, 1, 4), "label": rng.choice(["1", "2", "3"])}


def commonsense(rng):
    return {"id": "x", "question": odd(rng, some(rng, 2, 9)), "question_concept": "x", "choices": lettered(rng, 5),
            "answerKey": rng.choice("ABCDE")}


def mmlu(rng):
    return {"question": odd(rng, some(rng, 2, 12)), "subject": "anatomy", "choices": [some(rng, 1, 3) for _ in range(4)],
            "answer": rng.randrange(4)}


def lambada(rng):
    return {"text": some(rng, 2, 40).replace("\n", " ")}


def text(rng):
    return {"page": odd(rng, some(rng, 1, rng.choice([3, 150])))}


MAKERS = {"hellaswag": hellaswag, "arc_easy": arc, "arc_challenge": arc, "piqa": piqa, "sciq": sciq, "openbookqa": openbook,
          "boolq": boolq, "winogrande": winogrande, "social_iqa": social, "commonsense_qa": commonsense, "mmlu": mmlu,
          "lambada": lambada, "text": text}


def write_file(work, task, suffix, documents, ascii_only):
    for_harness = [json.dumps(document) for document in documents]
    (work / f"harness-{task}{suffix}.jsonl").write_text("\n".join(for_harness) + "\n", encoding="utf-8")
    if task == "text":
        documents = [{"text": document["page"]} for document in documents]
    mine = [json.dumps(document, ensure_ascii=ascii_only) for document in documents]
    (work / f"{task}{suffix}.jsonl").write_text("\n".join(mine) + "\n", encoding="utf-8")


def write_documents(work):
    for number, (task, make) in enumerate(MAKERS.items()):
        rng = random.Random(number)
        write_file(work, task, "", [make(rng) for _ in range(DOCUMENTS)], number % 2 == 0)
        write_file(work, task, "-examples", [make(rng) for _ in range(SHOTS + 2)], number % 2 == 1)


# ---- weft ----

def run(*words, cwd):
    done = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr[-800:]}")
    return done.stdout


def train(weft, work):
    rng = random.Random(99)
    (work / "text.txt").write_text("\n\n".join(some(rng, 5, 60) for _ in range(400)), encoding="utf-8")
    run(weft, "tokenizer", "train", "text.txt", "--vocab", "400", "--out", "tokenizer.json", cwd=work)
    (work / "run.yaml").write_text(f"""
model: {{hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}}
data: {{sources: [{{path: text.txt, split: paragraphs}}], tokenizer: tokenizer.json, cache_dir: cache}}
train: {{steps: 60, context: {CONTEXT}, microbatch: 8, compute: fp32}}
optimizer: {{lr: 1e-2}}
lr_schedule: {{warmup_steps: 5}}
metrics: {{tensorboard: false}}
run: {{dir: run, threads: 2}}
evaluation:
  tasks: [{", ".join(f"{task}.jsonl" for task in MAKERS)}]
""", encoding="utf-8")
    run(weft, "train", "run.yaml", cwd=work)
    return work / "run" / "checkpoints" / "latest"


def ours(weft, work, model, tasks, add_bos, shots):
    def source(task):
        return f"{{path: {task}.jsonl, num_fewshot: {shots}, examples: {task}-examples.jsonl}}" if shots else f"{task}.jsonl"
    sources = ", ".join(source(task) for task in tasks)
    (work / "tasks.yaml").write_text(f"evaluation: {{add_bos: {str(add_bos).lower()}, tasks: [{sources}]}}\n", encoding="utf-8")
    out = run(weft, "eval", model, "--tasks", "tasks.yaml", "--compute", "fp32", "--batch", "4", "--json", "--samples",
              "samples.jsonl", "--context", LONG_CONTEXT if shots else CONTEXT, cwd=work)
    samples = {}
    for line in (work / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        samples.setdefault(sample["name"], []).append(sample)
    return json.loads(out)["tasks"], samples


# ---- the harness ----

def configuration(manager, task, work, shots):
    """Returns the harness's own task file, with our documents in place of its data set."""
    from lm_eval.tasks._yaml_loader import load_yaml
    config = dict(load_yaml(manager.task_index[TASKS[task]].yaml_path, resolve_func=True))
    split = config.get("test_split") or config.get("validation_split")
    for key in ("training_split", "validation_split", "fewshot_split", "dataset_name", "tag", "group", "include"):
        config.pop(key, None)
    files = {split: str(work / f"harness-{task}.jsonl")}
    if shots:
        files["examples"] = str(work / f"harness-{task}-examples.jsonl")
        config.update(fewshot_split="examples", fewshot_config={**(config.get("fewshot_config") or {}), "sampler": "first_n"})
    config.update(task=task, dataset_path="json", dataset_kwargs={"data_files": files}, test_split=split, num_fewshot=shots)
    return config


def with_bos(work, model):
    """Makes a copy of the model whose tokenizer puts the BOS before a text, as Llama's do."""
    copy = work / "with-bos"
    shutil.copytree(model, copy)
    path = copy / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    bos = json.loads((copy / "tokenizer_config.json").read_text(encoding="utf-8"))["bos_token"]
    number = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == bos)
    first, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [first, text],
                                   "pair": [first, text, {"Sequence": {"id": "B", "type_id": 0}}],
                                   "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}}}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return copy


def theirs(work, model, tasks, shots):
    import torch
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    torch.set_num_threads(2)
    manager = TaskManager()
    lm = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=1, max_length=LONG_CONTEXT if shots else CONTEXT)
    results = simple_evaluate(model=lm, tasks=[configuration(manager, task, work, shots) for task in tasks],
                              task_manager=manager, log_samples=True, bootstrap_iters=1000)
    return results["results"], results["samples"]


# ---- comparing ----

def sums_of(task, sample):
    responses = [response[0] if isinstance(response[0], (list, tuple)) else response for response in sample["resps"]]
    if task == "text":
        value = responses[0]
        return [value[0] if isinstance(value, (list, tuple)) else value]
    return [float(response[0]) for response in responses]


def near_ties(task, samples, documents):
    """Counts the documents whose answer depends on last bits."""
    count = 0
    for sample, document in zip(samples, documents):
        sums = sorted(sample["sums"], reverse=True)
        count += len(sums) > 1 and sums[0] - sums[1] < TIE
        del document
    return count


def compare(task, our, samples, result, their_samples, what):
    their_samples = sorted(their_samples, key=lambda sample: sample["doc_id"])
    check(our["documents"] == len(their_samples) == DOCUMENTS, f"{what}: {our['documents']} and {len(their_samples)} documents")
    worst = max(abs(a - b) for mine, sample in zip(samples, their_samples) for a, b in zip(mine["sums"], sums_of(task, sample)))
    counts = all(len(mine["sums"]) == len(sums_of(task, sample)) for mine, sample in zip(samples, their_samples))
    check(counts and worst < SUM_TOLERANCE, f"{what}: log-likelihoods differ by at most {worst:.2g}")
    ties = near_ties(task, samples, their_samples)
    for figure in ("acc", "acc_norm"):
        mine, other = our.get(figure), result.get(f"{figure},none")
        if other is None and mine is None:
            continue
        check(other is not None and mine is not None, f"{what}: both have {figure}: {mine}, {other}")
        if mine is None or other is None:
            continue
        check(abs(mine - other) < 1e-9 + ties / DOCUMENTS, f"{what}: {figure} {mine:.4f}, {other:.4f} ({ties} near ties)")
        error = result[f"{figure}_stderr,none"]
        check(ties > 0 or abs(our[f"{figure}_stderr"] - error) < 1e-9, f"{what}: {figure}_stderr {error:.5f}")
    for figure in ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"):
        other = result.get(f"{figure},none")
        if other is not None:
            check(abs(our[figure] - other) < 1e-4 * other, f"{what}: {figure} {our[figure]:.5f}, {other:.5f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--weft", default="build/weft", type=pathlib.Path)
    parser.add_argument("--require", action="store_true")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        import lm_eval  # noqa: F401  pylint: disable=unused-import
        import torch  # noqa: F401  pylint: disable=unused-import
        import transformers  # noqa: F401  pylint: disable=unused-import
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(1 if args.require else SKIPPED)
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        os.environ["HF_HOME"] = str(work / "hf")
        write_documents(work)
        model = train(args.weft.resolve(), work)
        for add_bos, shots in ((False, 0), (True, 0), (False, SHOTS)):
            # With a tokenizer that adds a BOS, the harness scores a second one in rolling texts; weft does not. Those tasks take no examples.
            tasks = [task for task in MAKERS if not ((add_bos or shots) and task == "text")]
            mine, samples = ours(args.weft.resolve(), work, model, tasks, add_bos, shots)
            result, their_samples = theirs(work, with_bos(work, model) if add_bos else model, tasks, shots)
            check(sum(task["truncated"] for task in mine.values()) > 20, "contexts are cut")
            for task in tasks:
                what = task + (", with BOS" if add_bos else "") + (f", {shots} examples" if shots else "")
                compare(task, mine[task], samples[task], result[task], their_samples[task], what)
    if failures:
        sys.exit(f"{len(failures)} failures")
    print("all as the harness has it")


if __name__ == "__main__":
    main()

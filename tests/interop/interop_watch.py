#!/usr/bin/env python3
"""Tests the page of weft watch in a real browser: headless Chromium, controlled over its debugging pipe.

    tests/interop/interop_watch.py --weft build/weft [--shots DIRECTORY]

The page must follow a run without being reloaded; show two runs in one chart; work in light and dark, in a wide window and on a phone; and
handle names and texts that are markup, and a server that goes away. The browser's console must stay empty. Exits with 77 (a skipped test)
without Chromium, 1 if something is wrong. --shots keeps screenshots."""
import argparse
import base64
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
PATIENCE = 300  # seconds; keeps a test from hanging forever, no verdict depends on it
CONFIG = """
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes, validation: [{path: text.txt, name: held}]}
train: {steps: 100000000, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {warmup_steps: 20, total_steps: 20000}
validation: {every: 500, samples: 4}
evaluation: {every: 1000, tasks: [piqa.jsonl]}
checkpoint: {every: 5000, keep: 2}
metrics: {tensorboard: false, log_freq: 20}
run: {threads: 1}
"""


class Browser:
    """Chromium's DevTools protocol: NUL-terminated JSON on descriptors 3 (to the browser) and 4 (from it)."""

    def __init__(self, program, profile):
        to_read, self.out = os.pipe()
        self.back, from_write = os.pipe()
        # The browser expects its ends of the pipes as descriptors 3 and 4; a shell puts them there.
        script = f'exec 3<&{to_read} 4>&{from_write}; exec "$@"'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *options, "about:blank"],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self.buffer, self.ids, self.complaints = b"", itertools.count(1), []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def call(self, method, **parameters):
        message = {"id": next(self.ids), "method": method, "params": parameters}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]

    def next_message(self):
        while b"\0" not in self.buffer:
            data = os.read(self.back, 1 << 16)
            if not data:
                sys.exit("the browser has ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        event = json.loads(message)
        if event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(event["params"])[:600])
        return event

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            sys.exit(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            if time.monotonic() > end:
                sys.exit(f"timed out waiting for {expression}; the page: {self.value('document.body.innerText')[:2000]}")
            time.sleep(0.2)

    def look(self, width, height, dark, shot):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.until("document.querySelector('#chart-loss path.line') !== null")
        wide = self.value("document.documentElement.scrollWidth")
        if wide > width:
            sys.exit(f"the page is {wide} pixels wide in a window of {width}")
        ground = self.value("getComputedStyle(document.body).backgroundColor")
        if shot:
            whole = self.value("document.documentElement.scrollHeight")
            self.call("Emulation.setDeviceMetricsOverride", width=width, height=whole, deviceScaleFactor=1, mobile=width < 600)
            time.sleep(0.3)
            shot.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return ground

    def close(self):
        self.process.kill()
        self.process.wait()


def start_watch(weft, *words):
    server = subprocess.Popen([weft, "watch", "--port", "0", *words], stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip()


def train(weft, run, *words):
    return subprocess.Popen([weft, "train", "run.yaml", f"run.dir={run}", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def stop(process, expected):
    process.send_signal(signal.SIGTERM)
    if process.wait() != expected:
        sys.exit(f"{process.args}: exit status {process.returncode}")


PIQA = {"goal": "line 3 of a", "sol1": "text", "sol2": "lext", "label": 0}
# The chart of a named set or a task: charts are found by their titles.
NAMED = "'#' + [...document.querySelectorAll('figure')].find((f) => f.querySelector('b').textContent === '%s')?.id"
STEP = "Number(document.querySelector('.card dd').firstChild.textContent.replaceAll(',', ''))"


def follow(browser, weft):
    """Follows one run from before its first step, through a stop and a restart."""
    pathlib.Path("runs/base").mkdir(parents=True)
    server, address = start_watch(weft, "runs/base")
    browser.call("Page.navigate", url=address)
    browser.until("document.querySelector('.card .state')?.textContent === 'no steps yet'")
    browser.value("window.loadedOnce = true")
    run = train(weft, "runs/base")
    browser.until("document.querySelector('.card .state').textContent === 'running'")
    browser.until(f"{STEP} > 1500 && document.querySelectorAll('#chart-loss circle').length > 1")
    first = browser.value(STEP)
    browser.until(f"{STEP} > {first}")
    for title in ("held", "piqa"):
        browser.until(f"document.querySelectorAll({NAMED % title} + ' circle').length > 1")
    stop(run, 75)
    browser.until("document.querySelector('.card .state').textContent === 'stopped'")
    browser.until("document.querySelector('#journal').textContent.includes('checkpoint')")
    last = browser.value(STEP)
    run = train(weft, "runs/base")
    browser.until(f"document.querySelector('.card .state').textContent === 'running' && {STEP} > {last}")
    stop(run, 75)
    if not browser.value("window.loadedOnce"):
        sys.exit("the page was loaded again")
    browser.value("document.querySelector('summary').click()")
    browser.until("document.querySelector('pre').textContent.includes('optimizer:')")
    browser.value("document.querySelector('#log').click()")
    browser.until("document.querySelector('#chart-loss path.line') !== null")
    stop(server, 0)
    browser.until("!document.querySelector('#lost').hidden")
    return address


def compare(browser, weft, shots):
    """Shows runs in one chart, one of them with a malicious name, with a token, in all layouts."""
    for run, rate in (("lr", "3e-3"), ("<img src=x onerror=alert(1)>", "5e-4")):
        if train(weft, f"runs/{run}", "train.steps=3000", f"optimizer.lr={rate}").wait() != 0:
            sys.exit(f"the run {run} failed")
    journal = pathlib.Path("runs/lr/journal.jsonl")
    with journal.open("a", encoding="utf-8") as lines:
        lines.write('{"time": "9", "event": "spike", "step": 1, "detail": "<script>alert(2)</script>"}\n')
    server, address = start_watch(weft, "--token", "runs/base", "runs/lr", "runs/<img src=x onerror=alert(1)>")
    browser.call("Page.navigate", url=address)
    browser.until("document.querySelectorAll('.card').length === 3")
    browser.until("document.querySelectorAll('#chart-loss path.line').length === 3")
    for title in ("held", "piqa"):
        browser.until(f"document.querySelectorAll({NAMED % title} + ' path.line').length === 3")
    if not browser.value("document.querySelector('#chart-z_loss').hidden && document.querySelector('#chart-noise').hidden"):
        sys.exit("there is a chart of what no run has recorded")
    if browser.value("document.images.length + document.querySelectorAll('main script').length"):
        sys.exit("a text of a run has become markup")
    if not browser.value("document.body.textContent.includes('<script>alert(2)</script>')"):
        sys.exit("a detail of the journal is not shown as it is")
    looks = {}
    for name, width, height, dark in (("wide", 1280, 900, False), ("wide-dark", 1280, 900, True), ("phone", 390, 844, False), ("phone-dark", 390, 844, True)):
        looks[name] = browser.look(width, height, dark, shots / f"watch-{name}.png" if shots else None)
    if looks["wide"] == looks["wide-dark"]:
        sys.exit("the page has no dark look")
    browser.value("document.querySelectorAll('#runs button')[1].click()")
    browser.until("document.querySelectorAll('.card').length === 2")
    browser.value("document.querySelector('#chart-loss svg').dispatchEvent(new PointerEvent('pointermove', {clientX: 200, clientY: 100}))")
    browser.until("document.querySelector('#chart-loss output').textContent.startsWith('step')")
    stop(server, 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", required=True)
    parser.add_argument("--shots", type=pathlib.Path)
    args = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("skipped: there is no chromium (tools/setup.sh interop, on Debian)")
        sys.exit(SKIPPED)
    weft = os.path.realpath(args.weft)
    shots = args.shots.resolve() if args.shots else None
    if shots:
        shots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        pathlib.Path("run.yaml").write_text(CONFIG, encoding="utf-8")
        pathlib.Path("text.txt").write_text("".join(f"line {i * i % 97} of a text\n\n" for i in range(300)), encoding="utf-8")
        pathlib.Path("piqa.jsonl").write_text((json.dumps(PIQA) + "\n") * 4, encoding="utf-8")
        browser = Browser(program, f"{directory}/profile")
        try:
            gone = follow(browser, weft)
            compare(browser, weft, shots)
            # The browser's own message about a server that has ended is not an error of the page.
            complaints = [c for c in browser.complaints if not ("net::ERR_" in c and gone + "data?" in c)]
            if complaints:
                sys.exit("on the browser's console: " + "\n".join(complaints))
        finally:
            browser.close()
            os.chdir("/")
    print("the page follows a run, shows several, and says nothing on the console")


if __name__ == "__main__":
    main()

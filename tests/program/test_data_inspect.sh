#!/bin/bash
# weft data inspect says what training reads: formats, figures and refusals of every kind of file.
. "$(dirname "$0")/../support/prelude.sh"

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data:
  sources: [{path: d/a.txt, split: paragraphs}, d/some.jsonl, {path: d/rows.bin, column: text}, {path: d/ids.bin, format: tokens, dtype: uint16}]
  cache_dir: cache
  tokenizer: bytes
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1}
END
fixtures=$WEFT_SOURCE_DIR/tests/fuzz/corpus/parquet
mkdir -p d/below
printf 'one\n\ntwo \033[31mred\n' >d/a.txt
for i in 1 2 3 2; do echo "{\"text\": \"line $i of many\"}"; done >d/some.jsonl
cp "$fixtures/dictionary-snappy" d/rows.bin
printf 'a\0b\0\1\1' >d/ids.bin # 97 98 257

# inspected STATUS WORD...: output in `out`.
inspected() {
    local status=$1
    shift
    exits "$status" data inspect "$@"
}
says() { grep -qF -- "$1" out || fail "no \"$1\" in: $(cat out err)"; }
says_not() { ! grep -qF -- "$1" out || fail "\"$1\" in: $(cat out)"; }
refuses() { grep -qF -- "$1" err || fail "no \"$1\" in: $(cat err)"; }

# ---- the page's loop over a folder of PDFs, as written ----
mkdir pdfs bin
echo "%PDF-1.4 a page" >pdfs/one.pdf
echo "%PDF-1.4 a page" >"pdfs/two words.pdf"
printf '#!/bin/sh\n[ "$1 $2" = "-enc UTF-8" ] && sed "s/.*/the text of $(basename "$3")/" "$3" >"$4"\n' >bin/pdftotext
printf '#!/bin/sh\nexec "%s" "$@"\n' "$weft" >bin/weft
chmod +x bin/pdftotext bin/weft
sed -n '/^    mkdir -p texts/,/^    weft data inspect texts/p' "$WEFT_SOURCE_DIR/docs/use/data-formats.md" >loop.sh
PATH=$PWD/bin:$PATH bash -e loop.sh >out 2>err || fail "the loop over PDFs ends with $?: $(cat err)"
says "total of 2 files"
says "the text of two words.pdf"
says "documents   2"

# ---- the figures are those of training ----
inspected 0 run.yaml
says "total of 4 files"
total=$(sed -n '/^total/,$s/^  tokens *\([0-9,]*[0-9]\).*/\1/p' out)
documents=$(sed -n '/^total/,$s/^  documents *\([0-9,]*[0-9]\).*/\1/p' out)
exits 0 tokenize run.yaml
grep -q "^tokens  *$total for training" out || fail "inspect counts $total tokens: $(cat out)"
trained=$(sed -n 's/.* file, \([0-9]*\) documents\{0,1\},.*/\1/p' out | paste -sd+)
[ $((trained)) = "$documents" ] || fail "inspect counts $documents documents, training $trained"

# ---- each kind of file ----
inspected 0 d/a.txt --split paragraphs
says "format      text (no other format by its name)"
says "documents   2"
says 'two \x1B[31mred\x0A'
inspected 0 d/some.jsonl
says "format      JSON lines (by its name), text in 'text'"
says "duplicates  1 of 4 (25%)"
says "14 at least, 14 median, 14 on average, 14 at most"
gzip -c d/some.jsonl >d/below/some.json.gz
inspected 0 d/below/some.json.gz
says "compressed  gzip"
echo '[{"text": "a"}, {"text": ""}, {"text": "bcd"}]' >d/array.json
inspected 0 d/array.json
says "format      JSON array"
says "documents   2"
inspected 0 d/rows.bin
says "format      Parquet (by its content), text in 'text'"
says "train with  {path: ..., format: parquet}"
says "columns     n: INT32, text: text"
says "row groups  3 of 40 rows in all, snappy"
says "null rows   8 of 37 (21.6%)"
cp "$fixtures/nested" d/nested.parquet
inspected 0 d/nested.parquet
says "train with  {path: ..., column: meta.text}"
{
    echo '{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}'
    echo '{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "ok"}]}'
} >d/chat.jsonl
inspected 0 d/chat.jsonl --tokenizer bytes
says "format      conversations: 1 messages, 1 sharegpt (by the members of its first line)"
says "train with  {path: ..., format: chat}"
says 'user: hi\x0Aassistant: yo'
says "tokens      not known: the tokenizer has no chat template"
echo '{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}' >chat.jinja
sed -e 's|sources: .*|sources: [{path: d/chat.jsonl, format: chat}]|' -e 's|tokenizer: bytes|chat_template: chat.jinja|' run.yaml >chat.yaml
inspected 0 chat.yaml
tokens=$(sed -n 's/^  tokens *\([0-9,]*[0-9]\),.*/\1/p' out)
exits 0 tokenize chat.yaml
grep -q "^tokens  *$tokens for training" out || fail "inspect counts $tokens tokens of conversations: $(cat out)"
inspected 0 d/ids.bin --dtype uint16
says "format      token ids, uint16"
says "documents   not known without --tokenizer"
says "samples     97 98 257"
inspected 0 d/ids.bin --dtype uint16 --tokenizer bytes
says "documents   1"
says "ab<|end_of_text|>"
{ printf '\x88\xd8\x34\x01\x01\0\0\0\x03\0\0\0' && head -c 1012 /dev/zero && cat d/ids.bin; } >d/llmc.bin
inspected 0 d/llmc.bin
says "format      token ids, uint16 (by its content)"
says "train with  {path: ..., format: tokens}"
printf 'caf\351%s' "$(letters 4 50)" >latin.txt
inspected 0 latin.txt
says "not UTF-8   1 of "
for kind in a.txt some.jsonl below/some.json.gz array.json nested.parquet; do # what it recognises alone, training reads as it says
    keys=
    case $kind in nested*) keys=", column: meta.text" ;; esac
    exits 0 tokenize run.yaml "data.sources=[{path: d/$kind$keys}]"
done
exits 0 tokenize run.yaml 'data.sources=[{path: d/rows.bin, format: parquet}]'

# ---- duplicates in other files, directories, what is not read ----
inspected 0 d/some.jsonl d/below/some.json.gz
says "duplicates  4 of 4 (100%)"
rm d/ids.bin
inspected 0 d
says "total of 8 files"
head -c 3000 "$weft" >d/program.txt
printf 'PAR1\x15\x04\0\0PAR1' >d/broken.parquet
inspected 65 d none.txt
says "refused     d/program.txt: this is a program (ELF)"
says "refused     d/broken.parquet: damaged Parquet metadata"
says "refused     none.txt: "
says "total of 8 files, without those refused"
refuses "3 of 11 files were refused"
inspected 66 none.txt
inspected 0 d/program.txt --encoding bytes
mkdir empty
inspected 66 empty
refuses "1 of 1 files were refused"
inspected 78 d/some.jsonl --column text --dtype uint16
inspected 2 d/some.jsonl --format csv
refuses "expected one of auto, text, jsonl, chat, parquet, tokens"

# ---- broken lines, lengths, limits ----
{ cat d/some.jsonl && echo '{"tex": 1}' && echo '{'; } >bad.jsonl
inspected 65 bad.jsonl
says "documents   4"
says "bad lines   2; the first: bad.jsonl:5: no key 'text' in this line; it has: tex"
refuses "2 lines cannot be read"
sed -e 's|sources: .*|sources: [{path: bad.jsonl, min_bytes: 15}]|' -e 's|tokenizer: bytes|bad_lines: skip|' run.yaml >skip.yaml
inspected 0 skip.yaml
says "documents   0"
says "left out    4 of 4, by min_bytes, max_bytes (100%)"
inspected 0 d/some.jsonl --limit 2 --samples 1 --tokenizer bytes
says "documents   2 read, as --limit says"
says_not "line 2 of many"

# ---- for programs ----
inspected 65 d/some.jsonl d/rows.bin d/program.txt --json --tokenizer bytes
if command -v python3 >/dev/null; then
    python3 - <<'END' || fail "--json: $(cat out)"
import json
d = json.load(open("out"))
lines, rows, refused = d["files"]
assert lines["format"] == "jsonl" and lines["documents"] == 4 and lines["duplicates"] == 1 and lines["tokens"] == 4 * 16
assert lines["document_bytes"] == {"min": 14, "median": 14, "mean": 14, "max": 14} and lines["samples"][0] == "line 1 of many"
assert rows["codec"] == "snappy" and rows["row_groups"] == 3 and rows["null_rows"] == 8 and rows["columns"][0]["type"] == "INT32"
assert "program" in refused["refused"] and d["total"]["refused"] == 1 and d["total"]["documents"] == 4 + rows["documents"]
END
fi
conclude

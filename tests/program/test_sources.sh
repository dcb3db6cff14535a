#!/bin/bash
# Bad sources: files that are not text, paths that are not files, and broken lines.
. "$(dirname "$0")/../support/prelude.sh"

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1}
END
letters 40 5 >text.txt

# refused STATUS TEXT WORD...: weft WORD... ends with STATUS and with TEXT in its error.
refused() {
    local status=$1 text=$2
    shift 2
    exits "$status" "$@"
    grep -qF -- "$text" err || fail "weft $*: no \"$text\" in: $(head -c 600 err)"
}

# ---- files that are not text, wherever text is read ----
printf 'PAR1\x15\x04\0\0PAR1' >table.parquet
head -c 3000 "$weft" >program.txt
printf 'T\0h\0e\0 \0c\0a\0t\0.\0' >wide.txt
for file in table.parquet program.txt wide.txt; do
    case $file in table*) what="damaged Parquet metadata" ;; program*) what="a program (ELF)" ;; wide*) what="UTF-16" ;; esac
    refused 65 "$file: " tokenize run.yaml "data.sources=[$file]"
    refused 65 "$what" train run.yaml run.dir=t "data.sources=[$file]"
    refused 65 "$what" tokenize run.yaml "data.validation=[$file]"
    refused 65 "$what" tokenizer train $file --vocab 260 --out t.json
    refused 65 "$what" train run.yaml run.dir=t "evaluation.tasks=[{path: $file, task: text}]"
done
exits 0 tokenize run.yaml 'data.sources=[{path: program.txt, encoding: bytes}]'
exits 0 tokenizer train program.txt --vocab 260 --out t.json --bytes

# ---- compressed files are recognized by content, not by name ----
tokens_of() { exits 0 tokenize run.yaml "data.sources=[$1]"; grep ^tokens out; }
plain=$(tokens_of text.txt)
gzip -c text.txt >text.txt.gz
gzip -c text.txt >named.txt
{ head -n 2 text.txt | gzip -c; tail -n +3 text.txt | gzip -c; } >members.txt.gz
for file in text.txt.gz named.txt members.txt.gz; do
    [ "$(tokens_of $file)" = "$plain" ] || fail "$file has other tokens than text.txt: $(cat out)"
done
for i in 1 2 3; do echo "{\"text\": \"line $i of many\"}"; done >some.jsonl
gzip -c some.jsonl >some.json.gz
[ "$(tokens_of some.json.gz)" = "$(tokens_of some.jsonl)" ] || fail "some.json.gz has other tokens than some.jsonl"
exits 0 train run.yaml run.dir=packed "data.sources=[text.txt.gz]" "evaluation.tasks=[{path: text.txt.gz, task: text}]"
exits 0 tokenizer train some.json.gz --vocab 260 --out t.json
head -c $(($(stat -c %s text.txt.gz) - 5)) text.txt.gz >cut.txt.gz
refused 65 "cut.txt.gz: truncated: the gzip data stops at byte $(stat -c %s cut.txt.gz)" tokenize run.yaml "data.sources=[cut.txt.gz]"
{ cat text.txt.gz; echo more; } >longer.txt.gz
refused 65 "longer.txt.gz: damaged gzip data near byte $(stat -c %s text.txt.gz): " tokenize run.yaml "data.sources=[longer.txt.gz]"
gzip -c text.txt.gz >twice.gz
refused 65 "twice.gz: this is gzip data; weft reads text and JSON lines, plain or compressed with gzip or zstd, Parquet and token files: it is compressed twice" tokenize run.yaml "data.sources=[twice.gz]"

# ---- other encodings are converted ----
iconv -f UTF-8 -t UTF-16 text.txt >marked.txt
iconv -f UTF-8 -t UTF-16LE text.txt | gzip >wide.txt.gz
for source in '{path: marked.txt, encoding: utf-16}' '{path: wide.txt.gz, encoding: utf-16}' '{path: text.txt, encoding: latin-1}' '{path: text.txt, encoding: windows-1252}'; do
    [ "$(tokens_of "$source")" = "$plain" ] || fail "$source has other tokens than text.txt: $(cat out)"
done
refused 65 "marked.txt: this is UTF-16 text; " tokenize run.yaml 'data.sources=[marked.txt]'
refused 65 "give the source encoding: utf-16" tokenize run.yaml 'data.sources=[marked.txt]'
printf 'caf\351 ' >old.txt
refused 65 "give the source its encoding (windows-1252" tokenize run.yaml 'data.sources=[old.txt]'
exits 0 tokenize run.yaml 'data.sources=[{path: old.txt, encoding: windows-1252}]'
refused 65 "text.txt: not in the encoding of the source: it has no mark of UTF-16, and is valid UTF-8" tokenize run.yaml 'data.sources=[{path: text.txt, encoding: utf-16}]'
iconv -f UTF-8 -t UTF-16BE text.txt | gzip >big.txt.gz
refused 65 "iconv -f UTF-16BE -t UTF-8" tokenize run.yaml 'data.sources=[{path: big.txt.gz, encoding: utf-16}]'
{ printf '\xef\xbb\xbf' && cat text.txt; } >mark.txt
refused 65 "it begins with the mark of UTF-8: leave encoding out" tokenize run.yaml 'data.sources=[{path: mark.txt, encoding: windows-1252}]'
touch some.parquet
refused 78 "some.parquet: the key encoding belongs to text and JSON" tokenize run.yaml 'data.sources=[{path: some.parquet, encoding: utf-16}]'

# ---- Parquet: each row of a column is a document ----
fixtures=$WEFT_SOURCE_DIR/tests/fuzz/corpus/parquet
cp "$fixtures/dictionary-snappy" rows.parquet
cp "$fixtures/nested" nested.parquet
cp "$fixtures/delta-bytes-zstd" rows.bin
# row N: prints the text of a fixture's rows, one line of JSON each, without nulls.
for ((i = 0; i < 40; i++)); do
    [ $((i % 5)) -ne 3 ] || continue
    words=
    for ((k = 0; k < i % 7; k++)); do words+=" word"; done
    [ $((i % 11)) -eq 10 ] && echo '{"text": ""}' || echo "{\"text\": \"row $i:$words\"}"
done >rows.jsonl
plain=$(tokens_of rows.jsonl)
for source in rows.parquet '{path: rows.parquet, column: text}' '{path: nested.parquet, column: meta.text}' '{path: rows.bin, column: text}' '{path: rows.bin, format: parquet}'; do
    for ((i = 0; i < 2; i++)); do
        [ "$(tokens_of "$source")" = "$plain" ] || fail "$source has other tokens than the same texts as JSON lines: $(cat out)"
        grep -q "rows without text (null): 8; they were skipped" err || fail "$source: nulls are not said: $(cat err)"
    done
done
ids() { cat "$1"/*/part-*.tok | tail -c +4097 | cksum; }
rm -rf left right
exits 0 tokenize run.yaml 'data.sources=[rows.parquet]' data.cache_dir=left
exits 0 tokenize run.yaml 'data.sources=[rows.jsonl]' data.cache_dir=right
[ "$(ids left)" = "$(ids right)" ] || fail "Parquet and JSON lines have other ids"
exits 0 train run.yaml run.dir=table 'data.sources=[rows.parquet]' 'data.validation=[rows.parquet]' "evaluation.tasks=[{path: rows.parquet, task: text}]"
exits 0 tokenizer train rows.parquet --vocab 260 --out t.json
exits 0 tokenizer train nested.parquet --key meta.text --vocab 260 --out t.json
refused 65 "no column 'body'; columns of text: text; name one with \`column\` in the source" tokenize run.yaml 'data.sources=[{path: rows.parquet, column: body}]'
refused 65 "rows.bin: this is a Parquet file; " tokenize run.yaml 'data.sources=[rows.bin]'
refused 65 "give the source format: parquet, and column: its text" tokenize run.yaml 'data.sources=[rows.bin]'
refused 65 "text.txt: not a Parquet file" tokenize run.yaml 'data.sources=[{path: text.txt, column: text}]'
refused 78 "rows.parquet: the key key belongs to JSON lines; this file is read as another format" tokenize run.yaml 'data.sources=[{path: rows.parquet, key: text}]'
refused 78 "rows.jsonl: the key column belongs to Parquet" tokenize run.yaml 'data.sources=[{path: rows.jsonl, format: jsonl, column: text}]'
for file in brotli bad-encrypted; do
    cp "$fixtures/$file" $file.parquet
    refused 65 "which weft does not read" tokenize run.yaml "data.sources=[$file.parquet]"
done

# ---- conversations: the same in every form ----
echo "{% for m in messages %}{{ bos_token + m.role + ': ' + m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant: ' }}{% endif %}" >chat.jinja
for ((i = 0; i < 40; i++)); do
    if [ $((i % 10)) -eq 9 ]; then [ $((i % 3)) -ne 0 ] || echo '{"system": "x"}'; continue; fi
    line=
    for ((k = 0; k < i % 4; k++)); do
        line+="{\"role\": \"$([ $((k % 2)) -eq 0 ] && echo user || echo assistant)\"$([ $k -eq 2 ] || echo ", \"content\": \"m$k of $i\"")}, "
    done
    [ $((i % 7)) -ne 6 ] || line+="{}, "
    echo "{\"messages\": [${line%, }]}"
done >chat.jsonl
{ echo '['; sed '$!s/$/,/' chat.jsonl; echo ']'; } >chat.json
cp "$fixtures/chat" chat.parquet
cp "$fixtures/chat-polars" chat.rows
chat=(tokenize run.yaml train.context=64 train.tokens_per_step=64 data.chat_template=chat.jinja data.bad_lines=skip data.bad_lines_limit=100)
for source in '{path: chat.jsonl, format: chat}' '{path: chat.json, format: chat}' '{path: chat.parquet, format: chat}' '{path: chat.rows, format: chat, column: messages}'; do
    rm -rf chats
    exits 0 "${chat[@]}" "data.sources=[$source]" data.cache_dir=chats
    ids chats >these
    [ -f those ] || cp these those
    cmp -s these those || fail "$source: other ids than of chat.jsonl"
done
refused 65 "chat.parquet:1: there are no messages" tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: chat.parquet, format: chat}]'
refused 65 "rows.parquet: no column 'messages', 'conversations'" tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: rows.parquet, format: chat}]'
cp "$fixtures/chat-weight" weight.parquet
refused 65 'weight.parquet: the messages have the number "weight"' tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: weight.parquet, format: chat}]'
# Rejected answers are not learned, unless the source says which form it means.
for kind in kto chosen; do
    cp "$fixtures/chat-$kind" $kind.parquet
    refused 65 "\"${kind/kto/label}\" stands for preferences (DPO, KTO), which weft does not train on" tokenize run.yaml data.chat_template=chat.jinja "data.sources=[{path: $kind.parquet, format: chat}]"
    exits 0 "${chat[@]}" "data.sources=[{path: $kind.parquet, format: chat, chat_format: prompt_completion}]"
done
echo '{"prompt": "q", "completion": "a", "label": false}' >kto.jsonl
refused 65 "kto.jsonl:1: \"label\" stands for preferences" tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: kto.jsonl, format: chat}]'
grep -q "bad_lines" err && fail "a line that is no broken JSON is advised to be skipped: $(cat err)"
refused 65 'kto.parquet:1: in column "prompt": 1:1: expected a value' tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: kto.parquet, format: chat, column: prompt}]'
# An element of an array that is broken is like a broken line, and the first one is reported.
{ echo '['; for ((i = 0; i < 40; i++)); do echo '{"prompt": "q", "completion": "a"},'; done; echo '{"foo": 1},'; echo '{"messages": [},'; echo '{"prompt": "q", "completion": "a"}]'; } >broken.json
refused 65 "broken.json:42: no conversation: it has foo" tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: broken.json, format: chat}]'
exits 0 "${chat[@]}" data.bad_lines_limit=2 'data.sources=[{path: broken.json, format: chat}]'
grep -q "broken.json: 2 of 43 lines are broken and were skipped" err || fail "broken elements are not skipped: $(cat err)"
sed -i /foo/d broken.json
refused 65 "broken.json:42:15: expected a value, found '}'; data.bad_lines: skip leaves broken lines out" tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: broken.json, format: chat}]'
sed -i 's/^{"messages".*/{"foo": 1},/; $s/.$//' broken.json
refused 65 "broken.json:42: no conversation: it has foo" tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: broken.json, format: chat}]' # the file ends in its array, later
refused 78 "text.txt: the key chat_format belongs to format: chat" tokenize run.yaml 'data.sources=[{path: text.txt, chat_format: alpaca}]'

# ---- token files: the ids of text.txt, in the formats of other programs ----
exits 0 tokenize run.yaml 'data.sources=[text.txt, {path: rows.jsonl}]' data.cache_dir=made
python3 - made/*/part-00000.tok <<'END' || fail "no token files"
import array, struct, sys
ids = array.array("H")
for path in sys.argv[1:]:
    part = open(path, "rb").read()
    tokens = struct.unpack_from("<Q", part, 96)[0]
    ids.frombytes(part[4096 : 4096 + 2 * tokens])
bos, eos = ids[0], ids[-1]
header = "{'descr': '<u4', 'fortran_order': False, 'shape': (%d,), }" % len(ids)
header += " " * (-(10 + len(header) + 1) % 64) + "\n"
open("ids.npy", "wb").write(b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header.encode() + array.array("I", ids).tobytes())
open("ids.bin", "wb").write(ids.tobytes())
open("llmc.bin", "wb").write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + ids.tobytes())
open("outside.bin", "wb").write(ids[:10].tobytes() + struct.pack("<H", 999) + ids[10:].tobytes())
open("pair.bin", "wb").write(ids.tobytes())
ends = [0] + [i + 1 for i, id in enumerate(ids) if id == eos]
lengths = [b - a for a, b in zip(ends, ends[1:])]
with open("pair.idx", "wb") as f:
    f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(ends)) + array.array("i", lengths).tobytes())
    f.write(array.array("q", [2 * e for e in ends[:-1]]).tobytes() + array.array("q", range(len(ends))).tobytes())
open("ends", "w").write("%d %d" % (bos, eos))
END
read -r bos eos <ends
want="30 documents"
for source in '{path: ids.npy, format: tokens}' '{path: ids.bin, format: tokens, dtype: uint16}' \
    "{path: ids.bin, format: tokens, dtype: uint16, end: $eos, boundary: end}" "{path: ids.bin, format: tokens, dtype: uint16, end: $bos}" \
    "{path: llmc.bin, format: tokens, end: $bos}" '{path: pair.bin, format: tokens}'; do
    exits 0 tokenize run.yaml "data.sources=[$source]"
    got=$(cat out err | grep -oE '[0-9]+ documents?, .*' | sed 's/ bytes a token,.*//')
    [[ $got == "$want"* ]] || fail "$source: expected $want: $(cat out err)"
    want=$got
done
exits 0 tokenize run.yaml 'data.sources=[{path: ids.bin, format: tokens, dtype: uint16, end: none}]'
grep -q ' 1 document,' out err || fail "end: none is not one document: $(cat out)"
exits 0 train run.yaml run.dir=ids 'data.sources=[{path: ids.npy, format: tokens}]' data.validation_fraction=0.2
# The sources of "Public data sets" in docs/use/data-formats.md, as they are there.
mkdir -p fineweb dolma dclm nanochat nanogpt megatron
cp rows.parquet fineweb/000_00000.parquet
cp rows.parquet nanochat/shard_00000.parquet
gzip -c rows.jsonl >dolma/c4-0000.json.gz
cp ids.bin nanogpt/train.bin
cp pair.bin megatron/my_text_document.bin
cp pair.idx megatron/my_text_document.idx
sed '/^data:/d; $a data: {cache_dir: cache, tokenizer: bytes}' run.yaml >public.yaml
listed=$(sed -n '/^## Public data sets/,/^All sources/p' "$WEFT_SOURCE_DIR/docs/use/data-formats.md" | sed -n 's/^    - \({path.*}\) *#.*/\1/p')
[ "$(wc -l <<<"$listed")" -eq 6 ] || fail "public data sets of the page: $listed"
if command -v zstd >/dev/null; then zstd -q rows.jsonl -o dclm/shard_00000.jsonl.zst; else listed=$(grep -v zst <<<"$listed"); fi
exits 0 tokenize public.yaml "data.sources=[$(paste -sd, <<<"$listed")]"
[ "$(grep -c ' 1 file, [1-9][0-9]* documents' out)" -eq "$(wc -l <<<"$listed")" ] || fail "public data sets: $(cat out)"

# The index is part of the data: another index gives another cache, and a run lists it among its files.
exits 0 train run.yaml run.dir=pair 'data.sources=[{path: pair.bin, format: tokens}]'
printf '\1' | dd of=pair.idx bs=1 seek=17 conv=notrunc status=none
refused 65 "pair.idx: an index of Megatron that weft cannot use: its ids are neither uint16 nor int32" tokenize run.yaml 'data.sources=[{path: pair.bin, format: tokens}]'
refused 65 "outside.bin: token 10 (byte 20): id 999 is outside of the vocabulary of 258" tokenize run.yaml 'data.sources=[{path: outside.bin, format: tokens, dtype: uint16}]'
refused 65 "give the source dtype: uint16, uint32 or int32" tokenize run.yaml 'data.sources=[{path: ids.bin, format: tokens}]'
refused 65 "ids.npy: this is a NumPy array (.npy); " tokenize run.yaml 'data.sources=[ids.npy]'
refused 78 "end is '9999': expected an id below the vocabulary of data.tokenizer (258), or none" tokenize run.yaml 'data.sources=[{path: ids.npy, format: tokens, end: 9999}]'
refused 78 "text.txt: the key dtype belongs to token files" tokenize run.yaml 'data.sources=[{path: text.txt, dtype: uint16}]'

# A few invalid characters are counted, at each start.
for ((i = 0; i < 40; i++)); do echo "a line of text"; done >most.txt
printf '\xe9\xff\n' >>most.txt
for ((i = 0; i < 2; i++)); do
    exits 0 tokenize run.yaml 'data.sources=[most.txt]'
    grep -q "most.txt: 2 of 603 bytes are not UTF-8" err || fail "no count of broken characters: $(cat err)"
done

# ---- documents that are left out, said at every start ----
cat rows.jsonl rows.jsonl >twice.jsonl
once=$(tokens_of rows.jsonl)
for ((i = 0; i < 2; i++)); do
    exits 0 tokenize run.yaml data.dedup=exact 'data.sources=[rows.jsonl, twice.jsonl]'
    grep -q "twice.jsonl: 29 documents were left out, since they had been there before" err || fail "duplicates are not said: $(cat err)"
done
exits 0 tokenize run.yaml data.dedup=exact 'data.sources=[twice.jsonl]'
[ "$(grep ^tokens out)" = "$once" ] || fail "without duplicates: $(cat out), not $once"
exits 0 train run.yaml run.dir=dedup data.dedup=exact 'data.sources=[twice.jsonl]'
refused 78 "data.dedup" train run.yaml run.dir=dedup 'data.sources=[twice.jsonl]'
exits 0 tokenize run.yaml 'data.sources=[{path: rows.jsonl, min_bytes: 12, max_bytes: 30}]'
grep -q "documents were left out, since they have less text than min_bytes" err || fail "short documents are not said: $(cat err)"
grep -q "documents were left out, since they have more text than max_bytes" err || fail "long documents are not said: $(cat err)"
{ cat rows.jsonl; tail -1 rows.jsonl; } >once.jsonl
exits 0 tokenize run.yaml data.dedup=exact 'data.sources=[once.jsonl]'
grep -q "once.jsonl: 1 document was left out, since it had been there before" err || fail "one duplicate: $(cat err)"
refused 65 "rows.jsonl: no document is left: 29 have less text than min_bytes: 1000" tokenize run.yaml 'data.sources=[{path: rows.jsonl, min_bytes: 1000}]'
refused 65 "rows.jsonl: no document is left: 4 have less text than min_bytes: 8, 25 have more text than max_bytes: 8" tokenize run.yaml 'data.sources=[{path: rows.jsonl, min_bytes: 8, max_bytes: 8}]'
: >nothing.txt
refused 65 "nothing.txt: it is empty" tokenize run.yaml 'data.sources=[nothing.txt]'
echo '{"text": ""}' >nothing.jsonl
refused 65 "nothing.jsonl: no document is left: it holds no text" tokenize run.yaml 'data.sources=[nothing.jsonl]'
refused 78 "no document would be left" tokenize run.yaml 'data.sources=[{path: rows.jsonl, min_bytes: 12, max_bytes: 3}]'

# ---- export: what is written for other programs is read back as the same documents ----
exits 0 tokenize run.yaml 'data.sources=[text.txt, {path: rows.jsonl}]' 'data.validation=[some.jsonl]' --export npy --out exported
grep -q "exported/train-1.npy: [0-9,]* tokens, 29 documents of rows.jsonl" out || fail "no line for the export: $(cat out)"
exits 0 tokenize run.yaml 'data.sources=[text.txt, {path: rows.jsonl}]' --export megatron --out exported
ls exported >these
printf '%s\n' train-0.bin train-0.idx train-0.npy train-1.bin train-1.idx train-1.npy validation-0.npy | cmp -s - these || fail "exported: $(cat these)"
for file in train-1.npy train-1.bin; do
    exits 0 tokenize run.yaml "data.sources=[{path: exported/$file, format: tokens}]" data.cache_dir=back
    grep -q "29 documents" out || fail "$file: $(cat out)"
    rm -rf back right
    exits 0 tokenize run.yaml "data.sources=[{path: exported/$file, format: tokens}]" data.cache_dir=back
    exits 0 tokenize run.yaml 'data.sources=[rows.jsonl]' data.cache_dir=right
    [ "$(ids back)" = "$(ids right)" ] || fail "$file: other ids than it was written from"
done
# Only text counts as text: neither the bytes of a document, nor those of a token, are others than before the export.
limited() { exits 0 tokenize run.yaml "data.sources=[{$1, min_bytes: 12, max_bytes: 30}]" data.cache_dir=limited; cat out err | grep -oE '[0-9]+ documents, [0-9.]+ bytes a token'; }
[ "$(limited 'path: exported/train-1.npy, format: tokens')" = "$(limited 'path: rows.jsonl')" ] || fail "limits of lengths: $(cat out err)"
# Two exports at once: the second leaves the files of the first alone. A file of one that was killed is no obstacle.
mkdir both
echo old >both/train-0.npy.tmp
flock both/train-0.npy.tmp "$weft" tokenize run.yaml --export npy --out both >out 2>err && fail "two exports wrote one file"
grep -q "both/train-0.npy.tmp: another process writes it" err || fail "a second export: $(cat err)"
[ "$(cat both/*)" = old ] || fail "a second export changed the files of the first: $(ls both)"
exits 0 tokenize run.yaml --export npy --out both
cmp both/train-0.npy exported/train-0.npy || fail "an export over the rest of a killed one"
[ "$(ls both)" = train-0.npy ] || fail "an export left $(ls both)"
refused 2 "--out is empty: name a directory" tokenize run.yaml --export npy --out ''
refused 73 "exported/train-0.npy: exists" tokenize run.yaml --export npy --out exported
refused 2 "expected npy or megatron" tokenize run.yaml --export csv
refused 2 "--out belongs to --export" tokenize run.yaml --out x
refused 78 "a source has conversations" tokenize run.yaml data.chat_template=chat.jinja 'data.sources=[{path: chat.jsonl, format: chat}]' --export npy
refused 78 "data.validation_fraction cuts sources" tokenize run.yaml data.validation_fraction=0.2 --export npy
refused 65 "--export megatron keeps where they end" tokenize run.yaml data.add_eos=false 'data.sources=[rows.jsonl]' --export npy --out more
[ -z "$(ls more)" ] || fail "a failed export left $(ls more)"
exits 0 tokenize run.yaml data.add_eos=false 'data.sources=[rows.jsonl]' --export megatron --out more

# ---- documents that are held out by a hash of their text ----
# Whether one is does not depend on the file, its format, the order or the other documents. `held FILE...` lists them.
cat >lists.py <<'END'
import array, struct, sys
for name in sys.argv[1:]:
    index = open(name + ".idx", "rb").read()
    count = struct.unpack_from("<Q", index, 18)[0]
    lengths = array.array("i", index[34 : 34 + 4 * count])
    ids, at = array.array("H", open(name + ".bin", "rb").read()), 0
    for length in lengths:
        print(name[:-2], *(id for id in ids[at : at + length] if id < 256))
        at += length
END
hashed=(data.validation_fraction=0.2 data.holdout_by=hash)
# What is left out counts, on whichever side of the split it would be.
refused 65 "rows.jsonl: no document is left: 29 have less text than min_bytes: 1000" tokenize run.yaml "${hashed[@]}" \
    'data.sources=[{path: rows.jsonl, min_bytes: 1000}]'
held() {
    rm -rf drawn
    exits 0 tokenize run.yaml "${hashed[@]}" "$@" --export megatron --out drawn
    (cd drawn && python3 ../lists.py $(ls | sed -n 's/\.bin$//p')) | sed 's/ 10$//' | sort
}
for ((i = 0; i < 300; i++)); do echo "{\"text\": \"document $i of this\"}"; done >many.jsonl
{ tac many.jsonl; head -50 many.jsonl; } >back.jsonl
head -120 many.jsonl >m-1.jsonl
tail -n +121 many.jsonl >m-0.jsonl
sed 's/{"text": "//; s/"}//' many.jsonl >many.txt
held 'data.sources=[many.jsonl]' >want
count=$(grep -c ^validation want)
[ "$(wc -l <want)" = 300 ] && [ "$count" -gt 30 ] && [ "$count" -lt 90 ] || fail "300 documents, $count of them held out: $(head -3 want)"
grep -q "300 documents, .* for validation ($count documents)" out || fail "no count of what is held out: $(cat out)"
for sources in '[{path: many.txt, split: lines}]' '["m-*.jsonl"]' '[m-0.jsonl, m-1.jsonl]'; do
    held "data.sources=$sources" | cmp -s want - || fail "$sources: other documents are held out"
done
held 'data.sources=[back.jsonl]' | uniq | cmp -s want - || fail "copies of one document are on both sides"
held 'data.sources=[back.jsonl]' data.dedup=exact | cmp -s want - || fail "data.dedup changes what is held out"
held 'data.sources=[many.jsonl]' data.add_eos=false data.add_bos=false | cmp -s want - || fail "BOS and EOS change what is held out"
held 'data.sources=[many.jsonl]' data.validation_fraction=0.5 | grep ^validation >larger
[ "$(grep ^validation want | comm -23 - larger | wc -l)" = 0 ] || fail "a larger fraction holds out other documents"
# Token files: by the ids, without BOS and EOS.
exits 0 tokenize run.yaml 'data.sources=[many.jsonl]' --export npy --out forward
exits 0 tokenize run.yaml 'data.sources=[back.jsonl]' --export npy --out backward
exits 0 tokenize run.yaml 'data.sources=[back.jsonl]' --export megatron --out bare data.add_eos=false data.add_bos=false
drawn_ids() { held "data.sources=[{path: $1, format: tokens}]" | uniq; }
drawn_ids forward/train-0.npy >want_ids
[ "$(grep -c ^validation want_ids)" -gt 30 ] || fail "token files hold out $(grep -c ^validation want_ids) documents"
for file in backward/train-0.npy bare/train-0.bin; do
    drawn_ids $file | cmp -s want_ids - || fail "$file: other documents are held out"
done
# Conversations, however their lines are written.
for ((i = 0; i < 60; i++)); do echo "{\"messages\": [{\"role\": \"user\", \"content\": \"q $i\"}, {\"role\": \"assistant\", \"content\": \"a $i\"}]}"; done >talks.jsonl
sed 's/"role": "user", "content": \("q [0-9]*"\)/"content": \1, "role": "user"/' talks.jsonl | tac >klats.jsonl
for file in talks klats; do
    exits 0 tokenize run.yaml "${hashed[@]}" train.context=128 train.tokens_per_step=128 data.chat_template=chat.jinja "data.sources=[{path: $file.jsonl, format: chat}]"
    grep -oE "[0-9,]* tokens for training, .* \([0-9]+ documents\)" out >$file.held || fail "$file: $(cat out)"
done
cmp -s talks.held klats.held || fail "conversations: $(cat talks.held klats.held)"
# A run trains on the rest, validates on them, and its state says so.
exits 0 train run.yaml run.dir=drawn-run "${hashed[@]}" 'data.sources=[many.jsonl]' data.audit=true
grep -q '"kind": *"validation"' drawn-run/metrics.jsonl || fail "held-out documents are not validated on"
exits 0 audit drawn-run
refused 78 "data.holdout_by" train run.yaml run.dir=drawn-run data.validation_fraction=0.2 'data.sources=[many.jsonl]'
refused 78 "data.holdout_by: hash draws documents" tokenize run.yaml data.holdout_by=hash
refused 78 "both set" tokenize run.yaml "${hashed[@]}" 'data.validation=[many.jsonl]'
refused 78 "keeps no text out" tokenize run.yaml "${hashed[@]}" 'data.sources=[text.txt]' data.validation_fraction=0.00001
refused 65 "no document is left for training: all 1 are held out" tokenize run.yaml "${hashed[@]}" 'data.sources=[text.txt, many.txt]' data.validation_fraction=0.9

# ---- paths that are not files ----
mkdir folder
refused 66 "folder: a directory: name the files in it, as in folder/*.txt" tokenize run.yaml 'data.sources=[folder]'
refused 78 "unknown kind of URL" tokenize run.yaml 'data.sources=["ftp://example.org/a.txt"]'
refused 78 "for Google Cloud Storage give s3://" tokenize run.yaml 'data.sources=["gs://bucket/*.jsonl"]'
refused 78 "for Google Cloud Storage give s3://" tokenizer train gs://bucket/a.txt --vocab 260 --out t.json
refused 66 "URLs are not read" tokenize run.yaml data.tokenizer=https://example.org/tokenizer.json

# ---- patterns of other programs: none leaves files out in silence ----
mkdir -p deep/a/b
echo "a text" | tee deep/a/one.txt >deep/a/b/two.txt
refused 66 "** for directories of any depth is not read: give a pattern for each depth" tokenize run.yaml 'data.sources=["deep/**/*.txt"]'
refused 66 "no such file; ~ is not expanded: write the whole path" tokenize run.yaml 'data.sources=["~/no such file.txt"]'
refused 66 "no such file; braces stand for several files in URLs only" tokenize run.yaml 'data.sources=["deep/a/{one,two}.txt"]'

# ---- broken lines: the first is an error, or they are skipped, counted, listed and limited ----
lines() { for ((i = $1; i <= $2; i++)); do echo "{\"text\": \"line $i of many\"}"; done; }
{ lines 1 40; echo '{"text": 7}'; lines 41 80; echo '{"tex'; lines 81 250; } >bad.jsonl
lines 1 250 >good.jsonl
refused 65 "bad.jsonl:41: the value of 'text' is not a string" tokenize run.yaml 'data.sources=[bad.jsonl]'
while IFS='|' read -r line words; do
    echo "$line" >one.jsonl
    refused 65 "$words" tokenize run.yaml 'data.sources=[one.jsonl]'
done <<'END'
{"text": null}|not a string but null; data.bad_lines: skip leaves such lines out
{"text": ["a"]}|not a string but a list
"a"|expected a JSON object with key 'text', found a string
{}|it has: no members
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}|this is a conversation: give the source format: chat
{"prompt": "a", "completion": "b"}|this is a conversation: give the source format: chat
{"question": "a"}|name the text's key with `key`
END
for file in chat chat-json; do
    cp "$WEFT_SOURCE_DIR/tests/fuzz/corpus/parquet/$file" chat.parquet
    refused 65 "no column 'text', but conversations: give the source format: chat" tokenize run.yaml 'data.sources=[chat.parquet]'
done
printf '{\n  "text": "a"\n}\n' >object.json
refused 65 "object.json:1: the line ends inside of its object: write one object per line (jq -c), or an array of objects" tokenize run.yaml 'data.sources=[object.json]'
sed 41d bad.jsonl >worse.jsonl
refused 65 "worse.jsonl:81:6: a control byte in a string must be escaped; data.bad_lines: skip leaves broken lines out" tokenize run.yaml 'data.sources=[worse.jsonl]'
refused 65 "2 of 252 lines are broken, more than data.bad_lines_limit (0.001)" tokenize run.yaml 'data.sources=[bad.jsonl]' data.bad_lines=skip data.bad_lines_limit=0.001
refused 65 "data.bad_lines_limit (1)" tokenize run.yaml 'data.sources=[bad.jsonl]' data.bad_lines=skip data.bad_lines_limit=1 data.cache_dir=limited
for ((i = 0; i < 2; i++)); do
    exits 0 tokenize run.yaml 'data.sources=[bad.jsonl]' data.bad_lines=skip
    grep -q "bad.jsonl: 2 of 252 lines are broken and were skipped" err || fail "skipped lines are not reported: $(cat err)"
done
grep -q '"file": *"bad.jsonl", *"line": *41,' cache/*/part-00000.bad.jsonl || fail "no list of bad lines: $(cat cache/*/*.bad.jsonl)"
skipped=$(grep ^tokens out)
exits 0 tokenize run.yaml 'data.sources=[good.jsonl]'
[ "$(grep ^tokens out)" = "$skipped" ] || fail "skipped lines leave something: $skipped, $(grep ^tokens out)"
# The limit is a share of the whole source: broken lines together at its front do not count more than elsewhere.
padding=$(printf 'x%.0s' {1..90})
awk -v p="$padding" 'BEGIN {
    for (i = 0; i < 150; i++) print "{\"tex"
    for (i = 0; i < 20000; i++) print "{\"text\": \"" p "\"}"
}' >front.jsonl
exits 0 tokenize run.yaml 'data.sources=[front.jsonl]' data.bad_lines=skip
grep -q "front.jsonl: 150 of 20,150 lines are broken and were skipped" err || fail "a share at the front: $(cat err)"
refused 65 "150 of 20,150 lines are broken, more than data.bad_lines_limit (0.007)" tokenize run.yaml 'data.sources=[front.jsonl]' data.bad_lines=skip data.bad_lines_limit=0.007 data.cache_dir=shares
# A cache without bad lines is also valid when bad lines are skipped.
caches=$(echo cache/*/)
exits 0 tokenize run.yaml 'data.sources=[good.jsonl]' data.bad_lines=skip
[ "$(echo cache/*/)" = "$caches" ] || fail "a clean cache was written again"

# ---- figures by source: each has a distinct name, and charts report what they leave out ----
rows=()
for ((i = 0; i < 8; i++)); do rows+=("{path: text.txt, weight: 1}"); done
exits 0 train run.yaml run.dir=eight metrics.log_freq=1 train.tokens_per_step=256 "data.sources=[$(IFS=,; echo "${rows[*]}")]"
names=$(sed -n '/"kind": "source"/s/.*"name": "\([^"]*\)".*/\1/p' eight/metrics.jsonl | sort -u | tr '\n' ' ')
[ "$names" = "$(printf 'text.txt#%d ' {0..7})" ] || fail "names of one path eight times: $names"
exits 0 report eight
grep -q 'of 8 sources 2 are not drawn: text.txt#6, text.txt#7<' eight/report.html || fail "sources without a curve are not reported: $(grep -o '[^>]*not drawn[^<]*' eight/report.html)"

# ---- memory of a very long line: its parse tree, its text and its ids, each only once ----
# peak WORD...: prints the peak memory of tokenizing, in kB.
peak() {
    rm -rf lines
    python3 - "$weft" tokenize run.yaml data.cache_dir=lines data.tokenizer=words.json run.threads=2 "$@" <<'END' 2>err
import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if ended == 0 else sys.exit(1))
END
}
# times_at_most TENTHS NAME WORD...: limits the additional memory of a 40 MB line over a 1 MB line, in tenths of the additional bytes.
times_at_most() {
    local limit=$1 small=0 large=0 times
    small=$(peak "data.sources=[${3//SIZE/1}]" "${@:4}") && large=$(peak "data.sources=[${3//SIZE/40}]" "${@:4}") || fail "$2: $(cat err)"
    times=$(((large - small) * 1024 / 3900000))
    echo "memory of $2: $times tenths of the line"
    [ "$times" -le "$limit" ] || fail "$2 takes $times tenths of its bytes ($small and $large kB), more than $limit"
}
if ! grep -qE '__(asan|tsan|msan)_init' "$weft"; then
    awk 'BEGIN { srand(7); for (i = 0; i < 300; i++) { w = ""; for (k = 0; k < 6; k++) w = w sprintf("%c", 97 + int(rand() * 26)); print w } }' >words.txt
    exits 0 tokenizer train words.txt --vocab 2048 --special '<|im_start|>,<|im_end|>' --out words.json
    for size in 1 40; do
        text=$(for ((i = 0; i < 480; i++)); do tr '\n' ' ' <words.txt; done | head -c 1000000)
        long() { for ((i = 0; i < size; i++)); do printf %s "$text"; done; }
        { printf '{"text": "'; long; echo '"}'; lines 1 20; } >long-$size.jsonl
        { printf '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "'; long; echo '"}], "n": 12}'; } >talk-$size.jsonl
    done
    echo '{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}' >t.jinja
    times_at_most 26 "a line of text" long-SIZE.jsonl
    times_at_most 42 "a conversation" "{path: talk-SIZE.jsonl, format: chat}" data.chat_template=t.jinja train.context=64 train.tokens_per_step=64
fi

conclude

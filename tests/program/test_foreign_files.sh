#!/bin/bash
# Files of some 150 kinds as data sources: each is read as stated here, with a warning where it says so, or refused by a message that names
# the format and what to do. None is trained on as text in silence.
. "$(dirname "$0")/../support/prelude.sh"
command -v python3 >/dev/null || { echo "skipped: no python3 (apt-get install python3)"; exit 77; }

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [x], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1}
END

# VERDICT: FILE...: what its message says. text: read without a warning. warned: read with one. lines: refused, and read with format: jsonl.
table() {
    cat <<'END'
refused: a.arrow: this is an Arrow or Feather file; write its text as JSON lines
refused: stream.arrow: this is an Arrow stream; write its text as JSON lines
refused: a.feather: this is a Feather file; write its text as JSON lines
refused: a.orc: this is an ORC file; write its text as JSON lines
refused: a.avro: this is an Avro file; write its text as JSON lines
refused: cut.parquet.txt: this is a Parquet file without its end; fetch it again
refused: rows: this is a Parquet file; give the source format: parquet, and column
refused: floats.npy floats.npy.gz: this is a NumPy array of floats (.npy); data.sources takes text, and ids of tokens
refused: ids.npy integers.npy: this is a NumPy array (.npy); give the source format: tokens
refused: a.npz: this is a NumPy archive (.npz); name the text that these ids were made of
refused: nano.bin: looks like numbers of 2 bytes: token ids? Give the source format: tokens and dtype: uint16
refused: nano32.bin: looks like numbers of 4 bytes: token ids? Give the source format: tokens and dtype: uint32
refused: llmc.bin: this is a token file of llm.c; give the source format: tokens
refused: megatron.idx fairseq.idx: this is an index of Megatron's token data; name the .bin file next to it, with format: tokens
refused: shard.00000.mds: this is an MDS shard of MosaicML streaming; write its text as JSON lines
refused: a.tfrecord: this is a TFRecord file; write its text as JSON lines
refused: a.safetensors: this is a safetensors file; data.sources takes text
refused: a.gguf: this is a GGUF file; data.sources takes text
refused: a.pt: this is a checkpoint of PyTorch; data.sources takes text
refused: tokenizer.model: this is a SentencePiece model; data.tokenizer takes tokenizers
refused: a.tar a.tar.gz old.tar archive.parquet: this is a tar archive; unpack it
refused: a.zip: this is a zip archive; unpack it
refused: empty.zip: this is an empty zip archive; unpack it
refused: a.7z: this is a 7z archive; unpack it
refused: a.rar: this is a rar archive; unpack it
refused: a.deb: this is an archive of ar (.a, .deb); unpack it
refused: a.cpio: this is a cpio archive; unpack it
refused: a.txt.bz2: this is bzip2 data; decompress it, or compress it with gzip or zstd
refused: a.txt.xz: this is xz data; decompress it
refused: a.txt.lzma: this is lzma data; decompress it
refused: a.txt.lz4: this is lz4 data; decompress it
refused: a.txt.sz: this is snappy data; decompress it
refused: a.txt.br: this is brotli data; decompress it
refused: a.txt.Z: this is data of compress (.Z); decompress it
refused: a.txt.zz: this is zlib data; decompress it
refused: a.txt.zst.txt: damaged zstd data; fetch the file again
refused: cut.txt.gz: gzip; fetch the file again
refused: twice.txt.gz.gz: this is gzip data; it is compressed twice: decompress it once
refused: texts-0.pkl texts-1.pkl texts-2.pkl texts-3.pkl texts-4.pkl texts-5.pkl: this is a pickle; write its text as JSON lines
refused: map-0.pkl map-1.pkl map-2.pkl map-3.pkl map-4.pkl map-5.pkl: this is a pickle; write its text as JSON lines
refused: long-0.pkl object-0.pkl python2.pkl texts-0.pkl.gz: this is a pickle; write its text as JSON lines
refused: a.sqlite: this is an SQLite database; write its text as JSON lines
refused: a.duckdb: this is a DuckDB database; write its text as JSON lines
refused: data.mdb: this is an LMDB database; write its text as JSON lines
refused: 000005.ldb: this is a table of LevelDB; write its text as JSON lines
refused: 000005.sst: this is a table of RocksDB; write its text as JSON lines
refused: a.h5: this is an HDF5 file; write its text as JSON lines
refused: a.nc: this is a NetCDF file; write its text as JSON lines
refused: a.mat: this is a MATLAB file; write its text as JSON lines
refused: a.rdata: this is data of R; write its text as JSON lines
refused: a.warc: this is WARC records of a crawl; extract its text first
refused: a.pdf: this is a PDF; extract its text first
refused: a.ps: this is a PostScript file; extract its text first
refused: a.rtf: this is an RTF document; extract its text first
refused: a.docx a.odt a.xlsx: this is an office document (docx, xlsx, pptx, odt, epub); extract its text first
refused: a.doc: this is an office document of old; extract its text first
refused: a.djvu: this is a DjVu document; extract its text first
refused: a.mobi: this is an e-book of Mobipocket; extract its text first
refused: a.png: this is a PNG image; extract its text first
refused: a.jpg: this is a JPEG image; extract its text first
refused: a.gif: this is a GIF image; extract its text first
refused: a.tif: this is a TIFF image; extract its text first
refused: a.bmp: this is a BMP image; extract its text first
refused: a.avif: this is an AVIF or HEIF image; extract its text first
refused: a.jp2: this is a JPEG 2000 image; extract its text first
refused: a.mp4: this is an MP4 file; extract its text first
refused: a.mkv: this is a Matroska or WebM file; extract its text first
refused: a.flac: this is a FLAC file; extract its text first
refused: a.ogg: this is an Ogg file; extract its text first
refused: a.wav: this is a WebP, WAV or AVI file; extract its text first
refused: a.out: this is a program (ELF); data.sources takes text
refused: a.exe: this is a program of Windows; data.sources takes text
refused: a.wasm: this is a WebAssembly module; data.sources takes text
refused: A.class: this is a program or a class of Java; data.sources takes text
refused: a.pyc: this is compiled Python; data.sources takes text
refused: a.cbor: this is CBOR data; write its text as JSON lines
refused: whole.gz: this is a Parquet file that is compressed as a whole; decompress it
refused: table.parquet: this is gzip data, not a Parquet file: decompress it
refused: words.parquet: not a Parquet file; give the source format: text
refused: empty.parquet: it is empty
refused: pointer.txt pointer.parquet: this is a pointer of Git LFS, in place of the file; git lfs pull
refused: denied.txt: this is an error page of an object store, in place of the file; fetch it again
refused: utf-16.txt utf-16be-mark.txt: this is UTF-16 text; give the source encoding: utf-16
refused: utf-16le.txt: looks like UTF-16; give the source encoding: utf-16
refused: utf-16be.txt: looks like UTF-16; iconv -f UTF-16BE -t UTF-8
refused: utf-32.txt: this is UTF-32 text; iconv -f UTF-32 -t UTF-8
refused: utf-32le.txt page.txt.gz: looks like UTF-32; iconv -f UTF-32LE -t UTF-8
refused: utf-32be.txt: looks like UTF-32; iconv -f UTF-32BE -t UTF-8
refused: latin-1.txt shift-jis.txt ebcdic.txt: not UTF-8; give the source its encoding; convert it with iconv
refused: iso-2022-jp.txt: this is ISO-2022-JP text; iconv -f ISO-2022-JP -t UTF-8
refused: nul.txt: not text; is NUL; encoding: bytes
refused: control.txt random.txt: not text; bytes are control characters; encoding: bytes
refused: zeros.txt: byte 1 is NUL, and so is all that was read: fetch it again
refused: empty.txt: it is empty
refused: none.txt.gz: it holds no text
lines: lines.txt lines.txt.gz long-lines.txt windows-lines.txt: this is JSON lines; give the source format: jsonl
lines: array.txt: this is an array of JSON; give the source format: jsonl
warned: page.html page.txt page.html.gz: 1 of 1 file is HTML; extract its text first; format: text
warned: dump.xml.txt note.xml: 1 of 1 file is XML; extract its text first; format: text
warned: object.txt strings.txt notebook.ipynb template.txt: 1 of 1 file is JSON; write texts as JSON lines; format: text
warned: rows.txt words.txt numbers.txt one-column.csv: 1 of 1 file is a table (CSV, TSV); write its text as JSON lines; format: text
warned: base64.txt base64-line.txt hex.txt: 1 of 1 file is encoded bytes (base64, hexadecimal); decode it first; format: text
text: plain.txt mark.txt plain.txt.gz windows.txt no-extension brace.txt set.txt bracket.txt list.txt verse.txt clauses.txt salutation.txt quotes.txt
text: tabs.py dna.txt digits.txt long-words.txt less.txt tags.txt names.txt letters.txt coloured.txt some-control.txt magic.txt blank.txt status.py notes.txt opcodes.txt
END
}

mkdir files
python3 "$WEFT_SOURCE_DIR/tests/support/foreign_files.py" files || { echo "no files"; exit 1; }
cp "$WEFT_SOURCE_DIR/tests/fuzz/corpus/parquet/dictionary-snappy" files/rows
: | gzip -n >files/none.txt.gz
table >rows
cut -d: -f2 rows | tr ' ' '\n' | grep . | sort >stated
ls files | sort >made
cmp -s stated made || fail "stated here and not made, or made and not stated: $(comm -3 stated made | tr '\n' ' ')"

# ---- what training makes of each ----
# says FILE PARTS: all of PARTS, between semicolons, are in the message.
says() {
    local part
    while read -r part; do has err "$part"; done < <(sed 's/; */\n/g' <<<"$2")
    grep -qF -- "$1" err || fail "no $1 in: $(cat err)"
}
# tokenizes STATUS FILE [KEYS]
tokenizes() { exits "$1" tokenize run.yaml "data.sources=[{path: 'files/$2'${3:-}}]"; }
while IFS=: read -r verdict names words; do
    for file in $names; do
        case $verdict in
        refused) tokenizes 65 "$file" && says "$file" "${words# }" ;;
        lines) tokenizes 65 "$file" && says "$file" "${words# }" && tokenizes 0 "$file" ", format: jsonl" ;;
        warned) tokenizes 0 "$file" && says "$file" "${words# }" ;;
        text) tokenizes 0 "$file" && ! grep -q '^warning' err || fail "$file: $(cat err)" ;;
        esac
    done
done < <(sed 's/^\([a-z]*\): \([^:]*\): */\1:\2:/; s/^text: /text:/' rows)

# ---- a warning is repeated at every start, counts files, and format: text ends it ----
tokenizes 0 page.html
has err "files/page.html: 1 of 1 file is HTML"
tokenizes 0 '[np]*e.[hx]*ml'
has err "1 of 2 files is HTML"
has err "1 of 2 files is XML"
for file in page.html rows.txt lines.txt array.txt object.txt base64.txt; do
    tokenizes 0 "$file" ", format: text"
    ! grep -q '^warning' err || fail "$file as text: $(cat err)"
done
# The cache is that of the source with format: text.
for file in lines.txt array.txt; do
    tokenizes 65 "$file"
    has err "give the source format: jsonl"
done
tokenizes 0 lines.txt ", encoding: bytes"
exits 65 tokenizer train files/lines.txt --vocab 300 --out t.json
has err "this is JSON lines"
exits 0 tokenizer train files/page.html files/page.html.gz --vocab 300 --out t.json
[ "$(grep -c '^warning.*this is HTML' err)" -eq 1 ] || fail "tokenizer train: $(cat err)"

# ---- nor as ids ----
for file in a.tar a.zip a.parquet a.safetensors a.npz plain.txt.gz a.sqlite a.pdf plain.txt megatron.idx; do
    [ "$file" != a.parquet ] || cp files/rows files/a.parquet
    exits 65 tokenize run.yaml "data.sources=[{path: files/$file, format: tokens, dtype: uint16, end: none}]"
    grep -q 'this is .*, not ids\|an index of Megatron, not ids' err || fail "$file as ids: $(cat err)"
done
rm files/a.parquet
exits 65 tokenize run.yaml "data.sources=[{path: files/pointer.txt, format: tokens, dtype: uint16}]"
has err "git lfs pull"

# ---- weft data inspect says the same ----
status=0
"$weft" data inspect files --json --samples 5 >out 2>err || status=$?
[ $status -eq 65 ] || fail "data inspect: exit status $status: $(tail -3 err)"
python3 - <<'END' || fail "data inspect reads other documents"
import gzip, json, os
verdicts = {}
for row in open("rows"):
    verdict, names = row.split(":")[:2]
    for name in names.split():
        verdicts[name] = verdict
bad = 0
for f in json.load(open("out"))["files"]:
    name = os.path.basename(f["path"])
    content = open("files/" + name, "rb").read()
    if name.endswith(".gz") and "refused" not in f:
        content = gzip.decompress(content)
    verdict = verdicts[name]
    if verdict in ("text", "warned"):
        documents = [content.decode().lstrip("\ufeff")] if content.strip() or content else []
        good = f.get("format") == "text" and ("text_form" in f) == (verdict == "warned")
    elif verdict == "lines":
        text = content.decode("utf-8-sig")
        objects = json.loads(text) if text[0] == "[" else [json.loads(line) for line in text.splitlines() if line]
        documents = [o["text"] for o in objects]
        good = f.get("format") == "jsonl" and f["source_keys"] == "format: jsonl"
    else:
        good = "refused" in f or f["format"] in ("parquet", "tokens") or f["documents"] == 0
        documents = None
    if documents is not None and good:
        good = f["documents"] == len(documents) and all(d.startswith(s) and len(s) >= min(len(d), 999) for s, d in zip(f["samples"], documents))
    if not good:
        bad += 1
        print(name, verdict, f)
exit(bad > 0)
END
conclude

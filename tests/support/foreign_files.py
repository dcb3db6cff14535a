#!/usr/bin/env python3
"""foreign_files.py DIRECTORY: writes small files of many formats, as their own programs write them or as far as their beginnings and ends
tell them; always the same bytes. tests/program/test_foreign_files.sh states what weft makes of each. Only the standard library is used."""
import base64
import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sqlite3
import struct
import sys
import tarfile
import wave
import zipfile

WORDS = "The rain in spring falls softly on the hill, and the river carries it to the sea.\n"
TEXT = "".join("%d. %s" % (i, WORDS) for i in range(6))
LATIN = "L'été, près de l'île, une fenêtre était ouverte à côté du théâtre. " * 6
files = {}


def noise(count, seed=1, below=256):
    """Bytes of a linear congruential generator."""
    out = bytearray()
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((seed >> 33) % below)
    return bytes(out)


def add(name, content):
    assert name not in files, name
    files[name] = content.encode() if isinstance(content, str) else content


def columns_and_tensors():
    add("a.arrow", b"ARROW1\0\0" + noise(200) + b"ARROW1")
    add("stream.arrow", b"\xff\xff\xff\xff\x10\x01\0\0" + noise(264))
    add("a.feather", b"FEA1" + b"\0" * 4 + noise(100) + b"\x20\0\0\0FEA1")
    add("a.orc", b"ORC\n\x1c\n\x04\0\0" + noise(100) + b"ORC\x18")
    add("a.avro", b"Obj\x01\x04\x16avro.schema" + noise(100))
    add("cut.parquet.txt", b"PAR1\x15\x04\x15\x10" + noise(300))
    for kind, name in (("<f4", "floats"), ("<u2", "ids"), ("<i8", "integers")):
        head = "{'descr': '%s', 'fortran_order': False, 'shape': (16,), }" % kind
        head = head.ljust(117) + "\n"
        add(name + ".npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head.encode() + noise(16 * int(kind[2])))
    add("a.npz", packed_zip({"ids.npy": files["ids.npy"]}))
    ids = [i * 37 % 256 if i % 4 == 0 else i * 977 % 50000 for i in range(1, 200)]
    add("nano.bin", struct.pack("<199H", *ids))
    add("nano32.bin", struct.pack("<199I", *ids))
    add("llmc.bin", struct.pack("<256I", 20240520, 1, 8, *[0] * 253) + struct.pack("<8H", 50256, *range(1, 8)))
    add("megatron.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", 4, 0, 0, 1))
    add("fairseq.idx", b"TNTIDX\0\0" + struct.pack("<QQ", 1, 8) + noise(60))
    add("shard.00000.mds", struct.pack("<IIII", 2, 16, 26, 36) + noise(20))
    add("a.tfrecord", b"\x0a\0\0\0\0\0\0\0\xae\xa3\xbf\x3a" + noise(40))
    header = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    add("a.safetensors", struct.pack("<Q", len(header)) + header + noise(16))
    add("a.gguf", b"GGUF\3\0\0\0" + noise(60))
    add("a.pt", packed_zip({"archive/data.pkl": pickle.dumps({"w": 1}, 2)}))
    add("tokenizer.model", b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n\x0c\n\x03<s>")


def packed_zip(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in members.items():
            z.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def packed_tar():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as t:
        entry = tarfile.TarInfo("a.txt")
        entry.size = len(TEXT)
        t.addfile(entry, io.BytesIO(TEXT.encode()))
    return out.getvalue()


def old_tar():
    """A header without a magic number."""
    head, rest = bytearray(packed_tar()[:512]), packed_tar()[512:]
    head[257:265] = bytes(8)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + rest


def gz(content):
    return gzip.compress(content, mtime=0)


def archives():
    add("a.tar", packed_tar())
    add("archive.parquet", packed_tar())
    add("old.tar", old_tar())
    add("a.zip", packed_zip({"a.txt": TEXT}))
    add("empty.zip", packed_zip({}))
    add("a.7z", b"7z\xbc\xaf\x27\x1c\0\4" + noise(60))
    add("a.rar", b"Rar!\x1a\x07\x01\0" + noise(60))
    add("a.deb", b"!<arch>\ndebian-binary   1700000000  0     0     100644  4         `\n2.0\n")
    add("a.cpio", b"070701" + b"0" * 104 + b"a.txt\0" + TEXT.encode())
    add("a.txt.bz2", bz2.compress(TEXT.encode()))
    add("a.txt.xz", lzma.compress(TEXT.encode()))
    add("a.txt.lzma", lzma.compress(TEXT.encode(), lzma.FORMAT_ALONE))
    add("a.txt.lz4", b"\x04\x22\x4d\x18\x64\x40\xa7" + noise(60))
    add("a.txt.sz", b"\xff\x06\0\0sNaPpY" + noise(60))
    add("a.txt.br", b"\x1b\x51\x02\xf8\x8d" + noise(60))
    add("a.txt.Z", b"\x1f\x9d\x90" + noise(60))
    add("a.txt.zz", b"\x78\x9c" + noise(60))
    add("a.txt.zst.txt", b"\x28\xb5\x2f\xfd" + noise(60))  # damaged
    add("cut.txt.gz", gz(TEXT.encode())[:-12])
    add("twice.txt.gz.gz", gz(gz(TEXT.encode())))


def pickles():
    for protocol in range(6):
        add("texts-%d.pkl" % protocol, pickle.dumps([TEXT[:40], TEXT[40:90]], protocol))
        add("map-%d.pkl" % protocol, pickle.dumps({"text": TEXT, "ids": list(range(5))}, protocol))
    add("long-0.pkl", pickle.dumps(TEXT * 3, 0))
    add("object-0.pkl", pickle.dumps(complex(1, 2), 0))
    add("python2.pkl", "(lp1\nS'the rain'\np2\naS'in spring'\np3\na.")


def databases():
    path = os.path.join(sys.argv[1], "a.sqlite")
    base = sqlite3.connect(path)
    base.execute("create table t (text)")
    base.execute("insert into t values (?)", (TEXT,))
    base.commit()
    base.close()
    add("a.sqlite", open(path, "rb").read())
    add("a.duckdb", noise(8) + b"DUCK\x40\0\0\0" + noise(400))
    add("data.mdb", b"\0" * 16 + b"\xde\xc0\xef\xbe" + noise(200))
    add("000005.ldb", noise(200, 3) + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb")
    add("000005.sst", noise(200, 4) + b"\xf7\xcf\xf4\x85\xb7\x41\xe2\x88")
    add("a.h5", b"\x89HDF\r\n\x1a\n" + noise(100))
    add("a.nc", b"CDF\x01" + b"\0" * 20)
    add("a.mat", b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\1IM" + noise(60))
    add("a.rdata", b"RDX3\nX\n\0\0\0\3" + noise(60))
    add("a.warc", "WARC/1.0\r\nWARC-Type: response\r\n\r\n" + TEXT)


def documents_and_media():
    add("a.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + noise(100) + b"\n%%EOF\n")
    add("a.ps", "%!PS-Adobe-3.0\n/Times findfont\n(" + WORDS + ") show\n")
    add("a.rtf", "{\\rtf1\\ansi " + WORDS + "}")
    add("a.docx", packed_zip({"[Content_Types].xml": "<Types/>", "word/document.xml": "<w:document/>"}))
    add("a.odt", packed_zip({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": "<x/>"}))
    add("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + noise(100))
    add("a.djvu", b"AT&TFORM\0\0\1\0DJVU" + noise(60))
    add("a.mobi", b"A book".ljust(60, b"\0") + b"BOOKMOBI" + noise(60))
    add("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + noise(60))
    add("a.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF\0" + noise(60))
    add("a.gif", b"GIF89a\1\0\1\0\x80" + noise(60))
    add("a.tif", b"MM\0*\0\0\0\x08" + noise(60))
    add("a.bmp", b"BM" + struct.pack("<IIII", 66, 0, 54, 40) + noise(48))
    add("a.avif", b"\0\0\0\x20ftypavif\0\0\0\0" + noise(60))
    add("a.jp2", b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 " + noise(60))
    add("a.xlsx", packed_zip({"docProps/app.xml": "<a/>", "[Content_Types].xml": "<a/>"}))
    add("a.cbor", b"\xd9\xd9\xf7\x9f" + 40 * (b"\x78\x53" + WORDS[:83].encode()) + b"\xff")
    add("a.mp4", b"\0\0\0\x18ftypmp42\0\0\0\0" + noise(60))
    add("a.mkv", b"\x1a\x45\xdf\xa3\x9f" + noise(60))
    add("a.flac", b"fLaC\0\0\0\x22" + noise(60))
    add("a.ogg", b"OggS\0\2" + noise(60))
    sound = io.BytesIO()
    with wave.open(sound, "wb") as w:
        w.setparams((1, 2, 8000, 0, "NONE", ""))
        w.writeframes(noise(200))
    add("a.wav", sound.getvalue())
    add("a.out", b"\x7fELF\2\1\1\0" + noise(60))
    add("a.exe", b"MZ\x90\0\3\0\0\0" + noise(60))
    add("a.wasm", b"\0asm\1\0\0\0" + noise(20))
    add("A.class", b"\xca\xfe\xba\xbe\0\0\0\x34" + noise(60))
    add("a.pyc", b"\xa7\x0d\x0d\x0a\0\0\0\0" + noise(60))
    add("pointer.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0123456789abcdef" * 4 + "\nsize 12345\n")
    add("pointer.parquet", files["pointer.txt"])
    add("denied.txt", '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>')


def encodings():
    add("utf-16.txt", LATIN.encode("utf-16"))
    add("utf-16be-mark.txt", b"\xfe\xff" + LATIN.encode("utf-16-be"))
    add("utf-16le.txt", LATIN.encode("utf-16-le"))
    add("utf-16be.txt", LATIN.encode("utf-16-be"))
    add("utf-32.txt", LATIN.encode("utf-32"))
    add("utf-32le.txt", LATIN.encode("utf-32-le"))
    add("utf-32be.txt", LATIN.encode("utf-32-be"))
    add("latin-1.txt", LATIN.encode("latin-1"))
    add("shift-jis.txt", ("日本語の文章。" * 20).encode("shift-jis"))
    add("iso-2022-jp.txt", ("日本語の文章。\n" * 20).encode("iso-2022-jp"))
    add("ebcdic.txt", TEXT.encode("cp500"))
    add("nul.txt", TEXT + "\0" + TEXT)
    add("control.txt", noise(4000, 5, 127).replace(b"\0", b"a"))
    add("random.txt", noise(4000, 6).replace(b"\0", b"a"))


def forms_of_text():
    lines = [json.dumps({"text": "%d. %s" % (i, WORDS)}) for i in range(4)]
    add("lines.txt", "\n".join(lines) + "\n")
    add("long-lines.txt", "\n".join(json.dumps({"id": i, "text": TEXT * 300}) for i in range(2)))
    add("lines.txt.gz", gz(files["lines.txt"]))
    add("windows-lines.txt", "\ufeff" + "\r\n\r\n".join(lines))
    add("array.txt", "[\n" + ",\n".join(lines) + "\n]\n")
    add("object.txt", lines[0] + "\n")
    add("strings.txt", json.dumps([WORDS, WORDS]))
    add("notebook.ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": [WORDS]}]}, indent=1))
    add("page.html", "<!-- saved -->\n<!DOCTYPE html>\n<html><body><p>%s</p></body></html>\n" % WORDS)
    add("page.txt", '<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "x.dtd">\n<html><p>%s</p></html>' % WORDS)
    add("dump.xml.txt", '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><page>%s</page></mediawiki>' % WORDS)
    add("note.xml", '<?xml version="1.0"?>\n<note><to>%s</to></note>' % WORDS)
    rows = ["id,title,text"] + ['%d,"A title, with a comma","He said ""no"".\nThen %s"' % (i, WORDS.strip()) for i in range(5)]
    add("rows.txt", "\r\n".join(rows) + "\r\n")
    add("words.txt", "word\tcount\n" + "".join("w%d\t%d\n" % (i, i) for i in range(5)))
    add("numbers.txt", "".join("%d;%d;%d\n" % (i, i * i, i**3) for i in range(9)))
    add("one-column.csv", "text\n" + WORDS.replace(",", ""))
    add("base64.txt", base64.encodebytes(noise(600)))
    add("base64-line.txt", base64.b64encode(noise(600)))
    add("hex.txt", "".join(noise(32, i).hex() + "\n" for i in range(6)))
    add("page.html.gz", gz(files["page.html"]))
    add("texts-0.pkl.gz", gz(files["texts-0.pkl"]))
    add("a.tar.gz", gz(files["a.tar"]))
    add("floats.npy.gz", gz(files["floats.npy"]))
    add("page.txt.gz", gz(files["utf-32le.txt"]))


def texts():
    """What must not be taken for anything else."""
    add("plain.txt", TEXT)
    add("mark.txt", b"\xef\xbb\xbf" + TEXT.encode())
    add("plain.txt.gz", gz(TEXT.encode()))
    add("windows.txt", TEXT.replace("\n", "\r\n"))
    add("no-extension", TEXT)
    add("brace.txt", "{a text of one line that begins with a brace, and is no JSON}\n")
    add("set.txt", '{"rain", "snow"} is a set of two words.\n{"rain"} is one of one.\n')
    add("template.txt", '{"name": her} \n{"name": his}\n')
    add("bracket.txt", "[1] The first note.\n[2] The second note.\n")
    add("list.txt", '["rain" and "snow" are in brackets]\n')
    add("verse.txt", "Roses are red,\nviolets are blue,\nsugar is sweet,\nand so are you,\n" * 4)
    add("clauses.txt", "We came, we saw, we won.\n" * 9)
    add("salutation.txt", "Dear John,\nthank you for the letter, and the rain.\n")
    add("quotes.txt", '"Come, now," he said, "and see."\n' * 6)
    add("tabs.py", "def f(x):\n" + "\tif x:\n\t\treturn 1\n" * 6)
    add("dna.txt", ("ACGTTGCA" * 8 + "\n") * 6)
    add("digits.txt", ("3141592653589793" * 4 + "\n") * 6)
    add("long-words.txt", "Donaudampfschifffahrtsgesellschaften\n" * 6)
    add("less.txt", "<3 is a heart, and < is less.\n")
    add("tags.txt", "<doc id=1>\n" + WORDS + "</doc>\n")
    add("names.txt", "Victor\nVanessa\nIngrid\nSarah\n" * 3)
    add("status.py", 'r"""\nThe codes of the answers.\n"""\n\nopen = 1\n' * 20)
    add("notes.txt", "util-linux notes\n\nlist of changes\np1\n" * 20)
    add("opcodes.txt", "Nq.\n")
    add("letters.txt", "a\nN\n(lp0 is how a pickle begins.\n")
    add("coloured.txt", "\x1b[31mred\x1b[0m and \x1b[32mgreen\x1b[0m words, with a form feed\f" + TEXT)
    add("some-control.txt", TEXT + "\x01\x02" + TEXT)
    add("magic.txt", "PAR1, ORC, GIF8, MZ, BM, CDF, RDX and FEA1 are magic numbers.\n")
    add("empty.txt", "")
    add("empty.parquet", "")
    add("table.parquet", gz(TEXT.encode()))
    add("words.parquet", TEXT)
    add("whole.gz", gz(files["cut.parquet.txt"] + b"PAR1"))
    add("zeros.txt", bytes(400))
    add("blank.txt", " \n\n\t \n")


for make in (columns_and_tensors, archives, pickles, databases, documents_and_media, encodings, forms_of_text, texts):
    make()
for name, content in files.items():
    with open(os.path.join(sys.argv[1], name), "wb") as out:
        out.write(content)

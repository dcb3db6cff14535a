#!/bin/sh
# Prints the King James Bible from Debian's bible-kjv: the name of each chapter, then its verses joined into paragraphs of a few
# sentences, one per line, as in a printed book. An empty line separates chapters.
set -eu
command -v bible >/dev/null || { echo "kjv: the packages bible-kjv and bible-kjv-text are needed" >&2; exit 69; }
bible -f 'gen1:1-rev22:21' | LC_ALL=C awk '
BEGIN {
    short = "Ge Exo Lev Num Deu Josh Jdgs Ruth 1Sm 2Sm 1Ki 2Ki 1Chr 2Chr Ezra Neh Est Job Psa Prv Eccl SSol Isa Jer Lam Eze Dan " \
        "Hos Joel Amos Obad Jonah Mic Nahum Hab Zep Hag Zec Mal Mat Mark Luke John Acts Rom 1Cor 2Cor Gal Eph Phi Col 1Th 2Th " \
        "1Tim 2Tim Titus Phmn Heb Jas 1Pet 2Pet 1Jn 2Jn 3Jn Jude Rev"
    full = "Genesis,Exodus,Leviticus,Numbers,Deuteronomy,Joshua,Judges,Ruth,1 Samuel,2 Samuel,1 Kings,2 Kings,1 Chronicles," \
        "2 Chronicles,Ezra,Nehemiah,Esther,Job,Psalm,Proverbs,Ecclesiastes,Song of Solomon,Isaiah,Jeremiah,Lamentations," \
        "Ezekiel,Daniel,Hosea,Joel,Amos,Obadiah,Jonah,Micah,Nahum,Habakkuk,Zephaniah,Haggai,Zechariah,Malachi,Matthew,Mark," \
        "Luke,John,Acts,Romans,1 Corinthians,2 Corinthians,Galatians,Ephesians,Philippians,Colossians,1 Thessalonians," \
        "2 Thessalonians,1 Timothy,2 Timothy,Titus,Philemon,Hebrews,James,1 Peter,2 Peter,1 John,2 John,3 John,Jude,Revelation"
    count = split(short, names, " ")
    split(full, titles, ",")
    for (i = 1; i <= count; i++) title[names[i]] = titles[i]
}
match($1, /[0-9]+:[0-9]+$/) {
    name = substr($1, 1, RSTART - 1)
    split(substr($1, RSTART), place, ":")
    if (!(name in title)) { print "kjv: unknown book " name > "/dev/stderr"; failed = 1; exit 1 }
    verse = $0
    sub(/^[^ ]+ +/, "", verse)
    gsub(/ +/, " ", verse)
    sub(/ $/, "", verse)
    if (name " " place[1] != chapter) {
        if (chapter != "") printf "\n\n"
        chapter = name " " place[1]
        printf "%s %s\n%s", title[name], place[1], verse
        in_paragraph = 1
    } else {
        # A paragraph ends with a sentence, after four verses or more.
        fresh = in_paragraph >= 4 && last ~ /[.?!)]$/
        printf "%s%s", fresh ? "\n" : " ", verse
        in_paragraph = fresh ? 1 : in_paragraph + 1
    }
    last = verse
}
END { if (!failed) print "" }'

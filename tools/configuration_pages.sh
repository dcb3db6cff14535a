#!/bin/bash
# Writes the configuration reference, docs/use/configuration/SECTION.md, from the program's own help: one page for each section.
#   tools/configuration_pages.sh [DIRECTORY]      (WEFT: the program; default build/weft)
# tests/program/test_docs.sh compares the pages with what this writes.
set -euo pipefail
weft=$(realpath "${WEFT:-$(dirname "$0")/../build/weft}")
pages=${1:-$(dirname "$0")/../docs/use/configuration}
mkdir -p "$pages"

# After "Configuration,", a line at column 1 begins a section. A key's line begins with its section or, inside a list of maps, with six
# blanks and NAME=. The key's type may continue at six blanks, and its help text at column 35. The last parentheses hold range, default and
# effect on resume.
"$weft" train --help | awk -v pages="$pages" '
    function cell(text) { gsub(/[|]/, "\\|", text); return text }
    function flush(    facts) {
        if (key == "") return
        facts = ""
        if (match(help, / ?\((at least |default |on resume: |[-0-9.e+]+ to )[^()]*\)$/)) {
            facts = substr(help, RSTART, RLENGTH)
            gsub(/^ ?\(|\)$/, "", facts)
            help = substr(help, 1, RSTART - 1)
        }
        printf "| %s`%s` | %s | %s | %s |\n", inner ? "&nbsp;&nbsp;" : "", key, cell(type), cell(help), cell(facts) >page
        key = ""
    }
    /^Configuration,/ { on = 1; next }
    !on { next }
    /^[a-z_]+$/ {
        flush()
        section = $0
        page = pages "/" section ".md"
        print "# Configuration: `" section "`\n" >page
        print "N is an integer, X a number. [Configuration](../configuration.md) explains files, overrides and what a change does on" >page
        print "resume. This page is made by `tools/configuration_pages.sh` from `weft train --help`.\n" >page
        print "| key | value | meaning | range, default, on resume |\n|---|---|---|---|" >page
        next
    }
    /^ *$/ { next }
    match($0, "^  (    [a-z_0-9]+|" section "\\.[a-z_0-9]+)=") {
        flush()
        inner = /^      /
        sub(/^ */, "")
        key = $0; sub(/=.*/, "", key)
        type = substr($0, length(key) + 2)
        help = ""
        if (match(type, /  +/)) { help = substr(type, RSTART + RLENGTH); type = substr(type, 1, RSTART - 1) }
        else if (match(type, /[^,] /)) { help = substr(type, RSTART + 2); type = substr(type, 1, RSTART) }
        next
    }
    help == "" && /^      [^ ]/ { sub(/^ */, ""); type = type $0; next }
    { sub(/^ */, ""); help = help (help == "" ? "" : " ") $0 }
    END { flush() }'

#!/bin/bash
# Everything that documents name exists: targets of links, files of this tree and, in docs/inside, identifiers of the code. The pages
# generated from the program's help are up to date.
. "$(dirname "$0")/../support/prelude.sh"
cd "$WEFT_SOURCE_DIR" || exit 1

# The words of the code: comments of C and of scripts do not count, nor does this file, which plants names that do not exist.
words=$directory/words
find src tests bench -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.sh' -o -name '*.py' -o -name CMakeLists.txt \) \
    ! -name test_docs.sh -exec awk '
    FNR == 1 { inside = 0; script = FILENAME ~ /\.(sh|py|txt)$/ }
    script { sub(/^[[:space:]]*#.*/, ""); print; next }
    {
        line = $0; code = ""
        while (line != "") {
            at = index(line, inside ? "*/" : "/*")
            if (!inside) code = code " " (at ? substr(line, 1, at - 1) : line)
            line = at ? substr(line, at + 2) : ""
            if (at) inside = !inside
        }
        print code
    }' {} + | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u >"$words"
[ "$(wc -l <"$words")" -ge 5000 ] || fail "only $(wc -l <"$words") words of the code were found"

# Words between backticks that are not identifiers: placeholders, and values of other programs.
placeholders='.*NAME.*|[A-Z]|BACKEND|FILE|INFO|NN|SEED|NCCL_DEBUG|PYTHON'

# named FILE: prints the identifiers that a page names: word_word, Word, WORD and Word.field between backticks (but not names of files, which
# have a check of their own), and word() anywhere.
named() {
    {
        grep -oE '`[^`]+`' "$1" | sed -E 's#[A-Za-z0-9_./*-]+\.(c|h|cu|cuh|cpp|sh|py|md|yaml|txt|jsonl?|safetensors)\b##; s#^`[a-z_]+/[^ `]*##; s/-D//' |
            grep -oE '[A-Za-z0-9_]+' | grep -E '^[a-z][a-z0-9]*_[a-z0-9_]+$|^[A-Z][A-Za-z0-9_]*$'
        grep -oE '`[A-Z][A-Za-z0-9]*\.[a-z_]+`' "$1" | grep -oE '[A-Za-z0-9_]+'
        grep -oE '(^|[^A-Za-z0-9_])[a-z][a-z0-9_]*\(\)' "$1" | grep -oE '[a-z][a-z0-9_]*'
    } | grep -vxE "$placeholders" | sort -u
}

# source_file NAME: prints a file of this tree by its path, or by the end of its path.
source_file() {
    if [ -e "$1" ]; then echo "$1"; else find -L src tests bench -path "*/$1" 2>/dev/null | head -1; fi
}

# anchors FILE: prints the anchors of a page's headings.
anchors() { sed -n 's/^##* *//p' "$1" | tr 'A-Z' 'a-z' | tr -cd 'a-z0-9 _\n-' | tr ' ' '-'; }

# check FILE...: prints what is missing.
check() {
    local file target name
    for file; do
        while read -r target; do
            local path=${target%%#*} heading=
            path=$([ -n "$path" ] && echo "$(dirname "$file")/$path" || echo "$file")
            [[ $target != *'#'* ]] || heading=${target#*#}
            [ -e "$path" ] || echo "$file: link to $target"
            [ -z "$heading" ] || [ ! -e "$path" ] || anchors "$path" | grep -qxF -- "$heading" || echo "$file: heading of $target"
        done < <(grep -oE '\]\([^)]+\)' "$file" | sed 's/^](//; s/)$//' | grep -vE '^(https?:|mailto:)')
        while read -r name; do
            compgen -G "$name" >/dev/null || echo "$file: file $name"
        done < <(grep -oE '(^|[^A-Za-z0-9_./-])(src|tests|tools|bench|configs|examples|docs)/[A-Za-z0-9_/*.-]*\.(c|h|cu|cuh|sh|py|md|yaml)\b' "$file" |
            sed -E 's/^[^a-z]*//' | grep -v NAME | sort -u)
        case $file in docs/inside/*) ;; *) continue ;; esac
        while read -r name; do
            echo "$file: $name is nowhere in the code of src, tests or bench"
        done < <(named "$file" | comm -23 - "$words")
        # `file.c: function`, `file.c`, `folder/`.
        while IFS=: read -r target name; do
            path=$(source_file "${target%/}")
            if [ -z "$path" ]; then
                echo "$file: there is no $target"
            elif [ -n "$name" ]; then
                grep -qw -- "${name# }" "$path" || echo "$file: $target has no${name}"
            fi
        done < <(grep -oE '`[A-Za-z0-9_./]+`|`[A-Za-z0-9_/]+\.[a-z]+: [A-Za-z0-9_]+`' "$file" | tr -d '`' |
            grep -E '^[a-z0-9_/]+(\.(c|h|cu|cuh|cpp)(: .*)?|/)$' | grep -v NAME | sort -u)
    done
}

shopt -s globstar
missing=$(check README.md CONTRIBUTING.md docs/**/*.md)
[ -z "$missing" ] || fail "named, but missing:"$'\n'"$missing"

# The index links to every page.
for file in docs/*.md docs/*/*.md; do
    [ "$file" = docs/README.md ] || grep -qF "](${file#docs/}" docs/README.md || fail "docs/README.md has no link to $file"
done

# The check itself can fail: plants one mistake of each kind.
mkdir -p "$directory/docs/inside"
cat >"$directory/docs/inside/planted.md" <<'EOF'
[a](nowhere.md) [b](#nowhere) src/nowhere/none.c `no_such_function_here` `no_such_call(device)` no_such_call_either() `NoSuchType` `Nosuch`
`NO_SUCH_NAME` `KSplit.nosuchfield` `NoSuchStruct.runs` `src/base/tree.c: no_such_function_there` `src/base/tree.c: axes_check` `nowhere.cuh` `src/nowhere/` `tree.h`
`KSplit.runs` `src/base/` `base/` `src/base/tree.c: tree_half` `make_NAME` tree_half() [c](planted.md)
EOF
cd "$directory" && ln -s "$WEFT_SOURCE_DIR/src" src
check docs/inside/planted.md >found
[ "$(wc -l <found)" -eq 15 ] || fail "the check finds $(wc -l <found) of 15 planted mistakes:"$'\n'"$(cat found)"

# Statuses that a verb explains by itself are on the page of all statuses.
for status in 1 69; do
    grep -q "^| $status |.*weft verify" "$WEFT_SOURCE_DIR/docs/use/exit-status.md" || fail "docs/use/exit-status.md: status $status lacks weft verify"
done

# The configuration reference matches the program's help.
cd "$WEFT_SOURCE_DIR" && WEFT=$weft tools/configuration_pages.sh "$directory/pages"
diff -r docs/use/configuration "$directory/pages" >"$directory/unlike" ||
    fail "docs/use/configuration is not what this program's help says (tools/configuration_pages.sh writes it):"$'\n'"$(head -20 "$directory/unlike")"
[ "$(cat docs/use/configuration/*.md | grep -c '^| `')" -eq "$("$weft" config --plain | grep -c '^  [a-z]')" ] || fail "the reference lacks keys"

# Messages on the troubleshooting page occur in the source: compares the text between "...", with string literals of several lines joined.
find src -name '*.[ch]' -exec cat {} + | tr '\n' ' ' | sed 's/"  *"//g; s/\\"/"/g' >"$directory/source"
while IFS= read -r words; do
    grep -qF -- "$words" "$directory/source" || fail "docs/use/troubleshooting.md: no message has: $words"
    texts=$((${texts:-0} + 1))
done < <(sed -n 's/^| \(`[^|]*\) |.*/\1/p' docs/use/troubleshooting.md | grep -oE '`[^`]*`' | tr -d '`' | sed 's/\.\.\./\n/g' | sed 's/^[ ,:]*//; s/[ ,:]*$//' |
    grep -E '.{10}' | grep -vE 'killed by signal 9|No space left|cannot open: No such|/part-|data.tokenizer')
[ "${texts:-0}" -ge 40 ] || fail "only ${texts:-0} messages of docs/use/troubleshooting.md were found"
conclude

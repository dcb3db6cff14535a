#!/bin/bash
# Everything that documents name exists: targets of links, files of this tree and, in docs/inside, identifiers of the code. The pages
# generated from the program's help are up to date.
. "$(dirname "$0")/../support/prelude.sh"
cd "$WEFT_SOURCE_DIR" || exit 1

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
            grep -rqw -- "$name" src tests bench 2>/dev/null || echo "$file: $name is nowhere in src, tests or bench"
        done < <(grep -oE '`[a-z]+_[a-z0-9_]+`' "$file" | tr -d '`' | sort -u)
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
printf '[a](nowhere.md) [b](#nowhere) src/nowhere/none.c `no_such_function_here`\n' >"$directory/docs/inside/planted.md"
cd "$directory" && ln -s "$WEFT_SOURCE_DIR/src" src
found=$(check docs/inside/planted.md | wc -l)
[ "$found" -eq 4 ] || fail "the check finds $found of 4 planted mistakes"

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

#!/bin/bash
# What documents name exists: the targets of links, files of this tree, and in docs/inside, which walks through the code, its names.
. "$(dirname "$0")/../support/prelude.sh"
cd "$WEFT_SOURCE_DIR" || exit 1

# check FILE...: prints what is missing.
check() {
    local file target name
    for file; do
        while read -r target; do
            [ -e "$(dirname "$file")/${target%%#*}" ] || echo "$file: link to $target"
        done < <(grep -oE '\]\([^)#][^)]*\)' "$file" | sed 's/^](//; s/)$//' | grep -vE '^(https?:|mailto:)')
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

missing=$(check README.md CONTRIBUTING.md docs/*.md docs/*/*.md)
[ -z "$missing" ] || fail "named, but missing:"$'\n'"$missing"

# The check itself can fail: one of each kind.
mkdir -p "$directory/docs/inside"
printf '[a](nowhere.md) src/nowhere/none.c `no_such_function_here`\n' >"$directory/docs/inside/planted.md"
cd "$directory" && ln -s "$WEFT_SOURCE_DIR/src" src
found=$(check docs/inside/planted.md | wc -l)
[ "$found" -eq 3 ] || fail "the check finds $found of 3 planted mistakes"
conclude

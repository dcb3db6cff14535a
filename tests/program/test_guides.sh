#!/bin/bash
# The guides for users of other trainers. Each weft key that they name exists, and each key of the other trainer (keys-*.txt, lists kept here)
# is in a first column: in full, or after another key of its section, as in `optimizer.lr`, `eps`. A wildcard matches nothing.
# Also checks the recipes among the configurations.
. "$(dirname "$0")/../support/prelude.sh"
docs=$WEFT_SOURCE_DIR/docs lists=$WEFT_SOURCE_DIR/tests/program

"$weft" config --plain | awk '/^[a-z]/ { section = $1; sub(/:$/, "", section) } /^  [a-z]/ { key = $1; sub(/:$/, "", key); print section "." key }' | sort -u >keys
# Prints the keys in a guide's first columns; a heading of the form "## stool" names the section of the rows below it.
theirs() { # FILE
    awk -F '|' '
        /^## / { heading = $0 ~ /^## [a-z]*$/ ? substr($0, 4) : "" }
        NF > 3 {
            n = split($2, part, "`")
            section = heading
            for (i = 2; i <= n; i += 2) {
                name = part[i]
                sub(/[:= (].*/, "", name)
                print name
                if (section != "") print section "." name
                if (name ~ /^[A-Za-z_0-9.]+\.[A-Za-z_0-9]+$/) { section = name; sub(/\.[^.]*$/, "", section) }
            }
        }' "$1" | sort -u
}
for peer in torchtitan lingua; do
    guide=$docs/use/from-$peer.md
    # weft's keys are in the second column.
    awk -F '|' 'NF > 3 { print $3 }' "$guide" | grep -o '`[a-z_]*\.[a-z_0-9]*' | tr -d '`' | grep -v '\.sh$' | sort -u >named
    [ "$(wc -l <named)" -ge 40 ] || fail "$peer: only $(wc -l <named) keys were found"
    grep -vxFf keys named >unknown && fail "from-$peer names keys that are not there: $(tr '\n' ' ' <unknown)"
    grep -v '^#' "$lists/keys-$peer.txt" >list
    [ "$(wc -l <list)" -ge 150 ] || fail "keys-$peer.txt has only $(wc -l <list) names"
    sort list | uniq -d | grep . && fail "keys-$peer.txt has names twice"
    theirs "$guide" >found
    grep -vxFf found list >missing && fail "from-$peer.md does not mention $(wc -l <missing) of their keys: $(tr '\n' ' ' <missing)"
done

# If a hint (ELSEWHERE in a row of options) knows another trainer's name, it suggests a weft key that the guide has in the same row. A name with
# several rows, by kind of model or sharding, has one hint.
# The names of a row may be a string in several pieces, on several lines.
cat "$WEFT_SOURCE_DIR"/src/*/options.c | tr '\n' ' ' | sed 's/" *"//g' | grep -oE '[A-Z]+\( *"[a-z_]+\.[a-z_0-9]+"|ELSEWHERE\( *"[^"]*"' | tr -d '"' |
    awk -F '(' '$1 == "ELSEWHERE" { sub("^ *", "", $2); n = split($2, name, " "); for (i = 1; i <= n; i++) print name[i], key; next } $1 != "FOLLOWS" && $1 != "WAS" { key = $2; gsub(" ", "", key) }' >synonyms
[ "$(wc -l <synonyms)" -ge 300 ] || fail "only $(wc -l <synonyms) synonyms were found"
awk '
    FNR == NR { key[$1] = $2; next }
    /^## / { heading = $0 ~ /^## [a-z]*$/ ? substr($0, 4) : "" }
    { columns = split($0, column, "|") }
    columns > 3 && column[3] ~ /`[a-z_]+\.[a-z_0-9]+/ {
        n = split(column[2], part, "`")
        section = heading
        for (i = 2; i <= n; i += 2) {
            name = part[i]
            sub(/[:= (].*/, "", name)
            last = name
            sub(/.*\./, "", last)
            full = name == last && section != "" ? section "." name : name
            if (name != last) { section = name; sub(/\.[^.]*$/, "", section) }
            hint = full in key ? key[full] : last in key ? key[last] : ""
            if (hint ~ /\./ && !index(column[3], "`" hint)) print full, hint
        }
    }' synonyms "$docs/use/from-torchtitan.md" "$docs/use/from-lingua.md" | grep -vxF -e 'model.n_heads model.num_attention_heads' -e 'distributed.fsdp_type mesh.dp_shard' >unlike
[ -s unlike ] && fail "hints that the guides do not have: $(tr '\n' ';' <unlike)"

# Recipes begin with their data and the loss to expect; each is a configuration that weft can read.
for recipe in "$WEFT_SOURCE_DIR"/configs/demo.yaml "$WEFT_SOURCE_DIR"/configs/pretrain-*.yaml; do
    grep -q '^# Data: ' "$recipe" && grep -q '^# Loss to expect: .*[0-9]\.[0-9]' "$recipe" || fail "$recipe does not say its data and its loss"
    "$weft" config "$recipe" >out 2>err || fail "$recipe: $(cat err)"
done

conclude

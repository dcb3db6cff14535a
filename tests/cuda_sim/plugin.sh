# For the kernel checks: builds the plugin with the simulation and one changed file.
source=$WEFT_SOURCE_DIR/src/device/cuda/plugin
tests=$WEFT_BINARY_DIR
export TEST_BRIEF=1
export CCACHE_NODIRECT=1 # ccache's direct mode would miss a changed header that shadows the one it knows

# compile FILE OBJECT FLAG...: compiles as the build does, with less optimization.
compile() {
    local language=c compiler=$SIM_CC flags="-O1 -fPIC -fvisibility=hidden"
    case $1 in *.cu) language=c++ compiler=$SIM_CXX flags=${SIM_FLAGS/-O3/-O1} ;; esac
    # shellcheck disable=SC2086
    "$compiler" -x "$language" $flags -w -D_GNU_SOURCE -Ichanged -I"$WEFT_SOURCE_DIR/tests/cuda_sim" -I"$WEFT_SOURCE_DIR/src" -c "$1" -o "$2" "${@:3}"
}
# link PLUGIN [FILE OBJECT]: links the build's objects, with OBJECT in place of FILE's. An object in the current directory replaces the
# build's object of the same name.
link() {
    local objects=() object
    for object in $SIM_OBJECTS; do
        case $object in */"${2:-none}".o) object=$3 ;; esac
        [ ! -e "$(basename "$object")" ] || object=$(basename "$object")
        objects+=("$object")
    done
    "$SIM_CXX" ${SIM_SANITIZE:+-fsanitize=$SIM_SANITIZE} -shared "${objects[@]}" -o "$1"
}
# build NAME FILE SED [FLAG...]: makes mutant.so, the plugin with FILE changed by SED. FILE may be HEADER@SOURCE: HEADER changes for SOURCE
# alone.
build() {
    local name=$1 file=${2%@*} unit=${2#*@} to=changed/device/cuda/plugin
    rm -rf changed
    mkdir -p $to
    cp "$source/$unit" $to
    sed -E "$3" "$source/$file" >"$to/$file"
    ! cmp -s "$to/$file" "$source/$file" || { fail "$name: nothing in $file is changed by it"; return 1; }
    compile "$to/$unit" mutant.o "${@:4}" || { fail "$name: it does not compile"; return 1; }
    link mutant.so "$unit" mutant.o || { fail "$name: it does not link"; return 1; }
}
op() { echo "$tests/test_ops" cuda "$1"; }

# PART=K/N: plants only every Nth fault, from the Kth on (.ci/run plants an eighth of them for each commit). mine: true if the next fault is
# to be planted.
planted=0
mine() { tried=$((${PART:+planted++ % ${PART#*/} - ${PART%/*}} + 0)); [ "$tried" -eq 0 ]; }
# says TEXT: the output of the last planted fault must contain TEXT.
says() { [ "$tried" -ne 0 ] || has log "$1"; }

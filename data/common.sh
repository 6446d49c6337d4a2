# What the scripts of this folder share; sourced by them, from the root of the repository.
#
# fetch URL FILE [SHA256]   downloads FILE where it is not there yet; a download that was cut is continued. Its hash is
#                           checked at every call: against SHA256, or else against what it was when it was downloaded.
#                           Where another script is downloading into that folder, it waits.
# lock_folder DIR           makes the folder and locks it until the script and all that it has started have ended
# need_tokenize             sets $tokenize, or says how to build it
# gpt2_vocabulary           fetches GPT-2's merges and ids; sets $vocabulary
#
# Exit codes: 69 no network, 65 a file that is not what it should be, 64 a folder that another run is writing. DATA_UNCHECKED=1 takes files of any hash.

script=$(basename "$0")
fail() {   # CODE MESSAGE...
    local code=$1
    shift
    printf "$script: %s\n" "$@" >&2
    exit "$code"
}

need_tokenize() {
    tokenize=${TOKENIZE:-./tokenize}
    [ -x "$tokenize" ] || fail 69 "$tokenize is not built; run \`make tools\` first"
}

download() {   # URL FILE
    command -v curl >/dev/null || fail 69 "curl is not installed (apt-get install curl)"
    local host=${1#*://} status=0
    host=${host%%/*}
    curl --fail --location --silent --show-error --retry 3 --connect-timeout 20 --continue-at - --output "$2" "$1" || status=$?
    case $status in
        0) return 0 ;;
        5 | 6 | 7 | 28 | 35)
            fail 69 "no network: $host cannot be reached (curl's error $status)" \
                "run this again with a network, or bring the file here by hand: $1 -> ${2%.part}" ;;
        *) fail 69 "the download of $1 failed (curl's error $status); run this again to continue it" ;;
    esac
}

# The locks are on the folders themselves, so that nothing is left of them. Where there is no flock (of util-linux), and on
# file systems without such locks, nothing is locked.
lock_folder() {
    local lock status=0
    mkdir -p "$1"
    exec {lock}<"$1"
    flock --nonblock --conflict-exit-code 64 "$lock" 2>/dev/null || status=$?
    [ $status -ne 64 ] || fail 64 "$1: another run is writing there" "wait until it has ended, or stop it"
}

fetch() {
    local url=$1 file=$2 expected=${3:-} found lock
    mkdir -p "$(dirname "$file")"
    exec {lock}<"$(dirname "$file")"
    flock "$lock" 2>/dev/null || true
    if [ ! -e "$file" ]; then
        echo "downloading $url"
        download "$url" "$file.part" && mv "$file.part" "$file"
    fi
    found=$(sha256sum <"$file") && found=${found%% *}
    if [ -z "$expected" ]; then
        [ -e "$file.sha256" ] || echo "$found" >"$file.sha256"
        expected=$(cat "$file.sha256")
    fi
    if [ "$found" != "$expected" ] && [ -z "${DATA_UNCHECKED:-}" ]; then
        fail 65 "$file has the SHA-256 $found, expected $expected" "remove it and run this again"
    fi
    exec {lock}<&-
}

gpt2_vocabulary() {
    local base=https://openaipublic.blob.core.windows.net/gpt-2/encodings/main folder=data/gpt2
    if [ -n "${VOCABULARY:-}" ]; then vocabulary=$VOCABULARY && return; fi
    fetch "$base/vocab.bpe" $folder/vocab.bpe 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
    fetch "$base/encoder.json" $folder/encoder.json 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
    vocabulary=$folder/vocab.bpe
}

# Every script has its help in its first comment.
help_if_asked() {
    case "${1:-}" in
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    esac
}

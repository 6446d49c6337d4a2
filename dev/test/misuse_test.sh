#!/usr/bin/env bash
# A short sample of misuse.py: damaged files, absurd values of options (each once in a file of --config), strange
# environments. `misuse_test.sh long`: 5,000 files, 2,000 values, each option 10 times in a file, 500 environments. SEED
# chooses them (a new one each day for the long ones).
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
command -v python3 >/dev/null || { echo "SKIPPED damaged files and absurd options: there is no python3" && exit 0; }
case ${1:-short} in
    long) set -- --files 5000 --values 2000 --lines 10 --environments 500 --seed "${SEED:-$(date +%Y%m%d)}" ;;
    *) set -- --files 60 --values 40 --environments 12 --seed "${SEED:-1}" ;;
esac
TRAIN_GPT=$train_gpt TOKENIZE=$tokenize python3 dev/test/misuse.py "$@"

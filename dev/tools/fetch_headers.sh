#!/usr/bin/env bash
# Fetches the headers of the oldest NCCL, cuDNN and cudnn-frontend that the program can be built with, and of the newest
# ones, with pip (2 GB to download), into third_party/headers. With them `make cuda-compile` compiles what
# uses these libraries against both (versions.sh). Nothing of them is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
oldest=(nvidia-nccl-cu12==2.18.1 nvidia-cudnn-cu12==9.0.0.312 nvidia-cudnn-frontend==1.20.0)
newest=(nvidia-nccl-cu13 nvidia-cudnn-cu13 nvidia-cudnn-frontend)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for end in oldest newest; do
    declare -n packages=$end
    into=third_party/headers/$end/include   # the frontend wants a folder of this name
    rm -rf "$work"/* "third_party/headers/$end"
    for package in "${packages[@]}"; do
        echo "$end: $package"
        python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$work" "$package"
    done
    mkdir -p "$into"
    python3 - "$into" "$work"/*.whl <<'PYTHON'
import pathlib, sys, zipfile
for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if "/include/" in "/" + name and not name.endswith("/"):
                path = pathlib.Path(sys.argv[1], name[("/" + name).index("/include/") + len("include/"):])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(files.read(name))
PYTHON
done

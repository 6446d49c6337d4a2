#!/usr/bin/env bash
# Runs a command of this project on a bare Debian: `dev/test/bare_machine.sh 'make quickstart'`.
#
# What a machine has that somebody once installed by hand hides a missing package. So a minimal Debian is made (by
# debootstrap; kept in a folder of its own, BARE_ROOT, by default below /var/tmp), with make, git and a package manager and nothing else;
# each run gets a copy of it with a fresh clone of HEAD, and runs the command there as root. BARE_PACKAGES="g++ clang"
# installs packages first; BARE_KEEP=1 keeps the copy and says where. The exit code is the command's; the time that it
# took is printed. Needs root, and Debian with its package archive; elsewhere it skips and says why.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 1 ] || { sed -n '2s/^# //p' "$0" >&2; exit 64; }
skip() { echo "SKIPPED a bare machine: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "it needs root"
[ -e /etc/debian_version ] || skip "this is not Debian"
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
root=${BARE_ROOT:-/var/tmp/train_gpt-bare-$release}

archive=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v '^#' |
    grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ') || true
[ -n "$archive" ] || skip "apt's sources name no Debian archive"
if [ ! -e "$root/.complete" ]; then
    command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap >/dev/null; } ||
        skip "there is no debootstrap, and it cannot be installed"
    if [ -e "$root" ] && [ ! -e "$root/.begun" ]; then
        echo "$root exists and was not made by this script: name another folder by BARE_ROOT" >&2
        exit 64
    fi
    rm -rf "$root" && mkdir -p "$root" && touch "$root/.begun"
    debootstrap --variant=minbase --include=ca-certificates,make,git "$release" "$root" "$archive" >"$root.log" ||
        { tail -n 20 "$root.log" >&2 && exit 74; }
    touch "$root/.complete"
fi

copy=$(mktemp -d "$root-run.XXXXXX")
leave() {
    umount -l "$copy/proc" "$copy/sys" "$copy/dev" 2>/dev/null || true
    if [ -n "${BARE_KEEP:-}" ]; then echo "kept: $copy"; else rm -rf --one-file-system "$copy"; fi
}
trap leave EXIT
cp -a "$root/." "$copy/"
mount -t proc proc "$copy/proc" || skip "this machine allows no mounts"
mount --rbind /sys "$copy/sys" && mount --make-rslave "$copy/sys"
mount --rbind /dev "$copy/dev" && mount --make-rslave "$copy/dev"
cp -L /etc/resolv.conf /etc/hosts "$copy/etc/"   # names, and certificates of the archive
cp -L /etc/ssl/certs/ca-certificates.crt "$copy/etc/ssl/certs/"
git clone -q --dissociate . "$copy/src/train_gpt"
# nothing of this machine's environment: a plain terminal, and no one to answer questions
inside() {
    chroot "$copy" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive bash -c "$1" </dev/null
}
if [ -n "${BARE_PACKAGES:-}" ]; then
    inside "apt-get update -qq && apt-get install -y -qq --no-install-recommends $BARE_PACKAGES >/dev/null"
fi
start=$SECONDS status=0
inside "cd /src/train_gpt && $1" || status=$?
echo "bare machine, $1: exit $status after $((SECONDS - start)) s"
exit $status

#!/usr/bin/env bash
# What a run meets while it trains: its file system turns read-only, and a rank's sockets are cut. Each is named, with the
# file or the rank, and the run goes on by --resume to the records of one that nothing happened to. `cut_off_test.sh long`,
# for a machine that does nothing else, also asks that they are named within 5 s, and the lost rank in the watchdog's words.
#
# What makes it happen is preloaded (LD_PRELOAD) and acts when a file with its name appears; a mount that turns read-only
# is laid over the folder besides, where this machine allows mounts: the run holds the folder that lies below.
# Alone: `long` measures.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
launch=$PWD/scripts/launch.sh
cd "$work" || exit 70
length=${1:-short}
# Limits that only a hang reaches, and none for being named; with `long`, those of a machine that does nothing else.
limit_ms= limits=(--peer-timeout 300 --init-timeout 600) patience=300
if [ "$length" = long ]; then limit_ms=5000 limits=(--peer-timeout 5 --init-timeout 30) patience=20; fi

numbers_as_data 20000 3000
run=("$train_gpt" --train-data 'data/train*.bin' --val-data 'data/val*.bin' --layers 2 --heads 2 --channels 32 --seq-len 32
    --micro-batch 2 --total-batch 384 --max-steps 60 --val-every 20 --val-max-batches 6 --sample-every 0 --log-every 1
    --zero 2 --checkpoint-every 5 --keep-checkpoints 3 "${limits[@]}")
ranks=3

# readonly.RANK: what is written below out/ where the path holds the file's content fails as it does where the file system
# turned read-only (EROFS), also through files that are open. cut.RANK: its sockets are shut down, those of the family
# that the file names (unix, inet) or all; the rank itself knows nothing of it, and was.RANK says that it is done. hold:
# each process reads so many times, then waits until the file is gone, so that no run ends before something happened to it.
cat >fault.cpp <<'FAULT'
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
namespace {
std::string sign(const char* name) {
    const char *folder = getenv("RUN_FOLDER"), *rank = getenv("RANK");
    return std::string(folder) + "/" + name + (rank ? rank : "0");
}
bool is_locked(const std::string& path) {
    const std::string name = sign("readonly.");
    if (path.find(std::string(getenv("RUN_FOLDER")) + "/out") == path.npos || access(name.c_str(), F_OK) != 0) return false;
    std::string what;
    std::ifstream(name) >> what;
    return path.find(what) != path.npos;
}
std::string absolute(const char* path) {
    if (path[0] == '/') return path;
    char folder[4096];
    return std::string(getcwd(folder, sizeof folder)) + "/" + path;
}
bool is_locked(int file) {
    char path[4096];
    const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof path);
    return n > 0 && is_locked(std::string(path, static_cast<std::size_t>(n)));
}
int refused() { return errno = EROFS, -1; }
template <class F> F* next(const char* name) { return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name)); }
struct Cutter {
    Cutter() {
        if (getenv("RANK")) std::thread([] {
            const std::string name = sign("cut.");
            while (access(name.c_str(), F_OK) != 0) usleep(1000);
            std::string family;
            std::ifstream(name) >> family;
            for (int file = 3; file < 1024; file++) {
                sockaddr_storage address{};
                socklen_t size = sizeof address;
                if (getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
                const bool is_unix = address.ss_family == AF_UNIX;
                if (family == (is_unix ? "inet" : "unix")) continue;
                shutdown(file, SHUT_RDWR);
            }
            std::ofstream(sign("was.")) << "cut" << std::endl;
        }).detach();
    }
} cutter;
}
#define OPEN(name)                                                                                  \
    extern "C" int name(const char* path, int flags, ...) {                                         \
        va_list rest;                                                                               \
        va_start(rest, flags);                                                                      \
        const mode_t mode = va_arg(rest, mode_t);                                                   \
        va_end(rest);                                                                               \
        if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && is_locked(absolute(path))) return refused(); \
        return next<int(const char*, int, ...)>(#name)(path, flags, mode);                          \
    }
OPEN(open)
OPEN(open64)
extern "C" ssize_t write(int file, const void* data, size_t bytes) {
    return is_locked(file) ? refused() : next<ssize_t(int, const void*, size_t)>("write")(file, data, bytes);
}
extern "C" ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
    return is_locked(file) ? refused() : next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(file, data, bytes, offset);
}
extern "C" ssize_t pwrite64(int file, const void* data, size_t bytes, off_t offset) { return pwrite(file, data, bytes, offset); }
extern "C" int mkdir(const char* path, mode_t mode) {
    return is_locked(absolute(path)) ? refused() : next<int(const char*, mode_t)>("mkdir")(path, mode);
}
extern "C" int rename(const char* from, const char* to) {
    return is_locked(absolute(to)) ? refused() : next<int(const char*, const char*)>("rename")(from, to);
}
extern "C" ssize_t pread(int file, void* into, size_t bytes, off_t offset) {   // a step reads its data
    static std::atomic<int> reads = 0;
    const std::string hold = std::string(getenv("RUN_FOLDER")) + "/hold";
    const int before = reads++;
    for (int free = 0; std::ifstream(hold) >> free && before >= free;) usleep(1000);
    return next<ssize_t(int, void*, size_t, off_t)>("pread")(file, into, bytes, offset);
}
extern "C" ssize_t pread64(int file, void* into, size_t bytes, off_t offset) { return pread(file, into, bytes, offset); }
FAULT
if ! g++ -shared -fPIC -O1 fault.cpp -o fault.so -ldl -pthread 2>/dev/null; then
    echo "SKIPPED a file system that turns read-only, sockets that are cut: no g++ to build what makes it happen"
    echo "0 passed, 0 failed"
    exit
fi

# FOLDER READS: the run there waits in its twelfth step or so, which begins with so many reads
hold() { mkdir -p "$1" && echo "$2" >"$1/hold"; }
start() {   # NAME ARGUMENTS...: all ranks in the background; each one's exit code in NAME/code.RANK
    name=$1
    mkdir -p "$name"
    RUN_FOLDER=$work/$name "$launch" -g $patience -n $ranks bash -c 'env LD_PRELOAD="$0" "$@"; code=$?; echo $code >"$RUN_FOLDER/code.$RANK"; exit $code' \
        "$work/fault.so" "${run[@]}" --output-dir "$name/out" "${@:2}" >>"$name/log" 2>&1 &
    launcher=$!
}
says() { grep -qsE "$1" "$name/log"; }
await() { eventually "$launcher" says "$1"; }   # PATTERN in the log
# named SINCE PATTERN: the log has it; sets took_ms
named() {
    took_ms=none
    await "$2" || return 1
    took_ms=$((($(date +%s%N) - $1) / 1000000))
    [ -z "$limit_ms" ] || [ "$took_ms" -le "$limit_ms" ]
}
goes_on() {   # what is left goes on to the records of the undisturbed run, whole checkpoints only
    rm -f "$name"/readonly.* "$name"/cut.* "$name"/was.* "$name"/hold
    start "$name" --resume 1
    wait "$launcher"
    local code=$?
    [ $code -eq 0 ] && cmp <(records whole/out) <(records "$name/out")
    verdict $? "$name goes on (exit $code): $(tail -n 3 "$name/log")"
}

start whole
wait "$launcher"
verdict $? "the undisturbed run: $(tail -n 3 whole/log)"

# ---- the file system turns read-only: the records, llm.c's, all of it
for what in metrics.jsonl main.log out; do
    hold "locked-${what:0:4}" 85
    start "locked-${what:0:4}"
    await '^step +7/'
    echo "$what" >"$name/readonly.0.new" && mv "$name/readonly.0.new" "$name/readonly.0"
    rm "$name/hold"
    file=$what
    [ "$what" != out ] || file=metrics.jsonl
    named "$(date +%s%N)" "error: $name/out/$file: write failed: Read-only file system"
    verdict $? "$name: named after $took_ms ms: $(grep -v '^step' "$name/log" | tail -n 5)"
    wait "$launcher"
    [ $? -eq 74 ] && [ "$(cat "$name"/code.* | sort -u | xargs)" = '74 75' ] && grep -qE "rank 0 on [^ ]+ failed: $name/out/$file" "$name/log"
    verdict $? "$name: the others are told (exit codes $(cat "$name"/code.* | xargs)): $(tail -n 5 "$name/log")"
    goes_on
done
# what only checkpoints meet is told with each of them, and the run goes on; it fails where the last one failed
hold locked-step 85
start locked-step
await '^step +7/'
for r in 0 1 2; do echo out/step >"$name/readonly.$r.new" && mv "$name/readonly.$r.new" "$name/readonly.$r"; done
rm "$name/hold"
named "$(date +%s%N)" "^warning: $name/out/step_000000(10|15) was not written: .*step_000000(10|15)[^ ]*: .*Read-only file system"
verdict $? "$name: named after $took_ms ms: $(grep -v '^step' "$name/log" | tail -n 5)"
wait "$launcher"
[ $? -eq 74 ] && [ "$(grep -c '"loss"' "$name/out/metrics.jsonl")" -eq 60 ]
verdict $? "$name: all steps are made, the last one is not saved: $(tail -n 5 "$name/log")"
goes_on

# ---- a read-only mount over the run's folder, by the system itself
if mkdir mounted && unshare -rm true 2>/dev/null; then
    hold mounted 190
    RUN_FOLDER=$work/mounted timeout 900 unshare -rm bash -c 'mkdir -p mounted/out
        env LD_PRELOAD="$0" "$@" --output-dir mounted/out >mounted/log 2>&1 & run=$!
        until { [ -e mounted/out/step_00000005 ] && grep -qE "^step +11/" mounted/log; } || ! kill -0 $run; do sleep 0.01; done
        # over what is there: mounted/out of the run is that from now on; again where it has a file open there
        mount --bind mounted/out mounted/out
        status=$?
        for try in {1..100}; do
            [ $status -eq 0 ] || break
            mount -o remount,bind,ro mounted/out && break || { [ $try -eq 100 ] && status=1; sleep 0.1; }
        done
        rm mounted/hold
        [ $status -eq 0 ] || kill -KILL $run
        echo "mounted $status" >mounted/mount; wait $run; echo $? >mounted/code' "$work/fault.so" "${run[@]}" 2>/dev/null
    if grep -qs 'mounted 0' mounted/mount; then
        # the run holds its folder: a mount over it takes nothing from what is written there
        [ "$(cat mounted/code)" -eq 0 ] && [ -e mounted/out/step_00000060/manifest.json ] && [ "$(grep -c '"loss"' mounted/out/metrics.jsonl)" -eq 60 ]
        verdict $? "a mount turns read-only: exit code $(cat mounted/code), $(tail -n 3 mounted/log)"
        expect 0 "resuming from mounted/out/step_000000" "${run[@]}" --resume 1 --max-steps 62 -o mounted/out
    else
        echo "SKIPPED a mount that turns read-only: this machine allows no mounts"
    fi
else
    echo "SKIPPED a mount that turns read-only: this machine allows no namespaces"
fi

# ---- a rank's sockets are cut: it and who lost it are named, on its side too
# Those of the watchdogs alone (inet) leave the run what it needs: it is held until somebody is named, else it could be over
# before. Of the others the training itself may be the first to tell: then the lost connection is named, with the rank.
for case in '1 all' '0 all' '2 inet' '1 unix'; do
    read -r victim family <<<"$case"
    hold "cut-$victim-$family" 85
    start "cut-$victim-$family"
    await '^step +8/'
    [ "$length" != long ] || sleep 1   # held; a heartbeat comes four times a second, and long asks for what it said
    began=$(date +%s%N)
    echo "$family" >"$name/cut.$victim.new" && mv "$name/cut.$victim.new" "$name/cut.$victim"
    eventually "$launcher" [ -e "$name/was.$victim" ]
    if [ "$length" = long ] || [ "$family" != inet ]; then rm "$name/hold"; fi
    others=$([ "$victim" -eq 0 ] && echo '[12]' || echo '[0-9]')
    place='step [0-9]+'
    [ "$length" = long ] || place+='|start-up'   # where no heartbeat has come since
    by_others="rank $victim on [^ ]+ died or was cut off, last heard at ($place).*; rank $others is at "
    connection="the connection of rank ([0-9] to rank $victim|$victim to rank [0-9]) is lost"
    if [ "$family" = unix ]; then by_others="failed: .*$connection"; fi
    [ "$length" = long ] || by_others+="|$connection"
    named "$began" "$by_others"
    verdict $? "$name: named after $took_ms ms: $(grep -v '^step' "$name/log" | tail -n 8)"
    rm -f "$name/hold"
    wait "$launcher"
    code=$?
    [ $code -eq 75 ] && [ "$(cat "$name"/code.* | sort -u)" = 75 ]
    verdict $? "$name: exit codes $code, $(cat "$name"/code.* | xargs): $(grep -v '^step' "$name/log" | tail -n 8)"
    echo "$name: $took_ms ms: $(grep -hoE "rank $victim on [^;]*|failed: .*the connection.*" "$name/log" | head -n 1 | cut -c1-150)"
    goes_on
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

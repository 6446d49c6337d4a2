#!/usr/bin/env bash
# Strangers (silence, random bytes, half a handshake, another run's secret) at every port of a 4-rank run, from its start
# to its end: the losses and the open descriptors of one that nobody disturbs. `strangers_test.sh 1000`: so many
# connections to each port; by default 100.
#
# Ports are found as anybody finds them: the listening sockets of the ranks' processes, TCP and unix. A rank connects to
# another one only after all ports that are there have had their strangers (LD_PRELOAD), so that none is open for too
# short a time to be met.
# Alone: strangers come as fast as they can.
source "$(dirname "$0")/common.sh"
needs "$train_gpt" "$tokenize"
launch=$PWD/scripts/launch.sh
count=${1:-100}
cd "$work" || exit 70

numbers_as_data 20000 3000
run=("$train_gpt" --train-data 'data/train*.bin' --val-data 'data/val*.bin' --layers 2 --heads 2 --channels 32 --seq-len 32
    --micro-batch 2 --total-batch 256 --max-steps 40 --val-every 20 --val-max-batches 4 --sample-every 0 --log-every 1
    --tp 2 --zero 1 --checkpoint-every 20 --peer-timeout 300 --init-timeout 600)

# "strangers FOLDER COUNT": until FOLDER/stop is there; says how many came to each port. all.N: so many rounds in which
# every port that was there had had its number.
cat >strangers.cpp <<'STRANGERS'
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
// the inodes of all sockets of processes that have the run's folder in their environment
static std::set<std::string> sockets_of(const std::string& mark) {
    std::set<std::string> found;
    DIR* processes = opendir("/proc");
    while (dirent* process = readdir(processes)) {
        if (process->d_name[0] < '1' || process->d_name[0] > '9') continue;
        const std::string folder = std::string("/proc/") + process->d_name;
        std::ifstream environment(folder + "/environ", std::ios::binary);
        std::stringstream all;
        all << environment.rdbuf();
        if (all.str().find(mark) == std::string::npos) continue;
        DIR* files = opendir((folder + "/fd").c_str());
        while (dirent* file = files ? readdir(files) : nullptr) {
            char to[64] = {};
            if (readlink((folder + "/fd/" + file->d_name).c_str(), to, sizeof to - 1) <= 0) continue;
            if (std::strncmp(to, "socket:[", 8) == 0) found.insert(std::string(to + 8, std::strlen(to) - 9));
        }
        if (files) closedir(files);
    }
    closedir(processes);
    return found;
}
static std::set<std::string> ports(const std::string& mark) {   // "t<address>:<port>" in hex, of IPv4 or IPv6, "u<name>"
    std::set<std::string> result;
    const std::set<std::string> own = sockets_of(mark);
    std::string line;
    for (const char* kind : {"/proc/net/tcp", "/proc/net/tcp6"})
    for (std::ifstream tcp(kind); std::getline(tcp, line);) {
        std::istringstream words(line);
        std::string slot, local, remote, state, skip, inode;
        words >> slot >> local >> remote >> state;
        for (int i = 0; i < 5; i++) words >> skip;
        if (words >> inode && state == "0A" && own.count(inode)) result.insert("t" + local);
    }
    for (std::ifstream local("/proc/net/unix"); std::getline(local, line);) {
        std::istringstream words(line);
        std::string address, users, protocol, flags, type, state, inode, name;
        if (words >> address >> users >> protocol >> flags >> type >> state >> inode >> name && flags == "00010000" &&
            own.count(inode)) {
            result.insert("u" + name);
        }
    }
    return result;
}
static int connect_to(const std::string& port) {
    const bool is_ip6 = port[0] == 't' && port.find(':') == 33;
    const int file = socket(is_ip6 ? AF_INET6 : port[0] == 't' ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int status = -1;
    if (is_ip6) {
        sockaddr_in6 at{};
        unsigned words[4] = {}, number = 0;
        std::sscanf(port.c_str(), "t%8x%8x%8x%8x:%4x", &words[0], &words[1], &words[2], &words[3], &number);
        at.sin6_family = AF_INET6;
        std::memcpy(&at.sin6_addr, words, sizeof words);
        if (IN6_IS_ADDR_UNSPECIFIED(&at.sin6_addr)) at.sin6_addr = in6addr_loopback;
        at.sin6_port = htons(static_cast<unsigned short>(number));
        status = connect(file, reinterpret_cast<sockaddr*>(&at), sizeof at);
        if (status != 0 && errno == EINPROGRESS) status = 0;
    } else if (port[0] == 't') {
        sockaddr_in at{};
        unsigned address = 0, number = 0;
        std::sscanf(port.c_str(), "t%8x:%4x", &address, &number);
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = address != 0 ? address : htonl(INADDR_LOOPBACK);
        at.sin_port = htons(static_cast<unsigned short>(number));
        status = connect(file, reinterpret_cast<sockaddr*>(&at), sizeof at);
        if (status != 0 && errno == EINPROGRESS) status = 0;
    } else {
        sockaddr_un at{};
        at.sun_family = AF_UNIX;
        std::memcpy(at.sun_path, port.c_str() + 1, port.size() - 1);
        if (at.sun_path[0] == '@') at.sun_path[0] = 0;
        status = connect(file, reinterpret_cast<sockaddr*>(&at), static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + port.size() - 1));
    }
    if (status == 0) return file;
    close(file);
    return -1;
}
static void disturb(int file, int kind) {
    auto say = [&](const std::string& bytes) { if (send(file, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return; };
    auto message = [&](const std::string& text) {
        const unsigned length = static_cast<unsigned>(text.size());
        say(std::string(reinterpret_cast<const char*>(&length), 4) + text);
    };
    std::string random(1 + rand() % 90, 0);
    for (char& c : random) c = static_cast<char>(rand());
    switch (kind % 9) {
        case 0: break;   // silence
        case 1: say(random); break;
        case 2: say(std::string("\x40\0\0\0train", 9)); break;   // half of it
        case 3: say("\xff\xff\xff\xff"); break;
        case 4: message("train_gpt rank 1 of 4"); break;
        case 5: message("train_gpt rank 3 of 4 0123456789abcdef0123456789abcdef"); break;   // and no proof
        case 6: message("train_gpt rank 2 of 4 0123456789abcdef0123456789abcdef"); message(std::string(64, '0')); break;   // another run's secret
        case 7: say(std::string("keykeyke\1\0\0\0\0\0\0\0", 16)); break;                 // at NCCL's
        case 8: say(std::string("keykeyke\1\0\0\0\4\0\0\0", 16) + std::string(60, 0)); break;
    }
}
int main(int, char** arguments) {
    const std::string folder = arguments[1], mark = "RUN_FOLDER=" + folder;
    const int wanted = std::atoi(arguments[2]);
    std::map<std::string, int> came;
    std::deque<int> open;   // the last ones stay
    int rounds = 0;
    while (access((folder + "/stop").c_str(), F_OK) != 0) {
        bool all = true;
        const std::set<std::string> there = ports(mark);
        for (const std::string& port : there) {
            for (int i = 0; i < 25; i++) {
                const int file = connect_to(port);
                if (file < 0) break;   // its queue is full
                disturb(file, came[port]++);
                open.push_back(file);
                if (open.size() > 150) close(open.front()), open.pop_front();
            }
            all = all && came[port] >= wanted;
        }
        if (all && !there.empty()) std::ofstream(folder + "/all." + std::to_string(++rounds));
        if (all) usleep(5000);
    }
    for (const auto& [port, number] : came) std::printf("%d %s\n", number, port.c_str());
}
STRANGERS
# A rank waits before it connects until the strangers have been everywhere since.
cat >wait.cpp <<'WAIT'
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstdlib>
#include <string>
extern "C" int connect(int file, const sockaddr* address, socklen_t size) {
    const std::string before = std::string(getenv("RUN_FOLDER")) + "/all.";
    int rounds = 0;
    while (access((before + std::to_string(rounds + 1)).c_str(), F_OK) == 0) rounds++;
    // one may have begun before what is there now: the second one has not
    for (int i = 0; i < 600000 && access((before + std::to_string(rounds + 2)).c_str(), F_OK) != 0; i++) usleep(1000);
    return reinterpret_cast<int (*)(int, const sockaddr*, socklen_t)>(dlsym(RTLD_NEXT, "connect"))(file, address, size);
}
WAIT
if ! g++ -std=c++17 -O1 strangers.cpp -o strangers 2>/dev/null || ! g++ -shared -fPIC -O1 wait.cpp -o wait.so -ldl 2>/dev/null; then
    echo "SKIPPED strangers at every port: no g++ to build them"
    echo "0 passed, 0 failed"
    exit
fi

descriptors() {   # of each rank, in the middle of the run
    local rank
    for rank in 0 1 2 3; do
        for _ in $(seq 200); do   # a file may just be written
            find "/proc/$(cat "$1/pid.$rank")/fd" -type l -printf '%l\n' 2>/dev/null | grep -c '^socket:'
            sleep 0.002
        done | sort -n | uniq -c | sort -n | tail -n 1 | awk '{ print $2 }'
    done | xargs
}
train() {   # NAME PRELOADED: sets fds, code, listening
    mkdir -p "$1"
    RUN_FOLDER=$work/$1 "$launch" -g 300 -n 4 bash -c 'env LD_PRELOAD="$0" "$@" & echo $! >"$RUN_FOLDER/pid.$RANK"; wait $!' \
        "$2" "${run[@]}" --output-dir "$1/out" >"$1/log" 2>&1 &
    local launcher=$!
    eventually $launcher grep -qs '^step *5/' "$1/log"
    for rank in 0 1 2 3; do kill -STOP "$(cat "$1/pid.$rank")" 2>/dev/null; done
    fds=$(descriptors "$1")
    listening=$(ss -lnptx 2>/dev/null | grep -cE "pid=($(cat "$1"/pid.* | paste -sd'|')),")
    for rank in 0 1 2 3; do kill -CONT "$(cat "$1/pid.$rank")" 2>/dev/null; done
    wait $launcher
    code=$?
}
train alone ''
verdict $code "nobody disturbs the run: $(tail -n 3 alone/log)"
alone=$fds
./strangers "$work/met" "$count" >met.log & strangers=$!
began=$(date +%s)
train met "$work/wait.so"
touch met/stop
wait $strangers
verdict $code "strangers disturb the run (exit $code): $(tail -n 5 met/log)"
cmp <(without_times alone/out/metrics.jsonl) <(without_times met/out/metrics.jsonl)
verdict $? "the same losses"
[ "$(without_times met/out/metrics.jsonl | wc -l)" -ge 42 ]
verdict $? "all records are there"
[ "$(wc -w <<<"$fds")" -eq 4 ] && [ "$fds" = "$alone" ] && [ "$listening" -eq 0 ]
verdict $? "open sockets of the ranks in the midst of the run: $fds, undisturbed $alone; $listening of them listen"
# TCP: of the start, of the watchdog; TCP and unix: of the rendezvous of NCCL's stand-in, and of each rank there
[ "$(awk -v n="$count" '$1 >= n && $2 ~ /^t/' met.log | wc -l)" -ge 7 ] && [ "$(awk -v n="$count" '$1 >= n && $2 ~ /^u/' met.log | wc -l)" -ge 5 ]
verdict $? "ports that had their strangers: $(xargs <met.log)"
echo "$(awk '{ n += $1 } END { print n }' met.log) strangers at $(wc -l <met.log) ports in $(($(date +%s) - began)) s, the fewest at one: $(sort -n met.log | head -n 1); listening in the midst of the run: $listening"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

#include "llmc/run/metrics/metrics_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>
#include <string_view>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/process/address.h"

namespace {

constexpr std::size_t longest_request = 8192;

ListeningSocket listen_for_clients(const std::string& host, int port) {
    const Resolution found = resolve(host, port);
    if (found.addresses.empty()) {
        throw Error(ErrorKind::usage, text("--metrics-host ", host, ": ", found.failure),
                    "Give a name or an address of the machine of rank 0; 0.0.0.0 means all of IPv4, :: all of IPv6.");
    }
    std::vector<std::string> hosts;
    for (const Address& address : found.addresses) {   // a name may stand twice for one address
        if (std::ranges::find(hosts, address.host()) == hosts.end()) hosts.push_back(address.host());
    }
    try {
        return ListeningSocket(hosts, port);
    } catch (const Error& error) {
        throw Error(error.kind(), text("--metrics-port ", port, " at ", host, ": ", error.message()),
                    "Give a port that no other process has, or another run, and a --metrics-host of this machine; "
                    "--metrics-port 0 serves no metrics.");
    }
}

std::string number_text(const Json& value) { return value.is_number() ? to_text(value) : "NaN"; }

// Puts a backslash where a label's value needs one.
std::string label_text(const std::string& name) {
    std::string escaped;
    for (const char c : name) escaped += c == '\n' ? "\\n" : c == '"' || c == '\\' ? text('\\', c) : text(c);
    return escaped;
}

std::string exposition(const std::map<std::string, Json>& values) {
    std::string all;
    for (const auto& [field, value] : values) {
        const std::string name = "train_gpt_" + field;
        all += text("# HELP ", name, " ", field, ", of metrics.jsonl\n# TYPE ", name, " gauge\n");
        if (!value.is_object()) {
            all += text(name, " ", number_text(value), "\n");
            continue;
        }
        for (const Json::Member& member : value.members()) {
            all += text(name, "{name=\"", label_text(member.first), "\"} ", number_text(member.second), "\n");
        }
    }
    return all;
}

std::string response(const std::string& status, const std::string& type, const std::string& body, bool with_body) {
    return text("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
                "\r\nConnection: close\r\n\r\n", with_body ? body : "");
}

}   // namespace

struct MetricsServer::Client {
    Socket socket;
    double deadline;
    std::string request = {}, response = {};   // received and made so far; the response is whole
    std::size_t sent = 0;                      // bytes of the response
    bool is_ready = false;                     // for what it waits for

    short awaited_event() const { return response.empty() ? POLLIN : POLLOUT; }
};

MetricsServer::MetricsServer(const std::string& host, int port, double client_seconds)
    : client_seconds_(client_seconds), listener_(listen_for_clients(host, port)), end_(eventfd(0, EFD_CLOEXEC)) {
    if (!end_.is_open()) throw Error(ErrorKind::io, "no descriptor is left for --metrics-port", "Raise `ulimit -n`.");
    address_ = text("http://", to_text(HostPort{host, listener_.port()}), "/metrics");
    thread_ = std::thread([this] { serve(); });
}

MetricsServer::~MetricsServer() {
    const std::uint64_t one = 1;
    while (write(end_.fd(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
}

void MetricsServer::show(const std::string& line) {
    const Json values = parse_json(line);
    const std::lock_guard lock(mutex_);
    for (const Json::Member& member : values.members()) newest_.insert_or_assign(member.first, member.second);
}

void MetricsServer::serve() {
    constexpr double pause = 1;    // seconds, when no descriptor or memory is left for a client
    std::vector<Client> clients;   // sorted: first the one on which nothing has moved for longest
    clients.reserve(most_clients);
    for (double accepts_from = 0;;) {
        const bool accepts = steady_seconds() >= accepts_from;
        double next = accepts ? steady_seconds() + 3600 : accepts_from;   // when to look although nothing is ready
        std::vector<pollfd> waiting{{end_.fd(), POLLIN, 0}};
        for (const Client& client : clients) {
            waiting.push_back({client.socket.fd(), client.awaited_event(), 0});
            next = std::min(next, client.deadline);
        }
        for (const int fd : listener_.fds()) waiting.push_back({fd, static_cast<short>(accepts ? POLLIN : 0), 0});
        const double seconds = std::max(next - steady_seconds(), 0.0);
        if (poll(waiting.data(), waiting.size(), static_cast<int>(seconds * 1e3) + 1) < 0) continue;   // interrupted
        if (waiting[0].revents != 0) return;

        for (std::size_t i = 0; i < clients.size(); i++) clients[i].is_ready = waiting[i + 1].revents != 0;
        std::erase_if(clients, [&](Client& client) {
            return steady_seconds() >= client.deadline || (client.is_ready && !advance(client));
        });
        std::ranges::stable_partition(clients, [](const Client& client) { return !client.is_ready; });
        if (accepts && !accept_one(clients)) accepts_from = steady_seconds() + pause;
    }
}

// Accepts a connection if one is pending. Returns false where that has to wait until a descriptor is free elsewhere.
bool MetricsServer::accept_one(std::vector<Client>& clients) {
    std::optional<Socket> socket = listener_.accept(0);
    const bool lacks_something = !socket && errno != EAGAIN && errno != EINTR;
    if (lacks_something && clients.empty()) return false;
    if (lacks_something || (socket && clients.size() == most_clients)) clients.erase(clients.begin());
    if (socket) clients.push_back({std::move(*socket), steady_seconds() + client_seconds_});
    return true;
}

// Reads what has come of a request, and sends what can be sent of the answer, without waiting. Returns false when the
// client is done, or cut off: its request is too long, its connection lost, or no memory is left for it.
bool MetricsServer::advance(Client& client) {
    const int fd = client.socket.fd();
    auto may_go_on = [](ssize_t moved) { return moved > 0 || (moved < 0 && (errno == EINTR || errno == EAGAIN)); };
    try {
        if (client.response.empty()) {
            char piece[1024];
            const ssize_t n = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
            if (n <= 0) return may_go_on(n);
            client.request.append(piece, static_cast<std::size_t>(n));
            if (client.request.find("\r\n\r\n") == std::string::npos) return client.request.size() < longest_request;
            client.response = response_to(client.request);
        }
        const std::string_view rest = std::string_view(client.response).substr(client.sent);
        const ssize_t n = send(fd, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) client.sent += static_cast<std::size_t>(n);
        return may_go_on(n) && client.sent < client.response.size();
    } catch (const std::bad_alloc&) {   // the client goes without; the run goes on
        return false;
    }
}

std::string MetricsServer::response_to(const std::string& request) {
    const std::string method = request.substr(0, request.find(' '));
    const std::string target = request.substr(std::min(method.size() + 1, request.size()));
    const std::string path = target.substr(0, target.find_first_of(" ?\r"));
    const bool with_body = method != "HEAD";
    if (method != "GET" && method != "HEAD") {
        return response("405 Method Not Allowed\r\nAllow: GET, HEAD", "text/plain", "expected GET\n", true);
    }
    if (path != "/metrics") return response("404 Not Found", "text/plain", "expected /metrics\n", with_body);
    std::string body;
    {
        const std::lock_guard lock(mutex_);
        body = exposition(newest_);
    }
    return response("200 OK", "text/plain; version=0.0.4", body, with_body);
}

// Serves a run's newest metrics over HTTP, in Prometheus' text format: GET /metrics.
//
//   # HELP train_gpt_loss loss, of metrics.jsonl
//   # TYPE train_gpt_loss gauge
//   train_gpt_loss 3.25
//
// Names and values are those of the lines of metrics.jsonl: the newest of each. A value of several is a value for each,
// as train_gpt_exposed_ms{name="dp"}; null, a value that is unknown or not finite, is NaN.
//
// A thread of its own serves up to `most_clients` connections at once, each within `client_seconds`, so no step waits
// for a client and none waits for another. One more closes the connection on which nothing has moved for the longest
// time.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/process/sockets.h"

class MetricsServer {
public:
    static constexpr std::size_t most_clients = 64;

    // Listens at a name or address of this machine. Throws Error(io) naming the port, Error(usage) naming the host.
    MetricsServer(const std::string& host, int port, double client_seconds = 1);
    ~MetricsServer();   // without waiting for a client
    MetricsServer(const MetricsServer&) = delete;
    MetricsServer& operator=(const MetricsServer&) = delete;

    std::string address() const { return address_; }   // for a browser
    void show(const std::string& line);                // serves the values of a line of metrics.jsonl from now on

private:
    struct Client;

    void serve();
    bool accept_one(std::vector<Client>& clients);
    bool advance(Client& client);
    std::string response_to(const std::string& request);

    double client_seconds_;
    ListeningSocket listener_;
    std::string address_;
    Socket end_;   // an eventfd: readable once the server ends
    std::mutex mutex_;
    std::map<std::string, Json> newest_;   // by field; guarded by mutex_
    std::thread thread_;
};

// Handshakes pending connections concurrently; drops unknown peers, who may send anything, slowly or never.
//
// What must hold: the message by which a rank identifies itself is short; a rank that was dropped connects again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "llmc/process/sockets.h"

struct PendingConnection {
    Socket socket;
    int rank = 0;   // 0: unknown; dropped after a while, or when there are too many
    FrameReader reader;
    double since = 0;
};

class PendingConnections {
public:
    explicit PendingConnections(ListeningSocket& listener) : listener_(listener) {}

    // Waits up to `seconds` for an event. on_message() gets every text that has arrived and returns whether the
    // handshake goes on; else the connection is closed, unless on_message() has moved the socket away.
    using OnMessage = std::function<bool(PendingConnection&, const std::string& message)>;
    void poll(double seconds, const OnMessage& on_message);

private:
    static constexpr std::size_t most_unknown = 200;
    static constexpr double timeout_seconds = 5;
    static constexpr std::uint32_t longest_bytes = 4096;

    void accept_all();
    bool drop_oldest_unknown();

    ListeningSocket& listener_;
    std::vector<PendingConnection> connections_;   // the oldest first
};

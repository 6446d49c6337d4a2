#include "llmc/process/pending_connections.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

void PendingConnections::poll(double seconds, const OnMessage& on_message) {
    std::vector<pollfd> waiting{{listener_.fd(), POLLIN, 0}};
    for (const PendingConnection& connection : connections_) waiting.push_back({connection.socket.fd(), POLLIN, 0});
    ::poll(waiting.data(), waiting.size(), static_cast<int>(std::clamp(seconds, 0.0, 1.0) * 1e3) + 1);

    const double now = steady_seconds();
    std::vector<PendingConnection> remaining;
    for (std::size_t i = 0; i < connections_.size(); i++) {
        PendingConnection& connection = connections_[i];
        bool stays = connection.rank > 0 || now - connection.since < timeout_seconds;
        while (stays && waiting[i + 1].revents != 0) {
            const FrameReader::State state = connection.reader.read(connection.socket, longest_bytes);
            if (state == FrameReader::State::partial) break;
            stays = state == FrameReader::State::whole && on_message(connection, connection.reader.take());
        }
        if (stays) remaining.push_back(std::move(connection));
    }
    connections_ = std::move(remaining);
    if (waiting[0].revents != 0) accept_all();
}

void PendingConnections::accept_all() {
    for (std::size_t i = 0; i < most_unknown; i++) {
        std::optional<Socket> socket = listener_.accept(0);
        if (!socket) {
            // nobody else has connected, or no descriptor is left
            if ((errno != EMFILE && errno != ENFILE) || !drop_oldest_unknown()) return;
            continue;
        }
        const auto unknown = std::count_if(connections_.begin(), connections_.end(),
                                           [](const PendingConnection& c) { return c.rank == 0; });
        if (static_cast<std::size_t>(unknown) >= most_unknown) drop_oldest_unknown();
        connections_.push_back({std::move(*socket), 0, {}, steady_seconds()});
    }
}

bool PendingConnections::drop_oldest_unknown() {
    const auto oldest =
        std::find_if(connections_.begin(), connections_.end(), [](const PendingConnection& c) { return c.rank == 0; });
    if (oldest == connections_.end()) return false;
    connections_.erase(oldest);
    return true;
}

#include "llmc/process/comers.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

FrameReader::State FrameReader::read(const Socket& socket, std::uint32_t longest) {
    for (;;) {
        std::uint32_t length = 0;
        std::size_t wanted = sizeof length;
        if (bytes_.size() >= wanted) {
            std::memcpy(&length, bytes_.data(), sizeof length);
            if (length > longest) return State::lost;
            wanted += length;
            if (bytes_.size() == wanted) return State::whole;
        }
        char piece[512];
        const ssize_t n = ::recv(socket.fd(), piece, std::min(sizeof piece, wanted - bytes_.size()), MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::partial;
        if (n <= 0) return State::lost;
        bytes_.append(piece, static_cast<std::size_t>(n));
    }
}

std::string FrameReader::take() {
    std::string text = bytes_.substr(sizeof(std::uint32_t));
    bytes_.clear();
    return text;
}

void Comers::listen(double seconds, const Hear& hear) {
    std::vector<pollfd> waiting{{listener_.fd(), POLLIN, 0}};
    for (const Comer& comer : comers_) waiting.push_back({comer.socket.fd(), POLLIN, 0});
    poll(waiting.data(), waiting.size(), static_cast<int>(std::clamp(seconds, 0.0, 1.0) * 1e3) + 1);

    const double now = steady_seconds();
    std::vector<Comer> remaining;
    for (std::size_t i = 0; i < comers_.size(); i++) {
        Comer& comer = comers_[i];
        bool stays = comer.rank > 0 || now - comer.since < patience_seconds;
        while (stays && waiting[i + 1].revents != 0) {
            const FrameReader::State state = comer.reader.read(comer.socket, longest_bytes);
            if (state == FrameReader::State::partial) break;
            stays = state == FrameReader::State::whole && hear(comer, comer.reader.take());
        }
        if (stays) remaining.push_back(std::move(comer));
    }
    comers_ = std::move(remaining);
    if (waiting[0].revents != 0) accept_all();
}

void Comers::accept_all() {
    for (std::size_t i = 0; i < most_unknown; i++) {
        std::optional<Socket> socket = listener_.accept(0);
        if (!socket) {
            // none is there, or no descriptor is left for it
            if ((errno != EMFILE && errno != ENFILE) || !give_up_oldest_unknown()) return;
            continue;
        }
        const auto unknown = std::count_if(comers_.begin(), comers_.end(), [](const Comer& c) { return c.rank == 0; });
        if (static_cast<std::size_t>(unknown) >= most_unknown) give_up_oldest_unknown();
        comers_.push_back({std::move(*socket), 0, {}, steady_seconds()});
    }
}

bool Comers::give_up_oldest_unknown() {
    const auto oldest = std::find_if(comers_.begin(), comers_.end(), [](const Comer& c) { return c.rank == 0; });
    if (oldest == comers_.end()) return false;
    comers_.erase(oldest);
    return true;
}

// Connections to a port whose other end has not said who it is: ranks of the run, or strangers, who may send anything,
// slowly or never. All are listened to at once, and nobody is waited for.
//
// What must hold: a message by which a rank makes itself known is short; whoever was turned away comes again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "llmc/process/sockets.h"

// A text that arrives in pieces.
class FrameReader {
public:
    enum class State { partial, whole, lost };   // lost: closed, or too long to be one of ours

    // Takes what is there, without waiting, up to the end of one text.
    State read(const Socket& socket, std::uint32_t longest);
    std::string take();   // a whole one; the next begins

private:
    std::string bytes_;   // with the length in front
};

struct Comer {
    Socket socket;
    int rank = 0;   // 0: it has not said who it is; such are given up after a while, or when there are too many
    FrameReader reader;
    double since = 0;
};

class Comers {
public:
    explicit Comers(ListeningSocket& listener) : listener_(listener) {}

    // Waits up to `seconds` for something to happen. hear() gets every text that has come; true: more is to come of it;
    // false: the connection is closed, unless hear() has moved the socket away.
    using Hear = std::function<bool(Comer&, const std::string& message)>;
    void listen(double seconds, const Hear& hear);

private:
    static constexpr std::size_t most_unknown = 200;
    static constexpr double patience_seconds = 5;
    static constexpr std::uint32_t longest_bytes = 4096;

    void accept_all();
    bool give_up_oldest_unknown();

    ListeningSocket& listener_;
    std::vector<Comer> comers_;   // the oldest first
};

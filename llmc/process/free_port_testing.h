// A TCP port for tests that give one to their ranks.
#pragma once

#include <random>

#include "llmc/base/error.h"
#include "llmc/process/sockets.h"

// Returns a port at which nobody listens, below those that the system gives to outgoing connections: one of these could
// be taken before a rank listens there. Throws Error(io) where there is none.
inline int free_port() {
    std::random_device random;
    for (int attempt = 0;; attempt++) {
        const int port = 10000 + static_cast<int>(random() % 20000);
        try {
            return ListeningSocket(port).port();
        } catch (const Error&) {   // it is taken
            if (attempt == 1000) throw;
        }
    }
}

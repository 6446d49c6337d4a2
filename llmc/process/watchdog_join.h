// Connects the watchdog (watchdog.h): every rank to rank 0.
//
// Rank 0 publishes over the rendezvous where it listens, and a nonce by which it and its own ranks know each other from
// unknown peers. A rank then sends its number and the nonce, rank 0 answers, and the rank confirms. It has joined only
// then: before, it could have given up on this connection, which rank 0 would not notice by an answer that it can still
// send.
#pragma once

#include <string>
#include <vector>

#include "llmc/process/sockets.h"
#include "llmc/process/startup.h"

struct WatchdogConnection {
    Socket socket;
    std::string host;   // of the rank at the other end
};

// By rank on rank 0, where [0] is of no use; elsewhere only [0], which is rank 0. Collective over the rendezvous.
// Error(no_device) naming the ranks that have not joined within `seconds`.
std::vector<WatchdogConnection> connect_watchdog(Rendezvous& rendezvous, const ProcessPlace& place, double seconds);

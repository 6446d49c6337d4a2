// A parameter server (Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014), its
// synchronous form: each of `servers` ranks is in charge of a piece of the vector. Workers send their piece to it; it
// adds them up, its own first, then in the order of ranks, and sends the sum back. Two steps. A server's link carries
// (n - 1) M / servers bytes each way for that, and a worker's at most M: with as many servers as ranks 2 (n - 1)/n M,
// as little as a ring, in two steps, but every rank talks to all others at once.
#pragma once

#include "dev/bench/algorithms/peers.h"

inline void parameter_server_all_reduce(Peers& peers, int servers) {
    std::vector<Peers::Send> to_servers, to_workers;
    std::vector<Peers::Receive> from_workers, from_servers;
    const int rank = peers.rank();
    for (int server = 0; server < servers; server++) {
        if (server == rank) continue;
        to_servers.push_back({server, piece_of(peers.whole(), servers, server)});
        from_servers.push_back({server, piece_of(peers.whole(), servers, server)});
    }
    for (int worker = 0; rank < servers && worker < peers.size(); worker++) {
        if (worker == rank) continue;
        from_workers.push_back({worker, piece_of(peers.whole(), servers, rank), true});
        to_workers.push_back({worker, piece_of(peers.whole(), servers, rank)});
    }
    peers.step(to_servers, from_workers);
    peers.step(to_workers, from_servers);
}

// Connects every rank to rank 0 over TCP: for start-up by tcp and fs (startup.h), and for the watchdog.
//
// A rank says its number and the word by which the run's ranks know each other from unknown peers; rank 0 answers with
// that word, and the rank confirms. It has joined only then: before, it could have given up on this connection, which
// rank 0 would not notice by an answer that it can still send. When all have joined, rank 0 says so, or who is missing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/process/sockets.h"

// Settings by which a rank joins the others.
struct Joining {
    int rank = 0, ranks = 1;
    std::string word = {};
    double seconds = 120;            // limit
    bool address_is_given = false;   // by the user: a refusal there comes from rank 0, not from a stranger
};

// Accepts all other ranks, on rank 0. Returns connections by rank; [0] is not open. Error(no_device) naming the ranks
// that have not joined in time.
std::vector<Socket> accept_ranks(ListeningSocket& listener, const Joining& own);

// Connects to rank 0, at the first of the hosts where it is. nullopt where it is at none within `seconds`.
// Error(no_device) where it refuses, or has waited for others in vain; Error(resumable) where it is lost.
std::optional<Socket> find_rank_0(const std::vector<std::string>& hosts, int port, const Joining& own, double seconds);
// Does the same, of `own.seconds` in `seconds` that are left. Error(no_device) too where it is at none.
Socket join_rank_0(const std::vector<std::string>& hosts, int port, const Joining& own, double seconds);

// Returns the line by which other ranks find the listener of rank 0. They get it by a file or by another rendezvous.
std::string invitation_to(const ListeningSocket& listener, const std::string& word, bool on_one_host);
struct Invitation {
    int port = 0;   // 0: the line was no invitation
    std::string word;
    std::vector<std::string> hosts;   // localhost, or addresses in digits: other names may not resolve
};
Invitation read_invitation(const std::string& line);

std::string make_nonce();   // differs from that of every other process and earlier run

[[noreturn]] void peers_missing(const std::string& missing, int ranks, double seconds);

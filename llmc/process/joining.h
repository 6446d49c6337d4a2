// Connects every rank to rank 0 over TCP: for start-up by tcp and fs (startup.h), and for the watchdog.
//
// A rank and rank 0 prove to each other that they know the run's secret, which is never sent. A nonce is 32 hexadecimal
// digits, made anew for each connection; a proof is HMAC-SHA-256, keyed by the secret, of the prover's role, the rank,
// the number of ranks and both nonces, so that none can be used again or sent back:
//
//   rank     train_gpt rank R of N NONCE
//   rank 0   train_gpt rank 0 NONCE
//   rank     PROOF
//   rank 0   PROOF                            or: no to rank R of N: REASON
//   rank     confirmed
//   rank 0   all have come                    or: missing: RANKS
//
// A rank has joined only when it confirms: before, it could have given up on this connection, which rank 0 would not
// notice by an answer that it can still send. What rank 0 refuses does not keep it from waiting for the others.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/process/sockets.h"

// Settings by which a rank joins the others.
struct Joining {
    int rank = 0, ranks = 1;
    std::string secret = {};   // by which the run's ranks know each other from unknown peers; empty: they do not
    double seconds = 120;      // limit
    // By the user: a refusal there comes from rank 0, not from a stranger, and rank 0 warns of the first peer that does
    // not know the secret.
    bool address_is_given = false;
};

// Accepts all other ranks, on rank 0. Returns connections by rank; [0] is not open. Error(no_device) naming the ranks
// that have not joined in time.
std::vector<Socket> accept_ranks(ListeningSocket& listener, const Joining& own);

// Connects to rank 0, at the first of the hosts where it is. nullopt where it is at none within `seconds`.
// Error(no_device) where it refuses, does not know the secret, or has waited for others in vain; Error(resumable) where
// it is lost. Without `own.address_is_given` one that refuses or does not know the secret is another run's, and passed
// over.
std::optional<Socket> find_rank_0(const std::vector<std::string>& hosts, int port, const Joining& own, double seconds);
// Does the same, of `own.seconds` in `seconds` that are left. Error(no_device) too where it is at none.
Socket join_rank_0(const std::vector<std::string>& hosts, int port, const Joining& own, double seconds);

// Returns the line by which other ranks find the listener of rank 0. They get it by a file or by another rendezvous.
std::string invitation_to(const ListeningSocket& listener, const std::string& secret, bool on_one_host);
struct Invitation {
    int port = 0;   // 0: the line was no invitation
    std::string secret;
    std::vector<std::string> hosts;   // localhost, or addresses in digits: other names may not resolve
};
Invitation read_invitation(const std::string& line);

std::string make_nonce();   // 128 random bits as 32 hexadecimal digits

[[noreturn]] void peers_missing(const std::string& missing, int ranks, double seconds);

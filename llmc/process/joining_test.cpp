// The handshake of a rank with rank 0: what goes over the wire, and who is refused.
#include "llmc/process/joining.h"

#include <doctest/doctest.h>

#include <mutex>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/base/exit_code.h"
#include "llmc/io/sha256.h"

namespace {

constexpr double kMinutes = 600;
constexpr const char* kSecret = "open sesame";

Joining of_rank(int rank, int ranks, const std::string& secret = kSecret) {
    return {.rank = rank, .ranks = ranks, .secret = secret, .seconds = kMinutes, .address_is_given = true};
}
Socket connection_to(int port) {
    std::optional<Socket> socket = connect_to_any({"127.0.0.1"}, port, kMinutes);
    REQUIRE(socket);
    return std::move(*socket);
}
std::string heard_from(Socket& socket) { return socket.receive(kMinutes).value_or("nothing more"); }

// Says a word to a peer and returns the answer.
std::string ask(Socket& socket, const std::string& word) {
    CHECK(socket.send(word));
    return heard_from(socket);
}

// Joins at a port; what rank 0, or this rank, has against it.
std::string failure_to_join(int port, const Joining& own) {
    try {
        join_rank_0({"127.0.0.1"}, port, own, kMinutes);
    } catch (const Error& error) {
        CHECK(error.exit_code() == 69);
        return error.what();
    }
    return "";
}

// Lets rank 1 of 2 meet rank 0 through a third one, which passes on what they say. Returns that, by message.
std::vector<std::string> overheard() {
    ListeningSocket listener(0, true), between(0, true);
    std::vector<Socket> at_rank_0;
    std::string failure = "none";
    std::thread rank_0([&] { at_rank_0 = accept_ranks(listener, of_rank(0, 2)); });
    std::thread rank_1([&] { failure = failure_to_join(between.port(), of_rank(1, 2)); });
    Socket to_rank_1 = std::move(*between.accept(kMinutes)), to_rank_0 = connection_to(listener.port());
    std::vector<std::string> said;
    for (const bool is_of_rank_0 : {false, true, false, true, false, true}) {
        said.push_back(heard_from(is_of_rank_0 ? to_rank_0 : to_rank_1));
        (is_of_rank_0 ? to_rank_1 : to_rank_0).send(said.back());
    }
    rank_0.join();
    rank_1.join();
    CHECK(failure == "");
    REQUIRE(at_rank_0.size() == 2);
    CHECK(at_rank_0[1].is_open());
    return said;
}

}   // namespace

TEST_CASE("joining: the secret is never sent, and no proof is like another") {
    const std::vector<std::string> first = overheard(), second = overheard();
    for (const std::string& said : first) CHECK(said.find(kSecret) == std::string::npos);
    CHECK(first[0].starts_with("train_gpt rank 1 of 2 "));
    CHECK(first[1].starts_with("train_gpt rank 0 "));
    CHECK(first[2].size() == 64);
    CHECK(first[3].size() == 64);
    CHECK(first[2] != first[3]);
    for (std::size_t i = 0; i < 4; i++) CHECK(first[i] != second[i]);
    CHECK(first[5] == "all have come");
}

TEST_CASE("joining: who does not know the secret is refused, and the others still join") {
    const std::vector<std::string> earlier = overheard();
    ListeningSocket listener(0, true);
    std::vector<std::string> warnings;
    const WarningListener listening([&](const std::string& warning) { warnings.push_back(warning); });
    std::vector<Socket> at_rank_0;
    std::thread rank_0([&] { at_rank_0 = accept_ranks(listener, of_rank(0, 3)); });
    const std::string refusal = "no to rank 1 of 3: it is of another run (TRAIN_GPT_SECRET differs)";

    for (const char* secret : {"", "open sesamf", "open sesame "}) {
        CHECK(failure_to_join(listener.port(), of_rank(1, 3, secret)).find("rank 0 says " + refusal) !=
              std::string::npos);
    }
    // what was overheard in another run with the same secret, and a secret that is sent as itself
    for (const std::string& proof : {earlier[2], earlier[3], std::string(kSecret), std::string(64, '0'), std::string(),
                                     std::string("confirmed")}) {
        Socket stranger = connection_to(listener.port());
        CHECK(ask(stranger, "train_gpt rank 1 of 3 0123456789abcdef0123456789abcdef").starts_with("train_gpt rank 0 "));
        CHECK(ask(stranger, proof) == refusal);
        CHECK(heard_from(stranger) == "nothing more");
    }
    // the same nonce as then: rank 0 has a new one
    Socket again = connection_to(listener.port());
    CHECK(ask(again, earlier[0]) != earlier[1]);
    CHECK(ask(again, earlier[2]).starts_with("no to rank 1 of 2: it is of another run"));
    // no greeting at all
    for (const char* word : {"train_gpt rank 1 of 3 ", "train_gpt rank 1 of 3 open sesame", "train_gpt rank 1 of 3",
                             "train_gpt rank +1 of 3 0123456789abcdef0123456789abcdef", "confirmed", ""}) {
        Socket stranger = connection_to(listener.port());
        CHECK(ask(stranger, word) == "nothing more");
    }

    std::string failures;
    std::vector<std::thread> others;
    std::mutex mutex;
    for (const int rank : {1, 2}) {
        others.emplace_back([&, rank] {
            const std::string failure = failure_to_join(listener.port(), of_rank(rank, 3));
            const std::lock_guard lock(mutex);
            failures += failure;
        });
    }
    for (std::thread& other : others) other.join();
    rank_0.join();
    CHECK(failures == "");
    CHECK(at_rank_0[1].is_open());
    CHECK(at_rank_0[2].is_open());
    REQUIRE(warnings.size() == 1);   // of the first
    CHECK(warnings[0].find("rank 0: refused a peer at 127.0.0.1 that says it is rank 1 of 3") != std::string::npos);
    CHECK(warnings[0].find("still waiting for: 1, 2") != std::string::npos);
}

TEST_CASE("joining: a rank that proves itself and gives up before it confirms has not joined") {
    ListeningSocket listener(0, true);
    std::vector<Socket> at_rank_0;
    std::thread rank_0([&] { at_rank_0 = accept_ranks(listener, of_rank(0, 2)); });
    const std::string greeting = "train_gpt rank 1 of 2 ", nonce = "0123456789abcdef0123456789abcdef";
    auto proof = [&](const std::string& role, const std::string& nonce_of_rank_0) {
        return hmac_sha256(kSecret, text(role, greeting, nonce, " ", nonce_of_rank_0));
    };
    {
        Socket given_up = connection_to(listener.port());
        const std::string other = ask(given_up, greeting + nonce).substr(std::string("train_gpt rank 0 ").size());
        CHECK(ask(given_up, proof("to rank 0: ", other)) == proof("rank 0 to ", other));
    }
    CHECK(failure_to_join(listener.port(), of_rank(1, 2)) == "");
    rank_0.join();
    REQUIRE(at_rank_0.size() == 2);
    CHECK(at_rank_0[1].is_open());
}

TEST_CASE("joining: a rank refuses whoever answers as rank 0 without the secret") {
    for (const bool sends_back : {false, true}) {
        ListeningSocket listener(0, true);
        std::string failure;
        std::thread rank_1([&] { failure = failure_to_join(listener.port(), of_rank(1, 2)); });
        Socket socket = std::move(*listener.accept(kMinutes));
        const std::string nonce = heard_from(socket).substr(std::string("train_gpt rank 1 of 2 ").size());
        const std::string proof = ask(socket, "train_gpt rank 0 " + nonce);   // the rank's own
        CHECK(ask(socket, sends_back ? proof : std::string(64, '0')) == "nothing more");
        rank_1.join();
        CHECK(failure.find("rank 1: who answers at 127.0.0.1 as rank 0 does not know this run's secret") !=
              std::string::npos);
    }
}

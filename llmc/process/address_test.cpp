// How addresses are written and what names mean; dev/test/ipv6_test.sh runs ranks in networks that have only some
// kinds.
#include "llmc/process/address.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "llmc/base/error.h"
#include "llmc/process/joining.h"
#include "llmc/process/sockets.h"

namespace {

std::string read(const std::string& given) { return to_text(read_host_port(given, 29500, given)); }
std::string read(const std::string& host, const std::string& port) {
    return to_text(read_host_and_port(host, port, 29500, "MASTER_ADDR=" + host));
}

// Whether this machine, or its loopback, has IPv6 at all.
bool has_ip6() {
    const ListeningSocket listener(0, true);
    return listener.fds().size() == 2;
}

}   // namespace

TEST_CASE("address: HOST[:PORT], with brackets around an IPv6 address") {
    CHECK(read("node1:1") == "node1:1");
    CHECK(read("node1") == "node1:29500");
    CHECK(read("192.0.2.1:65535") == "192.0.2.1:65535");
    CHECK(read("[::1]:29511") == "[::1]:29511");
    CHECK(read("[2001:db8::1]") == "[2001:db8::1]:29500");
    CHECK(read("[fe80::1%eth0]:7") == "[fe80::1%eth0]:7");
    for (const char* name : {"node_1.example.org.", "caf\xc3\xa9", "7", "127.1", "train-0.train.default.svc"}) {
        CHECK(read(name) == text(name, ":29500"));
    }
    CHECK(read_host_port("[::1]:29511", 1, "").host == "::1");
    CHECK(read("::1", "29511") == "[::1]:29511");
    CHECK(read("[::1]", "29511") == "[::1]:29511");
    CHECK(read("::1", "") == "[::1]:29500");
    CHECK(read("node1", "7") == "node1:7");
    CHECK(read("node1:7", "") == "node1:7");
    for (const char* given : {"",
                              ":29500",
                              "[]:29500",
                              "host:",
                              "host:0",
                              "host:65536",
                              "host:12x",
                              "host: 12",
                              "host:+12",
                              "host:-1",
                              "host:99999999999999999999",
                              "::1",
                              "::1:2950",
                              "2001:db8::1",
                              "[::1",
                              "[::1]29500",
                              "[::1]:",
                              "[::1]:0",
                              "[127.0.0.1]:1",
                              "[node1]:1",
                              "[::g]:1",
                              "a:b:c",
                              "a b:1",
                              "node1/2",
                              "node1\n",
                              "..",
                              "node1..example.org:1",
                              ".example.org",
                              "300.1.1.1",
                              "1.2.3.4.5:1"}) {
        INFO(given);
        CHECK_THROWS_WITH_AS(read(given), doctest::Contains(given), Error);
    }
    CHECK(read(std::string(63, 'a')) == std::string(63, 'a') + ":29500");
    CHECK_THROWS_WITH_AS(read(std::string(64, 'a')), doctest::Contains("longer than a name server takes"), Error);
    CHECK_THROWS_WITH_AS(read("node1:7", "8"), doctest::Contains("MASTER_ADDR=node1:7"), Error);
    CHECK_THROWS_WITH_AS(read("::1", "many"), doctest::Contains("MASTER_ADDR=::1"), Error);
    CHECK_THROWS_WITH_AS(read("::1:2950"), doctest::Contains("an IPv6 address stands in brackets"), Error);
}

TEST_CASE("address: what is the same host, whoever says it") {
    for (const char* host : {"127.0.0.1", "localhost", "::1", "0:0:0:0:0:0:0:1"}) CHECK(is_loopback(host));
    for (const char* host : {"127.0.1.1", "128.0.0.1", "node0", "", "127.0.0.1.example.org", "::", "::2", "[::1]"}) {
        INFO(host);
        CHECK(!is_loopback(host));
    }
}

TEST_CASE("address: digits of both kinds, localhost without a resolver") {
    auto hosts_of = [](const std::string& host) {
        std::vector<std::string> result;
        for (const Address& address : resolve(host, 29511).addresses) {
            CHECK(address.port() == 29511);
            result.push_back(address.host());
        }
        return result;
    };
    using Hosts = std::vector<std::string>;
    CHECK(hosts_of("127.0.0.1") == Hosts{"127.0.0.1"});
    CHECK(hosts_of("2001:DB8:0::1") == Hosts{"2001:db8::1"});
    CHECK(hosts_of("::ffff:192.0.2.1") == Hosts{"192.0.2.1"});   // the same, written as IPv6
    CHECK(hosts_of("localhost") == Hosts{"127.0.0.1", "::1"});
    for (const std::string& own : own_addresses()) CHECK(resolve(own, 1).addresses.size() == 1);
}

TEST_CASE("address: a listener answers both kinds of addresses at one port, and tells who has come") {
    for (const bool only_loopback : {false, true}) {
        ListeningSocket listener(0, only_loopback);
        std::vector<std::string> hosts{"127.0.0.1"};
        if (has_ip6()) hosts.emplace_back("::1");
        CHECK(listener.fds().size() == hosts.size());
        for (const std::string& host : hosts) {
            INFO(host);
            std::optional<Socket> client = connect_to_any({host}, listener.port(), 20);
            std::optional<Socket> server = listener.accept(20);
            REQUIRE(client);
            REQUIRE(server);
            CHECK(client->peer_address() == host);
            CHECK(server->peer_address() == host);
        }
        CHECK_THROWS_WITH_AS(ListeningSocket(listener.port(), only_loopback),
                             doctest::Contains("cannot listen on TCP port"), Error);
    }
    if (!has_ip6()) MESSAGE("SKIPPED networks with only IPv6: this machine has no IPv6");
}

TEST_CASE("address: many who come to one kind of addresses hold up nobody at the other") {
    if (!has_ip6()) return;
    ListeningSocket listener(0, true);
    std::vector<std::optional<Socket>> clients;
    for (const char* host : {"127.0.0.1", "127.0.0.1", "127.0.0.1", "::1"}) {
        clients.push_back(connect_to_any({host}, listener.port(), 20));
    }
    std::string first_two;
    for (int i = 0; i < 2; i++) first_two += listener.accept(20)->peer_address() + " ";
    CHECK(first_two.find("::1") != std::string::npos);
}

TEST_CASE("address: an invitation of a host carries all its addresses, and loopback to itself") {
    const ListeningSocket listener(0);
    const Invitation read = read_invitation(invitation_to(listener, "word", false));
    std::vector<std::string> expected = own_addresses();
    expected.insert(expected.begin(), "localhost");
    CHECK(read.hosts == expected);
    CHECK(read.port == listener.port());
    const Invitation other = read_invitation("29500 word other/host/1 2001:db8::1 192.0.2.1");
    CHECK(other.hosts == std::vector<std::string>{"2001:db8::1", "192.0.2.1"});
}

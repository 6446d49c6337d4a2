#include "llmc/run/metrics/metrics_server.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/run/metrics/metrics.h"

namespace {

Socket client_of(int port) {
    std::optional<Socket> socket = connect_to_any({"localhost"}, port, 60);
    REQUIRE(socket);
    return std::move(*socket);
}

// Sends a request, or the rest of one, and returns all that comes back until the server closes the connection.
std::string answer_to(const std::string& request, const Socket& client) {
    send(client.fd(), request.data(), request.size(), MSG_NOSIGNAL);
    std::string all;
    char piece[1024];
    for (ssize_t n; (n = recv(client.fd(), piece, sizeof piece, 0)) > 0;)
        all.append(piece, static_cast<std::size_t>(n));
    return all;
}
std::string answer_to(const std::string& request, int port) { return answer_to(request, client_of(port)); }

constexpr const char* page_request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr const char* ok = "HTTP/1.1 200 OK\r\n";

std::string page_of(int port) {
    const std::string all = answer_to(page_request, port);
    CHECK(all.starts_with(ok));
    CHECK(all.find("\r\nContent-Type: text/plain; version=0.0.4\r\n") != std::string::npos);
    const std::string page = all.substr(all.find("\r\n\r\n") + 4);
    CHECK(all.find(text("\r\nContent-Length: ", page.size(), "\r\n")) != std::string::npos);
    return page;
}

bool has_line(const std::string& page, const std::string& line) {
    return ("\n" + page).find("\n" + line + "\n") != std::string::npos;
}

constexpr double for_ever = 1e5;

int port_of(const MetricsServer& server) {   // which the system chose
    const std::string address = server.address();
    return std::stoi(address.substr(address.rfind(':') + 1));
}

}   // namespace

TEST_CASE("metrics server: the newest value of each field of metrics.jsonl's lines, in Prometheus' format") {
    const TemporaryFolder folder;
    MetricsServer server("localhost", 0, for_ever);
    const int port = port_of(server);
    CHECK(server.address() == text("http://localhost:", port, "/metrics"));
    CHECK(page_of(port).empty());

    Metrics metrics(real_files(), folder.path());
    metrics.show_to(server);
    StepRecord record{7, 1.0f / 3.0f, 2.5f, 3e-4f, 1234.5678901234, {}, 12.5, 1ull << 40};
    record.exposed_ms = {{"cp ring", 1.5}, {"dp", 0.25}};
    metrics.step(record);
    metrics.validation(7, {3.5f, {}, {{"a \"b\" \\c\nd", 0.5f}}});
    metrics.evaluation(7, {"lambada", 0.25, {}, 40.5});
    std::string page = page_of(port);
    for (const char* line : {"# HELP train_gpt_loss loss, of metrics.jsonl", "# TYPE train_gpt_loss gauge",
                             "train_gpt_step 7", "train_gpt_loss 0.333333343", "train_gpt_lr 0.000300000014",
                             "train_gpt_mfu NaN", "train_gpt_memory_bytes 1099511627776",
                             "train_gpt_exposed_ms{name=\"cp ring\"} 1.5", "train_gpt_exposed_ms{name=\"dp\"} 0.25",
                             "train_gpt_val_loss 3.5", "train_gpt_val_loss_of{name=\"a \\\"b\\\" \\\\c\\nd\"} 0.5",
                             "train_gpt_lambada 0.25", "train_gpt_lambada_perplexity 40.5"}) {
        INFO(line);
        CHECK(has_line(page, line));
    }

    record.step = 8;
    record.loss = 0.25f;
    record.exposed_ms = {{"tp", 2}};
    metrics.step(record);
    page = page_of(port);
    CHECK(has_line(page, "train_gpt_step 8"));
    CHECK(has_line(page, "train_gpt_loss 0.25"));
    CHECK(has_line(page, "train_gpt_val_loss 3.5"));
    CHECK(has_line(page, "train_gpt_exposed_ms{name=\"tp\"} 2"));
    CHECK(page.find("cp ring") == std::string::npos);
    metrics.rewind({6, 8, 9.0f, 1.0f, 16}, StepPhase::next_step);
    page = page_of(port);
    CHECK(has_line(page, "train_gpt_step 6"));
    CHECK(has_line(page, "train_gpt_rewind_from 8"));
    Metrics elsewhere(real_files(), "");   // writes no file
    elsewhere.show_to(server);
    record.loss = 0.125f;
    elsewhere.step(record);
    CHECK(has_line(page_of(port), "train_gpt_loss 0.125"));
}

TEST_CASE("metrics server: other requests get an answer or are cut off") {
    const MetricsServer server("localhost", 0, for_ever);
    const int port = port_of(server);
    CHECK(answer_to("GET / HTTP/1.1\r\n\r\n", port).starts_with("HTTP/1.1 404 "));
    CHECK(answer_to("GET /metrics?of=all HTTP/1.0\r\n\r\n", port).starts_with("HTTP/1.1 200 "));
    CHECK(answer_to("POST /metrics HTTP/1.1\r\n\r\n", port).starts_with("HTTP/1.1 405 "));
    CHECK(answer_to("HEAD /metrics HTTP/1.1\r\n\r\n", port).ends_with("\r\n\r\n"));
    CHECK(answer_to("\r\n\r\n", port).starts_with("HTTP/1.1 405 "));
}

TEST_CASE("metrics server: a client that is silent, or asks for ever, holds neither the next one nor the end") {
    {
        const MetricsServer server("localhost", 0, 0.05);
        const Socket silent = client_of(port_of(server));
        // a busy machine may cut off this client, too
        while (!answer_to("GET /metrics HTTP/1.1\r\n\r\n", port_of(server)).starts_with("HTTP/1.1 200 ")) continue;
        char byte = 0;
        CHECK(recv(silent.fd(), &byte, 1, 0) == 0);
    }
    {
        const MetricsServer patient("localhost", 0, for_ever);
        CHECK(answer_to(std::string(8192, 'x'), port_of(patient)).empty());
        const Socket silent = client_of(port_of(patient));
        send(silent.fd(), "GET", 3, MSG_NOSIGNAL);
    }
}

TEST_CASE("metrics server: idle clients starve nobody; of too many the oldest idle one is closed") {
    const MetricsServer server("127.0.0.1", 0, for_ever);
    const int port = port_of(server);
    std::vector<Socket> idle;
    for (int i = 0; i < 200; i++) idle.push_back(client_of(port));
    CHECK(page_of(port).empty());
    // this reader was the 201st, so the last ones before it were left
    const std::size_t closed = idle.size() - (MetricsServer::most_clients - 1);
    char byte = 0;
    for (std::size_t i = 0; i < closed; i++) CHECK(recv(idle[i].fd(), &byte, 1, 0) == 0);
    for (std::size_t i = closed; i < idle.size(); i++) CHECK(recv(idle[i].fd(), &byte, 1, MSG_DONTWAIT) < 0);

    // a client is idle from when its bytes moved last, not from when it came
    const std::string request = page_request;
    send(idle[closed].fd(), request.data(), 10, MSG_NOSIGNAL);
    CHECK(page_of(port).empty());   // by now these bytes have been read
    std::vector<Socket> later;
    for (std::size_t i = 0; i < MetricsServer::most_clients - 2; i++) later.push_back(client_of(port));
    CHECK(page_of(port).empty());
    for (std::size_t i = closed + 1; i < idle.size(); i++) CHECK(recv(idle[i].fd(), &byte, 1, 0) == 0);
    CHECK(answer_to(request.substr(10), idle[closed]).starts_with(ok));
    CHECK(answer_to(request, later[0]).starts_with(ok));
}

TEST_CASE("metrics server: a client that does not read its answer starves nobody") {
    MetricsServer server("localhost", 0, for_ever);
    const int port = port_of(server);
    server.show("{\"" + std::string(4 << 20, 'x') + "\":1}");   // an answer beyond every buffer of a connection
    const Socket lazy = client_of(port);
    send(lazy.fd(), page_request, std::string(page_request).size(), MSG_NOSIGNAL);
    const std::string page = page_of(port);
    CHECK(page.size() > 16u << 20);
    CHECK(answer_to("", lazy).ends_with(page));
}

TEST_CASE("metrics server: a port that is taken and a host that is not here are named") {
    const MetricsServer server("localhost", 0);
    const int port = port_of(server);
    CHECK_THROWS_WITH_AS(MetricsServer("localhost", port), doctest::Contains(text("--metrics-port ", port).c_str()),
                         Error);
    CHECK_THROWS_WITH_AS(MetricsServer("192.0.2.1", port), doctest::Contains("at 192.0.2.1"), Error);
    CHECK_THROWS_WITH_AS(MetricsServer("no such.invalid", port), doctest::Contains("--metrics-host no such.invalid: "),
                         Error);
}

// A second of fuzzing for every parser: the seeds of dev/test/fuzz/parsers.h, changed at random but always alike.
// Crashes and what the sanitizers find count, and exceptions that are no Error, which a user would take for a bug.

#include <doctest/doctest.h>

#include <random>
#include <regex>
#include <string>

#include "dev/test/fuzz/parsers.h"

namespace {

std::string mutated(const std::string& seed, std::mt19937& random) {
    std::string bytes = seed;
    auto place = [&] { return bytes.empty() ? 0 : random() % bytes.size(); };
    for (unsigned changes = 1 + random() % 4; changes > 0; changes--) {
        switch (random() % 6) {
            case 0: bytes.resize(place()); break;
            case 1:
                if (!bytes.empty()) bytes[place()] = static_cast<char>(random());
                break;
            case 2:
                if (!bytes.empty()) bytes[place()] ^= static_cast<char>(1 << random() % 8);
                break;
            case 3: bytes.insert(place(), 1, "\"{}[],:0-9 \n\\\xff"[random() % 15]); break;
            case 4: bytes.erase(place(), random() % 8); break;
            default: bytes.insert(place(), bytes.substr(place(), random() % 40)); break;
        }
    }
    return bytes;
}

// The message begins with a file's name and an offset in it.
bool says_where(const std::string& message, const std::string& content) {
    static const std::regex place("^[a-zA-Z]+(\\.[a-z]+)?: (offset|byte) ([0-9]+)(:| \\().*");
    std::smatch found;
    std::string first_line = message.substr(0, message.find('\n'));
    return std::regex_match(first_line, found, place) && std::stoull(found[3]) <= content.size() + 1;
}

}   // namespace

TEST_CASE("parsers: seeds are accepted, and nothing made from them does harm") {
    for (const FuzzTarget& target : fuzz::targets()) {
        CAPTURE(target.name);
        std::mt19937 random(1);
        int accepted = 0, refused = 0;
        for (const std::string& seed : target.seeds) {
            CHECK_NOTHROW(target.parse(seed));
            for (int i = 0; i < 600; i++) {
                const std::string bytes = mutated(seed, random);
                try {
                    target.parse(bytes);
                    accepted++;
                } catch (const Error& error) {
                    refused++;
                    const bool for_the_user = error.kind() == ErrorKind::bad_data || error.kind() == ErrorKind::usage;
                    CHECK_MESSAGE(for_the_user, error.what());
                    if (error.kind() == ErrorKind::bad_data)
                        CHECK_MESSAGE(says_where(error.message(), bytes), error.what());
                } catch (const std::exception& error) {
                    FAIL_CHECK(error.what());
                }
            }
        }
        CHECK(refused > 100);   // the changes reach what is checked
        CHECK(accepted + refused == static_cast<int>(600 * target.seeds.size()));
    }
}

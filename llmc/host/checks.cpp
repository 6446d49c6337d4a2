#include "llmc/host/checks.h"

#include <cstdlib>
#include <sstream>

#include "llmc/base/error.h"

namespace host {
namespace {

// Read once per process; written only while nothing is queued, so reading it needs no lock.
Checks& current() {
    static Checks checks = [] {
        const char* list = std::getenv("TRAIN_GPT_CHECKS");
        return list ? parse_checks(list) : Checks{};
    }();
    return checks;
}

Checks all_on(Checks base) {
    base.memory = base.poison = base.races = base.random_order = true;
    return base;
}

}   // namespace

const Checks& checks() { return current(); }
void set_checks(const Checks& checks) { current() = checks; }

Checks parse_checks(const std::string& list, Checks base) {
    std::istringstream words(list);
    for (std::string word; std::getline(words, word, ',');) {
        std::string value;
        if (std::size_t colon = word.find(':'); colon != std::string::npos) {
            value = word.substr(colon + 1);
            word.resize(colon);
        }
        if (word == "memory") base.memory = true;
        else if (word == "poison") base.poison = true;
        else if (word == "races") base.races = true;
        else if (word == "order") base.random_order = true;
        else if (word == "all") base = all_on(base);
        else if (word == "none") base = Checks{};
        else if (!word.empty())
            throw Error(ErrorKind::usage, text("TRAIN_GPT_CHECKS: unknown check '", word, "'"),
                        "Known ones: memory, poison, races, order:SEED, all, none.");
        if (!value.empty()) {
            if (word != "order" || value.find_first_not_of("0123456789") != std::string::npos)
                throw Error(ErrorKind::usage, text("TRAIN_GPT_CHECKS: '", word, ":", value, "'"),
                            "Only order takes a value, and that is a number: order:7.");
            base.order_seed = std::stoull(value);
        }
    }
    return base;
}

}   // namespace host

void turn_on_device_checks() {
    if (!std::getenv("TRAIN_GPT_CHECKS")) host::set_checks(host::parse_checks("all", host::checks()));
}

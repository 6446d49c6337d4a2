#include "llmc/cuda_on_cpu/checks/checks.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "llmc/base/error.h"

namespace host {
namespace {

// Returns the checks in force. Read once per process; written only while nothing is queued, so reading it needs no
// lock.
Checks& current() {
    static Checks checks = [] {
        const char* list = std::getenv("TRAIN_GPT_CHECKS");
        return list ? parse_checks(list) : Checks{};
    }();
    return checks;
}

struct Switch {
    const char* word;
    bool Checks::*value;
};
constexpr Switch switches[] = {
    {"memory", &Checks::memory},      {"poison", &Checks::poison},   {"races", &Checks::races},
    {"order", &Checks::random_order}, {"shape", &Checks::gpu_shape},
};

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
        const auto* named = std::find_if(std::begin(switches), std::end(switches),
                                         [&](const Switch& known) { return word == known.word; });
        if (named != std::end(switches)) {
            base.*(named->value) = true;
        } else if (word == "all") {
            for (const Switch& known : switches) base.*(known.value) = true;
        } else if (word == "none") {
            for (const Switch& known : switches) base.*(known.value) = false;
        } else if (!word.empty()) {
            throw Error(ErrorKind::usage, text("TRAIN_GPT_CHECKS: unknown check '", word, "'"),
                        "Known ones: memory, poison, races, order:SEED, shape, all, none.");
        }
        if (!value.empty()) {
            if (word != "order" || value.find_first_not_of("0123456789") != std::string::npos)
                throw Error(ErrorKind::usage, text("TRAIN_GPT_CHECKS: '", word, ":", value, "'"),
                            "Only order takes a value, and that is a number: order:7.");
            base.order_seed = std::strtoull(value.c_str(), nullptr, 10);
        }
    }
    return base;
}

}   // namespace host

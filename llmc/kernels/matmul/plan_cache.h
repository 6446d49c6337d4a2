// Builds once per key what takes long to build and may be refused: keeps the plan, or the reason why there is none.
//
// Not thread-safe. An Error(no_device) is kept as the refusal; any other error is passed on, and the next call tries to
// build again.
#pragma once

#include <map>
#include <utility>
#include <variant>

#include "llmc/base/error.h"

template <class Key, class Plan>
class PlanCache {
public:
    // Returns the plan of `key`, calling `build` if it is new. Throws the refusal if there is one.
    template <class Build>
    const Plan& get(const Key& key, Build build) {
        auto found = plans_.find(key);
        if (found == plans_.end()) found = plans_.emplace(key, built(build)).first;
        if (const Error* refusal = std::get_if<Error>(&found->second)) throw *refusal;
        return std::get<Plan>(found->second);
    }

private:
    using Entry = std::variant<Plan, Error>;

    template <class Build>
    static Entry built(Build build) {
        try {
            return Entry(std::in_place_type<Plan>, build());
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::no_device) throw;
            return Entry(std::in_place_type<Error>, error);
        }
    }

    std::map<Key, Entry> plans_;
};

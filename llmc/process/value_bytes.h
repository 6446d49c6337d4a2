// Carries plain values as bytes where texts travel between ranks (World::gather_text, World::from_first,
// Agreement::gather). All ranks run the same program on the same kind of machine.
#pragma once

#include <cstring>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "llmc/base/ensure.h"

template <class T>
requires std::is_trivially_copyable_v<T> std::string to_bytes(std::span<const T> values) {
    return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}
template <class T>   // no pointer or view, whose address would mean nothing to another rank
requires(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::ranges::range<T>) std::string
    to_bytes(const T& value) {
    return to_bytes(std::span(&value, 1));
}

// Return the values again. Throw Error(bug) for a number of bytes that so many values do not have.
template <class T>
requires std::is_trivially_copyable_v<T> std::vector<T> values_of(std::string_view bytes) {
    ENSURE(bytes.size() % sizeof(T) == 0, bytes.size(), " bytes of values of ", sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}
template <class T>
T value_of(std::string_view bytes) {
    ENSURE(bytes.size() == sizeof(T), bytes.size(), " bytes of a value of ", sizeof(T));
    return values_of<T>(bytes).front();
}

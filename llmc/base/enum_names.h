// The names of an enum's values: one table each, which options, files and messages read.
//
//   template <>
//   struct EnumNames<Fruit> { static constexpr EnumName<Fruit> list[]{{"apple", Fruit::apple}, ...}; };
//
// Prints the first name of a value; reads the others too.
#pragma once

#include <string>

template <class Value>
struct EnumName {
    const char* name;
    Value value;
};

template <class Value>
struct EnumNames;

template <class Value>
requires requires { EnumNames<Value>::list; }
const char* name_of(const Value& value) {
    for (const EnumName<Value>& row : EnumNames<Value>::list) {
        if (row.value == value) return row.name;
    }
    return "?";
}

// Returns "a|b|c", each value once.
template <class Value>
std::string names_of() {
    std::string list;
    for (const EnumName<Value>& row : EnumNames<Value>::list) {
        if (row.name == name_of(row.value)) list += (list.empty() ? "" : "|") + std::string(row.name);
    }
    return list;
}

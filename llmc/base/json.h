// A JSON value. nlohmann-json reads and prints the text, in json.cpp alone, because it takes seconds to compile. Our
// own type is strict (it never converts another type to a number), knows its place in the text, and finds keys by an
// index. (ordered_json compares key by key: seconds for a vocabulary of 50,257.)
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

// Limit on nested arrays and objects: no file of ours has ten. Reading, printing and copying need stack for each level.
inline constexpr std::size_t deepest_json = 256;
// Limit on the values of one text: a tokenizer.json of 262,144 tokens has less than half. A value takes up to 150
// bytes.
inline constexpr std::size_t most_json_values = std::size_t{1} << 22;

// Limits that hold while a text is parsed, so that refusing it does not cost what reading it would.
struct JsonLimits {
    std::size_t values = most_json_values;   // in the whole text, nested ones too
    std::size_t elements = SIZE_MAX;         // in one list
};

// Thrown where a value lacks something or is of another kind than asked for; `offset`: of the value's first byte in its
// text.
class JsonError : public std::runtime_error {
public:
    explicit JsonError(const std::string& what, std::size_t its_offset = 0)
        : std::runtime_error(what), offset(its_offset) {}
    std::size_t offset;
};

// Thrown where the text is not JSON; `byte`: the place, counted from 1.
class JsonSyntaxError : public JsonError {
public:
    JsonSyntaxError(std::size_t its_byte, const std::string& what) : JsonError(what, its_byte - 1), byte(its_byte) {}
    std::size_t byte;
};

class Json {
public:
    using Member = std::pair<std::string, Json>;

    Json(std::nullptr_t = nullptr) {}
    template <std::same_as<bool> T>
    Json(T value) : value_(value) {}
    template <std::integral T>
    requires(!std::same_as<T, bool>) Json(T value) {
        if (value < 0) {
            value_ = static_cast<std::int64_t>(value);
        } else {
            value_ = static_cast<std::uint64_t>(value);
        }
    }
    Json(double value) : value_(value) {}
    Json(const char* text) : value_(std::string(text)) {}
    Json(std::string text) : value_(std::move(text)) {}
    template <class T>
    Json(const std::vector<T>& elements) : Json(array(std::vector<Json>(elements.begin(), elements.end()))) {}
    static Json array(std::vector<Json> elements = {});
    static Json object(std::initializer_list<Member> members = {});

    bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
    bool is_number() const { return value_.index() >= 2 && value_.index() <= 4; }
    bool is_text() const { return std::holds_alternative<std::string>(value_); }
    bool is_array() const { return std::holds_alternative<Elements>(value_); }
    bool is_object() const { return std::holds_alternative<Object>(value_); }

    // Offset of the value's first byte in the parsed text; 0 for values made otherwise.
    std::size_t offset() const { return offset_; }

    // Each throws JsonError if the value is of another kind.
    bool as_bool() const { return get<bool>("true or false"); }
    double as_number() const;
    std::uint64_t as_whole(std::uint64_t largest) const;   // from 0 to `largest`; 1.0 is not accepted
    const std::string& as_text() const { return get<std::string>("a text"); }
    const std::vector<Json>& elements() const { return get<Elements>("a list"); }
    // in the order of the text, or of the calls of add()
    const std::vector<Member>& members() const { return get<Object>("an object").members; }
    const Json& at(std::string_view key) const;   // throws JsonError if there is no such key

    const Json* find(std::string_view key) const;   // null if there is no such key, or this is no object
    bool contains(std::string_view key) const { return find(key) != nullptr; }

    // Adds a member to an object. Returns its value, valid until the next add(), or null if the key exists.
    Json* add(const std::string& key, Json value);
    Json& append(Json value);   // to an array

    // Compares numbers by value, and objects by their members in any order.
    friend bool operator==(const Json& a, const Json& b);

private:
    friend class JsonReader;    // json.cpp
    friend struct JsonWriter;   // json.cpp
    using Elements = std::vector<Json>;
    struct Hash : std::hash<std::string_view> {
        using is_transparent = void;   // a std::string_view finds a std::string
    };
    using Index = std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>>;
    struct Object {
        std::vector<Member> members;
        std::shared_ptr<Index> index;   // finds members by key; null if they are few. Shared by copies

        const Json* find(std::string_view key) const;
        bool operator==(const Object& other) const;   // ignores the order
    };
    template <class T>
    const T& get(const char* expected) const {
        if (const T* value = std::get_if<T>(&value_)) return *value;
        is_not(expected);
    }
    [[noreturn]] void is_not(const std::string& expected) const;

    // whole numbers below 0 are std::int64_t, others std::uint64_t
    std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Elements, Object> value_;
    std::size_t offset_ = 0;
};

// Parses a whole text. Beyond what JSON demands, no object has a key twice (a parser keeps one of the two, and programs
// differ in which), nothing nests deeper than deepest_json, the limits hold, and every number is finite. Else throws
// JsonSyntaxError with a message of bounded length.
Json parse_json(std::string_view text, const JsonLimits& limits = {});

// Prints a value, on one line if `indent` is negative. Throws JsonError if a text is not UTF-8.
std::string to_text(const Json& json, int indent = -1);

// Returns the first 200 bytes of that text, for messages.
std::string quoted(const Json& json);

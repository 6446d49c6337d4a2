#include "llmc/base/json.h"

#include <istream>
#include <set>
#include <streambuf>
#include <vector>

#include "llmc/base/error.h"

namespace {

constexpr std::size_t longest_quote = 200;   // of a file in a message

// A text as a stream that knows how much of it was read.
class TextBuffer : public std::streambuf {
public:
    explicit TextBuffer(std::string_view text) {
        char* begin = const_cast<char*>(text.data());   // never written to
        setg(begin, begin, begin + text.size());
    }
    std::size_t bytes_read() const { return static_cast<std::size_t>(gptr() - eback()); }
};

// Reads a text without keeping it and refuses what parse_json refuses. Apart from the library's parsing because its
// callbacks, which could do the same there, make parsing quadratic.
class Checker : public Json::json_sax_t {
public:
    explicit Checker(std::string_view text) : buffer_(text) {
        std::istream stream(&buffer_);
        Json::sax_parse(stream, this);
    }

    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(Json::number_integer_t) override { return true; }
    bool number_unsigned(Json::number_unsigned_t) override { return true; }
    bool number_float(Json::number_float_t, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(Json::binary_t&) override { return true; }
    bool start_object(std::size_t) override { return enter(); }
    bool end_object() override { return leave(); }
    bool start_array(std::size_t) override { return enter(); }
    bool end_array() override { return leave(); }
    bool key(std::string& name) override {
        if (!keys_.back().insert(name).second) {
            fail(buffer_.bytes_read(), text("the key '", name.substr(0, longest_quote), "' is there twice"));
        }
        return true;
    }
    bool parse_error(std::size_t byte, const std::string&, const Json::exception& problem) override {
        const std::string_view what = problem.what();   // "[...] parse error at line ...: what" or "[...] what"
        const std::size_t colon = what.find(": ");
        fail(byte, what.substr((colon == what.npos ? what.find("] ") : colon) + 2, longest_quote));
    }

private:
    bool enter() {
        keys_.emplace_back();
        if (keys_.size() > deepest_json) {
            fail(buffer_.bytes_read(), text("arrays and objects nest deeper than ", deepest_json));
        }
        return true;
    }
    bool leave() {
        keys_.pop_back();
        return true;
    }
    [[noreturn]] static void fail(std::size_t byte, std::string_view what) {
        throw Json::parse_error::create(101, byte, std::string(what), nullptr);
    }

    TextBuffer buffer_;
    std::vector<std::set<std::string>> keys_;   // of the arrays (none) and objects being read, innermost last
};

}   // namespace

Json parse_json(std::string_view text) {
    Checker{text};
    return Json::parse(text);
}
OrderedJson parse_ordered_json(std::string_view text) {
    Checker{text};
    return OrderedJson::parse(text);
}

std::uint64_t whole_number(const Json& value, std::uint64_t largest) {
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= largest) return value.get<std::uint64_t>();
    throw Json::out_of_range::create(
        401, text("found ", to_text(value).substr(0, longest_quote), ", expected a whole number from 0 to ", largest),
        nullptr);
}

std::string to_text(const Json& json, int indent) { return json.dump(indent); }
std::string to_text(const OrderedJson& json, int indent) { return json.dump(indent); }

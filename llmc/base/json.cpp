#include "llmc/base/json.h"

#include <istream>
#include <nlohmann/json.hpp>
#include <streambuf>

#include "llmc/base/ensure.h"

namespace {

using Library = nlohmann::json;

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

// Makes values of what the library reads.
class Builder : public Library::json_sax_t {
public:
    explicit Builder(std::string_view text) : buffer_(text) {
        std::istream stream(&buffer_);
        Library::sax_parse(stream, this);
    }
    Json result() && { return std::move(root_); }

    bool null() override { return put(nullptr); }
    bool boolean(bool value) override { return put(value); }
    bool number_integer(Library::number_integer_t value) override {
        return put(value < 0 ? Json(value) : Json(-0.0));   // the library calls only -0 so
    }
    bool number_unsigned(Library::number_unsigned_t value) override { return put(value); }
    bool number_float(Library::number_float_t value, const std::string&) override { return put(value); }
    bool string(std::string& value) override { return put(std::move(value)); }
    bool binary(Library::binary_t&) override { return false; }
    bool start_object(std::size_t) override { return enter(Json::object()); }
    bool end_object() override { return leave(); }
    bool start_array(std::size_t) override { return enter(Json::array()); }
    bool end_array() override { return leave(); }
    bool key(std::string& name) override {
        member_ = open_.back()->add(name, nullptr);
        if (member_ == nullptr)
            fail(buffer_.bytes_read(), text("the key '", name.substr(0, longest_quote), "' is there twice"));
        return true;
    }
    bool parse_error(std::size_t byte, const std::string&, const Library::exception& problem) override {
        const std::string_view what = problem.what();   // "[...] parse error at line ...: what" or "[...] what"
        const std::size_t colon = what.find(": ");
        fail(byte, what.substr((colon == what.npos ? what.find("] ") : colon) + 2, longest_quote));
    }

private:
    Json& place(Json value) {
        if (open_.empty()) return root_ = std::move(value);
        if (open_.back()->is_array()) return open_.back()->append(std::move(value));
        return *member_ = std::move(value);
    }
    bool put(Json value) {
        place(std::move(value));
        return true;
    }
    bool enter(Json value) {
        open_.push_back(&place(std::move(value)));
        if (open_.size() > deepest_json) {
            fail(buffer_.bytes_read(), text("arrays and objects nest deeper than ", deepest_json));
        }
        return true;
    }
    bool leave() {
        open_.pop_back();
        return true;
    }
    [[noreturn]] static void fail(std::size_t byte, std::string_view what) {
        throw JsonSyntaxError(byte, std::string(what));
    }

    TextBuffer buffer_;
    Json root_;
    std::vector<Json*> open_;   // arrays and objects being read, innermost last: only that one grows
    Json* member_ = nullptr;    // of the innermost, whose value comes next
};

}   // namespace

Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

Json Json::array(std::vector<Json> elements) {
    Json json;
    json.value_ = std::move(elements);
    return json;
}

Json Json::object(std::initializer_list<Member> members) {
    Json json;
    json.value_ = Object{};
    for (const auto& [key, value] : members) ENSURE(json.add(key, value) != nullptr, "the key '", key, "' twice");
    return json;
}

void Json::is_not(const std::string& expected) const {
    throw JsonError(text("found ", quoted(*this), ", expected ", expected));
}

bool Json::as_bool() const {
    if (const bool* value = std::get_if<bool>(&value_)) return *value;
    is_not("true or false");
}

double Json::as_number() const {
    if (const auto* value = std::get_if<double>(&value_)) return *value;
    if (const auto* value = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*value);
    if (const auto* value = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*value);
    is_not("a number");
}

std::uint64_t Json::as_whole(std::uint64_t largest) const {
    const auto* value = std::get_if<std::uint64_t>(&value_);
    if (value == nullptr || *value > largest) is_not(text("a whole number from 0 to ", largest));
    return *value;
}

const std::string& Json::as_text() const {
    if (const auto* value = std::get_if<std::string>(&value_)) return *value;
    is_not("a text");
}

const std::vector<Json>& Json::elements() const {
    if (const auto* value = std::get_if<Elements>(&value_)) return *value;
    is_not("a list");
}

const std::vector<Json::Member>& Json::members() const {
    if (const auto* value = std::get_if<Object>(&value_)) return value->members;
    is_not("an object");
}

const Json* Json::find(std::string_view key) const {
    const auto* object = std::get_if<Object>(&value_);
    if (object == nullptr) return nullptr;
    const auto found = object->index.find(key);
    return found == object->index.end() ? nullptr : &object->members[found->second].second;
}

const Json& Json::at(std::string_view key) const {
    members();
    if (const Json* value = find(key)) return *value;
    throw JsonError(text("there is no \"", key, "\""));
}

Json* Json::add(const std::string& key, Json value) {
    auto& [members, index] = std::get<Object>(value_);
    if (!index.try_emplace(key, members.size()).second) return nullptr;
    return &members.emplace_back(key, std::move(value)).second;
}

Json& Json::append(Json value) { return std::get<Elements>(value_).emplace_back(std::move(value)); }

bool operator==(const Json& a, const Json& b) {
    if (a.value_.index() != b.value_.index()) return a.is_number() && b.is_number() && a.as_number() == b.as_number();
    if (!a.is_object()) {
        return std::visit(
            [&]<class T>(const T& value) {
                if constexpr (std::is_same_v<T, Json::Object>) {
                    return false;
                } else {
                    return value == std::get<T>(b.value_);
                }
            },
            a.value_);
    }
    if (a.members().size() != b.members().size()) return false;
    for (const auto& [key, value] : a.members()) {
        const Json* other = b.find(key);
        if (other == nullptr || !(value == *other)) return false;
    }
    return true;
}

class JsonPrinter {
public:
    explicit JsonPrinter(int indent) : indent_(indent) {}
    std::string result() && { return std::move(out_); }

    void print(const Json& json) {
        std::visit([this](const auto& value) { print_value(value); }, json.value_);
    }

private:
    // numbers as short as they read back to the same bits; Error where a text is not UTF-8
    template <class T>
    void print_value(const T& value) {
        try {
            out_ += Library(value).dump();
        } catch (const Library::exception& problem) {
            throw JsonError(problem.what());
        }
    }
    void print_value(const std::vector<Json>& elements) {
        list(
            '[', elements, [this](const Json& element) { print(element); }, ']');
    }
    void print_value(const Json::Object& object) {
        auto print_member = [this](const Json::Member& member) {
            print_value(member.first);
            out_ += indent_ < 0 ? ":" : ": ";
            print(member.second);
        };
        list('{', object.members, print_member, '}');
    }
    template <class T, class Print>
    void list(char open, const std::vector<T>& entries, Print print_entry, char close) {
        out_ += open;
        depth_++;
        for (std::size_t i = 0; i < entries.size(); i++) {
            if (i > 0) out_ += ',';
            new_line();
            print_entry(entries[i]);
        }
        depth_--;
        if (!entries.empty()) new_line();
        out_ += close;
    }
    void new_line() {
        if (indent_ >= 0) out_.append(1, '\n').append(static_cast<std::size_t>(indent_ * depth_), ' ');
    }

    int indent_, depth_ = 0;
    std::string out_;
};

std::string to_text(const Json& json, int indent) {
    JsonPrinter printer(indent);
    printer.print(json);
    return std::move(printer).result();
}

std::string quoted(const Json& json) { return to_text(json).substr(0, longest_quote); }

Json parse_json(std::string_view text) { return Builder(text).result(); }

#include "llmc/base/json.h"

#include <algorithm>
#include <istream>
#include <nlohmann/json.hpp>
#include <streambuf>

#include "llmc/base/ensure.h"
#include "llmc/base/utf8.h"

namespace {

using Library = nlohmann::ordered_json;

constexpr std::size_t longest_quote = 200;   // bytes of a file quoted in a message
constexpr std::size_t few_members = 8;       // up to so many, comparing keys costs less than an index

// A text as a stream that knows how many of its bytes were read.
class TextBuffer : public std::streambuf {
public:
    explicit TextBuffer(std::string_view text) {
        char* begin = const_cast<char*>(text.data());   // never written to
        setg(begin, begin, begin + text.size());
    }
    std::size_t bytes_read() const { return static_cast<std::size_t>(gptr() - eback()); }
};

}   // namespace

// Builds Json values from the library's parser events.
class JsonReader : public Library::json_sax_t {
public:
    JsonReader(std::string_view text, const JsonLimits& limits) : limits_(limits), text_(text), buffer_(text) {
        std::istream stream(&buffer_);
        Library::sax_parse(stream, this);
    }
    Json result() && { return std::move(root_); }

    bool null() override { return put(nullptr); }
    bool boolean(bool value) override { return put(value); }
    bool number_integer(Library::number_integer_t value) override {
        return put(value < 0 ? Json(value) : Json(-0.0));   // the library calls this for negative numbers and -0 only
    }
    bool number_unsigned(Library::number_unsigned_t value) override { return put(value); }
    bool number_float(Library::number_float_t value, const std::string&) override { return put(value); }
    bool string(std::string& value) override { return put(std::move(value)); }
    bool binary(Library::binary_t&) override { return false; }
    bool start_object(std::size_t) override { return put(Json::object(), true); }
    bool start_array(std::size_t) override { return put(Json::array(), true); }
    bool end_object() override { return leave(); }
    bool end_array() override { return leave(); }
    bool key(std::string& name) override {
        member_ = open_.back()->add(name, nullptr);
        read_ = buffer_.bytes_read();
        if (member_ == nullptr) fail(read_, text("the key '", name.substr(0, longest_quote), "' is there twice"));
        return true;
    }
    bool parse_error(std::size_t byte, const std::string&, const Library::exception& problem) override {
        const std::string_view what = problem.what();   // "[...] parse error at line ...: what" or "[...] what"
        const std::size_t colon = what.find(": ");
        fail(byte, what.substr((colon == what.npos ? what.find("] ") : colon) + 2, longest_quote));
    }

private:
    bool put(Json value, bool opens = false) {
        value.offset_ = text_.find_first_not_of(" \t\r\n,:", read_);
        read_ = buffer_.bytes_read();
        if (++values_ > limits_.values) fail(read_, text("more than ", limits_.values, " values"));
        if (!open_.empty() && open_.back()->is_array() && open_.back()->elements().size() == limits_.elements) {
            fail(read_, text("a list of more than ", limits_.elements, " elements"));
        }
        Json& place = open_.empty() ? root_ : open_.back()->is_array() ? open_.back()->append(nullptr) : *member_;
        place = std::move(value);
        if (opens) open_.push_back(&place);
        if (open_.size() > deepest_json) fail(read_, text("arrays and objects nest deeper than ", deepest_json));
        return true;
    }
    bool leave() {
        open_.pop_back();
        read_ = buffer_.bytes_read();
        return true;
    }
    [[noreturn]] static void fail(std::size_t byte, std::string_view what) {
        throw JsonSyntaxError(byte, std::string(what));
    }

    JsonLimits limits_;
    std::string_view text_;
    TextBuffer buffer_;
    std::size_t values_ = 0;   // so far
    std::size_t read_ = 0;     // bytes up to the end of the last token (after a number, one byte more)
    Json root_;
    std::vector<Json*> open_;   // arrays and objects being read, innermost last; only the last one grows
    Json* member_ = nullptr;    // member of the innermost object whose value comes next
};

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
    throw JsonError(text("found ", quoted(*this), ", expected ", expected), offset_);
}

double Json::as_number() const {
    if (const auto* value = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*value);
    if (const auto* value = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*value);
    return get<double>("a number");
}

std::uint64_t Json::as_whole(std::uint64_t largest) const {
    const auto* value = std::get_if<std::uint64_t>(&value_);
    if (value == nullptr || *value > largest) is_not(text("a whole number from 0 to ", largest));
    return *value;
}

const Json* Json::Object::find(std::string_view key) const {
    if (members.size() <= few_members) {
        const auto found = std::ranges::find(members, key, &Member::first);
        return found == members.end() ? nullptr : &found->second;
    }
    const auto found = index->find(key);
    return found == index->end() ? nullptr : &members[found->second].second;
}

const Json* Json::find(std::string_view key) const {
    const auto* object = std::get_if<Object>(&value_);
    return object == nullptr ? nullptr : object->find(key);
}

const Json& Json::at(std::string_view key) const {
    if (const Json* value = get<Object>("an object").find(key)) return *value;
    throw JsonError(text("there is no \"", key, "\""), offset_);
}

Json* Json::add(const std::string& key, Json value) {
    Object& object = std::get<Object>(value_);
    if (object.find(key) != nullptr) return nullptr;
    std::vector<Member>& members = object.members;
    members.emplace_back(key, std::move(value));
    if (members.size() > few_members) {
        if (object.index == nullptr) object.index = std::make_shared<Index>();
        if (object.index.use_count() > 1) object.index = std::make_shared<Index>(*object.index);
        for (std::size_t i = object.index->size(); i < members.size(); i++) object.index->emplace(members[i].first, i);
    }
    return &members.back().second;
}

Json& Json::append(Json value) { return std::get<Elements>(value_).emplace_back(std::move(value)); }

bool Json::Object::operator==(const Object& other) const {
    return members.size() == other.members.size() && std::ranges::all_of(members, [&](const Member& member) {
               const Json* value = other.find(member.first);
               return value != nullptr && member.second == *value;
           });
}

bool operator==(const Json& a, const Json& b) {
    if (a.value_.index() == b.value_.index()) return a.value_ == b.value_;
    return a.is_number() && b.is_number() && a.as_number() == b.as_number();
}

// Prints arrays and objects as the library does, which prints what they hold.
struct JsonWriter {
    int indent;
    std::string out{};
    std::size_t depth = 0;

    void write(const Json& json) {
        std::visit([&](const auto& value) { write(value); }, json.value_);
    }
    template <class T>
    void write(const T& value) {
        out += Library(value).dump();
    }
    void write(const std::string& value) {
        const bool as_it_is = valid_utf8_prefix(value) == value.size() && std::ranges::none_of(value, [](char c) {
                                  return static_cast<unsigned char>(c) < ' ' || c == '"' || c == '\\';
                              });
        if (as_it_is) {
            ((out += '"') += value) += '"';
        } else {
            out += Library(value).dump();
        }
    }
    void write(const Json::Elements& elements) {
        write_all('[', ']', elements, [&](const Json& element) { write(element); });
    }
    void write(const Json::Object& object) {
        write_all('{', '}', object.members, [&](const Json::Member& member) {
            write(member.first);
            out += indent < 0 ? ":" : ": ";
            write(member.second);
        });
    }

private:
    template <class T, class WriteOne>
    void write_all(char open, char close, const std::vector<T>& values, WriteOne write_one) {
        out += open;
        depth++;
        for (const T& value : values) {
            if (&value != values.data()) out += ',';
            new_line();
            write_one(value);
        }
        depth--;
        if (!values.empty()) new_line();
        out += close;
    }
    void new_line() {
        if (indent >= 0) out.append(1, '\n').append(depth * static_cast<std::size_t>(indent), ' ');
    }
};

std::string to_text(const Json& json, int indent) {
    try {
        JsonWriter writer{indent};
        writer.write(json);
        return std::move(writer.out);
    } catch (const Library::exception& problem) {   // a text is not UTF-8
        throw JsonError(problem.what());
    }
}

std::string quoted(const Json& json) { return to_text(json).substr(0, longest_quote); }

Json parse_json(std::string_view text, const JsonLimits& limits) { return JsonReader(text, limits).result(); }

#include "llmc/base/json_place.h"

#include "llmc/base/json.h"

#include <algorithm>

namespace {

// Walks over valid JSON.
class Walker {
public:
    explicit Walker(std::string_view json) : json_(json) { skip_space(); }

    std::size_t at() const { return at_; }

    // To the value of that key or number in the object or list here; false, and nothing moved, when it has none.
    bool enter(const std::string& part) {
        const char open = here();
        if (open != '{' && open != '[') return false;
        const std::size_t begin = at_;
        std::size_t found = std::string_view::npos;
        at_++;
        skip_space();
        for (std::size_t number = 0; here() != '}' && here() != ']' && at_ < json_.size(); number++) {
            bool same = open == '[' && std::to_string(number) == part;
            if (open == '{') {
                same = key() == part;
                skip_space();
                at_++;   // the colon
                skip_space();
            }
            if (same) found = at_;
            skip_value();
            skip_space();
            if (here() == ',') at_++;
            skip_space();
        }
        at_ = found == std::string_view::npos ? begin : found;
        return found != std::string_view::npos;
    }

private:
    char here() const { return at_ < json_.size() ? json_[at_] : '\0'; }
    void skip_space() { at_ = std::min(json_.find_first_not_of(" \t\r\n", at_), json_.size()); }
    void skip_string() {
        for (at_++; here() != '"' && at_ < json_.size(); at_++) {
            if (here() == '\\') at_++;
        }
        at_++;
    }
    std::string key() {
        const std::size_t begin = at_;
        skip_string();
        return parse_json(json_.substr(begin, at_ - begin)).as_text();
    }
    void skip_value() {
        int depth = 0;
        do {
            const char c = here();
            if (c == '"') {
                skip_string();
                continue;
            }
            depth += c == '{' || c == '[';
            depth -= c == '}' || c == ']';
            at_++;
        } while (at_ < json_.size() && (depth > 0 || (here() != ',' && here() != '}' && here() != ']')));
    }

    std::string_view json_;
    std::size_t at_ = 0;
};

std::string unescape(std::string_view part) {
    std::string out;
    for (std::size_t i = 0; i < part.size(); i++) {
        const bool escape = part[i] == '~' && i + 1 < part.size();
        out += !escape ? part[i] : part[++i] == '1' ? '/' : '~';
    }
    return out;
}

}   // namespace

std::size_t json_place(std::string_view json, std::string_view pointer) {
    Walker walker(json);
    while (!pointer.empty()) {
        pointer.remove_prefix(1);
        const std::size_t end = std::min(pointer.find('/'), pointer.size());
        if (!walker.enter(unescape(pointer.substr(0, end)))) break;
        pointer.remove_prefix(end);
    }
    return walker.at();
}

std::string json_pointer_part(std::string_view key) {
    std::string out = "/";
    for (char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return out;
}

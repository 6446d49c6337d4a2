// Reads and writes the tokens that begin, end and pad texts, in the files of a model beside its tokenizer.

#include <algorithm>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/tokenizer/files/files.h"

namespace {

constexpr const char* generation_config = "generation_config.json";
constexpr const char* tokenizer_config = "tokenizer_config.json";

// Returns true if an id that was read, or one of a list, is that of a token.
bool names_token(const TokenizerData& data, const Json& value) {
    if (value.is_array()) {
        return std::ranges::any_of(value.elements(), [&](const Json& element) { return names_token(data, element); });
    }
    return value.is_number() && value != -1 && data.has(value.as_whole(UINT64_MAX));
}

Json json_or_null(const std::optional<std::uint32_t>& id) {
    Json json;
    if (id) json = Json(*id);
    return json;
}

// Reads one of the files, and fills in what the files read before have left open.
class SpecialIdsReader {
public:
    SpecialIdsReader(TokenizerData& data, const std::string& path) : data_(data), path_(path) {}

    void read(const std::string& content) {
        try {
            const Json json = parse_json(content);
            json.members();   // throws if it is no object
            for (auto [key, to] : {std::pair("bos", &data_.special.bos), std::pair("pad", &data_.special.pad)}) {
                const std::vector<std::uint32_t> found = ids_of(json, key);
                if (!*to && !found.empty()) *to = found.front();
            }
            std::string unknown;
            const std::vector<std::uint32_t> found = ids_of(json, "eos", &unknown);
            if (!data_.special.eos.empty()) return;
            data_.special.eos = found;
            if (!found.empty() || data_.unknown_eos.empty()) data_.unknown_eos = unknown;
        } catch (const JsonError& problem) {
            fail(problem.offset, problem.what());
        }
    }

private:
    [[noreturn]] void fail(std::size_t offset, const std::string& what) const {
        throw Error(ErrorKind::bad_data, text(path_, ": offset ", offset, ": ", what),
                    "Take the file from where the model was published, or correct it.");
    }

    // Returns the ids in "eos_token_id" (a number or a list of them) and that of "eos_token" (a text or an object with
    // it), if `of` is "eos". `unknown`: gets words on the last one that is no token.
    std::vector<std::uint32_t> ids_of(const Json& json, const std::string& of, std::string* unknown = nullptr) const {
        std::vector<std::uint32_t> ids;
        auto no_token = [&](const char* key, const Json& value) {
            if (unknown == nullptr) return;
            *unknown = text(path_, ": offset ", value.offset(), ": ", of, key, ": no token has the ",
                            value.is_number() ? "id " : "name ", quoted(value), ", of ", data_.tokens.size(), " ids");
        };
        auto take = [&](const Json& value) {
            if (value.is_null() || value == -1) return;   // -1: none, in files of old
            if (!value.is_number()) fail(value.offset(), text(of, "_token_id: ", quoted(value), " is not a token id"));
            const std::uint64_t id = value.as_whole(UINT64_MAX);
            if (!data_.has(id)) return no_token("_token_id", value);
            ids.push_back(static_cast<std::uint32_t>(id));
        };
        if (const Json* value = json.find(of + "_token_id"); value != nullptr && value->is_array()) {
            for (const Json& element : value->elements()) take(element);
        } else if (value != nullptr) {
            take(*value);
        }
        const Json* token = json.find(of + "_token");
        if (token == nullptr || token->is_null()) return ids;
        const Json& name = token->is_object() ? token->at("content") : *token;
        if (const std::optional<std::uint32_t> named = data_.named(name.as_text())) {
            ids.push_back(*named);
        } else {
            no_token("_token", name);
        }
        return ids;
    }

    TokenizerData& data_;
    const std::string& path_;
};

// Returns the end of text in the tokenizer.bin beside a tokenizer.json, if it is llm.c's and has the same tokens.
std::optional<std::uint32_t> end_of_text_beside(const FileSystem& files, const std::string& folder,
                                                const TokenizerData& data) {
    const std::string path = (std::filesystem::path(folder) / "tokenizer.bin").string();
    if (!files.exists(path)) return std::nullopt;
    const std::string content = read_whole(files, path);
    if (!is_llmc_tokenizer(content)) return std::nullopt;
    TokenizerData same = data;
    same.end_of_text = parse_llmc_tokenizer(content, path).end_of_text;
    return to_llmc_tokenizer(same) == content ? std::optional(same.end_of_text) : std::nullopt;
}

std::uint32_t separator_of(const TokenizerData& data) {
    const std::vector<std::uint32_t>& eos = data.special.eos;
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>"}) {
        for (const std::uint32_t id : eos) {
            if (data.spelling(id) == name) return id;
        }
    }
    return eos.front();
}

std::string folder_of(const std::string& path) { return std::filesystem::absolute(path).parent_path().string(); }

}   // namespace

void read_special_ids(const FileSystem& files, const std::string& folder, TokenizerData& data) {
    for (const char* name : {generation_config, "config.json", tokenizer_config}) {
        const std::string path = (std::filesystem::path(folder) / name).string();
        if (files.exists(path)) SpecialIdsReader(data, path).read(read_whole(files, path));
    }
    for (const char* name : kept_file_names) {
        const std::string path = (std::filesystem::path(folder) / name).string();
        if (files.exists(path)) data.kept.emplace_back(name, read_whole(files, path));
    }
}

TokenizerData load_huggingface(const FileSystem& files, const std::string& path) {
    TokenizerData data = parse_huggingface(read_whole(files, path), path);
    const std::string folder = folder_of(path);
    read_special_ids(files, folder, data);
    const std::optional<std::uint32_t> said = end_of_text_beside(files, folder, data);
    if (said) {
        data.end_of_text = *said;
    } else if (!data.special.eos.empty()) {
        data.end_of_text = separator_of(data);
    }
    return data;
}

TokenizerData load_llmc_tokenizer(const FileSystem& files, const std::string& path) {
    TokenizerData data = parse_llmc_tokenizer(read_whole(files, path), path);
    read_special_ids(files, folder_of(path), data);
    return data;
}

SpecialIds usual_special_ids(const TokenizerData& data) {
    SpecialIds ids{.bos = data.end_of_text, .pad = {}, .eos = {data.end_of_text}};
    if (data.spelling(data.end_of_text) != "<|begin_of_text|>") return ids;
    if (const std::optional<std::uint32_t> end = data.named("<|end_of_text|>")) ids.eos.insert(ids.eos.begin(), *end);
    return ids;
}

Json json_of(const std::vector<std::uint32_t>& ids) { return ids.size() == 1 ? Json(ids.front()) : Json(ids); }

std::vector<std::pair<std::string, std::string>> files_on_texts(const TokenizerData& data) {
    std::vector<std::pair<std::string, std::string>> files = data.kept;
    auto kept = std::ranges::find(files, generation_config, &std::pair<std::string, std::string>::first);
    const Json said = kept == files.end() ? Json::object() : parse_json(kept->second);
    Json all = Json::object();
    auto complete = [&](const char* key, const Json& value) {
        const Json* given = said.find(key);
        all.add(key, given != nullptr && (value.is_null() || names_token(data, *given)) ? *given : value);
    };
    complete("bos_token_id", json_or_null(data.special.bos));
    complete("eos_token_id", json_of(data.special.eos));
    if (data.special.pad || said.contains("pad_token_id")) {
        complete("pad_token_id", json_or_null(data.special.pad));
    }
    const bool is_complete = std::ranges::all_of(all.members(), [&](const Json::Member& member) {
        const Json* given = said.find(member.first);
        return given != nullptr ? *given == member.second : member.second.is_null();
    });
    if (is_complete && kept != files.end()) return files;
    for (const auto& [key, value] : said.members()) {
        if (!all.contains(key)) all.add(key, value);
    }
    const std::string content = to_text(all, 2) + "\n";
    if (kept == files.end()) {
        files.emplace(files.begin(), generation_config, content);
    } else {
        kept->second = content;
    }
    return files;
}

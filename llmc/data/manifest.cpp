#include "llmc/data/manifest.h"

#include <filesystem>
#include <set>
#include <stdexcept>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/json_place.h"
#include "llmc/data/token_file.h"
#include "llmc/io/hash.h"

namespace fs = std::filesystem;
namespace {

constexpr int manifest_version = 1;

std::string manifest_path(const std::string& folder) { return (fs::path(folder) / manifest_file_name).string(); }

void require(bool holds, const std::string& otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

// `place` is the part being read, a JSON pointer.
CorpusManifest parse(const Json& json, std::string& place) {
    const Json &format = json.at("format"), &version = json.at("version");
    if (format != "token shards" || version != manifest_version) {
        place = format != "token shards" ? "/format" : "/version";
        throw std::invalid_argument(text("found format ", quoted(format), ", version ", quoted(version),
                                         ", expected \"token shards\", version ", manifest_version));
    }
    CorpusManifest manifest;
    const Json& tokenizer = json.at("tokenizer");
    place = "/tokenizer";
    manifest.tokenizer_name = tokenizer.at("name").as_text();
    manifest.vocab_size = static_cast<std::uint32_t>(tokenizer.at("vocab_size").as_whole(INT32_MAX));
    manifest.end_of_text = static_cast<std::uint32_t>(tokenizer.at("end_of_text").as_whole(INT32_MAX));
    manifest.tokenizer_hash = hash_from_text(tokenizer.at("hash").as_text());
    require(manifest.end_of_text < manifest.vocab_size, "the end of text is outside the vocabulary");
    place = "";
    manifest.token_bytes = static_cast<std::uint32_t>(json.at("token_bytes").as_whole(4));
    require(manifest.token_bytes == 2 || manifest.token_bytes == 4, "tokens have 2 or 4 bytes");
    require(manifest.token_bytes == 4 || manifest.vocab_size <= 0x10000, "2 bytes do not hold such a vocabulary");
    manifest.documents = json.at("documents").as_whole(INT64_MAX);
    manifest.source_bytes = json.at("source_bytes").as_whole(INT64_MAX);
    std::set<std::string> names;
    for (const Json& shard : json.at("shards").elements()) {
        place = text("/shards/", manifest.shards.size());
        manifest.shards.push_back({shard.at("file").as_text(), shard.at("split").as_text(),
                                   shard.at("tokens").as_whole(kMaxFileTokens),
                                   hash_from_text(shard.at("hash").as_text())});
        const ShardInfo& info = manifest.shards.back();
        const bool leads_away = info.file.find_first_of(std::string_view("/\0", 2)) != std::string::npos;
        require(info.file.ends_with(".bin") && !leads_away, "a shard is a .bin file beside its manifest");
        require(names.insert(info.file).second, "this shard is listed twice");
        require(info.split == "train" || info.split == "val", "the split is neither train nor val");
        require(info.tokens > 0, "a shard without tokens");
    }
    return manifest;
}

}   // namespace

std::uint64_t CorpusManifest::tokens(const std::string& split) const {
    std::uint64_t sum = 0;
    for (const ShardInfo& shard : shards) {
        if (shard.split == split) sum += shard.tokens;
    }
    return sum;
}

CorpusManifest parse_manifest(std::string_view content, const std::string& name) {
    const char* const hint = "Prepare the data again with the tokenize tool.";
    std::string place;
    auto fail = [&](const std::exception& problem) {
        throw Error(
            ErrorKind::bad_data,
            text(name, ": byte ", json_place(content, place), ": not a manifest of token shards: ", problem.what()),
            hint);
    };
    try {
        return parse(parse_json(content), place);
    } catch (const JsonSyntaxError& problem) {
        throw Error(ErrorKind::bad_data, text(name, ": byte ", problem.byte, ": not JSON: ", problem.what()), hint);
    } catch (const JsonError& problem) {
        fail(problem);
    } catch (const std::invalid_argument& problem) {   // a version or a hash
        fail(problem);
    }
    return {};
}

CorpusManifest read_manifest(const FileSystem& files, const std::string& folder) {
    return parse_manifest(read_whole(files, manifest_path(folder)), manifest_path(folder));
}

void write_manifest(const CorpusManifest& manifest, const std::string& folder) {
    const Json tokenizer = Json::object({{"name", manifest.tokenizer_name},
                                         {"vocab_size", manifest.vocab_size},
                                         {"end_of_text", manifest.end_of_text},
                                         {"hash", hash_to_text(manifest.tokenizer_hash)}});
    Json shards = Json::array();
    for (const ShardInfo& shard : manifest.shards) {
        shards.append(Json::object({{"file", shard.file},
                                    {"split", shard.split},
                                    {"tokens", shard.tokens},
                                    {"hash", hash_to_text(shard.hash)}}));
    }
    const Json json = Json::object({{"format", "token shards"},
                                    {"version", manifest_version},
                                    {"tokenizer", tokenizer},
                                    {"token_bytes", manifest.token_bytes},
                                    {"documents", manifest.documents},
                                    {"source_bytes", manifest.source_bytes},
                                    {"shards", std::move(shards)}});
    write_whole(real_files(), manifest_path(folder), to_text(json, 1) + "\n");
}

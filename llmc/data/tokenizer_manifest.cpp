#include "llmc/data/tokenizer_manifest.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"
#include "llmc/io/hash.h"

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr int manifest_version = 1;

std::string manifest_path(const std::string& folder) { return (fs::path(folder) / manifest_file_name).string(); }

CorpusManifest parse(const Json& json) {
    if (json.at("format") != "token shards" || json.at("version") != manifest_version) {
        throw std::invalid_argument(text("format token shards, version ", manifest_version));
    }
    CorpusManifest manifest;
    const Json& tokenizer = json.at("tokenizer");
    manifest.tokenizer_name = tokenizer.at("name");
    manifest.vocab_size = tokenizer.at("vocab_size");
    manifest.end_of_text = tokenizer.at("end_of_text");
    manifest.tokenizer_hash = hash_from_text(tokenizer.at("hash").get<std::string>());
    manifest.token_bytes = json.at("token_bytes");
    manifest.documents = json.at("documents");
    manifest.source_bytes = json.at("source_bytes");
    for (const Json& shard : json.at("shards")) {
        manifest.shards.push_back({shard.at("file"), shard.at("split"), shard.at("tokens"),
                                   hash_from_text(shard.at("hash").get<std::string>())});
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

bool has_manifest(const std::string& folder) { return fs::exists(manifest_path(folder)); }

CorpusManifest read_manifest(const std::string& folder) {
    std::string path = manifest_path(folder);
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error(ErrorKind::io, text("cannot open ", path, ": ", std::strerror(errno)));
    try {
        return parse(Json::parse(file));
    } catch (const std::exception& problem) {   // of the JSON library, or of a hash
        throw Error(ErrorKind::bad_data, text(path, " is not a manifest of token shards: ", problem.what()),
                    "Prepare the data again with `tokenize`.");
    }
}

void write_manifest(const CorpusManifest& manifest, const std::string& folder) {
    Json json;
    json["format"] = "token shards";
    json["version"] = manifest_version;
    json["tokenizer"] = {{"name", manifest.tokenizer_name},
                         {"vocab_size", manifest.vocab_size},
                         {"end_of_text", manifest.end_of_text},
                         {"hash", hash_to_text(manifest.tokenizer_hash)}};
    json["token_bytes"] = manifest.token_bytes;
    json["documents"] = manifest.documents;
    json["source_bytes"] = manifest.source_bytes;
    json["shards"] = Json::array();
    for (const ShardInfo& shard : manifest.shards) {
        json["shards"].push_back({{"file", shard.file},
                                  {"split", shard.split},
                                  {"tokens", shard.tokens},
                                  {"hash", hash_to_text(shard.hash)}});
    }
    std::string path = manifest_path(folder), temporary = path + ".part";
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << json.dump(1) << "\n";
    file.close();
    if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
        throw Error(ErrorKind::io, text("cannot write ", path, ": ", std::strerror(errno)));
    }
}

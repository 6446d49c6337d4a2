#include "llmc/data/corpus/manifest.h"

#include <filesystem>
#include <set>
#include <stdexcept>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/printable.h"
#include "llmc/data/token_file.h"
#include "llmc/io/hash.h"

namespace fs = std::filesystem;
namespace {

constexpr int manifest_version = 1;

std::string manifest_path(const std::string& folder) { return (fs::path(folder) / manifest_file_name).string(); }

void require(bool holds, const Json& place, const std::string& otherwise) {
    if (!holds) throw JsonError(otherwise, place.offset());
}

std::uint64_t hash_from(const Json& json) {
    try {
        return hash_from_text(json.as_text());
    } catch (const std::invalid_argument& problem) {
        throw JsonError(problem.what(), json.offset());
    }
}

CorpusManifest parse(const Json& json) {
    const Json &format = json.at("format"), &version = json.at("version");
    require(format == "token shards" && version == manifest_version, format != "token shards" ? format : version,
            text("found format ", quoted(format), ", version ", quoted(version),
                 ", expected \"token shards\", version ", manifest_version));
    CorpusManifest manifest;
    const Json& tokenizer = json.at("tokenizer");
    manifest.tokenizer_name = tokenizer.at("name").as_text();
    manifest.vocab_size = static_cast<std::uint32_t>(tokenizer.at("vocab_size").as_whole(INT32_MAX));
    manifest.end_of_text = static_cast<std::uint32_t>(tokenizer.at("end_of_text").as_whole(INT32_MAX));
    manifest.tokenizer_hash = hash_from(tokenizer.at("hash"));
    require(manifest.end_of_text < manifest.vocab_size, tokenizer, "the end of text is outside the vocabulary");
    manifest.token_bytes = static_cast<std::uint32_t>(json.at("token_bytes").as_whole(4));
    require(manifest.token_bytes == 2 || manifest.token_bytes == 4, json.at("token_bytes"), "tokens have 2 or 4 bytes");
    require(manifest.token_bytes == 4 || manifest.vocab_size <= 0x10000, json.at("token_bytes"),
            "2 bytes do not hold such a vocabulary");
    manifest.documents = json.at("documents").as_whole(INT64_MAX);
    manifest.source_bytes = json.at("source_bytes").as_whole(INT64_MAX);
    std::set<std::string> names;
    for (const Json& shard : json.at("shards").elements()) {
        manifest.shards.push_back({shard.at("file").as_text(), shard.at("split").as_text(),
                                   shard.at("tokens").as_whole(kMaxFileTokens), hash_from(shard.at("hash"))});
        const ShardInfo& info = manifest.shards.back();
        const bool leads_away = info.file.find_first_of(std::string_view("/\0", 2)) != std::string::npos;
        require(info.file.ends_with(".bin") && !leads_away, shard, "a shard is a .bin file beside its manifest");
        require(names.insert(info.file).second, shard, "this shard is listed twice");
        require(info.split == "train" || info.split == "val", shard, "the split is neither train nor val");
        require(info.tokens > 0, shard, "a shard without tokens");
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
    auto fail = [&](std::size_t byte, const JsonError& problem, const char* expected) {
        return Error(ErrorKind::bad_data, text(name, ": byte ", byte, ": not ", expected, ": ", problem.what()),
                     "Prepare the data again with the tokenize tool.");
    };
    try {
        return parse(parse_json(content));
    } catch (const JsonSyntaxError& problem) {
        throw fail(problem.byte, problem, "JSON");
    } catch (const JsonError& problem) {
        throw fail(problem.offset, problem, "a manifest of token shards");
    }
}

CorpusManifest read_manifest(const FileSystem& files, const std::string& folder) {
    return parse_manifest(read_whole(files, manifest_path(folder)), manifest_path(folder));
}

void write_manifest(const CorpusManifest& manifest, const std::string& folder) {
    const Json tokenizer = Json::object({{"name", printable(manifest.tokenizer_name)},
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

#include "llmc/data/corpus/corpus_state.h"

#include <stdexcept>
#include <utility>

#include "llmc/base/json.h"
#include "llmc/base/printable.h"
#include "llmc/io/hash.h"

namespace {

constexpr const char* kFormat = "unfinished shards";

Json to_json(const SplitState& split) {
    Json shards = Json::array();
    for (const ShardInfo& shard : split.shards) {
        shards.append(Json::object({{"file", shard.file},
                                    {"split", shard.split},
                                    {"tokens", shard.tokens},
                                    {"hash", hash_to_text(shard.hash)}}));
    }
    return Json::object({{"shards", std::move(shards)},
                         {"open_tokens", split.open.count},
                         {"open_hash", hash_to_text(split.open.hash)}});
}

std::uint64_t whole(const Json& json, const char* key) { return json.at(key).as_whole(UINT64_MAX); }

SplitState split_from(const Json& json) {
    SplitState split;
    for (const Json& shard : json.at("shards").elements()) {
        split.shards.push_back({shard.at("file").as_text(), shard.at("split").as_text(), whole(shard, "tokens"),
                                hash_from_text(shard.at("hash").as_text())});
    }
    split.open = {whole(json, "open_tokens"), hash_from_text(json.at("open_hash").as_text())};
    return split;
}

CorpusState state_from(const Json& json) {
    if (json.at("format").as_text() != kFormat) throw JsonError("another format");
    CorpusState state;
    state.name = json.at("name").as_text();
    state.asked = hash_from_text(json.at("asked").as_text());
    const Json& input = json.at("input");
    state.input = {whole(input, "file"),      whole(input, "offset"),
                   whole(input, "line"),      input.at("in_document").as_bool(),
                   whole(input, "documents"), whole(input, "bytes")};
    state.document_is_val = json.at("validation").as_bool();
    state.duplicates = whole(json, "duplicates");
    state.seen = whole(json, "seen");
    const std::vector<Json>& skipped = json.at("skipped").elements();
    state.skipped = {skipped.at(0).as_whole(UINT64_MAX), skipped.at(1).as_text()};
    state.train = split_from(json.at("train"));
    state.val = split_from(json.at("val"));
    for (const Json& file : json.at("files").elements()) {
        auto number = [&](std::size_t i) { return file.elements().at(i).as_whole(UINT64_MAX); };
        state.files.push_back({number(0), number(1), number(2)});
    }
    return state;
}

}   // namespace

std::string to_text(const CorpusState& s) {
    Json files = Json::array();
    for (const SourceCount& file : s.files) files.append(Json::array({file.documents, file.tokens, file.bytes}));
    return to_text(Json::object({{"format", kFormat},
                                 {"name", s.name},
                                 {"asked", hash_to_text(s.asked)},
                                 {"input", Json::object({{"file", s.input.file},
                                                         {"offset", s.input.offset},
                                                         {"line", s.input.line},
                                                         {"in_document", s.input.in_document},
                                                         {"documents", s.input.documents},
                                                         {"bytes", s.input.bytes_read}})},
                                 {"validation", s.document_is_val},
                                 {"duplicates", s.duplicates},
                                 {"seen", s.seen},
                                 {"skipped", Json::array({s.skipped.count, printable(s.skipped.first)})},
                                 {"train", to_json(s.train)},
                                 {"val", to_json(s.val)},
                                 {"files", std::move(files)}})) +
           "\n";
}

std::optional<CorpusState> corpus_state_from(const std::string& content) {
    try {
        return state_from(parse_json(content));
    } catch (const JsonError&) {
        return std::nullopt;
    } catch (const std::logic_error&) {   // no hash, or a list that is too short
        return std::nullopt;
    }
}

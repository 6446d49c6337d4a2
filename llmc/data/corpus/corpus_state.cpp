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

void check_format(const Json& json) {
    if (json.at("format").as_text() != kFormat) throw JsonError("another format");
}

// Adds the complete shards of a split.
void add_shards(const Json& split, std::vector<ShardInfo>& shards) {
    for (const Json& shard : split.at("shards").elements()) {
        shards.push_back({shard.at("file").as_text(), shard.at("split").as_text(), whole(shard, "tokens"),
                          hash_from_text(shard.at("hash").as_text())});
    }
}

SplitState split_from(const Json& json) {
    SplitState split;
    add_shards(json, split.shards);
    split.open = {whole(json, "open_tokens"), hash_from_text(json.at("open_hash").as_text())};
    return split;
}

CorpusState state_from(const Json& json) {
    check_format(json);
    if (whole(json, "version") != 2) throw JsonError("another version");
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

WrittenShards written_from(const Json& json) {
    check_format(json);
    WrittenShards written;
    if (const Json* name = json.find("name"); name != nullptr && !name->is_null()) written.name = name->as_text();
    for (const char* split : {"train", "val"}) add_shards(json.at(split), written.shards);
    return written;
}

// Returns what `read` makes of the text's JSON; none where it refuses it.
template <class Value>
std::optional<Value> read_if_valid(const std::string& content, Value (*read)(const Json&)) {
    try {
        return read(parse_json(content));
    } catch (const JsonError&) {
        return std::nullopt;
    } catch (const std::logic_error&) {   // no hash, or a list that is too short
        return std::nullopt;
    }
}

}   // namespace

std::string to_text(const CorpusState& s) {
    Json files = Json::array();
    for (const SourceCount& file : s.files) files.append(Json::array({file.documents, file.tokens, file.bytes}));
    return to_text(Json::object({{"format", kFormat},
                                 {"version", 2},
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

std::optional<CorpusState> corpus_state_from(const std::string& content) { return read_if_valid(content, state_from); }
std::optional<WrittenShards> written_shards_from(const std::string& content) {
    return read_if_valid(content, written_from);
}

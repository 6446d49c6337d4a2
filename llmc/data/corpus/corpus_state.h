// How far the preparation of a corpus has come: tokenize.unfinished in its folder, from which a call that was cut goes
// on. Written whole every few seconds, after what it tells of is on the disk.
//
//   {"format":"unfinished shards","version":2,"name":"web","asked":"0123456789abcdef",
//    "input":{"file":3,"offset":1048576,"line":1,"in_document":true,"documents":70,"bytes":9000000},
//    "validation":false,"duplicates":2,"seen":68,"skipped":[1,"a.jsonl: line 3, ..."],
//    "train":{"shards":[as in manifest.json],"open_tokens":12345,"open_hash":"0123456789abcdef"},"val":{...},
//    "files":[[documents,tokens,bytes],...]}
// "name": CorpusOptions::name; until the first state is saved, and of input from which no call can go on, nothing else
// is told. "asked": a hash of the options, the tokenizer, and of every input its name, size and time. "seen": with
// --dedup, how many hashes of documents (32 digits each) stand in tokenize.seen. "skipped": how many lines
// --skip-bad-lines has passed over, and the message about the first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/data/corpus/shard_writer.h"
#include "llmc/tokenizer/input.h"

inline constexpr const char* seen_file_name = "tokenize.seen";

// Counts of what has come from a file of the input, or from several.
struct SourceCount {
    std::uint64_t documents = 0, tokens = 0, bytes = 0;   // without duplicates; bytes of text, all of it
};

struct SplitState {
    std::vector<ShardInfo> shards;
    ShardWriter::OpenTokens open;   // the tokens of the shard that is being written
};

struct CorpusState {
    std::string name;
    std::uint64_t asked = 0;
    InputPosition input;
    bool document_is_val = false;   // the one that goes on
    std::uint64_t duplicates = 0, seen = 0;
    SkippedLines skipped;
    SplitState train, val;
    std::vector<SourceCount> files;   // counts of each input file, as far as the input was read
};

std::string to_text(const CorpusState& state);
// Returns none where the text is something else.
std::optional<CorpusState> corpus_state_from(const std::string& content);

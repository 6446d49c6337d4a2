#include "llmc/data/inspect.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/data/corpus/corpus_check.h"
#include "llmc/data/token_file.h"
#include "llmc/io/file.h"
#include "llmc/io/hash.h"

namespace fs = std::filesystem;

namespace {

[[noreturn]] void differs(const std::string& file, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(file, ": ", what), "Prepare the corpus again, or copy it again.");
}

}   // namespace

CorpusManifest verify_corpus(const std::string& folder) {
    CorpusManifest manifest = read_manifest(real_files(), folder);
    const std::string manifest_path = (fs::path(folder) / manifest_file_name).string();
    Tokenizer tokenizer = Tokenizer::load(folder);
    auto tokenizer_differs = [&](const std::string& found, const std::string& expected) {
        const bool is_json = real_files().exists((fs::path(folder) / "tokenizer.json").string());
        differs((fs::path(folder) / (is_json ? "tokenizer.json" : "tokenizer.bin")).string(),
                text("this tokenizer ", found, ", ", manifest_path, " says ", expected));
    };
    if (tokenizer.hash() != manifest.tokenizer_hash) {
        tokenizer_differs(text("has the hash ", hash_to_text(tokenizer.hash())), hash_to_text(manifest.tokenizer_hash));
    }
    if (tokenizer.vocab_size() != manifest.vocab_size) {
        tokenizer_differs(text("has ", tokenizer.vocab_size(), " ids"), text(manifest.vocab_size));
    }
    if (tokenizer.end_of_text() != manifest.end_of_text) {
        tokenizer_differs(text("ends texts with ", tokenizer.end_of_text()), text(manifest.end_of_text));
    }
    check_tokenizer_beside(real_files(), folder, manifest);   // the other file, too
    for (const ShardInfo& shard : manifest.shards) {
        const std::string path = (fs::path(folder) / shard.file).string();
        if (!real_files().exists(path)) differs(manifest_path, text("there is no ", shard.file, " beside it"));
        const TokenFile file(real_files(), path);   // checks header and size
        check_shard(file, shard, manifest, manifest_path);
        file.check_ids(manifest.vocab_size);
        check_shard_hash(real_files(), file.path(), shard, manifest_path);
    }
    return manifest;
}

std::vector<std::string> shards_of(const std::string& path, const std::string& split) {
    if (!real_files().exists(path + "/.")) return {path};   // no folder
    std::vector<std::string> files;
    for (const ShardInfo& shard : read_manifest(real_files(), path).shards) {
        if (split.empty() || shard.split == split) files.push_back((fs::path(path) / shard.file).string());
    }
    return files;
}

void decode_shards(const Tokenizer& tokenizer, const std::vector<std::string>& shards,
                   const std::function<void(const std::string&)>& write) {
    DocumentDecoder decoder(tokenizer);
    for (const std::string& path : shards) {
        TokenFile(real_files(), path).for_each_block(tokenizer.vocab_size(), [&](std::span<const std::int32_t> block) {
            std::string text;
            decoder.decode(block.data(), block.size(), text);
            write(text);
        });
    }
}

CorpusStats count_shards(const Tokenizer& tokenizer, const std::vector<std::string>& shards) {
    CorpusStats stats;
    stats.id_counts.resize(tokenizer.vocab_size());
    std::int32_t end_of_text = static_cast<std::int32_t>(tokenizer.end_of_text());
    std::uint64_t document = 0;
    for (const std::string& path : shards) {
        TokenFile(real_files(), path).for_each_block(tokenizer.vocab_size(), [&](std::span<const std::int32_t> block) {
            for (std::int32_t id : block) {
                stats.id_counts[static_cast<std::size_t>(id)]++;
                document = id == end_of_text ? 0 : document + 1;
                stats.longest_document = std::max(stats.longest_document, document);
            }
            stats.tokens += block.size();
        });
    }
    stats.documents = stats.id_counts[tokenizer.end_of_text()];
    for (std::uint32_t id = 0; id < stats.id_counts.size(); id++) {
        std::uint64_t count = stats.id_counts[id];
        if (count == 0) continue;
        stats.distinct_ids++;
        if (id != tokenizer.end_of_text()) stats.bytes += count * tokenizer.data().tokens[id].size();
        double part = static_cast<double>(count) / static_cast<double>(stats.tokens);
        stats.entropy -= part * std::log2(part);
    }
    return stats;
}

DocumentCounts count_documents(const std::vector<TokenFile>& shards, std::int64_t T, std::int32_t end_of_text,
                               std::int64_t vocab_size) {
    DocumentCounts counts;
    std::uint64_t document = 0, sequences = 0;   // tokens of the document at hand, which may go on in the next shard
    double squares = 0;
    auto end_document = [&] {
        if (document == 0) return;
        const auto bin = static_cast<std::size_t>(std::bit_width(document)) - 1;
        counts.by_length.resize(std::max(counts.by_length.size(), bin + 1));
        counts.by_length[bin]++;
        counts.documents++;
        counts.longest = std::max(counts.longest, document);
        document = 0;
    };
    for (const TokenFile& shard : shards) {
        const std::uint64_t whole = (shard.count() - 1) / static_cast<std::uint64_t>(T) * static_cast<std::uint64_t>(T);
        std::uint64_t position = 0, part = 0;
        auto end_part = [&] { squares += static_cast<double>(part) * static_cast<double>(std::exchange(part, 0)); };
        shard.for_each_block(vocab_size, [&](std::span<const std::int32_t> block) {
            for (const std::int32_t id : block) {
                if (id == end_of_text) end_document();
                if (position < whole && (id == end_of_text || position % static_cast<std::uint64_t>(T) == 0))
                    end_part();
                if (position < whole) part++;
                document++;
                position++;
            }
        });
        end_part();
        sequences += whole / static_cast<std::uint64_t>(T);
    }
    end_document();
    const double length = static_cast<double>(T);
    if (sequences > 0) counts.attention_left = squares / (static_cast<double>(sequences) * length * length);
    return counts;
}

std::string picture_of(const DocumentCounts& counts) {
    constexpr double width = 50;
    const std::uint64_t most = std::max<std::uint64_t>(1, std::ranges::max(counts.by_length));
    std::string lines;
    for (std::size_t i = 0; i < counts.by_length.size(); i++) {
        const auto n = static_cast<double>(counts.by_length[i]);
        const auto bar = static_cast<std::size_t>(std::ceil(width * n / static_cast<double>(most)));
        const std::uint64_t first = std::uint64_t{1} << i;
        lines += formatted("%12llu to %-12llu |%-50s| %5.1f%%\n", static_cast<unsigned long long>(first),
                           static_cast<unsigned long long>(2 * first - 1), std::string(bar, '#').c_str(),
                           100 * n / static_cast<double>(counts.documents));
    }
    return lines;
}

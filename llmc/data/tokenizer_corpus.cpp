#include "llmc/data/tokenizer_corpus.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "llmc/base/error.h"

namespace fs = std::filesystem;

namespace {

constexpr std::size_t read_bytes = 1 << 20;

// The finaliser of splitmix64, so that neighbouring document numbers draw independently.
std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// Sends tokens to the validation or the training shards.
class Splitter {
public:
    Splitter(const CorpusOptions& options, ShardFormat format)
        : options_(options),
          val_({options.output, options.name, "val", format, options.shard_tokens}),
          train_({options.output, options.name, "train", format, options.shard_tokens}) {}

    void start_document(std::uint64_t index) {
        double draw = static_cast<double>(mix(index) >> 11) * 0x1p-53;
        document_is_val_ = draw < options_.val_fraction;
    }

    void append(const std::vector<std::uint32_t>& ids) {
        std::size_t first = 0;
        if (val_.tokens() < options_.val_tokens) {
            first = static_cast<std::size_t>(std::min<std::uint64_t>(ids.size(), options_.val_tokens - val_.tokens()));
            val_.append(ids.data(), first);
        }
        (document_is_val_ ? val_ : train_).append(ids.data() + first, ids.size() - first);
    }

    std::uint64_t tokens() const { return val_.tokens() + train_.tokens(); }

    std::vector<ShardInfo> finish() {
        val_.finish();
        train_.finish();
        std::vector<ShardInfo> shards = train_.shards();
        shards.insert(shards.end(), val_.shards().begin(), val_.shards().end());
        return shards;
    }

private:
    const CorpusOptions& options_;
    ShardWriter val_, train_;
    bool document_is_val_ = false;
};

void make_output_folder(const CorpusOptions& options) {
    std::error_code problem;
    fs::create_directories(options.output, problem);
    if (!fs::is_directory(options.output)) {
        throw Error(ErrorKind::io, text("cannot make the folder ", options.output, ": ", problem.message()));
    }
    if (!has_manifest(options.output)) return;
    // Replace what an earlier run wrote, and nothing else; the manifest goes first, for it says the folder is complete.
    CorpusManifest old = read_manifest(options.output);
    fs::remove(fs::path(options.output) / manifest_file_name);
    for (const ShardInfo& shard : old.shards) fs::remove(fs::path(options.output) / fs::path(shard.file).filename());
}

}   // namespace

CorpusManifest prepare_corpus(const Tokenizer& tokenizer, const CorpusOptions& options,
                              const std::function<void(const CorpusProgress&)>& report) {
    make_output_folder(options);
    ShardFormat format = tokenizer.vocab_size() <= 0x10000 ? ShardFormat::gpt2 : ShardFormat::llama3;
    Splitter splitter(options, format);
    Encoder encoder(tokenizer);
    CorpusProgress progress;
    for (const std::string& input : options.inputs) progress.bytes_total += fs::file_size(input);
    progress.bytes_total = std::min(progress.bytes_total, options.max_bytes);

    std::vector<std::uint32_t> ids;
    std::string buffer(read_bytes, '\0');
    for (const std::string& input : options.inputs) {
        if (progress.bytes_done + fs::file_size(input) > options.max_bytes) break;
        File file(std::fopen(input.c_str(), "rb"));
        if (!file) throw Error(ErrorKind::io, text("cannot open ", input, ": ", std::strerror(errno)));
        splitter.start_document(progress.documents++);
        ids.assign(1, tokenizer.end_of_text());
        while (std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
            encoder.encode({buffer.data(), count}, ids);
            splitter.append(ids);
            ids.clear();
            progress.bytes_done += count;
            progress.tokens = splitter.tokens();
            report(progress);
        }
        if (std::ferror(file.get()))
            throw Error(ErrorKind::io, text("cannot read ", input, ": ", std::strerror(errno)));
        splitter.append(ids);   // an empty document still has its separator
    }

    CorpusManifest manifest;
    manifest.shards = splitter.finish();
    manifest.tokenizer_name = tokenizer.name();
    manifest.vocab_size = tokenizer.vocab_size();
    manifest.end_of_text = tokenizer.end_of_text();
    manifest.tokenizer_hash = tokenizer.hash();
    manifest.token_bytes = static_cast<std::uint32_t>(token_bytes(format));
    manifest.documents = progress.documents;
    manifest.source_bytes = progress.bytes_done;
    tokenizer.save(options.output);
    write_manifest(manifest, options.output);
    return manifest;
}

#include "llmc/data/corpus.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/io/file.h"
#include "llmc/io/hash.h"
#include "llmc/tokenizer/jsonl.h"
#include "llmc/tokenizer/parallel.h"

namespace fs = std::filesystem;

namespace {

// In [0, 1), by the index of a document.
double document_draw(std::uint64_t document) { return static_cast<double>(mix64(document) >> 11) * 0x1p-53; }

// A batch of input on its way to the shards.
struct Work {
    InputBatch input;
    std::uint64_t bytes_read = 0;   // of all inputs when this batch was taken
    std::vector<std::uint32_t> ids;
    struct DocumentStart {
        std::size_t at;   // in ids
        std::uint64_t document;
        std::uint32_t file;
    };
    std::vector<DocumentStart> starts;
};

// Encodes batches; one per thread.
class BatchEncoder {
public:
    BatchEncoder(const Tokenizer& tokenizer, const CorpusOptions& options)
        : end_of_text_(tokenizer.end_of_text()), options_(options), encoder_(tokenizer, options.encoding) {}

    void encode(Work& work) {
        work.ids.clear();
        work.starts.clear();
        for (const InputPart& part : work.input.parts) {
            if (part.starts_document) {
                work.starts.push_back({work.ids.size(), part.document, part.file});
                work.ids.push_back(end_of_text_);
            }
            std::string_view bytes = std::string_view(work.input.bytes).substr(part.begin, part.end - part.begin);
            const std::string& file = options_.input.files[part.file];
            if (work.input.jsonl) bytes = json_text(bytes, options_.input.field, value_, file, part.offset);
            try {
                encoder_.encode(bytes, work.ids);
            } catch (const Error& problem) {
                throw Error(problem.kind(), text(file, ": offset ", part.offset, ": ", problem.message()),
                            problem.hint());
            }
        }
    }

private:
    std::uint32_t end_of_text_;
    const CorpusOptions& options_;
    Encoder encoder_;
    std::string value_;
};

// Sends tokens to the validation or the training shards.
class Splits {
public:
    Splits(const CorpusOptions& options, TokenFormat format)
        : options_(options),
          val_({options.output, options.name, "val", format, options.shard_tokens}),
          train_({options.output, options.name, "train", format, options.shard_tokens}) {}

    void append(const Work& work) {
        std::size_t at = 0;
        for (const Work::DocumentStart& start : work.starts) {
            append(work.ids.data() + at, start.at - at);
            at = start.at;
            end_document();
            document_is_val_ = start.file < options_.val_files || document_draw(start.document) < options_.val_fraction;
        }
        append(work.ids.data() + at, work.ids.size() - at);
    }

    std::uint64_t tokens() const { return val_.tokens() + train_.tokens(); }

    std::uint64_t duplicates() const { return duplicates_; }

    std::vector<ShardInfo> finish() {
        end_document();
        val_.finish();
        train_.finish();
        std::vector<ShardInfo> shards = train_.shards();
        shards.insert(shards.end(), val_.shards().begin(), val_.shards().end());
        return shards;
    }

private:
    void append(const std::uint32_t* ids, std::size_t count) {
        if (options_.dedup) {
            held_.insert(held_.end(), ids, ids + count);
        } else {
            write(ids, count);
        }
    }

    // With dedup a document is written when it is whole, unless one of the same 128 bits of hash was.
    void end_document() {
        if (held_.empty()) return;
        Hash64 hash;
        hash.update(held_.data(), held_.size() * sizeof held_[0]);
        if (seen_.insert(hash.digest_128()).second) {
            write(held_.data(), held_.size());
        } else {
            duplicates_++;
        }
        held_.clear();
    }

    void write(const std::uint32_t* ids, std::size_t count) {
        if (val_.tokens() < options_.val_tokens) {
            std::size_t first = std::min<std::uint64_t>(count, options_.val_tokens - val_.tokens());
            val_.append(ids, first);
            ids += first;
            count -= first;
        }
        (document_is_val_ ? val_ : train_).append(ids, count);
    }

    const CorpusOptions& options_;
    ShardWriter val_, train_;
    std::vector<std::uint32_t> held_;   // of the current document
    std::unordered_set<std::string> seen_;
    std::uint64_t duplicates_ = 0;
    bool document_is_val_ = false;   // the current one; it may run on into the next batch
};

// As ShardWriter names them: [name_]train|val_000000.bin
bool is_shard_name(std::string_view file, const std::string& name) {
    std::string prefix = name.empty() ? "" : name + "_";
    if (!file.starts_with(prefix)) return false;
    file.remove_prefix(prefix.size());
    if (!file.starts_with("train_") && !file.starts_with("val_")) return false;
    file.remove_prefix(file.find('_') + 1);
    return file.size() == 10 && file.ends_with(".bin") && file.find_first_not_of("0123456789") == 6;
}

std::string unfinished_file(const CorpusOptions& options) { return options.output + "/" + unfinished_file_name; }

void make_output_folder(const CorpusOptions& options) {
    std::error_code problem;
    fs::create_directories(options.output, problem);
    if (!fs::is_directory(options.output)) {
        throw Error(ErrorKind::io, text("cannot make the folder ", options.output, ": ", problem.message()));
    }
    // Replace what an earlier run wrote, and nothing else; the manifest goes first, for it says the folder is complete.
    write_whole(real_files(), unfinished_file(options), "tokenize writes here, or was cut while it did\n");
    fs::remove(fs::path(options.output) / manifest_file_name);
    std::vector<fs::path> old;
    for (const auto& entry : fs::directory_iterator(options.output)) {
        if (is_shard_name(entry.path().filename().string(), options.name)) old.push_back(entry.path());
    }
    for (const fs::path& path : old) fs::remove(path);
}

TokenFormat choose_format(const Tokenizer& tokenizer, const CorpusOptions& options) {
    return tokenizer.vocab_size() <= 0x10000 && !options.wide ? TokenFormat::gpt2 : TokenFormat::llama3;
}

void check_splits(const CorpusManifest& manifest, const CorpusOptions& options) {
    bool wants_val = options.val_files > 0 || options.val_fraction > 0 || options.val_tokens > 0;
    if (manifest.tokens("train") == 0) {
        const std::vector<std::string>& files = options.input.files;
        throw Error(ErrorKind::bad_data,
                    text("no training tokens: ", files.empty() ? "the input" : files.front(),
                         files.size() > 1 ? text(" and ", files.size() - 1, " more: empty") : ": empty",
                         ", or all of it became validation data"));
    }
    if (wants_val && manifest.tokens("val") == 0) {
        throw Error(ErrorKind::bad_data,
                    text("none of the ", manifest.documents, " documents was drawn for validation"),
                    "Use --val-tokens with few documents, or a larger --val-fraction.");
    }
}

}   // namespace

CorpusManifest prepare_corpus(const Tokenizer& tokenizer, const CorpusOptions& options,
                              const std::function<void(const CorpusProgress&)>& report) {
    DocumentReader reader(options.input, cuts_for(tokenizer, options.encoding));
    std::vector<BatchEncoder> encoders;
    for (int i = 0; i < options.threads; i++) encoders.emplace_back(tokenizer, options);
    make_output_folder(options);
    TokenFormat format = choose_format(tokenizer, options);
    Splits splits(options, format);

    auto take = [&](Work& work) {
        bool more = reader.next(work.input);
        work.bytes_read = reader.bytes_read();
        return more;
    };
    auto encode = [&](Work& work, int thread) { encoders[static_cast<std::size_t>(thread)].encode(work); };
    auto write = [&](const Work& work) {
        splits.append(work);
        std::uint64_t documents = work.input.parts.back().document + 1;
        report({work.bytes_read, reader.bytes_total(), splits.tokens(), documents});
    };
    InOrder<Work>(options.threads).run(take, encode, write);

    CorpusManifest manifest;
    manifest.shards = splits.finish();
    manifest.tokenizer_name = tokenizer.name();
    manifest.vocab_size = tokenizer.vocab_size();
    manifest.end_of_text = tokenizer.end_of_text();
    manifest.tokenizer_hash = tokenizer.hash();
    manifest.token_bytes = static_cast<std::uint32_t>(bytes_per_token(format));
    manifest.documents = reader.documents() - splits.duplicates();
    manifest.source_bytes = reader.bytes_read();
    check_splits(manifest, options);
    tokenizer.save(options.output);
    write_manifest(manifest, options.output);
    real_files().remove_all(unfinished_file(options));
    return manifest;
}

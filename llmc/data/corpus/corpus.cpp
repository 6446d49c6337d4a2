#include "llmc/data/corpus/corpus.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/base/rng.h"
#include "llmc/io/file.h"
#include "llmc/io/hash.h"
#include "llmc/tokenizer/parallel.h"

namespace fs = std::filesystem;

namespace {

// A document is drawn by its first tokens, up to so many, which are held until then.
constexpr std::size_t drawn_tokens = std::size_t{1} << 20;

// In [0, 1), by the tokens that a document begins with.
double document_draw(const std::vector<std::uint32_t>& ids) {
    Hash64 hash;
    hash.update(ids.data(), std::min(ids.size(), drawn_tokens) * sizeof ids[0]);
    return static_cast<double>(mix64(hash.digest()) >> 11) * 0x1p-53;
}

// A batch of input on its way to the shards.
struct Work {
    InputBatch input;
    InputPosition behind;            // position of the input behind this batch
    std::uint64_t bytes_total = 0;   // size of all inputs, as far as it was known then
    std::vector<std::uint32_t> ids;
    struct DocumentStart {
        std::size_t at;   // in ids
        std::uint32_t file;
    };
    std::vector<DocumentStart> starts;
    SkippedLines skipped;
};

// Encodes batches; one per thread.
class BatchEncoder {
public:
    BatchEncoder(const Tokenizer& tokenizer, const CorpusOptions& options)
        : end_of_text_(tokenizer.end_of_text()), options_(options), encoder_(tokenizer, options.encoding) {}

    void encode(Work& work) {
        work.ids.clear();
        // no text has more ids than bytes; growing would need up to three times as much memory
        work.ids.reserve(work.input.bytes.size() + work.input.parts.size());
        work.starts.clear();
        work.skipped = {};
        for (const InputPart& part : work.input.parts) {
            std::string_view bytes = std::string_view(work.input.bytes).substr(part.begin, part.end - part.begin);
            if (work.input.json) {
                const auto found = text_of_object(options_.input, work.input, part, value_, work.skipped);
                if (!found) continue;
                bytes = *found;
            }
            if (part.starts_document) {
                work.starts.push_back({work.ids.size(), part.file});
                work.ids.push_back(end_of_text_);
            }
            try {
                encoder_.encode(bytes, work.ids);
            } catch (const Error& problem) {
                throw Error(problem.kind(),
                            text(options_.input.files[part.file], ": offset ", part.offset, ": ", problem.message()),
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

std::string unfinished_file(const CorpusOptions& options) { return options.output + "/" + unfinished_file_name; }

// Sends tokens to the validation or the training shards.
class Splits {
public:
    Splits(const CorpusOptions& options, TokenFormat format)
        : options_(options),
          val_({options.output, options.name, "val", format, options.shard_tokens}),
          train_({options.output, options.name, "train", format, options.shard_tokens}),
          files_(options.input.files.size()),
          seen_path_(options.output + "/" + seen_file_name) {}

    void append(const Work& work) {
        std::size_t at = 0;
        for (const Work::DocumentStart& start : work.starts) {
            append(work.ids.data() + at, start.at - at);
            at = start.at;
            end_document();
            document_is_val_ = start.file < options_.val_files;
            is_drawn_ = options_.val_fraction > 0;
            file_ = start.file;
            files_[file_].documents++;
        }
        append(work.ids.data() + at, work.ids.size() - at);
        for (const InputPart& part : work.input.parts) files_[part.file].bytes += part.end - part.begin;
        skipped_.add(work.skipped);
        // so that nothing of it waits where a state is saved
        if (!work.behind.in_document) end_document();
    }

    std::uint64_t tokens() const { return val_.tokens() + train_.tokens(); }
    std::uint64_t duplicates() const { return duplicates_; }
    const SkippedLines& skipped() const { return skipped_; }
    const std::vector<SourceCount>& files() const { return files_; }

    std::vector<ShardInfo> finish() {
        end_document();
        val_.finish();
        train_.finish();
        std::vector<ShardInfo> shards = train_.shards();
        shards.insert(shards.end(), val_.shards().begin(), val_.shards().end());
        return shards;
    }

    bool can_save() const { return held_.empty(); }   // held tokens are in no file
    // Puts on the disk what the state tells of; `input`: behind what was appended.
    CorpusState save_point(const InputPosition& input) {
        if (options_.dedup) {
            const std::unique_ptr<File> file =
                std::exchange(has_seen_file_, true) ? real_files().append(seen_path_) : real_files().create(seen_path_);
            file->write(bytes_of(std::exchange(new_hashes_, "")));
            file->sync();
        }
        CorpusState state;
        state.document_is_val = document_is_val_;
        state.duplicates = duplicates_;
        state.skipped = skipped_;
        state.seen = seen_.size();
        state.train.open = train_.save_point();
        state.val.open = val_.save_point();
        state.train.shards = train_.shards();
        state.val.shards = val_.shards();
        state.input = input;
        const std::size_t begun = std::min<std::size_t>(input.file + 1, files_.size());
        state.files = {files_.begin(), files_.begin() + static_cast<std::ptrdiff_t>(begun)};
        return state;
    }
    // Goes on from a state. Returns the path of a file that is not there as it was, and this must not be used then;
    // empty: it goes on.
    std::string resume(const CorpusState& state) {
        const std::size_t digits = 32;
        std::string hashes;
        if (state.seen > 0) {
            if (!real_files().exists(seen_path_)) return seen_path_;
            hashes = read_large(real_files(), seen_path_);
            if (hashes.size() < state.seen * digits) return seen_path_;
        }
        if (state.files.empty() || state.files.size() > files_.size()) return unfinished_file(options_);
        for (const auto& [writer, split] : {std::pair(&train_, &state.train), std::pair(&val_, &state.val)}) {
            if (std::string changed = writer->resume(split->shards, split->open); !changed.empty()) return changed;
        }
        if (state.seen > 0) write_whole(real_files(), seen_path_, hashes.substr(0, state.seen * digits));
        has_seen_file_ = state.seen > 0;
        for (std::uint64_t i = 0; i < state.seen; i++) seen_.insert(hashes.substr(i * digits, digits));
        document_is_val_ = state.document_is_val;
        duplicates_ = state.duplicates;
        skipped_ = state.skipped;
        std::ranges::copy(state.files, files_.begin());
        file_ = state.files.size() - 1;
        return "";
    }

private:
    // Holds tokens until it is known where they go: with dedup a document until it is whole, else one that is drawn
    // until the draw has its tokens.
    void append(const std::uint32_t* ids, std::size_t count) {
        if (!options_.dedup && !is_drawn_) return write(ids, count);
        held_.insert(held_.end(), ids, ids + count);
        if (!options_.dedup && held_.size() >= drawn_tokens) write_held();
    }

    // With dedup a document is written unless one of the same 128 bits of hash was.
    void end_document() {
        if (held_.empty()) return;
        if (!options_.dedup) return write_held();
        Hash64 hash;
        hash.update(held_.data(), held_.size() * sizeof held_[0]);
        const std::string digest = hash.digest_128();
        if (seen_.insert(digest).second) {
            new_hashes_ += digest;
            write_held();
        } else {
            duplicates_++;
            files_[file_].documents--;
            held_.clear();
        }
    }

    void write_held() {
        if (std::exchange(is_drawn_, false)) document_is_val_ = document_draw(held_) < options_.val_fraction;
        write(held_.data(), held_.size());
        held_.clear();
    }

    void write(const std::uint32_t* ids, std::size_t count) {
        files_[file_].tokens += count;
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
    std::vector<SourceCount> files_;
    std::string seen_path_;
    std::vector<std::uint32_t> held_;   // tokens of the current document, from its begin
    std::unordered_set<std::string> seen_;
    std::string new_hashes_;   // hashes in seen_ that are not in its file yet
    bool has_seen_file_ = false;
    std::uint64_t duplicates_ = 0;
    SkippedLines skipped_;
    std::size_t file_ = 0;           // input file of the current document
    bool document_is_val_ = false;   // the current one; it may run on into the next batch
    bool is_drawn_ = false;          // the current one is, and has not been yet
};

// The prefix in a name such as ShardWriter makes, [name_]train|val_000000.bin; none: it is no such name.
std::optional<std::string_view> prefix_of_shard(std::string_view file) {
    for (const std::string_view split : {"train_", "val_"}) {
        const std::size_t tail = split.size() + std::string_view("000000.bin").size();
        if (file.size() < tail) continue;
        const std::string_view prefix = file.substr(0, file.size() - tail), rest = file.substr(prefix.size());
        const bool has_digits = rest.find_first_not_of("0123456789", split.size()) == tail - 4;
        if (!rest.starts_with(split) || !rest.ends_with(".bin") || !has_digits) continue;
        if (prefix.empty()) return prefix;
        if (prefix.ends_with('_')) return prefix.substr(0, prefix.size() - 1);
    }
    return std::nullopt;
}

// Returns a hash of everything that the shards follow from: the tokenizer's tokens and rules, options, and name, size
// and time of every input.
std::uint64_t hash_of_task(const Tokenizer& tokenizer, const CorpusOptions& o) {
    std::string all =
        text("drawn by content ", hash_to_text(tokenizer.hash()), " ", tokenizer.hash_of_rules(), " ", o.name, " ",
             o.shard_tokens, o.dedup, o.wide, o.val_files, " ", o.val_fraction, " ", o.val_tokens, " ",
             static_cast<int>(o.input.format), o.input.skip_bad_lines, o.input.field, " ", o.input.separator.size(),
             o.input.separator, o.input.keep_separator, o.input.strip, o.input.max_bytes, " ",
             static_cast<int>(o.encoding.special), static_cast<int>(o.encoding.invalid));
    for (const std::string& file : o.input.files) {
        std::error_code problem;   // a file that is not there is told where it is opened
        all += text("\n", file, " ", static_cast<unsigned long long>(fs::file_size(file, problem)), " ",
                    static_cast<long long>(fs::last_write_time(file, problem).time_since_epoch().count()));
    }
    return hash64(all);
}

// Standard input and pipes are gone when a call is cut.
bool can_resume(const CorpusOptions& options) {
    std::error_code unknown;
    return std::ranges::all_of(options.input.files,
                               [&](const std::string& file) { return fs::is_regular_file(file, unknown); });
}

// Returns the state that an earlier call of the same task has left when it was cut; none: there is none.
std::optional<CorpusState> earlier_state(const CorpusOptions& options, std::uint64_t asked) {
    const std::string path = unfinished_file(options);
    std::error_code unknown;
    if (!can_resume(options) || !fs::is_regular_file(path, unknown)) return std::nullopt;
    const std::optional<CorpusState> state = corpus_state_from(read_whole(real_files(), path));
    return state && state->asked == asked && state->input.file <= options.input.files.size() ? state : std::nullopt;
}

// Collects what earlier calls have written into a folder.
struct EarlierShards {
    std::set<std::string> files;   // as listed
    std::set<std::string> names;   // CorpusOptions::name of calls that did not come to an end: all shards of that name

    void add(const std::vector<ShardInfo>& shards) {
        for (const ShardInfo& shard : shards) files.insert(shard.file);
    }
    // Adds what a manifest, or a state of an unfinished corpus, tells; nothing where the file is absent or neither.
    void add_told_by(const std::string& path) {
        std::error_code unknown;
        if (!fs::is_regular_file(path, unknown)) return;
        const std::string content = read_whole(real_files(), path);
        if (const std::optional<CorpusState> state = corpus_state_from(content)) {
            names.insert(state->name);
            add(state->train.shards);
            add(state->val.shards);
            return;
        }
        try {
            add(parse_manifest(content, path).shards);
        } catch (const Error&) {   // it is replaced, whatever it is
        }
    }
};

// Makes the folder. Returns its path.
const std::string& made_folder(const std::string& path) {
    std::error_code problem;
    fs::create_directories(path, problem);
    if (fs::is_directory(path)) return path;
    throw Error(ErrorKind::io, text("cannot make the folder ", path, ": ", problem.message()));
}

// Removes what earlier calls wrote into the folder under any name, and nothing else. The manifest goes first, for it
// says that the folder is complete; it is kept aside until all that it lists is gone, so that a call that is cut in
// between loses track of nothing.
void remove_earlier_corpus(const CorpusOptions& options) {
    CorpusState begun;
    begun.name = options.name;
    const std::string unfinished = unfinished_file(options), note = to_text(begun);
    const fs::path manifest = fs::path(options.output) / manifest_file_name;
    const fs::path replaced = fs::path(options.output) / replaced_file_name;
    if (!real_files().exists(unfinished)) write_whole(real_files(), unfinished, note);
    if (fs::exists(manifest)) fs::rename(manifest, replaced);
    EarlierShards earlier;
    earlier.names.insert(options.name);
    earlier.add_told_by(replaced.string());
    earlier.add_told_by(unfinished);
    std::vector<fs::path> old;
    for (const auto& entry : fs::directory_iterator(options.output)) {
        std::string file = entry.path().filename().string();
        const bool is_part = file.ends_with(".part");   // a call that was cut has left it
        if (is_part) file.resize(file.size() - 5);
        const std::optional<std::string_view> prefix = prefix_of_shard(file);
        if (prefix && (is_part || earlier.names.contains(std::string(*prefix)) || earlier.files.contains(file))) {
            old.push_back(entry.path());
        }
    }
    for (const fs::path& path : old) fs::remove(path);
    write_whole(real_files(), unfinished, note);
    fs::remove(replaced);
}

TokenFormat choose_format(const Tokenizer& tokenizer, const CorpusOptions& options) {
    return tokenizer.vocab_size() <= 0x10000 && !options.wide ? TokenFormat::gpt2 : TokenFormat::llama3;
}

// Throws Error(bad_data) where a split is empty: which, why, and what to do.
void check_splits(const CorpusManifest& manifest, const CorpusOptions& options, const SkippedLines& skipped) {
    const std::uint64_t documents = manifest.documents;
    const bool draws = options.val_fraction > 0;
    const std::string drawn = text("--val-fraction ", options.val_fraction, " drew ");
    const char* const equal = " Equal documents are on the same side.";
    if (documents == 0 && skipped.count > 0) {
        throw Error(ErrorKind::bad_data,
                    text("no tokens: all ", skipped.count, " lines were passed over, the first: ", skipped.first),
                    "Name the field that holds the text with --field.");
    }
    if (manifest.tokens("train") == 0) {
        const std::vector<std::string>& files = options.input.files;
        const std::string input = text(files.empty() ? "the input" : files.front(),
                                       files.size() > 1 ? text(" and ", files.size() - 1, " more") : "");
        if (manifest.tokens("val") == 0)
            throw Error(ErrorKind::bad_data, text("no training tokens: ", input, ": empty"));
        throw Error(ErrorKind::bad_data,
                    text("no training tokens: ", draws ? drawn : "", "all ", documents, " document(s) of ", input,
                         draws ? " for validation" : " became validation data"),
                    draws ? text("Give a smaller --val-fraction, or more documents.", equal)
                          : "Give fewer --val-tokens or --val-files, or more documents.");
    }
    if (manifest.tokens("val") > 0) return;
    if (draws) {
        throw Error(ErrorKind::bad_data, text("no validation tokens: ", drawn, "none of ", documents, " document(s)"),
                    text("Give a larger --val-fraction, more documents, or with few of them --val-tokens.", equal));
    }
    if (options.val_files > 0) {
        throw Error(ErrorKind::bad_data, "no validation tokens: there are no documents in --val-files",
                    "Give others, or another option for validation data.");
    }
}

}   // namespace

void refuse_earlier(const CorpusOptions& options, const std::string& file) {
    if (options.overwrite || !real_files().exists(file)) return;
    throw Error(ErrorKind::usage, text("--output ", options.output, ": ", file, " is there already"),
                "Give another place, or replace what is there with --overwrite.");
}

OutputFolder::OutputFolder(const CorpusOptions& options, const std::string& file)
    : lock_(made_folder(options.output) + "/tokenize.lock", "--output " + options.output) {
    refuse_earlier(options, file);
}

PreparedCorpus prepare_corpus(const Tokenizer& tokenizer, const CorpusOptions& options,
                              const std::function<void(const CorpusProgress&)>& report) {
    DocumentReader reader(options.input, cuts_for(tokenizer, options.encoding), options.threads);
    // a thread makes its own when it has work, all but the first at once: filling the tables takes a while
    std::vector<std::optional<BatchEncoder>> encoders(static_cast<std::size_t>(options.threads));
    encoders[0].emplace(tokenizer, options);
    const TokenFormat format = choose_format(tokenizer, options);
    std::optional<Splits> splits;
    splits.emplace(options, format);
    const OutputFolder folder(options, options.output + "/" + manifest_file_name);
    const std::uint64_t asked = hash_of_task(tokenizer, options);
    const std::optional<CorpusState> earlier = earlier_state(options, asked);
    PreparedCorpus prepared;
    if (earlier) prepared.changed = splits->resume(*earlier);
    if (earlier && prepared.changed.empty()) {
        reader.seek(earlier->input);
    } else {
        splits.reset();   // removes the shards that it may have opened
        remove_earlier_corpus(options);
        splits.emplace(options, format);
    }
    const std::uint64_t bytes_before = reader.bytes_read();

    auto take = [&](Work& work) {
        bool more = reader.next(work.input);
        work.behind = reader.position();
        work.bytes_total = reader.bytes_total();
        return more;
    };
    auto encode = [&](Work& work, int thread) {
        std::optional<BatchEncoder>& encoder = encoders[static_cast<std::size_t>(thread)];
        if (!encoder) encoder.emplace(tokenizer, options);
        encoder->encode(work);
    };
    const bool saves = can_resume(options);
    double saved = steady_seconds();
    auto write = [&](const Work& work) {
        splits->append(work);
        report({work.behind.bytes_read, work.bytes_total, splits->tokens(), work.behind.documents, bytes_before});
        if (!saves || !splits->can_save() || steady_seconds() - saved < options.save_seconds) return;
        CorpusState state = splits->save_point(work.behind);
        state.name = options.name;
        state.asked = asked;
        write_whole(real_files(), unfinished_file(options), to_text(state));
        saved = steady_seconds();
    };
    InOrder<Work>(options.threads).run(take, encode, write);

    CorpusManifest& manifest = prepared.manifest;
    manifest.shards = splits->finish();
    manifest.tokenizer_name = tokenizer.name();
    manifest.vocab_size = tokenizer.vocab_size();
    manifest.end_of_text = tokenizer.end_of_text();
    manifest.tokenizer_hash = tokenizer.hash();
    manifest.token_bytes = static_cast<std::uint32_t>(bytes_per_token(format));
    manifest.documents = reader.documents() - splits->duplicates() - splits->skipped().count;
    manifest.source_bytes = reader.bytes_read();
    prepared.files = splits->files();
    prepared.skipped = splits->skipped();
    check_splits(manifest, options, prepared.skipped);
    tokenizer.save(options.output);
    write_manifest(manifest, options.output);
    real_files().remove_all(unfinished_file(options));
    real_files().remove_all(options.output + "/" + seen_file_name);
    return prepared;
}

#include "llmc/data/corpus/corpus_check.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/data/data_files.h"
#include "llmc/io/hash.h"
#include "llmc/tokenizer/files/files.h"
#include "llmc/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

namespace {

const char* const prepare_again = "Prepare the data again with the tokenize tool, or pass other data.";

std::string tokenizer_of(const CorpusManifest& manifest) {
    return text("tokenizer ", manifest.tokenizer_name, " (", manifest.vocab_size, " ids, hash ",
                hash_to_text(manifest.tokenizer_hash), ")");
}

// The shards of one folder, and the manifest beside them.
struct Folder {
    std::string flag, path;
    CorpusManifest manifest;
    std::vector<std::string> shards;

    std::string manifest_path() const { return (fs::path(path) / manifest_file_name).string(); }
    std::string tokenizer() const { return tokenizer_of(manifest); }
};

std::vector<Folder> folders_of(const FileSystem& files, const std::vector<CorpusUse>& data) {
    std::vector<Folder> folders;
    for (const CorpusUse& use : data) {
        std::map<std::string, std::vector<std::string>> shards;
        for (const std::string& path : find_data_files(use.flag, use.pattern))
            shards[fs::path(path).parent_path().string()].push_back(path);
        for (auto& [path, paths] : shards) {
            if (!has_entry(files, path.empty() ? "." : path, manifest_file_name)) {
                const std::string cut = (fs::path(path) / unfinished_file_name).string();
                if (!files.exists(cut)) continue;
                throw Error(ErrorKind::bad_data,
                            text(cut, ": the shards of ", use.flag, " beside it are not all there"),
                            "`tokenize` is at work there, or was cut: let it end, or run it again.");
            }
            folders.push_back({use.flag, path, read_manifest(files, path), std::move(paths)});
        }
    }
    return folders;
}

// The hash of the vocabulary in a tokenizer.bin. None where it cannot tell: llm.c's format cuts tokens off after 255
// bytes.
std::optional<std::uint64_t> hash_of_llmc(const FileSystem& files, const std::string& path) {
    const Tokenizer tokenizer(parse_llmc_tokenizer(read_whole(files, path), path));
    auto may_be_cut = [](const std::string& bytes) { return bytes.size() == 255; };
    if (std::ranges::any_of(tokenizer.data().tokens, may_be_cut)) return std::nullopt;
    return tokenizer.hash();
}

std::uint64_t hash_of_json(const FileSystem& files, const std::string& path) {
    return Tokenizer(load_huggingface(files, path)).hash();
}

void check_vocabulary(const Folder& folder, const CorpusExpectation& expected) {
    const std::int64_t found = folder.manifest.vocab_size;
    if (found == expected.vocab_size || (expected.larger_is_meant && found < expected.vocab_size)) return;
    std::string hint = "Pass data that was prepared with the tokenizer of the model.";
    if (expected.larger_is_meant)
        hint = text("Leave out --vocab-size, or set it to ", found, ".");
    else if (found < expected.vocab_size) {
        hint += text(" If ids above ", found - 1, " are unused on purpose, say so with --vocab-size ",
                     expected.vocab_size, ".");
    }
    throw Error(ErrorKind::bad_data,
                text(folder.manifest_path(), ": ", folder.flag, " was tokenized with a vocabulary of ", found,
                     " ids, the model has ", expected.vocab_size, expected.why_that_size),
                hint);
}

void check_same_tokenizer(const Folder& first, const Folder& other) {
    if (first.manifest.tokenizer_hash == other.manifest.tokenizer_hash) return;
    throw Error(ErrorKind::bad_data,
                text(other.manifest_path(), ": ", other.flag, " was tokenized with ", other.tokenizer(), ", but ",
                     first.flag, " with ", first.tokenizer()),
                "Prepare both with the same tokenizer.");
}

void check_model_folder(const FileSystem& files, const Folder& folder, const std::string& model) {
    if (model.empty() || !files.exists(model + "/.")) return;
    const auto hash = tokenizer_hash(files, model);
    if (!hash || *hash == folder.manifest.tokenizer_hash) return;
    throw Error(ErrorKind::bad_data,
                text(folder.manifest_path(), ": ", folder.flag, " was tokenized with ", folder.tokenizer(),
                     ", but the model in ", model, " was trained with a tokenizer of hash ", hash_to_text(*hash)),
                text("Prepare the data with the model's own: tokenize --tokenizer ", model, " ..."));
}

void check_listed(const FileSystem& files, const Folder& folder, const std::string& path, bool hashed) {
    auto listed = std::ranges::find(folder.manifest.shards, fs::path(path).filename().string(), &ShardInfo::file);
    if (listed == folder.manifest.shards.end()) {
        throw Error(ErrorKind::bad_data, text(path, ": ", folder.manifest_path(), " does not list this file"),
                    "It is left over from something else: remove it, or narrow the pattern.");
    }
    check_shard(TokenFile(files, path), *listed, folder.manifest, folder.manifest_path());
    if (hashed) check_shard_hash(files, path, *listed, folder.manifest_path());
}

}   // namespace

std::optional<std::uint64_t> tokenizer_hash(const FileSystem& files, const std::string& folder) {
    const std::string path = folder + "/tokenizer.bin", json = folder + "/tokenizer.json";
    if (const auto hash = files.exists(path) ? hash_of_llmc(files, path) : std::nullopt) return hash;
    if (!files.exists(json)) return std::nullopt;
    try {
        return hash_of_json(files, json);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_data) throw;
        return std::nullopt;
    }
}

void check_tokenizer_beside(const FileSystem& files, const std::string& folder, const CorpusManifest& manifest) {
    auto check = [&](const char* name, std::optional<std::uint64_t> (*hash_of)(const FileSystem&, const std::string&)) {
        const std::string path = (fs::path(folder) / name).string();
        if (!files.exists(path)) return;
        const auto hash = hash_of(files, path);
        if (!hash || *hash == manifest.tokenizer_hash) return;
        throw Error(ErrorKind::bad_data,
                    text(path, ": this tokenizer has the hash ", hash_to_text(*hash), ", but ",
                         (fs::path(folder) / manifest_file_name).string(), " says that the tokens beside it are of ",
                         tokenizer_of(manifest)),
                    prepare_again);
    };
    check("tokenizer.bin", hash_of_llmc);
    check("tokenizer.json",
          [](const FileSystem& f, const std::string& path) { return std::optional(hash_of_json(f, path)); });
}

void check_shard(const TokenFile& file, const ShardInfo& listed, const CorpusManifest& manifest,
                 const std::string& manifest_path) {
    auto fail = [&](int byte, const std::string& found, std::uint64_t expected) {
        throw Error(ErrorKind::bad_data,
                    text(file.path(), ": byte ", byte, ": ", found, ", ", manifest_path, " says ", expected),
                    prepare_again);
    };
    const std::uint64_t width = bytes_per_token(file.format());
    if (width != manifest.token_bytes) fail(0, text("tokens of ", width, " bytes"), manifest.token_bytes);
    if (file.count() != listed.tokens) fail(8, text(file.count(), " tokens"), listed.tokens);
}

void check_shard_hash(const FileSystem& files, const std::string& path, const ShardInfo& listed,
                      const std::string& manifest_path) {
    const std::uint64_t hash = hash_of_tokens(files, path);
    if (hash == listed.hash) return;
    throw Error(ErrorKind::bad_data,
                text(path, ": byte ", kTokenHeaderBytes, ": the tokens from here on have the hash ", hash_to_text(hash),
                     ", ", manifest_path, " says ", hash_to_text(listed.hash)),
                "The file was damaged or changed: copy or prepare it again.");
}

std::uint64_t check_corpora(const FileSystem& files, const CorpusExpectation& expected) {
    const std::vector<Folder> folders = folders_of(files, expected.data);
    std::vector<std::uint64_t> sizes;
    for (const Folder& folder : folders) {
        check_tokenizer_beside(files, folder.path, folder.manifest);
        check_vocabulary(folder, expected);
        check_same_tokenizer(folders.front(), folder);
        for (const std::string& model : expected.model_folders) check_model_folder(files, folder, model);
        for (const std::string& shard : folder.shards) sizes.push_back(TokenFile(files, shard).bytes());
    }
    std::ranges::sort(sizes);
    std::uint64_t hashed = 0, largest_hashed = 0, not_hashed = 0;
    for (std::uint64_t size : sizes) {
        if (hashed + size <= expected.max_hashed_bytes) hashed += size, largest_hashed = size;
    }
    for (const Folder& folder : folders) {
        for (const std::string& shard : folder.shards) {
            const std::uint64_t size = TokenFile(files, shard).bytes();
            check_listed(files, folder, shard, size <= largest_hashed);
            not_hashed += size <= largest_hashed ? 0 : size;
        }
    }
    return not_hashed;
}

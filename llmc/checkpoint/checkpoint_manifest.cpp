#include "llmc/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/io/hash.h"

namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 22;

std::string hash_of(const File& file) {
    const std::uint64_t bytes = file.size();
    Hash64 hash;
    std::vector<std::byte> buffer(std::min<std::uint64_t>(bytes, buffer_bytes));
    for (std::uint64_t begin = 0; begin < bytes; begin += buffer.size()) {
        auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes - begin));
        file.read_at(begin, part);
        hash.update(part.data(), part.size());
    }
    return hash.digest_128();
}

// An entry of the manifest: a file, as it was written.
struct FileRecord {
    std::uint64_t bytes;
    std::string name, hash;
    Json tensors;   // null: it has none

    auto order() const { return std::tie(bytes, name); }
};

bool only_resumed(const std::string& name) {
    return name.starts_with("optimizer-") || name.starts_with("replica-") || name.starts_with("data-rank-");
}

// Returns true for files in a checkpoint's folder that the program reads for what a run or a model is. Others may have
// been put beside them: a tokenizer, say.
bool must_be_listed(const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || name == "config.json" ||
           name == "run.json" || name == "matmul.json";
}

// Returns what is wrong with a file's tensors, or an empty string.
std::string damage_of_tensors(const FileSystem& files, const std::string& path, const Json& told) {
    const SafetensorsFile file(files, path);
    for (const TensorEntry& tensor : file.entries()) {
        const Json found = type_and_shape(tensor), *expected = told.find(tensor.name);
        if (expected != nullptr && *expected == found) continue;
        return text(path, ": tensor ", tensor.name, ": ", to_text(found), ", manifest.json says ",
                    expected == nullptr ? "nothing of it" : to_text(*expected));
    }
    for (const auto& [name, expected] : told.members()) {
        if (file.find(name) == nullptr) return text(path, ": no tensor ", name, "; manifest.json names it");
    }
    return "";
}

std::string damage_of_file(const FileSystem& files, const std::string& path, const FileRecord& record) {
    if (!files.exists(path)) return path + ": missing; manifest.json names it";
    const std::unique_ptr<File> file = files.open(path);
    if (file->size() != record.bytes) {
        return text(path, ": ", file->size(), " bytes, manifest.json says ", record.bytes);
    }
    const std::string found = hash_of(*file);
    if (found != record.hash) return text(path, ": hash ", found, ", manifest.json says ", record.hash);
    return record.tensors.is_null() ? "" : damage_of_tensors(files, path, record.tensors);
}

// Returns the step that a folder's name says; none for a name of another kind.
std::optional<int> step_of_folder(std::string path) {
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    return step_of(path.substr(path.rfind('/') + 1));
}

// Checks this rank's part of the files that a manifest lists, and that it lists what is there.
std::string damage_by(const Json& manifest, const FileSystem& files, const std::string& path, CheckpointUse use,
                      int rank, int ranks) {
    const std::string manifest_path = path + "/" + manifest_name;
    if (manifest.at("format") != format_name) return manifest_path + ": not a manifest";
    if (manifest.at("version") != format_version) {
        return text(manifest_path, ": version ", quoted(manifest.at("version")), ", expected ", format_version);
    }
    const int step = static_cast<int>(manifest.at("step").as_whole(INT_MAX));
    const std::optional<int> named = step_of_folder(path);   // a model may be in a folder of any name
    if (named ? *named != step : use == CheckpointUse::resume) return text(manifest_path, ": it says step ", step);

    const bool resumes = use == CheckpointUse::resume;
    const Json& listed = manifest.at("files");
    for (const std::string& name : files.list(path)) {
        if (!must_be_listed(name) || listed.find(name) != nullptr || (!resumes && only_resumed(name))) continue;
        return text(manifest_path, ": it does not list ", name, ", which is there");
    }
    std::vector<FileRecord> records;
    for (const auto& [name, record] : listed.members()) {
        if (!resumes && only_resumed(name)) continue;
        const Json* const tensors = record.find("tensors");
        records.push_back({record.at("bytes").as_whole(UINT64_MAX), name, record.at("xxh3_128").as_text(),
                           tensors == nullptr ? Json() : *tensors});
    }
    std::ranges::sort(records, std::greater(), &FileRecord::order);   // the largest first
    for (auto i = static_cast<std::size_t>(rank); i < records.size(); i += static_cast<std::size_t>(ranks)) {
        std::string damage = damage_of_file(files, path + "/" + records[i].name, records[i]);
        if (!damage.empty()) return damage;
    }
    return "";
}

}   // namespace

std::optional<int> step_of(const std::string& name) {
    const std::string prefix = "step_";
    int step = 0;
    if (!name.starts_with(prefix)) return std::nullopt;
    auto [end, code] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
    if (code != std::errc{} || name != checkpoint_name(step)) return std::nullopt;
    return step;
}

Json type_and_shape(const TensorEntry& tensor) {
    return Json::object({{"dtype", name_of(tensor.type)}, {"shape", tensor.shape}});
}

std::string damage_of_checkpoint(const FileSystem& files, const std::string& path, CheckpointUse use, int rank,
                                 int ranks) {
    const std::string manifest_path = path + "/" + manifest_name;
    std::string content;
    try {
        if (use == CheckpointUse::any_model) {   // a link that leads nowhere counts as a damaged manifest
            if (!files.exists(path + "/.") || !has_entry(files, path, manifest_name)) return "";
        }
        content = read_whole(files, manifest_path);
    } catch (const Error& error) {
        return text(path, ": no readable manifest: ", error.message());
    }
    try {
        return damage_by(parse_json(content), files, path, use, rank, ranks);
    } catch (const JsonSyntaxError&) {
        return manifest_path + ": not a manifest";
    } catch (const JsonError& error) {
        return text(manifest_path, ": ", error.what());
    } catch (const Error& error) {
        return error.message();
    }
}

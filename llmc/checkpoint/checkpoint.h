// Checkpoint folders: complete or absent, whatever happens while they are written, and known to be intact when read.
//
//   DIR/step_00000007/            the state after step 7
//       ...                       files, each synced before the manifest is written
//       manifest.json             name, bytes and xxh3 hash of each of them
//   DIR/step_00000014.tmp/        one that is being written, or was when the power went off
//
//   DIR/step_00000002.old/        one that is being removed, or was then
//
// A folder gets its final name by one rename, after all in it is on the disk, and loses it by one before anything in it
// is removed; so a folder with that name is complete. That its content is still what was written is checked with the
// hashes before it is used.
//
// Several ranks can write one together, each some of its files, and read one together, each of them hashing some.
//
// manifest.json: {"format": "train_gpt checkpoint", "version": 3, "step": 7,
//                 "files": {"config.json": {"bytes": 123, "xxh3_128": "32 hexadecimal digits"}, ...}}
// Files of tensors also have "tensors": {"wpe.weight": {"dtype": "F32", "shape": [64, 48]}, ...}, as their headers.
// Version 2, which is read too, has "xxh3" of 16 digits.
// What the files hold is not known here (llmc/run/training_state.h).
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/io/safetensors.h"

// "step_00000007".
std::string checkpoint_name(int step);

// The steps of all complete checkpoints in `folder`, ascending; none where the folder does not exist.
std::vector<int> list_checkpoints(const FileSystem& files, const std::string& folder);

// The ranks that write or read one together; by default one alone. `gather`: everyone's text, by rank; collective.
struct CheckpointRanks {
    int rank = 0, ranks = 1;
    std::function<std::vector<std::string>(const std::string& own)> gather = [](const std::string& own) {
        return std::vector{own};
    };
};

// Writes one; making it and finish() are collective. Rank 0 makes the folder, and removes it where a rank has failed or
// the writer is destroyed before the end of finish().
class CheckpointWriter {
public:
    CheckpointWriter(FileSystem& files, const std::string& folder, int step, const CheckpointRanks& ranks = {});
    ~CheckpointWriter();
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // Files of the checkpoint must be created through this, which hashes what is written, with these paths.
    FileSystem& files();
    std::string path(const std::string& name) const { return temporary_ + "/" + name; }
    void write(const std::string& name, const std::string& content);                   // a small file at once
    void describe(const std::string& name, const std::vector<TensorEntry>& tensors);   // of one that has been created
    // The files of a complete checkpoint of the same step, but those named `but`: they are linked, not written. For one
    // rank alone.
    void link_files(const std::string& of_checkpoint, const std::vector<std::string>& but);

    // work(), some of this rank's writing. The other ranks count on this one even where it fails: the error is kept for
    // conclude(), and later work is left out.
    template <class Work>
    void attempt(Work&& work) {
        if (failure_) return;
        try {
            work();
        } catch (...) {
            failure_ = std::current_exception();
        }
    }

    // When all ranks have written: manifest, syncs, rename, by rank 0. An older folder of the same step is replaced.
    // Where a rank has failed, the folder is removed first, then it throws its error and the others Error(resumable).
    void finish();

    // The parts of finish() for whoever must not wait in between: everyone's share() goes to commit() on rank 0, then
    // everyone's outcome() to conclude(), which throws what finish() throws. Nothing here is collective.
    std::string share() const;   // what this rank has written, or why it could not
    void commit(const std::vector<std::string>& shares);
    std::string outcome() const;   // empty, or why there is no checkpoint
    void conclude(const std::vector<std::string>& outcomes) const;

private:
    class HashingFiles;
    void remove_unfinished();
    void write_manifest(const std::vector<std::string>& shares);

    FileSystem& inner_;
    std::unique_ptr<HashingFiles> hashing_;
    std::string folder_, temporary_;
    int step_;
    CheckpointRanks ranks_;
    std::exception_ptr failure_;
    bool finished_ = false;
};

// Error(bad_data) saying what is wrong, unless every file is there with the size and hash the manifest says. Several
// ranks share the files, dealt in turns from the largest on.
void verify_checkpoint(const FileSystem& files, const std::string& path, int rank = 0, int ranks = 1);

// The same for a folder that a model is read from: nothing where it has no manifest, and so is not a checkpoint (a link
// that leads nowhere counts as a damaged one). It may have any name, and what only a resumed run reads is left out.
void verify_model_folder(const FileSystem& files, const std::string& path, int rank = 0, int ranks = 1);

struct FoundCheckpoint {
    int step;
    std::string path;
};

// What a checkpoint is read for: a model alone needs less of it.
enum class CheckpointUse { resume, model };

// The newest checkpoint that verifies, the same on all ranks: of those that rank 0 sees. What was passed over, and why,
// is added to `skipped`.
std::optional<FoundCheckpoint> newest_checkpoint(const FileSystem& files, const std::string& folder,
                                                 std::vector<std::string>& skipped, const CheckpointRanks& ranks = {},
                                                 CheckpointUse use = CheckpointUse::resume);

// Takes the name away before the content: what has a checkpoint's name is whole at any time.
void remove_checkpoint(FileSystem& files, const std::string& folder, int step);

// Removes the folders that unfinished writes and removals left behind, and nothing else; returns their names.
std::vector<std::string> remove_unfinished_checkpoints(FileSystem& files, const std::string& folder);

// Keeps the newest `keep` checkpoints and all whose step is a multiple of `major_every`, and removes the others.
// 0: keeps all; 0: none are major.
void prune_checkpoints(FileSystem& files, const std::string& folder, int keep, int major_every);

// How many more checkpoints a folder holds at most than the `saved` that it has, while a run saves every so many steps
// (0: not) after step `after`, and at step `last`, and prunes so.
std::uint64_t checkpoints_to_come(const std::vector<int>& saved, int after, int last, int every, int keep,
                                  int major_every);

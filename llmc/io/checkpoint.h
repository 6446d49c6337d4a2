// Checkpoint folders: complete or absent, whatever happens while they are written, and known to be intact when read.
//
//   DIR/step_00000007/            the state after step 7
//       ...                       files, each synced before the manifest is written
//       manifest.json             name, bytes and xxh3 hash of each of them
//   DIR/step_00000014.tmp/        one that is being written, or was when the power went off
//
// A folder gets its final name by one rename, after all in it is on the disk; so a folder without ".tmp" is complete.
// That its content is still what was written is checked with the hashes before it is used.
//
// manifest.json: {"format": "train_gpt checkpoint", "version": 1, "step": 7,
//                 "files": {"config.json": {"bytes": 123, "xxh3": "16 hexadecimal digits"}, ...}}
// What the files hold is not known here (llmc/train/training_state.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llmc/io/file.h"

// "step_00000007".
std::string checkpoint_name(int step);

// The steps of all complete checkpoints in `folder`, ascending; none where the folder does not exist.
std::vector<int> list_checkpoints(const FileSystem& files, const std::string& folder);

// Writes one. Destroyed before finish(), it removes what it wrote.
class CheckpointWriter {
public:
    CheckpointWriter(FileSystem& files, const std::string& folder, int step);
    ~CheckpointWriter();
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // Files of the checkpoint must be created through this, which hashes what is written, with these paths.
    FileSystem& files();
    std::string path(const std::string& name) const { return temporary_ + "/" + name; }
    void write(const std::string& name, const std::string& content);   // a small file at once

    // Manifest, syncs, rename. An older folder of the same step is replaced.
    void finish();

private:
    class HashingFiles;

    FileSystem& inner_;
    std::unique_ptr<HashingFiles> hashing_;
    std::string folder_, temporary_;
    int step_;
    bool finished_ = false;
};

// Error(bad_data) saying what is wrong, unless every file is there with the size and hash the manifest says.
void verify_checkpoint(const FileSystem& files, const std::string& path);

struct FoundCheckpoint {
    int step;
    std::string path;
};

// The newest checkpoint that verifies. What was passed over, and why, is added to `skipped`.
std::optional<FoundCheckpoint> newest_checkpoint(const FileSystem& files, const std::string& folder,
                                                 std::vector<std::string>& skipped);

// Removes the folders that unfinished writes left behind, and nothing else; returns their names.
std::vector<std::string> remove_unfinished_checkpoints(FileSystem& files, const std::string& folder);

// Keeps the newest `keep` checkpoints and all whose step is a multiple of `major_every`, and removes the others.
// 0: keeps all; 0: none are major.
void prune_checkpoints(FileSystem& files, const std::string& folder, int keep, int major_every);

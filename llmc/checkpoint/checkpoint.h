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

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/io/file.h"
#include "llmc/io/safetensors.h"

// "step_00000007".
std::string checkpoint_name(int step);

// The steps of all complete checkpoints in `folder`, ascending; none where the folder does not exist.
std::vector<int> list_checkpoints(const FileSystem& files, const std::string& folder);

// The ranks that write or read one together; by default one process.
struct CheckpointRanks {
    int rank = 0, ranks = 1;
    // Everyone's text, by rank; collective.
    std::function<std::vector<std::string>(const std::string& own)> gather = [](const std::string& own) {
        return std::vector{own};
    };
    // Called before this rank waits for its disk; what it returns lives as long as the wait.
    std::function<std::shared_ptr<void>()> disk_wait = [] { return nullptr; };
};

// Writes one checkpoint. Every rank writes its files, in a thread (start) while the run goes on. Then all ranks meet
// twice (advance): when all have written, and when rank 0 has written the manifest, synced and renamed. A run that
// calls advance() where all ranks are ready() waits for no disk.
//
// Rank 0 makes the folder. It removes the folder where a rank has failed, or where the writer is destroyed before its
// end. An older folder of the same step is replaced.
class CheckpointWriter {
public:
    CheckpointWriter(FileSystem& files, const std::string& folder, int step, const CheckpointRanks& ranks = {});
    ~CheckpointWriter();   // waits for the thread; one process completes what was started
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // Creates a file of the checkpoint: hashed as it is written, and in the manifest once it is synced.
    std::unique_ptr<File> create(const std::string& name) { return create(name, nullptr); }
    SafetensorsWriter create(const std::string& name, const std::vector<TensorEntry>& tensors,
                             const TensorMetadata& metadata);
    void write(const std::string& name, const std::string& content);   // a small file at once
    // Gives the files of a complete checkpoint of the same step, but those named `but`, a second name here.
    void link_files(const std::string& of_checkpoint, const std::vector<std::string>& but);

    // Runs some of this rank's writing. The other ranks count on this one even where it fails: the error is kept for
    // the end, and later work is left out.
    template <class Work>
    void attempt(Work&& work) {
        if (failure_) return;
        try {
            work();
        } catch (...) {
            failure_ = std::current_exception();
        }
    }

    // Attempts work() in a thread. Rank 0 calls `afterwards` there once the checkpoint is complete.
    void start(
        std::function<void()> work, std::function<void()> afterwards = [] {});
    int step() const { return step_; }
    int rank() const { return ranks_.rank; }
    const FileSystem& files() const { return files_; }
    bool ready() const { return !works_; }   // advance() would wait for no disk of this rank's
    void advance();                          // the next meeting: collective
    bool is_over() const { return phase_ == Phase::over; }
    // All that is left: collective, waits. Throws this rank's error, or Error(resumable) where another one has failed.
    void finish();
    const std::string& afterwards_failure() const { return afterwards_failure_; }   // on rank 0; empty: none

    // What advance() is made of: everyone's share() goes to commit() on rank 0, then everyone has its outcome().
    std::string share() const;   // what this rank has written, or why it could not
    void commit(const std::vector<std::string>& shares);
    std::string outcome() const;   // empty, or why there is no checkpoint

private:
    enum class Phase { writing, committing, over };
    std::unique_ptr<File> create(const std::string& name, const Json& tensors);
    void run_in_thread(std::function<void()> work);
    void join();
    void remove_unfinished();

    FileSystem& files_;
    std::string folder_, temporary_;
    int step_;
    CheckpointRanks ranks_;
    std::map<std::string, Json> manifest_;   // what it says of this rank's files
    std::exception_ptr failure_;
    bool committed_ = false;

    Phase phase_ = Phase::writing;
    std::atomic<bool> works_ = false;   // the thread does
    std::thread thread_;
    std::function<void()> afterwards_;   // of a save that was started
    std::string afterwards_failure_;
};

// What a checkpoint is read for: to resume a run, or for its model, which needs less of it and may have any name; a
// folder of any program may also have no manifest, and then nothing to compare with.
enum class CheckpointUse { resume, model, any_model };

// What is wrong with it, if not every file is there with the size and hash that the manifest says; empty: nothing. The
// same on all ranks, which share the files, dealt in turns from the largest on. Collective.
std::string find_damage(const FileSystem& files, const std::string& path, CheckpointUse use = CheckpointUse::resume,
                        const CheckpointRanks& ranks = {});

struct FoundCheckpoint {
    int step;
    std::string path;
};

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

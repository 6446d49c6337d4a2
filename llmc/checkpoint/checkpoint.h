// Checkpoint folders: each is complete or absent, whatever happens while it is written, and is verified when it is
// read.
//
//   DIR/step_00000007/            the state after step 7
//       ...                       files, each synced before the manifest is written
//       manifest.json             name, bytes and xxh3 hash of each of them
//   DIR/step_00000014.tmp/        one being written, or left by a run that died while writing it
//
//   DIR/step_00000002.old/        one being removed, or left by a run that died while removing it
//   DIR/step_00000021.damaged     one that did not verify when its run resumed; kept for its owner, read by nobody
//
// A folder gets its final name by one rename, after all its files are on the disk, and loses it by one rename before
// any of them is removed; so a folder with that name is complete. The hashes tell whether its content is still what was
// written; they are checked before it is used.
//
// Several ranks can write one checkpoint together, each some of its files, and verify one together, each some of its
// hashes.
//
// manifest.json: {"format": "train_gpt checkpoint", "version": 3, "step": 7,
//                 "files": {"config.json": {"bytes": 123, "xxh3_128": "32 hexadecimal digits"}, ...}}
// Files of tensors also have "tensors": {"wpe.weight": {"dtype": "F32", "shape": [64, 48]}, ...}, as in their headers.
// A manifest that leaves out a file of tensors that is there, config.json, run.json or matmul.json, is damaged; other
// files may lie beside them, such as a tokenizer.
// This file does not know what the files hold (llmc/run/training_state.h).
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
#include "llmc/base/log.h"
#include "llmc/io/file.h"
#include "llmc/io/safetensors.h"

// Returns "step_00000007" for step 7.
std::string checkpoint_name(int step);

// Returns the steps of all entries of `folder` that have a checkpoint's name, ascending; none if the folder does not
// exist. Whether they verify is not asked.
std::vector<int> list_checkpoints(const FileSystem& files, const std::string& folder);

// The ranks that write or read a checkpoint together; by default one process.
struct CheckpointRanks {
    int rank = 0, ranks = 1;
    // Returns the texts of all ranks, by rank; collective.
    std::function<std::vector<std::string>(const std::string& own)> gather = [](const std::string& own) {
        return std::vector{own};
    };
    // Called before this rank waits for its disk; the result lives as long as the wait.
    std::function<std::shared_ptr<void>()> disk_wait = [] { return nullptr; };
};

// Writes one checkpoint. Every rank writes its files in a thread (start) while the run goes on. Then all ranks meet
// twice (advance): when all have written, and when rank 0 has written the manifest, synced and renamed the folder. If a
// run calls advance() only when all ranks are ready(), it never waits for a disk.
//
// Rank 0 makes the folder. It removes the folder if a rank has failed, or if the writer is destroyed before its end. An
// older folder of the same step is replaced.
class CheckpointWriter {
public:
    CheckpointWriter(FileSystem& files, const std::string& folder, int step, const CheckpointRanks& ranks = {});
    ~CheckpointWriter();   // waits for the thread; a single process also completes a started save
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // Creates a file of the checkpoint. It is hashed as it is written, and enters the manifest when it is synced.
    std::unique_ptr<File> create(const std::string& name) { return create(name, nullptr); }
    SafetensorsWriter create(const std::string& name, const std::vector<TensorEntry>& tensors,
                             const TensorMetadata& metadata);
    void write(const std::string& name, const std::string& content);   // writes and syncs a small file
    // Links the files of a complete checkpoint of the same step into this one, except those named in `but`.
    void link_files(const std::string& of_checkpoint, const std::vector<std::string>& but);

    // Runs a part of this rank's writing. The other ranks wait for this one even if it fails, so an error is kept for
    // finish(), and later calls do nothing.
    template <class Work>
    void attempt(Work&& work) {
        if (failure_) return;
        try {
            work();
        } catch (...) {
            failure_ = std::current_exception();
        }
    }

    // Runs attempt(work) in a thread. Rank 0 calls `afterwards` in a thread once the checkpoint is complete.
    void start(
        std::function<void()> work, std::function<void()> afterwards = [] {});
    int step() const { return step_; }
    int rank() const { return ranks_.rank; }
    const FileSystem& files() const { return files_; }
    bool ready() const { return !works_; }   // advance() would not wait for this rank's disk
    void advance();                          // goes through the next meeting; collective
    bool is_over() const { return phase_ == Phase::over; }
    // Goes through all meetings that are left; collective, waits. Throws this rank's error, or Error(resumable) if
    // another rank has failed.
    void finish();
    const std::string& afterwards_failure() const { return afterwards_failure_; }   // set on rank 0; empty: no failure

    // The parts of advance(): rank 0 passes all ranks' share() to commit(), then all ranks get its outcome().
    std::string share() const;   // this rank's manifest entries, or the reason why it could not write
    void commit(const std::vector<std::string>& shares);
    std::string outcome() const;   // empty, or the reason why there is no checkpoint

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
    std::map<std::string, Json> manifest_;   // manifest entries of this rank's files, by name
    std::exception_ptr failure_;
    bool committed_ = false;

    Phase phase_ = Phase::writing;
    std::atomic<bool> works_ = false;   // true while the thread runs
    std::thread thread_;
    std::function<void()> afterwards_;   // set by start()
    std::string afterwards_failure_;
};

// The purpose for which a checkpoint is read: `resume` a run, or its `model`, which needs fewer files and may be in a
// folder of any name but that of another step. For `any_model`, a folder without a manifest (of another program) also
// passes.
enum class CheckpointUse { resume, model, any_model };

// Verifies that every file has the size, hash and tensors of the manifest, that it lists what is there, and that its
// step is that of the folder's name; returns the first damage, the same on all ranks, or an empty string. The ranks
// share the hashing: files are dealt out in turns, the largest first. Collective.
std::string find_damage(const FileSystem& files, const std::string& path, CheckpointUse use = CheckpointUse::resume,
                        const CheckpointRanks& ranks = {});

struct FoundCheckpoint {
    int step;
    std::string path;
};

// An entry with a checkpoint's name that does not verify.
struct PassedOver {
    int step;
    std::string damage;
};

// Finds the newest checkpoint that verifies, among those that rank 0 sees; the same on all ranks. Those newer than it
// are added to `passed_over`. A run beside may save and prune meanwhile: what is gone is not damaged. Collective.
std::optional<FoundCheckpoint> newest_checkpoint(const FileSystem& files, const std::string& folder,
                                                 std::vector<PassedOver>& passed_over,
                                                 const CheckpointRanks& ranks = {},
                                                 CheckpointUse use = CheckpointUse::resume);

// Calls `read` with a checkpoint's path, on all ranks. Where it fails because the folder is gone, pruned by its run,
// the path that `next` returns is read in its place. Returns the path that was read; throws what else `read` throws.
// Collective, as `next` is.
std::string read_while_there(const FileSystem& files, std::string path, const CheckpointRanks& ranks,
                             const std::function<void(const std::string&)>& read,
                             const std::function<std::string()>& next);

void warn_of(const std::vector<PassedOver>& passed_over, const Log& log);

// Warns of each, and renames it to step_00000021.damaged (.damaged-2 if that exists): nothing counts it as a checkpoint
// from then on. Removes nothing. For the process that holds the run's lock.
void set_aside(FileSystem& files, const std::string& folder, const std::vector<PassedOver>& passed_over,
               const Log& log);

// Renames the folder before it removes the content, so a folder with a checkpoint's name is always complete.
void remove_checkpoint(FileSystem& files, const std::string& folder, int step);

// Removes the folders left by unfinished writes and removals, and nothing else; returns their names.
std::vector<std::string> remove_unfinished_checkpoints(FileSystem& files, const std::string& folder);

struct Retention {
    int keep = 0;          // newest ones that stay; 0: all
    int major_every = 0;   // multiples of this stay too; 0: none for its step
    int origin = 0;        // the one that the run resumed from stays: it is known to verify; 0: a fresh run
};

// Removes checkpoints after that of step `saved` has been written, which stays. Entries without a manifest and later
// steps are not this run's: they do not count, and are not removed.
void prune_checkpoints(FileSystem& files, const std::string& folder, int saved, const Retention& retention);

// Returns how many checkpoints a folder will hold at most beyond its `saved` ones. The run goes on after step
// `retention.origin`, saves every `every` steps (0: not) and at step `last`, and prunes after each save.
std::uint64_t checkpoints_to_come(const std::vector<int>& saved, int last, int every, const Retention& retention);

#include "llmc/io/streams_ahead.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace {

// Reads a stream on a thread of its own, in blocks, up to a limit of them ahead.
class InflatedStream : public ByteStream {
public:
    InflatedStream(const std::string& name, std::size_t bytes)
        : ByteStream(name),
          block_bytes_(std::min(bytes, std::size_t{1} << 20)),
          most_blocks_(bytes / block_bytes_),
          thread_([this] { inflate(); }) {}
    ~InflatedStream() override {
        {
            const std::lock_guard lock(mutex_);
            is_left_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    InflatedStream(const InflatedStream&) = delete;
    InflatedStream& operator=(const InflatedStream&) = delete;

    std::uint64_t stored() const override { return stored_; }
    bool is_compressed() const override { return true; }

protected:
    std::size_t take(char* into, std::size_t count) override {
        if (used_ == current_.count && !next_block()) return 0;
        count = std::min(count, current_.count - used_);
        std::memcpy(into, current_.bytes.data() + used_, count);
        used_ += count;
        return count;
    }

private:
    struct Block {
        std::vector<char> bytes;
        std::size_t count = 0;
        std::uint64_t stored = 0;   // bytes of the file used up behind it
    };

    // Takes the next block, and gives the memory of the last one back. False at the end.
    bool next_block() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !ready_.empty() || is_over_; });
        if (ready_.empty() && error_) std::rethrow_exception(error_);
        if (ready_.empty()) return false;
        spare_.push_back(std::exchange(current_, std::move(ready_.front())));
        ready_.pop_front();
        used_ = 0;
        stored_ = current_.stored;
        changed_.notify_all();
        return true;
    }

    void inflate() {
        try {
            const std::unique_ptr<ByteStream> stream = open_stream(name_);
            while (fill_block(*stream)) {
            }
        } catch (...) {
            error_ = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        is_over_ = true;
        changed_.notify_all();
    }

    // Inflates one more block, once there is room for it. False at the end, and where nobody reads it any more.
    bool fill_block(ByteStream& stream) {
        Block block;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return ready_.size() + 1 < most_blocks_ || ready_.empty() || is_left_; });
            if (is_left_) return false;
            if (!spare_.empty()) {
                block = std::move(spare_.back());
                spare_.pop_back();
            }
        }
        block.bytes.resize(block_bytes_);
        block.count = 0;
        std::exception_ptr problem;
        try {
            for (std::size_t n = 1; n > 0 && block.count < block_bytes_; block.count += n) {
                n = stream.read(block.bytes.data() + block.count, block_bytes_ - block.count);
            }
        } catch (...) {   // is told behind what was read before it
            problem = std::current_exception();
        }
        block.stored = stream.stored();
        const bool is_full = block.count == block_bytes_;
        if (block.count > 0) {
            const std::lock_guard lock(mutex_);
            ready_.push_back(std::move(block));
            changed_.notify_all();
        }
        if (problem) std::rethrow_exception(problem);
        return is_full;
    }

    const std::size_t block_bytes_, most_blocks_;
    Block current_;   // is being read
    std::size_t used_ = 0;
    std::uint64_t stored_ = 0;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Block> ready_;
    std::vector<Block> spare_;
    bool is_over_ = false, is_left_ = false;
    std::exception_ptr error_;   // written before is_over_
    std::thread thread_;         // last: it uses the others
};

}   // namespace

StreamsAhead::StreamsAhead(std::vector<std::string> names, int threads, std::size_t bytes)
    : names_(std::move(names)),
      threads_(static_cast<std::size_t>(std::clamp(threads, 1, most_threads))),
      bytes_(bytes) {}

// Looks for compressed files that can be opened before their turn: a pipe would wait for its writer.
bool StreamsAhead::is_inflated_ahead(const std::string& name) const {
    std::error_code unknown;
    return threads_ > 1 && uncompressed_name(name) != name && std::filesystem::is_regular_file(name, unknown);
}

// Returns null where the system has no thread to spare.
std::unique_ptr<ByteStream> StreamsAhead::inflated_ahead(const std::string& name) const {
    try {
        return std::make_unique<InflatedStream>(name, bytes_);
    } catch (const std::system_error&) {
        return nullptr;
    }
}

std::unique_ptr<ByteStream> StreamsAhead::open(std::size_t file) {
    begun_.erase(begun_.begin(), begun_.lower_bound(file));
    std::unique_ptr<ByteStream> opened;
    if (auto begun = begun_.extract(file)) {
        opened = std::move(begun.mapped());
    } else if (is_inflated_ahead(names_[file])) {
        opened = inflated_ahead(names_[file]);
    }
    if (opened == nullptr) opened = open_stream(names_[file]);
    next_ = std::max(next_, file + 1);
    for (; begun_.size() + 1 < threads_ && next_ < names_.size(); next_++) {
        if (!is_inflated_ahead(names_[next_])) continue;
        auto stream = inflated_ahead(names_[next_]);
        if (stream == nullptr) break;
        begun_.emplace(next_, std::move(stream));
    }
    return opened;
}

#include "llmc/base/outlet.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace {

using std::chrono::milliseconds;

// Writes all of it, however long that takes; stops at an error.
void write_all(int descriptor, std::string_view content) {
    while (!content.empty()) {
        const std::size_t part = std::min<std::size_t>(content.size(), PIPE_BUF);   // a ready pipe takes that much
        const ssize_t written = write(descriptor, content.data(), part);
        if (written >= 0) {
            content.remove_prefix(static_cast<std::size_t>(written));
        } else if (errno == EAGAIN) {   // whoever started the program made the pipe so
            pollfd out{descriptor, POLLOUT, 0};
            poll(&out, 1, -1);
        } else if (errno != EINTR) {
            return;
        }
    }
}

// One reader's queue and the thread that writes it. Never destroyed: the thread may be inside a write that nothing ends
// but the end of the process.
class Outlet {
public:
    void put(int descriptor, std::string_view content) {
        std::unique_lock lock(mutex_);
        if (!has_thread_ && !start_thread()) return write_all(descriptor, content);
        if (left_out_ > 0 || bytes_ + content.size() > kOutletBytes) {
            left_out_ += std::max<std::int64_t>(1, std::ranges::count(content, '\n'));
            return;
        }
        queue_.push_back({descriptor, std::string(content)});
        bytes_ += content.size();
        has_more_.notify_one();
        const milliseconds patience(50);   // a reader that takes longer is not waited for until it has caught up
        if (!is_behind_) is_behind_ = !has_written_.wait_for(lock, patience, [this] { return queue_.empty(); });
    }

    void await_reader() {
        std::unique_lock lock(mutex_);
        for (bool reads = true; reads && !queue_.empty();) {
            const std::uint64_t before = pieces_written_;
            reads = has_written_.wait_for(lock, std::chrono::seconds(2), [&] { return pieces_written_ != before; });
        }
    }

private:
    struct Piece {
        int descriptor;
        std::string content;
    };

    // Returns false where the machine has no thread to give. No signal is for this thread.
    bool start_thread() {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            std::thread([this] { write_queue(); }).detach();
            has_thread_ = true;
        } catch (const std::system_error&) {
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return has_thread_;
    }

    [[noreturn]] void write_queue() {
        for (std::unique_lock lock(mutex_);;) {
            has_more_.wait(lock, [this] { return !queue_.empty(); });
            const Piece& first = queue_.front();   // stays where it is: others only add behind it
            lock.unlock();
            write_all(first.descriptor, first.content);
            lock.lock();
            const int descriptor = first.descriptor;
            bytes_ -= first.content.size();
            queue_.pop_front();
            pieces_written_++;
            if (queue_.empty() && left_out_ > 0) tell_left_out(descriptor);
            is_behind_ &= !queue_.empty();
            has_written_.notify_all();
        }
    }

    void tell_left_out(int descriptor) {
        const char* const below_progress = isatty(descriptor) ? "\n" : "";   // a line of progress has no line end yet
        std::string line = below_progress + ("warning: " + std::to_string(std::exchange(left_out_, 0))) +
                           " line(s) of output are left out here: nobody read them in time\n";
        bytes_ += line.size();
        queue_.push_back({descriptor, std::move(line)});
    }

    std::mutex mutex_;   // guards what follows; never held during a write of the thread
    std::condition_variable has_more_, has_written_;
    std::deque<Piece> queue_;   // the first one is being written
    std::size_t bytes_ = 0;
    std::int64_t left_out_ = 0;   // lines
    std::uint64_t pieces_written_ = 0;
    bool has_thread_ = false, is_behind_ = false;
};

// By what they lead to: stdout and stderr of one terminal or pipe have one outlet, so their lines stay in order.
struct Outlets {
    std::mutex mutex;
    std::map<std::pair<dev_t, ino_t>, Outlet> of;
};

Outlets& outlets() {
    static Outlets* const all = [] {
        std::atexit(await_readers);
        return new Outlets;
    }();
    return *all;
}

}   // namespace

void put_text(std::FILE* file, std::string_view content) {
    std::fflush(file);   // writes what others have buffered first
    const int descriptor = fileno(file);
    struct stat kind {};
    if (fstat(descriptor, &kind) != 0) return;
    if (S_ISREG(kind.st_mode)) return write_all(descriptor, content);
    Outlets& all = outlets();
    std::unique_lock lock(all.mutex);
    Outlet& outlet = all.of[{kind.st_dev, kind.st_ino}];
    lock.unlock();
    outlet.put(descriptor, content);
}

void await_readers() {
    Outlets& all = outlets();
    const std::lock_guard lock(all.mutex);
    for (auto& [where, outlet] : all.of) outlet.await_reader();
}

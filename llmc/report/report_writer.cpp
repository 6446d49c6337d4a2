#include "llmc/report/report_writer.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/outlet.h"
#include "llmc/base/printable.h"

ReportWriter::ReportWriter(FileSystem& files, std::string folder, std::vector<ReportPicture> pictures, double seconds)
    : files_(files),
      folder_(std::move(folder)),
      pictures_(std::move(pictures)),
      seconds_(seconds),
      reader_(folder_ + "/metrics.jsonl") {
    if (!folder_.empty()) thread_ = std::thread([this] { write_pages(); });
}

ReportWriter::~ReportWriter() {
    if (folder_.empty()) return;
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    ends_.notify_all();
    thread_.join();
}

void ReportWriter::write_pages() {
    std::unique_lock lock(mutex_);
    for (bool last = false; !last;) {
        last = over_;
        lock.unlock();
        write_page();
        lock.lock();
        if (!last) ends_.wait_for(lock, std::chrono::duration<double>(seconds_), [this] { return over_; });
    }
}

// Writes the page. A failure is reported once and does not end the run.
void ReportWriter::write_page() {
    const std::string path = folder_ + "/" + report_name;
    try {
        const Run& run = reader_.read();
        write_whole(files_, path, report_page({{&run, folder_, pictures_}}, true));
    } catch (const std::exception& error) {
        if (!files_.exists(folder_)) return;   // moved away: the run finds out itself, and says so
        if (std::exchange(failed_, true)) return;
        put_text(stderr, text("warning: ", printable(path), " was not written: ", printable(error.what()), "\n"));
    }
}

// Writes report.html into a run's output folder while the run goes on. A thread of its own reads the files that the run
// has written there, so no step waits for it. If the run is killed, the page is the old or the new one, never a part
// (write_whole).
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/report/page.h"

inline constexpr const char* report_name = "report.html";

class ReportWriter {
public:
    // Use it on the first rank only; an empty folder writes nothing. The first page comes at once, another every
    // `seconds`.
    ReportWriter(FileSystem& files, std::string folder, std::vector<ReportPicture> pictures = {}, double seconds = 30);
    ~ReportWriter();   // writes the last page
    ReportWriter(const ReportWriter&) = delete;
    ReportWriter& operator=(const ReportWriter&) = delete;

private:
    void write_pages();
    void write_page();

    FileSystem& files_;
    std::string folder_;
    std::vector<ReportPicture> pictures_;
    double seconds_;
    RunReader reader_;
    std::mutex mutex_;
    std::condition_variable ends_;
    bool over_ = false;   // guarded by mutex_
    bool failed_ = false;
    std::thread thread_;
};

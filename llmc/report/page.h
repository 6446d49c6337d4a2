// Makes a page on runs: curves, time line, layout, memory, samples, warnings and options, from the files of their
// output folders (metrics.jsonl, report.jsonl, options.json). It is one HTML file that needs no network and no other
// file, and reads well on a phone and in the dark. The drawn numbers are also in it as JSON, with all digits.
#pragma once

#include <string>
#include <vector>

#include "llmc/report/records.h"

// A picture for the page's section on a run.
struct ReportPicture {
    std::string title, svg;
};

struct ReportedRun {
    const Run* run;
    std::string folder;                      // empty: there is only metrics.jsonl
    std::vector<ReportPicture> pictures{};   // besides the layout's
};

// `may_go_on`: the page reloads itself while any of its runs has not ended.
std::string report_page(const std::vector<ReportedRun>& runs, bool may_go_on);

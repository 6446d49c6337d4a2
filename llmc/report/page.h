// A page on runs: curves, time line, layout, memory, samples, warnings and options, from the files of their output
// folders (metrics.jsonl, report.jsonl, options.json). One HTML file that needs no network and no other file, reads on
// a phone and in the dark; numbers that are drawn stand in it as JSON too, and in full.
#pragma once

#include <string>
#include <vector>

#include "llmc/report/records.h"

// Of a run, for the page's section on it.
struct ReportPicture {
    std::string title, svg;
};

struct ReportedRun {
    const Run* run;
    std::string folder;                      // empty: there are only metrics
    std::vector<ReportPicture> pictures{};   // besides that of the layout
};

// `may_go_on`: the page loads itself again while its runs have not told their end.
std::string report_page(const std::vector<ReportedRun>& runs, bool may_go_on);

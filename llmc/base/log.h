// What the program tells a person: one line at a time, flushed, so that it is seen through pipes and launchers.
//
// One rank speaks. Results and progress go to stdout, warnings and errors to stderr. On a terminal a line of progress
// stays in place: the next one is written over it, anything else below it.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>

class Log {
public:
    explicit Log(bool speaks = true, std::FILE* out = stdout, std::FILE* err = stderr);
    ~Log();
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;

    bool speaks() const { return out_ != nullptr; }

    // As printf, with a line end added.
    void line(const char* format, ...) const __attribute__((format(printf, 2, 3)));
    // The same to stderr, with "warning: " in front.
    void warning(const char* format, ...) const __attribute__((format(printf, 2, 3)));
    // Whole blocks of lines (tables, samples).
    void block(const std::string& lines) const;
    // One more line of progress. On a terminal it replaces the last one, cut to the terminal's width; elsewhere it is
    // written if it is `due`.
    void progress(const std::string& line, bool due) const;

private:
    void put(std::FILE* file, const std::string& content) const;

    std::FILE* out_;
    std::FILE* err_;
    bool on_terminal_;
    mutable bool line_is_open_ = false;   // a line of progress stands there without its end
};

// Writes to a stream and flushes it. Waits where nobody empties the pipe that it is, until `drop_what_waits`: then what
// is left is dropped, so that a run that is asked to stop can.
void put_text(std::FILE* file, std::string_view content);
inline std::atomic<bool> drop_what_waits{false};

// "45s", "12m05s", "3h20m".
std::string duration_text(double seconds);

// printf into a string.
std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Of a clock that never goes back.
double steady_seconds();

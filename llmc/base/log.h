// Output of the program for a person: one line at a time, flushed, so that it is seen through pipes and launchers. No
// line holds up its caller (llmc/base/outlet.h).
//
// One rank speaks. Results and progress go to stdout, warnings and errors to stderr. On a terminal a line of progress
// stays in place: the next one is written over it, anything else below it.
#pragma once

#include <cstdio>
#include <string>

class Log {
public:
    explicit Log(bool speaks = true, std::FILE* out = stdout, std::FILE* err = stderr);
    ~Log();
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;

    bool speaks() const { return out_ != nullptr; }

    // Prints like printf, and ends the line.
    void line(const char* format, ...) const __attribute__((format(printf, 2, 3)));
    // Prints like line(), to stderr, with "warning: " in front.
    void warning(const char* format, ...) const __attribute__((format(printf, 2, 3)));
    // Prints a block of lines (a table, a sample).
    void block(const std::string& lines) const;
    // Prints a line of progress. On a terminal it replaces the last one, cut to the terminal's width; elsewhere it is
    // printed only if it is `due`.
    void progress(const std::string& line, bool due) const;

private:
    void put(std::FILE* file, const std::string& content) const;

    std::FILE* out_;
    std::FILE* err_;
    bool on_terminal_;
    mutable bool line_is_open_ = false;   // an unfinished line of progress is on the terminal
};

// Formats seconds as "45s", "12m05s" or "3h20m".
std::string duration_text(double seconds);

// Formats bytes as "812.5 MiB" or "1.4 GiB".
std::string size_text(double bytes);

// Prints into a string, like printf.
std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Seconds of a clock that never goes back; its zero is arbitrary.
double steady_seconds();

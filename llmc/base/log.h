// What the program tells a person: one line at a time, flushed, so that it is seen through pipes and launchers.
//
// One rank speaks. Results and progress go to stdout, warnings and errors to stderr.
#pragma once

#include <cstdio>
#include <string>

class Log {
public:
    explicit Log(bool speaks = true, std::FILE* out = stdout, std::FILE* err = stderr)
        : out_(speaks ? out : nullptr), err_(speaks ? err : nullptr) {}

    bool speaks() const { return out_ != nullptr; }

    // As printf, with a line end added.
    void line(const char* format, ...) const __attribute__((format(printf, 2, 3)));
    // The same to stderr, with "warning: " in front.
    void warning(const char* format, ...) const __attribute__((format(printf, 2, 3)));
    // Whole blocks of lines (tables, samples).
    void block(const std::string& lines) const;

private:
    std::FILE* out_;
    std::FILE* err_;
};

// printf into a string.
std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Errors of the program: what went wrong, of which kind, and what to do about it.
//
// Every error a person can cause or meet (a wrong flag, a broken file, a missing device, a full disk) is thrown as an
// Error and reaches main, which prints it and exits with the code of its kind. Never an assert on data.
// A message says what was found, where (file, offset, flag), and what was expected; the hint says what to do.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

// The values are the program's exit codes (the names follow sysexits.h).
enum class ErrorKind : int {
    usage = 64,       // a wrong flag or value
    bad_data = 65,    // a file whose content is not what it should be
    no_device = 69,   // no such device, library or communicator
    bug = 70,         // an inconsistency inside the program
    io = 74,          // reading or writing failed
    resumable = 75,   // stopped early, but a later run can continue
};

class Error : public std::runtime_error {
public:
    Error(ErrorKind kind, std::string message, std::string hint = "")
        : std::runtime_error(hint.empty() ? message : message + "\n  " + hint),
          kind_(kind), message_(std::move(message)), hint_(std::move(hint)) {}

    ErrorKind kind() const { return kind_; }
    int exit_code() const { return static_cast<int>(kind_); }
    const std::string& message() const { return message_; }
    const std::string& hint() const { return hint_; }

private:
    ErrorKind kind_;
    std::string message_;
    std::string hint_;
};

// Concatenates its arguments as text: text("found ", n, " tokens").
template <class... Args>
std::string text(const Args&... args) {
    std::ostringstream out;
    out.precision(9);
    (out << ... << args);
    return out.str();
}

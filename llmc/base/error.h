// Errors of the program: what went wrong, of which kind, and what to do about it.
//
// Every error a person can cause or meet (a wrong flag, a broken file, a missing device, a full disk) is thrown as an
// Error and reaches main, which prints it and exits with the code of its kind. Data is never checked by an assert.
// A message says what was found, where (file, offset, flag), and what was expected; the hint says what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

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
    Error(ErrorKind kind, std::string message, std::string hint = "");

    ErrorKind kind() const { return kind_; }
    int exit_code() const { return static_cast<int>(kind_); }
    const std::string& message() const { return message_; }
    const std::string& hint() const { return hint_; }

private:
    ErrorKind kind_;
    std::string message_;
    std::string hint_;
};

// Throws Error(bug) for a condition of ENSURE (ensure.h) that does not hold.
[[noreturn]] void invariant_failed(const char* condition, const char* file, int line, const std::string& message);

// Appends one argument of text(). Defined in error.cpp: streams in this header would cost every file a second to
// compile.
void append_text(std::string& out, std::string_view value);
void append_text(std::string& out, char value);
void append_text(std::string& out, long long value);
void append_text(std::string& out, unsigned long long value);
void append_text(std::string& out, double value);   // 9 significant digits
void append_text(std::string& out, const void* value);

template <class Value>
void append_value(std::string& out, const Value& value) {
    if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
        append_text(out, std::string_view(value));
    } else if constexpr (std::is_same_v<Value, char>) {
        append_text(out, value);
    } else if constexpr (std::is_floating_point_v<Value>) {
        append_text(out, static_cast<double>(value));
    } else if constexpr (std::is_pointer_v<Value>) {
        append_text(out, static_cast<const void*>(value));
    } else if constexpr (std::is_unsigned_v<Value>) {
        append_text(out, static_cast<unsigned long long>(value));
    } else {
        static_assert(std::is_integral_v<Value> || std::is_enum_v<Value>, "text() knows strings, numbers and pointers");
        append_text(out, static_cast<long long>(value));
    }
}

// Concatenates its arguments as text: text("found ", n, " tokens").
template <class... Args>
std::string text(const Args&... args) {
    std::string out;
    (append_value(out, args), ...);
    return out;
}

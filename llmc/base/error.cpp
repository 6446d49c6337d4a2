#include "llmc/base/error.h"

#include <cstdint>
#include <cstdio>
#include <utility>

Error::Error(ErrorKind kind, std::string message, std::string hint)
    : std::runtime_error(hint.empty() ? message : message + "\n  " + hint),
      kind_(kind),
      message_(std::move(message)),
      hint_(std::move(hint)) {}

void invariant_failed(const char* condition, const char* file, int line, const std::string& message) {
    throw Error(ErrorKind::bug, text(file, ":", line, ": ", message, " (", condition, " does not hold)"),
                "This is a bug in the program, please report it with the command that shows it.");
}

void append_text(std::string& out, std::string_view value) { out += value; }
void append_text(std::string& out, char value) { out += value; }
void append_text(std::string& out, long long value) { out += std::to_string(value); }
void append_text(std::string& out, unsigned long long value) { out += std::to_string(value); }
void append_text(std::string& out, double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.9g", value);
    out += digits;
}
void append_text(std::string& out, const void* value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "0x%llx",
                  static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(value)));
    out += digits;
}

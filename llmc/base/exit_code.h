// The exit code and message of a program that ends with an exception, and a listener to warnings.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <system_error>

#include "llmc/base/error.h"
#include "llmc/base/printable.h"

inline bool lacks_memory(const std::exception& error) { return dynamic_cast<const std::bad_alloc*>(&error) != nullptr; }
inline bool lacks_thread(const std::exception& error) {
    const auto* of_system = dynamic_cast<const std::system_error*>(&error);
    return of_system != nullptr && of_system->code() == std::errc::resource_unavailable_try_again;
}

// Returns the code of an Error's kind; missing memory counts as no_device, a refusal by the file system as io, anything
// else as a bug.
inline int exit_code_of(const std::exception& error) {
    if (const auto* known = dynamic_cast<const Error*>(&error)) return known->exit_code();
    if (dynamic_cast<const std::filesystem::filesystem_error*>(&error)) return static_cast<int>(ErrorKind::io);
    return static_cast<int>(lacks_memory(error) || lacks_thread(error) ? ErrorKind::no_device : ErrorKind::bug);
}

// Returns the message for a person. It may quote files and command lines, so control characters are made visible
// (printable.h).
inline std::string words_of(const std::exception& error) {
    if (lacks_memory(error)) return "this machine has too little memory for what was asked";
    if (lacks_thread(error))
        return "no thread can be started: too little memory (ulimit -v), or too many processes (ulimit -u)";
    if (const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
        return printable(text(of_files->path1().string(), ": ", of_files->code().message()));
    }
    if (const auto* known = dynamic_cast<const Error*>(&error)) {   // error.what() would end at a NUL
        return printable(known->hint().empty() ? known->message() : known->message() + "\n  " + known->hint());
    }
    return printable(error.what());
}

// Calls `listener` with every Log::warning of this process, of whichever Log, while this object lives; at most one
// exists at a time. A run's report uses it.
class WarningListener {
public:
    explicit WarningListener(std::function<void(const std::string&)> listener);
    ~WarningListener();
    WarningListener(const WarningListener&) = delete;
    WarningListener& operator=(const WarningListener&) = delete;
};

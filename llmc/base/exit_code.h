// The exit code of a program that ends with an exception, its words, and who hears of warnings.
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

// Errors say it themselves; memory that does not suffice counts as a missing device, what the file system refuses as
// input/output, anything else is a bug.
inline int exit_code_of(const std::exception& error) {
    if (const auto* known = dynamic_cast<const Error*>(&error)) return known->exit_code();
    if (dynamic_cast<const std::filesystem::filesystem_error*>(&error)) return static_cast<int>(ErrorKind::io);
    return static_cast<int>(lacks_memory(error) || lacks_thread(error) ? ErrorKind::no_device : ErrorKind::bug);
}

// What it says to a person, on a terminal too: what was found in files and on command lines is shown, not obeyed.
inline std::string words_of(const std::exception& error) {
    if (lacks_memory(error)) return "this machine has too little memory for what was asked";
    if (lacks_thread(error))
        return "no thread can be started: too little memory (ulimit -v), or too many processes (ulimit -u)";
    if (const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
        return printable(text(of_files->path1().string(), ": ", of_files->code().message()));
    }
    if (const auto* known = dynamic_cast<const Error*>(&error)) {   // what() ends at a NUL
        return printable(known->hint().empty() ? known->message() : known->message() + "\n  " + known->hint());
    }
    return printable(error.what());
}

// Who is told of this process's warnings besides the person at stderr: its run's report.
// Hears all that Log::warning says, of whichever Log speaks, while it lives; one at a time.
class WarningListener {
public:
    explicit WarningListener(std::function<void(const std::string&)> listener);
    ~WarningListener();
    WarningListener(const WarningListener&) = delete;
    WarningListener& operator=(const WarningListener&) = delete;
};

// The exit code of a program that ends with an exception.
#pragma once

#include <exception>
#include <new>

#include "llmc/base/error.h"

// Errors say it themselves; memory that does not suffice counts as a missing device, anything else is a bug.
inline int exit_code_of(const std::exception& error) {
    if (const auto* known = dynamic_cast<const Error*>(&error)) return known->exit_code();
    const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    return static_cast<int>(no_memory ? ErrorKind::no_device : ErrorKind::bug);
}

// Refusing what a person asks for and cannot be. The words are made in any case, so they hold nothing that costs.
#pragma once

#include "llmc/base/error.h"

// Error(usage).
inline void refuse_if(bool wrong, const std::string& message, const std::string& hint = "") {
    if (wrong) throw Error(ErrorKind::usage, message, hint);
}

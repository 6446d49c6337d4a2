// Refuses impossible requests of a person. The message is built in any case, so keep it cheap.
#pragma once

#include "llmc/base/error.h"

// Throws Error(usage) if `wrong`.
inline void refuse_if(bool wrong, const std::string& message, const std::string& hint = "") {
    if (wrong) throw Error(ErrorKind::usage, message, hint);
}

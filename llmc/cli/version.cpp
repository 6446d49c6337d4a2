#include "llmc/cli/version.h"

#include "llmc/base/error.h"
#include "llmc/model/precision.h"

#ifndef PROGRAM_VERSION
#define PROGRAM_VERSION "built without make"
#endif

std::string version_text() { return text("train_gpt ", PROGRAM_VERSION, ", ", precision_name); }

// The stand-in's answer to llmc/base/stand_in.h.
#pragma once

#include "llmc/base/stand_in.h"

namespace host {

StandIn& services();

}   // namespace host

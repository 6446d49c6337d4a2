// Static __shared__ variables, found by their names in the program's symbol table.
#pragma once

namespace host {

// Fills the calling thread's copies of all static __shared__ variables with `byte`. Does nothing in a stripped program.
void fill_static_shared(unsigned char byte);

}   // namespace host

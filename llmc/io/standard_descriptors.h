// Opens the standard descriptors that whoever started the program has closed (`program >&-`, some service managers).
//
// The kernel gives a new file or connection the lowest free number. With descriptor 1 closed that can be a connection
// between ranks or a lock file, and what the program prints is written into it. So main() of every program calls this
// first; no static initialiser may open a file.
#pragma once

// Opens those of the descriptors 0, 1 and 2 that are closed on /dev/null. Where that fails, it ends the program with
// the exit code of Error(io).
void open_standard_descriptors();

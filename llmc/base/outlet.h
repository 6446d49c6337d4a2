// Text on its way to stdout or stderr. A reader that does not read (a terminal held by Ctrl-S, a log collector that is
// stuck) holds up nobody: a thread writes what waits, and what does not fit is counted and told.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string_view>

// Writes to a stream: at once, as long as its reader reads. Otherwise the text waits in a queue, in order; beyond
// `kOutletBytes` lines are left out until the queue is empty, and one line then tells how many. A regular file is
// written directly. What is written to a file that is closed is lost, as with printf.
void put_text(std::FILE* file, std::string_view content);

inline constexpr std::size_t kOutletBytes = std::size_t{1} << 20;   // that wait at most, for one reader

// Waits until nothing waits any more, as long as readers read: gives up after two seconds in which they took nothing.
// Runs by itself when the program exits.
void await_readers();

// Git LFS keeps large files elsewhere. A checkout that has not fetched one has a pointer in its place: some lines of
// text.
#pragma once

#include <string>
#include <string_view>

#include "llmc/io/file.h"

// Throws Error(bad_data) where a file that begins so is such a pointer. `beginning`: its first 64 bytes, or more.
void refuse_lfs_pointer(const std::string& path, std::string_view beginning);
void refuse_lfs_pointer(const File& file);

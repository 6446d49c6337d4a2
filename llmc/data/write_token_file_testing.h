// Small token files for tests; shard_writer.h writes those of the tokenize tool.
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "llmc/base/error.h"
#include "llmc/data/token_file.h"

// All of it or none. Ids that the format cannot hold are Error(bad_data).
inline void write_token_file(FileSystem& files, const std::string& path, TokenFormat format,
                             std::span<const std::uint32_t> ids) {
    const auto header = token_file_header(format, ids.size());
    std::string content(kTokenHeaderBytes + ids.size() * bytes_per_token(format), '\0');
    std::memcpy(content.data(), header.data(), kTokenHeaderBytes);
    for (std::size_t i = 0; i < ids.size(); i++) {
        const std::uint64_t width = bytes_per_token(format);
        if (width == 2 && ids[i] > 65535) {
            throw Error(ErrorKind::bad_data,
                        text(path, ": token ", i, " has id ", ids[i], ", uint16 holds up to 65535"));
        }
        std::memcpy(content.data() + kTokenHeaderBytes + width * i, &ids[i], width);   // little-endian
    }
    write_whole(files, path, content);
}

// Compresses texts for tests, where there is zlib.
#pragma once

#ifdef USE_ZLIB
#include <doctest/doctest.h>
#include <zlib.h>

#include <string>

inline std::string by_gzip(const std::string& content) {
    z_stream state{};
    REQUIRE(deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    std::string out(deflateBound(&state, content.size()), '\0');
    state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
    state.avail_in = static_cast<uInt>(content.size());
    state.next_out = reinterpret_cast<Bytef*>(out.data());
    state.avail_out = static_cast<uInt>(out.size());
    REQUIRE(deflate(&state, Z_FINISH) == Z_STREAM_END);
    out.resize(state.total_out);
    deflateEnd(&state);
    return out;
}
#endif

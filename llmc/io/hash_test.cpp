#include "llmc/io/hash.h"

#include <doctest/doctest.h>

#include <stdexcept>

TEST_CASE("hash: known answers of xxh3, in one piece and in several") {
    CHECK(hash64("") == 0x2d06800538d394c2ull);   // xxHash's own test vector, seed 0
    Hash64 pieces;
    std::string content(1000, 'x');
    for (int i = 0; i < 10; i++) pieces.update(content.data() + 100 * i, 100);
    CHECK(pieces.digest() == hash64(content));
    CHECK(Hash64().digest_128() == "99aa06d3014798d86001c324468d497f");   // as above
    Hash64 whole;
    whole.update(content.data(), content.size());
    CHECK(pieces.digest_128() == whole.digest_128());
    CHECK(pieces.digest_128().size() == 32);
    pieces.update("y", 1);
    CHECK(pieces.digest() == hash64(content + "y"));
}

TEST_CASE("hash: text form goes both ways and refuses the rest") {
    CHECK(hash_to_text(0x12abull) == "00000000000012ab");
    CHECK(hash_from_text("00000000000012ab") == 0x12abull);
    for (const char* wrong : {"", "12ab", "00000000000012ag", "0x000000000012ab", "00000000000012ab0"}) {
        CHECK_THROWS_AS(hash_from_text(wrong), std::invalid_argument);
    }
}

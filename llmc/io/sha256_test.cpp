#include "llmc/io/sha256.h"

#include <doctest/doctest.h>

TEST_CASE("sha256: the examples of FIPS 180, and every length around a block") {
    CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    std::string chain;   // of the lengths 0 to 263; the end was computed by Python's hashlib
    for (std::size_t n = 0; n < 200; n++) chain = sha256(chain + std::string(n, 'x'));
    CHECK(chain == "17e907d803d8884243414b4e18d18acd5f8eacdc3941a8585b8d96940a81509c");
}

TEST_CASE("hmac: the test cases of RFC 4231, and every length of a key around a block") {
    std::string one_to_25;
    for (char byte = 1; byte <= 25; byte++) one_to_25 += byte;
    const std::string long_key(131, '\xaa');
    CHECK(hmac_sha256(std::string(20, '\x0b'), "Hi There") ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(hmac_sha256("Jefe", "what do ya want for nothing?") ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
          "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    CHECK(hmac_sha256(one_to_25, std::string(50, '\xcd')) ==
          "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    CHECK(hmac_sha256(std::string(20, '\x0c'), "Test With Truncation").starts_with("a3b6167473100ee06e0c796c2955552b"));
    CHECK(hmac_sha256(long_key, "Test Using Larger Than Block-Size Key - Hash Key First") ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    CHECK(hmac_sha256(long_key,
                      "This is a test using a larger than block-size key and a larger than block-size data. The key "
                      "needs to be hashed before being used by the HMAC algorithm.") ==
          "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
    std::string chain;   // the end was computed by Python's hmac
    for (std::size_t n = 0; n < 200; n++) chain = hmac_sha256(std::string(n, 'k'), chain + std::string(n, 'x'));
    CHECK(chain == "a1c6b6acb049398f3d75db0f3774bec079794c208e8cb2adbb139e45a12e67b3");
}

TEST_CASE("equal_in_constant_time: equal texts alone") {
    CHECK(equal_in_constant_time("", ""));
    CHECK(equal_in_constant_time("abc", "abc"));
    for (const char* other : {"", "ab", "abcd", "Abc", "abC", "\xff\xff\xff"}) {
        CHECK(!equal_in_constant_time("abc", other));
    }
}

// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), of short texts: by them a process proves that it knows a secret
// without sending it. For the hashes of files see hash.h, which is faster and finds accidents only.
#pragma once

#include <string>
#include <string_view>

// Each returns 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);
std::string hmac_sha256(std::string_view key, std::string_view message);

// Compares in a time that depends on the lengths alone, so that a peer cannot learn from the time how much of a guess
// is right.
bool equal_in_constant_time(std::string_view a, std::string_view b);

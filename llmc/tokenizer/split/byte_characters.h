// Spells bytes in printable characters, as GPT-2's files do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Returns GPT-2's printable character for a byte, as vocab.bpe and tokenizer.json spell it: byte -> code point.
std::uint32_t byte_to_character(unsigned char byte);
std::string to_characters(std::string_view bytes);   // in UTF-8
// Reads such characters. False when one stands for no byte; `bytes` then holds what came before it.
bool from_characters(std::string_view characters, std::string& bytes);

// Returns the byte that a token of SentencePiece's vocabularies stands for: <0x00> to <0xFF>.
std::optional<unsigned char> byte_of_token(std::string_view characters);

// Reads and writes the tokenizer files of other programs.
//
//   vocab.bpe          GPT-2's merges: a line "#version: ...", then two tokens a line, in the bytes-as-characters
//                      spelling of GPT-2; ids follow from the order. encoder.json beside it is checked against it.
//   merges.txt         another name of it; it must have its vocab.json, which is encoder.json
//   *.tiktoken,        tiktoken's ranks: per line a token in base64, a space, its id. The split rule and the special
//   tokenizer.model    tokens are not in the file; they follow from the number of ranks (GPT-2, cl100k, Llama-3).
//   tokenizer.json     Hugging Face: byte-level BPE, or BPE of characters with byte_fallback; its normalizers, pattern,
//                      merges and added tokens.
//   tokenizer.bin      llm.c: 256 little-endian int32 (magic 20240328, version 2, vocabulary size, end-of-text id),
//                      then per token a length byte and the bytes; enough to decode.
//
// Every reader takes the content and the name it goes by in messages, and throws Error bad_data with name and offset.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/io/file.h"
#include "llmc/tokenizer/split/byte_characters.h"
#include "llmc/tokenizer/tokenizer.h"

TokenizerData parse_gpt2_merges(std::string_view content, const std::string& name);
// Checks that encoder.json gives every token of `data` its id.
void check_gpt2_ids(const TokenizerData& data, std::string_view content, const std::string& name);
TokenizerData parse_tiktoken_ranks(std::string_view content, const std::string& name);
TokenizerData parse_huggingface(std::string_view content, const std::string& name);
TokenizerData parse_llmc_tokenizer(std::string_view content, const std::string& name);
bool is_llmc_tokenizer(std::string_view content);   // begins with its magic number

// Load a tokenizer.json, or a tokenizer.bin, with what the files beside it say of texts. Throw Error io, too.
TokenizerData load_huggingface(const FileSystem& files, const std::string& path);
TokenizerData load_llmc_tokenizer(const FileSystem& files, const std::string& path);

// Reads a model's files on its texts, besides the tokenizer: generation_config.json, config.json and
// tokenizer_config.json name the tokens that begin, end and pad a text. The first file that names one counts; null, and
// an id that no token has, name none; `data.unknown_eos` says where that leaves out an eos. All but config.json are
// kept as they are, with chat_template.jinja and special_tokens_map.json. Several ends of text: the one called like an
// end of documents separates documents, else the first, unless the tokenizer's own file says which.
void read_special_ids(const FileSystem& files, const std::string& folder, TokenizerData& data);
inline constexpr const char* kept_file_names[] = {"generation_config.json", "tokenizer_config.json",
                                                  "special_tokens_map.json", "chat_template.jinja"};
// Returns the ids for a tokenizer without such files: the token that separates documents; in a vocabulary like
// Llama-3's, where that is the one that begins a text, <|end_of_text|> ends one too.
SpecialIds usual_special_ids(const TokenizerData& data);
// Returns the files to write beside a tokenizer, as names and contents: those kept, and a generation_config.json with
// all ids: its own, but where they name no token those of the tokenizer.
std::vector<std::pair<std::string, std::string>> files_on_texts(const TokenizerData& data);
// Returns the ids for other programs' files: a number, or a list where there are several.
Json json_of(const std::vector<std::uint32_t>& ids);

std::string to_tiktoken_ranks(const TokenizerData& data);   // without special tokens
std::string to_huggingface(const TokenizerData& data);
std::string to_llmc_tokenizer(const TokenizerData& data);

// Returns the bytes that no ordinary token stands for, so that not every text can be encoded.
std::vector<int> missing_bytes(const TokenizerData& data);

[[noreturn]] void malformed_tokenizer(const std::string& name, std::size_t offset, const std::string& what);

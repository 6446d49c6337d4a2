// Tests the tokens that begin, end and pad texts: read from a model's files in their order, kept, and written so that
// they are read again.

#include <doctest/doctest.h>

#include <functional>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/tokenizer/files/files.h"
#include "llmc/tokenizer/text_ids.h"

namespace {

using Files = std::vector<std::pair<std::string, std::string>>;
using Ids = std::vector<std::uint32_t>;

// Bytes, and special tokens from id 256 on.
TokenizerData with_tokens(const std::vector<std::string>& added) {
    TokenizerData data = Tokenizer::bytes().data();
    data.tokens.resize(256);
    data.special = {};
    for (const std::string& token : added) data.tokens.push_back(token);
    data.is_special.resize(256);
    data.is_special.resize(data.tokens.size(), 1);
    return data;
}

void write_files(const TemporaryFolder& folder, const TokenizerData& data, const Files& files) {
    write_whole(real_files(), folder / "tokenizer.json", to_huggingface(data));
    for (const auto& [name, content] : files) write_whole(real_files(), folder / name, content);
}

Tokenizer loaded(const std::vector<std::string>& added, const Files& files) {
    const TemporaryFolder folder;
    write_files(folder, with_tokens(added), files);
    return Tokenizer::load(folder.path());
}

std::string complaint(const std::function<void()>& action) {
    try {
        action();
        return "";
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::bad_data);
        return error.message();
    }
}

const std::vector<std::string> llama3 = {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"};
const std::vector<std::string> qwen3 = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

}   // namespace

TEST_CASE("special_ids: generation_config.json, config.json, tokenizer_config.json: the first that says one counts") {
    const std::string generation = "generation_config.json", config = "config.json",
                      tokenizer = "tokenizer_config.json";
    auto ids = [](const Files& files) { return loaded(llama3, files).special(); };
    CHECK(ids({{generation, R"({"eos_token_id": 257, "bos_token_id": 256})"},
               {config, R"({"eos_token_id": 259, "bos_token_id": 258, "pad_token_id": 258})"}}) ==
          SpecialIds{256, 258, {257}});
    CHECK(ids({{generation, R"({"eos_token_id": [259, 257]})"}, {tokenizer, R"({"eos_token": "<|end_of_text|>"})"}}) ==
          SpecialIds{{}, {}, {259, 257}});
    CHECK(ids({{generation, R"({"eos_token_id": null, "pad_token_id": -1})"}, {config, R"({"eos_token_id": 259})"}})
              .eos == Ids{259});
    CHECK(ids({{tokenizer, R"({"bos_token": {"content": "<|begin_of_text|>", "lstrip": false}, "eos_token":
                              "<|eot_id|>", "pad_token": null})"}}) == SpecialIds{256, {}, {259}});
    // ids that no token has, as in files with defaults of another vocabulary, say nothing
    CHECK(ids({{config, R"({"eos_token_id": 50256})"}, {tokenizer, R"({"eos_token": "<|eot_id|>"})"}}).eos == Ids{259});
    CHECK(ids({{config, R"({"eos_token_id": [50256, 257]})"}}).eos == Ids{257});
    CHECK(ids({{tokenizer, R"({"eos_token": "</s>"})"}}) == ids({}));
    // without an end of texts what the files do say counts all the same, and the end is the usual one
    CHECK(ids({{tokenizer, R"({"bos_token": "<|start_header_id|>"})"}}) == SpecialIds{258, {}, {257, 256}});
    CHECK(ids({{generation, R"({"pad_token_id": 259})"}}) == SpecialIds{{}, 259, {257, 256}});
    CHECK(ids({{config, R"({"bos_token_id": 258, "pad_token_id": 259, "eos_token_id": 50256})"}}) ==
          SpecialIds{258, 259, {257, 256}});
    CHECK(ids({{tokenizer, R"({"eos_token": "</s>", "pad_token": "</s>"})"}}) == ids({}));
}

TEST_CASE(
    "special_ids: an eos that no token has is told with its file, unless another file names one that is a token") {
    auto told = [](const Files& files) { return warning_of_unknown_eos(loaded(llama3, files)); };
    const std::string id = R"({"eos_token_id": 50256})", tokenizer = "tokenizer_config.json";
    CHECK(told({{"config.json", id}})
              .ends_with("/config.json: offset 17: eos_token_id: no token has the id 50256, of 260 ids; texts end with "
                         "<|end_of_text|><|begin_of_text|>"));
    CHECK(told({{tokenizer, R"({"eos_token": {"content": "</s>"}})"}})
              .find("tokenizer_config.json: offset 26: eos_token: no token has the name \"</s>\"") !=
          std::string::npos);
    CHECK(told({{"config.json", R"({"eos_token_id": [50256, 257]})"}}).ends_with("; texts end with <|end_of_text|>"));
    CHECK(told({{"generation_config.json", id}, {tokenizer, R"({"eos_token": "</s>"})"}})
              .find("generation_config.json") != std::string::npos);
    CHECK(told({{"config.json", id}, {tokenizer, R"({"eos_token": "<|eot_id|>"})"}}).empty());
    CHECK(told({{"generation_config.json", R"({"eos_token_id": 257})"}, {"config.json", id}}).empty());
    CHECK(told({{"config.json", R"({"eos_token_id": -1, "bos_token_id": 50256})"}}).empty());
}

TEST_CASE("special_ids: documents are separated by the model's own end of text") {
    auto separator = [](const std::vector<std::string>& added, const std::string& eos) {
        const Tokenizer tokenizer = loaded(added, {{"generation_config.json", "{\"eos_token_id\": " + eos + "}"}});
        return tokenizer.data().tokens[tokenizer.end_of_text()];
    };
    CHECK(separator(llama3, "257") == "<|end_of_text|>");
    CHECK(separator(llama3, "[257, 258, 259]") == "<|end_of_text|>");
    CHECK(separator(llama3, "[259, 257]") == "<|end_of_text|>");
    CHECK(separator(llama3, "259") == "<|eot_id|>");
    CHECK(separator(qwen3, "[258, 256]") == "<|endoftext|>");
    CHECK(separator({"<|pad|>", "<|eos|>"}, "257") == "<|eos|>");
    CHECK(separator({"<|pad|>", "<|stop|>", "<|other|>"}, "[257]") == "<|stop|>");
    // no file says it: the name does
    CHECK(loaded({"<|pad|>", "<|eos|>"}, {}).end_of_text() == 257);
    CHECK(loaded(llama3, {}).special() == SpecialIds{256, {}, {257, 256}});
    CHECK(loaded(qwen3, {}).special() == SpecialIds{256, {}, {256}});
}

TEST_CASE("special_ids: a text ends at every eos and before the next document") {
    const Tokenizer chat = loaded(qwen3, {{"generation_config.json", R"({"eos_token_id": [258, 256]})"}});
    for (std::uint32_t id = 0; id < 259; id++) CHECK(chat.ends_text(id) == (id == 256 || id == 258));
    const Tokenizer alone = loaded(llama3, {});
    for (std::uint32_t id = 0; id < 260; id++) CHECK(alone.ends_text(id) == (id == 256 || id == 257));
}

TEST_CASE("special_ids: saved and loaded again they are the same, and the files that say them the same bytes") {
    const Files said[] = {
        {{"generation_config.json", "{\"eos_token_id\": [259, 257], \"bos_token_id\": 256, \"top_p\": 0.90}"},
         {"tokenizer_config.json", "{\"chat_template\": \"{{ messages }}\",\n  \"eos_token\": \"<|eot_id|>\"}"},
         {"special_tokens_map.json", "{\"eos_token\": \"<|eot_id|>\"}"},
         {"chat_template.jinja", "{% for m in messages %}"}},
        {{"config.json", R"({"eos_token_id": [259, 257], "bos_token_id": null, "pad_token_id": 258})"}},
        {{"config.json", R"({"eos_token_id": 259})"}, {"generation_config.json", R"({"temperature": 0.6})"}},
        {{"config.json", R"({"bos_token_id": 258, "pad_token_id": 259})"}},
        {{"config.json", R"({"pad_token_id": 256})"}},
        {},
    };
    for (const Files& files : said) {
        const TemporaryFolder first, second;
        write_files(first, with_tokens(llama3), files);
        const Tokenizer tokenizer = Tokenizer::load(first.path());
        tokenizer.save(second.path());
        for (const char* name : {"", "/tokenizer.json", "/tokenizer.bin"}) {
            const Tokenizer again = Tokenizer::load(second.path() + name);
            CHECK(again.special() == tokenizer.special());
            CHECK(again.hash() == tokenizer.hash());
        }
        for (const auto& [name, content] : files) {
            const bool all_said = content.find("top_p") != std::string::npos || name == "tokenizer_config.json" ||
                                  name == "special_tokens_map.json" || name == "chat_template.jinja";
            if (all_said) CHECK(read_whole(real_files(), second / name) == content);
        }
        CHECK(real_files().exists(second / "generation_config.json") == !files.empty());
    }
}

TEST_CASE("special_ids: a generation_config.json that leaves ids open gets them, and keeps the rest") {
    const TemporaryFolder first, second;
    write_files(first, with_tokens(llama3),
                {{"generation_config.json", R"({"temperature": 0.6, "eos_token_id": null})"},
                 {"config.json", R"({"eos_token_id": [259, 257], "bos_token_id": 256})"}});
    Tokenizer::load(first.path()).save(second.path());
    const Json written = parse_json(read_whole(real_files(), second / "generation_config.json"));
    CHECK(written == parse_json(R"({"temperature": 0.6, "eos_token_id": [259, 257], "bos_token_id": 256})"));
}

TEST_CASE("special_ids: an id in generation_config.json that says nothing gives way to the one that counts") {
    const std::string config = R"({"eos_token_id": [259, 257], "bos_token_id": 256, "pad_token_id": 258})";
    auto saved = [&](const std::string& generation, const std::string& other) {
        const TemporaryFolder first, second;
        write_files(first, with_tokens(llama3), {{"generation_config.json", generation}, {"config.json", other}});
        const Tokenizer tokenizer = Tokenizer::load(first.path());
        tokenizer.save(second.path());
        CHECK_MESSAGE(Tokenizer::load(second.path()).special() == tokenizer.special(), generation);
        return read_whole(real_files(), second / "generation_config.json");
    };
    for (const char* nothing : {"-1", "null", "50256", "[50256, 128001]", "[]", "[-1]"}) {
        for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"}) {
            CAPTURE(nothing);
            CAPTURE(key);
            const Json written = parse_json(saved(text("{\"", key, "\": ", nothing, "}"), config));
            const Json expected = parse_json(config);
            CHECK(written.at(key) == expected.at(key));
        }
    }
    // one id of several that a token has is enough; and where nothing else says one, the file stays as it is
    const Json written = parse_json(saved(R"({"eos_token_id": [50256, 257]})", config));
    CHECK(written.at("eos_token_id") == parse_json("[50256, 257]"));
    const std::string complete = R"({"eos_token_id": 257, "bos_token_id": -1, "pad_token_id": 50256})";
    CHECK(saved(complete, "{}") == complete);
}

TEST_CASE("special_ids: a tokenizer that is saved over another one leaves none of its files") {
    const Tokenizer model =
        loaded(llama3, {{"generation_config.json", "{\"eos_token_id\": [259, 257], \"top_p\": 0.9}"},
                        {"tokenizer_config.json", "{\"eos_token\": \"<|eot_id|>\"}"},
                        {"special_tokens_map.json", "{}"},
                        {"chat_template.jinja", "{% for m in messages %}"}});
    const Tokenizer next[] = {
        Tokenizer::bytes(),
        loaded(qwen3, {}),
        loaded(llama3, {{"config.json", R"({"eos_token_id": 259})"}}),
        loaded(qwen3, {{"generation_config.json", R"({"eos_token_id": [258, 256]})"}, {"chat_template.jinja", "x"}}),
        Tokenizer(parse_llmc_tokenizer(to_llmc_tokenizer(with_tokens(qwen3)), "tokenizer.bin")),
        model};
    for (const Tokenizer& tokenizer : next) {
        const TemporaryFolder folder, alone;
        model.save(folder.path());
        const std::vector<std::string> names = tokenizer.save(folder.path());
        tokenizer.save(alone.path());
        CHECK(real_files().list(folder.path()) == real_files().list(alone.path()));
        CHECK(names.size() == real_files().list(folder.path()).size());
        const Tokenizer again = Tokenizer::load(folder.path());
        CHECK(again.hash() == tokenizer.hash());
        CHECK(again.special() == tokenizer.special());
        CHECK(again.data().can_encode == tokenizer.data().can_encode);
    }
    // and nothing that is not a tokenizer's
    const TemporaryFolder folder;
    for (const char* name : {"notes.json", "config.json", "vocab.bpe"}) write_whole(real_files(), folder / name, "{}");
    Tokenizer::bytes().save(folder.path());
    CHECK(real_files().list(folder.path()).size() == 5);
}

TEST_CASE("special_ids: a tokenizer.bin beside a tokenizer.json says what separates documents") {
    const TemporaryFolder folder;
    TokenizerData data = with_tokens(llama3);
    data.end_of_text = 256;
    write_files(folder, data, {{"config.json", R"({"eos_token_id": 257})"}});
    CHECK(Tokenizer::load(folder.path()).end_of_text() == 257);
    write_whole(real_files(), folder / "tokenizer.bin", to_llmc_tokenizer(data));
    CHECK(Tokenizer::load(folder.path()).end_of_text() == 256);
    CHECK(Tokenizer::load(folder.path()).special().eos == Ids{257});
    // but not one of another vocabulary
    write_whole(real_files(), folder / "tokenizer.bin", to_llmc_tokenizer(Tokenizer::bytes().data()));
    CHECK(Tokenizer::load(folder.path()).end_of_text() == 257);
    // nor one with as many other tokens, nor another program's file of that name
    TokenizerData other = data;
    std::swap(other.tokens[257], other.tokens[259]);
    write_whole(real_files(), folder / "tokenizer.bin", to_llmc_tokenizer(other));
    CHECK(Tokenizer::load(folder.path()).end_of_text() == 257);
    for (const std::string& foreign : {std::string(), std::string("\x1b\0", 2),
                                       std::string("\x1b\0\0\0\0\0\0", 7) + "<unk>", std::string(2000, 'x')}) {
        write_whole(real_files(), folder / "tokenizer.bin", foreign);
        CHECK(Tokenizer::load(folder.path()).end_of_text() == 257);
    }
    // a damaged one of ours is told
    write_whole(real_files(), folder / "tokenizer.bin", to_llmc_tokenizer(data).substr(0, 1500));
    CHECK(complaint([&] { Tokenizer::load(folder.path()); }).find("tokenizer.bin: offset ") != std::string::npos);
    // tokens of more than 255 bytes are cut there
    data.tokens[258] = std::string(300, 'x');
    write_files(folder, data, {});
    write_whole(real_files(), folder / "tokenizer.bin", to_llmc_tokenizer(data));
    CHECK(Tokenizer::load(folder.path()).end_of_text() == 256);
}

TEST_CASE("special_ids: what a post-processor puts in front of a text") {
    const std::string sequence = R"({"Sequence": {"id": "A", "type_id": 0}})";
    auto token = [](const std::string& name) { return R"({"SpecialToken": {"id": ")" + name + R"(", "type_id": 0}})"; };
    auto template_of = [&](const std::string& single) {
        return R"({"type": "TemplateProcessing", "single": [)" + single +
               R"(], "pair": [], "special_tokens": {"b": {"id": "b", "ids": [256], "tokens": ["<|begin_of_text|>"]},
                  "two": {"id": "two", "ids": [258, 259], "tokens": ["", ""]}, "x": {"id": "x", "ids": [999], "tokens": [""]}}})";
    };
    auto front = [&](const std::string& post) {
        TokenizerData data = with_tokens(llama3);
        data.post_processor = post;
        return parse_huggingface(to_huggingface(data), "tokenizer.json").front;
    };
    const std::string bytes =
        R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})";
    CHECK(front("null").empty());
    CHECK(front(bytes).empty());
    CHECK(front(template_of(token("b") + "," + sequence)) == Ids{256});
    CHECK(front(template_of(token("b") + "," + token("two") + "," + sequence + "," + token("b"))) ==
          Ids{256, 258, 259});
    CHECK(front(template_of(sequence + "," + token("b"))).empty());
    CHECK(front(R"({"type": "Sequence", "processors": [)" + bytes + "," + template_of(token("b") + "," + sequence) +
                "]}") == Ids{256});
    CHECK(complaint([&] { front(template_of(token("none") + "," + sequence)); }).find("/post_processor") !=
          std::string::npos);
    CHECK(complaint([&] { front(template_of(token("x") + "," + sequence)); }).find("no token has the id 999") !=
          std::string::npos);
}

TEST_CASE("special_ids: every kind of post-processor that adds tokens around a text") {
    const std::string pair = R"(["<|begin_of_text|>", 256])", end = R"(["<|eot_id|>", 259])";
    auto read = [&](const std::string& post) {
        TokenizerData data = with_tokens(llama3);
        data.post_processor = post;
        return parse_huggingface(to_huggingface(data), "tokenizer.json");
    };
    auto classic = [](const std::string& type, const std::string& cls, const std::string& sep) {
        return R"({"type": ")" + type + R"(", "cls": )" + cls + R"(, "sep": )" + sep + "}";
    };
    auto template_of = [](const std::string& single) {
        return R"({"type": "TemplateProcessing", "single": [)" + single +
               R"(], "pair": [], "special_tokens": {"b": {"id": "b", "ids": [256], "tokens": ["<|begin_of_text|>"]},
                  "e": {"id": "e", "ids": [259], "tokens": ["<|eot_id|>"]}}})";
    };
    auto sequence = [](const std::string& a, const std::string& b) {
        return R"({"type": "Sequence", "processors": [)" + a + "," + b + "]}";
    };
    const std::string b = R"({"SpecialToken": {"id": "b"}})", e = R"({"SpecialToken": {"id": "e"}})",
                      whole = R"({"Sequence": {"id": "A"}})", bytes = R"({"type": "ByteLevel"})";
    for (const std::string& post :
         {template_of(b + "," + whole + "," + e), classic("BertProcessing", pair, end),
          classic("RobertaProcessing", pair, end), sequence(bytes, classic("RobertaProcessing", pair, end)),
          sequence(template_of(b + "," + whole + "," + e), bytes),
          sequence(template_of(whole), template_of(b + "," + whole + "," + e))}) {
        CAPTURE(post);
        CHECK(read(post).front == Ids{256});
        CHECK(read(post).back == Ids{259});
    }
    CHECK(read(template_of(whole + "," + e)).front.empty());
    CHECK(read(template_of(whole + "," + e)).back == Ids{259});
    auto refused = [&](const std::string& post, const char* why) {
        const std::string message = complaint([&] { read(post); });
        CHECK_MESSAGE(message.find(why) != std::string::npos, message);
        CHECK(message.find("/post_processor") != std::string::npos);
    };
    refused(sequence(template_of(b + "," + whole), template_of(b + "," + whole)), "two steps that add tokens");
    refused(sequence(template_of(whole + "," + e), classic("BertProcessing", pair, end)), "two steps that add tokens");
    refused(template_of(whole + "," + whole), "a template that has the text twice");
    refused(classic("BertProcessing", "[]", end), "cls: expected a token and its id");
    refused(classic("RobertaProcessing", pair, R"(["<|eot_id|>", 999])"), "no token has the id 999");
}

TEST_CASE("special_ids: files that are no JSON, or say something else than ids, are refused by name and offset") {
    auto refused = [&](const char* name, const std::string& content) {
        return complaint([&] { loaded(llama3, {{name, content}}); });
    };
    auto has = [](const std::string& message, const std::string& part) {
        CAPTURE(message);
        CHECK(message.find(part) != std::string::npos);
    };
    has(refused("generation_config.json", "{"), "generation_config.json: offset ");
    has(refused("config.json", "[]"), "config.json: offset 0: ");
    has(refused("generation_config.json", R"({"eos_token_id": "257"})"),
        "offset 17: eos_token_id: \"257\" is not a token id");
    has(refused("config.json", R"({"eos_token_id": [257, 1.5]})"), "config.json: offset 23: ");
    has(refused("config.json", R"({"bos_token_id": -2})"), "config.json: offset 17: ");
    has(refused("tokenizer_config.json", R"({"eos_token": 257})"), "tokenizer_config.json: offset 14: ");
}

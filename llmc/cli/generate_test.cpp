#include "llmc/cli/generate.h"

#include <doctest/doctest.h>

#include "llmc/base/rng.h"
#include "llmc/base/stream.h"
#include "llmc/model/weights.h"
#include "llmc/run/evaluation/sampler.h"
#include "llmc/tokenizer/tokenizer.h"

namespace {

struct SmallDecoder {
    OwnedStream stream;
    Arena arena;
    Decoder decoder;

    explicit SmallDecoder(int positions) : decoder(custom_model_config(2, 2, 32, positions, 97), arena, stream.get()) {
        initialize_parameters(decoder.parameters(), 1, stream.get());
        // larger than at the start of a training, so that what was read before matters
        const ParamTable& table = decoder.parameters().storage().table();
        for (int p = 0; p < table.size(); p++) {
            const ParamInfo& param = table[p];
            if (!param.is_matrix()) continue;
            std::vector<float> values(static_cast<std::size_t>(param.tensor.elements()));
            for (std::size_t i = 0; i < static_cast<std::size_t>(param.exported_elements()); i++) {
                values[i] = 0.3f * normal(mix64(param.random_tensor()), i);
            }
            upload_tensor<floatX>(decoder.parameters(), p, values, stream.get());
        }
    }

    std::vector<int> write(const std::vector<std::int32_t>& prompt, const Continuation& how) {
        decoder.forget();
        std::vector<int> written;
        const int count = continue_text(decoder, prompt, how, [&](int token) { written.push_back(token); });
        CHECK(count == static_cast<int>(written.size()));
        return written;
    }
    // The likeliest next tokens where each costs a pass over all that the model may see: the last `window(n)` of n.
    template <class Window>
    std::vector<int> write_without_cache(std::vector<std::int32_t> tokens, int count, Window window) {
        std::vector<int> written;
        for (int i = 0; i < count; i++) {
            decoder.forget();
            const std::span<const std::int32_t> all(tokens);
            written.push_back(choose_token(decoder.read(all.last(window(all.size()))), {0.0f}, 1.0f));
            tokens.push_back(written.back());
        }
        return written;
    }
};

std::vector<std::int32_t> some_tokens(std::size_t count) {
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < count; i++) tokens.push_back(static_cast<std::int32_t>(mix64(i) % 97));
    return tokens;
}

Continuation likeliest(int tokens) {
    Continuation how;
    how.tokens = tokens;
    how.choice.temperature = 0.0f;
    return how;
}

}   // namespace

TEST_CASE("generate: with kept keys and values the text is that of a whole pass for every token") {
    SmallDecoder model(320);
    for (std::size_t prompt : {1u, 40u, 200u}) {   // more than the decoder reads at once, too
        const std::vector<int> written = model.write(some_tokens(prompt), likeliest(60));
        CHECK(written == model.write_without_cache(some_tokens(prompt), 60, [](std::size_t n) { return n; }));
        CHECK(std::vector<int>(written.begin() + 10, written.end()) != std::vector<int>(50, written[10]));
    }
}

TEST_CASE("generate: when the model's positions are full, the last half is read again") {
    SmallDecoder model(32);
    auto window = [](std::size_t n) { return n <= 32 ? n : 16 + (n - 33) % 17; };   // 16, and one more each token to 32
    CHECK(model.write(some_tokens(20), likeliest(80)) == model.write_without_cache(some_tokens(20), 80, window));
    CHECK(model.write(some_tokens(33), likeliest(5)) == model.write_without_cache(some_tokens(33), 5, window));
}

TEST_CASE("generate: a text is a function of the seed, ends where it is told to, and keeps to the ids it may draw") {
    SmallDecoder model(64);
    Continuation how;
    how.tokens = 50;
    const std::vector<int> one = model.write({5}, how);
    CHECK(one.size() == 50);
    CHECK(one == model.write({5}, how));
    how.seed = 43;
    CHECK(one != model.write({5}, how));
    how.seed = 42;
    how.ends = [&](int token) { return token == one[20]; };
    const auto first = std::find(one.begin(), one.end(), one[20]);
    CHECK(model.write({5}, how) == std::vector<int>(one.begin(), first));
    how.ends = [&](int token) { return token == one[20] || token == one[3]; };   // the first of several that comes
    CHECK(model.write({5}, how) == std::vector<int>(one.begin(), std::find_if(one.begin(), one.end(), how.ends)));
    how.ends = [](int) { return false; };
    how.choices = 7;
    for (const int token : model.write({5}, how)) CHECK(token < 7);
}

TEST_CASE("generate: only whole characters are written, and what is no UTF-8 as U+FFFD") {
    std::string pending = "a\xc3";
    CHECK(take_whole_characters(pending) == "a");
    pending += "\xa9\xf0\x9f\x98";
    CHECK(take_whole_characters(pending) == "\xc3\xa9");
    pending += "\x80!";
    CHECK(take_whole_characters(pending) == "\xf0\x9f\x98\x80!");
    pending = "\x80x\xff\xe2\x82x\xe2\x82";   // a stray byte, one that never occurs, a beginning without its end
    CHECK(take_whole_characters(pending) == "\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbdx");
    CHECK(pending == "\xe2\x82");
    CHECK(take_whole_characters(pending, true) == "\xef\xbf\xbd");
    CHECK(pending.empty());
}

TEST_CASE("generate: a prompt begins with what the tokenizer puts in front of a text") {
    TokenizerData data = Tokenizer::bytes().data();
    CHECK(encode_prompt(Tokenizer(data), "ab") == std::vector<std::int32_t>{'a', 'b'});
    CHECK(encode_prompt(Tokenizer(data), "") == std::vector<std::int32_t>{256});
    data.tokens.push_back("<s>");
    data.is_special.push_back(1);
    data.front = {257};
    CHECK(encode_prompt(Tokenizer(data), "ab") == std::vector<std::int32_t>{257, 'a', 'b'});
    CHECK(encode_prompt(Tokenizer(data), "") == std::vector<std::int32_t>{257});
    CHECK(encode_prompt(Tokenizer(data), "<s>ab") == std::vector<std::int32_t>{257, 'a', 'b'});   // it is there already
    CHECK(encode_prompt(Tokenizer(data), "a<s>b") == std::vector<std::int32_t>{257, 'a', 257, 'b'});
}

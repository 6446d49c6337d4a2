#include "llmc/kernels/rows/embedding.cuh"

#include <numeric>

#include "llmc/kernels/kernel_testing.h"

namespace {

// Few different tokens, one of them most of the time (long groups), and both ends of the vocabulary.
std::vector<int> random_tokens(int n, int V, std::uint64_t seed) {
    std::vector<int> tokens(n);
    for (int i = 0; i < n; i++) {
        std::uint64_t r = mix64(mix64(seed) + i);
        tokens[i] = r % 3 == 0 ? 2 % V : static_cast<int>((r >> 8) % V);
    }
    tokens[0] = V - 1;
    tokens[n - 1] = 0;
    return tokens;
}

}   // namespace

TEST_CASE("embedding kernels: tokens are grouped by value, ascending, each position once") {
    std::vector<int> tokens = {5, 2, 5, 9, 2, 5};
    TokenGroups groups = group_tokens(tokens, 10);
    TokenGroupsView view = groups.view();
    CHECK(groups.groups == 3);
    CHECK(groups.positions == 6);
    CHECK(groups.data.size() <= token_groups_capacity(tokens.size()));
    CHECK(std::vector<int>(view.order, view.order + 6) == std::vector<int>{1, 4, 0, 2, 5, 3});
    CHECK(std::vector<int>(view.tokens, view.tokens + 3) == std::vector<int>{2, 5, 9});
    CHECK(std::vector<int>(view.starts, view.starts + 4) == std::vector<int>{0, 2, 5, 6});
}

TEST_CASE("embedding kernels: long groups come first, both kinds by token") {
    std::vector<int> tokens = {8, 3};
    for (int i = 0; i < kShortGroup; i++) tokens.insert(tokens.end(), {1, 5, 9});
    tokens.insert(tokens.end(), {9, 5});   // one more each than is short
    const TokenGroups groups = group_tokens(tokens, 10);
    const TokenGroupsView view = groups.view();
    REQUIRE(groups.groups == 5);
    CHECK(view.long_groups == 2);
    CHECK(std::vector<int>(view.tokens, view.tokens + 5) == std::vector<int>{5, 9, 1, 3, 8});
    CHECK(std::vector<int>(view.starts, view.starts + 6) == std::vector<int>{0, 17, 34, 50, 51, 52});
    for (int group = 0; group < view.groups; group++) {
        for (int i = view.starts[group]; i < view.starts[group + 1]; i++) {
            CHECK(tokens[view.order[i]] == view.tokens[group]);
            if (i > view.starts[group]) CHECK(view.order[i - 1] < view.order[i]);
        }
    }
}

TEST_CASE("embedding kernels: groups leave out tokens that another rank owns") {
    std::vector<int> tokens = {5, 2, 5, 9, 2, 5};
    TokenGroups groups = group_tokens(tokens, 4, 4);   // tokens 4 .. 7
    TokenGroupsView view = groups.view();
    CHECK(groups.groups == 1);
    CHECK(groups.positions == 3);
    CHECK(view.tokens[0] == 5);
    CHECK(std::vector<int>(view.order, view.order + 3) == std::vector<int>{0, 2, 5});
    CHECK(group_tokens({}, 4).data == std::vector<int>{0});
}

TEST_CASE_TEMPLATE("embedding kernels: forward matches the loop", Real, float, bf16) {
    KernelTest test;
    const int B = 3, T = 5, V = 11, max_positions = 16;
    std::vector<int> tokens = random_tokens(B * T, V, 1);
    DeviceBuffer<int> device_tokens = test.ints(tokens);
    for (int C : {1, 8, 12, 48, 768}) {
        Doubles wte = random_values<Real>(V * C, 1.0, 2), wpe = random_values<Real>(max_positions * C, 1.0, 3);
        auto out = test.output<Real>(B * T * C);
        Doubles expected(B * T * C);
        auto expect = [&](auto position_of) {
            for (int i = 0; i < B * T * C; i++) {
                int row = i / C, c = i % C;
                expected[i] = rounded<Real>(wte[tokens[row] * C + c] + wpe[position_of(row % T) * C + c]);
            }
        };
        EmbeddingForward<Real> args{out.data(), device_tokens.data(), nullptr, nullptr, B, T, C, V};
        auto device_wte = test.tensor<Real>(wte), device_wpe = test.tensor<Real>(wpe);
        args.wte = device_wte.data();
        args.wpe = device_wpe.data();

        embedding_forward(args, test.stream);
        expect([](int t) { return t; });
        CHECK(out.values() == expected);

        args.positions.first = 7;
        embedding_forward(args, test.stream);
        expect([](int t) { return 7 + t; });
        CHECK(out.values() == expected);

        std::vector<int> list = {3, 4, 5, 12, 13};   // two pieces, as context parallelism hands out
        DeviceBuffer<int> device_list = test.ints(list);
        args.positions = {0, device_list.data()};
        embedding_forward(args, test.stream);
        expect([&](int t) { return list[t]; });
        CHECK(out.values() == expected);
    }
}

TEST_CASE("embedding kernels: pieces of a vocabulary add up to the whole") {
    KernelTest test;
    const int B = 2, T = 9, V = 12, C = 16;
    std::vector<int> tokens = random_tokens(B * T, V, 1);
    DeviceBuffer<int> device_tokens = test.ints(tokens);
    Doubles wte = random_values<float>(V * C, 1.0, 2), sum(B * T * C, 0.0), expected(B * T * C);
    auto device_wte = test.tensor<float>(wte);
    for (int first : {0, 4, 8}) {
        auto out = test.output<float>(B * T * C);
        embedding_forward<float>(
            {out.data(), device_tokens.data(), device_wte.data() + first * C, nullptr, B, T, C, 4, first}, test.stream);
        Doubles part = out.values();
        for (std::size_t i = 0; i < sum.size(); i++) sum[i] += part[i];
    }
    for (int i = 0; i < B * T * C; i++) expected[i] = wte[tokens[i / C] * C + i % C];
    CHECK(sum == expected);
}

namespace {

template <class Real, class Grad>
struct EmbeddingGradients {
    std::vector<Grad> dwte, dwpe;
};

// Backward of a batch against the loop; tokens outside [first_token, first_token + V) belong to another rank.
template <class Real, class Grad>
EmbeddingGradients<Real, Grad> check_embedding_backward(int B, int T, int C, int V, int first_token, bool accumulate) {
    KernelTest test;
    const int max_positions = T + 5, first_position = 3, all_tokens = V + 2 * first_token;
    std::vector<int> tokens = random_tokens(B * T, all_tokens, 7);
    Doubles dout = random_values<Real>(static_cast<std::size_t>(B) * T * C, 1.0, 1);
    Doubles dwte = random_values<Grad>(V * C, 1.0, 2), dwpe = random_values<Grad>(max_positions * C, 1.0, 3);
    Doubles dwte_size(dwte.size()), dwpe_size(dwpe.size(), 0.0);
    auto device_dwte = test.tensor<Grad>(dwte), device_dwpe = test.tensor<Grad>(dwpe);

    TokenGroups groups = group_tokens(tokens, V, first_token);
    DeviceBuffer<int> uploaded = test.ints(groups.data);
    auto device_dout = test.tensor<Real>(dout);
    EmbeddingBackward<Real, Grad> args{
        device_dwte.data(), device_dwpe.data(), device_dout.data(), groups.view(uploaded.data()), B, T, C, V,
        max_positions,      accumulate};
    args.first_token = first_token;
    args.positions.first = first_position;
    embedding_backward(args, test.stream);

    if (!accumulate) std::fill(dwpe.begin(), dwpe.end(), 0.0);
    for (std::size_t i = 0; i < dwte.size(); i++) dwte_size[i] = std::abs(dwte[i]);
    for (std::size_t i = 0; i < dwpe.size(); i++) dwpe_size[i] = std::abs(dwpe[i]);
    for (int row = 0; row < B * T; row++) {
        for (int c = 0; c < C; c++) {
            double d = dout[static_cast<std::size_t>(row) * C + c];
            std::size_t position = static_cast<std::size_t>(first_position + row % T) * C + c;
            dwpe[position] += d;
            dwpe_size[position] += std::abs(d);
            int v = tokens[row] - first_token;
            if (v < 0 || v >= V) continue;
            dwte[static_cast<std::size_t>(v) * C + c] += d;
            dwte_size[static_cast<std::size_t>(v) * C + c] += std::abs(d);
        }
    }
    std::string what = text("B=", B, " T=", T, " C=", C, " V=", V);
    // a sum of n terms errs by less than n roundings of its size; in practice by far fewer
    const double operations = 16;
    check_close(device_dwte.values(), dwte, rounding_error<Grad>(dwte, dwte_size, operations), what + " dwte");
    check_close(device_dwpe.values(), dwpe, rounding_error<Grad>(dwpe, dwpe_size, operations), what + " dwpe");
    return {device_dwte.raw(), device_dwpe.raw()};
}

}   // namespace

TEST_CASE("embedding kernels: backward matches the loop, with groups short and long") {
    for (bool accumulate : {false, true}) {
        check_embedding_backward<float, float>(1, 2, 1, 5, 0, accumulate);
        check_embedding_backward<float, float>(3, 7, 20, 5, 0, accumulate);
        check_embedding_backward<bf16, float>(4, 64, 72, 50, 0, accumulate);
        check_embedding_backward<bf16, bf16>(5, 33, 264, 40, 0, accumulate);
        check_embedding_backward<bf16, float>(2, 500, 768, 30, 11, accumulate);
    }
}

TEST_CASE("embedding kernels: backward of groups with any number of positions, each one of the powers of two") {
    KernelTest test;
    const int C = 16, most = 130;   // turns of every length, in groups short and long
    for (int count = 1; count <= most; count++) {
        const std::vector<int> tokens(count, 1);
        Doubles dout(static_cast<std::size_t>(count) * C);
        for (int i = 0; i < count; i++) {
            for (int c = 0; c < C; c++) dout[static_cast<std::size_t>(i) * C + c] = std::ldexp(1.0, (i * 7 + c) % 20);
        }
        Doubles expected(3 * C, 0.5);
        for (std::size_t i = 0; i < dout.size(); i++) expected[C + i % C] += dout[i];   // exact in any order
        auto dwte = test.tensor<float>(Doubles(3 * C, 0.5));
        auto device_dout = test.tensor<bf16>(dout);
        const TokenGroups groups = group_tokens(tokens, 3);
        DeviceBuffer<int> uploaded = test.ints(groups.data);
        embedding_backward(EmbeddingBackward<bf16, float>{dwte.data(), nullptr, device_dout.data(),
                                                          groups.view(uploaded.data()), 1, count, C, 3, count, false},
                           test.stream);
        CHECK_MESSAGE(dwte.values() == expected, count, " positions");
    }
}

TEST_CASE("embedding kernels: backward gives the same bits twice") {
    auto a = check_embedding_backward<bf16, float>(4, 100, 264, 20, 0, true);
    auto b = check_embedding_backward<bf16, float>(4, 100, 264, 20, 0, true);
    CHECK(same_bits(a.dwte, b.dwte));
    CHECK(same_bits(a.dwpe, b.dwpe));
}

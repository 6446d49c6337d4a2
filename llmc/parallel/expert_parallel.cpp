#include "llmc/parallel/expert_parallel.h"

#include <algorithm>
#include <map>
#include <utility>

#include "llmc/base/check.h"
#include "llmc/base/pinned.h"
#include "llmc/base/stream.h"
#include "llmc/model/layer/tp_region.h"

namespace {

// Ranks that share sequences.
class SequenceSharers : public ExpertRanks {
public:
    // `sharers`: null if their counts are not wanted, or this rank has whole sequences.
    SequenceSharers(Communicator* sharers, const StageOptions& options)
        : sharers_(sharers), tp_rank_(options.place.at.tp), wanted_tp_chunks_(options.tp_chunks) {}

    // Each tp rank has a part of every chunk of rows (tp_region.h).
    RowSequences sequences(const RankSizes& sizes) const override {
        const int parts = sizes.residual_parts;
        if (parts == 1) return ExpertRanks::sequences(sizes);
        const int chunk = sizes.rows() / tensor_chunks(sizes.rows(), parts, wanted_tp_chunks_), count = chunk / parts;
        return {sizes.T, count, chunk, tp_rank_ * count};
    }
    void add_over_sequences(std::int32_t* counts, std::size_t n, cudaStream_t stream) override {
        if (sharers_ != nullptr) sharers_->all_reduce(counts, n, ReduceOp::sum, stream);
    }

private:
    Communicator* sharers_;
    int tp_rank_, wanted_tp_chunks_;
};

// Ranks that experts are dealt out to, `holders`.
class ExpertHolders : public SequenceSharers {
public:
    // `planned`: the other ranks do not run, and all experts get the same number of rows.
    ExpertHolders(Communicator& holders, Communicator* sharers, bool planned, const StageOptions& options, int experts,
                  const Arena& arena)
        : SequenceSharers(sharers, options),
          holders_(holders),
          planned_(planned),
          chunks_(std::min(options.ep_chunks, experts / holders.size())),
          arrived_(static_cast<std::size_t>(chunks_)),
          ends_(arena.counts() ? 0 : static_cast<std::size_t>(holders.size() * experts)) {}

    int chunks() const override { return chunks_; }
    HeldChunk held(const void* choice, int chunk) override {
        const std::vector<std::int32_t>& begins = exchange_of(choice).held_begins;
        const int experts = static_cast<int>(begins.size()) - 1, first = first_expert(chunk, experts),
                  end = first_expert(chunk + 1, experts);
        const std::int32_t row = begins[static_cast<std::size_t>(first)];
        return {first, end - first, row, begins[static_cast<std::size_t>(end)] - row};
    }
    int held_rows(const void* choice) override { return exchange_of(choice).held_begins.back(); }

    void follow(cudaStream_t stream) override {
        computed_.record(stream);
        computed_.wait(traffic_.get());
    }
    void begin_exchange(const void* choice, const std::int32_t* offsets, int rows, int E,
                        std::int32_t* counts) override {
        ENSURE(counting_.choice == nullptr, "counts of two exchanges at once");
        const auto experts = static_cast<std::size_t>(E), all = static_cast<std::size_t>(holders_.size()) * experts;
        holders_.all_gather(counts, offsets + 1, experts, traffic_.get());
        CUDA_CHECK(cudaMemcpyAsync(ends_.values().data(), counts, sizeof(std::int32_t) * all, cudaMemcpyDeviceToHost,
                                   traffic_.get()));
        counted_.record(traffic_.get());
        counting_ = {choice, rows, E};
    }
    void wait_for_counts(cudaStream_t stream) override { counted_.wait(stream); }
    void copy_held_offsets(std::int32_t* offsets, const void* choice, cudaStream_t stream) override {
        const std::vector<std::int32_t>& begins = exchange_of(choice).chunk_offsets;
        CUDA_CHECK(cudaMemcpyAsync(offsets, begins.data(), sizeof(std::int32_t) * begins.size(), cudaMemcpyHostToDevice,
                                   stream));
    }

    void start(std::span<const SentRows> rows, const void* choice, int chunk, bool back) override {
        const HeldChunk own = held(choice, chunk);
        const Exchange& all = exchange_of(choice);
        {
            const Communicator::Group together(holders_);
            for (const SentRows& part : rows) exchange(part, all, own, back);
        }
        arrived_[static_cast<std::size_t>(chunk)].record(traffic_.get());
    }
    void wait(int chunk, cudaStream_t stream) override { arrived_[static_cast<std::size_t>(chunk)].wait(stream); }

private:
    // Rows that each rank sends to each other one.
    struct Exchange {
        struct Transfer {
            int local, held, rows;   // first row among this rank's tokens' rows, or its experts'; rows
        };
        std::vector<std::vector<Transfer>> sent, came;   // per rank, by expert
        std::vector<std::int32_t> held_begins;           // first row of each of this rank's experts, and the end
        std::vector<std::int32_t> chunk_offsets;         // in each chunk, counted from its first row

        Exchange() = default;
        // ends (ranks, E): end of the rows of each rank that go to each expert.
        Exchange(int rank, int ranks, const std::vector<std::int32_t>& ends) {
            const int E = static_cast<int>(ends.size()) / ranks, held = E / ranks;
            auto begin = [&](int of, int e) {
                return e == 0 ? 0
                              : ends[static_cast<std::size_t>(of) * static_cast<std::size_t>(E) +
                                     static_cast<std::size_t>(e - 1)];
            };
            auto rows = [&](int of, int e) { return begin(of, e + 1) - begin(of, e); };
            sent.resize(static_cast<std::size_t>(ranks)), came.resize(static_cast<std::size_t>(ranks));
            for (int e = 0; e < E; e++) {
                sent[static_cast<std::size_t>(e / held)].push_back({begin(rank, e), 0, rows(rank, e)});
            }
            held_begins.push_back(0);
            for (int e = rank * held; e < (rank + 1) * held; e++) {
                std::int32_t next = held_begins.back();
                for (int from = 0; from < ranks; from++) {
                    came[static_cast<std::size_t>(from)].push_back({0, next, rows(from, e)});
                    next += rows(from, e);
                }
                held_begins.push_back(next);
            }
        }
    };

    // Returns the first expert of a chunk, among the `experts` of each rank.
    int first_expert(int chunk, int experts) const { return experts * chunk / chunks_; }

    const Exchange& exchange_of(const void* choice) {
        if (counting_.choice == choice) finish_counting();
        const auto found = exchanges_.find(choice);
        ENSURE(found != exchanges_.end(), "rows for experts before it is known which go where");
        return found->second;
    }

    // Waits for the counts, and notes which rows go where.
    void finish_counting() {
        const auto [choice, rows, E] = std::exchange(counting_, {});
        const int ranks = holders_.size();
        wait_for(counted_.get());
        const auto counted = ends_.values().first(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(E));
        std::vector<std::int32_t> ends(counted.begin(), counted.end());
        for (std::size_t i = 0; planned_ && i < ends.size(); i++) {
            const auto expert = static_cast<std::int64_t>(i % static_cast<std::size_t>(E));
            ends[i] = static_cast<std::int32_t>(std::int64_t{rows} * (expert + 1) / E);
        }
        Exchange exchange(holders_.rank(), ranks, ends);
        const int experts = E / ranks;
        for (int chunk = 0; chunk < chunks_; chunk++) {
            const int first = first_expert(chunk, experts), end = first_expert(chunk + 1, experts);
            for (int e = first; e <= end; e++) {
                exchange.chunk_offsets.push_back(exchange.held_begins[static_cast<std::size_t>(e)] -
                                                 exchange.held_begins[static_cast<std::size_t>(first)]);
            }
        }
        exchanges_[choice] = std::move(exchange);
    }

    void exchange(const SentRows& rows, const Exchange& all, const HeldChunk& chunk, bool back) {
        switch (rows.type) {
            case DType::fp32: return exchange_as<float>(rows, all, chunk, back);
            case DType::bf16: return exchange_as<bf16>(rows, all, chunk, back);
            default: ENSURE(false, "rows of ", name_of(rows.type), " for experts");
        }
    }

    template <class T>
    void exchange_as(const SentRows& rows, const Exchange& all, const HeldChunk& chunk, bool back) {
        const auto width = static_cast<std::size_t>(rows.width);
        const cudaStream_t stream = traffic_.get();
        T* const to = static_cast<T*>(rows.to);
        const T* const from = static_cast<const T*>(rows.from);
        auto offset = [&](int row) { return static_cast<std::size_t>(row) * width; };
        auto count = [&](const Exchange::Transfer& transfer) {
            return static_cast<std::size_t>(transfer.rows) * width;
        };
        auto of_chunk = [&](const std::vector<std::vector<Exchange::Transfer>>& by_rank, int rank) {
            return std::span(by_rank[static_cast<std::size_t>(rank)])
                .subspan(static_cast<std::size_t>(chunk.first_expert), static_cast<std::size_t>(chunk.experts));
        };
        const auto sent = of_chunk(all.sent, holders_.rank()), came = of_chunk(all.came, holders_.rank());
        for (std::size_t e = 0; e < sent.size(); e++) {   // rows that stay on this rank
            if (sent[e].rows == 0) continue;
            T* const into = to + offset(back ? sent[e].local : came[e].held);
            const T* const out_of = from + offset(back ? came[e].held : sent[e].local);
            CUDA_CHECK(cudaMemcpyAsync(into, out_of, sizeof(T) * count(sent[e]), cudaMemcpyDeviceToDevice, stream));
        }
        for (int peer = 0; peer < holders_.size(); peer++) {
            if (peer == holders_.rank()) continue;
            for (const Exchange::Transfer& local : of_chunk(all.sent, peer)) {
                if (local.rows == 0) continue;
                if (back) {
                    holders_.receive(to + offset(local.local), count(local), peer, stream);
                } else {
                    holders_.send(from + offset(local.local), count(local), peer, stream);
                }
            }
            for (const Exchange::Transfer& held : of_chunk(all.came, peer)) {
                if (held.rows == 0) continue;
                if (back) {
                    holders_.send(from + offset(held.held), count(held), peer, stream);
                } else {
                    holders_.receive(to + offset(held.held), count(held), peer, stream);
                }
            }
        }
    }

    struct Counting {   // an exchange whose counts travel
        const void* choice = nullptr;
        int rows = 0, E = 0;
    };

    Communicator& holders_;
    bool planned_;
    int chunks_;
    std::map<const void*, Exchange> exchanges_;
    OwnedStream traffic_{StreamPriority::greatest};   // other ranks wait for it
    OwnedEvent computed_, counted_;
    std::vector<OwnedEvent> arrived_;   // per chunk
    PinnedBuffer<std::int32_t> ends_;   // (ranks, E)
    Counting counting_;
};

}   // namespace

Communicator* expert_group(World& world) {
    return world.group(kExpertGroup, group_members(world.mesh(), world.at(), AxisSet{Axis::ep}));
}

std::unique_ptr<ExpertRanks> make_expert_ranks(World& world, const StageOptions& options, const ModelConfig& config,
                                               const Arena& arena) {
    if (config.experts == 0) return nullptr;
    Communicator *sharers = nullptr, *holders = nullptr;
    if (config.aux_loss != 0) {
        sharers = world.group(options.sequence_parallel ? AxisSet{Axis::cp, Axis::tp} : AxisSet{Axis::cp});
    }
    if (options.place.mesh.ep > 1) holders = expert_group(world);
    if (holders != nullptr) {
        return std::make_unique<ExpertHolders>(*holders, sharers, world.is_planned(), options,
                                               static_cast<int>(config.experts), arena);
    }
    return sharers != nullptr ? std::make_unique<SequenceSharers>(sharers, options) : nullptr;
}

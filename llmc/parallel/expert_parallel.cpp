#include "llmc/parallel/expert_parallel.h"

#include <map>
#include <numeric>

#include "llmc/base/check.h"
#include "llmc/parallel/tensor_parallel.h"

namespace {

class ExpertSharers : public ExpertRanks {
public:
    // `sharers`: ranks that share sequences, if their counts are wanted; `holders`: ranks that experts are dealt out
    // to. Null: this rank alone. `planned`: the other ranks do not run, and all experts get the same number of rows.
    ExpertSharers(Communicator* sharers, Communicator* holders, bool planned, const StageOptions& options)
        : sharers_(sharers),
          holders_(holders),
          planned_(planned),
          tp_rank_(options.place.at.tp),
          wanted_chunks_(options.tp_chunks) {}

    // Each tp rank has a part of every chunk of rows (tensor_parallel.h).
    RowSequences sequences(const RankSizes& sizes) const override {
        const int parts = sizes.residual_parts;
        if (parts == 1) return ExpertRanks::sequences(sizes);
        const int chunk = sizes.rows() / tensor_chunks(sizes.rows(), parts, wanted_chunks_), count = chunk / parts;
        return {sizes.T, count, chunk, tp_rank_ * count};
    }
    void add_over_sequences(std::int32_t* counts, std::size_t n, cudaStream_t stream) override {
        if (sharers_ != nullptr) sharers_->all_reduce(counts, n, ReduceOp::sum, stream);
    }

    void begin_exchange(const void* choice, const std::int32_t* offsets, int rows, int E, std::int32_t* counts,
                        cudaStream_t stream) override {
        const auto experts = static_cast<std::size_t>(E), ranks = static_cast<std::size_t>(holders_->size());
        holders_->all_gather(counts, offsets + 1, experts, stream);
        std::vector<std::int32_t> ends(ranks * experts);
        CUDA_CHECK(
            cudaMemcpyAsync(ends.data(), counts, sizeof(std::int32_t) * ends.size(), cudaMemcpyDeviceToHost, stream));
        wait_for(stream);
        if (planned_) {
            for (std::size_t i = 0; i < ends.size(); i++) {
                ends[i] =
                    static_cast<std::int32_t>(std::int64_t{rows} * static_cast<std::int64_t>(i % experts + 1) / E);
            }
        }
        exchanges_[choice] = Exchange(holders_->rank(), static_cast<int>(ranks), ends);
    }
    void copy_held_offsets(std::int32_t* offsets, const void* choice, cudaStream_t stream) override {
        const std::vector<std::int32_t>& begins = exchange_of(choice).held_begins;
        CUDA_CHECK(cudaMemcpyAsync(offsets, begins.data(), sizeof(std::int32_t) * begins.size(), cudaMemcpyHostToDevice,
                                   stream));
    }
    int held_rows(const void* choice) const override { return exchange_of(choice).held_begins.back(); }

    void exchange(const Rows& rows, const void* choice, cudaStream_t stream) override {
        switch (rows.type) {
            case DType::fp32: return exchange_as<float>(rows, choice, stream);
            case DType::bf16: return exchange_as<bf16>(rows, choice, stream);
            default: ENSURE(false, "rows of ", name_of(rows.type), " for experts");
        }
    }

private:
    // Rows that each rank sends to each other one.
    struct Exchange {
        struct Transfer {
            int local, held, rows;   // first row among this rank's tokens' rows, or its experts'; rows
        };
        std::vector<std::vector<Transfer>> sent, came;   // per rank, by expert
        std::vector<std::int32_t> held_begins;           // first row of each of this rank's experts, and the end

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

    const Exchange& exchange_of(const void* choice) const {
        const auto found = exchanges_.find(choice);
        ENSURE(found != exchanges_.end(), "rows for experts before it is known which go where");
        return found->second;
    }

    template <class T>
    void exchange_as(const Rows& rows, const void* choice, cudaStream_t stream) {
        const Exchange& all = exchange_of(choice);
        const auto width = static_cast<std::size_t>(rows.width);
        T* const to = static_cast<T*>(rows.to);
        const T* const from = static_cast<const T*>(rows.from);
        auto offset = [&](int row) { return static_cast<std::size_t>(row) * width; };
        auto count = [&](const Exchange::Transfer& transfer) {
            return static_cast<std::size_t>(transfer.rows) * width;
        };
        const auto self = static_cast<std::size_t>(holders_->rank());
        for (std::size_t e = 0; e < all.sent[self].size(); e++) {   // rows that stay on this rank
            const Exchange::Transfer &local = all.sent[self][e], &held = all.came[self][e];
            if (local.rows == 0) continue;
            T* const into = to + (rows.back ? offset(local.local) : offset(held.held));
            const T* const out_of = from + (rows.back ? offset(held.held) : offset(local.local));
            CUDA_CHECK(cudaMemcpyAsync(into, out_of, sizeof(T) * count(local), cudaMemcpyDeviceToDevice, stream));
        }
        const Communicator::Group together(*holders_);
        for (int peer = 0; peer < holders_->size(); peer++) {
            if (peer == holders_->rank()) continue;
            for (const Exchange::Transfer& local : all.sent[static_cast<std::size_t>(peer)]) {
                if (local.rows == 0) continue;
                if (rows.back) {
                    holders_->receive(to + offset(local.local), count(local), peer, stream);
                } else {
                    holders_->send(from + offset(local.local), count(local), peer, stream);
                }
            }
            for (const Exchange::Transfer& held : all.came[static_cast<std::size_t>(peer)]) {
                if (held.rows == 0) continue;
                if (rows.back) {
                    holders_->send(from + offset(held.held), count(held), peer, stream);
                } else {
                    holders_->receive(to + offset(held.held), count(held), peer, stream);
                }
            }
        }
    }

    Communicator *sharers_, *holders_;
    bool planned_;
    int tp_rank_, wanted_chunks_;
    std::map<const void*, Exchange> exchanges_;
};

}   // namespace

std::unique_ptr<ExpertRanks> make_expert_ranks(World& world, const StageOptions& options, const ModelConfig& config) {
    if (config.experts == 0) return nullptr;
    Communicator *sharers = nullptr, *holders = nullptr;
    if (config.aux_loss != 0) {
        sharers = world.group(options.sequence_parallel ? AxisSet{Axis::cp, Axis::tp} : AxisSet{Axis::cp});
    }
    if (options.place.mesh.ep > 1) holders = world.group({Axis::ep});
    if (sharers == nullptr && holders == nullptr) return nullptr;
    return std::make_unique<ExpertSharers>(sharers, holders, world.is_planned(), options);
}

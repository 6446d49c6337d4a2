#include "llmc/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "llmc/kernels/init.cuh"
#include "llmc/kernels/optim/newton_schulz.cuh"
#include "llmc/optim/tensor_blocks.h"

namespace {

// Returns the room of a matrix or a part in a buffer: every one begins at a packet.
std::int64_t room_for(std::int64_t elements) { return (elements + 7) / 8 * 8; }

std::int64_t rows_of(const TensorSpec& tensor, int block) {
    return tensor.blocks.empty() ? tensor.rows : tensor.blocks[static_cast<std::size_t>(block)];
}

}   // namespace

float muon_scale(const TensorSpec& tensor, int block, MuonScale scale) {
    const double out = static_cast<double>(rows_of(tensor, block)), in = static_cast<double>(tensor.cols);
    return static_cast<float>(scale == MuonScale::original ? std::sqrt(std::max(1.0, out / in))
                                                           : 0.2 * std::sqrt(std::max(out, in)));
}

MuonMatrices::MuonMatrices(Stage& stage, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups)
    : stage_(stage),
      iterations_(newton_schulz(options.muon_coefficients)),
      batch_elements_(options.muon_batch_elements) {
    const RankLayout& place = stage.storage().place();
    const bool cut_by_zero = place.zero_stage > (place.assigns_matrices ? 1 : 0);
    const AxisSet team = cut_by_zero ? copy_axes : AxisSet{Axis::tp};
    team_ = !cut_by_zero ? groups.tensor : groups.replicas == nullptr ? groups.stage : groups.copy;
    rank_ = group_rank(place.mesh, place.at, team);
    ranks_ = group_size(place.mesh, team);
    find_matrices(team);
    assign_owners();
    allocate(arena);
}

// Finds the matrices that this team keeps of its stage, and who keeps which part of each: alike on every rank of the
// team.
void MuonMatrices::find_matrices(AxisSet team) {
    const ParamStorage& storage = stage_.storage();
    const RankLayout& place = storage.place();
    const std::vector<int> members = group_members(place.mesh, place.at, team);
    std::vector<std::int64_t> taken(members.size(), 0);   // elements of each member's parts
    for (const TensorLayout& tensor : storage.tensors()) {
        const ParamInfo& info = storage.table()[tensor.param];
        if (!info.orthogonal) continue;
        ENSURE(place.mesh.tp == 1 || info.tensor.cut != TensorCut::none, info.name,
               " is a matrix that tp does not cut");
        std::int64_t begin = 0;
        for (int block = 0; block < blocks_of(info.tensor); block++) {
            Matrix& matrix = matrices_.emplace_back(Matrix{tensor.param,
                                                           block,
                                                           static_cast<int>(rows_of(info.tensor, block)),
                                                           static_cast<int>(info.tensor.cols),
                                                           {}});
            for (int r = 0; r < ranks_; r++) {
                const auto member = static_cast<std::size_t>(r);
                RankLayout theirs = place;
                theirs.at = coordinates_of(place.mesh, members[member]);
                for (BlockRange& part :
                     by_blocks(info.tensor, owned_ranges(info.tensor, theirs, StateKind::optimizer))) {
                    if (part.block != block) continue;
                    part.global.first -= begin;
                    matrix.parts.push_back({r, taken[member], 0, part.global, part.length});
                    taken[member] += room_for(part.length);
                }
            }
            begin += matrix.elements();
            if (matrix.parts.empty()) matrices_.pop_back();   // another team's
        }
    }
}

void MuonMatrices::assign_owners() {
    std::vector<double> costs;
    for (const Matrix& matrix : matrices_) costs.push_back(matrix.cost());
    const std::vector<int> owners = assign_by_cost(costs, ranks_);
    for (std::size_t i = 0; i < owners.size(); i++) matrices_[i].owner = owners[i];
}

// Gathers the matrices that this rank owns by size, the largest batches first.
void MuonMatrices::make_batches() {
    std::map<std::pair<int, int>, std::vector<std::size_t>> by_size;
    for (std::size_t i = 0; i < matrices_.size(); i++) {
        if (matrices_[i].owner == rank_) by_size[{matrices_[i].rows, matrices_[i].cols}].push_back(i);
    }
    for (const auto& [size, all] : by_size) {
        const std::int64_t next = room_for(std::int64_t{size.first} * size.second);
        const auto together = static_cast<std::size_t>(std::max<std::int64_t>(1, batch_elements_ / next));
        for (std::size_t begin = 0; begin < all.size(); begin += together) {
            const std::size_t end = std::min(begin + together, all.size());
            batches_.push_back(
                {{size.first, size.second, static_cast<int>(end - begin), next},
                 {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)}});
        }
    }
    std::ranges::stable_sort(batches_, std::greater<>(), &Batch::elements);
}

// Lays the batches out behind room for the largest, which is the first.
void MuonMatrices::place_batches() {
    std::int64_t offset = batches_.empty() ? 0 : batches_.front().elements();
    for (Batch& batch : batches_) {
        batch.offset = offset;
        for (const std::size_t i : batch.matrices) {
            matrices_[i].offset = offset;
            matrices_[i].orthogonal = offset - batch.elements();
            offset += batch.size.next;
        }
    }
}

void MuonMatrices::allocate(Arena& arena) {
    make_batches();
    place_batches();
    auto buffer = [&](const char* name, std::int64_t elements) {
        return arena.allocate<floatX>(text("muon/", name), static_cast<std::size_t>(elements));
    };
    std::int64_t squares = 0;
    for (const Batch& batch : batches_) squares = std::max(squares, batch.size.count * batch.size.next_square());
    whole_ = buffer("matrices", batches_.empty() ? 0 : batches_.back().offset + batches_.back().elements());
    grams_ = buffer("gram matrices", squares);
    polynomials_ = buffer("polynomials", squares);
    if (ranks_ == 1) return;
    std::int64_t parts = 0, arrived = 0;
    for (Matrix& matrix : matrices_) {
        for (Part& part : matrix.parts) {
            part.arrived = arrived;
            if (part.holder == rank_) parts += room_for(part.count);
            if (matrix.owner == rank_ && part.holder != rank_) arrived += room_for(part.count);
        }
    }
    parts_ = buffer("parts", parts);
    arrived_ = buffer("arrived parts", arrived);
    for (const Matrix& matrix : matrices_) {
        if (matrix.owner != rank_) continue;
        floatX *const before = whole_.data() + matrix.offset, *const after = whole_.data() + matrix.orthogonal;
        for (const Part& part : matrix.parts) {
            moves_.pieces.push_back({at_owner(part), before, after, part.span, part.count});
        }
    }
    moves_.blocks = number_blocks(moves_.pieces, kElementwiseBlock);
    moves_.on_device = arena.allocate<MatrixPiece<floatX>>("muon/moves", moves_.pieces.size());
    moves_.on_device.upload(moves_.pieces, stage_.stream());
}

// Returns the address of a part on this rank, which owns its matrix.
floatX* MuonMatrices::at_owner(const Part& part) const {
    return part.holder == rank_ ? parts_.data() + part.offset : arrived_.data() + part.arrived;
}

MuonMatrices::Place MuonMatrices::part(int param, int block) const {
    for (const Matrix& matrix : matrices_) {
        if (matrix.param != param || matrix.block != block) continue;
        if (ranks_ == 1) return {whole_.data() + matrix.offset, whole_.data() + matrix.orthogonal};
        for (const Part& part : matrix.parts) {
            if (part.holder == rank_) return {parts_.data() + part.offset, parts_.data() + part.offset};
        }
    }
    return {};
}

// Sends parts to the owners of their matrices, or back.
void MuonMatrices::exchange(bool back) {
    Communicator::Group together(*team_);
    for (const Matrix& matrix : matrices_) {
        for (const Part& part : matrix.parts) {
            const bool owns = matrix.owner == rank_, holds = part.holder == rank_;
            if (owns == holds) continue;   // it is here already, or no concern of this rank
            floatX* const here = owns ? at_owner(part) : parts_.data() + part.offset;
            const int peer = owns ? part.holder : matrix.owner;
            const auto count = static_cast<std::size_t>(part.count);
            if (owns == back) {
                team_->send(here, count, peer, stage_.stream());
            } else {
                team_->receive(here, count, peer, stage_.stream());
            }
        }
    }
}

void MuonMatrices::move(bool back) {
    if (moves_.blocks == 0) return;
    Launch where{dim3(blocks_for(moves_.blocks, 1)), dim3(kElementwiseThreads), 0, stage_.stream()};
    where.reads(moves_.on_device.data(), moves_.on_device.bytes());
    for (const DeviceBuffer<floatX>* buffer : {&parts_, &arrived_, &whole_}) {
        where.reads(buffer->data(), buffer->bytes());
        if ((buffer == &whole_) != back) where.writes(buffer->data(), buffer->bytes());
    }
    launch(move_pieces_kernel<floatX>, where, moves_.on_device.data(), static_cast<int>(moves_.pieces.size()), back);
}

void MuonMatrices::orthogonalize() {
    if (ranks_ > 1) {
        exchange(false);
        move(false);
    }
    orthogonalize_owned();
    if (ranks_ > 1) {
        move(true);
        exchange(true);
    }
}

void MuonMatrices::orthogonalize_owned() {
    stage_.matmul().reserve_multiprocessors(0);   // no gradients travel beside the update
    for (const Batch& batch : batches_) {
        floatX* const before = whole_.data() + batch.offset;
        ::orthogonalize<floatX>(stage_.matmul(), before, batch.size, iterations_,
                                {before - batch.elements(), grams_.data(), polynomials_.data()}, stage_.stream());
    }
}

void MuonMatrices::try_matmuls() {
    for (const Matrix& matrix : matrices_) {
        if (matrix.owner != rank_) continue;
        const auto deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(matrix.elements())));
        fill_normal(whole_.data() + matrix.offset, matrix.elements(), deviation, 1, GlobalSpan{}, stage_.stream());
    }
    orthogonalize_owned();
}

// Muon's matrices on one rank: which rank orthogonalises which, and how their parts come together.
//
// Ranks keep parts of a matrix: a tp shard, and from ZeRO 2 on their ZeRO shard of it; ZeRO-1 leaves matrices whole,
// each on one of the ZeRO ranks (param_storage.h). Each matrix has one owner in the team of ranks that keep its parts
// (the tp ranks under ZeRO 0 and 1, else all of the pipeline stage): dealt out by cost, larger side x smaller side^2,
// the costliest first, each to the rank with the least so far. Parts of the normalised direction travel to the owner
// and come back orthogonal, both times in the parameters' type: for P elements of matrices over n ranks about 4fP/n
// bytes a rank in bf16, 8fP/n in fp32, f = (n - 1) / n; to the byte, twice the Parts that an owner does not keep
// itself. An owner starts from the same matrix however it was cut, so ZeRO 0 and 1, and 2 and 3, give the same bits, on
// a GPU if the library takes the same algorithm for other batches.
//
// Matrices of one size are multiplied together in batches of at most OptimizerOptions::muon_batch_elements, or of a
// single one. The batches lie one behind another in memory, the largest first, behind room for the largest. The results
// of each take the place right before it, where the batch before has been: nothing is copied back.
//
// The blocks of a matrix's rows (q, k, v) are matrices of their own. Under tp a matrix must be cut over its ranks.
#pragma once

#include <algorithm>
#include <vector>

#include "llmc/kernels/optim/newton_schulz.cuh"
#include "llmc/model/stage/stage.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/parallel/training_groups.h"

// Returns how far a block of rows moves, from the sizes of the whole matrix, never of a shard.
float muon_scale(const TensorSpec& tensor, int block, MuonScale scale);

class MuonMatrices {
public:
    MuonMatrices(Stage& stage, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups);

    // Places of this rank's part of a block of rows: where it must be put, and after orthogonalize(). Null if it has
    // none.
    struct Place {
        floatX *before = nullptr, *after = nullptr;
    };
    Place part(int param, int block) const;

    // Orthogonalises all matrices. Collective over the team.
    void orthogonalize();
    // Makes the matmuls of orthogonalize() on the matrices that this rank owns, whose contents are lost, so that their
    // algorithms are tried.
    void try_matmuls();

private:
    struct Part {
        int holder;             // rank of the team
        std::int64_t offset;    // in the holder's parts
        std::int64_t arrived;   // in the owner's arrived parts, if that is another rank
        GlobalSpan span;        // its elements of the matrix
        std::int64_t count;
    };
    struct Matrix {
        int param, block, rows, cols;
        std::vector<Part> parts;
        int owner = 0;   // rank of the team
        // in the owner's whole matrices; `orthogonal`: afterwards
        std::int64_t offset = 0, orthogonal = 0;
        std::int64_t elements() const { return static_cast<std::int64_t>(rows) * cols; }
        double cost() const { return static_cast<double>(elements()) * std::min(rows, cols); }
    };
    struct Moves {   // copies between parts and whole matrices
        std::vector<MatrixPiece<floatX>> pieces;
        DeviceBuffer<MatrixPiece<floatX>> on_device;
        std::int64_t blocks = 0;
    };
    struct Batch {
        MatrixBatch size;
        std::vector<std::size_t> matrices;   // indices
        std::int64_t offset = 0;             // in whole_
        std::int64_t elements() const { return size.count * size.next; }
    };
    void find_matrices(AxisSet team);
    void assign_owners();
    void make_batches();
    void place_batches();
    void allocate(Arena& arena);
    void exchange(bool back);
    void move(bool back);
    void orthogonalize_owned();
    floatX* at_owner(const Part& part) const;

    Stage& stage_;
    NewtonSchulz iterations_;
    std::int64_t batch_elements_;
    Communicator* team_;   // null: this rank alone
    int rank_, ranks_;     // in the team
    std::vector<Matrix> matrices_;
    std::vector<Batch> batches_;                     // matrices that it owns
    DeviceBuffer<floatX> parts_, arrived_, whole_;   // its parts, others' parts of matrices it owns, these matrices
    DeviceBuffer<floatX> grams_, polynomials_;       // NewtonSchulzScratch
    Moves moves_;
};

// Choices of how a stage and its pieces compute, as a run is given them by name: what is added here needs a row in
// llmc/cli/option_table.cpp, and no other line on its way to the piece that reads it (StageTools::choices).
#pragma once

#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/base/enum_names.h"
#include "llmc/kernels/attention/attention.h"

// Type of the operands of layers' matmuls, forward and for gradients of inputs; gradients of weights take the stored
// values. stored: bf16, in fp32 builds fp32. fp8_emulated: as fp8 would have them (fp8_blocks.cuh), multiplied in the
// stored type.
enum class MatmulDType : std::uint8_t { stored, fp8_emulated };

template <>
struct EnumNames<MatmulDType> {
    static constexpr EnumName<MatmulDType> list[]{{"bf16", MatmulDType::stored},
                                                  {"fp8-emulated", MatmulDType::fp8_emulated}};
};

struct StageChoices {
    AttentionKind attention = AttentionKind::auto_;
    bool document_mask = false;   // attention is masked between documents; batches say where these begin
    int gelu_fusion = 2;          // GELU in the ends of matmuls. 0: none, 1: in forward, 2: also in backward
    MatmulDType matmul_dtype = MatmulDType::stored;
    DType grad_dtype = DType::fp32;   // or bf16, if parameters are
    float z_loss = 0;                 // Classifier::z_loss of training's losses
    bool force_balance = false;       // experts are chosen in turn, each equally often: for measuring alone
    float capacity_factor = 0;        // in training (capacity.cuh); 0: experts take all tokens
    bool sequence_parallel = true;    // tp ranks share the rows of the residual region
    int tp_chunks = 4;                // chunks of rows in forward: one's collective hides behind the next one's matmul
    int ep_chunks = 4;                // chunks of a rank's experts: one's rows travel while another's are worked on
};

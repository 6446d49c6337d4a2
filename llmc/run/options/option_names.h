// The names of options' values on the command line, in files and in tables.
#pragma once

#include <optional>

#include "llmc/base/enum_names.h"
#include "llmc/kernels/attention/attention_kinds.h"
#include "llmc/run/options/options.h"

template <>
struct EnumNames<bool> {
    static constexpr EnumName<bool> list[]{{"0", false}, {"1", true}, {"false", false}, {"true", true}};
};

template <>
struct EnumNames<ScheduleKind> {
    static constexpr EnumName<ScheduleKind> list[]{{"cosine", ScheduleKind::cosine},
                                                   {"linear", ScheduleKind::linear},
                                                   {"constant", ScheduleKind::constant},
                                                   {"wsd", ScheduleKind::wsd}};
};

template <>
struct EnumNames<LrScaling> {
    static constexpr EnumName<LrScaling> list[]{
        {"linear", LrScaling::linear}, {"sqrt", LrScaling::sqrt}, {"none", LrScaling::none}};
};

template <>
struct EnumNames<OptimizerKind> {
    static constexpr EnumName<OptimizerKind> list[]{{"adamw", OptimizerKind::adamw},
                                                    {"muon", OptimizerKind::muon},
                                                    {"lamb", OptimizerKind::lamb},
                                                    {"lars", OptimizerKind::lars},
                                                    {"sgd", OptimizerKind::sgd}};
};

template <>
struct EnumNames<MasterWeights> {
    static constexpr EnumName<MasterWeights> list[]{{"0", MasterWeights::none},
                                                    {"1", MasterWeights::fp32},
                                                    {"compact", MasterWeights::compact},
                                                    {"false", MasterWeights::none},
                                                    {"true", MasterWeights::fp32}};
};

template <>
struct EnumNames<MuonCoefficients> {
    static constexpr EnumName<MuonCoefficients> list[]{{"simple", MuonCoefficients::simple},
                                                       {"quintic", MuonCoefficients::quintic},
                                                       {"polar-express", MuonCoefficients::polar_express}};
};

template <>
struct EnumNames<MuonScale> {
    static constexpr EnumName<MuonScale> list[]{{"original", MuonScale::original},
                                                {"match-rms-adamw", MuonScale::match_rms_adamw}};
};

template <>
struct EnumNames<OuterCompression> {
    static constexpr EnumName<OuterCompression> list[]{{"none", OuterCompression::none},
                                                       {"int8", OuterCompression::int8},
                                                       {"int2", OuterCompression::int2_},
                                                       {"topk", OuterCompression::topk}};
};

template <>
struct EnumNames<GradCompression> {
    static constexpr EnumName<GradCompression> list[]{{"none", GradCompression::none},
                                                      {"bf16", GradCompression::bf16_},
                                                      {"int8", GradCompression::int8},
                                                      {"topk", GradCompression::topk},
                                                      {"powersgd", GradCompression::powersgd}};
};

template <>
struct EnumNames<std::optional<Recompute>> {
    using Level = Recompute;
    static constexpr EnumName<std::optional<Recompute>> list[]{
        {"auto", std::nullopt},  {"none", Level::none}, {"gelu", Level::gelu}, {"gelu+norm", Level::gelu_norm},
        {"block", Level::block}, {"0", Level::none},    {"1", Level::gelu},    {"2", Level::gelu_norm},
        {"3", Level::block}};
};
inline const char* name_of(Recompute level) { return name_of(std::optional<Recompute>(level)); }

template <>
struct EnumNames<DType> {
    static constexpr EnumName<DType> list[]{{"fp32", DType::fp32}, {"bf16", DType::bf16}};
};

template <>
struct EnumNames<std::optional<DType>> {
    static constexpr EnumName<std::optional<DType>> list[]{
        {"model", std::nullopt}, {"fp32", DType::fp32}, {"bf16", DType::bf16}};
};

template <>
struct EnumNames<ContextMode> {
    static constexpr EnumName<ContextMode> list[]{
        {"ring", ContextMode::ring}, {"ulysses", ContextMode::ulysses}, {"hybrid", ContextMode::hybrid}};
};

template <>
struct EnumNames<InitMethod> {
    static constexpr EnumName<InitMethod> list[]{
        {"auto", InitMethod::automatic}, {"mpi", InitMethod::mpi}, {"tcp", InitMethod::tcp}, {"fs", InitMethod::fs}};
};

template <>
struct EnumNames<WhichWeights> {
    static constexpr EnumName<WhichWeights> list[]{{"model", WhichWeights::model}, {"ema", WhichWeights::ema}};
};

template <>
struct EnumNames<ExportFormat> {
    static constexpr EnumName<ExportFormat> list[]{{"hf", ExportFormat::hugging_face}, {"llmc", ExportFormat::llmc}};
};

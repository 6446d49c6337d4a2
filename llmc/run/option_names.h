// The names of options' values, as the command line, files and tables have them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/run/options.h"

// Values by name. The first name of a value is the one that is printed.
template <class Value>
using Names = std::vector<std::pair<const char*, Value>>;

template <class Value>
const char* name_in(const Names<Value>& names, Value value) {
    for (const auto& [name, v] : names) {
        if (v == value) return name;
    }
    return "?";
}

template <class Value>
std::string list_of(const Names<Value>& names) {
    std::string list;
    for (const auto& [name, value] : names) list += text(list.empty() ? "" : "|", name);
    return list;
}

inline const Names<ScheduleKind> kSchedules{{"cosine", ScheduleKind::cosine},
                                     {"linear", ScheduleKind::linear},
                                     {"constant", ScheduleKind::constant},
                                     {"wsd", ScheduleKind::wsd}};
inline const Names<AttentionKind> kAttentions{{"auto", AttentionKind::auto_},
                                       {"own", AttentionKind::own},
                                       {"library", AttentionKind::library},
                                       {"own-sm90", AttentionKind::own_sm90}};
inline const Names<std::optional<Recompute>> kRecomputes{{"auto", std::nullopt},
                                                  {"none", Recompute::none},
                                                  {"gelu", Recompute::gelu},
                                                  {"gelu+norm", Recompute::gelu_norm},
                                                  {"block", Recompute::block},
                                                  {"0", Recompute::none},
                                                  {"1", Recompute::gelu},
                                                  {"2", Recompute::gelu_norm},
                                                  {"3", Recompute::block}};
inline const Names<InitMethod> kInits{
    {"auto", InitMethod::automatic}, {"mpi", InitMethod::mpi}, {"tcp", InitMethod::tcp}, {"fs", InitMethod::fs}};
inline const Names<ContextMode> kContextModes{
    {"ring", ContextMode::ring}, {"ulysses", ContextMode::ulysses}, {"hybrid", ContextMode::hybrid}};

inline const char* name_of(ScheduleKind kind) { return name_in(kSchedules, kind); }
inline const char* name_of(AttentionKind kind) { return name_in(kAttentions, kind); }
inline const char* name_of(std::optional<Recompute> recompute) { return name_in(kRecomputes, recompute); }
inline const char* name_of(InitMethod method) { return name_in(kInits, method); }
inline const char* name_of(ContextMode mode) { return name_in(kContextModes, mode); }

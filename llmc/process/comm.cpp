#include "llmc/process/comm.h"

#include <chrono>
#include <cstdlib>
#include <type_traits>

#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"
#include "llmc/process/nccl_version.h"

std::string nccl_shortcoming(int version) {
    const std::string name = text("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
    if (version < LEAST_NCCL_VERSION) {
        throw Error(ErrorKind::no_device, text(name, " is too old: 2.18.1 or later is needed"),
                    "Install a later NCCL (libnccl2, or pip's nvidia-nccl-cu13).");
    }
    if (version >= NCCL_VERSION(2, 26, 0)) return "";
    return text(name, " ignores NCCL_LAUNCH_ORDER_IMPLICIT: operations of several groups may be launched in different ",
                "orders on different GPUs, and then wait for each other forever. NCCL 2.26 or later does not.");
}

void nccl_check(ncclResult_t status, const char* call, const char* file, int line) {
    if (status == ncclSuccess) return;
    std::string message =
        text(file, ":", line, ": ", call, " failed: ", ncclGetErrorString(status), ": ", ncclGetLastError(nullptr));
    if (status == ncclRemoteError)
        throw Error(ErrorKind::resumable, message, "A rank was lost; start again to resume.");
    if (status == ncclSystemError) {
        throw Error(ErrorKind::no_device, message,
                    "Check that every rank was started and that the hosts reach each other.");
    }
    throw Error(ErrorKind::bug, message);
}

namespace {

ncclConfig_t configured(const std::string& name, int multiprocessors) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (multiprocessors > 0) config.maxCTAs = multiprocessors;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
    config.commName = name.c_str();
#else
    (void)name;   // NCCL's own messages then name groups by their addresses
#endif
    return config;
}

template <class T>
constexpr ncclDataType_t nccl_type() {
    if constexpr (std::is_same_v<T, float>) return ncclFloat32;
    if constexpr (std::is_same_v<T, bf16>) return ncclBfloat16;
    if constexpr (std::is_same_v<T, double>) return ncclFloat64;
    if constexpr (std::is_same_v<T, std::int32_t>) return ncclInt32;
    if constexpr (std::is_same_v<T, std::int64_t>) return ncclInt64;
    if constexpr (std::is_same_v<T, std::uint64_t>) return ncclUint64;
}

const char* name_of(ncclDataType_t type) {
    switch (type) {
        case ncclFloat32: return "fp32";
        case ncclBfloat16: return "bf16";
        case ncclFloat64: return "fp64";
        case ncclInt32: return "int32";
        case ncclInt64: return "int64";
        case ncclUint64: return "uint64";
        default: return "elements";
    }
}

std::string loaded_nccl_shortcoming() {
    int version = 0;
    NCCL_CHECK(ncclGetVersion(&version));
    return nccl_shortcoming(version);
}

// Sets NCCL's environment for reproducible results, before NCCL reads it.
void prefer_reproducible() {
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);   // several communicators: launched in the order of the host's calls
}

ncclRedOp_t nccl_op(ReduceOp op) { return op == ReduceOp::sum ? ncclSum : ncclMax; }

}   // namespace

ncclUniqueId Communicator::make_unique_id() {
    if (const std::string less = loaded_nccl_shortcoming(); !less.empty()) Log().warning("%s", less.c_str());
    prefer_reproducible();
    ncclUniqueId id;
    NCCL_CHECK(ncclGetUniqueId(&id));
    return id;
}

Communicator::Communicator(const ncclUniqueId& id, int rank, int ranks, std::string name, int multiprocessors)
    : rank_(rank), size_(ranks), name_(std::move(name)) {
    loaded_nccl_shortcoming();   // on every rank, because hosts may differ
    prefer_reproducible();
    ncclConfig_t config = configured(name_, multiprocessors);
    NCCL_CHECK(ncclCommInitRankConfig(&comm_, ranks, id, rank, &config));
}

Communicator::Communicator(const Communicator& parent, int color, int key, std::string name, int multiprocessors)
    : name_(std::move(name)) {
    ncclConfig_t config = configured(name_, multiprocessors);
    NCCL_CHECK(ncclCommSplit(parent.comm_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &comm_, &config));
    if (comm_ == nullptr) return;
    NCCL_CHECK(ncclCommCount(comm_, &size_));
    NCCL_CHECK(ncclCommUserRank(comm_, &rank_));
}

Communicator::Communicator(int rank, int ranks, std::uint64_t id, std::string name, int multiprocessors)
    : rank_(rank), size_(ranks), name_(std::move(name)) {
    if (stand_in()) comm_ = stand_in()->planned_communicator(rank, ranks, id, name_.c_str(), multiprocessors);
}

Communicator::~Communicator() {
    if (comm_ != nullptr) ncclCommDestroy(comm_);   // errors have shown at an earlier call
}

std::string Communicator::failure() const {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(comm_, &state);
    if (status == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) return "";
    const char* const why = ncclGetLastError(comm_);
    return text("group ", name_, ": ", ncclGetErrorString(status == ncclSuccess ? state : status),
                *why != 0 ? ": " : "", why, ", at ", operation_.load(), " number ", issued_.load());
}

void Communicator::log(std::size_t n, ncclDataType_t type, const std::string& more) {
    if (log_ == nullptr) return;
    collectives_++;
    log_->add({members_, text(operation_.load(), " of ", n, " ", name_of(type), more),
               text("number ", collectives_, " of group ", name_)});
}

// Logs a transfer, alike at both ends; one from a rank to itself is not logged.
void Communicator::log_transfer(std::size_t n, ncclDataType_t type, int from, int to) {
    if (log_ == nullptr || from == to) return;
    const int peer = from == rank_ ? to : from;
    ENSURE(peer >= 0 && peer < size_, "a transfer with rank ", peer, " of ", size_, " in group ", name_);
    const std::uint64_t number = ++(from == rank_ ? sent_ : received_)[static_cast<std::size_t>(peer)];
    auto member = [this](int r) { return members_[static_cast<std::size_t>(r)]; };
    log_->add({{member(from), member(to)},
               text("transfer of ", n, " ", name_of(type)),
               text("number ", number, " from rank ", from, " to rank ", to, " of group ", name_)});
}

void Communicator::count(const char* operation, double Traffic::*kind, double bytes) {
    ENSURE(comm_ != nullptr, operation, " on group ", name_, ", which this rank does not belong to");
    ENSURE(local_work_ == nullptr, operation, " on group ", name_, " during local work: ", local_work_.load());
    operation_ = operation;
    issued_at_ = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    issued_++;
    if (kind != &Traffic::point_to_point || size_ == 2) of_all_++;
    traffic_.*kind += bytes;
}

void Communicator::make(const CommCall& call, const Make& make_it) const {
    StreamObserver* const observer = stream_observer;
    if (observer != nullptr) observer->begin(), observer->communicates(call.stream, name_);
    if (tap_) {
        tap_(call, make_it);
    } else {
        make_it(call);
    }
    if (observer != nullptr) observer->end();
}

template <class T>
void Communicator::all_reduce(T* data, std::size_t n, ReduceOp op, cudaStream_t stream) {
    count("all-reduce", &Traffic::all_reduce, 2.0 * (size_ - 1) / size_ * static_cast<double>(n * sizeof(T)));
    log(n, nccl_type<T>(), op == ReduceOp::sum ? ", sum" : ", max");
    make({"all-reduce", data, data, n, nccl_type<T>(), stream}, [&](const CommCall& call) {
        NCCL_CHECK(ncclAllReduce(call.in, call.out, n, call.type, nccl_op(op), comm_, stream));
    });
}

template <class T>
void Communicator::reduce_scatter(T* out, const T* in, std::size_t n, cudaStream_t stream) {
    count("reduce-scatter", &Traffic::reduce_scatter,
          static_cast<double>(size_ - 1) * static_cast<double>(n * sizeof(T)));
    log(n, nccl_type<T>());
    make({"reduce-scatter", in, out, n * static_cast<std::size_t>(size_), nccl_type<T>(), stream},
         [&](const CommCall& call) {
             NCCL_CHECK(ncclReduceScatter(call.in, call.out, n, call.type, ncclSum, comm_, stream));
         });
}

template <class T>
void Communicator::all_gather(T* out, const T* in, std::size_t n, cudaStream_t stream) {
    count("all-gather", &Traffic::all_gather, static_cast<double>(size_ - 1) * static_cast<double>(n * sizeof(T)));
    log(n, nccl_type<T>());
    make({"all-gather", in, out, n, nccl_type<T>(), stream},
         [&](const CommCall& call) { NCCL_CHECK(ncclAllGather(call.in, call.out, n, call.type, comm_, stream)); });
}

template <class T>
void Communicator::reduce(T* data, std::size_t n, int root, cudaStream_t stream) {
    count("reduce", &Traffic::reduce, rank_ != root ? static_cast<double>(n * sizeof(T)) : 0.0);
    log(n, nccl_type<T>(), text(", sum, to rank ", root));
    make({"reduce", data, data, n, nccl_type<T>(), stream}, [&](const CommCall& call) {
        NCCL_CHECK(ncclReduce(call.in, call.out, n, call.type, ncclSum, root, comm_, stream));
    });
}

template <class T>
void Communicator::broadcast(T* data, std::size_t n, int root, cudaStream_t stream) {
    const int reached = rank_ == root ? size_ - 1 : 0;
    count("broadcast", &Traffic::broadcast, reached * static_cast<double>(n * sizeof(T)));
    log(n, nccl_type<T>(), text(" from rank ", root));
    make({"broadcast", data, data, n, nccl_type<T>(), stream}, [&](const CommCall& call) {
        NCCL_CHECK(ncclBroadcast(call.in, call.out, n, call.type, root, comm_, stream));
    });
}

template <class T>
void Communicator::send(const T* data, std::size_t n, int peer, cudaStream_t stream) {
    count("send", &Traffic::point_to_point, static_cast<double>(n * sizeof(T)));
    log_transfer(n, nccl_type<T>(), rank_, peer);
    make({"send", data, nullptr, n, nccl_type<T>(), stream},
         [&](const CommCall& call) { NCCL_CHECK(ncclSend(call.in, n, call.type, peer, comm_, stream)); });
}

template <class T>
void Communicator::receive(T* data, std::size_t n, int peer, cudaStream_t stream) {
    count("receive", &Traffic::point_to_point, 0);
    log_transfer(n, nccl_type<T>(), peer, rank_);
    make({"receive", nullptr, data, n, nccl_type<T>(), stream},
         [&](const CommCall& call) { NCCL_CHECK(ncclRecv(call.out, n, call.type, peer, comm_, stream)); });
}

template <class T>
void Communicator::all_to_all(T* out, const T* in, std::size_t n, cudaStream_t stream) {
    Group group(*this);
    for (int r = 0; r < size_; r++) {
        const std::size_t offset = static_cast<std::size_t>(r) * n;
        send(in + offset, n, r, stream);
        receive(out + offset, n, r, stream);
    }
    traffic_.point_to_point -= static_cast<double>(n * sizeof(T));   // a rank's own part does not travel
}

#define INSTANTIATE(T)                                                                      \
    template void Communicator::all_reduce<T>(T*, std::size_t, ReduceOp, cudaStream_t);     \
    template void Communicator::reduce_scatter<T>(T*, const T*, std::size_t, cudaStream_t); \
    template void Communicator::all_gather<T>(T*, const T*, std::size_t, cudaStream_t);     \
    template void Communicator::reduce<T>(T*, std::size_t, int, cudaStream_t);              \
    template void Communicator::broadcast<T>(T*, std::size_t, int, cudaStream_t);           \
    template void Communicator::send<T>(const T*, std::size_t, int, cudaStream_t);          \
    template void Communicator::receive<T>(T*, std::size_t, int, cudaStream_t);             \
    template void Communicator::all_to_all<T>(T*, const T*, std::size_t, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
INSTANTIATE(double)
INSTANTIATE(std::int32_t)
INSTANTIATE(std::int64_t)
INSTANTIATE(std::uint64_t)
#undef INSTANTIATE

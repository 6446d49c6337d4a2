#include "llmc/parallel/local_ranks.h"

#include <climits>
#include <exception>
#include <thread>

// The stand-in's way to give a thread a device of its own; absent on a GPU.
extern "C" __attribute__((weak)) void on_own_device(void (*body)(void*), void* context);

namespace {

// body(rank) with the rank's device.
void with_device(int rank, const std::function<void()>& body) {
    if (on_own_device) {
        on_own_device([](void* context) { (*static_cast<const std::function<void()>*>(context))(); },
                      const_cast<void*>(static_cast<const void*>(&body)));
        return;
    }
    CUDA_CHECK(cudaSetDevice(rank));
    body();
}

bool is_lost_peer(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const Error& e) {
        return e.kind() == ErrorKind::resumable;
    } catch (...) {
        return false;
    }
}

}   // namespace

int most_local_ranks() {
    if (on_own_device) return INT_MAX;
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    return devices;
}

void run_local_ranks(int ranks, const std::function<void(Communicator& world)>& body) {
    const ncclUniqueId id = Communicator::make_unique_id();
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++) {
        threads.emplace_back([&, rank] {
            try {
                with_device(rank, [&] {
                    Communicator world(id, rank, ranks, "world");
                    body(world);
                });
            } catch (...) {
                errors[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::exception_ptr first;
    for (const std::exception_ptr& error : errors) {
        if (error && (!first || (is_lost_peer(first) && !is_lost_peer(error)))) first = error;
    }
    if (first) std::rethrow_exception(first);
}

// What the algorithms of this folder are made of: steps, in each of which a rank sends pieces of a vector to some peers
// and receives pieces from others, all at once, and adds up what it has received.
//
// These algorithms are lessons and oracles, each a page. Training uses NCCL's own (llmc/process/comm.h), which are
// faster: they pipeline within a step, and choose by size and topology.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/kernels/accumulate.cuh"
#include "llmc/process/comm.h"

// Elements [first, first + count) of a vector.
struct Piece {
    std::size_t first, count;
};

// The one with this index of as many pieces as given; sizes differ by at most one element.
inline Piece piece_of(const Piece& whole, int pieces, int index) {
    const auto begin = [&](int i) {
        return whole.count * static_cast<std::size_t>(i) / static_cast<std::size_t>(pieces);
    };
    return {whole.first + begin(index), begin(index + 1) - begin(index)};
}

class Peers {
public:
    // A vector of `count` elements on the device, summed over the ranks of `group` in place.
    Peers(Communicator& group, float* data, std::size_t count, Arena& arena, cudaStream_t stream)
        : group_(group),
          data_(data),
          count_(count),
          stream_(stream),
          received_(arena.allocate<float>("algorithms/received", count * static_cast<std::size_t>(group.size()))),
          sent_(static_cast<std::size_t>(group.size()), 0.0) {}

    int rank() const { return group_.rank(); }
    int size() const { return group_.size(); }
    Piece whole() const { return {0, count_}; }

    struct Send {
        int peer;
        Piece what;
    };
    struct Receive {
        int peer;
        Piece what;
        bool add = false;   // to what is there, in the order of the list; else in its place
    };
    // All ranks make the same number of steps; some have nothing to do in one. A piece that is sent is none that is
    // received in place of another in the same step.
    void step(const std::vector<Send>& sends, const std::vector<Receive>& receives) {
        steps_++;
        std::vector<float*> places;
        float* free = received_.data();
        for (const Receive& receive : receives) {
            places.push_back(receive.add ? free : data_ + receive.what.first);
            if (receive.add) free += receive.what.count;
        }
        {
            const Communicator::Group together(group_);
            for (const Send& send : sends) {
                if (send.what.count == 0) continue;
                group_.send(data_ + send.what.first, send.what.count, send.peer, stream_);
                sent_[static_cast<std::size_t>(send.peer)] += static_cast<double>(send.what.count);
            }
            for (std::size_t i = 0; i < receives.size(); i++) {
                if (receives[i].what.count == 0) continue;
                group_.receive(places[i], receives[i].what.count, receives[i].peer, stream_);
            }
        }
        for (std::size_t i = 0; i < receives.size(); i++) {
            const Piece& what = receives[i].what;
            if (receives[i].add) {
                accumulate(data_ + what.first, places[i], static_cast<std::int64_t>(what.count), stream_);
            }
        }
    }

    // What this rank has done so far: steps, and elements that it has sent to each peer.
    int steps() const { return steps_; }
    const std::vector<double>& sent() const { return sent_; }

private:
    Communicator& group_;
    float* data_;
    std::size_t count_;
    cudaStream_t stream_;
    DeviceBuffer<float> received_;
    int steps_ = 0;
    std::vector<double> sent_;
};

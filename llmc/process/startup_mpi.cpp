// Start-up by MPI, where mpi.h was found at build time (USE_MPI). MPI introduces the ranks to one another
// and carries short texts between them (World::gather_text); training talks over NCCL alone.
#include "llmc/base/error.h"
#include "llmc/process/startup.h"

#ifdef USE_MPI

#include <mpi.h>

namespace {

class MpiRendezvous : public Rendezvous {
public:
    MpiRendezvous(int rank, int ranks) : Rendezvous(rank, ranks) {}
    ~MpiRendezvous() override { MPI_Finalize(); }

    std::vector<std::string> all_gather(const std::string& own) override {
        const auto n = static_cast<std::size_t>(ranks());
        std::vector<int> lengths(n), offsets(n);
        int length = static_cast<int>(own.size()), sum = 0;
        MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
        for (std::size_t r = 0; r < n; r++) {
            offsets[r] = sum;
            sum += lengths[r];
        }
        std::string joined(static_cast<std::size_t>(sum), '\0');
        MPI_Allgatherv(own.data(), length, MPI_CHAR, joined.data(), lengths.data(), offsets.data(), MPI_CHAR,
                       MPI_COMM_WORLD);
        std::vector<std::string> all;
        for (std::size_t r = 0; r < n; r++) {
            all.push_back(joined.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r])));
        }
        return all;
    }
};

}   // namespace

bool built_with_mpi() { return true; }

std::unique_ptr<Rendezvous> rendezvous_by_mpi() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (!initialised && MPI_Init(nullptr, nullptr) != MPI_SUCCESS) {
        throw Error(ErrorKind::no_device, "MPI_Init failed", "Start with mpirun, or use --init tcp.");
    }
    int rank = 0, ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    return std::make_unique<MpiRendezvous>(rank, ranks);
}

#else

bool built_with_mpi() { return false; }

std::unique_ptr<Rendezvous> rendezvous_by_mpi() {
    throw Error(ErrorKind::usage, "--init mpi: this program was built without MPI",
                "Install libopenmpi-dev and build again, or use --init tcp or fs.");
}

#endif

// libFuzzer's entry: `FUZZ_TARGET=tokenizer.json build/cpu-fuzz/parsers_fuzz -max_total_time=60 [corpus folder]`.
// `make fuzz` runs every target in turn, beginning with its seeds. See parsers.h.

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "dev/test/fuzz/parsers.h"

namespace {

const FuzzTarget& chosen() {
    static const std::vector<FuzzTarget> targets = fuzz::targets();
    static const FuzzTarget& target = [&]() -> const FuzzTarget& {
        const char* name = std::getenv("FUZZ_TARGET");
        for (const FuzzTarget& t : targets) {
            if (name != nullptr && std::string(name) == t.name) return t;
        }
        std::fprintf(stderr, "FUZZ_TARGET must be one of:");
        for (const FuzzTarget& t : targets) std::fprintf(stderr, " %s", t.name);
        std::fputc('\n', stderr);
        std::exit(64);
    }();
    return target;
}

}   // namespace

// Writes the seeds into the folder FUZZ_SEEDS, where it is set.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
    const FuzzTarget& target = chosen();
    if (const char* folder = std::getenv("FUZZ_SEEDS")) {
        for (std::size_t i = 0; i < target.seeds.size(); i++) {
            std::ofstream(text(folder, "/seed", i), std::ios::binary) << target.seeds[i];
        }
    }
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
    try {
        chosen().parse(std::string_view(reinterpret_cast<const char*>(bytes), size));
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::bug) std::abort();
    }
    return 0;
}

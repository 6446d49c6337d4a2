#include "llmc/run/loop/step_trace.h"

#include <span>

#include "llmc/base/stand_in.h"

void check_can_trace(const std::string& path) {
    if (path.empty() || stand_in()) return;
    throw Error(ErrorKind::usage, text("--trace ", path, ": only the build without a GPU records its operations"),
                "Build with `make DEVICE=cpu`, or run under Nsight Systems (nsys profile) on a GPU.");
}

void trace_step(FileSystem& files, const std::string& path, World* world, const std::function<void()>& step) {
    const std::string own = stand_in()->record_text(step);
    const std::vector<std::string> all = world ? world->gather_text(own) : std::vector<std::string>{own};
    if (world && !world->is_first()) return;
    const std::string json = stand_in()->trace(all);
    const std::unique_ptr<File> file = files.create(path);
    file->write(std::as_bytes(std::span(json)));
    file->sync();
}

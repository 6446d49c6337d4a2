#include "llmc/run/metrics/told_run.h"

#include <map>

#include "llmc/parallel/schedule_picture.h"
#include "llmc/run/options/layout_options.h"

std::vector<ReportPicture> pictures_of_run(const Options& options) {
    if (options.pp == 1) return {};
    const PipelineShape shape = pipeline_shape(options);
    if (shape.stages * shape.chunks * shape.micro_batches > 1024) return {};
    return {{"Schedule of the pipeline", schedule_svg(shape)}};
}

Json told_start(const Arena& arena, int max_steps) {
    std::map<std::string, std::size_t> groups;
    for (const Allocation& allocation : arena.allocations()) {
        groups[allocation.name.substr(0, allocation.name.find('/'))] += allocation.bytes;
    }
    Json memory = Json::object();
    for (const auto& [name, bytes] : groups) memory.add(name, bytes);
    return Json::object({{"max_steps", max_steps}, {"memory", std::move(memory)}});
}

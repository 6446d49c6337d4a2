#include "llmc/train/metrics.h"

#include <cmath>
#include <cstdio>
#include <functional>

#include "llmc/base/log.h"

namespace {

std::string json_number(double value) { return std::isfinite(value) ? formatted("%.9g", value) : "null"; }

void write_line(File* file, const std::string& line) {
    if (file != nullptr) file->write(bytes_of(line + "\n"));
}

// Keeps the whole lines of `path` for which `keep` holds.
void filter_lines(FileSystem& files, const std::string& path, const std::function<bool(const std::string&)>& keep) {
    if (!files.exists(path)) return;
    const std::string content = read_whole(files, path);
    std::string kept;
    for (std::size_t begin = 0, end; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1) {
        std::string line = content.substr(begin, end - begin);
        if (keep(line)) kept += line + "\n";
    }
    if (kept != content) write_whole(files, path, kept);
}

// The lines of both logs begin with their step.
bool metrics_line_up_to(const std::string& line, int last_step) {
    int step = 0;
    return std::sscanf(line.c_str(), "{\"step\":%d,", &step) == 1 && step <= last_step;
}
bool main_log_line_up_to(const std::string& line, int last_step) {
    int step = 0;
    char kind[4] = "";
    if (std::sscanf(line.c_str(), "s:%d %3[a-z]", &step, kind) != 2) return false;
    return step + (std::string(kind) == "trl" ? 1 : 0) <= last_step;
}

}   // namespace

std::string to_json(const StepRecord& r) {
    return formatted(
        "{\"step\":%d,\"loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"tokens_per_s\":%s,\"mfu\":%s,\"step_ms\":%s,"
        "\"memory_bytes\":%llu}",
        r.step, json_number(r.loss).c_str(), json_number(r.grad_norm).c_str(), json_number(r.lr).c_str(),
        json_number(r.tokens_per_s).c_str(), r.mfu ? json_number(*r.mfu).c_str() : "null",
        json_number(r.step_ms).c_str(), static_cast<unsigned long long>(r.memory_bytes));
}

std::string validation_json(int step, float loss) {
    return formatted("{\"step\":%d,\"val_loss\":%s}", step, json_number(loss).c_str());
}

Metrics::Metrics(FileSystem& files, const std::string& folder, int last_step) {
    if (folder.empty()) return;
    files.make_folders(folder);
    const std::string metrics = folder + "/metrics.jsonl", main_log = folder + "/main.log";
    if (last_step == 0) {
        files.create(metrics);
        files.create(main_log);
    } else {
        filter_lines(files, metrics, [&](const std::string& line) { return metrics_line_up_to(line, last_step); });
        filter_lines(files, main_log, [&](const std::string& line) { return main_log_line_up_to(line, last_step); });
    }
    metrics_ = files.append(metrics);
    main_log_ = files.append(main_log);
    files.sync_folder(folder);
}

void Metrics::step(const StepRecord& r) {
    write_line(metrics_.get(), to_json(r));
    write_line(main_log_.get(), formatted("s:%d trl:%.4f lr:%.6f norm:%.2f", r.step - 1, r.loss, r.lr, r.grad_norm));
}

void Metrics::validation(int step, float loss) {
    write_line(metrics_.get(), validation_json(step, loss));
    write_line(main_log_.get(), formatted("s:%d tel:%.4f", step, loss));
}

void Metrics::evaluation(int step, double accuracy) {
    write_line(metrics_.get(), formatted("{\"step\":%d,\"hellaswag\":%s}", step, json_number(accuracy).c_str()));
    write_line(main_log_.get(), formatted("s:%d eval:%.4f", step, accuracy));
}

void Metrics::sync() {
    for (File* file : {metrics_.get(), main_log_.get()}) {
        if (file != nullptr) file->sync();
    }
}

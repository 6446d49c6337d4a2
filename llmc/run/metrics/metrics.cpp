#include "llmc/run/metrics/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/base/printable.h"
#include "llmc/data/multiple_choice.h"
#include "llmc/run/metrics/metrics_server.h"

namespace {

std::string json_number(double value) { return std::isfinite(value) ? formatted("%.9g", value) : "null"; }

void write_line(File* file, const std::string& line) {
    if (file != nullptr) file->write(bytes_of(line + "\n"));
}

// Keeps the whole lines of `path` for which `keep` returns true. Returns a warning of those without a step that a run
// can have; empty: there is none.
std::string filter_lines(FileSystem& files, const std::string& path,
                         const std::function<bool(int step, const std::string& rest)>& keep) {
    if (!files.exists(path)) return "";
    const std::string content = read_large(files, path);
    std::string kept, first_wrong;
    int wrong = 0;
    for (std::size_t begin = 0, end; (end = content.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const std::string line = content.substr(begin, end - begin);
        const std::size_t digits = line.find(':') + 1;   // the lines of both logs begin with their step
        int step = 0;
        const auto [rest, code] = std::from_chars(line.data() + digits, line.data() + line.size(), step);
        const bool ends = rest < line.data() + line.size() && (*rest == ',' || *rest == ' ');
        if (digits == 0 || code != std::errc{} || step < 0 || !ends) {
            if (wrong++ == 0) first_wrong = printable(line.substr(0, 80));
        } else if (keep(step, std::string(rest, line.data() + line.size()))) {
            kept += line + "\n";
        }
    }
    if (kept != content) write_whole(files, path, kept);
    return wrong == 0
               ? ""
               : text(path, ": dropped ", wrong, " line(s) that no step of a run writes, the first: ", first_wrong);
}

constexpr const char* bits_per_byte_key = "val_bits_per_byte";
constexpr const char *by_sum = "_sum", *of_perplexity = "_perplexity";   // behind the name of an evaluation

bool is_evaluation(const std::string& key) {
    return std::ranges::any_of(question_sources, [&key](const NamedSource& source) {
        return key == source.name || key == text(source.name, by_sum) || key == text(source.name, of_perplexity);
    });
}

std::vector<EventFile::Value> values_of(const EvaluationRecord& record) {
    std::vector<EventFile::Value> values{{record.name, record.accuracy}};
    if (record.accuracy_by_sum) values.push_back({record.name + by_sum, *record.accuracy_by_sum});
    if (record.perplexity) values.push_back({record.name + of_perplexity, *record.perplexity});
    return values;
}

// Tells which records of an earlier run are kept: everything before the work `next` after step `step`.
struct KeptUpTo {
    int step;
    StepPhase next;
    bool rewinds;   // keeps earlier rewinds to this step too
    bool holds(int of_step) const { return of_step <= step; }
    bool holds(int of_step, StepPhase work) const { return of_step < step || (of_step == step && work < next); }
    bool holds(int of_step, const std::string& key) const {
        if (key == "val_loss" || key == bits_per_byte_key) return holds(of_step, StepPhase::validation);
        return is_evaluation(key) ? holds(of_step, StepPhase::evaluation) : holds(of_step);
    }
};

// `rest`: what follows the line's step.
bool keeps_metrics_line(int step, const std::string& rest, const KeptUpTo& kept) {
    char key[32] = "";
    if (std::sscanf(rest.c_str(), ",\"%31[a-z_]", key) != 1) return false;
    if (std::string(key) == "rewind_from") return step < kept.step || (step == kept.step && kept.rewinds);
    return kept.holds(step, key);
}
bool keeps_main_log_line(int step, const std::string& rest, const KeptUpTo& kept) {
    char kind[5] = "";
    if (std::sscanf(rest.c_str(), " %4[a-z]", kind) != 1) return false;
    if (std::string(kind) == "tel") return kept.holds(step, StepPhase::validation);
    if (std::string(kind) == "eval") return kept.holds(step, StepPhase::evaluation);
    return step < kept.step;   // main.log counts from 0
}

// Load of a mixture of experts, with the names used in metrics.jsonl and the event file.
std::vector<EventFile::Value> values_of(const std::optional<ExpertLoad>& load) {
    if (!load) return {};
    std::vector<EventFile::Value> values{{"expert_fullest", load->fullest},
                                         {"expert_emptiest", load->emptiest},
                                         {"expert_entropy", load->entropy},
                                         {"aux_loss", load->balance_loss},
                                         {"router_z_loss", load->z_loss}};
    if (load->dropped) values.push_back({"expert_dropped", *load->dropped});
    if (const std::vector<double>& ranks = load->fullest_rank; !ranks.empty()) {
        const auto worst = std::ranges::max_element(ranks);
        values.push_back({"expert_fullest_rank", *worst});
        values.push_back({"expert_fullest_rank_layer", static_cast<double>(worst - ranks.begin())});
    }
    return values;
}

// Returns "KEY":{"NAME":x,...}, or an empty string without values.
template <class Named>
std::string json_of_each(const char* key, const Named& values) {
    std::string of_each;
    for (const auto& [name, value] : values) {
        of_each += text(of_each.empty() ? "" : ",", to_text(Json(name)), ":", json_number(value));
    }
    return of_each.empty() ? "" : text("\"", key, "\":{", of_each, "}");
}

}   // namespace

std::string to_json(const StepRecord& r) {
    const std::string waiting =
        r.waiting ? formatted("\"slowest_rank\":%d,\"waiting\":%.9g,", r.waiting->rank, r.waiting->share) : "";
    const std::string exposed = r.exposed_ms.empty() ? "" : json_of_each("exposed_ms", r.exposed_ms) + ",";
    const std::string gpu = r.gpu ? formatted("\"gpu_percent\":%u,\"gpu_watts\":%.1f,\"gpu_celsius\":%u,",
                                              r.gpu->utilization, r.gpu->watts, r.gpu->celsius)
                                  : "";
    std::string experts;
    for (const auto& [name, value] : values_of(r.experts)) experts += text("\"", name, "\":", json_number(value), ",");
    if (r.experts && !r.experts->fullest_rank.empty()) {
        std::vector<std::pair<std::string, double>> layers;
        for (const double load : r.experts->fullest_rank) layers.emplace_back(text(layers.size()), load);
        experts += json_of_each("expert_fullest_rank_of", layers) + ",";
    }
    return formatted(
        "{\"step\":%d,\"loss\":%s,\"grad_norm\":%s,\"lr\":%s,\"tokens_per_s\":%s,\"mfu\":%s,\"step_ms\":%s,"
        "%s%s%s%s\"memory_bytes\":%llu}",
        r.step, json_number(r.loss).c_str(), json_number(r.grad_norm).c_str(), json_number(r.lr).c_str(),
        json_number(r.tokens_per_s).c_str(), r.mfu ? json_number(*r.mfu).c_str() : "null",
        json_number(r.step_ms).c_str(), waiting.c_str(), exposed.c_str(), gpu.c_str(), experts.c_str(),
        static_cast<unsigned long long>(r.memory_bytes));
}

std::string validation_json(int step, const ValidationRecord& r) {
    std::string members = text("\"step\":", step, ",\"val_loss\":", json_number(r.loss));
    auto add = [&](const std::string& member) {
        if (!member.empty()) members += "," + member;
    };
    add(json_of_each("val_loss_of", r.loss_of));
    if (r.bits_per_byte) add(text("\"", bits_per_byte_key, "\":", json_number(*r.bits_per_byte)));
    add(json_of_each("val_bits_per_byte_of", r.bits_per_byte_of));
    return "{" + members + "}";
}

Metrics::Metrics(FileSystem& files, const std::string& folder, int last_step, StepPhase next, bool tensorboard)
    : files_(&files), folder_(folder), tensorboard_(tensorboard) {
    if (folder.empty()) return;
    files.make_folders(folder);
    told_.emplace(files, folder, last_step == 0);
    open(last_step, next, false);
}

void Metrics::tell(const std::string& key, Json value) {
    try {
        if (told_) told_->add(step_, key, std::move(value));
    } catch (const Error&) {   // a run goes on without its report; the metrics files report their own failures
    }
}

void Metrics::open(int last_step, StepPhase next, bool keep_rewinds) {
    step_ = last_step;
    const std::string metrics = folder_ + "/metrics.jsonl", main_log = folder_ + "/main.log";
    const KeptUpTo kept{last_step, next, keep_rewinds};
    if (tensorboard_) {
        events_.emplace(*files_, folder_,
                        [&](int step, const std::string& tag) { return last_step > 0 && kept.holds(step, tag); });
    }
    if (last_step == 0) {
        const std::string events = folder_ + "/" + EventFile::name;   // left by a run that is overwritten
        if (!tensorboard_ && files_->exists(events)) files_->remove_all(events);
        files_->create(metrics);
        files_->create(main_log);
    } else {
        int recorded = 0;   // the last step with a loss
        const auto keeps_metrics = [&](int step, const std::string& rest) {
            if (!keeps_metrics_line(step, rest, kept)) return false;
            if (rest.starts_with(",\"loss\"")) recorded = std::max(recorded, step);
            return true;
        };
        const auto keeps_main_log = [&](int step, const std::string& rest) {
            return keeps_main_log_line(step, rest, kept);
        };
        for (std::string warning :
             {filter_lines(*files_, metrics, keeps_metrics), filter_lines(*files_, main_log, keeps_main_log)}) {
            if (!warning.empty()) warnings_.push_back(std::move(warning));
        }
        recorded_ = recorded;
    }
    metrics_ = files_->append(metrics);
    main_log_ = files_->append(main_log);
    files_->sync_folder(folder_);
}

void Metrics::write_metrics(const std::string& line) {
    write_line(metrics_.get(), line);
    if (server_ != nullptr) server_->show(line);
}

void Metrics::rewind(const RewindRecord& r, StepPhase next) {
    if (folder_.empty()) return;
    open(r.step, next, true);
    tell("rewind", r.from);
    write_metrics(formatted("{\"step\":%d,\"rewind_from\":%d,\"loss\":%s,\"grad_norm\":%s,\"skipped_samples\":%llu}",
                            r.step, r.from, json_number(r.loss).c_str(), json_number(r.grad_norm).c_str(),
                            static_cast<unsigned long long>(r.skipped_samples)));
}

void Metrics::step(const StepRecord& r) {
    step_ = r.step;
    write_metrics(to_json(r));
    write_line(main_log_.get(), formatted("s:%d trl:%.4f lr:%.6f norm:%.2f", r.step - 1, r.loss, r.lr, r.grad_norm));
    if (!events_) return;
    std::vector<EventFile::Value> values{{"loss", r.loss},       {"grad_norm", r.grad_norm},
                                         {"lr", r.lr},           {"tokens_per_s", r.tokens_per_s},
                                         {"step_ms", r.step_ms}, {"memory_bytes", static_cast<double>(r.memory_bytes)}};
    if (r.mfu) values.push_back({"mfu", *r.mfu});
    if (r.waiting) {
        values.push_back({"slowest_rank", static_cast<double>(r.waiting->rank)});
        values.push_back({"waiting", r.waiting->share});
    }
    for (const auto& [group, ms] : r.exposed_ms) values.push_back({"exposed_ms/" + group, ms});
    std::ranges::move(values_of(r.experts), std::back_inserter(values));
    events_->add(r.step, values);
}

void Metrics::validation(int step, const ValidationRecord& record) {
    write_metrics(validation_json(step, record));
    write_line(main_log_.get(), formatted("s:%d tel:%.4f", step, record.loss));
    if (!events_) return;
    std::vector<EventFile::Value> values{{"val_loss", record.loss}};
    if (record.bits_per_byte) values.push_back({bits_per_byte_key, *record.bits_per_byte});
    events_->add(step, values);
}

void Metrics::evaluation(int step, const EvaluationRecord& record) {
    const std::vector<EventFile::Value> values = values_of(record);
    std::string all;
    for (const auto& [key, value] : values) all += text(",\"", key, "\":", json_number(value));
    write_metrics(text("{\"step\":", step, all, "}"));
    if (record.name == hellaswag_source.name) {
        write_line(main_log_.get(), formatted("s:%d eval:%.4f", step, record.accuracy));
    }
    if (events_) events_->add(step, values);
}

void Metrics::require_folder() {
    if (metrics_) metrics_->write({});   // an empty write checks that the file is still at its path
}

void Metrics::sync() {
    for (File* file : {metrics_.get(), main_log_.get()}) {
        if (file != nullptr) file->sync();
    }
    if (events_) events_->sync();
}

#include "llmc/report/page.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/io/json_file.h"
#include "llmc/report/layout_picture.h"
#include "llmc/report/page_style.h"
#include "llmc/report/plot.h"
#include "llmc/report/run_log.h"

namespace {

constexpr double kWidth = 480, kHeight = 250;
constexpr Frame kFrame{58, 458, 12, 196};

struct Curve {
    std::string name;
    Points points;
    std::string color;   // a class of the style
};

struct Figure {
    std::string key, title;
    std::vector<Curve> curves{};
    std::vector<Curve> dots{};
    bool logarithmic = false, smooth = false;
    PlotQuantity quantity{true, true};
};

// A panel with one curve per run. Panels come in this order; a panel without numbers is left out.
struct Quantity {
    const char *key, *title;
    bool smooth;
};
constexpr Quantity kQuantities[] = {{"lr", "learning rate", false},
                                    {"grad_norm", "gradient norm", true},
                                    {"tokens_per_s", "tokens per second", true},
                                    {"mfu", "share of the device's peak (MFU)", true},
                                    {"waiting", "share of a step that replicas wait for the slowest", true},
                                    {"expert_fullest", "tokens of the fullest expert, relative to the mean", true}};
// Keys of the panel of evaluations.
constexpr const char* kScores[] = {"hellaswag", "mmlu", "arc_easy", "arc_challenge", "piqa", "lambada"};

std::string color_class(std::size_t index) { return text("c", index % 6); }

// Returns `what`, with the run's name in front if there are several runs.
std::string label(const std::vector<ReportedRun>& runs, std::size_t run, const std::string& what) {
    if (runs.size() == 1) return what;
    return what.empty() ? runs[run].run->name : text(runs[run].run->name, ": ", what);
}

Figure figure_of_losses(const std::vector<ReportedRun>& runs) {
    Figure figure{.key = "loss",
                  .title = "loss (nats per token)",
                  .logarithmic = true,
                  .smooth = true,
                  .quantity = {false, true}};
    for (std::size_t i = 0; i < runs.size(); i++) {
        figure.curves.push_back({label(runs, i, "training"), runs[i].run->of("loss"), color_class(i)});
        const Points& validation = runs[i].run->of("val_loss");
        if (validation.empty()) continue;
        figure.dots.push_back({label(runs, i, "validation"), validation, runs.size() == 1 ? "val" : color_class(i)});
    }
    return figure;
}

std::vector<Figure> figures_of(const std::vector<ReportedRun>& runs) {
    std::vector<Figure> figures{figure_of_losses(runs)};
    Figure sources{
        .key = "val_loss_of", .title = "validation loss by source", .logarithmic = true, .quantity = {false, true}};
    Figure bits{.key = "val_bits_per_byte",
                .title = "validation: bits per byte of text",
                .logarithmic = true,
                .quantity = {false, true}};
    Figure scores{.key = "scores", .title = "evaluations: share of right answers", .quantity = {true, false}};
    Figure sums{.key = "scores_by_sum",
                .title = "evaluations: share of right answers by the sum of losses",
                .quantity = {true, false}};
    Figure exposed{.key = "exposed_ms",
                   .title = "communication that nothing hides, by group of ranks, ms",
                   .smooth = true,
                   .quantity = {true, true}};
    Figure perplexity{.key = "lambada_perplexity",
                      .title = "LAMBADA: perplexity of the last word",
                      .logarithmic = true,
                      .quantity = {false, true}};
    for (std::size_t i = 0; i < runs.size(); i++) {
        for (const auto& curve : runs[i].run->series) {
            const std::string& key = curve.first;
            const Points& points = curve.second;
            auto add = [&, of_run = i](Figure& figure, const std::string& name) {
                figure.curves.push_back({label(runs, of_run, name), points, color_class(figure.curves.size())});
            };
            if (key.starts_with("val_loss_of/")) add(sources, key.substr(12));
            if (key.starts_with("exposed_ms/")) add(exposed, key.substr(11));
            if (std::ranges::find(kScores, key) != std::end(kScores)) add(scores, key);
            if (key.ends_with("_sum")) add(sums, key.substr(0, key.size() - 4));
            if (key == perplexity.key) add(perplexity, "");
            if (key == bits.key) add(bits, "");
        }
    }
    for (Figure& figure : {std::ref(sources), std::ref(bits), std::ref(scores), std::ref(sums), std::ref(perplexity)}) {
        if (!figure.curves.empty()) figures.push_back(figure);
    }
    for (const Quantity& what : kQuantities) {
        Figure figure{.key = what.key, .title = what.title, .smooth = what.smooth, .quantity = {true, what.smooth}};
        for (std::size_t i = 0; i < runs.size(); i++) {
            const Points& points = runs[i].run->of(what.key);
            if (!points.empty()) figure.curves.push_back({label(runs, i, ""), points, color_class(i)});
        }
        if (!figure.curves.empty()) figures.push_back(figure);
    }
    if (!exposed.curves.empty()) figures.push_back(exposed);
    return figures;
}

Scale scale_of(const Figure& figure) {
    std::vector<double> values;
    for (const auto* curves : {&figure.curves, &figure.dots}) {
        for (const Curve& curve : *curves) {
            for (const Point& p : curve.points) values.push_back(p.y);
        }
    }
    const bool logarithmic = figure.logarithmic && !values.empty() && *std::ranges::min_element(values) > 0;
    Scale scale = ::scale_of(values, figure.quantity);
    if (logarithmic) scale.low = std::max(scale.low, 0.9 * *std::ranges::min_element(values));
    scale.logarithmic = logarithmic;
    return scale;
}

// An event of a run's time line.
struct Event {
    double step;
    std::string time, kind, tells;
};
std::vector<Event> events_of(const std::vector<Json>& told) {
    std::vector<Event> events;
    for (const Json& line : told) {
        const double step = line.at("step").as_number();
        const Json* time = line.find("time");
        auto add = [&](const char* kind, const std::string& tells) {
            events.push_back({step, time && time->is_text() ? time->as_text() : "", kind, tells});
        };
        if (line.contains("start")) add("start", step == 0 ? "begins" : formatted("goes on after step %.0f", step));
        const Json *warning = line.find("warning"), *end = line.find("end"), *rewind = line.find("rewind");
        if (warning && warning->is_text()) add("warning", warning->as_text());
        if (rewind && rewind->is_number()) add("rewind", formatted("back from step %.0f", rewind->as_number()));
        if (end && end->is_text()) add("end", end->as_text());
    }
    return events;
}

// Returns the drawn points of a figure's curves as JSON.
Json numbers_of(const Figure& figure) {
    Json curves = Json::array();
    for (const auto* list : {&figure.curves, &figure.dots}) {
        for (const Curve& curve : *list) {
            Json points = Json::array();
            for (const Point& p : thinned(curve.points)) points.append(Json::array({p.x, p.y}));
            curves.append(Json::object({{"name", curve.name}, {"points", std::move(points)}}));
        }
    }
    return curves;
}

std::string draw(const Figure& figure, double last, const std::vector<Event>& events) {
    Panel panel(kFrame, last, scale_of(figure));
    panel.axes("", "step");
    for (const Event& event : events) panel.mark(event.step, event.kind, text(event.kind, ": ", event.tells));
    std::string legend;
    auto tell = [&legend](const Curve& curve, const char* sign) {
        legend += text("<span><span class='", curve.color, "'>", sign, "</span>", xml(curve.name), " <b>",
                       curve.points.empty() ? "" : formatted("%.9g", curve.points.back().y), "</b></span>");
    };
    for (const Curve& curve : figure.curves) {
        if (figure.smooth) panel.line(curve.points, "raw " + curve.color, "currentColor");
        panel.line(figure.smooth ? running_mean(curve.points) : curve.points, "mean " + curve.color, "currentColor");
        tell(curve, "&#9473; ");
    }
    for (const Curve& curve : figure.dots) {
        panel.dots(curve.points, "currentColor", curve.color);
        tell(curve, "&#9679; ");
    }
    return text("<figure data-key='", figure.key, "'><b>", xml(figure.title), "</b>\n<svg role='img' viewBox='0 0 ",
                kWidth, " ", kHeight, "'>", panel.svg(), "</svg>\n<figcaption>", legend,
                "<output></output></figcaption></figure>\n");
}

std::string time_line(const std::vector<Event>& events, double last) {
    Panel strip({kFrame.left, kFrame.right, 4, 24}, last, {0, 1});
    strip.line({{0, 0}, {last, 0}}, "grid", "currentColor");
    std::string rows;
    for (const Event& event : events) strip.mark(event.step, event.kind, text(event.kind, ": ", event.tells));
    const std::size_t first = events.size() > 200 ? events.size() - 200 : 0;
    for (std::size_t i = events.size(); i-- > first;) {
        const Event& event = events[i];
        rows += text("<tr><td class='n'>", event.step, "</td><td>", event.kind, "</td><td>", xml(event.tells),
                     "</td><td class='faint'>", xml(event.time), "</td></tr>\n");
    }
    return text("<h3>Time line</h3>\n<svg role='img' style='width:100%;max-width:900px' viewBox='0 0 ", kWidth, " 28'>",
                strip.svg(), "</svg>\n<div class='wide'><table><tr><th>step</th><th></th><th></th><th>time</th></tr>\n",
                rows, "</table></div>\n");
}

std::string size_text(double bytes) {
    return bytes < 1 << 20 ? formatted("%.2f KiB", bytes / (1 << 10)) : formatted("%.2f MiB", bytes / (1 << 20));
}

std::string memory_table(const Json& memory) {
    double most = 1, all = 0;
    for (const auto& [name, bytes] : memory.members())
        most = std::max(most, bytes.as_number()), all += bytes.as_number();
    std::string rows;
    auto row = [&rows](const std::string& name, double bytes, double share) {
        rows += text("<tr><td>", xml(name), "</td><td class='n'>", size_text(bytes),
                     "</td><td class='room'><span class='bar' style='width:", formatted("%.1f", 100 * share),
                     "%'></span></td></tr>\n");
    };
    for (const auto& [name, bytes] : memory.members()) row(name, bytes.as_number(), bytes.as_number() / most);
    rows += text("<tr><th>all of rank 0</th><td class='n'>", size_text(all), "</td></tr>\n");
    return text("<h3>Device memory</h3>\n<table style='width:100%;max-width:700px'>\n", rows, "</table>\n");
}

// Shows the last 20 samples, newest first, without those of steps that a restart or a rewind has undone.
std::string samples_of(const std::vector<Json>& told) {
    std::vector<const Json*> samples;
    for (const Json& line : told) {
        const double step = line.at("step").as_number();
        if (line.contains("start") || line.contains("rewind")) {
            std::erase_if(samples, [step](const Json* sample) { return sample->at("step").as_number() > step; });
        }
        if (const Json* sample = line.find("sample"); sample && sample->is_text()) samples.push_back(&line);
    }
    std::string result;
    for (std::size_t i = samples.size(); i-- > 0 && samples.size() - i <= 20;) {
        result += text("<details", i + 1 == samples.size() ? " open" : "", "><summary>after step ",
                       samples[i]->at("step").as_number(), "</summary><pre>", xml(samples[i]->at("sample").as_text()),
                       "</pre></details>\n");
    }
    return result.empty() ? result : "<h3>Samples</h3>\n" + result;
}

std::string table_of_options(const Json& options) {
    std::string rows;
    for (const auto& [name, value] : options.members()) {
        if (value.is_text() && !value.as_text().empty()) {
            rows += text("<tr><td>--", xml(name), "</td><td>", xml(value.as_text()), "</td></tr>\n");
        }
    }
    return text("<details><summary>Options</summary><div class='wide'><table>\n", rows, "</table></div></details>\n");
}

// The contents of a run's folder besides its metrics.
struct Told {
    std::vector<Json> log;
    Json record;   // options.json; null: there is none
    const Json* start = nullptr;
    std::optional<std::string> end;   // how the last start ended; none: it runs, or was killed
    std::vector<Event> events;

    explicit Told(const std::string& folder) {
        if (folder.empty()) return;
        log = read_run_log(folder);
        events = events_of(log);
        for (const Json& line : log) {
            if (line.contains("start")) start = &line.at("start"), end.reset();
            if (const Json* how = line.find("end"); how && how->is_text()) end = how->as_text();
        }
        const std::string options = folder + "/options.json";
        if (std::filesystem::exists(options)) record = read_json_file(real_files(), options);
    }
};

std::string state_of(const ReportedRun& reported, const Told& told) {
    const Run& run = *reported.run;
    std::string words = formatted("step %.0f", run.last_step);
    const Json* steps = told.start ? told.start->find("max_steps") : nullptr;
    if (steps && steps->is_number()) words += formatted(" of %.0f", steps->as_number());
    for (const char* key : {"loss", "val_loss", "tokens_per_s"}) {
        if (!run.of(key).empty()) words += formatted(" | %s %.9g", key, run.of(key).back().y);
    }
    const Points& times = run.of("step_ms");
    if (steps && steps->is_number() && !told.end && !times.empty()) {
        const Points mean = running_mean(
            {times.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(times.size(), 60)), times.end()});
        const double left = steps->as_number() - run.last_step;
        words += text(" | ", duration_text(left * mean[mean.size() / 2].y / 1000), " left");
    }
    if (told.start) words += " | " + told.end.value_or("running, or killed");
    return words;
}

// Returns what `make` makes of a file's content; errors about it name the file.
template <class Make>
std::string from_file(const std::string& path, Make make) {
    try {
        return make();
    } catch (const JsonError& error) {
        throw Error(ErrorKind::bad_data, text(path, ": ", error.what()), "Restore the file from a copy, or remove it.");
    }
}

std::string section_of(const ReportedRun& reported, const Told& told, double last) {
    const std::string options = reported.folder + "/options.json", log = reported.folder + "/" + run_log_name;
    std::string section = text("<h2>", xml(reported.run->name), "</h2>\n<p>", xml(state_of(reported, told)), "</p>\n");
    if (!told.record.is_null()) section += from_file(options, [&] { return layout_section(told.record); });
    for (const ReportPicture& picture : reported.pictures) {
        section += text("<h3>", xml(picture.title), "</h3>\n<div class='wide paper'>", picture.svg, "</div>\n");
    }
    if (!told.events.empty()) section += time_line(told.events, last);
    if (told.start && told.start->contains("memory"))
        section += from_file(log, [&] { return memory_table(told.start->at("memory")); });
    section += samples_of(told.log);
    if (!told.record.is_null()) {
        section += from_file(options, [&] { return table_of_options(told.record.at("options")); });
    }
    return section;
}

}   // namespace

std::string report_page(const std::vector<ReportedRun>& runs, bool may_go_on) {
    double last = 1;
    std::vector<Told> told;
    std::string names, sections;
    bool goes_on = false;
    for (const ReportedRun& reported : runs) {
        last = std::max(last, reported.run->last_step);
        told.emplace_back(reported.folder);
        names += (names.empty() ? "" : ", ") + reported.run->name;
        goes_on = goes_on || (may_go_on && !told.back().end);
    }
    std::string figures;
    Json of_figures = Json::object();
    for (const Figure& figure : figures_of(runs)) {
        figures += draw(figure, last, runs.size() == 1 ? told[0].events : std::vector<Event>{});
        of_figures.add(figure.key, numbers_of(figure));
    }
    for (std::size_t i = 0; i < runs.size(); i++) sections += section_of(runs[i], told[i], last);
    const Json numbers = Json::object(
        {{"width", kWidth}, {"left", kFrame.left}, {"right", kFrame.right}, {"last", last}, {"figures", of_figures}});
    std::string data;
    for (const char c : to_text(numbers)) data += c == '<' ? std::string("\\u003c") : std::string(1, c);
    return text("<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n",
                "<meta name='viewport' content='width=device-width,initial-scale=1'>\n",
                goes_on ? "<meta http-equiv='refresh' content='30'>\n" : "", "<title>", xml(names), "</title>\n<style>",
                page_style, "</style></head>\n<body><h1>", xml(names), "</h1>\n<p class='faint'>train_gpt, page of ",
                time_now(), "</p>\n<div class='figures'>\n", figures, "</div>\n", sections,
                "<script type='application/json' id='numbers'>", data, "</script>\n<script>", page_script,
                "</script></body></html>\n");
}

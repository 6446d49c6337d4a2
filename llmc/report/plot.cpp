#include "llmc/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "llmc/base/error.h"
#include "llmc/base/printable.h"

namespace {

double pixel(double position) { return std::round(position * 10) / 10; }

// Returns a step of 1, 2 or 5 times a power of ten that gives about `wanted` ticks.
double tick_step(double range, int wanted) {
    double rough = range / wanted, power = std::pow(10.0, std::floor(std::log10(rough)));
    for (double factor : {1.0, 2.0, 5.0}) {
        if (rough <= factor * power) return factor * power;
    }
    return 10 * power;
}

// Returns where a value lies on a scale, 0 at its low end and 1 at its high one.
double place(const Scale& scale, double value) {
    return scale.logarithmic ? std::log(value / scale.low) / std::log(scale.high / scale.low)
                             : (value - scale.low) / (scale.high - scale.low);
}

}   // namespace

std::string xml(const std::string& text) {
    std::string result;
    for (char c : printable(text)) {
        switch (c) {
            case '<': result += "&lt;"; break;
            case '>': result += "&gt;"; break;
            case '&': result += "&amp;"; break;
            case '\'': result += "&apos;"; break;
            default: result += c;
        }
    }
    return result;
}

std::string number(double value) {
    const char* unit = "";
    for (const char* next : {"k", "M", "B", "T"}) {
        if (std::abs(value) < (*unit ? 1000 : 10000)) break;
        value /= 1000;
        unit = next;
    }
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.5g%s", value, unit);
    return buffer;
}

Points running_mean(const Points& points) {
    std::vector<double> sums{0};   // prefix sums: entry i sums the first i points
    for (const Point& p : points) sums.push_back(sums.back() + p.y);
    const std::size_t reach = points.size() / 60;
    Points result;
    for (std::size_t i = 0; i < points.size(); i++) {
        const std::size_t before = std::min(reach, i), after = std::min(before, points.size() - 1 - i);
        const double sum = sums[i + after + 1] - sums[i - before];
        result.push_back({points[i].x, sum / static_cast<double>(before + after + 1)});
    }
    return result;
}

Points thinned(const Points& points, std::size_t most) {
    if (points.size() <= most) return points;
    const std::size_t stretches = most / 2;
    Points result{points.front()};
    for (std::size_t i = 0; i < stretches; i++) {
        const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i * points.size() / stretches);
        const auto end = points.begin() + static_cast<std::ptrdiff_t>((i + 1) * points.size() / stretches);
        auto [low, high] = std::minmax_element(begin, end, [](const Point& a, const Point& b) { return a.y < b.y; });
        if (high < low) std::swap(low, high);
        for (const Point& p : {*low, *high}) {
            if (p.x > result.back().x) result.push_back(p);
        }
    }
    if (result.back().x < points.back().x) result.push_back(points.back());
    return result;
}

Scale scale_of(std::vector<double> values, const PlotQuantity& what) {
    if (values.empty()) return {0, 1};
    if (values.size() > 100 && what.cuts_spikes) {
        std::sort(values.begin(), values.end());
        const double most = 2 * values[values.size() * 99 / 100];
        for (double& value : values) value = std::min(value, most);
    }
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const double least = what.from_zero ? 0 : *low, margin = 0.05 * std::max(*high - least, 1e-3 * std::abs(*high));
    return {std::max(0.0, least - margin), *high + std::max(margin, 1e-9)};
}

double Panel::x(double value) const { return frame_.left + (frame_.right - frame_.left) * place(x_, value); }

double Panel::y(double value) const {
    return frame_.bottom - (frame_.bottom - frame_.top) * place(y_, std::clamp(value, y_.low, y_.high));
}

// Returns even ticks; on a logarithmic axis of a decade or more, 1, 2 and 5 times the powers of ten.
std::vector<double> Panel::y_ticks() const {
    std::vector<double> values;
    if (y_.logarithmic && y_.high >= 10 * y_.low) {
        for (double power = std::pow(10, std::floor(std::log10(y_.low))); power <= y_.high; power *= 10) {
            for (double factor : {1.0, 2.0, 5.0}) {
                if (factor * power >= y_.low && factor * power <= y_.high) values.push_back(factor * power);
            }
        }
        return values;
    }
    const double step = tick_step(y_.high - y_.low, frame_.bottom - frame_.top > 200 ? 6 : 5);
    for (double i = std::ceil(y_.low / step); i * step <= y_.high + 1e-4 * step; i++) values.push_back(i * step);
    return values;
}

void Panel::axes(const std::string& title, const std::string& x_title) {
    const double step = tick_step(x_.high, frame_.right - frame_.left > 500 ? 6 : 4);
    std::vector<Tick> ticks;
    for (int i = 0; i * step <= x_.high * 1.0001; i++) ticks.push_back({i * step, number(i * step)});
    axes(title, x_title, ticks);
}

void Panel::axes(const std::string& title, const std::string& x_title, const std::vector<Tick>& x_ticks) {
    const auto [left, right, top, bottom] = frame_;
    for (const Tick& tick : x_ticks) {
        const double position = x(tick.value);
        svg_ += text("<line class='grid' x1='", position, "' x2='", position, "' y1='", top, "' y2='", bottom, "'/>\n");
        if (x_title.empty()) continue;
        svg_ += text("<text x='", position, "' y='", bottom + 20, "' text-anchor='middle'>", tick.label, "</text>\n");
    }
    for (const double value : y_ticks()) {
        const double position = y(value);
        svg_ += text("<line class='grid' x1='", left, "' x2='", right, "' y1='", position, "' y2='", position, "'/>\n");
        svg_ += text("<text x='", left - 8, "' y='", position + 4, "' text-anchor='end'>", number(value), "</text>\n");
    }
    if (!x_title.empty()) {
        svg_ += text("<text x='", (left + right) / 2, "' y='", bottom + 42, "' text-anchor='middle'>", x_title,
                     "</text>\n");
    }
    if (!title.empty()) {
        svg_ += text("<text class='title' x='", left, "' y='", top - 8, "'>", title, "</text>\n");
    }
}

void Panel::line(const Points& points, const std::string& style, const std::string& color) {
    svg_ += text("<polyline class='", style, "' stroke='", color, "' points='");
    for (const Point& p : thinned(points)) svg_ += text(pixel(x(p.x)), ",", pixel(y(p.y)), " ");
    svg_ += "'/>\n";
}

void Panel::dots(const Points& points, const std::string& color, const std::string& style) {
    const std::string of_class = style.empty() ? "" : text(" class='", style, "'");
    for (const Point& p : thinned(points)) {
        svg_ += text("<circle", of_class, " fill='", color, "' cx='", pixel(x(p.x)), "' cy='", pixel(y(p.y)),
                     "' r='4'/>\n");
    }
}

void Panel::level(const std::string& name, double value) {
    svg_ += text("<line class='level' x1='", frame_.left, "' x2='", frame_.right, "' y1='", y(value), "' y2='",
                 y(value), "'/>\n");
    for (const char* style : {"halo", "level"}) {   // drawn twice, because not every viewer knows paint-order
        svg_ += text("<text class='", style, "' text-anchor='end' x='", frame_.right - 4, "' y='", y(value) - 6, "'>",
                     xml(name), " ", number(value), "</text>\n");
    }
}

void Panel::mark(double value, const std::string& style, const std::string& tells) {
    svg_ += text("<line class='", style, "' x1='", pixel(x(value)), "' x2='", pixel(x(value)), "' y1='", frame_.top,
                 "' y2='", frame_.bottom, "'><title>", xml(tells), "</title></line>\n");
}

void Legend::add(const std::string& mark, std::string label) {
    if (label.size() > 90) label = label.substr(0, 87) + "...";
    const double width = 34 + 7.2 * static_cast<double>(label.size()) + 18;
    if (x_ > left_ && x_ + width > width_) x_ = left_, y_ += 20;
    svg_ +=
        text("<g transform='translate(", x_, ",", y_, ")'>", mark, "<text x='34' y='4'>", xml(label), "</text></g>\n");
    x_ += width;
}

std::string picture(double height, const Legend& legend, const std::string& panels) {
    return text("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 ", kPictureWidth, " ", height, "' width='",
                kPictureWidth, "' height='", height,
                "'>\n<style>text{font:13px sans-serif;fill:#333} text.title{font-weight:bold}\n",
                ".grid{stroke:#e4e4e4} polyline{fill:none;stroke-linejoin:round}\n",
                ".raw{stroke-width:1;stroke-opacity:0.3} .mean{stroke-width:2} .ideal{stroke-dasharray:6 4}\n",
                "line.level{stroke:#777;stroke-dasharray:6 4}\n",
                "text.level{fill:#555}text.halo{stroke:white;stroke-width:3}</style>\n<rect width='", kPictureWidth,
                "' height='", height, "' fill='white'/>\n", legend.svg(), panels, "</svg>\n");
}

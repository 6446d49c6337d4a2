// Draws curves as SVG, for pictures and for the page of runs.
#pragma once

#include <string>
#include <vector>

#include "llmc/report/records.h"

// Escapes a text for XML or HTML: no character is markup, and none is one that XML cannot hold.
std::string xml(const std::string& text);

// Prints a number shortly: 0.0003, 2.5, 468k, 1.2M, 10B.
std::string number(double value);

// Averages over a window centred on each point, wide enough to smooth the noise of single batches. It shrinks towards
// the beginning, where curves are steep; towards the end only its right half shrinks, so the last points are still
// smooth.
Points running_mean(const Points& points);

constexpr std::size_t kDrawnPoints = 1000;   // points drawn per curve; more cannot be told apart
// Keeps about `most` points, which rise in x: the lowest and the highest of each stretch, and the first and the last.
Points thinned(const Points& points, std::size_t most = kDrawnPoints);

struct Frame {
    double left, right, top, bottom;   // in pixels
};
struct Scale {
    double low, high;
    bool logarithmic = false;   // needs low > 0
};

struct PlotQuantity {
    bool from_zero;     // the axis begins at 0
    bool cuts_spikes;   // at twice the 99th percentile, so that a spike does not flatten the rest
};
// Returns the lowest and highest value with a margin; without values, 0 to 1.
Scale scale_of(std::vector<double> values, const PlotQuantity& what);

struct Tick {   // marks a value on an axis
    double value;
    std::string label;
};

// One quantity, drawn over x. Values outside a scale are drawn at its edge.
class Panel {
public:
    Panel(const Frame& frame, const Scale& x, const Scale& y) : frame_(frame), x_(x), y_(y) {}
    Panel(const Frame& frame, double last, const Scale& y) : Panel(frame, Scale{0, last}, y) {}   // x from 0 to `last`

    double x(double value) const;
    double y(double value) const;

    // Draws grid and numbers. `x_title`: empty if the panel below has it. Without `x_ticks`, the axis of x has even
    // ones.
    void axes(const std::string& title, const std::string& x_title);
    void axes(const std::string& title, const std::string& x_title, const std::vector<Tick>& x_ticks);
    // Draw a curve, thinned: a run of a million steps has a picture as small as any.
    void line(const Points& points, const std::string& style, const std::string& color);
    void dots(const Points& points, const std::string& color, const std::string& style = "");
    void level(const std::string& name, double value);
    // Draws a line from top to bottom; `tells` is shown when one points at it.
    void mark(double value, const std::string& style, const std::string& tells);

    const std::string& svg() const { return svg_; }

private:
    std::vector<double> y_ticks() const;

    Frame frame_;
    Scale x_, y_;
    std::string svg_;
};

// Explains the colors, in lines above the panels, where it covers nothing.
class Legend {
public:
    Legend(double left, double width) : left_(left), width_(width), x_(left) {}

    // `mark` is 26 wide. Labels are cut so that none is longer than a line.
    void add(const std::string& mark, std::string label);
    double bottom() const { return y_ + 12; }
    const std::string& svg() const { return svg_; }

private:
    double left_, width_, x_, y_ = 18;
    std::string svg_;
};

constexpr double kPictureWidth = 800;   // pixels, every picture's

// Returns an SVG file that is kPictureWidth wide and holds a legend and panels.
std::string picture(double height, const Legend& legend, const std::string& panels);

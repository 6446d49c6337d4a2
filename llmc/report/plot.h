// Curves as SVG: what a picture and a page of runs are drawn with.
#pragma once

#include <string>
#include <vector>

#include "llmc/report/records.h"

// As a part of an XML or HTML text: no character of it is markup, none is one that XML cannot hold.
std::string xml(const std::string& text);

// As few characters as tell it: 0.0003, 2.5, 468k, 1.2M, 10B.
std::string number(double value);

// Mean over a window centred on each point, wide enough to smooth the noise of single batches. It shrinks towards the
// begin, where curves are steep; the last points have none to their right, and are not left alone with their noise.
Points running_mean(const Points& points);

// At most about `most` of them: of each stretch the lowest and the highest, and the first and the last of all.
Points thinned(const Points& points, std::size_t most);

struct Frame {
    double left, right, top, bottom;   // in pixels
};
struct Scale {
    double low, high;
    bool logarithmic = false;   // then low is above 0
};

struct PlotQuantity {
    bool from_zero;     // its axis begins at 0
    bool cuts_spikes;   // a single spike does not flatten all the rest
};
// Lowest and highest of values with a margin; of none 0 to 1.
Scale scale_of(std::vector<double> values, const PlotQuantity& what);

// One quantity over the axis: x from 0 to `last`; what is above the scale is drawn at its edge.
class Panel {
public:
    Panel(const Frame& frame, double last, const Scale& scale) : frame_(frame), scale_(scale), last_(last) {}

    double x(double at) const;
    double y(double value) const;

    // `x_title`: empty where the panel below says it.
    void axes(const std::string& title, const std::string& x_title);
    void line(const Points& points, const std::string& style, const std::string& color);
    void dots(const Points& points, const std::string& color, const std::string& style = "");
    void level(const std::string& name, double at);
    // A line from top to bottom, with a text that is seen where one points at it.
    void mark(double at, const std::string& style, const std::string& tells);

    const std::string& svg() const { return svg_; }

private:
    std::vector<double> ticks() const;   // of the scale

    Frame frame_;
    Scale scale_;
    double last_;
    std::string svg_;
};

// What the colors stand for, in lines above the panels, where it covers nothing.
class Legend {
public:
    Legend(double left, double width) : left_(left), width_(width), x_(left) {}

    // `mark` is 26 wide; no label is so long that it reaches beyond a line.
    void add(const std::string& mark, std::string label);
    double bottom() const { return y_ + 12; }
    const std::string& svg() const { return svg_; }

private:
    double left_, width_, x_, y_ = 18;
    std::string svg_;
};

#include "llmc/base/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "llmc/base/exit_code.h"
#include "llmc/base/outlet.h"
#include "llmc/base/printable.h"

namespace {

std::string format_list(const char* format, std::va_list list) {
    std::va_list again;
    va_copy(again, list);
    int length = std::vsnprintf(nullptr, 0, format, again);
    va_end(again);
    std::string result(length > 0 ? static_cast<std::size_t>(length) : 0, '\0');
    std::vsnprintf(result.data(), result.size() + 1, format, list);
    return result;
}

// Columns of a terminal; 1000 if unknown.
std::size_t columns_of(std::FILE* file) {
    winsize size{};
    return ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 1000;
}

std::function<void(const std::string&)>& listener() {
    static std::function<void(const std::string&)> current;
    return current;
}

}   // namespace

WarningListener::WarningListener(std::function<void(const std::string&)> hears) { listener() = std::move(hears); }
WarningListener::~WarningListener() { listener() = nullptr; }

Log::Log(bool speaks, std::FILE* out, std::FILE* err) : out_(speaks ? out : nullptr), err_(speaks ? err : nullptr) {
    const char* kind = std::getenv("TERM");
    on_terminal_ = speaks && isatty(fileno(out)) && kind != nullptr && std::strcmp(kind, "dumb") != 0;
}

Log::~Log() {
    if (line_is_open_) put(out_, "");
}

void Log::put(std::FILE* file, const std::string& content) const {
    if (line_is_open_) {
        put_text(out_, "\n");
        line_is_open_ = false;
    }
    put_text(file, content);
}

void Log::progress(const std::string& line, bool due) const {
    if (out_ == nullptr) return;
    if (!on_terminal_) {
        if (due) put(out_, printable(line) + "\n");
        return;
    }
    line_is_open_ = false;
    put(out_,
        "\r" + printable(line).substr(0, columns_of(out_) - 1) + "\x1b[K");   // \x1b[K clears the rest of a longer line
    line_is_open_ = true;
}

void Log::line(const char* format, ...) const {
    if (out_ == nullptr) return;
    std::va_list list;
    va_start(list, format);
    put(out_, printable(format_list(format, list)) + "\n");
    va_end(list);
}

void Log::warning(const char* format, ...) const {
    if (err_ == nullptr) return;
    std::va_list list;
    va_start(list, format);
    const std::string words = printable(format_list(format, list));
    va_end(list);
    put(err_, "warning: " + words + "\n");
    if (listener()) listener()(words);
}

void Log::block(const std::string& lines) const {
    if (out_ != nullptr) put(out_, printable(lines.ends_with('\n') ? lines : lines + "\n"));
}

std::string formatted(const char* format, ...) {
    std::va_list list;
    va_start(list, format);
    std::string result = format_list(format, list);
    va_end(list);
    return result;
}

std::string size_text(double bytes) {
    return bytes < (1 << 30) ? formatted("%.1f MiB", bytes / (1 << 20)) : formatted("%.1f GiB", bytes / (1 << 30));
}

std::string duration_text(double seconds) {
    const long long s = std::llround(seconds);
    if (s < 60) return formatted("%llds", s);
    if (s < 3600) return formatted("%lldm%02llds", s / 60, s % 60);
    return formatted("%lldh%02lldm", s / 3600, s % 3600 / 60);
}

double steady_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
